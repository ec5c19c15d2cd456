use std::borrow::Cow;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::blkptr::Blkptr;
use crate::ids::{ObjectId, Txg};

fn blkptr() -> impl Strategy<Value = Blkptr> {
    // Any 128 bytes are some pointer.
    any::<[[u8; 32]; 4]>().prop_map(|bytes| Blkptr::parse(bytes.as_flattened(), Endian::Little).unwrap())
}

fn name() -> impl Strategy<Value = Data<'static>> {
    vec(1_u8.., 0..40).prop_map(Cow::Owned)
}

fn object() -> impl Strategy<Value = ObjectId> {
    (0_u64..1 << 48).prop_map(ObjectId)
}

fn domains(uid: u64, gid: u64) -> impl Strategy<Value = FuidDomains> {
    let count = FuidDomains::implied_count(uid, gid) as usize;
    vec(vec(1_u8.., 0..20), count..=count).prop_map(FuidDomains)
}

fn ace(with_objects: bool) -> impl Strategy<Value = Ace> {
    (any::<(u32, u32, u16, [u8; 32])>(), 0_u16..10).prop_map(move |((who, access_mask, flags, object), entry_type)| {
        Ace {
            who,
            access_mask,
            flags,
            entry_type,
            object: (with_objects && Ace::is_object_type(entry_type)).then_some(object),
        }
    })
}

fn acl() -> impl Strategy<Value = AclEntries> {
    (vec(ace(true), 0..6), any::<u64>(), vec(any::<u64>(), 0..4), vec(vec(1_u8.., 0..20), 0..3)).prop_map(
        |(entries, flags, fuids, domains)| AclEntries { entries, flags, fuids, domains: FuidDomains(domains) },
    )
}

fn xvattr() -> impl Strategy<Value = Xvattr> {
    (vec(any::<u32>(), 1..5), any::<(u64, [u64; 2], [u8; 32])>()).prop_map(
        |(bitmap, (values, creation_time, scan_stamp))| Xvattr {
            bitmap,
            values: XvattrFlags::from_bits_retain(values),
            creation_time,
            scan_stamp,
        },
    )
}

/// A user or group id: mostly plain, sometimes a FUID.
fn id() -> impl Strategy<Value = u64> {
    prop_oneof![3 => any::<u32>().prop_map(u64::from), 1 => (1_u64..3, any::<u32>()).prop_map(|(d, r)| d << 32 | u64::from(r))]
}

fn create() -> impl Strategy<Value = Tx<'static>> {
    let kind = prop_oneof![
        Just(CreateKind::File),
        Just(CreateKind::Directory),
        Just(CreateKind::XattrDirectory),
        name().prop_map(|target| CreateKind::Symlink { target }),
    ];
    (kind, id(), id())
        .prop_flat_map(|(kind, uid, gid)| {
            (
                Just((kind, uid, gid)),
                option::of(xvattr()),
                option::of(acl()),
                domains(uid, gid),
                (object(), object(), 1_u16..=256, name()),
                any::<[u64; 5]>(),
            )
        })
        .prop_map(|((kind, uid, gid), xvattr, acl, domains, (directory, object, dnode_slots, name), words)| {
            let rich = matches!(kind, CreateKind::File | CreateKind::Directory);
            let acl = acl.filter(|_| rich);
            let no_domains = acl.is_some() || matches!(kind, CreateKind::Symlink { .. });
            Tx::Create(Box::new(Create {
                directory,
                object,
                dnode_slots,
                mode: words[0],
                uid,
                gid,
                generation: words[1],
                creation_time: [words[2], words[3]],
                rdev: words[4],
                xvattr: xvattr.filter(|_| rich),
                domains: if no_domains { FuidDomains::default() } else { domains },
                acl,
                kind,
                name,
            }))
        })
}

fn rename() -> impl Strategy<Value = Tx<'static>> {
    let whiteout = (object(), 1_u16..=256, any::<[u64; 7]>()).prop_map(|(object, dnode_slots, words)| {
        RenameKind::Whiteout(Whiteout {
            object,
            dnode_slots,
            mode: words[0],
            uid: words[1],
            gid: words[2],
            generation: words[3],
            creation_time: [words[4], words[5]],
            rdev: words[6],
        })
    });
    let kind = prop_oneof![Just(RenameKind::Plain), Just(RenameKind::Exchange), whiteout];
    (kind, object(), object(), name(), name()).prop_map(
        |(kind, source_directory, target_directory, source_name, target_name)| {
            Tx::Rename(Rename { kind, source_directory, target_directory, source_name, target_name })
        },
    )
}

fn write() -> impl Strategy<Value = Tx<'static>> {
    (object(), any::<[u64; 3]>(), blkptr(), option::of(vec(any::<u8>(), 1..300)), any::<bool>()).prop_map(
        |(object, words, pointer, data, size_only)| {
            let data = data.filter(|_| !size_only);
            Tx::Write(Box::new(Write {
                object,
                offset_bytes: words[0],
                length_bytes: data.as_ref().map_or(words[1], |data| data.len() as u64),
                block_offset: words[2],
                pointer,
                data: data.map(Cow::Owned),
                size_only,
            }))
        },
    )
}

