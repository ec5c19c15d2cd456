//! Lists of block pointers that belong to no dataset.

use std::collections::BTreeSet;

use cenote_dmu::{ORDER, Object};
use cenote_format::bpobj::{self as format_bpobj, BpobjPhys};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Map, Value, json};

use crate::object::bpobj_fields;
use crate::report::{Report, cut, map};

/// Lists below one list followed at most.
const LISTS_MAX: usize = 1 << 16;

/// The pool's lists of block pointers, or given objects of the MOS, each with the lists below it.
#[boxed]
pub async fn bpobj(report: &mut Report, pool: &View, objects: &[u64]) {
    let mut shown = Vec::new();
    if objects.is_empty() {
        let names = [pool_directory::SYNC_BPOBJ, pool_directory::FREE_BPOBJ, pool_directory::OBSOLETE_BPOBJ];
        for name in names {
            if let Some(Some(dnode)) = report.take(name, pool.directory_object(name).await) {
                shown.push(tree(report, pool, name, dnode).await);
            }
        }
    }
    for object in objects {
        let name = format!("object {object}");
        if let Some(dnode) = report.take(&name, pool.mos().object(ObjectId(*object)).await) {
            shown.push(tree(report, pool, &name, dnode).await);
        }
    }
    report.put("lists", shown);
}

/// A list and all below it.
async fn tree(report: &mut Report, pool: &View, name: &str, list: Object) -> Value {
    let mut shown: Map<String, Value> = map([("name", name.into())]);
    let (mut lists, mut pointers, mut count) = (Vec::new(), Vec::new(), 0_u64);
    let mut seen = BTreeSet::new();
    let mut pending = vec![list];
    while let Some(list) = pending.pop() {
        let what = format!("{name}: object {}", list.id());
        if seen.len() >= LISTS_MAX {
            report.problem(format_args!("{name}: more than {LISTS_MAX} lists; the rest is left out"));
            break;
        }
        if !seen.insert(list.id()) {
            report.problem(format_args!("{what}: it is below two lists, or below itself"));
            continue;
        }
        let Some(phys) = report.take(&what, list.bonus(BpobjPhys::parse)) else { continue };
        count = count.saturating_add(phys.blkptr_count);
        let mut row = map([("object", list.id().0.into())]);
        row.append(&mut bpobj_fields(&phys));
        lists.push(Value::Object(row));
        let room = report.limit.saturating_sub(pointers.len()) as u64;
        let stored = list.last_block().0.saturating_add(1).saturating_mul(list.block_bytes());
        let size = phys.blkptr_count.min(room).saturating_mul(128).min(stored);
        if let Some(bytes) = report.take(&what, list.read(0, size as usize).await) {
            pointers.extend(format_bpobj::blkptrs(&bytes, ORDER).map(|bp| json!({ "pointer": bp.to_string() })));
        }
        let Some((object, below)) = phys.children.filter(|(_, below)| *below > 0) else { continue };
        let Some(array) = report.take(&what, pool.mos().object(object).await) else { continue };
        // Lists that wait are bounded too: a hostile list could have as many below it as the limit, over and over.
        let room = LISTS_MAX.saturating_sub(seen.len() + pending.len()) as u64;
        if below > room {
            report.problem(format_args!("{what}: {below} lists below it; the first {room} are followed"));
        }
        let size = below.min(room) * 8;
        let Some(bytes) = report.take(&what, array.read(0, size as usize).await) else { continue };
        for child in format_bpobj::children(&bytes, ORDER) {
            if let Some(child) = report.take(&what, pool.mos().object(child).await) {
                pending.push(child);
            }
        }
    }
    let (limit, total) = (report.limit, lists.len() as u64);
    cut(&mut shown, "lists", &mut lists, limit, total);
    cut(&mut shown, "pointers", &mut pointers, limit, count);
    Value::Object(shown)
}
