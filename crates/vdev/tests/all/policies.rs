//! Mirrors and stripes whose disks fail, lie, hang or are slow, under every read policy: what is returned is always the block,
//! and a disk that hangs holds nobody up for long.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_codec::raidz as parity;
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::Block;
use cenote_taskq::sim::disk::{Fault as DiskFault, SimDisk, SimDiskOptions};
use cenote_taskq::{OpenOptions, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::fault::FaultKind;
use cenote_vdev::layout::StripeMap;
use cenote_vdev::layout::raidz::{Raidz, Reflow};
use cenote_vdev::tree::{LeafState, ReadContext, SitOutError, VdevTree};
use cenote_vdev::tunables::{Policy, Tunables};

const TOP: VdevId = VdevId(0);
const BIRTH: Txg = Txg(100);
const DISK_BYTES: u64 = 256 << 20;

fn list(kind: &str, guid: u64, id: u64) -> NvList {
    let mut list = NvList::new();
    list.push("type", kind);
    list.push("guid", guid);
    list.push("id", id);
    list.push("ashift", 12_u64);
    list
}

/// One top-level vdev on simulated disks with guids from 10.
struct Rig {
    runtime: Runtime,
    config: VdevConfig,
    disks: Vec<Arc<SimDisk>>,
}

impl Rig {
    fn new(top: NvList, count: u64) -> Self {
        Self::with_heads(top, count, false)
    }

    /// `rotational`: what the disks say of themselves. Those with heads have queues, and children of a mirror share one.
    fn with_heads(mut top: NvList, count: u64, rotational: bool) -> Self {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        top.push("children", NvValue::NvlistArray((0..count).map(|id| list("file", 10 + id, id)).collect()));
        let mut root = list("root", 1, 0);
        root.push("children", NvValue::NvlistArray(vec![top]));
        let disk = |id: u64| {
            let options = SimDiskOptions { size_bytes: DISK_BYTES, rotational, ..Default::default() };
            runtime.sim().unwrap().add_disk(&handle, PathBuf::from(format!("/disk{}", 10 + id)), options)
        };
        let disks = (0..count).map(disk).collect();
        Self { config: VdevConfig::parse(&root).unwrap(), disks, runtime }
    }

    fn mirror(count: u64) -> Self {
        Self::new(list("mirror", 500, 0), count)
    }

    fn mirror_with_heads(count: u64) -> Self {
        Self::with_heads(list("mirror", 500, 0), count, true)
    }

    fn tree(&self, settings: &[&str]) -> Arc<VdevTree> {
        let mut tunables = Tunables::default();
        for text in settings {
            let (name, value) = text.split_once('=').unwrap();
            tunables.set(name, value).unwrap();
        }
        let handle = self.runtime.handle();
        let open = |id: usize| {
            let path = PathBuf::from(format!("/disk{}", 10 + id));
            let options = OpenOptions { write: true, ..OpenOptions::default() };
            let device = self.runtime.block_on(handle.open(&path, options)).unwrap();
            (Guid(10 + id as u64), Disk::whole(device))
        };
        let disks: Vec<_> = (0..self.disks.len()).map(open).collect();
        VdevTree::open_with(&self.config, disks, &tunables, Some(handle)).unwrap()
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        self.disks.iter().for_each(|disk| disk.poke(offset + START_BYTES, bytes));
    }

    /// Reads; panics unless the bytes are right. Virtual time it took.
    fn read(&self, tree: &VdevTree, offset: u64, want: &[u8]) -> Duration {
        let handle = self.runtime.handle();
        let began = handle.now();
        let verify = |bytes: &[u8]| bytes == want;
        let context = ReadContext::new(BIRTH);
        let read = tree.read(TOP, offset, want.len() as u64, &verify, &context);
        let bytes = self.runtime.block_on(read).unwrap();
        assert_eq!(bytes[..], *want);
        handle.now() - began
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index / 7) as u8 ^ seed).collect()
}

fn policy(word: &str) -> String {
    format!("zfs_vdev_mirror_policy={word}")
}

