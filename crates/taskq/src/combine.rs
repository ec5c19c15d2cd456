//! Running several futures at once inside one task, with a bound.
//!
//! Nothing here spawns: the futures may borrow from the caller. Work that should use other cores is spawned.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::handle::{Join, JoinError};
use crate::sync::Mutex;

/// Futures polled only when they were woken; results come in the order of completion.
pub struct Unordered<F: Future> {
    slots: Vec<Option<Child<F>>>,
    free: Vec<usize>,
    ready: Arc<Mutex<Ready>>,
    len: usize,
}

type Child<F> = (Pin<Box<F>>, Arc<Slot>);

#[derive(Default)]
struct Ready {
    indexes: VecDeque<usize>,
    parent: Option<Waker>,
}

struct Slot {
    index: usize,
    state: Mutex<bool>,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if std::mem::replace(&mut *self.state.lock(), true) {
            return;
        }
        let parent = {
            let mut ready = self.ready.lock();
            ready.indexes.push_back(self.index);
            ready.parent.take()
        };
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

impl<F: Future> Default for Unordered<F> {
    fn default() -> Self {
        Unordered { slots: Vec::new(), free: Vec::new(), ready: Arc::default(), len: 0 }
    }
}

impl<F: Future> Unordered<F> {
    /// A set of none.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a future; it is first polled by [`Unordered::next`].
    pub fn push(&mut self, future: F) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slot = Arc::new(Slot { index, state: Mutex::new(true), ready: Arc::clone(&self.ready) });
        self.slots[index] = Some((Box::pin(future), slot));
        self.len += 1;
        self.ready.lock().indexes.push_back(index);
    }

    /// Futures not finished.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The output of the next to finish, or `None` when none is left.
    pub async fn next(&mut self) -> Option<F::Output> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.len == 0 {
            return Poll::Ready(None);
        }
        // At most as many polls as there were ready at the start: one that wakes itself does not keep the thread.
        let mut turns = {
            let mut ready = self.ready.lock();
            ready.parent = Some(context.waker().clone());
            ready.indexes.len()
        };
        loop {
            let Some(index) = self.ready.lock().indexes.pop_front() else { return Poll::Pending };
            let Some((future, slot)) = self.slots[index].as_mut() else { continue };
            *slot.state.lock() = false;
            let waker = Waker::from(Arc::clone(slot));
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                // A late wake of this slot finds it marked and does nothing, so its index is not reused under it. If it
                // woke itself while it was polled, its index is in the queue, and comes out.
                let woken = std::mem::replace(&mut *slot.state.lock(), true);
                self.slots[index] = None;
                if woken {
                    self.ready.lock().indexes.retain(|&ready| ready != index);
                }
                self.free.push(index);
                self.len -= 1;
                return Poll::Ready(Some(output));
            }
            turns = turns.saturating_sub(1);
            if turns == 0 {
                let more = !self.ready.lock().indexes.is_empty();
                if more {
                    context.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        }
    }
}

/// Runs all at once; the outputs in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut set = Unordered::new();
    let mut count = 0;
    for (index, future) in futures.into_iter().enumerate() {
        set.push(async move { (index, future.await) });
        count += 1;
    }
    let mut outputs: Vec<Option<F::Output>> = std::iter::repeat_with(|| None).take(count).collect();
    while let Some((index, output)) = set.next().await {
        outputs[index] = Some(output);
    }
    outputs.into_iter().flatten().collect()
}

/// Runs `work` on every item, at most `limit` at once; the outputs in the order of the items.
pub async fn map_concurrent<I, W, F>(limit: usize, items: I, mut work: W) -> Vec<F::Output>
where
    I: IntoIterator,
    W: FnMut(I::Item) -> F,
    F: Future,
{
    let mut items = items.into_iter().enumerate();
    let mut set = Unordered::new();
    let mut outputs: Vec<Option<F::Output>> = Vec::new();
    loop {
        while set.len() < limit.max(1) {
            let Some((index, item)) = items.next() else { break };
            outputs.push(None);
            let future = work(item);
            set.push(async move { (index, future.await) });
        }
        match set.next().await {
            Some((index, output)) => outputs[index] = Some(output),
            None => return outputs.into_iter().flatten().collect(),
        }
    }
}

/// Runs `work` on every item, at most `limit` at once.
pub async fn for_each_concurrent<I, W, F>(limit: usize, items: I, mut work: W)
where
    I: IntoIterator,
    W: FnMut(I::Item) -> F,
    F: Future<Output = ()>,
{
    let _: Result<(), std::convert::Infallible> = try_for_each_concurrent(limit, items, |item| {
        let future = work(item);
        async move {
            future.await;
            Ok(())
        }
    })
    .await;
}

/// As [`for_each_concurrent`]; after the first error no item is begun, those begun are finished, and it is returned.
pub async fn try_for_each_concurrent<I, W, F, E>(limit: usize, items: I, mut work: W) -> Result<(), E>
where
    I: IntoIterator,
    W: FnMut(I::Item) -> F,
    F: Future<Output = Result<(), E>>,
{
    let mut items = items.into_iter();
    let mut set = Unordered::new();
    let mut result = Ok(());
    loop {
        while result.is_ok() && set.len() < limit.max(1) {
            let Some(item) = items.next() else { break };
            set.push(work(item));
        }
        match set.next().await {
            Some(Err(error)) if result.is_ok() => result = Err(error),
            Some(_) => {}
            None => return result,
        }
    }
}

/// Which of two futures came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one.
    Left(A),
    /// The second one.
    Right(B),
}

/// Runs both until one is done, preferring the first; the other is dropped.
pub async fn race<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let mut first = pin!(first);
    let mut second = pin!(second);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = first.as_mut().poll(context) {
            return Poll::Ready(Either::Left(output));
        }
        second.as_mut().poll(context).map(Either::Right)
    })
    .await
}

/// Runs both to the end.
pub async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(|context| {
        if left.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            left = Some(output);
        }
        if right.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            right = Some(output);
        }
        match (left.take(), right.take()) {
            (Some(left), Some(right)) => Poll::Ready((left, right)),
            (l, r) => {
                (left, right) = (l, r);
                Poll::Pending
            }
        }
    })
    .await
}

/// Lets other tasks run before this one goes on.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Spawned tasks whose results are taken as they come. Dropping it detaches what is left.
#[derive(Default)]
pub struct JoinSet<T: Send + 'static> {
    joins: Unordered<Join<T>>,
}

impl<T: Send + 'static> JoinSet<T> {
    /// A set of none.
    pub fn new() -> Self {
        JoinSet { joins: Unordered::new() }
    }

    /// Adds a task.
    pub fn push(&mut self, join: Join<T>) {
        self.joins.push(join);
    }

    /// Tasks whose results have not been taken.
    pub fn len(&self) -> usize {
        self.joins.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.joins.is_empty()
    }

    /// The result of the next task to finish, or `None` when none is left.
    pub async fn next(&mut self) -> Option<Result<T, JoinError>> {
        self.joins.next().await
    }
}
