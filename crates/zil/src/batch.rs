//! Records of a claimed log, some at a time, so that what their replay will read is read at once.
//!
//! A write of a part of a block reads the block, and an indirect write the block that its record points to. Replay has one record after the
//! other, and would wait for a device at each.

use cenote_dmu::Objset;
use cenote_format::ids::BlockId;
use cenote_format::zil::{LogRecord, Tx, Write};
use cenote_taskq::for_each_concurrent;

use crate::chain::{Chain, Content};
use crate::position::Position;

/// Records of a batch, if one block of the log has no more.
const RECORDS_MIN: usize = 64;
/// Blocks of the log in a batch: of 128 KiB at most.
const BLOCKS_MAX: usize = 64;
/// Blocks of the dataset that are read at once.
const READS: usize = 32;

/// The next blocks of a log, with the records that are left to be replayed. None at its end.
///
/// Blocks of the dataset that their writes need are read into the cache. An error is left to the replay.
pub async fn next_batch(chain: &mut Chain<'_>, objset: &Objset, position: &Position) -> Vec<Content> {
    let (mut batch, mut records) = (Vec::new(), 0);
    while records < RECORDS_MIN && batch.len() < BLOCKS_MAX {
        let Some(link) = chain.next().await else { break };
        let Some(content) = link.content else { continue };
        records += content.records().filter(|record| position.is_left(record)).count();
        batch.push(content);
    }
    let left = batch.iter().flat_map(Content::records).filter(|record| position.is_left(record));
    let writes: Vec<LogRecord<'_>> = left.filter(|record| matches!(record.tx, Tx::Write(_))).collect();
    if writes.len() > 1 {
        for_each_concurrent(READS, &writes, |record| async move {
            if let Tx::Write(write) = &record.tx {
                prefetch(objset, write).await;
            }
        })
        .await;
    }
    batch
}

async fn prefetch(objset: &Objset, write: &Write<'_>) {
    if write.size_only || write.length_bytes == 0 {
        return;
    }
    if write.data.is_none() {
        if !write.pointer.is_hole() && !write.pointer.is_embedded() {
            objset.dmu().prefetch(&write.pointer, objset.context(write.object, 0, BlockId(0))).await;
        }
        return;
    }
    let Ok(object) = objset.object(write.object).await else { return };
    let block_bytes = object.block_bytes();
    let (start, end) = (write.offset_bytes, write.offset_bytes.saturating_add(write.length_bytes));
    let (first, last) = (start / block_bytes, (end - 1) / block_bytes);
    if start % block_bytes != 0 || end < (first + 1).saturating_mul(block_bytes) {
        object.prefetch(BlockId(first)).await;
    }
    if last != first && end % block_bytes != 0 {
        object.prefetch(BlockId(last)).await;
    }
}
