//! The binding on a kernel, with a server that does as the test says.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicUsize, Ordering};
use cenote_taskq::{Block, Event, Runtime, RuntimeOptions};
use cenote_zpl::{FileKind, Time};
use rustix::fs::OFlags;
use rustix::mount::UnmountFlags;

use super::ring::DEPTH;
use super::session::{Connection, begin, connect};
use super::{BACKGROUND_MAX, TRANSFER_MAX_BYTES};
use crate::options::{MountOptions, Transport};
use crate::server::{
    Caching, Caller, Changed, DirItem, Entry, Errno, FileServer, InodeFlags, NodeId, Opened, Pin, Seek, SpaceFigures,
    Stat, Writer,
};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The switch is the system's: one test at a time.
static ONE: Mutex<()> = Mutex::new(());
const FILE: NodeId = NodeId(2);
const FILE_BYTES: u64 = 1 << 30;

/// A directory with one file, all zeros. Writes are done when the test says so.
#[derive(Default)]
struct Slow {
    writes: AtomicUsize,
    go: Event,
}

fn stat(node: NodeId) -> Stat {
    let is_file = node == FILE;
    let time = Time { seconds: 1, nanoseconds: 0 };
    Stat {
        ino: node.0,
        kind: if is_file { FileKind::File } else { FileKind::Directory },
        permissions: 0o755,
        link_count: 1,
        uid: 0,
        gid: 0,
        device: (0, 0),
        size_bytes: if is_file { FILE_BYTES } else { 0 },
        blocks: 0,
        is_passing: false,
        block_size_bytes: 4096,
        accessed: time,
        modified: time,
        changed: time,
        created: time,
    }
}

impl FileServer for Slow {
    fn caching(&self) -> Caching {
        Caching { found: Duration::from_secs(1000), absent: Duration::ZERO, is_immutable: false }
    }

    async fn lookup(&self, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        match name {
            b"file" => Ok(Entry { node: FILE, generation: 0, stat: stat(FILE), pin: Pin::NONE }),
            b"panic" => panic!("as the test wants it"),
            _ => Err(Errno::NOENT),
        }
    }

    fn forget(&self, _: NodeId, _: u64) {}

    async fn getattr(&self, node: NodeId) -> Result<Stat, Errno> {
        Ok(stat(node))
    }

    async fn readlink(&self, _: NodeId) -> Result<Vec<u8>, Errno> {
        Err(Errno::INVAL)
    }

    async fn open(&self, _: NodeId, _: bool) -> Result<Opened, Errno> {
        Ok(Opened { keeps_pages: true, is_access: false })
    }

    async fn read(&self, _: NodeId, _: u64, len: u32) -> Result<Block, Errno> {
        Ok(Block::from(vec![0; len as usize]))
    }

    async fn readdir(&self, _: NodeId, _: u64, _: bool, _: usize) -> Result<Vec<DirItem>, Errno> {
        Ok(Vec::new())
    }

    async fn getxattr(&self, _: NodeId, _: &[u8], _: Caller) -> Result<Vec<u8>, Errno> {
        Err(Errno::NODATA)
    }

    async fn listxattr(&self, _: NodeId, _: Caller) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    async fn statfs(&self, _: NodeId) -> Result<SpaceFigures, Errno> {
        Ok(SpaceFigures::default())
    }

    async fn seek(&self, _: NodeId, _: u64, _: Seek) -> Result<u64, Errno> {
        Err(Errno::NXIO)
    }

    async fn access(&self, _: NodeId, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    async fn inode_flags(&self, _: NodeId) -> Result<InodeFlags, Errno> {
        Ok(InodeFlags::default())
    }

    fn is_writable(&self) -> bool {
        true
    }

    async fn write(&self, _: NodeId, _: u64, _: &[u8], _: Writer) -> Result<Changed, Errno> {
        self.writes.fetch_add(1, Ordering::AcqRel);
        self.go.wait().await;
        Ok(Changed::default())
    }
}

/// Puts the switch for rings back.
struct Switch(String);

impl Switch {
    /// Allows rings; `None` where that cannot be done here.
    fn on() -> Option<Self> {
        let before = fs::read_to_string(SWITCH).ok()?;
        fs::write(SWITCH, "Y").ok()?;
        Some(Self(before.trim().to_owned()))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Whether mounts can be made here as these tests need them.
fn can_mount(io_uring: bool) -> bool {
    if !rustix::process::geteuid().is_root() || File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("left out: it takes /dev/fuse, and root");
        return false;
    }
    if io_uring && !Path::new(SWITCH).exists() {
        eprintln!("left out: {SWITCH} is not there");
        return false;
    }
    true
}

/// Mounts a server, with something done between the promise and the start, and has it used.
fn mounted(io_uring: bool, between: impl FnOnce(&mut Connection), work: impl FnOnce(&Slow, &Path, bool)) {
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let group = runtime.handle().group();
    let (server, at) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let transport = if io_uring { Transport::IoUring } else { Transport::Device };
    let options = MountOptions { transport, ..MountOptions::default() };
    let mut connection = connect(at.path(), "test", true, &options).unwrap();
    between(&mut connection);
    let mounted = begin(connection, Arc::clone(&server), group.clone(), &options).unwrap();
    let uses_io_uring = mounted.uses_io_uring();
    let session = std::thread::spawn(move || mounted.serve());
    let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&server, at.path(), uses_io_uring)));
    // Requests that hang end with the connection, so that the test does.
    let how = if worked.is_ok() { UnmountFlags::empty() } else { UnmountFlags::FORCE | UnmountFlags::DETACH };
    rustix::mount::unmount(at.path(), how).unwrap();
    server.go.set();
    ends(&session);
    session.join().unwrap().unwrap();
    runtime.block_on(group.close());
    worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it hangs: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ends<T>(thread: &JoinHandle<T>) {
    until("a thread has not ended", || thread.is_finished());
}

