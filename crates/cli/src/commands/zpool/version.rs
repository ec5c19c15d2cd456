//! `zpool version`.

use crate::commands::version;
use crate::prelude::*;

pub(crate) use crate::commands::version::ToolArgs as Args;

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    version::run_tool(context, "zpool", &args)
}
