//! A cache device against a model of the pool: whatever happens to the device, a reader gets the block that it asked for, or none.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_codec::checksum::fletcher::fletcher4;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_kstat::{Body, Registry, Stat};
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sim::disk::{Crash, Fault, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Rng, Runtime};
use cenote_vdev::disk::Disk;
use cenote_zio::Shelves as _;

use super::*;
use crate::log::{header_of, header_sector};

const PATH: &str = "/cache";
/// A child process has a deliberate bug by this.
const BUG_VARIABLE: &str = "CENOTE_L2ARC_BUG";

/// The tunables of a small device: batches of 512 KiB, and log blocks.
fn small() -> Tunables {
    Tunables {
        l2arc_write_max: 512 << 10,
        l2arc_write_boost: 0,
        l2arc_rebuild_blocks_min_l2size: 0,
        ..Tunables::default()
    }
}

/// A pool of blocks that are overwritten, and its cache device.
struct Bench {
    handle: Handle,
    sim: Arc<SimDisk>,
    l2arc: Arc<L2arc>,
    tunables: Tunables,
    rng: Rng,
    /// By place: the pointer and the bytes of the block that is there now.
    pool: BTreeMap<u64, (Blkptr, Block)>,
    txg: u64,
    hits: u64,
}

fn pointer(place: u64, txg: u64, bytes: &[u8]) -> Blkptr {
    let mut bp = Blkptr::HOLE;
    let size = bytes.len() as u64;
    bp.set_dva(0, Some(Dva { vdev: VdevId(0), offset_bytes: place, asize_bytes: size, gang: false }));
    bp.set_lsize_bytes(size);
    bp.set_psize_bytes(size);
    bp.set_compress(Compress::Off);
    bp.set_checksum(Checksum::Fletcher4);
    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
    bp.set_byte_order(cenote_zio::ORDER);
    bp.set_births(Txg(txg), Txg(txg));
    bp.set_checksum_words(fletcher4(bytes, cenote_zio::ORDER));
    bp
}

impl Bench {
    async fn new(handle: &Handle, sim: Arc<SimDisk>, seed: u64, tunables: Tunables) -> Self {
        let l2arc = Self::opened(handle, &tunables).await;
        let (pool, rng) = (BTreeMap::new(), Rng::new(seed));
        Self { handle: handle.clone(), sim, l2arc, tunables, rng, pool, txg: 1, hits: 0 }
    }

    async fn opened(handle: &Handle, tunables: &Tunables) -> Arc<L2arc> {
        let device =
            handle.open(&PathBuf::from(PATH), OpenOptions { write: true, ..Default::default() }).await.unwrap();
        let l2arc = L2arc::new(handle, 64 << 20, *tunables, Box::new(|_, _| ()), Box::new(|_| ()));
        let disk = Disk::whole(device);
        assert!(l2arc.add(CacheSpec { pool: Guid(7), guid: Guid(8), disk, ashift: 9 }));
        while !l2arc.all().iter().all(|device| device.takes() || device.is_faulted()) {
            handle.sleep(Duration::from_millis(10)).await;
        }
        l2arc
    }

    /// The pool is opened anew; `crash`: it was not closed.
    async fn reopen(&mut self, crash: Option<Crash>) {
        match crash {
            None => self.l2arc.close().await,
            Some(crash) => {
                self.sim.crash(crash);
                self.sim.power_on();
                self.l2arc.close().await;
            }
        }
        self.l2arc = Self::opened(&self.handle, &self.tunables).await;
    }

