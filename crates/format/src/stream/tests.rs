use proptest::prelude::*;

use super::*;
use crate::ids::{Guid, ObjectId};

/// The first record of a stream made by OpenZFS 2.3.2 (a full send of a small file system), zeros after the name cut.
const GOLDEN_BEGIN: [u8; 76] = *include_bytes!("../../testdata/stream-begin.bin");

fn golden() -> Vec<u8> {
    let mut bytes = GOLDEN_BEGIN.to_vec();
    bytes.resize(Record::SIZE, 0);
    bytes
}

#[test]
fn a_real_begin_record_reads_as_zstream_dump_prints_it() {
    let bytes = golden();
    assert_eq!(Record::stream_endian(&bytes), Some(Endian::Little));
    let record = Record::parse(&bytes, Endian::Little).unwrap();
    let Body::Begin(begin) = &record.body else { panic!("not BEGIN: {record:?}") };
    assert_eq!(begin.header, HeaderKind::Substream);
    assert_eq!(begin.features, Features::SA_SPILL);
    assert_eq!(begin.creation_time, 0x6b01_fd7f);
    assert_eq!(begin.objset_type, 2);
    assert_eq!(begin.flags, BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK);
    assert_eq!(begin.to_guid, Guid(0x2308_d836_f2aa_6e9a));
    assert_eq!(begin.from_guid, Guid(0));
    assert_eq!(begin.to_name, b"vendunquin0/src@one");
    assert_eq!(record.payload_bytes().unwrap(), 0);
    assert_eq!(record.emit(Endian::Little).as_slice(), bytes);
}

#[test]
fn the_other_order_is_recognised_by_the_magic_number() {
    let record = Record::parse(&golden(), Endian::Little).unwrap();
    let swapped = record.emit(Endian::Big);
    assert_eq!(Record::stream_endian(&swapped), Some(Endian::Big));
    assert_eq!(Record::parse(&swapped, Endian::Big).unwrap(), record);
    assert!(Record::parse(&swapped, Endian::Little).is_err());
    assert_eq!(Record::stream_endian(&[0; 312]), None);
    assert_eq!(Record::stream_endian(&[]), None);
}

#[test]
fn payloads_beyond_the_limit_or_of_odd_length_are_refused() {
    let mut record = Record::parse(&golden(), Endian::Little).unwrap();
    record.payload_length = u32::MAX - 3;
    assert!(matches!(record.payload_bytes().unwrap_err().kind, FormatErrorKind::Limit { .. }));
    record.payload_length = 1030;
    assert!(matches!(record.payload_bytes().unwrap_err().kind, FormatErrorKind::Invalid { .. }));
}

#[test]
fn an_unknown_type_or_an_endless_name_is_refused() {
    let mut bytes = golden();
    bytes[0] = 11;
    assert!(Record::parse(&bytes, Endian::Little).is_err());
    let mut bytes = golden();
    bytes[56..].fill(b'x');
    assert!(Record::parse(&bytes, Endian::Little).is_err());
}

fn sealing() -> impl Strategy<Value = Sealing> {
    any::<([u8; 8], [u8; 12], [u8; 16])>().prop_map(|(salt, iv, mac)| Sealing { salt, iv, mac })
}

fn key() -> impl Strategy<Value = DedupKey> {
    any::<([u64; 4], u64)>().prop_map(|(checksum, properties)| DedupKey { checksum, properties })
}

fn flags() -> impl Strategy<Value = RecordFlags> {
    any::<u8>().prop_map(RecordFlags::from_bits_retain)
}

