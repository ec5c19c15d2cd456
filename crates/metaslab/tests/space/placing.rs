//! Where blocks go: copies apart, classes apart, full pools, loads, limits.

use std::collections::BTreeSet;

use cenote_format::ids::{Txg, VdevId};
use cenote_metaslab::*;
use cenote_vdev::config::AllocationClass;

use crate::common::*;

const FEATURES: SpaceFeatures = SpaceFeatures { spacemap_v2: true, log_spacemap: true };

fn pool(vdevs: &[VdevSetup], tunables: Tunables) -> Allocator {
    let mut allocator = Allocator::new(FEATURES, tunables, true);
    vdevs.iter().for_each(|setup| allocator.add_vdev(setup.clone(), true).unwrap());
    allocator
}

fn one_txg(allocator: &mut Allocator, disk: &mut Disk, txg: Txg) {
    allocator.sync(disk, txg, 1).unwrap();
    allocator.close_txg(disk).unwrap();
    allocator.sync_done(txg, &Keep::USUAL, txg.0 * 5000).unwrap();
    allocator.verify().unwrap();
}

#[test]
fn copies_lie_on_different_vdevs_or_else_in_different_metaslabs() {
    let disk = Disk::default();
    let normal = AllocationClass::Normal;
    let three = [vdev(0, normal, 12, 24, 8), vdev(1, normal, 12, 24, 8), vdev(2, normal, 12, 24, 8)];
    let mut allocator = pool(&three, Tunables::default());
    for _ in 0..50 {
        let extents = allocate(&mut allocator, &disk, &request(Txg(4), 8192, 3)).unwrap();
        let vdevs: BTreeSet<VdevId> = extents.iter().map(|extent| extent.vdev).collect();
        assert_eq!(vdevs.len(), 3, "{extents:?}");
    }
    let mut allocator = pool(&three[..1], Tunables::default());
    for _ in 0..50 {
        let extents = allocate(&mut allocator, &disk, &request(Txg(4), 8192, 3)).unwrap();
        let metaslabs: BTreeSet<u64> = extents.iter().map(|extent| extent.offset_bytes >> 24).collect();
        assert_eq!(metaslabs.len(), 3, "{extents:?}");
    }
}

#[test]
fn classes_have_vdevs_of_their_own_and_a_metaslab_for_the_embedded_log() {
    let disk = Disk::default();
    let vdevs = [
        vdev(0, AllocationClass::Normal, 12, 20, 70),
        vdev(1, AllocationClass::Special, 12, 24, 8),
        vdev(2, AllocationClass::Log, 12, 24, 8),
    ];
    let mut allocator = pool(&vdevs, Tunables::default());
    let mut place = |class, count| {
        let wish = Request { class, ..request(Txg(4), 65536, 1) };
        (0..count).map(|_| allocate(&mut allocator, &disk, &wish).map(|extents| extents[0])).collect::<Vec<_>>()
    };
    let normal: BTreeSet<_> = place(ClassKind::Normal, 40).into_iter().map(|it| it.unwrap().vdev.0).collect();
    assert_eq!(normal, BTreeSet::from([0]));
    assert_eq!(place(ClassKind::Special, 1)[0].as_ref().unwrap().vdev, VdevId(1));
    assert_eq!(place(ClassKind::Log, 1)[0].as_ref().unwrap().vdev, VdevId(2));
    assert_eq!(place(ClassKind::Dedup, 1)[0], Err(AllocError::NoVdev));
    // One metaslab of 1 MiB: sixteen blocks, all in it, and no more.
    let log = place(ClassKind::EmbeddedLog, 17);
    let metaslabs: BTreeSet<u64> = log[..16].iter().map(|it| it.as_ref().unwrap().offset_bytes >> 20).collect();
    assert_eq!(metaslabs.len(), 1);
    assert_eq!(log[16], Err(AllocError::NoSpace { largest_bytes: 0 }));
    let rest: BTreeSet<u64> =
        place(ClassKind::Normal, 200).into_iter().map(|it| it.unwrap().offset_bytes >> 20).collect();
    assert!(rest.is_disjoint(&metaslabs));
    assert_eq!(ClassKind::Dedup.fallbacks(), [ClassKind::Special, ClassKind::Normal]);
}

