//! Goal: what a client was told to be stable is there after a power cut, though no txg has it. Method: files of a pool in use are changed at
//! random and asked to be stable; then the power goes, before a txg has been written, and devices keep any part of what they were not
//! asked to flush. The pool is opened again, which claims and replays the log, and all is compared with what was seen before the cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::tx::SyncMode;
use cenote_format::enums::ObjsetType;
use cenote_format::znode::ZnodeFlags;
use cenote_kstat::{Body, Stat};
use cenote_spa::{ImportOptions, Pool, TopKind, find};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::{Rng, Runtime};
use cenote_zpl::{AttributeChange, FileSystem, FileSystemOptions, NewNode, RenameMode, XattrSet, ZplError};
use cenote_zvol::live::{Clear, LiveVolume};
use cenote_zvol::{Volume, VolumeSpec};

use cenote_sim::tree::Tree;
use cenote_sim::written::files::{make_on, new_files, opened, opened_with};
use cenote_sim::written::tree::{ACCESS, change, seen};
use cenote_sim::written::*;

#[test]
fn what_was_made_stable_is_there_though_no_txg_has_it() {
    let (mut logged, mut indirect) = (0, BTreeMap::new());
    for seed in seeds(30) {
        let mut layout = LAYOUTS[seed as usize % LAYOUTS.len()].to_vec();
        let has_log = seed % 3 == 1;
        if has_log {
            let mirror = seed % 2 == 0;
            layout.push(if mirror { (TopKind::Mirror, 2) } else { (TopKind::Single, 1) });
        }
        // Blocks have 16 KiB at most.
        let small = if seed % 2 == 0 { "zfs_immediate_write_sz=3000" } else { "zfs_immediate_write_sz=20000" };
        let is_for_throughput = seed % 5 < 2;
        let count = layout.iter().map(|(_, count)| count).sum();
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            make_on(&handle, &machine, &layout, has_log).await;
            let mut before: Option<Tree> = None;
            for life in 0..3 {
                let (pool, fs, log) = opened_with(&handle, &machine, &[small]).await.unwrap();
                log.set_for_throughput(is_for_throughput);
                let mut tree = seen(&fs).await;
                if let Some(before) = before.take() {
                    assert_eq!(before.difference(&tree), None, "seed {seed} life {life}");
                }
                for _ in 0..1 + rng.below(40) {
                    change(&fs, &tree, &mut rng).await;
                    tree = seen(&fs).await;
                    match rng.below(4) {
                        0 => log.sync(None).await.unwrap(),
                        // Somebody who asks and goes away.
                        1 => drop(handle.timeout(Duration::from_nanos(rng.below(400_000)), log.sync(None)).await),
                        _ => {}
                    }
                    if rng.below(8) == 0 && seed % 4 == 3 {
                        let modes = [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled];
                        log.set_mode(modes[rng.below(3) as usize]);
                    }
                }
                log.set_mode(SyncMode::Standard);
                log.sync(None).await.unwrap();
                *indirect.entry((has_log, is_for_throughput)).or_insert(0) +=
                    counts(&pool, "zil")["zil_itx_indirect_count"];
                // The first change has a txg written, in which the chain begins; the first who waits waits for that.
                let txgs = pool.history().len();
                logged += u64::from(txgs <= 3);
                before = Some(tree);
                cut(&handle, &machine, Crash::Random).await;
                drop((fs, log, pool));
                let (_, report) = check(&handle, &machine.paths).await;
                assert_clean(&report, &format!("seed {seed} life {life}"));
            }
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(Some(seen(&fs).await), before, "seed {seed} in the end");
            drop((fs, log));
            export_whole(&handle, &machine, pool, &format!("seed {seed} exported")).await;
            if seed % 6 == 0 && cenote_testkit::zdb::program("zdb").is_some() {
                let images = machine.images();
                cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
            }
        });
    }
    assert!(logged > 0, "something was stable before its txg");
    // Nothing is logged by reference where a log device is faster than the pool.
    for (how, count) in &indirect {
        assert_eq!(*count > 6, *how != (true, false), "{how:?}: {count} records by reference");
    }
    assert_eq!(indirect.len(), 4, "{indirect:?}");
}

