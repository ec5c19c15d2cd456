//! Goal: what a reader finds damaged is whole soon after, and nothing but the damage was written over. Method: pools on simulated disks whose
//! contents are spoilt behind their back; Cenote's verify and `zdb -bcc` count bad copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::{KeyAccess, Object, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
use cenote_format::label::{DeviceLayout, LABEL_BYTES, START_BYTES, VDEV_PHYS_BYTES};
use cenote_format::nvlist::NvValue;
use cenote_spa::{ImportOptions, LiveHead, Pool, TopKind, View};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Rng, Runtime};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;
use cenote_vdev::tree::VdevState;
use cenote_zio::Bookmark;

use cenote_sim::Machine;
use cenote_sim::written::blocks::{BLOCK_BYTES, content, make_objects};
use cenote_sim::written::files::{new_files, opened};
use cenote_sim::written::tree::{change, seen};
use cenote_sim::written::*;

/// Layouts, and of each the disks that are spoilt: as many of each vdev as it can do without.
const CASES: &[(Layout, &[usize])] = &[
    (&[(TopKind::Mirror, 2)], &[0]),
    (&[(TopKind::Mirror, 3)], &[0, 1]),
    (&[(TopKind::Raidz { parity: 1 }, 3)], &[1]),
    (&[(TopKind::Raidz { parity: 2 }, 5)], &[0, 3]),
    (&[(TopKind::Raidz { parity: 3 }, 5), (TopKind::Mirror, 2)], &[0, 1, 4, 6]),
    (&[(TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 5)], &[3]),
    (&[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)], &[1, 4]),
];

const OBJECTS: usize = 3;
const BLOCKS: u64 = 24;

fn seed_of(object: usize, block: u64) -> u64 {
    (object as u64 + 1) << 32 | (block + 1)
}