/// As many blocks as asked for, some at a time.
fn in_runs(allocator: &mut Allocator, disk: &Disk, wish: &Request, count: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    while (found.len() as u64) < count {
        match allocator.allocate_run(wish, (count - found.len() as u64).min(64)) {
            Ok(extents) => found.extend(extents),
            Err(AllocError::NeedsLoad(id)) => load_metaslab(allocator, disk, id, wish.txg),
            Err(error) => panic!("{error}"),
        }
    }
    found
}

#[test]
fn places_given_in_runs_are_those_given_one_after_the_other() {
    let mut disk = Disk::default();
    let vdevs = [vdev(0, AllocationClass::Normal, 12, 24, 8), vdev(1, AllocationClass::Normal, 12, 24, 5)];
    let mut single = pool(&vdevs, Tunables::default());
    let mut runs = single.clone();
    let wish = request(Txg(4), 8192, 1);
    let expected: Vec<Extent> =
        (0..1000).map(|_| allocate(&mut single, &disk, &wish).unwrap().pop().unwrap()).collect();
    let mut live = in_runs(&mut runs, &disk, &wish, 1000);
    assert_eq!(live, expected);
    one_txg(&mut runs, &mut disk, Txg(4));
    // In what is left between blocks too; the second book would tell if a place were given twice.
    for number in (0..1000).step_by(3) {
        runs.free(Txg(5), &live[number]).unwrap();
    }
    (5..8).for_each(|txg| one_txg(&mut runs, &mut disk, Txg(txg)));
    live = in_runs(&mut runs, &disk, &request(Txg(8), 4096, 1), 20_000);
    assert!(live.iter().all(|extent| extent.asize_bytes == 4096));
    one_txg(&mut runs, &mut disk, Txg(8));
}

/// Goal: the tunable for tests has its share of blocks stored as gangs, whether they are asked for alone or several at a time. Method:
/// blocks are asked for as a batch does it: several, and one where that gives none. Would go wrong if a batch took a block's turn.
#[test]
fn so_many_blocks_of_a_hundred_are_forced_to_be_gangs() {
    let tunables = Tunables { metaslab_force_ganging: 16 << 10, metaslab_force_ganging_pct: 30, ..Tunables::default() };
    let disk = Disk::default();
    let mut allocator = pool(&[vdev(0, AllocationClass::Normal, 12, 24, 8)], tunables);
    // Loads a metaslab.
    allocate(&mut allocator, &disk, &request(Txg(4), 4096, 1)).unwrap();
    let mut forced = |bytes| {
        let alone = |allocator: &mut Allocator| match allocator.allocate(&request(Txg(4), bytes, 1)) {
            Err(AllocError::ForcedGang) => true,
            other => other.is_err(),
        };
        (0..100)
            .filter(|_| match allocator.allocate_run(&request(Txg(4), bytes, 1), 4) {
                Ok(_) => false,
                Err(error) => {
                    assert_eq!(error, AllocError::ForcedGang);
                    alone(&mut allocator)
                }
            })
            .count()
    };
    assert_eq!((forced(32 << 10), forced(8 << 10)), (30, 0));
    let none = Request { class: ClassKind::Special, ..request(Txg(4), 32 << 10, 1) };
    for _ in 0..4 {
        assert_eq!(allocator.allocate(&none), Err(AllocError::NoVdev), "it would go to another class");
    }
}

