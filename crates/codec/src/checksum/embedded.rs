//! Checksums that lie inside the block they cover: labels, gang headers, intent log blocks.
//!
//! ```text
//! trailer (zio_eck), 40 bytes:
//!     0   8  magic 0x0210da7ab10c7a11, in the order of the writer: tells the order of the whole block
//!     8  32  checksum words
//!
//! label, gang header, zilog: the trailer is the block's last 40 bytes
//! zilog2: it is in the chain record at the block's start, and the sum covers only the bytes in use:
//!     0    8  pad
//!     8  128  pointer to the next log block
//!   136    8  bytes used; the sum covers this much, rounded up to 4096
//!   144   40  trailer
//! ```
//!
//! The sum is taken with a *verifier* in place of the checksum words: a value that says which block this should be, so
//! that a stale or misplaced block does not pass.
//!
//! ```text
//! label         sha256     byte offset on the device, 0, 0, 0
//! gang header   sha256     vdev, offset (of the pointer's first DVA), birth txg, 0
//! zilog         fletcher2  the words of the pointer that led here (log GUID halves, objset, sequence)
//! zilog2        fletcher4  the same
//! ```

use cenote_format::Endian;
use sha2::{Digest, Sha256};

use super::fletcher::{Fletcher2, Fletcher4};
use super::{ChecksumError, Words, compare, words};
use cenote_format::enums::Checksum;

/// The trailer's magic number.
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// The trailer's length.
pub(crate) const TRAILER_SIZE: usize = 40;
const MAGIC_SIZE: usize = 8;
const WORDS_SIZE: usize = 32;
/// Where a zilog2 block says how many of its bytes are used.
const ZILOG2_USED_OFFSET: usize = 136;
/// Where a zilog2 block has its trailer.
const ZILOG2_TRAILER_OFFSET: usize = ZILOG2_USED_OFFSET + 8;
/// Zilog2 sums cover a multiple of this.
const ZILOG2_UNIT: u64 = 4096;

/// The verifier of a label block: its byte offset on the device.
#[must_use]
pub const fn label_verifier(offset_bytes: u64) -> Words {
    [offset_bytes, 0, 0, 0]
}

/// The verifier of a gang header: the vdev and offset of the gang pointer's first DVA and its birth txg. The offset is
/// the DVA's (from the start of the allocatable space). The sum is compared by [`verify_embedded`], which has to be told
/// whether the pointer is of an encrypted block: of such a header only half the sum is kept, beside a MAC.
#[must_use]
pub const fn gang_verifier(vdev: u64, offset_bytes: u64, physical_birth: u64) -> Words {
    [vdev, offset_bytes, physical_birth, 0]
}

/// Verifies a label block (the nvlist area, an uberblock, ...) read from `offset_bytes` of its device. Returns the order
/// in which the block was written.
pub fn verify_label(block: &[u8], offset_bytes: u64) -> Result<Endian, ChecksumError> {
    verify_embedded(Checksum::Label, block, label_verifier(offset_bytes), false)
}

/// Verifies the copies of a label block that a disk has at several offsets. The offset enters the checksum only in the trailer. So for copies
/// that are equal up to the trailer, the bytes before it are hashed once.
#[derive(Clone, Debug, Default)]
pub struct LabelCopies<'a> {
    /// The bytes before the checksum words of the last copy, and the state of the hash after them.
    summed: Option<(&'a [u8], Sha256)>,
}

impl<'a> LabelCopies<'a> {
    /// As [`verify_label`].
    pub fn verify(&mut self, block: &'a [u8], offset_bytes: u64) -> Result<Endian, ChecksumError> {
        let place = locate(Checksum::Label, block)?;
        let front = &block[..place.words_offset];
        let state = match &self.summed {
            Some((summed, state)) if *summed == front => state.clone(),
            _ => {
                let state = Sha256::new_with_prefix(front);
                self.summed = Some((front, state.clone()));
                state
            }
        };
        let stored = read_words(block, place.words_offset, place.order);
        let rest = &block[place.words_offset + WORDS_SIZE..place.covered];
        let actual = sha256(state, [&bytes(&label_verifier(offset_bytes), place.order), rest]);
        compare(Checksum::Label, stored, actual, false)?;
        Ok(place.order)
    }
}

/// Verifies an intent log block of either kind against the checksum words of the pointer that led to it.
pub fn verify_zilog(
    kind: Checksum,
    block: &[u8],
    pointer_words: Words,
    encrypted: bool,
) -> Result<Endian, ChecksumError> {
    if !matches!(kind, Checksum::Zilog | Checksum::Zilog2) {
        return Err(ChecksumError::NotComputable(kind));
    }
    verify_embedded(kind, block, pointer_words, encrypted)
}

