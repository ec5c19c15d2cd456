//! Reading blocks ahead of their turn.
//!
//! A task walks and starts the read of each block that it finds, while the writer of the stream processes the previous batch. So one batch is
//! written while the next is read, and no more than two are in memory. One task reads several small blocks, and adjacent ones by one request: a
//! task and a request for each would cost more than everything else.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, BlkptrKind};
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::stream::Features;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Join, join_all};
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Zio, ZioError};

use super::error::SenderError;
use super::redaction::Merge;
use super::walk::{Change, SPILL};

/// Changes in a batch at most, including those without a block.
const CHANGES_MAX: usize = 4096;
/// Blocks that one task reads at most, and their bytes: enough to keep devices busy together with other tasks.
const SHARED_BLOCKS: usize = 64;
const SHARED_BYTES: u64 = 256 << 10;
/// Blocks of at least this size are read by a task each.
const SHARED_BLOCK_MAX_BYTES: u64 = 32 << 10;
/// The largest block of a stream without large blocks.
pub(super) const OLD_BLOCK_BYTES: u32 = 128 << 10;

/// The form in which a block is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Decrypted and decompressed.
    Logical,
    /// As compressed on disk, but not encrypted.
    Compressed,
    /// As stored on disk.
    Raw,
    /// Embedded in the pointer.
    Embedded,
}

impl Form {
    /// True if the bytes of a block in this form are those on disk.
    pub(super) fn is_as_stored(self, bp: &Blkptr) -> bool {
        match self {
            Form::Raw => true,
            Form::Compressed => !bp.uses_crypt(),
            Form::Logical => {
                bp.compress() == Some(Compress::Off) && bp.psize_bytes() == bp.lsize_bytes() && !bp.uses_crypt()
            }
            Form::Embedded => false,
        }
    }
}

/// The rules that determine the form of a block.
#[derive(Clone, Copy)]
pub(super) struct Forms {
    pub(super) features: Features,
    /// The stream's byte order.
    pub(super) endian: Endian,
}

impl Forms {
    /// True if a block is sent in pieces.
    pub(super) fn splits(&self, block_bytes: u32) -> bool {
        block_bytes > OLD_BLOCK_BYTES && !self.features.contains(Features::LARGE_BLOCKS)
    }

    pub(super) fn form(&self, bp: &Blkptr, block_bytes: u32) -> Form {
        // A receiver of a stream without large blocks could not place an undivided large block.
        if self.embeds(bp) && !self.splits(block_bytes) {
            return Form::Embedded;
        }
        if self.features.contains(Features::RAW) {
            return Form::Raw;
        }
        let keeps = self.features.contains(Features::COMPRESSED)
            && !self.splits(block_bytes)
            && bp.byte_order() == self.endian
            && !bp.is_embedded()
            && !bp.dmu_type().is_metadata()
            && bp.compress() != Some(Compress::Off);
        if keeps { Form::Compressed } else { Form::Logical }
    }

    /// The form of spill blocks: they are metadata, and there is no record for an embedded spill block. OpenZFS sends such a block as data, at
    /// an offset beyond all files, and receivers lose the attributes in it.
    pub(super) fn spill_form(&self) -> Form {
        if self.features.contains(Features::RAW) { Form::Raw } else { Form::Logical }
    }

    fn embeds(&self, bp: &Blkptr) -> bool {
        let has = |feature| self.features.contains(feature);
        let lz4 = Compress::Lz4.number();
        bp.kind() == BlkptrKind::Embedded
            && has(Features::EMBED_DATA)
            && (bp.compress_number() < lz4 || has(Features::LZ4))
            && (bp.compress() != Some(Compress::Zstd) || has(Features::ZSTD))
    }
}

/// The result of a read; `None` if the read was cancelled, because the pool is being closed.
type ReadResult = Option<Result<Block, ZioError>>;

/// The source of a read's bytes.
enum Bytes {
    /// The pointer, or nothing is read.
    Pointer,
    /// A task of its own.
    Task(Option<Join<Result<Block, ZioError>>>),
    /// A task that reads several blocks. Their items follow in the order in which the task got them.
    Shared,
    /// The read is done.
    Done(ReadResult),
}

