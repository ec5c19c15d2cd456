//! Listening, accepting, and the end of it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use cenote_taskq::Handle;
use cenote_taskq::sync::{Condvar, Mutex};

use crate::connection::{Transport, serve_stream};
use crate::export::Exports;
use crate::limits;
use crate::socket::Socket;

/// A place where clients may knock.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// A unix socket at `path`. A socket that a dead server left there is replaced, one in use is not.
    pub fn unix(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if is_dead_socket(&path) {
            std::fs::remove_file(&path)?;
        }
        Ok(Self(Kind::Unix(UnixListener::bind(&path)?, path)))
    }

    /// A TCP socket. The protocol has no authentication: bind to a loopback address unless the network is trusted.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self(Kind::Tcp(TcpListener::bind(address)?)))
    }

    /// The address of a TCP listener, with the port that the system chose if port 0 was asked for.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().ok(),
            Kind::Unix(..) => None,
        }
    }

    fn accept(&self) -> io::Result<Socket> {
        match &self.0 {
            Kind::Unix(listener, _) => listener.accept().map(|(socket, _)| Socket::Unix(socket)),
            Kind::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                // Replies are written whole; holding them back for more only delays.
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
        }
    }

    /// Makes a blocked accept return.
    fn close(&self) {
        let how = rustix::net::Shutdown::Both;
        let _ = match &self.0 {
            Kind::Unix(listener, _) => rustix::net::shutdown(listener.as_fd(), how),
            Kind::Tcp(listener) => rustix::net::shutdown(listener.as_fd(), how),
        };
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix(_, path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn is_dead_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What a server is given besides exports.
#[derive(Clone)]
pub struct ServerOptions {
    /// Connections at once; further clients are turned away.
    pub connections_max: usize,
    /// Called with a line for each connection that ended in an error.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { connections_max: 128, report: Arc::new(|_| {}) }
    }
}

/// What a server has done and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Clients connected now.
    pub connections: usize,
    /// Clients accepted since the start.
    pub accepted: u64,
    /// Requests read since the start.
    pub requests: u64,
}

struct Shared {
    handle: Handle,
    exports: Arc<dyn Exports>,
    options: ServerOptions,
    closing: AtomicBool,
    accepted: AtomicU64,
    requests: AtomicU64,
    connections: Mutex<BTreeMap<u64, Arc<Socket>>>,
    left: Condvar,
}

/// A running server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Arc<Listener>, JoinHandle<()>)>,
}

impl Server {
    /// Serves `exports` to whoever connects to one of `listeners`; the work is done by the engine behind `handle`.
    pub fn start(
        handle: Handle,
        exports: Arc<dyn Exports>,
        listeners: Vec<Listener>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            handle,
            exports,
            options,
            closing: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            connections: Mutex::new(BTreeMap::new()),
            left: Condvar::new(),
        });
        let mut server = Self { shared, listeners: Vec::new() };
        for listener in listeners {
            let listener = Arc::new(listener);
            let (shared, accepting) = (Arc::clone(&server.shared), Arc::clone(&listener));
            let thread = std::thread::Builder::new()
                .name("nbd-accept".to_owned())
                .spawn(move || accept_loop(&shared, &accepting))?;
            server.listeners.push((listener, thread));
        }
        Ok(server)
    }

    /// What it is doing.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        ServerStats {
            connections: self.shared.connections.lock().len(),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            requests: self.shared.requests.load(Ordering::Relaxed),
        }
    }

    /// Stops listening, reads no more requests, answers those that were read, and returns when all clients are gone.
    pub fn shutdown(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        for (listener, thread) in self.listeners.drain(..) {
            listener.close();
            let _ = thread.join();
        }
        let mut connections = self.shared.connections.lock();
        for socket in connections.values() {
            let _ = socket.set_write_timeout(Some(limits::SHUTDOWN_WRITE));
            socket.shutdown(Shutdown::Read);
        }
        while !connections.is_empty() {
            connections = self.shared.left.wait(connections);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: &Listener) {
    while !shared.closing.load(Ordering::Acquire) {
        match listener.accept() {
            Ok(socket) => welcome(shared, socket),
            Err(_) if shared.closing.load(Ordering::Acquire) => {}
            // The client gave up, or descriptors ran out: others must not suffer, nor a core be spun.
            Err(error) => {
                (shared.options.report)(&format!("accept: {error}"));
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

fn welcome(shared: &Arc<Shared>, socket: Socket) {
    let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
    let socket = Arc::new(socket);
    {
        let mut connections = shared.connections.lock();
        if connections.len() >= shared.options.connections_max || shared.closing.load(Ordering::Acquire) {
            drop(connections);
            (shared.options.report)("a client was turned away: too many connections");
            return;
        }
        connections.insert(number, Arc::clone(&socket));
    }
    let leave = Leave { shared: Arc::clone(shared), number };
    let spawned = std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        let connection = Connection { shared: &leave.shared, socket: &socket };
        if let Err(error) = connection.serve() {
            (leave.shared.options.report)(&format!("connection {number}: {error}"));
        }
    });
    if let Err(error) = spawned {
        (shared.options.report)(&format!("connection {number}: no thread: {error}"));
    }
}

/// Counts a connection out, however its thread ends.
struct Leave {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.shared.connections.lock().remove(&self.number);
        self.shared.left.notify_all();
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    socket: &'a Socket,
}

impl Connection<'_> {
    fn serve(&self) -> Result<(), crate::connection::ConnectionError> {
        self.socket.set_read_timeout(Some(limits::HANDSHAKE)).map_err(crate::connection::ConnectionError::Io)?;
        self.socket.set_write_timeout(Some(limits::HANDSHAKE)).map_err(crate::connection::ConnectionError::Io)?;
        serve_stream(&self.shared.handle, &self.shared.exports, self.socket, self.socket, self)
    }
}

impl Transport for Connection<'_> {
    fn handshake_done(&self) {
        if !self.is_closing() {
            let _ = self.socket.set_read_timeout(None);
            let _ = self.socket.set_write_timeout(None);
        }
    }

    fn hang_up(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    fn count_request(&self) {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
    }
}
