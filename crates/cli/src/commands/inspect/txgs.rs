//! `cenote inspect txgs`.

use std::time::Duration;

use anyhow::{Result, bail};
use cenote_spa::write::live::{Phase, TxgRecord};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::open;
use super::report::{Common, Report};
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::{Align, Table, nicebytes};

/// What the last txgs of a pool held that a server has, and where the time of their sync went.
///
/// `cenote serve --rw` remembers the last hundred. SYNC is all of a txg's sync, SERIAL what of it one
/// task did alone; then come its phases: datasets, the first pass over the
/// pool's own objects, space maps and logs, further passes, waiting for devices, uberblock and labels. CHANGE is yes where the pool
/// itself was changed.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Tabs between fields and no headings, for scripts.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers: bytes and nanoseconds.
    #[arg(short = 'p')]
    parsable: bool,
    /// The pool's name or guid.
    pool: String,
}

/// Phases with the names of their columns and of their values in JSON.
const PHASES: [(Phase, &str, &str); 6] = [
    (Phase::Datasets, "DATASETS", "datasets_ns"),
    (Phase::FirstPass, "PASS1", "first_pass_ns"),
    (Phase::Space, "SPACE", "space_ns"),
    (Phase::LaterPasses, "LATER", "later_passes_ns"),
    (Phase::Flush, "FLUSH", "flush_ns"),
    (Phase::Commit, "COMMIT", "commit_ns"),
];

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn time(span: Duration, is_exact: bool) -> String {
    if is_exact { nanoseconds(span).to_string() } else { format!("{:.1}ms", span.as_secs_f64() * 1000.0) }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some(pool) = context.served() else {
        let context = open::context_of(context, &args.common);
        // A server that has it is asked.
        context.check_server(&context.locate(&args.pool).await?.0)?;
        bail!(
            "no server has the pool '{0}': how its txgs went is known to 'cenote serve --rw' alone, while it runs; \
             'cenote inspect uberblocks {0}' shows those that are on disk",
            args.pool
        );
    };
    context.check_served(&args.pool)?;
    let records = pool.history();
    if args.common.json {
        let mut report = Report::new(&args.common);
        report.put("pool", pool.name());
        report.list("txgs", records.iter().map(object).collect());
        return report.finish(context);
    }
    context.out(text(&records, args.scripted, args.parsable))?;
    Ok(Outcome::Good)
}

fn object(record: &TxgRecord) -> Value {
    let mut row = json!({
        "txg": record.txg.0,
        "dirty_bytes": record.dirty_bytes,
        "is_change": record.is_change,
        "passes": record.passes,
        "sync_ns": nanoseconds(record.took),
        "serial_ns": nanoseconds(record.serial),
    });
    for (phase, _, name) in PHASES {
        row[name] = nanoseconds(record.phase(phase)).into();
    }
    row
}

fn text(records: &[TxgRecord], is_scripted: bool, is_exact: bool) -> String {
    let columns =
        ["TXG", "DIRTY", "CHANGE", "PASSES", "SYNC", "SERIAL"].into_iter().chain(PHASES.map(|(_, column, _)| column));
    let mut table = Table::new(columns.map(|column| (column, Align::Right)));
    for record in records {
        let dirty = if is_exact { record.dirty_bytes.to_string() } else { nicebytes(record.dirty_bytes) };
        let change = if record.is_change { "yes" } else { "no" };
        let mut row = vec![
            record.txg.0.to_string(),
            dirty,
            change.to_owned(),
            record.passes.to_string(),
            time(record.took, is_exact),
            time(record.serial, is_exact),
        ];
        row.extend(PHASES.map(|(phase, ..)| time(record.phase(phase), is_exact)));
        table.row(row);
    }
    table.text(is_scripted)
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::Txg;

    use super::*;

    #[test]
    fn a_txg_is_a_row_for_people_and_for_scripts() {
        let record = TxgRecord {
            txg: Txg(42),
            begun: cenote_taskq::Instant::default(),
            took: Duration::from_micros(1500),
            dirty_bytes: 1 << 20,
            is_change: true,
            passes: 3,
            serial: Duration::from_micros(700),
            phases: vec![(Phase::Flush, Duration::from_micros(400)), (Phase::Flush, Duration::from_micros(100))],
        };
        let records = [record];
        assert_eq!(text(&records, true, true), "42\t1048576\tyes\t3\t1500000\t700000\t0\t0\t0\t0\t500000\t0\n");
        let people = text(&records, false, false);
        assert!(people.starts_with("TXG") && people.contains("1.5ms") && people.contains("0.5ms"), "{people}");
        assert_eq!(object(&records[0])["flush_ns"], 500_000);
    }
}
