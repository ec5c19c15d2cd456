//! Invariants of a pool as of a txg that take a walk to see: for tests and simulations. That all blocks are accounted for is
//! `cenote_scan`'s to verify.

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, Txg};
use cenote_taskq::boxed;
use cenote_vdev::config::VdevKind;

use crate::features::{Feature, FeatureState, with_needs};
use crate::sync::vdev_config::guid_sum;
use crate::{FeatureName, SpaError, View};

impl View {
    /// Checks uberblock, labels and MOS against each other, in a pool that only this version has written. Labels may be a
    /// txg ahead: they are written first.
    ///
    /// # Errors
    /// The MOS cannot be read.
    ///
    /// # Panics
    /// Something contradicts something else.
    #[boxed]
    pub async fn audit(&self) -> Result<(), SpaError> {
        let (uberblock, config) = (self.uberblock(), self.config());
        let txg = uberblock.txg;
        let kept = Some(uberblock.checkpoint_txg).filter(|kept| *kept != Txg(0));
        let root_txg = uberblock.rootbp.logical_birth();
        assert_eq!(root_txg, kept.unwrap_or(txg), "an uberblock leads to the MOS of its txg, or of the checkpoint's");
        assert_eq!(uberblock.guid_sum, guid_sum(self.vdevs()), "an uberblock counts all vdevs");
        assert_eq!(config.u64("pool_guid"), Some(self.guid().0), "labels and MOS are of one pool");
        assert!(config.u64("txg").is_some_and(|of| of <= txg.0), "a configuration is no newer than its MOS");
        self.audit_vdevs();
        self.audit_features().await?;
        let logs = self.log_space_maps().await?;
        assert!(logs.iter().all(|(of, object)| *of <= txg && object.0 != 0), "a log is of a txg that was synced");
        let objects: BTreeSet<_> = logs.iter().map(|(_, object)| *object).collect();
        assert_eq!(objects.len(), logs.len(), "each txg has a log of its own");
        let mut records = 0;
        self.history(|_| records += 1).await?;
        assert!(records >= 2, "the records of a pool's creation are never overwritten");
        self.dsl().audit().await.map_err(|error| self.error(error))
    }

    fn audit_vdevs(&self) {
        let (root, txg) = (self.vdevs(), self.txg());
        let mut guids: Vec<Guid> = Vec::new();
        root.walk(&mut |vdev| {
            if vdev.kind != VdevKind::Hole {
                guids.push(vdev.guid)
            }
        });
        let different: BTreeSet<Guid> = guids.iter().copied().collect();
        assert_eq!(different.len(), guids.len(), "a guid is one vdev's");
        for (place, top) in (0..).zip(&root.children) {
            let name = top.display_name();
            assert_eq!(top.id, place, "{name}: a vdev's id is its place");
            if top.kind == VdevKind::Hole {
                assert_eq!(top.guid, Guid(0), "{name}: the place of a log device that was removed is nobody's");
                continue;
            }
            assert!(top.create_txg <= txg, "{name}: a vdev is of the txg that added it, or an earlier one");
            assert!(top.asize_bytes >> top.metaslab_shift > 0, "{name}: a vdev has a metaslab");
        }
        for (guid, leaf) in &self.found().leaves {
            assert_eq!(*guid, leaf.guid, "a leaf is found by its guid");
            assert!(leaf.uberblocks.iter().all(|copy| copy.uberblock.txg.0 != 0), "{guid}: no uberblock is of no txg");
        }
        let leaves: BTreeSet<Guid> = root.leaves().iter().map(|leaf| leaf.guid).collect();
        assert!(self.dtls().keys().all(|guid| leaves.contains(guid)), "each dirty time log is a leaf's");
        let missed = self.dtls().values().flat_map(|missed| missed.ranges().last());
        assert!(missed.into_iter().all(|last| last.end <= txg.0 + 1), "no leaf has missed a txg that is to come");
    }

    async fn audit_features(&self) -> Result<(), SpaError> {
        let mut enabled: Vec<&'static Feature> = Vec::new();
        for (name, state) in self.features().await? {
            match name {
                FeatureName::Known(feature) if state != FeatureState::Disabled => enabled.push(feature),
                FeatureName::Known(_) => {}
                FeatureName::Unknown(guid) => panic!("a feature that is not known, {guid}, was enabled here"),
            }
        }
        assert_eq!(with_needs(&enabled), enabled, "what a feature needs is enabled with it");
        Ok(())
    }
}
