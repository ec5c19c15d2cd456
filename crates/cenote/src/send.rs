//! Sending snapshots as streams.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use cenote_admin::send::{SendCaller, SendFlags, SendProgress, Sending, Told};
use cenote_kstat::Settings;
use cenote_spa::{ImportOptions, View};

use crate::error::Error;
use crate::pool::{Access, Pool};
use crate::pulled::{Found, Pulled};
use crate::raise::Raise as _;
use crate::setters::setters;
use crate::snapshot::Snapshot;

/// The options of a stream, as those of `zfs send`. Receivers are [`ReceiveOptions`](crate::ReceiveOptions), `zfs receive` of OpenZFS, and that
/// of Cenote.
///
/// ```
/// # use cenote::{CreateOptions, Error, ReceiveOptions, Runtime, SendOptions};
/// # fn main() -> Result<(), Error> {
/// # let runtime = Runtime::simulated(1);
/// # for disk in ["/a", "/b"] { runtime.add_disk(disk, 128 << 20); }
/// # runtime.block_on(async {
/// # let pool = CreateOptions::new(["/a"]).create(&runtime, "tank").await?;
/// # let backup = CreateOptions::new(["/b"]).create(&runtime, "backup").await?;
/// let home = pool.create_filesystem("tank/home", &[]).await?;
/// home.filesystem().await?.write("/note", "water the plants").await?;
/// let monday = home.snapshot("monday").await?;
/// home.filesystem().await?.write("/note", "done").await?;
/// let tuesday = home.snapshot("tuesday").await?;
///
/// // A whole snapshot, then the changes since: into files, sockets, pipes or memory.
/// let (mut whole, mut changes) = (Vec::new(), Vec::new());
/// SendOptions::new().send(&monday, &mut whole).await?;
/// SendOptions::new().since("@monday").send(&tuesday, &mut changes).await?;
///
/// for stream in [whole, changes] {
///     ReceiveOptions::new().receive(&backup, "backup/home", &stream[..]).await?;
/// }
/// assert_eq!(backup.filesystem("backup/home").await?.read("/note").await?, b"done");
/// # backup.export().await?;
/// # pool.export().await
/// # })
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    options: cenote_admin::send::SendOptions,
    has_between: bool,
}

impl SendOptions {
    /// One snapshot, whole, without properties.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Sends only the changes since a snapshot or bookmark, which the receiver has (`-i`): its full name, or `@NAME` or `#NAME` of the same
        /// dataset.
        since(self, source: &str) { self.options.from = Some(source.to_owned()); }
        /// With [`since`](Self::since) a snapshot, also sends all snapshots between (`-I`).
        with_between(self, with: bool) { self.has_between = with; }
        /// Sends all datasets below too, with their snapshots and properties, as one package (`-R`).
        replicate(self, replicate: bool) { self.options.replicate = replicate; }
        /// With [`replicate`](Self::replicate), leaves out a dataset and all below it (`-X`). Several are left out if this is called again.
        exclude(self, dataset: &str) { self.options.exclude.push(dataset.to_owned()); }
        /// With [`replicate`](Self::replicate), leaves out datasets that lack the snapshot (`-s`). They are an error otherwise.
        skip_missing(self, skip: bool) { self.options.skip_missing = skip; }
        /// Sends the dataset's properties too (`-p`).
        properties(self, with: bool) { self.options.props = with; }
        /// Sends the snapshots' holds too (`-h`).
        holds(self, with: bool) { self.options.holds = with; }
        /// Sends blocks as they are on disk (`-w`): those of encrypted datasets remain encrypted, and their key is not needed.
        raw(self, raw: bool) { self.options.flags = SendFlags { large_blocks: raw, embedded: raw, compressed: raw, raw }; }
        /// Sends compressed blocks as they are (`-c`).
        compressed(self, compressed: bool) { self.options.flags.compressed = compressed; }
        /// Sends blocks above 128 KiB as they are (`-L`). A receiver that got such a stream needs it for the later ones too.
        large_blocks(self, large: bool) { self.options.flags.large_blocks = large; }
    }

    /// Writes the stream of a snapshot to `out`, which may block this thread: to send and to receive at once takes two, each with
    /// [`Runtime::block_on`](crate::Runtime::block_on), and a pipe. [`stream`](Self::stream) blocks nothing.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): the snapshot, or that of [`since`](Self::since). [`Misuse`](crate::ErrorKind::Misuse): the
    /// options contradict each other, or that is not an earlier one. [`Key`](crate::ErrorKind::Key): its key is missing, and the stream is not
    /// raw. [`Io`](crate::ErrorKind::Io) and [`Corrupt`](crate::ErrorKind::Corrupt): a block cannot be read, or `out` fails; a receiver then has
    /// a stream without an end, which it refuses.
    pub async fn send(&self, snapshot: &Snapshot, out: impl Write) -> Result<Sent, Error> {
        self.stream(snapshot).await?.write_to(out).await
    }

    /// The stream of a snapshot, to be taken piece by piece. The pool's txg at this time is kept until it is dropped.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse): the options contradict each other. The other errors of [`send`](Self::send) are those of
    /// [`SendStream::next`].
    pub async fn stream(&self, snapshot: &Snapshot) -> Result<SendStream, Error> {
        let mut options = self.options.clone();
        options.dataset = Some(snapshot.name().to_owned());
        if self.has_between {
            options.all_from = options.from.take();
        }
        SendStream::begin(snapshot.pool(), options).await
    }

    /// The rest of a stream whose receiver was interrupted, from its token
    /// ([`Dataset::receive_resume_token`](crate::Dataset::receive_resume_token)). Of the options, only the forms of blocks are for it.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse): it is no token, or there are other options. The others are those of [`SendStream::next`].
    pub async fn resume(&self, pool: &Pool, token: &str) -> Result<SendStream, Error> {
        let options = cenote_admin::send::SendOptions { token: Some(token.to_owned()), ..self.options.clone() };
        SendStream::begin(pool, options).await
    }
}

