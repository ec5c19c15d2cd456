//! Snapshots: taking them, holding them, going back to them, and what clones do for them.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_dsl::DslError;
use cenote_format::ids::Guid;
use cenote_spa::{NewSnapshot, Pool, SyncTask, Syncer};
use cenote_taskq::{BoxFuture, boxed};

use crate::error::{AdminError, Reason, Verb};

/// Takes snapshots with these full names, all in one txg, or none. They have all that was written before this is called. `properties`: each
/// a name and a text, of all of them.
///
/// # Errors
/// A dataset is not there, or has a snapshot of this name, or two snapshots of one dataset are named; or as [`Pool::take_snapshots`].
pub fn take_snapshots<'a>(
    pool: &'a Pool,
    names: &'a [String],
    properties: &'a [(String, String)],
) -> BoxFuture<'a, Result<(), AdminError>> {
    Box::pin(async move {
        let wanted = distinct(names).into_iter().map(|name| NewSnapshot {
            name,
            properties: properties.to_vec(),
            ..NewSnapshot::default()
        });
        pool.take_snapshots(wanted.collect()).await?;
        Ok(())
    })
}

/// A dataset and all below it that are no hidden ones, from the top down.
///
/// # Errors
/// There is none of this name, or the MOS cannot be read.
#[boxed]
pub async fn tree_names(pool: &Pool, dataset: &str) -> Result<Vec<String>, AdminError> {
    let dataset = dataset.to_owned();
    // Between two changes of the pool: of one that is half made a name may lead nowhere.
    let look = pool.look(move |syncer| {
        Box::pin(async move {
            let dsl = syncer.dsl().clone();
            let tree = dsl.tree(dsl.dir(&dataset).await?, false).await?;
            Ok::<_, AdminError>(tree.into_iter().map(|dir| dir.name).collect())
        })
    });
    look.await
}

/// Names in their order, each once.
fn distinct(names: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.iter().filter(|name| seen.insert(name.as_str())).cloned().collect()
}

/// The time that one step of destroying snapshots may take: as long as that the pool's other changes wait.
const STEP_MAX: Duration = Duration::from_millis(200);
/// Snapshots that one step looks at, at most.
const STEP_SNAPSHOTS: usize = 256;

/// Destroys snapshots, in as many steps as keep each short, since one of a dataset with a hundred thousand others takes long. All are checked
/// before the first one goes.
pub(crate) async fn destroy_in_steps(
    pool: &Pool,
    names: &[String],
    is_deferred: bool,
    told: &(dyn Fn(usize) + Send + Sync),
) -> Result<(), AdminError> {
    let mut left = DestroySnapshots::new(names, is_deferred).snapshots;
    if left.len() > STEP_SNAPSHOTS {
        left = pool.check_task(DestroySnapshots { snapshots: left, is_deferred }).await?.snapshots;
    }
    while !left.is_empty() {
        let rest = left.split_off(left.len().min(STEP_SNAPSHOTS));
        let before = left.len();
        left = pool.sync_task(DestroySnapshots { snapshots: left, is_deferred }).await?;
        assert!(left.len() < before, "each step destroys a snapshot");
        told(before - left.len());
        left.extend(rest);
    }
    Ok(())
}

/// A snapshot that is to be destroyed: its full name, and once it was looked at its guid. In between another may have got the name.
pub struct Going {
    name: String,
    guid: Option<Guid>,
}

/// Destroys snapshots: the first of them, as many as can be in a short time.
pub struct DestroySnapshots {
    snapshots: Vec<Going>,
    is_deferred: bool,
}

impl DestroySnapshots {
    /// Of these full names, in their order. `is_deferred`: those with holds or clones go with the last of them.
    #[must_use]
    pub fn new(names: &[String], is_deferred: bool) -> Self {
        let snapshots = distinct(names).into_iter().map(|name| Going { name, guid: None }).collect();
        Self { snapshots, is_deferred }
    }
}

impl SyncTask for DestroySnapshots {
    /// Those that are left, for another step. At least one fewer than before.
    type Made = Vec<Going>;
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for going in &mut self.snapshots {
                if going.guid.is_some() && !going.is_there(pool).await? {
                    continue;
                }
                let snapshot = pool.check_destroy_snapshot(&going.name, self.is_deferred).await?;
                going.guid = Some(snapshot.phys.guid);
            }
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<Vec<Going>, AdminError>> {
        Box::pin(async move {
            let begun = pool.now();
            let mut snapshots = std::mem::take(&mut self.snapshots).into_iter();
            for going in snapshots.by_ref() {
                // One that an earlier step has seen may have gone by itself.
                if going.is_there(pool).await? {
                    pool.destroy_snapshot(&going.name, self.is_deferred).await?;
                }
                if pool.now() - begun >= STEP_MAX {
                    break;
                }
            }
            Ok(snapshots.collect())
        })
    }
}

