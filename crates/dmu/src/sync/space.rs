//! Bytes of blocks, as datasets count them.

/// Bytes of blocks: as datasets count them, before allocation overhead, before compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceDelta {
    /// Less what parity takes of a large block.
    pub used_bytes: i64,
    /// Physical sizes.
    pub compressed_bytes: i64,
    /// Logical sizes of data, physical ones of metadata.
    pub uncompressed_bytes: i64,
}

impl SpaceDelta {
    /// Takes another in.
    pub fn add(&mut self, other: Self) {
        self.used_bytes += other.used_bytes;
        self.compressed_bytes += other.compressed_bytes;
        self.uncompressed_bytes += other.uncompressed_bytes;
    }

    /// The same, taken away.
    #[must_use]
    pub const fn negated(self) -> Self {
        Self {
            used_bytes: -self.used_bytes,
            compressed_bytes: -self.compressed_bytes,
            uncompressed_bytes: -self.uncompressed_bytes,
        }
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
