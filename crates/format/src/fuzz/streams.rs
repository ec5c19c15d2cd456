//! Targets for the intent log and for send streams.

use std::borrow::Cow;
use std::hint::black_box;

use super::Target;
use crate::blkptr::Blkptr;
use crate::eck;
use crate::endian::Endian;
use crate::ids::{Guid, ObjectId, Txg};
use crate::stream::{
    Begin, BeginFlags, Body, DedupKey, End, Features, Free, FreeObjects, HeaderKind, Object, ObjectRange, Record,
    RecordFlags, Redact, Sealing, Spill, Write as StreamWrite, WriteByRef, WriteEmbedded,
};
use crate::zil::{
    Ace, AclEntries, AclRecord, Chain, ChainLayout, CloneRange, Create, CreateKind, FuidDomains, LogBlock, LogBlockId,
    LogRecord, Rename, RenameKind, SetAttr, SetSaXattr, Tx, Whiteout, Write, Xvattr, XvattrFlags,
};

/// The targets.
pub const TARGETS: &[Target] = &[
    Target { name: "stream_record", run: stream_record, seeds: stream_record_seeds },
    Target { name: "zil_block", run: zil_block, seeds: zil_block_seeds },
    Target { name: "zil_record", run: zil_record, seeds: zil_record_seeds },
];

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

/// Records of send streams.
pub fn stream_record(bytes: &[u8]) {
    black_box(Record::stream_endian(bytes));
    for order in ORDERS {
        if let Ok(record) = Record::parse(bytes, order) {
            if let Ok(payload_bytes) = record.payload_bytes() {
                assert!(payload_bytes <= 1 << 28);
            }
            assert_eq!(Record::parse(&record.emit(order), order), Ok(record));
        }
    }
}

/// Records of the intent log.
pub fn zil_record(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok((record, used)) = LogRecord::parse(bytes, order) {
            assert!(used <= bytes.len() && used >= LogRecord::HEADER_SIZE);
            let emitted = record.emit(order);
            let again = LogRecord::parse(&emitted, order);
            assert_eq!(again, Ok((record, emitted.len())));
        }
    }
}

/// Whole log blocks, of both layouts.
pub fn zil_block(bytes: &[u8]) {
    for order in ORDERS {
        for layout in [ChainLayout::Head, ChainLayout::Tail] {
            let Ok(block) = LogBlock::parse(bytes, layout, order) else { continue };
            assert!(block.records.len() + Chain::SIZE <= bytes.len());
            assert_eq!(Chain::parse(&block.chain.emit(order), order).as_ref(), Ok(&block.chain));
            black_box((block.continues(&block.chain.next), LogBlockId::of(&block.chain.next)));
            // Each takes 32 bytes at least, save one that ends the walk.
            assert!(block.records().count() <= bytes.len() / LogRecord::HEADER_SIZE + 1);
        }
    }
}

