//! `zfs rollback`.

use anyhow::Result;
use cenote_admin::rollback;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{Writing, line};

/// Have a file system or volume be as it was when its last snapshot was taken. What it has had since is gone.
///
/// The dataset must not be mounted or served to clients meanwhile.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Destroy snapshots that are newer.
    #[arg(short = 'r')]
    destroys_newer: bool,
    /// Not yet: destroy clones of those too.
    #[arg(short = 'R', hide = true)]
    destroys_clones: bool,
    /// Accepted for the sake of scripts: nothing is unmounted.
    #[arg(short = 'f')]
    force: bool,
    /// The snapshot.
    snapshot: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.destroys_clones {
        return Err(usage("not supported yet: -R; clones of newer snapshots are destroyed by 'zfs destroy'"));
    }
    let Some((dataset, _)) = args.snapshot.split_once('@') else {
        return Err(usage(format!("'{}' is no snapshot", args.snapshot)));
    };
    let dataset = dataset.to_owned();
    let pool = Writing::open(context, pool_of(&args.snapshot)).await?;
    if let Some(volumes) = context.served_volumes() {
        // Volumes that no client has any more are closed.
        volumes.lock().await.close_unused();
    }
    context.release(std::slice::from_ref(&dataset), "rollback").await?;
    if args.destroys_newer {
        context.let_go(|held| held.dir.name == dataset).await?;
    }
    let went = rollback(pool.pool(), &args.snapshot, args.destroys_newer).await;
    context.datasets_changed(std::slice::from_ref(&dataset)).await;
    went?;
    pool.work_off(context, "freeing").await?;
    let words = ["zfs", "rollback", if args.destroys_newer { "-r" } else { "" }, args.snapshot.as_str()];
    pool.finish(line(words)).await?;
    Ok(Outcome::Good)
}
