//! Commands that keep running: in the background, under a supervisor, or at a terminal.
//!
//! # Theory
//!
//! **Need.** A mount or a server outlives the command line that begins it. The person or script that begins it wants to continue when it is
//! ready, not before, and to see the reason if it could not begin. To end it they need its process number. And no terminal's end may end it.
//!
//! **Shape.** A process with many threads cannot be forked safely, so with `--background` the program starts itself again:
//! ```text
//! caller ── program ── the same command line, CENOTE_STARTER=1 ──► program: a session of its own
//!             │◄──────── its messages, passed on ─────── stderr ───┤ opens, mounts, listens
//!             │◄──────── "ready" ────────────────────────────────── ┤ from now on its messages go to the log
//!          status 0
//!             │◄──────── end of file, its exit status ───────────── ┘ if it could not begin
//! ```
//! A supervisor that starts the program itself (systemd, `Type=notify`) gives a socket in `NOTIFY_SOCKET`, to which the program sends `READY=1`
//! and `STOPPING=1`.
//!
//! **Invariants.**
//! 1. The caller's status is 0 only if the command is ready; then the file of `--pid-file` has the process's number.
//! 2. A command whose caller has ended meanwhile ends too, in good order.
//! 3. After "ready" it holds nothing of the caller's terminal. It keeps the working directory: devices may be named relative to it.
//!
//! **Rejected.** *Passing on the caller's stderr*: `ssh`, which waits for its end, would wait for this process. *`fork` and `setsid` before
//! threads begin*: they need unsafe code. *No output without `--log`*: the suspension of a pool is reported in no other place.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cenote_host::{CacheFile, make_own_folder};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::Console;
use crate::error::{Context as _, Result, refused};

/// The exit status of a command that did not begin.
const FAILED: u8 = 1;
/// Set in the process that keeps running.
const STARTED: &str = "CENOTE_STARTER";
/// Printed on standard error when the command is ready; no message begins like this.
const READY: &[u8] = b"\x01cenote is ready\n";
/// The maximum number of bytes passed on from standard input: a key.
const INPUT_BYTES_MAX: u64 = 64 << 10;
/// A log next to the cache file that is longer than this when a process begins is truncated. A log named by `--log` is the user's.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of bytes read from a pid file.
const PID_BYTES_MAX: u64 = 64;
/// Characters of a dataset's name in the name of its log: a file's name has at most 255 bytes, and so has a dataset's.
const LOG_NAME_CHARS_MAX: usize = 200;

/// Options of a command that keeps running.
#[derive(Clone, Debug, Default)]
pub struct GoingOptions {
    /// In the background: the caller returns when the command is ready, or with the error if it could not begin.
    pub background: bool,
    /// The file with the process's number while it runs.
    pub pid_file: Option<PathBuf>,
    /// The file to which messages are appended once it is ready; in the background, one next to the cache file by default.
    pub log: Option<PathBuf>,
}

impl GoingOptions {
    /// Tells a person how to unmount what is mounted at a folder, where there is one, which ends the command.
    pub(crate) fn unmount(&self, at: Option<&Path>) -> String {
        match at.filter(|_| self.background) {
            Some(at) => format!("'cenote unmount {}' to unmount", at.display()),
            None => self.end("unmount"),
        }
    }

    /// Tells a person how to `verb`, which ends the command: by an interrupt, or in the background by a signal to the process.
    pub fn end(&self, verb: &str) -> String {
        match self.background {
            false => format!("interrupt to {verb}"),
            true => format!("'kill {}' to {verb}", std::process::id()),
        }
    }
}

/// True in the process that keeps running.
fn is_started() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// Begins a command line in the background, which reads a key from standard input if `has_input`. Does nothing in the process that this starts.
/// The status is that of the caller's command.
pub fn start(argv: &[OsString], background: bool, has_input: bool) -> Option<ExitCode> {
    if !background || is_started() {
        return None;
    }
    Some(begin(argv, has_input).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "cannot go on in the background: {}", error.chain());
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
        // It may have ended already, for another reason, which it reports.
        let _ = to.write_all(&input);
    }
    let mut said = BufReader::new(child.stderr.take().ok_or_else(|| refused("no pipe"))?);
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
    // If it did not report that it is ready, it has not begun, even if its status is 0.
    Ok(ExitCode::from(code.filter(|code| *code != 0).unwrap_or(FAILED)))
}

/// A command that keeps running: informs its caller, its supervisor and the pid file. Dropping this removes the pid file.
pub struct Going {
    options: GoingOptions,
    name: String,
    pid_file: Option<PidFile>,
}

impl Going {
    /// Called before anything is opened. `name` is the dataset's, for the name of the log.
    ///
    /// # Errors
    /// The pid file is another process's, or cannot be made.
    pub fn begin(options: GoingOptions, name: &str) -> Result<Self> {
        if options.background && is_started() {
            // Fails if this process already leads a group, which then is not a terminal's either.
            let _ = rustix::process::setsid();
        }
        let pid_file = options.pid_file.as_deref().map(PidFile::claim).transpose()?;
        let name = name.replace(['/', '@'], "-").chars().take(LOG_NAME_CHARS_MAX).collect();
        Ok(Self { options, name, pid_file })
    }

    /// Its options.
    pub const fn options(&self) -> &GoingOptions {
        &self.options
    }

