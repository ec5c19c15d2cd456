//! Goal: the error log has what is damaged, and not what was, whoever scrubs and however often the power fails. Method: pools on one simulated disk, on
//! which blocks are spoilt and put right.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_admin::{clone_dataset, create_filesystem, take_snapshots};
use cenote_dmu::tx::Cost;
use cenote_format::dsl::{ScanFunction, ScanState, pool_directory};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::label::START_BYTES;
use cenote_sim::written::blocks::{BLOCK_BYTES, content, make_objects};
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine};
use cenote_spa::{ImportOptions, Pool, ScrubSince, TopKind, View};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::tree::VdevState;

use super::attend;
use super::tests::{ended, open_again};

const HEADS: [&str; 4] = ["written", "written/a", "written/b", "written/c"];
const BLOCKS: u64 = 6;

/// A block of a head's only object.
type At = (usize, u64);

/// A pool with a file of some blocks in each dataset, and the place of each block.
struct Spoilt {
    machine: Machine,
    object: ObjectId,
    places: Vec<Vec<u64>>,
    /// The contents of blocks that are spoilt.
    spoilt: std::collections::BTreeMap<At, Vec<u8>>,
}

impl Spoilt {
    async fn new(handle: &Handle, machine: Machine) -> (Self, Pool) {
        Self::with(handle, machine, SINGLE).await
    }