fn stream_record_seeds() -> Vec<Vec<u8>> {
    let (object, to_guid, flags) = (ObjectId(3), Guid(9), RecordFlags::RAW_BYTESWAP);
    let sealing = Sealing { salt: [1; 8], iv: [2; 12], mac: [3; 16] };
    let key = DedupKey { checksum: [1, 2, 3, 4], properties: 5 };
    let (offset_bytes, length_bytes) = (4096, 8192);
    let bodies = [
        Body::Begin(Begin {
            header: HeaderKind::Compound,
            features: Features::RAW | Features::LARGE_BLOCKS,
            reserved: 0,
            creation_time: 1,
            objset_type: 2,
            flags: BeginFlags::FREERECORDS,
            to_guid,
            from_guid: Guid(8),
            to_name: b"pool/fs@snap".to_vec(),
        }),
        Body::Object(Object {
            object,
            object_type: 19,
            bonus_type: 44,
            block_bytes: 4096,
            bonus_bytes: 176,
            checksum_type: 7,
            compress: 2,
            dnode_slots: 1,
            flags,
            raw_bonus_bytes: 0,
            to_guid,
            indirect_block_shift: 17,
            levels: 1,
            block_pointers: 1,
            block_id_max: 0,
        }),
        Body::FreeObjects(FreeObjects { first_object: object, object_count: 5, to_guid }),
        Body::Write(StreamWrite {
            object,
            object_type: 19,
            offset_bytes,
            logical_bytes: length_bytes,
            to_guid,
            checksum_type: 7,
            flags,
            compress: 15,
            key,
            compressed_bytes: 512,
            sealing,
        }),
        Body::Free(Free { object, offset_bytes, length_bytes: Free::TO_THE_END, to_guid }),
        Body::End(End { stream_checksum: [1, 2, 3, 4], to_guid }),
        Body::WriteByRef(WriteByRef {
            object,
            offset_bytes,
            length_bytes,
            to_guid,
            reference_guid: Guid(7),
            reference_object: ObjectId(2),
            reference_offset_bytes: 0,
            checksum_type: 8,
            flags,
            key,
        }),
        Body::Spill(Spill {
            object,
            length_bytes: 512,
            to_guid,
            flags,
            compress: 0,
            compressed_bytes: 0,
            sealing,
            object_type: 44,
        }),
        Body::WriteEmbedded(WriteEmbedded {
            object,
            offset_bytes,
            length_bytes,
            to_guid,
            compress: 15,
            embedded_type: 0,
            logical_bytes: 512,
            physical_bytes: 20,
        }),
        Body::ObjectRange(ObjectRange { first_object: ObjectId(32), slot_count: 32, to_guid, sealing, flags }),
        Body::Redact(Redact { object, offset_bytes, length_bytes, to_guid }),
    ];
    let record = |body: &Body| {
        let checksum = if matches!(body, Body::Begin(_)) { [0; 4] } else { [5, 6, 7, 8] };
        Record { payload_length: 0, body: body.clone(), checksum }
    };
    ORDERS.iter().flat_map(|order| bodies.iter().map(|body| record(body).emit(*order).to_vec())).collect()
}

