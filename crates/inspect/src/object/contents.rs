//! The contents of an object, by its type.

use cenote_dmu::{ORDER, Object, Zap, ZapEntry};
use cenote_format::bpobj::{self, BpobjPhys};
use cenote_format::dmu_type::DmuType;
use cenote_format::nvlist::NvList;
use cenote_format::sa::SaAttribute;
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord, SpaceMapRecords};
use cenote_format::zpl::DirEntry;
use serde_json::{Map, Value, json};

use crate::Report;
use crate::report::{cut, first, map};
use crate::values;

/// A packed list's size at most.
const LIST_MAX_BYTES: u64 = 64 << 20;
/// Blocks of a ZAP that cannot be read, in a row, after which the rest is given up.
const BAD_LEAVES_MAX: u32 = 1024;
/// Names of the types of directory entries, as in `d_type`.
const ENTRY_TYPES: [(u8, &str); 8] = [
    (1, "fifo"),
    (2, "char device"),
    (4, "directory"),
    (6, "block device"),
    (8, "file"),
    (10, "symlink"),
    (12, "socket"),
    (14, "whiteout"),
];

/// Adds what the object holds.
pub(super) async fn show(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let kind = dnode.phys().object_type;
    match kind {
        _ if kind.is_zap() => zap(report, dnode, shown).await,
        DmuType::PACKED_NVLIST | DmuType::FUID => packed(report, dnode, shown).await,
        DmuType::OBJECT_ARRAY | DmuType::UINT64_OTHER | DmuType::BPOBJ_SUBOBJ => words(report, dnode, shown).await,
        DmuType::BPOBJ => block_pointers(report, dnode, shown).await,
        DmuType::SPACE_MAP => space_map(report, dnode, shown).await,
        _ => {}
    }
}

/// Calls `visit` with each entry, around leaves that cannot be read, until it says to stop.
pub(crate) async fn each_entry(report: &mut Report, zap: &Zap, mut visit: impl FnMut(ZapEntry) -> bool) {
    let mut listing = zap.listing();
    let mut bad = 0;
    loop {
        match listing.next().await {
            Ok(None) => return,
            Ok(Some(batch)) => {
                bad = 0;
                for entry in batch {
                    if !visit(entry) {
                        return;
                    }
                }
            }
            Err(error) => {
                report.problem(error);
                bad += 1;
                if bad >= BAD_LEAVES_MAX || !listing.skip() {
                    return;
                }
            }
        }
    }
}

async fn zap(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let what = format!("object {}", dnode.id());
    let Some(zap) = report.take(&what, Zap::open(dnode.clone()).await) else { return };
    let mut info = map([("form", if zap.is_micro() { "micro" } else { "fat" }.into())]);
    if let Some(header) = zap.header() {
        info.insert("block_bytes".into(), header.block_size_bytes().into());
        info.insert("entry_count".into(), header.entry_count.into());
        info.insert("leaf_count".into(), header.leaf_count.into());
        info.insert("free_block".into(), header.free_block.into());
        info.insert("table_pointers".into(), header.pointer_count().into());
        info.insert("table_is_embedded".into(), header.is_embedded().into());
        info.insert("salt".into(), format!("{:#x}", header.salt).into());
        info.insert("flags".into(), format!("{:#x}", header.flags.bits()).into());
    }
    if let Ok(flags) = zap.norm_flags() {
        info.insert("norm_flags".into(), format!("{:#x}", flags.bits()).into());
    }
    shown.insert("zap".into(), info.into());
    let kind = dnode.phys().object_type;
    let (mut rows, limit) = (Vec::new(), report.limit);
    let mut count = 0_u64;
    each_entry(report, &zap, |entry| {
        count += 1;
        if rows.len() < limit {
            rows.push(entry_row(kind, &entry));
        }
        true
    })
    .await;
    cut(shown, "entries", &mut rows, limit, count);
}

