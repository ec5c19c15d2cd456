//! Streams and snapshots: what sending and receiving cost beside the device, and what verbs of snapshots cost as there are more of them.
//!
//! * `streams`: on a device in memory, and cold in a file beside the raw device.
//! * `snapshots`: snapshots by the hundred thousand, clones, and what else waits meanwhile.
//! * `rig`: a pool, and records in it.

mod rig;
mod snapshots;
mod streams;

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Map, Value};

use cenote_bench::report::{Suite, short};

/// How to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The folder for the files: on the device that is measured.
    pub(crate) folder: PathBuf,
    /// A program with OpenZFS's code in userspace.
    pub(crate) peer: Option<PathBuf>,
    /// The program that lists snapshots.
    pub(crate) program: PathBuf,
    /// Rounds of each part.
    pub(crate) rounds: u32,
    /// Less, and less exact.
    pub(crate) quick: bool,
    /// The parts, of [`PARTS`]; all if none is named.
    pub(crate) only: Vec<String>,
}

/// The parts.
pub(crate) const PARTS: [&str; 6] =
    ["send-warm", "receive-warm", "streams-cold", "snapshots", "snapshots-of-one", "clones"];

/// Measures.
///
/// # Errors
/// A pool cannot be made, read or written.
pub(crate) fn run(options: &Options) -> Result<Suite> {
    let mut suite = Suite {
        name: "send".into(),
        title: "sending, receiving, and snapshots".into(),
        notes: vec![
            "Nothing is compressed; checksums are fletcher4. A stream goes to nowhere as it is sent, and comes from memory as it is received; \
             a receive ends when its snapshot is on the device. Processor time is that of the whole process. Cells: the best, and all \
             rounds where there are several."
                .into(),
        ],
        ..Suite::default()
    };
    let mut raw = Map::new();
    for part in PARTS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == part) {
            continue;
        }
        match part {
            "send-warm" => streams::send_warm(options, &mut suite, &mut raw)?,
            "receive-warm" => streams::receive_warm(options, &mut suite, &mut raw)?,
            "streams-cold" => streams::cold(options, &mut suite, &mut raw)?,
            "snapshots" => snapshots::many(options, &mut suite, &mut raw)?,
            "snapshots-of-one" => snapshots::one(options, &mut suite, &mut raw)?,
            _ => snapshots::clones(options, &mut suite, &mut raw)?,
        }
    }
    suite.raw = Value::Object(raw);
    Ok(suite)
}

/// The best of some rates, with the median and all of them.
fn rates(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => "-".into(),
        [one] => short(*one),
        [.., best] => {
            let each: Vec<String> = values.iter().map(|value| short(*value)).collect();
            format!("{}, median {} of {}", short(*best), short(sorted[sorted.len() / 2]), each.join(", "))
        }
    }
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}
