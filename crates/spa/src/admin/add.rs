//! Adding vdevs, spares and cache devices to a pool that exists, whether or not it is in use.
//!
//! # Theory
//!
//! **Need.** A pool that is nearly full gets devices while it is written, and must lose nothing by that, whenever the power fails. An
//! impossible addition is refused before anything has changed.
//!
//! **Life of an addition.**
//! ```text
//! plan     between two txgs   is it possible? guids; ids behind those that are there
//! label    in no txg          the new disks get labels of txg 0 and empty rings: nothing is found by them, and no uberblock that a
//!                             disk had in an earlier life is left
//! enter    txg T, beginning   MOS: tables, arrays of metaslabs, lists of spares and caches; the configuration names the vdevs.
//!                             The topology with them is swapped in, and the allocator has their space, which waits for the end of T
//! commit   txg T, end         flush of all devices; labels 0 and 2 of all devices, the new ones too; uberblock, whose sum of guids
//!                             counts the new ones; labels 1 and 3
//! use      txg T + 1          the first blocks on the new vdevs
//! ```
//! [`Pool::add_vdevs`]: plan is a look at the pool, enter a change of it. Labels are written by the caller's task, so a new device that
//! hangs holds up the caller and not the pool.
//!
//! **Invariants.**
//! 1. Before an uberblock of T is on any disk, labels 0 and 2 of T are stable on a device of each new top-level vdev.
//! 2. No block of T is on a new vdev: a pool wound back to the txg before T lacks nothing.
//! 3. The allocator, the topology and the configuration get the vdevs in one txg's beginning, when no block is being written.
//! 4. A plan is entered only into a pool that has the same top-level vdevs as when it was made; its vdevs get the ids that were planned
//!    (asserted where it is entered).
//!
//! **Crash.** Until T's uberblock is on one disk the pool is the old one: its configuration does not name the new disks, and the sum of
//! guids is that of the old ones. After it the pool is the new one, whose disks are labelled by invariant 1. By invariant 2 either can
//! be read with the devices that it names.
//!
//! **Devices that fail.** New disks that fail before enter refuse the addition. If all of a new top-level vdev fail later, T's commit
//! suspends the pool, like any other vdev that cannot be written.
//!
//! **Others.** A reader of the pool as of an earlier txg ([`View`](crate::View)) has a configuration without the new vdevs and a
//! topology with them, and nothing points to them. Multihost writes go to the new leaves after T's commit.
//!
//! **Left open.** A new vdev with smaller sectors than all others gets blocks of the others' sectors until the pool is opened anew.
//!
//! **Rejected.** *Labels in the sync*: it would wait for devices that are not the pool's yet. *Space of the new vdevs in T itself*: it
//! would save one txg, and cost invariant 2.

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, boxed, join_all};
use cenote_vdev::commit::{LeafCommit, initialize};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::tree::VdevTree;

use crate::error::LabelError;
use crate::open::spares_l2cache::{AuxKind, AuxSpec, MadeAux};
use crate::open::vdevs::{METASLABS_MIN, MadeVdevs, TopSpec, refuse};
use crate::pool::Pool;
use crate::space::vdev_maps_of;
use crate::sync::Syncer;
use crate::sync::space::vdev_setup;
use crate::{FoundLeaf, SpaError, TopKind};

/// The devices to add to a pool, and their settings.
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
    /// The seed of the guids; drawn by the machine if not given.
    pub seed: Option<u64>,
}

/// An addition that is possible, with the labels that its disks get first.
struct Addition {
    vdevs: MadeVdevs,
    auxiliaries: MadeAux,
    leaves: Vec<LeafCommit>,
}

impl Addition {
    /// Labels its disks. Their previous contents are lost.
    async fn label(&self) -> Result<(), LabelError> {
        if !mutant::is(Mutant::AddRingKept) {
            let labelled = self.leaves.iter().map(async |leaf| match &leaf.config {
                Some(config) => {
                    initialize(&leaf.disk, config).await.map_err(|error| LabelError::new(leaf.disk.path(), error))
                }
                None => Ok(()),
            });
            join_all(labelled).await.into_iter().collect::<Result<(), _>>()?;
        }
        self.auxiliaries.initialize().await
    }
}

