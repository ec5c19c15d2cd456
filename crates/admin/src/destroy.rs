//! Destroying datasets, with their snapshots and what is below them.
//!
//! Datasets and snapshots are destroyed in the order of their dependence: a dataset after its snapshots and the datasets below it, a snapshot
//! after its clones.

use std::collections::BTreeSet;

use cenote_dsl::Dsl;
use cenote_format::enums::ObjsetType;
use cenote_spa::{Pool, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::error::{AdminError, Reason, Verb};

/// The dependents that are destroyed with a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Its snapshots, the datasets below it and theirs (`-r`).
    pub recursive: bool,
    /// Also clones of those snapshots, wherever they are (`-R`).
    pub clones: bool,
}

/// Destroys a dataset, or a tree of them: [`destroy`](crate::destroy()).
pub(crate) struct Destroy {
    pool: Pool,
    name: String,
    reach: Reach,
    names: Vec<String>,
}

/// A file system may have '@' in its own name by other software's rules.
async fn is_snapshot(pool: &Syncer, name: &str) -> Result<bool, AdminError> {
    Ok(name.contains('@') && pool.dsl().find_dir(name).await?.is_none())
}

/// Whether nothing depends on a dataset but what a receive that was interrupted has left of it (`%recv`).
async fn has_only_left_over(pool: &Syncer, name: &str) -> Result<bool, AdminError> {
    let dsl = pool.dsl();
    let Some(dir) = dsl.find_dir(name).await? else { return Ok(false) };
    let children = dsl.children(&dir, true).await?;
    let Some(head) = dsl.head(&dir).await? else { return Ok(false) };
    let is_left_over = |(child, _): &(String, _)| child.starts_with('%');
    Ok(!children.is_empty() && children.iter().all(is_left_over) && dsl.snapshots(&head).await?.is_empty())
}

/// Refuses to destroy a dataset alone that has snapshots or datasets below it: to be asked before its users have to let go of it.
///
/// # Errors
/// It has some, or there is none of this name; or as [`Pool::look`].
pub(crate) async fn check_goes_alone(pool: &Pool, name: &str) -> Result<(), AdminError> {
    let name = name.to_owned();
    let look = pool.look(move |syncer| {
        Box::pin(async move {
            let dataset = syncer.dsl().dataset(&name).await?;
            if dataset.dir.phys.parent.0 != 0 && !has_only_left_over(syncer, &name).await? {
                syncer.check_childless(&dataset).await?;
            }
            Ok::<_, AdminError>(())
        })
    });
    look.await
}

/// A dataset that goes, and the names of those that have to go before.
struct Doomed {
    name: String,
    dependents: Vec<String>,
}

impl Destroy {
    /// The task.
    pub(crate) fn new(pool: &Pool, name: &str, reach: Reach) -> Self {
        let reach = Reach { recursive: reach.recursive || reach.clones, ..reach };
        Self { pool: pool.clone(), name: name.to_owned(), reach, names: Vec::new() }
    }

    /// Once checked: the datasets and snapshots that go, in their order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// All that goes, in no order.
    async fn doomed(&self, pool: &Syncer) -> Result<Vec<Doomed>, AdminError> {
        let dsl = pool.dsl();
        let (mut left, mut seen, mut doomed) = (vec![self.name.clone()], BTreeSet::new(), Vec::new());
        while let Some(top) = left.pop() {
            for dir in dsl.tree(dsl.dir(&top).await?, true).await? {
                // The pool's own datasets go with the pool alone.
                if dir.name.contains("/$") || !seen.insert(dir.object) {
                    continue;
                }
                let mut dependents = Vec::new();
                for (child, _) in dsl.children(&dir, true).await?.iter().filter(|(child, _)| !child.starts_with('$')) {
                    dependents.push(format!("{}/{child}", dir.name));
                }
                if let Some(head) = dsl.head(&dir).await? {
                    for snapshot in dsl.snapshots(&head).await? {
                        let clones = dsl.clones(&snapshot).await?;
                        if self.reach.clones {
                            left.extend(clones.iter().cloned());
                        }
                        dependents.push(snapshot.name());
                        doomed.push(Doomed { name: snapshot.name(), dependents: clones });
                    }
                }
                if dir.name.contains('/') {
                    doomed.push(Doomed { name: dir.name, dependents });
                }
            }
        }
        Ok(doomed)
    }

    /// Puts what goes in order. Where something depends on it that does not go, that is named.
    async fn in_order(&self, dsl: &Dsl, mut doomed: Vec<Doomed>) -> Result<Vec<String>, AdminError> {
        let (mut gone, mut names) = (BTreeSet::new(), Vec::new());
        while !doomed.is_empty() {
            let (ready, left): (Vec<_>, Vec<_>) =
                doomed.into_iter().partition(|of| of.dependents.iter().all(|dependent| gone.contains(dependent)));
            if ready.is_empty() {
                let going: BTreeSet<&String> = left.iter().map(|of| &of.name).chain(&gone).collect();
                let others = left.iter().flat_map(|of| &of.dependents).filter(|name| !going.contains(name));
                let others: BTreeSet<String> = others.cloned().collect();
                let clones = others.into_iter().collect();
                let is_volume = match dsl.dataset(&self.name).await {
                    Ok(dataset) => dsl.kind(&dataset).await? == ObjsetType::Zvol,
                    Err(_) => false,
                };
                let kind = if is_volume { "volume" } else { "filesystem" };
                return Err(AdminError::refused(Verb::Destroy, &self.name, Reason::Clones { kind, clones }));
            }
            for of in ready {
                gone.insert(of.name.clone());
                names.push(of.name);
            }
            doomed = left;
        }
        Ok(names)
    }
}

impl SyncTask for Destroy {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        if !self.reach.recursive {
            // Said in OpenZFS's words.
            pool.dsl().dataset(&self.name).await?;
        }
        let has_left_over = !self.reach.recursive && has_only_left_over(pool, &self.name).await?;
        self.names = match self.reach.recursive || has_left_over {
            true => self.in_order(pool.dsl(), self.doomed(pool).await?).await?,
            false => vec![self.name.clone()],
        };
        let mut heads = Vec::new();
        for name in &self.names {
            let dataset = match is_snapshot(pool, name).await? {
                true => pool.check_snapshot_goes(name, false).await?,
                false => pool.check_destroy(name, self.reach.recursive || has_left_over).await?,
            };
            heads.extend((!dataset.is_snapshot()).then(|| dataset.clone()));
            if self.pool.is_used(dataset.object) || pool.has_log_in_use(dataset.object) {
                return Err(AdminError::refused(Verb::Destroy, name, Reason::Busy));
            }
        }
        pool.check_origins_go(&heads).await?;
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        let mut gone = BTreeSet::new();
        for name in &self.names {
            match is_snapshot(pool, name).await? {
                // It was to go with the last of its clones.
                true if gone.contains(name) => {}
                true => pool.destroy_snapshot(name, false).await?,
                false => gone.extend(pool.destroy_with_origin(name).await?),
            }
        }
        Ok(())
    }
}
