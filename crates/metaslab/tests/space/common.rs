//! A pool's objects in memory, and what of a pool the allocator needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::Endian;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::{HISTOGRAM_BUCKETS, SpaceMapPhys};
use cenote_metaslab::*;
use cenote_taskq::buf::Block;
use cenote_taskq::{BoxFuture, Runtime};
use cenote_vdev::config::AllocationClass;

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    data: Vec<u8>,
    bonus: Vec<u8>,
    block_size_bytes: u64,
}

/// The state that is on disk, or will be once the txg is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Disk {
    objects: BTreeMap<ObjectId, Object>,
    pub(crate) logs: BTreeMap<Txg, ObjectId>,
    next: u64,
    checkpoint: BTreeMap<VdevId, ObjectId>,
    pub(crate) fault: Option<u32>,
}

const fn array_of(vdev: VdevId) -> ObjectId {
    ObjectId(1000 + vdev.0 as u64)
}

const fn txgs_of(vdev: VdevId) -> ObjectId {
    ObjectId(2000 + vdev.0 as u64)
}

fn fault(text: String) -> ObjectError {
    ObjectError::new(std::io::Error::other(text))
}

impl Disk {
    fn put_word(&mut self, object: ObjectId, index: u64, word: u64) {
        let data = &mut self.objects.entry(object).or_default().data;
        let at = index as usize * 8;
        if data.len() < at + 8 {
            data.resize(at + 8, 0);
        }
        data[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn object(&self, object: ObjectId) -> Result<&Object, ObjectError> {
        self.objects.get(&object).ok_or_else(|| fault(format!("object {object} does not exist")))
    }

    pub(crate) fn bytes(&self, object: ObjectId, offset: u64, len: u64) -> &[u8] {
        &self.objects[&object].data[offset as usize..(offset + len) as usize]
    }

    pub(crate) fn header(&self, object: ObjectId) -> SpaceMapPhys {
        SpaceMapPhys::parse(&self.objects[&object].bonus, Endian::Little).unwrap()
    }

    /// A call that is to fail counts down to it.
    fn may_fail(&mut self) -> Result<(), ObjectError> {
        match &mut self.fault {
            Some(0) => Err(fault("injected".into())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl SpaceStore for Disk {
    fn has_histograms(&self) -> bool {
        true
    }

    fn create(&mut self, block_size_bytes: u64) -> Result<ObjectId, ObjectError> {
        self.may_fail()?;
        self.next += 1;
        let id = ObjectId(self.next);
        let header =
            SpaceMapPhys { object: id.0, length_bytes: 0, allocated_bytes: 0, histogram: Some([0; HISTOGRAM_BUCKETS]) };
        let bonus = header.emit(Endian::Little);
        self.objects.insert(id, Object { data: Vec::new(), bonus, block_size_bytes });
        Ok(id)
    }

    fn write(&mut self, object: ObjectId, offset_bytes: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.may_fail()?;
        self.object(object)?;
        let data = &mut self.objects.get_mut(&object).unwrap().data;
        assert_eq!(offset_bytes, data.len() as u64, "space maps are only appended to");
        data.extend_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, object: ObjectId) -> Result<(), ObjectError> {
        self.object(object)?;
        self.objects.get_mut(&object).unwrap().data.clear();
        Ok(())
    }

    fn free(&mut self, object: ObjectId) -> Result<(), ObjectError> {
        self.objects.remove(&object).map(|_| ()).ok_or_else(|| fault(format!("object {object} does not exist")))
    }

    fn set_header(&mut self, object: ObjectId, header: &SpaceMapPhys) -> Result<(), ObjectError> {
        self.object(object)?;
        self.objects.get_mut(&object).unwrap().bonus = header.emit(Endian::Little);
        Ok(())
    }

    fn set_metaslab_object(&mut self, metaslab: MetaslabId, object: ObjectId) -> Result<(), ObjectError> {
        self.put_word(array_of(metaslab.vdev), metaslab.index, object.0);
        Ok(())
    }

    fn set_unflushed_txg(&mut self, metaslab: MetaslabId, txg: Txg) -> Result<(), ObjectError> {
        self.put_word(txgs_of(metaslab.vdev), metaslab.index, txg.0);
        Ok(())
    }

    fn set_checkpoint_map(&mut self, vdev: VdevId, object: Option<ObjectId>) -> Result<(), ObjectError> {
        match object {
            Some(object) => assert!(self.checkpoint.insert(vdev, object).is_none(), "one map a vdev"),
            None => assert!(self.checkpoint.remove(&vdev).is_some(), "only what is there is taken out"),
        }
        Ok(())
    }

    fn set_log(&mut self, txg: Txg, object: Option<ObjectId>) -> Result<(), ObjectError> {
        match object {
            Some(object) => assert!(self.logs.insert(txg, object).is_none(), "one log a txg"),
            None => assert!(self.logs.remove(&txg).is_some(), "only what is there is taken out"),
        }
        Ok(())
    }
}

struct Snapshot(Disk);

impl SpaceObjects for Snapshot {
    fn bonus(&self, object: ObjectId) -> BoxFuture<'_, Result<(Vec<u8>, Endian), ObjectError>> {
        Box::pin(async move { Ok((self.0.object(object)?.bonus.clone(), Endian::Little)) })
    }

    fn block_bytes(&self, object: ObjectId) -> BoxFuture<'_, Result<u64, ObjectError>> {
        Box::pin(async move { Ok(self.0.object(object)?.block_size_bytes) })
    }

    fn read(&self, object: ObjectId, offset_bytes: u64, len: usize) -> BoxFuture<'_, Result<Block, ObjectError>> {
        Box::pin(async move {
            let mut bytes = vec![0; len];
            let data = &self.0.object(object)?.data;
            let from = (offset_bytes as usize).min(data.len());
            let to = (from + len).min(data.len());
            bytes[..to - from].copy_from_slice(&data[from..to]);
            Ok(Block::from(bytes))
        })
    }
}

/// A vdev of `count` metaslabs of `2^metaslab_shift` bytes.
pub(crate) fn vdev(id: u32, class: AllocationClass, ashift: u32, metaslab_shift: u32, count: u64) -> VdevSetup {
    let maps = VdevMaps {
        vdev: VdevId(id),
        class,
        ashift,
        metaslab_shift,
        granule_bytes: 1,
        asize_bytes: (count << metaslab_shift) + 12345,
        metaslab_array: array_of(VdevId(id)),
        unflushed_txgs: None,
        checkpoint_map: None,
    };
    let size_rule: SizeRule = Arc::new(move |psize: u64, _| psize.next_multiple_of(1 << ashift));
    VdevSetup { maps, rotational: id % 2 == 1, data_disks: 1, size_rule }
}

/// Reads the pool's space as an import does, with the loader that existed before anything was ever written.
pub(crate) fn load_independently(disk: &Disk, vdevs: &[VdevSetup], seed: u64) -> PoolSpace {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let maps = vdevs.iter().map(|setup| with_objects(disk, &setup.maps));
    let logs = disk.logs.iter().map(|(txg, object)| (*txg, *object)).collect();
    runtime.block_on(load(&handle, Arc::new(Snapshot(disk.clone())), maps.collect(), logs))
}

/// Opens the allocator of a pool from what is on disk.
pub(crate) fn reopen(disk: &Disk, vdevs: &[VdevSetup], features: SpaceFeatures, tunables: &Tunables) -> Allocator {
    try_reopen(disk, vdevs, features, tunables, Txg(u64::MAX)).unwrap()
}

/// Opens what is on disk, of a pool whose last txg is `synced`.
pub(crate) fn try_reopen(
    disk: &Disk,
    vdevs: &[VdevSetup],
    features: SpaceFeatures,
    tunables: &Tunables,
    synced: Txg,
) -> Result<Allocator, SpaceProblem> {
    let mut allocator = Allocator::new(features, tunables.clone(), true);
    let setups = vdevs.iter().map(|setup| {
        let maps = with_objects(disk, &setup.maps);
        VdevSetup { maps, ..setup.clone() }
    });
    let logs = disk.logs.iter().map(|(txg, object)| (*txg, *object)).collect();
    let runtime = Runtime::simulated(1);
    let (handle, objects) = (runtime.handle(), Arc::new(Snapshot(disk.clone())));
    runtime.block_on(open(&handle, &mut allocator, objects, setups.collect(), logs, synced))?;
    Ok(allocator)
}

/// A vdev's maps with the objects that there are.
fn with_objects(disk: &Disk, maps: &VdevMaps) -> VdevMaps {
    let unflushed_txgs = disk.objects.contains_key(&txgs_of(maps.vdev)).then(|| txgs_of(maps.vdev));
    let metaslab_array =
        if disk.objects.contains_key(&array_of(maps.vdev)) { array_of(maps.vdev) } else { ObjectId(0) };
    VdevMaps { unflushed_txgs, metaslab_array, ..maps.clone() }
}

/// Loads a metaslab from what is on disk now.
pub(crate) fn load_metaslab(allocator: &mut Allocator, disk: &Disk, id: MetaslabId, txg: Txg) {
    let loading = allocator.begin_load(id).unwrap();
    go_on_loading(allocator, disk, id, loading, txg);
}

/// Loads a metaslab that may be unfit to be loaded.
pub(crate) fn try_load_metaslab(
    allocator: &mut Allocator,
    disk: &Disk,
    id: MetaslabId,
    txg: Txg,
) -> Result<(), SpaceError> {
    let mut loading = allocator.begin_load(id)?;
    while let LoadStep::More { loading: mut again, object, offset_bytes, len_bytes } =
        allocator.end_load(id, loading, txg, txg.0 * 5000)?
    {
        again.feed(disk.bytes(object, offset_bytes, len_bytes))?;
        loading = *again;
    }
    Ok(())
}

pub(crate) fn go_on_loading(allocator: &mut Allocator, disk: &Disk, id: MetaslabId, mut loading: Loading, txg: Txg) {
    loop {
        match allocator.end_load(id, loading, txg, txg.0 * 5000).unwrap() {
            LoadStep::Done => return,
            LoadStep::More { loading: mut again, object, offset_bytes, len_bytes } => {
                again.feed(disk.bytes(object, offset_bytes, len_bytes)).unwrap();
                loading = *again;
            }
        }
    }
}

/// Allocates, loading what that needs.
pub(crate) fn allocate(allocator: &mut Allocator, disk: &Disk, request: &Request) -> Result<Vec<Extent>, AllocError> {
    for _ in 0..10_000 {
        match allocator.allocate(request) {
            Err(AllocError::NeedsLoad(id)) => load_metaslab(allocator, disk, id, request.txg),
            other => return other,
        }
    }
    panic!("an allocation asks for loads without end");
}

/// A plain request.
pub(crate) fn request(txg: Txg, psize: u64, copies: usize) -> Request {
    Request {
        class: ClassKind::Normal,
        psize: SizeRange::exactly(psize),
        copies,
        txg,
        allocator: 0,
        near: Vec::new(),
        is_gang: false,
        is_log: false,
        now_ms: txg.0 * 5000,
    }
}

/// Repeatable numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}
