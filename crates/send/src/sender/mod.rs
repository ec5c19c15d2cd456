//! Making streams: a snapshot, or the changes since another one, as records.
//!
//! # Need
//!
//! Streams maintain a copy of a dataset on another pool: the first has all of a snapshot, each later one the changes. Births reveal the changes:
//! a pointer that was born before the earlier snapshot leads to nothing new, so whole trees are skipped. All senders must make the same stream,
//! byte for byte: receivers of every age depend on the order of records, and on which neighbours are merged into one record.
//!
//! # Structures
//!
//! ```text
//!   Walk ─────► Merge ───────► Items ───────────► Records ──────► StreamWriter ─────► output
//!   changes     redaction      reads of blocks    from change     neighbours put
//!   in order    lists          under way          to records      together, sums
//!   └────────── a task, one batch ahead ───────┘  └──── whoever asked for the stream ─────┘
//! ```
//!
//! # Life of a block
//!
//! [`walk`] reaches its pointer, which was born late enough. [`reads`] decides the form of the block in the stream (logical, compressed, raw, or
//! embedded), and starts the read. In its turn, [`records`] waits for the read and makes a WRITE of it. [`writer`] writes the pending record,
//! this record and the block, and adds them to the checksum.
//!
//! # Invariants
//!
//! 1. Records are in the order of objects and offsets; no byte of an object is written twice.
//! 2. Memory: blocks of `ahead_bytes` at most, or one; 8192 changes; a block for each level of two trees.
//! 3. The stream of a snapshot depends only on the snapshot, the incremental source and the flags.
//! 4. A block that cannot be read ends the stream with an error, before END: no receiver takes the stream for complete.
//!
//! # Crash
//!
//! Nothing is written to the pool. The receiver refuses an interrupted stream, or resumes it from where it stopped.
//!
//! # Rejected
//!
//! A task for each stage with queues between them, like OpenZFS's threads: two tasks keep devices as busy. Reading through the cache: a stream
//! reads everything once.

mod begin;
mod error;
mod estimate;
mod features;
mod reads;
mod records;
pub mod redact;
mod redaction;
mod source;
mod token;
mod walk;
mod writer;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dsl::Dataset;
use cenote_format::dsl::DatasetFlags;
use cenote_format::ids::{BlockId, Guid, ObjectId, Txg};
use cenote_format::stream::{Begin, BeginFlags, Features, HeaderKind};
use cenote_spa::View;
use cenote_taskq::yield_now;

pub use self::error::SenderError;
pub use self::estimate::estimate;
pub use self::source::Base;
pub use self::token::{ResumeToken, TokenError};

use self::reads::{Forms, Items};
use self::records::Records;
use self::redaction::{List, Merge};
use self::source::Source;
use self::walk::{Place, Walk, WalkOptions};
use self::writer::StreamWriter;

/// Bytes after which other tasks get a turn. Blocks that were read ahead end no poll, and an output that collects bytes holds those of one poll.
const TURN_BYTES: u64 = 1 << 20;
/// Bytes of blocks to read ahead, by default.
pub const AHEAD_BYTES: u64 = 32 << 20;

/// The optional forms of records in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Blocks above 128 KiB (`-L`).
    pub large_blocks: bool,
    /// Embedded blocks (`-e`).
    pub embedded: bool,
    /// Blocks as compressed on disk (`-c`).
    pub compressed: bool,
    /// Blocks of encrypted datasets as stored on disk; and all of the above (`-w`).
    pub raw: bool,
}

/// The place at which an interrupted stream resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    /// The object.
    pub object: u64,
    /// The offset in it, in bytes.
    pub offset: u64,
}

/// A partially received stream that its receiver sends on (`-S`).
#[derive(Clone, Debug)]
pub struct Saved {
    /// The snapshot that it will become.
    pub guid: Guid,
    /// That snapshot's name at the original sender.
    pub name: String,
}

/// A stream to be made.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// The snapshot, or a dataset that does not change.
    pub to: Dataset,
    /// The incremental source, which receivers have; `None` for a full stream.
    pub base: Option<Base>,
    /// The optional forms of records.
    pub flags: SendFlags,
    /// The place at which it resumes.
    pub resume: Option<ResumePoint>,
    /// The redaction list of the blocks to leave out.
    pub redact: Option<ObjectId>,
    /// A partially received stream.
    pub saved: Option<Saved>,
    /// Blocks that cannot be read are sent as a pattern (`zfs_send_corrupt_data`).
    pub sends_corrupt: bool,
    /// Bytes of blocks to read ahead.
    pub ahead_bytes: u64,
    /// Only the stream's length is wanted: nothing is written and no data is read.
    pub is_dry: bool,
}

impl SendRequest {
    /// A full stream of a snapshot.
    #[must_use]
    pub fn full(to: Dataset, flags: SendFlags) -> Self {
        Self {
            to,
            base: None,
            flags,
            resume: None,
            redact: None,
            saved: None,
            sends_corrupt: false,
            ahead_bytes: AHEAD_BYTES,
            is_dry: false,
        }
    }
}

/// The progress of a stream, for other tasks.
#[derive(Debug, Default)]
pub struct SendProgress {
    bytes: AtomicU64,
    blocks: AtomicU64,
}

impl SendProgress {
    /// Bytes written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Changes reached.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
}

/// Writes a stream to `out`, which may block. Returns its length in bytes.
///
/// # Errors
/// A block cannot be read, the dataset cannot be sent in this way, or `out` fails: the receiver then gets a stream without END.
pub async fn send(
    pool: &View,
    request: &SendRequest,
    out: &mut (dyn Write + Send),
    progress: &SendProgress,
) -> Result<u64, SenderError> {
    send_if(pool, request, out, progress, &mut || Ok(())).await
}

