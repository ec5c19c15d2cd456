//! Models of devices: how long requests take, exactly, in virtual time.
//!
//! A model is a machine of events. Its driver gives it requests with the moment at which they arrive, asks for the next moment at which
//! something happens by itself, and advances it to that moment; completions come out with theirs. Nothing in
//! it is random, and all of it is in whole nanoseconds, so that every figure follows from the model's options by the formulas
//! that stand beside them, which are what the models are tested against.
//!
//! * [`Rotating`]: one head over tracks. Seek, rotation, transfer; a drive that reads on while nobody asks; in front of it an
//!   elevator that plugs, merges and serves in one direction, with a bound on how long anyone waits.
//! * [`Flash`]: cells that work side by side behind one interface; [`FlashOptions::sata`] and [`FlashOptions::nvme`].
//!
//! [`SimDisk::set_model`](super::disk::SimDisk::set_model) puts one behind a simulated disk.

mod flash;
mod rotating;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use flash::{Flash, FlashOptions};
pub use rotating::{Rotating, RotatingOptions};

use super::disk::RequestKind;
use crate::time::Instant;

/// One request as a model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Names it when it is done; no two outstanding ones may share it.
    pub id: u64,
    /// The operation.
    pub kind: RequestKind,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub size_bytes: u64,
}

/// A request that is done, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which.
    pub id: u64,
    /// The moment, which may lie before the one that the model was advanced to.
    pub at: Instant,
}

/// How long a device's requests take.
pub trait DeviceModel: Send {
    /// Takes a request that arrives at `now`. The model has been advanced to `now` before.
    fn submit(&mut self, now: Instant, asked: Asked);

    /// When something next happens without another request; `None` when all is done.
    fn next_event(&self) -> Option<Instant>;

    /// Lets everything happen that happens by `now`, and appends what is done to `done`, in the order of its moments.
    fn advance(&mut self, now: Instant, done: &mut Vec<Done>);
}

/// A device that stands still now and then: `length` long, `period` apart, for the first time at `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalls {
    /// The beginning of the first.
    pub first: Instant,
    /// From the beginning of one to that of the next.
    pub period: Duration,
    /// How long each lasts; less than the period.
    pub length: Duration,
}

impl Stalls {
    /// When work that is ready at `at` can begin.
    #[must_use]
    pub(crate) fn after(&self, at: Instant) -> Instant {
        let period_ns = ns(self.period);
        if at < self.first || period_ns == 0 {
            return at;
        }
        let within_ns = (at.as_ns() - self.first.as_ns()) % period_ns;
        at + self.length.saturating_sub(Duration::from_nanos(within_ns))
    }
}

/// When work that is ready at `at` can begin on a device that may stall.
fn after_stalls(stalls: Option<&Stalls>, at: Instant) -> Instant {
    stalls.map_or(at, |stalls| stalls.after(at))
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// `bytes` at `bytes_per_s`, rounded up.
fn transfer(bytes: u64, bytes_per_s: u64) -> Duration {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}
