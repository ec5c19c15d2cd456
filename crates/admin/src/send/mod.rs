//! Sending snapshots as streams and packages: what is sent for which options, from what, and what is said of it.
//!
//! ```text
//!   SendOptions ─┬─ one      a snapshot, from a snapshot or bookmark, redacted        -i --redact -p -h -b
//!                ├─ many     a tree, or all snapshots between two                     -R -I
//!                └─ resume   what a receiver has not got yet, or has got in part      -t -S
//!                       └─► Sending: one stream at a time ─► cenote_send::sender
//! ```
//! **Life of one.** [`SendOptions::check`] refuses options that do not go together, before any pool is opened. [`SendOptions::pool`] names the
//! pool, of which the caller opens a view. [`Sending::run`] finds the snapshots, tells estimates, and writes the streams.
//!
//! **Invariants.** 1. Nothing is written to the pool, so it is read as others have it open: by the view of a txg. 2. The bytes of streams go to
//! [`SendCaller::out`] alone, and words to [`SendCaller::told`].

mod error;
mod many;
mod one;
mod options;
mod resume;
mod words;

use std::any::Any;
use std::io::{self, Write};
use std::sync::Arc;

use cenote_format::ids::Guid;
use cenote_kstat::Settings;
use cenote_send::sender::{AHEAD_BYTES, SendRequest, SenderError, estimate, send_if};
use cenote_spa::tunables::SendTunables;
use cenote_spa::{NewSnapshot, Pool, SpaError, View};
use cenote_taskq::{Rng, boxed};

pub use self::error::SendError;
pub use self::options::SendOptions;
use self::words::{stream_line, total_line};
pub use crate::receive::Told;
pub use cenote_send::sender::{SendFlags, SendProgress};

/// Added to a seed for a snapshot's guid, so that it is none of the pool's.
const GUID_SALT: u64 = 0x005e_4d57_4e41_5053;

/// Takes a snapshot whose guid is drawn from a seed, if one is given: the same files in a pool of the same seed make the same stream.
///
/// # Errors
/// The name is taken or cannot be one; or as [`Pool::change`].
#[boxed]
pub async fn take_seeded_snapshot(pool: &Pool, name: &str, seed: Option<u64>) -> Result<(), SpaError> {
    let guid = seed.map(|seed| Guid(Rng::new(seed ^ GUID_SALT).next_u64() | 1));
    pool.take_snapshots(vec![NewSnapshot { name: name.to_owned(), guid, ..NewSnapshot::default() }]).await.map(drop)
}

/// Writes the whole stream of a snapshot, of which nothing is told.
pub async fn send_whole(
    pool: &View,
    name: &str,
    flags: SendFlags,
    out: &mut (dyn Write + Send),
) -> Result<(), SenderError> {
    let to = pool.dsl().dataset(name).await?;
    let (request, progress) = (SendRequest::full(to, flags), SendProgress::default());
    cenote_send::sender::send(pool, &request, out, &progress).await.map(drop)
}

/// The caller of a send: it gets the bytes, and is told what is sent.
pub trait SendCaller {
    /// A message. [`Told::Out`] is given only where no stream is written.
    ///
    /// # Errors
    /// Standard output takes no more.
    fn told(&self, told: Told) -> io::Result<()>;

    /// The place that the bytes go to.
    fn out(&self) -> Box<dyn Write + Send + '_>;

    /// A stream of a snapshot begins, which counts what it has written; `bytes` is its estimated length, where the title of the process
    /// shows that. The value is dropped when the stream has ended.
    fn begins(&self, snapshot: &str, progress: &Arc<SendProgress>, bytes: Option<u64>) -> Box<dyn Any + Send>;
}

/// The parts that all streams of a command share.
pub struct Sending<'a> {
    /// The pool.
    pub pool: &'a View,
    /// The options. They were checked.
    pub options: &'a SendOptions,
    /// Values of tunables.
    pub settings: &'a Settings,
    /// Fails when the view no longer is of one txg: a server has given it up.
    pub is_kept: &'a (dyn Fn() -> Result<(), Box<SpaError>> + Sync),
    /// The caller.
    pub caller: &'a (dyn SendCaller + Sync),
}

impl Sending<'_> {
    /// Sends what is asked for. False if something of it was left out, which was told.
    ///
    /// # Errors
    /// A snapshot is not there or cannot be sent in this way, a block cannot be read, or the output fails: a receiver then has a stream
    /// without an end.
    pub async fn run(&self) -> Result<bool, SendError> {
        let options = self.options;
        match (&options.dataset, &options.token) {
            (Some(dataset), token) if options.saved => resume::saved(self, dataset, token.as_deref()).await,
            (_, Some(token)) => resume::resumed(self, token).await,
            (Some(dataset), None) if options.is_package() => many::run(self, dataset).await,
            (Some(dataset), None) => one::run(self, dataset).await,
            (None, None) => Err(SendError::wrong("missing snapshot argument")),
        }
    }

    /// A request with the tunables' values.
    fn tuned(&self, request: &SendRequest) -> SendRequest {
        let tunables = SendTunables::default().with(self.settings);
        let mut request = request.clone();
        request.sends_corrupt = tunables.zfs_send_corrupt_data;
        request.ahead_bytes = tunables.zfs_send_queue_length.max(AHEAD_BYTES);
        request
    }

    /// Writes a stream. `key_words` are said where a key is missing.
    async fn stream(&self, request: &SendRequest, key_words: &'static str) -> Result<(), SendError> {
        let bytes = match self.options.is_titled {
            true => Some(self.estimate(request, 0, key_words).await?),
            false => None,
        };
        let request = self.tuned(request);
        let name = request.to.name();
        let progress = Arc::new(SendProgress::default());
        let watch = self.caller.begins(&name, &progress, bytes);
        let mut check = || (self.is_kept)().map_err(SenderError::Spa);
        let sent = send_if(self.pool, &request, &mut *self.caller.out(), &progress, &mut check).await;
        drop(watch);
        sent.map(drop).map_err(|error| SendError::stream(&name, key_words, error))
    }

    /// The estimated length of a stream in bytes.
    async fn estimate(&self, request: &SendRequest, got_bytes: u64, key_words: &'static str) -> Result<u64, SendError> {
        let request = self.tuned(request);
        let estimated = estimate(self.pool, &request, got_bytes).await;
        estimated.map_err(|error| SendError::stream(&request.to.name(), key_words, error))
    }

    /// Tells what the only stream is, and how long it is likely to be, where that is asked for.
    async fn tell_only(
        &self,
        request: &SendRequest,
        from: Option<&str>,
        got_bytes: u64,
        key_words: &'static str,
    ) -> Result<(), SendError> {
        if self.options.verbosity > 0 {
            let bytes = self.estimate(request, got_bytes, key_words).await?;
            self.tell(stream_line(self.options.parsable, &request.to.name(), from, bytes))?;
            self.tell(total_line(self.options.parsable, bytes, true))?;
        }
        Ok(())
    }

    /// Tells a line where the stream does not go: to standard output where there is no stream.
    fn tell(&self, text: String) -> io::Result<()> {
        let is_out = self.options.dryrun && self.options.verbosity > 0;
        self.caller.told(if is_out { Told::Out(text) } else { Told::Err(text) })
    }

    /// Tells a warning.
    fn warn(&self, text: String) {
        // Standard error that takes nothing leaves nobody to tell.
        let _ = self.caller.told(Told::Err(text));
    }
}
