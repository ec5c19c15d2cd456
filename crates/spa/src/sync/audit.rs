//! Invariants of a pool that is written which take a walk to see: for tests and simulations, between two txgs.
//!
//! Cheap assertions stand in [`txg`](super::txg); those about a pool on disk, in [`crate::View::audit`].

use std::collections::BTreeSet;

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_vdev::config::VdevConfig;

use crate::SpaError;
use crate::config::PoolState;
use crate::open::spares_l2cache::read_list;
use crate::sync::Syncer;
use crate::sync::vdev_config::guid_sum;

impl Syncer {
    /// Checks the state that the sync owns, in a pool that only this version has written.
    ///
    /// # Errors
    /// The MOS cannot be read.
    ///
    /// # Panics
    /// Something contradicts something else.
    pub(crate) async fn audit(&self) -> Result<(), SpaError> {
        self.audit_roots().await?;
        self.audit_vdevs();
        self.audit_space().await?;
        self.audit_config().await?;
        self.audit_features().await?;
        self.devices.multihost.audit();
        Ok(self.mos.dsl.audit().await?)
    }

    /// The uberblock leads to the MOS, and the MOS to the datasets that are open.
    async fn audit_roots(&self) -> Result<(), SpaError> {
        assert!(
            self.blocks.free_tasks.is_empty() && self.blocks.mos_delta.is_zero(),
            "between txgs all is accounted for"
        );
        assert_eq!(self.state, PoolState::Active, "a pool that is written is in use");
        if let Some(root) = &self.devices.synced {
            assert_eq!(Txg(root.txg.0 + 1), self.txg, "the open txg is the one after the last on disk");
            assert_eq!(root.rootbp, self.mos.objset.root(), "the last uberblock leads to the MOS");
            // A vdev that has just been added is counted with the txg that makes it part of the pool.
            let is_counted = root.guid_sum == self.devices.root_vdev.guid_sum;
            assert!(is_counted || self.devices.config_changed, "an uberblock counts all vdevs");
        }
        let heads = self.mos.dsl.heads();
        let numbers: BTreeSet<ObjectId> = heads.iter().map(|head| head.dataset).collect();
        assert_eq!(numbers.len(), heads.len(), "a dataset is open once");
        for head in heads {
            let phys = self.mos.dsl.dataset_phys(head.dataset).await?;
            assert_eq!(phys.bp, head.objset.root(), "a dataset in the MOS leads to the root that is open");
            assert_eq!(phys.next_snapshot, ObjectId(0), "what is open to be changed is a head");
        }
        Ok(())
    }

    /// Configuration, devices and allocator have the same vdevs.
    fn audit_vdevs(&self) {
        let root_vdev = &self.devices.root_vdev;
        root_vdev.assert_typed();
        let leaves: BTreeSet<Guid> = root_vdev.config.leaves().iter().map(|leaf| leaf.guid).collect();
        assert!(root_vdev.disks.keys().all(|guid| leaves.contains(guid)), "each disk is a leaf's");
        assert!(root_vdev.missed.keys().all(|guid| leaves.contains(guid)), "each dirty time log is a leaf's");
        assert!(root_vdev.unnoted.keys().all(|guid| leaves.contains(guid)), "a leaf lacks what is to be noted");
        let tops: BTreeSet<VdevId> = root_vdev.tops().map(|(vdev, _)| vdev).collect();
        assert!(self.blocks.unflushed_txgs.keys().all(|vdev| tops.contains(vdev)), "a vdev has its unflushed txgs");
        if self.devices.synced.is_some() {
            assert_eq!(
                guid_sum(&root_vdev.config),
                root_vdev.guid_sum,
                "the sum of guids is that of the configuration"
            );
        }
        self.blocks.space.with(|allocator| {
            assert!(allocator.metaslabs().all(|metaslab| tops.contains(&metaslab.id().vdev)), "a metaslab is a vdev's");
        });
    }

