//! One io_uring, and the ownership of what the kernel is using through it.
//!
//! ```text
//!   start(request) --> slot in `slots` --> submission queue --(enter)--> kernel
//!                          |                                               |
//!                          |          completion queue <-------------------+
//!                          +--> finished(result, its buffer) <-- reap()
//! ```
//!
//! This is one of the crate's modules with unsafe code. A ring is unsafe because the kernel reads and writes
//! memory on its own time, after the call that named it has returned. The argument that this is sound:
//! 1. a slot owns everything its entry points at (the file, the buffer), from before the entry is pushed until its
//!    completion is reaped, and a slot's buffer does not move: what moves is its owner, the memory is on the heap;
//! 2. nothing else can reach a slot's buffer meanwhile: the slot was given it by value (a `Buf`) or shares it read-only
//!    (a `Block`, which the kernel only reads);
//! 3. a slot is emptied only when its completion has been seen, and its index is the completion's `user_data`, so a
//!    completion is never taken for another slot's;
//! 4. a ring that is dropped waits until no slot is in use, and failing that leaks the slots rather than free them.
//!
//! The ring does not know the tasks that wait for a request. The future may be gone: the kernel's buffer is still ours.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::ReadWriteFlags;

use crate::buf::{Block, Buf};
use crate::oneshot::Sender;

/// Entries of the submission queue: as many requests as one enter passes. Chosen by eye; a queue that fills is submitted
/// and filled again.
const SUBMISSION_ENTRIES: u32 = 256;
/// Requests in flight at one time. The kernel keeps what overflows the completion queue, at a cost; this avoids it.
const IN_FLIGHT_MAX: usize = 2048;
/// The kernel moves at most this much in one request (a page less than 2 GiB); longer ones go on where it stopped.
const TRANSFER_SIZE_MAX: usize = 1 << 30;
/// How long a ring sleeps when the kernel would not take its alarm.
const UNALARMED_SLEEP_MAX: Duration = Duration::from_millis(1);
/// How long a ring that is dropped waits for the kernel before it leaks what the kernel still holds.
const DROP_TIME_MAX: Duration = Duration::from_secs(30);

/// A request to a device.
pub(super) enum Work {
    /// Fill `buf`, at least its first `needed` bytes.
    Read { buf: Buf, needed: usize, sender: Sender<(io::Result<()>, Buf)> },
    /// Write all of `block`, and have it be stable where that is asked for.
    Write { block: Block, is_stable: bool, sender: Sender<io::Result<()>> },
    /// Make stable what was written.
    Flush { sender: Sender<io::Result<()>> },
}

/// A completed request, to be delivered to its waiter once the ring is not borrowed.
pub(super) enum Finished {
    Read(io::Result<()>, Buf, Sender<(io::Result<()>, Buf)>),
    Write(io::Result<()>, Sender<io::Result<()>>),
}

impl Finished {
    /// Wakes the waiter, if there is one.
    pub(super) fn deliver(self) {
        match self {
            Finished::Read(result, buf, sender) => drop(sender.send((result, buf))),
            Finished::Write(result, sender) => drop(sender.send(result)),
        }
    }
}

struct Slot {
    use_: Use,
    file: Option<Arc<File>>,
    offset_bytes: u64,
    /// Bytes the kernel has moved so far.
    done: usize,
}

enum Use {
    Free,
    Device(Work),
    /// The read of the event descriptor that ends a sleep.
    Alarm(Box<[u8; 8]>),
}

/// A ring and its slots.
pub(super) struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose entry did not fit in the queue or over the bound.
    backlog: VecDeque<u32>,
    /// Entries pushed and not submitted.
    pending: usize,
    /// Entries whose completion has not been reaped, the alarm aside.
    in_flight: usize,
    alarm: Option<Alarm>,
}

struct Alarm {
    event: Arc<OwnedFd>,
    armed: bool,
}