    fn count(&self, name: &str) -> u64 {
        let registry = Registry::default();
        registry.add(&self.l2arc, |l2arc, snapshot| l2arc.kstat(snapshot));
        let groups = registry.snapshot();
        let Body::Named(named) = &groups[0].body else { panic!("they have names") };
        match named.iter().find(|(known, _)| *known == name) {
            Some((_, Stat::Count(count) | Stat::Level(count))) => *count,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn overwrite(&mut self, place: u64) {
        self.txg += 1;
        let mut bytes = vec![0; 512 * (1 + self.rng.below(64) as usize)];
        self.rng.fill(&mut bytes);
        let bp = pointer(place, self.txg, &bytes);
        self.pool.insert(place, (bp, Block::from(bytes)));
    }

    /// Reads a block as the pipeline does.
    async fn read(&mut self, place: u64) {
        let (bp, right) = &self.pool[&place];
        let verify = |bytes: &[u8]| fletcher4(bytes, cenote_zio::ORDER) == bp.checksum_words();
        if let Some(read) = self.l2arc.read(bp, &verify)
            && let Some(found) = read.await
        {
            assert!(found[..] == right[..], "a reader got another block's bytes");
            self.hits += 1;
        } else if self.l2arc.wants(bp, false) {
            self.l2arc.offer(bp, right.clone());
        }
    }

    async fn live(&mut self, steps: u64, places: u64) {
        for _ in 0..steps {
            let place = self.rng.below(places) << 20;
            match self.rng.below(12) {
                0..3 => self.overwrite(place),
                3 => self.handle.sleep(Duration::from_millis(300 + self.rng.below(900))).await,
                _ if self.pool.contains_key(&place) => self.read(place).await,
                _ => self.overwrite(place),
            }
            self.l2arc.all().iter().for_each(|device| device.check());
        }
    }
}

fn simulated<F: Future<Output = ()>>(seed: u64, size_bytes: u64, test: impl FnOnce(Handle, Arc<SimDisk>) -> F) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let options = SimDiskOptions { size_bytes, ..SimDiskOptions::default() };
    let sim = runtime.sim().unwrap().add_disk(&handle, PATH, options);
    runtime.block_on(test(handle, sim));
}

#[test]
fn a_reader_gets_its_block_or_none_while_the_ring_goes_round() {
    if let Ok(name) = std::env::var(BUG_VARIABLE) {
        mutant::set(Mutant::ALL.iter().copied().find(|mutant| mutant.name() == name));
    }
    let (mut hits, mut laps) = (0, 0);
    for seed in 0..6 {
        simulated(seed, (14 << 20) + ((seed % 3) << 20), async |handle, sim| {
            let tunables =
                if seed % 2 == 0 { small() } else { Tunables { l2arc_rebuild_blocks_min_l2size: 1 << 30, ..small() } };
            let mut bench = Bench::new(&handle, sim, seed, tunables).await;
            bench.live(9000, 900).await;
            assert_eq!(bench.count("l2_cksum_bad"), 0, "a block is forgotten before it is written over");
            assert_eq!(bench.count("l2_io_error"), 0);
            hits += bench.hits;
            laps += bench.count("l2_write_bytes") / (6 << 20);
            bench.l2arc.close().await;
        });
    }
    assert!(hits > 1000 && laps >= 6, "{hits} hits, {laps} laps");
}

/// The test above finds the bugs that it is about.
#[test]
fn a_block_that_outlives_its_identity_or_its_bytes_is_found() {
    for bug in Mutant::OF_CACHES {
        let told = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["tests::a_reader_gets_its_block_or_none_while_the_ring_goes_round", "--exact", "--nocapture"])
            .env(BUG_VARIABLE, bug.name())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&told.stderr);
        let is_seen = text.contains("another block's bytes") || text.contains("before it is written over");
        assert!(!told.status.success() && is_seen, "{}: {text}", bug.name());
    }
}

#[test]
fn what_a_device_had_is_found_again() {
    let mut restored = 0;
    for seed in 0..4 {
        simulated(seed, 120 << 20, async |handle, sim| {
            let mut bench = Bench::new(&handle, sim, seed, small()).await;
            for _ in 0..4 {
                bench.live(1500, 300).await;
                bench.reopen(None).await;
                restored += bench.count("l2_rebuild_bufs");
                assert_eq!(bench.count("l2_rebuild_cksum_lb_errors"), 0);
                let places: Vec<u64> = bench.pool.keys().copied().collect();
                for place in places {
                    bench.read(place).await;
                }
                assert_eq!(bench.count("l2_cksum_bad"), 0, "what was closed is as it was");
            }
            bench.l2arc.close().await;
        });
    }
    assert!(restored > 500, "{restored}");
}

#[test]
fn a_crash_costs_blocks_and_never_gives_wrong_ones() {
    let mut restored = 0;
    for seed in 0..10 {
        let size = if seed % 2 == 0 { 40 << 20 } else { 120 << 20 };
        simulated(seed, size, async |handle, sim| {
            let mut bench = Bench::new(&handle, sim, seed, small()).await;
            for crash in [Crash::Random, Crash::LoseAll, Crash::Torn, Crash::Garbage, Crash::KeepMore] {
                bench.live(1200, 600).await;
                bench.reopen(Some(crash)).await;
                restored += bench.count("l2_rebuild_bufs");
            }
            bench.live(500, 600).await;
            bench.l2arc.close().await;
        });
    }
    assert!(restored > 200, "{restored}");
}

