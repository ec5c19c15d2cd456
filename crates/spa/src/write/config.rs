//! What labels and the MOS say of the pool.

use cenote_format::ids::Txg;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::Buf;
use cenote_vdev::commit::LeafCommit;

use super::PoolWriter;
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
    /// What labels and MOS have in common, up to the vdevs.
    fn identity(&self, txg: Txg) -> NvList {
        let mut list = NvList::new();
        list.push("version", VERSION);
        list.push("name", self.name.as_str());
        list.push("state", self.state.number());
        list.push("txg", txg.0);
        list.push("pool_guid", self.guid.0);
        list.push("errata", 0_u64);
        if self.host.id != 0 {
            list.push("hostid", self.host.id);
        }
        list.push("hostname", self.host.name.as_str());
        list
    }

    fn features_for_read(&self) -> NvList {
        let mut list = NvList::new();
        for guid in self.features.for_labels() {
            list.push(guid, NvValue::Boolean);
        }
        list
    }

    /// The configuration of the whole pool.
    pub(super) fn whole_config(&self, txg: Txg) -> NvList {
        let mut list = self.identity(txg);
        list.push("com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        list.push("vdev_children", self.vdevs.tops.len() as u64);
        list.push("vdev_tree", self.vdevs.tree(self.guid));
        list.push("features_for_read", self.features_for_read());
        list
    }

    /// Puts the configuration into the MOS.
    pub(super) async fn write_config(&self, txg: Txg) -> Result<(), SpaError> {
        let bytes = self.whole_config(txg).emit_xdr();
        let size = bytes.len() as u64;
        let block = CONFIG_BLOCK_BYTES as usize;
        for (at, part) in bytes.chunks(block).enumerate() {
            let mut data = Buf::zeroed(block);
            data[..part.len()].copy_from_slice(part);
            self.config.write_block(txg, at as u64, data.freeze());
        }
        self.config.set_bonus(txg, &size.to_le_bytes()).map_err(|error| self.fail(error))
    }

    /// What each leaf's part in a commit is. `with_labels`: the configuration has changed.
    pub(super) fn leaf_commits(&self, txg: Txg, with_labels: bool) -> Vec<LeafCommit> {
        self.vdevs
            .leaves()
            .map(|(at, leaf)| {
                let top = &self.vdevs.tops[at];
                let label = || {
                    let mut list = self.identity(txg);
                    list.push("top_guid", top.guid.0);
                    list.push("guid", leaf.guid.0);
                    list.push("vdev_children", self.vdevs.tops.len() as u64);
                    list.push("vdev_tree", top.config(at as u64, false));
                    list.push("features_for_read", self.features_for_read());
                    list
                };
                LeafCommit {
                    guid: leaf.guid,
                    disk: leaf.spec.disk.clone(),
                    top: Some(cenote_format::ids::VdevId(at as u32)),
                    ashift: top.ashift,
                    config: with_labels.then(label),
                    takes_uberblock: true,
                }
            })
            .collect()
    }
}
