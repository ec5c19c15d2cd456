//! What others say of the same machine: fio of the raw image, and tools whose output is kept word for word.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// fio on the image, past the page cache.
pub(crate) fn fio(image: &Path, pattern: &str, block: &str, depth: u32, seconds: f64) -> Result<Value> {
    let image = format!("--filename={}", image.display());
    let arguments = [
        "--name=raw",
        &image,
        "--readonly",
        "--direct=1",
        "--ioengine=io_uring",
        "--output-format=json",
        &format!("--rw={pattern}"),
        &format!("--bs={block}"),
        &format!("--iodepth={depth}"),
        "--time_based",
        "--norandommap",
        &format!("--runtime={}", seconds.ceil()),
    ];
    let output = Command::new("fio").args(arguments).output().context("fio is needed for the raw device's figures")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())?;
    let job = &parsed["jobs"][0];
    let (iops, bytes) = (job["read"]["iops"].as_f64(), job["read"]["bw_bytes"].as_f64());
    let cpu = job["usr_cpu"].as_f64().unwrap_or(0.0) + job["sys_cpu"].as_f64().unwrap_or(0.0);
    let iops = iops.context("fio's report has no iops")?;
    Ok(json!({
        "command": format!("fio {}", arguments.join(" ")), "iops": iops, "gb_per_s": bytes.unwrap_or(0.0) / 1e9,
        "cpu_us_per_read": cpu / 100.0 * 1e6 / iops,
    }))
}

/// A command's output as it is.
pub(crate) fn output_of(program: &str, arguments: &[&str]) -> Value {
    match Command::new(program).args(arguments).output() {
        Ok(output) => json!({
            "command": format!("{program} {}", arguments.join(" ")),
            "output": String::from_utf8_lossy(&output.stdout).trim_end(),
        }),
        Err(error) => json!({ "command": program, "error": error.to_string() }),
    }
}

/// The machine the figures belong to.
pub(crate) fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).unwrap_or_default().trim().to_owned()
    };
    json!({
        "processor": field(&cpus, "model name"), "cores": cpus.matches("\nprocessor").count() + 1,
        "memory": field(&read("/proc/meminfo"), "MemTotal"), "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_at_start": read("/proc/loadavg").trim(),
    })
}
