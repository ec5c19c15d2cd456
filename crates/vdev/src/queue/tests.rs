//! Queues on simulated disks: everyone gets his own bytes, in an order that keeps what the limits promise.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sim::disk::{Fault, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Either, JoinSet, OpenOptions, Rng, Runtime, join_all, race};

use super::aggregate::{Aggregate, Member};
use super::limits::{CLASSES, Limits, QueueClass};
use super::{Dequeued, Kind, LeafQueue, SharedQueue};
use crate::disk::Disk;
use crate::iostat::Slow;
use crate::mirror::{Ask, Load};
use crate::tunables::Tunables;

const DISK_BYTES: u64 = 64 << 20;

fn limits(rotational: bool, max: u32) -> Limits {
    let limits = Limits::new(&Tunables::default(), rotational);
    Limits { min: [1; CLASSES], max: [max; CLASSES], ..limits }
}

struct Rig {
    runtime: Runtime,
    sim: Arc<SimDisk>,
    disk: Disk,
    queue: Arc<LeafQueue>,
}

impl Rig {
    fn new(seed: u64, limits: Limits) -> Self {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let path = PathBuf::from("/disk");
        let options = SimDiskOptions { size_bytes: DISK_BYTES, rotational: limits.rotational, ..Default::default() };
        let sim = runtime.sim().expect("it is simulated").add_disk(&handle, &path, options);
        let device = runtime.block_on(handle.open(&path, OpenOptions { write: true, ..Default::default() })).unwrap();
        Self { sim, disk: Disk::whole(device), queue: Arc::new(LeafQueue::new(limits)), runtime }
    }

    fn reader(&self) -> Asker {
        Asker { disk: self.disk.clone(), queue: Arc::clone(&self.queue), now_ns: self.runtime.handle().now().as_ns() }
    }
}

#[derive(Clone)]
struct Asker {
    disk: Disk,
    queue: Arc<LeafQueue>,
    now_ns: u64,
}

impl Asker {
    async fn read(&self, class: QueueClass, address: u64, len: u64) -> std::io::Result<Buf> {
        let mut alone = false;
        loop {
            match self.queue.turn(class, Kind::Read, address..address + len, None, self.now_ns, alone).await {
                Dequeued::Lead(aggregate) => {
                    let (_room, read) = aggregate.read(self.disk.clone());
                    let (result, buf) = read.await;
                    return result.map(|()| buf);
                }
                Dequeued::Joined(joined) => match joined.await {
                    Ok(buf) => return Ok(buf.expect("a read has bytes")),
                    Err(_) => alone = true,
                },
            }
        }
    }