/// A log device has the log, and nothing waits for one that fails: its pool goes on without, and opens without it afterwards.
#[test]
fn a_log_device_that_fails_holds_nobody_up() {
    for seed in 0..6 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let log_kind = if seed % 2 == 0 { (TopKind::Mirror, 2) } else { (TopKind::Single, 1) };
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), log_kind], true).await;
            let mut tree = seen(&fs).await;
            let log_writes = || machine.disks[1].counts().written_bytes;
            let before = log_writes();
            for _ in 0..20 {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                log.sync(None).await.unwrap();
            }
            assert!(log_writes() > before + (64 << 10), "seed {seed}: the log device has the log");
            // One leaf of a mirror, or all there is.
            machine.disks[1].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
            let txgs = pool.history().len();
            for _ in 0..20 {
                change(&fs, &tree, &mut rng).await;
                tree = seen(&fs).await;
                let synced = handle.timeout(Duration::from_secs(60), log.sync(None)).await;
                assert!(matches!(synced, Some(Ok(()))), "seed {seed}: {synced:?}, {:?}", pool.suspended());
            }
            assert_eq!(pool.suspended(), None, "seed {seed}");
            assert!(pool.history().len() < txgs + 15, "seed {seed}: the log goes on, on another device");
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            machine.disks[1].clear_faults();
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "seed {seed}");
            drop((fs, log));
            export_whole(&handle, &machine, pool, &format!("seed {seed} exported")).await;
        });
    }
}

/// A client of a log device waits for no other disk of the pool, but for those that its data went to.
#[test]
fn only_devices_that_were_written_are_flushed_for_a_log() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2), (TopKind::Single, 1)], true).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let object = fs.create(fs.root(), b"file", &new).await.unwrap().object;
        let file = fs.open_file(object).await.unwrap();
        log.sync(None).await.unwrap();
        // A block that can be compressed may fit into its pointer, and then goes to no device.
        let noise = |seed: u64| {
            let mut rng = Rng::new(seed);
            let mut bytes = vec![0; 16_384];
            bytes.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
            bytes
        };
        let flushes = || [0, 1, 2].map(|at: usize| machine.disks[at].counts().flushes);
        let txgs = pool.history().len();
        for is_for_throughput in [false, true, false] {
            log.set_for_throughput(is_for_throughput);
            let before = flushes();
            for at in 0..20 {
                file.write(at * 16_384, &noise(at)).await.unwrap();
                log.sync(Some(object)).await.unwrap();
            }
            let after = flushes();
            let added = [0, 1, 2].map(|at: usize| after[at] - before[at]);
            // A write and its record take a block of the log, or two.
            assert!((20..=40).contains(&added[2]), "{added:?}");
            assert_eq!(added[..2], [if is_for_throughput { 20 } else { 0 }; 2], "throughput {is_for_throughput}");
        }
        assert_eq!(pool.history().len(), txgs, "no txg was synced meanwhile");
        drop((file, fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A client waits for one request: each block is stable with its write, and nothing else is flushed.
#[test]
fn a_block_is_stable_with_its_write() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, object) =
            fs.create_file(fs.root(), b"f", &new).await.map(|(file, node)| (file, node.object)).unwrap();
        log.sync(None).await.unwrap();
        let before = counts(&pool, "zil");
        for at in 0..20 {
            file.write(at * 4096, &[1 + at as u8; 4096]).await.unwrap();
            log.sync(Some(object)).await.unwrap();
        }
        let after = counts(&pool, "zil");
        let of = |name| after[name] - before[name];
        assert!(of("zil_itx_metaslab_normal_count") >= 20);
        assert_eq!(of("zil_write_stable_count"), of("zil_itx_metaslab_normal_count"));
        assert_eq!(of("zil_flush_count"), 0);
        let tree = seen(&fs).await;
        cut(&handle, &machine, Crash::LoseAll).await;
        drop((file, fs, log, pool));
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        assert_eq!(seen(&fs).await, tree);
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A ticket is for all that was changed before it was taken, is under way without being waited for, and is told once it is waited for.
#[test]
fn a_ticket_is_stable_when_it_was_waited_for_and_needs_no_waiting_to_be_written() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        log.ticket(None).wait().await.expect("nothing was changed");
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, object) =
            fs.create_file(fs.root(), b"f", &new).await.map(|(file, node)| (file, node.object)).unwrap();
        // The log has no chain yet: this one waits for a txg.
        log.ticket(None).wait().await.unwrap();
        let before = counts(&pool, "zil");
        let mut tickets = Vec::new();
        for at in 0..8 {
            file.write(at * 4096, &[1 + at as u8; 4096]).await.unwrap();
            tickets.push(log.ticket(Some(object)));
        }
        assert!(counts(&pool, "zil")["zil_commit_count"] - before["zil_commit_count"] == 8);
        for ticket in tickets {
            ticket.wait().await.unwrap();
        }
        file.write(8 * 4096, &[9; 4096]).await.unwrap();
        // Nobody waits for this one; a second of virtual time is ample for its block, and no txg ends in it.
        let dropped = log.ticket(Some(object));
        drop(dropped);
        let txgs = pool.history().len();
        handle.sleep(Duration::from_secs(1)).await;
        assert_eq!(pool.history().len(), txgs, "no txg was synced meanwhile");
        let tree = seen(&fs).await;
        cut(&handle, &machine, Crash::LoseAll).await;
        drop((file, fs, log, pool));
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        assert_eq!(seen(&fs).await, tree);
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// A leaf of a mirror that cannot make a block stable with its write has missed it, and what it had in its cache: the client is answered by the
/// other one, and the leaf is noted.
#[test]
fn a_leaf_that_fails_a_stable_write_is_noted_and_the_other_one_answers() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, object) =
            fs.create_file(fs.root(), b"f", &new).await.map(|(file, node)| (file, node.object)).unwrap();
        log.sync(None).await.unwrap();
        pool.sync().await.unwrap();
        assert!(pool.tree().unwrap().status().behind().is_empty());
        let mut flushes = 0;
        machine.disks[0].set_faults(move |request, _| {
            flushes += u64::from(request.kind == RequestKind::Flush);
            // One is told of the failure, as by a device that was reset.
            let fails = request.kind == RequestKind::Flush && flushes == 1;
            if fails { Fault::Error(std::io::ErrorKind::BrokenPipe) } else { Fault::None }
        });
        file.write(0, &[7; 4096]).await.unwrap();
        log.sync(Some(object)).await.unwrap();
        let tree = seen(&fs).await;
        cut(&handle, &machine, Crash::LoseAll).await;
        drop((file, fs, log, pool));
        machine.disks[0].clear_faults();
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        assert_eq!(seen(&fs).await, tree, "it is on the other leaf");
        drop((fs, log));
        pool.export().await.unwrap();
    });
}