/// Fills a pool to the last sector, says what still fits when it is in pieces, and gives everything back.
#[test]
fn a_full_pool_says_so_and_empties_again() {
    let mut disk = Disk::default();
    let vdevs = [vdev(0, AllocationClass::Normal, 12, 22, 6), vdev(1, AllocationClass::Normal, 12, 22, 3)];
    let mut allocator = pool(&vdevs, Tunables::default());
    let mut live = Vec::new();
    let mut txg = Txg(4);
    loop {
        match allocate(&mut allocator, &disk, &request(txg, 4096, 1)) {
            Ok(extents) => live.extend(extents),
            Err(AllocError::NoSpace { largest_bytes }) => {
                assert_eq!(largest_bytes, 0);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(live.len(), 9 << 10, "every sector");
    one_txg(&mut allocator, &mut disk, txg);
    // Every third goes: no two neighbours, so nothing but single sectors is free.
    txg = Txg(5);
    live.sort();
    let (gone, kept): (Vec<_>, Vec<_>) = live.into_iter().enumerate().partition(|(number, _)| number % 3 == 0);
    gone.iter().for_each(|(_, extent)| allocator.free(txg, extent).unwrap());
    one_txg(&mut allocator, &mut disk, txg);
    txg = Txg(6);
    assert!(matches!(
        allocate(&mut allocator, &disk, &request(txg, 4096, 1)),
        Err(AllocError::NoSpace { largest_bytes: 0 })
    ));
    one_txg(&mut allocator, &mut disk, txg);
    txg = Txg(7);
    one_txg(&mut allocator, &mut disk, txg);
    txg = Txg(8);
    let large = allocate(&mut allocator, &disk, &request(txg, 8192, 1));
    assert_eq!(large, Err(AllocError::NoSpace { largest_bytes: 4096 }), "parts of a gang block would fit");
    let small = allocate(&mut allocator, &disk, &request(txg, 4096, 3)).unwrap();
    kept.iter().map(|(_, extent)| extent).chain(&small).for_each(|extent| allocator.free(txg, extent).unwrap());
    for number in 8..12 {
        one_txg(&mut allocator, &mut disk, Txg(number));
    }
    let (size, allocated, deferred) = allocator.class_figures(ClassKind::Normal);
    assert_eq!((size, allocated, deferred), (9 << 22, 0, 0));
    assert!(allocator.metaslabs().filter(|it| it.is_loaded()).all(|it| it.free_space().unwrap().segments() == 1));
}

/// Frees of neighbours are one within a metaslab, and come to what frees of each come to: of a full pool, so that neighbours lie on both
/// sides of borders of metaslabs and vdevs.
#[test]
fn places_freed_together_are_those_freed_one_after_the_other() {
    let filled = || {
        let mut disk = Disk::default();
        let vdevs = [vdev(0, AllocationClass::Normal, 12, 22, 6), vdev(1, AllocationClass::Normal, 12, 22, 3)];
        let mut allocator = pool(&vdevs, Tunables::default());
        let mut next = || allocate(&mut allocator, &disk, &request(Txg(4), 4096, 1)).ok().map(|it| it[0]);
        let mut all: Vec<Extent> = std::iter::from_fn(&mut next).collect();
        one_txg(&mut allocator, &mut disk, Txg(4));
        all.sort();
        (allocator, disk, all)
    };
    let (mut single, mut disk, mut all) = filled();
    let (mut together, mut other_disk, _) = filled();
    for (txg, step) in [(Txg(5), 2), (Txg(6), 3), (Txg(7), 2)] {
        let (kept, gone): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(number, _)| (number / 5) % step == 0);
        let gone: Vec<Extent> = gone.into_iter().map(|(_, extent)| extent).collect();
        gone.iter().for_each(|extent| single.free(txg, extent).unwrap());
        together.free_all(txg, &gone).unwrap();
        assert!(matches!(together.free_all(txg, &gone[3..]), Err(AllocError::Space(_))), "a second free is refused");
        one_txg(&mut single, &mut disk, txg);
        one_txg(&mut together, &mut other_disk, txg);
        all = kept.into_iter().map(|(_, extent)| extent).collect();
    }
    let twice = [all[0], all[0]];
    assert!(matches!(together.clone().free_all(Txg(8), &twice), Err(AllocError::Space(_))), "twice in one call");
    for txg in 8..11 {
        one_txg(&mut single, &mut disk, Txg(txg));
        one_txg(&mut together, &mut other_disk, Txg(txg));
    }
    let free = |allocator: &Allocator| -> Vec<Vec<_>> {
        allocator.metaslabs().map(|it| it.free_space().map_or(Vec::new(), |free| free.iter().collect())).collect()
    };
    assert_eq!(free(&together), free(&single));
    assert_eq!(together.class_figures(ClassKind::Normal), single.class_figures(ClassKind::Normal));
    assert!(free(&single).concat().len() > 100);
}

#[test]
fn what_was_freed_is_not_used_for_two_txgs() {
    let mut disk = Disk::default();
    let mut allocator = pool(&[vdev(0, AllocationClass::Normal, 12, 22, 3)], Tunables::default());
    let all: Vec<Extent> =
        std::iter::from_fn(|| allocate(&mut allocator, &disk, &request(Txg(4), 4096, 1)).ok().map(|it| it[0]))
            .collect();
    one_txg(&mut allocator, &mut disk, Txg(4));
    allocator.free(Txg(5), &all[7]).unwrap();
    assert!(matches!(allocator.free(Txg(5), &all[7]), Err(AllocError::Space(_))), "a second free is refused");
    // While its txg is synced, it is not allocated any more.
    allocator.sync(&mut disk, Txg(5), 1).unwrap();
    let (size, allocated, deferred) = allocator.class_figures(ClassKind::Normal);
    assert_eq!((size - allocated, deferred), (4096, 4096), "nor can it be used");
    allocator.close_txg(&mut disk).unwrap();
    allocator.sync_done(Txg(5), &Keep::USUAL, 25000).unwrap();
    assert_eq!(allocator.class_figures(ClassKind::Normal), (size, allocated, deferred));
    for txg in [6, 7] {
        assert!(allocate(&mut allocator, &disk, &request(Txg(txg), 4096, 1)).is_err(), "txg {txg}");
        assert!(allocator.free(Txg(txg), &all[7]).is_err(), "a second free is refused in txg {txg}");
        one_txg(&mut allocator, &mut disk, Txg(txg));
    }
    assert_eq!(allocate(&mut allocator, &disk, &request(Txg(8), 4096, 1)).unwrap(), [all[7]]);
}

#[test]
fn writes_outside_extents_are_seen() {
    let disk = Disk::default();
    let mut allocator = pool(&[vdev(0, AllocationClass::Normal, 12, 22, 3)], Tunables::default());
    let extent = allocate(&mut allocator, &disk, &request(Txg(4), 16384, 1)).unwrap()[0];
    let range = extent.range();
    allocator.check_write(extent.vdev, range.start + 4096..range.end).unwrap();
    assert!(allocator.check_write(extent.vdev, range.start..range.end + 4096).is_err());
    assert!(allocator.check_write(VdevId(3), range.clone()).is_err());
    allocator.free(Txg(4), &extent).unwrap();
    assert!(allocator.check_write(extent.vdev, range).is_err());
}

/// Space in use follows the rotor: over a long run the emptier vdev catches up.
#[test]
fn vdevs_fill_up_together() {
    let mut disk = Disk::default();
    let normal = AllocationClass::Normal;
    let vdevs = [vdev(0, normal, 12, 26, 16), vdev(1, normal, 12, 26, 16)];
    let tunables = Tunables { metaslab_aliquot: 256 << 10, ..Tunables::default() };
    let mut allocator = pool(&vdevs[..1], tunables);
    let fill = |allocator: &mut Allocator, disk: &mut Disk, txg, bytes: u64| {
        (0..bytes / 65536).for_each(|_| drop(allocate(allocator, disk, &request(txg, 65536, 1)).unwrap()));
        one_txg(allocator, disk, txg);
    };
    fill(&mut allocator, &mut disk, Txg(4), 512 << 20);
    allocator.add_vdev(vdevs[1].clone(), false).unwrap();
    assert_eq!(allocate(&mut allocator, &disk, &request(Txg(5), 4096, 1)).unwrap()[0].vdev, VdevId(0), "not yet");
    for txg in 5..25 {
        fill(&mut allocator, &mut disk, Txg(txg), 50 << 20);
    }
    let used = |vdev| -> u64 {
        allocator.metaslabs().filter(|it| it.vdev() == VdevId(vdev)).map(Metaslab::allocated_bytes).sum()
    };
    let (old, new) = (used(0), used(1));
    assert!(new > 512 << 20, "the new vdev got {new} of 1000 MiB, the old one has {old}");
    assert!(old.abs_diff(new) < 400 << 20, "{old} and {new}");
}

#[test]
fn memory_of_loaded_metaslabs_is_kept_by_unloading() {
    let mut disk = Disk::default();
    let vdevs = [vdev(0, AllocationClass::Normal, 9, 24, 8)];
    // Units of 512 bytes, every second one free: more than the bound allows if all were loaded.
    let tunables = Tunables { cenote_metaslab_mem_min: 0, cenote_metaslab_mem_per_tb: 1 << 50, ..Tunables::default() };
    let mut allocator = pool(&vdevs, tunables);
    let mut blocks = Vec::new();
    while let Ok(extents) = allocate(&mut allocator, &disk, &request(Txg(4), 512, 1)) {
        blocks.extend(extents);
    }
    one_txg(&mut allocator, &mut disk, Txg(4));
    blocks.sort();
    blocks.iter().step_by(2).for_each(|extent| allocator.free(Txg(5), extent).unwrap());
    (5..10).for_each(|txg| one_txg(&mut allocator, &mut disk, Txg(txg)));
    let all = allocator.loaded_memory_bytes();
    assert!(all > 8 * ((1 << 24) / 512 / 8), "all bitmaps: {all} bytes");
    allocator.tunables().cenote_metaslab_mem_per_tb = (all / 2) * 1_000_000_000_000 / (8 << 24);
    let max = allocator.loaded_memory_bytes_max();
    for txg in 10..60 {
        let extents = allocate(&mut allocator, &disk, &request(Txg(txg), 512, 1)).unwrap();
        assert_eq!(extents.len(), 1);
        one_txg(&mut allocator, &mut disk, Txg(txg));
        let now = allocator.loaded_memory_bytes();
        assert!(now <= max, "{now} bytes of {max} at txg {txg}");
    }
    assert!(allocator.metaslabs().any(|it| !it.is_loaded()) && allocator.metaslabs().any(Metaslab::is_loaded));
}

/// An error of the store comes out as it is, naming the object.
#[test]
fn a_store_that_fails_is_reported() {
    let mut disk = Disk::default();
    let mut allocator = pool(&[vdev(0, AllocationClass::Normal, 12, 22, 3)], Tunables::default());
    allocate(&mut allocator, &disk, &request(Txg(4), 4096, 1)).unwrap();
    disk.fault = Some(2);
    let error = allocator.sync(&mut disk, Txg(4), 1).unwrap_err();
    let SpaceError::Store { error: cause, .. } = &error else { panic!("{error}") };
    assert!(cause.downcast_ref::<std::io::Error>().is_some(), "{cause:?}");
    assert!(error.to_string().contains("injected"), "{error}");
}

/// The limits of the log hold under steady churn, and flushing is even: no txg flushes much more than the others.
#[test]
fn logs_stay_within_their_limits_at_an_even_pace() {
    let mut disk = Disk::default();
    let tunables = Tunables {
        zfs_log_sm_blksz: 512,
        zfs_unflushed_log_block_min: 60,
        zfs_unflushed_log_block_pct: 100,
        ..Tunables::default()
    };
    let vdevs = [vdev(0, AllocationClass::Normal, 12, 22, 64)];
    let mut allocator = pool(&vdevs, tunables);
    let mut random = Random(7);
    let mut live = Vec::new();
    for _ in 0..9000 {
        live.extend(allocate(&mut allocator, &disk, &request(Txg(4), 16384, 1)).unwrap());
    }
    one_txg(&mut allocator, &mut disk, Txg(4));
    let mut flushed = Vec::new();
    for txg in 5..205 {
        for _ in 0..60 {
            let index = random.below(live.len() as u64) as usize;
            allocator.free(Txg(txg), &live.swap_remove(index)).unwrap();
            live.extend(allocate(&mut allocator, &disk, &request(Txg(txg), 16384, 1)).unwrap());
        }
        one_txg(&mut allocator, &mut disk, Txg(txg));
        let work = allocator.work();
        if txg >= 105 {
            flushed.push(work.flushed + work.condensed);
            let (blocks, limit) = (allocator.logs().blocks(), allocator.logs().block_limit());
            assert!(blocks <= limit + 6, "{blocks} blocks of {limit} at txg {txg}");
        }
    }
    let (least, most) = (flushed.iter().min().unwrap(), flushed.iter().max().unwrap());
    let mean = flushed.iter().sum::<u64>() as f64 / flushed.len() as f64;
    assert!(*most as f64 <= 3.0 * mean + 2.0, "{least} to {most} metaslabs a txg, {mean} on average");
    assert!(mean < 32.0, "half of the metaslabs each txg is no log: {mean}");
}

/// Held space is free on disk and nobody's: it is not given out, not in use, cannot be freed, and keeps its metaslab loaded.
#[test]
fn space_that_is_held_is_free_and_is_neither_given_out_nor_in_use() {
    let mut disk = Disk::default();
    let vdevs = [vdev(0, AllocationClass::Normal, 12, 22, 3)];
    let mut allocator = pool(&vdevs, Tunables::default());
    let taken = allocate(&mut allocator, &disk, &request(Txg(4), 65536, 1)).unwrap()[0];
    one_txg(&mut allocator, &mut disk, Txg(4));
    let figures = allocator.class_figures(ClassKind::Normal);
    let (mut held, mut at) = (Vec::new(), 0);
    for _ in 0..3 {
        let range =
            allocator.hold_free(VdevId(0), at, 256 << 10, (Txg(5), 25000)).unwrap().expect("there is free space");
        assert!(range.start >= at && range.end - range.start <= 256 << 10);
        at = range.end;
        held.push(range);
    }
    let meets = |range: &std::ops::Range<u64>| held.iter().any(|held| held.start < range.end && range.start < held.end);
    assert!(!meets(&taken.range()), "only free space is held");
    assert_eq!(allocator.class_figures(ClassKind::Normal), figures, "it is free");
    // An evacuation copies what is in use, and no more.
    let (mut in_use, mut from) = (0, 0);
    while let Some(range) = allocator.next_in_use(VdevId(0), from).unwrap() {
        assert!(!meets(&range), "{range:?} is held");
        in_use += range.end - range.start;
        from = range.end;
    }
    assert_eq!(in_use, taken.asize_bytes);
    let one = Extent { vdev: VdevId(0), offset_bytes: held[0].start, asize_bytes: 4096 };
    assert!(matches!(allocator.free(Txg(5), &one), Err(AllocError::Space(_))), "what is free is not freed");
    while let Ok(extents) = allocate(&mut allocator, &disk, &request(Txg(5), 4096, 1)) {
        assert!(!meets(&extents[0].range()), "{extents:?} is held");
    }
    one_txg(&mut allocator, &mut disk, Txg(5));
    let id = allocator
        .metaslabs()
        .map(Metaslab::id)
        .find(|id| allocator.metaslab(*id).unwrap().range().contains(&held[0].start));
    assert!(!allocator.unload(id.unwrap()).unwrap(), "it stays loaded");
    // On disk it is free, also where maps are rewritten.
    allocator.flush_more(FlushMode::Everything);
    one_txg(&mut allocator, &mut disk, Txg(6));
    let again = reopen(&disk, &vdevs, FEATURES, &Tunables::default());
    let free = |of: (u64, u64, u64)| of.0 - of.1;
    let held_bytes: u64 = held.iter().map(|range| range.end - range.start).sum();
    assert_eq!(free(again.class_figures(ClassKind::Normal)), held_bytes, "all else is taken");
    held.into_iter().for_each(|range| allocator.release(VdevId(0), range).unwrap());
    allocator.verify().unwrap();
    assert!(allocate(&mut allocator, &disk, &request(Txg(7), 4096, 1)).is_ok(), "it can be taken again");
}

/// Each of several holders gets all that is free on disk, also what others hold; it is free again when the last one lets go.
#[test]
fn holders_pass_over_nothing_that_others_hold() {
    let vdevs = [vdev(0, AllocationClass::Normal, 12, 22, 3)];
    for seed in 0..20 {
        let (mut rng, mut disk) = (Random(seed + 1), Disk::default());
        let mut allocator = pool(&vdevs, Tunables::default());
        for _ in 0..20 {
            let size_bytes = 4096 << rng.below(6);
            allocate(&mut allocator, &disk, &request(Txg(4), size_bytes, 1)).unwrap();
        }
        one_txg(&mut allocator, &mut disk, Txg(4));
        let figures = allocator.class_figures(ClassKind::Normal);
        let free_bytes = figures.0 - figures.1;
        // Where each holder goes on, its range, and the bytes that it has had.
        let mut holders = [const { (0_u64, None::<std::ops::Range<u64>>, 0_u64) }; 3];
        let mut ended = [false; 3];
        while ended.contains(&false) {
            let index = rng.below(3) as usize;
            let (at, held, had_bytes) = &mut holders[index];
            if let Some(range) = held.take() {
                allocator.release(VdevId(0), range).unwrap();
                allocator.verify().unwrap();
                continue;
            }
            let max_bytes = (1 + rng.below(64)) * 4096;
            match allocator.hold_free(VdevId(0), *at, max_bytes, (Txg(5), 25000)).unwrap() {
                Some(range) => {
                    assert!(range.start >= *at && range.end - range.start <= max_bytes.max(4096));
                    *had_bytes += range.end - range.start;
                    (*at, *held) = (range.end, Some(range));
                }
                None => ended[index] = true,
            }
        }
        assert!(holders.iter().all(|holder| holder.2 == free_bytes), "{holders:?}, {free_bytes} bytes are free");
        assert_eq!(allocator.class_figures(ClassKind::Normal), figures, "it is free");
    }
}