impl Going {
    /// Whether the snapshot that was looked at still has this name.
    async fn is_there(&self, pool: &Syncer) -> Result<bool, AdminError> {
        match pool.dsl().dataset(&self.name).await {
            Ok(found) => Ok(self.guid == Some(found.phys.guid)),
            Err(DslError::NoSuchDataset(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Has a clone and its origin change places ([`promote`](crate::promote)).
pub(crate) struct Promote(pub(crate) String);

impl SyncTask for Promote {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            pool.check_promote(&self.0).await?;
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move { Ok(pool.promote_dataset(&self.0).await?) })
    }
}

/// Has a head go back to its last snapshot ([`rollback`](crate::rollback)).
pub struct Rollback {
    pool: Pool,
    snapshot: String,
    /// Snapshots that are newer, which go first.
    newer: Vec<String>,
    /// Bookmarks that are newer, which go too.
    newer_bookmarks: Vec<String>,
    destroys_newer: bool,
}

impl Rollback {
    /// To a snapshot of this full name; `destroys_newer`: snapshots and bookmarks that are newer are destroyed.
    #[must_use]
    pub fn new(pool: &Pool, snapshot: &str, destroys_newer: bool) -> Self {
        Self {
            pool: pool.clone(),
            snapshot: snapshot.to_owned(),
            newer: Vec::new(),
            newer_bookmarks: Vec::new(),
            destroys_newer,
        }
    }
}

impl SyncTask for Rollback {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let dsl = pool.dsl().clone();
            let snapshot = dsl.dataset(&self.snapshot).await?;
            let head = dsl.head(&snapshot.dir).await?;
            let Some(head) = head.filter(|_| snapshot.is_snapshot()) else {
                return Err(AdminError::refused(Verb::Rollback, &self.snapshot, Reason::NoSnapshot));
            };
            if self.pool.is_used(head.object) || pool.is_long_held(head.object) || pool.has_log_in_use(head.object) {
                return Err(AdminError::refused(Verb::Rollback, &self.snapshot, Reason::Busy));
            }
            let later = dsl.snapshots(&head).await?;
            let later = later.into_iter().filter(|other| other.phys.creation_txg > snapshot.phys.creation_txg);
            // The newest first: each is the last when it goes.
            self.newer = later.map(|other| other.name()).collect();
            self.newer.reverse();
            let bookmarks = dsl.bookmarks(&head).await?.into_iter();
            let later = bookmarks.filter(|bookmark| bookmark.phys.creation_txg > snapshot.phys.creation_txg);
            self.newer_bookmarks = later.map(|bookmark| bookmark.name).collect();
            if !self.destroys_newer && self.newer.len() + self.newer_bookmarks.len() > 0 {
                let names = self.newer_bookmarks.iter().rev().chain(&self.newer).cloned().collect();
                return Err(AdminError::refused(Verb::Rollback, &self.snapshot, Reason::Newer(names)));
            }
            if self.newer.is_empty() {
                pool.check_rollback(&self.snapshot, true).await?;
                return Ok(());
            }
            let mut clones = Vec::new();
            for newer in &self.newer {
                clones.extend(dsl.clones(&dsl.dataset(newer).await?).await?);
            }
            // Of the hidden clone of a receive it is said below that it is in the way.
            clones.retain(|clone| !clone.contains('%'));
            if !clones.is_empty() {
                return Err(AdminError::refused(Verb::Rollback, &self.snapshot, Reason::ClonesOfNewer(clones)));
            }
            for newer in &self.newer {
                pool.check_destroy_snapshot(newer, false).await?;
            }
            // The head goes back whichever snapshot is its last.
            if let Some(last) = self.newer.first() {
                pool.check_rollback(last, true).await?;
            }
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for newer in &self.newer {
                pool.destroy_snapshot(newer, false).await?;
            }
            for newer in &self.newer_bookmarks {
                pool.destroy_bookmark(newer).await?;
            }
            pool.rollback_dataset(&self.snapshot).await?;
            Ok(())
        })
    }
}

/// Puts holds on snapshots, or takes them off: all, or none ([`hold`](crate::hold), [`release`](crate::release)).
pub(crate) struct Holds {
    tag: String,
    names: Vec<String>,
    releases: bool,
}

impl Holds {
    pub(crate) fn new(tag: &str, names: &[String], releases: bool) -> Self {
        Self { tag: tag.to_owned(), names: names.to_vec(), releases }
    }
}

/// Bytes of a hold's tag at most: it is a name in the snapshot's table of holds (`MAXNAMELEN` less the terminating zero). Temporary holds,
/// which are not placed here, are in a table of the pool too, with a prefix.
const TAG_MAX_BYTES: usize = 256 - 1;

impl SyncTask for Holds {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let verb = if self.releases { Verb::Release } else { Verb::Hold };
            if self.tag.is_empty() || self.tag.contains('\0') || self.tag.len() > TAG_MAX_BYTES {
                let first = self.names.first().map_or("", String::as_str);
                return Err(AdminError::refused(verb, first, Reason::TagTooLong));
            }
            let mut seen = BTreeSet::new();
            for name in &self.names {
                let snapshot = match pool.dsl().dataset(name).await {
                    Ok(snapshot) if snapshot.is_snapshot() => snapshot,
                    Ok(_) => return Err(AdminError::refused(verb, name, Reason::NoSnapshot)),
                    Err(DslError::NoSuchDataset(_)) => return Err(AdminError::refused(verb, name, Reason::NotThere)),
                    Err(error) => return Err(error.into()),
                };
                let holds = pool.dsl().holds(&snapshot).await?;
                // One that is named again is as it is after the first time.
                let is_held = holds.iter().any(|hold| hold.tag == self.tag) == seen.insert(snapshot.object);
                match (is_held, self.releases) {
                    (true, false) => return Err(AdminError::refused(verb, name, Reason::TagIsThere)),
                    (false, true) => return Err(AdminError::refused(verb, name, Reason::NoSuchTag)),
                    (true, true) => pool.check_release(name).await.map(drop)?,
                    (false, false) => {}
                }
            }
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for name in &self.names {
                match self.releases {
                    true => pool.release_snapshot(name, &self.tag).await?,
                    false => pool.hold_snapshot(name, &self.tag).await?,
                }
            }
            Ok(())
        })
    }
}