/// A thread on the first CPU, whose requests come by one queue.
fn on_first_cpu<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(0);
        rustix::thread::sched_setaffinity(None, &cpus).unwrap();
        work()
    })
}

/// Direct writes have all the places for requests that there are when a read comes, which has locked a page of the file. Done, the writes
/// wait for that page to be dropped.
fn writes_and_a_read(io_uring: bool, places: usize) {
    mounted(
        io_uring,
        |_| (),
        |server, at, uses_io_uring| {
            assert_eq!(uses_io_uring, io_uring);
            let file = at.join("file");
            let by_pages = File::open(&file).unwrap();
            let flags = OFlags::DIRECT.bits().cast_signed();
            let direct = OpenOptions::new().write(true).custom_flags(flags).open(&file).unwrap();
            let writer = on_first_cpu(move || {
                // Twice as many requests as there are places.
                let (page, transfer) = (4096, TRANSFER_MAX_BYTES as usize);
                let bytes = vec![0; 2 * places * transfer + page];
                let begin = bytes.as_ptr().align_offset(page);
                direct.write_all_at(&bytes[begin..begin + 2 * places * transfer], 0)
            });
            until("not all places are taken", || server.writes.load(Ordering::Acquire) >= places);
            let reader = on_first_cpu(move || by_pages.read_exact_at(&mut [0; 16], FILE_BYTES / 2));
            // Longer than it takes to come to the kernel. If that were not enough, the test would see less.
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(server.writes.load(Ordering::Acquire), places);
            server.go.set();
            ends(&reader);
            ends(&writer);
            reader.join().unwrap().unwrap();
            writer.join().unwrap().unwrap();
        },
    );
}

#[test]
fn direct_writes_leave_room_for_the_reads_that_they_wait_for() {
    let _one = ONE.lock();
    if can_mount(false) {
        writes_and_a_read(false, usize::from(BACKGROUND_MAX));
    }
}

#[test]
fn direct_writes_leave_room_for_the_reads_that_they_wait_for_by_a_ring() {
    let _one = ONE.lock();
    if can_mount(true) {
        let _switch = Switch::on().unwrap();
        writes_and_a_read(true, DEPTH);
    }
}

#[test]
fn a_request_that_panics_is_answered_and_the_next_is_served() {
    let _one = ONE.lock();
    for io_uring in [false, true] {
        if !can_mount(io_uring) {
            continue;
        }
        let _switch = Switch::on();
        mounted(
            io_uring,
            |_| (),
            |_, at, _| {
                // More often than a queue has entries.
                for _ in 0..3 * DEPTH {
                    let error = fs::metadata(at.join("panic")).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                }
                assert_eq!(fs::metadata(at.join("file")).unwrap().len(), FILE_BYTES);
            },
        );
    }
}

/// The kernel refuses entries that have no room for the largest request.
#[test]
fn a_ring_that_the_kernel_refuses_leaves_the_device() {
    let _one = ONE.lock();
    if can_mount(true) {
        let _switch = Switch::on().unwrap();
        mounted(
            true,
            |connection| connection.ring.as_mut().unwrap().payload_max = 4096,
            |_, at, uses_io_uring| {
                assert!(!uses_io_uring);
                let metadata = on_first_cpu({
                    let file = at.join("file");
                    move || fs::metadata(file)
                });
                ends(&metadata);
                assert_eq!(metadata.join().unwrap().unwrap().len(), FILE_BYTES);
            },
        );
    }
}

/// The kernel waits for all queues that it was promised. One of them never comes.
#[test]
fn a_queue_that_fails_before_it_is_there_fails_the_mount() {
    let _one = ONE.lock();
    if !can_mount(true) {
        return;
    }
    let _switch = Switch::on().unwrap();
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let at = tempfile::tempdir().unwrap();
    let options = MountOptions { transport: Transport::IoUring, ..MountOptions::default() };
    let mut connection = connect(at.path(), "test", true, &options).unwrap();
    connection.ring.as_mut().unwrap().queues[0].start = std::sync::mpsc::channel().0;
    let begun = Instant::now();
    let error = begin(connection, Arc::new(Slow::default()), runtime.handle().group(), &options).err().unwrap();
    assert!(error.to_string().contains("no_io_uring"), "{error}");
    rustix::mount::unmount(at.path(), UnmountFlags::DETACH).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
}