/// As [`send`], but calls `check` before END, which must confirm the data read: another writer of the pool may have reused blocks.
///
/// # Errors
/// As for [`send`], and the error of `check`.
pub async fn send_if(
    pool: &View,
    request: &SendRequest,
    out: &mut (dyn Write + Send),
    progress: &SendProgress,
    check: &mut (dyn FnMut() -> Result<(), SenderError> + Send),
) -> Result<u64, SenderError> {
    let dsl = pool.dsl();
    let source = match request.saved {
        None => Source::open(dsl, request.to.clone(), request.flags.raw).await?,
        Some(_) => Source::open_saved(dsl, request.to.clone(), request.flags.raw).await?,
    };
    let name = source.name();
    let mut features = features::features(pool, &source, request.flags).await?;
    if request.resume.is_some() {
        features |= Features::RESUMING;
    }
    let own_redaction = dsl.redaction_snapshots(&source.dataset).await?;
    // For a dataset that was received redacted OpenZFS leaves the flag out, so its receivers do not know that the copy is redacted.
    if request.redact.is_some() || own_redaction.is_some() {
        features |= Features::REDACTED;
    }
    let place = match request.resume {
        None => None,
        Some(resume) => Some(place(&source, resume).await?),
    };
    let redact = match request.redact {
        None => None,
        Some(object) => Some(List::open(dsl, object, place).await?),
    };
    let from = match &request.base {
        Some(base) if base.redaction_list.0 != 0 => Some(List::open(dsl, base.redaction_list, place).await?),
        _ => None,
    };
    let redacted = match &redact {
        Some(list) => Some(list.snapshots.clone()),
        None => own_redaction,
    };
    let from_redacted = match &from {
        Some(list) => Some(list.snapshots.clone()),
        None => request.base.as_ref().and_then(|base| base.redaction_snapshots.clone()),
    };
    let is_raw = features.contains(Features::RAW);
    let key = if is_raw { Some(begin::key(pool, &source, request.base.as_ref()).await?) } else { None };
    let resume = request.resume.map(|resume| (resume.object, resume.offset));
    let payload = begin::payload(redacted, from_redacted, resume, key);

    let (endian, to_guid) = (source.endian(), source.dataset.phys.guid);
    let since = request.base.as_ref().map_or(Txg(0), |base| base.txg);
    let meta = source.objset.phys().meta_dnode.clone();
    let out = if request.is_dry { None } else { Some(out) };
    let mut out = StreamWriter::new(out, endian, to_guid, meta.max_block_id.saturating_add(1));
    out.begin(begin_record(&source, request, features)?, &payload)?;
    progress.bytes.store(out.bytes(), Ordering::Relaxed);

    let name: Arc<str> = name.into();
    let forms = Forms { features, endian };
    let options = WalkOptions {
        since,
        from: place,
        is_raw,
        is_encrypted: source.is_encrypted,
        skips_unreadable: request.sends_corrupt,
    };
    let walk = Walk::new(name.clone(), source.objset.clone(), options);
    let merge = Merge::new(walk, redact, from);
    let mut items = Items::new(merge, forms, request.ahead_bytes, since, !request.is_dry)?;
    let (sends_corrupt, is_dry) = (request.sends_corrupt, request.is_dry);
    let records = Records { dataset: name, forms, to_guid, since, sends_corrupt, is_dry };
    let mut turn_bytes = out.bytes();
    while let Some(item) = items.next().await? {
        progress.blocks.fetch_add(1, Ordering::Relaxed);
        records.put(item, &mut out).await?;
        progress.bytes.store(out.bytes(), Ordering::Relaxed);
        if out.bytes() - turn_bytes >= TURN_BYTES {
            turn_bytes = out.bytes();
            yield_now().await;
        }
    }
    pool.check()?;
    check()?;
    let bytes = out.end(request.saved.is_none())?;
    progress.bytes.store(bytes, Ordering::Relaxed);
    Ok(bytes)
}

fn begin_record(source: &Source, request: &SendRequest, features: Features) -> Result<Begin, SenderError> {
    let phys = &source.dataset.phys;
    let mut flags = BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK;
    if request.base.as_ref().is_some_and(|base| base.is_elsewhere) {
        flags |= BeginFlags::CLONE;
    }
    if phys.flags.contains(DatasetFlags::CASE_INSENSITIVE) {
        flags |= BeginFlags::CI_DATA;
    }
    let (to_guid, to_name) = match &request.saved {
        Some(saved) => (saved.guid, saved.name.clone()),
        None if source.dataset.is_snapshot() => (phys.guid, source.name()),
        None => (phys.guid, format!("{}@--head--", source.name())),
    };
    if to_name.len() > Begin::NAME_BYTES_MAX {
        return Err(SenderError::NameTooLong(to_name));
    }
    Ok(Begin {
        header: HeaderKind::Substream,
        features,
        reserved: 0,
        creation_time: phys.creation_time,
        objset_type: source.objset_type.number().into(),
        flags,
        to_guid,
        from_guid: request.base.as_ref().map_or(Guid(0), |base| base.guid),
        to_name: to_name.into_bytes(),
    })
}

/// The block at which a stream resumes.
async fn place(source: &Source, resume: ResumePoint) -> Result<Place, SenderError> {
    let absent = || SenderError::NoSuchObject { dataset: source.name(), object: ObjectId(resume.object) };
    if resume.object == 0 {
        return Err(absent());
    }
    let object = source.objset.object(ObjectId(resume.object)).await;
    let object = object.map_err(|error| if error.is_absent() { absent() } else { error.into() })?;
    Ok(Place { object: resume.object, block: BlockId(resume.offset / object.block_bytes().max(1)).0 })
}
