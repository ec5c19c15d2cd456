//! Goal: the tables count as a plain map does, whatever is given up in whatever order, and go with their last entry. Method:
//! tables made by hand in a new pool, references given up at random, txgs synced and tables read again in between.

use cenote_dmu::{Object, Zap};
use cenote_format::blkptr::Dva;
use cenote_format::brt::{BrtVdevPhys, REGION_SIZE_BYTES, reference_count};
use cenote_format::ddt::{DdtCopies, DdtKey, DdtLogHeader, DdtPhys, directory};
use cenote_format::dsl::pool_directory;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::VdevId;
use cenote_format::zap::ZapValue;
use cenote_taskq::{Rng, Runtime};

use std::collections::BTreeMap;
use std::path::Path;

use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Handle, OpenOptions};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;

use super::*;
use crate::open::new::{CreateOptions, create_syncer};
use crate::open::spares_l2cache::AuxSpec;
use crate::open::vdevs::METASLABS_MIN;
use crate::open::vdevs::{DiskSpec, TopKind, TopSpec};
use crate::sync::{Clock, Host, Syncer};

const BLOCK_BYTES: u64 = 4096;
const BRT_BLOCK_SHIFT: u8 = 13;
const COUNTS_BLOCK_BYTES: u32 = 32 << 10;

/// A disk of the simulation.
pub(crate) fn add_disk(runtime: &Runtime, path: &str) {
    let size = SimDiskOptions { size_bytes: 80 << 20, ..SimDiskOptions::default() };
    runtime.sim().unwrap().add_disk(&runtime.handle(), Path::new(path), size);
}

async fn give_up(writer: &mut Syncer, bp: &Blkptr) -> Vec<Blkptr> {
    let txg = writer.txg;
    writer.in_txg().give_up(txg, bp).await.unwrap()
}

async fn add_clone(writer: &mut Syncer, bp: &Blkptr) -> Result<(), SpaError> {
    let txg = writer.txg;
    writer.in_txg().add_clone(txg, bp).await
}

async fn put(writer: &mut Syncer, tables: &mut known::Tables, entry: known::Entry) -> Result<(), SpaError> {
    let txg = writer.txg;
    writer.in_txg().put(txg, tables, entry, &mut Vec::new()).await
}

/// A new pool on it.
pub(crate) async fn made(handle: &Handle, path: &str) -> Syncer {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let disk = Disk::whole(handle.open(Path::new(path), options).await.unwrap());
    let disks = vec![DiskSpec { disk, path: path.into(), is_file: true }];
    let options = CreateOptions {
        name: "shared".into(),
        tops: vec![TopSpec { kind: TopKind::Single, class: AllocationClass::Normal, disks }],
        auxiliaries: AuxSpec::default(),
        ashift: Some(12),
        disabled_features: Vec::new(),
        properties: Vec::new(),
        seed: Some(7),
        clock: Clock::Fixed(1_700_000_000),
        host: Host { id: 0, name: "here".into() },
        command: "zpool create shared".into(),
        user: 0,
        cache_bytes: 16 << 20,
        check: true,
    };
    create_syncer(handle, options, METASLABS_MIN).await.unwrap()
}

fn dva(offset_bytes: u64) -> Dva {
    Dva { vdev: VdevId(0), offset_bytes, asize_bytes: BLOCK_BYTES, gang: false }
}

fn cloned(offset_bytes: u64) -> Blkptr {
    let mut bp = Blkptr::HOLE;
    bp.set_dva(0, Some(dva(offset_bytes)));
    bp.set_lsize_bytes(BLOCK_BYTES);
    bp.set_psize_bytes(BLOCK_BYTES);
    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
    bp.set_births(Txg(4), Txg(4));
    bp
}

async fn has(writer: &Syncer, name: &str) -> bool {
    let directory = Zap::open(writer.mos.directory.clone()).await.unwrap();
    directory.lookup(name.as_bytes()).await.unwrap().is_some()
}