/// A read under way.
pub(super) struct Read {
    pub(super) form: Form,
    from: Bytes,
}

impl Read {
    /// The bytes; `Some(Ok(None))` if they are in the pointer. `None` if the read was cancelled.
    pub(super) async fn bytes(self) -> Option<Result<Option<Block>, ZioError>> {
        let done = match self.from {
            Bytes::Pointer if self.form == Form::Embedded => return Some(Ok(None)),
            Bytes::Pointer | Bytes::Task(None) => None,
            Bytes::Task(Some(join)) => join.await.ok(),
            Bytes::Shared => unreachable!("an item is handed out with the result of a shared read"),
            Bytes::Done(done) => done,
        };
        done.map(|result| result.map(Some))
    }
}

/// A block to be read.
struct Wanted {
    object: ObjectId,
    block: BlockId,
    bp: Blkptr,
    form: Form,
}

/// A task that reads several blocks.
struct SharedRead {
    /// `None` if it could not be started, because the pool is being closed.
    join: Option<Join<Vec<Result<Block, ZioError>>>>,
    block_count: usize,
}

/// Blocks that one task will read.
#[derive(Default)]
struct Waiting {
    blocks: Vec<Wanted>,
    bytes: u64,
    started: VecDeque<SharedRead>,
}

impl Waiting {
    fn push(&mut self, objset: &Objset, wanted: Wanted) {
        self.bytes += wanted.bp.psize_bytes();
        self.blocks.push(wanted);
        if self.blocks.len() >= SHARED_BLOCKS || self.bytes >= SHARED_BYTES {
            self.start(objset);
        }
        debug_assert!(
            self.blocks.len() < SHARED_BLOCKS && self.bytes < SHARED_BYTES,
            "blocks that wait are fewer than one task reads (invariant 2)"
        );
    }

    fn start(&mut self, objset: &Objset) {
        let blocks = std::mem::take(&mut self.blocks);
        self.bytes = 0;
        if blocks.is_empty() {
            return;
        }
        let (reader, block_count) = (objset.clone(), blocks.len());
        assert!(block_count <= SHARED_BLOCKS, "a task reads so many blocks at most (invariant 2)");
        let reads = async move { read_all(&reader, &blocks).await };
        let join = objset.dmu().detached().spawn(Class::Issue, reads).ok();
        self.started.push_back(SharedRead { join, block_count });
    }
}

/// A change and the read of its block, if it has one: its own, or the unchanged spill block of an object.
pub(super) struct Item {
    pub(super) change: Change,
    pub(super) read: Option<Read>,
}

/// The result of the task that produces a batch.
type Batch = (Box<Merge>, Result<Found, SenderError>);

/// A batch of changes.
struct Found {
    items: Vec<Item>,
    shared: VecDeque<SharedRead>,
    is_last: bool,
}

enum Producer {
    Working(Join<Batch>),
    Done,
}

/// The changes of a dataset, with their reads.
pub(super) struct Items {
    forms: Forms,
    /// Bytes of blocks in a batch.
    batch_bytes: u64,
    producer: Producer,
    items: std::vec::IntoIter<Item>,
    /// Shared reads of those items, and results that were read but not yet returned.
    shared: VecDeque<SharedRead>,
    read: std::vec::IntoIter<ReadResult>,
    objset: Objset,
    dataset: Arc<str>,
    spill_since: Txg,
    reads: bool,
}

impl Items {
    /// `ahead_bytes`: the maximum bytes of blocks in memory. `spill_since`: spill blocks that were born up to it are sent with their objects. If
    /// not `reads`, no block is read.
    pub(super) fn new(
        merge: Merge,
        forms: Forms,
        ahead_bytes: u64,
        spill_since: Txg,
        reads: bool,
    ) -> Result<Self, SenderError> {
        let (objset, dataset) = (merge.walk().objset().clone(), merge.walk().dataset().clone());
        let mut this = Self {
            forms,
            batch_bytes: ahead_bytes / 2,
            producer: Producer::Done,
            items: Vec::new().into_iter(),
            shared: VecDeque::new(),
            read: Vec::new().into_iter(),
            objset,
            dataset,
            spill_since,
            reads,
        };
        this.produce(Box::new(merge))?;
        Ok(this)
    }

