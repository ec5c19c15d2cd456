//! Writes records: merges adjacent ones where possible, gives each the checksum of the bytes before it, and writes them in order.

use std::io::Write;

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::stream::{Begin, Body, End, Free, FreeObjects, Record, RecordKind, Redact};

use super::error::SenderError;

/// Slots in a block of dnodes, as OpenZFS makes them.
const SLOTS: u64 = 32;

/// Writes the records of one stream.
pub(super) struct StreamWriter<'a> {
    /// `None`: bytes are only counted.
    out: Option<&'a mut (dyn Write + Send)>,
    endian: Endian,
    to_guid: Guid,
    sum: Fletcher4,
    /// A FREE, FREEOBJECTS or REDACT that the next one may extend.
    pending: Option<Body>,
    /// Objects from this one on are not freed: older receivers would visit them one by one.
    objects_end: u64,
    bytes: u64,
}

impl<'a> StreamWriter<'a> {
    /// `meta_blocks`: the number of blocks of the sender's meta-dnode.
    pub(super) fn new(
        out: Option<&'a mut (dyn Write + Send)>,
        endian: Endian,
        to_guid: Guid,
        meta_blocks: u64,
    ) -> Self {
        let objects_end = meta_blocks.saturating_mul(SLOTS);
        Self { out, endian, to_guid, sum: Fletcher4::new(), pending: None, objects_end, bytes: 0 }
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn begin(&mut self, begin: Begin, payload: &[u8]) -> Result<(), SenderError> {
        assert_eq!(self.bytes, 0, "a stream begins once");
        self.write(Body::Begin(begin), payload, None)
    }

    /// Writes a record, after the pending one.
    pub(super) fn record(&mut self, body: Body, payload: &[u8]) -> Result<(), SenderError> {
        self.record_of(body, payload, None)
    }

    /// As [`Self::record`]. `sums`: the payload's partial sums, if known.
    pub(super) fn record_of(&mut self, body: Body, payload: &[u8], sums: Option<Fletcher4>) -> Result<(), SenderError> {
        assert!(self.bytes > 0, "a stream begins with BEGIN");
        self.flush()?;
        self.write(body, payload, sums)
    }

    /// Counts a record whose payload was not read.
    pub(super) fn count(&mut self, payload_bytes: u64) -> Result<(), SenderError> {
        assert!(self.out.is_none(), "what is written is read");
        debug_assert!(self.bytes > 0, "a stream begins with BEGIN");
        self.flush()?;
        self.bytes += Record::SIZE as u64 + payload_bytes;
        Ok(())
    }

    /// Frees a range of an object. A new record with the length [`Free::TO_THE_END`] is written at once.
    pub(super) fn free(&mut self, object: ObjectId, offset: u64, length: u64) -> Result<(), SenderError> {
        let ends = offset.checked_add(length);
        if let Some(Body::Free(free)) = &mut self.pending
            && free.object == object
            && free.offset_bytes.checked_add(free.length_bytes) == Some(offset)
        {
            free.length_bytes = match (ends, free.length_bytes.checked_add(length)) {
                (Some(_), Some(sum)) => sum,
                _ => Free::TO_THE_END,
            };
            debug_assert!(
                free.length_bytes == Free::TO_THE_END || free.offset_bytes.checked_add(free.length_bytes).is_some(),
                "a range that is freed has an end, or is all that follows"
            );
            return Ok(());
        }
        let length_bytes = if ends.is_some() { length } else { Free::TO_THE_END };
        self.put_off(Body::Free(Free { object, offset_bytes: offset, length_bytes, to_guid: self.to_guid }))?;
        if length == Free::TO_THE_END { self.flush() } else { Ok(()) }
    }

    /// Frees a run of objects, up to the last that the sender could have.
    pub(super) fn free_objects(&mut self, first: u64, count: u64) -> Result<(), SenderError> {
        if first >= self.objects_end || count == 0 {
            return Ok(());
        }
        let count = count.min(self.objects_end - first);
        debug_assert!(
            count > 0 && first + count <= self.objects_end,
            "objects that the sender cannot have are not freed"
        );
        if let Some(Body::FreeObjects(free)) = &mut self.pending
            && free.first_object.0 + free.object_count == first
        {
            free.object_count += count;
            debug_assert!(free.first_object.0 < first, "objects are freed in their order (invariant 1)");
            return Ok(());
        }
        let free = FreeObjects { first_object: ObjectId(first), object_count: count, to_guid: self.to_guid };
        self.put_off(Body::FreeObjects(free))
    }

    /// Records that a range is left out.
    pub(super) fn redact(&mut self, object: ObjectId, offset: u64, length: u64) -> Result<(), SenderError> {
        if let Some(Body::Redact(redact)) = &mut self.pending
            && redact.object == object
            && redact.offset_bytes.checked_add(redact.length_bytes) == Some(offset)
        {
            redact.length_bytes = redact.length_bytes.saturating_add(length);
            return Ok(());
        }
        let redact = Redact { object, offset_bytes: offset, length_bytes: length, to_guid: self.to_guid };
        self.put_off(Body::Redact(redact))
    }

    /// Writes the pending record, and END if the stream is complete.
    pub(super) fn end(mut self, is_whole: bool) -> Result<u64, SenderError> {
        self.flush()?;
        assert!(self.bytes > 0, "a stream that ends has begun");
        if is_whole {
            let stream_checksum = self.sum.finish();
            self.write(Body::End(End { stream_checksum, to_guid: self.to_guid }), &[], None)?;
        }
        Ok(self.bytes)
    }

    fn put_off(&mut self, body: Body) -> Result<(), SenderError> {
        assert!(self.bytes > 0, "a stream begins with BEGIN");
        self.flush()?;
        debug_assert!(self.pending.is_none(), "a record is written before the next one is put off (invariant 1)");
        self.pending = Some(body);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SenderError> {
        match self.pending.take() {
            Some(body) => self.write(body, &[], None),
            None => Ok(()),
        }
    }

    fn write(&mut self, body: Body, payload: &[u8], sums: Option<Fletcher4>) -> Result<(), SenderError> {
        debug_assert!(self.pending.is_none(), "a record is written after the one that was put off (invariant 1)");
        let Some(out) = &mut self.out else {
            self.bytes += (Record::SIZE + payload.len()) as u64;
            return Ok(());
        };
        let is_begin = body.kind() == RecordKind::Begin;
        let payload_length = if is_begin { u32::try_from(payload.len()).expect("a list of BEGIN is short") } else { 0 };
        let record = Record { payload_length, body, checksum: [0; 4] };
        debug_assert_eq!(
            record.payload_bytes().ok(),
            Some(payload.len() as u64),
            "a payload is as long as its record says"
        );
        let mut bytes = record.emit(self.endian);
        self.sum.update(&bytes[..Record::CHECKSUM_OFFSET], self.endian);
        if !is_begin {
            let (places, _) = bytes[Record::CHECKSUM_OFFSET..].as_chunks_mut::<8>();
            for (place, word) in places.iter_mut().zip(self.sum.finish()) {
                *place = self.endian.bytes64(word);
            }
        }
        self.sum.update(&bytes[Record::CHECKSUM_OFFSET..], self.endian);
        match sums {
            Some(sums) => {
                debug_assert_eq!(sums, sums_of(payload, self.endian), "sums are those of the payload");
                debug_assert!(payload.len().is_multiple_of(4), "a piece between others has whole words");
                self.sum.append(&sums, payload.len() as u64 / 4);
            }
            None => self.sum.update(payload, self.endian),
        }
        out.write_all(&bytes)?;
        out.write_all(payload)?;
        self.bytes += (bytes.len() + payload.len()) as u64;
        Ok(())
    }
}

fn sums_of(payload: &[u8], order: Endian) -> Fletcher4 {
    let mut sums = Fletcher4::new();
    sums.update(payload, order);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checks, StreamReader};
    use cenote_format::stream::{BeginFlags, Features, HeaderKind};

    /// The records between BEGIN and END.
    fn written(make: impl FnOnce(&mut StreamWriter<'_>)) -> Vec<Body> {
        let mut out = Vec::new();
        // Two blocks of dnodes: objects up to 63.
        let mut writer = StreamWriter::new(Some(&mut out), Endian::Little, Guid(7), 2);
        let begin = Begin {
            header: HeaderKind::Substream,
            features: Features::empty(),
            reserved: 0,
            creation_time: 0,
            objset_type: 2,
            flags: BeginFlags::empty(),
            to_guid: Guid(7),
            from_guid: Guid(0),
            to_name: b"p@s".to_vec(),
        };
        writer.begin(begin, &[]).unwrap();
        make(&mut writer);
        let bytes = writer.end(true).unwrap();
        assert_eq!(bytes, out.len() as u64);
        let mut reader = StreamReader::new(&out[..], Checks::ALL);
        let mut bodies = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            bodies.push(item.decoded.record.body.clone());
        }
        bodies[1..bodies.len() - 1].to_vec()
    }

    fn free(object: u64, offset_bytes: u64, length_bytes: u64) -> Body {
        Body::Free(Free { object: ObjectId(object), offset_bytes, length_bytes, to_guid: Guid(7) })
    }

    fn free_objects(first: u64, object_count: u64) -> Body {
        Body::FreeObjects(FreeObjects { first_object: ObjectId(first), object_count, to_guid: Guid(7) })
    }

    fn redact(object: u64, offset_bytes: u64, length_bytes: u64) -> Body {
        Body::Redact(Redact { object: ObjectId(object), offset_bytes, length_bytes, to_guid: Guid(7) })
    }

    #[test]
    fn neighbours_of_one_kind_are_one_record() {
        let bodies = written(|out| {
            for object in [3, 4, 5, 9] {
                out.free_objects(object, 1).unwrap();
            }
            out.free(ObjectId(10), 0, 512).unwrap();
            out.free(ObjectId(10), 512, 1024).unwrap();
            out.free(ObjectId(10), 4096, 512).unwrap();
            out.free(ObjectId(11), 4608, 512).unwrap();
            out.redact(ObjectId(11), 5120, 512).unwrap();
            out.redact(ObjectId(11), 5632, 512).unwrap();
            out.redact(ObjectId(12), 6144, 512).unwrap();
        });
        let expected = vec![
            free_objects(3, 3),
            free_objects(9, 1),
            free(10, 0, 1536),
            free(10, 4096, 512),
            free(11, 4608, 512),
            redact(11, 5120, 1024),
            redact(12, 6144, 512),
        ];
        assert_eq!(bodies, expected);
    }

    #[test]
    fn objects_that_the_sender_cannot_have_are_not_freed() {
        let bodies = written(|out| {
            out.free_objects(60, 100).unwrap();
            out.free_objects(64, 32).unwrap();
            out.free_objects(u64::MAX, 1).unwrap();
        });
        assert_eq!(bodies, vec![free_objects(60, 4)]);
    }

    #[test]
    fn a_range_to_the_end_of_all_offsets_is_one_to_the_end() {
        let bodies = written(|out| {
            // Written at once, so the next record cannot extend it.
            out.free(ObjectId(5), 1024, Free::TO_THE_END).unwrap();
            out.free(ObjectId(5), 0, 512).unwrap();
            out.free(ObjectId(5), 512, u64::MAX - 600).unwrap();
            // Ends beyond the last offset.
            out.free(ObjectId(6), 1 << 20, u64::MAX - 512).unwrap();
            out.free(ObjectId(7), 0, 512).unwrap();
            out.free(ObjectId(7), 512, u64::MAX - 5).unwrap();
        });
        let expected = vec![
            free(5, 1024, Free::TO_THE_END),
            free(5, 0, u64::MAX - 88),
            free(6, 1 << 20, Free::TO_THE_END),
            free(7, 0, Free::TO_THE_END),
        ];
        assert_eq!(bodies, expected);
    }
}
