//! Targets for block pointers, dnodes, objsets, uberblocks, labels, nvlists, gang headers, indirect mappings and other software's
//! signatures.

use std::hint::black_box;

use super::Target;
use crate::blkptr::{Blkptr, Dva};
use crate::dmu_type::DmuType;
use crate::dnode::{self, DnodePhys, DnodeView};
use crate::eck::EmbeddedChecksum;
use crate::endian::Endian;
use crate::enums::{Checksum, Compress};
use crate::foreign;
use crate::gang::GangHeader;
use crate::ids::{ObjectId, Txg, VdevId};
use crate::indirect::{
    CondensingIndirect, IndirectBirths, IndirectMapping, IndirectMappingEntry, IndirectMappingPhys, Removing,
    parse_obsolete_counts,
};
use crate::l2arc::{CacheHeader, CachedBlock, LOG_ENTRIES_MAX, LogBlock, LogPointer};
use crate::label::{self, BootEnv, DeviceLayout, VdevLabel};
use crate::nvlist::{NvList, NvValue};
use crate::objset::{ObjsetFlags, ObjsetPhys, ObjsetVersion};
use crate::uberblock::{Mmp, Uberblock};
use crate::zil_header::ZilHeader;

/// The targets.
pub const TARGETS: &[Target] = &[
    Target { name: "blkptr", run: blkptr, seeds: blkptr_seeds },
    Target { name: "dnode", run: dnode, seeds: dnode_seeds },
    Target { name: "foreign", run: foreign, seeds: foreign_seeds },
    Target { name: "gang", run: gang, seeds: gang_seeds },
    Target { name: "indirect", run: indirect, seeds: indirect_seeds },
    Target { name: "l2arc", run: l2arc, seeds: l2arc_seeds },
    Target { name: "label", run: label, seeds: label_seeds },
    Target { name: "nvlist", run: nvlist, seeds: nvlist_seeds },
    Target { name: "objset", run: objset, seeds: objset_seeds },
    Target { name: "uberblock", run: uberblock, seeds: uberblock_seeds },
    Target { name: "zil_header", run: zil_header, seeds: zil_header_seeds },
];

const ORDERS: [Endian; 2] = [Endian::Little, Endian::Big];

fn use_blkptr(bp: &Blkptr) {
    let births = (bp.birth(), bp.physical_birth(), bp.logical_birth());
    let sizes = (bp.lsize_bytes(), bp.psize_bytes(), bp.asize_bytes(), bp.fill());
    let crypt = (bp.crypt_params(), bp.mac(), bp.is_encrypted(), bp.is_authenticated(), bp.has_indirect_mac());
    black_box((births, sizes, crypt, bp.kind(), bp.is_metadata(), bp.to_string()));
    match (bp.verify(), bp.embedded_payload()) {
        (Ok(()), Some(payload)) => assert!(!payload.is_empty() && payload.len() <= 112),
        (Ok(()), None) if !bp.is_embedded() && !bp.is_hole() => assert!(bp.dvas().count() > 0),
        _ => {}
    }
}

/// Block pointers.
pub fn blkptr(bytes: &[u8]) {
    for order in ORDERS {
        for bp in Blkptr::array(bytes, order) {
            assert_eq!(Blkptr::parse(&bp.emit(order), order), Ok(bp));
            use_blkptr(&bp);
        }
        black_box(Blkptr::parse(bytes, order).is_ok());
    }
}

fn file_blkptr() -> Blkptr {
    let mut bp = Blkptr::HOLE;
    bp.set_dva(0, Some(Dva { vdev: VdevId(1), offset_bytes: 0x1e_0000, asize_bytes: 0x1000, gang: false }));
    bp.set_dva(1, Some(Dva { vdev: VdevId(0), offset_bytes: 0x117_a000, asize_bytes: 0x1000, gang: false }));
    bp.set_lsize_bytes(0x4000);
    bp.set_psize_bytes(0x1000);
    bp.set_compress(Compress::Lz4);
    bp.set_checksum(Checksum::Fletcher4);
    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
    bp.set_byte_order(Endian::Little);
    bp.set_births(Txg(18), Txg(18));
    bp.set_fill(1);
    bp.set_checksum_words([0x2_dba2_f345, 0x15b_197b_2242, 0x5cb1_80b2_725c, 0x2b54_6295]);
    bp
}

