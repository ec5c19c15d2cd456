//! Values that a future finds on its way to its result, taken by a consumer who polls it.
//!
//! The engine makes streams and comparisons as one future each, which hands over what it finds to a callback. A consumer wants one value at a
//! time, and no more memory than it takes to hold what it has not taken yet. So the future runs only while the consumer waits and nothing is
//! there: what one poll finds is the most that waits. The engine's long loops end a poll after a millisecond (`cenote_taskq::give_way`).

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use cenote_taskq::BoxFuture;
use cenote_taskq::sync::Mutex;

use crate::error::Error;

/// The place where a future puts what it finds.
pub(crate) struct Found<T>(Arc<Mutex<T>>);

impl<T> Clone for Found<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default> Found<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Puts something there.
    pub(crate) fn put<U>(&self, put: impl FnOnce(&mut T) -> U) -> U {
        put(&mut self.0.lock())
    }
}

/// A future, and what it has found.
pub(crate) struct Pulled<T, D> {
    found: Found<T>,
    future: Option<BoxFuture<'static, Result<D, Error>>>,
    result: Option<D>,
}

impl<T: Default, D> Pulled<T, D> {
    pub(crate) fn new(found: Found<T>, future: BoxFuture<'static, Result<D, Error>>) -> Self {
        Self { found, future: Some(future), result: None }
    }

    /// Takes something of what was found, and waits if there is nothing. `None` after the end.
    ///
    /// # Errors
    /// That of the future, once, after what it found before.
    pub(crate) async fn next<U>(&mut self, mut take: impl FnMut(&mut T) -> Option<U>) -> Result<Option<U>, Error> {
        loop {
            if let Some(taken) = take(&mut self.found.0.lock()) {
                return Ok(Some(taken));
            }
            let Some(future) = &mut self.future else { return Ok(None) };
            let mut taken = None;
            let ended = poll_fn(|context| match future.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => {
                    taken = take(&mut self.found.0.lock());
                    if taken.is_some() { Poll::Ready(None) } else { Poll::Pending }
                }
            });
            let ended = ended.await;
            if let Some(taken) = taken {
                return Ok(Some(taken));
            }
            if let Some(result) = ended {
                self.future = None;
                // An error is told after what came before it.
                match (result, take(&mut self.found.0.lock())) {
                    (Ok(result), taken) => {
                        self.result = Some(result);
                        if taken.is_some() {
                            return Ok(taken);
                        }
                    }
                    (Err(error), None) => return Err(error),
                    (Err(error), taken) => {
                        self.future = Some(Box::pin(async { Err(error) }));
                        return Ok(taken);
                    }
                }
            }
        }
    }

    /// The result, once [`Self::next`] has returned `None`.
    pub(crate) fn result(&self) -> Option<&D> {
        self.result.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use cenote_taskq::yield_now;

    use super::*;

    /// Finds numbers in groups, each in one poll, and ends with a result.
    fn numbers(groups: Vec<Vec<u32>>, end: Result<&'static str, Error>) -> Pulled<VecDeque<u32>, &'static str> {
        let found = Found::new();
        let into = found.clone();
        let future = async move {
            for group in groups {
                group.into_iter().for_each(|number| into.put(|found: &mut VecDeque<u32>| found.push_back(number)));
                yield_now().await;
            }
            end
        };
        Pulled::new(found, Box::pin(future))
    }

    #[test]
    fn what_is_found_is_taken_in_order_and_no_more_waits_than_one_poll_finds() {
        cenote_taskq::Runtime::simulated(1).block_on(async {
            let mut pulled = numbers(vec![vec![1, 2], vec![], vec![3]], Ok("done"));
            for wanted in 1..=3 {
                assert_eq!(pulled.next(VecDeque::pop_front).await.unwrap(), Some(wanted));
                assert!(pulled.found.put(|found| found.len()) <= 1);
                assert!(pulled.result().is_none());
            }
            assert_eq!(pulled.next(VecDeque::pop_front).await.unwrap(), None);
            assert_eq!(pulled.result(), Some(&"done"));
            assert_eq!(pulled.next(VecDeque::pop_front).await.unwrap(), None);
        });
    }

    #[test]
    fn an_error_comes_once_and_after_what_was_found_before_it() {
        cenote_taskq::Runtime::simulated(1).block_on(async {
            let found = Found::new();
            let into = found.clone();
            let future = async move {
                into.put(|found: &mut VecDeque<u32>| found.push_back(1));
                Err::<(), _>(Error::misuse("it breaks off"))
            };
            let mut pulled = Pulled::new(found, Box::pin(future));
            assert_eq!(pulled.next(VecDeque::pop_front).await.unwrap(), Some(1));
            assert!(pulled.next(VecDeque::pop_front).await.is_err());
            assert_eq!(pulled.next(VecDeque::pop_front).await.unwrap(), None);
            assert!(pulled.result().is_none());
        });
    }
}