/// Verifies a block with a checksum of any embedded `kind`, given its verifier; returns the order it was written in.
/// `encrypted` as in [`super::verify`].
pub fn verify_embedded(
    kind: Checksum,
    block: &[u8],
    verifier: Words,
    encrypted: bool,
) -> Result<Endian, ChecksumError> {
    let place = locate(kind, block)?;
    let stored = read_words(block, place.words_offset, place.order);
    let actual = sum(kind, &block[..place.covered], place.words_offset, &verifier, place.order);
    compare(kind, stored, actual, encrypted)?;
    Ok(place.order)
}

/// Puts magic and checksum into a block, in `order`. For zilog2 the used length must already be in place. `mac` is what
/// words 2 and 3 become in an encrypted log block.
pub fn seal_embedded(
    kind: Checksum,
    block: &mut [u8],
    verifier: Words,
    order: Endian,
    mac: Option<[u64; 2]>,
) -> Result<(), ChecksumError> {
    let (trailer, covered) = extent(kind, block, order)?;
    block[trailer..trailer + MAGIC_SIZE].copy_from_slice(&order.bytes64(MAGIC));
    let words_offset = trailer + MAGIC_SIZE;
    let mut sums = sum(kind, &block[..covered], words_offset, &verifier, order);
    if let Some([low, high]) = mac {
        sums = super::truncate_for_mac(kind, sums);
        sums[2] = low;
        sums[3] = high;
    }
    block[words_offset..words_offset + WORDS_SIZE].copy_from_slice(&bytes(&sums, order));
    Ok(())
}

/// The part of a block that is summed, and where its words are. `words_offset + 32 <= covered <= block.len()`.
struct Place {
    order: Endian,
    words_offset: usize,
    covered: usize,
}

fn locate(kind: Checksum, block: &[u8]) -> Result<Place, ChecksumError> {
    let trailer = trailer_offset(kind, block.len())?;
    let magic = read_u64(block, trailer, Endian::Little);
    let order = if magic == MAGIC {
        Endian::Little
    } else if magic == MAGIC.swap_bytes() {
        Endian::Big
    } else {
        return Err(ChecksumError::Trailer("wrong magic number"));
    };
    let (trailer, covered) = extent(kind, block, order)?;
    Ok(Place { order, words_offset: trailer + MAGIC_SIZE, covered })
}

/// Where the trailer starts, having made sure that it fits.
fn trailer_offset(kind: Checksum, len: usize) -> Result<usize, ChecksumError> {
    let (offset, unit) = match kind {
        Checksum::Label | Checksum::GangHeader => (len.checked_sub(TRAILER_SIZE), 8),
        Checksum::Zilog => (len.checked_sub(TRAILER_SIZE), 16),
        Checksum::Zilog2 => (Some(ZILOG2_TRAILER_OFFSET), 4),
        _ => return Err(ChecksumError::NotComputable(kind)),
    };
    if !len.is_multiple_of(unit) {
        return Err(ChecksumError::Trailer("length is not a multiple of the sum's unit"));
    }
    match offset {
        Some(offset) if offset + TRAILER_SIZE <= len => Ok(offset),
        _ => Err(ChecksumError::Trailer("block shorter than its trailer")),
    }
}

/// The trailer's offset and the length summed.
fn extent(kind: Checksum, block: &[u8], order: Endian) -> Result<(usize, usize), ChecksumError> {
    let trailer = trailer_offset(kind, block.len())?;
    if kind != Checksum::Zilog2 {
        return Ok((trailer, block.len()));
    }
    let covered = read_u64(block, ZILOG2_USED_OFFSET, order)
        .checked_next_multiple_of(ZILOG2_UNIT)
        .and_then(|covered| usize::try_from(covered).ok())
        .filter(|covered| *covered <= block.len())
        .ok_or(ChecksumError::Trailer("used length beyond the block"))?;
    if covered < trailer + TRAILER_SIZE {
        return Err(ChecksumError::Trailer("used length shorter than the trailer"));
    }
    Ok((trailer, covered))
}

/// The checksum of `data` as if `verifier` stood at `words_offset`.
fn sum(kind: Checksum, data: &[u8], words_offset: usize, verifier: &Words, order: Endian) -> Words {
    let verifier = bytes(verifier, order);
    let pieces = [&data[..words_offset], &verifier[..], &data[words_offset + WORDS_SIZE..]];
    match kind {
        Checksum::Zilog => {
            let mut state = Fletcher2::new();
            pieces.iter().for_each(|piece| state.update(piece, order));
            state.finish()
        }
        Checksum::Zilog2 => {
            let mut state = Fletcher4::new();
            pieces.iter().for_each(|piece| state.update(piece, order));
            state.finish()
        }
        _ => sha256(Sha256::new(), pieces),
    }
}

