//! `zpool set`.

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::writing::{finish, line, open_for_writing, pool_setting};

/// Set a property of a pool: autoexpand, autoreplace, autotrim, comment, delegation, failmode, listsnapshots, or one with a
/// colon in its name.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The property and its value.
    #[arg(value_name = "PROPERTY=VALUE")]
    setting: String,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (name, value) =
        pool_setting(&args.setting).map_err(|error| anyhow!("cannot set property for '{}': {error:#}", args.pool))?;
    let mut pool = open_for_writing(context, &args.pool).await?;
    pool.set_pool_property(&name, value.as_ref()).await?;
    finish(pool, &line(["zpool", "set", &args.setting, &args.pool])).await?;
    Ok(Outcome::Good)
}