/// Enters a table as OpenZFS makes it.
async fn enter_clones(writer: &mut Syncer, model: &BTreeMap<u64, u64>, as_bytes: bool) {
    let txg = writer.txg;
    let mut entries = writer.in_txg().make_table(txg, DmuType::ZAP_METADATA, BRT_BLOCK_SHIFT, false).unwrap();
    let mut regions = [0_u16; 8];
    let mut phys = BrtVdevPhys {
        entries: entries.object().id(),
        region_count: regions.len() as u64,
        byte_order: 0,
        entry_count: model.len() as u64,
        region_size_bytes: REGION_SIZE_BYTES,
        used_bytes: model.len() as u64 * BLOCK_BYTES,
        saved_bytes: 0,
    };
    for (offset, count) in model {
        regions[(offset / REGION_SIZE_BYTES) as usize] += 1;
        phys.saved_bytes += count * BLOCK_BYTES;
        let value = if as_bytes { ZapValue::from_bytes(&count.to_le_bytes()) } else { ZapValue::from_u64(*count) };
        entries.set_words(&[*offset], &value).await.unwrap();
    }
    entries.flush(txg).await.unwrap();
    let bonus = phys.emit(cenote_zio::ORDER).to_vec();
    let spec =
        ObjectSpec::new(DmuType::UINT64_METADATA, COUNTS_BLOCK_BYTES).with_bonus(DmuType::UINT64_METADATA, bonus);
    let object = writer.mos.objset.create_object(txg, &spec).unwrap();
    let bytes: Vec<u8> = regions.iter().flat_map(|count| count.to_le_bytes()).collect();
    object.write(txg, 0, &bytes).await.unwrap();
    let id = ZapValue::from_u64(object.id().0);
    Zap::put_entry(&writer.mos.directory, txg, &pool_directory::brt(0), Some(&id)).await.unwrap();
    writer.mos.features.change("block_cloning", 1);
    writer.blocks.shared.saved_bytes = phys.saved_bytes;
}

#[test]
fn clones_are_counted_as_a_plain_map_counts_them() {
    for seed in 0..4_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        add_disk(&runtime, "/cloned");
        runtime.block_on(async {
            let mut writer = made(&handle, "/cloned").await;
            let mut rng = Rng::new(seed);
            // Several leaves, in some of the regions.
            let mut model = BTreeMap::new();
            while model.len() < 600 {
                model.insert(rng.below(12_000) * BLOCK_BYTES, 1 + rng.below(3));
            }
            enter_clones(&mut writer, &model, seed % 2 == 0).await;
            writer.sync().await.unwrap();
            while !model.is_empty() {
                for _ in 0..1 + rng.below(200) {
                    let offset = match rng.chance(1, 5) {
                        true => rng.below(20_000) * BLOCK_BYTES,
                        false => *model.keys().nth(rng.below(model.len().max(1) as u64) as usize).unwrap_or(&0),
                    };
                    let expected = model.get(&offset).copied();
                    let free = give_up(&mut writer, &cloned(offset)).await;
                    assert_eq!(free.is_empty(), expected.is_some(), "seed {seed} offset {offset:#x}");
                    match expected {
                        Some(1) => drop(model.remove(&offset)),
                        Some(count) => drop(model.insert(offset, count - 1)),
                        None => {}
                    }
                }
                let saved: u64 = model.values().sum();
                assert_eq!(writer.blocks.shared.saved_bytes, saved * BLOCK_BYTES);
                writer.sync().await.unwrap();
                if rng.chance(1, 3) {
                    writer.blocks.shared.clones = None;
                }
            }
            assert!(!has(&writer, &pool_directory::brt(0)).await);
            assert_eq!(writer.mos.features.count("block_cloning"), 0);
        });
    }
}

