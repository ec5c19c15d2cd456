//! Listening, accepting, and the end of it.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_kstat::Registry;
use cenote_taskq::Handle;
use cenote_taskq::sync::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};

use crate::budget::SharedBudget;
use crate::connection::serve_stream;
use crate::export::Exports;
use crate::limits;
use crate::socket::Socket;
use crate::transport::{Sender, Transport};

/// How often clients are looked at, at least.
const WATCH: Duration = Duration::from_secs(1);
/// Clients that wait to be accepted.
const LISTEN_BACKLOG: i32 = 128;

/// A place where clients may knock.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// A unix socket at `path`, of this user alone. A socket that a dead server left there is replaced, one in use is not.
    pub fn unix(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::unix_for(path, None)
    }

    /// The same, for a group too.
    pub fn unix_for(path: impl Into<PathBuf>, group: Option<u32>) -> io::Result<Self> {
        let path = path.into();
        if is_dead_socket(&path) {
            std::fs::remove_file(&path)?;
        }
        // The mode is that of the socket before it has a name: changed by name afterwards it could be another's.
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
        // The socket gets its own name when clients can connect: a script waits for the name, and another server takes a socket that
        // refuses connections for a dead one.
        let unready = path.with_file_name(format!(".{}", std::process::id()));
        if is_dead_socket(&unready) {
            std::fs::remove_file(&unready)?;
        }
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&unready)?)?;
        let mut listener = Self(Kind::Unix(UnixListener::from(socket), unready));
        let Kind::Unix(socket, name) = &mut listener.0 else { return Ok(listener) };
        if let Some(group) = group {
            open_to_group(name, group)?;
        }
        rustix::net::listen(socket, LISTEN_BACKLOG)?;
        rename_to_free(name, &path)?;
        *name = path;
        Ok(listener)
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

/// Gives a group a socket that was just made: what is held is what is changed, whatever its name leads to by then.
fn open_to_group(path: &Path, group: u32) -> io::Result<()> {
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&held)?;
    let is_ours = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o777 == 0o600;
    if !is_ours {
        return Err(io::Error::other("another file has taken the socket's place"));
    }
    let group = Some(rustix::fs::Gid::from_raw(group));
    rustix::fs::chownat(&held, "", None, group, rustix::fs::AtFlags::EMPTY_PATH)?;
    let path = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string());
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o660))?)
}

/// Renames a socket to a name that nothing has yet.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    // A client's address is as long as this too.
    rustix::net::SocketAddrUnix::new(to)?;
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, from, cwd, to, rustix::fs::RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::EXIST) => Err(rustix::io::Errno::ADDRINUSE.into()),
        other => Ok(other?),
    }
}

fn is_dead_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The settings of a server, beside its exports.
#[derive(Clone)]
pub struct ServerOptions {
    /// Connections at once; further clients are turned away.
    pub connections_max: usize,
    /// Data of requests in flight, of all connections together, in bytes.
    pub data_bytes_max: u64,
    /// How long a client may take for the whole handshake.
    pub handshake_max: Duration,
    /// How long a client may take to send announced data, or to take replies, beside what their bytes may take.
    pub stall_max: Duration,
    /// The slowest client that is waited for, in bytes a second.
    pub slowest_bytes_s: u64,
    /// Called with a line for each connection that ended in an error.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_max: 128,
            data_bytes_max: limits::SERVER_BYTES,
            handshake_max: limits::HANDSHAKE,
            stall_max: limits::STALL,
            slowest_bytes_s: limits::SLOWEST_BYTES_A_SECOND,
            report: Arc::new(|_| {}),
        }
    }
}

/// The statistics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Clients connected now.
    pub connections: usize,
    /// Clients accepted since the start.
    pub accepted: u64,
    /// Requests read since the start.
    pub requests: u64,
    /// The most data in flight at once since the start, in bytes.
    pub data_peak_bytes: u64,
}

/// By when a client must have done what it owes, in nanoseconds of the engine's clock; 0 where it owes nothing.
#[derive(Default)]
struct Deadlines {
    handshake: AtomicU64,
    data: AtomicU64,
    taken: AtomicU64,
}

impl Deadlines {
    /// The first deadline that a client has missed, in words.
    fn missed(&self, now_ns: u64) -> Option<&'static str> {
        [
            (&self.handshake, "the handshake took too long"),
            (&self.data, "announced data was not sent"),
            (&self.taken, "replies were not taken"),
        ]
        .into_iter()
        .find(|(deadline, _)| (1..=now_ns).contains(&deadline.load(Ordering::Relaxed)))
        .map(|(_, what)| what)
    }
}

/// A client that is connected.
struct Client {
    socket: Socket,
    deadlines: Deadlines,
}

struct Shared {
    handle: Handle,
    exports: Arc<dyn Exports>,
    options: ServerOptions,
    closing: AtomicBool,
    accepted: AtomicU64,
    requests: AtomicU64,
    connections: Mutex<BTreeMap<u64, Arc<Client>>>,
    left: Condvar,
    budget: Arc<SharedBudget>,
}

impl Shared {
    fn stats(&self) -> ServerStats {
        ServerStats {
            connections: self.connections.lock().len(),
            accepted: self.accepted.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            data_peak_bytes: self.budget.peak_bytes(),
        }
    }
}

