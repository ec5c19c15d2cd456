//! Goal: long work that goes to a solid-state device in pieces is what was asked for, whatever else is under way: each byte once, errors told, nothing left
//! behind by what is dropped, and clients who wait for little. Method: a tree on simulated disks, clients beside long work at random, faults and
//! requests that are given up, memory as the model.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sim::disk::{Fault, Request, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{Class, Either, Join, OpenOptions, Rng, Runtime, race};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{FreeWrite, ReadContext, VdevTree, WriteContext};
use cenote_vdev::tunables::Tunables;
use proptest::prelude::*;

use crate::common::made::{leaves, vdev, with_children};

const TOP: VdevId = VdevId(0);
const LEAF: Guid = Guid(10);
const DISK_BYTES: u64 = 64 << 20;
/// Long work keeps to the space above.
const CLIENTS_BYTES: u64 = 8 << 20;
/// Requests of long work, each in a place of its own.
const PLACE_BYTES: u64 = 1 << 20;
const PLACES: u64 = 24;
/// The size of a piece beside clients.
const PIECE_BYTES: u64 = 16 << 10;

struct Rig {
    runtime: Runtime,
    sims: Vec<Arc<SimDisk>>,
    tree: Arc<VdevTree>,
    content: Vec<u8>,
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; len];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]));
    bytes
}

impl Rig {
    /// A device alone, or a mirror of as many.
    fn new(seed: u64, count: usize, rotational: bool, physical_sector_bytes: u32) -> Self {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let content = noise(seed, (DISK_BYTES - START_BYTES) as usize);
        let (mut sims, mut disks) = (Vec::new(), Vec::new());
        for index in 0..count as u64 {
            let path = PathBuf::from(format!("/disk{index}"));
            let options =
                SimDiskOptions { size_bytes: DISK_BYTES, rotational, physical_sector_bytes, ..Default::default() };
            let sim = runtime.sim().expect("it is simulated").add_disk(&handle, &path, options);
            sim.poke(START_BYTES, &content);
            let opened = handle.open(&path, OpenOptions { write: true, ..Default::default() });
            disks.push((Guid(LEAF.0 + index), Disk::whole(runtime.block_on(opened).unwrap())));
            sims.push(sim);
        }
        let mut top = match count {
            1 => vdev("file", LEAF.0),
            _ => with_children(vdev("mirror", 500), leaves(LEAF.0, count)),
        };
        top.push("ashift", 12_u64);
        let config = VdevConfig::parse(&with_children(vdev("root", 1), vec![top])).unwrap();
        let tree = VdevTree::open_with(&config, disks, &Tunables::default(), Some(handle)).unwrap();
        Self { runtime, sims, tree, content }
    }

    /// Clients who read little, one after the other, until they are told that it is over; how long the longest of their reads took.
    fn clients(&self, is_over: &Arc<AtomicBool>) -> Join<Duration> {
        let (tree, is_over, handle) = (self.tree.clone(), is_over.clone(), self.runtime.handle());
        let content = self.content[..CLIENTS_BYTES as usize].to_vec();
        let clock = handle.clone();
        handle.spawn(Class::Issue, async move {
            let (mut rng, mut longest) = (Rng::new(5), Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                let at = rng.below(CLIENTS_BYTES / 4096) * 4096;
                let begun = clock.now();
                let verify = |bytes: &[u8]| bytes == &content[at as usize..at as usize + 4096];
                let read = tree.read(TOP, at, 4096, &verify, &ReadContext::new(Txg(1))).await;
                drop(read.map_err(|error| assert!(error.to_string().contains("read"), "{error}")));
                longest = longest.max(clock.now() - begun);
                clock.sleep(Duration::from_micros(rng.below(200))).await;
            }
            longest
        })
    }
}

/// A request as a disk was given it: which disk, what, and where.
type Seen = (usize, RequestKind, Range<u64>);

/// Requests of all disks above the clients' space, as the disks are given them.
fn watch(rig: &Rig, fails: impl Fn(&Request) -> bool + Send + Clone + 'static) -> Arc<Mutex<Vec<Seen>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for (index, sim) in rig.sims.iter().enumerate() {
        let (sink, fails) = (seen.clone(), fails.clone());
        sim.set_faults(move |request, _| {
            let at = request.offset_bytes.saturating_sub(START_BYTES);
            if request.kind != RequestKind::Flush && at >= CLIENTS_BYTES {
                sink.lock().push((index, request.kind, at..at + request.size_bytes));
                if fails(request) {
                    return Fault::Error(std::io::ErrorKind::Other);
                }
            }
            Fault::None
        });
    }
    seen
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Write,
    Free,
}