async fn write(head: &LiveHead, object: &Object, block: u64, seed: u64) {
    let at = block * BLOCK_BYTES;
    let tx = head.begin(cenote_dmu::tx::Cost::write(at, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
    object.write(tx.txg(), at, &content(seed)).await.unwrap();
}

/// Makes a pool with some objects, and exports it.
async fn make_filled(handle: &Handle, machine: &Machine, layout: Layout) -> Vec<ObjectId> {
    let pool = live(handle, machine, layout, small()).await;
    let head = pool.open_head("written").await.unwrap();
    let objects = make_objects(&head, OBJECTS).await;
    for (index, object) in objects.iter().enumerate() {
        for block in 0..BLOCKS {
            write(&head, object, block, seed_of(index, block)).await;
        }
        pool.sync().await.unwrap();
    }
    drop(head);
    pool.export().await.unwrap();
    objects.iter().map(Object::id).collect()
}

/// Reads all objects' data, and asserts that it is right.
async fn read_all(head: &LiveHead, objects: &[ObjectId]) {
    for (index, id) in objects.iter().enumerate() {
        let object = head.objset().object(*id).await.unwrap();
        for block in 0..BLOCKS {
            let (bytes, _) = object.block(BlockId(block)).await.unwrap().expect("a block that was written");
            assert!(bytes[..] == content(seed_of(index, block))[..], "block {block} of object {id}");
        }
    }
}

/// Spoils all that was ever written to a disk, but labels.
fn spoil(disk: &SimDisk, seed: u64) -> u64 {
    let (mut image, mut rng) = (disk.image(), Rng::new(seed));
    let end = disk.size_bytes() - (1 << 20);
    let places: Vec<(u64, usize)> =
        image.pages().filter(|(at, _)| (START_BYTES..end).contains(at)).map(|(at, page)| (at, page.len())).collect();
    for (at, len) in &places {
        let mut bytes = vec![0; *len];
        rng.fill(&mut bytes);
        image.write(*at, &bytes);
    }
    disk.restore(&image);
    places.len() as u64
}

/// All blocks of an objset, by their bookmarks.
async fn blocks_of(objset: &Objset, into: &mut Vec<(cenote_format::blkptr::Blkptr, Bookmark)>) {
    into.push((objset.root(), Bookmark::objset(objset.id())));
    let phys = objset.phys();
    let special = [&phys.userused_dnode, &phys.groupused_dnode, &phys.projectused_dnode];
    let mut objects = vec![objset.meta_dnode()];
    for (back, dnode) in special.into_iter().enumerate() {
        objects.extend(dnode.as_ref().map(|phys| objset.special_dnode(ObjectId(u64::MAX - back as u64), phys)));
    }
    for id in 1..600 {
        objects.extend(objset.object(ObjectId(id)).await);
    }
    for object in objects {
        let phys = object.phys();
        for level in 0..phys.levels {
            let last = object.last_block().0 >> (u32::from(level) * phys.blkptrs_per_indirect_shift());
            for block in (0..=last).map(BlockId) {
                let bp = object.pointer(level, block).await.unwrap();
                let bookmark = Bookmark { objset: objset.id(), object: object.id(), level: level as i8, block };
                into.push((bp, bookmark));
            }
        }
    }
}

/// All blocks of a pool.
async fn blocks(view: &View) -> Vec<(cenote_format::blkptr::Blkptr, Bookmark)> {
    let mut all = Vec::new();
    blocks_of(view.mos(), &mut all).await;
    for id in 1..600 {
        let Ok(object) = view.mos().object(ObjectId(id)).await else { continue };
        if object.phys().bonus_type != DmuType::DSL_DATASET {
            continue;
        }
        let phys = DslDatasetPhys::parse(&object.phys().bonus, cenote_dmu::ORDER).unwrap();
        if !phys.bp.is_hole() {
            let objset = Objset::open(view.dmu().clone(), ObjsetId(id), phys.bp, KeyAccess::None).await.unwrap();
            blocks_of(&objset, &mut all).await;
        }
    }
    all.retain(|(bp, _)| !bp.is_hole() && !bp.is_embedded());
    all
}

/// Checksum errors of all devices.
fn errors(pool: &Pool) -> u64 {
    pool.tree().unwrap().status().leaves().iter().map(|leaf| leaf.errors.checksum + leaf.errors.read).sum()
}

fn healed_bytes(pool: &Pool) -> u64 {
    pool.tree().unwrap().status().healed_bytes
}

/// A reader finds damage, gets its bytes, and the damage is gone for whoever reads the same way after it. Then every block is told of as
/// damaged, whether or not anybody met that: the whole pool has its redundancy again.
#[test]
fn what_readers_find_damaged_is_healed() {
    for (number, (layout, victims)) in CASES.iter().enumerate() {
        let what = format!("case {number}");
        let runtime = Runtime::simulated(number as u64);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        runtime.block_on(async {
            let objects = make_filled(&handle, &machine, layout).await;
            for victim in *victims {
                assert!(spoil(&machine.disks[*victim], *victim as u64) > 0);
            }
            let mut met = Vec::new();
            for _ in 0..2 {
                let pool = reopened(&handle, &machine.paths, small()).await;
                let head = pool.open_head("written").await.unwrap();
                read_all(&head, &objects).await;
                pool.wait_healed().await;
                let counts = pool.heal_counts();
                assert_eq!(counts.left, 0, "{what}: {counts:?}");
                met.push(errors(&pool));
                // The txg that healing asks for may have written such a block anew.
                assert!(errors(&pool) == 0 || counts.healed + counts.gone > 0, "{what}: {counts:?}");
                assert_eq!(healed_bytes(&pool), counts.healed_bytes, "{what}");
                assert_eq!(pool.healed_blocks().len() as u64, counts.healed.min(256), "{what}");
                drop(head);
                pool.export().await.unwrap();
            }
            // A mirror leaves a side that gives wrong bytes alone, and a disk of a draid may have parity alone in the rows that are used.
            match layout[0].0 {
                TopKind::Raidz { .. } => assert!(met[0] > 30 && met[1] == 0, "{what}: errors {met:?}"),
                _ => assert!(met[1] <= met[0], "{what}: errors {met:?}"),
            }

            let pool = reopened(&handle, &machine.paths, small()).await;
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let all = blocks(&view).await;
            assert!(all.len() as u64 > OBJECTS as u64 * BLOCKS);
            for some in all.chunks(500) {
                some.iter().for_each(|(bp, bookmark)| pool.suspect(*bp, *bookmark));
                pool.wait_healed().await;
            }
            let counts = pool.heal_counts();
            assert_eq!(counts.left, 0, "{what}: {counts:?}");
            // A block that was found when the pool was opened may be gone by the txg after.
            assert!(counts.gone < 10 && counts.healed > 0, "{what}: {counts:?}");
            drop(view);
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
        });
        if cenote_testkit::zdb::program("zdb").is_some() {
            cenote_sim::zdb("written", &machine.images(), machine.size_bytes).unwrap();
        }
    }
}

/// A reader of a pool writes nothing, whatever it finds.
#[test]
fn a_pool_that_is_only_read_is_not_healed() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        make_filled(&handle, &machine, &[(TopKind::Mirror, 2)]).await;
        spoil(&machine.disks[0], 1);
        let writes = |machine: &Machine| machine.disks.iter().map(|disk| disk.counts().writes).sum::<u64>();
        let before = writes(&machine);
        let view = read(&handle, &machine.paths).await;
        assert!(!blocks(&view).await.is_empty());
        assert!(view.tree().status().leaves().iter().any(|leaf| leaf.errors.checksum > 0));
        assert_eq!(writes(&machine), before);
        view.close().await;
    });
}

