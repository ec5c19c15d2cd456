//! The progress of `zfs send`: a line each second, and the name of the process.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_admin::send::SendProgress;

use crate::context::Context;
use crate::output::{nicebytes, nicenum};
use crate::time;

/// Says each second how far a stream is, until it is dropped.
pub(super) struct Watch {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(
        context: &Context,
        verbosity: u8,
        parsable: bool,
        titled: Option<u64>,
        name: &str,
        progress: &Arc<SendProgress>,
    ) -> Self {
        if verbosity == 0 && titled.is_none() {
            return Self { ends: None, thread: None };
        }
        let (output, handle) = (context.output().clone(), context.handle().clone());
        let (name, progress) = (name.to_owned(), Arc::clone(progress));
        if verbosity > 0 && !parsable {
            let blocks = if verbosity >= 2 { "   BLOCKS    " } else { "" };
            output.err(format!("TIME        SENT   {blocks}SNAPSHOT {name}"));
        }
        let (ends, end) = mpsc::channel::<()>();
        let watch = move || {
            while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                if let Some(bytes) = titled {
                    // OpenZFS writes into the process's arguments; its name is as much as safe code can change, of 15 bytes. Where there is no
                    // such file, nobody can look.
                    let _ = std::fs::write("/proc/self/comm", title(progress.bytes(), bytes));
                }
                if verbosity == 0 {
                    continue;
                }
                let now = time::format(handle.unix_time().as_secs(), "%H:%M:%S");
                output.err(progress_line(&now, verbosity, parsable, &progress, &name));
            }
        };
        // A stream without words about it is a stream still.
        let thread = std::thread::Builder::new().name("progress".into()).spawn(watch).ok();
        Self { ends: Some(ends), thread }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The share of a stream that is sent, as the name of a process.
fn title(sent_bytes: u64, bytes: u64) -> String {
    let share = match bytes / 100 {
        0 => 100,
        hundredth => (sent_bytes / hundredth).min(100),
    };
    format!("sending {share}%")
}

fn progress_line(now: &str, verbosity: u8, parsable: bool, progress: &SendProgress, name: &str) -> String {
    let (bytes, blocks) = (progress.bytes(), progress.blocks());
    match (verbosity >= 2, parsable) {
        (true, true) => format!("{now}\t{bytes}\t{blocks}\t{name}"),
        (true, false) => format!("{now}   {:>5}    {blocks:>8}    {name}", nicenum(bytes)),
        (false, true) => format!("{now}\t{bytes}\t{name}"),
        (false, false) => format!("{now}   {:>5}   {name}", nicebytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_process_has_the_share_that_is_sent() {
        assert_eq!(title(450, 1000), "sending 45%");
        assert_eq!(title(5000, 1000), "sending 100%");
        assert_eq!(title(0, 10), "sending 100%");
        assert!(title(u64::MAX, u64::MAX).len() <= 15);
    }

    #[test]
    fn lines_are_those_of_openzfs() {
        let progress = SendProgress::default();
        assert_eq!(progress_line("10:00:00", 1, false, &progress, "p@b"), "10:00:00      0B   p@b");
        assert_eq!(progress_line("10:00:00", 2, true, &progress, "p@b"), "10:00:00\t0\t0\tp@b");
    }
}