/// Asserts that the table of vdev 0 on disk agrees with the model in all its figures.
async fn assert_clones(writer: &mut Syncer, model: &BTreeMap<u64, u64>) {
    writer.blocks.shared.clones = None;
    assert_eq!(has(writer, &pool_directory::brt(0)).await, !model.is_empty());
    let count = u64::from(!model.is_empty());
    let has_endian = writer.mos.features.has("block_cloning_endian");
    let counts = ["block_cloning", "block_cloning_endian"].map(|name| writer.mos.features.count(name));
    assert_eq!(counts, [count, if has_endian { count } else { 0 }]);
    let mut clones = writer.in_txg().take_clones().await.unwrap();
    if let Some(table) = clones.0.get_mut(&VdevId(0)) {
        let phys = &table.phys;
        let expected =
            (model.len() as u64, model.len() as u64 * BLOCK_BYTES, model.values().sum::<u64>() * BLOCK_BYTES);
        assert_eq!((phys.entry_count, phys.used_bytes, phys.saved_bytes), expected);
        // A disk of 80 MiB has four metaslabs of 16 MiB.
        assert_eq!((phys.region_count, phys.region_size_bytes), (table.regions.len() as u64, REGION_SIZE_BYTES));
        for (region, count) in table.regions.iter().enumerate() {
            let here = model.keys().filter(|offset| *offset / REGION_SIZE_BYTES == region as u64).count();
            assert_eq!(usize::from(*count), here, "region {region}");
        }
        for (offset, count) in model {
            let value = table.entries.lookup_words(&[*offset]).await.unwrap().expect("an entry");
            assert_eq!(reference_count(&value, cenote_zio::ORDER), Ok(*count), "offset {offset:#x}");
            assert_eq!(value.as_bytes().is_none(), has_endian, "the form of the counts");
        }
    }
    writer.blocks.shared.clones = Some(clones);
}

#[test]
fn references_are_added_and_given_up_as_a_plain_map_has_them() {
    for seed in 0..4_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        add_disk(&runtime, "/cloned");
        runtime.block_on(async {
            let mut writer = made(&handle, "/cloned").await;
            let mut rng = Rng::new(seed);
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for round in 0..20 {
                let is_growing = round % 10 < 6;
                for _ in 0..rng.below(300) {
                    let offset = rng.below(400) * 37 * BLOCK_BYTES;
                    if rng.chance(if is_growing { 4 } else { 1 }, 5) {
                        add_clone(&mut writer, &cloned(offset)).await.unwrap();
                        *model.entry(offset).or_default() += 1;
                        continue;
                    }
                    let free = give_up(&mut writer, &cloned(offset)).await;
                    assert_eq!(free.is_empty(), model.contains_key(&offset), "seed {seed} offset {offset:#x}");
                    match model.get(&offset).copied() {
                        Some(1) => drop(model.remove(&offset)),
                        Some(count) => drop(model.insert(offset, count - 1)),
                        None => {}
                    }
                }
                if round % 10 == 9 {
                    for (offset, count) in std::mem::take(&mut model) {
                        for _ in 0..count {
                            assert!(give_up(&mut writer, &cloned(offset)).await.is_empty());
                        }
                    }
                }
                assert_eq!(writer.blocks.shared.saved_bytes, model.values().sum::<u64>() * BLOCK_BYTES);
                writer.sync().await.unwrap();
                assert_clones(&mut writer, &model).await;
            }
            let far = 200 << 20;
            assert!(add_clone(&mut writer, &cloned(far)).await.is_err(), "behind the vdev's end");
        });
    }
}

/// The DDT key and copies of a block; its checksum and its place follow from the number.
fn deduplicated(number: u64) -> (DdtKey, DdtCopies) {
    let key = DdtKey::new([number << 40, 1, 2, number], BLOCK_BYTES, BLOCK_BYTES, Compress::Off.number(), false);
    let dva_words = [dva(number * BLOCK_BYTES).words(), [0; 2], [0; 2]];
    (key, DdtCopies { dva_words, reference_count: 0, physical_birth: Txg(4) })
}