fn blkptr_seeds() -> Vec<Vec<u8>> {
    let normal = file_blkptr();
    let mut encrypted = normal;
    encrypted.set_crypt(true);
    encrypted.set_crypt_params([1; 8], [2; 12], [3; 16]);
    let payload = [7; 100];
    let embedded =
        Blkptr::embedded(DmuType::PLAIN_FILE_CONTENTS, 0, Compress::Lz4, 300, &payload, Txg(9), Endian::Little);
    let redacted = Blkptr::redacted(DmuType::PLAIN_FILE_CONTENTS, 131_072, Txg(9));
    let hole = Blkptr::hole_with_birth(DmuType::PLAIN_FILE_CONTENTS, 1, 0x2_0000, Txg(5));
    [normal, encrypted, embedded, redacted, hole].map(|bp| bp.emit(Endian::Little).to_vec()).into()
}

/// Dnodes, one and a block of them.
pub fn dnode(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(Some(view)) = DnodeView::parse(bytes, order) {
            let value = view.to_value();
            assert_eq!(DnodePhys::parse(&value.emit(), order), Ok(value));
        }
        let mut next = 0;
        for (slot, dnode) in dnode::dnodes_in_block(bytes, order) {
            assert!(slot >= next);
            next = slot + 1;
            let Ok(view) = dnode else {
                continue;
            };
            next = slot + view.slots();
            assert!(next * dnode::SLOT_BYTES <= bytes.len());
            let bps = (0..4).filter_map(|index| view.blkptr(index)).chain(view.spill());
            bps.for_each(|bp| use_blkptr(&bp));
            black_box((view.bonus().len(), view.used_bytes(), view.data_block_bytes(), view.max_block_id()));
        }
    }
}

fn file_dnode(extra_slots: u8, spill: bool) -> DnodePhys {
    let mut flags = dnode::DnodeFlags::USED_BYTES;
    flags.set(dnode::DnodeFlags::SPILL_BLKPTR, spill);
    DnodePhys {
        object_type: DmuType::PLAIN_FILE_CONTENTS,
        indirect_block_shift: 17,
        levels: 2,
        blkptr_count: 1,
        bonus_type: DmuType::SA,
        checksum: 0,
        compress: 0,
        flags,
        data_block_sectors: 256,
        extra_slots,
        max_block_id: 3,
        used: 4096,
        blkptrs: [file_blkptr(), Blkptr::HOLE, Blkptr::HOLE],
        bonus: vec![5; 168].into(),
        spill: spill.then(file_blkptr),
        endian: Endian::Little,
    }
}

fn dnode_seeds() -> Vec<Vec<u8>> {
    let mut block = vec![0; 512];
    for dnode in [file_dnode(0, false), file_dnode(1, true), file_dnode(0, true)] {
        block.extend(dnode.emit());
    }
    vec![file_dnode(0, false).emit(), file_dnode(3, true).emit(), block]
}

/// Gang headers.
pub fn gang(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(header) = GangHeader::parse(bytes, order) {
            assert_eq!(GangHeader::parse(&header.emit(bytes.len()), order).as_ref(), Ok(&header));
            header.children().for_each(use_blkptr);
        }
    }
    black_box(EmbeddedChecksum::parse_trailer(bytes).is_ok());
}

fn gang_seeds() -> Vec<Vec<u8>> {
    let checksum = EmbeddedChecksum { endian: Endian::Little, words: [1, 2, 3, 4] };
    let header = GangHeader { blkptrs: vec![file_blkptr(), file_blkptr(), Blkptr::HOLE], checksum };
    vec![header.emit(512), header.emit(1024)]
}

