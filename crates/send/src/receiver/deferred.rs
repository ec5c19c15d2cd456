//! Deferred records: an object can get a dnode of another size only after the previous one in its slots is gone from disk.
//!
//! # Need
//!
//! A change of dnode sizes gives every object a new dnode. If each waited for a txg of its own, a stream would advance by a few objects per
//! second (openzfs/zfs#11353).
//!
//! # Method
//!
//! The old objects in the slots are freed at once. The record, and all later ones of the same object, are deferred, while the stream continues
//! with other objects. When enough are deferred, or the stream ends, they are applied together after one txg.
//!
//! # Invariants
//!
//! 1. Records of one object are applied in the order of the stream. A record that depends on deferred ones waits for them.
//! 2. At most [`PUT_BY_MAX_BYTES`] and one record are kept.
//! 3. A receive resumes before the first deferred record. Later records that were already applied are then applied again, which changes nothing.

use std::collections::BTreeMap;

use cenote_format::ids::ObjectId;
use cenote_format::stream::{Body, Object, Record};
use cenote_spa::ReceivePoint;
use cenote_taskq::buf::Block;
use cenote_zio::Seal;

/// Bytes of deferred records.
const PUT_BY_MAX_BYTES: usize = 32 << 20;

/// A record of a stream.
pub(super) struct Incoming<'a> {
    pub(super) body: &'a Body,
    pub(super) payload: &'a [u8],
    /// The payload as a block, if it arrived as one.
    pub(super) block: Option<&'a Block>,
    /// Its offset in the stream.
    pub(super) at: u64,
    /// Bytes of the stream up to its end.
    pub(super) read_bytes: u64,
}

/// A deferred record.
pub(super) struct PutBy {
    pub(super) body: Body,
    pub(super) payload: Vec<u8>,
    pub(super) at: u64,
    pub(super) read_bytes: u64,
    /// In a raw stream, the seal of its block of dnodes.
    pub(super) range: Option<(u64, Seal)>,
}

/// The deferred records.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) records: Vec<PutBy>,
    bytes: usize,
    /// Deferred objects, each with the end of its slots.
    objects: BTreeMap<u64, u64>,
    /// The place before the first deferred record.
    pub(super) point: Option<ReceivePoint>,
}

/// The relation of a record to the deferred ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stands {
    /// Independent: applied now.
    Apart,
    /// About a deferred object: deferred too.
    Behind,
    /// Applied after the deferred records.
    After,
}

/// The end of an object's slots.
fn end_of(object: &Object) -> u64 {
    object.object.0.saturating_add(u64::from(object.dnode_slots.max(1)))
}

impl Deferred {
    /// True if a deferred object has one of these slots.
    fn meets(&self, first: u64, end: u64) -> bool {
        self.objects.range(..end).next_back().is_some_and(|(_, other)| *other > first)
    }

    /// The relation of a record to the deferred ones.
    pub(super) fn stands(&self, body: &Body) -> Stands {
        let behind = |id: ObjectId| match self.objects.contains_key(&id.0) {
            true => Stands::Behind,
            false => Stands::Apart,
        };
        match body {
            _ if self.objects.is_empty() => Stands::Apart,
            // With other slots it may need another txg.
            Body::Object(object) if self.objects.get(&object.object.0).is_some_and(|end| *end != end_of(object)) => {
                Stands::After
            }
            Body::Object(object) => match behind(object.object) {
                Stands::Apart if self.meets(object.object.0, end_of(object)) => Stands::After,
                stands => stands,
            },
            Body::Write(write) => behind(write.object),
            Body::WriteEmbedded(write) => behind(write.object),
            Body::Free(free) => behind(free.object),
            Body::Spill(spill) => behind(spill.object),
            Body::Redact(redact) => behind(redact.object),
            Body::FreeObjects(range) => {
                let end = range.first_object.0.saturating_add(range.object_count);
                match self.objects.range(range.first_object.0..end.max(range.first_object.0)).next() {
                    Some(_) => Stands::After,
                    None => Stands::Apart,
                }
            }
            Body::ObjectRange(_) | Body::WriteByRef(_) | Body::Begin(_) | Body::End(_) => Stands::Apart,
        }
    }

    /// Defers a record. `point`: the place in the stream before it. `range`: in a raw stream, the seal of its block of dnodes.
    pub(super) fn push(&mut self, incoming: &Incoming<'_>, point: ReceivePoint, range: Option<(u64, Seal)>) {
        assert!(self.bytes <= PUT_BY_MAX_BYTES, "so many bytes and one record are kept at most (invariant 2)");
        debug_assert!(
            self.records.last().is_none_or(|last| last.at < incoming.at),
            "records are deferred in the order of the stream (invariant 1)"
        );
        self.point.get_or_insert(point);
        if let Body::Object(object) = incoming.body {
            let end = end_of(object);
            self.objects.insert(object.object.0, end);
        }
        self.bytes += incoming.payload.len() + size_of::<PutBy>() + Record::SIZE;
        self.records.push(PutBy {
            body: incoming.body.clone(),
            payload: incoming.payload.to_vec(),
            at: incoming.at,
            read_bytes: incoming.read_bytes,
            range,
        });
    }

    /// True if no more records are to be deferred before these are applied.
    pub(super) const fn is_full(&self) -> bool {
        self.bytes > PUT_BY_MAX_BYTES
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::Guid;
    use cenote_format::stream::{Free, FreeObjects, RecordFlags};

    use super::*;

    #[test]
    fn what_depends_on_an_object_that_waits_waits_too() {
        let free =
            |object| Body::Free(Free { object: ObjectId(object), offset_bytes: 0, length_bytes: 1, to_guid: Guid(1) });
        let gone = |first, count| {
            let first_object = ObjectId(first);
            Body::FreeObjects(FreeObjects { first_object, object_count: count, to_guid: Guid(1) })
        };
        let mut deferred = Deferred::default();
        assert_eq!(deferred.stands(&free(4)), Stands::Apart);
        deferred.objects = BTreeMap::from([(4, 6), (9, 10)]);
        for (body, stands) in [
            (free(3), Stands::Apart),
            (free(4), Stands::Behind),
            // Nothing stands there any more.
            (free(5), Stands::Apart),
            (gone(1, 3), Stands::Apart),
            (gone(1, 4), Stands::After),
            (gone(5, 4), Stands::Apart),
            (gone(5, u64::MAX), Stands::After),
        ] {
            assert_eq!(deferred.stands(&body), stands, "{body:?}");
        }
        // Another record of a deferred object is deferred too, unless it takes other slots.
        let object = |dnode_slots| {
            Body::Object(Object {
                object: ObjectId(4),
                object_type: 19,
                bonus_type: 44,
                block_bytes: 512,
                bonus_bytes: 0,
                checksum_type: 0,
                compress: 0,
                dnode_slots,
                flags: RecordFlags::empty(),
                raw_bonus_bytes: 0,
                to_guid: Guid(1),
                indirect_block_shift: 0,
                levels: 0,
                block_pointers: 0,
                block_id_max: 0,
            })
        };
        assert_eq!(
            [1, 2, 3].map(|slots| deferred.stands(&object(slots))),
            [Stands::After, Stands::Behind, Stands::After]
        );
        assert!(deferred.meets(5, 6) && deferred.meets(0, 5) && !deferred.meets(6, 9) && !deferred.meets(10, 12));
    }
}
