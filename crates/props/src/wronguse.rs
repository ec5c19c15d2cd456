//! Words of a command line that mean nothing.

use std::error::Error;
use std::fmt;

/// The words of a command line mean nothing, or contradict each other: its caller is wrong, and no pool. The text says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongUse(pub String);

impl WrongUse {
    /// With this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for WrongUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for WrongUse {}