/// Indirect mappings, births, obsolete counts. The first 32 bytes are the head, the rest is data.
pub fn indirect(bytes: &[u8]) {
    for order in ORDERS {
        let Ok(phys) = IndirectMappingPhys::parse(bytes, order) else {
            continue;
        };
        assert_eq!(IndirectMappingPhys::parse(&phys.emit(order), order), Ok(phys));
        let data = bytes.get(IndirectMappingPhys::SIZE..).unwrap_or(&[]);
        if let Ok(mapping) = IndirectMapping::parse(&phys, data, order) {
            for entry in mapping.entries() {
                assert_eq!(IndirectMappingEntry::parse(&entry.emit(order), order), Ok(*entry));
                let pieces = mapping.remap(entry.source_offset_bytes, entry.target.asize_bytes);
                assert!(pieces.is_none_or(|pieces| pieces == [entry.target]));
            }
            black_box(mapping.remap(phys.bytes_mapped, phys.max_offset_bytes));
        }
        if let Ok(births) = IndirectBirths::parse(phys.entry_count, data, order) {
            assert_eq!(births.emit(order)[..], data[..births.entries().len() * IndirectBirths::ENTRY_SIZE]);
            black_box(births.birth_of(phys.max_offset_bytes));
        }
        black_box(parse_obsolete_counts(data, phys.entry_count as usize, order).is_ok());
        let word =
            |index: usize| data.get(index * 8..).and_then(|rest| rest.first_chunk()).map_or(0, |c| order.u64(*c));
        black_box(Removing::from_words(std::array::from_fn(word)).words());
        let words = std::array::from_fn(word);
        assert_eq!(CondensingIndirect::from_words(words).words(), words);
    }
}

fn indirect_seeds() -> Vec<Vec<u8>> {
    let phys = IndirectMappingPhys {
        max_offset_bytes: 1 << 20,
        bytes_mapped: 0x3000,
        entry_count: 2,
        counts_object: Some(ObjectId(7)),
    };
    let mut bytes = phys.emit(Endian::Little);
    for index in 0..2 {
        let target = Dva { vdev: VdevId(0), offset_bytes: index * 0x1_0000, asize_bytes: 0x1000, gang: false };
        bytes.extend(IndirectMappingEntry { source_offset_bytes: index * 0x1000, target }.emit(Endian::Little));
    }
    vec![bytes]
}

/// Labels in all their parts, and the boot environment. Short inputs are laid over the parts in turn.
pub fn label(bytes: &[u8]) {
    if let Ok(env) = BootEnv::parse(bytes)
        && let Ok(block) = env.emit()
    {
        assert_eq!(BootEnv::parse(&block), Ok(env));
    }
    let mut whole = vec![0; label::LABEL_BYTES];
    for start in [label::BOOT_ENV_OFFSET, label::VDEV_PHYS_OFFSET, label::RING_OFFSET] {
        let len = bytes.len().min(label::LABEL_BYTES - start);
        whole[start..start + len].copy_from_slice(&bytes[..len]);
    }
    let Ok(view) = VdevLabel::new(&whole) else {
        unreachable!("the length is that of a label");
    };
    let ashift = bytes.first().copied().unwrap_or(9).into();
    black_box((view.config().is_ok(), view.boot_env().is_ok(), view.vdev_phys_checksum().is_ok(), view.pad()));
    for slot in view.slots(ashift) {
        black_box((slot.uberblock().is_ok(), slot.checksum().is_ok()));
    }
    let size = bytes.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    if let Some(layout) = DeviceLayout::new(size) {
        assert!(layout.label_offsets().windows(2).all(|pair| pair[0] < pair[1]));
        assert!(layout.allocatable().end <= layout.label_offset(2) && layout.psize_bytes() <= size);
    }
}

fn label_seeds() -> Vec<Vec<u8>> {
    let list = sample_list();
    let env = BootEnv::Nvlist(list.clone()).emit().unwrap_or_default();
    vec![list.emit_xdr(), env, sample_uberblock().emit().to_vec()]
}

