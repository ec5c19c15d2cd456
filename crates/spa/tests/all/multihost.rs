//! Goal: a pool has one writer, whoever else can reach its devices. Method: several engines over the same simulated disks, each
//! with a host id of its own; a host that dies is a runtime that ends, whose disks' contents another one goes on with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_format::label::{RING_OFFSET, slot_count};
use cenote_sim::options;
use cenote_spa::{
    Clock, CreateOptions, FoundPool, Host, ImportOptions, Pool, PropertyValue, SpaError, TopKind, WriteOptions, create,
    find, holder_id, import, open,
};
use cenote_taskq::sim::disk::{Fault, Image, Request, RequestKind, SimDiskOptions};
use cenote_taskq::{Either, Handle, Runtime, both, join_all, race};
use cenote_vdev::leaf::{LabelReport, probe};

const DISKS: usize = 2;
const NAME: &str = "shared";
/// Host ids of two systems.
const HERE: u64 = 0x1111;
const THERE: u64 = 0x2222;
const ASHIFT: u32 = 12;

struct Machine {
    runtime: Runtime,
    handle: Handle,
    shared: cenote_sim::Machine,
}

impl Machine {
    fn new(seed: u64, images: &[Image]) -> Self {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let options = SimDiskOptions { size_bytes: 80 << 20, ..SimDiskOptions::default() };
        let shared = cenote_sim::Machine::new(&runtime, DISKS, &options);
        shared.restore(images);
        Self { runtime, handle, shared }
    }

    /// The disks' contents that a host leaves if it stops at this moment.
    fn images(&self) -> Vec<Image> {
        self.shared.images()
    }

    /// A new pool, a mirror, with this value of `multihost`; it is exported.
    async fn make(&self, is_multihost: bool) {
        let tops = self.shared.tops(&self.handle, &[(TopKind::Mirror, DISKS)]).await.unwrap();
        let options = CreateOptions { clock: Clock::Now, host: host(HERE), ..options(NAME, tops, ASHIFT) };
        let pool = create(&self.handle, options).await.unwrap();
        if is_multihost {
            pool.set_pool_property("multihost", Some(&PropertyValue::Number(1))).await.unwrap();
        }
        pool.export().await.unwrap();
    }

    async fn found(&self) -> FoundPool {
        find(&self.handle, &self.shared.paths).await.0.pop().unwrap()
    }

    async fn open(&self, host_id: u64) -> Result<Pool, SpaError> {
        self.open_with(host_id, |_| {}).await
    }

    async fn open_with(&self, host_id: u64, change: impl FnOnce(&mut ImportOptions)) -> Result<Pool, SpaError> {
        let mut how = ImportOptions { force: true, host_id, cache_bytes: 16 << 20, ..ImportOptions::default() };
        change(&mut how);
        let options = WriteOptions { clock: Clock::Now, host: host(host_id), check: true };
        open(&self.handle, self.found().await, &how, options).await
    }

    /// Opened and in use.
    async fn live(&self, host_id: u64, is_held: bool) -> Pool {
        let writer = self.open(host_id).await.unwrap();
        if is_held {
            writer.hold().await.unwrap();
        }
        let pool = writer.start(TxTunables::for_memory(1 << 30)).await;
        pool.sync().await.unwrap();
        pool
    }

    async fn sleep(&self, seconds: u64) {
        self.handle.sleep(Duration::from_secs(seconds)).await;
    }

    async fn reports(&self) -> Vec<LabelReport> {
        let found = self.found().await;
        let mut reports = Vec::new();
        for leaf in found.leaves.values() {
            reports.push(probe(&leaf.disk).await);
        }
        reports
    }

    /// The newest uberblock: its slot, txg, and multihost fields (delay in ns, interval, sequence, fail intervals).
    async fn newest(&self) -> (usize, u64, (u64, Option<u32>, Option<u16>, Option<u16>)) {
        let reports = self.reports().await;
        let copies = reports.iter().flat_map(|report| &report.uberblocks);
        let newest = copies.max_by(|a, b| a.uberblock.cmp_age(&b.uberblock)).unwrap();
        let mmp = newest.uberblock.mmp.unwrap();
        let fields = (mmp.delay_ns, mmp.interval_ms(), mmp.sequence(), mmp.fail_intervals());
        (newest.slot, newest.uberblock.txg.0, fields)
    }