    /// Space maps, vdevs and accounts add up.
    async fn audit_space(&self) -> Result<(), SpaError> {
        let verified = self.blocks.space.with(|allocator| allocator.verify());
        assert_eq!(verified, Ok(()), "each metaslab's sets make up all of it, and logs have what is unflushed");
        for (vdev, top) in self.devices.root_vdev.tops() {
            self.audit_top(vdev, top);
        }
        let (usable, root) = (self.usable(), self.mos.dsl.root_object());
        let root = self.mos.dsl.dir_phys(root).await?;
        let most = usable.bytes.saturating_add(usable.slop_bytes);
        assert!(root.used_bytes <= most, "datasets use {} bytes of {most}", root.used_bytes);
        Ok(())
    }

    fn audit_top(&self, vdev: VdevId, top: &VdevConfig) {
        let name = top.display_name();
        assert_eq!(top.id, u64::from(vdev.0), "{name}: a vdev's id is its place");
        assert!(top.metaslab_array.0 != 0 && top.top_zap.0 != 0, "{name}: a vdev that is written has its objects");
        assert!(top.create_txg <= self.txg, "{name}: a vdev is of no txg that is to come");
        let (mut count, mut size) = (0, 0);
        self.blocks.space.with(|allocator| {
            for metaslab in allocator.metaslabs().filter(|metaslab| metaslab.id().vdev == vdev) {
                assert_eq!(metaslab.id().index, count, "{name}: metaslabs stand one after the other");
                let used = metaslab.allocated_bytes() + metaslab.deferred_bytes();
                assert!(used <= metaslab.size_bytes(), "{name}: no more is in use of a metaslab than there is");
                assert!(metaslab.kept_bytes() <= metaslab.deferred_bytes(), "{name}: what is kept is not used again");
                (count, size) = (count + 1, size + metaslab.size_bytes());
            }
        });
        assert_eq!(count, top.asize_bytes >> top.metaslab_shift, "{name}: a vdev has as many metaslabs as fit");
        assert!(size <= top.asize_bytes, "{name}: metaslabs lie in their vdev");
    }

    /// The configuration in the MOS is that in memory, unless it is still to be written.
    async fn audit_config(&self) -> Result<(), SpaError> {
        if self.devices.config_changed || self.devices.synced.is_none() {
            return Ok(());
        }
        let list = read_list(&self.mos.config).await?;
        assert_eq!(
            list.list("vdev_tree"),
            Some(self.devices.root_vdev.tree()),
            "the MOS has the vdevs that are written"
        );
        assert_eq!(list.u64("pool_guid"), Some(self.guid.0), "the MOS has the pool's guid");
        assert!(list.u64("txg").is_some_and(|txg| txg < self.txg.0), "a configuration is of a txg that was synced");
        assert_eq!(
            list.u64("vdev_children"),
            Some(self.devices.root_vdev.config.children.len() as u64),
            "holes are vdevs too"
        );
        Ok(())
    }

    /// Checks the reference counts of features that have one kind of user.
    async fn audit_features(&self) -> Result<(), SpaError> {
        self.mos.features.audit().await?;
        for (dataset, needs) in &self.mos.used_features {
            for feature in needs.names().filter_map(crate::features::by_name) {
                let noted = self.mos.dsl.has_noted(*dataset, feature.guid).await?;
                assert!(noted, "dataset {dataset} has {} noted, as is known of it", feature.name);
            }
        }
        let has_list = self.jobs.async_destroy.list().is_some();
        assert_eq!(
            self.mos.features.count("async_destroy"),
            u64::from(has_list),
            "what is freed in the background is listed"
        );
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let entry = async |name| directory.find_u64(name).await;
        let listed = entry(pool_directory::BPTREE).await?.map(ObjectId);
        assert_eq!(listed, self.jobs.async_destroy.list(), "the directory names the list of what is freed");
        let deleted = entry(pool_directory::DELETED_CLONES).await?.map(ObjectId);
        assert_eq!(deleted, self.jobs.deleted_clones.table(), "the directory names the table of destroyed clones");
        if let Some(table) = deleted {
            let table = self.mos.objset.object(table).await?;
            let table = Zap::open(table).await?;
            let count = table.entry_count()?;
            assert!(count > 0, "the table of destroyed clones goes with its last entry");
        }
        let empty = entry(pool_directory::EMPTY_BPOBJ).await?.map(ObjectId);
        assert_eq!(empty, self.mos.dsl.empty_bpobj(), "the directory names the list that stands for empty ones");
        Ok(())
    }
}
