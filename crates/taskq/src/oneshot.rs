//! A channel for one value with one sender and one receiver.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

enum State<T> {
    Empty,
    Waiting(Waker),
    Full(T),
    /// The sender left without a value, or the receiver left, or the value was taken.
    Closed,
}

struct Shared<T>(Mutex<State<T>>);

/// The end a value goes in.
pub struct Sender<T>(Option<Arc<Shared<T>>>);

/// The end a value comes out of: a future of the value, or of [`Closed`] when the sender left without one.
pub struct Receiver<T>(Arc<Shared<T>>);

/// The other end is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sending end is gone")]
pub struct Closed;

/// A connected pair of ends.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared(Mutex::new(State::Empty)));
    (Sender(Some(Arc::clone(&shared))), Receiver(shared))
}

impl<T> Sender<T> {
    /// Hands `value` over and wakes the receiver; gives it back if the receiver is gone.
    pub fn send(mut self, value: T) -> Result<(), T> {
        let Some(shared) = self.0.take() else { return Err(value) };
        let mut state = shared.0.lock();
        let waker = match std::mem::replace(&mut *state, State::Closed) {
            State::Closed => return Err(value),
            State::Waiting(waker) => Some(waker),
            State::Empty | State::Full(_) => None,
        };
        *state = State::Full(value);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Whether the receiver was dropped, so that the value is of no use.
    pub fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|shared| matches!(*shared.0.lock(), State::Closed))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let old = std::mem::replace(&mut *shared.0.lock(), State::Closed);
        if let State::Waiting(waker) = old {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The value if it is there, without waiting; `Ok(None)` if it is yet to come.
    pub fn try_receive(&mut self) -> Result<Option<T>, Closed> {
        let mut state = self.0.0.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Full(value) => Ok(Some(value)),
            State::Closed => Err(Closed),
            other => {
                *state = other;
                Ok(None)
            }
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.0.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Full(value) => Poll::Ready(Ok(value)),
            State::Closed => Poll::Ready(Err(Closed)),
            State::Waiting(waker) if waker.will_wake(context.waker()) => {
                *state = State::Waiting(waker);
                Poll::Pending
            }
            State::Empty | State::Waiting(_) => {
                *state = State::Waiting(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let old = std::mem::replace(&mut *self.0.0.lock(), State::Closed);
        drop(old);
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Receiver")
    }
}
