//! Creating directories and datasets, and those of a new pool.
//!
//! ```text
//! root directory ── head dataset (the pool's root file system), a clone of $ORIGIN@$ORIGIN
//!   $MOS       the space of the pool's own objects
//!   $FREE      the space that is being freed in the background
//!   $ORIGIN    a dataset without blocks; its one snapshot is the origin of every dataset that is not a clone of another
//! ```

use cenote_dmu::{ORDER, ObjectSpec, Objset, Writer, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DatasetFlags, DirFlags, DslDatasetPhys, DslDirPhys, pool_directory};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::{Rng, boxed};

use crate::limits::{Counted, is_hidden};
use crate::open::Open;
use crate::{Dsl, DslError};

/// The txg that datasets made with a pool record as their creation.
const CREATION_TXG: Txg = Txg(1);

/// The fields of a new dataset that are not derived from others.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Seconds since 1970.
    pub time_s: u64,
    /// The txg of creation.
    pub txg: Txg,
}

impl Dsl {
    /// Makes the directories of the new pool `pool` in its MOS, without the root dataset.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn create(
        pool: String,
        mos: &Objset,
        writer: &Writer,
        birth: Birth,
        rng: &mut Rng,
    ) -> Result<Self, DslError> {
        let (txg, none) = (birth.txg, ObjectId(0));
        assert_eq!(txg, Txg::INITIAL, "a pool's first directories are made in its first txg");
        let start = |root, open| Self::with(pool.clone(), mos.clone(), root, Some(open));
        let this = start(none, Open::new(writer, none, none, none, None));
        let root = this.create_dir(None, "", none, birth).await?;
        let mos_dir = this.create_dir(Some(root), pool_directory::MOS_DIR, none, birth).await?;
        this.create_dir(Some(root), pool_directory::FREE_DIR, none, birth).await?;
        let free_bpobj = this.create_bpobj(txg)?;
        let dir = this.create_dir(Some(root), pool_directory::ORIGIN_DIR, none, birth).await?;
        let head = this.create_dataset(dir, birth, rng).await?;
        let origin = this.make_origin_snapshot(dir, head, birth, rng).await?;
        Ok(start(root, Open::new(writer, mos_dir, origin, free_bpobj, None)))
    }

    /// Makes a directory below another, or the root.
    ///
    /// # Errors
    /// The name is taken, or the MOS cannot be changed.
    #[boxed]
    pub async fn create_dir(
        &self,
        parent: Option<ObjectId>,
        name: &str,
        origin: ObjectId,
        birth: Birth,
    ) -> Result<ObjectId, DslError> {
        assert_eq!(parent.is_none(), name.is_empty(), "all directories but the root have a name in another");
        debug_assert!(!name.contains('/'), "the name of a directory is one part of a path");
        let spec = ObjectSpec::new(DmuType::DSL_DIR, 512).with_bonus(DmuType::DSL_DIR, vec![0; DslDirPhys::SIZE_BYTES]);
        let object = self.mos().create_object(birth.txg, &spec)?;
        let properties = Zap::create_object(self.mos(), birth.txg, DmuType::DSL_PROPS, &[]).await?.id();
        let child_dirs = Zap::create_object(self.mos(), birth.txg, DmuType::DSL_DIR_CHILD_MAP, &[]).await?.id();
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
            let children = self.dir_phys(parent).await?.child_dirs;
            let children = self.mos().object(children).await?;
            Zap::put_entry(&children, birth.txg, name, Some(&ZapValue::from_u64(object.id().0))).await?;
            self.adjust_count(birth.txg, parent, Counted::Datasets, i64::from(!is_hidden(name))).await?;
        }
        Ok(object.id())
    }

    /// Creates the head dataset of a directory: empty, and a clone of the pool's origin once there is one.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn create_dataset(&self, dir: ObjectId, birth: Birth, rng: &mut Rng) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let object = self.create_dataset_object(txg)?;
        let snapshot_names = Zap::create_object(self.mos(), txg, DmuType::DSL_DS_SNAP_MAP, &[]).await?.id();
        let is_clone = self.origin().0 != 0;
        let lists = match is_clone {
            true => vec![(Txg(0), self.create_bpobj(txg)?)],
            false => Vec::new(),
        };
        let deadlist = self.create_deadlist(txg, &lists).await?;
        let mut phys = self.new_dataset(dir, deadlist, birth, rng);
        phys.snapshot_names = snapshot_names;
        if is_clone {
            phys.prev_snapshot = self.origin();
            phys.prev_snapshot_txg = self.dataset_phys(self.origin()).await?.creation_txg;
            self.add_clone(self.origin(), object, txg).await?;
        }
        self.put_dataset(txg, object, &phys).await?;
        let origin = self.origin();
        self.change_dir(txg, dir, |phys| {
            assert_eq!(phys.head_dataset, ObjectId(0), "a directory gets one head");
            phys.head_dataset = object;
            phys.origin = origin;
        })
        .await?;
        Ok(object)
    }

    /// Creates the object of a dataset. The caller writes its fields.
    pub(crate) fn create_dataset_object(&self, txg: Txg) -> Result<ObjectId, DslError> {
        let spec = ObjectSpec::new(DmuType::DSL_DATASET, 512)
            .with_bonus(DmuType::DSL_DATASET, vec![0; DslDatasetPhys::SIZE_BYTES]);
        Ok(self.mos().create_object(txg, &spec)?.id())
    }

    pub(crate) fn new_dataset(&self, dir: ObjectId, deadlist: ObjectId, birth: Birth, rng: &mut Rng) -> DslDatasetPhys {
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

    /// Records a new head dataset as a clone of a snapshot.
    pub(crate) async fn add_clone(&self, snapshot: ObjectId, dataset: ObjectId, txg: Txg) -> Result<(), DslError> {
        let name = int_key_name(dataset.0);
        let value = ZapValue::from_u64(dataset.0);
        let mut origin = self.dataset_phys(snapshot).await?;
        let count = origin.child_count.checked_add(1);
        let what = || "more clones than there can be".to_owned();
        origin.child_count = count.ok_or_else(|| DslError::Corrupt { object: snapshot.0, what: what() })?;
        if origin.next_clones.0 == 0 {
            origin.next_clones = Zap::create_object(self.mos(), txg, DmuType::NEXT_CLONES, &[]).await?.id();
        }
        Zap::put_entry(&self.mos().object(origin.next_clones).await?, txg, &name, Some(&value)).await?;
        self.put_dataset(txg, snapshot, &origin).await?;
        let mut dir = self.dir_phys(origin.dir).await?;
        if dir.clones.0 == 0 {
            dir.clones = Zap::create_object(self.mos(), txg, DmuType::DSL_CLONES, &[]).await?.id();
        }
        Zap::put_entry(&self.mos().object(dir.clones).await?, txg, &name, Some(&value)).await?;
        self.put_dir(txg, origin.dir, &dir).await
    }

    /// Creates the snapshot of the empty dataset that is the origin of all others.
    async fn make_origin_snapshot(
        &self,
        dir: ObjectId,
        head: ObjectId,
        birth: Birth,
        rng: &mut Rng,
    ) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let mut head_phys = self.dataset_phys(head).await?;
        assert!(head_phys.prev_snapshot.0 == 0 && head_phys.bp.is_hole(), "the origin of all others has no blocks");
        let snapshot = self.create_dataset_object(txg)?;
        // The snapshot takes the head's deadlist; the head begins another.
        let mut phys = self.new_dataset(dir, head_phys.deadlist, birth, rng);
        phys.next_snapshot = head;
        phys.child_count = 1;
        self.put_dataset(txg, snapshot, &phys).await?;
        head_phys.deadlist = self.create_deadlist(txg, &[(Txg(0), self.create_bpobj(txg)?)]).await?;
        head_phys.prev_snapshot = snapshot;
        head_phys.prev_snapshot_txg = phys.creation_txg;
        self.put_dataset(txg, head, &head_phys).await?;
        let names = self.mos().object(head_phys.snapshot_names).await?;
        Zap::put_entry(&names, txg, pool_directory::ORIGIN_DIR, Some(&ZapValue::from_u64(snapshot.0))).await?;
        Ok(snapshot)
    }
}
