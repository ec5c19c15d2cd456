//! Damage that one read meets: the leaves that gave wrong bytes or none, and the wrong bytes until somebody is told of them.
//!
//! **Need.** Whoever is told of a wrong answer wants to know how it differs from the right one: one bit points to memory, a sector of zeros to
//! a write that was lost. A leaf of a mirror is found wrong before another one gives the right bytes.
//!
//! **Life.** A leaf whose bytes fail the check is counted and logged at once. That it be told waits, with its bytes, until the read has
//! the right ones ([`ReadContext::right`](super::ReadContext::right)), or ends without them. Columns of a stripe and pieces of a removed vdev are found wrong by
//! comparison: they are told at once.
//!
//! **Invariants.**
//! 1. Each fault that is counted is told once, also where the reader goes away.
//! 2. Bytes that are kept are bounded, over all reads of a pool (`HELD_BYTES_MAX`): what is beyond is told without them.

use std::sync::Arc;

use cenote_format::ids::Guid;
use cenote_taskq::buf::Buf;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};

use super::topology::{Common, Topology};
use super::{ReadContext, Seen};
use crate::error::VdevError;
use crate::fault::{About, Compared, Evidence, Fault, FaultKind};

/// Wrong bytes that the reads of a pool keep: two of the largest blocks.
const HELD_BYTES_MAX: u64 = 32 << 20;

/// The leaves that gave a read wrong bytes, or none, though it may have succeeded with others.
#[derive(Debug, Default)]
pub struct Damage {
    about: Option<About>,
    is_found: AtomicBool,
    leaves: Mutex<Vec<Guid>>,
    /// Faults that are to be told.
    held: Mutex<Vec<Held>>,
}

/// A fault that is told when the right bytes are known, or the read has ended.
#[derive(Debug)]
struct Held {
    common: Arc<Common>,
    fault: Fault,
    /// The bytes that were checked; none where too many are kept already.
    bad: Option<Buf>,
    size: usize,
}

impl Held {
    fn tell(self, about: Option<&About>, good: Option<&[u8]>) {
        let compared = self.bad.as_deref().zip(good).map(|(bad, good)| Compared::whole(good, &bad[..self.size]));
        let evidence = Evidence { about, is_by_checksum: true, compared: compared.as_slice() };
        self.common.faults.tell(&self.fault, evidence);
        if let Some(bad) = self.bad {
            let before = self.common.held_bytes.fetch_sub(bad.len() as u64, Ordering::Relaxed);
            debug_assert!(before >= bad.len() as u64, "bytes that are kept are counted (invariant 2)");
        }
    }
}

impl Damage {
    /// In a read of a block.
    #[must_use]
    pub fn of(about: About) -> Self {
        let mut this = Self::default();
        this.about = Some(about);
        this
    }

    pub(super) fn note(&self, leaf: Guid) {
        self.is_found.store(true, Ordering::Release);
        let mut leaves = self.leaves.lock();
        if leaves.len() < VdevError::FAULTS_MAX && !leaves.contains(&leaf) {
            leaves.push(leaf);
        }
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_found(&self) -> bool {
        self.is_found.load(Ordering::Acquire)
    }

    /// The leaves; they have been charged with the error.
    #[must_use]
    pub fn leaves(&self) -> Vec<Guid> {
        self.leaves.lock().clone()
    }

    /// Tells of the faults of ranges that should have had these bytes.
    pub(super) fn right(&self, block: &[u8]) {
        if !self.is_found() {
            return;
        }
        let of_it = self.held.lock().extract_if(.., |held| held.size == block.len()).collect::<Vec<_>>();
        of_it.into_iter().for_each(|held| held.tell(self.about.as_ref(), Some(block)));
    }

    /// Keeps a fault until it can be told.
    fn hold(&self, common: &Arc<Common>, fault: &Fault, bad: Buf, size: usize) {
        let bytes = bad.len() as u64;
        let kept_bytes = common.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = kept_bytes.saturating_add(bytes) <= HELD_BYTES_MAX && size <= bad.len();
        if !has_room {
            common.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        let held = Held { common: common.clone(), fault: fault.clone(), bad: has_room.then_some(bad), size };
        let mut all = self.held.lock();
        if all.len() < VdevError::FAULTS_MAX {
            return all.push(held);
        }
        drop(all);
        held.tell(self.about.as_ref(), None);
    }
}

impl Drop for Damage {
    fn drop(&mut self) {
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|held| held.tell(self.about.as_ref(), None));
    }
}

impl Topology {
    /// Has a fault told to those who watch the pool's: now, or when the right bytes are known.
    pub(super) fn tell(&self, fault: &Fault, context: ReadContext<'_>, seen: Seen<'_>) {
        if !self.common.faults.is_watched() {
            return;
        }
        let about = context.damage.and_then(|damage| damage.about.as_ref());
        let evidence = match (seen, context.damage) {
            (Seen::Bytes(bad, size), Some(damage)) if fault.kind == FaultKind::Checksum => {
                return damage.hold(&self.common, fault, bad, size);
            }
            (Seen::Compared(compared), _) => Evidence { about, is_by_checksum: false, compared },
            (Seen::Bytes(..), _) => Evidence { about, is_by_checksum: true, compared: &[] },
            (Seen::Nothing, _) => Evidence { about, ..Evidence::default() },
        };
        self.common.faults.tell(fault, evidence);
    }
}
