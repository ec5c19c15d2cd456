//! Datasets and snapshots that a package's sender has no more, or has under other names.
//!
//! Datasets and snapshots are known by the guids of snapshots. Local ones are gone through one after the other: a snapshot that the sender
//! has not is destroyed (`-F`), one with another name is renamed; a dataset of which the sender has no snapshot is destroyed (`-F`), one that
//! stands below another parent or has another last name is renamed; one that is a clone of another snapshot than its counterpart is promoted.
//! Where a name is still somebody else's, or what is to go still has clones, another pass may find it free: as long as a pass gets anywhere.

use std::io::Read;

use cenote_dsl::name::{parent_and_last, parent_of};
use cenote_spa::Pool;

use super::error::ReceiveError;
use super::list::{List, Sent};
use super::request::Told;
use super::run::Run;
use crate::{AdminError, Reach, destroy, destroy_snapshots, promote};

/// The beginning of names that datasets and snapshots have until they can have their own.
const ASIDE: &str = "recv-";
/// Passes at most; each makes at least one change.
const PASSES_MAX: u32 = 1 << 16;

/// A dataset that is here.
struct Local {
    name: String,
    parent_from: u64,
    origin: u64,
    /// Name, guid and txg of each snapshot, oldest first.
    snapshots: Vec<(String, u64, u64)>,
}

/// The datasets at and below one.
async fn gather(pool: &Pool, top: &str, from: &str) -> Result<Vec<Local>, AdminError> {
    let dsl = pool.dsl()?;
    let Some(dir) = dsl.find_dir(top).await? else { return Ok(Vec::new()) };
    let mut found: Vec<Local> = Vec::new();
    for dir in dsl.tree(dir, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        let snapshots = dsl.snapshots(&head).await?;
        let snapshots: Vec<_> = snapshots
            .into_iter()
            .map(|of| (of.snapshot.clone().unwrap_or_default(), of.phys.guid.0, of.phys.creation_txg.0))
            .collect();
        let above = parent_of(&dir.name);
        let parent = found.iter().find(|other| Some(other.name.as_str()) == above);
        let parent_from = parent.and_then(|parent| parent.snapshots.iter().find(|(name, ..)| name == from));
        let origin = match dir.phys.origin {
            object if object.0 == 0 || object == dsl.origin() => 0,
            object => dsl.dataset_phys(object).await?.guid.0,
        };
        found.push(Local {
            name: dir.name,
            parent_from: parent_from.map_or(0, |(_, guid, _)| *guid),
            origin,
            snapshots,
        });
    }
    Ok(found)
}

/// Something is to be changed.
enum Change {
    DestroySnapshot(String),
    RenameSnapshot { from: String, to: String },
    DestroyDataset(String),
    Promote(String),
    RenameDataset { from: String, to: String },
}

/// The promotion of a clone that was promoted at the sender: the older of the two snapshots is still the origin here.
fn promotion(dataset: &Local, sent: &Sent, local: &[Local]) -> Option<Change> {
    let txg = |guid: u64| {
        let all = local.iter().flat_map(|other| &other.snapshots);
        all.filter(|(_, other, _)| *other == guid).map(|(.., txg)| *txg).next()
    };
    let is_promoted = dataset.origin != 0
        && txg(dataset.origin).is_some()
        && (sent.origin == 0 || txg(sent.origin) < txg(dataset.origin));
    is_promoted.then(|| Change::Promote(dataset.name.clone()))
}

/// The renaming of a dataset that has another parent or another last name at the sender.
fn renaming(dataset: &Local, sent: &Sent, top: &str, local: &[Local]) -> Option<Change> {
    let last = |name: &str| parent_and_last(name).map(|(_, last)| last.to_owned());
    let is_moved = sent.parent_from != 0 && dataset.parent_from != 0 && sent.parent_from != dataset.parent_from;
    let (here, there) = (last(&dataset.name), last(&sent.name));
    let is_renamed = dataset.name != top && here.is_some() && there.is_some() && here != there;
    if !is_moved && !is_renamed {
        return None;
    }
    let mut has_parent =
        local.iter().filter(|other| other.snapshots.iter().any(|(_, guid, _)| *guid == sent.parent_from));
    let to = format!("{}/{}", has_parent.next()?.name, there?);
    (to != dataset.name).then(|| Change::RenameDataset { from: dataset.name.clone(), to })
}

