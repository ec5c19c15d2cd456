//! Random lives of a pool's space: what was written, read back by the loader that knows nothing of the allocator, is what
//! was in use; what each txg is said to have done is what was done in it; and an allocator that is opened from it goes on as if nothing had been.

use std::collections::BTreeMap;

use cenote_format::ids::{Txg, VdevId};
use cenote_metaslab::*;
use cenote_vdev::config::AllocationClass;

use proptest::prelude::*;

use crate::common::*;

#[derive(Clone, Debug)]
struct Life {
    seed: u64,
    log_spacemap: bool,
    ashift: u32,
    metaslabs: u64,
    /// Blocks of a txg at most.
    churn: u64,
    txgs: u64,
    /// Per cent of allocated space at which frees prevail.
    fill: u64,
    tight_memory: bool,
    segment_weights: bool,
}

fn lives() -> impl Strategy<Value = Life> {
    (any::<u64>(), any::<bool>(), prop_oneof![Just(9_u32), Just(12)], 3_u64..9, 4_u64..80, 10_u64..60, 10_u64..97)
        .prop_flat_map(|life| (Just(life), any::<bool>(), any::<bool>()))
        .prop_map(|((seed, log_spacemap, ashift, metaslabs, churn, txgs, fill), tight_memory, segment_weights)| Life {
            seed,
            log_spacemap,
            ashift,
            metaslabs,
            churn,
            txgs,
            fill,
            tight_memory,
            segment_weights,
        })
}

/// A pool and the plain truth about it.
struct Pool {
    random: Random,
    vdevs: Vec<VdevSetup>,
    features: SpaceFeatures,
    tunables: Tunables,
    allocator: Allocator,
    disk: Disk,
    /// Every block that is referenced.
    live: Vec<Extent>,
    txg: Txg,
    /// Bytes allocated and freed in this txg.
    moved: BTreeMap<MetaslabId, (u64, u64)>,
    /// Metaslabs that were loaded when the last txg was done.
    loaded: BTreeMap<MetaslabId, bool>,
    sizes_max: u64,
    seen: Seen,
}

/// Counts of the events in a life, so that a test can tell that they happened.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    flushed: u64,
    condensed: u64,
    retired: u64,
    loaded: u64,
    unloaded: u64,
    no_space: u64,
    unallocated: u64,
    /// Loads that had to read on because a txg appended meanwhile.
    read_on: u64,
}

impl Pool {
    fn new(life: &Life) -> Self {
        let shift = life.ashift + 11;
        let normal = AllocationClass::Normal;
        let vdevs = vec![vdev(0, normal, life.ashift, shift, life.metaslabs), vdev(1, normal, life.ashift, shift, 5)];
        let spacemap_v2 = life.log_spacemap || life.segment_weights;
        let features = SpaceFeatures { spacemap_v2, log_spacemap: life.log_spacemap };
        let mut tunables = Tunables {
            zfs_log_sm_blksz: 512,
            zfs_metaslab_sm_blksz_with_log: 1024,
            zfs_metaslab_sm_blksz_no_log: 512,
            zfs_unflushed_log_block_min: 10,
            zfs_unflushed_log_block_pct: 150,
            zfs_unflushed_log_txg_max: 12,
            zfs_max_logsm_summary_length: 4,
            zfs_metaslab_segment_weight_enabled: life.segment_weights,
            metaslab_unload_delay: 3,
            metaslab_unload_delay_ms: 1,
            metaslab_df_alloc_threshold: 16 << life.ashift,
            cenote_metaslab_mem_per_tb: 1 << 50,
            ..Tunables::default()
        };
        if life.tight_memory {
            tunables.zfs_unflushed_max_mem_amt = 2000;
        }
        let mut allocator = Allocator::new(features, tunables.clone(), true);
        vdevs.iter().for_each(|setup| allocator.add_vdev(setup.clone(), true).unwrap());
        let loaded = allocator.metaslabs().map(|metaslab| (metaslab.id(), metaslab.is_loaded())).collect();
        Self {
            random: Random(life.seed),
            vdevs,
            features,
            tunables,
            allocator,
            disk: Disk::default(),
            live: Vec::new(),
            txg: Txg(4),
            moved: BTreeMap::new(),
            loaded,
            sizes_max: 40 << life.ashift,
            seen: Seen::default(),
        }
    }

    fn size(&self) -> u64 {
        self.vdevs.iter().map(|setup| setup.maps.size_bytes()).sum()
    }

