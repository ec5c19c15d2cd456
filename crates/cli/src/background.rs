//! Commands that go on: in the background, under a supervisor, or at a terminal.
//!
//! # Theory
//!
//! **Need.** A mount or a server outlives the command line that begins it. Whoever begins it wants to go on when it is ready and not
//! before, and to see why it did not begin; whoever ends it wants to know its process; and nothing may end with a terminal.
//!
//! **Shape.** A process of many threads cannot be forked safely, so with `--background` the program starts itself once more:
//! ```text
//! caller ── program ── the same command line, CENOTE_STARTER=1 ──► program: a session of its own
//!             │◄──────── what it says, passed on ──────── stderr ───┤ opens, mounts, listens
//!             │◄──────── "ready" ────────────────────────────────── ┤ from now on what it says goes to the log
//!          status 0
//!             │◄──────── end of file, its exit status ───────────── ┘ where it did not begin
//! ```
//! A supervisor that starts the program itself (systemd, `Type=notify`) names a socket in `NOTIFY_SOCKET` and is told `READY=1` and
//! `STOPPING=1` there.
//!
//! **Invariants.**
//! 1. The caller's status is 0 only when the command is ready; then the file of `--pid-file` has the process's number.
//! 2. A command whose caller was ended meanwhile ends too, in good order.
//! 3. After "ready" nothing of the caller's terminal is held. The working directory stays: devices may be named relative to it.
//!
//! **Rejected.** *To hand down the caller's stderr*: whoever waits for its end, as `ssh` does, would wait for this process. *`fork` and `setsid` before threads begin*: not to be had without unsafe code. *Output to nowhere without `--log`*:
//! that a pool is suspended is said in no other place.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cachefile::CacheFile;
use crate::context::Context;
use crate::outcome::FAILED;

/// Set in the process that goes on.
const STARTED: &str = "CENOTE_STARTER";
/// Said on standard error when it is ready; no message begins like this.
const READY: &[u8] = b"\x01cenote is ready\n";
/// Bytes that are passed on from standard input at most: a key.
const INPUT_BYTES_MAX: u64 = 64 << 10;
/// A log that is longer when a process begins starts anew.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Options of commands that go on until they are ended.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct GoesOn {
    /// Go on in the background: return when it is ready, and with the error when it does not begin.
    #[arg(long)]
    pub(crate) background: bool,
    /// Write the process's number to this file while it runs.
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Append messages to this file once it is ready; in the background by default to a file beside the cache file.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

/// Whether this process is the one that goes on.
fn is_started() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// Begins a command line in the background, which reads a key from standard input if `has_input`; does nothing in the process that is
/// begun. The status is that of the caller's command.
pub(crate) fn start(argv: &[OsString], options: &GoesOn, has_input: bool) -> Option<ExitCode> {
    if !options.background || is_started() {
        return None;
    }
    Some(begin(argv, has_input).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "cannot go on in the background: {error:#}");
        ExitCode::from(FAILED)
    }))
}

fn begin(argv: &[OsString], has_input: bool) -> Result<ExitCode> {
    let program = std::env::current_exe().context("this program cannot be found")?;
    let mut command = Command::new(program);
    if let Some((name, arguments)) = argv.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env(STARTED, "1").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.stdin(if has_input { Stdio::piped() } else { Stdio::null() }).spawn()?;
    if let Some(mut to) = child.stdin.take() {
        let mut input = Vec::new();
        std::io::stdin().lock().take(INPUT_BYTES_MAX).read_to_end(&mut input).context("standard input")?;
        // It may have ended already, for another reason, which it says.
        let _ = to.write_all(&input);
    }
    let mut said = BufReader::new(child.stderr.take().context("no pipe")?);
    let mut line = Vec::new();
    while said.read_until(b'\n', &mut line)? > 0 {
        if line == READY {
            return Ok(ExitCode::SUCCESS);
        }
        std::io::stderr().write_all(&line)?;
        line.clear();
    }
    let status = child.wait()?;
    let code = status.code().or_else(|| Some(128 + status.signal()?)).and_then(|code| u8::try_from(code).ok());
    // Without having said that it is ready it has not begun, whatever its status.
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(FAILED)))
}

/// What others are told of a command that goes on. Its end is the end of the pid file.
pub(crate) struct Going {
    options: GoesOn,
    name: String,
    pid_file: Option<PidFile>,
}

