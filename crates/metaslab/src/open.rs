//! Opening the allocator of a pool that exists: headers of space maps, then the logs replayed into unflushed sets.
//!
//! A metaslab's own map is not read here, only its header: what is free is read when something is to be allocated there. The
//! logs are read, all of them, since what they say is nowhere else; their length is bounded by how many OpenZFS (and
//! [`crate::LogSpace`]) keeps. A log that contradicts a header or itself ends it: nothing may be allocated by numbers
//! that cannot be right.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_format::ids::{ObjectId, Txg};
use cenote_format::spacemap::SpaceMapPhys;
use cenote_taskq::{Class, Handle, Join, boxed};

use crate::kept::Kept;
use crate::load::{CHUNK_BYTES, METASLABS_MAX, problem, words};
use crate::replay::{LogEntry, Places, Shard};
use crate::{
    Allocator, FoundLog, Metaslab, MetaslabFault, MetaslabId, ObjectError, RangeTree, SpaceError, SpaceMap,
    SpaceMapError, SpaceObjects, SpaceProblem, VdevMaps, VdevSetup,
};

/// More shards than this gain nothing: the logs are not read that fast.
const SHARDS_MAX: usize = 16;

/// Adds the vdevs of a pool that exists to an allocator that has none, and replays the logs, given by txg. `synced`: the
/// pool's last txg; whatever is said to be of a later one is not this pool's.
///
/// # Errors
/// A space map that cannot be read or contradicts itself: the pool must not be written to.
#[boxed]
pub async fn open(
    handle: &Handle,
    allocator: &mut Allocator,
    objects: Arc<dyn SpaceObjects>,
    vdevs: Vec<VdevSetup>,
    mut logs: Vec<(Txg, ObjectId)>,
    synced: Txg,
) -> Result<(), SpaceProblem> {
    let count = handle.parallelism().clamp(1, SHARDS_MAX);
    let mut places = Places::default();
    let mut shards: Vec<Shard> = (0..count).map(|_| Shard::default()).collect();
    for setup in vdevs {
        let metaslabs = metaslabs(objects.as_ref(), &setup.maps).await?;
        let maps = setup.maps.clone();
        if let Some(early) = metaslabs.iter().find(|metaslab| metaslab.unflushed_txg() > synced) {
            let txg = early.unflushed_txg();
            let error = SpaceError::Figures { metaslab: early.id(), fault: MetaslabFault::ToCome { txg, synced } };
            return Err(problem(Some(&maps), None, maps.unflushed_txgs.unwrap_or(ObjectId(0)), error));
        }
        let first = places.add(&maps, metaslabs.iter().map(Metaslab::unflushed_txg));
        for (place, metaslab) in (first..).zip(&metaslabs) {
            shards[place as usize % count].add(place, metaslab);
        }
        let kept = Kept::of_map(checkpoint_map(objects.as_ref(), &maps).await?);
        let opened = allocator.open_vdev(setup, metaslabs, kept);
        opened.map_err(|error| problem(Some(&maps), None, maps.metaslab_array, error))?;
    }
    logs.sort();
    let mut heads = Vec::with_capacity(logs.len());
    let mut found = Vec::with_capacity(logs.len());
    for (txg, object) in logs {
        let fail = |error: ObjectError| of_log(txg, object, error);
        if txg > synced {
            return Err(of_log(txg, object, SpaceMapError::ToCome { synced }));
        }
        let (bonus, order) = objects.bonus(object).await.map_err(fail)?;
        let phys = SpaceMapPhys::parse(&bonus, order).map_err(|error| of_log(txg, object, error))?;
        let length_bytes = phys.length_bytes;
        heads.push(LogHead { txg, object, length_bytes });
        let block_size_bytes = objects.block_bytes(object).await.map_err(fail)?;
        found.push(FoundLog { txg, object, length_bytes, block_size_bytes });
    }
    let fail = |error: SpaceMapError| problem(None, None, ObjectId(0), error);
    let shards = replay(handle, &objects, places, heads, shards).await?;
    let ending: Vec<_> =
        shards.into_iter().map(|shard| handle.spawn(Class::Issue, async move { shard.end() })).collect();
    for ended in ending {
        let ended = ended.await.map_err(|error| fail(error.into()))?;
        for replayed in ended.map_err(|error| fail(error.into()))? {
            allocator.replayed(replayed).map_err(|error| fail(error.into()))?;
        }
    }
    allocator.opened(&found).map_err(|error| fail(error.into()))
}

fn of_log(txg: Txg, object: ObjectId, error: impl Into<SpaceMapError>) -> SpaceProblem {
    problem(None, None, object, error.into().of_log(txg))
}

/// A log, as its header says.
#[derive(Clone, Copy)]
struct LogHead {
    txg: Txg,
    object: ObjectId,
    length_bytes: u64,
}

type Decoded = Result<Vec<Vec<LogEntry>>, SpaceMapError>;
type Applied = Result<Shard, SpaceError>;

