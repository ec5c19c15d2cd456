//! Goal: our streams are those of OpenZFS, byte for byte. Method: the pool that the golden streams were made of is opened, and each
//! stream made again.

#![allow(clippy::disallowed_methods)]

use crate::support;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_codec::compress::decompress;
use cenote_dsl::Dataset;
use cenote_format::Endian;
use cenote_format::enums::Compress;
use cenote_format::stream::{Body, Record, RecordFlags, RecordKind, Sealing, Spill};
use cenote_send::package::{self, PackageRequest, gather, plan};
use cenote_send::sender::{Base, ResumeToken, SendFlags, SendProgress, SendRequest, send};
use cenote_send::{Checks, StreamReader};
use cenote_spa::View;
use cenote_testkit::Theme;
use support::with_pool;

/// A stream of OpenZFS 2.3.2 without one of its defects, which was mended later: spill blocks that are in their pointers were taken for
/// data: receivers write such a WRITE_EMBEDDED to the end of all offsets and lose the attributes. They become SPILL records. Whether such a
/// block has changed is not to be seen, and taken from `ours`.
fn mended(stream: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut spills = BTreeMap::new();
    let mut reader = StreamReader::new(ours, Checks::ALL);
    while let Some(item) = reader.next_item().unwrap() {
        if let Body::Spill(spill) = &item.decoded.record.body {
            spills.insert((spill.to_guid.0, spill.object), spill.flags);
        }
    }
    let mut reader = StreamReader::new(stream, Checks::ALL);
    let (mut out, mut sum) = (Vec::new(), Fletcher4::new());
    while let Some(item) = reader.next_item().unwrap() {
        let mut record = item.decoded.record.clone();
        let mut payload = item.payload.to_vec();
        match &mut record.body {
            Body::WriteEmbedded(embedded) if embedded.offset_bytes > u64::MAX >> 1 => {
                let kind = Compress::from_number(embedded.compress).unwrap();
                let mut logical = vec![0; embedded.logical_bytes as usize];
                decompress(kind, &payload[..embedded.physical_bytes as usize], &mut logical).unwrap();
                let (object, to_guid, length_bytes) = (embedded.object, embedded.to_guid, logical.len() as u64);
                let flags = spills.get(&(to_guid.0, object)).copied().unwrap_or(RecordFlags::empty());
                let sealing = Sealing::default();
                record.body = Body::Spill(Spill {
                    object,
                    length_bytes,
                    to_guid,
                    flags,
                    compress: 0,
                    compressed_bytes: 0,
                    sealing,
                    object_type: 0,
                });
                payload = logical;
            }
            Body::End(end) => end.stream_checksum = sum.finish(),
            _ => {}
        }
        let head = record.emit(Endian::Little);
        sum.update(&head[..Record::CHECKSUM_OFFSET], Endian::Little);
        if record.checksum != [0; 4] {
            record.checksum = sum.finish();
        }
        let head = record.emit(Endian::Little);
        sum.update(&head[Record::CHECKSUM_OFFSET..], Endian::Little);
        sum.update(&payload, Endian::Little);
        if record.body.kind() == RecordKind::End {
            sum = Fletcher4::new();
        }
        out.extend_from_slice(&head);
        out.extend_from_slice(&payload);
    }
    out
}

/// The request of a line `zfs send …`, as far as it is one stream.
async fn request(pool: &View, line: &str) -> Result<SendRequest> {
    let dsl = pool.dsl();
    let mut words = line.split(' ').skip(2);
    let mut flags = SendFlags::default();
    let (mut from, mut redact, mut to) = (None, None, None);
    while let Some(word) = words.next() {
        match word {
            "-i" => from = words.next(),
            "--redact" => redact = words.next(),
            _ if word.starts_with('-') => {
                for letter in word.chars().skip(1) {
                    match letter {
                        'L' => flags.large_blocks = true,
                        'e' => flags.embedded = true,
                        'c' => flags.compressed = true,
                        'w' => flags = SendFlags { large_blocks: true, embedded: true, compressed: true, raw: true },
                        other => bail!("option {other}"),
                    }
                }
            }
            _ => to = Some(word),
        }
    }
    let to = dsl.dataset(to.context("no snapshot")?).await?;
    let mut request = SendRequest::full(to.clone(), flags);
    let bookmark = async |name: &str| {
        let head = dsl.head(&to.dir).await?.context("no head")?;
        let name = format!("{}#{name}", to.dir.name);
        let found = dsl.bookmarks(&head).await?.into_iter().find(|bookmark| bookmark.name == name);
        anyhow::Ok((head, found.context(name)?))
    };
    if let Some(from) = from {
        request.base = Some(match from.split_at(1) {
            ("@", name) => {
                let from: Dataset = dsl.dataset(&format!("{}@{name}", to.dir.name)).await?;
                Base::snapshot(dsl, &to, &from).await?
            }
            (_, name) => {
                let (head, found) = bookmark(name).await?;
                Base::bookmark(dsl, &to, &head, &found).await?
            }
        });
    }
    if let Some(name) = redact {
        request.redact = Some(bookmark(name).await?.1.phys.redaction_list);
    }
    Ok(request)
}

/// The records of a stream as text, for a difference that can be read.
fn records(stream: &[u8]) -> Vec<String> {
    let checks = Checks { record_checksums: true, structure: true };
    let mut reader = StreamReader::new(stream, checks);
    let mut lines = Vec::new();
    loop {
        match reader.next_item() {
            Ok(Some(item)) => {
                let payload = item.payload;
                let sum = payload.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                lines.push(format!("{:?} {} {sum:x}", item.decoded.record.body, payload.len()));
            }
            Ok(None) => return lines,
            Err(error) => {
                lines.push(error.to_string());
                return lines;
            }
        }
    }
}

fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (our_records, their_records) = (records(ours), records(theirs));
    let at = our_records.iter().zip(&their_records).position(|(a, b)| a != b);
    let at = at.unwrap_or(our_records.len().min(their_records.len()));
    let line = |records: &[String]| records.get(at).cloned().unwrap_or_default();
    Some(format!(
        "{} bytes in place of {}; {} records in place of {}; record {at}:\n  ours   {}\n  theirs {}",
        ours.len(),
        theirs.len(),
        our_records.len(),
        their_records.len(),
        line(&our_records),
        line(&their_records)
    ))
}

fn theme() -> Theme {
    cenote_testkit::theme("streams")
}

async fn made(pool: &View, request: &SendRequest) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let progress = SendProgress::default();
    let bytes = send(pool, request, &mut out, &progress).await?;
    ensure!(bytes == out.len() as u64 && bytes == progress.bytes());
    Ok(out)
}

/// A package, as a line `zfs send …` asks for it.
async fn package_made(pool: &View, line: &str) -> Result<Vec<u8>> {
    let mut request = PackageRequest::default();
    let mut flags = SendFlags::default();
    let mut words = line.split(' ').skip(2);
    while let Some(word) = words.next() {
        let short = |name: Option<&str>| name.and_then(|name| name.split_once('@')).map(|(_, name)| name.to_owned());
        match word {
            "-R" => request.replicate = true,
            "-Rw" => {
                request.replicate = true;
                request.raw = true;
                flags = SendFlags { large_blocks: true, embedded: true, compressed: true, raw: true };
            }
            "-p" => request.props = true,
            "-h" => request.holds = true,
            "-I" => {
                request.do_all = true;
                request.from = short(words.next());
            }
            name => {
                let (dataset, to) = name.split_once('@').context("a snapshot")?;
                (request.dataset, request.to) = (dataset.into(), to.into());
            }
        }
    }
    request.do_all |= request.replicate && request.from.is_none();
    let mut out = Vec::new();
    let mut said = Vec::new();
    let mut say = |text| said.push(text);
    let list = if request.has_list() { Some(gather(pool, &request, &mut say).await?) } else { None };
    let plan = plan(pool, &request, list.as_ref(), &mut say).await?;
    package::begin(&request, list.as_ref(), &mut out)?;
    for planned in plan.streams {
        let mut one = SendRequest::full(planned.to.clone(), flags);
        if let Some(from) = planned.from {
            one.base = Some(Base::snapshot(pool.dsl(), &planned.to, &from).await?);
        }
        send(pool, &one, &mut out, &SendProgress::default()).await?;
    }
    package::end(&mut out)?;
    ensure!(said.is_empty() && !plan.has_failed && plan.has_to, "{said:?}");
    Ok(out)
}

#[test]
fn packages_are_openzfs_to_the_byte() -> Result<()> {
    let names =
        ["full-props.zfs", "holds.zfs", "incr-I.zfs", "replication.zfs", "replication-incr.zfs", "replication-w.zfs"];
    compare(&names, async |pool, line| package_made(pool, line).await)
}

#[test]
fn a_stream_goes_on_where_its_token_says() -> Result<()> {
    compare(&["resumed.zfs"], async |pool, _| {
        let text = theme().manifest_json()?["notes"]["resume-token"].as_str().context("a token")?.to_owned();
        let token = ResumeToken::parse(&text)?;
        let mut request = SendRequest::full(pool.dsl().dataset(&token.to_name).await?, token.flags);
        ensure!(request.to.phys.guid == token.to_guid);
        request.resume = Some(token.point);
        made(pool, &request).await
    })
}

/// Streams of one snapshot whose every byte is OpenZFS's.
const SAME: [&str; 17] = [
    "full.zfs",
    "full-large.zfs",
    "full-embed.zfs",
    "full-compressed.zfs",
    "full-Lec.zfs",
    "incr.zfs",
    "incr-Lec.zfs",
    "incr-bookmark.zfs",
    "volume.zfs",
    "volume-incr.zfs",
    "volume-w.zfs",
    "enc-plain.zfs",
    "enc-raw.zfs",
    "enc-raw-incr.zfs",
    "raw-unencrypted.zfs",
    "redacted.zfs",
    "kid.zfs",
];

#[test]
fn streams_of_one_snapshot_are_openzfs_to_the_byte() -> Result<()> {
    compare(&SAME, async |pool, line| made(pool, &request(pool, line).await?).await)
}

/// Makes streams by their lines, and compares them with OpenZFS's.
fn compare(names: &[&str], make: impl AsyncFn(&View, &str) -> Result<Vec<u8>>) -> Result<()> {
    let manifest = theme().manifest_json()?;
    let list = manifest["streams"].as_array().context("a list")?;
    let differences = with_pool(&theme(), true, async |pool| {
        let mut differences = Vec::new();
        for name in names {
            let line = list.iter().find(|stream| stream["file"] == *name).and_then(|stream| stream["command"].as_str());
            let line = line.with_context(|| (*name).to_owned())?;
            let ours = make(pool, line).await.with_context(|| line.to_owned())?;
            let theirs = mended(&theme().stream_bytes(name)?, &ours);
            if let Some(difference) = difference(&ours, &theirs) {
                differences.push(format!("{name} ({line}): {difference}"));
            }
        }
        Ok(differences)
    })?;
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}