    async fn write(&self, address: u64, block: Block) -> std::io::Result<()> {
        let (class, range) = (QueueClass::AsyncWrite, address..address + block.len() as u64);
        let mut alone = false;
        loop {
            match self.queue.turn(class, Kind::Write, range.clone(), Some(&block), self.now_ns, alone).await {
                Dequeued::Lead(aggregate) => return aggregate.write(&self.disk, block, false).await,
                Dequeued::Joined(joined) => match joined.await {
                    Ok(_) => return Ok(()),
                    Err(_) => alone = true,
                },
            }
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

/// A plain model: memory. Reads and writes of all classes, many at once, some dropped half-way, on a disk that now and then
/// fails a request; afterwards nothing waits and nothing is counted.
#[test]
fn everyone_gets_his_own_bytes_and_nothing_is_left() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let rotational = rng.below(2) == 0;
        let rig = Rig::new(
            seed,
            Limits { read_gap_bytes: rng.below(3) * 4096, ..limits(rotational, 1 + rng.below(3) as u32) },
        );
        let content = noise(seed, 1 << 20);
        rig.sim.poke(0, &content);
        let content = Arc::new(Mutex::new(content));
        if seed % 2 == 1 {
            rig.sim.set_faults(
                |_, rng| if rng.chance(1, 20) { Fault::Error(std::io::ErrorKind::Other) } else { Fault::None },
            );
        }
        let handle = rig.runtime.handle();
        let mut set = JoinSet::new();
        for index in 0..300_u64 {
            let (asker, content) = (rig.reader(), Arc::clone(&content));
            // Reads from the lower half; each write has a place of its own in the upper one.
            let (address, len) = (rng.below(120) * 4096, (1 + rng.below(4)) * 4096);
            let class = QueueClass::ALL[rng.below(CLASSES as u64) as usize];
            let (is_write, gives_up) = (rng.below(4) == 0, rng.below(8) == 0);
            set.push(handle.spawn(Class::Issue, async move {
                if is_write {
                    let (address, bytes) = ((512 << 10) + index * 1024, noise(index, 1024));
                    if asker.write(address, Block::from(bytes.clone())).await.is_ok() {
                        content.lock()[address as usize..][..1024].copy_from_slice(&bytes);
                    }
                    return;
                }
                let read = asker.read(class, address, len);
                let read = if gives_up {
                    match race(read, cenote_taskq::yield_now()).await {
                        Either::Left(read) => read,
                        Either::Right(()) => return,
                    }
                } else {
                    read.await
                };
                if let Ok(buf) = read {
                    assert!(
                        buf[..] == content.lock()[address as usize..][..len as usize],
                        "seed {seed}: {address} + {len}"
                    );
                }
            }));
        }
        rig.runtime.block_on(async { while set.next().await.is_some() {} });
        rig.runtime.block_on(rig.runtime.handle().sleep(Duration::from_secs(1)));
        assert_eq!((rig.queue.active(), rig.queue.waiting()), (0, 0), "seed {seed}");
        if seed % 2 == 0 {
            assert!(rig.sim.peek(512 << 10, 300 << 10) == content.lock()[512 << 10..][..300 << 10], "seed {seed}");
        }
    }
}

/// The requests that the device is given, in order: (offset, size).
fn watch(rig: &Rig) -> Arc<Mutex<Vec<(u64, u64)>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    rig.sim.set_faults(move |request, _| {
        if request.kind != RequestKind::Flush {
            sink.lock().push((request.offset_bytes, request.size_bytes));
        }
        Fault::None
    });
    seen
}

fn read_all(rig: &Rig, asks: &[(QueueClass, u64, u64)]) -> Vec<(u64, u64)> {
    let seen = watch(rig);
    let handle = rig.runtime.handle();
    let mut set = JoinSet::new();
    rig.runtime.block_on(async {
        for &(class, address, len) in asks {
            let asker = rig.reader();
            set.push(handle.spawn(Class::Issue, async move { asker.read(class, address, len).await.map(|_| ()) }));
            // In the order given.
            handle.sleep(Duration::from_nanos(100)).await;
        }
        while let Some(done) = set.next().await {
            done.unwrap().unwrap();
        }
    });
    std::mem::take(&mut *seen.lock())
}

#[test]
fn neighbours_go_together_up_to_the_limit_and_over_small_gaps() {
    let rig = Rig::new(1, Limits { aggregation_bytes: 64 << 10, read_gap_bytes: 4096, ..limits(true, 1) });
    let read = QueueClass::SyncRead;
    // The first one keeps the device busy; the others wait.
    let asks = [
        (read, 1 << 20, 4096),
        (read, 8192, 4096),
        (read, 0, 4096),
        (QueueClass::AsyncRead, 12288, 4096),
        (read, 128 << 10, 64 << 10),
        (read, 192 << 10, 4096),
    ];
    let seen = read_all(&rig, &asks);
    assert_eq!(seen, [(1 << 20, 4096), (0, 16384), (128 << 10, 64 << 10), (192 << 10, 4096)]);
}

#[test]
fn a_device_with_a_head_is_served_upwards_and_another_as_they_came() {
    let asks = [5_u64, 9, 3, 7, 1].map(|place| (QueueClass::SyncRead, place << 20, 4096));
    let places = |rotational| -> Vec<u64> {
        let rig = Rig::new(2, limits(rotational, 1));
        read_all(&rig, &asks).into_iter().map(|(address, _)| address >> 20).collect()
    };
    assert_eq!(places(true), [5, 7, 9, 1, 3]);
    assert_eq!(places(false), [5, 9, 3, 7, 1]);
}