impl<R: Read> Run<'_, R> {
    /// Has datasets at and below one be as the list says. False if something could not be changed.
    pub(super) async fn make_changes(&mut self, top: &str, list: &List) -> Result<bool, ReceiveError> {
        if self.request.is_dry {
            return Ok(true);
        }
        for _ in 0..PASSES_MAX {
            let from = list.from_snapshot.as_deref().unwrap_or_default();
            let local = gather(self.pool, top, from).await?;
            let (mut is_left, mut has_progress) = (false, false);
            for change in self.plan(top, list, &local) {
                match self.make_change(&change).await {
                    Ok(()) => has_progress = true,
                    Err(error) => {
                        is_left = true;
                        has_progress |= self.step_aside(&change, top).await;
                        if self.request.is_verbose {
                            self.caller.told(Told::Out(format!("failed ({error}) - will try again on next pass")));
                        }
                    }
                }
            }
            if !is_left && !has_progress {
                return Ok(true);
            }
            if !has_progress {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// The changes that are wanted of the local datasets, in their order.
    fn plan(&mut self, top: &str, list: &List, local: &[Local]) -> Vec<Change> {
        let mut changes = Vec::new();
        for dataset in local {
            let counterpart = dataset.snapshots.iter().find_map(|(_, guid, _)| list.find(*guid));
            if let Some((sent, _)) = counterpart
                && sent.origin != dataset.origin
            {
                changes.extend(promotion(dataset, sent, local));
                continue;
            }
            let has_from = self.plan_snapshots(list, dataset, &mut changes);
            match counterpart {
                None if self.request.is_forced && dataset.name != top => {
                    changes.push(Change::DestroyDataset(dataset.name.clone()));
                }
                None => {}
                Some((sent, _)) if has_from => changes.extend(renaming(dataset, sent, top, local)),
                Some(_) => {
                    let from = list.from_snapshot.as_deref().unwrap_or_default();
                    self.tell(format!(
                        "local fs {} does not have fromsnap ({from} in stream); must have been deleted locally; ignoring",
                        dataset.name
                    ));
                }
            }
        }
        changes
    }

    /// The changes of a dataset's snapshots. Returns true if it has the one that the package builds on.
    fn plan_snapshots(&self, list: &List, dataset: &Local, changes: &mut Vec<Change>) -> bool {
        let mut has_from = false;
        let of = |name: &str| format!("{}@{name}", dataset.name);
        for (name, guid, _) in &dataset.snapshots {
            match list.find(*guid) {
                None if self.request.is_forced => changes.push(Change::DestroySnapshot(of(name))),
                None => {}
                Some((_, sent)) => {
                    if sent != name {
                        changes.push(Change::RenameSnapshot { from: of(name), to: of(sent) });
                    }
                    has_from |= Some(sent) == list.from_snapshot.as_deref();
                }
            }
        }
        has_from
    }

    async fn make_change(&mut self, change: &Change) -> Result<(), AdminError> {
        let dataset = match change {
            Change::DestroyDataset(name) | Change::Promote(name) => name,
            Change::RenameDataset { from, .. } => from,
            Change::DestroySnapshot(name) | Change::RenameSnapshot { from: name, .. } => {
                name.split('@').next().unwrap_or(name)
            }
        };
        self.caller.lets_go(dataset).await;
        let mut tell = |text: String| {
            if self.request.is_verbose {
                self.caller.told(Told::Out(text));
            }
        };
        match change {
            Change::DestroySnapshot(name) => {
                tell(format!("attempting destroy {name}"));
                destroy_snapshots(self.pool, std::slice::from_ref(name), false, &|_| ()).await
            }
            Change::DestroyDataset(name) => {
                tell(format!("attempting destroy {name}"));
                destroy(self.pool, name, Reach { recursive: false, clones: false }).await
            }
            Change::Promote(name) => {
                tell(format!("promoting {name}"));
                promote(self.pool, name).await
            }
            Change::RenameDataset { from, to } | Change::RenameSnapshot { from, to } => {
                tell(format!("attempting rename {from} to {to}"));
                self.pool.wait_logs_freed().await?;
                Ok(self.pool.rename_dataset(from, to).await?)
            }
        }
    }

    /// Moves what cannot have its name yet out of the way of others, under a name of no sender's (`recv-...`); another pass gives it its own.
    async fn step_aside(&mut self, change: &Change, top: &str) -> bool {
        let (from, aside) = match change {
            Change::RenameDataset { from, .. } => (from, format!("{top}/{ASIDE}")),
            Change::RenameSnapshot { from, .. } => {
                (from, format!("{}@{ASIDE}", from.split('@').next().unwrap_or(from)))
            }
            _ => return false,
        };
        // It has stepped aside already.
        if from.starts_with(&aside) {
            return false;
        }
        self.aside += 1;
        let to = format!("{aside}{}-{}", self.pool.txg(), self.aside);
        if self.request.is_verbose {
            self.caller.told(Told::Out(format!("failed - trying rename {from} to {to}")));
        }
        self.pool.rename_dataset(from, &to).await.is_ok()
    }
}
