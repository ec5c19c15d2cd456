//! Space maps that cannot be read, and space that is not there, while a pool is written: one map costs its metaslab, and nothing ends
//! the pool.

use std::path::PathBuf;
use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::TxTunables;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_spa::{Clock, Host, ImportOptions, LiveHead, Pool, WriteOptions, find, import, open};
use cenote_taskq::sim::disk::{Latency, SimDisk};
use cenote_taskq::{Class, Handle, Rng, Runtime};

use cenote_sim::written::blocks::{filled, write_some};
use cenote_sim::written::*;

const LABELS_BYTES: u64 = 4 << 20;

/// Bytes of a disk as they were.
type Before = Vec<(u64, Vec<u8>)>;

fn import_options() -> ImportOptions {
    ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() }
}

/// Where the maps of the disk's metaslabs stand, by metaslab.
async fn maps(handle: &Handle, paths: &[PathBuf]) -> Vec<(u64, Vec<(u64, u64)>)> {
    let (mut pools, _) = find(handle, paths).await;
    let pool = import(handle, pools.remove(0), &import_options()).await.unwrap();
    let tops = pool.config().list("vdev_tree").unwrap().lists("children").unwrap();
    let array = pool.mos().object(ObjectId(tops[0].u64("metaslab_array").unwrap())).await.unwrap();
    let words = array.read(0, array.block_bytes() as usize).await.unwrap();
    let mut maps = Vec::new();
    for (index, word) in words.as_chunks::<8>().0.iter().enumerate() {
        let object = u64::from_le_bytes(*word);
        if object == 0 {
            continue;
        }
        let map = pool.mos().object(ObjectId(object)).await.unwrap();
        let mut places = Vec::new();
        for block in 0..=map.last_block().0 {
            let pointer = map.pointer(0, BlockId(block)).await.unwrap();
            places.extend(pointer.dvas().map(|dva| (LABELS_BYTES + dva.offset_bytes, pointer.psize_bytes())));
        }
        maps.push((index as u64, places));
    }
    pool.close().await;
    maps
}

fn damage(disk: &SimDisk, places: &[(u64, u64)]) -> Before {
    let damaged = places.iter().map(|(offset, len)| {
        let before = disk.peek(*offset, *len as usize);
        disk.poke(*offset, &vec![0x5A; *len as usize]);
        (*offset, before)
    });
    damaged.collect()
}

fn mend(disk: &SimDisk, before: &Before) {
    before.iter().for_each(|(offset, bytes)| disk.poke(*offset, bytes));
}

/// Opened without the second book, which would have to read every map.
pub(crate) async fn opened(handle: &Handle, paths: &[PathBuf], tunables: TxTunables) -> Pool {
    let (mut pools, _) = find(handle, paths).await;
    let options = WriteOptions { clock: Clock::Now, host: Host { id: 0, name: "here".into() }, check: false };
    open(handle, pools.remove(0), &import_options(), options).await.unwrap().start(tunables).await
}

async fn objects_of(head: &LiveHead, ids: &[ObjectId]) -> Vec<Object> {
    let mut objects = Vec::new();
    for id in ids {
        objects.push(head.objset().object(*id).await.unwrap());
    }
    objects
}

#[test]
fn an_unreadable_space_map_costs_its_metaslab_and_not_the_pool() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let ids = filled(&handle, &machine, 6, 12).await;
        let first = maps(&handle, &machine.paths).await;
        assert!(first.len() >= 3, "{first:?}");
        let mut met = 0;
        // Each in turn, so that those are among them that are written to.
        for (index, _) in &first {
            // Where it is now: the txgs before have moved some.
            let now = maps(&handle, &machine.paths).await;
            let (_, places) = now.iter().find(|(other, _)| other == index).unwrap();
            let before = damage(&machine.disks[0], places);
            let pool = opened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let objects = objects_of(&head, &ids).await;
            let mut rng = Rng::new(*index);
            for _ in 0..40 {
                write_some(&head, &objects, &mut rng).await;
                pool.sync().await.unwrap();
            }
            assert!(pool.suspended().is_none(), "metaslab {index}");
            let unreadable = pool.unreadable_metaslabs();
            if let [(id, reason), rest @ ..] = &unreadable[..] {
                assert_eq!((id.index, rest.len()), (*index, 0), "{unreadable:?}");
                let told = pool.troubled().await;
                assert!(told.contains(&format!("metaslab {index} of vdev 0")) && told.contains(reason), "{told}");
            }
            drop((objects, head));
            pool.export().await.unwrap();
            // Frees in that metaslab stand in the log until its map can be read again.
            mend(&machine.disks[0], &before);
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &format!("metaslab {index}"));
            met += unreadable.len();
        }
        // Which are loaded or flushed in so few txgs follows from where the blocks go.
        assert!(met >= 1, "none of {} was loaded or flushed", first.len());
    });
}

#[test]
fn no_space_in_a_sync_suspends_the_pool_and_what_was_written_is_there_when_it_goes_on() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let ids = filled(&handle, &machine, 3, 12).await;
        let maps = maps(&handle, &machine.paths).await;
        let disk = &machine.disks[0];
        // Not one block can be placed: the MOS cannot be written.
        let before: Vec<Before> = maps.iter().map(|(_, places)| damage(disk, places)).collect();
        let pool = opened(&handle, &machine.paths, small()).await;
        let waiting = {
            let pool = pool.clone();
            handle.spawn(Class::Issue, async move { pool.sync().await })
        };
        let opening = {
            let pool = pool.clone();
            handle.spawn(Class::Issue, async move { pool.open_head("written").await })
        };
        let (reason, _) = pool.failed().await;
        assert!(reason.contains("no space for a block of"), "{reason}");
        handle.sleep(Duration::from_secs(5)).await;
        assert!(pool.suspended().is_some(), "it waits");
        before.iter().for_each(|before| mend(disk, before));
        pool.resume().await.unwrap();
        waiting.await.unwrap().unwrap();
        let head = opening.await.unwrap().unwrap();
        let objects = objects_of(&head, &ids).await;
        write_some(&head, &objects, &mut Rng::new(9)).await;
        pool.sync().await.unwrap();
        assert!(pool.suspended().is_none());
        drop((objects, head));
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after there was no space");
    });
}