#[test]
fn what_is_urgent_goes_first_but_of_everything_a_little() {
    let rig = Rig::new(3, Limits { max: [2; CLASSES], min: [1; CLASSES], ..limits(false, 2) });
    let mut asks = Vec::new();
    for index in 0..6_u64 {
        asks.push((QueueClass::Scrub, (20 + index) << 20, 4096));
    }
    for index in 0..6_u64 {
        asks.push((QueueClass::SyncRead, (1 + index) << 20, 4096));
    }
    let order: Vec<u64> = read_all(&rig, &asks).into_iter().map(|(address, _)| address >> 20).collect();
    // Alone it is given its minimum until it has been quiet for a while; then reads overtake all but one at a time of it.
    let last_read = order.iter().rposition(|place| *place < 20).unwrap();
    let scrubs_before = order[..last_read].iter().filter(|place| **place >= 20).count();
    assert!((1..=4).contains(&scrubs_before), "{order:?}");
    assert_eq!(order.len(), 12);
}

#[test]
fn nobody_is_passed_over_for_ever() {
    let rig = Rig::new(4, Limits { expire_ns: 1_000_000, aggregation_bytes: 0, run_bytes: 0, ..limits(true, 1) });
    let handle = rig.runtime.handle();
    let late = Arc::new(Mutex::new(None));
    rig.runtime.block_on(async {
        let mut set = JoinSet::new();
        for index in 0..200_u64 {
            let asker = rig.reader();
            let (late, own) = (Arc::clone(&late), handle.clone());
            // One that is behind the head, and then ever more before it.
            let address = if index == 1 { 0 } else { (1 << 20) + index * 8192 };
            set.push(handle.spawn(Class::Issue, async move {
                let began = own.now();
                asker.read(QueueClass::SyncRead, address, 4096).await.unwrap();
                if index == 1 {
                    *late.lock() = Some(own.now() - began);
                }
            }));
            handle.sleep(Duration::from_micros(60)).await;
        }
        while set.next().await.is_some() {}
    });
    let waited = late.lock().expect("it was served");
    // 1 ms, and a batch of sixteen at about 0.1 ms, and whoever came between.
    assert!(waited < Duration::from_millis(6), "{waited:?}");
}

#[test]
fn of_a_bundle_only_what_is_bad_fails() {
    let rig = Rig::new(5, limits(true, 1));
    let bad = 3 * 4096..4 * 4096;
    rig.sim.set_faults(move |request, _| {
        let hits = request.offset_bytes < bad.end && request.offset_bytes + request.size_bytes > bad.start;
        if hits { Fault::Error(std::io::ErrorKind::Other) } else { Fault::None }
    });
    let handle = rig.runtime.handle();
    let failed = rig.runtime.block_on(async {
        let mut joins = vec![];
        for address in [1 << 20, 4096, 2 * 4096, 3 * 4096, 4 * 4096] {
            let asker = rig.reader();
            joins
                .push(handle.spawn(Class::Issue, async move {
                    asker.read(QueueClass::SyncRead, address, 4096).await.is_err()
                }));
        }
        let mut failed = Vec::new();
        for join in joins {
            failed.push(join.await.unwrap());
        }
        failed
    });
    assert_eq!(failed, [false, false, false, true, false]);
}

/// The task of a write goes away when the write has been chosen for an aggregate, and before it is told so.
#[test]
fn a_write_that_goes_away_while_it_joins_leaves_no_gap() {
    let rig = Rig::new(9, limits(false, 1));
    let old = noise(1, 3 * 4096);
    rig.sim.poke(4096, &old);
    let (class, size_bytes) = (QueueClass::AsyncWrite, 4096);
    let blocks: Vec<Block> = (0..3).map(|seed| Block::from(noise(10 + seed, size_bytes as usize))).collect();
    let range = |index: u64| (1 + index) * size_bytes..(2 + index) * size_bytes;
    let room = super::Room::pass(Arc::clone(&rig.queue), class, &range(0)).expect("nobody waits");
    let others = [1_u64, 2].map(|index| {
        // Nobody receives.
        let (sender, _) = cenote_taskq::oneshot::channel();
        let block = Some(blocks[index as usize].clone());
        Member { kind: Kind::Write, range: range(index), block, sender }.join(&rig.queue)
    });
    let aggregate = Aggregate::new(range(0).start..range(2).end, range(0), others.into(), room, None);
    rig.runtime.block_on(aggregate.write(&rig.disk, blocks[0].clone(), false)).unwrap();
    let written: Vec<u8> = blocks.iter().flat_map(|block| block.to_vec()).collect();
    assert_eq!(rig.sim.peek(4096, written.len()), written);
}

