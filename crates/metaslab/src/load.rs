//! Loading: space maps in parallel, then the logs in order.

use std::sync::Arc;

use cenote_format::ids::{ObjectId, Txg};
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord, SpaceMapRecords, SpaceMapType};
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Handle, boxed};

use crate::{
    MetaslabSpace, ORDER, ObjectError, PoolSpace, RangeSet, SpaceMapError, SpaceObjects, SpaceProblem, VdevMaps,
    VdevSpace,
};

/// Bytes of a space map read at a time: a multiple of every block size that they have, up to 128 KiB, so that no
/// two-word entry is cut (a block is padded rather than let one cross its end).
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;
/// Metaslabs of one vdev at most. OpenZFS makes at most 2^17 (`zfs_vdev_ms_count_limit`).
pub(crate) const METASLABS_MAX: u64 = 1 << 18;
/// The unit of log space maps: 512 bytes, whatever the vdevs' ashifts are.
pub(crate) const LOG_SHIFT: u32 = 9;

/// Loads the space of all vdevs. `logs` are the log space maps by txg.
#[boxed]
pub async fn load(
    handle: &Handle,
    objects: Arc<dyn SpaceObjects>,
    vdevs: Vec<VdevMaps>,
    mut logs: Vec<(Txg, ObjectId)>,
) -> PoolSpace {
    let mut pool = PoolSpace::default();
    let mut pending = Vec::new();
    for maps in vdevs {
        let (objects, task) = (objects.clone(), handle.clone());
        pending.push(handle.spawn(Class::Issue, async move { load_vdev(&task, &objects, maps).await }));
    }
    for task in pending {
        match task.await {
            Ok((vdev, problems)) => {
                pool.vdevs.push(vdev);
                pool.problems.extend(problems);
            }
            Err(error) => pool.problems.push(problem(None, None, ObjectId(0), error)),
        }
    }
    logs.sort();
    for (txg, object) in logs {
        if let Err(error) = replay_log(objects.as_ref(), &mut pool, txg, object).await {
            pool.problems.push(problem(None, None, object, error.of_log(txg)));
        }
    }
    for vdev in &mut pool.vdevs {
        tally(vdev);
    }
    pool
}

pub(crate) fn problem(
    vdev: Option<&VdevMaps>,
    metaslab: Option<u64>,
    object: ObjectId,
    error: impl Into<SpaceMapError>,
) -> SpaceProblem {
    SpaceProblem { vdev: vdev.map(|maps| maps.vdev), metaslab, object, error: error.into() }
}

/// A space map read from beginning to end, entry by entry.
pub(crate) async fn replay(
    objects: &dyn SpaceObjects,
    object: ObjectId,
    mut visit: impl FnMut(SpaceMapRecord) -> Result<(), SpaceMapError>,
) -> Result<SpaceMapPhys, SpaceMapError> {
    let (bonus, order) = objects.bonus(object).await?;
    let phys = SpaceMapPhys::parse(&bonus, order)?;
    let mut at = 0;
    while at < phys.length_bytes {
        let len = CHUNK_BYTES.min(phys.length_bytes - at);
        let bytes: Block = objects.read(object, at, len as usize).await?;
        for record in SpaceMapRecords::new(&bytes, ORDER) {
            visit(record?)?;
        }
        at += len;
    }
    Ok(phys)
}

/// Words of an object that is an array of 64-bit integers.
pub(crate) async fn words(objects: &dyn SpaceObjects, object: ObjectId, count: u64) -> Result<Vec<u64>, ObjectError> {
    let bytes = objects.read(object, 0, count as usize * 8).await?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| ORDER.u64(*word)).collect())
}

async fn load_vdev(handle: &Handle, objects: &Arc<dyn SpaceObjects>, maps: VdevMaps) -> (VdevSpace, Vec<SpaceProblem>) {
    let mut problems = Vec::new();
    let count = maps.metaslab_count();
    let mut vdev = VdevSpace {
        metaslabs: Vec::new(),
        allocated: RangeSet::new(),
        checkpoint: RangeSet::new(),
        maps: maps.clone(),
    };
    if maps.metaslab_array.0 == 0 || count == 0 {
        return (vdev, problems);
    }
    if count > METASLABS_MAX {
        problems.push(problem(Some(&maps), None, maps.metaslab_array, SpaceMapError::TooMany { count }));
        return (vdev, problems);
    }
    let array = match words(objects.as_ref(), maps.metaslab_array, count).await {
        Ok(array) => array,
        Err(error) => {
            problems.push(problem(Some(&maps), None, maps.metaslab_array, error));
            return (vdev, problems);
        }
    };
    let unflushed = match maps.unflushed_txgs {
        None => vec![0; count as usize],
        Some(object) => match words(objects.as_ref(), object, count).await {
            Ok(txgs) => txgs,
            Err(error) => {
                problems.push(problem(Some(&maps), None, object, error));
                vec![0; count as usize]
            }
        },
    };
    let mut pending = Vec::new();
    for (index, object) in array.iter().enumerate() {
        let (objects, maps, object) = (objects.clone(), maps.clone(), ObjectId(*object));
        let task = async move { load_metaslab(objects.as_ref(), &maps, index as u64, object).await };
        pending.push(handle.spawn(Class::Issue, task));
    }
    for (index, task) in pending.into_iter().enumerate() {
        let object = ObjectId(array[index]);
        let loaded = task.await.map_err(SpaceMapError::from).and_then(|loaded| loaded);
        let (mut metaslab, set) = loaded.unwrap_or_else(|error| {
            problems.push(problem(Some(&maps), Some(index as u64), object, error));
            (MetaslabSpace { object, ..MetaslabSpace::default() }, RangeSet::new())
        });
        metaslab.unflushed_txg = Txg(unflushed.get(index).copied().unwrap_or(0));
        for range in set.iter() {
            // Metaslabs do not overlap, and a map cannot reach outside its own.
            if let Err(error) = vdev.allocated.add(range) {
                problems.push(problem(Some(&maps), Some(index as u64), object, error));
            }
        }
        vdev.metaslabs.push(metaslab);
    }
    if let Some(object) = maps.checkpoint_map
        && let Err(error) = load_checkpoint(objects.as_ref(), &mut vdev, object).await
    {
        let error = SpaceMapError::Checkpoint { error: Box::new(error) };
        problems.push(problem(Some(&maps), None, object, error));
    }
    (vdev, problems)
}

