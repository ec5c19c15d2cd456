//! The engine's clock reading: nanoseconds since the runtime began, real or virtual.

use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::handle::Handle;
use crate::real::Home;

/// A moment on the runtime's monotonic clock. Only differences mean anything outside one runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The moment `ns` nanoseconds after the runtime began.
    pub const fn from_ns(ns: u64) -> Instant {
        Instant(ns)
    }

    /// Nanoseconds since the runtime began.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero when `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Resolves once its moment has come; see [`Handle::sleep`].
#[derive(Debug)]
pub struct Sleep {
    handle: Handle,
    deadline: Instant,
    timer: Option<TimerKey>,
}

/// Names one armed timer, so that a dropped or polled-again [`Sleep`] can disarm it.
#[derive(Clone)]
pub(crate) struct TimerKey {
    /// Which thread holds it, when the runtime is real.
    pub(crate) home: Option<Arc<Home>>,
    /// When it fires.
    pub(crate) deadline: Instant,
    /// Tells timers of one deadline apart.
    pub(crate) sequence: u64,
}

impl std::fmt::Debug for TimerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} #{}", self.deadline, self.sequence)
    }
}

impl Sleep {
    pub(crate) fn new(handle: Handle, deadline: Instant) -> Sleep {
        Sleep { handle, deadline, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(key) = self.timer.take() {
            self.handle.disarm(key);
        }
        if self.handle.now() >= self.deadline {
            return Poll::Ready(());
        }
        self.timer = Some(self.handle.arm(self.deadline, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer.take() {
            self.handle.disarm(key);
        }
    }
}
