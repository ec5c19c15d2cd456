//! Applies records to the dataset: data, holes, spill blocks, and freed objects. OBJECT records are in [`super::object`].

use std::ops::Range;

use cenote_codec::compress::decompress;
use cenote_dmu::tx::{Cost, Tx};
use cenote_dmu::{DmuErrorKind, Object, Objset};
use cenote_format::blkptr::MIN_BLOCK_BYTES;
use cenote_format::dmu_type::{Byteswap, DmuType};
use cenote_format::enums::Compress;
use cenote_format::ids::ObjectId;
use cenote_format::objset::ObjsetFlags;
use cenote_format::stream::{BLOCK_PAYLOAD_BYTES_MAX, BeginFlags, Body, Features, Free, FreeObjects, Spill, Write};
use cenote_format::stream::{RecordFlags, Redact, WriteEmbedded};
use cenote_format::{Endian, byteswap};
use cenote_spa::{LiveHead, ReceivePoint};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::{ReadyBlock, ReadyForm, Seal};

use super::deferred::{Deferred, Incoming};
use super::{Header, ReceiverError};
use crate::StreamItem;

/// Object numbers end here (`DN_MAX_OBJECT`).
pub(super) const OBJECTS_END: u64 = 1 << 48;
/// Bytes of redacted blocks that one transaction records.
const REDACT_STEP_BYTES: u64 = 16 << 20;
/// Blocks of an object freed in one transaction, if nothing else limits it.
const FREE_BLOCKS_MAX: u64 = 1 << 16;
/// Blocks of this size need no feature.
pub(super) const PLAIN_BLOCK_MAX_BYTES: u64 = 128 << 10;
/// The bytes that an embedded block may have at most (`BPE_PAYLOAD_SIZE`).
const EMBEDDED_MAX_BYTES: usize = 112;

/// The compression with this number in a record. No compression is 0 in records, and 2 in pointers.
pub(super) fn compression(number: u8) -> Option<Compress> {
    let found = Compress::from_number(number);
    found.filter(|compress| !matches!(compress, Compress::Inherit | Compress::On | Compress::Off | Compress::Empty))
}

/// Applies the records of one stream, in their order.
pub(super) struct Applier {
    head: LiveHead,
    pub(super) features: Features,
    /// OBJECT records tell of spill blocks.
    pub(super) tells_spill: bool,
    /// The dataset accounts space by owners.
    pub(super) counts_owners: bool,
    /// The stream brings the whole dataset.
    pub(super) is_whole: bool,
    /// Its blocks are encrypted.
    pub(super) is_raw: bool,
    /// The byte order of its sender.
    order: Endian,
    /// In a raw stream: the first object of the last OBJECT_RANGE's block of dnodes, and the block's seal.
    pub(super) range: Option<(u64, Seal)>,
    /// The object of the last record, since the next is often for the same.
    open: Option<Object>,
    point: ReceivePoint,
    pub(super) deferred: Deferred,
    /// The offset of the current record in the stream.
    at: u64,
}

impl Applier {
    pub(super) fn new(head: LiveHead, header: &Header, order: Endian, point: ReceivePoint) -> Self {
        let flags = head.objset().phys().flags;
        Self {
            head,
            counts_owners: flags.contains(ObjsetFlags::USERACCOUNTING_COMPLETE),
            features: header.begin.features,
            tells_spill: header.begin.flags.contains(BeginFlags::SPILL_BLOCK),
            is_whole: header.begin.from_guid.0 == 0,
            is_raw: header.is_raw(),
            order,
            range: None,
            open: None,
            point,
            deferred: Deferred::default(),
            at: 0,
        }
    }

    /// The place before which everything is received.
    pub(super) fn point(&self) -> ReceivePoint {
        debug_assert!(
            self.deferred.records.is_empty() || self.deferred.point.is_some(),
            "a receive resumes before the first deferred record (deferred, invariant 3)"
        );
        self.deferred.point.unwrap_or(self.point)
    }

    /// The furthest place received.
    pub(super) const fn reached(&self) -> ReceivePoint {
        self.point
    }

    pub(super) fn objset(&self) -> &Objset {
        self.head.objset()
    }

    pub(super) fn invalid(&self, what: impl Into<String>) -> ReceiverError {
        ReceiverError::Invalid { offset_bytes: self.at, what: what.into() }
    }

    pub(super) async fn begin(&self, cost: Cost) -> Result<Tx, ReceiverError> {
        Ok(self.head.begin(cost).await?)
    }

