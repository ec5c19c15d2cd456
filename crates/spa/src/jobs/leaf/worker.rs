//! The worker on a leaf: holds free space, has it written or trimmed, and reports.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_format::ids::{Guid, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Handle, boxed};
use cenote_vdev::tree::{FreeWrite, VdevTree};

use super::{LeafKey, LeafWorkKind, Reached, Seat};
use crate::sync::space::Space;

/// Bytes that are written at once (`zfs_initialize_chunk_size`).
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes that a device is told of at once at most, and at least (`zfs_trim_extent_bytes_max`, `_min`).
const TRIM_BYTES_MAX: u64 = 128 << 20;
const TRIM_BYTES_MIN: u64 = 32 << 10;
/// Bytes of a vdev that are held at once.
const HELD_BYTES_MAX: u64 = 64 << 20;
/// The bytes that initializing writes (`zfs_initialize_value`).
const PATTERN: u64 = 0xdead_beef_dead_beef;
/// A device that does not take it now is asked again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A txg is asked for to record the progress this often.
const RECORDED_AFTER: Duration = Duration::from_secs(10);

/// The parts of a pool that a worker needs.
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    pub(crate) tree: Weak<VdevTree>,
    pub(crate) space: Arc<Space>,
    pub(crate) seat: Seat,
    pub(crate) key: LeafKey,
    pub(crate) round: u64,
    pub(crate) vdev: VdevId,
    pub(crate) from_bytes: u64,
    pub(crate) rate_bytes: u64,
    /// Has the open txg written soon.
    pub(crate) want_txg: Arc<dyn Fn() + Send + Sync>,
}

enum Left {
    Done,
    NotWanted,
    Failed(io::Error),
}

/// Works until all is done, or the round has ended.
#[boxed]
pub(crate) async fn work(worker: Worker) {
    let (key, round) = (worker.key, worker.round);
    let pattern = pattern();
    let (mut recorded, mut done) = (worker.handle.now(), worker.from_bytes);
    let mut next = match worker.tree.upgrade() {
        Some(tree) => tree.offset_after(worker.vdev, worker.from_bytes),
        None => return,
    };
    while worker.seat.is_wanted(key, round) {
        let Some(held) = worker.space.hold_free(worker.vdev, next, HELD_BYTES_MAX).await else {
            worker.seat.report(key, round, Reached::End(done), 0);
            return (worker.want_txg)();
        };
        let Some(tree) = worker.tree.upgrade() else { return };
        let range = held.range();
        let Some(parts) = tree.parts_of_leaf(worker.vdev, key.0, range.clone()) else {
            // It is being replaced, or has left, or its raidz is expanded.
            drop((held, tree));
            worker.handle.sleep(AGAIN_AFTER).await;
            continue;
        };
        let begun = worker.handle.now();
        let held = (!mutant::is(Mutant::TrimUnheld)).then_some(held);
        if held.is_none() {
            worker.handle.sleep(AGAIN_AFTER / 50).await;
        }
        // A part of a row is held again, with the rest of the row.
        let row = tree.row_bytes(worker.vdev);
        next = if range.end / row * row > range.start { range.end / row * row } else { range.end };
        // An older round has done what lies before its offset.
        let left: Vec<Range<u64>> =
            parts.into_iter().map(|part| part.start.max(done)..part.end).filter(|part| !part.is_empty()).collect();
        match worker.write_parts(&tree, &left, &pattern).await {
            Left::Done => {}
            Left::NotWanted => return,
            Left::Failed(error) if error.kind() == io::ErrorKind::Unsupported => {
                let reason = Reached::Unsupported(error.to_string());
                worker.seat.report(key, round, reason, 0);
                return (worker.want_txg)();
            }
            Left::Failed(_) => {
                drop((held, tree));
                next = range.start;
                worker.handle.sleep(AGAIN_AFTER).await;
                continue;
            }
        }
        drop((held, tree));
        let Some(last) = left.last() else { continue };
        assert!(last.end > done, "work goes forward on the leaf as it does on the vdev");
        done = last.end;
        let bytes = left.iter().map(|part| part.end - part.start).sum::<u64>();
        worker.seat.report(key, round, Reached::Offset(done), bytes);
        if worker.handle.now() - recorded >= RECORDED_AFTER {
            recorded = worker.handle.now();
            (worker.want_txg)();
        }
        if let Some(ms) = bytes.saturating_mul(1000).checked_div(worker.rate_bytes) {
            worker.handle.sleep_until(begun + Duration::from_millis(ms)).await;
        }
    }
}

fn pattern() -> Block {
    let mut bytes = Buf::zeroed(CHUNK_BYTES as usize);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&PATTERN.to_le_bytes());
    }
    bytes.freeze()
}

impl Worker {
    async fn write_parts(&self, tree: &Arc<VdevTree>, parts: &[Range<u64>], pattern: &Block) -> Left {
        for part in parts {
            match self.write(tree, part.clone(), pattern).await {
                Left::Done => {}
                other => return other,
            }
        }
        Left::Done
    }

    /// Has a part of the leaf written, or its device told of it.
    async fn write(&self, tree: &Arc<VdevTree>, part: Range<u64>, pattern: &Block) -> Left {
        let (leaf, kind): (Guid, LeafWorkKind) = self.key;
        let step = match kind {
            LeafWorkKind::Initialize => CHUNK_BYTES,
            LeafWorkKind::Trim => TRIM_BYTES_MAX,
        };
        // A small piece is not worth telling.
        if kind == LeafWorkKind::Trim && part.end - part.start < TRIM_BYTES_MIN {
            return Left::Done;
        }
        let mut at = part.start;
        while at < part.end {
            if !self.seat.is_wanted(self.key, self.round) {
                return Left::NotWanted;
            }
            let len = (part.end - at).min(step);
            let what = match kind {
                LeafWorkKind::Initialize => FreeWrite::Block(pattern.slice(..len as usize)),
                LeafWorkKind::Trim => FreeWrite::Discard(len),
            };
            if let Err(error) = tree.write_free(leaf, at, what).await {
                return Left::Failed(error);
            }
            at += len;
        }
        Left::Done
    }
}