/// Signatures of other software: any bytes give an answer, and the same one twice.
pub fn foreign(bytes: &[u8]) {
    let (size, bytes) = bytes.split_at(bytes.len().min(8));
    let size = size.first_chunk().map_or(0, |size| u64::from_le_bytes(*size));
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    for (head, tail, size) in [(head, tail, size), (bytes, bytes, bytes.len() as u64), (bytes, tail, size)] {
        let found = foreign::probe(head, tail, size);
        assert!(found.len() < 64);
        found.iter().for_each(|foreign| assert!(!foreign.to_string().is_empty()));
        assert_eq!(found, foreign::probe(head, tail, size));
    }
}

/// A disk of 64 KiB with partition tables of both kinds, an ext superblock and physical volumes of md and LVM.
fn foreign_seeds() -> Vec<Vec<u8>> {
    const SIZE: usize = 64 << 10;
    let parts: [(usize, &[u8]); 8] = [
        (450, &[0x83]),
        (458, &[1]),
        (510, &[0x55, 0xaa]),
        (512, b"EFI PART"),
        (1024 + 56, &[0x53, 0xef]),
        (1536, b"LABELONE"),
        (1560, b"LVM2 001"),
        (SIZE - 8192, &[0xfc, 0x4e, 0x2b, 0xa9, 1]),
    ];
    let mut image = vec![0; SIZE];
    for (at, bytes) in parts {
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    vec![[&(SIZE as u64).to_le_bytes()[..], &image].concat()]
}

/// Packed lists.
pub fn nvlist(bytes: &[u8]) {
    let Ok((list, used)) = NvList::parse_prefix(bytes) else {
        return;
    };
    assert!(used <= bytes.len());
    for packed in [list.emit_xdr(), list.emit_native(Endian::Little), list.emit_native(Endian::Big)] {
        assert_eq!(NvList::parse_prefix(&packed), Ok((list.clone(), packed.len())));
    }
    for (name, value) in list.iter() {
        let name = name.to_string();
        black_box((list.u64(&name), list.str(&name), list.list(&name), list.has(&name), value.data_type()));
    }
}

fn sample_list() -> NvList {
    let mut inner = NvList::new();
    inner.push("type", "disk");
    inner.push("guid", 0x1234_5678_9abc_def0);
    inner.push("here", NvValue::Boolean);
    let mut list = NvList::new();
    list.push("version", 5000);
    list.push("name", "tank");
    list.push("children", NvValue::NvlistArray(vec![inner.clone(), inner.clone()]));
    list.push("vdev_tree", inner);
    list.push("holes", NvValue::Uint64Array(vec![1, 2]));
    list.push("names", NvValue::StringArray(vec!["a".into(), "bc".into()]));
    list.push("flag", NvValue::BooleanValue(true));
    list.push("bytes", NvValue::ByteArray(vec![1, 2, 3]));
    list.push("small", NvValue::Int16Array(vec![-1, 2]));
    list
}

fn nvlist_seeds() -> Vec<Vec<u8>> {
    let list = sample_list();
    vec![list.emit_xdr(), list.emit_native(Endian::Little), list.emit_native(Endian::Big)]
}

/// Objsets of all versions.
pub fn objset(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(objset) = ObjsetPhys::parse(bytes, order) {
            assert_eq!(ObjsetPhys::parse(&objset.emit(), order), Ok(objset));
        }
    }
}

fn objset_seeds() -> Vec<Vec<u8>> {
    [ObjsetVersion::V1, ObjsetVersion::V2, ObjsetVersion::V3]
        .map(|version| {
            let extra = |least| (version >= least).then(|| file_dnode(0, false));
            let objset = ObjsetPhys {
                version,
                meta_dnode: file_dnode(0, false),
                zil_header: ZilHeader { log: file_blkptr(), ..ZilHeader::default() },
                type_number: 2,
                flags: ObjsetFlags::USERACCOUNTING_COMPLETE,
                portable_mac: [1; 32],
                local_mac: [2; 32],
                userused_dnode: extra(ObjsetVersion::V2),
                groupused_dnode: extra(ObjsetVersion::V2),
                projectused_dnode: extra(ObjsetVersion::V3),
            };
            objset.emit()
        })
        .into()
}