    /// Waits until everything is on disk, so that the numbers of freed objects can be used again.
    pub(super) async fn sync(&mut self) -> Result<(), ReceiverError> {
        self.open = None;
        self.head.pool().sync().await?;
        Ok(())
    }

    /// Applies one record, now or later. `read_bytes`: the bytes of the stream up to its end.
    pub(super) async fn apply(&mut self, item: &StreamItem<'_>, read_bytes: u64) -> Result<(), ReceiverError> {
        let (body, at) = (&item.decoded.record.body, item.decoded.offset_bytes);
        debug_assert!(item.block.is_none_or(|block| block.len() == item.payload.len()), "a block is the whole payload");
        self.take_record(Incoming { body, payload: item.payload, block: item.block, at, read_bytes }).await
    }

    /// Applies one record. False for an object without room yet: the slots of the old one are free only after a txg is on disk.
    pub(super) async fn make(&mut self, incoming: &Incoming<'_>) -> Result<bool, ReceiverError> {
        let Incoming { body, payload, block, at, read_bytes } = *incoming;
        self.at = at;
        match body {
            Body::Object(object) => {
                let is_made = match self.is_raw {
                    true => self.put_raw_object(object, payload).await?,
                    false => self.put_object(object, payload).await?,
                };
                if !is_made {
                    return Ok(false);
                }
                self.reach(object.object, 0, read_bytes);
            }
            Body::FreeObjects(range) => self.free_objects(range).await?,
            Body::Write(write) => {
                match self.is_raw {
                    true => self.write_raw(write, payload).await?,
                    false => self.write(write, payload, block).await?,
                }
                self.reach(write.object, write.offset_bytes, read_bytes);
            }
            Body::WriteEmbedded(write) => {
                self.write_embedded(write, payload).await?;
                if write.offset_bytes <= i64::MAX as u64 {
                    self.reach(write.object, write.offset_bytes, read_bytes);
                }
            }
            Body::Free(free) => self.free(free).await?,
            Body::Spill(spill) if self.is_raw => self.spill_raw(spill, payload).await?,
            Body::Spill(spill) => self.spill(spill, payload).await?,
            Body::ObjectRange(range) if self.is_raw => self.object_range(range)?,
            Body::WriteByRef(_) => return Err(ReceiverError::Dedup),
            Body::Redact(redact) if self.features.contains(Features::REDACTED) => {
                self.redact(redact).await?;
                self.reach(redact.object, redact.offset_bytes, read_bytes);
            }
            Body::Redact(_) | Body::ObjectRange(_) => {
                return Err(self.invalid("a record that the stream's features do not allow"));
            }
            Body::Begin(_) | Body::End(_) => unreachable!("the decoder knows the order of records"),
        }
        Ok(true)
    }

    fn reach(&mut self, object: ObjectId, offset_bytes: u64, bytes: u64) {
        // Records out of order can be applied, but a receive cannot resume from them.
        if (object.0, offset_bytes) >= (self.point.object, self.point.offset_bytes) {
            self.point = ReceivePoint { object: object.0, offset_bytes, bytes };
        }
    }

