//! Goal: a block that the intent log points to is the pool's own, and is there after a power cut, whatever became of it in its txg. Method: large
//! writes are asked to be stable, and their blocks are overwritten, cut off and freed before and after; the power goes before or after the
//! txg, and the pool has to be whole and to have the acknowledged writes. The space charged for a block is compared with one that no log
//! has seen.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::SyncMode;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::BlockId;
use cenote_sim::Machine;
use cenote_spa::{Pool, TopKind};
use cenote_taskq::sim::disk::{Crash, Fault, Latency};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_zil::Log;
use cenote_zpl::{Allocation, File, FileSystem, FileSystemOptions, NewNode};
use cenote_zvol::live::{Clear, LiveVolume};
use cenote_zvol::{Volume, VolumeSpec};

use crate::logged::counts;
use cenote_sim::written::files::{make_on, opened_files_with};
use cenote_sim::written::*;

const BLOCK: u64 = 64 << 10;

struct Opened {
    pool: Pool,
    fs: FileSystem,
    log: Arc<Log>,
}

async fn opened(handle: &Handle, machine: &Machine, given: &[&str]) -> Opened {
    let pool = opened_pool(handle, &machine.paths, import_with(given)).await.unwrap();
    let options = FileSystemOptions { record_bytes: BLOCK as u32, ..FileSystemOptions::default() };
    let (fs, log) = opened_files_with(&pool, options).await.unwrap();
    Opened { pool, fs, log }
}

fn noise(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    rng.fill(&mut bytes);
    bytes
}

/// A file with its log begun.
async fn file(of: &Opened) -> File {
    let new = NewNode { mode: 0o100_644, ..NewNode::default() };
    let (file, _) = of.fs.create_file(of.fs.root(), b"f", &new).await.unwrap();
    of.log.sync(None).await.unwrap();
    of.pool.sync().await.unwrap();
    file
}

async fn whole(handle: &Handle, machine: &Machine, what: &str, asks_zdb: bool) {
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
    if asks_zdb && cenote_testkit::zdb::program("zdb").is_some() {
        let images = machine.images();
        cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
    }
}

/// Fates of logged blocks in their txg, one after the other, each asked for.
async fn change_logged(file: &File, log: &Log, rng: &mut Rng, model: &mut Vec<u8>) {
    let write = async |at: u64, bytes: &[u8], model: &mut Vec<u8>| {
        file.write(at, bytes).await.unwrap();
        let end = at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(bytes);
    };
    let id = Some(file.id());
    write(0, &noise(rng, 6 * BLOCK), model).await;
    log.sync(id).await.unwrap();
    // Overwritten whole, in part, and in part with more that is logged itself.
    write(0, &noise(rng, BLOCK), model).await;
    write(BLOCK + 100, &noise(rng, 10), model).await;
    write(2 * BLOCK + 5000, &noise(rng, BLOCK), model).await;
    log.sync(id).await.unwrap();
    // Freed, and cut off, and written again.
    file.allocate(Allocation::Punch, 3 * BLOCK..4 * BLOCK).await.unwrap();
    model[3 * BLOCK as usize..4 * BLOCK as usize].fill(0);
    file.truncate(4 * BLOCK + 333).await.unwrap();
    model.truncate(4 * BLOCK as usize + 333);
    log.sync(id).await.unwrap();
    write(5 * BLOCK, &noise(rng, 2 * BLOCK), model).await;
    // Zeros, and what fits into a pointer.
    write(8 * BLOCK, &vec![0; BLOCK as usize], model).await;
    write(9 * BLOCK, &vec![7; BLOCK as usize], model).await;
    log.sync(id).await.unwrap();
}

