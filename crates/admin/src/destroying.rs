//! `zfs destroy`: datasets, snapshots (by names, lists and ranges), and bookmarks.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_dsl::name::is_at_or_below;
use cenote_dsl::{Dataset, DslError};
use cenote_format::dsl::DatasetFlags;
use cenote_props::WrongUse;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::bookmark::DestroyBookmarks;
use crate::destroy::{Destroy, Reach, check_goes_alone};
use crate::error::{AdminError, Verb};
use crate::named::{NamedSnapshots, clones_of, still_there};
use crate::request::{Changed, Going, Line, Request, Users};
use crate::snapshot::{DestroySnapshots, destroy_in_steps, tree_names};

/// The datasets, snapshots or bookmark to be destroyed.
pub struct DestroyRequest<'a> {
    /// A dataset, snapshots as `DATASET@NAMES`, or a bookmark.
    pub name: String,
    /// Snapshots with holds or clones are destroyed with the last of these.
    pub is_deferred: bool,
    /// Nothing is destroyed.
    pub is_dry: bool,
    /// Also snapshots and datasets below; for snapshots, those with the same name below. Also clones of the snapshots.
    pub reach: Reach,
    /// The caller is told the names of everything destroyed.
    pub tells_names: bool,
    /// The caller.
    pub caller: &'a dyn DestroyCaller,
}

/// The caller of a destroy. Without functions of its own it hears nothing.
pub trait DestroyCaller: Sync {
    /// Reports something destroyed.
    ///
    /// # Errors
    /// It cannot be reported: nothing more is destroyed.
    fn goes(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    /// Reports the bytes that this frees.
    fn frees(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// Reports the number of snapshots about to be destroyed. The returned function gets the number destroyed since.
    fn begins(&self, _count: u64) -> Box<dyn Fn(u64) + Send + Sync> {
        Box::new(|_| ())
    }
}

impl DestroyCaller for () {}

impl DestroyRequest<'_> {
    /// To destroy a dataset, snapshot or bookmark alone, for a caller that hears nothing.
    #[must_use]
    pub fn new(name: String) -> Self {
        Self { name, is_deferred: false, is_dry: false, reach: Reach::default(), tells_names: false, caller: &() }
    }
}

impl Request for DestroyRequest<'_> {
    /// True if blocks are freed after it.
    type Made = bool;