/// Each policy on mirrors of disks without heads, and with.
fn policies_and_rigs() -> impl Iterator<Item = (&'static str, fn(u64) -> Rig)> {
    Policy::WORDS
        .iter()
        .copied()
        .flat_map(|word| [(word, Rig::mirror as fn(u64) -> Rig), (word, Rig::mirror_with_heads)])
}

/// The block is read, however one or two of three children fail.
#[test]
fn no_policy_lets_a_bad_child_surface_while_another_is_good() {
    let faults = [
        DiskFault::Error(std::io::ErrorKind::Other),
        DiskFault::Error(std::io::ErrorKind::NotFound),
        DiskFault::Corrupt,
        DiskFault::Short,
        DiskFault::Hang,
        DiskFault::Delay(Duration::from_secs(1)),
        DiskFault::Misdirected(0),
    ];
    let want = pattern(8192, 1);
    for (word, new) in policies_and_rigs() {
        for fault in faults {
            for bad in [vec![0], vec![1], vec![2], vec![0, 1], vec![1, 2], vec![0, 2]] {
                let rig = new(3);
                (0..12).for_each(|region| rig.put(region << 21, &want));
                let tree = rig.tree(&[&policy(word)]);
                assert_eq!(tree.policy_name(), word);
                bad.iter().for_each(|disk: &usize| rig.disks[*disk].set_faults(move |_, _| fault));
                for region in 0..12 {
                    let took = rig.read(&tree, region << 21, &want);
                    // Twice the time after which a read is asked of another child.
                    assert!(took < Duration::from_millis(6500), "{word}, {fault:?}, {bad:?}: {took:?}");
                }
            }
        }
    }
}

#[test]
fn no_policy_asks_a_child_that_is_not_to_be_asked() {
    let want = pattern(4096, 2);
    for (word, new) in policies_and_rigs() {
        let rig = new(3);
        (0..30).for_each(|region| rig.put(region << 21, &want));
        let tree = rig.tree(&[&policy(word)]);
        assert!(tree.control().unwrap().set_leaf_state(Guid(10), LeafState::Faulted));
        let mut missed = Dtl::new();
        missed.insert(BIRTH.0..BIRTH.0 + 1);
        assert!(tree.control().unwrap().set_dtl(Guid(11), missed));
        for region in 0..30 {
            rig.read(&tree, region << 21, &want);
        }
        let reads: Vec<u64> = rig.disks.iter().map(|disk| disk.counts().reads).collect();
        assert_eq!(reads, [0, 0, 30], "{word}");
        // The stale one is the last resort.
        assert!(tree.control().unwrap().set_leaf_state(Guid(12), LeafState::Offline));
        rig.read(&tree, 0, &want);
        assert_eq!(rig.disks[1].counts().reads, 1, "{word}");
    }
}

#[test]
fn a_child_that_hangs_is_reported_and_another_is_asked() {
    let want = pattern(4096, 3);
    for (word, new) in policies_and_rigs() {
        let rig = new(2);
        rig.put(0, &want);
        let tree = rig.tree(&[&policy(word), "zfs_vdev_mirror_reroute_ms=700", "zfs_vdev_mirror_hedge_percent=0"]);
        rig.disks[0].set_faults(|_, _| DiskFault::Hang);
        let took = rig.read(&tree, 0, &want);
        let reports = tree.fault_log().drain();
        if rig.disks[0].counts().reads > 0 {
            assert!((Duration::from_millis(700)..Duration::from_millis(702)).contains(&took), "{word}: {took:?}");
            assert!(reports.iter().any(|fault| fault.guid == Guid(10) && fault.kind == FaultKind::Overdue), "{word}");
        } else {
            assert_eq!(reports, [], "{word}");
        }
        // Errors are for what the device said.
        assert_eq!(tree.error_counts(Guid(10)).unwrap().totals().read, 0);
    }
}

