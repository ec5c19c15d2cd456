//! Blocks whose stored bytes are ready: they came compressed, or encrypted, from elsewhere, and are written as they came.
//!
//! ```text
//! redacted     left out of a stream: no bytes at all ─► a pointer that says so
//! compressed   zeros up to the allocation unit ─► checksum ─► same as before? ─► allocate, store      never in the pointer, never a hole
//! sealed       as it is: a byte more would break its MAC ─► checksum, cut for the MAC ─► allocate, store
//! ```
//! A *seal* is the salt, IV and MAC of a block of an encrypted dataset, with the byte order that its pointer is to say. Without the key
//! only such blocks can be written into the lowest level of an encrypted dataset. Blocks above get their MACs without a key.

use cenote_codec::compress::{self, CompressError, decompress};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_taskq::buf::{Block, Buf};

use crate::seal::Seal;
use crate::write::{Content, Protection, hole, is_unchanged, padded};
use crate::{AllocationUnits, Prepared, WritePolicy, Zio, ZioError, ZioErrorKind};

/// The form of bytes that are stored as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyForm {
    /// Their compression.
    pub compress: Compress,
    /// The size of the block that they stand for, in bytes: a multiple of 512.
    pub logical_bytes: u32,
    /// The seal of a block of an encrypted dataset.
    pub seal: Option<Seal>,
    /// The block was left out of a redacted stream: there are no bytes, and reading it fails.
    pub is_redacted: bool,
}

/// A block whose stored bytes are ready.
#[derive(Clone, Debug)]
pub struct ReadyBlock {
    /// The bytes; of a sealed block a multiple of 512.
    pub bytes: Block,
    /// Their form.
    pub form: ReadyForm,
}

impl ReadyBlock {
    /// A block of this size that was left out of a redacted stream.
    #[must_use]
    pub fn redacted(logical_bytes: u32) -> Self {
        let form = ReadyForm { compress: Compress::Off, logical_bytes, seal: None, is_redacted: true };
        Self { bytes: Buf::zeroed(0).freeze(), form }
    }

    /// The block that the bytes stand for. `None` for one that is sealed or redacted.
    ///
    /// # Errors
    /// They do not unpack to its size.
    pub fn unpacked(&self) -> Option<Result<Block, CompressError>> {
        if self.form.seal.is_some() || self.form.is_redacted {
            return None;
        }
        if self.form.compress == Compress::Off {
            return Some(Ok(self.bytes.clone()));
        }
        let mut buf = Buf::zeroed(self.form.logical_bytes as usize);
        let unpacked = decompress(self.form.compress, &self.bytes, &mut buf);
        Some(unpacked.map(|()| buf.freeze()))
    }
}

impl Zio {
    /// As [`Zio::prepare`] of a block whose stored bytes are ready.
    ///
    /// # Errors
    /// Its sizes are none that a block has, or the policy asks for what there is not.
    pub fn prepare_ready(
        &self,
        units: AllocationUnits,
        block: &ReadyBlock,
        policy: &WritePolicy,
    ) -> Result<Prepared, ZioError> {
        let fail = |kind| ZioError::new(policy.bookmark, kind);
        let ReadyForm { compress, logical_bytes, seal, is_redacted } = block.form;
        let (len, lsize) = (block.bytes.len(), u64::from(logical_bytes));
        if is_redacted {
            let is_data = policy.level == 0 && (512..=1 << 24).contains(&lsize) && !policy.protects;
            return match is_data {
                true => Ok(Prepared(Content::Unstored(Blkptr::redacted(policy.object_type, lsize, policy.txg)))),
                false => Err(fail(ZioErrorKind::Unwritable("a redacted block that is no plain data"))),
            };
        }
        let is_sized = len > 0
            && lsize.is_multiple_of(512)
            && lsize <= 1 << 24
            && (len as u64) <= lsize
            && (compress != Compress::Off || len as u64 == lsize)
            && (seal.is_none() || len.is_multiple_of(512));
        if !is_sized {
            return Err(fail(ZioErrorKind::Unwritable("stored bytes that no block of this size has")));
        }
        if policy.protects != seal.is_some() {
            return Err(fail(ZioErrorKind::Unwritable(
                "an encrypted dataset has sealed blocks, and no other has them",
            )));
        }
        let physical = match seal {
            // Blocks of dnodes that are all free are told by their zeros.
            Some(_) if policy.object_type == DmuType::DNODE && compress::is_all_zero(&block.bytes) => {
                return Ok(Prepared(Content::Unstored(hole(policy, lsize))));
            }
            Some(_) => block.bytes.clone(),
            None => {
                let rounded = units.round(len as u64).min(lsize) as usize;
                if rounded == len { block.bytes.clone() } else { padded(&block.bytes, rounded).freeze() }
            }
        };
        let protection = seal.map_or(Protection::None, Protection::Sealed);
        let bp = self.pointer(policy, compress, lsize, &physical, protection).map_err(fail)?;
        if is_unchanged(policy, &bp) {
            return Ok(Prepared(Content::Unstored(policy.previous)));
        }
        Ok(Prepared(Content::Stored(bp, physical)))
    }
}
