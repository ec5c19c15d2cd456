//! Reconstruction by parity, beside the kernels of OpenZFS.

use std::hint::black_box;

use anyhow::{Result, anyhow};
use cenote_codec::raidz::{Column, reconstruct as rebuild};
use serde_json::{Map, Value, json};

use super::Options;
use crate::clock::Watch;
use crate::report::{Suite, Table, short};
use crate::whole::peer;

/// Data columns of a row, as `raidz_test -B` has them.
const DATA: usize = 8;
/// Bytes of a column.
const SIZES: [(usize, &str); 2] = [(16 << 10, "16 KiB"), (128 << 10, "128 KiB")];
/// For each name of `raidz_test`: parity columns of the row, and those of them that are known.
const METHODS: [(&str, usize, &[usize]); 7] = [
    ("rec_p", 1, &[0]),
    ("rec_q", 2, &[1]),
    ("rec_r", 3, &[2]),
    ("rec_pq", 2, &[0, 1]),
    ("rec_pr", 3, &[0, 2]),
    ("rec_qr", 3, &[1, 2]),
    ("rec_pqr", 3, &[0, 1, 2]),
];

/// Reconstructs as many data columns as parity columns are known; 10^9 bytes of the row's data a second of processor, the best of some rounds.
fn measured(len: usize, parity: usize, known: &[usize], quick: bool) -> Result<f64> {
    let columns: Vec<Vec<u8>> = (0..parity + DATA).map(|at| vec![at as u8 + 1; len]).collect();
    let mut lost: Vec<Vec<u8>> = known.iter().map(|_| vec![0; len]).collect();
    let (rounds, least) = if quick { (6, 0.01) } else { (20, 0.05) };
    let mut best = 0.0_f64;
    for _ in 0..rounds {
        let (watch, mut count) = (Watch::start(), 0_u32);
        while watch.runs_for(least) {
            for _ in 0..8 {
                let mut spaces = lost.iter_mut();
                let mut row: Vec<Column<'_>> = Vec::with_capacity(parity + DATA);
                for (at, column) in columns.iter().enumerate() {
                    row.push(match at {
                        at if at < parity && !known.contains(&at) => Column::Unread,
                        at if (parity..parity + known.len()).contains(&at) => {
                            Column::Missing(spaces.next().map_or(&mut [][..], |space| space.as_mut_slice()))
                        }
                        _ => Column::Known(column),
                    });
                }
                rebuild(parity, black_box(&mut row)).map_err(|error| anyhow!("{error}"))?;
                count += 1;
            }
        }
        best = best.max(f64::from(count) * (len * DATA) as f64 / watch.took().cpu_s / 1e9);
    }
    Ok(best)
}

/// The best kernel of the peer for a method and size, and its name.
fn of_peer(lines: &[Value], method: &str, size_bytes: usize) -> Option<(f64, String)> {
    let of = lines.iter().filter(|line| line["method"] == method && line["column_bytes"] == size_bytes as u64);
    let rates = of.filter_map(|line| Some((line["gb_per_cpu_s"].as_f64()?, line["kernel"].as_str()?.to_owned())));
    rates.max_by(|one, other| one.0.total_cmp(&other.0))
}

/// All methods.
pub(super) fn reconstruct(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let mut lines = Vec::new();
    if let Some(program) = &options.peer {
        // A first run of each warms the machine up; the best of both counts.
        for _ in 0..2 {
            lines.extend(peer(program, &["raidz", "-s", if options.quick { "0.05" } else { "0.2" }])?);
        }
    }
    let mut table = Table::new(
        "Lost data columns of a row with 8, 10^9 bytes of the row's data a second of processor",
        &[
            "method",
            "16 KiB a column",
            "OpenZFS's best kernel",
            "times",
            "128 KiB a column",
            "OpenZFS's best kernel",
            "times",
        ],
    );
    let mut kept = Vec::new();
    for (method, parity, known) in METHODS {
        let mut cells = vec![method.to_owned()];
        for (size_bytes, size) in SIZES {
            let ours = measured(size_bytes, parity, known, options.quick)?;
            cells.push(short(ours));
            match of_peer(&lines, method, size_bytes) {
                Some((rate, kernel)) => {
                    cells.extend([format!("{} {kernel}", short(rate)), short(ours / rate)]);
                    let wanted = format!("{method}, {size} a column: not slower than OpenZFS's best kernel");
                    suite.target(wanted, short(ours / rate), ours >= rate);
                    kept.push(json!({ "method": method, "column_bytes": size_bytes, "ours": ours, "peer": rate, "kernel": kernel }));
                }
                None => {
                    cells.extend(["-".into(), "-".into()]);
                    kept.push(json!({ "method": method, "column_bytes": size_bytes, "ours": ours }));
                }
            }
        }
        table.row(cells);
    }
    suite.tables.push(table);
    raw.insert("reconstruct".into(), kept.into());
    Ok(())
}
