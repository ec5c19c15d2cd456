//! Making datasets, and keeping their accounts.
//!
//! A new pool's directories and datasets:
//!
//! ```text
//! root directory ── head dataset (the pool's root file system), a clone of $ORIGIN@$ORIGIN
//!   $MOS       what the pool's own objects take
//!   $FREE      what is being freed in the background
//!   $ORIGIN    a dataset without blocks; its one snapshot is the origin of all that is no clone
//! ```
//!
//! All of it is written in a txg's sync, by whoever syncs: there is one such at a time, so there are no locks.

mod deadlist;
mod destroy;
mod rename;
mod reserve;

use cenote_dmu::write::{Killed, ObjectSpec, ObjsetMut, SpaceDelta, Synced, Writer, ZapMut, create_zap, put_entry};
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DatasetFlags, DeadlistPhys, DirFlags, DslDatasetPhys, DslDirPhys, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::Rng;

use crate::{DEPTH_MAX, Dsl, DslError};

pub use destroy::Gone;

/// The byte order of what is written.
const ORDER: Endian = cenote_zio::ORDER;
/// Data blocks of a bpobj.
const BPOBJ_BLOCK_BYTES: u32 = 128 << 10;
/// The txg that stands for a pool's creation in datasets made with it.
const CREATION_TXG: Txg = Txg(1);

/// Which part of a directory's use something counts to (`dd_used_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// The head dataset.
    Head = 0,
    /// Its snapshots.
    Snapshots = 1,
    /// The directories below.
    Children = 2,
    /// What is reserved for the head dataset and not used.
    Refreservation = 4,
}

/// The datasets of a pool that is written.
#[derive(Clone)]
pub struct DslMut {
    mos: ObjsetMut,
    writer: Writer,
    /// The root directory.
    pub root_dir: ObjectId,
    /// The directory that counts the pool's own objects.
    pub mos_dir: ObjectId,
    /// The snapshot that everything is a clone of.
    pub origin: ObjectId,
    /// The list of blocks that are freed in the background.
    pub free_bpobj: ObjectId,
    /// The list that stands for all empty ones, where there is one.
    pub empty_bpobj: Option<ObjectId>,
}

/// What became of the blocks that a dataset gave up.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Blocks that nothing refers to any more, to be freed.
    pub freed: Killed,
    /// Entries of deadlists that shared the empty list and do not any more.
    pub replaced_empty: u64,
}

/// The changes that [`DslMut::note_feature`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The feature was not noted before: it is used by one dataset more.
    pub is_new: bool,
    /// The dataset had no notes at all before: it has become a table of extra fields, which the feature `extensible_dataset` counts.
    pub zapified: bool,
}

/// What a new dataset gets that is not derived from others.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The txg of creation.
    pub txg: Txg,
}

