//! Intent logs.

use cenote_dmu::{KeyAccess, Objset};
use cenote_format::ids::ObjsetId;
use cenote_format::zil::{CreateKind, LogRecord, RenameKind, Tx, ZilHeader};
use cenote_spa::View;
use cenote_taskq::boxed;
use cenote_zil::{Chain, End};
use serde_json::{Map, Value, json};

use crate::datasets::{Found, all};
use crate::report::{Report, cut, map};

/// Blocks of one log followed at most.
const BLOCKS_MAX: usize = 1 << 20;

/// The wanted intent logs, and the wanted parts of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct IntentLogs<'a> {
    /// The dataset; all if none.
    pub only: Option<&'a str>,
    /// Their records too.
    pub records: bool,
    /// Those that are empty too.
    pub empty: bool,
}

/// Intent logs of heads.
#[boxed]
pub async fn zil(report: &mut Report, pool: &View, wanted: &IntentLogs<'_>) {
    let mut logs = Vec::new();
    for found in all(report, pool).await {
        let is_wanted = wanted.only.is_none_or(|only| found.name.as_deref() == Some(only));
        if found.phys.is_snapshot() || found.phys.bp.is_hole() || !is_wanted {
            continue;
        }
        if let Some(log) = log(report, pool, &found, wanted).await {
            logs.push(log);
        }
    }
    report.list("logs", logs);
}

async fn log(report: &mut Report, pool: &View, found: &Found, wanted: &IntentLogs<'_>) -> Option<Value> {
    let name = found.name();
    let id = ObjsetId(found.object.0);
    let opened = Objset::open(pool.dmu().clone(), id, found.phys.bp, KeyAccess::Without).await;
    let objset = report.take(&name, opened)?;
    let header = objset.phys().zil_header;
    if header.log.is_hole() && header.claim_txg.0 == 0 && !wanted.empty {
        return None;
    }
    let mut shown = map([
        ("dataset", name.clone().into()),
        ("claim_txg", header.claim_txg.0.into()),
        ("replay_sequence", header.replay_seq.into()),
        ("claim_block_sequence", header.claim_block_seq.into()),
        ("claim_record_sequence", header.claim_record_seq.into()),
        ("flags", format!("{:#x}", header.flags).into()),
        ("replay_needed", (header.flags & ZilHeader::REPLAY_NEEDED != 0).into()),
        ("first", header.log.to_string().into()),
    ]);
    chain(report, pool, &name, &header, wanted, &mut shown).await;
    Some(Value::Object(shown))
}

async fn chain(
    report: &mut Report,
    pool: &View,
    name: &str,
    header: &ZilHeader,
    wanted: &IntentLogs<'_>,
    shown: &mut Map<String, Value>,
) {
    let (mut blocks, mut records, limit) = (Vec::new(), Vec::new(), report.limit);
    let (mut block_count, mut record_count) = (0_u64, 0_u64);
    let mut chain = Chain::new(pool.dmu().zio(), *header);
    let mut cut_short = None;
    while let Some(link) = chain.next().await {
        if block_count >= BLOCKS_MAX as u64 {
            cut_short = Some(format!("more than {BLOCKS_MAX} blocks of intent log; the rest is left out"));
            break;
        }
        let Some(content) = &link.content else { continue };
        block_count += 1;
        if blocks.len() < limit {
            blocks.push(json!({
                "sequence": link.sequence(),
                "used_bytes": content.used_bytes,
                "pointer": link.pointer.to_string(),
            }));
        }
        if link.pointer.is_encrypted() {
            shown.insert("records".into(), "not supported yet: records of encrypted datasets".into());
        }
        for record in content.records() {
            record_count += 1;
            if records.len() < limit && wanted.records {
                records.push(describe(&record));
            }
        }
    }
    let end = chain.end().map_or_else(String::new, ToString::to_string);
    if let Some(End::Damaged(_) | End::Unordered | End::Device(_)) = chain.end() {
        cut_short = Some(end.clone());
    }
    if let Some(problem) = cut_short {
        report.problem(format_args!("{name}: {problem}"));
    }
    shown.insert("ends_at".into(), end.into());
    shown.insert("block_count".into(), block_count.into());
    shown.insert("record_count".into(), record_count.into());
    cut(shown, "blocks", &mut blocks, limit, block_count);
    if wanted.records && !shown.contains_key("records") {
        cut(shown, "records", &mut records, limit, record_count);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One record in a row.
fn describe(record: &LogRecord<'_>) -> Value {
    let (operation, object, what) = match &record.tx {
        Tx::Commit => ("commit", None, String::new()),
        Tx::Create(create) => {
            let kind = match &create.kind {
                CreateKind::Symlink { target } => format!("symlink to {}", text(target)),
                other => format!("{other:?}").to_lowercase(),
            };
            let what = format!("{kind} {:?} in {} mode {:o}", text(&create.name), create.directory, create.mode);
            ("create", Some(create.object), what)
        }
        Tx::Remove { directory, name } => ("remove", None, format!("{:?} from {directory}", text(name))),
        Tx::Rmdir { directory, name } => ("rmdir", None, format!("{:?} from {directory}", text(name))),
        Tx::Link { directory, object, name } => ("link", Some(*object), format!("{:?} in {directory}", text(name))),
        Tx::Rename(rename) => {
            let kind = match rename.kind {
                RenameKind::Plain => "rename",
                _ => "rename (exchange or whiteout)",
            };
            let (from, to) = (text(&rename.source_name), text(&rename.target_name));
            let what = format!("{from:?} in {} to {to:?} in {}", rename.source_directory, rename.target_directory);
            (kind, None, what)
        }
        Tx::Write(write) => {
            let place = match &write.data {
                Some(data) => format!("{} bytes in the record", data.len()),
                None => write.pointer.to_string(),
            };
            (
                "write",
                Some(write.object),
                format!("offset {} length {} {place}", write.offset_bytes, write.length_bytes),
            )
        }
        Tx::Truncate { object, offset_bytes, length_bytes } => {
            ("truncate", Some(*object), format!("offset {offset_bytes} length {length_bytes}"))
        }
        Tx::SetAttr(attributes) => {
            let what = format!(
                "mask {:#x} mode {:o} uid {} gid {} size {}",
                attributes.mask, attributes.mode, attributes.uid, attributes.gid, attributes.size_bytes
            );
            ("setattr", Some(attributes.object), what)
        }
        Tx::AclV0 { object, entries } => ("acl", Some(*object), format!("{} entries", entries.len())),
        Tx::Acl(acl) => ("acl", Some(acl.object), String::new()),
        Tx::SetSaXattr(xattr) => {
            ("setxattr", Some(xattr.object), format!("{:?} {} bytes", text(&xattr.name), xattr.value.len()))
        }
        Tx::CloneRange(clone) => {
            let what = format!(
                "offset {} length {} {} blocks of {}",
                clone.offset_bytes,
                clone.length_bytes,
                clone.pointers.len(),
                clone.block_bytes
            );
            ("clone", Some(clone.object), what)
        }
    };
    json!({
        "sequence": record.sequence,
        "txg": record.txg.0,
        "operation": operation,
        "object": object.map(|object| object.0),
        "what": what,
    })
}
