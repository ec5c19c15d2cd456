//! `cenote-bench IMAGE`: what the read path costs, beside the raw device and the targets.
//!
//! The image is a pool of real OpenZFS that `make-pool` (beside this crate's manifest) makes. Results go to standard
//! output or a file as JSON, every round of every figure. On a machine that others use, the best round and processor time
//! say most: noise only slows.

mod clock;
mod others;
mod pool;
mod reads;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use serde_json::{Map, Value, json};

/// Benchmarks of reading.
#[derive(Parser)]
struct Arguments {
    /// The pool's image.
    image: PathBuf,
    /// Where the results go.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Run only these: memory-random, cache-hit, sequential, ahead, random, direct, limit, codec.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds of each.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How many reads are in flight in memory-random.
    #[arg(long, default_value_t = 1)]
    tasks: u64,
    /// Worker threads in memory-random and cache-hit.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Bytes in flight in sequential.
    #[arg(long, default_value_t = 8 << 20)]
    window: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let wants = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let (image, rounds, seconds) = (arguments.image.as_path(), arguments.rounds, arguments.seconds);
    let mut results = Map::new();
    results.insert("machine".into(), others::machine());
    if wants("memory-random") {
        results.insert(
            "memory-random".into(),
            reads::memory_random(image, arguments.tasks, arguments.workers, rounds, seconds)?,
        );
    }
    if wants("cache-hit") {
        results.insert("cache-hit".into(), reads::cache_hit(image, arguments.workers, rounds, seconds)?);
    }
    if wants("sequential") {
        // In turns, so that both meet the same noise.
        let mut all = Vec::new();
        for _ in 0..rounds {
            let raw = others::fio(image, "read", "1M", 8, seconds)?;
            let ours = reads::sequential(image, false, arguments.window)?;
            all.push(json!({ "raw": raw, "ours": ours }));
        }
        let memory = reads::sequential(image, true, arguments.window)?;
        results.insert("sequential".into(), json!({ "rounds": all, "memory": memory }));
    }
    if wants("random") {
        let mut all = Vec::new();
        for round in 0..rounds {
            let raw = others::fio(image, "randread", "4k", 32, seconds)?;
            let seed = u64::from(round) * 1000;
            let one = reads::device_random(image, 32, 1, seconds, seed, false)?;
            let two = reads::device_random(image, 32, 2, seconds, seed + 500, false)?;
            all.push(json!({ "raw": raw, "ours": one, "ours_two_workers": two }));
        }
        results.insert("random".into(), Value::Array(all));
    }
    if wants("ahead") {
        let mut all = Vec::new();
        for _ in 0..rounds {
            let raw = others::fio(image, "read", "1M", 8, seconds)?;
            let mut ours = Vec::new();
            for len in [128 << 10, 1 << 20] {
                for ahead in [false, true] {
                    ours.push(reads::one_at_a_time(image, len, ahead)?);
                }
            }
            all.push(json!({ "raw": raw, "ours": ours }));
        }
        results.insert("ahead".into(), Value::Array(all));
    }
    if wants("direct") {
        let mut all = Vec::new();
        for round in 0..rounds {
            let raw = others::fio(image, "randread", "4k", 64, seconds)?;
            let seed = u64::from(round) * 1000;
            let cached = reads::device_random(image, 64, 2, seconds, seed, false)?;
            let direct = reads::device_random(image, 64, 2, seconds, seed + 500, true)?;
            all.push(json!({ "raw": raw, "cached": cached, "direct": direct }));
        }
        results.insert("direct".into(), Value::Array(all));
    }
    if wants("limit") {
        results.insert("limit".into(), reads::memory_limit(image, 512 << 20)?);
    }
    if wants("codec") {
        let cargo = ["run", "-q", "--release", "-p", "cenote-codec", "--example", "codec_bench"];
        results.insert("codec".into(), others::output_of("cargo", &cargo));
        results.insert("raidz_test".into(), others::output_of("raidz_test", &["-B"]));
    }
    let text = serde_json::to_string_pretty(&Value::Object(results))?;
    match arguments.json {
        Some(path) => std::fs::write(path, text + "\n")?,
        None => println!("{text}"),
    }
    Ok(())
}
