//! What an administrator may change about devices: one record for each tunable, with its unit, default, range and effect.
//!
//! Names are OpenZFS's where it has the same thing. Values are checked when they are set; what is out of range is refused
//! with the range.

use std::fmt;

use crate::mirror::POLICIES;

/// What values a tunable takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Whole numbers from the first to the second.
    Number(u64, u64),
    /// One of these words.
    Words(&'static [&'static str]),
}

/// One tunable.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// What it counts, or nothing.
    pub unit: &'static str,
    /// Its value unless set; for words, which.
    pub default: u64,
    /// What it may be.
    pub domain: Domain,
    /// What it does, in a sentence.
    pub effect: &'static str,
}

const fn number(
    name: &'static str,
    unit: &'static str,
    default: u64,
    min: u64,
    max: u64,
    effect: &'static str,
) -> Tunable {
    Tunable { name, unit, default, domain: Domain::Number(min, max), effect }
}

/// All of them, by name.
pub const TUNABLES: [Tunable; 39] = [
    number(
        "vdev_raidz_outlier_check_interval_ms",
        "ms",
        1000,
        10,
        600_000,
        "How often a raidz or draid compares its children's answers to find one that is far slower than the others.",
    ),
    number(
        "vdev_raidz_outlier_times",
        "times",
        5,
        2,
        1000,
        "How many times slower than the median of its siblings a child must be to sit out.",
    ),
    number(
        "vdev_read_sit_out_secs",
        "s",
        600,
        0,
        86_400,
        "How long a slow child of a raidz or draid is not read, its data being reconstructed instead; 0 for never.",
    ),
    Tunable {
        name: "zfs_deadman_enabled",
        unit: "",
        default: 1,
        domain: Domain::Words(&["0", "1"]),
        effect: "Whether a device of a pool in use that does not answer is noticed; if not, its writes are waited for without end.",
    },
    Tunable {
        name: "zfs_deadman_failmode",
        unit: "",
        default: 0,
        domain: Domain::Words(&["wait", "continue", "panic"]),
        effect: "When a device of a pool in use hangs: go on without it if that can be, else wait, or end the process. \
                 Nothing is ever sent again while it may still be done, so continue is the same as wait.",
    },
    number(
        "zfs_deadman_ziotime_ms",
        "ms",
        300_000,
        100,
        86_400_000,
        "When a read that was not answered has failed, and a device of a pool in use hangs.",
    ),
    number(
        "zfs_multihost_fail_intervals",
        "intervals",
        10,
        0,
        65_535,
        "After how many intervals without a multihost write that succeeded a pool with multihost=on is suspended; 1 is \
         taken for 2, and 0 is never.",
    ),
    number(
        "zfs_multihost_import_intervals",
        "intervals",
        20,
        1,
        65_535,
        "For how many intervals a pool is watched before it is opened for writing, where its uberblock does not say \
         after how many its last host would have stopped.",
    ),
    number(
        "zfs_multihost_interval",
        "ms",
        1000,
        100,
        3_600_000,
        "How often each device of a pool that is protected against a second import is given a multihost write.",
    ),
    number(
        "zfs_vdev_aggregation_limit",
        "bytes",
        1 << 20,
        0,
        16 << 20,
        "The most bytes that neighbouring requests to a device with a head are brought together to.",
    ),
    number(
        "zfs_vdev_aggregation_limit_non_rotating",
        "bytes",
        128 << 10,
        0,
        16 << 20,
        "The same for a solid-state device.",
    ),
    number(
        "zfs_vdev_async_read_max_active",
        "requests",
        3,
        1,
        100000,
        "How many reads ahead a device with a head is given at once at most.",
    ),
    number(
        "zfs_vdev_async_read_min_active",
        "requests",
        1,
        1,
        100000,
        "How many reads ahead a device with a head is given before other classes get more than their minimum.",
    ),
    number(
        "zfs_vdev_async_write_max_active",
        "requests",
        10,
        1,
        100000,
        "How many writes of txgs a device with a head is given at once at most.",
    ),
    number(
        "zfs_vdev_async_write_min_active",
        "requests",
        2,
        1,
        100000,
        "How many writes of txgs a device with a head is given before other classes get more than their minimum.",
    ),
    number(
        "zfs_vdev_max_active",
        "requests",
        1000,
        1,
        1000000,
        "How many requests of all classes a device is given at once at most.",
    ),
    number(
        "zfs_vdev_mirror_forget_ms",
        "ms",
        2000,
        10,
        600_000,
        "After how long a child that was avoided is given a single read, to see how it is doing.",
    ),
    number(
        "zfs_vdev_mirror_hedge_min_us",
        "us",
        500,
        0,
        60_000_000,
        "The least time after which a second child is asked as well.",
    ),
    number(
        "zfs_vdev_mirror_hedge_percent",
        "%",
        3,
        0,
        100,
        "How many reads of a hundred may be asked of a second child as well; 0 for none.",
    ),
    number(
        "zfs_vdev_mirror_non_rotating_inc",
        "reads",
        0,
        0,
        1000,
        "Policy locality: the price of a read that follows the latest one on a solid-state child.",
    ),
    number(
        "zfs_vdev_mirror_non_rotating_seek_inc",
        "reads",
        1,
        0,
        1000,
        "Policy locality: the price of a read that does not.",
    ),
    Tunable {
        name: "zfs_vdev_mirror_policy",
        unit: "",
        default: 3,
        domain: Domain::Words(&POLICIES),
        effect: "How a child of a mirror is chosen.",
    },
    number(
        "zfs_vdev_mirror_pull_active",
        "requests",
        2,
        1,
        1000,
        "Policy adaptive: how many reads that any child could serve a child with a head is given at once; the others wait for all.",
    ),
    number(
        "zfs_vdev_mirror_reroute_ms",
        "ms",
        3000,
        1,
        86_400_000,
        "When a read that was not answered is reported, and asked of another child that could serve it.",
    ),
    number(
        "zfs_vdev_mirror_rotating_inc",
        "reads",
        0,
        0,
        1000,
        "Policy locality: the price of a read that follows the latest one on a rotating child.",
    ),
    number(
        "zfs_vdev_mirror_rotating_seek_inc",
        "reads",
        5,
        0,
        1000,
        "Policy locality: the price of a read that does not; within the seek offset half of it.",
    ),
    number(
        "zfs_vdev_mirror_rotating_seek_offset",
        "bytes",
        1 << 20,
        0,
        1 << 40,
        "Policy locality: how far from the latest read is near.",
    ),
    number(
        "zfs_vdev_mirror_switch_us",
        "us",
        10_000,
        1,
        10_000_000,
        "Policy pending: how long one of several equally busy children is preferred.",
    ),
    number(
        "zfs_vdev_nia_delay",
        "requests",
        5,
        0,
        1000000,
        "How many requests of a scrub are done, while a device has no others, before it is given more of them than their minimum.",
    ),
    number(
        "zfs_vdev_queue_expire_ms",
        "ms",
        500,
        1,
        600000,
        "How long a request to a device with a head may be passed over for others that are on the way.",
    ),
    number(
        "zfs_vdev_read_gap_limit",
        "bytes",
        32 << 10,
        0,
        16 << 20,
        "The most bytes between two reads that are read along to bring them together.",
    ),
    number(
        "zfs_vdev_read_run_limit",
        "bytes",
        16 << 20,
        0,
        1 << 30,
        "How much of a run of neighbours a device with a head reads before what is more urgent elsewhere.",
    ),
    number(
        "zfs_vdev_scrub_max_active",
        "requests",
        3,
        1,
        100000,
        "How many reads of verification a device with a head is given at once at most.",
    ),
    number(
        "zfs_vdev_scrub_min_active",
        "requests",
        1,
        1,
        100000,
        "How many reads of verification a device with a head is given before other classes get more than their minimum.",
    ),
    number(
        "zfs_vdev_solid_active_times",
        "times",
        16,
        1,
        1000,
        "How many times more of every class a solid-state device is given at once.",
    ),
    number(
        "zfs_vdev_sync_read_max_active",
        "requests",
        10,
        1,
        100000,
        "How many reads that someone waits for a device with a head is given at once at most.",
    ),
    number(
        "zfs_vdev_sync_read_min_active",
        "requests",
        10,
        1,
        100000,
        "How many reads that someone waits for a device with a head is given before other classes get more than their minimum.",
    ),
    number(
        "zfs_vdev_sync_write_max_active",
        "requests",
        10,
        1,
        100000,
        "How many writes that someone waits for a device with a head is given at once at most.",
    ),
    number(
        "zfs_vdev_sync_write_min_active",
        "requests",
        10,
        1,
        100000,
        "How many writes that someone waits for a device with a head is given before other classes get more than their minimum.",
    ),
];

