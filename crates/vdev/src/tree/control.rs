//! Control of a pool's vdevs: who has it may change them.
//!
//! All that reads and writes blocks shares a [`VdevTree`]. What its vdevs are, which txgs they have missed and whether they are used is
//! changed by one owner alone, at times when no block is being written: the import, and then the sync of the pool. So those changes are
//! functions of a [`TreeControl`], which take it by `&mut`, and a tree gives out one at a time. A part of the sync that has the devices by
//! `&` (a slice of a job) cannot change them: the compiler says so.
//!
//! **Rejected.** *A lock*: it orders changes, and does not say who may make them. *The tree by value*: reads share it for as long as the pool is
//! open.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_format::ids::{Guid, Txg};

use super::node::Kind;
use super::node::LeafState;
use super::topology::Topology;
use super::{Retired, VdevTree};
use crate::config::VdevConfig;
use crate::disk::Disk;
use crate::dtl::Dtl;
use crate::error::VdevError;

/// The right to change a tree. Dropped, it can be had again.
#[derive(Debug)]
pub struct TreeControl {
    tree: Arc<VdevTree>,
}

impl VdevTree {
    /// The control of this tree; `None` while somebody has it.
    #[must_use]
    pub fn control(self: &Arc<Self>) -> Option<TreeControl> {
        (!self.is_controlled.swap(true, Ordering::AcqRel)).then(|| TreeControl { tree: self.clone() })
    }
}

impl Drop for TreeControl {
    fn drop(&mut self) {
        let was_controlled = self.tree.is_controlled.swap(false, Ordering::AcqRel);
        assert!(was_controlled, "a tree is controlled as long as its control is there");
    }
}

impl Deref for TreeControl {
    type Target = Arc<VdevTree>;

    fn deref(&self) -> &Arc<VdevTree> {
        &self.tree
    }
}

impl TreeControl {
    /// Has the vdevs be those of another configuration, while the pool is in use: [`super::topology`] has the theory. Vdevs that are there
    /// already keep their state, and top-level vdevs their ids; `disks` are those of leaves that are new. The caller ensures that no write
    /// is under way, repairs included ([`VdevTree::pause_mends`]).
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] as [`VdevTree::open`], or where a top-level vdev has lost its id; then nothing has changed.
    pub fn change(
        &mut self,
        config: &VdevConfig,
        disks: impl IntoIterator<Item = (Guid, Disk)>,
    ) -> Result<(), VdevError> {
        self.change_with(config, disks, []).map(drop)
    }

    /// As [`Self::change`], with txgs that leaves lack from the first read on. Returns what ends with the I/O that has begun before.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub fn change_with<'a>(
        &mut self,
        config: &VdevConfig,
        disks: impl IntoIterator<Item = (Guid, Disk)>,
        missed: impl IntoIterator<Item = (Guid, &'a Dtl)>,
    ) -> Result<Retired, VdevError> {
        debug_assert_eq!(self.common.mends.under_way(), 0, "no block is repaired at a change (topology, invariant 3)");
        let topology = Topology::new(config, disks, &self.common, Some(&self.topology()))?;
        for (guid, txgs) in missed {
            topology.lookup(guid).expect("a leaf that lacks txgs is one of the new topology").missed.absorb(txgs);
        }
        // Data that was copied through the old one may be on a leaf that the new one lacks.
        self.common.reflow.lost();
        let retired = self.current.swap(&topology);
        self.common.root.set_guid(config.guid);
        if self.suspension().is_some() {
            self.watch_devices();
        }
        Ok(retired)
    }

    /// Says which txgs a leaf has missed (its dirty time log). `false` if there is no such vdev.
    pub fn set_dtl(&mut self, guid: Guid, txgs: Dtl) -> bool {
        self.topology().lookup(guid).map(|node| node.missed.set(txgs)).is_some()
    }

    /// Says that a leaf has missed more txgs. `false` if there is no such vdev.
    pub fn add_dtl(&mut self, guid: Guid, txgs: &Dtl) -> bool {
        self.topology().lookup(guid).map(|node| node.missed.absorb(txgs)).is_some()
    }

    /// A leaf has made up for what it missed before a txg, or nothing needs it any more.
    pub fn mend_dtl(&mut self, guid: Guid, before: Txg) {
        if let Some(node) = self.topology().lookup(guid) {
            node.missed.remove(0..before.0);
        }
    }

    /// The sequential rebuild onto a leaf, or onto a distributed spare, has ended with it whole.
    pub fn rebuild_ended(&mut self, guid: Guid) {
        self.topology().lookup(guid).inspect(|node| node.missed.set_rebuilding(false));
    }

    /// Changes whether a leaf is used. `false` if there is no such leaf, or if it is to be used and was given up because it hangs, and has not
    /// answered yet what it was asked.
    pub fn set_leaf_state(&mut self, guid: Guid, state: LeafState) -> bool {
        match self.topology().lookup(guid).map(|node| &node.kind) {
            Some(Kind::Leaf(leaf)) => {
                if state.is_readable() && leaf.watch().is_some_and(|watch| !watch.take_back()) {
                    return false;
                }
                leaf.set_state(state);
                self.common.reflow.lost();
                true
            }
            _ => false,
        }
    }
}
