//! Receiving a stream: its records become the contents of a dataset, and then its snapshot.
//!
//! # Need
//!
//! A stream brings a snapshot from elsewhere: as a new dataset, or on top of the snapshot that it builds on. It is read once, from a pipe,
//! and may end anywhere.
//!
//! # Structures
//!
//! ```text
//! bytes ─► StreamReader ─► BEGIN ─► [`Header`] ─► spec ─► Pool::begin_receive ─► Receiving
//!          (checksums)     records ──────────────────────► Applier ──────────────► objects of its dataset, a transaction each
//!                          END ──────────────────────────────────────────────────► Receiving::settle, Received::end: the snapshot
//! ```
//! [`Receiving`] makes the changes of the pool before the first record and after the last. This module applies the records in between to
//! objects: [`apply`].
//!
//! # Life of a record
//!
//! The reader has verified its checksum. The record is checked against the limits of the format and of the stream's own features, so a refused
//! record has changed nothing. Then it is applied in a transaction of the dataset, which waits its turn like a client's write: so memory is
//! bounded by the limit on dirty data, and the stream waits for devices. Every few seconds the place is recorded, if the receive is resumable.
//! Data from a machine with the other byte order is swapped first, by the type of its object, except system attributes: their own header tells
//! every reader their order.
//!
//! # Invariants
//!
//! 1. A record changes only the dataset of its own stream, and only objects with numbers that a dataset can have.
//! 2. Applying a record again changes nothing: a resumed stream begins before the place that was reached.
//! 3. No memory is allocated for bytes that have not arrived.
//!
//! # Crash
//!
//! The dataset is inconsistent until the end, so no client sees it. See [`Receiving`].
//!
//! # Rejected
//!
//! *Collecting records and applying them in the sync*: a transaction of a dataset is as cheap, and observes quotas and a suspended pool.
//! *Storing compressed blocks without decompressing them*: it would save a little, and might store a block that no reader can decompress.

mod apply;
mod deferred;
mod error;
mod heal;
mod object;
mod raw;
mod settle;
mod token;

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_format::enums::ObjsetType;
use cenote_format::ids::Guid;
use cenote_format::needs::Needs;
use cenote_format::nvlist::NvList;
use cenote_format::stream::{Begin, BeginFlags, Body, Features, HeaderKind};
use cenote_spa::{Pool, ReceivePoint, ReceiveSpec, Receiving, Resumable};
use cenote_taskq::mutant::{self, Mutant};

use crate::{SendError, StreamReader};

use self::apply::Applier;
pub use self::error::ReceiverError;
pub use self::heal::{Healed, heal_stream};
pub use self::token::receive_resume_token;

/// Features of streams that are received.
const KNOWN: Features = Features::SA_SPILL
    .union(Features::EMBED_DATA)
    .union(Features::LZ4)
    .union(Features::LARGE_BLOCKS)
    .union(Features::RESUMING)
    .union(Features::COMPRESSED)
    .union(Features::LARGE_DNODE)
    .union(Features::RAW)
    .union(Features::REDACTED)
    .union(Features::ZSTD)
    .union(Features::HOLDS)
    .union(Features::SWITCH_TO_LARGE_BLOCKS)
    .union(Features::LONGNAME)
    .union(Features::LARGE_MICROZAP);

/// An entry of a ZAP has no room for more snapshots.
const REDACTED_BY_MAX: usize = 1024;

/// The time between two records of the place.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// The beginning of a stream: BEGIN and its list.
#[derive(Clone, Debug)]
pub struct Header {
    /// The record.
    pub begin: Begin,
    /// The list; empty if there is none.
    pub list: NvList,
    /// The record's offset in the stream.
    pub offset_bytes: u64,
}

