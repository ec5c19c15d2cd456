//! Pools that many change at once while txgs are written in the background.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{Cost, PendingFrees, TxError, TxTunables};
use cenote_dmu::{Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_metaslab::TxgWork;
use cenote_spa::{Phase, PropertyValue, SpaError, Syncer, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Rng, Runtime};
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

use cenote_sim::written::blocks::{BLOCK_BYTES, Written, check_blocks, content, make_objects, write_blocks};
use cenote_sim::written::*;

#[test]
fn metadata_that_a_txg_has_written_is_not_read_by_the_next() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Single, 1)], small()).await;
        let head = pool.open_head("written").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let misses = || head.objset().dmu().cache().stats().misses;
        let mut before = 0;
        for round in 0..4 {
            for block in 0..64 {
                let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
                object.write(tx.txg(), block * BLOCK_BYTES, &content(round << 8 | block)).await.unwrap();
            }
            pool.sync().await.unwrap();
            // The first round reads what creation has left.
            assert!(round == 0 || misses() == before, "round {round} has read {} blocks", misses() - before);
            before = misses();
        }
        assert!(
            object.block(BlockId(7)).await.unwrap().as_ref().map(|(block, _)| &block[..])
                == Some(&content(3 << 8 | 7)[..])
        );
        pool.export().await.unwrap();
    });
}

/// Dirty bytes are what writers wait for, and what is reserved of a pool's space: a block that is smaller than a sector takes one.
#[test]
fn what_is_written_is_dirty_and_a_small_block_is_a_sector_of_it() {
    const SMALL_BYTES: u64 = 512;
    const SECTOR_BYTES: u64 = 4096;
    const BLOCKS: u64 = 1024;
    let tunables = TxTunables { zfs_dirty_data_max: 64 << 20, ..TxTunables::default() };
    // Processors may not have passed on as much as this yet.
    let untold = tunables.zfs_dirty_data_max / 256;
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, tunables).await;
        let head = pool.open_head("written").await.unwrap();
        let tx = head.begin(Cost::objects(1)).await.unwrap();
        let spec = ObjectSpec::new(DmuType::UINT8_DATA, SMALL_BYTES as u32);
        let object = head.objset().create_object(tx.txg(), &spec).unwrap();
        drop(tx);
        let mut bytes = vec![0; (BLOCKS * SMALL_BYTES) as usize];
        Rng::new(1).fill(&mut bytes);
        let tx = head.begin(Cost::write(0, BLOCKS * SMALL_BYTES, SMALL_BYTES)).await.unwrap();
        let dirty = || pool.txgs().dirty().txg_bytes(tx.txg());
        let before = dirty();
        object.write(tx.txg(), 0, &bytes).await.unwrap();
        let added = dirty() - before;
        assert!(added + untold >= BLOCKS * SECTOR_BYTES, "{added} bytes became dirty");
        drop((tx, object, head));
        export_whole(&handle, &machine, pool, "small blocks").await;
    });
}

#[test]
fn changes_of_attributes_are_dirty_and_wait_for_devices_that_are_slow() {
    const OBJECTS: usize = 3000;
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512).with_bonus(DmuType::UINT64_METADATA, vec![0; 160]);
        let mut objects = Vec::new();
        while objects.len() < OBJECTS {
            let tx = head.begin(Cost::objects(1)).await.unwrap();
            objects.push(head.objset().create_object(tx.txg(), &spec).unwrap());
        }
        pool.sync().await.unwrap();
        let dirty = pool.txgs().dirty().clone();
        let before = dirty.total_bytes();
        let mut most = 0;
        for round in 1..4 {
            for object in &objects {
                let tx = head.begin(Cost::objects(1)).await.unwrap();
                object.set_bonus(tx.txg(), &[round; 160]).unwrap();
                // A second change of the same object in a txg takes nothing more.
                let once = dirty.txg_bytes(tx.txg());
                object.set_bonus(tx.txg(), &[round + 100; 160]).unwrap();
                assert_eq!(dirty.txg_bytes(tx.txg()), once);
                most = most.max(dirty.total_bytes());
            }
        }
        assert_eq!(before, 0, "nothing is dirty when all is on disk");
        let limit = dirty.max_bytes();
        // One change more than the limit, and a step of each shard that the total does not know of.
        assert!(most > limit / 5 && most <= limit + limit / 10, "{most} bytes were dirty of {limit} that may be");
        let sizes: Vec<u64> = pool.history().iter().map(|txg| txg.dirty_bytes).collect();
        assert!(sizes.iter().all(|bytes| *bytes <= limit + limit / 10), "{sizes:?}");
        pool.sync().await.unwrap();
        assert_eq!(dirty.total_bytes(), 0);
        drop((objects, head));
        export_whole(&handle, &machine, pool, "after many changes of attributes").await;
    });
}

