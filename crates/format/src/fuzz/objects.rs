//! Targets for what lies inside objects: ZAPs, attributes, space maps, the DSL's structures, lists, tables and logs.

use std::hint::black_box;

use super::Target;
use crate::acl::{Ace, AceFlags, AclPhys, AclVersion, emit_aces, parse_aces};
use crate::bpobj::{self, BpobjPhys};
use crate::bptree::{BptreeEntry, BptreePhys};
use crate::brt::{self, BrtVdevPhys};
use crate::ddt::{DdtCopies, DdtKey, DdtLogHeader, DdtLogRecord, DdtLogRecords, DdtPacked, DdtPhys, parse_histogram};
use crate::dsl::{
    BookmarkPhys, CryptoKeyPhys, DeadlistPhys, DslDatasetPhys, DslDirPhys, ErrorScrubPhys, RebuildPhys, RedactBlock,
    RedactionListPhys, ScanPhys, split_property,
};
use crate::endian::Endian;
use crate::errlog::{ErrorBookmark, bookmark_name, parse_bookmark};
use crate::history::{self, HistoryPhys};
use crate::ids::{Guid, ObjectId, Txg, VdevId};
use crate::sa::{self, SaAttribute, SaHeader, SaLayout, SaOwner, SaRegistry, SaView, ZplAttribute};
use crate::spacemap::{SpaceMapEntry, SpaceMapPhys, SpaceMapRecord, SpaceMapRecords, SpaceMapType, SpaceMapWriter};
use crate::words::bytes_to_words;
use crate::zap::{
    FatHeader, Leaf, LeafEdit, MicroZap, MicroZapEdit, NormFlags, PointerPlace, ZapEditError, ZapFlags, ZapKey,
    ZapShape, ZapValue, hash_index,
};
use crate::znode::ZnodePhys;
use crate::zpl::{AccountKey, DirEntry};

/// The targets.
pub const TARGETS: &[Target] = &[
    Target { name: "acl", run: acl, seeds: acl_seeds },
    Target { name: "ddt", run: ddt, seeds: ddt_seeds },
    Target { name: "dsl", run: dsl, seeds: dsl_seeds },
    Target { name: "history", run: history, seeds: history_seeds },
    Target { name: "lists", run: lists, seeds: lists_seeds },
    Target { name: "names", run: names, seeds: names_seeds },
    Target { name: "sa", run: sa, seeds: sa_seeds },
    Target { name: "spacemap", run: spacemap, seeds: spacemap_seeds },
    Target { name: "zap_header", run: zap_header, seeds: zap_header_seeds },
    Target { name: "zap_leaf", run: zap_leaf, seeds: zap_leaf_seeds },
    Target { name: "zap_micro", run: zap_micro, seeds: zap_micro_seeds },
];

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

/// Access control lists. The first byte is the number of entries.
pub fn acl(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    for order in ORDERS {
        for version in [AclVersion::V0, AclVersion::Fuid] {
            if let Ok(aces) = parse_aces(rest, usize::from(*count), version, order) {
                let emitted = emit_aces(&aces, version, order).expect("what was read can be written");
                assert_eq!(emitted, rest[..emitted.len()]);
                black_box(aces.iter().map(Ace::who).collect::<Vec<_>>());
            }
        }
        if let Ok(acl) = AclPhys::parse(rest, order) {
            assert_eq!(AclPhys::parse(&acl.emit(order), order).as_ref(), Ok(&acl));
            black_box(acl.embedded(order).is_ok());
        }
        if let Ok(znode) = ZnodePhys::parse(rest, order) {
            assert_eq!(znode.emit(order)[..], rest[..ZnodePhys::SIZE_BYTES]);
            black_box((ZnodePhys::acl(rest, order).is_ok(), ZnodePhys::tail(rest).len()));
        }
    }
}

