//! `cenote version`, and the verb `version` of `zfs` and `zpool`.

use serde_json::{Value, json};

use crate::output::document;
use crate::prelude::*;

/// The version of OpenZFS whose command line, output and on-disk features are followed. Scripts read it from the first line of
/// `zfs version` to learn which features they can use.
const LIKE_OPENZFS: &str = "2.3.0";

/// Print the version.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {}

pub(crate) async fn run(context: &Context, _: Args) -> Result<Outcome> {
    context.out(format!("cenote {}\n", env!("CARGO_PKG_VERSION")))?;
    Ok(Outcome::Good)
}

/// Print the version of OpenZFS whose command line is followed, then Cenote's own.
///
/// There is no line for a kernel module, since none is used.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct ToolArgs {
    /// Print it as JSON.
    #[arg(short = 'j', long)]
    json: bool,
}

/// The verb of `tool`.
pub(crate) fn run_tool(context: &Context, tool: &str, args: &ToolArgs) -> Result<Outcome> {
    let userland = format!("zfs-{LIKE_OPENZFS}-cenote-{}", env!("CARGO_PKG_VERSION"));
    if args.json {
        let version = json!({ "userland": userland, "kernel": Value::Null });
        context.out(document(&format!("{tool} version"), [("zfs_version", version)]))?;
    } else {
        context.out(format!("{userland}\n"))?;
    }
    Ok(Outcome::Good)
}