#[test]
fn objects_that_are_only_looked_at_do_not_pile_up_in_memory() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let ids: Vec<_> = make_objects(&head, 5000).await.iter().map(Object::id).collect();
        pool.sync().await.unwrap();
        let held = head.objset().object(ids[17]).await.unwrap();
        let mut most = 0;
        // Nothing changes, so no txg ends.
        for id in &ids {
            assert_eq!(head.objset().object(*id).await.unwrap().block_bytes(), BLOCK_BYTES);
            most = most.max(head.objset().loaded_count());
        }
        assert!((100..=1100).contains(&most), "{most} objects were in memory");
        // One that someone has is still the same for all.
        let tx = head.begin(Cost::objects(1)).await.unwrap();
        held.set_kind(tx.txg(), DmuType::UINT64_OTHER);
        assert_eq!(head.objset().object(ids[17]).await.unwrap().phys().object_type, DmuType::UINT64_OTHER);
        drop((tx, held, head));
        pool.export().await.unwrap();
    });
}

#[test]
fn many_writers_and_txgs_at_once_leave_a_whole_pool_with_all_that_was_written() {
    for seed in seeds(6) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, slow());
        runtime.block_on(async {
            let layout: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let objects = make_objects(&head, 6).await;
            let ids: Vec<ObjectId> = objects.iter().map(Object::id).collect();
            let written: Vec<_> = objects.iter().map(|_| Arc::new(Mutex::new(Written::new()))).collect();
            let writers: Vec<_> = objects
                .into_iter()
                .zip(&written)
                .enumerate()
                .map(|(at, (object, written))| {
                    let work = write_blocks(head.clone(), object, seed << 8 | at as u64, 250, written.clone());
                    handle.spawn(Class::Issue, work)
                })
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
            let txgs = pool.history();
            assert!(txgs.len() > 5, "the writers went through {} txgs", txgs.len());
            assert!(txgs.iter().any(|record| record.dirty_bytes > 0 && record.passes > 1));
            drop(head);
            export_whole(&handle, &machine, pool, &format!("seed {seed}")).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            for (id, written) in ids.iter().zip(&written) {
                let object = head.objset().object(*id).await.unwrap();
                let written = written.lock().clone();
                check_blocks(&object, &written, Txg(u64::MAX), "reopened").await;
            }
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn the_history_of_txgs_agrees_with_what_is_allocated_on_disk() {
    // Space maps of their own, and log space maps.
    for (is_logged, layout) in [(true, LAYOUTS[3]), (false, SINGLE)] {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, slow());
        runtime.block_on(async {
            let mut how = options(machine.tops(&handle, layout).await.unwrap(), 12);
            if !is_logged {
                how.disabled_features.push("log_spacemap".into());
            }
            let pool = make(&handle, how).await.start(small()).await;
            let head = pool.open_head("written").await.unwrap();
            let object = make_objects(&head, 1).await.remove(0);
            pool.sync().await.unwrap();
            let (first, before) = check(&handle, &machine.paths).await;
            let paths = &machine.paths[..];
            write_blocks(head.clone(), object, 3, 300, Arc::default()).await;
            pool.sync().await.unwrap();
            let (last, after) = check(&handle, paths).await;
            assert_clean(&after, "while it is idle");
            let txgs: Vec<_> =
                pool.history().into_iter().filter(|record| (first.0 + 1..=last.0).contains(&record.txg.0)).collect();
            assert!(txgs.len() as u64 == last.0 - first.0 && txgs.len() > 3, "from {first} to {last}: {}", txgs.len());
            let sum = |of: fn(&TxgWork) -> u64| txgs.iter().map(|record| of(&record.space)).sum::<u64>();
            let (allocated, freed) = (sum(|space| space.allocated_bytes), sum(|space| space.freed_bytes));
            assert_eq!(before.allocated_bytes + allocated, after.allocated_bytes + freed);
            assert!(freed > 0 && sum(|space| space.allocated_from) > 0);
            assert_eq!(sum(|space| space.log_bytes) > 0, is_logged);
            assert_eq!(txgs.iter().all(|record| record.space.logs > 0 && record.space.log_blocks > 0), is_logged);
            // All of the time stands in one phase or another.
            for record in &txgs {
                let phases =
                    [Phase::Datasets, Phase::FirstPass, Phase::Space, Phase::LaterPasses, Phase::Flush, Phase::Commit];
                assert!(phases.iter().map(|phase| record.phase(*phase)).sum::<Duration>() <= record.took, "{record:?}");
                let count = |phase| record.phases.iter().filter(|(other, _)| *other == phase).count() as u32;
                assert_eq!((count(Phase::FirstPass), count(Phase::Space)), (1, 1), "{record:?}");
                assert_eq!(count(Phase::LaterPasses), 2 * (record.passes - 1), "{record:?}");
            }
            drop(head);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn wherever_the_power_goes_each_object_is_as_of_the_same_txg_and_what_was_promised_is_there() {
    // The usual number takes seconds; a campaign says how many, and from which seed on.
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (from, count) = (number("CENOTE_CUTS_FROM").unwrap_or(0), number("CENOTE_CUTS").unwrap_or(40));
    let mut later = 0;
    for seed in from..from + count {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, slow());
        runtime.block_on(async {
            let layout: Layout =
                if seed % 2 == 0 { &[(TopKind::Mirror, 2)] } else { &[(TopKind::Single, 1), (TopKind::Single, 1)] };
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let objects = make_objects(&head, 4).await;
            let ids: Vec<ObjectId> = objects.iter().map(Object::id).collect();
            pool.sync().await.unwrap();
            let written: Vec<_> = ids.iter().map(|_| Arc::new(Mutex::new(Written::new()))).collect();
            for (at, (object, written)) in objects.into_iter().zip(&written).enumerate() {
                let work = write_blocks(head.clone(), object, seed << 8 | at as u64, 1000, written.clone());
                handle.detach(Class::Issue, work);
            }
            handle.sleep(Duration::from_micros(1 + Rng::new(seed).below(80_000))).await;
            let promised = pool.txgs().synced_txg();
            machine.disks.iter().for_each(|disk| disk.crash(Crash::Random));
            drop((pool, head));
            handle.sleep(Duration::from_secs(20)).await;
            machine.disks.iter().for_each(|disk| disk.power_on());
            let (txg, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &format!("seed {seed} at {txg}"));
            assert!(txg >= promised, "seed {seed}: {promised} was promised, {txg} is there");
            later += u64::from(txg > promised);
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            for (id, written) in ids.iter().zip(&written) {
                let object = head.objset().object(*id).await.unwrap();
                let written = written.lock().clone();
                check_blocks(&object, &written, txg, &format!("seed {seed} after the cut")).await;
            }
            // And it can be written on.
            let object = head.objset().object(ids[0]).await.unwrap();
            write_blocks(head.clone(), object, 99, 20, Arc::default()).await;
            drop(head);
            export_whole(&handle, &machine, pool, &format!("seed {seed} written on")).await;
        });
    }
    assert!(later > 0, "no cut came between a commit and its report");
    assert!(later < count, "a cut in the middle of a sync leaves the txg before");
}

#[test]
fn a_full_pool_refuses_changes_and_goes_on_when_something_is_freed() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let write = async |block: u64| {
            let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await?;
            object.write(tx.txg(), block * BLOCK_BYTES, &content(block)).await.unwrap();
            Ok::<_, TxError>(())
        };
        let mut full = 0;
        while full < 100_000 {
            match write(full).await {
                Ok(()) => full += 1,
                Err(error) => {
                    assert_eq!(error, TxError::NoSpace);
                    break;
                }
            }
        }
        // Half of so small a pool is kept back.
        let bytes = full * BLOCK_BYTES;
        assert!((DISK_BYTES / 4..DISK_BYTES / 2).contains(&bytes), "{bytes} bytes fit");
        let tx = head.begin(Cost::objects(1).that_frees()).await.unwrap();
        object.free_blocks(tx.txg(), 0..full / 2);
        drop(tx);
        for block in 0..full / 4 {
            write(block).await.unwrap();
        }
        drop((head, object));
        export_whole(&handle, &machine, pool, "after it was full").await;
    });
}

#[test]
fn a_change_without_space_waits_for_what_is_being_freed_and_not_for_what_hangs() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let write = async |block: u64| {
            let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await?;
            object.write(tx.txg(), block * BLOCK_BYTES, &content(block)).await.unwrap();
            Ok::<_, TxError>(())
        };
        let fill = async |first: u64| {
            let mut block = first;
            loop {
                match write(block).await {
                    Ok(()) => block += 1,
                    Err(error) => return (block, error),
                }
            }
        };
        // While frees are announced a change waits for some txgs before it is refused. The space that earlier frees give back in
        // those txgs is taken here, so that it makes no room later.
        let hanging = head.frees_begin();
        let (full, error) = fill(0).await;
        assert_eq!(error, TxError::NoSpace);
        drop(hanging);
        let (pending, freeing, freed, clock) = (head.frees_begin(), head.clone(), object.clone(), handle.clone());
        let frees = handle.spawn(Class::Background, async move {
            for piece in 0..4 {
                clock.sleep(Duration::from_secs(1)).await;
                let tx = freeing.begin(Cost::objects(1).that_frees()).await.unwrap();
                freed.free_blocks(tx.txg(), piece * full / 8..(piece + 1) * full / 8);
                pending.went_on();
            }
        });
        let begun = handle.now();
        write(full).await.unwrap();
        assert!(handle.now() - begun >= Duration::from_secs(1), "there was no space before");
        frees.await.unwrap();
        let (_, error) = fill(full + 1).await;
        assert_eq!(error, TxError::NoSpace, "nothing is freed any more");
        let hanging = head.frees_begin();
        // The txgs that are waited for give back what earlier ones freed: a little more fits, and then nothing.
        let (_, error) = fill(1 << 19).await;
        assert_eq!(error, TxError::NoSpace);
        let begun = handle.now();
        assert_eq!(write(1 << 20).await, Err(TxError::NoSpace));
        assert!(handle.now() - begun < Duration::from_secs(60));
        drop((hanging, head, object));
        export_whole(&handle, &machine, pool, "after it was full twice").await;
    });
}

