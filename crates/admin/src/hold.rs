//! Holds on snapshots.

use std::collections::BTreeSet;

use cenote_dsl::name::pool_of;
use cenote_dsl::{Dsl, DslError};
use cenote_props::WrongUse;
use cenote_spa::{Pool, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::error::{AdminError, Reason, Verb};
use crate::request::{Going, Line, Request, Users};
use crate::snapshot::tree_names;

/// Holds to put on snapshots, or to release: `zfs hold`, `zfs release`.
#[derive(Clone, Debug, Default)]
pub struct HoldRequest {
    /// They are released.
    pub releases: bool,
    /// Also on snapshots with the same name of all datasets below.
    pub recursive: bool,
    /// The tag.
    pub tag: String,
    /// The snapshots.
    pub snapshots: Vec<String>,
}

impl HoldRequest {
    /// Changes the holds on one snapshot; with `-r` also on those with the same name below, all or none.
    async fn change_one(&self, pool: &Pool, users: &dyn Users, name: &str) -> Result<(), AdminError> {
        let Some((dataset, snapshot)) = name.split_once('@') else {
            return Err(AdminError::Said(format!("'{name}' is not a snapshot")));
        };
        if pool_of(dataset) != pool.name() {
            let what = format!("not supported yet: snapshots of several pools in one command ('{name}')");
            return Err(AdminError::Said(what));
        }
        let tree = tree_names(pool, dataset).await?;
        let mut names = vec![name.to_owned()];
        if self.recursive {
            let (tag, snapshot) = (self.releases.then(|| self.tag.clone()), snapshot.to_owned());
            let found = pool.look(move |syncer| {
                Box::pin(async move {
                    let found = with_snapshot(syncer.dsl(), &tree, &snapshot, tag.as_ref()).await;
                    found.map_err(AdminError::from)
                })
            });
            let found = found.await?;
            // If there is none at all, the first is refused.
            if !found.is_empty() {
                names = found;
            }
        }
        if self.releases {
            // Snapshots that are to be destroyed with their last hold.
            let is_going = |held: &cenote_dsl::Dataset| names.contains(&held.name());
            let going =
                Going { verb: Verb::Release, names: &names, is_recursive: false, is_going: &is_going, is_dry: false };
            users.before(going).await?;
        }
        pool.sync_task(Holds::new(&self.tag, &names, self.releases)).await
    }
}

impl Request for HoldRequest {
    /// The number of snapshots that it failed for: a failure, which is told, does not stop the others.
    type Made = usize;

    fn subject(&self) -> &str {
        self.snapshots.first().map_or("", String::as_str)
    }

    fn check(&self) -> Result<(), AdminError> {
        match !self.releases && self.tag.starts_with('.') {
            true => Err(WrongUse::new("tag may not start with '.'").into()),
            false => Ok(()),
        }
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<usize, AdminError> {
        self.check()?;
        let mut failed = 0;
        for name in &self.snapshots {
            if let Err(error) = self.change_one(pool, users, name).await {
                users.tell(&cenote_props::chain(&error));
                failed += 1;
            }
        }
        Ok(failed)
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new(if self.releases { "zfs release" } else { "zfs hold" }).flag(self.recursive, "-r");
        Some(line.word(&self.tag).words(&self.snapshots))
    }

    fn is_void(&self, failed: &usize) -> bool {
        *failed >= self.snapshots.len()
    }
}

/// The snapshots with this name of these datasets. `tag`: only those with a hold of this tag.
async fn with_snapshot(
    dsl: &Dsl,
    datasets: &[String],
    snapshot: &str,
    tag: Option<&String>,
) -> Result<Vec<String>, DslError> {
    let mut found = Vec::new();
    for dataset in datasets {
        let name = format!("{dataset}@{snapshot}");
        let there = match dsl.dataset(&name).await {
            Err(DslError::NoSuchDataset(_)) => continue,
            there => there?,
        };
        let is_meant = match tag {
            Some(tag) => dsl.holds(&there).await?.iter().any(|hold| hold.tag == *tag),
            None => true,
        };
        found.extend(is_meant.then_some(name));
    }
    Ok(found)
}

/// Puts holds on snapshots, or takes them off: all, or none ([`hold`](crate::hold()), [`release`](crate::release)).
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

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
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
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for name in &self.names {
            match self.releases {
                true => pool.release_snapshot(name, &self.tag).await?,
                false => pool.hold_snapshot(name, &self.tag).await?,
            }
        }
        Ok(())
    }
}
