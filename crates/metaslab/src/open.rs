//! Opening the allocator of a pool that exists: headers of space maps, then the logs replayed into unflushed sets.
//!
//! A metaslab's own map is not read here, only its header: what is free is read when something is to be allocated there. The
//! logs are read, all of them, since what they say is nowhere else; their length is bounded by how many OpenZFS (and
//! [`crate::LogSpace`]) keeps. A log that contradicts a header or itself ends it: nothing may be allocated by numbers
//! that cannot be right.

use cenote_format::ids::{ObjectId, Txg};
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord};

use crate::load::{LOG_SHIFT, METASLABS_MAX, problem, replay, words};
use crate::{
    Allocator, FoundLog, Metaslab, MetaslabId, RangeTree, SpaceMap, SpaceObjects, SpaceProblem, VdevMaps, VdevSetup,
};

/// Adds the vdevs of a pool that exists to an allocator that has none, and replays the logs, given by txg.
///
/// # Errors
/// What cannot be read or contradicts itself: the pool must not be written to.
pub async fn open(
    allocator: &mut Allocator,
    objects: &dyn SpaceObjects,
    vdevs: Vec<VdevSetup>,
    mut logs: Vec<(Txg, ObjectId)>,
) -> Result<(), SpaceProblem> {
    for setup in vdevs {
        let metaslabs = metaslabs(objects, &setup.maps).await?;
        let maps = setup.maps.clone();
        let opened = allocator.open_vdev(setup, metaslabs);
        opened.map_err(|error| problem(Some(&maps), None, maps.metaslab_array, error.to_string()))?;
    }
    logs.sort();
    let mut found = Vec::with_capacity(logs.len());
    for (txg, object) in logs {
        let fail = |reason: String| problem(None, None, object, format!("log of txg {txg}: {reason}"));
        let phys = replay(objects, object, |record| {
            let SpaceMapRecord::Entry(entry) = record else { return Ok(()) };
            let Some(vdev) = entry.vdev else { return Err("an entry without a vdev".into()) };
            let Some(size) = allocator.vdev_end_bytes(vdev) else { return Ok(()) };
            let (from, to) = entry.range_bytes(0, size, LOG_SHIFT).map_err(|error| error.to_string())?;
            allocator.replay(txg, vdev, entry.kind, from..to).map(drop).map_err(|error| error.to_string())
        });
        let length_bytes = phys.await.map_err(fail)?.length_bytes;
        let block_size_bytes = objects.block_bytes(object).await.map_err(fail)?;
        found.push(FoundLog { txg, object, length_bytes, block_size_bytes });
    }
    allocator.opened(&found).map_err(|error| problem(None, None, ObjectId(0), error.to_string()))
}

/// A vdev's metaslabs by their headers.
async fn metaslabs(objects: &dyn SpaceObjects, maps: &VdevMaps) -> Result<Vec<Metaslab>, SpaceProblem> {
    let count = maps.metaslab_count();
    let fail = |reason: String| problem(Some(maps), None, maps.metaslab_array, reason);
    let fits = RangeTree::fits_window(1_u64.checked_shl(maps.metaslab_shift).unwrap_or(u64::MAX), maps.ashift);
    if count > METASLABS_MAX || !fits {
        return Err(fail(format!("{count} metaslabs of 2^{} bytes are too many or too large", maps.metaslab_shift)));
    }
    let mut array = vec![0; count as usize];
    if maps.metaslab_array.0 != 0 && count > 0 {
        array = words(objects, maps.metaslab_array, count).await.map_err(fail)?;
    }
    let mut unflushed = vec![0; count as usize];
    if let Some(object) = maps.unflushed_txgs
        && count > 0
    {
        unflushed = words(objects, object, count).await.map_err(fail)?;
    }
    let mut all = Vec::with_capacity(count as usize);
    for (index, (object, unflushed)) in (0..count).zip(array.into_iter().zip(unflushed)) {
        let range = maps.metaslab_range(index);
        let mut map = None;
        if object != 0 {
            let object = ObjectId(object);
            let made = space_map(objects, maps, object, &range).await;
            map = Some(made.map_err(|reason| problem(Some(maps), Some(index), object, reason))?);
        }
        let id = MetaslabId { vdev: maps.vdev, index };
        all.push(Metaslab::open(id, range, maps.ashift, map, Txg(unflushed)));
    }
    Ok(all)
}

async fn space_map(
    objects: &dyn SpaceObjects,
    maps: &VdevMaps,
    object: ObjectId,
    range: &std::ops::Range<u64>,
) -> Result<SpaceMap, String> {
    let (bonus, order) = objects.bonus(object).await?;
    let phys = SpaceMapPhys::parse(&bonus, order).map_err(|error| error.to_string())?;
    let size = range.end - range.start;
    if !u64::try_from(phys.allocated_bytes).is_ok_and(|bytes| bytes <= size) {
        return Err(format!("its header has {} of {size} bytes allocated", phys.allocated_bytes));
    }
    Ok(SpaceMap {
        object,
        block_size_bytes: objects.block_bytes(object).await?.max(1),
        start_bytes: range.start,
        shift: maps.ashift,
        length_bytes: phys.length_bytes,
        allocated_bytes: phys.allocated_bytes,
        histogram: phys.histogram,
    })
}
