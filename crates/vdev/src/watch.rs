//! The deadman of a device: watches its outstanding requests and their ages while the pool is in use.
//!
//! # Theory
//!
//! **Need.** A failing device returns errors. A hanging device returns nothing, and its I/O never completes. Worse, a request may still
//! be carried out any time later: a write that was taken for lost could then overwrite newer data.
//!
//! **Life of a request.** It is noted with the time, and owns what it needs, its buffer too. The answer removes it. If the caller goes away
//! before, the request becomes a task of its own, which ends with the answer. Once a request has been out for
//! `zfs_deadman_ziotime_ms`, and still is a second later, the device *hangs*, and the pool is told ([`Said`]); the pool may give the device up
//! ([`Watch::give_up`]): then its pending requests fail, and nothing is sent to it any more, until it is taken back ([`Watch::take_back`]).
//!
//! **Invariants.**
//! 1. Every unanswered request is noted, even if its caller has gone.
//! 2. A device that was given up gets no more requests until it is taken back, which is refused as long as an answer is missing: no late
//!    write can land on a newer one.
//! 3. One timer task at most is out for a device, and none when there is nothing to wait for. It wakes once in `after`, however
//!    many requests there are.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Class, Event, EventWait, Handle, Instant};

/// How long after something was found late it is looked at again, at most.
const SECOND_LOOK_AFTER_MAX: Duration = Duration::from_secs(1);

/// The kind of a request: whether it changes anything on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    /// A write or a flush, or a probe for one.
    Change,
}

/// A report on a device to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It hangs; the most that it was asked and has not answered.
    Hangs(Kind),
    /// It has answered every change that it was late with.
    Answers,
    /// It has answered every change.
    Quiet,
}

type Told = dyn Fn(Said) + Send + Sync;

/// See the module comment.
pub(crate) struct Watch {
    handle: Handle,
    after: Duration,
    told: Box<Told>,
    given_up: Event,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The requests without an answer, in the order in which they were issued.
    pending: BTreeMap<u64, (Instant, Kind)>,
    pending_changes: usize,
    /// The kind of request that it is late with, as far as that was reported.
    late: Option<Kind>,
    is_timed: bool,
    is_given_up: bool,
}

impl State {
    /// The most that has been out for `after`.
    fn overdue(&self, now: Instant, after: Duration) -> Option<Kind> {
        self.pending.values().take_while(|(at, _)| *at + after <= now).map(|(_, kind)| *kind).max()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("after", &self.after).field("state", &self.state).finish_non_exhaustive()
    }
}

/// A request: left before its answer it goes on by itself.
struct Request<T: Send + 'static> {
    watch: Arc<Watch>,
    number: u64,
    rest: Option<BoxFuture<'static, T>>,
}

impl<T: Send + 'static> Future for Request<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        let Poll::Ready(answer) = rest.as_mut().poll(context) else { return Poll::Pending };
        self.rest = None;
        self.watch.answered(self.number);
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for Request<T> {
    fn drop(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        let (watch, number) = (Arc::clone(&self.watch), self.number);
        self.watch.handle.detach(Class::Interrupt, async move {
            drop(rest.await);
            watch.answered(number);
        });
    }
}

/// The answer to a request, or an error once the device is given up.
pub(crate) struct Asked<'a, T: Send + 'static> {
    request: Request<T>,
    given_up: EventWait<'a>,
}

impl<T: Send + 'static> Future for Asked<'_, T> {
    type Output = io::Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if let Poll::Ready(answer) = Pin::new(&mut self.request).poll(context) {
            return Poll::Ready(Ok(answer));
        }
        Pin::new(&mut self.given_up).poll(context).map(|()| Err(hangs()))
    }
}

impl Watch {
    /// A device that hangs once it is late by `after`.
    pub(crate) fn new(handle: Handle, after: Duration, told: Box<Told>) -> Arc<Self> {
        Arc::new(Self { handle, after, told, given_up: Event::new(), state: Mutex::default() })
    }

