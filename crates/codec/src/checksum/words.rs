//! The four words of a checksum.

use cenote_format::Endian;
use cenote_format::enums::Checksum;

/// A checksum as a block pointer holds it.
pub type Words = [u64; 4];

/// Makes room for a MAC in the last two words of an encrypted block's checksum.
///
/// The strong algorithms are cut; the weak ones (whose entropy may lie anywhere) have their halves folded together. The
/// MAC then goes into words 2 and 3, which are left zero here.
#[must_use]
pub const fn truncate_for_mac(kind: Checksum, words: Words) -> Words {
    match kind {
        Checksum::Sha256 | Checksum::Sha512 | Checksum::Skein | Checksum::Blake3 => [words[0], words[1], 0, 0],
        _ => [words[0] ^ words[2], words[1] ^ words[3], 0, 0],
    }
}

/// Cuts a 32-byte digest into words.
pub(super) fn words(digest: &[u8; 32], order: Endian) -> Words {
    let mut out = [0; 4];
    let (chunks, _) = digest.as_chunks::<8>();
    for (word, chunk) in out.iter_mut().zip(chunks) {
        *word = order.u64(*chunk);
    }
    out
}