impl Pool {
    /// Adds vdevs, spares and cache devices to the pool while it is in use. The previous contents of their disks are lost. When this is
    /// done, the devices are part of the pool on disk, as of the returned txg.
    ///
    /// # Errors
    /// The devices cannot be part of this pool, or cannot be written: the pool is as it was. The MOS cannot be changed. The pool is closed
    /// or suspended.
    #[boxed]
    pub async fn add_vdevs(&self, options: AddOptions) -> Result<Txg, SpaError> {
        let addition = self.look(move |writer| Box::pin(async move { writer.plan_addition(options).await })).await?;
        addition.label().await.map_err(|error| refuse(error.to_string()))?;
        let spares = addition.auxiliaries.spare_guids();
        let txg = self.change(move |writer| Box::pin(async move { writer.enter_addition(addition).await })).await?;
        self.use_caches().await?;
        self.let_spares_go(&spares).await?;
        Ok(txg)
    }
}

impl Syncer {
    /// Finds out whether all this can be added; changes nothing.
    async fn plan_addition(&self, options: AddOptions) -> Result<Addition, SpaError> {
        let AddOptions { tops, auxiliaries, ashift, allow_other_ashift, seed } = options;
        if tops.is_empty() && auxiliaries.is_empty() {
            return Err(refuse("invalid vdev specification: no vdevs are named"));
        }
        let mut rng = Rng::new(seed.unwrap_or_else(|| self.handle.random_u64()));
        let mut vdevs = MadeVdevs::new(tops, ashift, METASLABS_MIN, self.txg, &mut rng)?;
        vdevs.first_id = self.devices.root_vdev.config.children.len() as u64;
        vdevs.check_features(|name| self.mos.features.has(name), true)?;
        if !allow_other_ashift {
            self.check_ashift(&vdevs)?;
        }
        self.check_beside_removal(&vdevs)?;
        let auxiliaries = MadeAux::new(auxiliaries, ashift, &vdevs, &mut rng).await?;
        if let Some(path) = auxiliaries.listed_in(&self.listed(AuxKind::Spare).await?) {
            return Err(refuse(format!("{path} is a hot spare of this pool already")));
        }
        let mut root_vdev = self.devices.root_vdev.clone();
        root_vdev.add(vdevs.configs(), vdevs.disks(), vdevs.classes()).map_err(|error| refuse(error.to_string()))?;
        // A tree that cannot be made is refused here, where nothing has changed yet.
        VdevTree::open(&root_vdev.config, []).map_err(|error| refuse(error.to_string()))?;
        let leaves = self.leaf_commits_of(&root_vdev, Txg(0), true).into_iter();
        let leaves: Vec<_> = leaves.filter(|leaf| vdevs.leaves().any(|new| new.guid == leaf.guid)).collect();
        assert_eq!(leaves.len(), vdevs.leaves().count(), "each new disk gets labels");
        Ok(Addition { vdevs, auxiliaries, leaves })
    }

