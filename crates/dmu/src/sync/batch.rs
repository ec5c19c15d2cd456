//! How much of a level is taken at a time.

/// Small blocks are prepared, and stored, some at a time: handing one over takes longer than summing it up.
pub(super) const BATCH_BYTES: u64 = 512 << 10;
/// The most blocks of a batch.
pub(super) const BATCH_BLOCKS_MAX: usize = 256;

/// The bytes and blocks that a batch has taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    bytes: u64,
    blocks: usize,
}

impl Room {
    pub(super) const fn is_full(self) -> bool {
        self.bytes >= BATCH_BYTES || self.blocks >= BATCH_BLOCKS_MAX
    }

    /// Takes the room of a block.
    pub(super) const fn take(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.blocks += 1;
    }
}