fn acl_seeds() -> Vec<Vec<u8>> {
    let ace = |kind, flags, id, object_types| Ace {
        kind,
        flags: AceFlags::from_bits_retain(flags),
        access_mask: 0x0012_0089,
        id,
        object_types,
    };
    let aces = [ace(0, 0x1000, 0, None), ace(1, 0x40, 1000, None), ace(5, 0, 7, Some([[1; 16], [2; 16]]))];
    let mut fuid = vec![3];
    fuid.extend(emit_aces(&aces, AclVersion::Fuid, Endian::Little).unwrap_or_default());
    let mut old = vec![2];
    old.extend(emit_aces(&aces[..2], AclVersion::V0, Endian::Big).unwrap_or_default());
    let mut embedded = [0; 72];
    embedded[..24].copy_from_slice(&old[1..]);
    let phys = AclPhys { external: ObjectId(0), size_bytes: 24, version: AclVersion::V0, count: 2, aces: embedded };
    let mut znode = vec![0; 1 + ZnodePhys::SIZE_BYTES];
    znode.extend(phys.emit(Endian::Big));
    let mut alone = vec![2];
    alone.extend(phys.emit(Endian::Little));
    vec![fuid, old, znode, alone]
}

/// Dedup keys, values, packed values, log headers and log blocks.
pub fn ddt(bytes: &[u8]) {
    if let Ok(packed) = DdtPacked::parse(bytes) {
        assert_eq!(packed.emit(), bytes);
    }
    for order in ORDERS {
        if let Ok(phys) = DdtPhys::parse(bytes, order) {
            assert_eq!(DdtPhys::parse(&phys.emit(order), order).as_ref(), Ok(&phys));
            black_box(phys.reference_count());
        }
        if let Ok(header) = DdtLogHeader::parse(bytes, order) {
            assert_eq!(header.emit(order)[..], bytes[..DdtLogHeader::SIZE_BYTES]);
            black_box((header.version(), header.is_flushing(), header.checkpoint()));
        }
        if let Ok(records) = DdtLogRecords::new(bytes, order) {
            for record in records.flatten() {
                let again = record.emit(order);
                let found = DdtLogRecords::new(&again, order).expect("any block will do").next();
                assert_eq!(found, Some(Ok(record)));
            }
        }
        if let Ok(phys) = BrtVdevPhys::parse(bytes, order) {
            assert_eq!(phys.emit(order)[..], bytes[..BrtVdevPhys::SIZE_BYTES]);
            black_box(phys.endian().is_ok());
        }
        black_box(brt::region_counts(bytes, order).count());
        if let Ok(value) = ZapValue::from_stored(1, bytes.to_vec()) {
            black_box(brt::reference_count(&value, order).is_ok());
        }
        let words = bytes_to_words(bytes, order);
        black_box((DdtKey::from_words(&words).is_ok(), parse_histogram(&words).is_ok()));
    }
}

fn ddt_seeds() -> Vec<Vec<u8>> {
    let key = DdtKey::new([1, 2, 3, 4], 131_072, 4096, 15, false);
    let copies = DdtCopies { reference_count: 3, physical_birth: Txg(9), ..DdtCopies::default() };
    let flat = DdtPhys::Flat { copies, class_start: 5 };
    let traditional = DdtPhys::Traditional(Box::new([copies; 4]));
    let record = |phys| DdtLogRecord { table_type: 0, class: 1, key, phys };
    let mut log = record(flat.clone()).emit(Endian::Little);
    log.extend(record(flat.clone()).emit(Endian::Little));
    log.resize(512, 0);
    let header = DdtLogHeader { info: 0x301, length_bytes: 512, first_txg: Txg(4), checkpoint: key };
    let packed = DdtPacked { compress_number: 14, endian: Endian::Little, payload: &[3, 1, 2, 3] };
    vec![
        flat.emit(Endian::Little),
        traditional.emit(Endian::Big),
        log,
        record(traditional).emit(Endian::Big),
        header.emit(Endian::Little).to_vec(),
        packed.emit(),
    ]
}

