//! Going back to snapshots, and clones that change places with their origins.

use cenote_dsl::Dataset;
use cenote_dsl::name::is_at_or_below;
use cenote_spa::{Pool, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::destroy::{Destroy, Reach};
use crate::error::{AdminError, Reason, Verb};
use crate::request::{Changed, Going, Line, Request, Users};

/// A dataset to be rolled back to a snapshot: `zfs rollback`.
#[derive(Clone, Debug, Default)]
pub struct RollbackRequest {
    /// The snapshot.
    pub snapshot: String,
    /// Newer snapshots and bookmarks are destroyed.
    pub destroys_newer: bool,
    /// Their clones too, with everything that depends on those.
    pub destroys_clones: bool,
}

impl RollbackRequest {
    /// Rolls the dataset back: clones are released before, and its users wait.
    async fn roll(&self, pool: &Pool, users: &dyn Users, dataset: &str, clones: &[String]) -> Result<(), AdminError> {
        let is_newer = self.destroys_newer || self.destroys_clones;
        if is_newer {
            let is_below_clone = |name: &str| clones.iter().any(|clone| is_at_or_below(name, clone));
            let is_going = |held: &Dataset| held.dir.name == dataset || is_below_clone(&held.dir.name);
            let (verb, names) = (Verb::Destroy, clones);
            users.before(Going { verb, names, is_recursive: true, is_going: &is_going, is_dry: false }).await?;
        }
        // A snapshot that does not exist is refused before users have to wait.
        pool.dsl()?.dataset(&self.snapshot).await?;
        let suspended = users.suspend(dataset, &self.snapshot).await?;
        let mut went = destroy_clones(pool, clones, dataset).await;
        if went.is_ok() {
            went = rollback(pool, &self.snapshot, is_newer).await;
        }
        let resumed = suspended.resume().await;
        went.and(resumed)
    }
}

impl Request for RollbackRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.snapshot
    }

    fn check(&self) -> Result<(), AdminError> {
        match self.snapshot.contains('@') {
            true => Ok(()),
            false => Err(AdminError::no_snapshot_name(&self.snapshot)),
        }
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        self.check()?;
        let dataset = self.snapshot.split('@').next().unwrap_or_default().to_owned();
        let clones = match self.destroys_newer || self.destroys_clones {
            true => clones_of_newer(pool, &self.snapshot).await?,
            false => Vec::new(),
        };
        if !clones.is_empty() && !self.destroys_clones {
            return Err(AdminError::refused(Verb::Rollback, &self.snapshot, Reason::ClonesOfNewer(clones)));
        }
        let went = self.roll(pool, users, &dataset, &clones).await;
        // Users show again the datasets that they released, and the others as they are now.
        let shown = users.after(Changed::Datasets(&clones)).await;
        went.and(shown).and(users.after(Changed::Datasets(&[dataset])).await)
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs rollback").flag(self.destroys_clones, "-R");
        Some(line.flag(self.destroys_newer && !self.destroys_clones, "-r").word(&self.snapshot))
    }

    fn frees(&self, (): &()) -> bool {
        true
    }
}

/// Destroys clones with everything that depends on them. A clone may already be gone with another. Nothing is destroyed if that would destroy
/// the dataset that is rolled back: it may be below a clone.
async fn destroy_clones(pool: &Pool, clones: &[String], dataset: &str) -> Result<(), AdminError> {
    let task = |name: &str| Destroy::new(pool, name, Reach { recursive: true, clones: true });
    for name in clones {
        let goes_along = match is_at_or_below(dataset, name) {
            true => true,
            false => pool.check_task(task(name)).await?.names().iter().any(|going| going == dataset),
        };
        if goes_along {
            return Err(AdminError::Said(format!(
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

/// Rolls a dataset that is not open back to one of its snapshots. With `destroys_newer`, newer snapshots and bookmarks are destroyed;
/// otherwise they are an error.
///
/// # Errors
/// There is no such snapshot, there are newer ones, the dataset is in use; or as [`Pool::change`].
#[boxed]
pub async fn rollback(pool: &Pool, snapshot: &str, destroys_newer: bool) -> Result<(), AdminError> {
    pool.wait_logs_freed().await?;
    let task = pool.check_task(Rollback::new(pool, snapshot, destroys_newer)).await?;
    // Dirty data of the dataset is written first: it belongs to the tree that is freed.
    pool.sync().await?;
    pool.sync_task(task).await
}

/// The datasets that are clones of snapshots which are newer than a snapshot of the same dataset.
async fn clones_of_newer(pool: &Pool, snapshot: &str) -> Result<Vec<String>, AdminError> {
    let dsl = pool.dsl()?;
    let target = dsl.dataset(snapshot).await?;
    let head = dsl.head(&target.dir).await?;
    let Some(head) = head.filter(|_| target.is_snapshot()) else {
        return Err(AdminError::refused(Verb::Rollback, snapshot, Reason::NoSnapshot));
    };
    let mut clones = Vec::new();
    for other in dsl.snapshots(&head).await? {
        if other.phys.creation_txg > target.phys.creation_txg {
            clones.extend(dsl.clones(&other).await?);
        }
    }
    Ok(clones)
}

/// A clone to be promoted: `zfs promote`.
#[derive(Clone, Debug, Default)]
pub struct PromoteRequest(pub String);

impl Request for PromoteRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.0
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        let dsl = pool.dsl()?;
        let origin = dsl.dataset(&self.0).await?.dir.phys.origin;
        let origin = dsl.dataset_name(origin).await.unwrap_or_default();
        pool.sync_task(Promote(self.0.clone())).await?;
        let origin = origin.split('@').next().unwrap_or_default().to_owned();
        users.after(Changed::Datasets(&[self.0.clone(), origin])).await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zfs promote").word(&self.0))
    }
}

/// Has a clone and its origin change places ([`promote`](crate::promote)).
pub(crate) struct Promote(pub(crate) String);

impl SyncTask for Promote {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        pool.check_promote(&self.0).await?;
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        Ok(pool.promote_dataset(&self.0).await?)
    }
}

/// Has a head go back to its last snapshot ([`rollback`](crate::rollback())).
struct Rollback {
    pool: Pool,
    snapshot: String,
    /// Snapshots that are newer, which go first.
    newer: Vec<String>,
    /// Bookmarks that are newer, which go too.
    newer_bookmarks: Vec<String>,
    destroys_newer: bool,
}

impl Rollback {
    fn new(pool: &Pool, snapshot: &str, destroys_newer: bool) -> Self {
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

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
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
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for newer in &self.newer {
            pool.destroy_snapshot(newer, false).await?;
        }
        for newer in &self.newer_bookmarks {
            pool.destroy_bookmark(newer).await?;
        }
        pool.rollback_dataset(&self.snapshot).await?;
        Ok(())
    }
}