/// Options for receiving a stream.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// The dataset's full name.
    pub dataset: String,
    /// The snapshot's name, without the dataset's.
    pub snapshot: String,
    /// The full name of the origin for a new dataset.
    pub origin: Option<String>,
    /// Changes and later snapshots that are in the way are destroyed (`-F`).
    pub is_forced: bool,
    /// The dataset may be in use until everything has arrived; then `ending` makes its users wait.
    pub users_wait: bool,
    /// It may be resumed (`-s`).
    pub is_resumable: bool,
    /// The time between two records of the place; five seconds by default.
    pub note_every: Option<Duration>,
}

/// The progress of a receive, for other tasks.
#[derive(Debug, Default)]
pub struct ReceiveProgress {
    /// Bytes of the stream that were read.
    pub bytes: AtomicU64,
}

impl Header {
    /// Reads the beginning of a stream. `None` at the end of a package.
    ///
    /// # Errors
    /// The input is not a stream, or is damaged.
    pub fn read<R: Read>(reader: &mut StreamReader<R>) -> Result<Option<Self>, ReceiverError> {
        let Some(item) = reader.next_item()? else { return Ok(None) };
        let offset_bytes = item.decoded.offset_bytes;
        match item.decoded.record.body {
            Body::Begin(begin) => {
                let list = match item.payload {
                    [] => NvList::new(),
                    bytes => NvList::parse(bytes).map_err(|error| ReceiverError::Invalid {
                        offset_bytes,
                        what: format!("the list behind BEGIN: {error}"),
                    })?,
                };
                Ok(Some(Self { begin, list, offset_bytes }))
            }
            Body::End(_) => Ok(None),
            ref other => Err(ReceiverError::Invalid {
                offset_bytes,
                what: format!("{} where a stream begins", other.kind().name()),
            }),
        }
    }

    /// The full name of the snapshot at the sender.
    ///
    /// # Errors
    /// It has none.
    pub fn to_name(&self) -> Result<&str, ReceiverError> {
        let name = std::str::from_utf8(&self.begin.to_name).ok().filter(|name| name.contains('@'));
        name.ok_or(ReceiverError::BadName)
    }

    /// True if the stream resumes an interrupted receive.
    #[must_use]
    pub const fn is_resuming(&self) -> bool {
        self.begin.features.contains(Features::RESUMING)
    }

    /// True if its blocks are encrypted as on the sender's disk.
    #[must_use]
    pub const fn is_raw(&self) -> bool {
        self.begin.features.contains(Features::RAW)
    }

    /// True if it brings a new dataset: a full stream, or a clone.
    #[must_use]
    pub fn is_of_new_dataset(&self) -> bool {
        self.begin.from_guid == Guid(0) || self.begin.flags.contains(BeginFlags::CLONE)
    }

    /// The kind of the dataset.
    ///
    /// # Errors
    /// It cannot be received.
    pub fn kind(&self) -> Result<ObjsetType, ReceiverError> {
        let number = self.begin.objset_type;
        match u8::try_from(number).ok().and_then(ObjsetType::from_number) {
            Some(kind @ (ObjsetType::Zfs | ObjsetType::Zvol)) => Ok(kind),
            _ => Err(ReceiverError::Kind(number)),
        }
    }

    /// Refuses a stream that cannot be received.
    ///
    /// # Errors
    /// The stream has an unknown or unsupported feature, or no valid name.
    pub fn check(&self, endian: Option<cenote_format::Endian>) -> Result<(), ReceiverError> {
        let features = self.begin.features;
        if features.intersects(Features::DEDUP | Features::DEDUPPROPS) {
            return Err(ReceiverError::Dedup);
        }
        if self.is_raw() && features.contains(Features::EMBED_DATA) {
            let what = "a raw stream with blocks in their pointers".to_owned();
            return Err(ReceiverError::Invalid { offset_bytes: self.offset_bytes, what });
        }
        if self.is_raw() && !self.begin.flags.contains(BeginFlags::SPILL_BLOCK) {
            return Err(ReceiverError::NoSpillFlag);
        }
        if let unknown = features.difference(KNOWN)
            && !unknown.is_empty()
        {
            return Err(ReceiverError::Unknown { features: features.bits(), unknown: unknown.bits() });
        }
        if self.is_raw() && endian != Some(cenote_dmu::ORDER) {
            return Err(ReceiverError::Unsupported("raw streams of big-endian machines"));
        }
        self.to_name().map(drop)
    }

