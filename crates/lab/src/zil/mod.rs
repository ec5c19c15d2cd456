//! Synchronous writes of 4 KiB through the intent log (M4): as it is, beside what commits were before, the raw device, and OpenZFS's code.
//!
//! * `real`: on files of one folder, and on a device in memory.
//! * `modelled`: the founding measurement, on modelled drives in virtual time.
//! * `beside`: a writer beside other work. `after_crash`: claim and replay.
//! * `batch`: commits as they were before M4. `drive`: the models.

mod after_crash;
mod batch;
mod beside;
mod drive;
mod modelled;
mod real;

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cenote_kstat::{Body, Stat};
use serde_json::{Map, Value, json};

use cenote_bench::clock::Took;
use cenote_bench::report::Suite;

/// How to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The folder for the files: on the device that is measured.
    pub(crate) folder: PathBuf,
    /// A program with OpenZFS's code in userspace.
    pub(crate) peer: Option<PathBuf>,
    /// Rounds of each part but the modelled one, which is the same each time.
    pub(crate) rounds: u32,
    /// Seconds of a round.
    pub(crate) seconds: f64,
    /// Less of the modelled part.
    pub(crate) quick: bool,
    /// The parts, of [`PARTS`]; all if none is named.
    pub(crate) only: Vec<String>,
}

/// The parts.
pub(crate) const PARTS: [&str; 5] = ["folder", "memory", "modelled", "beside", "log-replay"];

/// Writers at once.
const WRITERS: [usize; 4] = [1, 4, 16, 64];
/// Bytes of a write.
const WRITE_BYTES: usize = 4 << 10;

/// A round.
struct Round {
    per_s: f64,
    /// Microseconds.
    median_us: f64,
    p99_us: f64,
    /// Of the peer it is not known.
    p999_us: Option<f64>,
    cpu_us: f64,
    /// Of all threads, for each write.
    switches: Option<f64>,
    log: Option<LogWork>,
}

/// The work of logs for each write.
#[derive(Clone, Copy)]
struct LogWork {
    blocks: f64,
    flushes: f64,
    /// Bytes of blocks that were written.
    bytes: f64,
    txgs: usize,
}

impl Round {
    /// Of so many writes, each of which took so many nanoseconds.
    fn of(mut latencies_ns: Vec<u64>, took: Took, switches: Option<u64>, log: Option<LogWork>) -> Result<Self> {
        ensure!(!latencies_ns.is_empty(), "nothing was written");
        latencies_ns.sort_unstable();
        let count = latencies_ns.len() as f64;
        let (per_s, cpu_us) = (count / took.wall_s, took.cpu_s * 1e6 / count);
        let [median_us, p99_us, p999_us] = [0.5, 0.99, 0.999].map(|part| quantile_us(&latencies_ns, part));
        let switches = switches.map(|switches| switches as f64 / count);
        Ok(Self { per_s, median_us, p99_us, p999_us: Some(p999_us), cpu_us, switches, log })
    }

    fn json(&self) -> Value {
        let Self { per_s, median_us, p99_us, p999_us, cpu_us, switches, log } = self;
        let log = log.map(|LogWork { blocks, flushes, bytes, txgs }| {
            json!({ "blocks": blocks, "flushes": flushes, "bytes": bytes, "txgs": txgs })
        });
        json!({
            "per_s": per_s, "median_us": median_us, "p99_us": p99_us, "p999_us": p999_us, "cpu_us": cpu_us, "switches": switches,
            "log": log,
        })
    }
}

/// In microseconds what this part of sorted times does not exceed.
fn quantile_us(sorted_ns: &[u64], part: f64) -> f64 {
    let last = sorted_ns.len().saturating_sub(1);
    sorted_ns.get((last as f64 * part) as usize).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// The round of several with the median rate: noise only slows, and not all of them.
fn middle(mut rounds: Vec<Round>) -> Result<Round> {
    rounds.sort_by(|one, next| one.per_s.total_cmp(&next.per_s));
    let at = rounds.len() / 2;
    rounds.into_iter().nth(at).context("no rounds")
}

/// Measures.
///
/// # Errors
/// A file cannot be made or written, or the peer fails.
pub(crate) fn run(options: &Options) -> Result<Suite> {
    let (mut suite, mut raw) = (Suite::default(), Map::new());
    suite.name = "zil".into();
    suite.title = "Synchronous writes (M4)".into();
    let parts = [real::folder, real::memory, modelled::modelled, beside::beside, after_crash::after_crash];
    for (name, part) in PARTS.into_iter().zip(parts) {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            part(options, &mut suite, &mut raw)?;
        }
    }
    suite.raw = Value::Object(raw);
    Ok(suite)
}

/// The work of a pool's logs so far.
#[derive(Clone, Copy, Debug)]
struct LogCounts {
    blocks: u64,
    flushes: u64,
    /// Bytes of blocks that were written.
    bytes: u64,
}

impl LogCounts {
    const fn since(self, before: Self) -> Self {
        Self {
            blocks: self.blocks - before.blocks,
            flushes: self.flushes - before.flushes,
            bytes: self.bytes - before.bytes,
        }
    }
}

fn log_counts(pool: &cenote_spa::Pool) -> Result<LogCounts> {
    let groups = pool.kstats().snapshot();
    let log = groups.iter().find(|group| group.name == "zil").context("the pool counts nothing of its logs")?;
    let Body::Named(counts) = &log.body else { bail!("the counts of logs are a table") };
    let count = |name: &str| match counts.iter().find(|(known, _)| *known == name) {
        Some((_, Stat::Count(count))) => Ok(*count),
        _ => Err(anyhow!("the pool does not count {name}")),
    };
    Ok(LogCounts {
        blocks: count("zil_itx_metaslab_normal_count")?,
        flushes: count("zil_flush_count")? + count("zil_write_stable_count")?,
        bytes: count("zil_itx_metaslab_normal_write")?,
    })
}
