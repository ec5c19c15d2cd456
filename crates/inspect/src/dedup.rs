//! Blocks that are shared: dedup tables and block reference tables.

use cenote_dmu::Zap;
use cenote_format::brt::{BrtVdevPhys, reference_count};
use cenote_format::ddt::DdtStat;
use cenote_format::dsl::pool_directory;
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Value, json};

use crate::object::each_entry;
use crate::report::{Report, cut, map};
use crate::values;

/// Statistics of the dedup tables and the block reference tables; with `entries` those of the latter.
#[boxed]
pub async fn dedup(report: &mut Report, pool: &View, entries: bool) {
    if let Some(figures) = report.take("dedup tables", pool.dedup().await) {
        report.put("dedup_entry_count", figures.entry_count);
        report.put("dedup_table_bytes", figures.table_bytes);
        report.put("dedup_ratio", figures.ratio_hundredths() as f64 / 100.0);
        report.put("dedup_saved_bytes", figures.saved_bytes());
        let mut rows: Vec<Value> = figures
            .histogram
            .iter()
            .enumerate()
            .filter(|(_, stat)| stat.block_count > 0)
            .map(|(bucket, stat)| row(1_u64.checked_shl(bucket as u32).unwrap_or(u64::MAX).into(), stat))
            .collect();
        if !rows.is_empty() {
            rows.push(row("total".into(), &figures.total()));
        }
        report.put("dedup_histogram", rows);
    }
    if let Some(figures) = report.take("block reference tables", pool.cloning().await) {
        report.put("clone_used_bytes", figures.used_bytes);
        report.put("clone_saved_bytes", figures.saved_bytes);
        report.put("clone_ratio", figures.ratio_hundredths() as f64 / 100.0);
    }
    let mut tables = Vec::new();
    for top in &pool.vdevs().children {
        let Ok(vdev) = u32::try_from(top.id) else { continue };
        if let Some(table) = table(report, pool, vdev, entries).await {
            tables.push(table);
        }
    }
    report.put("clone_tables", tables);
}

fn row(references: Value, stat: &DdtStat) -> Value {
    json!({
        "references": references,
        "blocks": stat.block_count,
        "lsize_bytes": stat.lsize_bytes,
        "psize_bytes": stat.psize_bytes,
        "dsize_bytes": stat.dsize_bytes,
        "referenced_blocks": stat.reference_count,
        "referenced_lsize_bytes": stat.referenced_lsize_bytes,
        "referenced_psize_bytes": stat.referenced_psize_bytes,
        "referenced_dsize_bytes": stat.referenced_dsize_bytes,
    })
}

async fn table(report: &mut Report, pool: &View, vdev: u32, with_entries: bool) -> Option<Value> {
    let what = format!("block reference table of vdev {vdev}");
    let dnode = report.take(&what, pool.directory_object(&pool_directory::brt(vdev)).await)??;
    let phys = report.take(&what, dnode.bonus(BrtVdevPhys::parse))?;
    let mut shown = map([
        ("vdev", vdev.into()),
        ("object", dnode.id().0.into()),
        ("entries_object", phys.entries.0.into()),
        ("entry_count", phys.entry_count.into()),
        ("region_count", phys.region_count.into()),
        ("region_bytes", phys.region_size_bytes.into()),
        ("used_bytes", phys.used_bytes.into()),
        ("saved_bytes", phys.saved_bytes.into()),
    ]);
    if with_entries && phys.entries.0 != 0 {
        let order = report.take(&what, phys.endian())?;
        let entries = report.take(&what, pool.mos().object(phys.entries).await)?;
        let zap = report.take(&what, Zap::open(entries).await)?;
        let (mut rows, mut count, limit) = (Vec::new(), 0_u64, report.limit);
        let mut bad = 0_u64;
        each_entry(report, &zap, |entry| {
            count += 1;
            match reference_count(&entry.value, order) {
                Ok(references) if rows.len() < limit => {
                    rows.push(json!({ "offset": values::zap_key(&entry.key), "further_references": references }));
                }
                Ok(_) => {}
                Err(_) => bad += 1,
            }
            true
        })
        .await;
        if bad > 0 {
            report.problem(format_args!("{what}: {bad} entries that are no count"));
        }
        cut(&mut shown, "entries", &mut rows, limit, count);
    }
    Some(Value::Object(shown))
}
