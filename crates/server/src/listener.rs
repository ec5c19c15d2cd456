//! The side of the protocol in the process that has the pool.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use cenote_admin::Owner;
use cenote_host::Mounts;
use cenote_taskq::{Either, Handle, Instant, race};

use crate::Console;
use crate::error::{Context as _, Result, ServerError};
use crate::protocol::place::Place;
use crate::protocol::{
    ANSWER_BYTES_MAX, Ask, AskVersion, LINE_BYTES_MAX, Passed, Receiving, Said, VERSION, Who, damaged_in, read_line,
    usual_socket,
};
use crate::served::{ServedPool, suspended};

/// The maximum number of clients that are heard.
const CLIENTS_MAX: usize = 256;
/// The maximum number of concurrent requests.
const REQUESTS_MAX: usize = 8;
/// The maximum number of concurrent requests with an input: a stream may take hours.
const INPUTS_MAX: usize = 32;
/// The maximum number of clients with views.
const VIEWS_MAX: usize = 32;
/// The longest time that a client may neither write nor read.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Bytes of text in a line of an answer: as JSON they may become six times as many.
const TEXT_BYTES: usize = LINE_BYTES_MAX / 8;
/// The longest time that a client waits for the export that it requested.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(600);

/// The longest time that a process continues after its work has ended, to send its last answers, and the interval between checks for that.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
const ANSWER_POLL: Duration = Duration::from_millis(5);

/// The exit status of a request that failed.
const FAILED: u8 = 1;

/// Carries out the requests of clients.
pub trait Handler: Send + Sync {
    /// Parses a request from its form on the wire.
    fn request(&self, form: serde_json::Value) -> Result<Box<dyn Request>, ServerError>;
}

/// A client's request.
pub trait Request: Send {
    /// True if it is carried out even while the pool's devices fail.
    fn is_for_suspended(&self) -> bool;

    /// Carries it out, on this thread, which may wait.
    fn serve(self: Box<Self>, call: Call<'_>) -> Ended;
}

/// The context of a request.
pub struct Call<'a> {
    /// The pool that the client asks about.
    pub of: &'a ServedPool,
    /// The user and group of the client, as the system says.
    pub client: Owner,
    /// The client's standard input, if it sent one with the request.
    pub input: Option<Passed>,
    /// Its standard output.
    pub out: Gathered,
    /// Its error lines.
    pub err: Gathered,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit status.
    pub status: u8,
    /// The reason of its failure, unless the error lines give it.
    pub error: Option<String>,
    /// The pool is to be exported, and the client waits for that.
    pub exports: bool,
}

/// Takes commands until it is dropped.
pub(crate) struct Control {
    place: Place,
    shared: Arc<Shared>,
}

/// The longest time before a process notices the end of its last mount.
const UNMOUNTED_TIME_MAX: Duration = Duration::from_secs(5);

/// The state that the threads of all clients share.
struct Shared {
    handle: Handle,
    handler: Arc<dyn Handler>,
    of: ServedPool,
    is_ending: AtomicBool,
    requests: Arc<Slots>,
    with_input: Arc<Slots>,
    /// The process ends with the last of its mounts.
    ends_with_mounts: bool,
    /// The number of requests whose answers are not sent yet.
    answering: Arc<AtomicUsize>,
    /// The time at which none of its mounts was first seen to be in the system's table.
    unmounted: Mutex<Option<Instant>>,
}

impl Control {
    /// Takes commands for a pool that this process has open for writing, at `path` or at the usual place, and reports the place. If it cannot
    /// listen at the usual place it warns, and the process continues without commands. With `ends_with_mounts` this process ends with the last
    /// mount of the pool.
    pub(crate) fn start(
        console: &dyn Console,
        handler: &Arc<dyn Handler>,
        of: &ServedPool,
        path: Option<&Path>,
        ends_with_mounts: bool,
    ) -> Result<Option<Self>> {
        match Self::listen(handler, of, path, ends_with_mounts) {
            Ok(control) => {
                let (pool, at) = (of.pool.name(), control.place.path().display());
                console.note(&format!("commands for '{pool}' are taken at {at}"));
                Ok(Some(control))
            }
            Err(error) if path.is_none() => {
                console.warn(&format!("commands for the pool are not taken: {}", error.chain()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn listen(
        handler: &Arc<dyn Handler>,
        of: &ServedPool,
        path: Option<&Path>,
        ends_with_mounts: bool,
    ) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => usual_socket(of.pool.guid())?,
        };
        let (place, listener) = Place::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let shared = Arc::new(Shared {
            handle: of.pool.handle().clone(),
            handler: handler.clone(),
            of: of.clone(),
            is_ending: AtomicBool::new(false),
            requests: Slots::new(REQUESTS_MAX),
            with_input: Slots::new(INPUTS_MAX),
            ends_with_mounts,
            answering: Arc::default(),
            unmounted: Mutex::default(),
        });
        let hearing = shared.clone();
        let (clients, views) = (Slots::new(CLIENTS_MAX), Slots::new(VIEWS_MAX));
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                // While there are too many clients, the system makes others wait.
                let client = Slots::take(&clients);
                let (shared, views) = (hearing.clone(), views.clone());
                let heard = std::thread::Builder::new().name("client".into()).spawn(move || {
                    // A client that cannot be answered cannot be told the reason either.
                    let _ = shared.hear(&stream, client, &views);
                });
                drop(heard);
            }
        })?;
        Ok(Self { place, shared })
    }

