//! `zfs version`.

use anyhow::Result;

use crate::commands::version;
use crate::context::Context;
use crate::outcome::Outcome;

pub(crate) use crate::commands::version::ToolArgs as Args;

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    version::run_tool(context, "zfs", &args)
}
