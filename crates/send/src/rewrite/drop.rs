//! `zstream drop_record`: a stream without given records.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use cenote_format::stream::{Body, RecordKind};

use super::{Place, RecordWriter, RewriteError, pass, reader, refuse_dedup};

/// Writes a stream without the WRITE and WRITE_EMBEDDED records at these places. `told` is called for each.
///
/// # Errors
/// The stream is invalid or deduplicated, or the new one cannot be written.
pub fn drop_records(
    input: impl Read,
    out: impl Write,
    places: &BTreeSet<Place>,
    mut told: impl FnMut(Place, RecordKind),
) -> Result<(), RewriteError> {
    let (mut reader, mut out) = (reader(input), RecordWriter::new(out));
    while let Some(item) = reader.next_item()? {
        refuse_dedup(&item)?;
        let body = &item.decoded.record.body;
        let place = match body {
            Body::Write(write) => Some((write.object.0, write.offset_bytes)),
            Body::WriteEmbedded(write) => Some((write.object.0, write.offset_bytes)),
            _ => None,
        };
        match place.filter(|place| places.contains(place)) {
            Some(place) => told(place, body.kind()),
            None => pass(&mut out, &item)?,
        }
    }
    out.finish()
}