/// The DSL's structures of words.
pub fn dsl(bytes: &[u8]) {
    macro_rules! round_trip {
        ($($type:ident)*) => {$(
            for order in ORDERS {
                if let Ok(value) = $type::parse(bytes, order) {
                    let fields = $type::FIELDS_SIZE_BYTES;
                    assert_eq!(value.emit(order)[..fields], bytes[..fields]);
                }
            }
        )*};
    }
    round_trip! { DslDirPhys DslDatasetPhys DeadlistPhys BookmarkPhys ScanPhys ErrorScrubPhys RebuildPhys BptreePhys BptreeEntry }
    for order in ORDERS {
        if let Ok(list) = RedactionListPhys::parse(bytes, order) {
            assert_eq!(RedactionListPhys::parse(&list.emit(order), order).as_ref(), Ok(&list));
        }
        if let Ok(block) = RedactBlock::parse(bytes, order) {
            assert_eq!(RedactBlock::parse(&block.emit(order), order), Ok(block));
        }
        let words = bytes_to_words(bytes, order);
        if let Ok(bookmark) = BookmarkPhys::from_words(&words) {
            assert_eq!(BookmarkPhys::from_words(&bookmark.words()).as_ref(), Ok(&bookmark));
        }
        if let Ok(scan) = ScanPhys::from_words(&words) {
            assert_eq!(scan.words(), words[..24]);
        }
    }
    // A wrapped key, whose entries are pieces of the input.
    let piece = |at: usize, len: usize| bytes.get(at..at + len).unwrap_or(bytes);
    let key = CryptoKeyPhys::from_zap(|name| match name.len() % 4 {
        0 => ZapValue::from_stored(1, piece(0, 12).to_vec()).ok(),
        1 => ZapValue::from_stored(8, piece(8, 8).to_vec()).ok(),
        _ => Some(ZapValue::from_u64(bytes.len() as u64 % 9)),
    });
    black_box(key.is_ok());
}

fn dsl_seeds() -> Vec<Vec<u8>> {
    let list = RedactionListPhys { last_object: 1, last_block: 2, entry_count: 3, snapshots: vec![Guid(4), Guid(5)] };
    let block = RedactBlock { object: ObjectId(1), block: 2, block_size_bytes: 131_072, block_count: 3 };
    vec![vec![1; 320], vec![0; 96], list.emit(Endian::Little), block.emit(Endian::Big).to_vec()]
}

/// History: a bonus of 40 bytes, then a log.
pub fn history(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(phys) = HistoryPhys::parse(bytes, order) {
            assert_eq!(phys.emit(order)[..], bytes[..HistoryPhys::SIZE_BYTES]);
            if let Ok(ranges) = phys.ranges() {
                assert!(ranges.len() <= 3);
                assert!(ranges.iter().all(|(offset, len)| offset + len <= phys.ring_end));
                let total: u64 = ranges.iter().map(|(_, len)| len).sum();
                assert_eq!(total, phys.create_end + (phys.end - phys.oldest));
            }
            black_box(phys.physical(phys.end));
        }
    }
    let log = bytes.get(HistoryPhys::SIZE_BYTES..).unwrap_or(bytes);
    for record in history::records(log).flatten() {
        assert_eq!(history::records(&history::emit_record(record)).next(), Some(Ok(record)));
    }
}

fn history_seeds() -> Vec<Vec<u8>> {
    let phys = HistoryPhys { create_end: 24, ring_end: 224, oldest: 300, end: 400, lost_count: 3 };
    let mut bytes = phys.emit(Endian::Little).to_vec();
    bytes.extend(history::emit_record(&[1; 16]));
    bytes.extend(history::emit_record(&[2; 60]));
    vec![bytes]
}

/// Lists of block pointers.
pub fn lists(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(phys) = BpobjPhys::parse(bytes, order) {
            assert_eq!(BpobjPhys::parse(&phys.emit(order), order), Ok(phys));
            black_box(phys.is_empty());
        }
        assert_eq!(bpobj::blkptrs(bytes, order).count(), bytes.len() / 128);
        assert_eq!(bpobj::children(bytes, order).count(), bytes.len() / 8);
    }
}

