//! The devices of a pool that is written, and what they say of it: labels, configuration, uberblocks.
//!
//! **Invariants.**
//! 1. The vdev tree has the vdevs of the configuration, and the configuration those of the tree (asserted by `audit`).
//! 2. The uberblock that was last written is of the last txg on disk (asserted in `txg`).
//! 3. The vdevs change between txgs or by the sync, and never in a slice of a job, which has this room by `&` ([`TreeControl`]).
//! 4. A change of the vdevs is in labels and configuration of the same txg: `config_changed` says that it is still to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_format::ids::{Guid, ObjectId};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_vdev::commit::LeafCommit;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::error::VdevError;
use cenote_vdev::ring::Ring;
use cenote_vdev::tree::{LeafState, TreeControl, VdevTree};

use super::multihost::Multihost;
use super::vdev_config::{RootVdev, set};
use crate::events::diagnosis::Verdict;
use crate::{FoundPool, Refusal, SpaError};

/// The reason of a leaf's state that is recorded with it (`aux_state`): its errors.
const EXCEEDED: &str = "err_exceeded";
/// The fields of a leaf that record what was diagnosed.
const DIAGNOSED: [&str; 3] = ["faulted", "degraded", AUX_STATE];
const AUX_STATE: &str = "aux_state";

/// Takes out of a leaf's configuration what was diagnosed.
fn undiagnosed(list: &mut NvList) {
    for name in DIAGNOSED {
        list.remove(name);
    }
}

/// The same of a leaf of these vdevs.
pub(crate) fn forget_diagnosis(root_vdev: &mut RootVdev, leaf: Guid) -> Result<(), VdevError> {
    root_vdev.change_vdev(leaf, &mut undiagnosed)
}

/// Whether a leaf is the spare that was taken last, and neither it nor anything beside it is used.
fn is_last_hope(spare: &VdevConfig, leaf: &VdevConfig, states: &BTreeMap<Guid, LeafState>) -> bool {
    assert_eq!(spare.kind, VdevKind::Spare, "spares stand below a vdev of their kind");
    let is_used = |guid: Guid| matches!(states.get(&guid), Some(LeafState::Online | LeafState::Degraded));
    let is_last = spare.children.last().is_some_and(|last| last.guid == leaf.guid);
    is_last && leaf.is_spare && spare.leaves().iter().all(|leaf| !is_used(leaf.guid))
}

/// The devices of a pool.
pub(crate) struct Devices {
    /// The vdevs as labels and configuration describe them.
    pub(crate) root_vdev: RootVdev,
    /// The same as blocks are read and written through them. This pool's sync alone changes them.
    pub(crate) tree: TreeControl,
    /// The configuration as it was found: what is not known here stays as it is.
    pub(crate) old_config: NvList,
    /// Where the newest uberblock stands, and the next one goes.
    pub(crate) ring: Ring,
    /// Multihost writes, which show others that the pool is in use.
    pub(crate) multihost: Multihost,
    /// Where an expansion stood, as uberblocks say.
    pub(crate) raidz_reflow: u64,
    /// The devices, as they were found when the pool was opened.
    pub(crate) found: FoundPool,
    /// The root that was last written.
    pub(crate) synced: Option<Uberblock>,
    /// The configuration has to be written.
    pub(crate) config_changed: bool,
    /// Labels of devices that are the pool's no more once the txg is on disk: they get them then.
    pub(crate) freed_labels: Vec<LeafCommit>,
    /// Spares that were given back, and do not have the labels of free ones yet.
    pub(crate) leaving: BTreeSet<Guid>,
}

