//! The shared code of programs that do one trial after the other, each by its number: panics are failures of the trial, and one that does
//! not end is seen.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages of panics, wherever they were caught.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Has every panic noted, also those that a task's end catches, and none printed.
pub fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("no message");
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{place}: {what}"));
    }));
}

/// The panics since this was last called.
pub fn take_panics() -> Vec<String> {
    std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Ends the program when one trial takes longer than `max`: it may be in a loop that no simulation sees. The number of the trial
/// under way is put into what comes back; `noun` says what is numbered. While it is 0 nothing is watched.
#[must_use]
pub fn watch(noun: &'static str, max: Duration) -> Arc<AtomicU64> {
    let current = Arc::new(AtomicU64::new(0));
    let watched = Arc::clone(&current);
    std::thread::spawn(move || {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = watched.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if now != 0 && since.elapsed() > max {
                println!("FAILED {noun} {now}: no end after {} s", max.as_secs());
                std::process::abort();
            }
        }
    });
    current
}

/// The trials that a program is to do: options that all such programs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// How many (`--count`).
    pub count: u64,
    /// The number of the first one (`--first`).
    pub first: u64,
    /// Seconds after which none is begun; any time if 0 (`--seconds`).
    pub seconds: u64,
    /// Seconds between two lines that say how far it is; never if 0 (`--every`).
    pub every: u64,
    /// Of so many trials zdb judges what one has left; of none if 0 (`--zdb-every`).
    pub zdb_every: u64,
    /// The doings of each trial are said (`--verbose`).
    pub verbose: bool,
}

/// The number that follows an option; `None` if there is none.
pub fn number<N: FromStr>(args: &mut dyn Iterator<Item = String>) -> Option<N> {
    args.next()?.parse().ok()
}

impl Span {
    /// So many trials unless the options say otherwise, from this one on.
    #[must_use]
    pub const fn new(count: u64, first: u64) -> Self {
        Self { count, first, seconds: 0, every: 0, zdb_every: 0, verbose: false }
    }

    /// Takes one of these options, with its number from `args`. Whether it is one of them; `None` if its number is not there.
    pub fn take(&mut self, option: &str, args: &mut dyn Iterator<Item = String>) -> Option<bool> {
        let field = match option {
            "--count" => &mut self.count,
            "--first" => &mut self.first,
            "--seconds" => &mut self.seconds,
            "--every" => &mut self.every,
            "--zdb-every" => &mut self.zdb_every,
            "--verbose" => {
                self.verbose = true;
                return Some(true);
            }
            _ => return Some(false),
        };
        *field = number(args)?;
        Some(true)
    }

    /// The number behind that of the last trial.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// Whether another trial may begin.
    #[must_use]
    pub fn is_time(&self, started: Instant) -> bool {
        self.seconds == 0 || started.elapsed().as_secs() < self.seconds
    }

    /// Whether it is time for a line that says how far it is, since `said`.
    #[must_use]
    pub fn is_line_due(&self, said: Instant) -> bool {
        self.every > 0 && said.elapsed().as_secs() >= self.every
    }

    /// Whether zdb judges the trial of this number.
    #[must_use]
    pub const fn has_zdb(&self, number: u64) -> bool {
        self.zdb_every > 0 && number.is_multiple_of(self.zdb_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_with_their_numbers_and_others_are_left() {
        let mut span = Span::new(1, 7);
        let mut args = ["--count", "20", "--zdb-every", "5", "--verbose", "--jobs"].map(str::to_owned).into_iter();
        let mut taken = Vec::new();
        while let Some(option) = args.next() {
            taken.push(span.take(&option, &mut args));
        }
        assert_eq!(taken, [Some(true), Some(true), Some(true), Some(false)]);
        assert_eq!(span, Span { count: 20, zdb_every: 5, verbose: true, ..Span::new(1, 7) });
        assert_eq!((span.end(), span.has_zdb(10), span.has_zdb(11)), (27, true, false));
        let mut none = std::iter::once("many".to_owned());
        assert_eq!((span.take("--first", &mut none), span.take("--first", &mut none)), (None, None));
        assert!(span.is_time(Instant::now()) && !span.is_line_due(Instant::now()));
    }
}
