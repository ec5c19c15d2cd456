//! The founding measurement of log space maps (M5) on a modelled drive: with a head, as disks had when it was made.
//!
//! Log space maps save requests: without them each txg writes a little into the space map of nearly every metaslab. On a
//! disk that takes tens of thousands of requests a second that is a small part of a sync, which is nearly all data; on one that seeks it is
//! a large one, the larger the less a txg holds. So there is a row for each of several limits of what may be dirty.
//!
//! The engine is the real one; the drive takes as long as its model says (`cenote_taskq::sim::model`), the processor takes no
//! time, and all is the same each time.

use anyhow::{Context as _, Result};
use cenote_bench::report::{Suite, Table, short};
use cenote_bench::writing::rig::{Overwrites, PoolSpec, Rig};
use cenote_bench::writing::{METASLABS, Round};
use cenote_taskq::sim::model::RotatingOptions;
use serde_json::{Value, json};

/// The size of a measurement.
struct Size {
    /// Of the pool; 70 % of it is written.
    pool_bytes: u64,
    /// By the drive's clock.
    seconds: f64,
    /// Limits of what may be dirty.
    dirty_max_bytes: &'static [u64],
}

const WHOLE: Size = Size { pool_bytes: 4 << 30, seconds: 300.0, dirty_max_bytes: &[32 << 20, 96 << 20, 256 << 20] };
/// Of a smaller pool, in which less can be dirty.
const QUICK: Size = Size { pool_bytes: 2 << 30, seconds: 60.0, dirty_max_bytes: &[48 << 20] };

/// The first pass's share of a sync without log space maps where M5 was measured.
const FOUNDING_SHARE: f64 = 0.64;

fn measured(has_log: bool, dirty_max_bytes: u64, size: &Size) -> Result<Round> {
    let spec = PoolSpec { size_bytes: size.pool_bytes, has_log, metaslabs_min: METASLABS, dirty_max_bytes };
    let rig = Rig::modelled(RotatingOptions::desktop(), spec)?;
    let data_bytes = ((size.pool_bytes / 10 * 7) >> 20) << 20;
    let work = Overwrites { record_bytes: 8192, data_bytes, shreds: 1, tasks: 4, seconds: size.seconds, seed: 1 };
    Ok(Round::ours(&rig.overwrite(work)?))
}

/// Overwrites a shredded pool at random with log space maps and without.
///
/// # Errors
/// The pool cannot be made or written.
pub(crate) fn run(quick: bool) -> Result<Suite> {
    let size = if quick { &QUICK } else { &WHOLE };
    let mut suite = Suite {
        name: "write".into(),
        title: "writing a pool with log space maps and without, on a modelled drive".into(),
        notes: vec![
            "Nothing is compressed, checksums are fletcher4. Every operation is a transaction of its own.".into(),
        ],
        ..Suite::default()
    };
    let mut table = Table::new(
        "8 KiB records overwritten at random in a pool that is 70 % full and was shredded, on a modelled drive of 7200 turns a minute: \
         with log space maps, and without (M5)",
        &[
            "MiB that may be dirty",
            "writes a second, with",
            "without",
            "times",
            "ms a sync, with",
            "without",
            "times shorter",
            "share of the first pass, with",
            "without",
        ],
    );
    let mut found = Vec::new();
    for &dirty_max_bytes in size.dirty_max_bytes {
        let with = measured(true, dirty_max_bytes, size)?;
        let without = measured(false, dirty_max_bytes, size)?;
        let share = |round: &Round| round.first_pass.unwrap_or(f64::NAN);
        table.row([
            (dirty_max_bytes >> 20).to_string(),
            short(with.per_s),
            short(without.per_s),
            short(with.per_s / without.per_s),
            short(with.sync_ms),
            short(without.sync_ms),
            short(without.sync_ms / with.sync_ms),
            short(share(&with)),
            short(share(&without)),
        ]);
        found.push((dirty_max_bytes, with, without));
    }
    suite.tables.push(table);
    let rounds = found.iter();
    let rounds: Value = rounds
        .map(|(dirty, with, without)| json!({ "dirty_max_bytes": dirty, "with": with, "without": without }))
        .collect();
    suite.raw = json!({ "modelled": rounds });
    let distance = |round: &Round| (round.first_pass.unwrap_or(f64::INFINITY) - FOUNDING_SHARE).abs();
    let (dirty, with, without) = found
        .iter()
        .min_by(|(.., one), (.., other)| distance(one).total_cmp(&distance(other)))
        .context("there are several limits")?;
    let place = format!("modelled, {} MiB dirty", dirty >> 20);
    let share = with.first_pass.unwrap_or(0.0);
    suite.target(
        format!("{place}: with log space maps at least 0.95 of a sync's passes is the first"),
        short(share),
        share >= 0.95,
    );
    let times = without.sync_ms / with.sync_ms;
    suite.target(
        format!("{place}: log space maps make a sync at least 1.66 times shorter"),
        short(times),
        times >= 1.66,
    );
    let times = with.per_s / without.per_s;
    suite.target(format!("{place}: log space maps give at least 1.4 times the writes"), short(times), times >= 1.4);
    Ok(suite)
}
