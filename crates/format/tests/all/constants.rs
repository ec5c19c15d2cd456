//! Goal: no constant that reaches a disk or a stream changes unnoticed. Method: all of them, with their values, as one text,
//! compared with `constants.txt` beside this file; and every public constant in the sources must be in the list. Faults
//! caught: a number changed by mistake on the way in and on the way out, so that all round trips still hold.
//!
//! After a change that is meant: `CENOTE_BLESS=1 cargo test -p cenote-format --test all constants`, and read the difference.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use cenote_format::dmu_type::{Byteswap, DmuType};
use cenote_format::dsl::{CryptSuite, KeyFormat, ScanFunction, ScanState};
use cenote_format::enums::{Checksum, Compress, ObjsetType};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::nvlist::DataType;
use cenote_format::sa::ZplAttribute;
use cenote_format::stream::RecordKind;
use cenote_format::*;

/// A value as the snapshot shows it.
trait Show {
    fn show(&self) -> String;
}

// Small numbers are counts and codes, large ones bit patterns.
macro_rules! show_numbers {
    ($($type:ty)*) => { $(impl Show for $type {
        fn show(&self) -> String {
            if u16::try_from(*self).is_ok_and(|small| small < 1024) { format!("{self}") } else { format!("{self:#x}") }
        }
    })* };
}

show_numbers!(u8 u16 u32 u64 usize);

macro_rules! show_first {
    ($($type:ty)*) => { $(impl Show for $type {
        fn show(&self) -> String {
            self.0.show()
        }
    })* };
}

show_first!(ObjectId Txg ScanFunction ScanState);

