//! The seal of a block of an encrypted dataset, as its pointer has it.

use cenote_format::endian::Endian;

/// The salt, IV and MAC of a block of an encrypted dataset. Of kinds that are authenticated alone the MAC is all that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The byte order of the block's fields.
    pub order: Endian,
    /// The salt.
    pub salt: [u8; 8],
    /// The IV.
    pub iv: [u8; 12],
    /// The MAC.
    pub mac: [u8; 16],
}
