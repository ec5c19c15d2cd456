//! Goal: what a stream's records come to is the snapshot. Method: every snapshot of golden pools is sent, the first of each dataset whole
//! and each later one from the one before, in several forms; a receiver of a few lines, which knows nothing but objects, ranges and blocks,
//! applies the records; what it then has is compared with what is read from the pool. Clones are sent from their origins.

#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cenote_codec::compress::decompress;
use cenote_dsl::{Dataset, Dsl};
use cenote_format::enums::Compress;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::stream::{Body, RecordFlags};
use cenote_send::sender::{Base, ResumePoint, SendFlags, SendProgress, SendRequest, send};
use cenote_send::{Checks, StreamReader};
use cenote_spa::View;
use support::with_pool;

/// An object as a receiver has it.
#[derive(Clone, Default)]
struct Object {
    object_type: u32,
    bonus_type: u32,
    bonus: Vec<u8>,
    slots: u8,
    block_bytes: u64,
    /// Pieces by their offsets; none overlaps another.
    data: BTreeMap<u64, Vec<u8>>,
    spill: Option<Vec<u8>>,
    is_redacted: bool,
}

impl Object {
    fn free(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
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

type Model = BTreeMap<u64, Object>;

fn unpacked(compress: u8, bytes: &[u8], length: u64) -> Result<Vec<u8>> {
    let kind = Compress::from_number(compress).context("a compression")?;
    let mut target = vec![0; usize::try_from(length)?];
    decompress(kind, bytes, &mut target)?;
    Ok(target)
}

/// Applies a stream.
fn apply(model: &mut Model, stream: &[u8]) -> Result<()> {
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
                object.is_redacted = true;
            }
            other => bail!("{other:?}"),
        }
    }
    Ok(())
}

