//! Streams as a machine of the other byte order would send them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_codec::compress::decompress;
use cenote_dmu::sa::SaTables;
use cenote_format::Endian;
use cenote_format::byteswap::swap;
use cenote_format::dmu_type::{Byteswap, DmuType};
use cenote_format::enums::Compress;
use cenote_format::sa::{SaByteswap, SaHeader, SaView, emit};
use cenote_format::stream::{Body, Features, Record, RecordKind, Write, WriteEmbedded};
use cenote_send::{Checks, StreamReader};

fn kind(number: u32) -> Result<DmuType> {
    Ok(DmuType(u8::try_from(number)?))
}

fn how(kind: DmuType) -> Byteswap {
    kind.byteswap().unwrap_or(Byteswap::Uint8)
}

/// System attributes as the other machine would have written them; without tables they stay, which every reader must see too.
fn attributes(bytes: &mut [u8], tables: Option<&SaTables>) -> Result<()> {
    let Some(tables) = tables else { return Ok(()) };
    let Some(header) = SaHeader::parse(bytes)? else { return Ok(()) };
    let layout = tables.layout(header.layout_number()).context("a layout")?;
    let mut values = Vec::new();
    for found in SaView::new(bytes, &header, &layout)?.iter() {
        let (attribute, value) = found?;
        let mut value = value.to_vec();
        let how = match attribute.byteswap {
            SaByteswap::U64s => Byteswap::Uint64,
            SaByteswap::U32s => Byteswap::Uint32,
            SaByteswap::U16s => Byteswap::Uint16,
            SaByteswap::Bytes => Byteswap::Uint8,
            SaByteswap::Acl => Byteswap::Acl,
        };
        swap(how, &mut value, header.endian)?;
        values.push(value);
    }
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    let swapped = emit(header.layout, &layout, &values, header.endian.swapped())?;
    ensure!(swapped.len() <= bytes.len(), "attributes become no longer");
    bytes[..swapped.len()].copy_from_slice(&swapped);
    Ok(())
}

/// A block that stands in its pointer, as a whole one.
fn unpacked(embedded: &WriteEmbedded, kind: DmuType, payload: &[u8]) -> Result<(Body, Vec<u8>)> {
    let mut block = vec![0; usize::try_from(embedded.length_bytes)?];
    let compress = Compress::from_number(embedded.compress).context("a compression")?;
    let packed = &payload[..embedded.physical_bytes as usize];
    match compress {
        Compress::Off | Compress::Inherit => block.copy_from_slice(packed),
        compress => decompress(compress, packed, &mut block)?,
    }
    let write = Write {
        object: embedded.object,
        object_type: u32::from(kind.0),
        offset_bytes: embedded.offset_bytes,
        logical_bytes: embedded.length_bytes,
        to_guid: embedded.to_guid,
        checksum_type: 0,
        flags: cenote_format::stream::RecordFlags::empty(),
        compress: 0,
        key: cenote_format::stream::DedupKey::default(),
        compressed_bytes: 0,
        sealing: cenote_format::stream::Sealing::default(),
    };
    Ok((Body::Write(write), block))
}

/// A stream or package of a little-endian machine as a big-endian one would send it. `tables` are those of its file system; without them
/// system attributes stay as they are. Raw streams, whose blocks nobody can swap, come back unchanged.
///
/// # Errors
/// It is no sound stream.
pub fn swapped(stream: &[u8], tables: Option<&SaTables>) -> Result<Vec<u8>> {
    let mut reader = StreamReader::new(stream, Checks::ALL);
    let (mut out, mut sum) = (Vec::with_capacity(stream.len()), Fletcher4::new());
    let mut kinds: BTreeMap<u64, DmuType> = BTreeMap::new();
    while let Some(item) = reader.next_item()? {
        let mut payload = item.payload.to_vec();
        let mut body = item.decoded.record.body.clone();
        match &mut body {
            Body::Begin(begin) if begin.features.contains(Features::RAW) => return Ok(stream.to_vec()),
            Body::Begin(_) => kinds.clear(),
            Body::Object(object) => {
                kinds.insert(object.object.0, kind(object.object_type)?);
                let bonus = &mut payload[..object.bonus_bytes as usize];
                match kind(object.bonus_type)? {
                    DmuType::SA => attributes(bonus, tables)?,
                    other => swap(how(other), bonus, Endian::Little)?,
                }
            }
            Body::Write(write) => match (how(kind(write.object_type)?), write.compress) {
                (Byteswap::Uint8, _) => {}
                (how, 0) => swap(how, &mut payload, Endian::Little)?,
                _ => bail!("a block of metadata is compressed"),
            },
            Body::WriteEmbedded(embedded) if embedded.offset_bytes <= i64::MAX as u64 => {
                let kind = kinds.get(&embedded.object.0).copied().unwrap_or(DmuType::NONE);
                if how(kind) != Byteswap::Uint8 {
                    (body, payload) = unpacked(embedded, kind, &payload)?;
                    swap(how(kind), &mut payload, Endian::Little)?;
                }
            }
            Body::Spill(spill) if spill.compress == 0 => attributes(&mut payload, tables)?,
            Body::End(end) => end.stream_checksum = sum.finish(),
            _ => {}
        }
        let is_begin = body.kind() == RecordKind::Begin;
        let payload_length = if is_begin { u32::try_from(payload.len())? } else { 0 };
        let mut record = Record { payload_length, body, checksum: [0; 4] };
        sum.update(&record.emit(Endian::Big)[..Record::CHECKSUM_OFFSET], Endian::Big);
        if !is_begin {
            record.checksum = sum.finish();
        }
        let bytes = record.emit(Endian::Big);
        sum.update(&bytes[Record::CHECKSUM_OFFSET..], Endian::Big);
        sum.update(&payload, Endian::Big);
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&payload);
        if record.body.kind() == RecordKind::End {
            sum = Fletcher4::new();
        }
    }
    Ok(out)
}
