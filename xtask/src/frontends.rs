//! A sample of each golden pool through the front ends: mounted with FUSE and walked, exported over NBD and copied.
//!
//! The golden step compares all of a pool through the library (`cenote manifest`); the front ends stand above the same library, so a
//! sample shows that they pass on what it gives. The crates' own tests go through every dataset of some themes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::compare::Report;
use cenote_testkit::{walk, zdb};
use serde_json::Value;

use crate::process;
use crate::steps::Tally;

/// Datasets mounted and volumes copied per pool: the first and the last, which is often a snapshot or nested.
const SAMPLE_MAX: usize = 2;

/// How long a front end may take until it serves.
const START_MAX: Duration = Duration::from_secs(60);

/// A pool that the front ends are to show.
pub(crate) struct Subject<'a> {
    /// The program.
    pub(crate) cenote: &'a Path,
    /// The folder of its images.
    pub(crate) images: &'a Path,
    /// Datasets and the files with their keys.
    pub(crate) keys: &'a [(String, PathBuf)],
    /// Its name.
    pub(crate) pool: &'a str,
    /// The contents as OpenZFS saw them: the section `contents` of the manifest.
    pub(crate) expected: &'a Value,
}

/// Which front ends can be tried on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Available {
    mounts: bool,
    volumes: bool,
}

impl Available {
    /// Looks, and says which cannot be tried and why. Each counts as one failure where nothing may be left out.
    pub(crate) fn find() -> (Self, Vec<String>) {
        let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        let available = Self { mounts: fuse.is_ok(), volumes: zdb::program("nbdcopy").is_some() };
        let mut left_out = Vec::new();
        if let Err(error) = fuse {
            left_out.push(format!("mounts: /dev/fuse: {error}"));
        }
        if !available.volumes {
            left_out.push("volumes over NBD: nbdcopy is not installed (Debian package libnbd-bin)".to_owned());
        }
        left_out.iter().for_each(|reason| println!("left out: {reason}"));
        (available, left_out)
    }
}

/// Tries the front ends on a pool and says how it went.
pub(crate) fn run(name: &str, subject: &Subject<'_>, available: Available) -> Tally {
    let mut tally = Tally::default();
    if available.mounts {
        let has_entries = |dataset: &Value| dataset["entries"].as_array().is_some_and(|list| !list.is_empty());
        for dataset in sample(subject.expected, has_entries) {
            report(&format!("{name}: {dataset} mounted"), mounted(subject, &dataset), &mut tally);
        }
    }
    let volumes = sample(subject.expected, |dataset| dataset["sha256"].is_string());
    if available.volumes && !volumes.is_empty() {
        report(&format!("{name}: {} over NBD", volumes.join(", ")), exported(subject, &volumes), &mut tally);
    }
    tally
}

fn report(name: &str, outcome: Result<String>, tally: &mut Tally) {
    tally.count(outcome.is_ok());
    match outcome {
        Ok(what) => println!("ok      {name}: {what}"),
        Err(error) => println!("FAILED  {name}: {error:#}"),
    }
}

/// The first and the last dataset that are fit.
fn sample(expected: &Value, is_fit: impl Fn(&Value) -> bool) -> Vec<String> {
    let fit = expected["datasets"].as_object().into_iter().flatten().filter(|(_, dataset)| is_fit(dataset));
    let names: Vec<String> = fit.map(|(name, _)| name.clone()).collect();
    let mut picked: Vec<String> = (0..SAMPLE_MAX.min(names.len()))
        .map(|index| names[index * (names.len() - 1) / (SAMPLE_MAX - 1)].clone())
        .collect();
    picked.dedup();
    picked
}

/// Mounts a dataset, walks it, and compares with what OpenZFS saw.
fn mounted(subject: &Subject<'_>, dataset: &str) -> Result<String> {
    let at = tempfile::tempdir()?;
    let options = [OsStr::new("-o"), OsStr::new("layout=alone"), OsStr::new(dataset), at.path().as_os_str()];
    let serving = Serving::start(subject, "mount", &options, "is mounted at")?;
    let found = walk::entries(at.path());
    serving.end()?;
    let report: Report = walk::compare_mount(dataset, &subject.expected["datasets"][dataset]["entries"], &found?);
    ensure!(report.is_match(), "{report}; the first: {}", report.differences.first().map_or("none", |line| line));
    Ok(report.to_string())
}

/// Serves the pool's volumes and compares copies with what OpenZFS saw.
fn exported(subject: &Subject<'_>, volumes: &[String]) -> Result<String> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("nbd.sock");
    let options = [OsStr::new("--unix"), socket.as_os_str(), OsStr::new(subject.pool)];
    let serving = Serving::start(subject, "serve", &options, "serving ")?;
    for volume in volumes {
        let copy = dir.path().join("copy.img");
        let uri = format!("nbd+unix:///{volume}?socket={}", socket.display());
        let output = process::output(Command::new("nbdcopy").arg(&uri).arg(&copy))?;
        ensure!(output.good, "nbdcopy {volume}: {}: {}", output.status, output.stderr.trim());
        let found = walk::sha256(&copy)?;
        let expected = subject.expected["datasets"][volume]["sha256"].as_str().unwrap_or_default();
        ensure!(found == expected, "{volume} is {found}, OpenZFS saw {expected}");
        std::fs::remove_file(&copy)?;
    }
    serving.end()?;
    Ok(format!("{} equal", volumes.len()))
}

/// A front end at work; killed if it is dropped before it was ended.
struct Serving(Child);

impl Serving {
    /// Starts one and waits until it says, on stderr, that it serves.
    fn start(subject: &Subject<'_>, verb: &str, options: &[&OsStr], ready: &str) -> Result<Self> {
        let mut command = Command::new(subject.cenote);
        command.arg(verb).arg("-f").arg("-d").arg(subject.images);
        for (dataset, file) in subject.keys {
            command.arg("--key").arg(format!("{dataset}={}", file.display()));
        }
        let child = command.args(options).stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut serving = Self(child);
        let stderr = serving.0.stderr.take().context("stderr is piped")?;
        let (sender, lines) = std::sync::mpsc::channel();
        // Reads to the end, so that the program never waits for a reader.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let begin = Instant::now();
        let mut said = Vec::new();
        loop {
            match lines.recv_timeout(START_MAX.saturating_sub(begin.elapsed())) {
                Ok(line) if line.contains(ready) => return Ok(serving),
                Ok(line) => said.push(line),
                Err(_) => bail!("cenote {verb} does not serve: {}", said.join("; ")),
            }
        }
    }

    /// Ends it as a person or an init system would.
    fn end(mut self) -> Result<()> {
        process::run(Command::new("kill").arg("-TERM").arg(self.0.id().to_string()))?;
        let status = self.0.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sample_has_both_ends_and_nothing_unfit() {
        let expected =
            json!({"datasets": {"a": {"fit": false}, "b": {"fit": true}, "c": {"fit": true}, "d": {"fit": true}}});
        let is_fit = |dataset: &Value| dataset["fit"] == true;
        assert_eq!(sample(&expected, is_fit), ["b", "d"]);
        assert_eq!(sample(&json!({"datasets": {"b": {"fit": true}}}), is_fit), ["b"]);
        assert!(sample(&json!({}), is_fit).is_empty());
    }
}