    /// The process's work has ended: requests are refused from now on, while the rest is written and the pool exported.
    pub(crate) fn ends(&self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
    }

    /// Waits briefly until the answers to completed requests are sent: the request that ends the last mount ends the process too.
    pub(crate) async fn answered(&self) {
        let begun = self.shared.handle.now();
        while self.shared.answering.load(Ordering::SeqCst) > 0 && self.shared.handle.now() - begun < ANSWER_TIME_MAX {
            self.shared.handle.sleep(ANSWER_POLL).await;
        }
    }
}

/// A request whose answer is not sent yet.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A number of slots, for which threads wait.
struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A slot, held until it is dropped.
struct Slot(Arc<Slots>);

impl Slots {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count), freed: Condvar::new() })
    }

    fn take(this: &Arc<Self>) -> Slot {
        let free = this.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = this.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Slot(Arc::clone(this))
    }

    /// A free slot, if there is one now.
    fn try_take(this: &Arc<Self>) -> Option<Slot> {
        let mut free = this.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Slot(Arc::clone(this)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// A request's output, collected up to a limit.
#[derive(Clone, Debug, Default)]
pub struct Gathered(Arc<Mutex<Vec<u8>>>);

impl Write for Gathered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if text.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too long for the server's socket"));
        }
        text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Gathered {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Shared {
    fn who(&self) -> Who {
        let table = Mounts::read();
        let served = self.of.mounts.names();
        let is_any = !served.is_empty();
        let names: Vec<_> = served.into_iter().filter(|name| table.has(&name.before, &name.at)).collect();
        let mounts: Vec<_> = names.iter().map(|name| (name.now.clone(), name.at.clone())).collect();
        let renamed = names.into_iter().filter(|name| name.before != name.now);
        let renamed = renamed.map(|name| (name.before, name.at)).collect();
        let is_over = is_any && mounts.is_empty() && !self.of.mounts.has_coming();
        let is_unmounted = self.is_just_unmounted(is_over);
        Who {
            pid: std::process::id(),
            pool: self.of.pool.name().to_owned(),
            guid: self.of.pool.guid().0,
            devices: self.of.devices.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            mounts,
            renamed,
            ends_with_mounts: self.ends_with_mounts,
            is_ending: self.is_ending.load(Ordering::SeqCst) || self.ends_with_mounts && is_unmounted,
        }
    }

    /// True for some seconds after the end of the last mount. The process ends within this time, unless another mount namespace has the mount
    /// too.
    fn is_just_unmounted(&self, is_over: bool) -> bool {
        let now = self.handle.now();
        let mut unmounted = self.unmounted.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_over {
            *unmounted = None;
            return false;
        }
        now - *unmounted.get_or_insert(now) < UNMOUNTED_TIME_MAX
    }

    fn hear(&self, stream: &UnixStream, client: Slot, views: &Arc<Slots>) -> Result<()> {
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
            return Err(ServerError::Untrusted("another user".to_owned()));
        }
        let client_owner = Owner { uid: peer.uid.as_raw(), gid: peer.gid.as_raw() };
        let passed = RefCell::default();
        let mut lines = BufReader::new(Receiving::new(stream, &passed));
        let Some(line) = read_line(&mut lines)? else { return Ok(()) };
        let mut says = Says(stream);
        let request = match self.asked(&line) {
            Ok(Asked::Who) => return says.say(&Said::Who(self.who())),
            Ok(Asked::View) => {
                // A client that reads for hours must not keep others from being heard.
                drop(client);
                return self.keep(&mut lines, &mut says, views);
            }
            Ok(Asked::Sync) => return self.sync(&mut says),
            Ok(Asked::Do(_)) if self.is_ending.load(Ordering::SeqCst) => {
                let (pool, pid) = (self.of.pool.name(), std::process::id());
                let what = format!("pool '{pool}' is being exported by process {pid}: ask again when that has ended");
                Err(ServerError::Refused(what))
            }
            Ok(Asked::Do(request)) => Ok(request),
            Err(error) => Err(error),
        };
        let answering = Answering::new(&self.answering);
        // A request that reports devices as back must not wait for those that wait for devices.
        let is_first = request.as_ref().is_ok_and(|request| request.is_for_suspended());
        let input = passed.take();
        let slots = if input.is_some() { &self.with_input } else { &self.requests };
        let _turn = (!is_first).then(|| Slots::take(slots));
        let input = match input {
            Some(input) => Some(Passed { input, client: stream.try_clone()? }),
            None => None,
        };
        let (out, err) = (Gathered::default(), Gathered::default());
        let ended = match request {
            Ok(request) => {
                request.serve(Call { of: &self.of, client: client_owner, input, out: out.clone(), err: err.clone() })
            }
            Err(error) => Ended { status: FAILED, error: Some(error.chain()), exports: false },
        };
        says.text(&out.take())?;
        for line in String::from_utf8_lossy(&err.take()).lines() {
            says.say(&Said::Err(line.chars().take(TEXT_BYTES).collect()))?;
        }
        if let Some(error) = ended.error {
            says.say(&Said::Err(error))?;
        }
        says.say(&Said::Status(ended.status))?;
        drop(answering);
        if ended.exports {
            // The client waits for this.
            self.of.end.ask();
            let _ = self.handle.block_on(self.handle.timeout(EXPORT_TIME_MAX, self.of.end.over()));
        }
        Ok(())
    }

    /// Writes everything in memory. Fails if the pool's devices fail.
    fn sync(&self, says: &mut Says<'_>) -> Result<()> {
        let pool = &self.of.pool;
        let synced = async {
            match race(Box::pin(suspended(pool)), Box::pin(pool.sync())).await {
                Either::Left(error) => Err(error),
                Either::Right(synced) => synced.map_err(ServerError::from),
            }
        };
        match self.handle.block_on(synced) {
            Ok(_) => says.say(&Said::Status(0)),
            Err(error) => says.say(&Said::Err(error.chain())),
        }
    }

    fn asked(&self, line: &[u8]) -> Result<Asked> {
        let version: AskVersion = serde_json::from_slice(line).context("this is no request")?;
        if version.version != VERSION {
            let version = version.version;
            return Err(ServerError::Protocol(format!(
                "version {version} of requests is not supported; this server speaks version {VERSION}"
            )));
        }
        if version.who {
            return Ok(Asked::Who);
        }
        if version.view {
            return Ok(Asked::View);
        }
        if version.sync {
            return Ok(Asked::Sync);
        }
        let ask: Ask<serde_json::Value> =
            serde_json::from_slice(line).context("this is no request that this server knows")?;
        Ok(Asked::Do(self.handler.request(ask.request)?))
    }

    /// Keeps a txg for a client that reads the devices itself, until it disconnects.
    fn keep(&self, lines: &mut impl BufRead, says: &mut Says<'_>, views: &Arc<Slots>) -> Result<()> {
        let Some(_view) = Slots::try_take(views) else {
            return says.say(&Said::Err(format!("{VIEWS_MAX} others read the pool as of a txg")));
        };
        let pool = &self.of.pool;
        // A pool whose devices fail writes nothing, so its client continues without a view.
        let kept = async {
            match race(Box::pin(suspended(pool)), Box::pin(pool.keep())).await {
                Either::Left(error) => Err(error),
                Either::Right(kept) => kept.map_err(ServerError::from),
            }
        };
        let kept = match self.handle.block_on(kept) {
            Ok(kept) => kept,
            Err(error) => return says.say(&Said::Err(error.chain())),
        };
        says.say(&Said::View(kept.root().emit().to_vec()))?;
        says.0.set_read_timeout(None)?;
        while let Some(line) = read_line(lines)? {
            let damaged = damaged_in(&line);
            if !damaged.is_empty() {
                let looked_at = race(Box::pin(suspended(pool)), Box::pin(pool.look_at_damage(&damaged)));
                // A pool that fails tells so itself.
                drop(self.handle.block_on(looked_at));
            }
            says.say(&Said::Whole(kept.is_whole()))?;
        }
        Ok(())
    }
}

/// A client's question or request.
enum Asked {
    Who,
    View,
    Sync,
    Do(Box<dyn Request>),
}

struct Says<'a>(&'a UnixStream);

impl Says<'_> {
    fn say(&mut self, said: &Said) -> Result<()> {
        let mut line = serde_json::to_vec(said)?;
        line.push(b'\n');
        Ok(self.0.write_all(&line)?)
    }

    fn text(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (mut part, _) = rest.split_at(rest.len().min(TEXT_BYTES));
            // Do not cut a character.
            if let Err(error) = std::str::from_utf8(part)
                && error.error_len().is_none()
                && error.valid_up_to() > 0
            {
                part = &part[..error.valid_up_to()];
            }
            rest = &rest[part.len()..];
            self.say(&match std::str::from_utf8(part) {
                Ok(text) => Said::Out(text.to_owned()),
                Err(_) => Said::OutBytes(part.to_vec()),
            })?;
        }
        Ok(())
    }
}