    /// Host id and host name of all labels.
    async fn owner(&self) -> (u64, String) {
        let reports = self.reports().await;
        let mut owners = reports.iter().flat_map(|report| &report.labels).map(|label| {
            let config = label.config.as_ref().unwrap();
            (config.u64("hostid").unwrap_or(0), config.str("hostname").unwrap().to_owned())
        });
        let owner = owners.next().unwrap();
        assert!(owners.all(|other| other == owner));
        owner
    }

    fn seconds(&self) -> u64 {
        self.handle.now().as_ns() / 1_000_000_000
    }
}

/// Runs a test with a new pool, exported, that has this value of `multihost`.
fn on_pool(is_multihost: bool, test: impl AsyncFnOnce(&Machine)) {
    let machine = Machine::new(1, &[]);
    machine.runtime.block_on(async {
        machine.make(is_multihost).await;
        test(&machine).await;
    });
}

fn host(id: u64) -> Host {
    Host { id, name: format!("host{id:x}") }
}

fn is_active<T>(result: &Result<T, SpaError>) -> bool {
    matches!(result, Err(SpaError::Active { .. }))
}

/// `true` for multihost writes and writes of a txg's uberblock or labels.
fn is_to_labels(request: &Request) -> bool {
    let label_bytes = 256 << 10;
    let end = (80 << 20) - 2 * label_bytes;
    request.kind == RequestKind::Write && (request.offset_bytes < 2 * label_bytes || request.offset_bytes >= end)
}

#[test]
fn a_pool_with_multihost_shows_that_it_is_in_use() {
    on_pool(true, async |machine| {
        assert_eq!(machine.owner().await, (HERE, "host1111".into()), "exported, it has its host's own id");
        let (_, _, (delay, interval, sequence, fail)) = machine.newest().await;
        assert!(delay > 0, "OpenZFS leaves the delay at an export");
        assert_eq!((interval, sequence, fail), (Some(1000), Some(0), Some(10)));

        let pool = machine.live(HERE, false).await;
        assert_eq!(machine.owner().await, (holder_id(HERE), "cenote@host1111".into()));
        machine.sleep(10).await;
        let (slot, txg, (delay, interval, sequence, fail)) = machine.newest().await;
        assert_eq!(slot, slot_count(ASHIFT) - 1);
        assert_eq!((interval, fail), (Some(1000), Some(10)));
        // Two devices, so a write every half second.
        assert!((500_000_000..2_000_000_000).contains(&delay), "{delay}");
        assert!(sequence.is_some_and(|sequence| (1..=3).contains(&sequence)), "{sequence:?}");
        // Every device gets them, and no txg goes to their slot.
        for report in machine.reports().await {
            let last = slot_count(ASHIFT) - 1;
            assert!(report.uberblocks.iter().any(|copy| copy.slot == last && copy.uberblock.txg.0 == txg));
        }
        pool.export().await.unwrap();
        let before = machine.newest().await;
        machine.sleep(5).await;
        assert_eq!(machine.newest().await, before, "after the export nothing is written");
        assert_eq!(machine.owner().await.0, HERE);
    });
}