#[test]
fn a_pool_without_another_copy_waits_for_the_deadman_and_no_longer() {
    let rig = Rig::mirror(2);
    let tree = rig.tree(&["zfs_deadman_ziotime_ms=20000"]);
    rig.disks.iter().for_each(|disk| disk.set_faults(|_, _| DiskFault::Hang));
    let handle = rig.runtime.handle();
    let began = handle.now();
    let context = ReadContext::new(BIRTH);
    let read = tree.read(TOP, 0, 4096, &|_: &[u8]| true, &context);
    let error = rig.runtime.block_on(read).unwrap_err().to_string();
    assert!(error.contains("disk10") && error.contains("disk11") && error.contains("timed out"), "{error}");
    assert!(handle.now() - began <= Duration::from_secs(41), "{:?}", handle.now() - began);
}

/// Where the block has another copy on another vdev, a vdev whose devices all hang is given up on early, and has not failed.
#[test]
fn a_vdev_that_hangs_is_given_up_on_early_for_a_copy_elsewhere() {
    let want = pattern(4096, 6);
    for (word, new) in policies_and_rigs() {
        let rig = new(2);
        rig.put(0, &want);
        let tree = rig.tree(&[&policy(word), "zfs_vdev_mirror_reroute_ms=500"]);
        rig.disks.iter().for_each(|disk| disk.set_faults(|_, _| DiskFault::Hang));
        let handle = rig.runtime.handle();
        let began = handle.now();
        let context = ReadContext::new(BIRTH).elsewhere();
        let read = tree.read(TOP, 0, 4096, &|_: &[u8]| true, &context);
        let error = rig.runtime.block_on(read).unwrap_err();
        assert!(error.is_overdue(), "{error}");
        assert!(handle.now() - began <= Duration::from_millis(1001), "{:?}", handle.now() - began);
        assert_eq!(tree.error_counts(Guid(500)).unwrap().totals().read, 0, "{word}");
        // The second child is given time to answer, however late it is asked.
        let rig = Rig::mirror(2);
        rig.put(0, &want);
        let tree = rig.tree(&[&policy(word), "zfs_vdev_mirror_reroute_ms=500"]);
        rig.disks[0].set_faults(|_, _| DiskFault::Hang);
        rig.disks[1].set_faults(|_, _| DiskFault::Delay(Duration::from_millis(100)));
        let read = tree.read(TOP, 0, 4096, &|_: &[u8]| true, &context);
        assert_eq!(rig.runtime.block_on(read).unwrap()[..], want[..], "{word}");
    }
}

/// Once it is known how long answers take, a hang costs far less than the reroute, and extra reads stay few.
#[test]
fn adaptive_asks_a_second_child_when_an_answer_is_late_and_not_too_often() {
    let want = pattern(4096, 4);
    let rig = Rig::mirror(2);
    (0..64).for_each(|region| rig.put(region << 20, &want));
    let tree = rig.tree(&[]);
    for turn in 0..200 {
        rig.read(&tree, (turn % 64) << 20, &want);
    }
    // Which child it would take now is its own affair: both hang for the one read, in turns.
    for hanging in [0, 1] {
        rig.disks[hanging].set_faults(|_, _| DiskFault::Hang);
        for turn in 0..10 {
            let took = rig.read(&tree, turn << 20, &want);
            assert!(took < Duration::from_millis(5), "{took:?}");
        }
        rig.disks[hanging].clear_faults();
    }
    // One read in twenty takes far longer than others: more than may be doubled.
    let before: u64 = rig.disks.iter().map(|disk| disk.counts().reads).sum();
    for disk in &rig.disks {
        let delay = DiskFault::Delay(Duration::from_millis(30));
        disk.set_faults(move |request, _| if request.sequence % 20 == 0 { delay } else { DiskFault::None });
    }
    for turn in 0..2000 {
        rig.read(&tree, (turn % 64) << 20, &want);
    }
    let sent = rig.disks.iter().map(|disk| disk.counts().reads).sum::<u64>() - before;
    assert!(sent <= 2000 * 103 / 100 + 32, "{sent} reads for 2000");
    assert!(sent > 2000, "some were doubled");
}

