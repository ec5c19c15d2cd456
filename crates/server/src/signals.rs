//! Signals that end a process in good order: pending work is finished, and everything held is released.

use cenote_taskq::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context as _, Result};

/// The end of the terminal, an interrupt, and a request to end.
const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Watches for the signals that end this process: from now on none of them ends it directly. SIGHUP remains ignored if the process was started
/// so, as by `nohup`. An interrupt does not: shells ignore it in all programs that scripts start with `&`, and the scripts then end these by it.
pub fn ending() -> Result<Signals> {
    let keeps_going = ignored() & 1 << (SIGHUP - 1) != 0;
    let wanted = ENDING.into_iter().filter(|signal| *signal != SIGHUP || !keeps_going);
    Signals::new(wanted).context("cannot watch for signals")
}

/// Calls `ended` at the first signal that is to end this process, which a second one then ends at once. Until the watch is dropped.
pub fn watch(handle: &Handle, ended: impl FnOnce() + Send + 'static) -> Result<Watch> {
    let mut signals = ending()?;
    let watch = Watch(signals.handle());
    // Detached: it ends with the watch, or with the process.
    drop(handle.spawn_blocking(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            ended();
        }
        if let Some(signal) = signals.next() {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }));
    Ok(watch)
}

/// A watch for signals.
pub struct Watch(signal_hook::iterator::Handle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Signals that are ignored: a bit for each, the first for signal 1. 0 if the kernel does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
