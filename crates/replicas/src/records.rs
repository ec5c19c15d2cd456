//! A receiver of a few lines, which knows nothing but objects, ranges and blocks: what the records of streams come to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use cenote_codec::compress::decompress;
use cenote_dsl::{Dataset, Dsl};
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::stream::{Body, RecordFlags};
use cenote_send::{Checks, StreamReader};

/// An object as a receiver has it.
#[derive(Clone, Debug, Default)]
pub struct Object {
    object_type: u32,
    bonus_type: u32,
    bonus: Vec<u8>,
    slots: u8,
    block_bytes: u64,
    /// Pieces by their offsets; none overlaps another.
    data: BTreeMap<u64, Vec<u8>>,
    spill: Option<Vec<u8>>,
    /// Bytes that were left out and did not come later.
    redacted: Vec<Range<u64>>,
}

impl Object {
    /// Whether something of it was left out.
    #[must_use]
    pub fn is_redacted(&self) -> bool {
        !self.redacted.is_empty()
    }

    fn free(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let left = |range: Range<u64>| [range.start..range.end.min(offset), range.start.max(end)..range.end];
        self.redacted =
            std::mem::take(&mut self.redacted).into_iter().flat_map(left).filter(|it| !it.is_empty()).collect();
        let touched: Vec<u64> = self
            .data
            .range(..end)
            .rev()
            .take_while(|(at, piece)| **at + piece.len() as u64 > offset)
            .map(|(at, _)| *at)
            .collect();
        for at in touched {
            let piece = self.data.remove(&at).expect("it was just found");
            let (start, piece_end) = (at, at + piece.len() as u64);
            if start < offset {
                self.data.insert(start, piece[..(offset - start) as usize].to_vec());
            }
            if piece_end > end {
                self.data.insert(end, piece[(end - start) as usize..].to_vec());
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        self.free(offset, bytes.len() as u64);
        self.data.insert(offset, bytes);
    }

    /// Its contents but for zeros, in blocks of the size that the snapshot has.
    fn blocks(&self, block_bytes: u64) -> BTreeMap<u64, Vec<u8>> {
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (at, piece) in &self.data {
            let mut at = *at;
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let within = (at % block_bytes) as usize;
                let (now, later) = rest.split_at(rest.len().min(block_bytes as usize - within));
                let block = blocks.entry(at / block_bytes).or_insert_with(|| vec![0; block_bytes as usize]);
                block[within..within + now.len()].copy_from_slice(now);
                (at, rest) = (at + now.len() as u64, later);
            }
        }
        blocks.retain(|_, block| block.iter().any(|byte| *byte != 0));
        blocks
    }
}

impl Object {
    /// A difference from the whole object that redaction does not explain: data that the whole one has not; without redaction, any other data.
    #[must_use]
    pub fn foreign(&self, whole: &Self) -> Option<&'static str> {
        let is_same = (self.object_type, self.bonus_type, self.slots, &self.bonus, &self.spill)
            == (whole.object_type, whole.bonus_type, whole.slots, &whole.bonus, &whole.spill);
        if !is_same {
            return Some("another dnode");
        }
        let (own, all) = (self.blocks(512), whole.blocks(512));
        if self.redacted.is_empty() && own != all {
            return Some("other data, and nothing was left out");
        }
        own.iter().any(|(at, block)| all.get(at) != Some(block)).then_some("data that the snapshot has not")
    }
}

/// A dataset as a receiver has it: objects by number.
pub type Model = BTreeMap<u64, Object>;

fn unpacked(compress: u8, bytes: &[u8], length: u64) -> Result<Vec<u8>> {
    let kind = Compress::from_number(compress).context("a compression")?;
    let mut target = vec![0; usize::try_from(length)?];
    decompress(kind, bytes, &mut target)?;
    Ok(target)
}