/// The same, and the pool goes on: what the leaf may have lost is in no copy that a reader relies on.
#[test]
fn a_leaf_that_failed_a_stable_write_has_missed_the_txgs_in_its_cache() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, object) =
            fs.create_file(fs.root(), b"f", &new).await.map(|(file, node)| (file, node.object)).unwrap();
        log.sync(None).await.unwrap();
        pool.sync().await.unwrap();
        let is_first = Arc::new(std::sync::atomic::AtomicBool::new(true));
        machine.disks[0].set_faults(move |request, _| {
            let fails =
                request.kind == RequestKind::Flush && is_first.swap(false, std::sync::atomic::Ordering::Relaxed);
            if fails { Fault::Error(std::io::ErrorKind::BrokenPipe) } else { Fault::None }
        });
        let open = pool.txg();
        file.write(0, &[7; 4096]).await.unwrap();
        log.sync(Some(object)).await.unwrap();
        pool.sync().await.unwrap();
        let behind = pool.tree().unwrap().status().behind().iter().map(|leaf| leaf.missed.clone()).collect::<Vec<_>>();
        assert!(behind.len() == 1 && behind[0].contains(open), "{behind:?}");
        drop((file, fs, log));
        pool.export().await.unwrap();
    });
}

/// Found by a server that was killed, and a volume that was made smaller before it was served again.
#[test]
fn a_volume_that_became_smaller_is_replayed_as_far_as_it_goes() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let open_volume = async |pool: &Pool| {
        let head = pool.open_head("written/v").await.unwrap();
        LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await.unwrap()
    };
    runtime.block_on(async {
        make_on(&handle, &machine, SINGLE, false).await;
        let (pool, ..) = opened(&handle, &machine).await.unwrap();
        let made = pool.create_dataset("written/v", ObjsetType::Zvol).await.unwrap();
        let spec = VolumeSpec { size_bytes: 8 << 20, block_bytes: 8 << 10 };
        Volume::create(&made.objset, pool.txg(), &spec).await.unwrap();
        pool.sync().await.unwrap();
        let volume = open_volume(&pool).await;
        for (at, byte) in [(0, 1), (1 << 20, 2), (7 << 20, 3)] {
            volume.write(at, &[byte; 4096]).await.unwrap();
            volume.commit_if_sync(true).await.unwrap();
        }
        volume.clear(6 << 20, 1 << 20, Clear::Freed).await.unwrap();
        volume.commit_if_sync(true).await.unwrap();
        cut(&handle, &machine, Crash::Random).await;
        drop((volume, made, pool));
        let (pool, ..) = opened(&handle, &machine).await.unwrap();
        let volume = open_volume(&pool).await;
        volume.resize(4 << 20).await.unwrap();
        volume.replay().await.unwrap();
        for (at, byte) in [(0, 1), (1 << 20, 2)] {
            assert_eq!(volume.volume().read(at, 4096).await.unwrap()[..], [byte; 4096]);
        }
        drop(volume);
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// Found by reading OpenZFS: that a folder is no longer immutable is logged when somebody asks for the folder; a name in it may be logged
/// before that, and is replayed all the same.
#[test]
fn names_are_replayed_in_a_folder_that_was_immutable() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, SINGLE, false).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        fs.create(fs.root(), b"begun", &new).await.unwrap();
        log.sync(None).await.unwrap();
        // Its changes are in txgs, and the log does not know of them.
        let head = pool.open_head("written").await.unwrap();
        let objset = head.objset().clone();
        let unlogged = FileSystem::open_head(&objset, Arc::new(head), FileSystemOptions::default()).await.unwrap();
        let folder = NewNode { mode: 0o040_755, ..NewNode::default() };
        let folder = unlogged.create(unlogged.root(), b"folder", &folder).await.unwrap().object;
        for name in [b"gone", b"left"] {
            unlogged.create(folder, name, &new).await.unwrap();
        }
        let fixed = ZnodeFlags::IMMUTABLE;
        let none = ZnodeFlags::empty();
        let change = |set, clear| AttributeChange { flags: Some((set, clear)), ..AttributeChange::default() };
        unlogged.set_attributes(folder, &change(fixed, none)).await.unwrap();
        pool.sync().await.unwrap();
        unlogged.set_attributes(folder, &change(none, fixed)).await.unwrap();
        let txgs = pool.history().len();
        fs.create(folder, b"made", &new).await.unwrap();
        fs.unlink(folder, b"gone").await.unwrap();
        fs.rename(folder, b"left", fs.root(), b"moved", RenameMode::Replace).await.unwrap();
        let begun = fs.lookup(fs.root(), b"begun").await.unwrap();
        fs.link(begun, folder, b"linked").await.unwrap();
        log.sync(None).await.unwrap();
        assert_eq!(pool.history().len(), txgs, "the log alone has it");
        cut(&handle, &machine, Crash::Random).await;
        drop((unlogged, objset, fs, log, pool));
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        let names: Vec<String> = seen(&fs).await.paths().into_keys().collect();
        assert_eq!(names, ["", "/begun", "/folder", "/folder/linked", "/folder/made", "/moved"]);
        let again = fs.create(folder, b"refused", &new).await;
        assert!(matches!(again, Err(ZplError::NotPermitted(_))), "clients obey the flag: {again:?}");
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// Found by a frozen pool of OpenZFS: it logs an access control list without the mode that goes with it.
#[test]
fn an_access_control_list_is_replayed_with_its_mode() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, SINGLE, false).await;
        let new = NewNode { mode: 0o102_644, ..NewNode::default() };
        let begun = fs.create(fs.root(), b"begun", &new).await.unwrap().object;
        fs.set_xattr(begun, b"user.begun", b"1", XattrSet::Any).await.unwrap();
        log.sync(None).await.unwrap();
        // Its changes are in txgs, and the log does not know of them.
        let head = pool.open_head("written").await.unwrap();
        let objset = head.objset().clone();
        let unlogged = FileSystem::open_head(&objset, Arc::new(head), FileSystemOptions::default()).await.unwrap();
        let file = unlogged.create(unlogged.root(), b"file", &new).await.unwrap().object;
        pool.sync().await.unwrap();
        let mode = AttributeChange { permissions: Some(0o2670), ..AttributeChange::default() };
        unlogged.set_attributes(file, &mode).await.unwrap();
        let txgs = pool.history().len();
        let entries = [(1_u16, 6_u16, u32::MAX), (2, 7, 1000), (4, 4, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        // The file has the mode already, so there is no record of it.
        fs.set_xattr(file, ACCESS, &list, XattrSet::Any).await.unwrap();
        log.sync(None).await.unwrap();
        assert_eq!(pool.history().len(), txgs, "the log alone has it");
        cut(&handle, &machine, Crash::Random).await;
        drop((unlogged, objset, fs, log, pool));
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        assert_eq!(fs.attributes(file).await.unwrap().permissions, 0o2670);
        assert_eq!(fs.xattrs(file).await.unwrap().get(ACCESS), Some(&list));
        drop((fs, log));
        export_whole(&handle, &machine, pool, "exported").await;
    });
}

