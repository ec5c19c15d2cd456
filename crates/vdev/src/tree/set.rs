//! Sets of top-level vdevs, for flushes of some of them.

use cenote_format::ids::VdevId;

/// Some of a pool's top-level vdevs, or all of them. Pools seldom have more than a few, so it is a word: where a vdev of a higher number is
/// put in it becomes the set of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VdevSet(u64);

impl VdevSet {
    /// Every vdev.
    pub const ALL: Self = Self(u64::MAX);

    /// Puts a vdev in.
    pub fn insert(&mut self, vdev: VdevId) {
        self.0 |= if vdev.0 < u64::BITS { 1 << vdev.0 } else { u64::MAX };
        debug_assert!(self.contains(vdev), "a set has what was put in");
    }

    /// Puts in all that another set has.
    pub const fn absorb(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether it has a vdev.
    #[must_use]
    pub const fn contains(self, vdev: VdevId) -> bool {
        self.0 == u64::MAX || (vdev.0 < u64::BITS && self.0 & 1 << vdev.0 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_at_least_those_that_were_put_in() {
        let mut set = VdevSet::default();
        for vdev in [0, 5, 63] {
            assert!(!set.contains(VdevId(vdev)));
            set.insert(VdevId(vdev));
            assert!(set.contains(VdevId(vdev)) && !set.contains(VdevId(7)) && !set.contains(VdevId(64)));
        }
        let mut other = VdevSet::default();
        other.insert(VdevId(7));
        set.absorb(other);
        assert!(set.contains(VdevId(7)) && !set.contains(VdevId(8)));
        set.insert(VdevId(64));
        assert_eq!(set, VdevSet::ALL);
        assert!(set.contains(VdevId(u32::MAX)));
    }
}
