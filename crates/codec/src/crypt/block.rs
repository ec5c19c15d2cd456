//! Which parts of a block are encrypted, and encryption and decryption of whole blocks.
//!
//! ```text
//! normal       |################################################|      # encrypted, . extra data, (blank) neither
//!
//! dnode block  each dnode:  | core 64 | pointers | bonus ####### | spill |
//!                             masked    Entry      # or .          Entry
//!
//! intent log   | header 144 | checksum 40 | record | record | ... | zeros
//!                .            [16..] MAC
//!              record, write:  | lr 32 . | 32 # | pointer 128 . | data # |
//!              record, clone:  | lr 32 . | 32 # | pointers ..            |
//!              record, others: | lr 32 . | #                             |
//! ```
//!
//! The parts are found by walking the block, whose plain parts stay readable. The walk trusts nothing: it happens before
//! the MAC is checked, as the MAC needs it.

use std::ops::Range;

use cenote_format::Endian;

use super::cipher::Cipher;
use super::params::BLKPTR_BYTES;
use super::pointers::Entry;
use super::{CryptError, IV_BYTES, MAC_BYTES, object_type_is_encrypted};

/// How a level-0 block divides into encrypted and authenticated parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockLayout {
    /// Encrypted from end to end.
    Normal,
    /// A block of dnodes: bonus buffers are encrypted.
    Dnode,
    /// A block of the intent log: record bodies are encrypted.
    IntentLog,
}

impl BlockLayout {
    /// The layout of an encrypted object type's blocks (`dmu_object_type_t`).
    #[must_use]
    pub const fn of_object_type(object_type: u8) -> Self {
        match object_type {
            INTENT_LOG_TYPE => Self::IntentLog,
            DNODE_TYPE => Self::Dnode,
            _ => Self::Normal,
        }
    }
}

const INTENT_LOG_TYPE: u8 = 9;
const DNODE_TYPE: u8 = 10;

/// The encrypted ranges of a block, in order, and the extra data to authenticate with them.
struct Parts {
    sealed: Vec<Range<usize>>,
    extra: Vec<u8>,
}

/// Encrypts a block in place and returns its MAC. In an intent log block the MAC is also put where it belongs, and what
/// lies beyond the used part becomes zero.
pub(super) fn seal(
    cipher: &Cipher,
    version: u64,
    layout: BlockLayout,
    order: Endian,
    iv: &[u8; IV_BYTES],
    block: &mut [u8],
) -> Result<[u8; MAC_BYTES], CryptError> {
    let parts = match layout {
        BlockLayout::Normal => return cipher.seal(iv, &[], block),
        BlockLayout::Dnode => dnode_parts(block, order, version)?,
        BlockLayout::IntentLog => intent_log_parts(block, order)?,
    };
    let mut data = gather(block, &parts.sealed);
    let mac = cipher.seal(iv, &parts.extra, &mut data)?;
    scatter(block, &parts.sealed, &data);
    if layout == BlockLayout::IntentLog
        && let Some(place) = block.get_mut(LOG_MAC)
    {
        place.copy_from_slice(&mac);
    }
    Ok(mac)
}

/// Decrypts a block in place, or fails and leaves it unspecified.
pub(super) fn open(
    cipher: &Cipher,
    version: u64,
    layout: BlockLayout,
    order: Endian,
    (iv, mac): (&[u8; IV_BYTES], &[u8; MAC_BYTES]),
    block: &mut [u8],
) -> Result<(), CryptError> {
    let parts = match layout {
        BlockLayout::Normal => return cipher.open(iv, &[], block, mac),
        BlockLayout::Dnode => dnode_parts(block, order, version)?,
        BlockLayout::IntentLog => intent_log_parts(block, order)?,
    };
    let mac = match layout {
        BlockLayout::IntentLog => intent_log_mac(block)?,
        _ => *mac,
    };
    let mut data = gather(block, &parts.sealed);
    cipher.open(iv, &parts.extra, &mut data, &mac)?;
    scatter(block, &parts.sealed, &data);
    Ok(())
}