    /// Makes the addition part of the open txg.
    async fn enter_addition(&mut self, addition: Addition) -> Result<Txg, SpaError> {
        let Addition { mut vdevs, auxiliaries, leaves } = addition;
        if vdevs.first_id != self.devices.root_vdev.config.children.len() as u64 {
            return Err(refuse("the pool has got other vdevs meanwhile"));
        }
        let txg = self.txg;
        vdevs.tops.iter_mut().for_each(|top| top.create_txg = txg);
        let mut directory = Zap::open(self.mos.directory.clone()).await?;
        let zaps = directory.lookup(pool_directory::VDEV_ZAP_MAP.as_bytes()).await?;
        let Some(zaps) = zaps.and_then(|value| value.as_u64()) else {
            let what =
                "adding devices to a pool without a list of its vdevs' tables (made before OpenZFS 0.7)".to_owned();
            return Err(SpaError::unsupported(what));
        };
        let zaps = self.mos.objset.object(ObjectId(zaps)).await?;
        let mut zaps = Zap::open(zaps).await?;
        vdevs.make_zaps(&self.mos.objset, &mut zaps, txg).await?;
        auxiliaries.enter(&self.mos.objset, &mut directory, txg).await?;
        directory.flush(txg).await?;
        for (feature, count) in vdevs.uses() {
            self.mos.features.change(feature, count);
        }
        self.devices.root_vdev.add(vdevs.configs(), vdevs.disks(), vdevs.classes())?;
        let ids = vdevs.first_id + vdevs.tops.len() as u64;
        assert_eq!(self.devices.root_vdev.config.children.len() as u64, ids, "new vdevs get the ids that were planned");
        self.devices.config_changed = true;
        let paused = self.devices.tree.pause_mends().await;
        self.blocks.space.events.sysevent("vdev_add", None);
        self.devices.tree.change(&self.devices.root_vdev.config, vdevs.disks())?;
        drop(paused);
        for (id, made) in (vdevs.first_id..).zip(&vdevs.tops) {
            self.add_space(VdevId(id as u32), made.is_rotational())?;
        }
        for LeafCommit { guid, disk, config, .. } in leaves {
            let config = config.unwrap_or_default().into();
            self.devices
                .found
                .leaves
                .insert(guid, FoundLeaf { guid, disk, config, txg, uberblocks: Vec::new(), bad_labels: 0 });
        }
        self.devices.found.auxiliaries = auxiliaries.found_with(&self.devices.found.auxiliaries);
        Ok(txg)
    }

    /// Gives the allocator the space of a new vdev; it can be used when the open txg is on disk.
    fn add_space(&self, vdev: VdevId, is_rotational: bool) -> Result<(), SpaError> {
        let top = self
            .devices
            .root_vdev
            .top(vdev)
            .ok_or_else(|| SpaError::contradiction(format!("there is no vdev {vdev}")))?;
        let setup = vdev_setup(&self.devices.tree, top, vdev_maps_of(vdev, top), is_rotational);
        let added = self.blocks.space.with(|allocator| allocator.add_vdev(setup, false));
        if top.class == AllocationClass::Log {
            self.blocks.space.log_device_added();
        }
        Ok(added?)
    }

    /// While a vdev is evacuated its blocks may go to new ones too: they have sectors of its size, and no parity. As in OpenZFS, sectors of another size do not come
    /// to a pool that has had a removal.
    fn check_beside_removal(&self, new: &MadeVdevs) -> Result<(), SpaError> {
        let removing = self.blocks.removing;
        let is_running = self.jobs.evacuation.running.is_some();
        if !is_running && removing.is_none_or(|removing| removing.prev_indirect_vdev.is_none()) {
            return Ok(());
        }
        let old = self.devices.root_vdev.tops().filter(|(_, top)| top.class != AllocationClass::Log && top.ashift != 0);
        let ashifts: Vec<u32> = old.map(|(_, top)| top.ashift).collect();
        let new = new.tops.iter().filter(|top| top.class != AllocationClass::Log);
        for top in new {
            if is_running && !matches!(top.kind, TopKind::Single | TopKind::Mirror) {
                return Err(refuse("device removal is in progress: vdevs with parity can be added when it has ended"));
            }
            if ashifts.iter().any(|ashift| *ashift != top.ashift) {
                return Err(refuse("a pool with a removed device gets no vdev with sectors of another size"));
            }
        }
        Ok(())
    }

    /// Where all vdevs have sectors of one size, new ones are to have it too: blocks are made for the smallest.
    fn check_ashift(&self, new: &MadeVdevs) -> Result<(), SpaError> {
        let old = self.devices.root_vdev.tops().filter(|(_, top)| top.class != AllocationClass::Log && top.ashift != 0);
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
