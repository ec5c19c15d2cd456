//! The configuration of the pool in labels and in the MOS.

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::commit::LeafCommit;

use crate::SpaError;
use crate::admin::properties::IN_CONFIG;
use crate::config::{PoolState, VERSION};
use crate::open::spares_l2cache::write_list;
use crate::owner::{MARK, holder_id};
use crate::sync::Syncer;
use crate::sync::vdev_config::{RootVdev, set};

impl PoolState {
    /// The number on disk.
    pub(crate) const fn number(self) -> u64 {
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

impl Syncer {
    /// Puts into a configuration what labels and MOS have in common.
    fn identify(&self, list: &mut NvList, txg: Txg, root_vdev: &RootVdev) {
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
            if let Some(value) = self.devices.old_config.value(name) {
                list.push(name, value.clone());
            }
        }
        list.remove("hostid");
        // While it is shown that the pool is in use nobody is to take the labels for their own: see `crate::multihost`.
        if self.state == PoolState::Active && self.devices.multihost.is_shown() {
            list.push("hostid", holder_id(self.host.id));
            set(list, "hostname", format!("cenote@{}", self.host.name).as_str());
        } else {
            if self.host.id != 0 {
                list.push("hostid", self.host.id);
            }
            set(list, "hostname", self.host.name.as_str());
        }
        set(list, "vdev_children", root_vdev.config.children.len() as u64);
        let mut features = NvList::new();
        for guid in self.mos.features.for_labels() {
            features.push(guid, NvValue::Boolean);
        }
        // Other features that were needed to read the MOS still are.
        let before = self.devices.old_config.list("features_for_read");
        for (name, value) in before.into_iter().flat_map(NvList::iter) {
            if features.value(&name.to_string()).is_none() {
                features.push(name.clone(), value.clone());
            }
        }
        set(list, "features_for_read", features);
    }

    /// The configuration of the whole pool.
    pub(crate) fn whole_config(&self, txg: Txg) -> NvList {
        let mut list = self.devices.old_config.clone();
        self.identify(&mut list, txg, &self.devices.root_vdev);
        set(&mut list, "com.delphix:has_per_vdev_zaps", NvValue::Boolean);
        set(&mut list, "vdev_tree", self.devices.root_vdev.tree().clone());
        list
    }

    /// Makes the root's table of attributes where the pool should have one: as OpenZFS does, with the next configuration that is
    /// written after the feature was enabled, which is in use from then on.
    pub(crate) async fn make_root_zap(&mut self, txg: Txg) -> Result<(), SpaError> {
        assert!(self.devices.config_changed, "a table that the configuration names is made with it");
        if !self.mos.features.has("vdev_zaps_v2") || self.devices.root_vdev.has_root_zap() {
            return Ok(());
        }
        let directory = cenote_dmu::Zap::open(self.mos.directory.clone()).await?;
        let all = directory.lookup(pool_directory::VDEV_ZAP_MAP.as_bytes()).await?;
        // Without a list of all such tables (before OpenZFS 0.7) no vdev has one yet: that is for OpenZFS to begin.
        let Some(all) = all.and_then(|value| value.as_u64()) else { return Ok(()) };
        let all = self.mos.objset.object(ObjectId(all)).await?;
        let zap = Zap::create_object(&self.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await?.id();
        Zap::put_entry(&all, txg, &int_key_name(zap.0), Some(&ZapValue::from_u64(zap.0))).await?;
        self.devices.root_vdev.set_root_zap(zap);
        if self.mos.features.count("vdev_zaps_v2") == 0 {
            self.mos.features.change("vdev_zaps_v2", 1);
        }
        Ok(())
    }

    /// Puts the configuration into the MOS.
    pub(crate) async fn write_config(&self, txg: Txg) -> Result<(), SpaError> {
        Ok(write_list(&self.mos.config, txg, &self.whole_config(txg)).await?)
    }

    /// The part of each leaf in a commit. `with_labels`: the configuration has changed.
    pub(crate) fn leaf_commits(&self, txg: Txg, with_labels: bool) -> Vec<LeafCommit> {
        self.leaf_commits_of(&self.devices.root_vdev, txg, with_labels)
    }

    /// The same, if these were the pool's vdevs.
    pub(crate) fn leaf_commits_of(&self, root_vdev: &RootVdev, txg: Txg, with_labels: bool) -> Vec<LeafCommit> {
        root_vdev.assert_typed();
        let holes = root_vdev.holes();
        let label = |mut list: NvList| {
            self.identify(&mut list, txg, root_vdev);
            list.remove(MARK);
            if let Some(mark) = self.owner_mark.filter(|_| self.state == PoolState::Active) {
                list.push(MARK, mark);
            }
            if !holes.is_empty() {
                set(&mut list, "hole_array", NvValue::Uint64Array(holes.clone()));
            }
            list
        };
        let mut leaves = root_vdev.leaf_commits(with_labels.then_some(&label));
        if mutant::is(Mutant::AddUnlabelled) {
            let is_new = |leaf: &LeafCommit| {
                let top = leaf.top.and_then(|top| root_vdev.top(top));
                top.is_some_and(|top| top.create_txg == txg && txg != Txg::INITIAL)
            };
            leaves.iter_mut().filter(|leaf| is_new(leaf)).for_each(|leaf| leaf.config = None);
        }
        leaves
    }
}
