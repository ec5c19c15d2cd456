//! Devices that were found to hang, kept until they are asked for.

use std::collections::VecDeque;

use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;

/// The most hangs kept for [`Suspension::hung`](super::Suspension::hung): beyond it the oldest are dropped.
const TOLD_MAX: usize = 64;

/// A device was found to hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Which, for how long, and what is done about it.
    pub message: String,
    /// The process is to end at once (`zfs_deadman_failmode=panic`).
    pub is_fatal: bool,
}

/// Hangs that no call of `hung` has returned yet.
#[derive(Debug, Default)]
pub(super) struct Hangs {
    waiting: Mutex<VecDeque<Hang>>,
    came: Notify,
}

impl Hangs {
    pub(super) fn push(&self, hang: Hang) {
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= TOLD_MAX {
                waiting.pop_front();
            }
            waiting.push_back(hang);
            assert!(waiting.len() <= TOLD_MAX, "hangs that nobody asks for are bounded");
        }
        self.came.all();
    }

    pub(super) async fn next(&self) -> Hang {
        loop {
            let came = self.came.wait();
            if let Some(hang) = self.waiting.lock().pop_front() {
                return hang;
            }
            came.await;
        }
    }
}