/// A running server. Dropping it shuts it down.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Arc<Listener>, JoinHandle<()>)>,
    watch: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `exports` to clients of `listeners`; the work is done by the engine behind `handle`.
    pub fn start(
        handle: Handle,
        exports: Arc<dyn Exports>,
        listeners: Vec<Listener>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let budget = Arc::new(SharedBudget::new(options.data_bytes_max));
        let shared = Arc::new(Shared {
            handle,
            budget,
            exports,
            options,
            closing: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            connections: Mutex::new(BTreeMap::new()),
            left: Condvar::new(),
        });
        let mut server = Self { shared, listeners: Vec::new(), watch: None };
        let watched = Arc::clone(&server.shared);
        let watch = std::thread::Builder::new().name("nbd-watch".to_owned()).spawn(move || watch(&watched))?;
        server.watch = Some(watch);
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

    /// Its statistics.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Has the server's statistics be read with those of a pool, as the group `nbd`.
    pub fn add_kstats(&self, registry: &Registry) {
        registry.add(&self.shared, |shared, snapshot| {
            let stats = shared.stats();
            let sheet = snapshot.group("nbd");
            sheet.level("connections", stats.connections as u64);
            sheet.count("accepted", stats.accepted);
            sheet.count("requests", stats.requests);
            sheet.level("data_peak_bytes", stats.data_peak_bytes);
        });
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
        for client in connections.values() {
            let _ = client.socket.set_write_timeout(Some(limits::SHUTDOWN_WRITE));
            client.socket.shutdown(Shutdown::Read);
        }
        while !connections.is_empty() {
            connections = self.shared.left.wait(connections);
        }
        debug_assert!(
            self.listeners.is_empty() && connections.is_empty(),
            "every thread of a client has ended (invariant 5)"
        );
        drop(connections);
        self.shared.left.notify_all();
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends clients that owe something for too long, until the server closes and all have gone.
fn watch(shared: &Shared) {
    let options = &shared.options;
    let period = (options.handshake_max.min(options.stall_max) / 4).clamp(Duration::from_millis(10), WATCH);
    let mut connections = shared.connections.lock();
    while !(shared.closing.load(Ordering::Acquire) && connections.is_empty()) {
        let now_ns = shared.handle.now().as_ns();
        for (number, client) in connections.iter() {
            if let Some(what) = client.deadlines.missed(now_ns) {
                (shared.options.report)(&format!("connection {number} is ended: {what}"));
                client.socket.shutdown(Shutdown::Both);
                // Said once.
                client.deadlines.handshake.store(0, Ordering::Relaxed);
                client.deadlines.data.store(0, Ordering::Relaxed);
                client.deadlines.taken.store(0, Ordering::Relaxed);
            }
        }
        connections = shared.left.wait_for(connections, period).0;
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
    let client = Arc::new(Client { socket, deadlines: Deadlines::default() });
    {
        let mut connections = shared.connections.lock();
        if connections.len() >= shared.options.connections_max || shared.closing.load(Ordering::Acquire) {
            drop(connections);
            (shared.options.report)("a client was turned away: too many connections");
            return;
        }
        let before = connections.insert(number, Arc::clone(&client));
        assert!(before.is_none(), "each connection has a number of its own");
        assert!(connections.len() <= shared.options.connections_max, "a server has so many connections at most");
    }
    let leave = Leave { shared: Arc::clone(shared), number };
    let spawned = std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
        let connection = Connection { shared: &leave.shared, client: &client };
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
        let left = self.shared.connections.lock().remove(&self.number);
        debug_assert!(left.is_some(), "a connection leaves once");
        self.shared.left.notify_all();
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    client: &'a Arc<Client>,
}

impl Connection<'_> {
    fn serve(&self) -> Result<(), crate::transport::ConnectionError> {
        let Shared { handle, exports, budget, .. } = self.shared;
        self.set(&self.client.deadlines.handshake, Some(self.shared.options.handshake_max));
        let socket = &self.client.socket;
        serve_stream(handle, exports, budget, socket, socket, self)
    }

    fn set(&self, deadline: &AtomicU64, left: Option<Duration>) {
        deadline.store(left.map_or(0, |left| (self.shared.handle.now() + left).as_ns()), Ordering::Relaxed);
    }

    /// How long a client may take over so many bytes.
    fn time_for(&self, bytes: u64) -> Duration {
        let options = &self.shared.options;
        options.stall_max + Duration::from_millis(bytes.saturating_mul(1000) / options.slowest_bytes_s.max(1))
    }
}

impl Transport for Connection<'_> {
    fn handshake_done(&self) {
        self.set(&self.client.deadlines.handshake, None);
    }

    fn expect_data(&self, bytes: Option<u64>) {
        self.set(&self.client.deadlines.data, bytes.map(|bytes| self.time_for(bytes)));
    }

    fn expect_taken(&self, bytes: Option<u64>) {
        self.set(&self.client.deadlines.taken, bytes.map(|bytes| self.time_for(bytes)));
    }

    fn sender(&self) -> Option<Sender> {
        let client = Arc::clone(self.client);
        Some(Box::new(move |slices| client.socket.send_now(slices)))
    }

    fn hang_up(&self) {
        self.client.socket.shutdown(Shutdown::Both);
    }

    fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }

    fn count_request(&self) {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
    }
}
