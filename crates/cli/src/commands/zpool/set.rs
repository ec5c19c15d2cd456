//! `zpool set`.

use cenote_admin::SetPoolRequest;

use crate::prelude::*;

/// Set a property of a pool: autoexpand, autoreplace, autotrim, bootfs, cachefile, comment, delegation, failmode,
/// listsnapshots, multihost, or one with a colon in its name; or enable a feature: feature@NAME=enabled.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The property and its value.
    #[arg(value_name = "PROPERTY=VALUE")]
    setting: String,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { setting, pool } = args;
    match setting.strip_prefix("cachefile=") {
        // Of the list of imported pools, not of the pool itself.
        Some(value) => context.set_cachefile(&pool, value).await?,
        None => context.carry_out(&SetPoolRequest { setting, pool }).await?,
    }
    Ok(Outcome::Good)
}