fn gather(block: &[u8], ranges: &[Range<usize>]) -> Vec<u8> {
    let mut data = Vec::with_capacity(ranges.iter().map(Range::len).sum());
    for range in ranges {
        data.extend_from_slice(&block[range.clone()]);
    }
    data
}

fn scatter(block: &mut [u8], ranges: &[Range<usize>], data: &[u8]) {
    let mut rest = data;
    for range in ranges {
        let (head, tail) = rest.split_at(range.len());
        block[range.clone()].copy_from_slice(head);
        rest = tail;
    }
}

/// A dnode's fields that the walk needs, and the places of its parts. Byte-sized fields only, so the order is no matter.
pub(super) struct DnodeParts {
    /// Slots of 512 bytes it takes.
    pub(super) slots: usize,
    /// The rest behind the pointers.
    pub(super) bonus: Range<usize>,
    /// Whether the bonus buffer is encrypted.
    bonus_is_sealed: bool,
}

/// Bytes of a dnode slot.
pub(super) const DNODE_BYTES: usize = 512;
/// Bytes of a dnode in front of its block pointers.
pub(super) const DNODE_CORE_BYTES: usize = 64;
/// Flag: the dnode's last 128 bytes are the spill block's pointer. The one flag that a raw send carries.
const DNODE_SPILL_FLAG: u8 = 4;

impl DnodeParts {
    /// Walks the dnode at the start of `dnodes`.
    pub(super) fn new(dnodes: &[u8]) -> Result<Self, CryptError> {
        let malformed = |rule| CryptError::Malformed { structure: "dnode", rule };
        let core: &[u8; DNODE_CORE_BYTES] = dnodes.first_chunk().ok_or(malformed("cut short"))?;
        let [object_type, _, _, pointer_count, bonus_type, _, _, flags, _, _, bonus_len0, bonus_len1, extra_slots, ..] =
            *core;
        let slots = usize::from(extra_slots) + 1;
        let end = slots * DNODE_BYTES;
        if end > dnodes.len() {
            return Err(malformed("extends past its block"));
        }
        let bonus_start = DNODE_CORE_BYTES + usize::from(pointer_count) * BLKPTR_BYTES;
        let has_spill = flags & DNODE_SPILL_FLAG != 0;
        let bonus_end = if has_spill { end - BLKPTR_BYTES } else { end };
        if bonus_start > bonus_end {
            return Err(malformed("more block pointers than fit"));
        }
        let bonus_is_sealed =
            object_type != 0 && object_type_is_encrypted(bonus_type) && (bonus_len0, bonus_len1) != (0, 0);
        Ok(Self { slots, bonus: bonus_start..bonus_end, bonus_is_sealed })
    }

    /// The block pointers, then the spill block's, of the dnode at the start of `dnodes`.
    pub(super) fn pointers<'a>(&self, dnodes: &'a [u8]) -> impl Iterator<Item = &'a [u8; BLKPTR_BYTES]> + use<'a> {
        let spill = self.bonus.end..self.slots * DNODE_BYTES;
        let plain = dnodes[DNODE_CORE_BYTES..self.bonus.start].as_chunks().0;
        plain.iter().chain(dnodes[spill].first_chunk())
    }
}

/// The core of a dnode as the MACs see it: without the flags and the space count, which are the pool's own.
pub(super) fn portable_core(dnode: &[u8]) -> [u8; DNODE_CORE_BYTES] {
    let mut core = [0; DNODE_CORE_BYTES];
    core.copy_from_slice(&dnode[..DNODE_CORE_BYTES]);
    core[7] &= DNODE_SPILL_FLAG;
    core[24..32].fill(0);
    core
}

