//! Space maps of metaslabs, and their logs.

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_format::spacemap::SpaceMapPhys;
use cenote_metaslab::{MetaslabSpace, VdevSpace, class_fragmentation};
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Map, Value, json};

use crate::object::{each_entry, space_map_entries};
use crate::report::{Report, cut, first, map};
use crate::{InspectError, values};

/// The wanted space maps, and the wanted parts of them.
#[derive(Clone, Debug, Default)]
pub struct SpaceMaps {
    /// Histograms of free runs.
    pub histograms: bool,
    /// The entries of one metaslab's space map alone: of this vdev and index.
    pub entries: Option<(u32, usize)>,
    /// Only this top-level vdev.
    pub vdev: Option<u32>,
    /// Only these metaslabs; all if empty.
    pub metaslabs: Vec<usize>,
}

/// The metaslabs of all vdevs, or of those chosen, and the log space maps.
///
/// # Errors
/// The pool has no such metaslab as its entries are wanted of; or space maps could not be found.
#[boxed]
pub async fn spacemaps(report: &mut Report, pool: &View, wanted: &SpaceMaps) -> Result<(), InspectError> {
    let space = pool.space().await?;
    for problem in &space.problems {
        report.problem(problem);
    }
    if let Some((vdev, metaslab)) = wanted.entries {
        let space = space.vdevs.iter().find(|space| space.maps.vdev.0 == vdev);
        let Some(found) = space.and_then(|vdev| Some((vdev, vdev.metaslabs.get(metaslab)?))) else {
            return Err(InspectError::NotThere(format!("the pool has no metaslab {vdev}:{metaslab}")));
        };
        entries(report, pool, found.0, metaslab, found.1).await;
        return Ok(());
    }
    let mut vdevs = Vec::new();
    for vdev in space.vdevs.iter().filter(|vdev| wanted.vdev.is_none_or(|wanted| wanted == vdev.maps.vdev.0)) {
        vdevs.push(shown(vdev, wanted, report.limit));
    }
    let figures = space.figures();
    report.put("txg", pool.txg().0);
    report.put("size_bytes", figures.size_bytes);
    report.put("allocated_bytes", figures.allocated_bytes);
    report.put("free_bytes", figures.free_bytes());
    report.put("vdevs", vdevs);
    logs(report, pool).await;
    Ok(())
}

fn shown(vdev: &VdevSpace, wanted: &SpaceMaps, limit: usize) -> Value {
    let (maps, figures) = (&vdev.maps, vdev.figures());
    let mut shown = map([
        ("vdev", maps.vdev.0.into()),
        ("class", format!("{:?}", maps.class).to_lowercase().into()),
        ("ashift", maps.ashift.into()),
        ("asize_bytes", maps.asize_bytes.into()),
        ("metaslab_bytes", 1_u64.checked_shl(maps.metaslab_shift).into()),
        ("metaslab_count", maps.metaslab_count().into()),
        ("metaslab_array", maps.metaslab_array.0.into()),
        ("unflushed_txgs_object", maps.unflushed_txgs.map(|object| object.0).into()),
        ("checkpoint_map_object", maps.checkpoint_map.map(|object| object.0).into()),
        ("allocated_bytes", figures.allocated_bytes.into()),
        ("free_bytes", figures.free_bytes().into()),
        ("checkpoint_bytes", figures.checkpoint_bytes.into()),
        ("segment_count", vdev.allocated.iter().count().into()),
        ("fragmentation_percent", class_fragmentation(std::iter::once(vdev)).into()),
    ]);
    let chosen = |index: &usize| wanted.metaslabs.is_empty() || wanted.metaslabs.contains(index);
    let all: Vec<_> = vdev.metaslabs.iter().enumerate().filter(|(index, _)| chosen(index)).collect();
    let mut rows: Vec<Value> = all
        .iter()
        .take(limit)
        .map(|(index, metaslab)| {
            let range = maps.metaslab_range(*index as u64);
            let mut row = map([
                ("metaslab", (*index).into()),
                ("offset_bytes", range.start.into()),
                ("object", metaslab.object.0.into()),
                ("allocated_bytes", metaslab.allocated_bytes.into()),
                ("free_bytes", (range.end - range.start).saturating_sub(metaslab.allocated_bytes).into()),
                ("map_bytes", metaslab.length_bytes.into()),
                ("map_allocated_bytes", metaslab.recorded_allocated_bytes.into()),
                ("unflushed_txg", metaslab.unflushed_txg.0.into()),
            ]);
            if let Some(histogram) = metaslab.histogram.as_ref().filter(|_| wanted.histograms) {
                row.insert("histogram".into(), buckets(histogram, maps.ashift).into());
            }
            Value::Object(row)
        })
        .collect();
    let total = all.len() as u64;
    cut(&mut shown, "metaslabs", &mut rows, limit, total);
    Value::Object(shown)
}

