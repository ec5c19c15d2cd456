//! Commands for a pool that a server has: requested over its socket, carried out in its process.
//!
//! # Theory
//!
//! **Need.** While `cenote serve --rw` or `mount --rw` has a pool, no other process can open it for writing. Yet users create datasets in it,
//! set properties, and look at data that only the server has (the history of its txgs). They should not have to know that there is a server: the
//! command line is the same, and so are output and exit status.
//!
//! **Shape.**
//! ```text
//! command ─ finds the pool's devices ─ is there a socket of this guid? ── no ─► opens the pool itself
//!                                              │ yes
//!                                              └─► sends the whole Request, prints the answer
//! server ── a thread for each connection ─ who is it? ─ Request ─► the same code over its Pool ─► text, status
//! ```
//! The socket is next to the cache file, as `servers/GUID.sock`, or at the path that `serve --control` gives.
//!
//! **Protocol**, version 1: lines of JSON. The client sends one line. To `{"version": 1, "who": true}` the server answers with a line [`Who`],
//! even while the pool is being exported. To `{"version": 1, "request": {…}}` it answers with lines `{"out": TEXT}`, `{"out_bytes": [BYTE, …]}`
//! (if it is not UTF-8) and `{"err": LINE}` and ends with `{"status": N}`. Then it closes the connection; after `zpool export` only when the
//! pool is exported. To `{"version": 1, "view": true}` it answers with `{"view": [BYTE, …]}`, the root of a txg that it keeps until the client
//! disconnects ([`view`]), and then to each line with `{"whole": BOOL}`.
//!
//! A command that reads standard input (`zfs receive`) passes it to the server: the descriptor is sent with the request's line, and the server
//! reads it until it or the client ends ([`passing`]). `zfs send` reads its data itself, by a view.
//!
//! **Trust.** Only the user who runs the server, and root, may ask: the folder and the socket are accessible to that user only, and the server
//! asks the kernel for the user at the other end. The client does the same: it sends nothing to a listener of another user, nor in a folder in
//! which others could have put one ([`place`]); and it prints no control characters of an answer on a terminal.
//!
//! **Bounds.** A request has a megabyte at most, an answer 64. Eight requests are carried out at a time, 32 with an input; others wait. 32
//! clients have views. A client that is silent for half a minute is disconnected.
//!
//! **Its end.** A server is *ending* from the end of its work until the pool is exported. Then it refuses requests; clients that ask who has the
//! pool wait for its end, and then use the pool themselves. A server that ends with its mounts is ending when the last of them has left the
//! system's table of mounts, which is before `umount` returns; it reads the table when a client asks. If that mount has not ended some seconds
//! later, another mount namespace has it too, and the server continues. A process that has several pools is a server for each, with a socket
//! each, and each ends independently ([`crate::Pools`]).
//!
//! **Mounts.** A request to mount a dataset for writing is complete when the dataset is mounted, and then frees its place among the requests.
//! From then on the mount is the server's, and does not depend on the client. A client that waits until the mount has ended watches the system's
//! table of mounts.
//!
//! **Reading** sees the pool as of its last txg, with all earlier changes, and does not prevent writing (`cenote_spa::View`). Changes are made
//! in a txg's sync (`cenote_spa::Pool`).
//!
//! **Rejected.** *A protocol of verbs of its own*: every command would be written twice. *Passing text on at once*: a client that does not read
//! could delay the sync.

pub mod bytes;
mod client;
mod passing;
pub(crate) mod place;
mod view;

use std::io::{BufRead, Read as _};
use std::path::PathBuf;

use cenote_format::ids::Guid;
use cenote_host::{CacheFile, Renamed};
use serde::{Deserialize, Serialize};

use crate::error::{Result, ServerError};

pub(crate) use client::only;
pub use client::{Answer, all, find, mounts, send, servers, sync, who};
pub(crate) use passing::Receiving;
pub use passing::{Input, Passed};
pub(crate) use view::{PinnedTxg, damaged_in};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a request, and of a line of an answer, at most.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes of an answer's text at most.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ask<R> {
    pub(crate) version: u32,
    pub(crate) request: R,
}