    /// A list of snapshots about redaction.
    fn redaction(&self, name: &str) -> Result<Option<Vec<u64>>, ReceiverError> {
        let list = self.list.u64s(name);
        if list.is_none()
            && (self.list.has(name) || (name == "redact_snaps" && self.begin.features.contains(Features::REDACTED)))
        {
            let what = format!("a redacted stream without '{name}'");
            return Err(ReceiverError::Invalid { offset_bytes: self.offset_bytes, what });
        }
        match list {
            Some(list) if list.len() > REDACTED_BY_MAX => {
                let what = format!("redaction by {} snapshots", list.len());
                Err(ReceiverError::Invalid { offset_bytes: self.offset_bytes, what })
            }
            list => Ok(list.map(<[u64]>::to_vec)),
        }
    }

    /// The description of the receive for the pool.
    fn spec(&self, options: &ReceiveOptions) -> Result<ReceiveSpec, ReceiverError> {
        let begin = &self.begin;
        let has = |feature| begin.features.contains(feature);
        let mut needs = Needs::empty();
        needs.set(Needs::LARGE_BLOCKS, has(Features::LARGE_BLOCKS));
        needs.set(Needs::LONGNAME, has(Features::LONGNAME));
        needs.set(Needs::LARGE_MICROZAP, has(Features::LARGE_MICROZAP));
        let enabled = [
            (Features::LZ4, "lz4_compress"),
            (Features::ZSTD, "zstd_compress"),
            (Features::EMBED_DATA, "embedded_data"),
            (Features::LARGE_DNODE, "large_dnode"),
            (Features::RAW, "encryption"),
            (Features::REDACTED, "redacted_datasets"),
        ];
        let mut enabled: Vec<&'static str> =
            enabled.into_iter().filter(|(feature, _)| has(*feature)).map(|(_, name)| name).collect();
        if options.is_resumable {
            enabled.push("extensible_dataset");
        }
        // A resumable receive remains resumable until it is complete or given up.
        let resumable = (options.is_resumable || self.is_resuming()).then(|| Resumable {
            to_name: self.to_name().unwrap_or_default().to_owned(),
            large_blocks: has(Features::LARGE_BLOCKS),
            embedded: has(Features::EMBED_DATA),
            compressed: has(Features::COMPRESSED),
        });
        Ok(ReceiveSpec {
            dataset: options.dataset.clone(),
            snapshot: options.snapshot.clone(),
            kind: self.kind()?,
            to_guid: begin.to_guid,
            from_guid: Some(begin.from_guid).filter(|guid| guid.0 != 0),
            creation_time_s: begin.creation_time,
            origin: options.origin.clone(),
            is_forced: options.is_forced,
            users_wait: options.users_wait,
            needs,
            enabled,
            ignores_case: begin.flags.contains(BeginFlags::CI_DATA),
            resumable,
            resumes: self.is_resuming(),
            redacted: if has(Features::REDACTED) {
                Some(self.redaction("redact_snaps")?.unwrap_or_default())
            } else {
                None
            },
            from_redacted: self.redaction("redact_from_snaps")?,
            raw: if self.is_raw() { Some(raw::spec(self)?) } else { None },
        })
    }
}

