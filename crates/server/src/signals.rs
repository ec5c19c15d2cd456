//! Signals that end a process in good order: everything that was begun is finished, and what is held is let go.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context as _, Result};

/// An interrupt, a request to end, and the end of the terminal.
const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Watches for the signals that end this process, from now on: none of them ends it by itself any more. SIGHUP stays ignored where the
/// process was started to ignore it, as by `nohup`; an interrupt does not, since shells have all that scripts start with `&` ignore
/// it, which scripts then end by it.
///
/// # Errors
/// The system does not let signals be watched.
pub fn ending() -> Result<Signals> {
    let keeps_going = ignored() & 1 << (SIGHUP - 1) != 0;
    let wanted = ENDING.into_iter().filter(|signal| *signal != SIGHUP || !keeps_going);
    Signals::new(wanted).context("cannot watch for signals")
}

/// Signals that are ignored: a bit for each, the first for signal 1. None where the kernel does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
