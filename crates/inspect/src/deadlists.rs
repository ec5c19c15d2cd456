//! Deadlists: the blocks that snapshots have and their datasets have no more.

use cenote_dmu::Zap;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DeadlistPhys, dir_field};
use cenote_format::ids::ObjectId;
use cenote_format::zap::int_key;
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Map, Value};

use crate::datasets::all;
use crate::object::each_entry;
use crate::report::{Report, cut, map};

/// Deadlists and livelists of all datasets, or of the one that `only` names; with `verbose` the ranges of births of each.
#[boxed]
pub async fn deadlists(report: &mut Report, pool: &View, only: Option<&str>, verbose: bool) {
    let (mut shown, mut count) = (Vec::new(), 0_u64);
    for found in all(report, pool).await {
        if only.is_some_and(|only| found.name.as_deref() != Some(only)) {
            continue;
        }
        let mut lists = vec![("deadlist", found.phys.deadlist)];
        if !found.phys.is_snapshot()
            && let Ok(dir) = pool.dsl().dir_object(found.phys.dir, String::new()).await
            && let Ok(Some(object)) = pool.dsl().dir_field(&dir, dir_field::LIVELIST).await
        {
            lists.push(("livelist", ObjectId(object)));
        }
        for (kind, object) in lists.into_iter().filter(|(_, object)| object.0 != 0) {
            count += 1;
            if shown.len() < report.limit {
                let mut row = map([("dataset", found.name().into()), ("list", kind.into())]);
                list(report, pool, object, verbose, &mut row).await;
                shown.push(Value::Object(row));
            }
        }
    }
    report.list_of(count, "deadlists", shown);
}

async fn list(report: &mut Report, pool: &View, object: ObjectId, verbose: bool, row: &mut Map<String, Value>) {
    let what = format!("deadlist object {object}");
    row.insert("object".into(), object.0.into());
    let Some(dnode) = report.take(&what, pool.mos().object(object).await) else { return };
    if dnode.phys().object_type == DmuType::BPOBJ {
        // Before version 26 there was one list for all births.
        if let Some(phys) = report.take(&what, dnode.bonus(BpobjPhys::parse)) {
            row.insert("used_bytes".into(), phys.bytes.into());
            row.insert("pointers".into(), phys.blkptr_count.into());
        }
        return;
    }
    if let Some(phys) = report.take(&what, dnode.bonus(DeadlistPhys::parse)) {
        row.insert("used_bytes".into(), phys.used_bytes.into());
        row.insert("compressed_bytes".into(), phys.compressed_bytes.into());
        row.insert("uncompressed_bytes".into(), phys.uncompressed_bytes.into());
    }
    let Some(zap) = report.take(&what, Zap::open(dnode).await) else { return };
    let (mut ranges, mut count, limit) = (Vec::new(), 0_u64, report.limit);
    each_entry(report, &zap, |entry| {
        count += 1;
        if ranges.len() < limit {
            ranges.push((int_key(entry.name()), ObjectId(entry.value.as_u64().unwrap_or(0))));
        }
        true
    })
    .await;
    row.insert("range_count".into(), count.into());
    if !verbose {
        return;
    }
    ranges.sort_unstable();
    let mut rows = Vec::new();
    for (from, object) in ranges {
        let mut row = map([("from_birth_txg", from.into()), ("object", object.0.into())]);
        if let Some(list) = report.take(&what, pool.mos().object(object).await)
            && let Some(phys) = report.take(&what, list.bonus(BpobjPhys::parse))
        {
            row.insert("pointers".into(), phys.blkptr_count.into());
            row.insert("used_bytes".into(), phys.bytes.into());
            row.insert("lists_below".into(), phys.children.map_or(0, |(_, count)| count).into());
        }
        rows.push(Value::Object(row));
    }
    cut(row, "ranges", &mut rows, limit, count);
}
