//! Measures the memory of free space at its worst: `cargo run -p cenote-metaslab --example memory [SHARE]`.
//!
//! Makes SHARE of a TB (10^12 bytes; default one eighth) in metaslabs of 16 GiB, in patterns of fragmentation, and prints for
//! each what the trees say that they take, and by how much the process grew, both for a whole TB.

use std::ops::Range;

use cenote_metaslab::RangeTree;

const METASLAB_BYTES: u64 = 16 << 30;

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Free runs of a metaslab: so many units free, so many taken, over and over. 0 taken: all is free.
fn runs(ashift: u32, free: u64, taken: u64) -> impl Iterator<Item = Range<u64>> {
    let units = METASLAB_BYTES >> ashift;
    let (free, step) = if taken == 0 { (units, units) } else { (free, free + taken) };
    (0..units / step).map(move |number| ((number * step) << ashift)..((number * step + free) << ashift))
}

fn main() {
    let share: f64 =
        std::env::args().nth(1).map_or(0.125, |share| share.parse().expect("a part of a TB, such as 0.125"));
    let metaslabs = ((share * 1e12) / METASLAB_BYTES as f64).ceil().max(1.0) as u64;
    let scale = 1e12 / (metaslabs * METASLAB_BYTES) as f64 / f64::from(1 << 20);
    println!("{metaslabs} metaslabs of 16 GiB; MiB for each TB of 10^12 bytes");
    println!("{:<44} {:>9} {:>9} {:>10}", "pattern", "trees", "process", "segments");
    for (ashift, free, taken, name) in [
        (12, 1, 0, "4 KiB units, all free"),
        (12, 64, 64, "4 KiB units, 256 KiB free, 256 KiB taken"),
        (12, 16, 16, "4 KiB units, 64 KiB free, 64 KiB taken"),
        (12, 2, 1, "4 KiB units, two free, one taken"),
        (12, 1, 1, "4 KiB units, every second one free (worst)"),
        (9, 16, 16, "512 B units, 8 KiB free, 8 KiB taken"),
        (9, 1, 1, "512 B units, every second one free"),
    ] {
        let before = resident_bytes();
        let mut all = Vec::new();
        for _ in 0..metaslabs {
            let mut tree = RangeTree::new(0, METASLAB_BYTES, ashift);
            runs(ashift, free, taken).for_each(|range| tree.add(range).expect("the runs lie apart"));
            all.push(tree);
        }
        let trees: usize = all.iter().map(RangeTree::memory_bytes).sum();
        let segments: u64 = all.iter().map(RangeTree::segments).sum();
        let grown = resident_bytes().saturating_sub(before);
        println!("{name:<44} {:>9.2} {:>9.2} {segments:>10}", trees as f64 * scale, grown as f64 * scale);
    }
}
