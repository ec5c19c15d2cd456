//! A view of a server's pool: another process reads the pool as of a txg.
//!
//! The client opens the devices itself, read-only. While the connection lasts, the server prevents the blocks of that txg from being reused, and
//! it sends the txg's root, since rings of uberblocks turn fast. At the end the client asks if everything was kept: a server with many changes
//! gives up a txg that would take too much of its free space. Before that it names the blocks that it could not read: the server looks at them
//! itself, mends those that it can, and has the others in the pool's error log. An older server answers that line as it answers the question.

use std::io::{BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::uberblock::Uberblock;
use cenote_zio::{Bookmark, DataError};
use serde::Deserialize;

use super::place::connect;
use super::{Said, VERSION, read_line};
use crate::error::{Context as _, Result, ServerError};

/// Blocks that one line names.
const DAMAGED_AT_ONCE: usize = 64;

/// The line of a client that could not read some blocks.
#[derive(Debug, Default, Deserialize)]
struct Told {
    /// Objset, object, level, block and birth of each.
    #[serde(default)]
    damaged: Vec<[u64; 5]>,
}

/// The blocks that a client names in its line.
pub(crate) fn damaged_in(line: &[u8]) -> Vec<DataError> {
    let told: Told = serde_json::from_slice(line).unwrap_or_default();
    let error = |[objset, object, level, block, birth]: [u64; 5]| {
        let level = i8::try_from(level).ok()?;
        let bookmark = Bookmark { objset: ObjsetId(objset), object: ObjectId(object), level, block: BlockId(block) };
        Some(DataError { bookmark, birth: Txg(birth) })
    };
    told.damaged.into_iter().take(DAMAGED_AT_ONCE).filter_map(error).collect()
}

/// The line that asks if everything was kept so far.
const IS_WHOLE: &[u8] = b"{\"is_whole\": true}\n";

/// A txg of a server's pool, whose blocks are kept while this exists.
pub(crate) struct PinnedTxg {
    answers: BufReader<UnixStream>,
    root: Uberblock,
}

impl PinnedTxg {
    /// Asks a server to write everything in memory, and to keep the state that is then on disk.
    ///
    /// # Errors
    /// It is gone, does not know the question, or its pool is suspended.
    pub(crate) fn ask(socket: &Path) -> Result<Self> {
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
    pub(crate) const fn root(&self) -> &Uberblock {
        &self.root
    }

    /// Tells of blocks that could not be read. A server that is gone hears nothing.
    pub(crate) fn tell_damage(&mut self, damaged: &[DataError]) {
        for some in damaged.chunks(DAMAGED_AT_ONCE) {
            let named = some.iter().filter_map(|error| {
                let Bookmark { objset, object, level, block } = error.bookmark;
                Some([objset.0, object.0, u64::try_from(level).ok()?, block.0, error.birth.0])
            });
            let mut line = serde_json::json!({ "damaged": named.collect::<Vec<_>>() }).to_string();
            line.push('\n');
            if self.answers.get_mut().write_all(line.as_bytes()).is_err() {
                return;
            }
            if !matches!(read_line(&mut self.answers), Ok(Some(_))) {
                return;
            }
        }
    }

    /// True if everything was kept so far; `None` if the server is gone, since only it could tell.
    pub(crate) fn is_whole(&mut self) -> Option<bool> {
        self.answers.get_mut().write_all(IS_WHOLE).ok()?;
        match serde_json::from_slice(&read_line(&mut self.answers).ok()??).ok()? {
            Said::Whole(is_whole) => Some(is_whole),
            _ => None,
        }
    }
}