fn lists_seeds() -> Vec<Vec<u8>> {
    let phys = BpobjPhys {
        blkptr_count: 2,
        bytes: 8192,
        compressed: Some([4096, 8192]),
        children: Some((ObjectId(7), 3)),
        freed_count: Some(1),
    };
    let old = BpobjPhys { children: None, freed_count: None, ..phys };
    vec![phys.emit(Endian::Little), old.emit(Endian::Big), vec![3; 300]]
}

/// Names that say numbers, and words that say places.
pub fn names(bytes: &[u8]) {
    if let Some(bookmark) = parse_bookmark(bytes) {
        assert_eq!(parse_bookmark(bookmark_name(&bookmark).as_bytes()), Some(bookmark));
    }
    if let Some(error) = ErrorBookmark::from_name(bytes) {
        assert_eq!(ErrorBookmark::from_name(error.name().as_bytes()), Some(error));
    }
    if let Some(key) = AccountKey::from_name(bytes) {
        assert_eq!(AccountKey::from_name(key.name().as_bytes()), Some(key));
    }
    if let Some(number) = crate::zap::int_key(bytes) {
        assert_eq!(crate::zap::int_key(crate::zap::int_key_name(number).as_bytes()), Some(number));
    }
    black_box(sa::layout_number(bytes));
    if let Ok(text) = std::str::from_utf8(bytes) {
        let (property, entry) = split_property(text);
        assert_eq!(entry.name(property), text);
    }
    for word in bytes_to_words(bytes, Endian::Little) {
        let entry = DirEntry::from_word(word);
        assert_eq!(entry.word().map(DirEntry::from_word), Ok(entry));
        if let Ok(attribute) = SaAttribute::from_word(word) {
            assert_eq!(SaAttribute::from_word(attribute.word()), Ok(attribute));
        }
    }
}

fn names_seeds() -> Vec<Vec<u8>> {
    ["36:2:ffffffffffffffff:a", "obj-3e8", "1f-tag", "compression$recvd", "3"].map(|name| name.into()).into()
}

/// An attribute buffer. The first byte is the number of attributes in the layout, each of the next ones an attribute.
pub fn sa(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else { return };
    let Some((numbers, buffer)) = rest.split_at_checked(usize::from(*count) % 24) else { return };
    let registry = SaRegistry::current();
    let numbers: Vec<u16> = numbers.iter().map(|number| u16::from(*number) % ZplAttribute::COUNT as u16).collect();
    let layout = registry.layout(&numbers).expect("registered attributes make a layout");
    let legacy = SaLayout::legacy();
    for order in ORDERS {
        if let Ok(view) = SaView::legacy(buffer, order, &legacy) {
            black_box((view.iter().count(), view.u64(5).is_ok(), view.u64_pair(0).is_ok()));
        }
    }
    black_box(SaOwner::parse(buffer).is_ok());
    black_box(SaOwner::parse_znode(buffer, Endian::Big).is_ok());
    let Ok(Some(header)) = SaHeader::parse(buffer) else { return };
    let Ok(view) = SaView::new(buffer, &header, &layout) else { return };
    let Ok(values) = view.iter().collect::<Result<Vec<_>, _>>() else { return };
    assert_eq!(values.len(), numbers.len());
    let values: Vec<&[u8]> = values.into_iter().map(|(_, value)| value).collect();
    let again = sa::emit(header.layout, &layout, &values, header.endian).expect("what was read can be written");
    let header = SaHeader::parse(&again).expect("a sound header").expect("a header");
    let view = SaView::new(&again, &header, &layout).expect("a whole buffer");
    let found: Vec<&[u8]> = view.iter().map(|item| item.expect("a sound attribute").1).collect();
    assert_eq!(found, values);
}

fn sa_seeds() -> Vec<Vec<u8>> {
    let registry = SaRegistry::current();
    let numbers = [5, 6, 17, 19];
    let seed = |order| -> Option<Vec<u8>> {
        let layout = registry.layout(&numbers).ok()?;
        let values: [&[u8]; 4] = [&[1; 8], &[2; 8], b"target", &[3; 24]];
        let mut bytes = vec![numbers.len() as u8];
        bytes.extend(numbers.map(|number| number as u8));
        bytes.extend(sa::emit(3, &layout, &values, order).ok()?);
        Some(bytes)
    };
    ORDERS.into_iter().filter_map(seed).collect()
}