async fn load_metaslab(
    objects: &dyn SpaceObjects,
    maps: &VdevMaps,
    index: u64,
    object: ObjectId,
) -> Result<(MetaslabSpace, RangeSet), SpaceMapError> {
    let mut set = RangeSet::new();
    if object.0 == 0 {
        return Ok((MetaslabSpace::default(), set));
    }
    let std::ops::Range { start, end } = maps.metaslab_range(index);
    let size = end - start;
    let phys = replay(objects, object, |record| {
        let SpaceMapRecord::Entry(entry) = record else { return Ok(()) };
        let (from, to) = entry.range_bytes(start, size, maps.ashift)?;
        match entry.kind {
            SpaceMapType::Alloc => set.add(from..to)?,
            SpaceMapType::Free => set.remove(from..to)?,
        }
        Ok(())
    })
    .await?;
    let metaslab = MetaslabSpace {
        object,
        length_bytes: phys.length_bytes,
        recorded_allocated_bytes: phys.allocated_bytes,
        histogram: phys.histogram,
        ..MetaslabSpace::default()
    };
    Ok((metaslab, set))
}

/// The checkpoint's map covers the whole vdev; it lists frees only.
async fn load_checkpoint(
    objects: &dyn SpaceObjects,
    vdev: &mut VdevSpace,
    object: ObjectId,
) -> Result<(), SpaceMapError> {
    let (size, ashift) = (vdev.maps.asize_bytes, vdev.maps.ashift);
    let checkpoint = &mut vdev.checkpoint;
    replay(objects, object, |record| {
        let SpaceMapRecord::Entry(entry) = record else { return Ok(()) };
        let (from, to) = entry.range_bytes(0, size, ashift)?;
        Ok(checkpoint.add(from..to)?)
    })
    .await?;
    Ok(())
}

async fn replay_log(
    objects: &dyn SpaceObjects,
    pool: &mut PoolSpace,
    txg: Txg,
    object: ObjectId,
) -> Result<(), SpaceMapError> {
    let vdevs = &mut pool.vdevs;
    let problems = &mut pool.problems;
    replay(objects, object, |record| {
        let SpaceMapRecord::Entry(entry) = record else { return Ok(()) };
        let Some(id) = entry.vdev else { return Err(SpaceMapError::NoVdev) };
        // Entries about vdevs that were removed since have lost their meaning.
        let Some(vdev) = vdevs.iter_mut().find(|vdev| vdev.maps.vdev == id) else { return Ok(()) };
        let size = vdev.maps.end_bytes();
        let (from, to) = entry.range_bytes(0, size, LOG_SHIFT)?;
        let index = from >> vdev.maps.metaslab_shift;
        let Some(metaslab) = vdev.metaslabs.get(index as usize) else { return Ok(()) };
        if txg < metaslab.unflushed_txg {
            return Ok(());
        }
        let changed = match entry.kind {
            SpaceMapType::Alloc => vdev.allocated.add(from..to),
            SpaceMapType::Free => vdev.allocated.remove(from..to),
        };
        if let Err(error) = changed {
            let error = SpaceMapError::from(error).of_log(txg);
            problems.push(problem(Some(&vdev.maps), Some(index), object, error));
        }
        Ok(())
    })
    .await?;
    Ok(())
}

/// Counts what each metaslab has allocated after the replay.
fn tally(vdev: &mut VdevSpace) {
    let shift = vdev.maps.metaslab_shift;
    for range in vdev.allocated.iter() {
        let mut at = range.start;
        while at < range.end {
            let index = at >> shift;
            let end = ((index + 1) << shift).min(range.end);
            if let Some(metaslab) = vdev.metaslabs.get_mut(index as usize) {
                metaslab.allocated_bytes += end - at;
            }
            at = end;
        }
    }
}