    fn subject(&self) -> &str {
        &self.name
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<bool, AdminError> {
        let bookmark = self.name.split_once('#').filter(|(of, _)| !of.contains('@'));
        let is_dataset = pool.dsl()?.find_dir(&self.name).await?.is_some();
        match (bookmark, self.name.split_once('@')) {
            (Some((of, bookmark)), _) if !is_dataset => self.bookmark(pool, of, bookmark).await.map(|()| false),
            (_, Some((of, spec))) if !is_dataset => self.snapshots(pool, users, of, spec).await.map(|()| true),
            _ if self.is_deferred => Err(WrongUse::new("'-d' is for snapshots").into()),
            _ => {
                let destroyed = self.dataset(pool, users).await;
                // Datasets that still exist are shown again.
                let shown = users.after(Changed::Datasets(std::slice::from_ref(&self.name))).await;
                destroyed.and(shown).map(|()| true)
            }
        }
    }

    fn history_line(&self) -> Option<Line> {
        let Reach { recursive, clones } = self.reach;
        let line = Line::new("zfs destroy").flag(self.is_deferred, "-d").flag(recursive, "-r").flag(clones, "-R");
        (!self.is_dry).then(|| line.word(&self.name))
    }

    fn frees(&self, frees: &bool) -> bool {
        *frees
    }
}

impl DestroyRequest<'_> {
    async fn bookmark(&self, pool: &Pool, of: &str, bookmark: &str) -> Result<(), AdminError> {
        let is_recursive = self.reach.recursive || self.reach.clones;
        let flags = [(self.is_dry, "dryrun"), (self.is_deferred, "defer destroy"), (is_recursive, "recursive")];
        if let Some((_, flag)) = flags.iter().find(|(is_set, _)| *is_set) {
            return Err(AdminError::Said(format!("{flag} is not supported with bookmark")));
        }
        let dsl = pool.dsl()?;
        let found = match dsl.dataset(of).await {
            Ok(head) => dsl.bookmark(&head, bookmark).await?,
            Err(DslError::NoSuchDataset(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let absent = || AdminError::NotThere(format!("bookmark '{}' does not exist.", self.name));
        pool.sync_task(DestroyBookmarks(vec![found.ok_or_else(absent)?.name])).await
    }

    /// Destroys a dataset, with as much below it as is to go.
    async fn dataset(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        if !self.reach.recursive && !self.reach.clones {
            check_goes_alone(pool, &self.name).await?;
        }
        let is_going = |held: &Dataset| {
            let goes_with_clone = held.phys.flags.contains(DatasetFlags::DEFER_DESTROY);
            goes_with_clone || self.reach.clones || is_at_or_below(&held.dir.name, &self.name)
        };
        if !self.name.contains('/') {
            // The root remains, and its snapshots go with all below it.
            self.ask(users, std::slice::from_ref(&self.name), false, &is_going).await?;
        }
        // OpenZFS unmounts them too: a mount that shows them nested uses them.
        let names = self.outermost(pool).await?;
        self.ask(users, &names, true, &is_going).await?;
        pool.wait_logs_freed().await?;
        self.make(pool, &self.name, self.reach, self.tells_names).await
    }

    async fn ask(
        &self,
        users: &dyn Users,
        names: &[String],
        is_recursive: bool,
        is_going: &(dyn Fn(&Dataset) -> bool + Sync),
    ) -> Result<(), AdminError> {
        users.before(Going { verb: Verb::Destroy, names, is_recursive, is_going, is_dry: self.is_dry }).await
    }

    /// Destroys a dataset with its dependents, or only checks that. `tells`: their names are told before.
    async fn make(&self, pool: &Pool, name: &str, reach: Reach, tells: bool) -> Result<(), AdminError> {
        let mut task = Destroy::new(pool, name, reach);
        if tells || self.is_dry {
            task = pool.check_task(task).await?;
            // Datasets that an interrupted receive has left are not told.
            let is_told = |name: &&String| self.tells_names && !name.contains("/%");
            task.names().iter().filter(is_told).try_for_each(|name| self.caller.goes(name))?;
        }
        match self.is_dry {
            true => Ok(()),
            false => pool.sync_task(task).await,
        }
    }

    /// The outermost datasets to be destroyed. The pool's own root dataset is destroyed only with the pool.
    async fn outermost(&self, pool: &Pool) -> Result<Vec<String>, AdminError> {
        if self.name.contains('/') {
            return Ok(vec![self.name.clone()]);
        }
        let below = tree_names(pool, &self.name).await?;
        let goes_on = self.reach.recursive || self.reach.clones;
        let is_child = |below: &String| goes_on && below.matches('/').count() == 1;
        Ok(below.into_iter().filter(is_child).collect())
    }

    /// Destroys snapshots of a dataset that match `spec`.
    async fn snapshots(&self, pool: &Pool, users: &dyn Users, of: &str, spec: &str) -> Result<(), AdminError> {
        let datasets = match self.reach.recursive || self.reach.clones {
            true => tree_names(pool, of).await?,
            false => vec![of.to_owned()],
        };
        let found = NamedSnapshots::found(pool, datasets.clone(), spec.to_owned(), self.tells_names).await?;
        let NamedSnapshots { names, reclaimed_bytes } = found;
        if names.is_empty() {
            let what = "could not find any snapshots to destroy; check snapshot names.";
            return Err(AdminError::NotThere(what.to_owned()));
        }
        // Clones are shown again that remain, since the verb fails or is dry.
        let clones = if self.reach.clones { clones_of(pool, names.clone()).await? } else { Vec::new() };
        let changed: Vec<String> = datasets.into_iter().chain(clones.iter().cloned()).collect();
        let destroyed = self.named_snapshots(pool, users, names, reclaimed_bytes, &clones).await;
        match destroyed {
            Ok(false) if clones.is_empty() => Ok(()),
            Err(error) if clones.is_empty() && !matches!(error, AdminError::Partly { .. }) => Err(error),
            destroyed => {
                let shown = users.after(Changed::Datasets(&changed)).await;
                destroyed.map(drop).and(shown)
            }
        }
    }

    /// Destroys the clones of snapshots, if they are to go, and the snapshots. True if it is more than a question.
    async fn named_snapshots(
        &self,
        pool: &Pool,
        users: &dyn Users,
        mut names: Vec<String>,
        reclaimed_bytes: u64,
        clones: &[String],
    ) -> Result<bool, AdminError> {
        self.clones(pool, users, clones).await?;
        if self.tells_names {
            names.iter().try_for_each(|name| self.caller.goes(name))?;
            self.caller.frees(reclaimed_bytes)?;
        }
        if self.reach.clones && !self.is_dry {
            names = still_there(pool, names).await?;
        }
        self.ask(users, &names, false, &|held| names.contains(&held.name())).await?;
        if self.is_dry {
            if !self.reach.clones {
                pool.check_task(DestroySnapshots::new(&names, self.is_deferred)).await?;
            }
            return Ok(false);
        }
        self.all(pool, &names).await.map(|()| true)
    }

    async fn all(&self, pool: &Pool, names: &[String]) -> Result<(), AdminError> {
        let done = AtomicUsize::new(0);
        let advance = self.caller.begins(names.len() as u64);
        let told = |count: usize| {
            done.fetch_add(count, Ordering::Relaxed);
            advance(count as u64);
        };
        let destroyed = destroy_in_steps(pool, names, self.is_deferred, &told).await;
        drop(advance);
        match done.into_inner() {
            0 => destroyed,
            done => destroyed.map_err(|error| AdminError::Partly { done, count: names.len(), source: Box::new(error) }),
        }
    }

    /// Destroys clones, with everything that depends on them.
    async fn clones(&self, pool: &Pool, users: &dyn Users, clones: &[String]) -> Result<(), AdminError> {
        for clone in clones {
            // It was destroyed together with another clone.
            if pool.dsl()?.find_dir(clone).await?.is_none() {
                continue;
            }
            self.ask(users, std::slice::from_ref(clone), true, &|_| true).await?;
            pool.wait_logs_freed().await?;
            self.make(pool, clone, Reach { recursive: true, clones: true }, true).await?;
        }
        Ok(())
    }
}
