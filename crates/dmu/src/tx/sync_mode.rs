//! When changes are waited for.

/// The property `sync`: when changes are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When a client asks for it (`fsync`, `O_SYNC`, `FLUSH`, `FUA`).
    #[default]
    Standard,
    /// After each change.
    Always,
    /// Never: `fsync` succeeds at once, and a crash loses what the last txg does not have.
    Disabled,
}

impl SyncMode {
    /// The number that the property is stored as.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Standard => 0,
            Self::Always => 1,
            Self::Disabled => 2,
        }
    }

    /// By the number that the property is stored as; an unknown number counts as the default.
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Always,
            2 => Self::Disabled,
            _ => Self::Standard,
        }
    }
}