/// The buckets of a histogram that are not empty: `SHIFT:COUNT`, where runs are of `2^SHIFT` bytes and more.
fn buckets(histogram: &[u64], ashift: u32) -> String {
    let used = histogram.iter().enumerate().filter(|(_, count)| **count > 0);
    used.map(|(bucket, count)| format!("{}:{count}", bucket as u32 + ashift)).collect::<Vec<_>>().join(" ")
}

async fn logs(report: &mut Report, pool: &View) {
    let found = pool.directory_object(pool_directory::LOG_SPACEMAP_ZAP).await;
    let Some(Some(dnode)) = report.take("log space maps", found) else { return };
    let Some(zap) = report.take("log space maps", Zap::open(dnode).await) else { return };
    let (mut logs, limit) = (Vec::new(), report.limit);
    let mut count = 0_u64;
    each_entry(report, &zap, |entry| {
        count += 1;
        if logs.len() < limit {
            logs.push((cenote_format::zap::int_key(entry.name()), entry.value.as_u64().unwrap_or(0)));
        }
        true
    })
    .await;
    logs.sort_unstable();
    let mut rows = Vec::new();
    for (txg, object) in logs {
        let mut row = map([("txg", txg.into()), ("object", object.into())]);
        if let Some(dnode) = report.take("log space map", pool.mos().object(ObjectId(object)).await)
            && let Some(phys) = report.take("log space map", dnode.bonus(SpaceMapPhys::parse))
        {
            row.insert("map_bytes".into(), phys.length_bytes.into());
            row.insert("allocated_bytes".into(), phys.allocated_bytes.into());
        }
        rows.push(Value::Object(row));
    }
    report.list_of(count, "logs", rows);
}

async fn entries(report: &mut Report, pool: &View, vdev: &VdevSpace, index: usize, metaslab: &MetaslabSpace) {
    let range = vdev.maps.metaslab_range(index as u64);
    report.put("vdev", vdev.maps.vdev.0);
    report.put("metaslab", index);
    report.put("start_offset_bytes", range.start);
    report.put("end_offset_bytes", range.end);
    report.put("unit_bytes", 1_u64.checked_shl(vdev.maps.ashift));
    report.put("object", metaslab.object.0);
    if metaslab.object.0 == 0 {
        return;
    }
    let Some(dnode) = report.take("space map", pool.mos().object(metaslab.object).await) else { return };
    let Some(phys) = report.take("space map", dnode.bonus(SpaceMapPhys::parse)) else {
        return;
    };
    let mut shown = Map::new();
    let mut rows = space_map_entries(report, &dnode, &phys).await;
    first(&mut shown, "entries", &mut rows, report.limit);
    report.put("map_bytes", phys.length_bytes);
    report.put("byte_order", values::order(dnode.phys().endian));
    report.append(shown);
    report.put(
        "histogram",
        phys.histogram.map_or_else(|| json!(null), |histogram| buckets(&histogram, vdev.maps.ashift).into()),
    );
}