/// The checksum of what the hash has taken in so far, followed by these pieces.
fn sha256<const N: usize>(mut state: Sha256, pieces: [&[u8]; N]) -> Words {
    pieces.iter().for_each(|piece| state.update(piece));
    words(&state.finalize().into(), Endian::Big)
}

fn bytes(words: &Words, order: Endian) -> [u8; WORDS_SIZE] {
    let mut out = [0; WORDS_SIZE];
    for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&order.bytes64(*word));
    }
    out
}

/// A word at an offset already known to lie inside.
fn read_u64(block: &[u8], offset: usize, order: Endian) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&block[offset..offset + 8]);
    order.u64(bytes)
}

fn read_words(block: &[u8], offset: usize, order: Endian) -> Words {
    std::array::from_fn(|i| read_u64(block, offset + 8 * i, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(len: usize, order: Endian) -> Vec<u8> {
        let mut block: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        if len >= ZILOG2_TRAILER_OFFSET {
            let used = order.bytes64(5000);
            block[ZILOG2_USED_OFFSET..ZILOG2_USED_OFFSET + 8].copy_from_slice(&used);
        }
        block
    }

    const KINDS: [Checksum; 4] = [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2];

    #[test]
    fn a_sealed_block_verifies_in_either_order_and_only_with_its_verifier() {
        for order in [Endian::Little, Endian::Big] {
            for kind in KINDS {
                let mut block = block(16384, order);
                let verifier = [1, 2, 3, 4];
                seal_embedded(kind, &mut block, verifier, order, None).unwrap();
                assert_eq!(verify_embedded(kind, &block, verifier, false), Ok(order));
                assert!(verify_embedded(kind, &block, [1, 2, 3, 5], false).is_err());
                let inside = 4097;
                block[inside] ^= 1;
                assert!(verify_embedded(kind, &block, verifier, false).is_err());
            }
        }
    }

    /// Good copies at several offsets and in both byte orders, a copy from another offset, and copies damaged in front and in the trailer.
    #[test]
    fn copies_of_a_label_verify_as_each_alone_does() {
        let sealed = |offset, order| {
            let mut block = block(114_688, order);
            seal_embedded(Checksum::Label, &mut block, label_verifier(offset), order, None).unwrap();
            block
        };
        let offsets = [16384, 278_528, 1 << 30, (1 << 30) + 262_144, 5, 6, 7, 8];
        let mut blocks: Vec<_> = offsets.map(|offset| sealed(offset, Endian::Little)).into();
        blocks[4] = sealed(offsets[4], Endian::Big);
        blocks[5] = blocks[0].clone();
        blocks[6][1000] ^= 1;
        *blocks[7].last_mut().unwrap() ^= 1;
        let mut copies = LabelCopies::default();
        let alone = |at: usize| verify_label(&blocks[at], offsets[at]);
        for at in [0, 1, 2, 3, 4, 5, 6, 7, 3, 0] {
            assert_eq!(copies.verify(&blocks[at], offsets[at]), alone(at), "{at}");
        }
        assert_eq!([5, 6, 7].map(|at| alone(at).is_err()), [true; 3]);
        assert_eq!(alone(4), Ok(Endian::Big));
        assert!(copies.verify(&blocks[0][..39], 0).is_err());
    }

    #[test]
    fn zilog2_ignores_what_lies_past_the_used_length() {
        let mut block = block(16384, Endian::Little);
        seal_embedded(Checksum::Zilog2, &mut block, [9; 4], Endian::Little, Some([7, 8])).unwrap();
        block[8192] ^= 1;
        assert_eq!(verify_zilog(Checksum::Zilog2, &block, [9; 4], true), Ok(Endian::Little));
        assert!(verify_zilog(Checksum::Zilog2, &block, [9; 4], false).is_err());
        block[8191] ^= 1;
        assert!(verify_zilog(Checksum::Zilog2, &block, [9; 4], true).is_err());
    }

    #[test]
    fn hostile_lengths_are_errors_not_panics() {
        for kind in Checksum::ALL {
            for len in 0..600 {
                assert!(verify_embedded(*kind, &vec![0x11; len], [0; 4], false).is_err());
            }
        }
        for used in [0, 1, 183, 4097, 1 << 40, u64::MAX - 5000, u64::MAX] {
            let mut block = vec![0; 4096];
            block[ZILOG2_USED_OFFSET..ZILOG2_USED_OFFSET + 8].copy_from_slice(&used.to_le_bytes());
            block[ZILOG2_TRAILER_OFFSET..ZILOG2_TRAILER_OFFSET + 8].copy_from_slice(&MAGIC.to_le_bytes());
            assert!(verify_embedded(Checksum::Zilog2, &block, [0; 4], false).is_err());
        }
    }
}
