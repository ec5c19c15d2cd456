//! Tasks that go on for long without waiting let others run.
//!
//! **The need.** An await that is ready at once does not end a poll. So a change of a thousand snapshots whose blocks are all in the cache
//! is one poll of several seconds. All that time its worker reaps no completion, fires no timer and runs none of the
//! tasks that only it can reach: multihost writes stop, and with them the pool.
//!
//! **In memory.** Each thread counts the calls of [`give_way`] in its current poll. Each [`CALLS`]th call looks at the clock, so the
//! others cost next to nothing; the first such look begins the count of time, so a poll with few calls never looks. After [`POLL_MAX`]
//! a call ends the poll: the task goes round again, behind others of its class, and the worker looks at its ring and its timers.
//!
//! In a simulation no time passes in a poll; there each [`SIMULATED_CALLS`]th call ends one, so that what is simulated meets others'
//! changes between two reads of cached blocks as well.
//!
//! **Rejected.** *A thread for multihost writes alone*, as OpenZFS has: clients' requests would stand still all the same. *Ending polls
//! in locks and semaphores*: the engine's long loops hardly take any. *Calls in each long loop*: the next loop would be forgotten, while
//! all of them read objects; so the DMU's reads call this.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Between two looks at the clock.
const CALLS: u32 = 64;
/// Calls in one poll of a simulated task.
const SIMULATED_CALLS: u32 = 256;
/// The longest time that a poll goes on.
const POLL_MAX: Duration = Duration::from_millis(1);
/// The count of a poll that has been ended.
const ENDED: u32 = u32::MAX;

thread_local! {
    static COUNT: Cell<u32> = const { Cell::new(0) };
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    static IS_SIMULATED: Cell<bool> = const { Cell::new(false) };
}

/// A poll begins on this thread.
#[inline(always)]
pub(crate) fn begin() {
    COUNT.set(0);
}

/// Whether the poll that has just returned was ended by [`give_way`].
#[inline(always)]
pub(crate) fn was_ended() -> bool {
    COUNT.get() == ENDED
}

/// This thread runs a simulation until the result is dropped.
pub(crate) fn simulated() -> impl Drop {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_SIMULATED.set(self.0);
        }
    }
    Before(IS_SIMULATED.replace(true))
}

fn is_due() -> bool {
    // A part of the task has given way already. Its other parts, which the same poll goes on with, give way too.
    if COUNT.get() == ENDED {
        return true;
    }
    let count = COUNT.get().saturating_add(1).min(ENDED - 1);
    COUNT.set(count);
    if !count.is_multiple_of(CALLS) {
        return false;
    }
    let is_due = match (IS_SIMULATED.get(), count) {
        (true, count) => count >= SIMULATED_CALLS,
        (false, CALLS) => {
            SINCE.set(Some(Instant::now()));
            false
        }
        (false, _) => SINCE.get().is_some_and(|since| since.elapsed() > POLL_MAX),
    };
    if is_due {
        COUNT.set(ENDED);
    }
    is_due
}

/// Lets other tasks run, completions come in and timers fire, if the task has gone on for a millisecond without waiting; else it costs next
/// to nothing. For functions that one task may call very many times with all data in memory.
#[inline]
pub async fn give_way() {
    let mut is_first = true;
    poll_fn(|context| {
        if !std::mem::take(&mut is_first) || !is_due() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
