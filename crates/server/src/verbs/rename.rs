//! `zfs rename`.

use cenote_admin::{create_filesystem_of, outermost_new, tree_names};
use cenote_dsl::name::{check_new_dataset, check_new_snapshot, is_below, parent_of};
use cenote_taskq::boxed;

use crate::error::{Result, ServerError, refused};
use crate::writing::Writing;
use crate::{Session, writing};

/// A request to rename a dataset or snapshot.
#[derive(Clone, Debug, Default)]
pub struct RenameRequest {
    /// The dataset or snapshot.
    pub from: String,
    /// Its new name; for a snapshot also only the part from the `@` on, or after it.
    pub to: String,
    /// Snapshots of this name of all datasets below.
    pub recursive: bool,
    /// Missing file systems above the new name are created.
    pub parents: bool,
    /// Flags without effect here, for the record in the history (`-f`, `-u`).
    pub flags: Vec<&'static str>,
}

impl RenameRequest {
    fn line(&self) -> String {
        let flags = [(self.recursive, "-r"), (self.parents, "-p")];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        let flags = flags.chain(self.flags.iter().copied());
        writing::line(["zfs", "rename"].into_iter().chain(flags).chain([self.from.as_str(), self.to.as_str()]))
    }
}

/// Renames a dataset or snapshot. Mounts and volumes of this process then have the new name.
///
/// # Errors
/// The name is taken or not valid; or as [`Pool::rename_dataset`](cenote_spa::Pool::rename_dataset).
#[boxed]
pub async fn rename(session: &Session, pool: Writing, request: &RenameRequest) -> Result<()> {
    let RenameRequest { from, to, .. } = request;
    if let Some((dataset, snapshot)) = from.split_once('@')
        && pool.pool().dsl()?.find_dir(from).await?.is_none()
    {
        return rename_snapshot(session, pool, request, dataset, snapshot).await;
    }
    let outermost = outermost_new(pool.pool(), to).await?;
    if request.parents {
        make_above(session, &pool, from, to).await?;
    }
    let (old, new) = (from.clone(), to.clone());
    let volumes = session.served_volumes().cloned();
    let step = pool.step(move |syncer| {
        Box::pin(async move {
            syncer.rename_dataset(&old, &new).await?;
            if let Some(volumes) = volumes {
                volumes.names_changed();
            }
            Ok::<_, ServerError>(())
        })
    });
    step.await?;
    pool.finish(request.line()).await?;
    session.datasets_changed(&[from.clone(), outermost]).await;
    Ok(())
}

/// Creates the missing file systems above a new name, if the dataset can move there at all.
async fn make_above(session: &Session, pool: &Writing, from: &str, to: &str) -> Result<()> {
    pool.pool().dsl()?.dataset(from).await?;
    let is_of_pool = to.split('/').next() == from.split('/').next();
    // The rename reports an invalid name.
    if let Some(above) = parent_of(to)
        && is_of_pool
        && !is_below(to, from)
        && check_new_dataset(to).is_ok()
        && above.contains('/')
    {
        create_filesystem_of(pool.pool(), above, Vec::new(), true, session.owner()).await?;
    }
    Ok(())
}

async fn rename_snapshot(
    session: &Session,
    pool: Writing,
    request: &RenameRequest,
    dataset: &str,
    snapshot: &str,
) -> Result<()> {
    let RenameRequest { from, to, recursive, parents, flags } = request;
    if *parents || flags.contains(&"-u") {
        return Err(refused(format!("cannot open '{from}': snapshot delimiter '@' is not expected here")));
    }
    let found = pool.pool().dsl()?.dataset(from).await?;
    let new = match to.split_once('@') {
        None => to,
        Some((head, new)) if head.is_empty() || head == dataset => new,
        Some(_) => return Err(refused(format!("cannot rename to '{to}': snapshots must be part of same dataset"))),
    };
    if to == from {
        return Ok(());
    }
    if let Err(reason) = check_new_snapshot(&format!("{dataset}@{new}")) {
        return Err(refused(format!("cannot rename to '{to}': {reason}")));
    }
    debug_assert!(found.is_snapshot(), "a name with an '@' that is no directory's is a snapshot's");
    pool.pool().rename_snapshots(dataset, snapshot, new, *recursive).await?;
    if let Some(volumes) = session.served_volumes() {
        volumes.names_changed();
    }
    let datasets = match recursive {
        true => tree_names(pool.pool(), dataset).await?,
        false => vec![dataset.to_owned()],
    };
    pool.finish(request.line()).await?;
    session.datasets_changed(&datasets).await;
    Ok(())
}
