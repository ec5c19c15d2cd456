//! The devices of a pool that is written, and what they say of it: labels, configuration, uberblocks.
//!
//! **Invariants.**
//! 1. The vdev tree has the vdevs of the configuration, and the configuration those of the tree (asserted by `audit`).
//! 2. The uberblock that was last written is of the last txg on disk (asserted in `txg`).
//! 3. The vdevs change between txgs or by the sync, and never in a slice of a job, which has this room by `&` ([`TreeControl`]).
//! 4. A change of the vdevs is in labels and configuration of the same txg: `config_changed` says that it is still to be written.

use std::sync::Arc;

use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_vdev::ring::Ring;
use cenote_vdev::tree::{TreeControl, VdevTree};

use super::multihost::Multihost;
use super::vdev_config::RootVdev;
use crate::FoundPool;

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
        }
    }
}
