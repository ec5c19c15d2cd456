//! Requests of a ring: FUSE over io_uring (Linux 6.14).
//!
//! The kernel has a queue for each CPU, and here each has a thread on that CPU. A reply and the wait for the next request are one system
//! call. Messages that forget nodes or interrupt requests come from the device still. A queue has a bounded number of entries, each with
//! memory for the largest request; a request has its entry until it is answered, and the kernel keeps the others back.
//!
//! The kernel that was promised queues keeps all requests back until each queue has an entry. It gives the ring up, and turns to the
//! device, where it refuses one itself. So a queue that fails before it came to the kernel ends the mount.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use super::TRANSFER_MAX_BYTES;
use super::bound::Bound;
use super::outbox::Outbox;
use super::reply::{Reply, Way};
use crate::raw::{Entry, Event, Queue};
use crate::wire::{Fault, Header, Operation, of_ring};

/// Entries of a queue: requests of one CPU that are served at once. Each takes up to [`TRANSFER_MAX_BYTES`] of memory, as far as it was
/// ever filled: 8 MiB for each CPU at most.
pub(super) const DEPTH: usize = 8;
/// Entries that writes which wait for other requests never have.
const KEPT: usize = 2;
/// How often entries that the kernel refused for no lasting reason are handed in again, and the pause before.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);
/// The time in which the kernel gives all entries back once the connection has ended. It does so at once, or looks again after a
/// twentieth of a second; the rest is for slow machines.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Serves one request. It does not panic: nobody else would serve the thread's CPU.
pub(super) type Serve = Arc<dyn Fn(&Header, Operation, Reply) + Send + Sync>;

/// The orders for a queue's thread: how to serve, how large a payload may be, and where to say how many entries the kernel took.
type Start = (Serve, usize, Sender<io::Result<usize>>);

/// A queue of a connection.
pub(super) struct QueueThread {
    outbox: Arc<Outbox>,
    pub(super) start: Sender<Start>,
    thread: JoinHandle<()>,
}

/// The queues of a connection.
pub(super) struct Ring {
    pub(super) queues: Vec<QueueThread>,
    /// Bytes of the largest payload.
    pub(super) payload_max: usize,
}

impl Ring {
    /// Makes the queues ready, all of them or none. `None` where io_uring is not to be had.
    pub(super) fn new(device: &Arc<OwnedFd>) -> Option<Self> {
        let mut queues = Vec::new();
        for number in 0..possible_cpus(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?)? {
            let ((told, ready), device) = (channel(), Arc::clone(device));
            let (start, started) = channel();
            let serve = move || queue(device, number, &told, &started);
            let thread = std::thread::Builder::new().name(format!("fuse-ring-{number}")).spawn(serve).ok()?;
            // Threads that are there already end with what they were to be started by.
            queues.push(QueueThread { outbox: ready.recv().ok()?, start, thread });
        }
        Some(Self { queues, payload_max: TRANSFER_MAX_BYTES as usize })
    }

    /// Begins to serve. False where the kernel has given the ring up, and serves by the device.
    ///
    /// # Errors
    /// A queue did not come to the kernel, which waits for it in vain: the connection is to be ended.
    pub(super) fn start(&self, serve: &Serve) -> io::Result<bool> {
        let (told, counts) = channel();
        for queue in &self.queues {
            let _ = queue.start.send((Arc::clone(serve), self.payload_max, told.clone()));
        }
        drop(told);
        let counts: Vec<_> = counts.iter().collect::<io::Result<_>>().map_err(explained)?;
        if counts.len() != self.queues.len() {
            return Err(explained(io::Error::other("its thread has ended")));
        }
        Ok(counts.iter().all(|&count| count > 0))
    }

    /// Ends the threads of a connection that has ended.
    pub(super) fn end(self) -> io::Result<()> {
        for queue in &self.queues {
            queue.outbox.is_ended.store(true, Ordering::Release);
            queue.outbox.wake();
        }
        let ended = self.queues.into_iter().map(|queue| {
            drop(queue.start);
            queue.thread.join().map_err(|_| io::Error::other("a thread of a ring panicked"))
        });
        // All of them are waited for; the first error counts.
        ended.collect::<Vec<_>>().into_iter().collect()
    }
}

fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("FUSE over io_uring: a queue failed ({error}); no_io_uring mounts without"))
}

/// How many CPUs the kernel counts on, whether they are there or not: it has a queue for each.
fn possible_cpus(list: &str) -> Option<u16> {
    let count = |range: &str| -> Option<u16> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u16>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0u16, |sum, range| sum.checked_add(count(range)?))
}