/// A raidz of four disks with one block on it, and where that has its columns.
fn raidz_with_a_block() -> (Rig, Vec<u8>, StripeMap) {
    let mut top = list("raidz", 500, 0);
    top.push("nparity", 1_u64);
    let rig = Rig::new(top, 4);
    let want = pattern(12 << 10, 5);
    let map = Raidz::new(12, 1, 4, &[], false).unwrap().map(0, 12 << 10, BIRTH, Reflow::COMPLETE).unwrap();
    for row in map.rows() {
        let data: Vec<&[u8]> = row[1..]
            .iter()
            .map(|column| &want[column.block_offset_bytes as usize..][..column.size_bytes as usize])
            .collect();
        let mut sum = vec![0; row[0].size_bytes as usize];
        parity::generate(&data, &mut [&mut sum[..]]).unwrap();
        for (column, bytes) in row.iter().zip([&sum[..]].into_iter().chain(data)) {
            rig.disks[column.child as usize].poke(column.address_bytes, bytes);
        }
    }
    (rig, want, map)
}

/// One disk of a raidz answers fifty times as slowly: after a while it sits out, and comes back when its time is over.
#[test]
fn a_raidz_sits_out_a_slow_disk_but_not_in_a_scrub() {
    let (rig, want, map) = raidz_with_a_block();
    let slow = map.columns()[2].child as usize;
    let tree = rig.tree(&["vdev_read_sit_out_secs=60"]);
    rig.disks[slow].set_faults(|_, _| DiskFault::Delay(Duration::from_millis(5)));
    let handle = rig.runtime.handle();
    for _ in 0..40 {
        rig.read(&tree, 0, &want);
        rig.runtime.block_on(handle.sleep(Duration::from_millis(200)));
    }
    let log = tree.fault_log().drain();
    assert!(log.iter().any(|fault| fault.guid.0 == 10 + slow as u64 && fault.kind == FaultKind::SatOut), "{log:?}");
    assert!(tree.is_sitting_out(Guid(10 + slow as u64)));
    let before = rig.disks[slow].counts().reads;
    let took = rig.read(&tree, 0, &want);
    assert!(took < Duration::from_millis(3), "{took:?}");
    assert_eq!(rig.disks[slow].counts().reads, before, "its column was rebuilt");
    // A scrub reads it all the same, and finds nothing wrong.
    let verify = |bytes: &[u8]| bytes == &want[..];
    let context = ReadContext::new(BIRTH);
    let copies = tree.read_copies(TOP, 0, want.len() as u64, &verify, &context);
    let report = rig.runtime.block_on(copies).unwrap();
    assert_eq!((report.read_count, report.bad.len()), (4, 0));
    assert_eq!(rig.disks[slow].counts().reads, before + 1);
    // Another one fails: then the slow one is read after all.
    let other = map.columns()[3].child as usize;
    rig.disks[other].set_faults(|_, _| DiskFault::Error(std::io::ErrorKind::Other));
    rig.read(&tree, 0, &want);
    rig.disks[other].clear_faults();
    rig.disks[slow].clear_faults();
    rig.runtime.block_on(handle.sleep(Duration::from_secs(61)));
    let before = rig.disks[slow].counts().reads;
    rig.read(&tree, 0, &want);
    assert_eq!(rig.disks[slow].counts().reads, before + 1, "its time is over");
    assert!(!tree.is_sitting_out(Guid(10 + slow as u64)));
}

/// `autosit=off`: nobody sits out, however slow.
#[test]
fn a_raidz_whose_children_are_not_compared_has_none_sit_out() {
    let (rig, want, map) = raidz_with_a_block();
    let slow = map.columns()[2].child as usize;
    let tree = rig.tree(&[]);
    assert_eq!(tree.set_autosit(Guid(10), false), Err(SitOutError::NoStripe));
    tree.set_autosit(Guid(500), false).unwrap();
    rig.disks[slow].set_faults(|_, _| DiskFault::Delay(Duration::from_millis(5)));
    let handle = rig.runtime.handle();
    let read_all = || {
        for _ in 0..40 {
            rig.read(&tree, 0, &want);
            rig.runtime.block_on(handle.sleep(Duration::from_millis(200)));
        }
    };
    read_all();
    assert!(!tree.is_sitting_out(Guid(10 + slow as u64)));
    tree.set_autosit(Guid(500), true).unwrap();
    read_all();
    assert!(tree.is_sitting_out(Guid(10 + slow as u64)));
    tree.clear_errors();
    assert!(!tree.is_sitting_out(Guid(10 + slow as u64)), "'zpool clear' has it read");
}

