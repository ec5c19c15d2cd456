//! A fair counting semaphore.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// A number of permits that tasks take, hold and give back. Fair: permits go to the task that has waited longest, and a large
/// request is not overtaken by small ones behind it.
#[derive(Debug)]
pub struct Semaphore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: u64,
    next_id: u64,
    /// In order of arrival.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    count: u64,
    waker: Waker,
    granted: bool,
}

impl State {
    /// Grants from the front as far as the permits reach; the wakers of the granted.
    fn grant(&mut self, wakers: &mut Vec<Waker>) {
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.granted) {
            if waiting.count > self.free {
                break;
            }
            self.free -= waiting.count;
            waiting.granted = true;
            wakers.push(waiting.waker.clone());
        }
    }
}

impl Semaphore {
    /// A semaphore of `permits` free permits.
    pub fn new(permits: u64) -> Semaphore {
        Semaphore { state: Mutex::new(State { free: permits, next_id: 0, waiting: VecDeque::new() }) }
    }

    /// Waits for `count` permits at once. More than there ever are waits for [`Semaphore::add`].
    pub fn acquire(&self, count: u64) -> Acquire<'_> {
        Acquire { semaphore: self, count, id: None }
    }

    /// As [`Semaphore::acquire`], with a permit that holds on to the semaphore.
    pub async fn acquire_owned(self: &Arc<Self>, count: u64) -> OwnedPermit {
        self.acquire(count).await.forget();
        OwnedPermit { semaphore: Arc::clone(self), count }
    }

    /// `count` permits if they are free now and nobody waits.
    pub fn try_acquire(&self, count: u64) -> Option<Permit<'_>> {
        let mut state = self.state.lock();
        if state.free < count || state.waiting.iter().any(|waiting| !waiting.granted) {
            return None;
        }
        state.free -= count;
        Some(Permit { semaphore: self, count })
    }

    /// Adds `count` permits: new ones, or ones whose [`Permit`] was forgotten.
    pub(crate) fn add(&self, count: u64) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            state.free = state.free.saturating_add(count);
            state.grant(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Free permits now.
    pub fn free(&self) -> u64 {
        self.state.lock().free
    }
}

/// See [`Semaphore::acquire`].
#[derive(Debug)]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    count: u64,
    id: Option<u64>,
}

impl<'a> Future for Acquire<'a> {
    type Output = Permit<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit<'a>> {
        let semaphore = self.semaphore;
        let count = self.count;
        let mut state = semaphore.state.lock();
        match self.id {
            None => {
                if state.waiting.iter().all(|waiting| waiting.granted) && state.free >= count {
                    state.free -= count;
                    return Poll::Ready(Permit { semaphore, count });
                }
                let id = state.next_id;
                state.next_id += 1;
                state.waiting.push_back(Waiting { id, count, waker: context.waker().clone(), granted: false });
                drop(state);
                self.id = Some(id);
                Poll::Pending
            }
            Some(id) => {
                let Some(at) = state.waiting.iter().position(|waiting| waiting.id == id) else { return Poll::Pending };
                if state.waiting[at].granted {
                    state.waiting.remove(at);
                    drop(state);
                    self.id = None;
                    return Poll::Ready(Permit { semaphore, count });
                }
                state.waiting[at].waker.clone_from(context.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut wakers = Vec::new();
        {
            let mut state = self.semaphore.state.lock();
            if let Some(at) = state.waiting.iter().position(|waiting| waiting.id == id)
                && let Some(left) = state.waiting.remove(at)
            {
                if left.granted {
                    state.free += left.count;
                }
                // Those behind a large request that left may fit now.
                state.grant(&mut wakers);
            }
        }
        for waker in wakers {
            waker.wake();
        }
    }
}

/// Permits held; they return when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    count: u64,
}

impl Permit<'_> {
    /// Keeps the permits out; [`Semaphore::add`] returns them.
    pub fn forget(mut self) {
        self.count = 0;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.add(self.count);
        }
    }
}

/// As [`Permit`], with a hold on its semaphore, so that it can go with a spawned task.
#[derive(Debug)]
#[must_use]
pub struct OwnedPermit {
    semaphore: Arc<Semaphore>,
    count: u64,
}

impl Drop for OwnedPermit {
    fn drop(&mut self) {
        if self.count > 0 {
            self.semaphore.add(self.count);
        }
    }
}
