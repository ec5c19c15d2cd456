//! How a device's requests are done: by the ring of the thread that asks, or by a thread of the pool.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::pool::Pool;
use super::ring::{Finished, Ring, Work};
use super::worker;
use crate::buf::{Block, Buf};
use crate::front;
use crate::handle::{IoChoice, IoMode};
use crate::oneshot;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Threads that do device I/O where there is no ring. Chosen by eye: deeper queues than this want a ring.
pub(super) const IO_THREADS_MAX: usize = 32;

/// The way of one runtime's requests.
pub(crate) struct Io {
    /// The runtime whose threads' rings serve.
    pub(super) runtime_id: u64,
    pub(super) pool: Arc<Pool>,
    /// For a front end's thread that waits for a device itself.
    pub(super) waiter: Arc<Waiter>,
}

/// How long a front end's thread waits for a device. After that the request is left to a thread of the pool.
const WAIT_MAX: Duration = Duration::from_millis(2);

/// A ring for the one front end's thread that waits for a device itself.
pub(crate) struct Waiter {
    /// The ring is in use, or there is none to be had.
    is_taken: AtomicBool,
    ring: Mutex<Option<Ring>>,
}

impl Waiter {
    pub(super) fn new(has_rings: bool) -> Arc<Self> {
        Arc::new(Self { is_taken: AtomicBool::new(!has_rings), ring: Mutex::new(None) })
    }

    pub(super) fn is_free(&self) -> bool {
        !self.is_taken.load(Ordering::Relaxed)
    }

    fn take(&self) -> Option<Ring> {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let ring = self.ring.lock().take();
        // Where the kernel gives none, nobody asks again.
        ring.or_else(|| Ring::new(false).ok())
    }

    fn put_back(&self, ring: Ring) {
        *self.ring.lock() = Some(ring);
        self.is_taken.store(false, Ordering::Release);
    }
}

/// Waits for a ring's requests, no longer than this. Whether all are done.
fn wait_for(ring: &mut Ring, limit: Duration) -> bool {
    let (begun, mut finished) = (std::time::Instant::now(), Vec::new());
    loop {
        let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else { return false };
        ring.submit_and_sleep(Some(left));
        ring.reap(&mut finished);
        finished.drain(..).for_each(Finished::deliver);
        if ring.in_flight() == 0 {
            return true;
        }
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
        let (sender, receiver) = oneshot::channel();
        let work = Work::Write { block, is_stable, sender };
        let ring = if is_stable && front::may_wait() { self.waiter.take() } else { None };
        match ring {
            Some(ring) => self.write_here(ring, file, offset_bytes, work, WAIT_MAX),
            None => self.start(file, offset_bytes, work),
        }
        receiver.await.unwrap_or_else(|oneshot::Closed| Err(stopped()))
    }

    /// Has a request done while this thread waits for it. A device that takes longer is waited for by another thread.
    fn write_here(&self, mut ring: Ring, file: &Arc<File>, offset_bytes: u64, work: Work, limit: Duration) {
        ring.start(Arc::clone(file), offset_bytes, work);
        if wait_for(&mut ring, limit) {
            return self.waiter.put_back(ring);
        }
        let waiter = Arc::clone(&self.waiter);
        self.pool.submit(Box::new(move || {
            while !wait_for(&mut ring, Duration::from_secs(1)) {}
            waiter.put_back(ring);
        }));
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

    /// A device that takes longer than a front end's thread waits is left to the pool; the writer hears of the end all the same, and the
    /// ring serves the next one.
    #[test]
    fn a_device_that_takes_long_is_left_to_another_thread() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![0; 1 << 16]).expect("a file");
        let file = Arc::new(File::options().write(true).open(&path).expect("a file"));
        let io = Io { runtime_id: 0, pool: Pool::new("waits", 2), waiter: Waiter::new(true) };
        for (number, limit) in [(1_u8, Duration::ZERO), (2, Duration::from_secs(60)), (3, Duration::ZERO)] {
            while !io.waiter.is_free() {
                std::thread::yield_now();
            }
            let Some(ring) = io.waiter.take() else { return eprintln!("skipped: no io_uring here") };
            assert!(io.waiter.take().is_none(), "one at a time");
            let (sender, receiver) = oneshot::channel();
            let block = Block::copied_from(&[number; 4096]);
            io.write_here(ring, &file, 4096, Work::Write { block, is_stable: true, sender }, limit);
            let mut receiver = std::pin::pin!(receiver);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let result = loop {
                match receiver.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(result) => break result,
                    std::task::Poll::Pending => std::thread::yield_now(),
                }
            };
            assert!(matches!(result, Ok(Ok(()))), "write {number}");
            let written = std::fs::read(&path).expect("the file");
            assert_eq!(written[4096..8192], [number; 4096]);
        }
    }
}
