//! Healing a snapshot from a stream of it (`zfs receive -c`).
//!
//! # Theory
//!
//! **Need.** A snapshot has blocks with all copies damaged, and another pool has the same snapshot. A stream brings its blocks. Good blocks are
//! left alone; damaged ones are rewritten in place. Nothing else in the pool changes: no pointer, no txg.
//!
//! **Life of a record.** A WRITE record names an object and an offset; the snapshot's block tree has the pointer of the block there. A block
//! that reads well is skipped. For a damaged block the stored bytes are made from the record: its payload if that is compressed like the block,
//! else the payload compressed again. If they have the pointer's checksum they are written, read back, and counted; else the block is reported.
//! Other records are skipped, since OpenZFS too heals only data.
//!
//! **Invariants.** 1. A block is overwritten only with bytes that have the checksum in its pointer. 2. A long hold keeps the snapshot from being
//! destroyed meanwhile, so its blocks are not freed. 3. The stream is of this very snapshot: the guids are equal.
//!
//! **Crash.** A block that was being rewritten is still damaged, or healed.
//!
//! **Rejected.** *Accepting streams of other snapshots* (OpenZFS's `zfs_recv_best_effort_corrective`): the checksums would make it safe, but a
//! user who gives the wrong stream should get an error.

use std::io::Read;
use std::sync::atomic::Ordering;

use cenote_codec::compress::{CompressLevel, compress, decompress};
use cenote_dmu::{DmuErrorKind, Objset};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_format::ids::BlockId;
use cenote_format::stream::{Body, Write};
use cenote_format::{Endian, byteswap};
use cenote_spa::Pool;
use cenote_taskq::buf::Block;
use cenote_zio::Health;

use super::{Header, ReceiveProgress, ReceiverError};
use crate::{SendError, StreamReader};

/// The maximum number of damaged blocks whose places are reported.
const TOLD_MAX: usize = 100;
/// Levels of zstd to try: the level is in the header of the damaged block.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;

/// The result of healing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Blocks that were damaged and are healed.
    pub healed: u64,
    /// Blocks that are still damaged.
    pub damaged: u64,
    /// Places of, and reasons for, the first 100 blocks that are still damaged.
    pub told: Vec<String>,
}

impl Healed {
    fn tell(&mut self, what: String) {
        self.damaged += 1;
        debug_assert!(self.told.len() <= TOLD_MAX, "places that are reported are bounded");
        if self.told.len() < TOLD_MAX {
            self.told.push(what);
        }
    }
}

/// Heals blocks of a snapshot with the records of a stream whose BEGIN record has been read.
///
/// # Errors
/// The stream is damaged, truncated, or of another snapshot; only one of the stream and the dataset is raw or encrypted; devices fail.
pub async fn heal_stream<R: Read>(
    pool: &Pool,
    reader: &mut StreamReader<R>,
    header: &Header,
    snapshot: &str,
    progress: &ReceiveProgress,
) -> Result<Healed, ReceiverError> {
    header.check(reader.decoder().endian())?;
    let order = reader.decoder().endian().unwrap_or(cenote_dmu::ORDER);
    let dsl = pool.dsl()?;
    let dataset = dsl.dataset(snapshot).await?;
    if !dataset.is_snapshot() || dataset.phys.guid != header.begin.to_guid {
        return Err(ReceiverError::OtherSnapshot);
    }
    let is_encrypted = dsl.encryption(&dataset.dir).await?.is_some();
    match (is_encrypted, header.is_raw()) {
        (true, false) => {
            return Err(ReceiverError::Unsupported("healing encrypted datasets from streams that are not raw"));
        }
        (false, true) => return Err(ReceiverError::Incompatible),
        _ => {}
    }
    let _hold = pool.long_hold(dataset.object, dataset.phys.guid).await?;
    assert!(dataset.is_snapshot(), "what is healed cannot change meanwhile (invariant 2)");
    assert_eq!(dataset.phys.guid, header.begin.to_guid, "the stream is of this very snapshot (invariant 3)");
    let objset = dsl.open(&dataset).await?.ok_or(ReceiverError::OtherSnapshot)?;
    let mut healed = Healed::default();
    loop {
        let Some(item) = reader.next_item()? else {
            return Err(SendError::Truncated { offset_bytes: 0, expected: "before END" }.into());
        };
        let end = item.decoded.offset_bytes + cenote_format::stream::Record::SIZE as u64 + item.decoded.payload_bytes;
        progress.bytes.store(end.saturating_sub(header.offset_bytes), Ordering::Relaxed);
        match &item.decoded.record.body {
            Body::End(_) => break,
            Body::Write(write) => {
                let at = |what: String| format!("object {} offset {}: {what}", write.object.0, write.offset_bytes);
                let turned = match order == cenote_dmu::ORDER || write.compress != 0 {
                    true => None,
                    false => turned(write, item.payload, order),
                };
                let payload = turned.as_deref().unwrap_or(item.payload);
                match block(&objset, write, payload, header.is_raw()).await? {
                    Found::Good => {}
                    Found::Healed => healed.healed += 1,
                    Found::Left(what) => healed.tell(at(what)),
                }
                healed.blocks += 1;
                debug_assert!(healed.healed + healed.damaged <= healed.blocks, "a block is counted once");
            }
            _ => {}
        }
    }
    if healed.healed > 0 {
        objset.dmu().zio().flush_healed().await?;
    }
    Ok(healed)
}