    async fn with(handle: &Handle, machine: Machine, layout: Layout) -> (Self, Pool) {
        let pool = live(handle, &machine, layout, small()).await;
        let (mut objects, mut places) = (BTreeSet::new(), Vec::new());
        for (index, name) in HEADS.iter().enumerate() {
            if index > 0 {
                create_filesystem(&pool, name, Vec::new(), false).await.unwrap();
            }
            let head = pool.open_head(name).await.unwrap();
            let object = loop {
                // The same number in each.
                let object = make_objects(&head, 1).await.remove(0);
                if object.id().0 >= 40 {
                    break object;
                }
            };
            objects.insert(object.id());
            for block in 0..BLOCKS {
                let at = block * BLOCK_BYTES;
                let tx = head.begin(Cost::write(at, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
                object.write(tx.txg(), at, &content(index as u64 * 100 + block)).await.unwrap();
            }
            pool.sync().await.unwrap();
            let mut of = Vec::new();
            for block in 0..BLOCKS {
                let bp = object.pointer(0, BlockId(block)).await.unwrap();
                of.push(START_BYTES + bp.dva(0).unwrap().offset_bytes);
            }
            places.push(of);
        }
        let object = *objects.first().unwrap();
        assert_eq!(objects.len(), 1, "the objects have one number");
        (Self { machine, object, places, spoilt: Default::default() }, pool)
    }

    fn spoil(&mut self, at: At) {
        let place = self.places[at.0][at.1 as usize];
        let disk = &self.machine.disks[0];
        self.spoilt.insert(at, disk.peek(place, BLOCK_BYTES as usize));
        disk.poke(place, &[0x5a; BLOCK_BYTES as usize]);
    }

    fn mend(&mut self, at: At) {
        let bytes = self.spoilt.remove(&at).expect("a block that was spoilt");
        self.machine.disks[0].poke(self.places[at.0][at.1 as usize], &bytes);
    }

    /// Reads all blocks past the cache, so that what is spoilt is noted.
    async fn read(&self, view: &View) {
        for name in HEADS {
            let dataset = view.dsl().dataset(name).await.unwrap();
            let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
            let object = objset.object(self.object).await.unwrap();
            for block in 0..BLOCKS {
                let bp = object.pointer(0, BlockId(block)).await.unwrap();
                drop(view.dmu().zio().read_physical(&bp, objset.context(self.object, 0, BlockId(block))).await);
            }
        }
    }

    /// The blocks that the log has.
    async fn logged(&self, pool: &Pool) -> BTreeSet<At> {
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        self.logged_in(&view).await
    }

    async fn logged_in(&self, view: &View) -> BTreeSet<At> {
        let mut found = BTreeSet::new();
        for error in view.logged_errors().await.unwrap() {
            assert_eq!((error.object, error.level), (self.object, 0), "{error:?}");
            let name = view.dsl().dataset_name(ObjectId(error.objset.0)).await.unwrap();
            found.insert((HEADS.iter().position(|head| *head == name).unwrap(), error.block));
        }
        found
    }

    fn all_spoilt(&self) -> BTreeSet<At> {
        self.spoilt.keys().copied().collect()
    }
}

async fn view(pool: &Pool) -> View {
    pool.view(&ImportOptions::default()).await.unwrap()
}

/// Waits until the scrub of errors has ended; blocks that were read, and that are bad.
async fn errors_ended(handle: &Handle, pool: &Pool) -> (u64, u64) {
    for _ in 0..600 {
        handle.sleep(Duration::from_secs(1)).await;
        let scrub = pool.error_scrub().await.unwrap().unwrap();
        if scrub.state == ScanState::FINISHED {
            return (scrub.examined_count, scrub.error_count);
        }
    }
    panic!("the scrub of errors does not end: {:?}", pool.error_scrub().await.unwrap());
}

/// The test of a scrub, with the words that a mutant of it is found by.
const SWAPPED: (&str, &str) = (
    "scrub::error_tests::a_scrub_has_the_log_name_what_it_found_and_not_what_was_before",
    "a scrub that is given up takes nothing off the log",
);

#[test]
fn a_scrub_has_the_log_name_what_it_found_and_not_what_was_before() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency { read: Duration::from_millis(20), ..Latency::default() });
    runtime.block_on(async {
        let (mut made, pool) = Spoilt::new(&handle, machine).await;
        for at in [(0, 1), (1, 2), (1, 3), (3, 0)] {
            made.spoil(at);
        }
        made.read(&view(&pool).await).await;
        pool.sync().await.unwrap();
        assert_eq!(made.logged(&pool).await, made.all_spoilt());
        let before = made.all_spoilt();
        made.mend((0, 1));
        made.mend((1, 2));
        made.spoil((2, 5));
        // One that is given up has not been everywhere.
        attend(&pool);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        pool.pause_scrub().await.unwrap();
        pool.stop_scan().await.unwrap();
        let mut logged = made.logged(&pool).await;
        logged.remove(&(2, 5));
        assert_eq!(logged, before, "{}", SWAPPED.1);
        // It is one log still when the pool is opened again.
        pool.export().await.unwrap();
        let pool = open_again(&handle, &made.machine.paths).await;
        attend(&pool);
        let scan = pool.scan().await.unwrap().unwrap();
        assert_eq!(scan.state, ScanState::CANCELED);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        pool.pause_scrub().await.unwrap();
        assert!(made.logged(&pool).await.is_superset(&before), "a scrub that waits takes nothing off the log");
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let scan = ended(&handle, &pool).await;
        assert_eq!((scan.function, scan.state, scan.error_count), (ScanFunction::SCRUB, ScanState::FINISHED, 3));
        assert_eq!(made.logged(&pool).await, made.all_spoilt());
        pool.export().await.unwrap();
        let read = read(&handle, &made.machine.paths).await;
        assert_eq!(made.logged_in(&read).await, made.all_spoilt(), "on disk too");
        assert_eq!(read.directory_number(pool_directory::ERRLOG_SCRUB).await.unwrap(), Some(0));
        assert_ne!(read.directory_number(pool_directory::ERRLOG_LAST).await.unwrap(), Some(0));
        // And nothing is left of it when all is well.
        for at in made.all_spoilt() {
            made.mend(at);
        }
        drop(read);
        let pool = open_again(&handle, &made.machine.paths).await;
        attend(&pool);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        assert_eq!(ended(&handle, &pool).await.error_count, 0);
        assert!(made.logged(&pool).await.is_empty());
        export_whole(&handle, &made.machine, pool, "scrubbed").await;
    });
}

