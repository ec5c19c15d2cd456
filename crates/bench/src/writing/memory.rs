//! Memory of free space at its worst: what trees say that they take, and by how much the process grew.

use std::ops::Range;

use anyhow::{Result, anyhow};
use cenote_metaslab::RangeTree;
use serde_json::{Map, Value, json};

use super::Options;
use crate::report::{Suite, Table, short};

const METASLAB_BYTES: u64 = 16 << 30;
/// The target: MiB for each TB.
const BOUND_MIB: f64 = 32.0;

/// A pattern of free space: units as a power of two, units free and units taken, over and over.
const PATTERNS: [(u32, u64, u64, &str); 7] = [
    (12, 1, 0, "4 KiB units, all free"),
    (12, 64, 64, "4 KiB units, 256 KiB free, 256 KiB taken"),
    (12, 16, 16, "4 KiB units, 64 KiB free, 64 KiB taken"),
    (12, 2, 1, "4 KiB units, two free, one taken"),
    (12, 1, 1, "4 KiB units, every second one free (worst)"),
    (9, 16, 16, "512 B units, 8 KiB free, 8 KiB taken"),
    (9, 1, 1, "512 B units, every second one free"),
];

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn runs(ashift: u32, free: u64, taken: u64) -> impl Iterator<Item = Range<u64>> {
    let units = METASLAB_BYTES >> ashift;
    let (free, step) = if taken == 0 { (units, units) } else { (free, free + taken) };
    (0..units / step).map(move |number| ((number * step) << ashift)..((number * step + free) << ashift))
}

/// Fills trees with each pattern.
pub(super) fn memory(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let metaslabs = if options.quick { 4 } else { 16 };
    let scale = 1e12 / (metaslabs * METASLAB_BYTES) as f64 / f64::from(1 << 20);
    let title = format!("Memory of free space, MiB for each TB of 10^12 bytes, by {metaslabs} metaslabs of 16 GiB");
    let mut table = Table::new(title, &["pattern", "the trees say", "the process grew", "free ranges a TB, millions"]);
    let mut worst = 0.0_f64;
    let mut found = Vec::new();
    // Each pattern uses the memory that the one before left behind in the process: in this order each grows it further.
    let before = resident_bytes();
    for (ashift, free, taken, name) in PATTERNS {
        let mut all = Vec::new();
        for _ in 0..metaslabs {
            let mut tree = RangeTree::new(0, METASLAB_BYTES, ashift);
            runs(ashift, free, taken).try_for_each(|range| tree.add(range)).map_err(|error| anyhow!("{error}"))?;
            all.push(tree);
        }
        let trees = all.iter().map(RangeTree::memory_bytes).sum::<usize>() as f64 * scale;
        let ranges = all.iter().map(RangeTree::segments).sum::<u64>() as f64 * scale * f64::from(1 << 20) / 1e6;
        let grown = resident_bytes().saturating_sub(before) as f64 * scale;
        if ashift == 12 {
            worst = worst.max(trees).max(grown);
        }
        table.row([name.into(), short(trees), short(grown), short(ranges)]);
        found.push(json!({ "pattern": name, "trees_mib": trees, "process_mib": grown, "ranges_millions": ranges }));
    }
    raw.insert("memory".into(), Value::Array(found));
    suite.tables.push(table);
    let wanted = "space accounting takes at most 32 MiB a TB, at any fragmentation in units of 4 KiB";
    suite.target(wanted, short(worst), worst <= BOUND_MIB);
    Ok(())
}
