//! Records on their way out: neighbours that can be one are put together, each gets the sum of what precedes it, and all is
//! written in order.

use std::io::Write;

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::stream::{Begin, Body, End, Free, FreeObjects, Record, RecordKind, Redact};

use super::error::SenderError;

/// Slots of dnodes in a block of them, as OpenZFS makes them.
const SLOTS: u64 = 32;

/// Writes the records of one stream.
pub(super) struct StreamWriter<'a> {
    /// `None`: all is only counted.
    out: Option<&'a mut dyn Write>,
    endian: Endian,
    to_guid: Guid,
    sum: Fletcher4,
    /// A FREE, FREEOBJECTS or REDACT that the next one may be a part of.
    pending: Option<Body>,
    /// Objects from this one on are not freed: older receivers would go through them one by one.
    objects_end: u64,
    bytes: u64,
}

impl<'a> StreamWriter<'a> {
    /// `meta_blocks` is the number of blocks of the sender's array of dnodes.
    pub(super) fn new(out: Option<&'a mut dyn Write>, endian: Endian, to_guid: Guid, meta_blocks: u64) -> Self {
        let objects_end = meta_blocks.saturating_mul(SLOTS);
        Self { out, endian, to_guid, sum: Fletcher4::new(), pending: None, objects_end, bytes: 0 }
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn begin(&mut self, begin: Begin, payload: &[u8]) -> Result<(), SenderError> {
        assert_eq!(self.bytes, 0, "a stream begins once");
        self.write(Body::Begin(begin), payload)
    }

    /// Writes a record, after what is pending.
    pub(super) fn record(&mut self, body: Body, payload: &[u8]) -> Result<(), SenderError> {
        assert!(self.bytes > 0, "a stream begins with BEGIN");
        self.flush()?;
        self.write(body, payload)
    }

    /// Counts a record whose payload was not read.
    pub(super) fn count(&mut self, payload_bytes: u64) -> Result<(), SenderError> {
        assert!(self.out.is_none(), "what is written is read");
        self.flush()?;
        self.bytes += Record::SIZE as u64 + payload_bytes;
        Ok(())
    }

    /// Frees a range of an object. A length of [`Free::TO_THE_END`] is written at once.
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
            return Ok(());
        }
        let length_bytes = if ends.is_some() { length } else { Free::TO_THE_END };
        self.put_off(Body::Free(Free { object, offset_bytes: offset, length_bytes, to_guid: self.to_guid }))?;
        if length == Free::TO_THE_END { self.flush() } else { Ok(()) }
    }

    /// Frees a run of objects, as far as the sender could have them.
    pub(super) fn free_objects(&mut self, first: u64, count: u64) -> Result<(), SenderError> {
        if first >= self.objects_end || count == 0 {
            return Ok(());
        }
        let count = count.min(self.objects_end - first);
        if let Some(Body::FreeObjects(free)) = &mut self.pending
            && free.first_object.0 + free.object_count == first
        {
            free.object_count += count;
            return Ok(());
        }
        let free = FreeObjects { first_object: ObjectId(first), object_count: count, to_guid: self.to_guid };
        self.put_off(Body::FreeObjects(free))
    }

    /// Says that a range is left out.
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

    /// Writes what is pending, and END if the stream is whole.
    pub(super) fn end(mut self, is_whole: bool) -> Result<u64, SenderError> {
        self.flush()?;
        if is_whole {
            let stream_checksum = self.sum.finish();
            self.write(Body::End(End { stream_checksum, to_guid: self.to_guid }), &[])?;
        }
        Ok(self.bytes)
    }

    fn put_off(&mut self, body: Body) -> Result<(), SenderError> {
        self.flush()?;
        self.pending = Some(body);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SenderError> {
        match self.pending.take() {
            Some(body) => self.write(body, &[]),
            None => Ok(()),
        }
    }

    fn write(&mut self, body: Body, payload: &[u8]) -> Result<(), SenderError> {
        let Some(out) = &mut self.out else {
            self.bytes += (Record::SIZE + payload.len()) as u64;
            return Ok(());
        };
        let is_begin = body.kind() == RecordKind::Begin;
        let payload_length = if is_begin { u32::try_from(payload.len()).expect("a list of BEGIN is short") } else { 0 };
        let mut record = Record { payload_length, body, checksum: [0; 4] };
        debug_assert_eq!(record.payload_bytes().ok(), Some(payload.len() as u64), "a payload is as long as its record says");
        let mut bytes = record.emit(self.endian);
        self.sum.update(&bytes[..Record::CHECKSUM_OFFSET], self.endian);
        if !is_begin {
            record.checksum = self.sum.finish();
            bytes = record.emit(self.endian);
        }
        self.sum.update(&bytes[Record::CHECKSUM_OFFSET..], self.endian);
        self.sum.update(payload, self.endian);
        out.write_all(&bytes)?;
        out.write_all(payload)?;
        self.bytes += (bytes.len() + payload.len()) as u64;
        Ok(())
    }
}