#[test]
fn a_scrub_since_the_last_one_reads_what_came_after_it() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let (mut made, pool) = Spoilt::new(&handle, machine).await;
        attend(&pool);
        pool.scrub(ScrubSince::LastScrub).await.unwrap();
        let first = ended(&handle, &pool).await;
        assert_eq!(first.min_txg, Txg(0), "without a scrub before all is read");
        let number = |pool: &View| {
            let pool = pool.clone();
            async move { pool.directory_number(pool_directory::LAST_SCRUBBED_TXG).await.unwrap() }
        };
        assert_eq!(number(&view(&pool).await).await, Some(first.max_txg.0));
        // Damage of what is older is not seen by one that is of what came later.
        made.spoil((1, 1));
        let head = pool.open_head("written").await.unwrap();
        let object = head.objset().object(made.object).await.unwrap();
        let tx = head.begin(Cost::write(0, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
        object.write(tx.txg(), 0, &content(77)).await.unwrap();
        drop((tx, object, head));
        pool.sync().await.unwrap();
        pool.scrub(ScrubSince::LastScrub).await.unwrap();
        let second = ended(&handle, &pool).await;
        assert_eq!((second.min_txg, second.error_count), (first.max_txg, 0));
        assert!(second.skipped_bytes > BLOCKS * BLOCK_BYTES, "{second:?}");
        assert_eq!(number(&view(&pool).await).await, Some(second.max_txg.0));
        pool.scrub(ScrubSince::Ever).await.unwrap();
        assert_eq!(ended(&handle, &pool).await.error_count, 1);
        // One of later blocks leaves the log's entries.
        pool.scrub(ScrubSince::LastScrub).await.unwrap();
        assert_eq!(ended(&handle, &pool).await.error_count, 0);
        assert_eq!(made.logged(&pool).await, made.all_spoilt());
        pool.export().await.unwrap();
    });
}

/// A range of dates is one of txgs, by the pool's own log of their times (of OpenZFS 2.4); what is outside is not read, and no whole scrub is noted.
#[test]
fn a_scrub_of_dates_reads_what_was_written_between_them() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let (mut made, pool) = Spoilt::new(&handle, machine).await;
        attend(&pool);
        let dates = |start_s, end_s| ScrubSince::Dates { start_s, end_s };
        let refused = pool.scrub(dates(Some(1), None)).await.unwrap_err().to_string();
        assert!(refused.contains("no log of the times of its txgs"), "{refused}");
        let write = async |block: u64| {
            let head = pool.open_head("written").await.unwrap();
            let object = head.objset().object(made.object).await.unwrap();
            let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
            let txg = tx.txg();
            object.write(txg, block * BLOCK_BYTES, &content(77)).await.unwrap();
            drop((tx, object, head));
            pool.sync().await.unwrap();
            txg.0
        };
        let (first, second) = (write(0).await, write(1).await);
        pool.sync().await.unwrap();
        let mut words = vec![0; 515];
        words[..7].copy_from_slice(&[0, 2, 2, 1000, first, 2000, second]);
        let noted = pool.change(move |syncer| Box::pin(async move { syncer.note_times(&words).await }));
        noted.await.unwrap();
        made.spoil((1, 1));
        for (start_s, end_s, min, max) in [
            (Some(1000), Some(2000), first, Some(second)),
            (Some(1999), None, first, None),
            (None, Some(1500), 1, Some(second)),
            (Some(5000), None, second, None),
            (None, Some(9999), 0, None),
        ] {
            pool.scrub(dates(start_s, end_s)).await.unwrap();
            let scan = ended(&handle, &pool).await;
            let found = (scan.min_txg.0, max.map(|_| scan.max_txg.0), scan.state);
            assert_eq!(found, (min, max, ScanState::FINISHED), "{start_s:?} to {end_s:?}");
            assert_eq!(scan.error_count, u64::from(min <= 1), "{start_s:?} to {end_s:?}");
        }
        let refused = pool.scrub(dates(Some(2000), Some(2000))).await.unwrap_err().to_string();
        assert!(refused.contains("nothing was written between these dates"), "{refused}");
        made.mend((1, 1));
        export_whole(&handle, &made.machine, pool, "scrubbed by dates").await;
        cenote_sim::zdb("written", &made.machine.images(), made.machine.size_bytes).unwrap();
    });
}

