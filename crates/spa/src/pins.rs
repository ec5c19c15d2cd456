//! Pinned txgs: blocks that later txgs free are not reused while a view reads the pool as of the pinned txg.
//!
//! A pin itself costs nothing. Space that is freed while it exists cannot be reused until it is dropped, so there is a bound: once more
//! than [`KEPT_SHARE_MAX`] of the unallocated space is kept for pins, the oldest pin is *given up*. Its reader finds out by
//! [`Pin::is_given_up`]: everything that it read before was consistent, later reads may not be.
//!
//! A task that *writes* into a block of a pinned txg, to mend it, cannot find out afterwards: it holds the pin meanwhile ([`Keeper::hold`]), and a pin
//! that is held is not given up. A hold lasts as long as devices take for one block.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use cenote_format::ids::Txg;
use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;
use cenote_zio::Keeper;

/// Blocks kept for pins are at most one part in so many of the space that is not allocated.
pub(crate) const KEPT_SHARE_MAX: u64 = 4;

/// The pins of a pool.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    state: Mutex<State>,
    /// A pin has gone.
    gone: Notify,
}

#[derive(Debug, Default)]
struct State {
    pins: Vec<Weak<Pin>>,
    is_closed: bool,
    /// Space that was freed up to this txg may be used already.
    released: Txg,
}

/// A txg that is kept for as long as this is there, unless too much would have to be.
#[derive(Debug)]
pub(crate) struct Pin {
    txg: Txg,
    is_given_up: AtomicBool,
    /// Blocks of it that are being written again. Changed under the lock of the pins alone, as whether it is given up.
    holds: AtomicUsize,
    /// Its reader has the pool's devices in use.
    has_devices: bool,
    pins: Arc<Pins>,
}

impl Pin {
    /// The txg.
    pub(crate) const fn txg(&self) -> Txg {
        self.txg
    }

    /// Too much had to be kept: blocks of the txg are being used again.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }
}

/// A pin that is not given up.
struct Hold(Arc<Pin>);

impl Drop for Hold {
    fn drop(&mut self) {
        let _state = self.0.pins.state.lock();
        let before = self.0.holds.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a hold that ends was counted");
        assert!(!self.0.is_given_up(), "a pin that is held is not given up");
    }
}

impl Keeper for Pin {
    fn txg(&self) -> Txg {
        self.txg
    }

    fn is_kept(&self) -> bool {
        !self.is_given_up()
    }

    fn hold(self: Arc<Self>) -> Option<Box<dyn Send>> {
        let state = self.pins.state.lock();
        if self.is_given_up() {
            return None;
        }
        self.holds.fetch_add(1, Ordering::SeqCst);
        drop(state);
        Some(Box::new(Hold(self)))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.gone.all();
    }
}

