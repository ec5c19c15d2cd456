//! Snapshots as people name them: lists and ranges of names, of one dataset or of a tree.

use cenote_dsl::{Dataset, Dsl, DslError};
use cenote_spa::Pool;

use crate::error::{AdminError, Reason, Verb};

type Result<T> = std::result::Result<T, AdminError>;

/// The snapshots that a list of names and ranges means.
pub(crate) struct NamedSnapshots {
    /// Their names.
    pub(crate) names: Vec<String>,
    /// The bytes that they alone have, where that was asked for.
    pub(crate) reclaimed_bytes: u64,
}

impl NamedSnapshots {
    /// Those of these datasets, between two changes of the pool: others may destroy snapshots too. With `counts` also the bytes that they
    /// alone have.
    ///
    /// # Errors
    /// A range has several ends, or the pool cannot be read.
    pub(crate) async fn found(pool: &Pool, datasets: Vec<String>, spec: String, counts: bool) -> Result<Self> {
        let look =
            pool.look(move |syncer| Box::pin(async move { Self::of(syncer.dsl(), &datasets, &spec, counts).await }));
        look.await
    }

    async fn of(dsl: &Dsl, datasets: &[String], spec: &str, counts: bool) -> Result<Self> {
        let mut going = Self { names: Vec::new(), reclaimed_bytes: 0 };
        for name in datasets {
            let dir = match dsl.dir(name).await {
                // Destroyed since the tree was looked at.
                Err(DslError::NoSuchDataset(_)) if datasets.len() > 1 => continue,
                dir => dir?,
            };
            let Some(head) = dsl.head(&dir).await? else { continue };
            let snapshots = dsl.snapshots(&head).await?;
            let is_chosen = chosen(&snapshots, spec)?;
            let mut at = 0;
            for run in is_chosen.chunk_by(|before, after| before == after) {
                let some = &snapshots[at..at + run.len()];
                at += run.len();
                let (true, Some(first), Some(last)) = (run[0], some.first(), some.last()) else { continue };
                if counts {
                    going.reclaimed_bytes += dsl.would_free_bytes(first, last).await?;
                }
                going.names.extend(some.iter().map(Dataset::name));
            }
        }
        Ok(going)
    }
}

/// Those snapshots that are there: one that was to be destroyed with the last of its clones has gone with that.
pub(crate) async fn still_there(pool: &Pool, names: Vec<String>) -> Result<Vec<String>> {
    let look = pool.look(move |syncer| {
        Box::pin(async move {
            let mut left = Vec::new();
            for name in names {
                match syncer.dsl().dataset(&name).await {
                    Err(DslError::NoSuchDataset(_)) => {}
                    found => {
                        found?;
                        left.push(name);
                    }
                }
            }
            Ok(left)
        })
    });
    look.await
}

/// The clones of these snapshots.
pub(crate) async fn clones_of(pool: &Pool, snapshots: Vec<String>) -> Result<Vec<String>> {
    let look = pool.look(move |syncer| {
        Box::pin(async move {
            let (dsl, mut clones) = (syncer.dsl(), Vec::new());
            for name in &snapshots {
                clones.extend(dsl.clones(&dsl.dataset(name).await?).await?);
            }
            Ok(clones)
        })
    });
    look.await
}

/// Of a dataset's snapshots in the order of their creation, true for those that a list of names and ranges means.
fn chosen(snapshots: &[Dataset], spec: &str) -> Result<Vec<bool>> {
    let place = |name: &str| snapshots.iter().position(|snapshot| snapshot.snapshot.as_deref() == Some(name));
    let mut is_chosen = vec![false; snapshots.len()];
    for part in spec.split(',') {
        let Some((first, last)) = part.split_once('%') else {
            place(part).into_iter().for_each(|at| is_chosen[at] = true);
            continue;
        };
        if last.contains('%') {
            return Err(AdminError::refused(Verb::Destroy, spec, Reason::Range));
        }
        let (from, to) = (place(first), place(last));
        let (from, to) = match (first.is_empty(), from, last.is_empty(), to) {
            (true, _, true, _) => (0, snapshots.len()),
            (true, _, false, Some(to)) => (0, to + 1),
            (false, Some(from), true, _) => (from, snapshots.len()),
            (false, Some(from), false, Some(to)) => (from, to + 1),
            // A dataset below need not have both.
            _ => continue,
        };
        is_chosen.iter_mut().take(to).skip(from).for_each(|is_chosen| *is_chosen = true);
    }
    Ok(is_chosen)
}