#[test]
fn who_comes_to_wait_hurries_what_was_read_ahead() {
    let rig = Rig::new(6, Limits { aggregation_bytes: 0, all_max: 1, ..limits(true, 1) });
    let seen = watch(&rig);
    let handle = rig.runtime.handle();
    rig.runtime.block_on(async {
        let mut set = JoinSet::new();
        let asks = [
            (QueueClass::SyncRead, 9),
            (QueueClass::AsyncRead, 7),
            (QueueClass::AsyncRead, 8),
            (QueueClass::SyncRead, 1),
        ];
        for (class, place) in asks {
            let asker = rig.reader();
            set.push(handle.spawn(Class::Issue, async move { asker.read(class, place << 20, 4096).await.map(|_| ()) }));
            handle.sleep(Duration::from_nanos(100)).await;
        }
        rig.queue.hurry(&((8 << 20)..(8 << 20) + 4096));
        while set.next().await.is_some() {}
    });
    let order: Vec<u64> = seen.lock().iter().map(|(address, _)| address >> 20).collect();
    assert_eq!(order, [9, 1, 8, 7]);
}

/// Two disks with heads that share those who wait.
struct Pair {
    runtime: Runtime,
    sims: Vec<Arc<SimDisk>>,
    disks: Vec<Disk>,
    shared: Arc<SharedQueue>,
}

impl Pair {
    fn new() -> Self {
        let runtime = Runtime::simulated(7);
        let handle = runtime.handle();
        let (mut sims, mut disks, mut members) = (vec![], vec![], vec![]);
        for position in 0..2 {
            let path = PathBuf::from(format!("/disk{position}"));
            let options = SimDiskOptions { size_bytes: DISK_BYTES, rotational: true, ..Default::default() };
            sims.push(runtime.sim().expect("it is simulated").add_disk(&handle, &path, options));
            disks.push(Disk::whole(runtime.block_on(handle.open(&path, OpenOptions::default())).unwrap()));
            let queue = Arc::new(LeafQueue::new(Limits { pull_active: 1, ..limits(true, 2) }));
            members.push((position, queue, Arc::new(Load::new(true, DISK_BYTES))));
        }
        Self { sims, disks, shared: SharedQueue::new(members), runtime }
    }

    /// Reads `addresses`, all at once; which disk served which.
    fn read(&self, addresses: &[u64], children: u32) -> Vec<usize> {
        let handle = self.runtime.handle();
        self.runtime.block_on(async {
            let mut joins = vec![];
            for &address_bytes in addresses {
                let (shared, disks) = (Arc::clone(&self.shared), self.disks.clone());
                let now = handle.now();
                joins.push(handle.spawn(Class::Issue, async move {
                    let ask = Ask { address_bytes, size_bytes: 4096, now };
                    let turn = shared.turn(QueueClass::SyncRead, &ask, children, 0).await;
                    let child = shared.child_of(turn.leaf()).unwrap();
                    match turn {
                        Dequeued::Lead(aggregate) => {
                            let (_room, read) = aggregate.read(disks[child].clone());
                            read.await.0.unwrap();
                        }
                        Dequeued::Joined(joined) => drop(joined.await.unwrap()),
                    }
                    child
                }));
            }
            let mut children = vec![];
            for join in joins {
                children.push(join.await.unwrap());
            }
            children
        })
    }
}

