//! Which ereports are too many: the same again, or too many of a leaf in a second.

use std::collections::BTreeMap;

use cenote_format::ids::Guid;
use cenote_taskq::Instant;

use crate::tunables::EventTunables;

/// The kind of an ereport: the end of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Wrong bytes.
    Checksum,
    /// A request that failed.
    Io,
    /// A block that no copy has.
    Data,
    /// A slow request.
    Delay,
    /// A slow child of a raidz or draid that is not read for a while.
    SitOut,
    /// The pool is suspended.
    IoFailure,
    /// A device that takes nothing any more.
    ProbeFailure,
}

impl Class {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Io => "io",
            Self::Data => "data",
            Self::Delay => "delay",
            Self::SitOut => "sitout",
            Self::IoFailure => "io_failure",
            Self::ProbeFailure => "probe_failure",
        }
    }

    /// The same again within minutes is no event.
    const fn is_told_once(self) -> bool {
        matches!(self, Self::Checksum | Self::Io)
    }

    /// How many a leaf may have in a second.
    const fn per_second_max(self, tunables: &EventTunables) -> Option<u64> {
        match self {
            Self::Checksum => Some(tunables.zfs_checksum_events_per_second),
            Self::Delay => Some(tunables.zfs_slow_io_events_per_second),
            _ => None,
        }
    }
}

/// The identity of an ereport: two of the same key are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    class: Class,
    vdev: Guid,
    /// Error number, kind, offset and size of the request.
    place: (i32, u32, u64, u64),
}

impl Key {
    pub(crate) const fn new(class: Class, vdev: Guid, place: (i32, u32, u64, u64)) -> Self {
        Self { class, vdev, place }
    }
}

/// The ereports of the last minutes, and of the present second.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    recent: BTreeMap<Key, Instant>,
    /// For each class of each leaf, the beginning of its second and how many it has had since.
    rates: BTreeMap<(Class, Guid), (Instant, u64)>,
}

impl Limits {
    /// True if it is an event; it is counted then.
    pub(crate) fn admit(&mut self, tunables: &EventTunables, key: Key, now: Instant) -> bool {
        if key.class.is_told_once() && self.is_again(tunables, key, now) {
            return false;
        }
        let Some(max) = key.class.per_second_max(tunables) else { return true };
        let rate = self.rates.entry((key.class, key.vdev)).or_insert((now, 0));
        if (now - rate.0).as_secs() >= 1 {
            *rate = (now, 0);
        }
        rate.1 += 1;
        rate.1 <= max
    }

    fn is_again(&mut self, tunables: &EventTunables, key: Key, now: Instant) -> bool {
        let (max, expire_s) = (tunables.zfs_zevent_retain_max as usize, tunables.zfs_zevent_retain_expire_secs);
        if max == 0 {
            return false;
        }
        // One that is seen again lives longer, as OpenZFS has it.
        let before = self.recent.insert(key, now);
        if self.recent.len() > max {
            self.recent.retain(|_, seen| (now - *seen).as_secs() <= expire_s);
        }
        if self.recent.len() > max
            && let Some(oldest) = self.recent.iter().min_by_key(|(_, seen)| **seen).map(|(key, _)| *key)
        {
            self.recent.remove(&oldest);
        }
        debug_assert!(self.recent.len() <= max, "ereports that are remembered are bounded (events, invariant 3)");
        before.is_some_and(|seen| (now - seen).as_secs() <= expire_s)
    }

    /// Forgets what is known of a leaf, or of all: its errors were cleared, so they are news when they come again.
    pub(crate) fn clear(&mut self, vdev: Option<Guid>) {
        self.recent.retain(|key, _| vdev.is_some_and(|vdev| key.vdev != vdev));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: Guid = Guid(7);

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn the_same_again_is_no_event_for_a_quarter_of_an_hour() {
        let (mut limits, tunables) = (Limits::default(), EventTunables::default());
        let mut admit =
            |offset, s: u64| limits.admit(&tunables, Key::new(Class::Io, LEAF, (5, 1, offset, 512)), at(s * 1000));
        assert!(admit(0, 0));
        assert!(!admit(0, 10));
        assert!(admit(512, 10));
        assert!(!admit(0, 900), "seen at 10, so known until 910");
        assert!(admit(0, 1801));
        limits.clear(Some(Guid(8)));
        assert!(!limits.admit(&tunables, Key::new(Class::Io, LEAF, (5, 1, 0, 512)), at(1_801_500)));
        limits.clear(Some(LEAF));
        assert!(limits.admit(&tunables, Key::new(Class::Io, LEAF, (5, 1, 0, 512)), at(1_802_000)));
    }

    #[test]
    fn a_leaf_has_twenty_checksum_events_in_a_second() {
        let (mut limits, tunables) = (Limits::default(), EventTunables::default());
        let mut count = |from, of| {
            let admitted =
                |index: &u64| limits.admit(&tunables, Key::new(Class::Checksum, of, (52, 1, *index, 1)), at(from));
            (from * 1000..from * 1000 + 100).filter(admitted).count()
        };
        assert_eq!([count(0, LEAF), count(999, LEAF), count(1000, LEAF)], [20, 0, 20]);
        assert_eq!(count(1000, Guid(8)), 20, "each leaf has its own");
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let (mut limits, tunables) = (Limits::default(), EventTunables::default());
        let max = tunables.zfs_zevent_retain_max;
        for index in 0..max + 100 {
            assert!(limits.admit(&tunables, Key::new(Class::Io, LEAF, (5, 1, index, 512)), at(index)));
        }
        assert_eq!(limits.recent.len() as u64, max);
    }
}