/// A disk that fails all repairs: they are given up, once for each block, and the pool goes on. Its log of txgs missed grows.
#[test]
fn a_device_that_takes_no_repairs_is_not_asked_for_ever() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let objects = make_filled(&handle, &machine, &[(TopKind::Raidz { parity: 1 }, 3)]).await;
        spoil(&machine.disks[1], 1);
        let pool = reopened(&handle, &machine.paths, small()).await;
        machine.disks[1].set_faults(|request, _| match request.kind {
            RequestKind::Write if request.offset_bytes >= START_BYTES => Fault::Error(std::io::ErrorKind::Other),
            _ => Fault::None,
        });
        let head = pool.open_head("written").await.unwrap();
        read_all(&head, &objects).await;
        handle.timeout(Duration::from_secs(60), pool.wait_healed()).await.expect("healing comes to an end");
        let counts = pool.heal_counts();
        // One that fails so much is not used any more.
        let is_faulted = pool.tree().unwrap().status().leaves().iter().any(|leaf| leaf.state == VdevState::Faulted);
        assert!((counts.left > 0 || is_faulted) && counts.healed == 0, "{counts:?}");
        machine.disks[1].clear_faults();
        drop(head);
        pool.export().await.unwrap();
    });
}

/// A write that a device fails once costs no redundancy, wherever it is in a txg: another device can go afterwards.
#[test]
fn a_write_that_fails_once_costs_no_redundancy_18387() {
    for (number, (layout, victims)) in CASES.iter().enumerate() {
        for nth in [1, 4, 11, 29] {
            let what = format!("case {number}, write {nth}");
            let runtime = Runtime::simulated(nth);
            let handle = runtime.handle();
            let count = layout.iter().map(|(_, count)| count).sum();
            let machine = machine_of(&runtime, count, Latency::default());
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let head = pool.open_head("written").await.unwrap();
                let objects = make_objects(&head, OBJECTS).await;
                let failing = (victims[0] + 1) % layout[0].1;
                let (mut writes, failed) = (0, Arc::new(AtomicU64::new(0)));
                let blocks = START_BYTES..machine.size_bytes - (1 << 20);
                let counter = failed.clone();
                machine.disks[failing].set_faults(move |request, _| {
                    let is_block = request.kind == RequestKind::Write && blocks.contains(&request.offset_bytes);
                    writes += u64::from(is_block);
                    if !is_block || writes != nth {
                        return Fault::None;
                    }
                    counter.fetch_add(1, Ordering::Relaxed);
                    Fault::Error(std::io::ErrorKind::Other)
                });
                for (index, object) in objects.iter().enumerate() {
                    for block in 0..BLOCKS {
                        write(&head, object, block, seed_of(index, block)).await;
                    }
                }
                pool.sync().await.unwrap();
                machine.disks[failing].clear_faults();
                let status = pool.tree().unwrap().status();
                // A disk of a draid may have nothing in the rows that are used; neighbours are one write.
                let failed = failed.load(Ordering::Relaxed);
                assert!(failed == 1 || nth > 4 || matches!(layout[0].0, TopKind::Draid { .. }), "{what}");
                assert_eq!(status.leaves().iter().map(|leaf| leaf.errors.write).sum::<u64>(), failed, "{what}");
                assert!(status.behind().is_empty(), "{what}: it was made good");
                let ids: Vec<ObjectId> = objects.iter().map(Object::id).collect();
                drop((head, objects));
                pool.export().await.unwrap();
                for victim in *victims {
                    machine.disks[*victim].restore(&Default::default());
                }
                let pool = reopened(&handle, &machine.paths, small()).await;
                let head = pool.open_head("written").await.unwrap();
                read_all(&head, &ids).await;
                drop(head);
                pool.export().await.unwrap();
            });
        }
    }
}

