//! Goal: a block that takes the place of one that a rebuild copies stays, on the new disk too. Method: all blocks of a small pool are overwritten
//! again and again, so that what is freed is soon another block's, while the new disk takes its time for the pieces of the rebuild: a piece that was
//! read before a new block came in its place, and written after it, would take that block back. The same with the bug that nothing keeps the places.

use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_sim::disk;
use cenote_sim::written::blocks::{BLOCK_BYTES, content, make_objects};
use cenote_sim::written::*;
use cenote_spa::{AttachOptions, LiveHead, NewDevice};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sim::disk::RequestKind;
use cenote_taskq::{Rng, Runtime};

/// Objects, and blocks of each: nearly as much as so small a pool lets in.
const OBJECTS: usize = 40;
const BLOCKS: u64 = 40;
/// Blocks that are overwritten in a txg: together fewer bytes than a piece has, so that they are written fast.
const OVERWRITTEN: u64 = 10;
/// From this size on a write is one of a rebuild, which takes so long.
const PIECE_BYTES: u64 = 256 << 10;
const PIECE_MS: u64 = 50;
/// Txgs until the rebuild has to have ended.
const TXGS_MAX: u32 = 3000;

async fn write(head: &LiveHead, object: &Object, block: u64, seed: u64) {
    let at = block * BLOCK_BYTES;
    // A pool that is full takes no more for now.
    let Ok(tx) = head.begin(Cost::write(at, BLOCK_BYTES, BLOCK_BYTES)).await else { return };
    drop(object.write(tx.txg(), at, &content(seed)).await);
}

/// Attaches a disk to a pool of one, which is written meanwhile: the txgs that it takes, the words of `verify` in the end, and whether all is well.
fn rebuilt(seed: u64) -> (u32, String, bool) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, TxTunables { zfs_txg_timeout: 3600, ..TxTunables::default() }).await;
        let head = pool.open_head("written").await.unwrap();
        let objects = make_objects(&head, OBJECTS).await;
        let mut rng = Rng::new(seed);
        for object in &objects {
            for block in 0..BLOCKS {
                write(&head, object, block, rng.next_u64()).await;
            }
        }
        pool.sync().await.unwrap();
        machine.disks[1].set_service_model(|request, _, rng| match request.kind {
            RequestKind::Write if request.size_bytes >= PIECE_BYTES => {
                Duration::from_millis(PIECE_MS + rng.below(PIECE_MS))
            }
            _ => Duration::from_micros(50 + rng.below(100)),
        });
        let view = pool.view(&cenote_spa::ImportOptions::default()).await.unwrap();
        let old = view.vdevs().leaves()[0].guid;
        drop(view);
        let new = NewDevice::Disk(disk(&handle, &machine.paths[1]).await.unwrap());
        let (is_replacing, is_sequential) = (false, true);
        let options = AttachOptions { old, new, is_replacing, is_sequential, ashift: Some(12), seed: None };
        pool.attach_device(options).await.unwrap();
        let mut txgs = 0;
        while pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap() {
            for _ in 0..OVERWRITTEN {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                write(&head, object, rng.below(BLOCKS), rng.next_u64()).await;
            }
            pool.sync().await.unwrap();
            txgs += 1;
            assert!(txgs < TXGS_MAX, "the rebuild does not end");
        }
        let is_whole = pool.tree().unwrap().status().behind().is_empty();
        drop((objects, head));
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        (txgs, report.to_string(), report.is_clean() && is_whole)
    })
}

/// One test, since a bug is the whole process's.
#[test]
fn a_block_that_takes_the_place_of_one_that_is_copied_stays() {
    let (txgs, report, is_whole) = rebuilt(3);
    assert!(is_whole, "{report}");
    assert!(txgs > 10, "{txgs} txgs were written meanwhile");
    assert!(mutant::set(Some(Mutant::RebuildUnheld)));
    let is_seen = (3..11).any(|seed| !rebuilt(seed).2);
    mutant::set(None);
    assert!(is_seen, "{} is not seen", Mutant::RebuildUnheld.name());
}
