//! Opening a pool for writing: replaying what its log space maps have.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::rig::{DIRTY_MAX_BYTES, Overwrites, PoolSpec, Rig};
use super::{METASLABS, Options};
use crate::report::{Suite, Table, short};

/// Overwrites a pool until its logs are long, exports it, and opens it again.
pub(super) fn replay(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let (mut wall, mut cpu, mut total, mut entries, mut logs) = (Vec::new(), Vec::new(), Vec::new(), 0, 0);
    for round in 0..options.rounds {
        let spec =
            PoolSpec { size_bytes: 4 << 30, has_log: true, metaslabs_min: METASLABS, dirty_max_bytes: DIRTY_MAX_BYTES };
        let mut rig = Rig::new(&options.folder, spec)?;
        let seconds = options.seconds * if options.quick { 4.0 } else { 20.0 };
        let work = Overwrites {
            record_bytes: 4096,
            data_bytes: 2600 << 20,
            shreds: 0,
            tasks: 4,
            seconds,
            seed: u64::from(round),
        };
        rig.overwrite(work)?;
        let opened = rig.reopened()?;
        (entries, logs) = (opened.figures.entry_bytes / 16, opened.figures.logs);
        // The time of opening without the logs is measured too, and taken off. If noise leaves less than a tenth, that is not believed.
        let beyond = |all: f64, without: f64| entries as f64 / (all - without).max(all / 10.0);
        wall.push(beyond(opened.took.wall_s, opened.without.wall_s));
        cpu.push(beyond(opened.took.cpu_s, opened.without.cpu_s));
        total.push(opened.took.wall_s);
    }
    raw.insert(
        "replay".into(),
        json!({ "entries": entries, "logs": logs, "per_s": wall, "per_cpu_s": cpu, "open_s": total }),
    );
    let title =
        format!("Opening a pool whose {logs} log space maps have {} million entries", short(entries as f64 / 1e6));
    let mut table = Table::new(title, &["what", "best round"]);
    let best = |rates: &[f64]| rates.iter().copied().fold(f64::NAN, f64::max);
    table.row(["million entries replayed a second".into(), short(best(&wall) / 1e6)]);
    table.row(["million entries replayed a second of processor".into(), short(best(&cpu) / 1e6)]);
    table.row([
        "ms until the pool can be written to".into(),
        short(total.iter().copied().fold(f64::NAN, f64::min) * 1e3),
    ]);
    suite.tables.push(table);
    Ok(())
}