/// The write waited for as long as any dataset freed something, each time for a txg.
#[test]
fn a_change_beyond_a_quota_does_not_wait_for_what_other_datasets_free() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let other = pool.open_head("written").await.unwrap();
        let made = pool.change(|writer| {
            Box::pin(async { writer.create_dataset("written/limited", ObjsetType::Zfs).await.map(drop) })
        });
        made.await.unwrap();
        let limited = pool.change(|writer| {
            let quota = PropertyValue::Number(1 << 20);
            Box::pin(async move { writer.change_property("written/limited", "quota", Some(&quota)).await })
        });
        limited.await.unwrap();
        let head = pool.open_head("written/limited").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let fill = async || {
            for block in 0.. {
                let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await?;
                object.write(tx.txg(), block * BLOCK_BYTES, &content(block)).await.unwrap();
            }
            Ok::<_, TxError>(())
        };
        let (pending, clock) = (other.frees_begin(), handle.clone());
        let frees = handle.spawn(Class::Background, async move {
            for _ in 0..600 {
                clock.sleep(Duration::from_millis(100)).await;
                pending.went_on();
            }
        });
        let begun = handle.now();
        assert!(matches!(fill().await, Err(TxError::Quota(_))));
        assert!(handle.now() - begun < Duration::from_secs(30), "it waited for the frees of another dataset");
        frees.await.unwrap();
        drop((other, head, object));
        export_whole(&handle, &machine, pool, "after a quota was used up").await;
    });
}