/// Receives the records of a stream after its header, and takes its snapshot. Returns true if the dataset is new. `begun` is called before the
/// first record is applied, with the same value. `ending` is called before the received contents replace those of an existing dataset, with the
/// full name of the dataset that was written: from then on the existing one may not be open.
///
/// # Errors
/// The stream is damaged, ends too soon, or has an impossible record; the pool refuses it, or fails. The partial receive is then removed, unless
/// it is resumable.
pub async fn receive_stream<R: Read>(
    pool: &Pool,
    reader: &mut StreamReader<R>,
    header: &Header,
    options: &ReceiveOptions,
    progress: &ReceiveProgress,
    begun: impl AsyncFnOnce(bool) -> Result<(), ReceiverError>,
    ending: impl AsyncFnOnce(&str) -> Result<(), ReceiverError>,
) -> Result<bool, ReceiverError> {
    assert!(header.begin.header == HeaderKind::Substream, "a package is received stream by stream");
    header.check(reader.decoder().endian())?;
    let receiving = pool.begin_receive(header.spec(options)?).await?;
    let is_new = receiving.is_new();
    let received = match begun(is_new).await {
        Ok(()) => receive_records(&receiving, reader, header, options, progress).await,
        Err(error) => Err(error),
    };
    match received {
        Ok(()) => {
            let received = receiving.sync_and_close().await?;
            if let Some(written) = received.replacing()
                && let Err(error) = ending(&written).await
            {
                let _ = received.give_up().await;
                return Err(error);
            }
            received.end().await?;
            Ok(is_new)
        }
        Err(error) => {
            // The first error is reported; the next receive clears the rest.
            let _ = receiving.give_up().await;
            Err(error)
        }
    }
}

async fn receive_records<R: Read>(
    receiving: &Receiving,
    reader: &mut StreamReader<R>,
    header: &Header,
    options: &ReceiveOptions,
    progress: &ReceiveProgress,
) -> Result<(), ReceiverError> {
    let note_every = options.note_every.unwrap_or(NOTE_EVERY);
    let before = receiving.point();
    if header.is_resuming() {
        let stated = (header.list.u64("resume_object"), header.list.u64("resume_offset"));
        if stated != (Some(before.object), Some(before.offset_bytes)) {
            let what = "it goes on at another place than that which was reached".to_owned();
            return Err(ReceiverError::Invalid { offset_bytes: header.offset_bytes, what });
        }
    }
    let handle = receiving.head().pool().handle().clone();
    let base_bytes = before.bytes;
    let order = reader.decoder().endian().unwrap_or(cenote_dmu::ORDER);
    let mut applier = Applier::new(receiving.head().clone(), header, order, before);
    let mut noted = handle.now();
    let applied = loop {
        let item = match reader.next_item() {
            Ok(Some(item)) => item,
            Ok(None) => break Err(SendError::Truncated { offset_bytes: 0, expected: "before END" }.into()),
            Err(error) => break Err(error.into()),
        };
        let end = item.decoded.offset_bytes + cenote_format::stream::Record::SIZE as u64 + item.decoded.payload_bytes;
        debug_assert!(end > header.offset_bytes, "a record comes after its stream's BEGIN");
        let read_bytes = end.saturating_sub(header.offset_bytes);
        progress.bytes.store(read_bytes, Ordering::Relaxed);
        if matches!(item.decoded.record.body, Body::End(_)) {
            break applier.settle().await;
        }
        if let Body::Write(write) = &item.decoded.record.body
            && mutant::is(Mutant::ReceiveNotedEarly)
        {
            let offset_bytes = write.offset_bytes + write.logical_bytes;
            let point = ReceivePoint { object: write.object.0, offset_bytes, bytes: base_bytes + read_bytes };
            receiving.note(point).await?;
        }
        if let Err(error) = applier.apply(&item, base_bytes.saturating_add(read_bytes)).await {
            break Err(error);
        }
        if handle.now() - noted >= note_every {
            receiving.note(applier.point()).await?;
            noted = handle.now();
        }
    };
    if applied.is_err() {
        receiving.note(applier.point()).await?;
    }
    applied
}

/// Reads a stream to its END, without receiving it.
///
/// # Errors
/// It is damaged, or ends too soon.
pub fn skip_stream<R: Read>(reader: &mut StreamReader<R>) -> Result<(), ReceiverError> {
    while let Some(item) = reader.next_item()? {
        if matches!(item.decoded.record.body, Body::End(_)) {
            return Ok(());
        }
    }
    Err(SendError::Truncated { offset_bytes: 0, expected: "before END" }.into())
}