/// The differences between a snapshot and its receiver's copy.
async fn difference(dsl: &Dsl, snapshot: &Dataset, model: &Model) -> Result<Option<String>> {
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
            let mut at = BlockId(0);
            while let Some(block) = object.next_data_block(at).await? {
                if let Some((bytes, _)) = object.block(block).await? {
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

const FORMS: [SendFlags; 4] = [
    SendFlags { large_blocks: false, embedded: false, compressed: false, raw: false },
    SendFlags { large_blocks: true, embedded: true, compressed: true, raw: false },
    SendFlags { large_blocks: false, embedded: true, compressed: true, raw: false },
    SendFlags { large_blocks: true, embedded: false, compressed: false, raw: false },
];

async fn check(pool: &View, flags: SendFlags) -> Result<(usize, Vec<String>)> {
    let dsl = pool.dsl();
    let mut models: BTreeMap<u64, Model> = BTreeMap::new();
    let mut differences = Vec::new();
    // By txg, so that origins come before their clones.
    let mut snapshots = Vec::new();
    for dir in dsl.tree(dsl.root_dir().await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        let own = dsl.snapshots(&head).await?;
        let mut before = match dir.phys.origin {
            origin if origin.0 == 0 => None,
            origin => {
                let name = dsl.dataset_name(origin).await?;
                if name.contains('$') { None } else { Some(dsl.dataset(&name).await?) }
            }
        };
        // The head is sent too, as it is.
        for dataset in own.into_iter().chain([head]) {
            snapshots.push((dataset.clone(), before.replace(dataset)));
        }
    }
    // Heads last: their own txgs are old.
    snapshots.sort_by_key(|(dataset, _)| (!dataset.is_snapshot(), dataset.phys.creation_txg, dataset.object));
    let count = snapshots.len();
    for (dataset, before) in snapshots {
        let mut request = SendRequest::full(dataset.clone(), flags);
        let mut model = Model::new();
        if let Some(before) = &before {
            request.base = Some(Base::snapshot(dsl, &dataset, before).await?);
            model = models.get(&before.object.0).with_context(|| before.name())?.clone();
        }
        let mut out = Vec::new();
        let name = dataset.name();
        let sent = send(pool, &request, &mut out, &SendProgress::default()).await;
        sent.with_context(|| format!("{name} {flags:?}"))?;
        apply(&mut model, &out).with_context(|| format!("{name} {flags:?}"))?;
        if let Some(difference) = difference(dsl, &dataset, &model).await? {
            differences.push(format!("{name} {flags:?} after {:?}: {difference}", before.map(|before| before.name())));
        }
        if dataset.is_snapshot() {
            models.insert(dataset.object.0, model);
        }
    }
    Ok((count, differences))
}

#[test]
fn records_come_to_the_snapshot() -> Result<()> {
    for theme in ["snapshots", "streams", "xattrs", "acl", "recordsizes", "compression", "checksums", "brt"] {
        let Some(theme) = cenote_testkit::theme_if_present(theme) else { continue };
        for (index, flags) in FORMS.into_iter().enumerate() {
            if index > 1 && theme.name() != "snapshots" && theme.name() != "streams" {
                continue;
            }
            let (count, differences) = with_pool(&theme, true, async |pool| check(pool, flags).await)
                .with_context(|| theme.name().to_owned())?;
            ensure!(count > 0, "{} has nothing to send", theme.name());
            ensure!(differences.is_empty(), "{}: {}", theme.name(), differences.join("\n"));
        }
    }
    Ok(())
}

/// A redacted stream, and then, from its bookmark, what it had left out.
#[test]
fn what_was_redacted_comes_later() -> Result<()> {
    with_pool(&cenote_testkit::theme("streams"), false, async |pool| {
        let dsl = pool.dsl();
        let to = dsl.dataset(&format!("{}/src@three", pool.name())).await?;
        let head = dsl.head(&to.dir).await?.context("a head")?;
        let book = dsl.bookmarks(&head).await?.into_iter().find(|bookmark| bookmark.phys.redaction_list.0 != 0);
        let book = book.context("a redaction bookmark")?;
        for flags in FORMS {
            let mut request = SendRequest::full(to.clone(), flags);
            request.redact = Some(book.phys.redaction_list);
            let (mut model, mut out) = (Model::new(), Vec::new());
            send(pool, &request, &mut out, &SendProgress::default()).await?;
            apply(&mut model, &out)?;
            ensure!(model.values().filter(|object| object.is_redacted).count() >= 3, "little was left out");
            ensure!(difference(dsl, &to, &model).await?.is_some(), "nothing was left out");

            let mut request = SendRequest::full(to.clone(), flags);
            request.base = Some(Base::bookmark(dsl, &to, &head, &book).await?);
            let mut rest = Vec::new();
            send(pool, &request, &mut rest, &SendProgress::default()).await?;
            ensure!(rest.len() < out.len(), "more was sent than was left out");
            apply(&mut model, &rest)?;
            let difference = difference(dsl, &to, &model).await?;
            ensure!(difference.is_none(), "{flags:?}: {difference:?}");
        }
        Ok(())
    })
}

/// A stream that is broken off anywhere goes on from each place that its receiver may have come to.
#[test]
fn a_stream_that_goes_on_brings_the_rest() -> Result<()> {
    with_pool(&cenote_testkit::theme("streams"), false, async |pool| {
        let dsl = pool.dsl();
        let to = dsl.dataset(&format!("{}/src@one", pool.name())).await?;
        for flags in [FORMS[0], FORMS[1]] {
            let whole = SendRequest::full(to.clone(), flags);
            let mut out = Vec::new();
            send(pool, &whole, &mut out, &SendProgress::default()).await?;
            let writes = writes(&out)?;
            ensure!(writes.len() > 20, "{} writes", writes.len());
            for (end, object, offset) in writes.iter().step_by(writes.len() / 12) {
                let mut model = Model::new();
                // All records before that one have been received, and the stream ends without END.
                apply_cut(&mut model, &out[..*end])?;
                let mut request = whole.clone();
                request.resume = Some(ResumePoint { object: *object, offset: *offset });
                let mut rest = Vec::new();
                send(pool, &request, &mut rest, &SendProgress::default()).await?;
                apply(&mut model, &rest)?;
                let difference = difference(dsl, &to, &model).await?;
                ensure!(difference.is_none(), "object {object}, offset {offset}, {flags:?}: {difference:?}");
            }
        }
        Ok(())
    })
}

/// The writes of a stream: where each begins, and what it is about.
fn writes(stream: &[u8]) -> Result<Vec<(usize, u64, u64)>> {
    let mut reader = StreamReader::new(stream, Checks::ALL);
    let mut found = Vec::new();
    while let Some(item) = reader.next_item()? {
        if let Body::Write(write) = &item.decoded.record.body {
            found.push((item.decoded.offset_bytes as usize, write.object.0, write.offset_bytes));
        }
    }
    Ok(found)
}

/// Applies a stream that was cut between two records.
fn apply_cut(model: &mut Model, stream: &[u8]) -> Result<()> {
    match apply(model, stream) {
        Err(error) if error.to_string().contains("the stream ends") => Ok(()),
        Ok(()) => bail!("a stream that was cut is whole"),
        error => error,
    }
}
