//! Doing again what the intent log says.
//!
//! The records are replayed in their order by the operations that clients use, on a file system that nobody else has; see
//! [`cenote_zil`] for the position that goes along. Before the first record is replayed all are read: a log with a record that cannot be
//! replayed yet is left as it is.
//!
//! **Not in order.** A client's `fsync` logs what it asks for and leaves out what other files have, so a record may be of an object that
//! a later operation has removed. Records that change an object that is not there are passed over.
//!
//! **Space.** Log blocks that are passed are freed on the way. Where space is short, so are removed files, which stand in the delete queue
//! otherwise until the file system is in use.
//!
//! **Behind the end.** An indirect write gives the whole of a block, which may reach behind the file's end as of that write, for a record
//! that follows and makes the file longer ([`Reach::To`](crate::file::Reach)). Bytes that are still behind the end when all is replayed
//! become zeros: else they would come into view when the file grows. That comes before their log blocks are passed, since a replay that goes on
//! after a crash does not see those; where a later record makes the file longer by its size alone (`TX_WRITE2`), no more are passed.

mod attributes;
mod data;
mod names;

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::tx::SyncMode;
use cenote_dmu::{DmuErrorKind, Objset};
use cenote_format::ids::ObjectId;
use cenote_format::zil::{LogRecord, Tx, ZilHeader};
use cenote_taskq::boxed;
use cenote_zil::{Chain, Log, Marking, Position, ReplayError, Replaying, Survey, reaches_claim, unsupported};

use crate::filesystem::{FileSystem, FileSystemOptions};
use crate::{AccessTimes, XattrMode, ZplError};

impl FileSystem {
    /// Opens the file system of a head dataset to be changed, in txgs of `log`, which is told of all changes. Its intent log is replayed
    /// first, so nobody else has it open to be changed, and the caller holds no txg and is no sync task. Objects that its last user left
    /// in the delete queue are garbage now: see [`FileSystem::reap`].
    ///
    /// # Errors
    /// It is none, or one of a kind that cannot be changed yet; its intent log cannot be replayed ([`ZplError::Replay`]).
    #[boxed]
    pub async fn open_logged(objset: &Objset, log: Arc<Log>, options: FileSystemOptions) -> Result<Self, ZplError> {
        // Seldom, and large.
        Box::pin(replay(objset, log.clone(), options)).await?;
        Self::open_unreplayed(objset, log, options, false).await?.logging_data()
    }
}

/// Replays the log of a head dataset, if one was claimed, and destroys it.
///
/// # Errors
/// It cannot be replayed: what is done is done, and the rest of the log stays.
#[boxed]
async fn replay(objset: &Objset, log: Arc<Log>, options: FileSystemOptions) -> Result<(), ZplError> {
    let header = objset.zil_header();
    if header.claim_txg.0 == 0 {
        return Ok(());
    }
    let source = Arc::new(Replaying::new(log, objset.clone()));
    if header.flags & ZilHeader::REPLAY_NEEDED != 0 {
        let (padded, survey) = check(objset, header).await?;
        // Inheritance and permissions were decided when the records were made.
        let options = FileSystemOptions {
            xattrs: XattrMode::Sa,
            has_posix_acls: false,
            acl_is_discarded: true,
            access_times: AccessTimes::Never,
            ..options
        };
        let log = Arc::new(Log::without(source.clone(), SyncMode::Standard));
        let filesystem = FileSystem::open_unreplayed(objset, log, options, true).await?;
        Replay { filesystem, source: source.clone(), survey }.run(header, padded).await?;
    }
    Ok(source.end().await?)
}

/// Reads all of the log. Returns the files that may have blocks beyond their end, and what is known of the records.
async fn check(objset: &Objset, header: ZilHeader) -> Result<(BTreeSet<ObjectId>, Survey), ZplError> {
    let mut padded = BTreeSet::new();
    let look = |record: &LogRecord<'_>| {
        padded.extend(padding(record));
        unsupported(record)
    };
    let survey = cenote_zil::check(objset.dmu().zio(), header, look).await?;
    Ok((padded, survey))
}