#[test]
fn a_run_has_one_child_and_all_have_work() {
    let pair = Pair::new();
    let runs = [0_u64, 8 << 20, 16 << 20, 24 << 20];
    let addresses: Vec<u64> = (0..16).flat_map(|step| runs.map(|run| run + step * 4096)).collect();
    let children = pair.read(&addresses, u32::MAX);
    let mut share = [0; 2];
    for run in runs {
        let own: Vec<usize> = addresses
            .iter()
            .zip(&children)
            .filter(|(at, _)| (run..run + (1 << 20)).contains(at))
            .map(|(_, child)| *child)
            .collect();
        let moves = own.windows(2).filter(|pair| pair[0] != pair[1]).count();
        // The very first request of all went out before its neighbours came.
        assert!(moves <= 1, "{own:?}");
        own.iter().for_each(|child| share[*child] += 1);
    }
    assert!(share.iter().all(|count| *count >= 16), "{share:?}");
    assert_eq!(pair.sims.iter().map(|sim| sim.counts().reads).sum::<u64>(), 6, "neighbours went together");
}

#[test]
fn a_child_that_may_not_serve_it_does_not() {
    let pair = Pair::new();
    let addresses: Vec<u64> = (0..20).map(|index| index << 20).collect();
    assert!(pair.read(&addresses, 0b10).into_iter().all(|child| child == 1));
}

#[test]
fn a_child_that_stands_still_holds_up_only_what_it_was_given() {
    let pair = Pair::new();
    pair.sims[0].set_faults(|_, _| Fault::Delay(Duration::from_secs(1)));
    let addresses: Vec<u64> = (0..20).map(|index| index << 20).collect();
    let began = pair.runtime.handle().now();
    let children = pair.read(&addresses, u32::MAX);
    assert!(children.iter().filter(|child| **child == 0).count() <= 2, "{children:?}");
    assert!(pair.runtime.handle().now() - began < Duration::from_millis(2100), "at most twice what it takes");
}

/// Requests one after the other on a device that takes a millisecond for each: the first waits for nobody, each other one for those before it.
#[test]
fn times_in_the_queue_and_at_the_device_are_told_apart() {
    let rig = Rig::new(7, limits(false, 1));
    let handle = rig.runtime.handle();
    let slow = || Slow { after: Duration::from_secs(30), tell: Box::new(|_| panic!("none is slow")) };
    rig.disk.count(Some(&handle), slow);
    rig.sim.set_service_model(|_, _, _| Duration::from_millis(1));
    let asker = rig.reader();
    rig.runtime.block_on(join_all((0..4).map(|index| asker.read(QueueClass::SyncRead, index << 20, 4096))));
    let asker = rig.reader();
    rig.runtime.block_on(async { asker.write(32 << 20, Block::from(vec![1; 4096])).await.unwrap() });
    // Two neighbours behind a third one go as one: that is one wait, its leader's.
    let asker = rig.reader();
    let places = [40 << 20, 50 << 20, (50 << 20) + 4096];
    rig.runtime.block_on(join_all(places.map(|at| asker.read(QueueClass::Scrub, at, 4096))));
    let waits = rig.disk.stats().unwrap().waits();
    let times = |buckets: &[u64]| -> Vec<(usize, u64)> {
        buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(|(bucket, count)| (bucket, *count)).collect()
    };
    // 2^19 ns is 0.5 ms, 2^20 ns is 1.05 ms, 2^21 ns is 2.1 ms.
    let queue = waits.queue.each_ref().map(|buckets| times(buckets));
    assert_eq!(queue[QueueClass::SyncRead.index()], [(0, 1), (19, 1), (20, 1), (21, 1)], "{queue:?}");
    assert_eq!(queue[QueueClass::AsyncWrite.index()], [(0, 1)]);
    assert_eq!(queue[QueueClass::Scrub.index()], [(0, 1), (19, 1)]);
    assert!(queue[QueueClass::SyncWrite.index()].is_empty() && queue[QueueClass::AsyncRead.index()].is_empty());
    assert_eq!(waits.disk.each_ref().map(|buckets| times(buckets)), [vec![(19, 6)], vec![(19, 1)]]);
    // 1, 2, 3 and 4 ms; 1 ms, 2 ms of the scrub's.
    assert_eq!(waits.total.each_ref().map(|buckets| times(buckets)), [vec![(19, 2), (20, 2), (21, 2)], vec![(19, 1)]]);
}
