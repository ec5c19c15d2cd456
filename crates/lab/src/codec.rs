//! `cenote-lab codec`: checksums and parity beside the speed of memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_codec::checksum::{Salt, compute};
use cenote_codec::raidz;
use cenote_format::Endian;
use cenote_format::enums::Checksum;

use cenote_bench::report::{Plot, Suite, Table, short};

/// 10^9 bytes a second, the best of some rounds: noise only slows.
fn best(bytes: usize, quick: bool, mut call: impl FnMut()) -> f64 {
    let (rounds, round) = if quick { (8, Duration::from_millis(4)) } else { (30, Duration::from_millis(12)) };
    let mut least = f64::INFINITY;
    call();
    for _ in 0..rounds {
        let start = Instant::now();
        let mut count = 0_u32;
        while start.elapsed() < round {
            call();
            count += 1;
        }
        least = least.min(start.elapsed().as_secs_f64() / f64::from(count.max(1)));
    }
    bytes as f64 / least / 1e9
}

/// Runs the suite.
///
/// # Errors
/// None at present.
pub(crate) fn run(quick: bool) -> Result<Suite> {
    let mut suite = Suite {
        name: "codec".into(),
        title: "checksums and parity".into(),
        notes: vec![
            "One thread; data of 128 KiB, and of 64 MiB for what does not fit a cache. Best of the rounds.".into(),
        ],
        ..Suite::default()
    };
    let noise = |len: usize| -> Vec<u8> {
        (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
    };
    let (small, large) = (noise(128 << 10), noise(64 << 20));
    let salt = Salt::new(&[7; Salt::SIZE]);
    let mut table = Table::new("10^9 bytes a second", &["what", "128 KiB", "64 MiB"]);
    let mut plot = Plot {
        title: "Checksums".into(),
        unit: "GB/s".into(),
        groups: Vec::new(),
        series: vec![("128 KiB".into(), Vec::new()), ("64 MiB".into(), Vec::new())],
    };
    let mut row = |name: &str, figures: [f64; 2]| {
        table.row([name.to_owned(), short(figures[0]), short(figures[1])]);
        plot.groups.push(name.into());
        plot.series.iter_mut().zip(figures).for_each(|((_, values), figure)| values.push(Some(figure)));
    };
    let mut target = vec![0; large.len()];
    let mut copy =
        |source: &[u8]| best(source.len(), quick, || target[..source.len()].copy_from_slice(black_box(source)));
    row("copying memory", [copy(&small), copy(&large)]);
    let sum = |source: &[u8]| {
        best(source.len(), quick, || {
            black_box(black_box(source).chunks_exact(8).fold(0_u64, |sum, word| {
                sum.wrapping_add(u64::from_le_bytes([
                    word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
                ]))
            }));
        })
    };
    let reading = [sum(&small), sum(&large)];
    row("reading memory", reading);
    let mut fletcher = [0.0; 2];
    for (name, kind) in [
        ("fletcher2", Checksum::Fletcher2),
        ("fletcher4", Checksum::Fletcher4),
        ("sha256", Checksum::Sha256),
        ("sha512", Checksum::Sha512),
        ("blake3", Checksum::Blake3),
        ("skein", Checksum::Skein),
        ("edonr", Checksum::Edonr),
    ] {
        let figures = [&small, &large].map(|data| {
            best(data.len(), quick, || {
                let _ = black_box(compute(kind, black_box(data), Endian::Little, &salt));
            })
        });
        if kind == Checksum::Fletcher4 {
            fletcher = figures;
        }
        row(name, figures);
    }
    suite.target(
        "fletcher4 at least 0.8 of reading memory, where the data is in memory",
        format!("{} of {} GB/s", short(fletcher[1]), short(reading[1])),
        fletcher[1] >= 0.8 * reading[1],
    );
    let mut parities =
        Table::new("Parity of 8 data columns, 10^9 bytes of data a second", &["parity", "16 KiB a column", "1 MiB"]);
    for count in 1..=3 {
        let figures = [16 << 10, 1 << 20].map(|size: usize| {
            let data: Vec<&[u8]> = large.chunks(size).take(8).collect();
            let mut parity = vec![vec![0; size]; count];
            best(size * 8, quick, || {
                let mut spaces: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                let _ = black_box(raidz::generate(black_box(&data), &mut spaces));
            })
        });
        parities.row([format!("raidz{count}"), short(figures[0]), short(figures[1])]);
    }
    suite.tables.extend([table, parities]);
    suite.plots.push(plot);
    Ok(suite)
}