/// The part of it that every version has, and the questions that are not requests: for [`Who`], for a view, and to write everything in memory.
#[derive(Debug, Deserialize)]
pub(crate) struct AskVersion {
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) who: bool,
    #[serde(default)]
    pub(crate) view: bool,
    #[serde(default)]
    pub(crate) sync: bool,
}

/// A process that has a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// Its process number.
    pub pid: u32,
    /// The pool's name.
    pub pool: String,
    /// The pool's guid.
    pub guid: u64,
    /// The devices from which the pool was opened.
    #[serde(with = "bytes::list")]
    pub devices: Vec<PathBuf>,
    /// Its mounted datasets and their mount points.
    #[serde(with = "bytes::named")]
    pub mounts: Vec<(String, PathBuf)>,
    /// Mounts of renamed datasets: the name in the system's table of mounts, and the mount point.
    #[serde(default)]
    pub renamed: Vec<(String, PathBuf)>,
    /// It ends when the last of its mounts is unmounted.
    #[serde(rename = "ends_with_mount")]
    pub ends_with_mounts: bool,
    /// Its work has ended: it writes the rest and exports the pool.
    pub is_ending: bool,
}

impl Who {
    /// The names of its mounts that differ from those in the system's table.
    pub(crate) fn names(&self) -> Vec<Renamed> {
        let of = |(before, at): &(String, PathBuf)| {
            let now = self.mounts.iter().find(|(_, place)| place == at).map(|(now, _)| now.clone())?;
            Some(Renamed { before: before.clone(), now, at: at.clone() })
        };
        self.renamed.iter().filter_map(of).collect()
    }

    /// True if its pool has this name or guid.
    pub fn is_called(&self, name: &str) -> bool {
        self.pool == name || name.parse() == Ok(self.guid)
    }
}

/// A message of a server, one per line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    Out(String),
    OutBytes(Vec<u8>),
    Err(String),
    Who(Who),
    /// The root of the txg that is kept, as stored on disk.
    View(Vec<u8>),
    /// True if all of it was kept so far.
    Whole(bool),
    Status(u8),
}

/// The pool belongs to a server, which takes commands for it at this socket.
#[derive(Debug)]
pub struct Owned {
    /// The pool's name; empty if it is not known.
    pub pool: String,
    /// The server's socket.
    pub socket: PathBuf,
}

impl std::fmt::Display for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pool, socket) = (&self.pool, self.socket.display());
        write!(f, "pool '{pool}' is served by a process that takes commands for it alone, at {socket}")
    }
}

impl std::error::Error for Owned {}

/// The default path of a pool's socket.
///
/// # Errors
/// This user has no folder for it.
pub(crate) fn usual_socket(guid: Guid) -> Result<PathBuf> {
    Ok(CacheFile::of_user()?.dir().join("servers").join(format!("{:016x}.sock", guid.0)))
}

/// Reads a line; `None` at the end of the input.
pub(crate) fn read_line(from: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
    if line.len() > LINE_BYTES_MAX {
        return Err(ServerError::Protocol(format!("a line of more than {LINE_BYTES_MAX} bytes")));
    }
    Ok((!line.is_empty()).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_far_as_they_are_bounded() {
        let mut text = &b"one\ntwo"[..];
        assert_eq!(read_line(&mut text).unwrap(), Some(b"one\n".to_vec()));
        assert_eq!(read_line(&mut text).unwrap(), Some(b"two".to_vec()));
        assert_eq!(read_line(&mut text).unwrap(), None);
        let long = vec![b'x'; LINE_BYTES_MAX + 10];
        assert!(read_line(&mut &long[..]).is_err());
    }

    #[test]
    fn what_is_said_has_its_form() {
        let line = serde_json::to_string(&Said::Out("a\n".into())).unwrap();
        assert_eq!(line, r#"{"out":"a\n"}"#);
        assert_eq!(serde_json::to_string(&Said::Status(2)).unwrap(), r#"{"status":2}"#);
        for wrong in ["", "{}", "[]", r#"{"status":300}"#, r#"{"version":1}"#] {
            assert!(serde_json::from_str::<Said>(wrong).is_err());
            assert!(serde_json::from_str::<Ask<serde_json::Value>>(wrong).is_err());
        }
    }
}