#[test]
fn deduplicated_blocks_are_counted_as_a_plain_map_counts_them() {
    const CHECKSUM: Checksum = Checksum::Sha256;
    for seed in 0..4_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        add_disk(&runtime, "/deduplicated");
        runtime.block_on(async {
            let mut writer = made(&handle, "/deduplicated").await;
            let mut rng = Rng::new(seed);
            let statistics = make_statistics(&writer).await;
            let mut tables = known::Tables::new(CHECKSUM, writer.mos.directory.clone());
            let mut model = BTreeMap::new();
            for number in 1..500 {
                let references = 1 + rng.below(3);
                let (key, mut copies) = deduplicated(number);
                copies.reference_count = references;
                let mut sets = [DdtCopies::default(); 4];
                sets[1] = copies;
                let phys = match seed % 2 {
                    0 => DdtPhys::Traditional(Box::new(sets)),
                    _ => DdtPhys::Flat { copies, class_start: 5 },
                };
                let entry = known::Entry { key, phys, class: None };
                put(&mut writer, &mut tables, entry).await.unwrap();
                model.insert(number, references);
            }
            writer.blocks.shared.dedup.enter(tables);
            writer.sync().await.unwrap();
            while !model.is_empty() {
                for _ in 0..1 + rng.below(200) {
                    let number = 1 + rng.below(600);
                    let (key, copies) = deduplicated(number);
                    let mut bp = copies.blkptr(&key, CHECKSUM);
                    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
                    bp.set_dedup(true);
                    // One of the same content, older than the entry, which was pruned meanwhile, is no reference of it.
                    let is_pruned = rng.chance(1, 10);
                    if is_pruned {
                        bp.set_births(Txg(3), Txg(3));
                    }
                    let expected = model.get(&number).copied().filter(|_| !is_pruned);
                    let free = give_up(&mut writer, &bp).await;
                    assert_eq!(free.is_empty(), expected.is_some_and(|count| count > 1), "seed {seed} {number}");
                    assert!(free.iter().all(|free| free.dva(0) == bp.dva(0) && !free.dedup()));
                    match expected {
                        Some(1) => drop(model.remove(&number)),
                        Some(count) => drop(model.insert(number, count - 1)),
                        None => {}
                    }
                }
                let saved: u64 = model.values().map(|count| count - 1).sum();
                assert_eq!(writer.blocks.shared.saved_bytes, saved * BLOCK_BYTES);
                writer.sync().await.unwrap();
                if rng.chance(1, 3) {
                    writer.blocks.shared.dedup = known::Dedup::default();
                }
            }
            for class in cenote_format::ddt::CLASSES {
                assert!(!has(&writer, &pool_directory::ddt(CHECKSUM.name(), "zap", class)).await);
            }
            let statistics = Zap::open(statistics).await.unwrap();
            assert!(statistics.entries(10).await.unwrap().is_empty());
        });
    }
}

/// The statistics of dedup tables, which are there before any.
async fn make_statistics(writer: &Syncer) -> Object {
    let statistics = Zap::create_object(&writer.mos.objset, writer.txg, DmuType::DDT_STATS, &[]).await.unwrap();
    let id = ZapValue::from_u64(statistics.id().0);
    let name = pool_directory::DDT_STATISTICS;
    Zap::put_entry(&writer.mos.directory, writer.txg, name, Some(&id)).await.unwrap();
    statistics
}

/// The objects that OpenZFS makes for a checksum with its first entry: a directory, and two logs.
async fn make_directory(writer: &mut Syncer, checksum: Checksum) -> (Object, Vec<ObjectId>) {
    let (txg, mos) = (writer.txg, writer.mos.objset.clone());
    let numbers = [(directory::VERSION, ZapValue::from_u64(1)), (directory::FLAGS, ZapValue::from_u64(3))];
    let own = Zap::create_object(&mos, txg, DmuType::ZAP_METADATA, &numbers).await.unwrap();
    let id = ZapValue::from_u64(own.id().0);
    let name = pool_directory::ddt_dir(checksum.name());
    Zap::put_entry(&writer.mos.directory, txg, &name, Some(&id)).await.unwrap();
    let mut logs = Vec::new();
    for index in 0..2 {
        let header = DdtLogHeader { info: 1, length_bytes: 0, first_txg: Txg(0), checkpoint: DdtKey::default() };
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, 128 << 10)
            .with_bonus(DmuType::UINT64_METADATA, header.emit(cenote_zio::ORDER).to_vec());
        let log = mos.create_object(txg, &spec).unwrap().id();
        let name = pool_directory::ddt_log(checksum.name(), index);
        Zap::put_entry(&own, txg, &name, Some(&ZapValue::from_u64(log.0))).await.unwrap();
        logs.push(log);
    }
    writer.mos.features.change("fast_dedup", 1);
    (own, logs)
}