/// A stream, or several in a package, that is made while it is taken.
pub struct SendStream {
    pulled: Pulled<Vec<u8>, bool>,
    warnings: Found<Vec<String>>,
    sent_bytes: u64,
}

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStream").field("sent_bytes", &self.sent_bytes).finish_non_exhaustive()
    }
}

/// The outcome of a stream that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// Bytes of the stream.
    pub bytes: u64,
    /// False if something that was requested was left out, such as a dataset that lacks the snapshot; the warnings name it.
    pub is_whole: bool,
    /// Messages, each a sentence.
    pub warnings: Vec<String>,
}

impl SendStream {
    async fn begin(pool: &Pool, options: cenote_admin::send::SendOptions) -> Result<Self, Error> {
        options.check().raised()?;
        // A token is parsed here.
        options.pool().raised()?;
        let (view, found, warnings) = (pool.view().await?, Found::new(), Found::new());
        let caller = Caller { bytes: found.clone(), warnings: warnings.clone() };
        let future = Box::pin(async move {
            let (settings, is_kept) = (Settings::default(), || Ok(()));
            let sending =
                Sending { pool: &view, options: &options, settings: &settings, is_kept: &is_kept, caller: &caller };
            let sent = sending.run().await;
            // Blocks that cannot be read are those that were freed, if the pool has given the view up.
            view.check().raised()?;
            sent.raised()
        });
        Ok(Self { pulled: Pulled::new(found, future), warnings, sent_bytes: 0 })
    }

    /// The next bytes of it, at least one; none at its end.
    ///
    /// # Errors
    /// As [`SendOptions::send`]. The bytes before have no end then, and receivers refuse them.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let take = |bytes: &mut Vec<u8>| (!bytes.is_empty()).then(|| std::mem::take(bytes));
        let bytes = self.pulled.next(take).await?;
        self.sent_bytes += bytes.as_ref().map_or(0, Vec::len) as u64;
        Ok(bytes)
    }

    /// Bytes that were taken.
    #[must_use]
    pub const fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Writes the rest of it to `out`, as [`SendOptions::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn write_to(mut self, mut out: impl Write) -> Result<Sent, Error> {
        while let Some(bytes) = self.next().await? {
            out.write_all(&bytes).raised()?;
        }
        out.flush().raised()?;
        Ok(Sent {
            bytes: self.sent_bytes,
            is_whole: self.pulled.result().is_some_and(|is_whole| *is_whole),
            warnings: self.warnings.put(std::mem::take),
        })
    }
}

/// Collects bytes and warnings.
struct Caller {
    bytes: Found<Vec<u8>>,
    warnings: Found<Vec<String>>,
}

impl Write for &Caller {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.put(|found| found.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SendCaller for Caller {
    fn told(&self, told: Told) -> io::Result<()> {
        if let Told::Err(text) = told {
            self.warnings.put(|warnings| warnings.push(text));
        }
        Ok(())
    }

    fn out(&self) -> Box<dyn Write + Send + '_> {
        Box::new(self)
    }

    fn begins(&self, _: &str, _: &Arc<SendProgress>, _: Option<u64>) -> Box<dyn Any + Send> {
        Box::new(())
    }
}

impl Pool {
    /// The pool as of one txg: of a pool that is open to be changed, of one that is written for this.
    pub(crate) async fn view(&self) -> Result<View, Error> {
        match &self.inner.access {
            Access::Read(view) => Ok(view.clone()),
            Access::Write(pool) => pool.view(&ImportOptions::default()).await.raised(),
        }
    }
}
