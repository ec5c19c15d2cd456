//! Memory of ours that the kernel uses on its own time: a queue of FUSE over io_uring; and the one system call of the device that has
//! no safe form.
//!
//! The only module of this crate with unsafe code. The argument that a queue is sound:
//! 1. the kernel reads and writes an entry's memory only between a submission that was pushed for it and its completion; in that time
//!    the [`Queue`] owns the [`Entry`] (it is in `held`), and nothing else can reach it;
//! 2. what moves is an entry's owner; the memory itself is on the heap and stays where it is, which the kernel was told once;
//! 3. a completion's number is its entry's place in `held`, and an entry leaves `held` only by its completion;
//! 4. a queue that is dropped while the kernel holds entries (a panic) leaks those rather than free them.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl};

/// The lengths of the three parts of an entry's head: of a header (the request's, then the reply's), of an operation's argument, and
/// of what is said about the entry itself.
const HEADER_LEN: usize = 128;
const ARGUMENT_LEN: usize = 128;
const STATE_LEN: usize = 32;
const HEAD_LEN: usize = HEADER_LEN + ARGUMENT_LEN + STATE_LEN;
/// Where in the state the number is by which a reply is handed in, and the bytes of the payload.
const COMMIT_AT: usize = HEADER_LEN + ARGUMENT_LEN + 8;
const PAYLOAD_LEN_AT: usize = HEADER_LEN + ARGUMENT_LEN + 16;

/// Commands of a queue: an entry's memory is told and a request wanted; a reply is there and the next request wanted.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
const TIME_OUT: i32 = Errno::TIME.raw_os_error();
/// The number of the completion that another thread asks for.
const WAKE: u64 = u64::MAX;
/// Room in the ring for submissions; a queue has fewer entries.
const ENTRIES: u32 = 64;
/// Where in a submission its length is, which [`opcode::UringCmd80`] does not set.
const SUBMISSION_LEN_AT: usize = 24;

/// Makes `new`, a freshly opened `/dev/fuse`, another way to the connection of `device`.
pub(crate) fn clone(device: &OwnedFd, new: &OwnedFd) -> io::Result<()> {
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    let number = device.as_raw_fd().cast_unsigned();
    // SAFETY: `FUSE_DEV_IOC_CLONE` reads a `u32`, which `Setter` borrows to it for the call.
    Ok(unsafe { ioctl(new, Setter::<CLONE, u32>::new(number)) }?)
}

/// The memory of one request and its reply.
pub(crate) struct Entry {
    place: usize,
    head: Box<[u8; HEAD_LEN]>,
    payload: Box<[u8]>,
    /// Address and length of the two, as the kernel reads them when the entry is registered.
    parts: Box<[usize; 4]>,
}

impl Entry {
    fn new(place: usize, payload_len: usize) -> Self {
        let (mut head, mut payload) = (Box::new([0; HEAD_LEN]), vec![0; payload_len].into_boxed_slice());
        let parts = [head.as_mut_ptr() as usize, HEAD_LEN, payload.as_mut_ptr() as usize, payload_len];
        Self { place, head, payload, parts: Box::new(parts) }
    }

    /// The request's header.
    pub(crate) fn header(&self) -> &[u8] {
        &self.head[..HEADER_LEN]
    }

    /// The operation's argument.
    pub(crate) fn argument(&self) -> &[u8] {
        &self.head[HEADER_LEN..HEADER_LEN + ARGUMENT_LEN]
    }

    /// The used part of the payload.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..(self.word(PAYLOAD_LEN_AT) as usize).min(self.payload.len())]
    }

    /// Puts a reply in the request's place; false, and nothing is put, where the body has no room.
    pub(crate) fn set_reply(&mut self, header: &[u8], body: &[u8]) -> bool {
        let Ok(len) = u32::try_from(body.len()) else { return false };
        let Some(room) = self.payload.get_mut(..body.len()) else { return false };
        room.copy_from_slice(body);
        self.head[..header.len()].copy_from_slice(header);
        self.head[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&to_kernel(len));
        true
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.head[at..at + 4]);
        from_kernel(word)
    }
}

#[allow(clippy::host_endian_bytes, reason = "a message to this machine's kernel, not to a disk")]
fn to_kernel(word: u32) -> [u8; 4] {
    word.to_ne_bytes()
}

#[allow(clippy::host_endian_bytes, reason = "a message of this machine's kernel, not of a disk")]
fn from_kernel(word: [u8; 4]) -> u32 {
    u32::from_ne_bytes(word)
}

/// A message of a queue.
pub(crate) enum Event {
    /// A request.
    Request(Entry),
    /// Another thread woke this one.
    Woken,
    /// The kernel gave an entry back without a request, with the reason.
    Refused(Entry, io::Error),
}

/// One queue of a connection, of the thread that made it.
pub(crate) struct Queue {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    device: Arc<OwnedFd>,
    wake: Arc<OwnedFd>,
    number: u16,
    held: Vec<Option<Entry>>,
    /// Whether the kernel looks at `wake`.
    is_armed: bool,
}