    /// The object with this number, if it exists.
    pub(super) async fn find(&mut self, id: ObjectId) -> Result<Option<Object>, ReceiverError> {
        if let Some(open) = self.open.as_ref().filter(|open| open.id() == id && !open.is_removed()) {
            return Ok(Some(open.clone()));
        }
        if id.0 == 0 || id.0 >= OBJECTS_END {
            return Err(self.invalid(format!("object {} is none that a dataset has", id.0)));
        }
        match self.objset().object(id).await {
            Ok(object) => {
                assert_eq!(object.id(), id, "a record changes the object that it names (invariant 1)");
                self.open = Some(object.clone());
                Ok(Some(object))
            }
            Err(error) if matches!(error.kind, DmuErrorKind::NoSuchObject) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn keep_open(&mut self, object: Object) {
        self.open = Some(object);
    }

    pub(super) async fn existing(&mut self, id: ObjectId) -> Result<Object, ReceiverError> {
        let found = self.find(id).await?;
        found.ok_or_else(|| self.invalid(format!("it is for object {}, which there is not", id.0)))
    }

    /// The contents of an object or bonus of this kind in our byte order, if they arrived in the other one.
    pub(super) fn turned(&self, kind: DmuType, bytes: &[u8]) -> Result<Option<Vec<u8>>, ReceiverError> {
        let swaps = kind.byteswap().unwrap_or(Byteswap::Uint8);
        if self.order == cenote_dmu::ORDER || swaps == Byteswap::Uint8 {
            return Ok(None);
        }
        let mut turned = bytes.to_vec();
        byteswap::swap(swaps, &mut turned, self.order).map_err(|error| self.invalid(error.to_string()))?;
        debug_assert_eq!(turned.len(), bytes.len(), "another byte order has as many bytes");
        Ok(Some(turned))
    }

    /// A block's contents in our byte order, and true if they arrived in it.
    async fn native(&mut self, id: ObjectId, data: Block) -> Result<(Block, bool), ReceiverError> {
        if self.order == cenote_dmu::ORDER {
            return Ok((data, true));
        }
        let kind = self.existing(id).await?.phys().object_type;
        Ok(match self.turned(kind, &data)? {
            Some(turned) => (Block::copied_from(&turned), false),
            None => (data, true),
        })
    }

    async fn write(&mut self, write: &Write, payload: &[u8], block: Option<&Block>) -> Result<(), ReceiverError> {
        // Decompressed even if it is written as it arrived: data that does not decompress is invalid.
        let data = self.data(write.compress, write.logical_bytes, payload, block, Features::COMPRESSED)?;
        let (data, is_as_it_came) = self.native(write.object, data).await?;
        let ready = match compression(write.compress) {
            Some(compress) if is_as_it_came && payload.len() < data.len() => {
                let form = ReadyForm { compress, logical_bytes: data.len() as u32, seal: None, is_redacted: false };
                Some(ReadyBlock { bytes: block.map_or_else(|| Block::copied_from(payload), Block::clone), form })
            }
            _ => None,
        };
        self.put_data(write.object, write.offset_bytes, data, ready).await
    }

    async fn write_embedded(&mut self, write: &WriteEmbedded, payload: &[u8]) -> Result<(), ReceiverError> {
        if !self.features.contains(Features::EMBED_DATA) || write.embedded_type != 0 {
            return Err(self.invalid("a block in its pointer that the stream's features do not allow"));
        }
        let bytes = payload.get(..write.physical_bytes as usize).filter(|bytes| bytes.len() <= EMBEDDED_MAX_BYTES);
        let bytes = bytes.ok_or_else(|| self.invalid("a block in its pointer that does not fit there"))?;
        if u64::from(write.logical_bytes) != write.length_bytes {
            return Err(self.invalid("a block in its pointer that has two lengths"));
        }
        let data = self.data(write.compress, write.length_bytes, bytes, None, Features::EMBED_DATA)?;
        // OpenZFS up to 2.4 sends an embedded spill block as data at the end of all offsets (openzfs/zfs#19091), and its receivers lose the
        // attributes.
        if write.offset_bytes > i64::MAX as u64 {
            return self.put_spill(write.object, data).await;
        }
        let (data, _) = self.native(write.object, data).await?;
        self.put_data(write.object, write.offset_bytes, data, None).await
    }

    pub(super) fn check_block_size(&self, len: u64) -> Result<(), ReceiverError> {
        let limit = match self.features.contains(Features::LARGE_BLOCKS) {
            true => BLOCK_PAYLOAD_BYTES_MAX,
            false => PLAIN_BLOCK_MAX_BYTES,
        };
        match len < MIN_BLOCK_BYTES || len > limit {
            true => Err(self.invalid(format!("a block of {len} bytes, where {MIN_BLOCK_BYTES} to {limit} can be"))),
            false => Ok(()),
        }
    }

    /// True if the stream's features allow blocks with this compression.
    pub(super) const fn may_have(&self, compress: Compress) -> bool {
        match compress {
            Compress::Zstd => self.features.contains(Features::ZSTD),
            Compress::Lz4 => self.features.contains(Features::LZ4),
            _ => true,
        }
    }

    /// A block's bytes, of this length. `block`: the payload, if it is a block.
    fn data(
        &self,
        compress: u8,
        len: u64,
        payload: &[u8],
        block: Option<&Block>,
        needs: Features,
    ) -> Result<Block, ReceiverError> {
        self.check_block_size(len)?;
        let is_plain = matches!(Compress::from_number(compress), Some(Compress::Inherit | Compress::Off));
        let compress = compression(compress).filter(|found| self.features.contains(needs) && self.may_have(*found));
        if compress.is_none() && !is_plain {
            return Err(self.invalid("a compression that the stream's features do not allow"));
        }
        match compress {
            None if payload.len() as u64 == len => Ok(block.map_or_else(|| Block::copied_from(payload), Block::clone)),
            None => Err(self.invalid("its payload is not as long as it says")),
            Some(compress) => {
                let mut buf = Buf::zeroed(len as usize);
                decompress(compress, payload, &mut buf).map_err(|error| self.invalid(error.to_string()))?;
                Ok(buf.freeze())
            }
        }
    }

    /// Writes a block's bytes. `ready`: the stored form, if they are exactly one block of the object.
    async fn put_data(
        &mut self,
        id: ObjectId,
        offset_bytes: u64,
        data: Block,
        ready: Option<ReadyBlock>,
    ) -> Result<(), ReceiverError> {
        let object = self.existing(id).await?;
        let (size, len) = (object.block_bytes(), data.len() as u64);
        if offset_bytes.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(self.invalid("it reaches where no object does"));
        }
        assert!(
            (MIN_BLOCK_BYTES..=BLOCK_PAYLOAD_BYTES_MAX).contains(&len),
            "a block's length was checked (invariant 3)"
        );
        debug_assert!(ready.as_ref().is_none_or(|ready| (ready.bytes.len() as u64) < len), "a packed block is smaller");
        let tx = self.begin(Cost::write(offset_bytes, len, size)).await?;
        match (len == size && offset_bytes.is_multiple_of(size), ready) {
            (true, Some(ready)) => object.write_ready(tx.txg(), offset_bytes / size, ready),
            (true, None) => object.write_block(tx.txg(), offset_bytes / size, data),
            // Part of a block that is larger here, or several smaller blocks.
            (false, _) if len < size && mutant::is(Mutant::ReceiveTailForgotten) => {}
            (false, _) => object.write(tx.txg(), offset_bytes, &data).await?,
        }
        Ok(())
    }

    async fn free(&mut self, free: &Free) -> Result<(), ReceiverError> {
        let object = self.existing(free.object).await?;
        if mutant::is(Mutant::ReceiveFreesIgnored) {
            return Ok(());
        }
        let end = match free.length_bytes {
            Free::TO_THE_END => u64::MAX,
            len => free.offset_bytes.checked_add(len).ok_or_else(|| self.invalid("it reaches where no object does"))?,
        };
        match self.is_raw {
            true => self.free_raw(&object, free.offset_bytes..end).await,
            false => self.free_bytes(&object, free.offset_bytes..end).await,
        }
    }

    /// Marks blocks as redacted: reading them fails.
    async fn redact(&mut self, redact: &Redact) -> Result<(), ReceiverError> {
        let Redact { object, offset_bytes, length_bytes, to_guid } = *redact;
        if self.is_raw {
            // In an encrypted dataset, indirect blocks authenticate the sender's pointers, which are holes here.
            return self.free(&Free { object, offset_bytes, length_bytes, to_guid }).await;
        }
        let object = self.existing(object).await?;
        let size = object.block_bytes();
        let end = offset_bytes.checked_add(length_bytes).filter(|end| *end <= i64::MAX as u64 && length_bytes > 0);
        let end = end.ok_or_else(|| self.invalid("it reaches where no object does"))?;
        let (mut block, end) = (offset_bytes / size, end.div_ceil(size));
        let step = (REDACT_STEP_BYTES / size).max(1);
        while block < end {
            let until = end.min(block.saturating_add(step));
            assert!(block < until && until - block <= step, "a transaction records so many redacted blocks at most");
            let tx = self.begin(Cost::write(block * size, (until - block) * size, size)).await?;
            for block in block..until {
                object.write_ready(tx.txg(), block, ReadyBlock::redacted(size as u32));
            }
            block = until;
        }
        Ok(())
    }

    /// Frees a range of an object. If the range has no end, the object is truncated there.
    async fn free_bytes(&self, object: &Object, bytes: Range<u64>) -> Result<(), ReceiverError> {
        let size = object.block_bytes();
        let last = object.last_block().0;
        let is_empty = last == 0 && object.synced().is_none() && !object.has_written();
        if bytes.is_empty() || is_empty || bytes.start / size > last {
            return Ok(());
        }
        if bytes.end == u64::MAX {
            let kept = bytes.start.div_ceil(size);
            self.shrink(object, kept).await?;
            if !bytes.start.is_multiple_of(size) {
                let tx = self.begin(Cost::write(bytes.start, 1, size)).await?;
                let range = object.lock_bytes(bytes.start, kept * size - bytes.start).await;
                object.clear_in(&range, tx.txg(), bytes.start..kept * size).await?;
            }
            return Ok(());
        }
        let bytes = bytes.start..bytes.end.min((last + 1).saturating_mul(size));
        let mut at = bytes.start;
        while at < bytes.end {
            let extent = object.extent(at / size, bytes.end.div_ceil(size)).await?;
            if extent.is_hole {
                at = extent.blocks.end.saturating_mul(size);
                continue;
            }
            let end = bytes.end.min((at / size + self.step()).saturating_mul(size));
            debug_assert!(at < end, "each step frees some bytes");
            let tx = self.begin(Cost::write(at, 1, size).and(Cost::write(end, 1, size)).that_frees()).await?;
            self.objset().count_frees(tx.txg(), (end - at) / size);
            let range = object.lock_bytes(at, end - at).await;
            object.clear_in(&range, tx.txg(), at..end).await?;
            at = end;
        }
        Ok(())
    }

    pub(super) fn step(&self) -> u64 {
        self.objset().frees_max().map_or(FREE_BLOCKS_MAX, |max| max.clamp(1, FREE_BLOCKS_MAX))
    }

    /// Frees all but the first `kept` blocks of an object, in several transactions if one may not free so many.
    pub(super) async fn shrink(&self, object: &Object, kept: u64) -> Result<(), ReceiverError> {
        let count = object.last_block().0.saturating_add(1);
        if count.saturating_sub(kept) > self.step() {
            self.free_blocks(object, kept..count).await?;
        }
        let tx = self.begin(Cost::objects(1).that_frees()).await?;
        self.objset().count_frees(tx.txg(), count.saturating_sub(kept).min(self.step()));
        object.shrink(tx.txg(), kept);
        Ok(())
    }

    /// Frees blocks, in several transactions if one may not free so many. Holes are skipped: a few bytes can say that an object is as large as
    /// any.
    pub(super) async fn free_blocks(&self, object: &Object, blocks: Range<u64>) -> Result<(), ReceiverError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let extent = object.extent(at, blocks.end).await?;
            assert!(at < extent.blocks.end, "an extent has a block");
            if extent.is_hole {
                at = extent.blocks.end;
                continue;
            }
            let end = extent.blocks.end.min(at + self.step());
            let tx = self.begin(Cost::objects(1).that_frees()).await?;
            self.objset().count_frees(tx.txg(), end - at);
            object.free_blocks(tx.txg(), at..end);
            at = end;
        }
        Ok(())
    }

    /// Frees an object and all its blocks.
    pub(super) async fn free_object(&mut self, object: &Object) -> Result<(), ReceiverError> {
        self.open = None;
        if object.last_block().0 >= self.step() {
            self.shrink(object, 0).await?;
        }
        let tx = self.begin(Cost::objects(1).that_frees()).await?;
        self.objset().count_frees(tx.txg(), object.last_block().0.saturating_add(1).min(self.step()));
        object.free(tx.txg());
        Ok(())
    }

    async fn free_objects(&mut self, range: &FreeObjects) -> Result<(), ReceiverError> {
        let end = range.first_object.0.checked_add(range.object_count);
        let end = end.ok_or_else(|| self.invalid("more objects than there can be"))?.min(OBJECTS_END);
        let mut from = ObjectId(range.first_object.0.max(1));
        while from.0 < end && !mutant::is(Mutant::ReceiveFreeObjectsIgnored) {
            let Some(next) = self.objset().next_objects(from).await? else { return Ok(()) };
            for (id, _) in next.objects {
                if id.0 >= end {
                    return Ok(());
                }
                if let Some(object) = self.find(id).await? {
                    self.free_object(&object).await?;
                }
            }
            from = next.next;
        }
        Ok(())
    }

    async fn spill(&mut self, spill: &Spill, payload: &[u8]) -> Result<(), ReceiverError> {
        let object = self.existing(spill.object).await?;
        let has = object.spill().await?.is_some();
        // The stream has it for receivers that have lost theirs.
        if self.tells_spill && spill.flags.contains(RecordFlags::SPILL) && has {
            return Ok(());
        }
        if payload.len() as u64 != spill.length_bytes || !matches!(spill.compress, 0 | 2) {
            return Err(self.invalid("a spill block whose payload is not as long as it says"));
        }
        self.put_spill(spill.object, Block::copied_from(payload)).await
    }

    async fn put_spill(&mut self, id: ObjectId, block: Block) -> Result<(), ReceiverError> {
        let object = self.existing(id).await?;
        let len = block.len() as u64;
        if !len.is_multiple_of(512) || len == 0 || len > PLAIN_BLOCK_MAX_BYTES {
            return Err(self.invalid(format!("a spill block of {len} bytes")));
        }
        if !object.has_room_for_spill() {
            return Err(self.invalid("a spill block for an object without room for its pointer"));
        }
        let tx = self.begin(Cost::objects(1).with_bytes(len)).await?;
        if !mutant::is(Mutant::ReceiveSpillForgotten) {
            object.set_spill(tx.txg(), Some(block));
        }
        Ok(())
    }
}
