//! Counts of blocks by type and level, in the terms of `zdb -b`.

use std::collections::BTreeMap;

use cenote_format::blkptr::Blkptr;

/// Levels counted apart: data, and the indirect levels that an object can have.
pub(crate) const LEVELS: usize = 12;

/// Counts of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Pointers, those with their data inside included.
    pub count: u64,
    /// Bytes before compression.
    pub lsize_bytes: u64,
    /// Bytes after compression.
    pub psize_bytes: u64,
    /// Bytes allocated, all copies.
    pub asize_bytes: u64,
    /// Copies that are gangs.
    pub gangs: u64,
    /// Blocks with more than one copy on the same vdev.
    pub ditto_same_vdev: u64,
}

impl BlockCounts {
    fn add(&mut self, bp: &Blkptr) {
        self.count += 1;
        self.lsize_bytes += bp.lsize_bytes();
        self.psize_bytes += bp.psize_bytes();
        self.asize_bytes += bp.asize_bytes();
        let dvas: Vec<_> = bp.dvas().collect();
        assert!(dvas.len() <= 3, "a pointer has three places at most");
        self.gangs += dvas.iter().filter(|dva| dva.gang).count() as u64;
        let is_repeated = dvas.iter().enumerate().any(|(i, a)| dvas[..i].iter().any(|b| a.vdev == b.vdev));
        self.ditto_same_vdev += u64::from(is_repeated);
    }
}

/// Counts by type and level.
#[derive(Clone, Debug, Default)]
pub struct BlockStatistics {
    /// Everything.
    pub total: BlockCounts,
    /// By object type (numbers of the format; the new-style ones as they are) and level.
    pub by_type: BTreeMap<u8, [BlockCounts; LEVELS]>,
    /// Blocks that are freed but not yet returned.
    pub deferred: BlockCounts,
    /// Pointers with their data inside.
    pub embedded: u64,
    /// Bytes of repeated references to deduplicated blocks.
    pub dedup_bytes: u64,
    /// How many such references.
    pub dedup_count: u64,
    /// Bytes of repeated references to cloned blocks.
    pub clone_bytes: u64,
    /// How many such references.
    pub clone_count: u64,
    /// Bytes kept only for the checkpoint.
    pub checkpoint_bytes: u64,
    /// Bytes of copies made by a removal in progress.
    pub removing_bytes: u64,
}

impl BlockStatistics {
    pub(crate) fn add(&mut self, bp: &Blkptr) {
        self.total.add(bp);
        self.embedded += u64::from(bp.is_embedded());
        let level = usize::from(bp.level()).min(LEVELS - 1);
        assert!(self.embedded <= self.total.count, "what is embedded is counted");
        self.by_type.entry(bp.object_type()).or_default()[level].add(bp);
    }

    pub(crate) fn add_deferred(&mut self, bp: &Blkptr) {
        self.total.add(bp);
        self.deferred.add(bp);
        assert!(self.deferred.count <= self.total.count, "what is deferred is counted");
    }

    /// Bytes that the blocks found account for: what must equal the bytes allocated.
    #[must_use]
    pub fn accounted_bytes(&self) -> u64 {
        (self.total.asize_bytes + self.removing_bytes + self.checkpoint_bytes)
            .saturating_sub(self.dedup_bytes + self.clone_bytes)
    }
}
