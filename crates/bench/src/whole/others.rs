//! Measurements of others on the same machine and files: the raw device, and the OpenZFS code in userspace.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cenote_taskq::{Buf, Class, Direct, IoChoice, OpenOptions, Runtime, RuntimeOptions, for_each_concurrent};
use rustix::fs::SeekFrom;
use serde::Serialize;
use serde_json::Value;

use crate::clock::Watch;

/// The raw device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Raw {
    /// The program that read it.
    pub(super) by: String,
    pub(super) iops: f64,
    pub(super) gb_per_s: f64,
    pub(super) cpu_us_per_read: f64,
}

/// Reads `image` past the page cache: with fio if that is installed, or with a reader of our own.
pub(super) fn raw(image: &Path, random: bool, block_bytes: u64, depth: usize, seconds: f64) -> Result<Raw> {
    match fio(image, random, block_bytes, depth, seconds) {
        Ok(raw) => Ok(raw),
        Err(error) if error.downcast_ref::<std::io::Error>().is_some() => {
            own(image, random, block_bytes, depth, seconds)
        }
        Err(error) => Err(error),
    }
}

/// The longest run of an image that is data, in whole MiB where it has any: reading the holes of a sparse file is reading no
/// device.
fn longest_data(image: &Path) -> Result<Range<u64>> {
    const STEP_BYTES: u64 = 1 << 20;
    let file = std::fs::File::open(image).with_context(|| image.display().to_string())?;
    let size_bytes = rustix::fs::seek(&file, SeekFrom::End(0))?;
    let (mut longest, mut at) = (0..0, 0);
    // A block device, or a file system that does not say, has no holes.
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap_or(size_bytes);
        let run = start.next_multiple_of(STEP_BYTES)..end / STEP_BYTES * STEP_BYTES;
        if run.end.saturating_sub(run.start) > longest.end - longest.start {
            longest = run;
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(if longest.is_empty() { 0..size_bytes } else { longest })
}

fn fio(image: &Path, random: bool, block_bytes: u64, depth: usize, seconds: f64) -> Result<Raw> {
    let place = longest_data(image)?;
    let image = format!("--filename={}", image.display());
    let arguments = [
        "--name=raw",
        &image,
        "--readonly",
        "--direct=1",
        "--ioengine=io_uring",
        "--output-format=json",
        &format!("--rw={}", if random { "randread" } else { "read" }),
        &format!("--bs={block_bytes}"),
        &format!("--offset={}", place.start),
        &format!("--size={}", place.end - place.start),
        &format!("--iodepth={depth}"),
        "--time_based",
        "--norandommap",
        &format!("--runtime={}", seconds.ceil()),
    ];
    let output = Command::new("fio").args(arguments).output()?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())?;
    let job = &parsed["jobs"][0];
    let cpu = job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0);
    let iops = job["read"]["iops"].as_f64().context("fio's report has no iops")?;
    Ok(Raw {
        by: "fio, io_uring".into(),
        iops,
        gb_per_s: job["read"]["bw_bytes"].as_f64().unwrap_or(0.0) / 1e9,
        cpu_us_per_read: cpu / 100.0 * 1e6 / iops,
    })
}

/// The same by our runtime alone: no pool, nothing verified.
fn own(image: &Path, random: bool, block_bytes: u64, depth: usize, seconds: f64) -> Result<Raw> {
    let runtime = Runtime::real(RuntimeOptions { workers: Some(1), io: IoChoice::Auto })?;
    let handle = runtime.handle();
    let device =
        runtime.block_on(handle.open(image, OpenOptions { direct: Direct::Always, ..OpenOptions::default() }))?;
    let place = longest_data(image)?;
    let blocks = (place.end - place.start) / block_bytes;
    ensure!(blocks > 0, "{}: smaller than a block", image.display());
    let reader = async move {
        let watch = Watch::start();
        let (mut reads, mut batch) = (0_u64, 0_u64);
        while watch.runs_for(seconds) {
            let places = (0..512).map(|index| {
                let count = batch * 512 + index;
                let at = if random { count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8 } else { count };
                place.start + at % blocks * block_bytes
            });
            let failed = std::sync::atomic::AtomicBool::new(false);
            for_each_concurrent(depth, places, |at| {
                let (device, failed) = (&device, &failed);
                async move {
                    let (read, _) = device.read(at, Buf::unfilled(block_bytes as usize)).await;
                    failed.fetch_or(read.is_err(), std::sync::atomic::Ordering::Relaxed);
                }
            })
            .await;
            ensure!(!failed.into_inner(), "a read of the raw device failed");
            (reads, batch) = (reads + 512, batch + 1);
        }
        Ok((reads, watch.took()))
    };
    let read = runtime.block_on(handle.spawn(Class::Issue, reader));
    let (reads, took) = read.map_err(|error| anyhow::anyhow!("{error}"))??;
    let iops = reads as f64 / took.wall_s;
    Ok(Raw {
        by: format!("no fio; a reader of our own, {}", handle.io_mode().explanation),
        iops,
        gb_per_s: iops * block_bytes as f64 / 1e9,
        cpu_us_per_read: took.cpu_s * 1e6 / reads as f64,
    })
}

/// The report of a peer program: a line of JSON for each measurement.
pub fn peer(program: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {}: {}", program.display(), arguments.join(" "), errors.trim());
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.starts_with('{'));
    Ok(lines.map(serde_json::from_str).collect::<Result<_, _>>()?)
}