#[test]
fn a_block_is_there_whatever_became_of_it_in_its_txg() {
    for seed in seeds(10) {
        let (mut layout, has_log) = (LAYOUTS[seed as usize % LAYOUTS.len()].to_vec(), seed % 3 == 1);
        if has_log {
            layout.push((TopKind::Single, 1));
        }
        let count = layout.iter().map(|(_, count)| count).sum();
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            make_on(&handle, &machine, &layout, has_log).await;
            let mut model = Vec::new();
            for life in 0..5 {
                let what = format!("seed {seed} life {life}");
                let of = opened(&handle, &machine, &[]).await;
                of.log.set_for_throughput(has_log);
                let file = match life {
                    0 => file(&of).await,
                    _ => of.fs.open_file(of.fs.lookup(of.fs.root(), b"f").await.unwrap()).await.unwrap(),
                };
                assert!(file.read(0, model.len() + 1).await.unwrap()[..] == model[..], "{what}");
                // The first change has a txg written, in which the chain begins.
                file.write(0, &noise(&mut rng, 10)).await.unwrap();
                of.pool.sync().await.unwrap();
                let before = counts(&of.pool, "zil");
                model = file.read(0, 1 << 20).await.unwrap().to_vec();
                change_logged(&file, &of.log, &mut rng, &mut model).await;
                let now = counts(&of.pool, "zil");
                let of_log = |name| now[name] - before[name];
                assert_eq!(of_log("zil_commit_error_count"), 0, "{what}: nobody waits for a txg");
                assert!(of_log("zil_itx_indirect_count") > 10, "{what}: {now:?}");
                match life % 3 {
                    // Before the txg, after it, and while the next one has logged as much.
                    0 => {}
                    1 => drop(of.pool.sync().await.unwrap()),
                    _ => {
                        of.pool.sync().await.unwrap();
                        change_logged(&file, &of.log, &mut rng, &mut model).await;
                    }
                }
                cut(&handle, &machine, Crash::Random).await;
                drop((file, of));
                // It takes seconds.
                whole(&handle, &machine, &what, seed < 3 && life > 2).await;
            }
            let of = opened(&handle, &machine, &[]).await;
            let id = of.fs.lookup(of.fs.root(), b"f").await.unwrap();
            of.fs.unlink(of.fs.root(), b"f").await.unwrap();
            of.fs.reap().await.unwrap();
            assert!(of.fs.open_file(id).await.is_err());
            let Opened { pool, fs, log } = of;
            drop((fs, log));
            pool.export().await.unwrap();
            whole(&handle, &machine, &format!("seed {seed} exported"), seed % 3 == 0).await;
        });
    }
}

/// The sync takes the block over as it is, and accounts are those of a block that it writes itself.
#[test]
fn a_logged_block_is_written_once_and_counts_like_any_other() {
    let mut seen = Vec::new();
    for is_logged in [false, true] {
        let runtime = Runtime::simulated(3);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            make_on(&handle, &machine, &[(TopKind::Raidz { parity: 1 }, 3)], false).await;
            let of = opened(&handle, &machine, &[]).await;
            let file = file(&of).await;
            let mut rng = Rng::new(1);
            file.write(0, &noise(&mut rng, 32 * BLOCK)).await.unwrap();
            if is_logged {
                of.log.sync(Some(file.id())).await.unwrap();
                // Asked for again, with more: what is stored is so still.
                file.write(32 * BLOCK, &[1]).await.unwrap();
            } else {
                file.write(32 * BLOCK, &[1]).await.unwrap();
            }
            let before: u64 = machine.disks.iter().map(|disk| disk.counts().written_bytes).sum();
            let txg = of.pool.sync().await.unwrap();
            let written = machine.disks.iter().map(|disk| disk.counts().written_bytes).sum::<u64>() - before;
            assert_eq!(written > 32 * BLOCK, !is_logged, "{written} bytes");
            let head = of.pool.open_head("written").await.unwrap();
            let object = head.objset().object(file.id()).await.unwrap();
            for block in 0..32 {
                let bp = object.pointer(0, BlockId(block)).await.unwrap();
                assert_eq!((bp.birth(), bp.logical_birth()), (txg, txg), "block {block}");
            }
            seen.push((object.phys().data_block_bytes(), object.synced().unwrap().used, head.space().referenced_bytes));
            drop((file, object, head));
            let Opened { pool, fs, log } = of;
            drop((fs, log));
            pool.export().await.unwrap();
            whole(&handle, &machine, "exported", true).await;
        });
    }
    assert_eq!(seen[0], seen[1]);
}

/// A block that no device takes, or that finds no space, is not told of: its txg is waited for.
#[test]
fn who_asks_for_a_block_that_cannot_be_stored_waits_for_its_txg() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        // The log goes on its own device, while the pool's does not answer.
        make_on(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], true).await;
        let of = opened(&handle, &machine, &[]).await;
        of.log.set_for_throughput(true);
        let file = file(&of).await;
        file.write(0, &[1; 10]).await.unwrap();
        of.log.sync(None).await.unwrap();
        let bytes = noise(&mut Rng::new(2), 3 * BLOCK);
        file.write(0, &bytes).await.unwrap();
        machine.disks[0].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
        let (log, id) = (of.log.clone(), file.id());
        let asking = handle.spawn(cenote_taskq::Class::Issue, async move { log.sync(Some(id)).await.is_ok() });
        handle.sleep(Duration::from_secs(5)).await;
        assert!(of.pool.suspended().is_some(), "the pool waits for its device");
        machine.disks[0].clear_faults();
        of.pool.resume().await.unwrap();
        assert!(asking.await.unwrap());
        cut(&handle, &machine, Crash::Random).await;
        drop((file, of));
        whole(&handle, &machine, "cut", true).await;
        let of = opened(&handle, &machine, &[]).await;
        let file = of.fs.open_file(of.fs.lookup(of.fs.root(), b"f").await.unwrap()).await.unwrap();
        assert!(file.read(0, bytes.len()).await.unwrap()[..] == bytes[..]);
        drop(file);
        let Opened { pool, fs, log } = of;
        drop((fs, log));
        pool.export().await.unwrap();
    });
}