/// Applies a stream.
///
/// # Errors
/// A record is not of a sound stream, or out of order; or the stream ends before its END, when all records before that are applied.
pub fn apply(model: &mut Model, stream: &[u8]) -> Result<()> {
    let mut reader = StreamReader::new(stream, Checks::ALL);
    let mut last = (0, 0);
    while let Some(item) = reader.next_item()? {
        let payload = item.payload;
        let known = |object: ObjectId| format!("object {object} is written before it is told of");
        let mut in_order = |object: ObjectId, offset: u64| {
            let now = (object.0, offset);
            ensure!(now >= last, "object {object}, offset {offset} after {last:?}");
            last = now;
            Ok(())
        };
        match &item.decoded.record.body {
            Body::Begin(_) | Body::End(_) => {}
            Body::Object(record) => {
                in_order(record.object, 0)?;
                let object = model.entry(record.object.0).or_default();
                if object.block_bytes != u64::from(record.block_bytes) {
                    object.data.clear();
                }
                if !record.flags.contains(RecordFlags::SPILL) {
                    object.spill = None;
                }
                object.object_type = record.object_type;
                object.bonus_type = record.bonus_type;
                object.block_bytes = record.block_bytes.into();
                object.slots = record.dnode_slots;
                object.bonus = payload[..record.bonus_bytes as usize].to_vec();
            }
            Body::FreeObjects(record) => {
                in_order(record.first_object, 0)?;
                let end = record.first_object.0 + record.object_count;
                model.retain(|object, _| !(record.first_object.0..end).contains(object));
            }
            Body::Free(record) => {
                if record.length_bytes != u64::MAX {
                    in_order(record.object, record.offset_bytes)?;
                }
                let object = model.get_mut(&record.object.0).with_context(|| known(record.object))?;
                object.free(record.offset_bytes, record.length_bytes);
            }
            Body::Write(record) => {
                in_order(record.object, record.offset_bytes)?;
                let object = model.get_mut(&record.object.0).with_context(|| known(record.object))?;
                let bytes = match record.compress {
                    0 => payload.to_vec(),
                    compress => unpacked(compress, payload, record.logical_bytes)?,
                };
                ensure!(bytes.len() as u64 <= object.block_bytes, "a block larger than its object's");
                object.write(record.offset_bytes, bytes);
            }
            Body::WriteEmbedded(record) => {
                in_order(record.object, record.offset_bytes)?;
                let object = model.get_mut(&record.object.0).with_context(|| known(record.object))?;
                ensure!(record.length_bytes == object.block_bytes, "an embedded block of another size");
                let bytes = &payload[..record.physical_bytes as usize];
                let mut bytes = unpacked(record.compress, bytes, record.logical_bytes.into())?;
                bytes.resize(record.length_bytes as usize, 0);
                object.write(record.offset_bytes, bytes);
            }
            Body::Spill(record) => {
                let object = model.get_mut(&record.object.0).with_context(|| known(record.object))?;
                if record.flags.contains(RecordFlags::SPILL) {
                    ensure!(object.spill.as_deref() == Some(payload), "a spill block that is said not to have changed");
                }
                object.spill = Some(payload.to_vec());
            }
            Body::Redact(record) => {
                in_order(record.object, record.offset_bytes)?;
                let object = model.get_mut(&record.object.0).with_context(|| known(record.object))?;
                object.free(record.offset_bytes, record.length_bytes);
                object.redacted.push(record.offset_bytes..record.offset_bytes.saturating_add(record.length_bytes));
            }
            other => bail!("{other:?}"),
        }
    }
    Ok(())
}

/// The first difference between a snapshot and its receiver's copy, but for redacted objects' data and the size of blocks.
///
/// # Errors
/// The snapshot cannot be read.
pub async fn difference(dsl: &Dsl, snapshot: &Dataset, model: &Model) -> Result<Option<String>> {
    let objset = dsl.open(snapshot).await?.context("no contents")?;
    let mut seen = 0;
    let mut next = ObjectId(1);
    while let Some(batch) = objset.next_objects(next).await? {
        for (id, _) in &batch.objects {
            let object = objset.object(*id).await?;
            let phys = object.phys();
            let Some(ours) = model.get(&id.0) else { return Ok(Some(format!("object {id} is missing"))) };
            seen += 1;
            let block_bytes = object.block_bytes();
            let mut want: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            let mut left_out = BTreeSet::new();
            let mut at = BlockId(0);
            while let Some(block) = object.next_data_block(at).await? {
                let found = match object.block(block).await {
                    Err(error) if error.is_redacted() => {
                        left_out.insert(block.0);
                        None
                    }
                    found => found?,
                };
                if let Some((bytes, _)) = found {
                    let mut bytes = bytes.to_vec();
                    bytes.resize(block_bytes as usize, 0);
                    if bytes.iter().any(|byte| *byte != 0) {
                        want.insert(block.0, bytes);
                    }
                }
                at = BlockId(block.0 + 1);
            }
            let spill = object.spill().await?.map(|(bytes, _)| bytes.to_vec());
            let are_same = ours.object_type == u32::from(phys.object_type.0)
                && ours.bonus_type == u32::from(phys.bonus_type.0)
                && ours.slots == phys.extra_slots + 1
                && ours.bonus == *phys.bonus;
            if !are_same {
                return Ok(Some(format!("object {id}: another dnode")));
            }
            if ours.spill != spill {
                return Ok(Some(format!("object {id}: another spill block")));
            }
            let ranges = ours.redacted.iter().map(|range| range.start / block_bytes..range.end.div_ceil(block_bytes));
            let told: BTreeSet<u64> = ranges.flatten().collect();
            if left_out != told {
                return Ok(Some(format!(
                    "object {id}: {} blocks cannot be read, which are not those left out",
                    left_out.len()
                )));
            }
            let found = ours.blocks(block_bytes);
            if found != want {
                let differing = want.iter().find(|(block, bytes)| found.get(block) != Some(bytes));
                let block = differing.map(|(block, _)| *block);
                return Ok(Some(format!("object {id}: other data: {block:?} of {} blocks", want.len())));
            }
        }
        next = batch.next;
    }
    Ok((seen != model.len()).then(|| format!("{} objects in place of {seen}", model.len())))
}