    /// Reports that it is ready: its caller returns, its supervisor is told, and messages go to the log.
    ///
    /// # Errors
    /// The caller has ended, or the log or the pid file cannot be written: the command must end.
    pub fn ready(&self, console: &dyn Console) -> Result<()> {
        if let Some(file) = &self.pid_file {
            file.write()?;
        }
        let in_background = self.options.background && is_started();
        let log = match &self.options.log {
            Some(path) => Some((path.clone(), open_log(path)?)),
            None if in_background => {
                let path = usual_log(&self.name)?;
                let file = open_log(&path)?;
                if file.metadata()?.len() > LOG_BYTES_MAX {
                    file.set_len(0)?;
                }
                Some((path, file))
            }
            None => None,
        };
        if let Some((path, _)) = log.as_ref().filter(|_| in_background) {
            let id = std::process::id();
            console.note(&format!("it goes on as process {id}; its messages go to {}", path.display()));
        }
        if in_background {
            let mut stderr = std::io::stderr().lock();
            stderr.write_all(READY).context("the command that began this has ended")?;
        }
        if let Some((_, file)) = log {
            console.redirect(file.try_clone()?);
            // The place of a panic goes there too.
            std::panic::set_hook(Box::new(move |panic| drop(writeln!(&file, "{panic}"))));
        }
        notify("READY=1");
        Ok(())
    }

    /// Reports that another process has taken over the work: the caller returns, if this was begun in the background.
    ///
    /// # Errors
    /// The caller has ended.
    pub(crate) fn taken_over(&self) -> Result<()> {
        if self.options.background && is_started() {
            std::io::stderr().lock().write_all(READY).context("the command that began this has ended")?;
        }
        Ok(())
    }

    /// Reports that its end has begun.
    pub fn ends(&self) {
        notify("STOPPING=1");
    }
}

/// Informs a supervisor, if there is one.
fn notify(what: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // If the supervisor does not listen, there is no one to inform.
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
    make_own_folder(&dir)?;
    Ok(dir.join(format!("{name}.log")))
}

fn open_log(path: &Path) -> Result<File> {
    let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    open.with_context(|| format!("cannot write the log {}", path.display()))
}

/// A file with this process's number, locked as long as the process runs, and removed when the process ends in good order.
struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Creates it, empty. A file left by an ended process is taken over.
    fn claim(path: &Path) -> Result<Self> {
        let shown = || format!("cannot make the pid file {}", path.display());
        let path = std::path::absolute(path).with_context(shown)?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path);
        let file = file.with_context(shown)?;
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // An ending process may have removed it meanwhile.
        let is_there = fs::symlink_metadata(&path).ok().map(identity) == Some(identity(file.metadata()?));
        if !is_locked || !is_there {
            return Err(refused(format!("{}: another process that begins or ends has it", shown())));
        }
        let mut text = String::new();
        match (&file).take(PID_BYTES_MAX).read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok()) {
            Some(pid) if pid != std::process::id() && may_have_written(pid, &file) => {
                return Err(refused(format!(
                    "{}: it has the number of process {pid}, which runs; remove the file if it is not that process's",
                    shown()
                )));
            }
            None if file.metadata()?.len() > 0 => {
                return Err(refused(format!("{}: something else is there", shown())));
            }
            Some(_) | None => file.set_len(0).with_context(shown)?,
        }
        Ok(Self { path, file })
    }

    fn write(&self) -> Result<()> {
        let text = format!("{}\n", std::process::id());
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.with_context(|| format!("cannot write the pid file {}", self.path.display()))
    }
}

/// True if the process of an unlocked pid file may have written the file: it is running, and began before the file was written. A number may be
/// reused, above all after a reboot.
fn may_have_written(pid: u32, file: &File) -> bool {
    let read = |path: String| fs::read_to_string(path).ok();
    let Some(stat) = read(format!("/proc/{pid}/stat")) else { return false };
    // After the name, which may contain anything: the state, and as the twentieth word the start in ticks since boot.
    let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    if matches!(words.first(), Some(&("Z" | "X"))) {
        return false;
    }
    let began = || {
        let ticks: u64 = words.get(19)?.parse().ok()?;
        let system: u64 =
            read("/proc/stat".into())?.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
        Some(system + ticks / rustix::param::clock_ticks_per_second().max(1))
    };
    let written = file.metadata().ok().map(|found| u64::try_from(found.mtime()).unwrap_or(0));
    match (began(), written) {
        // Both are rounded.
        (Some(began), Some(written)) => began <= written + 1,
        _ => true,
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
            assert!(PidFile::claim(&path).is_err(), "it is taken");
            drop(file);
            assert!(!path.exists());
        }
        // A process that is about to begin has written nothing yet.
        let file = PidFile::claim(&path).unwrap();
        assert!(PidFile::claim(&path).err().unwrap().to_string().contains("begins or ends"));
        drop(file);
        for kept in ["1\n", "precious"] {
            fs::write(&path, kept).unwrap();
            assert!(PidFile::claim(&path).is_err(), "{kept}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
        }
    }

    #[test]
    fn a_pid_file_of_a_number_that_was_given_out_again_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let left = || {
            fs::write(&path, format!("{}\n", child.id())).unwrap();
            File::options().write(true).open(&path).unwrap()
        };
        left();
        let said = PidFile::claim(&path).err().unwrap().to_string();
        assert!(said.contains("remove the file"), "{said}");
        // It was written long before the process began.
        let hour = std::time::Duration::from_secs(3600);
        left().set_modified(std::time::SystemTime::now() - hour).unwrap();
        drop(PidFile::claim(&path).unwrap());
        // The process was killed, and its status was not yet collected.
        left();
        Command::new("kill").args(["-KILL", &child.id().to_string()]).status().unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        while !state().contains(") Z") {
            std::thread::yield_now();
        }
        drop(PidFile::claim(&path).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn a_log_that_is_the_user_s_is_appended_to_however_long_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
        open_log(&path).unwrap().write_all(b"y").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), (2 << 20) + 1);
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
