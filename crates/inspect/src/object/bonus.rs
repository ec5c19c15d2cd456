//! The contents of a dnode's bonus, by its type; attributes of files, with those in a spill block.

use cenote_dmu::Object;
use cenote_dmu::sa::{SaRecord, SaTables};
use cenote_format::acl::{AclVersion, parse_aces};
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DeadlistPhys, DslDatasetPhys, DslDirPhys};
use cenote_format::history::HistoryPhys;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::sa::ZplAttribute;
use cenote_format::spacemap::SpaceMapPhys;
use cenote_format::znode::ZnodeFlags;
use serde_json::{Map, Value, json};

use crate::Report;
use crate::report::map;
use crate::values;

/// Adds what the bonus (and spill) hold.
pub(super) async fn show(
    report: &mut Report,
    dnode: &Object,
    attributes: Option<&SaTables>,
    shown: &mut Map<String, Value>,
) {
    let (bytes, order) = (&dnode.phys().bonus, dnode.phys().endian);
    if bytes.is_empty() && dnode.phys().spill.is_none() {
        return;
    }
    let what = format!("bonus of object {}", dnode.id());
    let bonus: Value = match dnode.phys().bonus_type {
        DmuType::DSL_DIR => match report.take(&what, DslDirPhys::parse(bytes, order)) {
            Some(phys) => dir(&phys).into(),
            None => values::hex(bytes).into(),
        },
        DmuType::DSL_DATASET => match report.take(&what, DslDatasetPhys::parse(bytes, order)) {
            Some(phys) => dataset(&phys).into(),
            None => values::hex(bytes).into(),
        },
        DmuType::BPOBJ_HDR => match report.take(&what, BpobjPhys::parse(bytes, order)) {
            Some(phys) => bpobj(&phys).into(),
            None => values::hex(bytes).into(),
        },
        DmuType::SPACE_MAP_HEADER => match report.take(&what, SpaceMapPhys::parse(bytes, order)) {
            Some(phys) => space_map(&phys).into(),
            None => values::hex(bytes).into(),
        },
        DmuType::DEADLIST_HDR => match report.take(&what, DeadlistPhys::parse(bytes, order)) {
            Some(phys) => json!({
                "used_bytes": phys.used_bytes,
                "compressed_bytes": phys.compressed_bytes,
                "uncompressed_bytes": phys.uncompressed_bytes,
            }),
            None => values::hex(bytes).into(),
        },
        DmuType::SPA_HISTORY_OFFSETS => match report.take(&what, HistoryPhys::parse(bytes, order)) {
            Some(phys) => json!({
                "create_end": phys.create_end,
                "ring_end": phys.ring_end,
                "oldest": phys.oldest,
                "end": phys.end,
                "lost_count": phys.lost_count,
            }),
            None => values::hex(bytes).into(),
        },
        DmuType::PACKED_NVLIST_SIZE | DmuType::FUID_SIZE => match bytes.first_chunk::<8>() {
            Some(word) => json!({ "size_bytes": order.u64(*word) }),
            None => values::hex(bytes).into(),
        },
        DmuType::SA | DmuType::ZNODE => match attributes {
            Some(table) => file(report, dnode, table).await.into(),
            None => values::hex(bytes).into(),
        },
        _ => values::hex(bytes).into(),
    };
    shown.insert("bonus".into(), bonus);
}

