//! The property `failmode` of a pool.

/// The result of a change of a suspended pool: it waits or fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// They wait until it goes on.
    #[default]
    Wait,
    /// They are refused.
    Continue,
    /// The owner of the pool is to end the process at once ([`Pool::failed`](crate::Pool::failed)); changes wait until then.
    Panic,
}

impl FailMode {
    /// Of the number that the property has on disk.
    pub(crate) const fn of_number(number: u64) -> Self {
        match number {
            1 => Self::Continue,
            2 => Self::Panic,
            _ => Self::Wait,
        }
    }
}
