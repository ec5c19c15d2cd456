//! Receiving streams.

use std::io::Read;

use cenote_admin::receive::{Caller, Naming, ReceiveRequest, Told};
use cenote_send::receiver::receive_resume_token;
use cenote_taskq::boxed;

use crate::dataset::{Dataset, Reach};
use crate::error::Error;
use crate::filesystem;
use crate::pool::Pool;
use crate::raise::Raise as _;
use crate::setters::setters;

/// The part of a sent name that is added to the name that was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SentName {
    /// None of a stream's dataset; of a package, the names below its top.
    #[default]
    Replaced,
    /// All but the pool (`-d`). Datasets that are missing above it are made.
    WithoutPool,
    /// The last part of the top's name, and all below (`-e`).
    Last,
}

impl SentName {
    const fn naming(self) -> Naming {
        match self {
            Self::Replaced => Naming::Exact,
            Self::WithoutPool => Naming::WithoutPool,
            Self::Last => Naming::Last,
        }
    }
}

/// The options of a receive, as those of `zfs receive`. Nothing is mounted, so `-u` has no option here.
///
/// [`SendOptions`](crate::SendOptions) has an example.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    force: bool,
    resumable: bool,
    skip_holds: bool,
    sent_name: SentName,
    origin: Option<String>,
    properties: Vec<(String, String)>,
    excluded: Vec<String>,
}

/// The outcome of streams that were received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The datasets that were received, in their order, each once.
    pub datasets: Vec<String>,
    /// True if a dataset or snapshot that a package's sender has no more, or has under another name, could not be destroyed or renamed.
    pub is_incomplete: bool,
    /// Messages, each a sentence, such as about properties that could not be set.
    pub warnings: Vec<String>,
}

impl ReceiveOptions {
    /// Refuses to overwrite anything; a stream that breaks off leaves nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Destroys changes and later snapshots that are in the way, and with a package all that its sender has no more (`-F`).
        force(self, force: bool) { self.force = force; }
        /// Keeps the part that was received of a stream that breaks off (`-s`): [`Dataset::receive_resume_token`] then tells the sender where to
        /// resume.
        resumable(self, resumable: bool) { self.resumable = resumable; }
        /// Leaves out holds (`-h`).
        skip_holds(self, skip: bool) { self.skip_holds = skip; }
        /// Adds a part of the sent name to the name that is given to [`receive`](Self::receive).
        sent_name(self, part: SentName) { self.sent_name = part; }
        /// Makes the dataset as a clone of this snapshot, which the stream builds on (`-o origin=`).
        origin(self, snapshot: &str) { self.origin = Some(snapshot.to_owned()); }
        /// Sets a property in place of the one that comes (`-o`).
        property(self, name: &str, value: &str) { self.properties.push((name.to_owned(), value.to_owned())); }
        /// Leaves out a property that comes (`-x`).
        exclude(self, property: &str) { self.excluded.push(property.to_owned()); }
    }

    /// Receives a stream, or a package of them, as the dataset or snapshot `target`. `input` may block this thread; what is unbuffered should be
    /// in a [`BufReader`](std::io::BufReader).
    ///
    /// A new snapshot exists when all of its stream has been verified and is on disk. Of a package, the streams before one that fails are
    /// received, and the same package can be received again. A future that is dropped before it ends may leave a dataset that is half received,
    /// which the next receive of that name, or [`abort_receive`](crate::Dataset::abort_receive), removes.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt): the input is no stream, is damaged, or breaks off. [`Exists`](crate::ErrorKind::Exists),
    /// [`Busy`](crate::ErrorKind::Busy), [`NotFound`](crate::ErrorKind::NotFound): the dataset would be overwritten, has changed or is open, or
    /// lacks the snapshot that the stream builds on. [`NoSpace`](crate::ErrorKind::NoSpace), [`Quota`](crate::ErrorKind::Quota).
    pub async fn receive(&self, pool: &Pool, target: &str, input: impl Read) -> Result<Received, Error> {
        let spa = pool.writable()?;
        let mut request = ReceiveRequest {
            target: target.to_owned(),
            naming: self.sent_name.naming(),
            is_forced: self.force,
            is_resumable: self.resumable,
            skips_holds: self.skip_holds,
            owner: pool.owner(),
            ..ReceiveRequest::default()
        };
        let settings: Vec<String> = self.properties.iter().map(|(name, value)| format!("{name}={value}")).collect();
        request.set(&settings, &self.excluded).raised()?;
        request.origin = self.origin.clone().or(request.origin);
        let mut users = Users { pool, warnings: Vec::new() };
        users.lets_go(target.split('@').next().unwrap_or(target)).await;
        let received = cenote_admin::receive::receive(spa, input, &request, &mut users).await;
        let warnings = users.warnings;
        // Properties that came are those of datasets below too, which may be open.
        let refreshed = filesystem::refresh(pool).await;
        let received = received.raised().map_err(|error| error.of_dataset(target))?;
        refreshed?;
        Ok(Received { datasets: received.datasets, is_incomplete: received.is_incomplete, warnings })
    }
}

/// The datasets that are open in this process.
struct Users<'a> {
    pool: &'a Pool,
    warnings: Vec<String>,
}

impl Caller for Users<'_> {
    fn told(&mut self, told: Told) {
        if let Told::Err(text) = told {
            self.warnings.push(text);
        }
    }

    #[boxed]
    async fn lets_go(&mut self, dataset: &str) {
        // A dataset in use is refused afterwards.
        let _ = self.pool.let_go(dataset, Reach::AllBelow, "it cannot be received into").await;
    }
}

impl Dataset {
    /// The token by which a sender resumes a stream that broke off ([`SendOptions::resume`](crate::SendOptions::resume), `zfs send -t`); none if
    /// nothing was received in part.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): it was destroyed or renamed.
    pub async fn receive_resume_token(&self) -> Result<Option<String>, Error> {
        let name = self.name().to_owned();
        let found = self
            .pool()
            .look(move |dsl| Box::pin(async move { Ok(receive_resume_token(dsl, &dsl.dataset(&name).await?).await?) }));
        found.await
    }

    /// Gives up the part of a stream that was received (`zfs receive -A`). A dataset that it would have made is destroyed.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): nothing was received in part.
    pub async fn abort_receive(&self) -> Result<(), Error> {
        self.pool().writable()?.abort_receive(self.name()).await.raised()
    }
}
