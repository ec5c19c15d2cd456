//! Messages of `zfs send` beside the stream: the names of what is sent, estimated lengths, and progress.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use cenote_send::sender::SendProgress;

use super::Args;
use crate::context::Context;
use crate::output::{nicebytes, nicenum};
use crate::time;

/// Lines go where the stream does not: to standard output where there is no stream.
pub(super) fn say(context: &Context, args: &Args, text: &str) -> Result<()> {
    if args.dryrun && args.verbosity() > 0 {
        return context.out(format!("{text}\n"));
    }
    context.err(text);
    Ok(())
}

/// The line about one stream.
pub(super) fn stream_line(args: &Args, to: &str, from: Option<&str>, bytes: u64) -> String {
    if args.parsable {
        return match from {
            Some(from) => format!("incremental\t{from}\t{to}\t{bytes}"),
            None => format!("full\t{to}\t{bytes}"),
        };
    }
    let mut line = match from {
        Some(from) if from.contains(['@', '#']) => format!("send from {from} to {to}"),
        Some(from) => format!("send from @{from} to {to}"),
        None => format!("full send of {to}"),
    };
    if bytes != 0 {
        line.push_str(&format!(" estimated size is {}", nicebytes(bytes)));
    }
    line
}

/// The line about all of them. OpenZFS writes the bytes of one stream as a number.
pub(super) fn total_line(args: &Args, bytes: u64, is_one: bool) -> String {
    match (args.parsable, is_one) {
        (true, _) => format!("size\t{bytes}"),
        (false, true) => format!("total estimated size is {}", nicenum(bytes)),
        (false, false) => format!("total estimated size is {}", nicebytes(bytes)),
    }
}

/// Says each second how far a stream is, until it is dropped.
pub(super) struct Watch {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(context: &Context, args: &Args, name: &str, progress: &Arc<SendProgress>) -> Self {
        if args.verbose == 0 {
            return Self { ends: None, thread: None };
        }
        let (verbosity, parsable) = (args.verbose, args.parsable);
        let (output, handle) = (context.output().clone(), context.handle().clone());
        let (name, progress) = (name.to_owned(), Arc::clone(progress));
        if !parsable {
            let blocks = if verbosity >= 2 { "   BLOCKS    " } else { "" };
            output.err(format!("TIME        SENT   {blocks}SNAPSHOT {name}"));
        }
        let (ends, end) = mpsc::channel::<()>();
        let watch = move || {
            while end.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
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
    fn lines_are_those_of_openzfs() {
        let plain = Args::default();
        let exact = Args { parsable: true, ..Args::default() };
        assert_eq!(stream_line(&plain, "p@b", None, 1536), "full send of p@b estimated size is 1.50K");
        assert_eq!(stream_line(&plain, "p@b", None, 0), "full send of p@b");
        assert_eq!(stream_line(&plain, "p@b", Some("a"), 624), "send from @a to p@b estimated size is 624B");
        assert_eq!(stream_line(&plain, "p@b", Some("p#a"), 0), "send from p#a to p@b");
        assert_eq!(stream_line(&exact, "p@b", Some("p@a"), 7), "incremental\tp@a\tp@b\t7");
        assert_eq!(stream_line(&exact, "p@b", None, 7), "full\tp@b\t7");
        assert_eq!(total_line(&exact, 7, true), "size\t7");
        assert_eq!(total_line(&plain, 624, true), "total estimated size is 624");
        assert_eq!(total_line(&plain, 624, false), "total estimated size is 624B");
        let progress = SendProgress::default();
        assert_eq!(progress_line("10:00:00", 1, false, &progress, "p@b"), "10:00:00      0B   p@b");
        assert_eq!(progress_line("10:00:00", 2, true, &progress, "p@b"), "10:00:00\t0\t0\tp@b");
    }
}
