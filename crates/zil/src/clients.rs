//! The number of clients that a log has had lately, and of those that wait in it now.
//!
//! A burst is delayed for more records only if more clients may join it. A client that already waits in the log cannot add a record
//! before it is answered. So a single client is never delayed, and when the last client of a group arrives, the burst starts.

use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

/// Bits of a count in [`Clients::recent`], and how many of them it has.
const BITS: u32 = 8;
const BURSTS: u32 = u64::BITS / BITS;
const MOST: u64 = (1 << BITS) - 1;

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    waiting: AtomicU64,
    /// The most that waited at once since the last burst began.
    most: AtomicU64,
    /// The same for each of the bursts before, a byte each, the newest lowest; 255 stands for as many or more.
    recent: AtomicU64,
}

/// A client that waits.
pub(crate) struct Waits<'a>(&'a Clients);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clients {
    pub(crate) fn one_waits(&self) -> Waits<'_> {
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel) + 1;
        self.most.fetch_max(waiting, Ordering::AcqRel);
        Waits(self)
    }

    /// Notes how many waited at once since the burst before. Bursts of a log begin one after the other.
    pub(crate) fn burst_begins(&self) {
        let most = self.most.swap(self.waiting.load(Ordering::Acquire), Ordering::AcqRel).min(MOST);
        self.recent.store(self.recent.load(Ordering::Relaxed) << BITS | most, Ordering::Relaxed);
    }

    /// Whether fewer wait now than at some moment of the last bursts: the others may come any moment.
    pub(crate) fn may_come(&self) -> bool {
        let recent = self.recent.load(Ordering::Relaxed);
        let most = (0..BURSTS).map(|at| recent >> (at * BITS) & MOST).max().unwrap_or(0);
        self.waiting.load(Ordering::Acquire).min(MOST) < most.max(self.most.load(Ordering::Acquire).min(MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_may_come_who_waited_lately_and_do_not_now() {
        let clients = Clients::default();
        let one = clients.one_waits();
        clients.burst_begins();
        assert!(!clients.may_come(), "the only one waits");
        let two = clients.one_waits();
        assert!(!clients.may_come());
        clients.burst_begins();
        drop(one);
        assert!(clients.may_come(), "the first was answered");
        for _ in 0..=BURSTS {
            clients.burst_begins();
        }
        assert!(!clients.may_come(), "it did not come again");
        drop(two);
        let all: Vec<_> = (0..1000).map(|_| clients.one_waits()).collect();
        clients.burst_begins();
        assert!(!clients.may_come());
        drop(all);
        assert!(clients.may_come());
    }
}
