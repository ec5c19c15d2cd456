//! The host and the time that a pool records with its writes.

use std::time::Duration;

use cenote_taskq::Handle;

/// Where time comes from that is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's, or the simulation's.
    Now,
    /// Always the same, in seconds since 1970: for images that are made again.
    Fixed(u64),
}

impl Clock {
    /// Now, since 1970; a fixed one has whole seconds.
    pub(crate) fn now(self, handle: &Handle) -> Duration {
        match self {
            Self::Now => handle.unix_time(),
            Self::Fixed(time) => Duration::from_secs(time),
        }
    }

    /// Now, in seconds since 1970.
    pub(crate) fn now_s(self, handle: &Handle) -> u64 {
        self.now(handle).as_secs()
    }
}

/// The host that writes the pool.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The host id; 0 if it has none.
    pub id: u64,
    /// The host's name.
    pub name: String,
}
