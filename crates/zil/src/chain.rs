//! Walking the chain of log blocks of an intent log.

use std::collections::BTreeSet;

use cenote_format::blkptr::Blkptr;
use cenote_format::endian::Endian;
use cenote_format::error::FormatError;
use cenote_format::ids::VdevId;
use cenote_format::zil::{ChainLayout, LogBlock, LogBlockId, LogRecord, RawRecord, ZilHeader};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_zio::{Zio, ZioError, ZioErrorKind};
use thiserror::Error;

use crate::ahead::Ahead;

/// Why a walk ended.
#[derive(Clone, Debug, Error)]
pub enum End {
    /// The link is a hole: the usual end of a log that was closed.
    #[error("an empty pointer")]
    Hole,
    /// The next block does not verify as part of this chain (never written, or of another log): the usual end of a log in use.
    #[error("a block that is not there")]
    Absent,
    /// The last block that the header of a claimed log records.
    #[error("the end that was claimed")]
    Claimed,
    /// A device did not answer: more may follow.
    #[error("a block that no device gives: {0}")]
    Device(ZioError),
    /// A block that verifies and makes no sense.
    #[error("a damaged block: {0}")]
    Damaged(FormatError),
    /// Its record sequence numbers do not increase.
    #[error("a record whose number is not higher than the one before")]
    Unordered,
}

/// A block that belongs to a log.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its pointer, whose space is the log's.
    pub pointer: Blkptr,
    /// Its content; `None` for the last block of the chain, which was allocated and never written.
    pub content: Option<Content>,
    /// The block that follows; a hole if there is none.
    pub next: Blkptr,
    /// A device gave something else in its place, though another one had it.
    pub is_damaged: bool,
}

impl Link {
    /// Its place in the chain, from 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        LogBlockId::of(&self.pointer).sequence
    }
}

/// A block's records.
#[derive(Clone, Debug)]
pub struct Content {
    bytes: Block,
    layout: ChainLayout,
    order: Endian,
    is_encrypted: bool,
    /// Records that are part of the log.
    count: usize,
    /// Bytes in use.
    pub used_bytes: u64,
}

impl Content {
    /// Bytes of the block.
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The records, in order; none of an encrypted block.
    pub fn records(&self) -> impl Iterator<Item = LogRecord<'_>> {
        let count = if self.is_encrypted { 0 } else { self.count };
        // They were read once.
        self.block().into_iter().flat_map(|block| block.records()).take(count).flatten()
    }

    /// The same, as far as they can be read without a key.
    pub fn raw_records(&self) -> impl Iterator<Item = RawRecord<'_>> {
        self.block().into_iter().flat_map(|block| block.raw_records()).take(self.count).flatten()
    }

    fn block(&self) -> Option<LogBlock<'_>> {
        LogBlock::parse(&self.bytes, self.layout, self.order).ok()
    }
}

/// A walk along a log.
pub struct Chain<'a> {
    zio: &'a Zio,
    header: ZilHeader,
    at: Blkptr,
    last_block: u64,
    last_record: u64,
    /// First copies of the blocks that [`Self::new_blocks`] has given.
    given: BTreeSet<(VdevId, u64)>,
    ahead: Ahead,
    end: Option<End>,
}

impl<'a> Chain<'a> {
    /// Begins at a header's first block.
    #[must_use]
    pub fn new(zio: &'a Zio, header: ZilHeader) -> Self {
        let (given, ahead) = (BTreeSet::new(), Ahead::default());
        Self { zio, at: header.log, header, last_block: 0, last_record: 0, given, ahead, end: None }
    }

    /// Why it ended, once [`Self::next`] has given nothing.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// The number of the last block that belongs to the log, and that of the last record; 0 before the first.
    #[must_use]
    pub const fn last(&self) -> (u64, u64) {
        (self.last_block, self.last_record)
    }

    /// The blocks whose space belongs to the log by this link: the log block itself, and in a claimed log the data blocks of its
    /// `WR_INDIRECT` records. If several records point to one block, it is returned once.
    pub fn new_blocks(&mut self, link: &Link) -> Vec<Blkptr> {
        let claim_txg = self.header.claim_txg;
        let mut blocks = vec![link.pointer];
        if claim_txg.0 != 0 {
            let records = link.content.iter().flat_map(|content| content.raw_records());
            let written = records.filter_map(|record| record.write_pointer().ok().flatten());
            blocks
                .extend(written.filter(|block| block.birth() >= claim_txg && !block.is_hole() && !block.is_embedded()));
        }
        blocks.retain(|block| block.dva(0).is_some_and(|dva| self.given.insert((dva.vdev, dva.offset_bytes))));
        blocks
    }