/// A block's contents in our byte order, which most blocks have, if they arrived in the other one. `None` if they cannot be swapped.
fn turned(write: &Write, payload: &[u8], order: Endian) -> Option<Vec<u8>> {
    let kind = u8::try_from(write.object_type).ok().and_then(|number| DmuType(number).byteswap())?;
    let mut turned = payload.to_vec();
    byteswap::swap(kind, &mut turned, order).ok().map(|()| turned)
}

enum Found {
    Good,
    Healed,
    Left(String),
}

/// Heals the block of one WRITE record, if it is damaged.
async fn block(objset: &Objset, write: &Write, payload: &[u8], is_raw: bool) -> Result<Found, ReceiverError> {
    let object = match objset.object(write.object).await {
        Ok(object) => object,
        Err(error) if matches!(error.kind, DmuErrorKind::Zio(_)) => return Ok(Found::Left(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let block_bytes = object.block_bytes().max(1);
    let id = BlockId(write.offset_bytes / block_bytes);
    let bp = match object.pointer(0, id).await {
        Ok(bp) => bp,
        // An indirect block is damaged: metadata is not healed.
        Err(error) if matches!(error.kind, DmuErrorKind::Zio(_)) => return Ok(Found::Left(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    if bp.is_hole() || bp.is_embedded() || bp.is_redacted() {
        return Ok(Found::Good);
    }
    let context = object.context(0, id);
    let zio = object.dmu().zio();
    match zio.health(&bp, context).await {
        Ok(Health::Good) => return Ok(Found::Good),
        Ok(Health::Damaged) => {}
        Err(error) => return Err(error.into()),
    }
    if !write.offset_bytes.is_multiple_of(block_bytes) || write.logical_bytes != bp.lsize_bytes() {
        let what = format!(
            "damaged; the stream has it in pieces of {} bytes ('zfs send -L' has it whole)",
            write.logical_bytes
        );
        return Ok(Found::Left(what));
    }
    for candidate in candidates(&bp, write, payload, is_raw) {
        if !zio.is_physical(&bp, &candidate) {
            continue;
        }
        assert_eq!(candidate.len() as u64, bp.psize_bytes(), "a block is overwritten with as many bytes (invariant 1)");
        return Ok(match zio.heal(&bp, &Block::copied_from(&candidate), context).await {
            Ok(()) => Found::Healed,
            Err(error) => Found::Left(error.to_string()),
        });
    }
    let what = match is_raw {
        true => "damaged; the stream has other bytes",
        false => "damaged; the stream's bytes do not compress to those that were stored ('zfs send -c' has these)",
    };
    Ok(Found::Left(what.to_owned()))
}

/// Candidates for the stored bytes of a block, each of its physical size. The caller compares checksums.
fn candidates(bp: &Blkptr, write: &Write, payload: &[u8], is_raw: bool) -> impl Iterator<Item = Vec<u8>> {
    let psize = usize::try_from(bp.psize_bytes()).unwrap_or(usize::MAX);
    let lsize = usize::try_from(bp.lsize_bytes()).unwrap_or(usize::MAX);
    let padded = move |mut bytes: Vec<u8>| {
        (bytes.len() <= psize).then(|| {
            bytes.resize(psize, 0);
            bytes
        })
    };
    let came = Compress::from_number(write.compress).filter(|_| write.compressed_bytes != 0);
    let is_as_stored = is_raw || came.unwrap_or(Compress::Off) == bp.compress().unwrap_or(Compress::Off);
    let first = is_as_stored.then(|| padded(payload.to_vec())).flatten();
    let logical = match (is_raw, came) {
        (true, _) => None,
        (false, None) => Some(payload.to_vec()),
        (false, Some(kind)) => {
            let mut logical = vec![0; lsize];
            decompress(kind, payload, &mut logical).is_ok().then_some(logical)
        }
    };
    let logical = logical.filter(|logical| logical.len() == lsize);
    let kind = bp.compress().unwrap_or(Compress::Off);
    // The level is unknown, since it is in the header of the damaged block. The default is tried first.
    let levels: Vec<CompressLevel> = match kind {
        Compress::Zstd => {
            std::iter::once(CompressLevel::DEFAULT).chain(ZSTD_LEVELS.filter_map(CompressLevel::zstd)).collect()
        }
        _ => vec![CompressLevel::DEFAULT],
    };
    let again = logical.into_iter().flat_map(move |logical| {
        levels.clone().into_iter().filter_map(move |level| match kind {
            Compress::Off => Some(logical.clone()),
            kind => compress(kind, level, &logical, psize),
        })
    });
    first.into_iter().chain(again.filter_map(padded))
}