#[test]
fn flipped_bits_and_hostile_logs_are_no_errors_of_readers() {
    for seed in 0..12 {
        simulated(seed, 60 << 20, async |handle, sim| {
            let mut bench = Bench::new(&handle, sim, seed, small()).await;
            for round in 0..6 {
                bench.live(600, 300).await;
                for _ in 0..50 {
                    let (first, len) = (START_BYTES, (60 << 20) - START_BYTES);
                    let at = if bench.rng.chance(1, 10) {
                        first + bench.rng.below(512)
                    } else {
                        first + bench.rng.below(len - 1)
                    };
                    let byte = bench.sim.peek(at, 1)[0] ^ (1 << bench.rng.below(8));
                    bench.sim.poke(at, &[byte]);
                }
                // A header that verifies, and points anywhere.
                if let Some(mut header) = header_of(&bench.sim.peek(START_BYTES, 512)).filter(|_| round % 2 == 1) {
                    let any = bench.rng.next_u64() >> bench.rng.below(64);
                    match bench.rng.below(5) {
                        0 => header.newest[0].offset_bytes = any,
                        1 => header.newest[1].payload_start_bytes = any,
                        2 => header.evict_bytes = any,
                        3 => header.newest[0].properties ^= any,
                        _ => header.newest[1] = header.newest[0],
                    }
                    bench.sim.poke(START_BYTES, &header_sector(&header, 512));
                }
                bench.reopen(None).await;
            }
            bench.l2arc.close().await;
        });
    }
}

#[test]
fn a_device_that_fails_or_hangs_is_given_up_and_nobody_waits_for_long() {
    for (kind, fault) in [
        (RequestKind::Read, Fault::Error(std::io::ErrorKind::Other)),
        (RequestKind::Write, Fault::Error(std::io::ErrorKind::Other)),
        (RequestKind::Read, Fault::Hang),
        (RequestKind::Read, Fault::Corrupt),
    ] {
        simulated(5, 40 << 20, async |handle, sim| {
            let mut bench = Bench::new(&handle, sim.clone(), 5, small()).await;
            bench.live(900, 100).await;
            assert!(bench.hits > 0 && bench.l2arc.states()[0].state == VdevState::Online);
            sim.set_faults(move |request, _| if request.kind == kind { fault } else { Fault::None });
            let began = handle.now();
            bench.live(2500, 200).await;
            let state = bench.l2arc.states().remove(0);
            assert!(state.state == VdevState::Faulted, "{kind:?} {fault:?}: {state:?}");
            assert!(state.errors.read + state.errors.write + state.errors.checksum > 0, "{state:?}");
            assert_eq!(state.allocated_bytes, 0);
            assert!(handle.now() - began < Duration::from_secs(600));
            sim.clear_faults();
            bench.l2arc.close().await;
        });
    }
}

#[test]
fn what_the_header_counts_is_what_a_walk_finds() {
    simulated(3, 200 << 20, async |handle, sim| {
        let mut bench = Bench::new(&handle, sim, 3, small()).await;
        for _ in 0..3 {
            bench.live(2500, 500).await;
            let (logs, bytes) = (bench.count("l2_log_blk_count"), bench.count("l2_log_blk_asize"));
            bench.reopen(None).await;
            assert!(logs > 0);
            assert_eq!((bench.count("l2_log_blk_count"), bench.count("l2_log_blk_asize")), (logs, bytes));
        }
        bench.l2arc.close().await;
    });
}

#[test]
fn the_index_stays_within_its_memory() {
    simulated(4, 300 << 20, async |handle, sim| {
        let tunables = Tunables { l2arc_meta_percent: 0, ..small() };
        let mut bench = Bench::new(&handle, sim, 4, tunables).await;
        bench.live(2000, 400).await;
        bench.handle.sleep(Duration::from_secs(5)).await;
        assert_eq!(bench.count("l2_asize"), 0, "without memory there are no blocks");
        assert!(bench.count("l2_hdr_size") < 64 << 10);
        bench.l2arc.close().await;
    });
}
