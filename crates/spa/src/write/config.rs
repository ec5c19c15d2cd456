//! What labels and the MOS say of the pool.

use cenote_format::ids::Txg;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_vdev::commit::LeafCommit;

use super::PoolWriter;
use super::administer::IN_CONFIG;
use super::auxiliary::write_list;
use super::members::set;
use crate::SpaError;
use crate::config::PoolState;

/// The version of pools with features.
pub(super) const VERSION: u64 = 5000;
/// Blocks of the object with the configuration.
pub(super) const CONFIG_BLOCK_BYTES: u32 = 16 << 10;

impl PoolState {
    /// The number on disk.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Active => 0,
            Self::Exported => 1,
            Self::Destroyed => 2,
            Self::Spare => 3,
            Self::L2Cache => 4,
            Self::Other(other) => other,
        }
    }
}

impl PoolWriter {
    /// Puts into a configuration what labels and MOS have in common.
    fn identify(&self, list: &mut NvList, txg: Txg) {
        set(list, "version", VERSION);
        set(list, "name", self.name.as_str());
        set(list, "state", self.state.number());
        set(list, "txg", txg.0);
        set(list, "pool_guid", self.guid.0);
        if !list.has("errata") {
            list.push("errata", 0_u64);
        }
        for name in IN_CONFIG {
            list.remove(name);
            if let Some(value) = self.old_config.value(name) {
                list.push(name, value.clone());
            }
        }
        list.remove("hostid");
        if self.host.id != 0 {
            list.push("hostid", self.host.id);
        }
        set(list, "hostname", self.host.name.as_str());
        set(list, "vdev_children", self.members.config.children.len() as u64);
        let mut features = NvList::new();
        for guid in self.features.for_labels() {
            features.push(guid, NvValue::Boolean);
        }
        // Whatever else was needed to read the MOS still is.
        let before = self.old_config.list("features_for_read");
        for (name, value) in before.into_iter().flat_map(NvList::iter) {
            if features.value(&name.to_string()).is_none() {
                features.push(name.clone(), value.clone());
            }
        }
        set(list, "features_for_read", features);
    }

    /// The configuration of the whole pool.
    pub(super) fn whole_config(&self, txg: Txg) -> NvList {
        let mut list = self.old_config.clone();
        self.identify(&mut list, txg);
        set(&mut list, "com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        set(&mut list, "vdev_tree", self.members.tree().clone());
        list
    }

    /// Puts the configuration into the MOS.
    pub(super) async fn write_config(&self, txg: Txg) -> Result<(), SpaError> {
        write_list(&self.config, txg, &self.whole_config(txg)).await.map_err(|error| self.fail(error))
    }

    /// What each leaf's part in a commit is. `with_labels`: the configuration has changed.
    pub(super) fn leaf_commits(&self, txg: Txg, with_labels: bool) -> Vec<LeafCommit> {
        let holes = self.members.holes();
        let label = |mut list: NvList| {
            self.identify(&mut list, txg);
            if !holes.is_empty() {
                set(&mut list, "hole_array", NvValue::Uint64Array(holes.clone()));
            }
            list
        };
        self.members.leaf_commits(with_labels.then_some(&label))
    }
}
