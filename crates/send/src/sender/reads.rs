//! Blocks that are read before their turn comes.
//!
//! A task walks and starts the read of each block that it finds; whoever writes the stream takes what the task before it found. So
//! while one batch is written the next is read, and no more than two are in memory.

use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, BlkptrKind};
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::stream::Features;
use cenote_taskq::buf::Block;
use cenote_taskq::{Class, Join};
use cenote_vdev::queue::QueueClass;
use cenote_zio::ZioError;

use super::error::SenderError;
use super::redaction::Merge;
use super::walk::{Change, SPILL};

/// Changes of a batch at most, those without a block included.
const CHANGES_MAX: usize = 4096;
/// The largest block of a stream without large blocks.
pub(super) const OLD_BLOCK_BYTES: u32 = 128 << 10;

/// The form in which a block is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the reader of the file sees it.
    Logical,
    /// As compressed on disk, but not encrypted.
    Compressed,
    /// As it lies on disk.
    Raw,
    /// From the pointer.
    Embedded,
}

/// The rules by which blocks are sent in one form or another.
#[derive(Clone, Copy)]
pub(super) struct Forms {
    pub(super) features: Features,
    /// Of the stream.
    pub(super) endian: Endian,
}

impl Forms {
    /// True if a block is sent in pieces.
    pub(super) fn splits(&self, block_bytes: u32) -> bool {
        block_bytes > OLD_BLOCK_BYTES && !self.features.contains(Features::LARGE_BLOCKS)
    }

    pub(super) fn form(&self, bp: &Blkptr, block_bytes: u32) -> Form {
        // A receiver of a stream without large blocks could not place a large one that comes whole.
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

    /// The form of spill blocks: they are metadata, and there is no record of a spill block in a pointer. OpenZFS sends such a block
    /// as data, at an offset where no file has any, and receivers lose the attributes in it.
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

/// A read under way.
pub(super) struct Read {
    pub(super) form: Form,
    /// `None` where the bytes are in the pointer, or the pool is being closed.
    join: Option<Join<Result<Block, ZioError>>>,
}

impl Read {
    /// The bytes; none of them if they are in the pointer. `None` if the read did not come to an end.
    pub(super) async fn bytes(self) -> Option<Result<Option<Block>, ZioError>> {
        match self.join {
            None if self.form == Form::Embedded => Some(Ok(None)),
            None => None,
            Some(join) => join.await.ok().map(|result| result.map(Some)),
        }
    }
}

/// A change, with the read of its block where it has one: its own, or the unchanged spill block of an object.
pub(super) struct Item {
    pub(super) change: Change,
    pub(super) read: Option<Read>,
}

/// The result of a task.
type Batch = (Box<Merge>, Result<(Vec<Item>, bool), SenderError>);

enum Producer {
    Working(Join<Batch>),
    Done,
}

/// The changes of a dataset, their blocks being read.
pub(super) struct Items {
    forms: Forms,
    /// Bytes of blocks of a batch.
    batch_bytes: u64,
    producer: Producer,
    items: std::vec::IntoIter<Item>,
    objset: Objset,
    dataset: Arc<str>,
    spill_since: Txg,
    reads: bool,
}

impl Items {
    /// `ahead_bytes`: of blocks that are in memory at once. `spill_since`: spill blocks that were born up to it are sent with their
    /// objects. `reads`: without it no block is read.
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

    /// The next; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Item>, SenderError> {
        loop {
            if let Some(item) = self.items.next() {
                return Ok(Some(item));
            }
            let Producer::Working(join) = std::mem::replace(&mut self.producer, Producer::Done) else {
                return Ok(None);
            };
            let (merge, batch) = join.await.map_err(|_| self.interrupted())?;
            let (items, is_last) = batch?;
            self.items = items.into_iter();
            if !is_last {
                self.produce(merge)?;
            }
        }
    }
}

/// Walks until enough is being read. `true` with the last batch.
async fn batch(
    merge: &mut Merge,
    objset: Option<&Objset>,
    forms: Forms,
    batch_bytes: u64,
    spill_since: Txg,
) -> Result<(Vec<Item>, bool), SenderError> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while items.len() < CHANGES_MAX && (bytes < batch_bytes || items.is_empty()) {
        let Some(change) = merge.next().await? else { return Ok((items, true)) };
        let start = |object, block, bp: Blkptr, form| start(objset, object, block, bp, form);
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
    Ok((items, false))
}

fn start(objset: Option<&Objset>, object: ObjectId, block: BlockId, bp: Blkptr, form: Form) -> Read {
    let Some(objset) = objset.filter(|_| form != Form::Embedded) else { return Read { form, join: None } };
    let reader = objset.clone();
    let read = async move {
        let context = reader.context(object, 0, block).of_class(QueueClass::AsyncRead);
        let zio = reader.dmu().zio();
        match form {
            Form::Raw => zio.read_physical(&bp, context).await,
            Form::Compressed => zio.read_compressed(&bp, context).await,
            Form::Logical | Form::Embedded => reader.dmu().read_uncached(&bp, context).await,
        }
    };
    // A closed group shows as a read that did not come to an end.
    Read { form, join: objset.dmu().detached().spawn(Class::Issue, read).ok() }
}
