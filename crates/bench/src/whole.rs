//! `cenote bench pool`: the whole read path on a pool of real OpenZFS, beside the raw device, in one run.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use crate::report::{Suite, Table, short};
use crate::{others, reads};

fn figures(rounds: &Value, name: &str) -> Vec<f64> {
    let mut all: Vec<f64> = rounds.as_array().into_iter().flatten().filter_map(|round| round[name].as_f64()).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn middle(all: &[f64]) -> f64 {
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the suite on the image of a pool that `crates/bench/make-pool` made.
///
/// # Errors
/// When there is no such pool on the image.
pub fn run(image: &Path, quick: bool) -> Result<Suite> {
    let (rounds, seconds) = if quick { (2, 0.5) } else { (5, 1.0) };
    let mut suite = Suite {
        name: "pool".into(),
        title: "reading a pool, all layers".into(),
        notes: vec![
            "The pool of crates/bench/make-pool, made by OpenZFS: a file of records of 4 KiB and one of 1 MiB. From memory: the image \
             is a device of memory, so that only the path is measured; one worker. Raw: fio with io_uring past the page cache on \
             the same image, in turns with ours. All rounds are listed, sorted."
                .into(),
            "The OpenZFS code in userspace was not run in this program. Its figures on a machine of this kind: 47 to 53 µs of \
             processor for a cold read of 4 KiB, 9 to 11 µs for a hit (docs/benchmarks.md)."
                .into(),
        ],
        ..Suite::default()
    };
    let mut table = Table::new("Reads", &["what", "unit", "ours", "raw"]);
    let listed = |all: &[f64]| all.iter().map(|value| short(*value)).collect::<Vec<_>>().join(", ");
    let memory = reads::memory_random(image, 1, rounds, seconds)?;
    let verified = figures(&memory["rounds"], "verified_per_core_second");
    table.row(["4 KiB verified, from memory".into(), "reads a core-second".into(), listed(&verified), "-".into()]);
    suite.target(
        "verified reads of 4 KiB from memory: at least 500 000 a core-second",
        format!("median {}", short(middle(&verified))),
        middle(&verified) >= 500_000.0,
    );
    let hits = reads::cache_hit(image, rounds, seconds)?;
    let hits: Vec<f64> = figures(&hits["rounds"], "cpu_ns_per_read");
    table.row(["4 KiB resident".into(), "ns of processor".into(), listed(&hits), "-".into()]);
    suite.target(
        "resident reads: at least 1 000 000 a core-second",
        format!("median {}", short(1e9 / middle(&hits))),
        middle(&hits) <= 1000.0,
    );
    let (mut raw_random, mut own_random, mut raw_whole, mut own_whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut no_fio = None;
    for round in 0..rounds {
        let seed = u64::from(round) * 1000;
        match (others::fio(image, "randread", "4k", 32, seconds), others::fio(image, "read", "1M", 8, seconds)) {
            (Ok(random), Ok(whole)) => {
                raw_random.extend(random["iops"].as_f64());
                raw_whole.extend(whole["gb_per_s"].as_f64());
            }
            (Err(error), _) | (_, Err(error)) => no_fio = Some(error),
        }
        own_random.extend(reads::device_random(image, 32, 2, seconds, seed)?["verified_per_s"].as_f64());
        own_whole.extend(reads::sequential(image, false, 8 << 20)?["gb_per_s"].as_f64());
    }
    for all in [&mut raw_random, &mut own_random, &mut raw_whole, &mut own_whole] {
        all.sort_by(f64::total_cmp);
    }
    table.row(["4 KiB cold, 32 at once".into(), "reads/s".into(), listed(&own_random), listed(&raw_random)]);
    table.row(["1 MiB records in sequence, cold".into(), "GB/s".into(), listed(&own_whole), listed(&raw_whole)]);
    if let Some(error) = no_fio {
        suite.notes.push(format!("The raw device was not measured: {error:#}."));
    } else {
        let ratio = middle(&own_random) / middle(&raw_random);
        suite.target("cold reads at depth 32 at least 0.9 of raw", short(ratio), ratio >= 0.9);
    }
    suite.tables.push(table);
    Ok(suite)
}
