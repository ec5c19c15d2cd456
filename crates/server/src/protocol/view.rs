//! A pool that a server has, read by another process as of a txg.
//!
//! The client opens the devices itself, read-only. The server keeps the blocks of that txg from being used again for as long as the
//! connection lasts, and tells where the txg's root is, since rings of uberblocks turn fast. The client asks at the end whether all was
//! kept: a server that changes much gives up what would take too much of its free space.

use std::io::{BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use cenote_format::uberblock::Uberblock;

use super::place::connect;
use super::{Said, VERSION, read_line};
use crate::error::{Context as _, Result, ServerError};

/// The line that asks whether everything was kept until now.
const IS_WHOLE: &[u8] = b"{\"is_whole\": true}\n";

/// A txg of a server's pool, whose blocks are kept while this is there.
pub struct PinnedTxg {
    answers: BufReader<UnixStream>,
    root: Uberblock,
}

impl PinnedTxg {
    /// Has a server write what it has in memory, and keep what is then on disk.
    ///
    /// # Errors
    /// It has gone, does not know the question, or its pool is suspended.
    pub fn ask(socket: &Path) -> Result<Self> {
        let at = || format!("the server at {}", socket.display());
        let mut stream = connect(socket).with_context(at)?;
        let mut line = serde_json::to_vec(&serde_json::json!({ "version": VERSION, "view": true }))?;
        line.push(b'\n');
        stream.write_all(&line).with_context(at)?;
        let mut answers = BufReader::new(stream);
        let answer = read_line(&mut answers).with_context(at)?;
        match serde_json::from_slice(&answer.unwrap_or_default()).with_context(at)? {
            Said::View(root) => Ok(Self { answers, root: Uberblock::parse(&root)? }),
            Said::Err(why) => Err(ServerError::Refused(why)),
            _ => Err(ServerError::Protocol(format!("{} does not keep a txg", at()))),
        }
    }

    /// The root.
    pub const fn root(&self) -> &Uberblock {
        &self.root
    }

    /// True if everything was kept until now; none if the server has gone, which alone could say so.
    pub fn is_whole(&mut self) -> Option<bool> {
        self.answers.get_mut().write_all(IS_WHOLE).ok()?;
        match serde_json::from_slice(&read_line(&mut self.answers).ok()??).ok()? {
            Said::Whole(is_whole) => Some(is_whole),
            _ => None,
        }
    }
}
