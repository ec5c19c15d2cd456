//! Redaction bookmarks: `zfs redact`.
//!
//! **Life of one.** The bookmark is made with an empty list, in one txg, and the snapshots that are read are kept from being destroyed. Then the
//! clones are walked, and each [`BATCH`] runs of blocks go to the list with one txg, with how far it came. The last txg completes it.
//!
//! **Crash.** The bookmark has the entries of the txgs that were written, and is not complete: nobody sends by it. The same command goes
//! on behind its last entry; `zfs destroy` takes it away. OpenZFS goes on with it too.

use cenote_dsl::{Dataset, DslError};
use cenote_format::dsl::RedactBlock;
use cenote_format::ids::{Guid, ObjectId};
use cenote_send::sender::SenderError;
use cenote_send::sender::redact::{COMPLETE, Point, Redaction};
use cenote_spa::{LongHold, NamePool, NewBookmark, Pool, Refusal, SpaError, SyncTask, Syncer, User};
use cenote_taskq::boxed;
use thiserror::Error;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// Runs of blocks that go to the list at a time: 2 MiB.
const BATCH: usize = 1 << 16;
/// The longest name of a bookmark, in bytes, with that of its dataset.
const NAME_MAX: usize = 255;

/// A redaction bookmark that is to be made.
#[derive(Clone, Debug)]
pub struct RedactRequest {
    /// The full name of the snapshot to be redacted.
    pub snapshot: String,
    /// The name of the bookmark, without that of the dataset.
    pub bookmark: String,
    /// The full names of snapshots that came after it: what none of them has is redacted.
    pub by: Vec<String>,
}

impl Request for RedactRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.snapshot
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        let made = redact(pool, self).await;
        made.map_err(|error| AdminError::Errno { errno: error.errno(), source: Box::new(error) })
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zfs redact").words([&self.snapshot, &self.bookmark]).words(&self.by))
    }

    fn is_long(&self) -> bool {
        true
    }
}