/// Found by a reader: a pool that was suspended because another host might have it went on writing its log device, and answered clients.
#[test]
fn nothing_is_logged_on_a_log_device_once_another_host_may_have_the_pool() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
        log.sync(None).await.unwrap();
        file.write(0, &[7; 5000]).await.unwrap();
        log.sync(None).await.unwrap();
        assert!(counts(&pool, "zil")["zil_itx_metaslab_slog_count"] > 0, "the log device has the log");
        file.write(5000, &[8; 5000]).await.unwrap();
        let writes = Arc::new(AtomicU64::new(0));
        let seen = writes.clone();
        machine.disks[1].set_faults(move |request, _| {
            seen.fetch_add(u64::from(request.kind == RequestKind::Write), Ordering::Relaxed);
            Fault::None
        });
        pool.tree().unwrap().suspension().unwrap().suspend_for_multihost("another host may have the pool");
        let answer = handle.timeout(Duration::from_secs(60), log.sync(None)).await;
        assert!(!matches!(answer, Some(Ok(()))), "{answer:?}");
        assert_eq!(writes.load(Ordering::Relaxed), 0, "nothing was written");
        drop((file, fs, log));
        drop(pool);
    });
}

/// Found by a reader: who asked when the pool had ended waited for ever, and with it all that had the log.
#[test]
fn who_asks_when_the_pool_has_ended_is_answered() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 2, Latency::default());
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
        log.sync(None).await.unwrap();
        file.write(0, &[7; 5000]).await.unwrap();
        pool.export().await.unwrap();
        // The export has it on disk; an answer that says otherwise is an answer too.
        for object in [Some(file.id()), None] {
            drop(log.sync(object).await);
        }
    });
}

