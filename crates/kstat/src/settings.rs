//! Values of tunables that were given.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Tunable, TunableError, find, split};

/// Values that were given for tunables, by name. The others have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    tables: &'static [&'static [Tunable]],
    given: BTreeMap<&'static str, u64>,
}

impl Settings {
    /// Nothing was given yet for the tunables of these tables.
    #[must_use]
    pub const fn of(tables: &'static [&'static [Tunable]]) -> Self {
        Self { tables, given: BTreeMap::new() }
    }

    /// Gives a value, as `NAME=VALUE`.
    ///
    /// # Errors
    /// There is none of that name, or the value is none that it may have; then nothing is changed.
    pub fn set_from(&mut self, text: &str) -> Result<(), TunableError> {
        let (name, value) = split(text)?;
        self.set(name, value)
    }

    /// Gives a value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TunableError> {
        let tunable = find(self.tables, name)?;
        self.given.insert(tunable.name, tunable.parse(value)?);
        Ok(())
    }

    /// The value that was given for a tunable.
    #[must_use]
    pub fn given(&self, name: &str) -> Option<u64> {
        self.given.get(name).copied()
    }

    /// Whether nothing was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// All tunables.
    pub fn tunables(&self) -> impl Iterator<Item = &'static Tunable> + use<> {
        self.tables.iter().copied().flatten()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.tunables().filter_map(|tunable| Some((tunable, self.given(tunable.name)?)));
        let words: Vec<String> =
            given.map(|(tunable, number)| format!("{}={}", tunable.name, tunable.shown(number))).collect();
        f.write_str(&words.join(", "))
    }
}