/// The entries of a directory of tables.
async fn listed(own: &Object) -> BTreeMap<String, u64> {
    let entries = Zap::open(own.clone()).await.unwrap().entries(20).await.unwrap();
    entries
        .into_iter()
        .map(|entry| (String::from_utf8(entry.name().to_vec()).unwrap(), entry.value.as_u64().unwrap()))
        .collect()
}

#[test]
fn the_directory_of_fast_dedup_goes_with_its_last_entry_and_takes_tables_and_logs_along() {
    const CHECKSUMS: [Checksum; 2] = [Checksum::Sha256, Checksum::Blake3];
    const LAST: u64 = 49;
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    add_disk(&runtime, "/emptied");
    runtime.block_on(async {
        let mut writer = made(&handle, "/emptied").await;
        let statistics = make_statistics(&writer).await;
        let mut made = Vec::new();
        for checksum in CHECKSUMS {
            let (own, logs) = make_directory(&mut writer, checksum).await;
            let mut tables = known::Tables::new(checksum, own.clone());
            for number in 1..=LAST {
                let (key, mut copies) = deduplicated(number);
                copies.reference_count = 1 + number % 2;
                let entry = known::Entry { key, phys: DdtPhys::Flat { copies, class_start: 5 }, class: None };
                put(&mut writer, &mut tables, entry).await.unwrap();
            }
            writer.blocks.shared.dedup.enter(tables);
            made.push((checksum, own, logs));
        }
        writer.sync().await.unwrap();
        // As a later import finds them.
        writer.blocks.shared.dedup = known::Dedup::default();
        for (left, (checksum, own, logs)) in [2, 1].into_iter().zip(made) {
            let own_name = pool_directory::ddt_dir(checksum.name());
            let table = |class| pool_directory::ddt(checksum.name(), "zap", class);
            for number in 1..=LAST {
                let (key, copies) = deduplicated(number);
                let mut bp = copies.blkptr(&key, checksum);
                bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
                bp.set_dedup(true);
                for at in 0..=number % 2 {
                    if (number, at) == (LAST, LAST % 2) {
                        writer.sync().await.unwrap();
                        assert!(has(&writer, &own_name).await, "one reference is left");
                        assert_eq!(writer.mos.features.count("fast_dedup"), left);
                    }
                    let free = give_up(&mut writer, &bp).await;
                    assert_eq!(free.len() as u64, u64::from(at == number % 2), "{number}");
                }
            }
            let names = listed(&own).await;
            let tables: Vec<ObjectId> = cenote_format::ddt::CLASSES
                .iter()
                .filter_map(|class| names.get(&table(class)))
                .map(|id| ObjectId(*id))
                .collect();
            assert_eq!((names.len(), tables.len()), (6, 2), "version, flags, two logs, two tables: {names:?}");
            writer.sync().await.unwrap();
            assert!(!has(&writer, &own_name).await);
            assert_eq!(writer.mos.features.count("fast_dedup"), left - 1);
            for gone in tables.into_iter().chain(logs).chain([own.id()]) {
                assert!(writer.mos.objset.object(gone).await.is_err(), "object {gone} is left");
            }
            let statistics = Zap::open(statistics.clone()).await.unwrap();
            let left_over = statistics.entries(10).await.unwrap();
            assert!(!left_over.iter().any(|entry| entry.name().starts_with(table("").as_bytes())), "{left_over:?}");
            // Nothing is looked for where there is nothing.
            let (key, copies) = deduplicated(LAST);
            let mut bp = copies.blkptr(&key, checksum);
            bp.set_dedup(true);
            assert_eq!(give_up(&mut writer, &bp).await.len(), 1);
        }
    });
}