/// Why a redaction bookmark could not be made, in OpenZFS's words.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedactError {
    /// Snapshots that are not there.
    #[error("{}", absent(.0))]
    NotThere(Vec<String>),
    /// There is a bookmark of this name, which is complete, or no redaction bookmark.
    #[error("specified redaction bookmark ({0}) provided already exists")]
    Exists(String),
    /// With its dataset the name is too long.
    #[error("provided bookmark name cannot be used, final name would be too long")]
    NameTooLong,
    /// More snapshots than a list can be about.
    #[error("too many redaction snapshots specified")]
    TooMany,
    /// The name of the dataset is not to be given.
    #[error("redaction bookmark name must not contain '#'")]
    FullName,
    /// A name is none of a snapshot, or one did not come after the one that is redacted.
    #[error("redaction snapshot must be descendent of snapshot being redacted")]
    NotDescendant,
    /// One of the snapshots lacks blocks itself.
    #[error("attempted to redact redacted dataset or with respect to redacted dataset")]
    Redacted,
    /// The key of this encrypted snapshot is not loaded, so its blocks cannot be read.
    #[error("cannot redact '{0}': its key is not loaded")]
    KeyNotLoaded(String),
    /// The pool has no such bookmarks.
    #[error("redaction bookmarks feature not enabled")]
    NoFeature,
    /// A snapshot of another pool.
    #[error("potentially invalid redaction snapshot; full dataset names required")]
    OtherPool,
    /// A bookmark of this name was begun by other snapshots.
    #[error("attempted to resume redaction  with a mismatched redaction list")]
    Mismatch,
    /// The bookmark was destroyed while its list was written.
    #[error("the bookmark '{0}' was destroyed before it was complete")]
    Gone(String),
    /// A dataset could not be read.
    #[error(transparent)]
    Read(#[from] SenderError),
    /// The pool refused it, or failed.
    #[error(transparent)]
    Spa(#[from] SpaError),
}

fn absent(names: &[String]) -> String {
    let line = |name: &String| {
        format!("cannot open '{name}': dataset does not exist\nprovided snapshot {name} does not exist")
    };
    names.iter().map(line).collect::<Vec<_>>().join("\n")
}

impl NamePool for RedactError {
    fn spa(&mut self) -> Option<&mut SpaError> {
        match self {
            Self::Spa(error) => Some(error),
            _ => None,
        }
    }
}

impl RedactError {
    /// Linux's number of the error, which OpenZFS's command has as its exit status.
    #[must_use]
    pub const fn errno(&self) -> u8 {
        match self {
            Self::NotThere(_) => 2,
            Self::Mismatch => 3,
            Self::TooMany => 7,
            Self::KeyNotLoaded(_) => 13,
            Self::Exists(_) => 17,
            Self::OtherPool => 18,
            Self::FullName | Self::NotDescendant => 22,
            Self::NameTooLong => 36,
            Self::NoFeature => 95,
            Self::Redacted => 114,
            Self::Gone(_) | Self::Read(_) | Self::Spa(_) => 1,
        }
    }
}

/// The beginning: the bookmark is made, or one that was interrupted found.
struct Begin {
    request: RedactRequest,
    found: Option<Found>,
}

struct Found {
    snapshot: Dataset,
    by: Vec<Dataset>,
    /// The list of a bookmark that is gone on with.
    list: Option<ObjectId>,
}

/// A redaction that has begun.
struct Begun {
    snapshot: Dataset,
    by: Vec<Dataset>,
    list: ObjectId,
    from: Point,
    _holds: Vec<LongHold>,
}

impl Begin {
    fn name(&self) -> String {
        let dataset = self.request.snapshot.split('@').next().unwrap_or_default();
        format!("{dataset}#{}", self.request.bookmark)
    }

    fn new_bookmark(&self) -> NewBookmark {
        NewBookmark { name: self.name(), source: self.request.snapshot.clone() }
    }

    async fn find(&self, pool: &Syncer) -> Result<Found, RedactError> {
        let dsl = pool.dsl().clone();
        let failed = |error: DslError| RedactError::Spa(error.into());
        let of_pool = |name: &str| name.split(['/', '@']).next().unwrap_or_default().to_owned();
        // As in a list of names: of one that is given twice the last counts.
        let mut names: Vec<String> = Vec::new();
        for name in &self.request.by {
            names.retain(|other| other != name);
            names.push(name.clone());
        }
        names.insert(0, self.request.snapshot.clone());
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in &names {
            if of_pool(name) != pool.name() {
                return Err(RedactError::OtherPool);
            }
            match dsl.dataset(name).await {
                Ok(dataset) => found.push(dataset),
                Err(DslError::NoSuchDataset(_)) => missing.push(name.clone()),
                Err(DslError::BadName { .. }) => return Err(RedactError::NotDescendant),
                Err(error) => return Err(failed(error)),
            }
        }
        if !missing.is_empty() {
            return Err(RedactError::NotThere(missing));
        }
        let by = found.split_off(1);
        let snapshot = found.remove(0);
        if !snapshot.is_snapshot() || by.iter().any(|other| !other.is_snapshot()) {
            return Err(RedactError::NotDescendant);
        }
        for dataset in std::iter::once(&snapshot).chain(&by) {
            if dsl.redaction_snapshots(dataset).await.map_err(failed)?.is_some() {
                return Err(RedactError::Redacted);
            }
            // Without the key the walk fails, after the bookmark has been created. So the check comes first.
            if dsl.encryption(&dataset.dir).await.map_err(failed)?.is_some_and(|encryption| !encryption.is_loaded) {
                return Err(RedactError::KeyNotLoaded(dataset.name()));
            }
        }
        for other in &by {
            let (dir, txg) = (snapshot.dir.object, snapshot.phys.creation_txg);
            if other.object == snapshot.object || !dsl.is_earlier(other, dir, txg).await.map_err(failed)? {
                return Err(RedactError::NotDescendant);
            }
        }
        let name = self.name();
        if name.len() > NAME_MAX {
            return Err(RedactError::NameTooLong);
        }
        if self.request.bookmark.contains('#') {
            return Err(RedactError::FullName);
        }
        let Some((_, bookmark)) = pool.find_bookmark(&name).await? else {
            let limit = pool.redaction_snapshots_max().ok_or(RedactError::NoFeature)?;
            if by.len() > limit {
                return Err(RedactError::TooMany);
            }
            return match pool.check_bookmark(&self.new_bookmark()).await {
                Err(SpaError::Refused { why: Refusal::Invalid, .. }) => Err(RedactError::NotDescendant),
                checked => Ok(checked.map(|()| Found { snapshot, by, list: None })?),
            };
        };
        let list = bookmark.phys.redaction_list;
        if list.0 == 0 {
            return Err(RedactError::Exists(self.request.bookmark.clone()));
        }
        let phys = dsl.redaction_list(list).await.map_err(failed)?;
        let is_of = |other: &Dataset| phys.snapshots.contains(&other.phys.guid);
        if bookmark.phys.guid != snapshot.phys.guid || phys.snapshots.len() != by.len() || !by.iter().all(is_of) {
            return Err(RedactError::Mismatch);
        }
        if (phys.last_object, phys.last_block) == COMPLETE {
            return Err(RedactError::Exists(self.request.bookmark.clone()));
        }
        // Both would write to it.
        if pool.is_long_held(list) {
            let what =
                format!("cannot redact '{}': the redaction bookmark '{name}' is being made", self.request.snapshot);
            return Err(RedactError::Spa(SpaError::Refused { why: Refusal::Busy, what }));
        }
        Ok(Found { snapshot, by, list: Some(list) })
    }
}

impl SyncTask for Begin {
    type Made = Begun;
    type Error = RedactError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), RedactError> {
        self.found = Some(self.find(pool).await?);
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<Begun, RedactError> {
        let Found { snapshot, by, list } = self.found.take().expect("it was checked");
        let held = std::iter::once(&snapshot).chain(&by);
        let mut holds: Vec<_> = held.map(|dataset| pool.long_hold(dataset.object, User::Command)).collect();
        let (list, from) = match list {
            Some(list) => {
                let end = pool.dsl().redaction_end(list).await;
                (list, end.map_err(SpaError::from)?)
            }
            None => {
                let guids: Vec<u64> = by.iter().map(|other| other.phys.guid.0).collect();
                (pool.create_redaction_bookmark(&self.new_bookmark(), &guids).await?, (0, 0))
            }
        };
        // Objects of the MOS all, so a list is held as a dataset is.
        holds.push(pool.long_hold(list, User::Command));
        Ok(Begun { snapshot, by, list, from, _holds: holds })
    }
}

/// Some of the list.
struct Add {
    bookmark: String,
    of: Guid,
    list: ObjectId,
    blocks: Vec<RedactBlock>,
    last: Point,
}

impl SyncTask for Add {
    type Made = ();
    type Error = RedactError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), RedactError> {
        match pool.find_bookmark(&self.bookmark).await? {
            Some((_, bookmark)) if (bookmark.phys.guid, bookmark.phys.redaction_list) == (self.of, self.list) => Ok(()),
            _ => Err(RedactError::Gone(self.bookmark.clone())),
        }
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), RedactError> {
        Ok(pool.add_redaction(self.list, &self.blocks, self.last).await?)
    }
}

