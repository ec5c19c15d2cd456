//! Waiting for something to have happened ([`Event`]) or to happen next ([`Notify`]).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// Waiters in the order they came; each may leave at any time.
#[derive(Default, Debug)]
struct Waiters {
    next_id: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Waiters {
    fn enter(&mut self, waker: Waker) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.wakers.insert(id, waker);
        id
    }
}

/// An event that happens at most once. All waiters, before and after, go on once it has.
#[derive(Default, Debug)]
pub struct Event {
    state: Mutex<EventState>,
}

#[derive(Default, Debug)]
struct EventState {
    set: bool,
    waiters: Waiters,
}

impl Event {
    /// An event that has not happened.
    pub fn new() -> Event {
        Event::default()
    }

    /// Sets the event, and wakes all waiters. Setting it again does nothing.
    pub fn set(&self) {
        let wakers = {
            let mut state = self.state.lock();
            state.set = true;
            std::mem::take(&mut state.waiters.wakers)
        };
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    /// From now on it has not happened. A waiter that has not looked since it was set waits on.
    pub fn reset(&self) {
        self.state.lock().set = false;
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        self.state.lock().set
    }

    /// Resolves once it has happened.
    pub fn wait(&self) -> EventWait<'_> {
        EventWait { event: self, id: None }
    }
}

/// See [`Event::wait`].
#[derive(Debug)]
pub struct EventWait<'a> {
    event: &'a Event,
    id: Option<u64>,
}

impl Future for EventWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.event.state.lock();
        if state.set {
            return Poll::Ready(());
        }
        match self.id.and_then(|id| state.waiters.wakers.get_mut(&id)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                let id = state.waiters.enter(context.waker().clone());
                drop(state);
                self.id = Some(id);
            }
        }
        Poll::Pending
    }
}

impl Drop for EventWait<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = self.event.state.lock().waiters.wakers.remove(&id);
            drop(waker);
        }
    }
}

/// Something that happens again and again. [`Notify::one`] lets one waiter go on, or the next to come if nobody waits
/// (at most one such permit is kept); [`Notify::all`] wakes all present waiters.
#[derive(Default, Debug)]
pub struct Notify {
    state: Mutex<NotifyState>,
}

#[derive(Default, Debug)]
struct NotifyState {
    permit: bool,
    waiters: Waiters,
    /// Waiters that were notified and have not been polled since.
    notified: std::collections::BTreeSet<u64>,
}

impl Notify {
    /// Nobody waits, nothing has happened.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes the waiter that has waited longest, or the next one to come.
    pub fn one(&self) {
        let waker = {
            let mut state = self.state.lock();
            match state.waiters.wakers.pop_first() {
                Some((id, waker)) => {
                    state.notified.insert(id);
                    Some(waker)
                }
                None => {
                    state.permit = true;
                    None
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes all present waiters.
    pub fn all(&self) {
        let wakers = {
            let mut state = self.state.lock();
            let wakers = std::mem::take(&mut state.waiters.wakers);
            state.notified.extend(wakers.keys());
            wakers
        };
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    /// Resolves at the next notification. The wait begins now, not at the first poll, so a notification between a check
    /// of some condition after this call and the await is not lost.
    pub fn wait(&self) -> NotifyWait<'_> {
        let mut state = self.state.lock();
        let id = if state.permit {
            state.permit = false;
            let id = state.waiters.next_id;
            state.waiters.next_id += 1;
            state.notified.insert(id);
            id
        } else {
            state.waiters.enter(Waker::noop().clone())
        };
        NotifyWait { notify: self, id, done: false }
    }
}

/// See [`Notify::wait`].
#[derive(Debug)]
pub struct NotifyWait<'a> {
    notify: &'a Notify,
    id: u64,
    done: bool,
}

impl Future for NotifyWait<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let id = self.id;
        let mut state = self.notify.state.lock();
        if state.notified.remove(&id) {
            drop(state);
            self.done = true;
            return Poll::Ready(());
        }
        if let Some(waker) = state.waiters.wakers.get_mut(&id) {
            waker.clone_from(context.waker());
        }
        Poll::Pending
    }
}

impl Drop for NotifyWait<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.notify.state.lock();
        let waker = state.waiters.wakers.remove(&self.id);
        // A notification that met a waiter on its way out goes to the next.
        let pass_on = state.notified.remove(&self.id);
        drop(state);
        drop(waker);
        if pass_on {
            self.notify.one();
        }
    }
}