    fn interrupted(&self) -> SenderError {
        SenderError::Interrupted(self.dataset.to_string())
    }

    fn produce(&mut self, mut merge: Box<Merge>) -> Result<(), SenderError> {
        let (forms, batch_bytes, spill_since) = (self.forms, self.batch_bytes, self.spill_since);
        let objset = self.reads.then(|| self.objset.clone());
        let work = async move {
            let batch = batch(&mut merge, objset.as_ref(), forms, batch_bytes, spill_since).await;
            (merge, batch)
        };
        let join = self.objset.dmu().detached().spawn(Class::Issue, work).map_err(|_| self.interrupted())?;
        self.producer = Producer::Working(join);
        Ok(())
    }

    /// The next item; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Item>, SenderError> {
        loop {
            if let Some(mut item) = self.items.next() {
                if let Some(Read { from: from @ Bytes::Shared, .. }) = &mut item.read {
                    *from = Bytes::Done(self.next_shared().await);
                }
                return Ok(Some(item));
            }
            assert!(self.read.len() == 0 && self.shared.is_empty(), "each block that was read is handed out");
            let Producer::Working(join) = std::mem::replace(&mut self.producer, Producer::Done) else {
                return Ok(None);
            };
            let (merge, batch) = join.await.map_err(|_| self.interrupted())?;
            let Found { items, shared, is_last } = batch?;
            (self.items, self.shared) = (items.into_iter(), shared);
            if !is_last {
                self.produce(merge)?;
            }
        }
    }

    /// The result of the next shared read.
    async fn next_shared(&mut self) -> ReadResult {
        if let Some(done) = self.read.next() {
            return done;
        }
        let shared = self.shared.pop_front()?;
        let read = match shared.join {
            Some(join) => join.await.ok(),
            None => None,
        };
        let done: Vec<ReadResult> = match read {
            Some(read) => read.into_iter().map(Some).collect(),
            None => (0..shared.block_count).map(|_| None).collect(),
        };
        assert_eq!(done.len(), shared.block_count, "each block of a shared read has its result");
        self.read = done.into_iter();
        self.read.next().flatten()
    }
}

/// Walks until the batch is full.
async fn batch(
    merge: &mut Merge,
    objset: Option<&Objset>,
    forms: Forms,
    batch_bytes: u64,
    spill_since: Txg,
) -> Result<Found, SenderError> {
    let (mut items, mut bytes, mut is_last) = (Vec::new(), 0, false);
    let mut waiting = Waiting::default();
    while items.len() < CHANGES_MAX && (bytes < batch_bytes || items.is_empty()) {
        let Some(change) = merge.next().await? else {
            is_last = true;
            break;
        };
        let mut start =
            |object, block, bp: Blkptr, form| start(objset, &mut waiting, Wanted { object, block, bp, form });
        let read = match &change {
            Change::Data { shape, block, bp } => {
                bytes += bp.lsize_bytes();
                Some(start(shape.object, BlockId(*block), *bp, forms.form(bp, shape.block_bytes)))
            }
            Change::Spill { object, bp } => {
                bytes += bp.lsize_bytes();
                Some(start(*object, SPILL, *bp, forms.spill_form()))
            }
            Change::Object { object, dnode } => {
                bytes += dnode.bytes().len() as u64;
                let unchanged = |bp: &Blkptr| bp.logical_birth() <= spill_since;
                dnode.phys.spill.filter(|bp| unchanged(bp) && !bp.is_hole()).map(|bp| {
                    bytes += bp.lsize_bytes();
                    start(*object, SPILL, bp, forms.spill_form())
                })
            }
            _ => None,
        };
        items.push(Item { change, read });
    }
    if let Some(objset) = objset {
        waiting.start(objset);
    }
    assert!(items.len() <= CHANGES_MAX, "a batch has so many changes at most (invariant 2)");
    debug_assert!(is_last || !items.is_empty(), "a batch that is not the last has a change");
    debug_assert_eq!(
        waiting.started.iter().map(|shared| shared.block_count).sum::<usize>(),
        items.iter().filter(|item| matches!(&item.read, Some(Read { from: Bytes::Shared, .. }))).count(),
        "each item of a shared read is one of its blocks"
    );
    Ok(Found { items, shared: waiting.started, is_last })
}

