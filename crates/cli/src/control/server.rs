//! The side of the process that has the pool.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use cenote_format::ids::Guid;
use cenote_spa::write::live::LivePool;
use cenote_taskq::{Class, Instant, oneshot};
use signal_hook::consts::SIGTERM;

use super::place::Place;
use super::{ANSWER_BYTES_MAX, Ask, AskVersion, HOLD_TIME_MAX, LINE_BYTES_MAX, Said, VERSION, Who, read_line};
use crate::context::Context;
use crate::datasets::Mounts;
use crate::live::LiveMounts;
use crate::outcome::{FAILED, Outcome, USAGE, UsageError};
use crate::output::Output;
use crate::request::{self, Request};
use crate::volumes::OpenVolumes;

/// Clients that are heard at once.
const CLIENTS_MAX: usize = 8;
/// How long a client may say nothing, or not read.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Bytes of text in a line of an answer: as JSON it may become six times as long.
const TEXT_BYTES: usize = LINE_BYTES_MAX / 8;
/// How long a client that had the pool exported waits for this process to end.
const EXPORT_TIME_MAX: Duration = Duration::from_secs(600);

/// A pool that this process has open for writing.
#[derive(Clone)]
pub(crate) struct Pool {
    /// The pool.
    pub(crate) pool: LivePool,
    /// Its volumes that clients have opened.
    pub(crate) volumes: Arc<OpenVolumes>,
    /// Its datasets that are mounted.
    pub(crate) mounts: Arc<LiveMounts>,
    /// Its guid.
    pub(crate) guid: Guid,
    /// The devices that it was opened from.
    pub(crate) devices: Vec<PathBuf>,
}

/// Takes commands until it is dropped.
pub(crate) struct Control {
    place: Place,
    shared: Arc<Shared>,
}

/// How long a mount's end takes to be noticed by its process at most.
const UNMOUNTED_TIME_MAX: Duration = Duration::from_secs(5);

/// The state that the threads of all clients share.
struct Shared {
    context: Context,
    of: Pool,
    is_ending: AtomicBool,
    mounts: Mutex<Vec<Mount>>,
    /// When it was first seen that the mount with which the process ends is not in the mount table any more.
    unmounted: Mutex<Option<Instant>>,
}

/// A dataset that was mounted.
struct Mount {
    dataset: String,
    at: PathBuf,
    /// The process ends with it.
    is_all: bool,
}

impl Control {
    /// Takes commands for a pool that this process has open for writing, and says where: at `path`, or at the usual place.
    /// Where nothing was asked for, that they cannot be taken is said, and no reason not to go on.
    ///
    /// # Errors
    /// Nobody can listen at `path`.
    pub(crate) fn start(context: &Context, of: &Pool, path: Option<&Path>) -> Result<Option<Self>> {
        match Self::listen(context, of, path) {
            Ok(control) => {
                let (pool, at) = (of.pool.name(), control.place.path().display());
                context.err(format!("commands for '{pool}' are taken at {at}"));
                Ok(Some(control))
            }
            Err(error) if path.is_none() => {
                context.err(format!("commands for the pool are not taken: {error:#}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn listen(context: &Context, of: &Pool, path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => super::usual_socket(of.guid)?,
        };
        let (place, listener) = Place::listen(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        let shared = Arc::new(Shared {
            context: context.clone(),
            of: of.clone(),
            is_ending: AtomicBool::new(false),
            unmounted: Mutex::default(),
            mounts: Mutex::default(),
        });
        let hearing = shared.clone();
        let clients = Arc::new(AtomicUsize::new(0));
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let client = Client(clients.clone());
                if clients.fetch_add(1, Ordering::SeqCst) >= CLIENTS_MAX {
                    continue;
                }
                let shared = hearing.clone();
                let heard = std::thread::Builder::new().name("client".into()).spawn(move || {
                    let _client = client;
                    // Where a client cannot be answered there is nobody to tell.
                    let _ = shared.hear(&stream);
                });
                drop(heard);
            }
        })?;
        Ok(Self { place, shared })
    }

    /// A dataset has been mounted; where `is_all`, this process ends when it is unmounted.
    pub(crate) fn mounted(&self, dataset: &str, at: &Path, is_all: bool) {
        let mount = Mount { dataset: dataset.to_owned(), at: at.to_owned(), is_all };
        self.shared.mounts.lock().unwrap_or_else(PoisonError::into_inner).push(mount);
    }

    /// The process's work has ended: requests are refused from now on, while the rest is written and the pool exported.
    pub(crate) fn ends(&self) {
        self.shared.is_ending.store(true, Ordering::SeqCst);
    }
}

/// One that is counted.
struct Client(Arc<AtomicUsize>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Text gathered up to a limit.
#[derive(Clone, Default)]
struct Gathered(Arc<Mutex<Vec<u8>>>);

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
        let is_there = |mount: &Mount| table.all().any(|(name, at)| name == mount.dataset && at == mount.at);
        let mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        Who {
            pid: std::process::id(),
            pool: self.of.pool.name().to_owned(),
            guid: self.of.guid.0,
            devices: self.of.devices.clone(),
            mounts: mounts
                .iter()
                .filter(|mount| is_there(mount))
                .map(|mount| (mount.dataset.clone(), mount.at.clone()))
                .collect(),
            ends_with_mount: mounts.iter().any(|mount| mount.is_all),
            is_ending: self.is_ending.load(Ordering::SeqCst)
                || (mounts.iter().any(|mount| mount.is_all && !is_there(mount)) && self.is_just_unmounted()),
        }
    }