impl Show for &str {
    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl<const N: usize> Show for [&str; N] {
    fn show(&self) -> String {
        self.join(" ")
    }
}

macro_rules! constants {
    ($($path:path,)*) => { [$((stringify!($path), $path.show()),)*] };
}

macro_rules! flags {
    ($($path:path,)*) => {
        [$((stringify!($path), <$path>::all().iter_names().map(|(name, flag)| (name, u64::from(flag.bits()))).collect()),)*]
    };
}

#[rustfmt::skip]
fn constants() -> Vec<(&'static str, String)> {
    constants![
        acl::ACES_MAX,
        acl::AclPhys::SIZE_BYTES,
        acl::EMBEDDED_ACES_SIZE_BYTES,
        acl::ace_type::ALARM,
        acl::ace_type::ALARM_OBJECT,
        acl::ace_type::ALLOW,
        acl::ace_type::ALLOW_OBJECT,
        acl::ace_type::AUDIT,
        acl::ace_type::AUDIT_OBJECT,
        acl::ace_type::DENY,
        acl::ace_type::DENY_OBJECT,
        blkptr::Blkptr::SHIFT,
        blkptr::Blkptr::SIZE,
        blkptr::DVAS_PER_BLKPTR,
        blkptr::EMBEDDED_PAYLOAD_BYTES,
        blkptr::MAX_BLOCK_BYTES,
        blkptr::MIN_BLOCK_BYTES,
        blkptr::MIN_BLOCK_SHIFT,
        bpobj::BpobjPhys::SIZE_V0_BYTES,
        bpobj::BpobjPhys::SIZE_V1_BYTES,
        bpobj::BpobjPhys::SIZE_V2_BYTES,
        bpobj::BpobjPhys::SIZE_V3_BYTES,
        brt::REGION_SIZE_BYTES,
        ddt::CLASSES,
        ddt::DdtKey::WORDS,
        ddt::DdtPhys::FLAT_SIZE_BYTES,
        ddt::DdtPhys::TRADITIONAL_SIZE_BYTES,
        ddt::TYPES,
        ddt::directory::FLAGS,
        ddt::directory::VERSION,
        dmu_type::DmuType::ENUMERATED_COUNT,
        dnode::BLOCK_BYTES,
        dnode::CORE_BYTES,
        dnode::MAX_BLKPTRS,
        dnode::MAX_INDIRECT_SHIFT,
        dnode::MAX_LEVELS,
        dnode::MAX_OBJECT_SHIFT,
        dnode::MAX_SLOTS,
        dnode::MIN_INDIRECT_SHIFT,
        dnode::SLOT_BYTES,
        dnode::SLOT_SHIFT,
        dsl::RedactBlock::SIZE_BYTES,
        dsl::ScanFunction::ERROR_SCRUB,
        dsl::ScanFunction::NONE,
        dsl::ScanFunction::RESILVER,
        dsl::ScanFunction::SCRUB,
        dsl::ScanState::CANCELED,
        dsl::ScanState::FINISHED,
        dsl::ScanState::NONE,
        dsl::ScanState::SCANNING,
        dsl::TxgTimes::ENTRIES,
        dsl::crypto_key::GUID,
        dsl::crypto_key::HMAC_KEY,
        dsl::crypto_key::IV,
        dsl::crypto_key::KEY_FORMAT,
        dsl::crypto_key::MAC,
        dsl::crypto_key::MASTER_KEY,
        dsl::crypto_key::PBKDF2_ITERATIONS,
        dsl::crypto_key::PBKDF2_SALT,
        dsl::crypto_key::REFCOUNT,
        dsl::crypto_key::ROOT_DIR_OBJECT,
        dsl::crypto_key::SUITE,
        dsl::crypto_key::VERSION,
        dsl::dataset_field::BOOKMARK_NAMES,
        dsl::dataset_field::IVSET_GUID,
        dsl::dataset_field::LARGE_DNODE,
        dsl::dataset_field::RAW_RECEIVED,
        dsl::dataset_field::REDACTED_DATASETS,
        dsl::dataset_field::REMAP_DEADLIST,
        dsl::dataset_field::RESUME_BYTES,
        dsl::dataset_field::RESUME_COMPRESS,
        dsl::dataset_field::RESUME_EMBED,
        dsl::dataset_field::RESUME_FROM_GUID,
        dsl::dataset_field::RESUME_LARGE_BLOCK,
        dsl::dataset_field::RESUME_OBJECT,
        dsl::dataset_field::RESUME_OFFSET,
        dsl::dataset_field::RESUME_RAW,
        dsl::dataset_field::RESUME_REDACT_SNAPSHOTS,
        dsl::dataset_field::RESUME_TO_GUID,
        dsl::dataset_field::RESUME_TO_NAME,
        dsl::dir_field::CRYPTO_KEY_OBJECT,
        dsl::dir_field::FILESYSTEM_COUNT,
        dsl::dir_field::LIVELIST,
        dsl::dir_field::SNAPSHOTS_CHANGED,
        dsl::dir_field::SNAPSHOT_COUNT,
        dsl::pool_directory::BPTREE,
        dsl::RebuildPhys::ENTRY,
        dsl::pool_directory::CHECKPOINT,
        dsl::pool_directory::CHECKSUM_SALT,
        dsl::pool_directory::CONDENSING_INDIRECT,
        dsl::pool_directory::CONFIG,
        dsl::pool_directory::CREATION_VERSION,
        dsl::pool_directory::DDT_STATISTICS,
        dsl::pool_directory::DEFLATE,
        dsl::pool_directory::DELETED_CLONES,
        dsl::pool_directory::EMPTY_BPOBJ,
        dsl::pool_directory::ERRLOG_LAST,
        dsl::pool_directory::ERRLOG_SCRUB,
        dsl::pool_directory::ERROR_SCRUB,
        dsl::pool_directory::FEATURES_FOR_READ,
        dsl::pool_directory::FEATURES_FOR_WRITE,
        dsl::pool_directory::FEATURE_DESCRIPTIONS,
        dsl::pool_directory::FEATURE_ENABLED_TXG,
        dsl::pool_directory::FREE_BPOBJ,
        dsl::pool_directory::FREE_DIR,
        dsl::pool_directory::HISTORY,
        dsl::pool_directory::L2CACHE,
        dsl::pool_directory::LAST_SCRUBBED_TXG,
        dsl::pool_directory::LEAK_DIR,
        dsl::pool_directory::LOG_SPACEMAP_ZAP,
        dsl::pool_directory::MOS_DIR,
        dsl::pool_directory::OBJECT,
        dsl::pool_directory::OBSOLETE_BPOBJ,
        dsl::pool_directory::ORIGIN_DIR,
        dsl::pool_directory::PROPERTIES,
        dsl::pool_directory::REMOVING,
        dsl::pool_directory::ROOT_DATASET,
        dsl::pool_directory::SCAN,
        dsl::pool_directory::SPARES,
        dsl::pool_directory::SYNC_BPOBJ,
        dsl::pool_directory::TMP_USERREFS,
        dsl::pool_directory::VDEV_ZAP_MAP,
        eck::EmbeddedChecksum::SIZE,
        eck::MAGIC,
        foreign::HEAD_BYTES,
        foreign::TAIL_BYTES,
        gang::MAX_BYTES,
        gang::MIN_BYTES,
        history::RECORD_MAX_BYTES,
        ids::Txg::INITIAL,
        indirect::CondensingIndirect::WORDS,
        indirect::IndirectBirths::ENTRY_SIZE,
        indirect::IndirectMappingEntry::SIZE,
        indirect::IndirectMappingPhys::SIZE,
        indirect::IndirectMappingPhys::SIZE_V0,
        indirect::Removing::WORDS,
        l2arc::FIRST_SWEEP,
        l2arc::LOG_BYTES,
        l2arc::LOG_ENTRIES_MAX,
        l2arc::VERSION,
        label::BOOT_AREA_BYTES,
        label::BOOT_AREA_OFFSET,
        label::BOOT_ENV_BYTES,
        label::BOOT_ENV_OFFSET,
        label::END_BYTES,
        label::LABEL_BYTES,
        label::LABEL_COUNT,
        label::MIN_DEVICE_BYTES,
        label::MMP_SLOTS_PER_LABEL,
        label::PAD_BYTES,
        label::RING_BYTES,
        label::RING_OFFSET,
        label::START_BYTES,
        label::VDEV_PHYS_BYTES,
        label::VDEV_PHYS_OFFSET,
        needs::OLD_BLOCK_MAX_BYTES,
        needs::OLD_NAME_MAX_BYTES,
        nvlist::MAX_DEPTH,
        nvlist::MAX_NAME_BYTES,
        nvlist::NvList::UNIQUE_NAME,
        nvlist::NvList::UNIQUE_NAME_TYPE,
        objset::MAC_BYTES,
        sa::ATTRIBUTE_NUMBER_MAX,
        sa::LAYOUT_ATTRIBUTES_MAX,
        sa::LAYOUT_MAX,
        sa::SA_LAYOUTS,
        sa::SA_MAGIC,
        sa::SA_REGISTRY,
        sa::ZplAttribute::COUNT,
        spacemap::HISTOGRAM_BUCKETS,
        spacemap::RUN2_MAX,
        spacemap::RUN_MAX,
        spacemap::SPACE_MAP_SIZE_BYTES,
        spacemap::SPACE_MAP_SIZE_V0_BYTES,
        stream::BEGIN_PAYLOAD_BYTES_MAX,
        stream::BLOCK_PAYLOAD_BYTES_MAX,
        stream::Begin::NAME_BYTES_MAX,
        stream::Free::TO_THE_END,
        stream::MAGIC,
        stream::Record::CHECKSUM_OFFSET,
        stream::Record::SIZE,
        uberblock::MAGIC,
        uberblock::MMP_MAGIC,
        uberblock::Uberblock::SIZE,
        uberblock::VERSION_BEFORE_FEATURES,
        uberblock::VERSION_FEATURES,
        zap::BLOCK_TYPE_HEADER,
        zap::BLOCK_TYPE_LEAF,
        zap::BLOCK_TYPE_MICRO,
        zap::CHUNK_SIZE_BYTES,
        zap::CRC64_POLY,
        zap::DEFAULT_BLOCK_SHIFT,
        zap::EMBEDDED_TABLE_SHIFT_LESS,
        zap::HEADER_MAGIC,
        zap::LEAF_MAGIC,
        zap::LONG_NAME_MAX_BYTES,
        zap::MICRO_ENTRY_SIZE_BYTES,
        zap::MICRO_NAME_MAX_BYTES,
        zap::NAME_MAX_BYTES,
        zap::VALUE_MAX_BYTES,
        zil::Chain::CHECKSUM_OFFSET,
        zil::Chain::SIZE,
        zil::LogBlock::SIZE_MIN,
        zil::LogRecord::HEADER_SIZE,
        zil::SetAttr::MASK_ATIME,
        zil::SetAttr::MASK_GID,
        zil::SetAttr::MASK_MODE,
        zil::SetAttr::MASK_MTIME,
        zil::SetAttr::MASK_SIZE,
        zil::SetAttr::MASK_UID,
        zil::SetAttr::MASK_XVATTR_ILLUMOS,
        zil::SetAttr::MASK_XVATTR_LINUX,
        zil::Xvattr::BITMAP_WORDS,
        zil_header::ZilHeader::CLAIM_RECORD_SEQ_VALID,
        zil_header::ZilHeader::REPLAY_NEEDED,
        zil_header::ZilHeader::SIZE_BYTES,
        znode::ZnodePhys::WITH_ACL_SIZE_BYTES,
        zpl::GROUP_USED_OBJECT,
        zpl::MASTER_NODE,
        zpl::OBJECT_COUNT_PREFIX,
        zpl::PROJECT_USED_OBJECT,
        zpl::USER_USED_OBJECT,
        zpl::fuid_table::ARRAY,
        zpl::fuid_table::DOMAIN,
        zpl::fuid_table::INDEX,
        zpl::fuid_table::OFFSET,
        zpl::master_node::CASE_SENSITIVITY,
        zpl::master_node::FSID,
        zpl::master_node::FUID_TABLE,
        zpl::master_node::NORMALIZATION,
        zpl::master_node::QUOTAS,
        zpl::master_node::ROOT,
        zpl::master_node::SA_ATTRIBUTES,
        zpl::master_node::SHARES_DIR,
        zpl::master_node::UNLINKED_SET,
        zpl::master_node::UTF8_ONLY,
        zpl::master_node::VERSION,
        zpl::version::CURRENT,
        zpl::version::DIRENT_TYPE,
        zpl::version::FUID,
        zpl::version::INITIAL,
        zpl::version::SA,
        zpl::version::USERSPACE,
    ].into()
}

#[rustfmt::skip]
fn flags() -> Vec<(&'static str, Vec<(&'static str, u64)>)> {
    flags![
        acl::AceFlags,
        dnode::DnodeFlags,
        dsl::BookmarkFlags,
        dsl::DatasetFlags,
        dsl::DirFlags,
        dsl::ScanFlags,
        objset::ObjsetFlags,
        stream::BeginFlags,
        stream::Features,
        stream::RecordFlags,
        zap::LeafFlags,
        zap::NormFlags,
        zap::ZapFlags,
        zil::XvattrFlags,
        znode::ZnodeFlags,
    ].into()
}