/// A space map: its summary and its log.
pub fn spacemap(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(phys) = SpaceMapPhys::parse(bytes, order) {
            assert_eq!(SpaceMapPhys::parse(&phys.emit(order), order).as_ref(), Ok(&phys));
        }
        let mut writer = SpaceMapWriter::new(8, 64, true, order);
        for record in SpaceMapRecords::new(bytes, order).flatten() {
            match record {
                SpaceMapRecord::Debug { sync_pass, txg, .. } => writer.debug(SpaceMapType::Alloc, sync_pass, txg),
                SpaceMapRecord::Entry(entry) => {
                    black_box(entry.range_bytes(0, 1 << 40, 12).is_ok());
                    assert!(entry.run_units > 0);
                    writer.entry(entry).expect("what was read can be written");
                }
            }
        }
        let again = writer.into_bytes();
        let entries = |bytes| {
            SpaceMapRecords::new(bytes, order)
                .map_while(Result::ok)
                .filter(|record| matches!(record, SpaceMapRecord::Entry(_)))
                .collect::<Vec<_>>()
        };
        assert_eq!(entries(&again), entries(bytes));
    }
}

fn spacemap_seeds() -> Vec<Vec<u8>> {
    let phys = SpaceMapPhys { object: 0, length_bytes: 64, allocated_bytes: 4096, histogram: Some([1; 32]) };
    let mut writer = SpaceMapWriter::new(0, 64, true, Endian::Little);
    writer.debug(SpaceMapType::Free, 1, Txg(44));
    for (vdev, offset_units, run_units) in [(None, 7, 9), (Some(VdevId(3)), 1 << 50, 1 << 20), (None, 1, 1 << 20)] {
        let entry = SpaceMapEntry { kind: SpaceMapType::Free, vdev, offset_units, run_units };
        // An entry that does not fit is left out of the seed.
        let _ = writer.entry(entry);
    }
    vec![phys.emit(Endian::Big), writer.into_bytes()]
}

/// Cuts or fills to the next power of two that a ZAP block can have, so that the size check does not stop the target.
fn block_of(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(bytes.len().next_power_of_two().clamp(512, 4096), 0);
    block
}

/// A fat ZAP's header with its embedded table.
pub fn zap_header(bytes: &[u8]) {
    let block = block_of(bytes);
    for order in ORDERS {
        black_box(ZapShape::of(bytes, order).is_ok());
        let Ok(header) = FatHeader::parse(&block, order) else { continue };
        let mut again = block.clone();
        header.emit_into(&mut again, order);
        assert_eq!(FatHeader::parse(&again, order).as_ref(), Ok(&header));
        for hash in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            match header.pointer_place(hash) {
                PointerPlace::Embedded { offset } => {
                    assert!(offset >= block.len() / 2 && offset + 8 <= block.len());
                    black_box(header.leaf_block(&block, offset, order).is_ok());
                }
                PointerPlace::External { block: _, offset } => assert!(offset + 8 <= block.len()),
            }
        }
        black_box((header.hasher().name(bytes), header.hasher().words(&bytes_to_words(bytes, order))));
    }
}

fn zap_header_seeds() -> Vec<Vec<u8>> {
    let header = FatHeader::new(9, 77, NormFlags::empty(), ZapFlags::empty());
    let mut grown = header.clone();
    grown.table.block = 2;
    grown.table.block_count = 2;
    grown.table.shift = 7;
    grown.free_block = 9;
    let mut block = header.emit_new(Endian::Big);
    grown.emit_into(&mut block, Endian::Big);
    vec![header.emit_new(Endian::Little), block]
}

