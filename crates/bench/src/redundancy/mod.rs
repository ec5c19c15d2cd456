//! Long work on a pool beside its devices: scrub, resilver, rebuild, removal, trim, expansion, cache devices, and the clients that go on meanwhile.
//!
//! **Method.** Each part makes its pools anew. *Files* are in the folder that is measured, opened past the page cache, in turns with the raw device
//! and with OpenZFS's code in userspace. *Models* are drives in virtual time ([`cenote_taskq::sim::model`]), where the processor takes none: so
//! what is compared is the order and the number of requests, and all is the same each time. *Memory* is devices that answer at once: so what is
//! measured is the processor.

mod cache_device;
mod clients;
mod expansion;
mod foreground;
mod parity;
mod rebuild;
mod rig;
mod scrub;
mod verbs;

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Map, Value};

use crate::report::{Suite, short};

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where files are made: of the device that is measured.
    pub folder: PathBuf,
    /// A program with OpenZFS's code in userspace, which knows `scrub`, `resilver`, `rebuild` and `raidz`.
    pub peer: Option<PathBuf>,
    /// Rounds of each part on files or in memory.
    pub rounds: u32,
    /// Less, and less exact.
    pub quick: bool,
    /// The parts, of [`PARTS`]; all if none is named.
    pub only: Vec<String>,
}

type Part = fn(&Options, &mut Suite, &mut Map<String, Value>) -> Result<()>;

/// The parts, in the order in which they are measured.
pub const PARTS: [&str; 12] = [
    "scrub-files",
    "scrub-drives",
    "scrub-processor",
    "scrub-fragmented",
    "resilver-outage",
    "rebuild-drives",
    "rebuild-files",
    "reconstruct",
    "foreground",
    "device-changes",
    "cache-device",
    "expansion",
];

const MEASURED: [Part; PARTS.len()] = [
    scrub::files,
    scrub::drives,
    scrub::processor,
    scrub::fragmented,
    rebuild::outage,
    rebuild::drives,
    rebuild::files,
    parity::reconstruct,
    foreground::foreground,
    verbs::changes,
    cache_device::cache_device,
    expansion::expansion,
];

/// Measures all parts.
///
/// # Errors
/// A pool cannot be made or written, long work does not end, or the peer does not run.
pub fn run(options: &Options) -> Result<Suite> {
    let mut suite = Suite {
        name: "redundancy".into(),
        title: "long work on a pool, and the clients beside it".into(),
        notes: vec![
            "Nothing is compressed, checksums are fletcher4. Drives that are models are in virtual time, in which the processor takes none; all \
             else is by the machine's clock. Cells of several rounds: median, and all rounds."
                .into(),
        ],
        ..Suite::default()
    };
    let mut raw = Map::new();
    for (name, part) in PARTS.into_iter().zip(MEASURED) {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            part(options, &mut suite, &mut raw)?;
        }
    }
    suite.raw = Value::Object(raw);
    Ok(suite)
}

/// The middle of some figures.
fn middle(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The middle of some figures, and each of them.
fn listed(figures: &[f64]) -> String {
    match figures {
        [] => "-".into(),
        [one] => short(*one),
        all => {
            let each: Vec<String> = all.iter().map(|figure| short(*figure)).collect();
            format!("{} of {}", short(middle(all)), each.join(", "))
        }
    }
}