fn body() -> impl Strategy<Value = Body> {
    let begin = (any::<(u8, u64, u8, u64, u32, u32, u64, u64)>(), proptest::collection::vec(1_u8.., 0..=255)).prop_map(
        |((header, features, reserved, creation_time, objset_type, flags, to, from), to_name)| {
            Body::Begin(Begin {
                header: HeaderKind::from_number(header & 3),
                features: Features::from_bits_retain(features >> 8),
                reserved: reserved & 0x3f,
                creation_time,
                objset_type,
                flags: BeginFlags::from_bits_retain(flags),
                to_guid: Guid(to),
                from_guid: Guid(from),
                to_name,
            })
        },
    );
    let object = (any::<([u64; 3], [u32; 5], [u8; 6])>(), flags()).prop_map(|((q, d, b), flags)| {
        Body::Object(Object {
            object: ObjectId(q[0]),
            object_type: d[0],
            bonus_type: d[1],
            block_bytes: d[2],
            bonus_bytes: d[3],
            checksum_type: b[0],
            compress: b[1],
            dnode_slots: b[2],
            flags,
            raw_bonus_bytes: d[4],
            to_guid: Guid(q[1]),
            indirect_block_shift: b[3],
            levels: b[4],
            block_pointers: b[5],
            block_id_max: q[2],
        })
    });
    let write = (any::<([u64; 5], u32, [u8; 2])>(), flags(), key(), sealing()).prop_map(
        |((q, object_type, b), flags, key, sealing)| {
            Body::Write(Write {
                object: ObjectId(q[0]),
                object_type,
                offset_bytes: q[1],
                logical_bytes: q[2],
                to_guid: Guid(q[3]),
                checksum_type: b[0],
                flags,
                compress: b[1],
                key,
                compressed_bytes: q[4],
                sealing,
            })
        },
    );
    let by_ref = (any::<([u64; 7], u8)>(), flags(), key()).prop_map(|((q, checksum_type), flags, key)| {
        Body::WriteByRef(WriteByRef {
            object: ObjectId(q[0]),
            offset_bytes: q[1],
            length_bytes: q[2],
            to_guid: Guid(q[3]),
            reference_guid: Guid(q[4]),
            reference_object: ObjectId(q[5]),
            reference_offset_bytes: q[6],
            checksum_type,
            flags,
            key,
        })
    });
    let spill =
        (any::<([u64; 4], u32, u8)>(), flags(), sealing()).prop_map(|((q, object_type, compress), flags, sealing)| {
            Body::Spill(Spill {
                object: ObjectId(q[0]),
                length_bytes: q[1],
                to_guid: Guid(q[2]),
                flags,
                compress,
                compressed_bytes: q[3],
                sealing,
                object_type,
            })
        });
    let embedded = any::<([u64; 4], [u32; 2], [u8; 2])>().prop_map(|(q, d, b)| {
        Body::WriteEmbedded(WriteEmbedded {
            object: ObjectId(q[0]),
            offset_bytes: q[1],
            length_bytes: q[2],
            to_guid: Guid(q[3]),
            compress: b[0],
            embedded_type: b[1],
            logical_bytes: d[0],
            physical_bytes: d[1],
        })
    });
    let range = (any::<[u64; 3]>(), flags(), sealing()).prop_map(|(q, flags, sealing)| {
        Body::ObjectRange(ObjectRange {
            first_object: ObjectId(q[0]),
            slot_count: q[1],
            to_guid: Guid(q[2]),
            sealing,
            flags,
        })
    });
    prop_oneof![
        begin,
        object,
        write,
        by_ref,
        spill,
        embedded,
        range,
        any::<[u64; 3]>().prop_map(|q| Body::FreeObjects(FreeObjects {
            first_object: ObjectId(q[0]),
            object_count: q[1],
            to_guid: Guid(q[2]),
        })),
        any::<[u64; 4]>().prop_map(|q| Body::Free(Free {
            object: ObjectId(q[0]),
            offset_bytes: q[1],
            length_bytes: q[2],
            to_guid: Guid(q[3]),
        })),
        any::<([u64; 4], u64)>()
            .prop_map(|(stream_checksum, to)| Body::End(End { stream_checksum, to_guid: Guid(to) })),
        any::<[u64; 4]>().prop_map(|q| Body::Redact(Redact {
            object: ObjectId(q[0]),
            offset_bytes: q[1],
            length_bytes: q[2],
            to_guid: Guid(q[3]),
        })),
    ]
}

proptest! {
    #[test]
    fn every_record_survives_emit_and_parse(
        payload_length: u32,
        body in body(),
        checksum: [u64; 4],
        big: bool,
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let checksum = if matches!(body, Body::Begin(_)) { [0; 4] } else { checksum };
        let record = Record { payload_length, body, checksum };
        prop_assert_eq!(Record::parse(&record.emit(endian), endian).unwrap(), record);
    }

    #[test]
    fn any_bytes_parse_or_fail_and_what_parses_emits_to_a_fixed_point(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        kind in 0_u8..12,
    ) {
        if let Some(head) = bytes.get_mut(..4) {
            head.copy_from_slice(&[kind, 0, 0, 0]);
        }
        if let Ok(record) = Record::parse(&bytes, Endian::Little) {
            let _ = record.payload_bytes();
            let emitted = record.emit(Endian::Little);
            prop_assert_eq!(Record::parse(&emitted, Endian::Little).unwrap(), record);
        }
    }
}
