//! Adding vdevs to a pool that exists.
//!
//! ```text
//! labels on the new disks    of txg 0: nothing is found by them, and the pool does not know of them
//! MOS                        tables, arrays of metaslabs, configuration, lists of spares and caches: one txg
//! labels, uberblock, labels  on all disks, the new ones too; the sum of guids counts them
//! ```
//! **Crash.** Until the txg's uberblock is on one disk the pool is the old one: its configuration does not name the new disks,
//! and the sum of guids is that of the old ones. After it the pool is the new one, and its disks are labelled, since each
//! top-level vdev had labels 0 and 2 written before. No block is on the new vdevs yet, so whichever of the two is found can be
//! read by whoever knows only the other's devices.
//!
//! Nothing is allocated on new vdevs before the pool is opened again: the tree of vdevs that I/O goes through is made once.

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::{Rng, join_all};
use cenote_vdev::commit::initialize;
use cenote_vdev::config::AllocationClass;

use super::PoolWriter;
use super::auxiliary::{AuxSpec, MadeAux};
use super::vdevs::{METASLABS_MIN, MadeVdevs, TopSpec, refuse};
use crate::SpaError;

/// What to add to a pool.
#[derive(Clone, Debug, Default)]
pub struct AddOptions {
    /// Top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// Spares and cache devices.
    pub auxiliaries: AuxSpec,
    /// Sector size as a power of two; as the devices say if not given.
    pub ashift: Option<u32>,
    /// Have vdevs with another sector size than the rest.
    pub allow_other_ashift: bool,
    /// What guids follow from; drawn by the machine if not given.
    pub seed: Option<u64>,
}

impl PoolWriter {
    /// Adds vdevs, spares and cache devices, in the open txg. Whatever was on their disks is lost.
    ///
    /// # Errors
    /// What is asked for cannot be part of this pool; the disks cannot be written; the MOS cannot be changed.
    pub async fn add_vdevs(&mut self, options: AddOptions) -> Result<(), SpaError> {
        if self.is_live {
            let what = "adding devices to a pool that is in use".to_owned();
            return Err(SpaError::Unwritable { pool: self.name.clone(), what });
        }
        let AddOptions { tops, auxiliaries, ashift, allow_other_ashift, seed } = options;
        if tops.is_empty() && auxiliaries.is_empty() {
            return Err(refuse("invalid vdev specification: no vdevs are named"));
        }
        let txg = self.txg;
        let mut rng = Rng::new(seed.unwrap_or_else(|| self.handle.random_u64()));
        let mut vdevs = MadeVdevs::new(tops, ashift, METASLABS_MIN, txg, &mut rng)?;
        vdevs.first_id = self.members.config.children.len() as u64;
        vdevs.check_features(|name| self.features.has(name))?;
        if !allow_other_ashift {
            self.check_ashift(&vdevs)?;
        }
        let auxiliaries = MadeAux::new(auxiliaries, ashift, &vdevs, &mut rng)?;

        let fail = |error| SpaError::Dmu { pool: self.name.clone(), error };
        let mut directory = Zap::open(self.directory.clone()).await.map_err(fail)?;
        let zaps = directory.lookup(pool_directory::VDEV_ZAP_MAP.as_bytes()).await.map_err(fail)?;
        let Some(zaps) = zaps.and_then(|value| value.as_u64()) else {
            let what =
                "adding devices to a pool without a list of its vdevs' tables (made before OpenZFS 0.7)".to_owned();
            return Err(SpaError::Unwritable { pool: self.name.clone(), what });
        };
        let zaps = self.mos.object(ObjectId(zaps)).await.map_err(fail)?;
        let mut zaps = Zap::open(zaps).await.map_err(fail)?;
        vdevs.make_zaps(&self.mos, &mut zaps, txg).await.map_err(fail)?;
        auxiliaries.enter(&self.mos, &mut directory, txg).await.map_err(fail)?;
        directory.flush(txg).await.map_err(fail)?;
        for (feature, count) in vdevs.uses() {
            self.features.change(feature, count);
        }

        let disks: Vec<_> = vdevs.leaves().map(|leaf| (leaf.guid, leaf.spec.disk.clone())).collect();
        let added = self.members.add(vdevs.configs(), disks.clone(), vdevs.classes());
        added.map_err(|error| self.fail(error))?;
        self.config_changed = true;
        let new = |leaf: &cenote_vdev::commit::LeafCommit| disks.iter().any(|(guid, _)| *guid == leaf.guid);
        let leaves: Vec<_> = self.leaf_commits(Txg(0), true).into_iter().filter(new).collect();
        let labelled = join_all(leaves.iter().map(async |leaf| match &leaf.config {
            Some(config) => initialize(&leaf.disk, config).await.map_err(|error| (leaf.disk.path().clone(), error)),
            None => Ok(()),
        }));
        for result in labelled.await {
            result.map_err(|(path, error)| self.fail(format!("{path}: {error}")))?;
        }
        auxiliaries.initialize().await.map_err(|error| self.fail(error))
    }

    /// Where all vdevs have sectors of one size, new ones are to have it too: blocks are made for the smallest.
    fn check_ashift(&self, new: &MadeVdevs) -> Result<(), SpaError> {
        let old = self.members.tops().filter(|(_, top)| top.class != AllocationClass::Log && top.ashift != 0);
        let mut old = old.map(|(_, top)| top.ashift);
        let Some(first) = old.next().filter(|first| old.all(|ashift| ashift == *first)) else { return Ok(()) };
        match new.tops.iter().find(|top| top.ashift != first) {
            Some(top) => Err(refuse(format!(
                "mismatched ashift: the pool's vdevs have ashift {first}, the new one would have {}",
                top.ashift
            ))),
            None => Ok(()),
        }
    }
}