/// Each was a txg of its own, and so was each opening.
#[test]
fn hundreds_of_datasets_are_made_in_few_txgs_and_opened_in_none() {
    const PARENTS: usize = 20;
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let first = pool.sync().await.unwrap();
        let names: Vec<String> = (0..300).map(|number| format!("written/p{}/n{number}", number % PARENTS)).collect();
        let make = async |writer: &mut Syncer, name: &str| {
            let head = writer.create_dataset(name, ObjsetType::Zfs).await?;
            let root = NodeSpec { mode: 0o755, ..NodeSpec::default() };
            BulkWriter::create(&head.objset, writer.txg(), &root).await.unwrap();
            for (property, value) in [("quota", 500 << 20), ("checksum", 8)] {
                writer.change_property(name, property, Some(&PropertyValue::Number(value))).await?;
            }
            Ok::<_, SpaError>(())
        };
        let made = names.iter().map(|name| {
            let (name, pool) = (name.clone(), pool.clone());
            let change = async move |writer: &mut Syncer| {
                // The one above is seldom on disk yet when one below it is made.
                let (above, _) = name.rsplit_once('/').unwrap();
                if writer.dsl().clone().find_dir(above).await.unwrap().is_none() {
                    make(writer, above).await?;
                }
                make(writer, &name).await
            };
            handle.spawn(Class::Issue, async move {
                pool.change(move |writer| Box::pin(async move { change(writer).await })).await
            })
        });
        for made in made.collect::<Vec<_>>() {
            made.await.unwrap().unwrap();
        }
        let last = pool.sync().await.unwrap();
        assert!(last.0 - first.0 < 6, "{} txgs", last.0 - first.0);
        for name in names.iter().step_by(50) {
            drop(pool.open_head(name).await.unwrap());
        }
        let there = pool.look(|writer| {
            Box::pin(async {
                let view = writer.dsl().clone();
                let root = view.root_dir().await.unwrap();
                Ok::<_, SpaError>((writer.txg(), view.tree(root, false).await.unwrap().len()))
            })
        });
        assert_eq!(there.await.unwrap(), (Txg(last.0 + 1), 301 + PARENTS));
        export_whole(&handle, &machine, pool, "with hundreds of datasets").await;
    });
}

