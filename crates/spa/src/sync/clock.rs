//! The host and the time that a pool records with its writes.

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
    /// Now, in seconds since 1970.
    pub(crate) fn now_s(self, handle: &Handle) -> u64 {
        match self {
            Self::Now => handle.unix_time().as_secs(),
            Self::Fixed(time) => time,
        }
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