/// A directory's fields.
pub(crate) fn dir(phys: &DslDirPhys) -> Map<String, Value> {
    let [head, snapshots, children, children_reserved, refreserved] = phys.used_breakdown_bytes;
    map([
        ("creation_time_s", phys.creation_time.into()),
        ("head_dataset", phys.head_dataset.0.into()),
        ("parent", phys.parent.0.into()),
        ("origin", phys.origin.0.into()),
        ("child_dirs", phys.child_dirs.0.into()),
        ("used_bytes", phys.used_bytes.into()),
        ("compressed_bytes", phys.compressed_bytes.into()),
        ("uncompressed_bytes", phys.uncompressed_bytes.into()),
        ("quota_bytes", phys.quota_bytes.into()),
        ("reserved_bytes", phys.reserved_bytes.into()),
        ("properties", phys.properties.0.into()),
        ("delegations", phys.delegations.0.into()),
        ("flags", format!("{:#x}", phys.flags.bits()).into()),
        ("used_by_head_bytes", head.into()),
        ("used_by_snapshots_bytes", snapshots.into()),
        ("used_by_children_bytes", children.into()),
        ("used_by_children_reserved_bytes", children_reserved.into()),
        ("used_by_refreservation_bytes", refreserved.into()),
        ("clones", phys.clones.0.into()),
    ])
}

/// A dataset's fields.
pub(crate) fn dataset(phys: &DslDatasetPhys) -> Map<String, Value> {
    map([
        ("dir", phys.dir.0.into()),
        ("prev_snapshot", phys.prev_snapshot.0.into()),
        ("prev_snapshot_txg", phys.prev_snapshot_txg.0.into()),
        ("next_snapshot", phys.next_snapshot.0.into()),
        ("snapshot_names", phys.snapshot_names.0.into()),
        ("child_count", phys.child_count.into()),
        ("creation_time_s", phys.creation_time.into()),
        ("creation_txg", phys.creation_txg.0.into()),
        ("deadlist", phys.deadlist.0.into()),
        ("referenced_bytes", phys.referenced_bytes.into()),
        ("compressed_bytes", phys.compressed_bytes.into()),
        ("uncompressed_bytes", phys.uncompressed_bytes.into()),
        ("unique_bytes", phys.unique_bytes.into()),
        ("fsid_guid", phys.fsid_guid.into()),
        ("guid", phys.guid.0.into()),
        ("flags", format!("{:#x}", phys.flags.bits()).into()),
        ("next_clones", phys.next_clones.0.into()),
        ("properties", phys.properties.0.into()),
        ("user_refs", phys.user_refs.0.into()),
        ("bp", phys.bp.to_string().into()),
    ])
}

/// The header of a list of block pointers.
pub(crate) fn bpobj(phys: &BpobjPhys) -> Map<String, Value> {
    let mut map = map([("pointer_count", phys.blkptr_count.into()), ("bytes", phys.bytes.into())]);
    if let Some([compressed, uncompressed]) = phys.compressed {
        map.insert("compressed_bytes".into(), compressed.into());
        map.insert("uncompressed_bytes".into(), uncompressed.into());
    }
    if let Some((object, count)) = phys.children {
        map.insert("children_object".into(), object.0.into());
        map.insert("children_count".into(), count.into());
    }
    if let Some(freed) = phys.freed_count {
        map.insert("freed_count".into(), freed.into());
    }
    map
}

/// The header of a space map.
pub(crate) fn space_map(phys: &SpaceMapPhys) -> Map<String, Value> {
    let mut map = map([
        ("object", phys.object.into()),
        ("length_bytes", phys.length_bytes.into()),
        ("allocated_bytes", phys.allocated_bytes.into()),
    ]);
    if let Some(histogram) = phys.histogram {
        map.insert("histogram".into(), histogram.to_vec().into());
    }
    map
}

/// A file's attributes. Where the spill block cannot be read, those of the bonus.
async fn file(report: &mut Report, dnode: &Object, table: &SaTables) -> Map<String, Value> {
    let what = format!("attributes of object {}", dnode.id());
    let values = match table.record(dnode).await {
        Ok(values) => values,
        Err(error) => {
            report.problem(format_args!("{what}: {error}"));
            let mut phys = (*dnode.phys()).clone();
            if phys.spill.take().is_none() {
                return Map::new();
            }
            let without_spill = dnode.with_phys(phys);
            match report.take(&what, table.record(&without_spill).await) {
                Some(values) => values,
                None => return Map::new(),
            }
        }
    };
    let mut shown = Map::new();
    for attribute in ZplAttribute::ALL {
        let Some(bytes) = values.bytes(*attribute) else { continue };
        let (name, value) = attribute_value(report, &what, *attribute, bytes, &values);
        shown.insert(name.into(), value);
    }
    shown
}