/// `sit_out=on`: it is not read until `off`, is written, and is read when parity is needed elsewhere.
#[test]
fn a_disk_sits_out_as_long_as_a_person_wants_and_takes_writes() {
    let (rig, want, map) = raidz_with_a_block();
    let leaf = |column: usize| map.columns()[column].child as usize;
    let guid = |column: usize| Guid(10 + leaf(column) as u64);
    let tree = rig.tree(&[]);
    assert_eq!(tree.set_sit_out(Guid(500), true), Err(SitOutError::NotOfStripe));
    tree.set_sit_out(guid(2), true).unwrap();
    assert_eq!(tree.set_sit_out(guid(3), true), Err(SitOutError::TooMany));
    tree.set_sit_out(guid(2), true).unwrap();
    rig.runtime.block_on(rig.runtime.handle().sleep(Duration::from_secs(100_000)));
    rig.read(&tree, 0, &want);
    assert_eq!(rig.disks[leaf(2)].counts().reads, 0, "its column was rebuilt");
    // A write reaches it, and what was written is read without it, and with it.
    let other = pattern(12 << 10, 6);
    let block = Block::copied_from(&other);
    rig.runtime.block_on(tree.write(TOP, 0, &block, BIRTH)).unwrap();
    assert!(rig.disks[leaf(2)].counts().writes > 0);
    rig.read(&tree, 0, &other);
    assert_eq!(rig.disks[leaf(2)].counts().reads, 0);
    // Its bytes are wanted when another child is away, and it is one too many then.
    assert!(tree.control().unwrap().set_leaf_state(guid(3), LeafState::Offline));
    rig.read(&tree, 0, &other);
    assert!(rig.disks[leaf(2)].counts().reads > 0);
    assert!(tree.is_sitting_out(guid(2)));
    tree.set_sit_out(guid(2), false).unwrap();
    assert_eq!(tree.set_sit_out(guid(2), true), Err(SitOutError::TooMany), "parity stands in for the one that is away");
    assert!(tree.control().unwrap().set_leaf_state(guid(3), LeafState::Online));
    let before = rig.disks[leaf(2)].counts().reads;
    rig.read(&tree, 0, &other);
    assert_eq!(rig.disks[leaf(2)].counts().reads, before + 1);
    // Never, with this tunable.
    let tree = rig.tree(&["vdev_read_sit_out_secs=0"]);
    tree.set_sit_out(guid(2), true).unwrap();
    assert!(!tree.is_sitting_out(guid(2)));
}

#[test]
fn a_raidz_column_that_hangs_is_rebuilt() {
    let mut top = list("raidz", 500, 0);
    top.push("nparity", 1_u64);
    let rig = Rig::new(top, 3);
    // Zeros have a parity of zeros.
    let want = vec![0; 8192];
    let tree = rig.tree(&["zfs_vdev_mirror_reroute_ms=500"]);
    rig.disks[2].set_faults(|_, _| DiskFault::Hang);
    let took = rig.read(&tree, 0, &want);
    assert!(took < Duration::from_millis(510), "{took:?}");
}