/// A leaf: read, and if it is sound, written to.
pub fn zap_leaf(bytes: &[u8]) {
    let block = block_of(bytes);
    for order in ORDERS {
        let Ok(leaf) = Leaf::parse(&block, order) else { continue };
        black_box((leaf.sorted().is_ok(), leaf.check().is_ok()));
        for entry in leaf.entries().flatten() {
            black_box((entry.name().is_ok(), entry.words().is_ok(), entry.value().is_ok()));
        }
        let mut changed = block.clone();
        let Ok(mut edit) = LeafEdit::open(&mut changed, order) else { continue };
        let head = *edit.header();
        let hash = if head.prefix_len == 0 { 0 } else { head.prefix << (64 - u32::from(head.prefix_len)) };
        assert_eq!(hash_index(hash, u32::from(head.prefix_len)), head.prefix);
        let key = ZapKey::Name(b"a name that nothing else has");
        let value = ZapValue::from_u64s(&[1, 2, 3]);
        match edit.insert(hash, key, None, &value) {
            Ok(_) => {
                assert_eq!(edit.view().and_then(|view| view.check()), Ok(()));
                assert_eq!(edit.update(hash, key, &ZapValue::from_u64(1)), Ok(()));
                assert_eq!(edit.remove(hash, key), Ok(ZapValue::from_u64(1)));
                assert_eq!(edit.header().entry_count, head.entry_count);
            }
            Err(ZapEditError::Full | ZapEditError::Exists) => {}
            Err(error) => panic!("a sound leaf refused an entry: {error}"),
        }
        let mut sibling = vec![0; block.len()];
        if let Ok(sibling) = edit.split(&mut sibling) {
            let total = edit.header().entry_count + sibling.header().entry_count;
            assert_eq!(total, head.entry_count);
            assert_eq!(sibling.view().and_then(|view| view.check()), Ok(()));
            assert_eq!(edit.view().and_then(|view| view.check()), Ok(()));
        }
    }
}

fn zap_leaf_seeds() -> Vec<Vec<u8>> {
    let seed = |order| -> Result<Vec<u8>, ZapEditError> {
        let mut block = vec![0; 512];
        let mut edit = LeafEdit::create(&mut block, order, 0b10, 2, false)?;
        let hash = 0b10 << 62;
        edit.insert(hash, ZapKey::Name(b"first"), None, &ZapValue::from_u64(1))?;
        edit.insert(hash, ZapKey::Name(b"second of the same hash"), None, &ZapValue::from_text("text"))?;
        edit.insert(hash | 1 << 61, ZapKey::Words(&[1, 2, 3]), None, &ZapValue::from_u16s(&[1, 2, 3]))?;
        edit.remove(hash, ZapKey::Name(b"first"))?;
        Ok(block)
    };
    ORDERS.into_iter().filter_map(|order| seed(order).ok()).collect()
}

/// A micro ZAP: read and written to.
pub fn zap_micro(bytes: &[u8]) {
    for order in ORDERS {
        let Ok(zap) = MicroZap::parse(bytes, order) else { continue };
        let count = zap.entries().count();
        assert!(count <= zap.slot_count());
        assert_eq!(zap.sorted().len(), count);
        if let Some(entry) = zap.entries().last() {
            assert!(zap.lookup(entry.name).is_some());
        }
        let mut changed = bytes.to_vec();
        let Ok(mut edit) = MicroZapEdit::open(&mut changed, order) else { continue };
        let name = b"a name that nothing else has";
        match edit.insert(name, 7, |name| zap.hasher().name(name)) {
            Ok(_) => {
                assert_eq!(edit.update(name, 8), Ok(()));
                assert_eq!(edit.remove(name), Ok(8));
                assert_eq!(edit.view().map(|view| view.entries().count()), Ok(count));
            }
            Err(ZapEditError::Full | ZapEditError::Exists) => {}
            Err(error) => panic!("a micro ZAP refused an entry: {error}"),
        }
    }
}

fn zap_micro_seeds() -> Vec<Vec<u8>> {
    let seed = |order| -> Result<Vec<u8>, ZapEditError> {
        let mut block = vec![0; 512];
        let mut edit = MicroZapEdit::create(&mut block, order, 1, NormFlags::empty())?;
        for name in ["one", "two", "three"] {
            edit.insert(name.as_bytes(), 3, |_| 0)?;
        }
        Ok(block)
    };
    ORDERS.into_iter().filter_map(|order| seed(order).ok()).collect()
}
