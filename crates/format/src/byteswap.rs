//! Contents of blocks and bonus buffers from one byte order into the other.
//!
//! # Theory
//!
//! **Need.** A pool tells for each block in which order it was written, so nothing there is ever rewritten for that. A send stream does not:
//! it is in its sender's order, and what is received becomes blocks of the receiver's own.
//!
//! **Means.** The type of an object says how its bytes go together ([`Byteswap`]):
//! ```text
//! Uint8              nothing to do: files, volumes, and system attributes, whose own magic number tells their order
//! Uint16, 32, 64     whole integers; what is left at the end stays
//! Zap                by the first word: a micro ZAP, a leaf, or else whole 64-bit words (header, pointer table)
//! Znode, Acl, Oldacl the fixed structures of before system attributes
//! ```
//! **Invariants.** 1. Swapping what was swapped, with the other order named, gives the bytes back. 2. Lengths and counts in the bytes never lead
//! beyond them.
//!
//! **Rejected.** *Parsing and emitting*: hostile bytes that do not parse would have to be refused, where what uses them can say more about it.

use crate::dmu_type::Byteswap;
use crate::endian::Endian;
use crate::error::FormatError;
use crate::zap::{BLOCK_TYPE_LEAF, BLOCK_TYPE_MICRO, CHUNK_SIZE_BYTES, LeafGeometry, MICRO_ENTRY_SIZE_BYTES};

const STRUCTURE: &str = "contents of another byte order";
/// The size of a znode up to what its ACL does not count.
const ZNODE_WORDS: usize = 22;
const ZNODE_ACL: usize = ZNODE_WORDS * 8;
const ZNODE_ACES: usize = ZNODE_ACL + 16;
const ZNODE_SIZE: usize = ZNODE_ACES + crate::acl::EMBEDDED_ACES_SIZE_BYTES;
/// The parts of a leaf of a ZAP.
const LEAF_HASH_TABLE: usize = 48;
const CHUNK_ARRAY: u8 = 251;
const CHUNK_ENTRY: u8 = 252;
const CHUNK_FREE: u8 = 253;
/// Flags of an ACL's entry that say who it is for, and those that say that it names nobody.
const ACE_WHO: u16 = 0x1000 | 0x2000 | 0x4000 | 0x0040;
const ACE_OF_NOBODY: [u16; 3] = [0x1000, 0x4000, 0x2000 | 0x0040];
/// Types of entries that have object types.
const ACE_OBJECT: std::ops::RangeInclusive<u16> = 5..=8;

/// Turns round integers of these widths, one after another, as far as the bytes reach.
fn turn(bytes: &mut [u8], at: usize, widths: &[usize]) {
    let mut at = at;
    for width in widths {
        if let Some(integer) = bytes.get_mut(at..at + width) {
            integer.reverse();
        }
        at += width;
    }
}

/// Turns round all whole integers of a width.
fn turn_all(bytes: &mut [u8], width: usize) {
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}

/// Swaps the contents of a block or bonus buffer that are in this order.
///
/// # Errors
/// They cannot be of this kind.
pub fn swap(kind: Byteswap, bytes: &mut [u8], order: Endian) -> Result<(), FormatError> {
    match kind {
        Byteswap::Uint8 => {}
        Byteswap::Uint16 => turn_all(bytes, 2),
        Byteswap::Uint32 => turn_all(bytes, 4),
        Byteswap::Uint64 => turn_all(bytes, 8),
        Byteswap::Zap => swap_zap(bytes, order)?,
        Byteswap::Znode => swap_znode(bytes, order)?,
        Byteswap::Acl => swap_aces(bytes, order),
        Byteswap::Oldacl => swap_old_aces(bytes),
        Byteswap::Dnode | Byteswap::Objset => {
            return Err(FormatError::malformed(STRUCTURE, 0, "no object has dnodes or an objset as its contents"));
        }
    }
    Ok(())
}

fn swap_zap(bytes: &mut [u8], order: Endian) -> Result<(), FormatError> {
    let first = bytes.first_chunk().copied();
    let first = first.ok_or_else(|| FormatError::malformed(STRUCTURE, 0, "a ZAP has a first word"))?;
    match order.u64(first) {
        BLOCK_TYPE_MICRO => {
            turn(bytes, 0, &[8, 8, 8]);
            for entry in bytes.chunks_exact_mut(MICRO_ENTRY_SIZE_BYTES).skip(1) {
                turn(entry, 0, &[8, 4]);
            }
        }
        BLOCK_TYPE_LEAF => {
            let geometry = LeafGeometry::of(bytes.len())?;
            let chunks = LEAF_HASH_TABLE + (bytes.len() >> 4);
            debug_assert_eq!(1 << geometry.block_shift, bytes.len(), "a leaf's size is a power of two");
            turn(bytes, 0, &[8, 8, 8, 4, 2, 2, 2, 2]);
            let (head, chunks) = bytes.split_at_mut(chunks);
            turn_all(&mut head[LEAF_HASH_TABLE..], 2);
            for chunk in chunks.chunks_exact_mut(CHUNK_SIZE_BYTES) {
                match chunk[0] {
                    CHUNK_ENTRY => turn(chunk, 2, &[2, 2, 2, 2, 2, 4, 8]),
                    CHUNK_ARRAY | CHUNK_FREE => turn(chunk, CHUNK_SIZE_BYTES - 2, &[2]),
                    _ => return Err(FormatError::malformed(STRUCTURE, 0, "a leaf of a ZAP has chunks of three kinds")),
                }
            }
        }
        _ => turn_all(bytes, 8),
    }
    Ok(())
}