/// A device that fails the blocks of a txg, however few others notice, is known to have missed the txg, also after an import.
#[test]
fn a_device_that_fails_all_of_a_txg_has_missed_it() {
    for (number, (layout, victims)) in CASES.iter().enumerate() {
        let runtime = Runtime::simulated(7);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let objects = make_objects(&head, OBJECTS).await;
            pool.sync().await.unwrap();
            machine.disks[victims[0]].set_faults(|request, _| match request.kind {
                RequestKind::Write if request.offset_bytes >= START_BYTES => Fault::Error(std::io::ErrorKind::Other),
                _ => Fault::None,
            });
            write(&head, &objects[0], 0, 1).await;
            let txg = pool.sync().await.unwrap();
            machine.disks[victims[0]].clear_faults();
            drop((head, objects));
            pool.export().await.unwrap();
            let view = read(&handle, &machine.paths).await;
            let status = view.tree().status();
            let behind = status.behind();
            assert_eq!(behind.len(), 1, "case {number}");
            assert!(behind[0].name.ends_with(&Machine::name(victims[0])) && behind[0].missed.contains(txg));
            view.close().await;
        });
    }
}

/// Labels that were overwritten are written again with the first txg; the pool says so.
#[test]
fn damaged_labels_are_written_again() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        make_filled(&handle, &machine, &[(TopKind::Mirror, 2)]).await;
        let label = |index: usize| DeviceLayout::new(machine.size_bytes).unwrap().label_offset(index);
        let mut image = machine.disks[1].image();
        for index in [0, 1, 3] {
            image.write(label(index), &vec![index as u8; LABEL_BYTES]);
        }
        machine.disks[1].restore(&image);
        let view = read(&handle, &machine.paths).await;
        let said = |notes: &[String]| notes.iter().filter(|note| note.contains("3 of the 4 labels of /disk1")).count();
        assert_eq!(said(view.notes()), 1, "{:?}", view.notes());
        view.close().await;
        let pool = reopened(&handle, &machine.paths, small()).await;
        assert_eq!(said(pool.notes()), 1, "{:?}", pool.notes());
        pool.sync().await.unwrap();
        assert!(healed_bytes(&pool) >= 3 * VDEV_PHYS_BYTES as u64);
        pool.export().await.unwrap();
        let device = handle.open(&machine.paths[1], OpenOptions::default()).await.unwrap();
        assert_eq!(probe(&Disk::whole(device)).await.good_labels(), 4);
        let view = read(&handle, &machine.paths).await;
        assert!(view.notes().is_empty(), "{:?}", view.notes());
        view.close().await;
    });
}

/// The power goes while blocks of a log are written, and one side of a mirror has none of them. Once the log was claimed it has: the other
/// side can go before the log is replayed.
#[test]
fn a_log_block_that_one_side_lacks_is_mended_when_it_is_claimed() {
    let mut mended = 0;
    for bad in [0, 1] {
        let runtime = Runtime::simulated(bad as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
            let mut rng = Rng::new(9);
            change(&fs, &seen(&fs).await, &mut rng).await;
            log.sync(None).await.unwrap();
            pool.sync().await.unwrap();
            let (before, txgs) = (machine.disks[bad].image(), pool.history().len());
            for _ in 0..30 {
                change(&fs, &seen(&fs).await, &mut rng).await;
                log.sync(None).await.unwrap();
            }
            let tree = seen(&fs).await;
            assert_eq!(pool.history().len(), txgs, "all of it is in the log alone");
            cut(&handle, &machine, Crash::LoseAll).await;
            drop((fs, log, pool));
            machine.disks[bad].restore(&before);
            let pool = reopened(&handle, &machine.paths, small()).await;
            let status = pool.tree().unwrap().status();
            let is_bad = |leaf: &&&cenote_vdev::tree::VdevStatus| leaf.name.ends_with(&Machine::name(bad));
            let leaf = *status.leaves().iter().find(is_bad).unwrap();
            assert_eq!(leaf.errors, cenote_vdev::fault::ErrorTotals::default(), "a power cut is no fault of a device");
            let is_mended = leaf.healed_bytes > 0;
            cut(&handle, &machine, Crash::LoseAll).await;
            drop(pool);
            if is_mended {
                mended += 1;
                machine.disks[1 - bad].restore(&Default::default());
                let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
                assert_eq!(tree.difference(&seen(&fs).await), None);
                drop((fs, log));
                pool.export().await.unwrap();
            }
        });
    }
    assert!(mended > 0, "no walk along the log read the side that lacks it");
}