impl Devices {
    /// Those of a pool that is made: nothing is on them yet.
    pub(crate) fn new(root_vdev: RootVdev, tree: &Arc<VdevTree>, multihost: Multihost, found: FoundPool) -> Self {
        let tree = tree.control().expect("the import has ended, and a pool is written by one");
        Self {
            root_vdev,
            tree,
            old_config: NvList::new(),
            ring: Ring::default(),
            multihost,
            raidz_reflow: 0,
            found,
            synced: None,
            // Labels say who has the pool, from its first txg here on.
            config_changed: true,
            freed_labels: Vec::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// The table with a vdev's properties: that of the root, of a top-level vdev, or of a leaf, in this order (`vdev_prop_get_objid`).
    pub(crate) fn zap_of(&self, vdev: Guid) -> Result<ObjectId, SpaError> {
        let mut found = None;
        self.root_vdev.config.walk(&mut |of| {
            if of.guid == vdev {
                found = Some([of.root_zap, of.top_zap, of.leaf_zap].into_iter().find(|object| *object != ObjectId(0)));
            }
        });
        match found {
            Some(Some(object)) => Ok(object),
            Some(None) => Err(SpaError::unsupported("properties of a vdev without a table for them".to_owned())),
            None => Err(SpaError::refused(Refusal::NotThere, "no such device in pool")),
        }
    }

    /// Carries out a verdict about a leaf, unless it is as good as done. The reason, for a person.
    pub(crate) fn condemn(&mut self, leaf: Guid, verdict: Verdict) -> Result<Option<String>, VdevError> {
        let is_above = |top: &VdevConfig| top.leaves().iter().any(|of| of.guid == leaf);
        let Some((vdev, top)) = self.root_vdev.tops().find(|(_, top)| is_above(top)) else { return Ok(None) };
        let before = self.tree.leaf_states().into_iter().find(|(guid, _)| *guid == leaf).map(|(_, state)| state);
        let name = top.leaves().into_iter().find(|of| of.guid == leaf).map(|of| of.display_name()).unwrap_or_default();
        // Blocks of intent logs are elsewhere soon.
        let is_log = top.class == AllocationClass::Log;
        let is_needed = !is_log && !self.tree.outage(vdev, &BTreeSet::from([leaf])).is_empty();
        let (state, field, told) = match (before, verdict) {
            (Some(LeafState::Online | LeafState::Degraded), Verdict::Fault) if !is_needed => {
                (LeafState::Faulted, "faulted", "has failed too many requests and is not used any more (FAULTED)")
            }
            (Some(LeafState::Online), Verdict::Fault) => (
                LeafState::Degraded,
                "degraded",
                "has failed too many requests; it is used on, since no other has all of its data (DEGRADED)",
            ),
            (Some(LeafState::Online), Verdict::Degrade) => {
                (LeafState::Degraded, "degraded", "has answered with wrong bytes, or late, too often (DEGRADED)")
            }
            _ => return Ok(None),
        };
        if !self.tree.set_leaf_state(leaf, state) {
            // It hangs, and was given up since it was looked up.
            return Ok(None);
        }
        if state == LeafState::Faulted {
            // A log may have written what no other leaf took, before this one was not asked any more.
            if !is_log && !self.tree.outage(vdev, &BTreeSet::new()).is_empty() {
                self.tree.set_leaf_state(leaf, before.unwrap_or(LeafState::Online));
                return self.condemn(leaf, Verdict::Degrade);
            }
            // Neither labels nor uberblocks are written to it any more: it has missed each txg from now on.
            self.root_vdev.disks.remove(&leaf);
        }
        self.root_vdev.change_vdev(leaf, &mut |list| {
            undiagnosed(list);
            set(list, field, 1_u64);
            set(list, AUX_STATE, EXCEEDED);
        })?;
        self.config_changed = true;
        Ok(Some(format!(
            "device {name} {told}; 'zpool status' shows its errors, and 'zpool clear' forgets them once it is well"
        )))
    }

    /// Leaves that are to have a hot spare: of vdevs for data, failed or not there, and without one.
    pub(crate) fn wants_spare(&self) -> Vec<Guid> {
        let mut found = Vec::new();
        let all = self.tree.leaf_states();
        let states: BTreeMap<Guid, LeafState> = all.iter().copied().collect();
        for (leaf, state) in all {
            let root_vdev = &self.root_vdev;
            let (Some((above, vdev)), Some((_, top))) = (root_vdev.vdev(leaf), root_vdev.top_of(leaf)) else {
                continue;
            };
            let parent = above.last();
            let is_below = parent.is_some_and(|above| matches!(above.kind, VdevKind::Spare | VdevKind::Replacing));
            // A spare that has failed, below which nothing else works, is no help.
            let is_last =
                parent.is_some_and(|above| above.kind == VdevKind::Spare && is_last_hope(above, vdev, &states));
            if (is_below && !is_last) || vdev.state.offline || top.class != AllocationClass::Normal {
                continue;
            }
            let has_failed = match state {
                // Nothing can be copied from it.
                LeafState::Faulted | LeafState::Unavailable => top.guid != leaf,
                LeafState::Degraded => root_vdev.is_recorded(leaf, AUX_STATE, EXCEEDED),
                LeafState::Online | LeafState::Offline => false,
            };
            if has_failed {
                found.push(leaf);
            }
        }
        found
    }

    /// True for a leaf that is not used any more because of its errors. Its device is open, and its labels may have gone meanwhile.
    pub(crate) fn is_condemned(&self, leaf: Guid) -> bool {
        !self.root_vdev.disks.contains_key(&leaf)
            && self.found.leaves.contains_key(&leaf)
            && self.root_vdev.is_recorded(leaf, AUX_STATE, EXCEEDED)
    }

    /// Leaves that a person has had faulted. Those that failed are for [`Self::pardon`].
    pub(crate) fn faulted_by_person(&self) -> Vec<Guid> {
        let states = self.tree.leaf_states().into_iter();
        let faulted = states.filter(|(_, state)| *state == LeafState::Faulted).map(|(guid, _)| guid);
        faulted.filter(|guid| !self.root_vdev.is_recorded(*guid, AUX_STATE, EXCEEDED)).collect()
    }

    /// Has condemned leaves used again: this one, or all. Which. A spare that stands for one goes when it has everything.
    pub(crate) fn pardon(&mut self, leaf: Option<Guid>) -> Result<Vec<Guid>, VdevError> {
        let mut pardoned = Vec::new();
        for (guid, state) in self.tree.leaf_states() {
            let is_meant = leaf.is_none_or(|leaf| leaf == guid);
            let is_condemned = matches!(state, LeafState::Degraded | LeafState::Faulted);
            // Not one that was faulted by a person.
            if !is_meant || !is_condemned || !self.root_vdev.is_recorded(guid, AUX_STATE, EXCEEDED) {
                continue;
            }
            if !self.tree.set_leaf_state(guid, LeafState::Online) {
                // It hangs: a late write could land on what is written now.
                continue;
            }
            self.root_vdev.change_vdev(guid, &mut undiagnosed)?;
            self.root_vdev.unspare(guid)?;
            let is_open = self.tree.leaf_states().contains(&(guid, LeafState::Online));
            if let Some(found) = self.found.leaves.get(&guid).filter(|_| is_open) {
                self.root_vdev.disks.insert(guid, found.disk.clone());
            } else {
                // It was closed when the pool got other vdevs, and is opened anew.
                self.found.leaves.remove(&guid);
            }
            self.config_changed = true;
            pardoned.push(guid);
        }
        Ok(pardoned)
    }
}