impl DslMut {
    /// Makes the directories of a new pool, without the root dataset.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub async fn create(mos: &ObjsetMut, writer: &Writer, birth: Birth, rng: &mut Rng) -> Result<Self, DslError> {
        let txg = birth.txg;
        let none = ObjectId(0);
        let mut this = Self {
            mos: mos.clone(),
            writer: writer.clone(),
            root_dir: none,
            mos_dir: none,
            origin: none,
            free_bpobj: none,
            empty_bpobj: None,
        };
        this.root_dir = this.create_dir(None, "", none, birth).await?;
        this.mos_dir = this.create_dir(Some(this.root_dir), pool_directory::MOS_DIR, none, birth).await?;
        this.create_dir(Some(this.root_dir), pool_directory::FREE_DIR, none, birth).await?;
        this.free_bpobj = this.create_bpobj(txg)?;
        let dir = this.create_dir(Some(this.root_dir), pool_directory::ORIGIN_DIR, none, birth).await?;
        let head = this.create_dataset(dir, birth, rng).await?;
        this.origin = this.make_origin_snapshot(dir, head, birth, rng).await?;
        Ok(this)
    }

    /// The datasets of a pool that exists, as `view` shows them. `free_bpobj` is the list of what is freed in the background,
    /// `empty_bpobj` the one that deadlists' empty entries share.
    ///
    /// # Errors
    /// A directory that every pool has is missing, or cannot be read.
    pub async fn open(
        mos: &ObjsetMut,
        writer: &Writer,
        view: &Dsl,
        free_bpobj: ObjectId,
        empty_bpobj: Option<ObjectId>,
    ) -> Result<Self, DslError> {
        let root = view.root_dir().await?;
        let child = async |name: &str| {
            let what = || DslError::Corrupt { object: root.object.0, what: format!("there is no '{name}' below it") };
            view.child(&root, name).await?.ok_or_else(what)
        };
        let mos_dir = child(pool_directory::MOS_DIR).await?.object;
        let origin = view.head(&child(pool_directory::ORIGIN_DIR).await?).await?;
        let origin = origin.map_or(ObjectId(0), |head| head.phys.prev_snapshot);
        let (mos, writer) = (mos.clone(), writer.clone());
        Ok(Self { mos, writer, root_dir: root.object, mos_dir, origin, free_bpobj, empty_bpobj })
    }

    /// Makes an empty bpobj.
    fn create_bpobj(&self, txg: Txg) -> Result<ObjectId, DslError> {
        let phys = BpobjPhys { compressed: Some([0; 2]), children: Some((ObjectId(0), 0)), ..BpobjPhys::default() };
        let spec = ObjectSpec::new(DmuType::BPOBJ, BPOBJ_BLOCK_BYTES).with_bonus(DmuType::BPOBJ_HDR, phys.emit(ORDER));
        Ok(self.mos.create_object(txg, &spec)?.id())
    }

    /// Makes a directory below another, or the root.
    ///
    /// # Errors
    /// The name is taken, or the MOS cannot be changed.
    pub async fn create_dir(
        &self,
        parent: Option<ObjectId>,
        name: &str,
        origin: ObjectId,
        birth: Birth,
    ) -> Result<ObjectId, DslError> {
        let spec = ObjectSpec::new(DmuType::DSL_DIR, 512).with_bonus(DmuType::DSL_DIR, vec![0; DslDirPhys::SIZE_BYTES]);
        let object = self.mos.create_object(birth.txg, &spec)?;
        let properties = create_zap(&self.mos, birth.txg, DmuType::DSL_PROPS, &[]).await?.id();
        let child_dirs = create_zap(&self.mos, birth.txg, DmuType::DSL_DIR_CHILD_MAP, &[]).await?.id();
        let phys = DslDirPhys {
            creation_time: birth.time_s,
            head_dataset: ObjectId(0),
            parent: parent.unwrap_or(ObjectId(0)),
            origin,
            child_dirs,
            used_bytes: 0,
            compressed_bytes: 0,
            uncompressed_bytes: 0,
            quota_bytes: 0,
            reserved_bytes: 0,
            properties,
            delegations: ObjectId(0),
            flags: DirFlags::USED_BREAKDOWN,
            used_breakdown_bytes: [0; 5],
            clones: ObjectId(0),
        };
        object.set_bonus(birth.txg, &phys.emit(ORDER))?;
        if let Some(parent) = parent {
            let children = self.dir(parent).await?.child_dirs;
            let children = self.mos.object(children).await?;
            put_entry(&children, birth.txg, name, Some(&ZapValue::from_u64(object.id().0))).await?;
        }
        Ok(object.id())
    }

    /// Makes a deadlist. `first` is the txg that its one list of blocks begins after.
    async fn create_deadlist(&self, txg: Txg, first: Option<Txg>) -> Result<ObjectId, DslError> {
        let mut entries = Vec::new();
        let name = first.map(|first| int_key_name(first.0));
        if let Some(name) = &name {
            entries.push((name.as_str(), ZapValue::from_u64(self.create_bpobj(txg)?.0)));
        }
        let object = create_zap(&self.mos, txg, DmuType::DEADLIST, &entries).await?;
        let phys = DeadlistPhys { used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 0 };
        object.set_bonus_kind(txg, DmuType::DEADLIST_HDR, &phys.emit(ORDER))?;
        Ok(object.id())
    }

    /// Makes the head dataset of a directory: empty, and a clone of the origin once there is one.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub async fn create_dataset(&self, dir: ObjectId, birth: Birth, rng: &mut Rng) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let spec = ObjectSpec::new(DmuType::DSL_DATASET, 512)
            .with_bonus(DmuType::DSL_DATASET, vec![0; DslDatasetPhys::SIZE_BYTES]);
        let object = self.mos.create_object(txg, &spec)?;
        let snapshot_names = create_zap(&self.mos, txg, DmuType::DSL_DS_SNAP_MAP, &[]).await?.id();
        let is_clone = self.origin.0 != 0;
        let deadlist = self.create_deadlist(txg, is_clone.then_some(Txg(0))).await?;
        let mut phys = self.new_dataset(dir, deadlist, birth, rng);
        phys.snapshot_names = snapshot_names;
        if is_clone {
            phys.prev_snapshot = self.origin;
            phys.prev_snapshot_txg = self.dataset(self.origin).await?.creation_txg;
            self.add_clone(object.id(), txg).await?;
        }
        object.set_bonus(txg, &phys.emit(ORDER))?;
        let origin = self.origin;
        self.change_dir(txg, dir, |phys| {
            phys.head_dataset = object.id();
            phys.origin = origin;
        })
        .await?;
        Ok(object.id())
    }

    fn new_dataset(&self, dir: ObjectId, deadlist: ObjectId, birth: Birth, rng: &mut Rng) -> DslDatasetPhys {
        DslDatasetPhys {
            dir,
            prev_snapshot: ObjectId(0),
            prev_snapshot_txg: Txg(0),
            next_snapshot: ObjectId(0),
            snapshot_names: ObjectId(0),
            child_count: 0,
            creation_time: birth.time_s,
            creation_txg: if birth.txg == Txg::INITIAL { CREATION_TXG } else { birth.txg },
            deadlist,
            referenced_bytes: 0,
            compressed_bytes: 0,
            uncompressed_bytes: 0,
            unique_bytes: 0,
            fsid_guid: (rng.next_u64() >> 8) | 1,
            guid: Guid(rng.next_u64() | 1),
            flags: DatasetFlags::UNIQUE_ACCURATE,
            bp: Blkptr::HOLE,
            next_clones: ObjectId(0),
            properties: ObjectId(0),
            user_refs: ObjectId(0),
        }
    }

    /// Enters a new head dataset among the origin's clones.
    async fn add_clone(&self, dataset: ObjectId, txg: Txg) -> Result<(), DslError> {
        let name = int_key_name(dataset.0);
        let value = ZapValue::from_u64(dataset.0);
        let mut origin = self.dataset(self.origin).await?;
        origin.child_count += 1;
        if origin.next_clones.0 == 0 {
            origin.next_clones = create_zap(&self.mos, txg, DmuType::NEXT_CLONES, &[]).await?.id();
        }
        put_entry(&self.mos.object(origin.next_clones).await?, txg, &name, Some(&value)).await?;
        self.put_dataset(txg, self.origin, &origin).await?;
        let mut dir = self.dir(origin.dir).await?;
        if dir.clones.0 == 0 {
            dir.clones = create_zap(&self.mos, txg, DmuType::DSL_CLONES, &[]).await?.id();
        }
        put_entry(&self.mos.object(dir.clones).await?, txg, &name, Some(&value)).await?;
        self.put_dir(txg, origin.dir, &dir).await
    }

    /// The snapshot of the empty dataset that is the origin of all others.
    async fn make_origin_snapshot(
        &self,
        dir: ObjectId,
        head: ObjectId,
        birth: Birth,
        rng: &mut Rng,
    ) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let mut head_phys = self.dataset(head).await?;
        let spec = ObjectSpec::new(DmuType::DSL_DATASET, 512)
            .with_bonus(DmuType::DSL_DATASET, vec![0; DslDatasetPhys::SIZE_BYTES]);
        let snapshot = self.mos.create_object(txg, &spec)?;
        // The snapshot takes the head's deadlist; the head begins another.
        let mut phys = self.new_dataset(dir, head_phys.deadlist, birth, rng);
        phys.next_snapshot = head;
        phys.child_count = 1;
        snapshot.set_bonus(txg, &phys.emit(ORDER))?;
        head_phys.deadlist = self.create_deadlist(txg, Some(Txg(0))).await?;
        head_phys.prev_snapshot = snapshot.id();
        head_phys.prev_snapshot_txg = phys.creation_txg;
        self.put_dataset(txg, head, &head_phys).await?;
        let names = self.mos.object(head_phys.snapshot_names).await?;
        put_entry(&names, txg, pool_directory::ORIGIN_DIR, Some(&ZapValue::from_u64(snapshot.id().0))).await?;
        Ok(snapshot.id())
    }

    /// A directory's fields.
    pub async fn dir(&self, dir: ObjectId) -> Result<DslDirPhys, DslError> {
        let bonus = self.mos.object(dir).await?.bonus();
        DslDirPhys::parse(&bonus, ORDER).map_err(|error| DslError::Format { object: dir.0, error })
    }

    async fn put_dir(&self, txg: Txg, dir: ObjectId, phys: &DslDirPhys) -> Result<(), DslError> {
        Ok(self.mos.object(dir).await?.set_bonus(txg, &phys.emit(ORDER))?)
    }

    async fn change_dir(&self, txg: Txg, dir: ObjectId, change: impl FnOnce(&mut DslDirPhys)) -> Result<(), DslError> {
        let mut phys = self.dir(dir).await?;
        change(&mut phys);
        self.put_dir(txg, dir, &phys).await
    }

    /// A dataset's fields.
    pub async fn dataset(&self, dataset: ObjectId) -> Result<DslDatasetPhys, DslError> {
        let bonus = self.mos.object(dataset).await?.bonus();
        DslDatasetPhys::parse(&bonus, ORDER).map_err(|error| DslError::Format { object: dataset.0, error })
    }

    async fn put_dataset(&self, txg: Txg, dataset: ObjectId, phys: &DslDatasetPhys) -> Result<(), DslError> {
        Ok(self.mos.object(dataset).await?.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// Sets a property of a directory, which those below inherit.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub async fn set_property(&self, txg: Txg, dir: ObjectId, name: &str, value: &ZapValue) -> Result<(), DslError> {
        let properties = self.mos.object(self.dir(dir).await?.properties).await?;
        Ok(put_entry(&properties, txg, name, Some(value)).await?)
    }

    /// Notes with a dataset that it uses a feature.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub async fn note_feature(&self, txg: Txg, dataset: ObjectId, guid: &str) -> Result<Noted, DslError> {
        let object = self.mos.object(dataset).await?;
        let zapified = !object.head().object_type.is_zap();
        if zapified {
            object.set_kind(txg, DmuType::ZAP_METADATA);
            ZapMut::create(object.clone())?.flush(txg).await?;
        } else if self.has_noted(dataset, guid).await? {
            return Ok(Noted { is_new: false, zapified });
        }
        put_entry(&object, txg, guid, Some(&ZapValue::from_u64(0))).await?;
        Ok(Noted { is_new: true, zapified })
    }

    /// `true` if a dataset's ZAP notes that the dataset uses a feature.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub async fn has_noted(&self, dataset: ObjectId, guid: &str) -> Result<bool, DslError> {
        let object = self.mos.object(dataset).await?;
        if !object.head().object_type.is_zap() {
            return Ok(false);
        }
        Ok(ZapMut::open(object).await?.lookup(guid.as_bytes()).await?.is_some())
    }

    /// Counts bytes to a directory, and to all above it as their children's.
    ///
    /// # Errors
    /// The MOS cannot be changed, or directories form a cycle.
    pub async fn charge(&self, txg: Txg, dir: ObjectId, by: UsedBy, delta: SpaceDelta) -> Result<(), DslError> {
        if delta.is_zero() {
            return Ok(());
        }
        let mut phys = self.dir(dir).await?;
        let part = &mut phys.used_breakdown_bytes[by as usize];
        *part = part.saturating_add_signed(delta.used_bytes);
        self.charge_up(txg, dir, phys, delta).await
    }

    /// Counts bytes to a directory whose breakdown has them already, and to all above it.
    async fn charge_up(
        &self,
        txg: Txg,
        dir: ObjectId,
        mut phys: DslDirPhys,
        delta: SpaceDelta,
    ) -> Result<(), DslError> {
        let (mut at, mut used_bytes) = (dir, delta.used_bytes);
        for _ in 0..DEPTH_MAX {
            let before = phys.used_bytes.max(phys.reserved_bytes);
            phys.used_bytes = phys.used_bytes.saturating_add_signed(used_bytes);
            phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(delta.compressed_bytes);
            phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(delta.uncompressed_bytes);
            // What is reserved for a directory counts above it whether it is used or not.
            let above_bytes = phys.used_bytes.max(phys.reserved_bytes) as i64 - before as i64;
            self.put_dir(txg, at, &phys).await?;
            if phys.parent.0 == 0 {
                return Ok(());
            }
            at = phys.parent;
            phys = self.dir(at).await?;
            count_child(&mut phys, used_bytes, above_bytes);
            used_bytes = above_bytes;
        }
        Err(DslError::Corrupt { object: dir.0, what: "its parents form a cycle".to_owned() })
    }

    /// Takes a head dataset's sync into its accounts. Blocks that it gave up and the snapshot before it has go to its deadlist,
    /// the others come back.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    pub async fn synced(&self, txg: Txg, dataset: ObjectId, synced: Synced) -> Result<Settled, DslError> {
        let mut phys = self.dataset(dataset).await?;
        let (freed, dead) = synced.killed.split_after(phys.prev_snapshot_txg, |bp| self.writer.space_of(bp));
        let mut own = synced.born;
        own.add(freed.space().negated());
        let mut referenced = own;
        referenced.add(dead.space().negated());
        phys.bp = synced.root;
        phys.referenced_bytes = phys.referenced_bytes.saturating_add_signed(referenced.used_bytes);
        phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(referenced.compressed_bytes);
        phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(referenced.uncompressed_bytes);
        let unique_bytes = phys.unique_bytes;
        phys.unique_bytes = unique_bytes.saturating_add_signed(own.used_bytes);
        self.put_dataset(txg, dataset, &phys).await?;
        self.charge_head(txg, phys.dir, unique_bytes, own).await?;
        let mut replaced_empty = 0;
        if !dead.is_empty() {
            let dead: Vec<Blkptr> = dead.iter().copied().collect();
            self.leave_to_snapshot(txg, dataset, &phys, &dead).await?;
            replaced_empty = self.insert_dead(txg, phys.deadlist, &dead).await?;
        }
        Ok(Settled { freed, replaced_empty })
    }

    /// Counts blocks that a head gave up to its snapshots, and to the last of them alone what only that one has.
    async fn leave_to_snapshot(
        &self,
        txg: Txg,
        dataset: ObjectId,
        phys: &DslDatasetPhys,
        dead: &[Blkptr],
    ) -> Result<(), DslError> {
        let mut snapshot = self.dataset(phys.prev_snapshot).await?;
        if snapshot.next_snapshot == dataset {
            let alone: Vec<Blkptr> =
                dead.iter().filter(|bp| bp.logical_birth() > snapshot.prev_snapshot_txg).copied().collect();
            let bytes = self.space_of_all(&alone).used_bytes;
            snapshot.unique_bytes = snapshot.unique_bytes.saturating_add_signed(bytes);
            self.put_dataset(txg, phys.prev_snapshot, &snapshot).await?;
        }
        let origin = self.dir(phys.dir).await?.origin;
        let since = if origin.0 == 0 { Txg(0) } else { self.dataset(origin).await?.creation_txg };
        let moved: Vec<Blkptr> = dead.iter().filter(|bp| bp.logical_birth() > since).copied().collect();
        let bytes = self.space_of_all(&moved).used_bytes;
        self.change_dir(txg, phys.dir, |dir| {
            let [head, snapshots, ..] = &mut dir.used_breakdown_bytes;
            *head = head.saturating_add_signed(-bytes);
            *snapshots = snapshots.saturating_add_signed(bytes);
        })
        .await
    }
}

/// Counts to a directory what one below it uses more, and what of that counts here, reserved bytes included.
fn count_child(phys: &mut DslDirPhys, used_bytes: i64, above_bytes: i64) {
    let [.., children, children_reserved, _] = &mut phys.used_breakdown_bytes;
    *children = children.saturating_add_signed(used_bytes);
    *children_reserved = children_reserved.saturating_add_signed(above_bytes - used_bytes);
}
