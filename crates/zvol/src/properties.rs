//! The properties that a volume in use obeys: one table for all who open volumes.

use cenote_dmu::tx::SyncMode;
use cenote_zil::LOGBIAS_THROUGHPUT;

/// The properties that a volume in use obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeProperties {
    /// When writes are on disk: `sync`.
    pub sync: SyncMode,
    /// Writes are logged for throughput, not for latency: `logbias`.
    pub is_for_throughput: bool,
    /// Nothing is written: `readonly`.
    pub is_read_only: bool,
}

impl VolumeProperties {
    /// Their names.
    pub const NAMES: [&str; 3] = ["readonly", "sync", "logbias"];

    /// By the numbers of properties, as they are stored; a property without one has its default.
    #[must_use]
    pub fn of(number: impl Fn(&str) -> Option<u64>) -> Self {
        Self {
            sync: SyncMode::of_number(number("sync").unwrap_or(0)),
            is_for_throughput: number("logbias") == Some(LOGBIAS_THROUGHPUT),
            is_read_only: number("readonly") == Some(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_obeyed_and_defaults_are_those_of_openzfs() {
        let usual = VolumeProperties::of(|_| None);
        assert_eq!(usual, VolumeProperties { sync: SyncMode::Standard, is_for_throughput: false, is_read_only: false });
        for name in VolumeProperties::NAMES {
            assert_ne!(VolumeProperties::of(|asked| (asked == name).then_some(1)), usual, "{name}");
        }
    }
}