fn entry_row(kind: DmuType, entry: &ZapEntry) -> Value {
    let name = values::zap_key(&entry.key);
    let word = entry.value.as_u64();
    match (kind, word) {
        (DmuType::DIRECTORY_CONTENTS, Some(word)) => {
            let parsed = DirEntry::from_word(word);
            let known = ENTRY_TYPES.iter().find(|(number, _)| *number == parsed.kind).map(|(_, name)| *name);
            let known = known.map_or_else(|| format!("type {}", parsed.kind), str::to_owned);
            json!({ "name": name, "object": parsed.object.0, "type": known })
        }
        (DmuType::SA_ATTR_REGISTRATION, Some(word)) => match SaAttribute::from_word(word) {
            Ok(found) => json!({
                "name": name,
                "number": found.number,
                "length_bytes": found.length_bytes,
                "byteswap": format!("{:?}", found.byteswap),
            }),
            Err(error) => json!({ "name": name, "value": word, "not_valid": error.to_string() }),
        },
        _ => match values::zap_value(&entry.value) {
            // Values in a table stand on one line.
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                json!({ "name": name, "value": items.join(" ") })
            }
            plain => json!({ "name": name, "value": plain }),
        },
    }
}

async fn packed(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let what = format!("object {}", dnode.id());
    let Some(size) = dnode.bonus_word() else {
        return report.problem(format_args!("{what}: a packed list without its size"));
    };
    if size > LIST_MAX_BYTES {
        return report.problem(format_args!("{what}: a packed list of {size} bytes"));
    }
    let Some(bytes) = report.take(&what, dnode.read(0, size as usize).await) else { return };
    if let Some(list) = report.take(&what, NvList::parse(&bytes)) {
        shown.insert("list".into(), values::nvlist(&list));
    }
}

/// Bytes of the data that hold `count` items of `size_bytes` at most.
fn stored_bytes(dnode: &Object, count: u64, size_bytes: u64) -> usize {
    let stored = dnode.last_block().0.saturating_add(1).saturating_mul(dnode.block_bytes());
    usize::try_from(count.saturating_mul(size_bytes).min(stored)).unwrap_or(0)
}

async fn words(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let what = format!("object {}", dnode.id());
    let len = stored_bytes(dnode, (report.limit as u64).saturating_add(1), 8);
    let Some(bytes) = report.take(&what, dnode.read(0, len).await) else { return };
    let mut words: Vec<Value> = bytes.as_chunks::<8>().0.iter().map(|word| ORDER.u64(*word).into()).collect();
    first(shown, "words", &mut words, report.limit);
}

async fn block_pointers(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let what = format!("object {}", dnode.id());
    let Some(phys) = report.take(&what, dnode.bonus(BpobjPhys::parse)) else { return };
    let len = stored_bytes(dnode, phys.blkptr_count.min(report.limit as u64), 128);
    let Some(bytes) = report.take(&what, dnode.read(0, len).await) else { return };
    let mut rows: Vec<Value> = bpobj::blkptrs(&bytes, ORDER).map(|bp| json!({ "pointer": bp.to_string() })).collect();
    cut(shown, "list", &mut rows, report.limit, phys.blkptr_count);
}

async fn space_map(report: &mut Report, dnode: &Object, shown: &mut Map<String, Value>) {
    let what = format!("object {}", dnode.id());
    let Some(phys) = report.take(&what, dnode.bonus(SpaceMapPhys::parse)) else { return };
    let mut rows = space_map_entries(report, dnode, &phys).await;
    first(shown, "entries", &mut rows, report.limit);
}

/// The entries of a space map, in units of its own; one more than the limit at most.
pub(crate) async fn space_map_entries(report: &mut Report, dnode: &Object, phys: &SpaceMapPhys) -> Vec<Value> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let what = format!("space map object {}", dnode.id());
    let mut rows = Vec::new();
    let length = stored_bytes(dnode, phys.length_bytes, 1) as u64;
    let mut at = 0;
    while at < length && rows.len() <= report.limit {
        let len = CHUNK_BYTES.min(length - at);
        let Some(bytes) = report.take(&what, dnode.read(at, len as usize).await) else { break };
        for record in SpaceMapRecords::new(&bytes, ORDER) {
            if rows.len() > report.limit {
                break;
            }
            match record {
                Ok(SpaceMapRecord::Debug { action, sync_pass, txg }) => rows.push(json!({
                    "record": format!("debug {action}"), "txg": txg.0, "pass": sync_pass,
                })),
                Ok(SpaceMapRecord::Entry(entry)) => rows.push(json!({
                    "record": format!("{:?}", entry.kind).to_lowercase(),
                    "vdev": entry.vdev.map(|vdev| vdev.0),
                    "first_unit": entry.offset_units,
                    "units": entry.run_units,
                })),
                Err(error) => {
                    report.problem(format_args!("{what}: {error}"));
                    break;
                }
            }
        }
        at += len;
    }
    rows
}
