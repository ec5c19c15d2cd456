//! A command that another process carries out.

use std::collections::BTreeSet;
use std::io::{self, BufReader, ErrorKind, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_host::{CacheFile, Mounts};
use serde::Serialize;

use super::passing::send_with;
use super::place::connect;
use super::{Ask, Said, VERSION, Who, read_line, usual_socket};
use crate::error::{Context as _, Result, ServerError};

/// The time in which a server must say who it is, for which it need not wait.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The socket of the server that has this pool; `None` if there is no server, or it died.
pub fn find(guid: Guid) -> Option<PathBuf> {
    let path = match std::env::var_os("CENOTE_CONTROL").filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => usual_socket(guid).ok()?,
    };
    UnixStream::connect(&path).is_ok().then_some(path)
}

/// The socket of the only server, if there is just one, for any pool.
pub(crate) fn only() -> Option<PathBuf> {
    let mut alive = all();
    alive.pop().filter(|_| alive.is_empty())
}

/// The sockets of all running servers.
pub fn all() -> Vec<PathBuf> {
    let named = std::env::var_os("CENOTE_CONTROL").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut paths = match (named, CacheFile::of_user()) {
        (Some(path), _) => vec![path],
        (None, Ok(cache)) => {
            let entries = std::fs::read_dir(cache.dir().join("servers")).into_iter().flatten();
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
        }
        (None, Err(_)) => Vec::new(),
    };
    paths.retain(|path| UnixStream::connect(path).is_ok());
    paths
}

/// All servers that say who they are, with their sockets.
pub fn servers() -> Vec<(PathBuf, Who)> {
    all().into_iter().filter_map(|socket| who(&socket).ok().map(|who| (socket, who))).collect()
}

/// The mounts, with the present names of datasets.
pub fn mounts() -> Mounts {
    let mounts = Mounts::read();
    // Without mounts of ours, no server is asked.
    if mounts.ours().next().is_none() {
        return mounts;
    }
    servers().iter().fold(mounts, |mounts, (_, who)| mounts.renamed(&who.names()))
}

/// Sockets of servers that did not answer in time, such as stopped ones: a command waits for each only once.
static SILENT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Asks a server who it is.
///
/// # Errors
/// It is gone, is another user's, or does not answer within [`ANSWER_TIME_MAX`], now or before.
pub fn who(socket: &Path) -> Result<Who> {
    let silent = || SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    if silent().contains(socket) {
        return Err(ServerError::Silent(socket.to_owned()));
    }
    let is_late = |error: &ServerError| {
        matches!(error.io().map(io::Error::kind), Some(ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    ask(socket).inspect_err(|error| {
        if is_late(error) {
            silent().insert(socket.to_owned());
        }
    })
}

fn ask(socket: &Path) -> Result<Who> {
    let at = || format!("the server at {}", socket.display());
    let mut stream = connect(socket).with_context(at)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    let mut line = serde_json::to_vec(&serde_json::json!({ "version": VERSION, "who": true }))?;
    line.push(b'\n');
    stream.write_all(&line).with_context(at)?;
    let answer = read_line(&mut BufReader::new(stream)).with_context(at)?;
    match serde_json::from_slice(&answer.unwrap_or_default()).with_context(at)? {
        Said::Who(who) => Ok(who),
        _ => Err(ServerError::Protocol(format!("{} does not say who it is", at()))),
    }
}

/// Asks a server to write everything that it has in memory.
///
/// # Errors
/// It is gone, does not know the question, or its pool is suspended.
pub fn sync(socket: &Path) -> Result<()> {
    let at = || format!("the server at {}", socket.display());
    let mut stream = connect(socket).with_context(at)?;
    let mut line = serde_json::to_vec(&serde_json::json!({ "version": VERSION, "sync": true }))?;
    line.push(b'\n');
    stream.write_all(&line).with_context(at)?;
    let answer = read_line(&mut BufReader::new(stream)).with_context(at)?;
    match serde_json::from_slice(&answer.unwrap_or_default()).with_context(at)? {
        Said::Status(0) => Ok(()),
        Said::Err(why) => Err(ServerError::Refused(why)),
        _ => Err(ServerError::Protocol(format!("{} does not say that it has written all", at()))),
    }
}

/// Shows a server's answer. The answer comes from another process: names in it are as in the pool.
pub trait Answer {
    /// A part of the output.
    fn out(&self, bytes: &[u8]) -> io::Result<()>;

    /// A line about an error.
    fn err(&self, line: &str);

    /// Flushes the output.
    fn flush(&self) -> io::Result<()>;
}

/// Asks a server to carry out a request, and shows its answer by `answer`. Returns the exit status. `input` is for the server to read.
///
/// # Errors
/// It is gone, or does not first confirm that it is running: otherwise a command would wait for as long as a server is stopped.
pub fn send<R: Serialize>(
    socket: &Path,
    request: &R,
    input: Option<BorrowedFd<'_>>,
    answer: &dyn Answer,
) -> Result<u8> {
    let at = || format!("the server at {}", socket.display());
    who(socket)?;
    let mut stream = connect(socket).with_context(at)?;
    let mut line = serde_json::to_vec(&Ask { version: VERSION, request })?;
    line.push(b'\n');
    match input {
        Some(input) => send_with(&stream, &line, input).with_context(at)?,
        None => stream.write_all(&line).with_context(at)?,
    }
    let mut answers = BufReader::new(stream);
    let mut status = None;
    while let Some(line) = read_line(&mut answers).with_context(at)? {
        match serde_json::from_slice(&line).with_context(at)? {
            Said::Out(text) => answer.out(text.as_bytes())?,
            Said::OutBytes(bytes) => answer.out(&bytes)?,
            Said::Err(text) => answer.err(&text),
            Said::Who(_) | Said::View(_) | Said::Whole(_) => {}
            // The end of the connection follows.
            Said::Status(said) => status = Some(said),
        }
    }
    answer.flush()?;
    status
        .ok_or_else(|| ServerError::Protocol(format!("{} went before it had answered; what it did is not known", at())))
}