/// A block that clones share is named in each head and snapshot that has it, whichever of them was read.
#[test]
fn an_error_is_named_in_clones_too() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let (mut made, pool) = Spoilt::new(&handle, machine).await;
        let write = async |name: &str, block: u64| {
            let head = pool.open_head(name).await.unwrap();
            let object = head.objset().object(made.object).await.unwrap();
            let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
            object.write(tx.txg(), block * BLOCK_BYTES, &content(77)).await.unwrap();
            drop((tx, object, head));
            pool.sync().await.unwrap();
        };
        let snapshot = async |name: &str| take_snapshots(&pool, &[name.to_owned()], &[]).await.unwrap();
        snapshot("written/a@s").await;
        clone_dataset(&pool, "written/a@s", "written/k", Vec::new()).await.unwrap();
        snapshot("written/k@t").await;
        clone_dataset(&pool, "written/k@t", "written/l", Vec::new()).await.unwrap();
        // A dataset with a block of its own is not affected, nor a clone of its snapshot.
        write("written/k", 2).await;
        snapshot("written/k@u").await;
        clone_dataset(&pool, "written/k@u", "written/m", Vec::new()).await.unwrap();
        pool.sync().await.unwrap();
        made.spoil((1, 2));
        for name in ["written/a", "written/l", "written/k@t"] {
            let of = view(&pool).await;
            let objset = of.dsl().open(&of.dsl().dataset(name).await.unwrap()).await.unwrap().unwrap();
            let bp = objset.object(made.object).await.unwrap().pointer(0, BlockId(2)).await.unwrap();
            let read = of.dmu().zio().read_physical(&bp, objset.context(made.object, 0, BlockId(2))).await;
            assert!(read.is_err(), "{name} has the block");
        }
        pool.sync().await.unwrap();
        let of = view(&pool).await;
        let errors = of.logged_errors().await.unwrap();
        let mut heads = BTreeSet::new();
        for error in &errors {
            heads.insert(of.dsl().dataset_name(ObjectId(error.objset.0)).await.unwrap());
            let mut names = BTreeSet::new();
            for object in of.affected(error).await {
                assert!(names.insert(of.dsl().dataset_name(object).await.unwrap()), "each once");
            }
            let wanted = ["written/a", "written/a@s", "written/k@t", "written/l"].map(str::to_owned);
            assert_eq!(names, BTreeSet::from(wanted), "{error:?}");
        }
        assert_eq!(heads, BTreeSet::from(["written/a", "written/k", "written/l"].map(str::to_owned)));
        drop(of);
        // Known errors are not counted once more (`zpool clear` has its counters at 0).
        let counted = || pool.devices().unwrap().leaves().iter().map(|leaf| leaf.errors.checksum).sum::<u64>();
        let before = counted();
        assert!(pool.check_errors_again().await.unwrap() > 0 && before > 0);
        assert_eq!(counted(), before);
        made.mend((1, 2));
        assert_eq!(pool.check_errors_again().await.unwrap(), 0);
        pool.export().await.unwrap();
    });
}

/// As OpenZFS's daemon has it: what a scrub finds is counted and written again, and condemns no device, however much it is. (What readers find does.)
#[test]
fn a_scrub_condemns_no_device_for_what_it_repairs() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (made, pool) = Spoilt::with(&handle, machine, &[(TopKind::Mirror, 2)]).await;
        for place in made.places.iter().flatten() {
            made.machine.disks[1].poke(*place, &[0x5a; BLOCK_BYTES as usize]);
        }
        attend(&pool);
        pool.scrub(ScrubSince::Ever).await.unwrap();
        let scan = ended(&handle, &pool).await;
        handle.sleep(Duration::from_secs(10)).await;
        let status = pool.tree().unwrap().status();
        let leaf = status.leaves().into_iter().find(|leaf| leaf.name == "/disk1").unwrap();
        let spoilt = HEADS.len() as u64 * BLOCKS;
        assert_eq!((scan.error_count, leaf.errors.checksum, leaf.state), (0, spoilt, VdevState::Online));
        assert_eq!(scan.processed_bytes, spoilt * BLOCK_BYTES);
        pool.export().await.unwrap();
    });
}

