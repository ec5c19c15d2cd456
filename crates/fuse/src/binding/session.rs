//! A mount from its beginning to its end: the connection, the threads that take requests, and how they end.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use cenote_taskq::Group;

use super::Binding;
use super::device::Device;
use super::helper::{self, Watch};
use super::init::shake_hands;
use super::notices::Notices;
use super::ring::{Ring, Serve};
use crate::mount::{Unmount, unmount};
use crate::options::{MountOptions, Transport};
use crate::server::FileServer;
use crate::{kernel_mount, raw};

/// A mounted session, before it serves.
pub(crate) struct Mounted {
    serve: Serve,
    device: Arc<OwnedFd>,
    ring: Option<Ring>,
    uses_io_uring: bool,
    threads: usize,
    _watch: Option<Watch>,
}

/// A connection to the kernel, which knows what is agreed on.
pub(super) struct Connection {
    device: Arc<OwnedFd>,
    pub(super) ring: Option<Ring>,
    offered: u64,
    watch: Option<Watch>,
}

/// Mounts. Blocks until the kernel has shaken hands. Requests become tasks of `group`.
pub(crate) fn mount<S: FileServer>(
    server: Arc<S>,
    group: Group,
    mountpoint: &Path,
    name: &str,
    options: &MountOptions,
) -> io::Result<Mounted> {
    let connection = connect(mountpoint, name, server.is_writable(), options)?;
    begin(connection, server, group, options)
        // Nobody else ends a mount whose session did not begin.
        .inspect_err(|_| drop(unmount(mountpoint, Unmount::Detach)))
}

/// Mounts and shakes hands.
pub(super) fn connect(
    mountpoint: &Path,
    name: &str,
    is_writable: bool,
    options: &MountOptions,
) -> io::Result<Connection> {
    let (device, watch) = match kernel_mount::mount(mountpoint, name, options, is_writable)? {
        Some(device) => (device, None),
        None => helper::mount(mountpoint, name, options, is_writable)?,
    };
    let device = Arc::new(device);
    // fusermount3 unmounts for a process that was killed only if the connection has ended by the time that it is told, and the kernel
    // lets go of rings later than of the socket that tells it.
    let may_ring = options.transport != Transport::Device && watch.is_none();
    let (offered, ring) =
        shake_hands(&device, is_writable, may_ring).inspect_err(|_| drop(unmount(mountpoint, Unmount::Detach)))?;
    Ok(Connection { device, ring, offered, watch })
}

/// Begins to serve what comes by a ring, and makes ready what comes by the device.
pub(super) fn begin<S: FileServer>(
    connection: Connection,
    server: Arc<S>,
    group: Group,
    options: &MountOptions,
) -> io::Result<Mounted> {
    let Connection { device, ring, offered, watch } = connection;
    let notices = Notices::new(Arc::clone(&device));
    server.connected(Arc::new(notices.clone()));
    let binding = Binding::new(server, group, notices, offered, options);
    // A panic has dropped the reply, which is `EIO`. The thread goes on to serve.
    let serve: Serve = Arc::new(move |header, operation, reply| {
        drop(catch_unwind(AssertUnwindSafe(|| binding.serve(header, operation, reply))));
    });
    let uses_io_uring = match ring.as_ref().map(|ring| ring.start(&serve)) {
        Some(Ok(serves)) => serves,
        Some(Err(error)) => {
            drop(ring.map(Ring::end));
            return Err(error);
        }
        None => false,
    };
    Ok(Mounted { serve, device, ring, uses_io_uring, threads: options.threads.max(1), _watch: watch })
}

impl Mounted {
    /// Whether the requests come by io_uring.
    pub(crate) fn uses_io_uring(&self) -> bool {
        self.uses_io_uring
    }

    /// Serves until the file system is unmounted or the connection is aborted. Blocks.
    pub(crate) fn serve(mut self) -> io::Result<()> {
        let mut threads = vec![self.thread(0, Arc::clone(&self.device))];
        for index in 1..self.threads {
            let thread = self.thread(index, self.another());
            // It is served by fewer, then.
            if thread.is_err() {
                break;
            }
            threads.push(thread);
        }
        let ended = threads.into_iter().map(|thread| {
            let panicked = |_| Err(io::Error::other("a thread that reads requests panicked"));
            thread?.join().unwrap_or_else(panicked)
        });
        // All of them are waited for; the first error counts.
        let ended: Vec<_> = ended.collect();
        let ring = self.ring.take().map_or(Ok(()), Ring::end);
        ended.into_iter().chain([ring]).collect()
    }

    /// A thread that takes requests from a descriptor.
    fn thread(&self, index: usize, descriptor: Arc<OwnedFd>) -> io::Result<JoinHandle<io::Result<()>>> {
        let (serve, mut device) = (Arc::clone(&self.serve), Device::new(descriptor));
        let run = move || -> io::Result<()> {
            while let Some((header, operation, reply)) = device.next()? {
                serve(&header, operation, reply);
            }
            Ok(())
        };
        std::thread::Builder::new().name(format!("fuse-{index}")).spawn(run)
    }

    /// A descriptor of the connection for another thread: its own, so that threads do not share a lock in the kernel; or, where the
    /// device itself is not to be had, as a mount by way of fusermount3 may have it, the same.
    fn another(&self) -> Arc<OwnedFd> {
        let new = File::options().read(true).write(true).open("/dev/fuse").map(OwnedFd::from);
        match new.and_then(|new| raw::clone(&self.device, &new).map(|()| new)) {
            Ok(new) => Arc::new(new),
            Err(_) => Arc::clone(&self.device),
        }
    }
}
