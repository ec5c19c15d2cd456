//! Records of a claimed log, some at a time, so that what their replay will read is read at once.
//!
//! A write of a part of a block reads the block, and an indirect write the block that its record points to. Replay has one record after the
//! other, and would wait for a device at each.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dmu::Objset;
use cenote_format::ids::BlockId;
use cenote_format::zil::{LogRecord, Tx, Write};
use cenote_taskq::{boxed, for_each_concurrent};

use crate::chain::{Chain, Content, Link};
use crate::position::Position;

/// Records of a batch, if one block of the log has no more.
const RECORDS_MIN: usize = 64;
/// Bytes of the log in a batch, if one block of it has no more. OpenZFS's have 128 KiB at most; a hostile one may have 16 MiB.
const LOG_MAX_BYTES: usize = 8 << 20;
/// Bytes of the dataset that a batch has read ahead, after which the rest is left to the replay.
const AHEAD_MAX_BYTES: u64 = 16 << 20;
/// Blocks of the dataset that are read at once.
const READS: usize = 32;

/// The next blocks of a log, with the records that are left to be replayed. None at its end.
///
/// Blocks of the dataset that their writes need are read into the cache. An error is left to the replay.
#[boxed]
pub async fn next_batch(chain: &mut Chain<'_>, objset: &Objset, position: &Position) -> Vec<Link> {
    let (mut batch, mut records, mut log_bytes) = (Vec::new(), 0, 0);
    while records < RECORDS_MIN && log_bytes < LOG_MAX_BYTES {
        let Some(link) = chain.next().await else { break };
        let Some(content) = &link.content else { continue };
        records += content.records().filter(|record| position.is_left(record)).count();
        log_bytes += content.len_bytes();
        batch.push(link);
    }
    let left = batch
        .iter()
        .filter_map(|link| link.content.as_ref())
        .flat_map(Content::records)
        .filter(|record| position.is_left(record));
    let writes: Vec<LogRecord<'_>> = left.filter(|record| matches!(record.tx, Tx::Write(_))).collect();
    if writes.len() > 1 {
        let left_bytes = AtomicU64::new(AHEAD_MAX_BYTES);
        for_each_concurrent(READS, &writes, |record| {
            let left_bytes = &left_bytes;
            async move {
                if let Tx::Write(write) = &record.tx {
                    prefetch(objset, write, left_bytes).await;
                }
            }
        })
        .await;
    }
    batch
}

/// Takes the bytes of a block from those that may be read, if they are left.
fn takes(left_bytes: &AtomicU64, bytes: u64) -> bool {
    left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
}

async fn prefetch(objset: &Objset, write: &Write<'_>, left_bytes: &AtomicU64) {
    if write.size_only || write.length_bytes == 0 {
        return;
    }
    if write.data.is_none() {
        let is_stored = !write.pointer.is_hole() && !write.pointer.is_embedded();
        if is_stored && takes(left_bytes, write.pointer.lsize_bytes()) {
            objset.dmu().prefetch(&write.pointer, objset.context(write.object, 0, BlockId(0))).await;
        }
        return;
    }
    let Ok(object) = objset.object(write.object).await else { return };
    let block_bytes = object.block_bytes();
    let (start, end) = (write.offset_bytes, write.offset_bytes.saturating_add(write.length_bytes));
    let (first, last) = (start / block_bytes, (end - 1) / block_bytes);
    let is_part = start % block_bytes != 0 || end < (first + 1).saturating_mul(block_bytes);
    if is_part && takes(left_bytes, block_bytes) {
        object.prefetch(BlockId(first)).await;
    }
    if last != first && end % block_bytes != 0 && takes(left_bytes, block_bytes) {
        object.prefetch(BlockId(last)).await;
    }
}