    /// Asks the device, unless it was given up.
    pub(crate) fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        kind: Kind,
        request: BoxFuture<'static, T>,
    ) -> io::Result<Asked<'_, T>> {
        let number = self.begin(kind).ok_or_else(hangs)?;
        let request = Request { watch: Arc::clone(self), number, rest: Some(request) };
        Ok(Asked { request, given_up: self.given_up.wait() })
    }

    fn begin(self: &Arc<Self>, kind: Kind) -> Option<u64> {
        let (number, is_timed) = {
            let mut state = self.state.lock();
            if state.is_given_up {
                return None;
            }
            let number = state.next;
            state.next += 1;
            let before = state.pending.insert(number, (self.handle.now(), kind));
            assert!(before.is_none(), "each request has a number of its own (invariant 1)");
            state.pending_changes += usize::from(kind == Kind::Change);
            assert!(state.pending_changes <= state.pending.len(), "every change that is out is noted (invariant 1)");
            (number, std::mem::replace(&mut state.is_timed, true))
        };
        if !is_timed {
            let watch = Arc::clone(self);
            self.handle.detach(Class::Interrupt, async move { watch.time().await });
        }
        Some(number)
    }

    fn answered(&self, number: u64) {
        let (is_quiet, answers) = {
            let mut state = self.state.lock();
            let request = state.pending.remove(&number);
            debug_assert!(request.is_some(), "a request is noted until its answer, which comes once (invariant 1)");
            let Some((_, kind)) = request else { return };
            assert!(kind == Kind::Read || state.pending_changes > 0, "a change that is answered was out (invariant 1)");
            state.pending_changes -= usize::from(kind == Kind::Change);
            let late = state.overdue(self.handle.now(), self.after);
            let answers = state.late == Some(Kind::Change) && late != Some(Kind::Change);
            state.late = state.late.min(late);
            (kind == Kind::Change && state.pending_changes == 0, answers)
        };
        if answers {
            (self.told)(Said::Answers);
        }
        if is_quiet {
            (self.told)(Said::Quiet);
        }
    }

    /// Looks for late requests until there is none that could become late. A late request is looked at twice: a process that was stopped
    /// for a while sees the elapsed time before it sees the answers that have come.
    async fn time(&self) {
        let mut is_second_look = false;
        loop {
            let now = self.handle.now();
            let (news, next) = {
                let mut state = self.state.lock();
                assert!(state.is_timed, "one timer at most is out for a device (invariant 3)");
                let late = state.overdue(now, self.after);
                let is_news = late > state.late && !state.is_given_up;
                if is_news && !is_second_look {
                    is_second_look = true;
                    (None, Some(now + SECOND_LOOK_AFTER_MAX.min(self.after / 8)))
                } else {
                    is_second_look = false;
                    state.late = state.late.max(late);
                    let next = state.pending.values().map(|(at, _)| *at + self.after).find(|at| *at > now);
                    state.is_timed = next.is_some();
                    debug_assert!(
                        !state.pending.is_empty() || !state.is_timed,
                        "no timer is out for nothing (invariant 3)"
                    );
                    (late.filter(|_| is_news), next)
                }
            };
            if let Some(kind) = news {
                (self.told)(Said::Hangs(kind));
            }
            let Some(next) = next else { return };
            self.handle.sleep_until(next).await;
        }
    }

    /// Sends nothing to the device any more; its pending requests fail.
    pub(crate) fn give_up(&self) {
        let mut state = self.state.lock();
        state.is_given_up = true;
        self.given_up.set();
    }

    /// Has a device that was given up asked again, once it has answered all that it was asked before. Whether it may be asked now.
    pub(crate) fn take_back(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_given_up && state.pending.is_empty() {
            assert_eq!(state.pending_changes, 0, "no late write is out that could land on a newer one (invariant 2)");
            state.late = None;
            state.is_given_up = false;
            self.given_up.reset();
        }
        !state.is_given_up
    }

    /// Whether it was given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state.lock().is_given_up
    }

    /// Whether a change is late, and someone waits for it.
    pub(crate) fn holds_up(&self) -> bool {
        let state = self.state.lock();
        state.late == Some(Kind::Change) && !state.is_given_up
    }

    /// Whether it has answered every write and flush, or was given up.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = self.state.lock();
        state.pending_changes == 0 || state.is_given_up
    }

    /// For how long it has been silent, if it is late.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let state = self.state.lock();
        let (since, _) = state.pending.values().next().filter(|_| state.late.is_some())?;
        Some(self.handle.now() - *since)
    }
}

fn hangs() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the device hangs and was given up")
}