fn snapshot() -> String {
    let mut out = String::new();
    let mut heading = |title: &str, lines: Vec<String>| {
        writeln!(out, "{title}").unwrap();
        lines.iter().for_each(|line| writeln!(out, "    {line}").unwrap());
    };
    heading(
        "constants",
        constants().iter().map(|(path, value)| format!("{} = {value}", path.replace(' ', ""))).collect(),
    );
    for (path, members) in flags() {
        let lines = members.iter().map(|(name, bits)| format!("{name} = {bits:#x}")).collect();
        heading(&path.replace(' ', ""), lines);
    }
    heading("Checksum", Checksum::ALL.iter().map(|kind| format!("{} {kind}", kind.number())).collect());
    heading("Compress", Compress::ALL.iter().map(|kind| format!("{} {kind}", kind.number())).collect());
    heading("ObjsetType", ObjsetType::ALL.iter().map(|kind| format!("{} {kind}", kind.number())).collect());
    heading("DataType", DataType::ALL.iter().map(|kind| format!("{} {kind:?}", kind.number())).collect());
    heading("Byteswap", Byteswap::ALL.iter().map(|kind| format!("{} {}", *kind as u8, kind.name())).collect());
    let types = (0..=u8::MAX).map(DmuType).filter(|kind| kind.is_valid());
    let describe = |kind: DmuType| {
        let mark = |yes, letter| if yes { letter } else { '-' };
        let marks =
            [mark(kind.is_metadata(), 'M'), mark(kind.is_encrypted(), 'E'), mark(kind.is_metadata_cached(), 'C')];
        let marks: String = marks.iter().collect();
        format!("{} {marks} {} {kind}", kind.number(), kind.byteswap().unwrap().name())
    };
    heading("DmuType", types.map(describe).collect());
    heading("RecordKind", RecordKind::ALL.iter().map(|kind| format!("{} {}", kind.number(), kind.name())).collect());
    let attribute = |attribute: &ZplAttribute| {
        let registered = attribute.describe(*attribute as u16);
        format!("{} {} {} {:?}", registered.number, attribute.name(), registered.length_bytes, registered.byteswap)
    };
    heading("ZplAttribute", ZplAttribute::ALL.iter().map(attribute).collect());
    let suites = (0..32).filter_map(CryptSuite::from_number);
    heading("CryptSuite", suites.map(|kind| format!("{} {}", kind.number(), kind.name())).collect());
    let formats = (0..32).filter_map(KeyFormat::from_number);
    heading("KeyFormat", formats.map(|kind| format!("{} {}", kind.number(), kind.name())).collect());
    out
}