/// Why a tunable was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// There is none of that name.
    #[error("no tunable is called {name:?}; they are: {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// It cannot have that value.
    #[error("{name} cannot be {value:?}: {allowed}")]
    OutOfRange {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// Not of the form NAME=VALUE.
    #[error("{text:?} is not of the form NAME=VALUE")]
    Form {
        /// What was given.
        text: String,
    },
}

fn names() -> String {
    TUNABLES.map(|tunable| tunable.name).join(", ")
}

impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            Domain::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Domain::Words(words) => write!(f, "one of {}", words.join(", ")),
        }?;
        if self.unit.is_empty() { Ok(()) } else { write!(f, " ({})", self.unit) }
    }
}

/// The value of every tunable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables([u64; TUNABLES.len()]);

impl Default for Tunables {
    fn default() -> Self {
        Self(TUNABLES.map(|tunable| tunable.default))
    }
}

impl Tunables {
    /// Sets one from `NAME=VALUE`.
    ///
    /// # Errors
    /// When there is none of that name, or the value is none that it may have; then nothing is changed.
    pub fn set_from(&mut self, text: &str) -> Result<(), TunableError> {
        let (name, value) = text.split_once('=').ok_or_else(|| TunableError::Form { text: text.into() })?;
        self.set(name, value)
    }

