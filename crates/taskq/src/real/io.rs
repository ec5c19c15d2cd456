//! How a device's requests are done: by the ring of the thread that asks, or by a thread of the pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};

use super::pool::Pool;
use super::ring::{Finished, Work};
use super::worker;
use crate::buf::{Block, Buf};
use crate::front;
use crate::handle::{IoChoice, IoMode};
use crate::oneshot;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Threads that do device I/O where there is no ring. Chosen by eye: deeper queues than this want a ring.
pub(super) const IO_THREADS_MAX: usize = 32;

/// The way of one runtime's requests.
pub(crate) struct Io {
    /// The runtime whose threads' rings serve.
    pub(super) runtime_id: u64,
    pub(super) pool: Arc<Pool>,
    /// A front end's thread waits for a device by a system call.
    pub(super) has_waiter: AtomicBool,
}

/// The turn of the one thread that waits for a device itself.
struct WaiterTurn<'a>(&'a AtomicBool);

impl<'a> WaiterTurn<'a> {
    fn take(has_waiter: &'a AtomicBool) -> Option<Self> {
        (!has_waiter.swap(true, Ordering::Acquire)).then_some(Self(has_waiter))
    }
}

impl Drop for WaiterTurn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn stopped() -> io::Error {
    io::Error::other("the runtime has stopped")
}

impl Io {
    /// Runs `work`, which blocks in system calls, on the pool.
    pub(super) async fn blocking<T, W>(&self, work: W) -> io::Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> io::Result<T> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.pool.submit(Box::new(move || {
            let _ = sender.send(work());
        }));
        receiver.await.unwrap_or_else(|oneshot::Closed| Err(stopped()))
    }

    fn start(&self, file: &Arc<File>, offset_bytes: u64, work: Work) {
        let file = Arc::clone(file);
        if let Err((file, work)) = worker::start_on_ring(self.runtime_id, file, offset_bytes, work) {
            self.pool.submit(Box::new(move || serve(&file, offset_bytes, work).deliver()));
        }
    }

    /// Reads at least the first `needed` bytes of `buf`.
    pub(super) async fn read(
        &self,
        file: &Arc<File>,
        offset_bytes: u64,
        buf: Buf,
        needed: usize,
    ) -> (io::Result<()>, Buf) {
        let len = buf.len();
        let (sender, receiver) = oneshot::channel();
        self.start(file, offset_bytes, Work::Read { buf, needed, sender });
        receiver.await.unwrap_or_else(|oneshot::Closed| (Err(stopped()), Buf::zeroed(len)))
    }

    pub(super) async fn write(
        &self,
        file: &Arc<File>,
        offset_bytes: u64,
        block: Block,
        is_stable: bool,
    ) -> io::Result<()> {
        if is_stable
            && front::may_wait()
            && let Some(_turn) = WaiterTurn::take(&self.has_waiter)
        {
            return write_stable_here(file, offset_bytes, &block);
        }
        let (sender, receiver) = oneshot::channel();
        self.start(file, offset_bytes, Work::Write { block, is_stable, sender });
        receiver.await.unwrap_or_else(|oneshot::Closed| Err(stopped()))
    }

    pub(super) async fn flush(&self, file: &Arc<File>) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.start(file, 0, Work::Flush { sender });
        receiver.await.unwrap_or_else(|oneshot::Closed| Err(stopped()))
    }
}

/// Does a request by system calls that block.
fn serve(file: &File, offset_bytes: u64, work: Work) -> Finished {
    match work {
        Work::Read { mut buf, needed, sender } => {
            let result = read_at_least(file, offset_bytes, &mut buf, needed);
            Finished::Read(result, buf, sender)
        }
        Work::Write { block, is_stable, sender } => {
            let written = file.write_all_at(&block, offset_bytes);
            let result = written.and_then(|()| if is_stable { file.sync_data() } else { Ok(()) });
            Finished::Write(result, sender)
        }
        Work::Flush { sender } => Finished::Write(file.sync_data(), sender),
    }
}

/// Writes, and waits until that is stable (`RWF_DSYNC`).
fn write_stable_here(file: &File, offset_bytes: u64, block: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < block.len() {
        let left = [io::IoSlice::new(&block[done..])];
        match rustix::io::pwritev2(file, &left, offset_bytes + done as u64, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_at_least(file: &File, offset_bytes: u64, buf: &mut [u8], needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut buf[done..], offset_bytes + done as u64) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the device ended early")),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Says how I/O is done, given what was asked for and what came of asking the kernel for a ring; or fails, where a ring
/// was asked for and there is none.
pub(super) fn mode(choice: IoChoice, workers: usize, ring: Option<&io::Error>) -> io::Result<IoMode> {
    let threads = |reason: &str| IoMode {
        ring: false,
        is_fallback: choice != IoChoice::Threads,
        explanation: format!("up to {IO_THREADS_MAX} threads with pread and pwrite, {reason}"),
    };
    match (choice, ring) {
        (IoChoice::Threads, _) => Ok(threads("as asked for")),
        (_, None) => Ok(IoMode {
            ring: true,
            is_fallback: false,
            explanation: format!("io_uring, a ring for each of {workers} worker threads"),
        }),
        (IoChoice::Ring, Some(error)) => Err(io::Error::new(error.kind(), format!("no io_uring: {}", reason(error)))),
        (IoChoice::Auto, Some(error)) => Ok(threads(&format!("because {}", reason(error)))),
    }
}

/// Corrects the mode by what the workers found: the kernel may grant the first ring and refuse a later one.
pub(super) fn mode_found(mode: IoMode, rings: usize, workers: usize) -> IoMode {
    if !mode.ring || rings == workers {
        return mode;
    }
    IoMode {
        ring: rings > 0,
        is_fallback: true,
        explanation: format!(
            "io_uring for {rings} of {workers} worker threads, pread and pwrite for the rest, which the kernel refused a ring"
        ),
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {
            "io_uring is forbidden here (by a container's seccomp profile, or by kernel.io_uring_disabled)".to_owned()
        }
        Some(rustix::io::Errno::NOSYS) => "this kernel has no io_uring".to_owned(),
        Some(rustix::io::Errno::NOMEM) => "a ring may not lock its memory here (raise the memlock limit)".to_owned(),
        _ => format!("a ring could not be made: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_ring_is_explained_in_one_line() {
        for (errno, words) in [(1, "forbidden"), (38, "no io_uring"), (12, "memlock"), (24, "could not be made")] {
            let error = io::Error::from_raw_os_error(errno);
            let mode = mode(IoChoice::Auto, 2, Some(&error)).expect("threads serve");
            assert!(!mode.ring && mode.explanation.contains(words) && !mode.explanation.contains('\n'));
            assert!(mode.is_fallback);
            assert!(super::mode(IoChoice::Ring, 2, Some(&error)).is_err());
        }
        assert!(mode(IoChoice::Auto, 2, None).expect("a ring").ring);
        let asked_for = mode(IoChoice::Threads, 2, None).expect("threads");
        assert!(!asked_for.ring && !asked_for.is_fallback);
    }
}