fn dnode_parts(block: &[u8], order: Endian, version: u64) -> Result<Parts, CryptError> {
    if !block.len().is_multiple_of(DNODE_BYTES) {
        return Err(CryptError::Malformed { structure: "dnode block", rule: "not a whole number of dnodes" });
    }
    let mut parts = Parts { sealed: Vec::new(), extra: Vec::with_capacity(block.len()) };
    let mut at = 0;
    while at < block.len() {
        let dnodes = &block[at..];
        let dnode = DnodeParts::new(dnodes)?;
        parts.extra.extend_from_slice(&portable_core(dnodes));
        for pointer in dnode.pointers(dnodes) {
            parts.extra.extend_from_slice(Entry::new(pointer, order, version).bytes());
        }
        if dnode.bonus_is_sealed {
            parts.sealed.push(at + dnode.bonus.start..at + dnode.bonus.end);
        } else {
            parts.extra.extend_from_slice(&dnodes[dnode.bonus.clone()]);
        }
        at += dnode.slots * DNODE_BYTES;
    }
    Ok(parts)
}

/// The header of an intent log block: padding, pointer to the next block, bytes used; then the embedded checksum.
const LOG_USED_AT: usize = 8 + BLKPTR_BYTES;
const LOG_CHECKSUM_AT: usize = LOG_USED_AT + 8;
const LOG_HEADER_BYTES: usize = LOG_CHECKSUM_AT + 8 + 32;
/// The MAC takes the place of the checksum's last two words.
const LOG_MAC: Range<usize> = LOG_HEADER_BYTES - MAC_BYTES..LOG_HEADER_BYTES;

/// A record: type, length, txg, sequence number; then its body.
const RECORD_HEAD_BYTES: usize = 32;
const RECORD_WRITE: u64 = 9;
const RECORD_CLONE: u64 = 24;
/// Both have four words of body in front of the block pointers.
const RECORD_POINTERS_AT: usize = RECORD_HEAD_BYTES + 32;

/// The MAC that an encrypted intent log block holds of itself.
pub(crate) fn intent_log_mac(block: &[u8]) -> Result<[u8; MAC_BYTES], CryptError> {
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(
        block.get(LOG_MAC).ok_or(CryptError::Malformed { structure: "intent log block", rule: "cut short" })?,
    );
    Ok(mac)
}