/// The rules of OpenZFS for which writes are logged by reference.
#[test]
fn writes_are_logged_by_reference_by_size_and_by_property() {
    // Tunables, throughput, a log device; bytes; records by reference.
    type Case = (&'static [&'static str], bool, bool, u64, u64);
    let cases: &[Case] = &[
        (&[], false, false, 32 << 10, 1),
        (&[], false, false, (32 << 10) - 1, 0),
        (&[], false, false, 3 * BLOCK, 3),
        (&["zfs_immediate_write_sz=4096"], false, false, 4096, 1),
        (&["zfs_immediate_write_sz=1M"], false, false, 3 * BLOCK, 0),
        (&[], true, false, 10, 1),
        (&[], false, true, 3 * BLOCK, 0),
        (&[], true, true, 10, 1),
        // More than is copied at once.
        (&[], false, false, 100 * BLOCK, 100),
    ];
    for (given, is_for_throughput, has_log, len, expected) in cases {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let layout: &[(TopKind, usize)] = &[(TopKind::Single, 1), (TopKind::Single, 1)];
            make_on(&handle, &machine, &layout[..1 + usize::from(*has_log)], *has_log).await;
            let of = opened(&handle, &machine, given).await;
            let file = file(&of).await;
            of.log.set_for_throughput(*is_for_throughput);
            file.write(0, &noise(&mut Rng::new(1), 2 * BLOCK)).await.unwrap();
            of.pool.sync().await.unwrap();
            let (before, txgs) = (counts(&of.pool, "zil"), of.pool.history().len());
            file.write(0, &noise(&mut Rng::new(2), *len)).await.unwrap();
            of.log.sync(Some(file.id())).await.unwrap();
            let now = counts(&of.pool, "zil");
            let of_log = |name| now[name] - before[name];
            let what = format!("{given:?} {is_for_throughput} {has_log} {len}");
            assert_eq!(of_log("zil_itx_indirect_count"), *expected, "{what}");
            let bytes = of_log("zil_itx_indirect_bytes") + of_log("zil_itx_needcopy_bytes");
            assert_eq!((bytes, of.pool.history().len()), (*len, txgs), "{what}");
            drop(file);
            let Opened { pool, fs, log } = of;
            drop((fs, log));
            pool.export().await.unwrap();
        });
    }
}

/// A volume's blocks, with a log device and without.
#[test]
fn a_volumes_blocks_are_logged_by_reference() {
    for has_log in [false, true] {
        let runtime = Runtime::simulated(6);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let layout: &[(TopKind, usize)] = &[(TopKind::Single, 1), (TopKind::Single, 1)];
            make_on(&handle, &machine, &layout[..1 + usize::from(has_log)], has_log).await;
            let of = opened(&handle, &machine, &[]).await;
            let made = of.pool.create_dataset("written/v", ObjsetType::Zvol).await.unwrap();
            let spec = VolumeSpec { size_bytes: 32 * BLOCK, block_bytes: BLOCK as u32 };
            Volume::create(&made.objset, of.pool.txg(), &spec).await.unwrap();
            of.pool.sync().await.unwrap();
            let open_volume = async |pool: &Pool| {
                let head = pool.open_head("written/v").await.unwrap();
                LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await.unwrap()
            };
            let volume = open_volume(&of.pool).await;
            volume.set_for_throughput(has_log);
            let (mut rng, mut model) = (Rng::new(1), vec![0; spec.size_bytes as usize]);
            volume.write(0, &[0; 10]).await.unwrap();
            volume.flush().await.unwrap();
            for (at, len) in
                [(0, 3 * BLOCK), (BLOCK, BLOCK), (5 * BLOCK + 512, 2 * BLOCK), (5 * BLOCK, 40_960), (BLOCK, 40_960)]
            {
                let bytes = noise(&mut rng, len);
                volume.write(at, &bytes).await.unwrap();
                volume.commit_if_sync(true).await.unwrap();
                model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            }
            volume.clear(2 * BLOCK, BLOCK, Clear::Freed).await.unwrap();
            model[2 * BLOCK as usize..3 * BLOCK as usize].fill(0);
            volume.flush().await.unwrap();
            let logged = counts(&of.pool, "zil")["zil_itx_indirect_count"];
            assert_eq!(logged, 9, "by reference");
            cut(&handle, &machine, Crash::Random).await;
            drop((volume, made, of));
            whole(&handle, &machine, "cut", true).await;
            let of = opened(&handle, &machine, &[]).await;
            let volume = open_volume(&of.pool).await;
            volume.replay().await.unwrap();
            assert!(volume.volume().read(0, model.len()).await.unwrap()[..] == model[..]);
            drop(volume);
            let Opened { pool, fs, log } = of;
            drop((fs, log));
            pool.export().await.unwrap();
            whole(&handle, &machine, "exported", true).await;
        });
    }
}
