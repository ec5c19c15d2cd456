//! The record of a tunable, and values as text.

use std::fmt;

use crate::near;

/// The values that a tunable takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Whole numbers from the first to the second.
    Number(u64, u64),
    /// Powers of two from the first to the second.
    Power(u64, u64),
    /// 0 for off, or 1 for on.
    Switch,
    /// One of these words; its number is its place.
    Words(&'static [&'static str]),
}

/// The moment from which on a new value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At once, also in a pool that is open.
    Live,
    /// When a pool is opened.
    AtOpen,
}

impl When {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::AtOpen => "at open",
        }
    }
}

/// One tunable. [`crate::tunables!`] makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// Its name: that of OpenZFS's module parameter where there is one.
    pub name: &'static str,
    /// The unit that it counts, or nothing.
    pub unit: &'static str,
    /// Its value unless one is given.
    pub default: u64,
    /// How the default is computed, where it is not the same everywhere.
    pub computed: Option<&'static str>,
    /// The values that it takes.
    pub domain: Domain,
    /// Its effect, in a sentence or two.
    pub effect: &'static str,
    /// The moment from which on a new value counts.
    pub when: When,
}

impl Tunable {
    /// A value of it as text.
    #[must_use]
    pub fn shown(&self, number: u64) -> String {
        match self.domain {
            Domain::Words(words) => {
                words.get(number as usize).map_or_else(|| number.to_string(), |word| (*word).into())
            }
            Domain::Number(..) | Domain::Power(..) | Domain::Switch => number.to_string(),
        }
    }

    /// Whether it may have this value.
    #[must_use]
    pub fn accepts(&self, number: u64) -> bool {
        match self.domain {
            Domain::Number(min, max) => (min..=max).contains(&number),
            Domain::Power(min, max) => (min..=max).contains(&number) && number.is_power_of_two(),
            Domain::Switch => number <= 1,
            Domain::Words(words) => number < words.len() as u64,
        }
    }

    /// The number for a value as text: digits alone, or followed by the tunable's unit; bytes also by K, M, G, T, P or E.
    pub fn parse(&self, value: &str) -> Result<u64, TunableError> {
        let refused = || TunableError::OutOfRange { name: self.name, value: value.into(), allowed: self.to_string() };
        if let Domain::Words(words) = self.domain {
            return words.iter().position(|word| *word == value).map(|at| at as u64).ok_or_else(refused);
        }
        let digits = value.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = value.split_at(digits);
        let times = match self.factor(unit.trim_start()) {
            Some(times) => times,
            // A value that begins with a number is taken for one with another unit.
            None if digits > 0 => {
                return Err(TunableError::Unit { name: self.name, value: value.into(), unit: self.unit });
            }
            None => return Err(refused()),
        };
        let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(times));
        number.filter(|number| self.accepts(*number)).ok_or_else(refused)
    }

    /// The factor for a number with this unit.
    fn factor(&self, unit: &str) -> Option<u64> {
        if unit.is_empty() || unit == self.unit {
            return Some(1);
        }
        let letters = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
        let shift = match letters {
            _ if self.unit != "bytes" => return None,
            "" => 0,
            "K" | "k" => 10,
            "M" | "m" => 20,
            "G" | "g" => 30,
            "T" | "t" => 40,
            "P" => 50,
            "E" => 60,
            _ => return None,
        };
        Some(1 << shift)
    }
}

impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain {
            Domain::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Domain::Power(min, max) => write!(f, "a power of two from {min} to {max}"),
            Domain::Switch => f.write_str("0 or 1"),
            Domain::Words(words) => write!(f, "one of {}", words.join(", ")),
        }?;
        if self.unit.is_empty() { Ok(()) } else { write!(f, " ({})", self.unit) }
    }
}

/// The reason why a tunable was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// There is none of that name.
    #[error("no tunable is called '{name}'; {}'cenote tunables' lists them", proposal(.near))]
    Unknown {
        /// The name.
        name: String,
        /// Names that are like it.
        near: Vec<&'static str>,
    },
    /// It cannot have that value.
    #[error("{name} cannot be '{value}': it must be {allowed}")]
    OutOfRange {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// The values that it takes.
        allowed: String,
    },
    /// The value has another unit.
    #[error("{name} cannot be '{value}': {}", counted(.unit))]
    Unit {
        /// The name.
        name: &'static str,
        /// The value.
        value: String,
        /// The tunable's unit.
        unit: &'static str,
    },
    /// Not of the form NAME=VALUE.
    #[error("'{text}' is not of the form NAME=VALUE")]
    Form {
        /// The text.
        text: String,
    },
}

fn proposal(near: &[&'static str]) -> String {
    if near.is_empty() { String::new() } else { format!("did you mean {}? ", near.join(" or ")) }
}

fn counted(unit: &str) -> String {
    match unit {
        "" => "it takes a number without a unit".into(),
        "bytes" => "it counts bytes, and takes a number, alone or with K, M, G or T".into(),
        unit => format!("its unit is {unit}, and no other is taken"),
    }
}

/// The tunable of this name.
pub fn find(tables: &[&'static [Tunable]], name: &str) -> Result<&'static Tunable, TunableError> {
    let mut all = tables.iter().copied().flatten();
    all.find(|tunable| tunable.name == name).ok_or_else(|| {
        let names = tables.iter().copied().flatten().map(|tunable| tunable.name);
        TunableError::Unknown { name: name.into(), near: near(name, names) }
    })
}

/// The parts of `NAME=VALUE`.
///
/// # Errors
/// It has another form.
pub(crate) fn split(text: &str) -> Result<(&str, &str), TunableError> {
    text.split_once('=').ok_or_else(|| TunableError::Form { text: text.into() })
}

/// A type of fields of [`crate::tunables!`].
pub trait TunableValue: Copy {
    /// From a number that the tunable accepts.
    fn from_number(number: u64) -> Self;
    /// As a number.
    fn number(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl TunableValue for $type {
            fn from_number(number: u64) -> Self {
                Self::try_from(number).unwrap_or(Self::MAX)
            }

            #[allow(clippy::cast_lossless, reason = "one form for all widths")]
            fn number(self) -> u64 {
                self as u64
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64 usize);

impl TunableValue for bool {
    fn from_number(number: u64) -> Self {
        number != 0
    }

    fn number(self) -> u64 {
        u64::from(self)
    }
}