/// The name of the test below, which is run once more with a bug.
const REUSED: &str = "healing::a_place_that_was_used_again_is_not_written";

/// A reader comes with a pointer whose block was freed, and whose place another block has by now. On one side of the mirror the write of
/// the new block was lost: the old one verifies there. To heal it would destroy the only copy of the new block.
#[test]
fn a_place_that_was_used_again_is_not_written() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let options = SimDiskOptions { size_bytes: 66 << 20, ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 2, &options);
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        let head = pool.open_head("written").await.unwrap();
        let objects = make_objects(&head, 1).await;
        let object = &objects[0];
        let at = |block| Bookmark { objset: head.objset().id(), object: object.id(), level: 0, block: BlockId(block) };
        write(&head, object, 0, 1).await;
        pool.sync().await.unwrap();
        let old = object.pointer(0, BlockId(0)).await.unwrap();
        let place = old.dva(0).unwrap();
        // Others take what is free until one has its place.
        let mut seed = 1;
        let mut taker = None;
        'rounds: for round in 0..400 {
            let count = if round == 0 { 900 } else { 200 };
            for block in 0..count {
                seed += 1;
                write(&head, object, block, seed).await;
            }
            pool.sync().await.unwrap();
            for block in 0..900 {
                let bp = object.pointer(0, BlockId(block)).await.unwrap();
                if bp.dva(0).is_some_and(|dva| dva == place) && bp.physical_birth() != old.physical_birth() {
                    taker = Some((block, bp));
                    break 'rounds;
                }
            }
        }
        let (block, new) = taker.expect("a place is used again");
        // The new block's write never reached the first disk.
        let address = START_BYTES + place.offset_bytes;
        let mut image = machine.disks[0].image();
        image.write(address, &content(1));
        machine.disks[0].restore(&image);
        let on = |disk: usize| machine.disks[disk].peek(address, BLOCK_BYTES as usize);
        assert!(on(0) == content(1) && on(1) != content(1));
        let right = on(1);
        pool.suspect(old, at(0));
        pool.suspect(old, at(block));
        pool.suspect(old, Bookmark { object: ObjectId(9999), ..at(0) });
        pool.suspect(old, Bookmark { objset: ObjsetId(9999), ..at(0) });
        pool.wait_healed().await;
        assert!(on(1) == right, "the only copy of a block was written over");
        let counts = pool.heal_counts();
        assert_eq!((counts.gone, counts.healed, counts.left), (4, 0, 0), "{counts:?}");
        pool.suspect(new, at(block));
        pool.wait_healed().await;
        assert!(on(0) == right && on(1) == right);
        assert_eq!(pool.heal_counts().healed, 1);
        drop((head, objects));
        pool.export().await.unwrap();
    });
}