/// Makes a redaction bookmark, or goes on with one that was interrupted.
///
/// # Errors
/// A snapshot is not there, came before the one that is redacted, or is redacted itself; the name is taken; a dataset cannot be read; or as
/// [`Pool::change`]. The bookmark stays as far as it was written, to be gone on with.
#[boxed]
pub async fn redact(pool: &Pool, request: &RedactRequest) -> Result<(), RedactError> {
    redact_in(pool, request, BATCH, usize::MAX).await
}

/// As [`redact`], in batches of so many runs, and of the batches so many: tests see what an interruption leaves.
#[doc(hidden)]
#[boxed]
pub async fn redact_in(pool: &Pool, request: &RedactRequest, runs: usize, batches: usize) -> Result<(), RedactError> {
    let begin = Begin { request: request.clone(), found: None };
    let bookmark = begin.name();
    let begun = pool.sync_task(begin).await?;
    let of = begun.snapshot.phys.guid;
    let mut redaction = Redaction::open(&pool.dsl()?, begun.snapshot, begun.by, begun.from).await?;
    for _ in 0..batches {
        let mut blocks = Vec::new();
        while blocks.len() < runs
            && let Some(run) = redaction.next().await?
        {
            blocks.push(run);
        }
        let last = redaction.point();
        pool.sync_task(Add { bookmark: bookmark.clone(), of, list: begun.list, blocks, last }).await?;
        if last == COMPLETE {
            break;
        }
    }
    Ok(())
}