/// Uberblocks.
pub fn uberblock(bytes: &[u8]) {
    if let Ok(uberblock) = Uberblock::parse(bytes) {
        assert_eq!(Uberblock::parse(&uberblock.emit()), Ok(uberblock));
        use_blkptr(&uberblock.rootbp);
        let mmp = uberblock.mmp.unwrap_or_default();
        black_box((mmp.interval_ms(), mmp.sequence(), mmp.fail_intervals(), uberblock.is_version_supported()));
        black_box((uberblock.reflow_offset_bytes(), uberblock.reflow_scratch()));
        assert!(uberblock.cmp_age(&uberblock).is_eq());
    }
}

fn sample_uberblock() -> Uberblock {
    Uberblock {
        endian: Endian::Little,
        version: 5000,
        txg: Txg(47),
        guid_sum: 77,
        timestamp_s: 1_795_293_019,
        rootbp: file_blkptr(),
        software_version: 5000,
        mmp: Some(Mmp::new(0, Some(1000), Some(3), Some(10))),
        checkpoint_txg: Txg(0),
        raidz_reflow: 0,
    }
}

fn uberblock_seeds() -> Vec<Vec<u8>> {
    vec![sample_uberblock().emit().to_vec(), Uberblock { endian: Endian::Big, ..sample_uberblock() }.emit().to_vec()]
}

/// Intent log headers.
pub fn zil_header(bytes: &[u8]) {
    for order in ORDERS {
        if let Ok(header) = ZilHeader::parse(bytes, order) {
            assert_eq!(ZilHeader::parse(&header.emit(order), order), Ok(header));
            use_blkptr(&header.log);
        }
    }
}

fn zil_header_seeds() -> Vec<Vec<u8>> {
    vec![ZilHeader { claim_txg: Txg(5), log: file_blkptr(), ..ZilHeader::default() }.emit(Endian::Little).to_vec()]
}

/// Headers and log blocks of cache devices.
pub fn l2arc(bytes: &[u8]) {
    if let Ok(header) = CacheHeader::parse_any(bytes) {
        let mut sector = vec![0; 512];
        header.emit_into(&mut sector);
        let again = CacheHeader::parse_any(&sector).expect("what is emitted is a header");
        assert_eq!((again.newest, again.evict_bytes, again.logs), (header.newest, header.evict_bytes, header.logs));
        black_box(header.newest.map(|pointer| (pointer.size_bytes(), pointer.compress_number())));
    }
    for entries in [0, 3, LOG_ENTRIES_MAX, usize::MAX] {
        if let Ok(log) = LogBlock::parse(bytes, entries) {
            assert!(log.blocks.len() <= LOG_ENTRIES_MAX);
            assert_eq!(LogBlock::parse(&log.emit(), log.blocks.len()), Ok(log));
        }
    }
}

fn l2arc_seeds() -> Vec<Vec<u8>> {
    let pointer = LogPointer {
        offset_bytes: 5 << 20,
        payload_bytes: 1 << 20,
        payload_start_bytes: 4 << 20,
        properties: LogPointer::properties_of(4096, 15, 7),
        checksum: [1, 2, 3, 4],
    };
    let header =
        CacheHeader { newest: [pointer; 2], start_bytes: 4 << 20, end_bytes: 1 << 30, ..CacheHeader::default() };
    let mut sector = vec![0; 512];
    header.emit_into(&mut sector);
    let block = CachedBlock {
        dva: Dva { vdev: VdevId(1), offset_bytes: 0x1e_0000, asize_bytes: 0x1000, gang: false },
        birth: Txg(18),
        lsize_bytes: 0x4000,
        psize_bytes: 0x1000,
        compress: 15,
        is_metadata: true,
        is_protected: false,
        offset_bytes: 4 << 20,
    };
    vec![sector, LogBlock { previous: pointer, blocks: vec![block; 3] }.emit()]
}