/// A queue's thread, which says that it is there, waits to be started, and serves.
fn queue(device: Arc<OwnedFd>, number: u16, told: &Sender<Arc<Outbox>>, start: &Receiver<Start>) {
    // A CPU that is not there now has its queue served wherever.
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(usize::from(number));
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
    let Ok(wake) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new) else {
        return;
    };
    let Ok(queue) = Queue::new(device, Arc::clone(&wake), number) else { return };
    let outbox = Outbox {
        ready: Mutex::default(),
        wake,
        thread: std::thread::current().id(),
        is_ended: AtomicBool::new(false),
        waiting: Bound::new(DEPTH - KEPT),
    };
    let outbox = Arc::new(outbox);
    let _ = told.send(Arc::clone(&outbox));
    // The queues are not started if the kernel does not offer them, or not all of them.
    let Ok((serve, payload_max, registered)) = start.recv() else { return };
    let mut server = Server { queue, outbox, serve, entries: 0, tries: TRIES };
    let count = server.register(payload_max);
    let failed = count.is_err();
    let _ = registered.send(count);
    drop(registered);
    if !failed {
        server.run();
    }
}

/// A queue that is served.
struct Server {
    queue: Queue,
    outbox: Arc<Outbox>,
    serve: Serve,
    /// Entries that there are, in the kernel or here.
    entries: usize,
    /// How often entries that were refused may be handed in again.
    tries: u32,
}

impl Server {
    /// Hands the kernel all entries. Returns how many it took.
    fn register(&mut self, payload_max: usize) -> io::Result<usize> {
        for _ in 0..DEPTH {
            self.queue.add(payload_max)?;
            self.entries += 1;
        }
        self.queue.submit()?;
        // An entry that is refused comes back within the submission. Requests may come at once, if other queues are there.
        self.take_events();
        Ok(self.entries)
    }

    /// Serves until it is told that the connection has ended.
    fn run(&mut self) {
        let (mut replies, mut since) = (Vec::new(), None);
        loop {
            std::mem::swap(&mut *self.outbox.ready.lock(), &mut replies);
            for entry in replies.drain(..) {
                if self.queue.commit(entry).is_err() {
                    self.lost();
                }
            }
            if self.outbox.is_ended.load(Ordering::Acquire) {
                let since = *since.get_or_insert_with(Instant::now);
                if self.queue.in_kernel() == 0 || since.elapsed() > END_TIME_MAX {
                    break;
                }
            }
            // Otherwise the loop never ends, since this CPU's requests would not be served. If the kernel is short of something it is asked
            // again.
            if self.queue.wait(since.map(|_| END_TIME_MAX)).is_err() {
                std::thread::sleep(PAUSE);
            }
            self.take_events();
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.queue.next() {
            match event {
                Event::Request(entry) => take(entry, &self.outbox, &self.serve),
                Event::Woken => {
                    let _ = rustix::io::read(&*self.outbox.wake, &mut [0; 8]);
                }
                Event::Refused(entry, error) => self.refused(entry, &error),
            }
        }
    }

    /// An entry came back without a request. It is handed in again, unless the connection has ended or does not take the queue.
    fn refused(&mut self, entry: Entry, error: &io::Error) {
        const LASTING: [Errno; 6] =
            [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::OPNOTSUPP, Errno::INVAL, Errno::NODEV];
        let is_lasting = LASTING.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
        if is_lasting || self.tries == 0 || self.outbox.is_ended.load(Ordering::Acquire) {
            return self.lost();
        }
        self.tries -= 1;
        std::thread::sleep(PAUSE);
        if self.queue.register(entry).is_err() {
            self.lost();
        }
    }

    /// There is an entry less.
    fn lost(&mut self) {
        self.entries = self.entries.saturating_sub(1);
        self.outbox.waiting.lower();
    }
}

/// Serves the request in an entry.
fn take(entry: Entry, outbox: &Arc<Outbox>, serve: &Serve) {
    let request = of_ring(entry.header(), entry.argument(), entry.payload());
    let unique = request.as_ref().map_or(0, |(header, _)| header.unique);
    let reply = Reply::new(unique, Way::Ring(entry, Arc::clone(outbox)));
    match request {
        Some((header, Ok(operation))) => serve(&header, operation, reply),
        Some((_, Err(Fault::Unknown))) => reply.error(Errno::NOSYS),
        _ => reply.error(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::possible_cpus;

    #[test]
    fn cpus_are_counted_in_lists_of_ranges() {
        let cases = [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8-11,15\n", Some(9)), ("", None), ("3-1", None)];
        cases.iter().for_each(|(list, count)| assert_eq!(possible_cpus(list), *count, "{list:?}"));
    }
}