impl Ring {
    /// A ring. With `single_thread` only the calling thread may use it, which the kernel rewards.
    pub(super) fn new(single_thread: bool) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(2 * IN_FLIGHT_MAX as u32);
        let best = match single_thread {
            // Linux 6.1: completions are worked off when this thread asks, not by interrupting it.
            true => builder
                .clone()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .build(SUBMISSION_ENTRIES),
            // Linux 5.19.
            false => builder.clone().setup_coop_taskrun().setup_taskrun_flag().build(SUBMISSION_ENTRIES),
        };
        let uring = match best {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => builder.build(SUBMISSION_ENTRIES)?,
            other => other?,
        };
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is older than Linux 5.11's"));
        }
        Ok(Ring {
            uring,
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            pending: 0,
            in_flight: 0,
            alarm: None,
        })
    }

    /// Lets a write to `event` end this ring's waits.
    pub(super) fn set_alarm(&mut self, event: Arc<OwnedFd>) {
        self.alarm = Some(Alarm { event, armed: false });
    }

    /// Requests not finished.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Entries that wait for the next submission.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Takes on a request. It reaches the kernel with the next submission.
    pub(super) fn start(&mut self, file: Arc<File>, offset_bytes: u64, work: Work) {
        self.in_flight += 1;
        let slot = Slot { use_: Use::Device(work), file: Some(file), offset_bytes, done: 0 };
        let index = self.occupy(slot);
        if self.in_flight > IN_FLIGHT_MAX {
            self.backlog.push_back(index);
        } else {
            self.push(index);
        }
    }

    fn occupy(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        }
    }

    fn vacate(&mut self, index: u32) -> Slot {
        self.free.push(index);
        let empty = Slot { use_: Use::Free, file: None, offset_bytes: 0, done: 0 };
        std::mem::replace(&mut self.slots[index as usize], empty)
    }

    /// Pushes the entry of slot `index`, or what is left of it.
    fn push(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let fd = Fd(slot.file.as_ref().map_or(-1, |file| file.as_raw_fd()));
        let at = slot.offset_bytes + slot.done as u64;
        let entry = match &mut slot.use_ {
            Use::Device(Work::Read { buf, .. }) => {
                let rest = &mut buf[slot.done..];
                let len = rest.len().min(TRANSFER_SIZE_MAX) as u32;
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).build()
            }
            Use::Device(Work::Write { block, is_stable, .. }) => {
                let rest = &block[slot.done..];
                let len = rest.len().min(TRANSFER_SIZE_MAX) as u32;
                let flags = if *is_stable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                opcode::Write::new(fd, rest.as_ptr(), len).offset(at).rw_flags(flags.bits().cast_signed()).build()
            }
            Use::Device(Work::Flush { .. }) => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Use::Alarm(bytes) => {
                let event: RawFd = self.alarm.as_ref().map_or(-1, |alarm| alarm.event.as_raw_fd());
                opcode::Read::new(Fd(event), bytes.as_mut_ptr(), bytes.len() as u32).build()
            }
            // A slot is pushed only while it is in use.
            Use::Free => return,
        };
        let entry = entry.user_data(u64::from(index));
        if !self.push_entry(&entry) {
            self.backlog.push_back(index);
        }
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the entry points only at memory that its slot owns until its completion has been reaped (1 to 3 of the
        // module's argument).
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            self.pending += 1;
            return true;
        }
        // The queue is full: pass it on and try once more.
        self.submit();
        // SAFETY: as above.
        let pushed = unsafe { self.uring.submission().push(entry) }.is_ok();
        self.pending += usize::from(pushed);
        pushed
    }

    /// Passes what is pending to the kernel, and lets it work off completions that wait for this thread. Does not block.
    pub(super) fn submit(&mut self) {
        if self.pending == 0 && !self.uring.submission().taskrun() && !self.uring.submission().cq_overflow() {
            return;
        }
        let result = self.uring.submit();
        self.after_enter(result);
    }

    /// Passes what is pending to the kernel and sleeps until something completes, the alarm rings, or `limit` is over.
    pub(super) fn submit_and_sleep(&mut self, limit: Option<Duration>) {
        // Without its alarm the sleep is short: someone may want to end it.
        let limit = match self.arm_alarm() {
            true => limit,
            false => Some(limit.unwrap_or(UNALARMED_SLEEP_MAX).min(UNALARMED_SLEEP_MAX)),
        };
        let result = match limit {
            None => self.uring.submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::from(limit);
                self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        self.after_enter(result);
    }

    /// Counts what the kernel has taken. An enter that fails (interrupted, out of resources, timed out) has left what it
    /// did not take in the queue, and the next one takes it.
    fn after_enter(&mut self, result: io::Result<usize>) {
        let left = self.uring.submission().len();
        debug_assert!(result.is_err() || left <= self.pending);
        self.pending = left;
    }

    /// Whether the alarm, if there is one, is with the kernel or about to be.
    fn arm_alarm(&mut self) -> bool {
        let Some(alarm) = &mut self.alarm else { return true };
        if !std::mem::replace(&mut alarm.armed, true) {
            let slot = Slot { use_: Use::Alarm(Box::default()), file: None, offset_bytes: 0, done: 0 };
            let index = self.occupy(slot);
            self.push(index);
        }
        self.backlog.iter().all(|&index| !matches!(self.slots[index as usize].use_, Use::Alarm(_)))
    }

    /// Whether a completion is there to be reaped without a system call.
    pub(super) fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.uring.submission().taskrun()
    }

    /// Whether completions can be had by a system call and not without.
    pub(super) fn needs_enter(&mut self) -> bool {
        self.uring.completion().is_empty()
            && (self.uring.submission().taskrun() || self.uring.submission().cq_overflow())
    }

    /// Moves what is complete to `finished`.
    pub(super) fn reap(&mut self, finished: &mut Vec<Finished>) {
        let mut again = Vec::new();
        loop {
            let Some(entry) = self.uring.completion().next() else { break };
            let index = entry.user_data() as u32;
            self.complete(index, entry.result(), finished, &mut again);
        }
        for index in again {
            self.push(index);
        }
        while self.in_flight - self.backlog.len().min(self.in_flight) < IN_FLIGHT_MAX {
            let Some(index) = self.backlog.pop_front() else { break };
            let before = self.backlog.len();
            self.push(index);
            if self.backlog.len() > before {
                // The kernel takes no more now.
                break;
            }
        }
    }

    fn complete(&mut self, index: u32, code: i32, finished: &mut Vec<Finished>, again: &mut Vec<u32>) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let result = match usize::try_from(code) {
            Ok(count) => Ok(count),
            Err(_) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        };
        let interrupted =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
        let result = match (&slot.use_, result) {
            (Use::Free, _) => return,
            (Use::Alarm(_), _) => {
                self.vacate(index);
                if let Some(alarm) = &mut self.alarm {
                    alarm.armed = false;
                }
                return;
            }
            (Use::Device(_), Err(error)) if interrupted(&error) => return again.push(index),
            (Use::Device(_), Err(error)) => Err(error),
            (Use::Device(Work::Read { needed, .. }), Ok(count)) => {
                slot.done += count;
                if slot.done >= *needed {
                    Ok(())
                } else if count == 0 {
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the device ended early"))
                } else {
                    return again.push(index);
                }
            }
            (Use::Device(Work::Write { block, .. }), Ok(count)) => {
                slot.done += count;
                if slot.done >= block.len() {
                    Ok(())
                } else if count == 0 {
                    Err(io::Error::new(io::ErrorKind::WriteZero, "the device takes no more"))
                } else {
                    return again.push(index);
                }
            }
            (Use::Device(Work::Flush { .. }), Ok(_)) => Ok(()),
        };
        self.in_flight -= 1;
        match self.vacate(index).use_ {
            Use::Device(Work::Read { buf, sender, .. }) => finished.push(Finished::Read(result, buf, sender)),
            Use::Device(Work::Write { sender, .. } | Work::Flush { sender }) => {
                finished.push(Finished::Write(result, sender));
            }
            Use::Alarm(_) | Use::Free => {}
        }
    }

    /// Waits until the kernel holds nothing of this ring's, the alarm aside. False if that takes too long.
    fn drain(&mut self, finished: &mut Vec<Finished>) -> bool {
        let start = std::time::Instant::now();
        while self.in_flight > 0 {
            if start.elapsed() > DROP_TIME_MAX {
                return false;
            }
            self.submit_and_sleep(Some(Duration::from_millis(100)));
            self.reap(finished);
        }
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut finished = Vec::new();
        let mut quiet = self.drain(&mut finished);
        if let Some(event) = self.alarm.as_ref().filter(|alarm| alarm.armed).map(|alarm| Arc::clone(&alarm.event)) {
            let _ = rustix::io::write(&*event, &super::park::EVENT_ONE);
            for _ in 0..100 {
                if self.alarm.as_ref().is_none_or(|alarm| !alarm.armed) {
                    break;
                }
                let _ = self.uring.submit_and_wait(1);
                self.reap(&mut finished);
            }
            quiet &= self.alarm.as_ref().is_none_or(|alarm| !alarm.armed);
        }
        if !quiet {
            // The kernel may still write to these: their memory must outlive it.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
        finished.into_iter().for_each(Finished::deliver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oneshot;
    use std::task::{Context, Poll, Waker};

    fn poll<T>(receiver: &mut oneshot::Receiver<T>) -> Poll<Result<T, oneshot::Closed>> {
        std::future::Future::poll(std::pin::Pin::new(receiver), &mut Context::from_waker(Waker::noop()))
    }

    /// More requests than the queues hold, started at once: all complete, each with its own bytes.
    #[test]
    fn more_requests_than_the_queues_hold_all_complete() {
        let Ok(mut ring) = Ring::new(true) else { return };
        let content: Vec<u8> = (0..1u32 << 20).map(|at| (at / 512) as u8 ^ (at >> 17) as u8).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, &content).expect("written");
        let file = Arc::new(File::open(&path).expect("open"));
        let mut receivers = Vec::new();
        for index in 0..IN_FLIGHT_MAX * 2 + 17 {
            let (sender, receiver) = oneshot::channel();
            let at = index % 2048 * 512;
            ring.start(Arc::clone(&file), at as u64, Work::Read { buf: Buf::zeroed(512), needed: 512, sender });
            receivers.push((at, receiver));
        }
        let mut finished = Vec::new();
        assert!(ring.drain(&mut finished));
        finished.into_iter().for_each(Finished::deliver);
        for (at, mut receiver) in receivers {
            let Poll::Ready(Ok((Ok(()), buf))) = poll(&mut receiver) else { panic!("not complete") };
            assert!(buf[..] == content[at..at + 512]);
        }
    }

    #[test]
    fn a_dropped_ring_waits_for_what_the_kernel_holds() {
        let Ok(mut ring) = Ring::new(false) else { return };
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an event");
        ring.set_alarm(Arc::new(event));
        ring.submit_and_sleep(Some(Duration::from_millis(1)));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 1 << 20]).expect("written");
        let (sender, mut receiver) = oneshot::channel();
        let file = Arc::new(File::open(&path).expect("open"));
        ring.start(file, 0, Work::Read { buf: Buf::zeroed(1 << 20), needed: 1 << 20, sender });
        drop(ring);
        assert!(matches!(poll(&mut receiver), Poll::Ready(Ok((Ok(()), buf))) if buf[..] == [7; 1 << 20]));
    }
}