    /// The numbers at which a claimed log ends.
    const fn claimed(&self) -> (u64, u64) {
        match self.header.claim_txg.0 {
            0 => (u64::MAX, u64::MAX),
            _ if self.header.flags & ZilHeader::CLAIM_RECORD_SEQ_VALID == 0 => (self.header.claim_block_seq, u64::MAX),
            _ => (self.header.claim_block_seq, self.header.claim_record_seq),
        }
    }

    /// The next block; `None` at the end.
    #[boxed]
    pub async fn next(&mut self) -> Option<Link> {
        if self.end.is_some() {
            return None;
        }
        let pointer = self.at;
        if pointer.is_hole() {
            self.end = Some(End::Hole);
            return None;
        }
        let (block_max, record_max) = self.claimed();
        let sequence = LogBlockId::of(&pointer).sequence;
        if sequence > block_max {
            self.end = Some(End::Claimed);
            return None;
        }
        assert!(sequence > self.last_block || self.last_block == 0, "blocks of a chain rise");
        self.last_block = sequence;
        assert!(sequence <= block_max, "a claimed log ends where the claim says (invariant 3)");
        if (self.last_block, self.last_record) == (block_max, record_max) {
            self.end = Some(End::Claimed);
            return Some(Link { pointer, content: None, next: Blkptr::HOLE, is_damaged: false });
        }
        let mut is_damaged = false;
        let content = match self.read(&pointer, record_max, &mut is_damaged).await {
            Ok((content, next)) => {
                self.at = next;
                Some(content)
            }
            Err(end) => {
                self.end = Some(end);
                None
            }
        };
        let next = if content.is_some() { self.at } else { Blkptr::HOLE };
        is_damaged &= content.is_some();
        Some(Link { pointer, content, next, is_damaged })
    }

    /// Reads a block whose link goes on, and counts its records.
    async fn read(
        &mut self,
        pointer: &Blkptr,
        record_max: u64,
        is_damaged: &mut bool,
    ) -> Result<(Content, Blkptr), End> {
        let layout = pointer.checksum().and_then(ChainLayout::of).ok_or(End::Absent)?;
        let bytes = match self.ahead.read(self.zio, pointer).await {
            Ok((bytes, damaged)) => {
                *is_damaged = damaged;
                bytes
            }
            Err(error) if is_missing(&error) => return Err(End::Device(error)),
            Err(_) => return Err(End::Absent),
        };
        let order = pointer.byte_order();
        let block = LogBlock::parse(&bytes, layout, order).map_err(End::Damaged)?;
        if !block.continues(pointer) {
            return Err(End::Absent);
        }
        let (next, used_bytes) = (block.chain.next, block.chain.used_bytes);
        let is_encrypted = pointer.is_encrypted();
        let mut count = 0;
        for (raw, whole) in block.raw_records().zip(readable(&block, is_encrypted)) {
            let read =
                raw.and_then(|raw| raw.write_pointer().and(raw.cloned_blocks()).and(whole).map(|()| raw.sequence));
            self.end = match read {
                Ok(sequence) if sequence > record_max => Some(End::Claimed),
                Ok(sequence) if sequence <= self.last_record => Some(End::Unordered),
                Ok(sequence) => {
                    self.last_record = sequence;
                    count += 1;
                    continue;
                }
                Err(error) => Some(End::Damaged(error)),
            };
            break;
        }
        assert!(self.last_record <= record_max, "a claimed log ends at the record that the claim says (invariant 3)");
        Ok((Content { bytes, layout, order, is_encrypted, count, used_bytes }, next))
    }
}

/// Whether each record can be read as a whole; of an encrypted block that is not known.
fn readable(block: &LogBlock<'_>, is_encrypted: bool) -> Box<dyn Iterator<Item = Result<(), FormatError>>> {
    if is_encrypted {
        return Box::new(std::iter::repeat_with(|| Ok(())));
    }
    let read: Vec<_> = block.records().map(|record| record.map(drop)).collect();
    Box::new(read.into_iter())
}

/// Whether a block may be there all the same: nothing was read where it should be. Bytes that do not verify are of another block.
fn is_missing(error: &ZioError) -> bool {
    matches!(error.kind(), ZioErrorKind::NoGoodCopy { last, .. } if last.may_be_elsewhere())
}