/// The file that may have bytes behind its end by a record.
fn padding(record: &LogRecord<'_>) -> Option<ObjectId> {
    match &record.tx {
        Tx::Write(write) if write.data.is_none() && !write.size_only => Some(write.object),
        _ => None,
    }
}

/// A file system whose log is replayed.
struct Replay {
    filesystem: FileSystem,
    source: Arc<Replaying>,
    survey: Survey,
}

impl Replay {
    async fn run(&self, header: ZilHeader, padded: BTreeSet<ObjectId>) -> Result<(), ZplError> {
        let position = Position::of(&header);
        let objset = self.filesystem.objset();
        let mut chain = Chain::new(objset.dmu().zio(), header);
        let mut passes = true;
        loop {
            let batch = cenote_zil::next_batch(&mut chain, objset, &position).await;
            if batch.is_empty() {
                break;
            }
            for link in &batch {
                let mut padded_here = BTreeSet::new();
                let records = link.content.iter().flat_map(|content| content.records());
                for record in records {
                    let sequence = record.sequence;
                    if let Some(id) = padding(&record) {
                        padded_here.insert(id);
                        passes &= !self.survey.is_sized_after(id, sequence);
                    }
                    if position.is_left(&record) {
                        let replayed = self.record(&record).await;
                        replayed.map_err(|error| ReplayError::new(sequence, error))?;
                    }
                }
                if passes {
                    for id in padded_here {
                        self.trim(id).await?;
                    }
                    self.source.passed(link, &self.survey).await?;
                }
            }
            if self.source.is_short() {
                self.filesystem.reap().await?;
            }
        }
        reaches_claim(&chain, &header)?;
        for id in padded {
            self.trim(id).await?;
        }
        Ok(())
    }

    /// Replays a record. If that fails, it is tried again once all before it is on disk: numbers of removed objects are free then.
    async fn record(&self, record: &LogRecord<'_>) -> Result<(), ZplError> {
        let marking = Marking::of(&record.tx);
        let first = self.source.replay(record.sequence, marking, self.effect(record)).await;
        if first.is_ok() {
            return Ok(());
        }
        self.filesystem.reap().await?;
        self.source.sync_replayed().await?;
        self.source.replay(record.sequence, marking, self.effect(record)).await
    }

    async fn effect(&self, record: &LogRecord<'_>) -> Result<(), ZplError> {
        match &record.tx {
            Tx::Commit => Ok(()),
            Tx::Write(_) if self.survey.is_superseded(record) => Ok(()),
            Tx::Create(create) => self.create(create).await,
            Tx::Remove { directory, name } => self.filesystem.unlink(*directory, name).await,
            Tx::Rmdir { directory, name } => self.filesystem.rmdir(*directory, name).await,
            Tx::Link { directory, object, name } => self.filesystem.link(*object, *directory, name).await.map(drop),
            Tx::Rename(rename) => self.rename(rename).await,
            Tx::Write(write) => self.if_there(write.object, self.write(write)).await,
            Tx::Truncate { object, offset_bytes, length_bytes } => {
                self.if_there(*object, self.truncate(*object, *offset_bytes, *length_bytes)).await
            }
            Tx::SetAttr(set) => self.if_there(set.object, self.set_attributes(set)).await,
            Tx::SetSaXattr(set) => {
                self.if_there(set.object, self.filesystem.replay_xattr(set.object, &set.name, &set.value)).await
            }
            Tx::CloneRange(range) => self.if_there(range.object, self.clone_range(range)).await,
            Tx::Acl(_) | Tx::AclV0 { .. } => {
                Err(ZplError::Unsupported("not supported yet: a record of this kind".into()))
            }
        }
    }

    /// Changes an object, if there is one.
    async fn if_there(&self, id: ObjectId, change: impl Future<Output = Result<(), ZplError>>) -> Result<(), ZplError> {
        match self.filesystem.hold(id).await {
            Ok(_held) => change.await,
            Err(ZplError::Stale | ZplError::NoEntry) => Ok(()),
            Err(ZplError::Dmu(error)) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