/// Found by a reader: where a client went away while its block was on its way, an export left that block's log in the dataset's header.
#[test]
fn an_exported_pool_has_no_log_though_a_client_went_away_amid_its_commit() {
    for waited_us in [0, 5, 20, 80, 200, 600] {
        let runtime = Runtime::simulated(6);
        let handle = runtime.handle();
        runtime.block_on(async {
            let machine = machine_of(&runtime, 2, cenote_sim::slow());
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
            let new = NewNode { mode: 0o100_644, ..NewNode::default() };
            let (file, _) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
            log.sync(None).await.unwrap();
            pool.sync().await.unwrap();
            file.write(0, &[7; 300_000]).await.unwrap();
            let _ = handle.timeout(Duration::from_micros(waited_us), log.sync(None)).await;
            drop((fs, log, file));
            pool.export().await.unwrap();
            let (mut pools, _) = find(&handle, &machine.paths).await;
            let view = cenote_spa::import(&handle, pools.remove(0), &ImportOptions::default()).await.unwrap();
            let dataset = view.dsl().dataset("written").await.unwrap();
            let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
            assert!(objset.zil_header().log.is_hole(), "{waited_us} us: {:?}", objset.zil_header());
        });
    }
}

/// The counts of a log, of the pool or of the dataset.
pub(crate) fn counts(pool: &Pool, group: &str) -> BTreeMap<&'static str, u64> {
    let groups = pool.kstats().snapshot();
    let found = groups.iter().find(|it| it.name == group).unwrap_or_else(|| panic!("{group}"));
    let Body::Named(named) = &found.body else { panic!("{group} is a table") };
    let of_log = named.iter().filter(|(name, _)| name.starts_with("zil_"));
    of_log.map(|(name, stat)| (*name, if let Stat::Count(count) = stat { *count } else { panic!("{name}") })).collect()
}

