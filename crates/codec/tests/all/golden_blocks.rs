//! Blocks of a pool written by OpenZFS 2.3.2 (golden theme `checksums`), with the words their pointers hold.
//!
//! `data/golden_blocks.bin` holds the blocks one after another in the order of [`BLOCKS`], then two label uberblock
//! slots of 1024 bytes from the device offsets of [`UBERBLOCKS`].

use cenote_codec::checksum::{Salt, compute, embedded, verify};
use cenote_format::Endian;
use cenote_format::enums::Checksum;

const DATA: &[u8] = include_bytes!("../data/golden_blocks.bin");

/// The pool's `org.illumos:checksum_salt`.
const SALT: [u8; 32] = [
    0xb0, 0x9c, 0xce, 0xda, 0x4a, 0x42, 0x9c, 0x29, 0x11, 0xf6, 0x15, 0x6c, 0x0e, 0xfd, 0xbe, 0xab, 0xdd, 0x5d, 0xe2,
    0x37, 0x6f, 0x27, 0xb4, 0x16, 0x9b, 0xa9, 0xc5, 0x59, 0x59, 0xad, 0x4d, 0xb9,
];

const BLOCKS: [(Checksum, usize, [u64; 4]); 8] = [
    (Checksum::Fletcher2, 512, [0xab8b7d87ab8b7d4d, 0xab8b7deeab8b7db3, 0x6ecd34a86ecd2dfd, 0x6ecd40476ecd398a]),
    (Checksum::Fletcher2, 1024, [0x0001a31c1001ffe0, 0x0050d7ff0000ffff, 0x0068c704007ffa10, 0x0a1affc0004001d0]),
    (Checksum::Fletcher4, 1024, [0x0000008a4993865f, 0x00005414aad164f7, 0x001b911b33dbe88c, 0x066cae46461f5bc9]),
    (Checksum::Sha256, 1024, [0xb4f311037c8f2b06, 0x104fffa94e3526c9, 0xad354b7675d1abf1, 0x0d8c1664d57c5a7f]),
    (Checksum::Sha512, 1024, [0xdfddc9acd15995dc, 0xcf41aff565727d3f, 0x7dd83f3d411fc488, 0xb82ee7d5b4fb13a4]),
    (Checksum::Skein, 1024, [0x305a65929e48db4d, 0x7b0aab01a22f3a5f, 0x8709375c1add0495, 0x5be75af9b33b5a69]),
    (Checksum::Edonr, 1024, [0x420eeeed5d1377e4, 0xe81a6e423d931764, 0xc718086b26032a70, 0x1777d4ae16091e3d]),
    (Checksum::Blake3, 1024, [0x5ed6b171e49601a6, 0x6a6f7c9dbd28433b, 0x74c34d0bce808fd5, 0x75dc44e18fd28408]),
];

const UBERBLOCK_SIZE: usize = 1024;
const UBERBLOCKS: [u64; 2] = [131_072 + 4 * 1024, 262_144 + 131_072 + 8 * 1024];

#[test]
fn blocks_of_every_algorithm_sum_to_what_openzfs_stored() {
    let salt = Salt::new(&SALT);
    let mut rest = DATA;
    for (kind, len, expected) in BLOCKS {
        let (block, tail) = rest.split_at(len);
        rest = tail;
        assert_eq!(compute(kind, block, Endian::Little, &salt), Some(expected), "{kind}");
        let mut flipped = block.to_vec();
        for position in [0, len / 2, len - 1] {
            flipped[position] ^= 0x10;
            assert!(verify(kind, &flipped, Endian::Little, &salt, &expected, false).is_err(), "{kind} {position}");
            flipped[position] ^= 0x10;
        }
        assert_eq!(verify(kind, &flipped, Endian::Little, &salt, &expected, false), Ok(()));
    }
}

#[test]
fn uberblocks_verify_at_their_own_offset_only() {
    let slots = &DATA[DATA.len() - UBERBLOCKS.len() * UBERBLOCK_SIZE..];
    for (slot, offset_bytes) in slots.chunks(UBERBLOCK_SIZE).zip(UBERBLOCKS) {
        assert_eq!(embedded::verify_label(slot, offset_bytes), Ok(Endian::Little));
        assert!(embedded::verify_label(slot, offset_bytes + 1024).is_err());
    }
}

/// Two intent log blocks of golden theme `zil`, from a plain and from an encrypted dataset.
const LOG_BLOCKS: &[u8] = include_bytes!("../data/golden_log_blocks.bin");
const LOG_BLOCK_SIZE: usize = 4096;
/// The checksum words of the pointers that lead to them: the log's GUID, the objset, the sequence number.
const LOG_POINTERS: [(bool, [u64; 4]); 2] = [
    (false, [0xb05c0394ecc18d12, 0x29c0af2669181e6b, 0x48, 4]),
    (true, [0x3ab3d4355de97080, 0x7a39094c31fe1a91, 0x50, 4]),
];

#[test]
fn log_blocks_verify_with_their_sequence_number_only() {
    for (block, (encrypted, pointer)) in LOG_BLOCKS.chunks(LOG_BLOCK_SIZE).zip(LOG_POINTERS) {
        let verify = |pointer| embedded::verify_zilog(Checksum::Zilog2, block, pointer, encrypted);
        assert_eq!(verify(pointer), Ok(Endian::Little));
        let [guid_high, guid_low, objset, sequence] = pointer;
        assert!(verify([guid_high, guid_low, objset, sequence + 1]).is_err());
        assert!(verify([guid_high, guid_low, objset + 1, sequence]).is_err());
    }
}