impl Queue {
    /// The queue of CPU `number`, which a write to `wake` interrupts.
    ///
    /// # Errors
    /// io_uring is not to be had.
    pub(crate) fn new(device: Arc<OwnedFd>, wake: Arc<OwnedFd>, number: u16) -> io::Result<Self> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES)?;
        Ok(Self { ring, device, wake, number, held: Vec::new(), is_armed: false })
    }

    /// Makes an entry with a payload of up to `payload_len` bytes, and hands it to the kernel with the next [`Queue::submit`].
    pub(crate) fn add(&mut self, payload_len: usize) -> io::Result<()> {
        let place = self.held.len();
        self.held.push(None);
        self.register(Entry::new(place, payload_len))
    }

    /// Hands an entry to the kernel as a new one.
    pub(crate) fn register(&mut self, entry: Entry) -> io::Result<()> {
        let submission = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), REGISTER)
            .cmd(self.command(&[0; 8]))
            .addr(Some(entry.parts.as_ptr() as u64))
            .build();
        self.push(with_len(submission, 2), entry)
    }

    /// Has writes to `wake` interrupt [`Queue::wait`], from the next submission on.
    fn arm(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.wake.as_raw_fd()), rustix::event::PollFlags::IN.bits().into());
        let poll = poll.multi(true).build().user_data(WAKE);
        // SAFETY: the kernel uses no memory of ours for it, and the descriptor is this queue's.
        self.is_armed = unsafe { self.ring.submission().push(&poll.into()) }.is_ok();
    }

    /// The command's own bytes: flags, the number that a reply is handed in by, the queue.
    fn command(&self, commit: &[u8]) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[8..16].copy_from_slice(commit);
        bytes[16..20].copy_from_slice(&to_kernel(0));
        bytes[16..18].copy_from_slice(&two(self.number));
        bytes
    }

    /// Hands in a reply, and the entry for the next request, with the next [`Queue::wait`].
    pub(crate) fn commit(&mut self, entry: Entry) -> io::Result<()> {
        let command = self.command(&entry.head[COMMIT_AT..COMMIT_AT + 8]);
        let submission = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), COMMIT_AND_FETCH).cmd(command).build();
        self.push(submission, entry)
    }

    fn push(&mut self, submission: squeue::Entry128, entry: Entry) -> io::Result<()> {
        let place = entry.place;
        self.held[place] = Some(entry);
        // SAFETY: the entry is in `held`, with all the memory that the submission names.
        let pushed = unsafe { self.ring.submission().push(&submission.user_data(place as u64)) };
        pushed.map_err(|full| {
            self.held[place] = None;
            io::Error::other(full)
        })
    }

    /// Submits what was handed in.
    pub(crate) fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }

    /// Submits what was handed in and waits for an event, up to `time_max` where there is one.
    ///
    /// # Errors
    /// The kernel's. Time that ran out is none.
    pub(crate) fn wait(&mut self, time_max: Option<Duration>) -> io::Result<()> {
        if !self.is_armed {
            self.arm();
        }
        let waited = match time_max {
            None => self.ring.submit_and_wait(1),
            Some(time_max) => {
                let time_max = Timespec::from(time_max);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time_max))
            }
        };
        match waited {
            Err(error) if error.kind() != io::ErrorKind::Interrupted && error.raw_os_error() != Some(TIME_OUT) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// The next event that is there.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == WAKE {
                self.is_armed &= cqueue::more(completion.flags());
                return Some(Event::Woken);
            }
            let place = usize::try_from(completion.user_data()).ok();
            // A completion of nothing that is held says nothing.
            let Some(entry) = place.and_then(|place| self.held.get_mut(place)?.take()) else { continue };
            return Some(match completion.result() {
                0 => Event::Request(entry),
                result => Event::Refused(entry, io::Error::from_raw_os_error(result.saturating_neg())),
            });
        }
    }

    /// Entries that the kernel holds.
    pub(crate) fn in_kernel(&self) -> usize {
        self.held.iter().flatten().count()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.held.drain(..).for_each(std::mem::forget);
    }
}

#[allow(clippy::host_endian_bytes, reason = "a message to this machine's kernel, not to a disk")]
fn two(number: u16) -> [u8; 2] {
    number.to_ne_bytes()
}

/// The submission with a length.
fn with_len(submission: squeue::Entry128, len: u32) -> squeue::Entry128 {
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    let mut submission = submission;
    let at = (&raw mut submission).cast::<u8>().wrapping_add(SUBMISSION_LEN_AT).cast::<u32>();
    // SAFETY: an `Entry128` is `repr(C)` and has the form that the kernel reads: 128 bytes, at 24 a length of 32 bits, which is
    // aligned. Any bits are valid there.
    unsafe { at.write(len) };
    submission
}