fn attribute_value(
    report: &mut Report,
    what: &str,
    attribute: ZplAttribute,
    bytes: &[u8],
    values: &SaRecord,
) -> (&'static str, Value) {
    use ZplAttribute as A;
    let shown_time = report.time;
    let number = || values.u64(attribute);
    let time = || {
        let [seconds, nanoseconds] = values.words::<2>(attribute).unwrap_or_default();
        let text = shown_time(seconds, "%Y-%m-%d %H:%M:%S %z");
        format!("{seconds}.{nanoseconds:09} ({text})").into()
    };
    match attribute {
        A::Atime => ("atime", time()),
        A::Mtime => ("mtime", time()),
        A::Ctime => ("ctime", time()),
        A::Crtime => ("crtime", time()),
        A::Gen => ("generation", number().into()),
        A::Mode => ("mode", format!("{:o}", number()).into()),
        A::Size => ("size_bytes", number().into()),
        A::Parent => ("parent", number().into()),
        A::Links => ("links", number().into()),
        A::Xattr => ("xattr_directory", number().into()),
        A::Rdev => ("rdev", format!("{:#x}", number()).into()),
        A::Flags => {
            let flags = ZnodeFlags::from_bits_retain(number());
            let names: Vec<Value> = flags.iter_names().map(|(name, _)| name.to_lowercase().into()).collect();
            ("flags", names.into())
        }
        A::Uid => ("uid", number().into()),
        A::Gid => ("gid", number().into()),
        A::Projid => ("project", number().into()),
        A::Seq => ("sequence", number().into()),
        A::DaclCount => ("acl_count", number().into()),
        A::Symlink => ("symlink", String::from_utf8_lossy(bytes).into_owned().into()),
        A::Dxattr => match report.take(what, NvList::parse_xdr(bytes)) {
            Some(list) => ("xattrs", xattrs(&list)),
            None => ("xattrs", values::hex(bytes).into()),
        },
        A::DaclAces => {
            let count = usize::try_from(values.u64(A::DaclCount)).unwrap_or(usize::MAX);
            let order = values.byte_order(attribute).unwrap_or(cenote_format::Endian::Little);
            match report.take(what, parse_aces(bytes, count, AclVersion::Fuid, order)) {
                Some(aces) => ("acl", aces.iter().map(ace).collect::<Vec<_>>().into()),
                None => ("acl", values::hex(bytes).into()),
            }
        }
        A::Pad => ("pad", values::hex(bytes).into()),
        A::ZnodeAcl => ("znode_acl", values::hex(bytes).into()),
        A::Scanstamp => ("scanstamp", values::hex(bytes).into()),
    }
}

fn ace(ace: &cenote_format::acl::Ace) -> Value {
    json!({
        "type": ace.kind,
        "who": format!("{:?}", ace.who()),
        "access_mask": format!("{:#x}", ace.access_mask),
        "flags": format!("{:#x}", ace.flags.bits()),
    })
}

/// Extended attributes by name, with their sizes and the beginning of their values.
fn xattrs(list: &NvList) -> Value {
    let rows = list.iter().map(|(name, value)| match value {
        NvValue::ByteArray(bytes) => {
            let text = std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control));
            let shown = text.map_or_else(|| values::hex(bytes), str::to_owned);
            json!({ "name": name.to_string(), "size_bytes": bytes.len(), "value": shown })
        }
        other => json!({ "name": name.to_string(), "size_bytes": null, "value": format!("{:?}", other.data_type()) }),
    });
    Value::Array(rows.collect())
}