    /// True for some seconds after the mount has gone. The process ends within them, unless another mount namespace has the mount too.
    fn is_just_unmounted(&self) -> bool {
        let now = self.context.handle().now();
        let mut unmounted = self.unmounted.lock().unwrap_or_else(PoisonError::into_inner);
        now - *unmounted.get_or_insert(now) < UNMOUNTED_TIME_MAX
    }

    fn hear(&self, stream: &UnixStream) -> Result<()> {
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
        if peer != rustix::process::geteuid() && !peer.is_root() {
            bail!("another user");
        }
        let Some(line) = read_line(&mut BufReader::new(stream))? else { return Ok(()) };
        let mut says = Says(stream);
        let request = match asked(&line) {
            Ok(Asked::Who) => return says.say(&Said::Who(self.who())),
            Ok(Asked::Do(_)) if self.is_ending.load(Ordering::SeqCst) => {
                let (pool, pid) = (self.of.pool.name(), std::process::id());
                Err(anyhow!("pool '{pool}' is being exported by process {pid}: ask again when that has ended"))
            }
            Ok(Asked::Do(request)) => Ok(*request),
            Err(error) => Err(error),
        };
        let (out, err) = (Gathered::default(), Gathered::default());
        let context = self.context.served_by(&self.of, Output::to(out.clone(), err.clone()));
        let result = request.and_then(|request| context.handle().block_on(request::serve(&context, request)));
        let result = result.and_then(|outcome| Ok(context.output().flush().map(|()| outcome)?));
        says.text(&out.take())?;
        for line in String::from_utf8_lossy(&err.take()).lines() {
            says.say(&Said::Err(line.chars().take(TEXT_BYTES).collect()))?;
        }
        let status = match result {
            Ok(Outcome::Good) => 0,
            Ok(Outcome::Failed) => FAILED,
            Err(error) => {
                says.say(&Said::Err(request::causes(&error)))?;
                if error.is::<UsageError>() { USAGE } else { FAILED }
            }
        };
        says.say(&Said::Status(status))?;
        if context.is_to_end() {
            signal_hook::low_level::raise(SIGTERM)?;
            // The end of this process is what the client waits for.
            std::thread::sleep(EXPORT_TIME_MAX);
        }
        Ok(())
    }
}

/// A client's question or request.
enum Asked {
    Who,
    Do(Box<Request>),
}

fn asked(line: &[u8]) -> Result<Asked> {
    let version: AskVersion = serde_json::from_slice(line).context("this is no request")?;
    if version.version != VERSION {
        bail!("version {} of requests is not supported; this server speaks version {VERSION}", version.version);
    }
    if version.who {
        return Ok(Asked::Who);
    }
    let ask: Ask = serde_json::from_slice(line).context("this is no request that this server knows")?;
    Ok(Asked::Do(Box::new(ask.request)))
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
            // Not amid a character.
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

/// Keeps the pool from being synced while what is on disk is read.
pub(crate) struct Hold(#[allow(dead_code, reason = "its end is what counts")] oneshot::Sender<()>);

impl Hold {
    /// Waits until no txg is being synced.
    pub(crate) async fn begin(pool: &LivePool) -> Result<Self> {
        let (entered, has_entered) = oneshot::channel();
        let (release, is_released) = oneshot::channel();
        let (this, handle) = (pool.clone(), pool.handle().clone());
        pool.handle().detach(Class::Issue, async move {
            let held = this.change(move |_| {
                Box::pin(async move {
                    let _ = entered.send(());
                    // Released, or whoever held it is gone, or was too slow.
                    let _ = handle.timeout(HOLD_TIME_MAX, is_released).await;
                    Ok(())
                })
            });
            drop(held.await);
        });
        has_entered.await.map_err(|_| anyhow!("the pool '{}' is being closed, or is suspended", pool.name()))?;
        Ok(Self(release))
    }
}