#[test]
fn a_second_host_is_refused_whether_multihost_is_on_or_the_pool_is_held() {
    for (seed, is_multihost, is_held) in [(1, true, false), (2, false, true), (3, true, true)] {
        let machine = Machine::new(seed, &[]);
        machine.runtime.block_on(async {
            machine.make(is_multihost).await;
            let pool = machine.live(HERE, is_held).await;
            // By another host, by one without an id, and by another process of this host.
            for host_id in [THERE, 0, HERE] {
                let begun = machine.seconds();
                let second = machine.open(host_id).await;
                assert!(is_active(&second), "{host_id:#x}: {:?}", second.err());
                assert!(machine.seconds() - begun < 5, "it is seen soon");
                let text = second.err().unwrap().to_string();
                assert!(text.contains("pool is imported on host 'cenote@host1111'"), "{text}");
            }
            // To be read, too.
            let options =
                ImportOptions { force: true, host_id: THERE, cache_bytes: 16 << 20, ..ImportOptions::default() };
            assert!(is_active(&import(&machine.handle, machine.found().await, &options).await));
            pool.sync().await.unwrap();
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn who_held_a_pool_leaves_it_to_everybody_without_a_wait() {
    on_pool(false, async |machine| {
        let pool = machine.live(0, true).await;
        machine.sleep(3).await;
        let (_, _, (delay, interval, _, fail)) = machine.newest().await;
        assert!(delay > 0);
        // Others wait as for a host that never stops by itself; this one is not suspended for being late.
        assert_eq!((interval, fail), (Some(1000), Some(0)));
        assert_eq!(machine.owner().await, (holder_id(0), "cenote@host0".into()));
        pool.export().await.unwrap();
        let (_, _, fields) = machine.newest().await;
        assert_eq!(fields, (0, None, None, None));
        assert_eq!(machine.owner().await, (0, "host0".into()));
        let begun = machine.handle.now();
        let options = ImportOptions { host_id: THERE, cache_bytes: 16 << 20, ..ImportOptions::default() };
        import(&machine.handle, machine.found().await, &options).await.unwrap();
        let other = machine.open_with(THERE, |how| how.force = false).await.unwrap();
        assert!(machine.handle.now() - begun < Duration::from_secs(1), "nobody waits");
        other.export().await.unwrap();
    });
}

/// Found by a command that was run when `umount` had returned, while the mount's process ended: it found the pool in use, and saw the
/// export change it.
#[test]
fn a_pool_that_is_exported_while_it_is_watched_is_opened() {
    for (seed, is_multihost, is_read) in [(1, false, true), (2, false, false), (3, true, true), (4, true, false)] {
        let machine = Machine::new(seed, &[]);
        machine.runtime.block_on(async {
            machine.make(is_multihost).await;
            let pool = machine.live(HERE, true).await;
            machine.sleep(2).await;
            let found = machine.found().await;
            let exported = async {
                machine.handle.sleep(Duration::from_millis(300)).await;
                pool.export().await.unwrap();
            };
            let how = ImportOptions { force: true, host_id: THERE, cache_bytes: 16 << 20, ..ImportOptions::default() };
            let next = async {
                match is_read {
                    true => import(&machine.handle, found, &how).await.map(drop),
                    false => {
                        let options = WriteOptions { clock: Clock::Now, host: host(THERE), check: true };
                        open(&machine.handle, found, &how, options).await?.export().await
                    }
                }
            };
            let ((), next) = both(exported, next).await;
            next.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        });
    }
}

/// The time that the dead host's uberblock asks for, up to a quarter more, and ten claims an interval apart.
#[test]
fn when_the_first_host_has_died_the_second_gets_the_pool_after_the_wait() {
    for (seed, is_held, wait) in [(1, false, 20), (2, true, 30)] {
        let machine = Machine::new(seed, &[]);
        let images = machine.runtime.block_on(async {
            machine.make(!is_held).await;
            let _pool = machine.live(HERE, is_held).await;
            machine.sleep(5).await;
            machine.images()
        });
        drop(machine);
        let machine = Machine::new(seed + 10, &images);
        machine.runtime.block_on(async {
            let begun = machine.seconds();
            let options = ImportOptions { force: true, cache_bytes: 16 << 20, ..ImportOptions::default() };
            import(&machine.handle, machine.found().await, &options).await.unwrap();
            assert!(machine.seconds() - begun <= 5, "reading does not wait long");

            let told = Arc::new(cenote_taskq::sync::Mutex::new(Vec::new()));
            let (begun, notes) = (machine.seconds(), told.clone());
            let notice = cenote_spa::Notice::new(move |text| notes.lock().push(text.to_owned()));
            let pool = machine.open_with(THERE, |how| how.notice = Some(notice)).await.unwrap();
            let took = machine.seconds() - begun;
            assert!((wait + 10..=wait * 5 / 4 + 25).contains(&took), "{took} s");
            assert!(told.lock().len() == 1 && told.lock()[0].contains("cenote@host1111"), "{:?}", told.lock());
            pool.export().await.unwrap();
            if is_held {
                assert_eq!(machine.newest().await.2, (0, None, None, None));
            }
        });
        // Where it is known that the owner is dead nobody waits.
        let machine = Machine::new(seed + 20, &images);
        machine.runtime.block_on(async {
            let pool = machine.open_with(HERE, |how| how.owner_is_gone = true).await.unwrap();
            assert_eq!(machine.seconds(), 0);
            pool.export().await.unwrap();
        });
    }
}

/// Both have watched and seen nobody; both may give up, but not both may have it.
#[test]
fn of_two_hosts_that_import_at_once_at_most_one_gets_the_pool() {
    let machine = Machine::new(1, &[]);
    let images = machine.runtime.block_on(async {
        machine.make(true).await;
        let _pool = machine.live(HERE, false).await;
        machine.sleep(2).await;
        machine.images()
    });
    let mut winners = 0;
    for seed in 0..12_u64 {
        let machine = Machine::new(100 + seed, &images);
        machine.runtime.block_on(async {
            let both = join_all([(HERE, 0), (THERE, seed * 137 % 3000)].map(|(host_id, later_ms)| {
                let machine = &machine;
                async move {
                    machine.handle.sleep(Duration::from_millis(later_ms)).await;
                    let writer = machine.open(host_id).await?;
                    // The winner keeps it: the other must see that.
                    let pool = writer.start(TxTunables::for_memory(1 << 30)).await;
                    pool.sync().await?;
                    Ok::<_, SpaError>(pool)
                }
            }))
            .await;
            let has = both.iter().filter(|result| result.is_ok()).count();
            assert!(has <= 1, "seed {seed}: both have the pool");
            assert!(both.iter().all(|result| result.is_ok() || is_active(result)), "seed {seed}");
            winners += has;
            for pool in both.into_iter().flatten() {
                pool.export().await.unwrap();
            }
        });
    }
    assert!(winners > 6, "{winners} of 12");
}

#[test]
fn a_pool_whose_multihost_writes_fail_is_suspended_and_goes_on_only_after_a_check() {
    on_pool(true, async |machine| {
        let pool = machine.live(HERE, false).await;
        machine.sleep(2).await;
        for disk in &machine.shared.disks {
            disk.set_faults(|request, _| match is_to_labels(request) {
                true => Fault::Error(std::io::ErrorKind::Other),
                false => Fault::None,
            });
        }
        machine.sleep(8).await;
        assert!(pool.suspended().is_none(), "not before its ten intervals are over");
        machine.sleep(4).await;
        let reason = pool.suspended().unwrap();
        assert!(reason.contains("multihost writes have not succeeded in over 10"), "{reason}");
        assert!(pool.is_suspended_for_multihost());
        machine.shared.disks.iter().for_each(|disk| disk.clear_faults());
        machine.sleep(60).await;
        assert!(pool.is_suspended_for_multihost(), "devices that work again are no reason to go on");

        let begun = machine.seconds();
        pool.resume().await.unwrap();
        assert!(machine.seconds() - begun >= 20, "it watches as an import does");
        assert!(pool.suspended().is_none());
        pool.sync().await.unwrap();
        machine.sleep(30).await;
        assert!(pool.suspended().is_none());
        pool.export().await.unwrap();
    });
}

/// The first host stands still for a minute, as a stopped process or a paused virtual machine does; its last multihost write is
/// answered when it goes on. Meanwhile the second has imported the pool.
#[test]
fn a_host_that_stood_still_writes_nothing_after_another_has_the_pool() {
    for (seed, is_multihost) in [(1, true), (2, false)] {
        let machine = Machine::new(seed, &[]);
        machine.runtime.block_on(async {
            machine.make(is_multihost).await;
            let first = machine.live(HERE, true).await;
            machine.sleep(2).await;
            // The first host's writes hang; who comes second writes once they are all on their way.
            let stands_still = Arc::new(AtomicBool::new(true));
            for disk in &machine.shared.disks {
                let still = stands_still.clone();
                disk.set_faults(move |request, _| match is_to_labels(request) && still.load(Ordering::Relaxed) {
                    true => Fault::Delay(Duration::from_secs(90)),
                    false => Fault::None,
                });
            }
            machine.sleep(5).await;
            stands_still.store(false, Ordering::Relaxed);
            let second = machine.live(THERE, true).await;
            machine.sleep(60).await;
            let (_, txg, _) = machine.newest().await;
            // The first wants to go on. No block of it may reach a device: it could lie where the second has written by now.
            let blocks = Arc::new(AtomicU64::new(0));
            for disk in &machine.shared.disks {
                let blocks = blocks.clone();
                disk.set_faults(move |request, _| {
                    let is_block = request.kind == RequestKind::Write && !is_to_labels(request);
                    blocks.fetch_add(u64::from(is_block), Ordering::Relaxed);
                    Fault::None
                });
            }
            let synced = race(Box::pin(first.sync()), machine.handle.sleep(Duration::from_secs(30))).await;
            assert!(!matches!(synced, Either::Left(Ok(_))), "seed {seed}: it has written over the other's");
            assert!(first.is_suspended_for_multihost(), "seed {seed}");
            assert_eq!(blocks.load(Ordering::Relaxed), 0, "seed {seed}");
            assert!(first.resume().await.is_err(), "seed {seed}");
            assert_eq!(machine.owner().await.1, "cenote@host2222");
            first.abandon();
            let synced = second.sync().await.unwrap();
            assert!(synced.0 > txg);
            second.export().await.unwrap();
        });
    }
}

/// A held pool whose device was slow is stopped at its next write until its labels were looked at, and no longer.
#[test]
fn a_held_pool_that_was_late_goes_on_by_itself() {
    on_pool(false, async |machine| {
        let pool = machine.live(HERE, true).await;
        for disk in &machine.shared.disks {
            disk.set_faults(|request, _| match is_to_labels(request) {
                true => Fault::Delay(Duration::from_secs(40)),
                false => Fault::None,
            });
        }
        machine.sleep(30).await;
        machine.shared.disks.iter().for_each(|disk| disk.clear_faults());
        let begun = machine.seconds();
        pool.sync().await.unwrap();
        assert!(machine.seconds() - begun < 5, "it waits for the labels alone");
        assert!(pool.suspended().is_none());
        pool.export().await.unwrap();
    });
}

#[test]
fn multihost_can_be_turned_on_and_off_while_the_pool_is_in_use() {
    on_pool(false, async |machine| {
        let pool = machine.live(HERE, false).await;
        assert_eq!(machine.newest().await.2, (0, None, None, None));
        assert_eq!(machine.owner().await.0, HERE);
        let set = async |value: u64| {
            pool.change(move |writer| {
                Box::pin(
                    async move { writer.set_pool_property("multihost", Some(&PropertyValue::Number(value))).await },
                )
            })
            .await
        };
        for _ in 0..3 {
            set(1).await.unwrap();
            machine.sleep(3).await;
            let (slot, txg, (delay, _, _, fail)) = machine.newest().await;
            assert_eq!((slot, fail), (slot_count(ASHIFT) - 1, Some(10)));
            assert!(delay > 0);
            assert_eq!(machine.owner().await.0, holder_id(HERE));
            set(0).await.unwrap();
            let off = machine.newest().await;
            assert!(off.1 > txg);
            assert_eq!(off.2, (0, None, None, None));
            assert_eq!(machine.owner().await.0, HERE);
            machine.sleep(3).await;
            assert_eq!(machine.newest().await, off, "nothing is shown any more");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_host_without_an_id_neither_turns_multihost_on_nor_writes_such_a_pool() {
    on_pool(false, async |machine| {
        let pool = machine.open(0).await.unwrap();
        let refused = pool.set_pool_property("multihost", Some(&PropertyValue::Number(1))).await.unwrap_err();
        assert!(refused.to_string().contains("requires a non-zero system hostid"), "{refused}");
        pool.export().await.unwrap();

        machine.make(true).await;
        let refused = machine.open(0).await.err().unwrap();
        assert!(matches!(refused, SpaError::NoHostId(_)), "{refused}");
        machine.open(HERE).await.unwrap().export().await.unwrap();
    });
}

/// A power failure may tear what is on its way to a device: none of the slots that a txg's uberblock uses is among it.
#[test]
fn multihost_writes_go_to_the_last_slot_alone() {
    on_pool(false, async |machine| {
        let pool = machine.live(HERE, true).await;
        machine.sleep(1).await;
        let is_wrong = Arc::new(AtomicBool::new(false));
        for disk in &machine.shared.disks {
            let wrong = is_wrong.clone();
            disk.set_faults(move |request, _| {
                let last = (RING_OFFSET + (slot_count(ASHIFT) - 1) * (1 << ASHIFT)) as u64;
                if request.kind == RequestKind::Write && request.offset_bytes % (256 << 10) != last {
                    wrong.store(true, Ordering::Relaxed);
                }
                Fault::None
            });
        }
        machine.sleep(30).await;
        assert!(!is_wrong.load(Ordering::Relaxed));
        machine.shared.disks.iter().for_each(|disk| disk.clear_faults());
        pool.export().await.unwrap();
    });
}