/// Also clears what lies beyond the used part, as nothing protects it.
fn intent_log_parts(block: &mut [u8], order: Endian) -> Result<Parts, CryptError> {
    let malformed = |rule| CryptError::Malformed { structure: "intent log block", rule };
    let word = |block: &[u8], at: usize| {
        let bytes = block.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| order.u64(*bytes)).ok_or(malformed("cut short"))
    };
    let used = usize::try_from(word(block, LOG_USED_AT)?).map_err(|_| malformed("uses more bytes than it has"))?;
    if used < LOG_HEADER_BYTES {
        return Err(malformed("uses fewer bytes than its header"));
    }
    block.get_mut(used..).ok_or(malformed("uses more bytes than it has"))?.fill(0);

    let records = &block[..used];
    let mut parts = Parts { sealed: Vec::new(), extra: records[..LOG_CHECKSUM_AT].to_vec() };
    let mut at = LOG_HEADER_BYTES;
    while at < used {
        let record_type = word(records, at)?;
        let len = usize::try_from(word(records, at + 8)?).map_err(|_| malformed("record longer than the block"))?;
        let record = records[at..].get(..len).ok_or(malformed("record longer than the block"))?;
        let head = record.get(..RECORD_HEAD_BYTES).ok_or(malformed("record shorter than its head"))?;
        parts.extra.extend_from_slice(head);
        // The part of the body that stays plain: block pointers, which claiming must be able to follow without a key.
        let plain = match record_type {
            RECORD_WRITE => RECORD_POINTERS_AT..RECORD_POINTERS_AT + BLKPTR_BYTES,
            RECORD_CLONE => RECORD_POINTERS_AT..len,
            _ => len..len,
        };
        parts.extra.extend_from_slice(record.get(plain.clone()).ok_or(malformed("record shorter than its type"))?);
        let sealed = [RECORD_HEAD_BYTES..plain.start, plain.end..len];
        let sealed = sealed.into_iter().filter(|range| !range.is_empty());
        parts.sealed.extend(sealed.map(|range| at + range.start..at + range.end));
        at += len;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypt::CryptSuite;
    use cenote_format::endian::put_u64;

    const IV: [u8; IV_BYTES] = *b"some12bytes.";

    fn cipher() -> Cipher {
        Cipher::new(CryptSuite::Aes256Gcm, &[3; 32]).unwrap()
    }

    fn round_trip(layout: BlockLayout, order: Endian, plain: &[u8]) -> Vec<u8> {
        let mut block = plain.to_vec();
        let mac = seal(&cipher(), 1, layout, order, &IV, &mut block).unwrap();
        let sealed = block.clone();
        open(&cipher(), 1, layout, order, (&IV, &mac), &mut block).unwrap();
        if layout == BlockLayout::IntentLog {
            block[LOG_MAC].copy_from_slice(&plain[LOG_MAC]);
        }
        assert_eq!(block, plain);
        sealed
    }

    /// Flipping any bit of these bytes must be noticed, and of all others must not.
    fn check_protection(layout: BlockLayout, order: Endian, plain: &[u8], is_protected: impl Fn(usize) -> bool) {
        let mut sealed = plain.to_vec();
        let mac = seal(&cipher(), 1, layout, order, &IV, &mut sealed).unwrap();
        for at in 0..plain.len() {
            let mut block = sealed.clone();
            block[at] ^= 0x10;
            let result = open(&cipher(), 1, layout, order, (&IV, &mac), &mut block);
            assert_eq!(result.is_err(), is_protected(at), "byte {at}");
        }
    }

    /// Three dnodes: one with an encrypted bonus and a spill pointer, a plain one of two slots, an unallocated slot.
    fn dnodes() -> Vec<u8> {
        let mut block: Vec<u8> = (0..4 * DNODE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        let (ones, rest) = block.split_at_mut(DNODE_BYTES);
        ones[..16].copy_from_slice(&[19, 17, 1, 1, 44, 0, 0, 7, 1, 0, 0, 1, 0, 0, 0, 0]);
        rest[..16].copy_from_slice(&[14, 17, 1, 3, 12, 0, 0, 3, 1, 0, 64, 0, 1, 0, 0, 0]);
        rest[2 * DNODE_BYTES..].fill(0);
        block
    }

    #[test]
    fn of_dnodes_only_encrypted_bonus_buffers_change() {
        let plain = dnodes();
        let sealed = round_trip(BlockLayout::Dnode, Endian::Little, &plain);
        let changed: Vec<usize> = (0..plain.len()).filter(|at| plain[*at] != sealed[*at]).collect();
        assert!(changed.iter().all(|at| (192..384).contains(at)));
        assert!(changed.len() > 150);
    }

    #[test]
    fn all_of_a_dnode_but_the_pools_own_fields_is_protected() {
        for order in [Endian::Little, Endian::Big] {
            let pointer = |at: usize| {
                // Within a pointer: the property word's portable bytes and the MAC. The bit flipped is the fifth of a
                // byte, so each byte of the property word counts but the checksum's; in a hole none would.
                let prop_checksum = if order == Endian::Little { 53 } else { 50 };
                (48..56).contains(&at) && at != prop_checksum || (112..128).contains(&at)
            };
            // Levels of the synthetic pointers are whatever the pattern holds; make them level 0.
            let mut plain = dnodes();
            for start in [64, 384, 512 + 64, 512 + 192, 512 + 320] {
                put_u64(&mut plain, start + 48, 1 << 63 | 19 << 48 | 2 << 32 | 3 << 16 | 3, order);
            }
            check_protection(BlockLayout::Dnode, order, &plain, |at| match at {
                0..512 if (64..192).contains(&at) => pointer(at - 64),
                384..512 => pointer(at - 384),
                576..960 => pointer((at - 576) % 128),
                // Flags: the bit flipped is none that counts.
                7 | 519 | 1543 => false,
                _ => !(24..32).contains(&(at % 512)) || (1024..1536).contains(&at),
            });
        }
    }

    fn log_block(order: Endian) -> Vec<u8> {
        let mut block: Vec<u8> = (0..2048).map(|at| (at * 3 % 255) as u8).collect();
        let mut at = LOG_HEADER_BYTES;
        for (record_type, len) in [(RECORD_WRITE, 192 + 72), (1, 80), (RECORD_CLONE, 64 + 256), (RECORD_WRITE, 192)] {
            put_u64(&mut block, at, record_type, order);
            put_u64(&mut block, at + 8, len as u64, order);
            at += len;
        }
        put_u64(&mut block, LOG_USED_AT, at as u64, order);
        block[at..].fill(0);
        block
    }

    #[test]
    fn log_records_are_protected_and_pointers_stay_readable() {
        for order in [Endian::Little, Endian::Big] {
            let plain = log_block(order);
            let sealed = round_trip(BlockLayout::IntentLog, order, &plain);
            let first = LOG_HEADER_BYTES;
            let second = first + 264;
            let clone = second + 80;
            assert_eq!(sealed[first + 64..first + 192], plain[first + 64..first + 192]);
            assert_ne!(sealed[first + 32..first + 64], plain[first + 32..first + 64]);
            assert_ne!(sealed[first + 192..second], plain[first + 192..second]);
            assert_ne!(sealed[second + 32..clone], plain[second + 32..clone]);
            assert_eq!(sealed[clone + 64..clone + 320], plain[clone + 64..clone + 320]);
            let used = clone + 320 + 192;
            check_protection(BlockLayout::IntentLog, order, &plain, |at| {
                // The checksum's magic and first words are the device layer's; beyond the used part nothing counts.
                !(LOG_CHECKSUM_AT..LOG_MAC.start).contains(&at) && at < used
            });
        }
    }

    #[test]
    fn lying_structures_are_errors() {
        let mut cases: Vec<(BlockLayout, Vec<u8>)> = Vec::new();
        let base = dnodes();
        for (at, value) in [(3, 4), (3, 255), (12, 4), (12, 255), (512 + 12, 3)] {
            let mut block = base.clone();
            block[at] = value;
            cases.push((BlockLayout::Dnode, block));
        }
        cases.push((BlockLayout::Dnode, base[..700].to_vec()));
        let base = log_block(Endian::Little);
        let first = LOG_HEADER_BYTES;
        for (at, value) in [
            (LOG_USED_AT, 0),
            (LOG_USED_AT, 183),
            (LOG_USED_AT, 2049),
            (LOG_USED_AT, u64::MAX),
            (first + 8, 0),
            (first + 8, 31),
            (first + 8, 191),
            (first + 8, 3000),
            (first + 8, u64::MAX),
        ] {
            let mut block = base.clone();
            put_u64(&mut block, at, value, Endian::Little);
            cases.push((BlockLayout::IntentLog, block));
        }
        for len in [0, 100, 143, 150, 183] {
            cases.push((BlockLayout::IntentLog, base[..len].to_vec()));
        }
        for (layout, block) in cases {
            for result in [
                seal(&cipher(), 1, layout, Endian::Little, &IV, &mut block.clone()).map(|_| ()),
                open(&cipher(), 1, layout, Endian::Little, (&IV, &[0; 16]), &mut block.clone()),
            ] {
                assert!(matches!(result, Err(CryptError::Malformed { .. })), "{layout:?} {result:?}");
            }
        }
    }
}
