//! Where names stand in a micro block.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::zap::{MicroZap, NormFlags, ZapFlags, ZapHasher};

use super::normal::normalised;

/// The slots of a micro block by name, made when the block is first changed.
#[derive(Clone)]
pub(super) struct MicroIndex {
    hasher: ZapHasher,
    norm_flags: NormFlags,
    pub(super) slots: BTreeMap<Vec<u8>, usize>,
    /// Differentiators in use, by hash.
    pub(super) cds: BTreeMap<u64, BTreeSet<u32>>,
    pub(super) free: BTreeSet<usize>,
}

impl MicroIndex {
    pub(super) fn of(view: &MicroZap<'_>) -> Self {
        let hasher = ZapHasher::new(view.salt(), ZapFlags::empty());
        let mut free: BTreeSet<usize> = (0..view.slot_count()).collect();
        let mut slots = BTreeMap::new();
        let mut cds = BTreeMap::<u64, BTreeSet<u32>>::new();
        for entry in view.entries() {
            free.remove(&entry.slot);
            slots.insert(entry.name.to_vec(), entry.slot);
            cds.entry(hash_of(&hasher, view.norm_flags(), entry.name)).or_default().insert(entry.cd);
        }
        Self { hasher, norm_flags: view.norm_flags(), slots, cds, free }
    }

    /// The hash among whose entries a name has a differentiator of its own.
    pub(super) fn hash_of(&self, name: &[u8]) -> u64 {
        hash_of(&self.hasher, self.norm_flags, name)
    }

    pub(super) fn entry_count(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn slot_of(&self, name: &[u8]) -> Option<usize> {
        self.slots.get(name).copied()
    }
}

/// The hash of a name as it is normalised.
pub(super) fn hash_of(hasher: &ZapHasher, flags: NormFlags, name: &[u8]) -> u64 {
    hasher.name(&normalised(name, flags).unwrap_or(name.into()))
}