fn set_attr() -> impl Strategy<Value = Tx<'static>> {
    (id(), id())
        .prop_flat_map(|(uid, gid)| {
            (Just((uid, gid)), option::of(xvattr()), domains(uid, gid), object(), any::<[u64; 7]>())
        })
        .prop_map(|((uid, gid), xvattr, domains, object, words)| {
            let mask = words[0] & 0xffff | if xvattr.is_some() { SetAttr::MASK_XVATTR_LINUX } else { 0 };
            Tx::SetAttr(Box::new(SetAttr {
                object,
                mask,
                mode: words[1],
                uid,
                gid,
                size_bytes: words[2],
                access_time: [words[3], words[4]],
                modification_time: [words[5], words[6]],
                xvattr,
                domains,
            }))
        })
}

fn tx() -> impl Strategy<Value = Tx<'static>> {
    prop_oneof![
        Just(Tx::Commit),
        create(),
        (object(), name()).prop_map(|(directory, name)| Tx::Remove { directory, name }),
        (object(), name()).prop_map(|(directory, name)| Tx::Rmdir { directory, name }),
        (object(), object(), name()).prop_map(|(directory, object, name)| Tx::Link { directory, object, name }),
        rename(),
        write(),
        (object(), any::<[u64; 2]>()).prop_map(|(object, [offset_bytes, length_bytes])| Tx::Truncate {
            object,
            offset_bytes,
            length_bytes
        }),
        set_attr(),
        (object(), vec(ace(false), 0..6)).prop_map(|(object, entries)| Tx::AclV0 { object, entries }),
        (object(), acl()).prop_map(|(object, acl)| Tx::Acl(AclRecord { object, acl })),
        (object(), name(), vec(any::<u8>(), 0..100)).prop_map(|(object, name, value)| Tx::SetSaXattr(SetSaXattr {
            object,
            name,
            value: Cow::Owned(value)
        })),
        (object(), any::<[u64; 3]>(), vec(blkptr(), 0..4)).prop_map(|(object, words, pointers)| {
            Tx::CloneRange(CloneRange {
                object,
                offset_bytes: words[0],
                length_bytes: words[1],
                block_bytes: words[2],
                pointers,
            })
        }),
    ]
}

fn record() -> impl Strategy<Value = LogRecord<'static>> {
    (any::<(u64, u64, bool)>(), tx()).prop_map(|((txg, sequence, ignore_case), tx)| LogRecord {
        txg: Txg(txg),
        sequence,
        ignore_case,
        tx,
    })
}

fn endian() -> impl Strategy<Value = Endian> {
    prop_oneof![Just(Endian::Little), Just(Endian::Big)]
}

proptest! {
    #[test]
    fn every_record_survives_emit_and_parse(record in record(), endian in endian()) {
        let bytes = record.emit(endian);
        prop_assert_eq!(bytes.len() % 8, 0);
        let (parsed, used) = LogRecord::parse(&bytes, endian).unwrap();
        prop_assert_eq!(used, bytes.len());
        prop_assert_eq!(parsed, record);
    }

    #[test]
    fn a_log_block_of_either_layout_gives_back_its_records(
        records in vec(record(), 0..5),
        endian in endian(),
        head: bool,
        next in blkptr(),
    ) {
        let area: Vec<u8> = records.iter().flat_map(|record| record.emit(endian)).collect();
        let layout = if head { ChainLayout::Head } else { ChainLayout::Tail };
        let used_bytes = (area.len() + if head { Chain::SIZE } else { 0 }) as u64;
        let chain = Chain { next, used_bytes, magic: crate::eck::MAGIC, checksum: [1, 2, 3, 4] };
        let mut block = vec![0; (area.len() + Chain::SIZE).next_multiple_of(LogBlock::SIZE_MIN)];
        let size = block.len();
        let (chain_at, area_at) = if head { (0, Chain::SIZE) } else { (size - Chain::SIZE, 0) };
        block[chain_at..chain_at + Chain::SIZE].copy_from_slice(&chain.emit(endian));
        block[area_at..area_at + area.len()].copy_from_slice(&area);
        let parsed = LogBlock::parse(&block, layout, endian).unwrap();
        prop_assert_eq!(&parsed.chain, &chain);
        let found: Vec<_> = parsed.records().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(found, records);
    }

    #[test]
    fn any_bytes_parse_or_fail(mut bytes in vec(any::<u8>(), 0..400), tx in 0_u8..26, length in 0_u8..) {
        if let Some(head) = bytes.get_mut(..16) {
            head[..8].copy_from_slice(&[tx, 0, 0, 0, 0, 0, 0, 0]);
            head[8..].copy_from_slice(&[length, 0, 0, 0, 0, 0, 0, 0]);
        }
        if let Ok((record, used)) = LogRecord::parse(&bytes, Endian::Little) {
            prop_assert!(used <= bytes.len());
            let emitted = record.emit(Endian::Little);
            let (again, _) = LogRecord::parse(&emitted, Endian::Little).unwrap();
            prop_assert_eq!(again, record);
        }
        let _ = LogBlock::parse(&bytes, ChainLayout::Head, Endian::Big);
        let _ = LogBlock::parse(&bytes, ChainLayout::Tail, Endian::Big);
    }
}