async fn done(tree: &VdevTree, what: What, at: u64, old: &[u8], new: &[u8]) -> bool {
    match what {
        What::Read => {
            let verify = |bytes: &[u8]| bytes == old;
            let context = ReadContext::new(Txg(1)).of_class(QueueClass::Scrub);
            tree.read(TOP, at, old.len() as u64, &verify, &context).await.is_ok()
        }
        What::Write => {
            let context = WriteContext { class: QueueClass::Scrub, ..WriteContext::new(Txg(1)) };
            tree.write(TOP, at, &Block::from(new.to_vec()), context).await.is_ok()
        }
        What::Free => tree.write_free(LEAF, at, FreeWrite::Block(Block::from(new.to_vec()))).await.is_ok(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Without faults each byte is asked for once of one disk (or written once to each), and what was written is there, and nothing else is. With faults, what
    /// touches a bad sector fails, and all else is good. What is dropped leaves nothing at the device.
    #[test]
    fn pieces_are_what_was_asked_for(seed: u64, count in 1_usize..3, sector in 0_u32..3, bad: bool, drops: bool) {
        let rig = Rig::new(seed, count, false, [0, 4096, 32768][sector as usize]);
        let mut rng = Rng::new(seed);
        let bad_sector = CLIENTS_BYTES + rng.below(PLACES * PLACE_BYTES / 4096) * 4096;
        let bad_at = START_BYTES + bad_sector;
        let seen = watch(&rig, move |request| {
            bad && (request.offset_bytes..request.offset_bytes + request.size_bytes).contains(&bad_at)
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = rig.clients(&is_over);
        let handle = rig.runtime.handle();
        let mut expected = rig.content.clone();
        let (mut joins, mut free) = (Vec::new(), Vec::new());
        for place in 0..PLACES {
            let what = [What::Read, What::Write, What::Free][rng.below(3) as usize];
            let len = (1 + rng.below(PLACE_BYTES / 4096)) * 4096;
            let at = CLIENTS_BYTES + place * PLACE_BYTES + rng.below((PLACE_BYTES - len) / 4096 + 1) * 4096;
            let (old, new) = (rig.content[at as usize..(at + len) as usize].to_vec(), noise(seed ^ place, len as usize));
            let drops_after = (drops && rng.below(3) == 0).then(|| Duration::from_micros(rng.below(3000)));
            if let What::Write | What::Free = what {
                expected[at as usize..(at + len) as usize].copy_from_slice(&new);
            }
            if matches!(what, What::Free) && count == 2 {
                free.push(at..at + len);
            }
            let (tree, clock) = (rig.tree.clone(), handle.clone());
            let join = handle.spawn(Class::Background, async move {
                let work = done(&tree, what, at, &old, &new);
                match drops_after {
                    Some(after) => match race(Box::pin(work), clock.sleep(after)).await {
                        Either::Left(good) => Some(good),
                        Either::Right(()) => None,
                    },
                    None => Some(work.await),
                }
            });
            joins.push((what, at..at + len, join));
        }
        let mut uncertain: Vec<Range<u64>> = Vec::new();
        let outcomes = rig.runtime.block_on(async {
            let mut outcomes = Vec::new();
            for (what, range, join) in joins {
                outcomes.push((what, range, join.await.unwrap()));
            }
            is_over.store(true, Ordering::Relaxed);
            clients.await.unwrap();
            // A request that was dropped at a device ends there.
            handle.sleep(Duration::from_millis(100)).await;
            outcomes
        });
        let mut asked: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        for (disk, _, range) in &*seen.lock() {
            for at in range.clone().step_by(4096) {
                *asked.entry((*disk, at)).or_default() += 1;
            }
        }
        for (what, range, good) in outcomes {
            let touches = bad && range.contains(&bad_sector);
            match good {
                None => uncertain.push(range.clone()),
                // Another leg has what one cannot give; a write to both fails on both.
                Some(good) => prop_assert_eq!(good, !touches, "{:?} of {:?}", what, range),
            }
            if touches {
                uncertain.push(range.clone());
            }
            if good == Some(true) && !bad {
                for at in range.clone().step_by(4096) {
                    let times = |disk: usize| asked.get(&(disk, at)).copied().unwrap_or(0);
                    let sum: u64 = (0..count).map(times).sum();
                    let wanted = if matches!(what, What::Write) { count as u64 } else { 1 };
                    // A read that a leg was slow to answer may have been asked of the other one too.
                    let is_right = if matches!(what, What::Read) { sum >= 1 && times(0).max(times(count - 1)) <= 1 } else { sum == wanted };
                    prop_assert!(is_right, "{:?} of {:?}: {} is asked for {} times", what, range, at, sum);
                }
            }
        }
        let is_certain = |at: u64| !uncertain.iter().any(|range| range.contains(&at));
        for (disk, sim) in rig.sims.iter().enumerate() {
            let found = sim.peek(START_BYTES, expected.len());
            for at in (0..expected.len() as u64).step_by(4096).filter(|at| is_certain(*at)) {
                let place = at as usize..at as usize + 4096;
                // Free space is that of one leaf.
                let is_others = disk == 1 && free.iter().any(|range| range.contains(&at));
                let wanted = if is_others { &rig.content } else { &expected };
                prop_assert!(found[place.clone()] == wanted[place], "disk {} at {}", disk, at);
            }
        }
        let busy = rig.tree.leaf_io().iter().any(|(_, io)| io.queued.iter().any(|queued| *queued != (0, 0)));
        prop_assert!(!busy, "something is left in a queue");
    }
}

/// The sizes of requests of long work beside clients, and alone; on a device with a head they are what was asked for.
#[test]
fn long_work_goes_in_small_pieces_beside_clients_alone() {
    for (rotational, has_clients) in [(false, true), (false, false), (true, true)] {
        let rig = Rig::new(3, 1, rotational, 0);
        let handle = rig.runtime.handle();
        let read = |at: u64, len: u64| {
            let (tree, old) = (rig.tree.clone(), rig.content[at as usize..(at + len) as usize].to_vec());
            handle.spawn(Class::Background, async move { assert!(done(&tree, What::Read, at, &old, &[]).await) })
        };
        // Nobody has been there for a while.
        rig.runtime.block_on(async {
            for place in 0..8 {
                read(CLIENTS_BYTES + place * PLACE_BYTES, PLACE_BYTES).await.unwrap();
            }
        });
        let seen = watch(&rig, |_| false);
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = has_clients.then(|| rig.clients(&is_over));
        let longest = rig.runtime.block_on(async {
            handle.sleep(Duration::from_millis(1)).await;
            let reads: Vec<_> = (0..8).map(|place| read(CLIENTS_BYTES + place * PLACE_BYTES, PLACE_BYTES)).collect();
            for read in reads {
                read.await.unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            match clients {
                Some(clients) => clients.await.unwrap(),
                None => Duration::ZERO,
            }
        });
        let sizes: Vec<u64> = seen.lock().iter().map(|(_, _, range)| range.end - range.start).collect();
        assert_eq!(sizes.iter().sum::<u64>(), 8 * PLACE_BYTES, "each byte is asked for once");
        let wanted = if !rotational && has_clients { PIECE_BYTES } else { PLACE_BYTES };
        assert!(sizes.iter().all(|size| *size == wanted), "{rotational} {has_clients}: {sizes:?}");
        assert!(longest < Duration::from_millis(1), "{longest:?}");
    }
}

/// A buffer of a read is its own: pieces that come in other sizes are put together.
#[test]
fn what_is_read_while_clients_come_and_go_is_whole() {
    let rig = Rig::new(4, 1, false, 0);
    let handle = rig.runtime.handle();
    let buf: Buf = rig.runtime.block_on(async {
        let tree = rig.tree.clone();
        let reading = handle.spawn(Class::Background, async move {
            let context = ReadContext::new(Txg(1)).of_class(QueueClass::Scrub);
            tree.read(TOP, CLIENTS_BYTES, 16 << 20, &|_: &[u8]| true, &context).await.unwrap()
        });
        for _ in 0..3 {
            handle.sleep(Duration::from_millis(1)).await;
            let verify = |_: &[u8]| true;
            rig.tree.read(TOP, 0, 4096, &verify, &ReadContext::new(Txg(1))).await.unwrap();
        }
        reading.await.unwrap()
    });
    assert!(buf[..] == rig.content[CLIENTS_BYTES as usize..][..16 << 20]);
}