fn sample_records() -> Vec<LogRecord<'static>> {
    let (object, directory) = (ObjectId(128), ObjectId(34));
    let name = || Cow::Borrowed(&b"name"[..]);
    let xvattr = Xvattr {
        bitmap: vec![XvattrFlags::READONLY.bits() as u32, 0, 0],
        values: XvattrFlags::READONLY,
        creation_time: [1, 2],
        scan_stamp: [0; 32],
    };
    let ace = |entry_type, object| Ace { who: 1000, access_mask: 7, flags: 3, entry_type, object };
    let acl = AclEntries {
        entries: vec![ace(0, None), ace(5, Some([9; 32])), ace(1, None)],
        flags: 1,
        fuids: vec![1 << 32 | 500],
        domains: FuidDomains(vec![b"S-1-5-21".to_vec()]),
    };
    let create = |kind, xvattr: Option<&Xvattr>, acl: Option<&AclEntries>, uid, domains| {
        Tx::Create(Box::new(Create {
            kind,
            directory,
            object,
            dnode_slots: 2,
            mode: 0o100_644,
            uid,
            gid: 0,
            generation: 59,
            creation_time: [1, 2],
            rdev: 0,
            xvattr: xvattr.cloned(),
            acl: acl.cloned(),
            domains,
            name: name(),
        }))
    };
    let none = FuidDomains::default;
    let write = |data: Option<&'static [u8]>, size_only| {
        Tx::Write(Box::new(Write {
            object,
            offset_bytes: 4096,
            length_bytes: data.map_or(512, |data| data.len() as u64),
            block_offset: 0,
            pointer: Blkptr::default(),
            data: data.map(Cow::Borrowed),
            size_only,
        }))
    };
    let rename = |kind| {
        Tx::Rename(Rename {
            kind,
            source_directory: directory,
            target_directory: directory,
            source_name: name(),
            target_name: name(),
        })
    };
    let whiteout = Whiteout {
        object,
        dnode_slots: 1,
        mode: 0o20_000,
        uid: 0,
        gid: 0,
        generation: 59,
        creation_time: [1, 2],
        rdev: 0,
    };
    let set_attr = |mask, xvattr| {
        Tx::SetAttr(Box::new(SetAttr {
            object,
            mask,
            mode: 0,
            uid: 1 << 32 | 7,
            gid: 0,
            size_bytes: 0,
            access_time: [1, 2],
            modification_time: [3, 4],
            xvattr,
            domains: FuidDomains(vec![b"S-1-5-21".to_vec()]),
        }))
    };
    let txs = vec![
        Tx::Commit,
        create(CreateKind::File, None, None, 0, none()),
        create(CreateKind::File, Some(&xvattr), None, 1 << 32, FuidDomains(vec![b"S-1".to_vec()])),
        create(CreateKind::File, None, Some(&acl), 0, none()),
        create(CreateKind::Directory, Some(&xvattr), Some(&acl), 0, none()),
        create(CreateKind::XattrDirectory, None, None, 0, none()),
        create(CreateKind::Symlink { target: name() }, None, None, 0, none()),
        Tx::Remove { directory, name: name() },
        Tx::Rmdir { directory, name: name() },
        Tx::Link { directory, object, name: name() },
        rename(RenameKind::Plain),
        rename(RenameKind::Exchange),
        rename(RenameKind::Whiteout(whiteout)),
        write(Some(b"thirteen byte"), false),
        write(None, false),
        write(None, true),
        Tx::Truncate { object, offset_bytes: 1, length_bytes: 2 },
        set_attr(SetAttr::MASK_XVATTR_LINUX, Some(xvattr.clone())),
        set_attr(SetAttr::MASK_XVATTR_ILLUMOS, Some(xvattr)),
        set_attr(7, None),
        Tx::AclV0 { object, entries: vec![ace(0, None)] },
        Tx::Acl(AclRecord { object, acl }),
        Tx::SetSaXattr(SetSaXattr { object, name: name(), value: Cow::Borrowed(b"value") }),
        Tx::CloneRange(CloneRange {
            object,
            offset_bytes: 0,
            length_bytes: 8192,
            block_bytes: 4096,
            pointers: vec![Blkptr::default(); 2],
        }),
    ];
    txs.into_iter().map(|tx| LogRecord { txg: Txg(59), sequence: 1, ignore_case: false, tx }).collect()
}

fn zil_record_seeds() -> Vec<Vec<u8>> {
    ORDERS.iter().flat_map(|order| sample_records().into_iter().map(|record| record.emit(*order))).collect()
}

fn zil_block_seeds() -> Vec<Vec<u8>> {
    let block = |order: Endian, layout| {
        let area: Vec<u8> = sample_records().iter().flat_map(|record| record.emit(order)).collect();
        let head = layout == ChainLayout::Head;
        let used_bytes = (area.len() + if head { Chain::SIZE } else { 0 }) as u64;
        let chain = Chain { next: Blkptr::default(), used_bytes, magic: eck::MAGIC, checksum: [1, 2, 3, 4] };
        let mut out = vec![0; (area.len() + Chain::SIZE).next_multiple_of(LogBlock::SIZE_MIN)];
        let (chain_at, area_at) = if head { (0, Chain::SIZE) } else { (out.len() - Chain::SIZE, 0) };
        out[chain_at..chain_at + Chain::SIZE].copy_from_slice(&chain.emit(order));
        out[area_at..area_at + area.len()].copy_from_slice(&area);
        out
    };
    vec![
        block(Endian::Little, ChainLayout::Head),
        block(Endian::Big, ChainLayout::Head),
        block(Endian::Little, ChainLayout::Tail),
    ]
}
