//! Prints the throughput of every checksum and parity kernel, with copying and reading memory beside.
//!
//! `cargo run --release -p cenote-codec --example codec_bench [-- FILTER]`. Each figure is the best of several rounds, so
//! that other work on the machine disturbs little. Units: 10^9 bytes a second of *data* (parity not counted, except in
//! the column `total`, which counts every column read or written as `raidz_test -B` does in its `total_bw`).

use std::hint::black_box;
use std::time::{Duration, Instant};

use cenote_codec::checksum::{Salt, compute, fletcher};
use cenote_codec::raidz;
use cenote_format::Endian;
use cenote_format::enums::Checksum;

const ROUND: Duration = Duration::from_millis(12);
const ROUNDS: usize = 30;

/// The best seconds for one call.
fn best(mut call: impl FnMut()) -> f64 {
    call();
    let mut count = 1_u32;
    loop {
        let start = Instant::now();
        (0..count).for_each(|_| call());
        if start.elapsed() >= ROUND / 4 || count > 1 << 24 {
            break;
        }
        count *= 2;
    }
    (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(|_| call());
            start.elapsed().as_secs_f64() / f64::from(count)
        })
        .fold(f64::INFINITY, f64::min)
}

/// Bytes that are not all alike, on a page boundary's worth of slack so that alignment is the allocator's.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

fn show_size(bytes: usize) -> String {
    if bytes >= 1 << 20 {
        format!("{}M", bytes >> 20)
    } else if bytes >= 1 << 10 {
        format!("{}K", bytes >> 10)
    } else {
        format!("{bytes}")
    }
}

fn line(what: &str, size: usize, gb_s: f64, note: &str) {
    println!("{what:<36} {:>6}  {gb_s:>8.2} GB/s  {note}", show_size(size));
}

const SIZES: [usize; 8] = [512, 1 << 10, 4 << 10, 16 << 10, 128 << 10, 1 << 20, 16 << 20, 64 << 20];

fn memory(wanted: &dyn Fn(&str) -> bool) {
    for size in SIZES {
        let source = noise(size);
        let mut target = vec![0; size];
        if wanted("memcpy") {
            let seconds = best(|| black_box(&mut target[..]).copy_from_slice(black_box(&source)));
            line("memcpy", size, size as f64 / seconds / 1e9, "");
        }
        if wanted("memory-read") && size >= 4 << 10 {
            // The exclusive-or of 8 streams into one an eighth as long: as near to pure reading as the kernels come.
            let data: Vec<&[u8]> = source.chunks(size / 8).collect();
            let seconds = best(|| raidz::generate(black_box(&data), &mut [&mut target[..size / 8]]).expect("a row"));
            line("memory-read (8 streams)", size, size as f64 / seconds / 1e9, "");
        }
    }
}

fn checksums(wanted: &dyn Fn(&str) -> bool) {
    for (order, order_name) in [(Endian::Little, "le"), (Endian::Big, "be")] {
        for kernel in fletcher::Kernel::available() {
            for copying in [false, true] {
                let name = format!("fletcher4-{}{}-{order_name}", kernel.name(), if copying { "-copying" } else { "" });
                if !wanted(&name) {
                    continue;
                }
                for size in SIZES {
                    let source = noise(size);
                    let mut target = vec![0; size];
                    let seconds = best(|| {
                        let mut state = fletcher::Fletcher4::new();
                        state.update_with(kernel, black_box(&source), copying.then_some(&mut target[..]), order);
                        black_box(state.finish());
                    });
                    line(&name, size, size as f64 / seconds / 1e9, &format!("{:.0} ns", seconds * 1e9));
                }
            }
        }
    }
    let salt = Salt::new(&[7; Salt::SIZE]);
    for kind in
        [Checksum::Fletcher2, Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3]
    {
        if !wanted(kind.name()) {
            continue;
        }
        for size in [4 << 10, 128 << 10, 1 << 20] {
            let source = noise(size);
            let seconds = best(|| {
                black_box(compute(kind, black_box(&source), Endian::Little, &salt));
            });
            line(kind.name(), size, size as f64 / seconds / 1e9, "");
        }
    }
}

fn parity(wanted: &dyn Fn(&str) -> bool) {
    const DATA_COUNT: usize = 8;
    for kernel in raidz::Kernel::available() {
        for column in [512, 4 << 10, 16 << 10, 128 << 10, 1 << 20] {
            let data_bytes = column * DATA_COUNT;
            let data: Vec<Vec<u8>> = (0..DATA_COUNT).map(|_| noise(column)).collect();
            let data: Vec<&[u8]> = data.iter().map(|bytes| &bytes[..]).collect();
            for parity_count in 1..=raidz::PARITY_MAX {
                let mut parity = vec![vec![0; column]; parity_count];
                let name = format!("raidz-gen-{}-{}", &"pqr"[..parity_count], kernel.name());
                if wanted(&name) {
                    let seconds = best(|| {
                        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|bytes| &mut bytes[..]).collect();
                        raidz::generate_with(kernel, black_box(&data), black_box(&mut parity)).expect("a row");
                    });
                    report_parity(&name, column, data_bytes, parity_count, seconds);
                }
                let name = format!("raidz-rec-{}-{}", &"pqr"[..parity_count], kernel.name());
                if wanted(&name) {
                    let mut lost = vec![vec![0; column]; parity_count];
                    let seconds = best(|| {
                        let known = parity.iter().map(|bytes| raidz::Column::Known(bytes));
                        let missing = lost.iter_mut().map(|bytes| raidz::Column::Missing(bytes));
                        let rest = data[parity_count..].iter().map(|bytes| raidz::Column::Known(bytes));
                        let mut columns: Vec<_> = known.chain(missing).chain(rest).collect();
                        raidz::reconstruct_with(kernel, parity_count, black_box(&mut columns)).expect("a row");
                    });
                    report_parity(&name, column, data_bytes, parity_count, seconds);
                }
            }
        }
    }
}

fn report_parity(name: &str, column: usize, data_bytes: usize, parity_count: usize, seconds: f64) {
    let total_mib = (data_bytes + parity_count * column) as f64 / seconds / 1_048_576.0;
    line(name, column, data_bytes as f64 / seconds / 1e9, &format!("total {total_mib:>8.0} MiB/s"));
}

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    println!(
        "best kernels: fletcher4 {}, raidz {}; raidz sizes are a column's, 8 data columns",
        fletcher::Kernel::best().name(),
        raidz::Kernel::best().name()
    );
    memory(&wanted);
    checksums(&wanted);
    parity(&wanted);
}