fn start(objset: Option<&Objset>, waiting: &mut Waiting, wanted: Wanted) -> Read {
    let (bp, form) = (wanted.bp, wanted.form);
    let Some(objset) = objset.filter(|_| form != Form::Embedded) else { return Read { form, from: Bytes::Pointer } };
    if !bp.is_embedded() && bp.psize_bytes().max(bp.lsize_bytes()) < SHARED_BLOCK_MAX_BYTES {
        waiting.push(objset, wanted);
        return Read { form, from: Bytes::Shared };
    }
    let reader = objset.clone();
    let work = async move { read(&reader, &wanted).await };
    // If the group of tasks is closed, the read counts as cancelled.
    Read { form, from: Bytes::Task(objset.dmu().detached().spawn(Class::Issue, work).ok()) }
}

/// Reads several blocks: adjacent ones by one request.
async fn read_all(objset: &Objset, blocks: &[Wanted]) -> Vec<Result<Block, ZioError>> {
    let mut found: Vec<Option<Result<Block, ZioError>>> = Vec::with_capacity(blocks.len());
    for Wanted { object, block, bp, form } in blocks {
        let context = objset.context(*object, 0, *block);
        let cached = if *form == Form::Logical { objset.dmu().cached(bp, context) } else { None };
        found.push(cached.map(Ok));
    }
    let (mut runs, mut at) = (Vec::new(), 0);
    while at < blocks.len() {
        let start = at;
        at += 1;
        if found[start].is_some() {
            continue;
        }
        while at < blocks.len() && found[at].is_none() {
            let (last, next) = (&blocks[at - 1], &blocks[at]);
            let are_stored = last.form.is_as_stored(&last.bp) && next.form.is_as_stored(&next.bp);
            if !(are_stored && Zio::are_neighbours(&last.bp, &next.bp)) {
                break;
            }
            at += 1;
        }
        runs.push(start..at);
    }
    let reads = runs.iter().map(|run| read_run(objset, &blocks[run.clone()]));
    for (run, read) in runs.iter().zip(join_all(reads).await) {
        assert_eq!(read.len(), run.len(), "each block is read once");
        found[run.clone()].iter_mut().zip(read).for_each(|(found, read)| *found = Some(read));
    }
    found.into_iter().map(|found| found.expect("what was not cached is in a run")).collect()
}

/// Reads adjacent blocks, or one block.
async fn read_run(objset: &Objset, blocks: &[Wanted]) -> Vec<Result<Block, ZioError>> {
    if blocks.len() > 1 {
        let bps: Vec<Blkptr> = blocks.iter().map(|wanted| wanted.bp).collect();
        if let Some(read) = objset.dmu().zio().read_neighbours(&bps, QueueClass::AsyncRead).await {
            debug_assert_eq!(read.len(), blocks.len(), "neighbours are read as a whole");
            return read.into_iter().map(Ok).collect();
        }
    }
    let reads = blocks.iter().map(|wanted| read(objset, wanted));
    join_all(reads).await
}

async fn read(objset: &Objset, wanted: &Wanted) -> Result<Block, ZioError> {
    let Wanted { object, block, bp, form } = wanted;
    let context = objset.context(*object, 0, *block).of_class(QueueClass::AsyncRead);
    let zio = objset.dmu().zio();
    match form {
        Form::Raw => zio.read_physical(bp, context).await,
        Form::Compressed => zio.read_compressed(bp, context).await,
        Form::Logical | Form::Embedded => objset.dmu().read_uncached(bp, context).await,
    }
}
