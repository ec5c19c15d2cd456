//! `zpool set`.

use anyhow::bail;
use cenote_admin::{Lists, SetPoolRequest, SetVdevRequest};
use cenote_server::{Owned, ServerError};

use super::only_pool;
use crate::prelude::*;

/// Set a property of a pool: ashift, autoexpand, autoreplace, autotrim, bootfs, cachefile, comment, compatibility, delegation, failmode, listsnapshots,
/// multihost, or one with a colon in its name; or enable a feature: feature@NAME=enabled. Or set a property of a vdev.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The property and its value.
    #[arg(value_name = "PROPERTY=VALUE")]
    setting: String,
    /// The pool.
    pool: String,
    /// The vdev, for a property of a vdev: comment, checksum_n, checksum_t, io_n, io_t, slow_io_n, slow_io_t, slow_io_events, failfast,
    /// allocating, alloc_bias, path, autosit, sit_out, scheduler.
    vdev: Option<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { setting, pool, vdev } = args;
    only_pool(&pool)?;
    if let Some(vdev) = vdev {
        if setting.starts_with("sit_out=") && context.served().is_none() {
            let view = context.open_pool(&pool).await?;
            if let Some(socket) = context.owner_of(&view) {
                return Err(ServerError::Owned(Owned { pool, socket }).into());
            }
            bail!(
                "cannot set property for '{vdev}': a device sits out while a mount or a server has its pool, and none has '{pool}'"
            );
        }
        context.carry_out(&SetVdevRequest { setting, pool, vdev }).await?;
        return Ok(Outcome::Good);
    }
    match setting.strip_prefix("cachefile=") {
        // Of the list of imported pools, not of the pool itself.
        Some(value) => context.set_cachefile(&pool, value).await?,
        None => context.carry_out(&SetPoolRequest { setting, pool, lists: Lists(cenote_host::feature_list) }).await?,
    }
    Ok(Outcome::Good)
}