#[test]
fn changes_of_the_pool_are_made_in_order_and_on_disk_when_they_are_answered() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let make = async |name: &'static str| {
            let made = pool.change(move |writer| {
                Box::pin(async move {
                    let head = writer.create_dataset(name, ObjsetType::Zfs).await?;
                    let root = NodeSpec { mode: 0o755, ..NodeSpec::default() };
                    BulkWriter::create(&head.objset, writer.txg(), &root).await.unwrap();
                    Ok::<_, SpaError>(())
                })
            });
            made.await
        };
        make("written/a").await.unwrap();
        make("written/a/b").await.unwrap();
        let again = make("written/a").await.unwrap_err();
        assert!(again.to_string().contains("dataset already exists"), "{again}");
        let quota = PropertyValue::Number(1 << 20);
        let set = pool.change(move |writer| {
            Box::pin(async move { writer.change_property("written/a", "quota", Some(&quota)).await })
        });
        set.await.unwrap();
        // The refused changes have left the pool as it was.
        let head = pool.open_head("written/a").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let mut refused = None;
        for block in 0..200 {
            match head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await {
                Ok(tx) => object.write(tx.txg(), block * BLOCK_BYTES, &content(block)).await.unwrap(),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        assert_eq!(refused, Some(TxError::Quota("written/a".to_owned())));
        drop((head, object));
        let txg = pool.txgs().synced_txg();
        pool.export().await.unwrap();
        let (after, report) = check(&handle, &machine.paths).await;
        assert!(after > txg);
        assert_clean(&report, "with datasets made by and by");
    });
}
