//! `zfs rollback`.

use cenote_admin::{Destroy, Reach, clones_of_newer};
use cenote_dsl::Dataset;
use cenote_dsl::name::is_at_or_below;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::Session;
use crate::error::{Result, ServerError, refused};
use crate::writing::{Writing, line};

/// Rolls a dataset back to a snapshot. Its users in this process wait meanwhile, and then see the state of the snapshot. `destroys_newer`: newer
/// snapshots and bookmarks are destroyed; `destroys_clones`: their clones too, with everything that depends on those.
///
/// # Errors
/// There is no such snapshot, newer ones or clones are in the way, or the dataset is below such a clone; or as [`cenote_admin::rollback`].
#[boxed]
pub async fn rollback(
    session: &Session,
    pool: Writing,
    snapshot: &str,
    destroys_newer: bool,
    destroys_clones: bool,
) -> Result<()> {
    let dataset = snapshot.split('@').next().unwrap_or(snapshot).to_owned();
    let is_newer = destroys_newer || destroys_clones;
    let clones = match destroys_clones {
        true => clones_of_newer(pool.pool(), snapshot).await?,
        false => Vec::new(),
    };
    if destroys_newer && !destroys_clones {
        // The same check as when destroying, in the words of this verb.
        let standing = clones_of_newer(pool.pool(), snapshot).await?;
        if !standing.is_empty() {
            return Err(refused(format!(
                "cannot rollback to '{snapshot}': clones of previous snapshots exist\nuse '-R' to force deletion of the following clones \
                 and dependents:\n{}",
                standing.join("\n")
            )));
        }
    }
    session.release(&clones, "destroy").await?;
    if is_newer {
        let is_going = |held: &Dataset| {
            held.dir.name == dataset || clones.iter().any(|clone| is_at_or_below(&held.dir.name, clone))
        };
        session.let_go(is_going).await?;
    }
    // A snapshot that does not exist is refused before users have to wait.
    pool.pool().dsl()?.dataset(snapshot).await?;
    let mut suspended = session.suspend(&dataset).await?;
    let went = async {
        pool.pool().wait_logs_freed().await?;
        suspended.note_changes(pool.pool(), &dataset, snapshot).await?;
        destroy_clones(pool.pool(), &clones, &dataset).await?;
        Ok::<_, ServerError>(cenote_admin::rollback(pool.pool(), snapshot, is_newer).await?)
    };
    let went = went.await;
    let resumed = suspended.resume().await;
    session.datasets_changed(&clones).await;
    session.datasets_changed(std::slice::from_ref(&dataset)).await;
    went?;
    resumed?;
    pool.work_off(session, "freeing").await?;
    let flag = if destroys_clones { Some("-R") } else { destroys_newer.then_some("-r") };
    pool.finish(line(["zfs", "rollback"].into_iter().chain(flag).chain([snapshot]))).await
}

/// Destroys clones with everything that depends on them. A clone may already be gone with another. Nothing is destroyed if that would destroy
/// the dataset that is rolled back: it may be below a clone.
async fn destroy_clones(pool: &Pool, clones: &[String], dataset: &str) -> Result<()> {
    let task = |name: &str| Destroy::new(pool, name, Reach { recursive: true, clones: true });
    for name in clones {
        let goes_along = match is_at_or_below(dataset, name) {
            true => true,
            false => pool.check_task(task(name)).await?.names().iter().any(|going| going == dataset),
        };
        if goes_along {
            return Err(refused(format!(
                "cannot rollback '{dataset}': it is below '{name}', which would have to be destroyed; rename one of them"
            )));
        }
    }
    for name in clones {
        if pool.dsl()?.find_dir(name).await?.is_some() {
            pool.sync_task(task(name)).await?;
        }
    }
    Ok(())
}