    /// Sets one.
    ///
    /// # Errors
    /// As [`Self::set_from`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TunableError> {
        let index = TUNABLES.iter().position(|tunable| tunable.name == name);
        let index = index.ok_or_else(|| TunableError::Unknown { name: name.into() })?;
        let tunable = &TUNABLES[index];
        let accepted = match tunable.domain {
            Domain::Number(min, max) => value.parse().ok().filter(|number| (min..=max).contains(number)),
            Domain::Words(words) => words.iter().position(|word| *word == value).map(|position| position as u64),
        };
        self.0[index] = accepted.ok_or_else(|| TunableError::OutOfRange {
            name: tunable.name,
            value: value.into(),
            allowed: format!("it must be {tunable}"),
        })?;
        Ok(())
    }

    /// A number's value. Zero for what is no tunable, which is a defect of the caller.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        let index = TUNABLES.iter().position(|tunable| tunable.name == name);
        debug_assert!(index.is_some(), "{name} is no tunable");
        index.map_or(0, |index| self.0[index])
    }

    /// A word's value.
    #[must_use]
    pub fn word(&self, name: &str) -> &'static str {
        let tunable = TUNABLES.iter().find(|tunable| tunable.name == name);
        match tunable.map(|tunable| tunable.domain) {
            Some(Domain::Words(words)) => words.get(self.number(name) as usize).copied().unwrap_or(""),
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_defaults_are_in_range() {
        assert!(TUNABLES.windows(2).all(|pair| pair[0].name < pair[1].name));
        for tunable in TUNABLES {
            let default = Tunables::default();
            match tunable.domain {
                Domain::Number(min, max) => assert!((min..=max).contains(&default.number(tunable.name))),
                Domain::Words(words) => assert!(words.contains(&default.word(tunable.name))),
            }
            assert!(tunable.effect.ends_with('.'));
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_the_range() {
        let mut tunables = Tunables::default();
        tunables.set_from("zfs_vdev_mirror_switch_us=100").unwrap();
        assert_eq!(tunables.number("zfs_vdev_mirror_switch_us"), 100);
        let error = tunables.set("zfs_vdev_mirror_switch_us", "0").unwrap_err().to_string();
        assert!(error.contains("zfs_vdev_mirror_switch_us") && error.contains("from 1 to 10000000"), "{error}");
        let error = tunables.set("zfs_vdev_mirror_hedge_percent", "101").unwrap_err().to_string();
        assert!(error.contains("from 0 to 100"), "{error}");
        let error = tunables.set("zfs_vdev_mirror_policy", "best").unwrap_err().to_string();
        assert!(error.contains("offset, pending, locality, adaptive"), "{error}");
        assert!(tunables.set("zfs_vdev_mirror_switch_us", "-1").is_err());
        assert!(tunables.set("zfs_vdev_mirror_switch_us", "99999999999999999999999").is_err());
        assert!(matches!(tunables.set("zfs_arc_max", "1"), Err(TunableError::Unknown { .. })));
        assert!(matches!(tunables.set_from("zfs_arc_max"), Err(TunableError::Form { .. })));
        assert_eq!(tunables.number("zfs_vdev_mirror_switch_us"), 100, "a refused value changes nothing");
    }
}
