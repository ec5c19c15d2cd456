//! Kinds of top-level vdevs, and what they can do without.

/// A kind of top-level vdev with devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A mirror, or a disk that is left of one.
    Mirror,
    Raidz(usize),
    Draid(usize),
}

impl Kind {
    /// The kind of a vdev with this name (`raidz2-0`, `/disk1`); none if it has no devices any more.
    pub(super) fn of(name: &str) -> Option<Self> {
        let parity = |rest: &str| rest.chars().next().and_then(|digit| digit.to_digit(10)).unwrap_or(1) as usize;
        if let Some(rest) = name.strip_prefix("raidz") {
            return Some(Self::Raidz(parity(rest)));
        }
        if let Some(rest) = name.strip_prefix("draid") {
            return Some(Self::Draid(parity(rest)));
        }
        let is_gone = ["indirect", "hole"].iter().any(|kind| name.starts_with(kind));
        (!is_gone).then_some(Self::Mirror)
    }

    /// The number of slots that one with so many can do without.
    pub(super) const fn redundancy(self, slots: usize) -> usize {
        match self {
            Self::Raidz(parity) | Self::Draid(parity) => parity,
            Self::Mirror => slots.saturating_sub(1),
        }
    }
}