impl Going {
    /// At the begin, before anything is opened. `name` is what it is about, for the name of its log.
    pub(crate) fn begin(options: &GoesOn, name: &str) -> Result<Self> {
        if options.background && is_started() {
            // Fails where this process leads a group already, which then is no terminal's either.
            let _ = rustix::process::setsid();
        }
        let pid_file = options.pid_file.as_deref().map(PidFile::claim).transpose()?;
        Ok(Self { options: options.clone(), name: name.replace(['/', '@'], "-"), pid_file })
    }

    /// It is ready: who began it goes on, and messages go to the log.
    ///
    /// # Errors
    /// Who began it has gone, or the log or the pid file cannot be written: the command is to end.
    pub(crate) fn ready(&self, context: &Context) -> Result<()> {
        if let Some(file) = &self.pid_file {
            file.write()?;
        }
        notify("READY=1");
        let in_background = self.options.background && is_started();
        let log = match &self.options.log {
            Some(path) => Some((path.clone(), open_log(path)?)),
            None if in_background => {
                let path = usual_log(&self.name)?;
                let file = open_log(&path)?;
                Some((path, file))
            }
            None => None,
        };
        if let Some((path, _)) = log.as_ref().filter(|_| in_background) {
            let id = std::process::id();
            context.err(format!("it goes on as process {id}; its messages go to {}", path.display()));
        }
        if in_background {
            let mut stderr = std::io::stderr().lock();
            stderr.write_all(READY).context("the command that began this has ended")?;
        }
        if let Some((_, file)) = log {
            context.output().redirect_err(file.try_clone()?);
            // What says where an error of ours is goes there too.
            std::panic::set_hook(Box::new(move |panic| drop(writeln!(&file, "{panic}"))));
        }
        Ok(())
    }

    /// Its end has begun.
    pub(crate) fn ends(&self) {
        notify("STOPPING=1");
    }
}

/// Tells a supervisor, if there is one.
fn notify(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // It has asked; where it does not listen there is nobody to tell.
    let _ = notify_at(&socket, what);
}

fn notify_at(socket: &std::ffi::OsStr, what: &str) -> std::io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address).map(drop)
}

fn usual_log(name: &str) -> Result<PathBuf> {
    let dir = CacheFile::of_user()?.dir().join("servers");
    if !dir.exists() {
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        builder.create(&dir).with_context(|| dir.display().to_string())?;
    }
    Ok(dir.join(format!("{name}.log")))
}

fn open_log(path: &Path) -> Result<File> {
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    let file = open.with_context(|| format!("cannot write the log {}", path.display()))?;
    if file.metadata().is_ok_and(|found| found.is_file() && found.len() > LOG_BYTES_MAX) {
        let _ = file.set_len(0);
    }
    Ok(file)
}

/// A file with this process's number, which goes when the process ends in good order.
struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Makes it, empty. One that an ended process left is replaced.
    fn claim(path: &Path) -> Result<Self> {
        let shown = || format!("cannot make the pid file {}", path.display());
        if let Ok(text) = fs::read_to_string(path) {
            match text.trim().parse::<u32>() {
                Ok(pid) if Path::new(&format!("/proc/{pid}")).exists() && pid != std::process::id() => {
                    bail!("{}: it has the number of process {pid}, which runs", shown());
                }
                Ok(_) => fs::remove_file(path).with_context(shown)?,
                Err(_) if text.is_empty() => fs::remove_file(path).with_context(shown)?,
                Err(_) => bail!("{}: something else is there", shown()),
            }
        }
        OpenOptions::new().write(true).create_new(true).open(path).with_context(shown)?;
        let path = std::path::absolute(path).with_context(shown)?;
        Ok(Self { path })
    }

    fn write(&self) -> Result<()> {
        let text = format!("{}\n", std::process::id());
        fs::write(&self.path, text).with_context(|| format!("cannot write the pid file {}", self.path.display()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_replaces_what_an_ended_process_left_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        for left in ["", "4194304999\n"] {
            fs::write(&path, left).unwrap();
            let file = PidFile::claim(&path).unwrap();
            file.write().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
            drop(file);
            assert!(!path.exists());
        }
        for kept in ["1\n", "precious"] {
            fs::write(&path, kept).unwrap();
            assert!(PidFile::claim(&path).is_err(), "{kept}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
        }
    }

    #[test]
    fn a_supervisor_is_told_at_a_path_and_at_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("cenote-test-{}", std::process::id());
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                OsString::from(format!("@{name}")),
            ),
        ];
        for (socket, at) in sockets {
            notify_at(&at, "READY=1").unwrap();
            let mut said = [0; 32];
            let len = socket.recv(&mut said).unwrap();
            assert_eq!(&said[..len], b"READY=1");
        }
    }
}