#[test]
fn constants_on_disk_are_those_of_the_snapshot() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/constants.txt");
    let now = snapshot();
    if std::env::var_os("CENOTE_BLESS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap();
    for (before, now) in before.lines().zip(now.lines()) {
        assert_eq!(before, now, "a constant changed; see the head of this file");
    }
    assert_eq!(before.lines().count(), now.lines().count(), "constants came or went; see the head of this file");
}

/// The public constants that a source file declares: a type that [`Show`] knows, in an `impl` or a module or neither.
fn declared(file: &Path, module: &str, found: &mut BTreeSet<String>) {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    for line in text.lines() {
        let Some((name, rest)) = line.trim_start().strip_prefix("pub const ").and_then(|rest| rest.split_once(": "))
        else {
            continue;
        };
        let shown = ["u8 ", "u16 ", "u32 ", "u64 ", "usize ", "&str ", "[&str;", "ObjectId "];
        if shown.iter().any(|kind| rest.starts_with(kind)) {
            found.insert(format!("{module} {name}"));
        }
    }
}

#[test]
fn every_public_constant_is_in_the_snapshot() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(&source).unwrap();
            let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if module != "fuzz" && module != "words" && !path.ends_with("tests.rs") {
                declared(&path, &module, &mut found);
            }
        }
    }
    assert!(found.len() > 200, "the sources were not found");
    let listed: BTreeSet<String> = constants()
        .iter()
        .map(|(path, _)| {
            let (module, rest) = path.split_once("::").unwrap();
            format!("{} {}", module.trim(), rest.rsplit("::").next().unwrap().trim())
        })
        .collect();
    let missing: Vec<_> = found.difference(&listed).collect();
    assert!(missing.is_empty(), "not in the list of this file (module, name): {missing:?}");
}