    fn used(&self) -> u64 {
        self.live.iter().map(|extent| extent.asize_bytes).sum()
    }

    fn metaslab_of(&self, extent: &Extent) -> MetaslabId {
        let shift = self.vdevs[0].maps.metaslab_shift;
        MetaslabId { vdev: extent.vdev, index: extent.offset_bytes >> shift }
    }

    fn allocate_some(&mut self, txg: Txg, count: u64) {
        for _ in 0..count {
            let psize = 1 + self.random.below(self.sizes_max);
            let copies = 1 + self.random.below(3) as usize;
            let mut wish = request(txg, psize, copies);
            wish.allocator = self.random.below(4) as usize;
            match allocate(&mut self.allocator, &self.disk, &wish) {
                Ok(extents) => {
                    assert_eq!(extents.len(), copies);
                    for extent in &extents {
                        assert!(extent.asize_bytes >= psize);
                        self.allocator.check_write(extent.vdev, extent.range()).unwrap();
                    }
                    if self.random.below(20) == 0 {
                        self.seen.unallocated += 1;
                        extents.iter().for_each(|extent| self.allocator.unallocate(txg, extent).unwrap());
                    } else {
                        for extent in &extents {
                            self.moved.entry(self.metaslab_of(extent)).or_default().0 += extent.asize_bytes;
                        }
                        self.live.extend(extents);
                    }
                }
                Err(AllocError::NoSpace { .. }) => self.seen.no_space += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn free_some(&mut self, count: u64) {
        for _ in 0..count.min(self.live.len() as u64) {
            let index = self.random.below(self.live.len() as u64) as usize;
            let extent = self.live.swap_remove(index);
            self.moved.entry(self.metaslab_of(&extent)).or_default().1 += extent.asize_bytes;
            self.allocator.free(self.txg, &extent).unwrap();
        }
    }

    fn one_txg(&mut self, life: &Life) {
        let txg = self.txg;
        let full = self.used() * 100 / self.size() >= life.fill;
        let (more, fewer) = (self.random.below(life.churn), self.random.below(life.churn / 4 + 1));
        let (allocations, frees) = if full { (fewer, more * 2) } else { (more, fewer) };
        self.allocate_some(txg, allocations);
        let ids: Vec<MetaslabId> = self.allocator.metaslabs().map(Metaslab::id).collect();
        if self.random.below(6) == 0 {
            let id = ids[self.random.below(ids.len() as u64) as usize];
            load_metaslab(&mut self.allocator, &self.disk, id, txg);
            self.allocator.condense(id, txg).unwrap();
        }
        // A load that begins in one txg and ends in the next.
        let slow = ids[self.random.below(ids.len() as u64) as usize];
        self.allocator.unload(slow).unwrap();
        let mut loading = self.allocator.begin_load(slow).unwrap();
        let mut fed = None;
        if let (Some(map), false) = (self.allocator.metaslab(slow).unwrap().map(), self.random.below(2) == 0) {
            let bytes = self.disk.bytes(map.object, 0, map.length_bytes);
            loading.feed(bytes).unwrap();
            fed = Some(map.length_bytes);
        }
        self.free_some(frees);
        let before = self.own_maps();
        let logs_before = self.disk.logs.len() as u64;
        for pass in 1..=3 {
            self.allocator.sync(&mut self.disk, txg, pass).unwrap();
            if pass < 3 {
                self.allocate_some(txg, 2);
                self.free_some(2);
            }
        }
        self.allocator.close_txg(&mut self.disk).unwrap();
        let may_defer = self.random.below(8) != 0;
        self.allocator.sync_done(txg, &Keep { may_defer, pins: &[] }, txg.0 * 5000).unwrap();
        self.check_work(&before, logs_before);
        self.txg = Txg(txg.0 + 1);
        self.allocator.verify().unwrap_or_else(|fault| panic!("txg {txg}: {fault}"));
        let metaslab = self.allocator.metaslab(slow).unwrap();
        let length = metaslab.map().map(|map| map.length_bytes);
        self.seen.read_on += u64::from(!metaslab.is_loaded() && fed.is_some() && fed < length);
        go_on_loading(&mut self.allocator, &self.disk, slow, loading, self.txg);
        self.allocator.verify().unwrap_or_else(|fault| panic!("txg {txg}, after a load: {fault}"));
    }

    /// Each metaslab's own map and its length.
    fn own_maps(&self) -> BTreeMap<MetaslabId, u64> {
        let metaslabs = self.allocator.metaslabs();
        metaslabs.map(|metaslab| (metaslab.id(), metaslab.map().map_or(0, |map| map.length_bytes))).collect()
    }

    /// Compares the reported work of the txg with the model's, metaslab by metaslab.
    fn check_work(&mut self, before: &BTreeMap<MetaslabId, u64>, logs_before: u64) {
        let (txg, work) = (self.txg, self.allocator.work().clone());
        let moved = std::mem::take(&mut self.moved);
        let rows: BTreeMap<_, _> = work.metaslabs.iter().map(|row| (row.metaslab, *row)).collect();
        assert_eq!(work.metaslabs_left_out, 0);
        let said = rows.iter().map(|(id, row)| (*id, (row.allocated_bytes, row.freed_bytes)));
        assert_eq!(said.filter(|(_, moved)| *moved != (0, 0)).collect::<BTreeMap<_, _>>(), moved, "txg {txg}");
        let sum = |of: fn(&(u64, u64)) -> u64| moved.values().map(of).sum::<u64>();
        assert_eq!((work.allocated_bytes, work.freed_bytes), (sum(|moved| moved.0), sum(|moved| moved.1)));
        assert_eq!(work.allocated_from, moved.values().filter(|moved| moved.0 > 0).count() as u64);
        for (id, length) in self.own_maps() {
            let row = rows.get(&id).copied().unwrap_or(MetaslabWork::new(id));
            let written = if row.flushed == Some(Flushed::Condensed) { length } else { length - before[&id] };
            // A map that was rewritten may have been appended to before.
            assert!(
                row.map_bytes == written || (row.flushed == Some(Flushed::Condensed) && row.map_bytes > written),
                "{row:?}, {written}"
            );
            let (was, is) = (self.loaded.get(&id).copied(), self.allocator.metaslab(id).unwrap().is_loaded());
            assert!(
                was.unwrap_or(false) == is || (if is { row.is_loaded } else { row.is_unloaded }),
                "{was:?}: {row:?}"
            );
            assert!(was.unwrap_or(false) || row.is_loaded || !row.is_unloaded, "{row:?}");
            self.loaded.insert(id, is);
        }
        let log = self.disk.logs.get(&txg).map_or(0, |object| self.disk.header(*object).length_bytes);
        assert_eq!(work.log_bytes, log, "txg {txg}");
        let opened = u64::from(self.disk.logs.contains_key(&txg));
        assert_eq!((work.logs, work.retired), (self.disk.logs.len() as u64, logs_before + opened - work.logs));
        self.seen.flushed += work.flushed;
        self.seen.condensed += work.condensed;
        self.seen.retired += work.retired;
        self.seen.loaded += work.loaded;
        self.seen.unloaded += work.unloaded;
    }

    fn truth(&self, vdev: VdevId) -> Vec<std::ops::Range<u64>> {
        let mut set = RangeSet::new();
        for extent in self.live.iter().filter(|extent| extent.vdev == vdev) {
            set.add(extent.range()).expect("no two blocks share space");
        }
        set.iter().collect()
    }

    /// Compares the disk with the model: as an independent loader reads it, and as an import does.
    fn compare(&mut self) -> Allocator {
        let space = load_independently(&self.disk, &self.vdevs, self.txg.0);
        assert!(space.problems.is_empty(), "{}", space.problems[0]);
        let mut again = reopen(&self.disk, &self.vdevs, self.features, &self.tunables);
        let ids: Vec<MetaslabId> = again.metaslabs().map(Metaslab::id).collect();
        for id in &ids {
            load_metaslab(&mut again, &self.disk, *id, self.txg);
        }
        again.verify().unwrap_or_else(|fault| panic!("after import at txg {}: {fault}", self.txg));
        for setup in &self.vdevs {
            let (vdev, truth) = (setup.maps.vdev, self.truth(setup.maps.vdev));
            let found: Vec<_> = space.vdev(vdev).unwrap().allocated.iter().collect();
            assert_eq!(found, truth, "vdev {vdev} by the loader");
            again.check_opened(vdev, truth.iter().cloned()).unwrap();
        }
        for id in ids {
            let metaslab = again.metaslab(id).unwrap();
            let mut free = metaslab.free_space().unwrap().clone();
            let range = metaslab.range();
            for used in self.truth(id.vdev) {
                let (start, end) = (used.start.max(range.start), used.end.min(range.end));
                if start < end {
                    assert!(free.overlap(start..end).is_none(), "{id:?} gives away what is in use");
                    free.add(start..end).unwrap();
                }
            }
            assert_eq!(free.total(), metaslab.size_bytes(), "{id:?} lost space");
        }
        again
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_what_was(life in lives()) {
        let mut pool = Pool::new(&life);
        for number in 0..life.txgs {
            pool.one_txg(&life);
            if number % 7 == 6 {
                let again = pool.compare();
                if number % 2 == 0 {
                    // A crash here, and on with what an import finds.
                    pool.allocator = again;
                    pool.loaded.clear();
                }
            }
            if life.log_spacemap {
                let logs = pool.allocator.logs();
                prop_assert!(logs.logs().count() as u64 <= pool.tunables.zfs_unflushed_log_txg_max + 2);
            }
        }
        pool.compare();

        // The end: everything flushed and rewritten; the counts of free runs are exact then.
        pool.allocator.flush_more(FlushMode::Everything);
        let ids: Vec<MetaslabId> = pool.allocator.metaslabs().map(Metaslab::id).collect();
        for _ in 0..4 {
            for id in &ids {
                load_metaslab(&mut pool.allocator, &pool.disk, *id, pool.txg);
                pool.allocator.condense(*id, pool.txg).unwrap();
            }
            pool.allocator.sync(&mut pool.disk, pool.txg, 1).unwrap();
            pool.allocator.close_txg(&mut pool.disk).unwrap();
            pool.allocator.sync_done(pool.txg, &Keep::USUAL, 0).unwrap();
            let maps = pool.allocator.metaslabs().filter(|metaslab| metaslab.map().is_some()).count();
            prop_assert_eq!(pool.allocator.work().condensed, maps as u64);
            pool.txg = Txg(pool.txg.0 + 1);
            pool.allocator.flush_more(FlushMode::Everything);
        }
        pool.allocator.verify().unwrap();
        pool.compare();
        for metaslab in pool.allocator.metaslabs() {
            let Some(map) = metaslab.map() else { continue };
            let header = pool.disk.header(map.object);
            prop_assert_eq!(header.allocated_bytes as u64, metaslab.allocated_bytes());
            load_metaslab_histogram(&pool, metaslab.id(), header.histogram.unwrap());
        }
        prop_assert_eq!(pool.allocator.logs().memory_bytes(), 0);
        prop_assert!(pool.disk.logs.len() <= 1, "{} logs are left", pool.disk.logs.len());
    }
}

/// The lives above mean something only if things happen in them; and the same life is the same to the last byte.
#[test]
fn lives_are_eventful_and_repeat() {
    let live = |seed, log_spacemap| {
        let life = Life {
            seed,
            log_spacemap,
            ashift: 12,
            metaslabs: 4,
            churn: 60,
            txgs: 60,
            fill: 95,
            tight_memory: seed % 2 == 0,
            segment_weights: true,
        };
        let mut pool = Pool::new(&life);
        (0..life.txgs).for_each(|_| pool.one_txg(&life));
        pool.compare();
        (pool.seen, pool.disk)
    };
    let mut all = Seen::default();
    for seed in 0..6 {
        let (seen, disk) = live(seed, true);
        if seed == 0 {
            assert!(live(seed, true) == (seen.clone(), disk), "the same life twice");
        }
        all.flushed += seen.flushed;
        all.condensed += seen.condensed;
        all.retired += seen.retired;
        all.loaded += seen.loaded;
        all.unloaded += seen.unloaded;
        all.no_space += seen.no_space;
        all.unallocated += seen.unallocated;
        all.read_on += live(seed, false).0.read_on + seen.read_on;
    }
    let flushes = [all.flushed, all.condensed, all.retired, all.loaded, all.unloaded];
    let counts = [all.no_space, all.unallocated, all.read_on];
    assert!(flushes.iter().chain(&counts).all(|count| *count > 0), "{all:?}");
}

fn load_metaslab_histogram(pool: &Pool, id: MetaslabId, found: [u64; cenote_format::spacemap::HISTOGRAM_BUCKETS]) {
    let mut allocator = pool.allocator.clone();
    load_metaslab(&mut allocator, &pool.disk, id, pool.txg);
    let metaslab = allocator.metaslab(id).unwrap();
    let ashift = pool.vdevs[0].maps.ashift;
    assert_eq!(found, map_histogram(metaslab.free_space().unwrap(), ashift), "{id:?}");
}