/// The test above finds the bug that it is about.
#[test]
fn a_repair_onto_a_reused_block_is_found() {
    let mutant = cenote_taskq::mutant::Mutant::OF_REPAIRS[0].name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([REUSED, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("the only copy of a block was written over"), "{mutant}: {text}");
}

/// A bit that is flipped in each page of a disk.
const FLIPPED_AT: u64 = 1003;
const FLIPPED: u8 = 0x10;
const PAGE_BYTES: u64 = 4096;

/// Flips a bit in each page that was written to a disk, but of labels.
fn flip(disk: &SimDisk) {
    let mut image = disk.image();
    let end = disk.size_bytes() - (1 << 20);
    let pages: Vec<(u64, u8)> = image
        .pages()
        .filter(|(at, page)| (START_BYTES..end).contains(at) && page.len() as u64 == PAGE_BYTES)
        .map(|(at, page)| (at, page[FLIPPED_AT as usize]))
        .collect();
    assert!(pages.len() > 100, "{}", pages.len());
    pages.iter().for_each(|(at, byte)| image.write(at + FLIPPED_AT, &[byte ^ FLIPPED]));
    disk.restore(&image);
}

/// A checksum event has the members of OpenZFS's: the block, and how its bytes differ from the right ones wherever these were found.
#[test]
fn a_checksum_event_says_which_block_and_which_bits() {
    // The layout; whether the right bytes can be found; whether a leaf has all of a block, so that its checksum is at fault; a disk that has data. (A draid's first
    // rows, 16 MiB of each disk, have their parity and their spare on the same disks.)
    let cases: [(Layout, bool, bool, usize); 4] = [
        (&[(TopKind::Mirror, 2)], true, true, 0),
        (&[(TopKind::Raidz { parity: 1 }, 3)], true, false, 0),
        (&[(TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 4)], true, false, 1),
        (&[(TopKind::Single, 1)], false, true, 0),
    ];
    for (number, (layout, is_found, is_whole, disk)) in cases.into_iter().enumerate() {
        let what = format!("case {number}");
        let runtime = Runtime::simulated(number as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, layout[0].1, Latency::default());
        runtime.block_on(async {
            let objects = make_filled(&handle, &machine, layout).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            flip(&machine.disks[disk]);
            for id in &objects {
                let object = head.objset().object(*id).await;
                for block in (0..BLOCKS).map(BlockId) {
                    let Ok(object) = &object else { continue };
                    assert_eq!(object.block(block).await.is_ok(), is_found, "{what}");
                    // A leaf has twenty events in a second.
                    handle.sleep(Duration::from_millis(100)).await;
                }
            }
            let events = pool.events().after(0).events;
            let of_checksum = events.iter().map(|event| &event.list);
            let of_checksum: Vec<_> =
                of_checksum.filter(|list| list.str("class") == Some("ereport.fs.zfs.checksum")).collect();
            assert!(!of_checksum.is_empty(), "{what}");
            let mut has_data = false;
            for list in of_checksum {
                let number = |name: &str| list.u64(name).unwrap_or_else(|| panic!("{what}: {name}: {list:?}"));
                let (at, size) = (number("zio_offset"), number("zio_size"));
                assert!(list.value("zio_level").is_some(), "{what}: {list:?}");
                has_data |= number("zio_objset") == head.objset().id().0
                    && objects.iter().any(|id| id.0 == number("zio_object"))
                    && number("zio_blkid") < BLOCKS;
                assert_eq!(list.str("cksum_algorithm").is_some(), is_whole, "{what}: {list:?}");
                assert!(list.value("cksum_byteswap").is_none());
                let flipped: Vec<u64> =
                    (at..at + size).filter(|at| at % PAGE_BYTES == FLIPPED_AT).map(|bad| (bad - at) / 8 * 8).collect();
                let numbers = |name: &str| match list.value(name) {
                    Some(NvValue::Uint32Array(all)) => all.iter().map(|number| u64::from(*number)).collect(),
                    None => Vec::new(),
                    other => panic!("{what}: {name} is {other:?}"),
                };
                let (ranges, sets, clears) =
                    (numbers("bad_ranges"), numbers("bad_range_sets"), numbers("bad_range_clears"));
                if !is_found {
                    assert!(ranges.is_empty() && list.value("bad_set_bits").is_none(), "{what}: {list:?}");
                    continue;
                }
                // The rest of a block's last sector is in no block.
                let wanted: Vec<u64> = flipped.iter().flat_map(|at| [*at, at + 8]).collect();
                assert!(!ranges.is_empty() && wanted.starts_with(&ranges), "{what}: {ranges:?}, {wanted:?}: {list:?}");
                assert!(sets.iter().zip(&clears).all(|(set, clear)| set + clear == 1), "{what}: {list:?}");
                let Some(NvValue::Uint8Array(set)) = list.value("bad_set_bits") else { panic!("{what}: {list:?}") };
                let Some(NvValue::Uint8Array(clear)) = list.value("bad_cleared_bits") else { panic!("{what}") };
                let both: Vec<u8> = set.iter().zip(clear).map(|(set, clear)| set | clear).collect();
                let mut word = [0; 8];
                word[FLIPPED_AT as usize % 8] = FLIPPED;
                assert_eq!(both, word.repeat(ranges.len() / 2), "{what}: {list:?}");
            }
            // A mirror leaves a side alone that gives wrong bytes.
            let is_sure = is_found && layout[0].0 != TopKind::Mirror;
            assert!(has_data || !is_sure, "{what}: an event of a file's block");
            drop(head);
            drop(pool);
        });
    }
}
