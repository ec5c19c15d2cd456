//! The shared code of programs that do one trial after the other, each by its number: panics are failures of the trial, and one that does
//! not end is seen.

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