/// The tunables of logs are obeyed, and the unsafe one is said to be so.
#[test]
fn tunables_of_logs_are_obeyed() {
    for (given, blocks_max, is_flushed) in [("zil_maxblocksize=16K", 20, true), ("zil_nocacheflush=1", 3, false)] {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        runtime.block_on(async {
            let machine = machine_of(&runtime, 2, Latency::default());
            make_on(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
            let (pool, fs, log) = opened_with(&handle, &machine, &[given]).await.unwrap();
            assert_eq!(pool.notes().iter().any(|note| note.contains("UNSAFE")), !is_flushed, "{:?}", pool.notes());
            let new = NewNode { mode: 0o100_644, ..NewNode::default() };
            let (file, _) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
            log.sync(None).await.unwrap();
            let before = counts(&pool, "zil");
            for at in 0..50 {
                file.write(at * 8192, &[at as u8; 4096]).await.unwrap();
            }
            log.sync(None).await.unwrap();
            let now = counts(&pool, "zil");
            let of = |name| now[name] - before[name];
            let blocks = of("zil_itx_metaslab_normal_count");
            // 16 KiB take three such records.
            assert!(blocks <= blocks_max && (blocks > 16) == (blocks_max > 16), "{given}: {blocks} blocks");
            assert_eq!(of("zil_flush_count") + of("zil_write_stable_count") > 0, is_flushed, "{given}");
            drop((fs, log, file));
            pool.export().await.unwrap();
        });
    }
}

/// Many small writes are in as few blocks as they fit into: counts show it. Found by the benchmark, where 20 writes took 6 blocks.
#[test]
fn a_log_counts_what_it_does_and_fills_its_blocks() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 2, Latency::default());
        let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
        let (file, _) =
            fs.create_file(fs.root(), b"f", &NewNode { mode: 0o100_644, ..NewNode::default() }).await.unwrap();
        log.sync(None).await.unwrap();
        let (writes, mut rng) = (50, Rng::new(1));
        for round in 0..4 {
            let before = counts(&pool, "zil");
            for at in 0..writes {
                // Each apart from the one before.
                let mut bytes = [0; 4096];
                rng.fill(&mut bytes);
                file.write((at * 2 + round % 2) * 4096, &bytes).await.unwrap();
            }
            log.sync(Some(file.id())).await.unwrap();
            // There is nothing to be done any more.
            log.sync(Some(file.id())).await.unwrap();
            let now = counts(&pool, "zil");
            let of = |name| now[name] - before[name];
            assert_eq!(
                (of("zil_commit_count"), of("zil_commit_writer_count"), of("zil_commit_error_count")),
                (2, 1, 0)
            );
            assert_eq!((of("zil_itx_needcopy_count"), of("zil_itx_needcopy_bytes")), (writes, writes * 4096));
            assert!(of("zil_itx_count") >= writes && of("zil_itx_count") <= writes + 1, "{}", of("zil_itx_count"));
            let [blocks, bytes, write, alloc] = [
                "zil_itx_metaslab_normal_count",
                "zil_itx_metaslab_normal_bytes",
                "zil_itx_metaslab_normal_write",
                "zil_itx_metaslab_normal_alloc",
            ]
            .map(of);
            // The first block may have been made for less; two of the largest take the rest.
            assert!(blocks <= 3, "round {round}: {blocks} blocks");
            assert!(bytes >= writes * (4096 + 192) && bytes <= write && write <= alloc, "{bytes} {write} {alloc}");
            assert!(alloc - bytes < 48 << 10, "round {round}: {alloc} bytes for {bytes}");
            let flushes = of("zil_flush_count") + of("zil_write_stable_count");
            assert!((1..=blocks).contains(&flushes), "{flushes} flushes");
            assert_eq!(of("zil_itx_metaslab_slog_count"), 0);
        }
        let head = pool.open_head("written").await.unwrap();
        let of_dataset = counts(&pool, &format!("objset-0x{:x}", head.dataset().0));
        let mut of_pool = counts(&pool, "zil");
        // Flushes are the pool's.
        of_pool.extend([("zil_flush_count", 0), ("zil_write_stable_count", 0)]);
        assert_eq!(of_dataset, of_pool);
        drop((fs, log, file, head));
        pool.export().await.unwrap();
    });
}
