//! Snapshots: taken, and destroyed.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_dsl::DslError;
use cenote_dsl::name::{check_new_snapshot, pool_of};
use cenote_format::ids::Guid;
use cenote_props::WrongUse;
use cenote_spa::{NewSnapshot, Pool, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Changed, Line, Request, Users};
use crate::values::{ValueError, check_once, snapshot_setting};

/// Takes snapshots with these full names, all in one txg, or none. They have all that was written before this is called. `properties`: each
/// a name and a text, of all of them.
///
/// # Errors
/// A dataset is not there, or has a snapshot of this name, or two snapshots of one dataset are named; or as [`Pool::take_snapshots`].
#[boxed]
pub async fn take_snapshots(pool: &Pool, names: &[String], properties: &[(String, String)]) -> Result<(), AdminError> {
    let wanted = distinct(names).into_iter().map(|name| NewSnapshot {
        name,
        properties: properties.to_vec(),
        ..NewSnapshot::default()
    });
    pool.take_snapshots(wanted.collect()).await?;
    Ok(())
}

/// Snapshots to be taken: `zfs snapshot`.
#[derive(Clone, Debug, Default)]
pub struct SnapshotRequest {
    /// Their names, `DATASET@NAME`.
    pub snapshots: Vec<String>,
    /// Of all datasets below too.
    pub recursive: bool,
    /// User properties of each, `PROPERTY=VALUE`.
    pub properties: Vec<String>,
}

impl SnapshotRequest {
    /// The properties of each.
    fn parsed(&self) -> Result<Vec<(String, String)>, AdminError> {
        let cannot = |reason: String| {
            AdminError::NoSnapshots(Box::new(AdminError::Said(format!("cannot create snapshots : {reason}"))))
        };
        check_once(&self.properties)?;
        let properties = self.properties.iter().map(|text| snapshot_setting(text)).collect::<Result<Vec<_>, _>>();
        let properties = properties.map_err(|error| match error {
            ValueError::Syntax(_) => error.into(),
            error => cannot(error.to_string()),
        })?;
        for name in &self.snapshots {
            if !name.contains('@') {
                return Err(WrongUse::new(format!("'{name}': missing '@' delimiter in snapshot name")).into());
            }
            check_new_snapshot(name).map_err(|reason| cannot(reason.to_string()))?;
            if pool_of(name) != pool_of(self.subject()) {
                return Err(cannot("snapshots must all be in the same pool".to_owned()));
            }
        }
        Ok(properties)
    }
}

impl Request for SnapshotRequest {
    type Made = ();

    fn subject(&self) -> &str {
        self.snapshots.first().map_or("", String::as_str)
    }

    fn check(&self) -> Result<(), AdminError> {
        self.parsed().map(drop)
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        let properties = self.parsed()?;
        let mut names = Vec::new();
        for (dataset, snapshot) in self.snapshots.iter().filter_map(|name| name.split_once('@')) {
            let of = tree_names(pool, dataset).await.map_err(|error| WrongUse::new(error.to_string()))?;
            let of = of.into_iter().take(if self.recursive { usize::MAX } else { 1 });
            names.extend(of.map(|dataset| format!("{dataset}@{snapshot}")));
        }
        let taken = take_snapshots(pool, &names, &properties).await;
        taken.map_err(|error| AdminError::NoSnapshots(Box::new(error)))?;
        let datasets = names.iter().filter_map(|name| Some(name.split_once('@')?.0.to_owned()));
        users.after(Changed::Datasets(&distinct(&datasets.collect::<Vec<_>>()))).await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs snapshot").flag(self.recursive, "-r").option("-o", &self.properties);
        Some(line.words(&self.snapshots))
    }
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
pub(crate) struct Doomed {
    name: String,
    guid: Option<Guid>,
}

/// Destroys snapshots: the first of them, as many as can be in a short time.
pub(crate) struct DestroySnapshots {
    snapshots: Vec<Doomed>,
    is_deferred: bool,
}

impl DestroySnapshots {
    /// Of these full names, in their order. `is_deferred`: those with holds or clones go with the last of them.
    pub(crate) fn new(names: &[String], is_deferred: bool) -> Self {
        let snapshots = distinct(names).into_iter().map(|name| Doomed { name, guid: None }).collect();
        Self { snapshots, is_deferred }
    }
}

impl SyncTask for DestroySnapshots {
    /// Those that are left, for another step. At least one fewer than before.
    type Made = Vec<Doomed>;
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for going in &mut self.snapshots {
            if going.guid.is_some() && !going.is_there(pool).await? {
                continue;
            }
            let snapshot = pool.check_destroy_snapshot(&going.name, self.is_deferred).await?;
            going.guid = Some(snapshot.phys.guid);
        }
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<Vec<Doomed>, AdminError> {
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
    }
}

impl Doomed {
    /// Whether the snapshot that was looked at still has this name.
    async fn is_there(&self, pool: &Syncer) -> Result<bool, AdminError> {
        match pool.dsl().dataset(&self.name).await {
            Ok(found) => Ok(self.guid == Some(found.phys.guid)),
            Err(DslError::NoSuchDataset(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