impl Pins {
    /// Pins a txg, which is the last on disk or the one before: what was freed in it is not used again before the second txg after it
    /// is on disk, so there is time. None once the pool is closed.
    pub(crate) fn pin(self: &Arc<Self>, txg: Txg, has_devices: bool) -> Option<Arc<Pin>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        let pin = Arc::new(Pin {
            txg,
            is_given_up: AtomicBool::new(txg < state.released),
            holds: AtomicUsize::new(0),
            has_devices,
            pins: Arc::clone(self),
        });
        state.pins.push(Arc::downgrade(&pin));
        Some(pin)
    }

    /// Has what was freed up to this txg, which is on disk, be used from now on, if nobody reads an earlier txg; one that comes late for such
    /// a txg is given up at once. Whether that is so.
    pub(crate) fn release(&self, txg: Txg) -> bool {
        let mut state = self.state.lock();
        let there: Vec<Arc<Pin>> = state.pins.iter().filter_map(Weak::upgrade).collect();
        let is_free = there.iter().all(|pin| pin.is_given_up());
        if is_free {
            state.released = state.released.max(txg);
        }
        // Those that are let go here wake others, so not under the lock.
        drop(state);
        is_free
    }

    /// The txgs that are pinned. `is_too_much`: as much is kept as may be, so the oldest is given up.
    pub(crate) fn txgs(&self, is_too_much: bool) -> Vec<Txg> {
        let mut pins: Vec<Arc<Pin>> = Vec::new();
        let mut gone: Vec<Arc<Pin>> = Vec::new();
        let mut state = self.state.lock();
        state.pins.retain(|pin| {
            let Some(pin) = pin.upgrade() else { return false };
            let is_there = !pin.is_given_up();
            if is_there {
                pins.push(pin)
            } else {
                gone.push(pin)
            }
            is_there
        });
        let oldest = pins.iter().map(|pin| pin.txg).min().filter(|_| is_too_much);
        // Its time comes in a later txg, when no block of it is being written.
        let is_held = |pin: &&Arc<Pin>| Some(pin.txg) == oldest && pin.holds.load(Ordering::SeqCst) > 0;
        if !pins.iter().any(|pin| is_held(&pin)) {
            for pin in pins.iter().filter(|pin| Some(pin.txg) == oldest) {
                pin.is_given_up.store(true, Ordering::SeqCst);
            }
        }
        drop(state);
        drop(gone);
        // Those that are let go here wake others, so not under the lock.
        pins.iter().filter(|pin| !pin.is_given_up()).map(|pin| pin.txg).collect()
    }

    /// Resolves when none of the pins that are there now keeps anything any more. Those that come meanwhile are of later txgs.
    pub(crate) async fn those_gone(&self) {
        let there = self.state.lock().pins.clone();
        loop {
            let gone = self.gone.wait();
            if there.iter().all(|pin| pin.upgrade().is_none_or(|pin| pin.is_given_up())) {
                return;
            }
            gone.await;
        }
    }

    /// Whether somebody reads a txg through devices of its own: in another process, by what the uberblock says.
    pub(crate) fn has_readers_with_own_devices(&self) -> bool {
        let there: Vec<Arc<Pin>> = self.state.lock().pins.iter().filter_map(Weak::upgrade).collect();
        // Those that are let go here wake others, so not under the lock.
        there.iter().any(|pin| !pin.has_devices && !pin.is_given_up())
    }

    /// Refuses further pins, and resolves when no reader has devices in use.
    pub(crate) async fn close(&self) {
        loop {
            let gone = self.gone.wait();
            let there: Vec<Arc<Pin>> = {
                let mut state = self.state.lock();
                state.is_closed = true;
                state.pins.iter().filter_map(Weak::upgrade).collect()
            };
            if !there.iter().any(|pin| pin.has_devices) {
                return;
            }
            drop(there);
            gone.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that writes into blocks of a txg has them until it is done, however much has to be kept.
    #[test]
    fn a_pin_that_is_held_is_not_given_up() {
        let pins = Arc::new(Pins::default());
        let (one, two) = (pins.pin(Txg(5), true).unwrap(), pins.pin(Txg(5), true).unwrap());
        let hold = one.clone().hold().unwrap();
        assert_eq!(pins.txgs(true), [Txg(5), Txg(5)]);
        assert!(!pins.release(Txg(10)));
        drop(hold);
        assert_eq!(pins.txgs(true), []);
        assert!(one.hold().is_none() && two.hold().is_none(), "its blocks may be in use again");
    }

    #[test]
    fn the_oldest_pin_is_given_up_where_too_much_is_kept() {
        let pins = Arc::new(Pins::default());
        let (one, two, three) =
            (pins.pin(Txg(5), true).unwrap(), pins.pin(Txg(5), false).unwrap(), pins.pin(Txg(9), true).unwrap());
        assert_eq!(pins.txgs(false), [Txg(5), Txg(5), Txg(9)]);
        assert_eq!(pins.txgs(true), [Txg(9)]);
        assert!(one.is_given_up() && two.is_given_up() && !three.is_given_up());
        assert!(!pins.release(Txg(10)), "one reads txg 9");
        drop(three);
        assert_eq!(pins.txgs(false), []);
        assert!(pins.release(Txg(10)));
        let late = pins.pin(Txg(9), true).unwrap();
        assert!(late.is_given_up(), "its blocks may be in use again");
        assert!(!pins.pin(Txg(10), true).unwrap().is_given_up());
    }
}
