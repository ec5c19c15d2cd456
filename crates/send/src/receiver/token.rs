//! `receive_resume_token`: the data that a sender needs to resume an interrupted receive.
//!
//! The token is `1-<checksum>-<length>-<data>`: the first word of the Fletcher-4 checksum of the data, the length of the decompressed data, and
//! the data in hexadecimal: a gzip-compressed nvlist in native encoding. Compressed bytes depend on the compressor, so a token may differ from
//! OpenZFS's; its contents are the same.

use std::fmt::Write as _;

use cenote_codec::checksum::fletcher::fletcher4;
use cenote_codec::compress::{CompressLevel, compress};
use cenote_dsl::{Dataset, Dsl, DslError};
use cenote_format::dsl::dataset_field as field;
use cenote_format::enums::Compress;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::boxed;

/// Fields of a dataset that make up a token, in its order.
const NUMBERS: [(&str, &str); 5] = [
    ("fromguid", field::RESUME_FROM_GUID),
    ("object", field::RESUME_OBJECT),
    ("offset", field::RESUME_OFFSET),
    ("bytes", field::RESUME_BYTES),
    ("toguid", field::RESUME_TO_GUID),
];
/// Fields of which only the presence matters.
const SWITCHES: [(&str, &str); 4] = [
    ("largeblockok", field::RESUME_LARGE_BLOCK),
    ("embedok", field::RESUME_EMBED),
    ("compressok", field::RESUME_COMPRESS),
    ("rawok", field::RESUME_RAW),
];

/// The token of a file system or volume: its own, or that of the half-received clone below it. `None` if no receive was interrupted.
///
/// # Errors
/// The MOS cannot be read.
#[boxed]
pub async fn receive_resume_token(dsl: &Dsl, dataset: &Dataset) -> Result<Option<String>, DslError> {
    if let Some(token) = own_token(dsl, dataset).await? {
        return Ok(Some(token));
    }
    let Some(clone) = dsl.child(&dataset.dir, "%recv").await? else { return Ok(None) };
    match dsl.head(&clone).await? {
        Some(head) => own_token(dsl, &head).await,
        None => Ok(None),
    }
}

async fn own_token(dsl: &Dsl, dataset: &Dataset) -> Result<Option<String>, DslError> {
    // Every resumable receive records the guid of the snapshot.
    if dsl.dataset_field(dataset, field::RESUME_TO_GUID).await?.is_none() {
        return Ok(None);
    }
    let mut list = NvList::new();
    for (name, entry) in NUMBERS {
        if let Some(number) = dsl.dataset_field(dataset, entry).await? {
            list.push(name, number);
        }
    }
    if let Some(name) = dsl.dataset_value(dataset, field::RESUME_TO_NAME).await?
        && let Some(name) = name.as_text()
    {
        list.push("toname", name);
    }
    for (name, entry) in SWITCHES {
        if dsl.dataset_value(dataset, entry).await?.is_some() {
            list.push(name, NvValue::Boolean);
        }
    }
    for (name, entry) in
        [("redact_snaps", field::REDACTED_DATASETS), ("book_redact_snaps", field::RESUME_REDACT_SNAPSHOTS)]
    {
        if let Some(value) = dsl.dataset_value(dataset, entry).await? {
            list.push(name, NvValue::Uint64Array(value.integers().collect()));
        }
    }
    let packed = list.emit_native(cenote_format::Endian::Little);
    let data = compress(Compress::Gzip6, CompressLevel::DEFAULT, &packed, packed.len());
    Ok(Some(text(data.as_deref().unwrap_or(&packed), packed.len())))
}

fn text(data: &[u8], packed_bytes: usize) -> String {
    // The checksum's words have four bytes; the last bytes of an incomplete word are not summed.
    let [sum, ..] = fletcher4(&data[..data.len() & !3], cenote_format::Endian::Little);
    let mut text = format!("1-{sum:x}-{packed_bytes:x}-");
    for byte in data {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