/// Enters all logs into shards: read and decoded ahead, each shard's changes in order, all shards at once.
async fn replay(
    handle: &Handle,
    objects: &Arc<dyn SpaceObjects>,
    places: Places,
    heads: Vec<LogHead>,
    shards: Vec<Shard>,
) -> Result<Vec<Shard>, SpaceProblem> {
    debug_assert!(heads.is_sorted_by_key(|head| head.txg), "logs are replayed in the order of their txgs");
    let places = Arc::new(places);
    let count = shards.len();
    let mut pieces = heads
        .into_iter()
        .flat_map(|head| (0..head.length_bytes.div_ceil(CHUNK_BYTES)).map(move |number| (head, number * CHUNK_BYTES)));
    let mut ahead: VecDeque<(LogHead, Join<Decoded>)> = VecDeque::new();
    let mut busy: Vec<Join<Applied>> =
        shards.into_iter().map(|shard| handle.spawn(Class::Issue, async move { Ok(shard) })).collect();
    let mut last = None;
    loop {
        while ahead.len() < 2 * count + 2 {
            let Some((head, at)) = pieces.next() else { break };
            let (objects, places) = (objects.clone(), places.clone());
            let decoded = handle.spawn(Class::Issue, async move {
                let len = CHUNK_BYTES.min(head.length_bytes - at);
                let bytes = objects.read(head.object, at, len as usize).await?;
                places.changes(head.txg, &bytes, count)
            });
            ahead.push_back((head, decoded));
        }
        let Some((head, decoded)) = ahead.pop_front() else { break };
        let fail = |error: SpaceMapError| of_log(head.txg, head.object, error);
        let decoded = decoded.await.map_err(|error| fail(error.into()))?.map_err(fail)?;
        assert_eq!(decoded.len(), busy.len(), "each shard has the changes of its metaslabs");
        for (applying, changes) in busy.iter_mut().zip(decoded) {
            let shard = ended(applying, last.unwrap_or(head)).await?;
            *applying = handle.spawn(Class::Issue, async move { applied(shard, &changes) });
        }
        last = Some(head);
    }
    let mut all = Vec::with_capacity(count);
    for mut applying in busy {
        let none = LogHead { txg: Txg(0), object: ObjectId(0), length_bytes: 0 };
        all.push(ended(&mut applying, last.unwrap_or(none)).await?);
    }
    Ok(all)
}

fn applied(mut shard: Shard, changes: &[LogEntry]) -> Applied {
    shard.enter(changes)?;
    Ok(shard)
}

/// The shard when it is done with the log `head`.
async fn ended(applying: &mut Join<Applied>, head: LogHead) -> Result<Shard, SpaceProblem> {
    let fail = |error: SpaceMapError| of_log(head.txg, head.object, error);
    applying.await.map_err(|error| fail(error.into()))?.map_err(|error| fail(error.into()))
}

/// A vdev's metaslabs by their headers.
async fn metaslabs(objects: &dyn SpaceObjects, maps: &VdevMaps) -> Result<Vec<Metaslab>, SpaceProblem> {
    let count = maps.metaslab_count();
    let fail = |error: SpaceMapError| problem(Some(maps), None, maps.metaslab_array, error);
    let fits = RangeTree::fits_window(1_u64.checked_shl(maps.metaslab_shift).unwrap_or(u64::MAX), maps.ashift);
    if count > METASLABS_MAX || !fits {
        return Err(fail(SpaceMapError::TooLarge { count, metaslab_shift: maps.metaslab_shift }));
    }
    let mut array = vec![0; count as usize];
    if maps.metaslab_array.0 != 0 && count > 0 {
        array = words(objects, maps.metaslab_array, count).await.map_err(|error| fail(error.into()))?;
    }
    let mut unflushed = vec![0; count as usize];
    if let Some(object) = maps.unflushed_txgs
        && count > 0
    {
        unflushed = words(objects, object, count).await.map_err(|error| fail(error.into()))?;
    }
    let mut all = Vec::with_capacity(count as usize);
    for (index, (object, unflushed)) in (0..count).zip(array.into_iter().zip(unflushed)) {
        let range = maps.metaslab_range(index);
        let mut map = None;
        if object != 0 {
            let object = ObjectId(object);
            let made = space_map(objects, maps, object, &range).await;
            map = Some(made.map_err(|error| problem(Some(maps), Some(index), object, error))?);
        }
        let id = MetaslabId { vdev: maps.vdev, index };
        all.push(Metaslab::open(id, range, maps.ashift, map, Txg(unflushed)));
    }
    Ok(all)
}

/// The map of what is kept for the checkpoint, if there is one.
async fn checkpoint_map(objects: &dyn SpaceObjects, maps: &VdevMaps) -> Result<Option<SpaceMap>, SpaceProblem> {
    let Some(object) = maps.checkpoint_map else { return Ok(None) };
    let fail = |error: SpaceMapError| problem(Some(maps), None, object, error);
    let (bonus, order) = objects.bonus(object).await.map_err(|error| fail(error.into()))?;
    let phys = SpaceMapPhys::parse(&bonus, order).map_err(|error| fail(error.into()))?;
    let size_bytes = maps.end_bytes();
    if !u64::try_from(phys.allocated_bytes.saturating_neg()).is_ok_and(|bytes| bytes <= size_bytes) {
        return Err(fail(SpaceMapError::Allocated { allocated_bytes: phys.allocated_bytes, size_bytes }));
    }
    Ok(Some(SpaceMap {
        object,
        block_size_bytes: objects.block_bytes(object).await.map_err(|error| fail(error.into()))?.max(1),
        start_bytes: 0,
        shift: maps.ashift,
        length_bytes: phys.length_bytes,
        allocated_bytes: phys.allocated_bytes,
        histogram: phys.histogram,
    }))
}

async fn space_map(
    objects: &dyn SpaceObjects,
    maps: &VdevMaps,
    object: ObjectId,
    range: &std::ops::Range<u64>,
) -> Result<SpaceMap, SpaceMapError> {
    let (bonus, order) = objects.bonus(object).await?;
    let phys = SpaceMapPhys::parse(&bonus, order)?;
    let size_bytes = range.end - range.start;
    if !u64::try_from(phys.allocated_bytes).is_ok_and(|bytes| bytes <= size_bytes) {
        return Err(SpaceMapError::Allocated { allocated_bytes: phys.allocated_bytes, size_bytes });
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