fn swap_znode(bytes: &mut [u8], order: Endian) -> Result<(), FormatError> {
    if bytes.len() < ZNODE_SIZE {
        return Err(FormatError::malformed(STRUCTURE, bytes.len(), "a znode has 264 bytes"));
    }
    let version = order.u16([bytes[ZNODE_ACL + 12], bytes[ZNODE_ACL + 13]]);
    turn_all(&mut bytes[..ZNODE_ACL], 8);
    turn(bytes, ZNODE_ACL, &[8, 4, 2, 2]);
    let entries = &mut bytes[ZNODE_ACES..ZNODE_SIZE];
    match version {
        1 => swap_aces(entries, order),
        _ => swap_old_aces(entries),
    }
    Ok(())
}

/// Nobody knows here how many entries there are: zeros behind them are swapped like entries.
fn swap_aces(bytes: &mut [u8], order: Endian) {
    let mut at = 0;
    while let Some(&[type0, type1, flags0, flags1, ..]) = bytes.get(at..at + 8) {
        let (kind, flags) = (order.u16([type0, type1]), order.u16([flags0, flags1]));
        turn(bytes, at, &[2, 2, 4]);
        if ACE_OF_NOBODY.contains(&(flags & ACE_WHO)) {
            at += 8;
            continue;
        }
        turn(bytes, at + 8, &[8]);
        at += if ACE_OBJECT.contains(&kind) { 48 } else { 16 };
    }
}

fn swap_old_aces(bytes: &mut [u8]) {
    for entry in bytes.chunks_exact_mut(12) {
        turn(entry, 0, &[4, 4, 2, 2]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::acl::AclPhys;
    use crate::zap::{Leaf, LeafEdit, MicroZap, MicroZapEdit, NormFlags, ZapKey};

    #[test]
    fn a_micro_zap_says_the_same_in_the_other_order() {
        let mut bytes = vec![0; 4096];
        let mut edit = MicroZapEdit::create(&mut bytes, Endian::Big, 0x1234_5678_9abc, NormFlags::default()).unwrap();
        edit.put(0, b"name", 0x8000_0000_0000_0007, 0x102).unwrap();
        let before: Vec<_> = MicroZap::parse(&bytes, Endian::Big).unwrap().entries().collect();
        let before = format!("{before:?}");
        swap(Byteswap::Zap, &mut bytes, Endian::Big).unwrap();
        let after: Vec<_> = MicroZap::parse(&bytes, Endian::Little).unwrap().entries().collect();
        assert_eq!(format!("{after:?}"), before);
    }

    #[test]
    fn a_znode_and_its_entries_are_turned_round() {
        let mut bytes: Vec<u8> = (0..320_u32).map(|at| at as u8).collect();
        bytes[ZNODE_ACL + 12..ZNODE_ACL + 14].copy_from_slice(&[0, 1]);
        let mut before = bytes.clone();
        swap(Byteswap::Znode, &mut bytes, Endian::Big).unwrap();
        assert_eq!(bytes[..8], [7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(bytes[ZNODE_SIZE..], before[ZNODE_SIZE..], "a symbolic link's target is text");
        swap(Byteswap::Znode, &mut bytes, Endian::Little).unwrap();
        assert_eq!(bytes, before);
        assert!(swap(Byteswap::Znode, &mut before[..200], Endian::Big).is_err());
        let _ = AclPhys::parse(&bytes[ZNODE_ACL..ZNODE_SIZE], Endian::Big);
    }

    proptest! {
        #[test]
        fn swapping_twice_gives_the_bytes_back(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..2048),
            first in prop_oneof![Just(BLOCK_TYPE_LEAF), Just(BLOCK_TYPE_MICRO), Just(crate::zap::BLOCK_TYPE_HEADER)],
            round in any::<bool>(),
        ) {
            if round {
                bytes.resize(1024, 3);
                // Types of chunks that there are.
                for chunk in bytes[LEAF_HASH_TABLE + 64..].chunks_mut(CHUNK_SIZE_BYTES) {
                    chunk[0] = CHUNK_ARRAY + chunk[0] % 3;
                }
            }
            if bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&first.to_be_bytes());
            }
            for &kind in Byteswap::ALL {
                let mut swapped = bytes.clone();
                if swap(kind, &mut swapped, Endian::Big).is_ok() {
                    swap(kind, &mut swapped, Endian::Little).unwrap();
                    prop_assert_eq!(&swapped, &bytes, "{:?}", kind);
                }
            }
        }
    }

    #[test]
    fn a_leaf_says_the_same_in_the_other_order() {
        let mut bytes = vec![0; 4096];
        let mut edit = LeafEdit::create(&mut bytes, Endian::Big, 0, 0, false).unwrap();
        let value = crate::zap::ZapValue::from_u64(0x1234_5678);
        edit.insert(77, ZapKey::Name(b"a name that takes more than one chunk"), Some(5), &value).unwrap();
        let read = |bytes: &[u8], order| {
            let leaf = Leaf::parse(bytes, order).unwrap();
            let entries = leaf.entries().map(|entry| {
                let entry = entry.unwrap();
                (entry.name().unwrap(), entry.value().unwrap(), entry.cd, entry.hash)
            });
            format!("{:?} {:?}", leaf.header(), entries.collect::<Vec<_>>())
        };
        let before = read(&bytes, Endian::Big);
        swap(Byteswap::Zap, &mut bytes, Endian::Big).unwrap();
        assert_eq!(read(&bytes, Endian::Little), before);
    }
}