/// A copy that could not be written again since devices were being changed is come back to, and its error stays in the log until then.
#[test]
fn a_scrub_of_errors_comes_back_to_what_it_could_not_write() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (mut made, pool) = Spoilt::with(&handle, machine, &[(TopKind::Mirror, 2)]).await;
        let at = (1, 2);
        let other = made.machine.disks[1].clone();
        other.poke(made.places[at.0][at.1 as usize], &[0x5a; BLOCK_BYTES as usize]);
        made.spoil(at);
        made.read(&view(&pool).await).await;
        pool.sync().await.unwrap();
        let logged = made.logged(&pool).await;
        assert_eq!(logged, made.all_spoilt());
        made.mend(at);
        attend(&pool);
        let changed = pool.tree().unwrap().pause_mends().await;
        pool.scrub_errors().await.unwrap();
        handle.sleep(Duration::from_secs(20)).await;
        pool.sync().await.unwrap();
        let scrub = pool.error_scrub().await.unwrap().unwrap();
        assert_eq!((scrub.state, scrub.error_count), (ScanState::ERROR_SCRUBBING, 0));
        assert_eq!(made.logged(&pool).await, logged);
        drop(changed);
        assert_eq!(errors_ended(&handle, &pool).await, (1, 0));
        assert!(made.logged(&pool).await.is_empty());
        export_whole(&handle, &made.machine, pool, "scrubbed").await;
        for path in &made.machine.paths {
            let (_, report) = check(&handle, std::slice::from_ref(path)).await;
            assert_eq!(report.error_count, 0, "{} alone: {report}", path.display());
        }
    });
}

/// The test of a scrub of errors, with the words that a mutant of it is found by.
const CUT: (&str, &str) =
    ("scrub::error_tests::a_scrub_of_errors_that_is_cut_ends_like_one_that_is_not", "the log names what is damaged");

#[test]
fn a_scrub_of_errors_that_is_cut_ends_like_one_that_is_not() {
    for seed in seeds(10) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, Latency { read: Duration::from_millis(30), ..cenote_sim::slow() });
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let (mut made, pool) = Spoilt::new(&handle, machine).await;
            let mut all: Vec<At> =
                (0..HEADS.len()).flat_map(|head| (0..BLOCKS).map(move |block| (head, block))).collect();
            for _ in 0..8 {
                made.spoil(all.swap_remove(rng.below(all.len() as u64) as usize));
            }
            made.read(&view(&pool).await).await;
            pool.sync().await.unwrap();
            let before = made.all_spoilt();
            for at in &before {
                if rng.chance(1, 2) {
                    made.mend(*at);
                }
            }
            attend(&pool);
            pool.scrub_errors().await.unwrap();
            let mut pool = pool;
            for _ in 0..rng.below(4) {
                handle.sleep(Duration::from_millis(rng.below(600))).await;
                if pool.error_scrub().await.unwrap().is_some_and(|scrub| scrub.state == ScanState::ERROR_SCRUBBING) {
                    let logged = made.logged(&pool).await;
                    assert!(logged.is_superset(&made.all_spoilt()), "seed {seed}: {}", CUT.1);
                    if rng.chance(1, 3) && pool.pause_scrub().await.is_ok() {
                        handle.sleep(Duration::from_millis(rng.below(600))).await;
                        pool.scrub_errors().await.unwrap();
                    }
                }
                if rng.chance(1, 4) {
                    pool.sync().await.unwrap();
                }
                if rng.chance(1, 3) {
                    pool.export().await.unwrap();
                } else {
                    drop(pool);
                    cut(&handle, &made.machine, if rng.chance(1, 2) { Crash::Random } else { Crash::Torn }).await;
                }
                pool = open_again(&handle, &made.machine.paths).await;
                attend(&pool);
            }
            if pool.error_scrub().await.unwrap().is_none() {
                // The cut was before its first txg.
                pool.scrub_errors().await.unwrap();
            }
            let (examined, errors) = errors_ended(&handle, &pool).await;
            assert_eq!(made.logged(&pool).await, made.all_spoilt(), "seed {seed}: {}", CUT.1);
            assert!(errors <= examined && examined >= before.len() as u64, "seed {seed}: {}, {examined}", CUT.1);
            pool.export().await.unwrap();
            let read = read(&handle, &made.machine.paths).await;
            assert_eq!(made.logged_in(&read).await, made.all_spoilt(), "seed {seed}: {}", CUT.1);
        });
    }
}

/// The tests above find the bugs that they are about.
#[test]
fn bugs_of_error_logs_are_found() {
    for mutant in Mutant::OF_ERROR_LOGS {
        let (test, words) = if *mutant == Mutant::ErrlogSwappedEarly { SWAPPED } else { CUT };
        let told = std::process::Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env_remove(cenote_testkit::PART_VARIABLE)
            .env(MUTANT_VARIABLE, mutant.name())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success() && text.contains(words), "{}: {text}", mutant.name());
    }
}