/// Copies on different vdevs: the one that answers in less than half the time of the first.
#[test]
fn the_better_of_two_copies_is_found() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let mut root = list("root", 1, 0);
    root.push("children", NvValue::NvlistArray(vec![list("file", 10, 0), list("file", 11, 1)]));
    let config = VdevConfig::parse(&root).unwrap();
    let mut disks = Vec::new();
    for guid in [10_u64, 11] {
        let path = PathBuf::from(format!("/disk{guid}"));
        let options = SimDiskOptions { size_bytes: DISK_BYTES, ..Default::default() };
        let disk = runtime.sim().unwrap().add_disk(&handle, &path, options);
        if guid == 10 {
            disk.set_faults(|_, _| DiskFault::Delay(Duration::from_millis(9)));
        }
        disks.push((Guid(guid), Disk::whole(runtime.block_on(handle.open(&path, OpenOptions::default())).unwrap())));
    }
    let tree = VdevTree::open_with(&config, disks, &Tunables::default(), Some(handle)).unwrap();
    let places = [(VdevId(0), 1 << 20), (VdevId(1), 1 << 20)];
    assert_eq!(tree.best_copy(&places, 4096), 0, "the first while nothing is known");
    for vdev in [VdevId(0), VdevId(1)].repeat(20) {
        runtime.block_on(tree.read(vdev, 1 << 21, 4096, &|_: &[u8]| true, &ReadContext::new(BIRTH))).unwrap();
    }
    assert_eq!(tree.best_copy(&places, 4096), 1);
    assert_eq!(tree.best_copy(&[places[1], places[0]], 4096), 0);
    assert!(tree.control().unwrap().set_leaf_state(Guid(11), LeafState::Offline));
    assert_eq!(tree.best_copy(&places, 4096), 0, "one that can be read");
}

/// Many reads at once, one child of a mirror of drives with heads hanging for good: all come, soon after the reroute, and none
/// waits for the child whose run it was in.
#[test]
fn many_reads_come_though_the_child_that_had_them_hangs() {
    let want = pattern(4096, 9);
    let rig = Rig::mirror_with_heads(2);
    (0..256).for_each(|index| rig.put(index << 14, &want));
    let tree = rig.tree(&["zfs_vdev_mirror_reroute_ms=500"]);
    for hanging in [0, 1] {
        rig.disks[hanging].set_faults(|_, _| DiskFault::Hang);
        let handle = rig.runtime.handle();
        let began = handle.now();
        rig.runtime.block_on(async {
            let mut set = cenote_taskq::JoinSet::new();
            for index in 0..256_u64 {
                let (tree, want) = (Arc::clone(&tree), want.clone());
                set.push(handle.spawn(cenote_taskq::Class::Issue, async move {
                    let verify = |bytes: &[u8]| bytes == want;
                    tree.read(TOP, index << 14, 4096, &verify, &ReadContext::new(BIRTH)).await.map(|_| ())
                }));
            }
            while let Some(done) = set.next().await {
                done.unwrap().unwrap();
            }
        });
        let took = handle.now() - began;
        assert!(took < Duration::from_secs(3), "{took:?}");
        rig.disks[hanging].clear_faults();
    }
}

/// A read that lost to a second one is still with its device: closing waits for it, and afterwards there is none and none begins.
#[test]
fn closing_waits_for_reads_that_nobody_waits_for() {
    let want = pattern(4096, 5);
    for new in [Rig::mirror as fn(u64) -> Rig, Rig::mirror_with_heads] {
        let rig = new(2);
        (0..8).for_each(|region| rig.put(region << 20, &want));
        let tree = rig.tree(&["zfs_vdev_mirror_reroute_ms=50"]);
        let left = tree.left().expect("it has a clock");
        // The very first request of all takes very long.
        let is_first = Arc::new(std::sync::atomic::AtomicBool::new(true));
        for disk in &rig.disks {
            let is_first = Arc::clone(&is_first);
            disk.set_faults(move |_, _| {
                let delay = is_first.swap(false, std::sync::atomic::Ordering::Relaxed);
                if delay { DiskFault::Delay(Duration::from_secs(60)) } else { DiskFault::None }
            });
        }
        for turn in 0..8 {
            rig.read(&tree, turn << 20, &want);
        }
        assert_eq!(left.members(), 1, "one is out");
        let before = rig.runtime.handle().now();
        rig.runtime.block_on(left.close());
        assert!(rig.runtime.handle().now() - before > Duration::from_secs(30), "it was waited for");
        assert_eq!(left.members(), 0);
        // Requests that are late from now on are dropped.
        rig.disks.iter().for_each(|disk| disk.set_faults(|_, _| DiskFault::Delay(Duration::from_millis(100))));
        rig.read(&tree, 0, &want);
        assert_eq!(left.members(), 0);
    }
}
