//! A class: the groups that serve one kind of blocks, and whose turn it is.
//!
//! **Rotor.** Each allocator has a place in the ring of groups and moves on when it has allocated the group's *aliquot*:
//! 2 MiB for each data disk of an average vdev, more for larger vdevs and for those with a larger part free than the rest,
//! so that all fill up together. A vdev that is faster than others shows it by a short queue: while the pool is
//! busy it may go on until the queue target, up to two and a half aliquots. The fuller it is the less that is.

use cenote_format::ids::VdevId;

use crate::Tunables;
use crate::group::Which;

/// The kinds of blocks that a class serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClassKind {
    /// Everything.
    Normal,
    /// The intent log, on a log vdev.
    Log,
    /// Metadata, and small blocks where asked.
    Special,
    /// The dedup table.
    Dedup,
    /// The intent log, on a metaslab of a normal vdev.
    EmbeddedLog,
}

impl ClassKind {
    /// All of them.
    pub(crate) const ALL: [Self; 5] = [Self::Normal, Self::Log, Self::Special, Self::Dedup, Self::EmbeddedLog];

    /// Where to look when this class has no space or no vdev, in order: what OpenZFS falls back to.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Log => &[Self::EmbeddedLog, Self::Normal],
            Self::Dedup => &[Self::Special, Self::Normal],
            Self::EmbeddedLog | Self::Special => &[Self::Normal],
            Self::Normal => &[],
        }
    }
}

/// A member of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) vdev: VdevId,
    pub(crate) which: Which,
}

/// One allocator's state in a class (OpenZFS: `metaslab_class_allocator`).
#[derive(Clone, Copy, Debug, Default)]
struct ClassAllocator {
    rotor: usize,
    /// Bytes allocated since it came there.
    done: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) kind: ClassKind,
    pub(crate) ring: Vec<Member>,
    allocators: Vec<ClassAllocator>,
}

/// A member's figures, for balance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) size_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) data_disks: u64,
}

/// An attempt to allocate from the group whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) psize: u64,
    pub(crate) placed: bool,
    /// The bytes of its turn.
    pub(crate) aliquot: u64,
}

fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl Class {
    pub(crate) fn new(kind: ClassKind, allocators: usize) -> Self {
        Self { kind, ring: Vec::new(), allocators: vec![ClassAllocator::default(); allocators] }
    }

    pub(crate) fn join(&mut self, member: Member) {
        assert!(!self.ring.contains(&member), "a group is in a class once");
        self.ring.push(member);
        let len = self.ring.len();
        // Allocators start apart.
        for (number, allocator_state) in self.allocators.iter_mut().enumerate() {
            allocator_state.rotor = number % len;
        }
    }

    pub(crate) fn leave(&mut self, vdev: VdevId) {
        self.ring.retain(|member| member.vdev != vdev);
        for allocator_state in &mut self.allocators {
            allocator_state.rotor = allocator_state.rotor.checked_rem(self.ring.len()).unwrap_or(0);
        }
    }

    pub(crate) fn rotor(&self, allocator: usize) -> usize {
        self.allocators.get(allocator).map_or(0, |allocator_state| allocator_state.rotor)
    }

    /// Computes the turn of each group, in bytes (the aliquot).
    pub(crate) fn balance(shares: &[Share], tunables: &Tunables) -> Vec<u64> {
        let count = shares.len() as u64;
        let sum = |of: fn(&Share) -> u64| shares.iter().map(of).fold(0_u64, u64::saturating_add);
        let (size, allocated) = (sum(|share| share.size_bytes), sum(|share| share.allocated_bytes));
        let disks = sum(|share| share.data_disks.max(1));
        let mut aliquots = Vec::with_capacity(shares.len());
        for share in shares {
            let per_turn = scale(tunables.metaslab_aliquot, disks, count);
            let by_size = scale(per_turn, share.size_bytes.saturating_mul(count), size);
            let mut aliquot = by_size;
            if tunables.metaslab_bias_enabled && size > 0 && share.size_bytes > 0 {
                // Free parts in 65 536ths.
                let mine = scale(65_536, share.size_bytes.saturating_sub(share.allocated_bytes), share.size_bytes);
                let all = scale(65_536, size.saturating_sub(allocated), size);
                aliquot = scale(by_size, mine, all.max(1));
            }
            aliquots.push(aliquot);
        }
        aliquots
    }

    /// After an attempt at the group whose turn it is: the next one's comes if this one had its share.
    pub(crate) fn rotate(&mut self, allocator: usize, attempt: Attempt) {
        let Attempt { psize, placed, aliquot } = attempt;
        let (len, kind) = (self.ring.len(), self.kind);
        let Some(allocator_state) = self.allocators.get_mut(allocator).filter(|_| len > 1) else { return };
        debug_assert!(allocator_state.rotor < len, "it is the turn of a group in the ring");
        let done = allocator_state.done.saturating_add(psize);
        // Whether the next block, if as large as this, would still be for the greater part within.
        let next = done.saturating_add(psize / 2);
        let stay = placed && !matches!(kind, ClassKind::Log | ClassKind::EmbeddedLog) && next < aliquot;
        if stay {
            allocator_state.done = done;
        } else {
            *allocator_state = ClassAllocator { rotor: (allocator_state.rotor + 1) % len, done: 0 };
        }
    }

    /// How many blocks of this size the group whose turn it is may surely take before another's turn comes: at least one.
    pub(crate) fn blocks_left(&self, allocator: usize, psize: u64, aliquot: u64) -> u64 {
        let Some(allocator_state) = self.allocators.get(allocator) else { return 1 };
        match self.kind {
            ClassKind::Log | ClassKind::EmbeddedLog => return 1,
            _ if self.ring.len() <= 1 => return u64::MAX,
            _ => {}
        }
        aliquot.saturating_sub(allocator_state.done).checked_div(psize).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(size_gib: u64, full_percent: u64) -> Share {
        let size_bytes = size_gib << 30;
        Share { size_bytes, allocated_bytes: size_bytes / 100 * full_percent, data_disks: 1 }
    }

    #[test]
    fn larger_and_emptier_vdevs_get_more() {
        let tunables = Tunables::default();
        let even = Class::balance(&[share(100, 30), share(100, 30)], &tunables);
        assert_eq!(even[0], even[1]);
        assert!(even[0].abs_diff(2 << 20) < 1 << 10, "{even:?}");
        let by_size = Class::balance(&[share(100, 30), share(300, 30)], &tunables);
        assert!(by_size[1].abs_diff(3 * by_size[0]) < 1 << 10, "{by_size:?}");
        let by_free = Class::balance(&[share(100, 80), share(100, 40)], &tunables);
        assert!(by_free[1].abs_diff(3 * by_free[0]) < 1 << 10, "{by_free:?}");
        let unbiased = Tunables { metaslab_bias_enabled: false, ..tunables };
        let flat = Class::balance(&[share(100, 80), share(100, 40)], &unbiased);
        assert_eq!(flat[0], flat[1]);
    }

    #[test]
    fn a_vdev_has_its_turn_and_then_the_next_one_has() {
        let mut class = Class::new(ClassKind::Normal, 1);
        let member = |id| Member { vdev: VdevId(id), which: Which::Main };
        (0..2).for_each(|id| class.join(member(id)));
        let mut count = 0;
        while class.rotor(0) == 0 {
            class.rotate(0, Attempt { psize: 100, placed: true, aliquot: 1000 });
            count += 1;
        }
        assert_eq!(count, 10);
        class.rotate(0, Attempt { psize: 100, placed: false, aliquot: 1000 });
        assert_eq!(class.rotor(0), 0, "one that has no place for a block loses its turn");
    }
}