#[test]
fn counts_that_lie_are_errors_and_cost_nothing() {
    let acl = Tx::Acl(AclRecord { object: ObjectId(7), acl: AclEntries::default() });
    let record = LogRecord { txg: Txg(1), sequence: 1, ignore_case: false, tx: acl };
    let bytes = record.emit(Endian::Little);
    for offset in [40, 48, 56, 64] {
        let mut bytes = bytes.clone();
        bytes[offset..offset + 8].fill(0xff);
        assert!(LogRecord::parse(&bytes, Endian::Little).is_err(), "count at {offset}");
    }
    let clone = Tx::CloneRange(CloneRange {
        object: ObjectId(7),
        offset_bytes: 0,
        length_bytes: 0,
        block_bytes: 0,
        pointers: vec![],
    });
    let mut bytes = LogRecord { tx: clone, ..record }.emit(Endian::Little);
    bytes[64..72].fill(0xff);
    assert!(LogRecord::parse(&bytes, Endian::Little).is_err());
}

#[test]
fn a_chain_continues_only_with_the_same_identity_and_the_next_number() {
    let mut pointer = Blkptr::default();
    pointer.set_checksum_words([11, 22, 33, 5]);
    let mut next = pointer;
    next.set_checksum_words([11, 22, 33, 6]);
    let block = |next| {
        let chain = Chain { next, used_bytes: Chain::SIZE as u64, magic: crate::eck::MAGIC, checksum: [0; 4] };
        let mut bytes = chain.emit(Endian::Little).to_vec();
        bytes.resize(LogBlock::SIZE_MIN, 0);
        bytes
    };
    let bytes = block(next);
    let parsed = LogBlock::parse(&bytes, ChainLayout::Head, Endian::Little).unwrap();
    assert!(parsed.continues(&pointer));
    assert_eq!(LogBlockId::of(&parsed.chain.next), LogBlockId { guid: [11, 22], objset: 33, sequence: 6 });
    for words in [[11, 22, 33, 5], [11, 22, 33, 7], [12, 22, 33, 6], [11, 22, 34, 6]] {
        next.set_checksum_words(words);
        let bytes = block(next);
        assert!(!LogBlock::parse(&bytes, ChainLayout::Head, Endian::Little).unwrap().continues(&pointer));
    }
}

#[test]
fn used_bytes_outside_the_block_are_refused() {
    for used_bytes in [0, Chain::SIZE as u64 - 1, 4097, u64::MAX] {
        let chain = Chain { next: Blkptr::default(), used_bytes, magic: crate::eck::MAGIC, checksum: [0; 4] };
        let mut block = chain.emit(Endian::Little).to_vec();
        block.resize(4096, 0);
        assert!(LogBlock::parse(&block, ChainLayout::Head, Endian::Little).is_err(), "head, used {used_bytes}");
    }
    let chain = Chain { next: Blkptr::default(), used_bytes: 4096, magic: crate::eck::MAGIC, checksum: [0; 4] };
    let mut block = vec![0; 4096 - Chain::SIZE];
    block.extend(chain.emit(Endian::Little));
    assert!(LogBlock::parse(&block, ChainLayout::Tail, Endian::Little).is_err());
    assert!(LogBlock::parse(&[], ChainLayout::Tail, Endian::Little).is_err());
}

#[test]
fn a_cloned_range_has_as_many_blocks_as_it_is_long() {
    let mut block = Blkptr::HOLE;
    block.set_dva(
        0,
        Some(crate::blkptr::Dva { vdev: crate::ids::VdevId(0), offset_bytes: 0, asize_bytes: 512, gang: false }),
    );
    block.set_births(Txg(1), Txg(1));
    block.set_lsize_bytes(4096);
    let range = CloneRange {
        object: ObjectId(9),
        offset_bytes: 8192,
        length_bytes: 5000,
        block_bytes: 4096,
        pointers: vec![block, Blkptr::HOLE],
    };
    let parts: Vec<_> = range.parts().unwrap().map(|part| (part.offset_bytes, part.length_bytes)).collect();
    assert_eq!(parts, [(8192, 4096), (12_288, 904)]);
    let wrong: [fn(&mut CloneRange); 7] = [
        |range| range.block_bytes = 0,
        |range| range.block_bytes = 32 << 20,
        |range| range.block_bytes = 512,
        |range| range.offset_bytes += 512,
        |range| range.offset_bytes = u64::MAX / 4096 * 4096,
        |range| range.length_bytes = 4096,
        |range| range.length_bytes = u64::MAX,
    ];
    for (at, change) in wrong.iter().enumerate() {
        let mut range = range.clone();
        change(&mut range);
        assert!(range.parts().is_err(), "{at}");
    }
}
