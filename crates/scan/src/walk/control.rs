//! How others have a walk wait, go on or end, and how they see how far it is.

use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;

/// How far a walk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of blocks visited, all copies.
    pub done_bytes: u64,
    /// Those that an earlier part of the walk has visited.
    pub known_bytes: u64,
    /// Bytes allocated in all.
    pub total_bytes: u64,
    /// Blocks visited.
    pub blocks: u64,
    /// Errors so far.
    pub errors: u64,
    /// The time that it took, without pauses.
    pub took: Duration,
}

impl Progress {
    /// Bytes a second; none before there is a millisecond to tell by.
    #[must_use]
    pub fn rate_bytes(&self) -> Option<u64> {
        assert!(self.known_bytes <= self.done_bytes, "a walk has done what it did before");
        let ms = u64::try_from(self.took.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some((self.done_bytes - self.known_bytes).saturating_mul(1000) / ms)
    }

    /// The time that the rest takes at this rate.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.rate_bytes().filter(|rate| *rate > 0)?;
        Some(Duration::from_secs(self.total_bytes.saturating_sub(self.done_bytes).div_ceil(rate)))
    }
}

/// The last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Go,
    Pause,
    /// For ever.
    End,
}

#[derive(Debug, Default)]
struct State {
    asked: Asked,
    /// The walk waits, and reads nothing.
    is_at_rest: bool,
    progress: Progress,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// Steers a walk, from any task. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct WalkControl {
    shared: Arc<Shared>,
}

impl WalkControl {
    /// Of a walk that is to go on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the walk wait.
    pub fn pause(&self) {
        self.ask(Asked::Pause);
    }

    /// Has it go on.
    pub fn resume(&self) {
        self.ask(Asked::Go);
    }

    /// Has it end, at the end of the step that it is in; for ever.
    pub fn cancel(&self) {
        self.ask(Asked::End);
    }

    fn ask(&self, asked: Asked) {
        let mut state = self.shared.state.lock();
        if state.asked != Asked::End {
            state.asked = asked;
        }
        drop(state);
        self.shared.changed.all();
    }

    /// Whether the walk waits, after a pause: it reads nothing.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.shared.state.lock().is_at_rest
    }

    /// How far the walk is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.state.lock().progress
    }

    /// A walk begins: what is told of one before it, which this has steered too, does not count.
    pub(super) fn begin(&self) {
        self.shared.state.lock().progress = Progress::default();
    }

    pub(super) fn set_progress(&self, progress: Progress) {
        let before = std::mem::replace(&mut self.shared.state.lock().progress, progress);
        assert!(before.took <= progress.took, "time goes on");
    }

    /// Whether the step is to end soon.
    pub(super) fn wants_stop(&self) -> bool {
        self.shared.state.lock().asked != Asked::Go
    }

    pub(super) fn is_paused(&self) -> bool {
        self.shared.state.lock().asked == Asked::Pause
    }

    pub(super) fn is_ended(&self) -> bool {
        self.shared.state.lock().asked == Asked::End
    }

    /// Waits while the walk is to wait. Nothing may be read meanwhile.
    pub(super) async fn rest(&self) {
        loop {
            let changed = self.shared.changed.wait();
            {
                let mut state = self.shared.state.lock();
                state.is_at_rest = state.asked == Asked::Pause;
                if !state.is_at_rest {
                    return;
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left_leave_out_what_was_done_before() {
        let at = |done_bytes, ms| Progress {
            done_bytes,
            known_bytes: 1000,
            total_bytes: 5000,
            took: Duration::from_millis(ms),
            ..Progress::default()
        };
        assert_eq!(at(1000, 0).rate_bytes(), None);
        assert_eq!(at(1000, 10).time_left(), None);
        assert_eq!(at(2000, 500).rate_bytes(), Some(2000));
        assert_eq!(at(2000, 500).time_left(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_walk_that_was_ended_stays_ended() {
        let control = WalkControl::new();
        control.pause();
        assert!(control.wants_stop() && !control.is_ended());
        control.cancel();
        control.resume();
        assert!(control.is_ended() && control.wants_stop());
    }
}
