//! The cost of writing through all layers, beside the raw device and the OpenZFS code in userspace, on files of one folder.
//!
//! Each part but `modelled` makes a pool in a file, writes through a live pool with a transaction for each operation, and ends with a sync, which
//! is part of the time. Files are written in full before, so that none of the three pays for their growth.

mod import;
mod memory;
mod objects;
pub mod rig;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cenote_spa::Phase;
use serde::Serialize;
use serde_json::{Value, json};

use self::rig::{Overwrites, PoolSpec, RawOrder, Rig, Wrote};
use crate::report::{Suite, Table, short};
use crate::whole::peer;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where files are made: of the device that is measured.
    pub folder: PathBuf,
    /// A program with OpenZFS's code in userspace.
    pub peer: Option<PathBuf>,
    /// Rounds of each part.
    pub rounds: u32,
    /// Seconds of a round of overwriting.
    pub seconds: f64,
    /// Less, and less exact.
    pub quick: bool,
    /// The parts, of [`PARTS`]; all if none is named.
    pub only: Vec<String>,
}

/// The parts.
pub const PARTS: [&str; 7] = ["in-sequence", "overwrite", "fragmented", "replay", "tree", "memory", "objects"];

/// One round, whoever wrote.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Operations a second.
    pub per_s: f64,
    cpu_us: f64,
    /// Milliseconds of a sync.
    pub sync_ms: f64,
    /// The share of its passes that the first one has, with what of it is entered into space maps; flushing devices and writing
    /// labels, which no pass does, are left out.
    pub first_pass: Option<f64>,
    passes: f64,
    /// The part of all processor time in which a sync runs on one core only.
    serial: Option<f64>,
    /// Of a sync, milliseconds until the data is on devices, and for devices' flushes and labels.
    data_ms: Option<f64>,
    end_ms: Option<f64>,
    /// And for the MOS in the first pass, for entering what that took and freed, and for the later passes.
    mos_ms: Option<f64>,
    space_ms: Option<f64>,
    later_ms: Option<f64>,
    /// Of OpenZFS's code: how it was built, as its program says.
    #[serde(skip_serializing_if = "Option::is_none")]
    build: Option<String>,
}

/// The note below ratios to OpenZFS's code: a build with assertions flatters us.
fn note_of_builds(raw: &serde_json::Map<String, Value>) -> Option<String> {
    let mut builds = std::collections::BTreeSet::new();
    for rounds in raw.values().filter_map(|part| part["peer"].as_array()) {
        builds.extend(rounds.iter().map(|round| round["build"].as_str().unwrap_or("not stated")));
    }
    let said = |build: &&str| match *build {
        "debug" => "with assertions, as Debian builds it: ratios to it flatter ours",
        "release" => "a release build (tools/openzfs-release)",
        _ => "not stated by its program, so ratios to it say little",
    };
    let builds: Vec<&str> = builds.iter().map(said).collect();
    (!builds.is_empty()).then(|| format!("The build of OpenZFS's code in userspace: {}.", builds.join("; ")))
}

impl Round {
    /// Of a pool of ours.
    #[must_use]
    pub fn ours(wrote: &Wrote) -> Self {
        let syncs = wrote.txgs.iter().filter(|txg| txg.dirty_bytes > 0);
        let count = syncs.clone().count().max(1) as f64;
        let took: f64 = syncs.clone().map(|txg| txg.took.as_secs_f64()).sum();
        let phase = |phase| syncs.clone().map(|txg| txg.phase(phase).as_secs_f64()).sum::<f64>();
        let end = phase(Phase::Flush) + phase(Phase::Commit);
        let passes: f64 = syncs.clone().map(|txg| f64::from(txg.passes)).sum();
        let serial: f64 = wrote.txgs.iter().map(|txg| txg.serial.as_secs_f64()).sum();
        Self {
            per_s: wrote.operations as f64 / wrote.seconds,
            cpu_us: wrote.cpu_s * 1e6 / wrote.operations as f64,
            sync_ms: took * 1e3 / count,
            first_pass: Some(1.0 - phase(Phase::LaterPasses) / (took - end).max(1e-9)),
            passes: passes / count,
            serial: Some(serial / wrote.cpu_s.max(1e-9)),
            data_ms: Some(phase(Phase::Datasets) * 1e3 / count),
            end_ms: Some(end * 1e3 / count),
            mos_ms: Some(phase(Phase::FirstPass) * 1e3 / count),
            space_ms: Some(phase(Phase::Space) * 1e3 / count),
            later_ms: Some(phase(Phase::LaterPasses) * 1e3 / count),
            build: None,
        }
    }

    fn peers(line: &Value) -> Result<Self> {
        let number = |value: &Value, what: &str| value.as_f64().with_context(|| format!("the peer says no {what}"));
        let operations = number(&line["ops"], "ops")?;
        Ok(Self {
            per_s: operations / number(&line["seconds"], "seconds")?,
            cpu_us: number(&line["cpu_us_per_op"], "cpu_us_per_op")?,
            sync_ms: number(&line["txg"]["sync_ms_mean"], "sync_ms_mean")?,
            first_pass: None,
            serial: None,
            data_ms: None,
            end_ms: None,
            mos_ms: None,
            space_ms: None,
            later_ms: None,
            build: line["params"]["build"].as_str().map(str::to_owned),
            passes: number(&line["txg"]["passes_mean"], "passes_mean")?,
        })
    }
}

fn median<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn listed<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> String {
    match rounds {
        [] => "-".into(),
        [one] => short(of(one)),
        all => {
            let each: Vec<String> = all.iter().map(|round| short(of(round))).collect();
            format!("{} of {}", short(median(all, &of)), each.join(", "))
        }
    }
}

/// Metaslabs of the vdev in `fragmented`, at least: as many as a vdev of some size has.
pub const METASLABS: u64 = 256;

/// Requests at once, and how many in all, of the raw device that is written at random.
const RAW_DEPTH: usize = 64;
const RAW_WRITES: u64 = 100_000;

/// Bytes of a part's file, and of what is written to it.
struct Size {
    file_bytes: u64,
    data_bytes: u64,
}

impl Size {
    const fn pool(&self, has_log: bool) -> PoolSpec {
        PoolSpec { size_bytes: self.file_bytes, has_log, metaslabs_min: 16, dirty_max_bytes: rig::DIRTY_MAX_BYTES }
    }

    fn overwrites(&self, record_bytes: u64, shreds: u64, seconds: f64, round: u32) -> Overwrites {
        Overwrites { record_bytes, data_bytes: self.data_bytes, shreds, tasks: 4, seconds, seed: u64::from(round) }
    }
}

/// Measures all parts.
///
/// # Errors
/// A pool cannot be written, or the peer does not run.
pub fn run(options: &Options) -> Result<Suite> {
    let mut suite = Suite {
        name: "write".into(),
        title: "writing a pool, all layers".into(),
        notes: vec![
            "Pools in one file each, on a disk of this machine, or on a modelled drive where the table says so; nothing is \
             compressed, checksums are fletcher4. Every operation is a transaction of its own; the closing sync is part of the time. \
             Cells: median, and all rounds where there are several."
                .into(),
        ],
        ..Suite::default()
    };
    let mut raw = serde_json::Map::new();
    for (name, part) in PARTS.into_iter().zip([
        sequential,
        overwrites,
        fragmented,
        import::replay,
        tree::tree,
        memory::memory,
        objects::objects,
    ]) {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            part(options, &mut suite, &mut raw)?;
        }
    }
    suite.notes.extend(note_of_builds(&raw));
    suite.raw = Value::Object(raw);
    Ok(suite)
}

fn sequential(options: &Options, suite: &mut Suite, raw: &mut serde_json::Map<String, Value>) -> Result<()> {
    let size = match options.quick {
        true => Size { file_bytes: 2 << 30, data_bytes: 1 << 30 },
        false => Size { file_bytes: 4 << 30, data_bytes: 2 << 30 },
    };
    let (mut device, mut ours, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        device.push(raw_sequential(&options.folder, &size)?);
        let rig = Rig::new(&options.folder, size.pool(true))?;
        ours.push(Round::ours(&rig.sequential(1 << 20, size.data_bytes)?));
        drop(rig);
        if let Some(program) = &options.peer {
            peers.push(peer_round(program, &options.folder, &size, &["seqwrite", "-b", "1m", "--recordsize", "1m"])?);
        }
    }
    raw.insert("sequential".into(), json!({ "raw_mb_per_s": device, "ours": ours, "peer": peers }));
    let mut table =
        Table::new("Records of 1 MiB in sequence", &["what", "raw device", "ours", "OpenZFS code in userspace"]);
    let mb = |round: &Round| round.per_s * 1.048_576;
    table.row(["MB/s".into(), listed(&device, |per_s| *per_s), listed(&ours, mb), listed(&peers, mb)]);
    let cpu = |round: &Round| round.cpu_us * 1e3 / 1_048.576;
    table.row(["ms of processor a GB".into(), "-".into(), listed(&ours, cpu), listed(&peers, cpu)]);
    for (name, of) in DETAILS {
        table.row([name.into(), "-".into(), listed(&ours, of), listed(&peers, of)]);
    }
    suite.tables.push(table);
    let share = median(&ours, mb) / median(&device, |per_s| *per_s);
    suite.target("in sequence at least 0.85 of the raw device", short(share), share >= 0.85);
    if !peers.is_empty() {
        let times = median(&ours, mb) / median(&peers, mb);
        suite.target("in sequence faster than the OpenZFS code", format!("{} times", short(times)), times > 1.0);
    }
    Ok(())
}

fn overwrites(options: &Options, suite: &mut Suite, raw: &mut serde_json::Map<String, Value>) -> Result<()> {
    let size = match options.quick {
        true => Size { file_bytes: 4 << 30, data_bytes: 1 << 30 },
        false => Size { file_bytes: 8 << 30, data_bytes: 4 << 30 },
    };
    let seconds = options.seconds.to_string();
    let (mut device, mut ours, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        device.push(raw_random(&options.folder, &size, 4096)?);
        let rig = Rig::new(&options.folder, size.pool(true))?;
        ours.push(Round::ours(&rig.overwrite(size.overwrites(4096, 0, options.seconds, round))?));
        drop(rig);
        if let Some(program) = &options.peer {
            let fill = (size.data_bytes as f64 / size.file_bytes as f64).to_string();
            let words = [
                "frag_overwrite",
                "-t",
                "4",
                "-s",
                &seconds,
                "-b",
                "4k",
                "--recordsize",
                "4k",
                "--fill",
                &fill,
                "--frag",
                "0",
            ];
            peers.push(peer_round(program, &options.folder, &size, &words)?);
        }
    }
    raw.insert("overwrite".into(), json!({ "raw_writes_per_s": device, "ours": ours, "peer": peers }));
    let mut table = Table::new(
        "4 KiB records overwritten at random by 4 tasks",
        &["what", "raw device, in place", "ours", "OpenZFS code in userspace"],
    );
    rows(&mut table, &device, &[&ours, &peers]);
    suite.tables.push(table);
    let serial = median(&ours, |round| round.serial.unwrap_or(f64::NAN));
    suite.target("at most 0.05 of processor time is a sync on one core only", short(serial), serial <= 0.05);
    if !peers.is_empty() {
        let times = median(&ours, |round| round.per_s) / median(&peers, |round| round.per_s);
        suite.target("overwrites a second: at least 2 times the OpenZFS code", short(times), times >= 2.0);
        let times = median(&peers, |round| round.cpu_us) / median(&ours, |round| round.cpu_us);
        suite.target(
            "processor time an overwrite: at most half of the OpenZFS code's",
            format!("1/{}", short(times)),
            times >= 2.0,
        );
    }
    Ok(())
}

/// Rows of a table: what, and how it is read off a round.
type Row = (&'static str, fn(&Round) -> f64);

const RATES: [Row; 2] = [("writes a second", |round| round.per_s), ("µs of processor a write", |round| round.cpu_us)];
const DETAILS: [Row; 9] = [
    ("ms a sync", |round| round.sync_ms),
    ("of those until data is on devices", |round| round.data_ms.unwrap_or(f64::NAN)),
    ("of those for the MOS in the first pass", |round| round.mos_ms.unwrap_or(f64::NAN)),
    ("of those for what that took and freed", |round| round.space_ms.unwrap_or(f64::NAN)),
    ("of those for the later passes", |round| round.later_ms.unwrap_or(f64::NAN)),
    ("of those for flushes and labels", |round| round.end_ms.unwrap_or(f64::NAN)),
    ("passes a sync", |round| round.passes),
    ("share of the first pass in all passes of a sync", |round| round.first_pass.unwrap_or(f64::NAN)),
    ("share of processor time on one core only", |round| round.serial.unwrap_or(f64::NAN)),
];

fn rows(table: &mut Table, device: &[f64], columns: &[&[Round]]) {
    let mut raw = Some(listed(device, |per_s| *per_s));
    for (name, of) in RATES.into_iter().chain(DETAILS) {
        // Of the raw device only the rate is known, which is the first row.
        let first = [name.to_owned(), raw.take().unwrap_or_else(|| "-".into())];
        table.row(first.into_iter().chain(columns.iter().map(|rounds| listed(rounds, of))));
    }
}

fn fragmented(options: &Options, suite: &mut Suite, raw: &mut serde_json::Map<String, Value>) -> Result<()> {
    let size = match options.quick {
        true => Size { file_bytes: 4 << 30, data_bytes: 2700 << 20 },
        false => Size { file_bytes: 8 << 30, data_bytes: 5400 << 20 },
    };
    let seconds = options.seconds.to_string();
    let (mut device, mut found) = (Vec::new(), [(true, "on"), (false, "off")].map(|how| (how, Vec::new(), Vec::new())));
    for round in 0..options.rounds {
        // In turns, since a disk is not the same from minute to minute.
        for ((has_log, word), ours, peers) in &mut found {
            device.push(raw_random(&options.folder, &size, 8192)?);
            let spec = PoolSpec { metaslabs_min: METASLABS, ..size.pool(*has_log) };
            let rig = Rig::new(&options.folder, spec)?;
            ours.push(Round::ours(&rig.overwrite(size.overwrites(8192, 1, options.seconds, round))?));
            drop(rig);
            if let Some(program) = &options.peer {
                let fill = (size.data_bytes as f64 / size.file_bytes as f64).to_string();
                let words = [
                    "frag_overwrite",
                    "-t",
                    "4",
                    "-s",
                    &seconds,
                    "-b",
                    "8k",
                    "--recordsize",
                    "8k",
                    "--fill",
                    &fill,
                    "--log-spacemap",
                    word,
                ];
                peers.push(peer_round(program, &options.folder, &size, &words)?);
            }
        }
    }
    for ((_, word), ours, peers) in &found {
        raw.insert(format!("fragmented, log space maps {word}"), json!({ "ours": ours, "peer": peers }));
    }
    let mut table = Table::new(
        "8 KiB records overwritten at random in a pool that is 70 % full and was shredded (M5)",
        &[
            "what",
            "raw device, in place",
            "with log space maps",
            "without",
            "OpenZFS code, with",
            "OpenZFS code, without",
        ],
    );
    let [(_, with, peer_with), (_, without, peer_without)] = &found;
    raw.insert("fragmented, raw".into(), json!({ "raw_writes_per_s": device }));
    rows(&mut table, &device, &[with, without, peer_with, peer_without]);
    suite.tables.push(table);
    let share = median(with, |round| round.first_pass.unwrap_or(0.0));
    suite.target("with log space maps at least 0.95 of a sync's passes is the first", short(share), share >= 0.95);
    let times = median(without, |round| round.sync_ms) / median(with, |round| round.sync_ms);
    suite.target("log space maps make a sync at least 1.66 times shorter", short(times), times >= 1.66);
    let times = median(with, |round| round.per_s) / median(without, |round| round.per_s);
    suite.target("log space maps give at least 1.4 times the writes", short(times), times >= 1.4);
    Ok(())
}

/// One round of the peer, on a file of the same size.
fn peer_round(program: &Path, folder: &Path, size: &Size, words: &[&str]) -> Result<Round> {
    let (file, bytes) = (size.file_bytes.to_string(), size.data_bytes.to_string());
    let folder = folder.to_str().context("the folder's name is no text")?;
    let mut arguments = words.to_vec();
    let dirty = format!("zfs_dirty_data_max={}", rig::DIRTY_MAX_BYTES);
    arguments.extend(["-o", &dirty, "--filesize", &file, "--dir", folder]);
    if words[0] == "seqwrite" {
        arguments.extend(["--bytes", &bytes]);
    }
    let lines = peer(program, &arguments)?;
    Round::peers(lines.last().context("the peer says nothing")?)
}

/// MB/s of writing a file in place past the page cache, several requests of 1 MiB at once, with a flush at the end.
fn raw_sequential(folder: &Path, size: &Size) -> Result<f64> {
    let path = folder.join("raw");
    rig::filled(&path, size.data_bytes)?;
    let found = rig::raw_write(&path, 1 << 20, 8, RawOrder::InSequence);
    std::fs::remove_file(&path)?;
    let (blocks, seconds) = found?;
    ensure!(blocks << 20 == size.data_bytes, "the raw device took less than it should");
    Ok((blocks << 20) as f64 / 1e6 / seconds)
}

/// Writes a second of a file in place past the page cache, many requests of one record at once, at random.
fn raw_random(folder: &Path, size: &Size, record_bytes: usize) -> Result<f64> {
    let path = folder.join("raw");
    rig::filled(&path, size.data_bytes)?;
    let found = rig::raw_write(&path, record_bytes, RAW_DEPTH, RawOrder::AtRandom(RAW_WRITES));
    std::fs::remove_file(&path)?;
    let (count, seconds) = found?;
    Ok(count as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_which_build_its_ratios_are_to() {
        let raw = |build: Value| {
            let part = json!({ "ours": [], "peer": [{ "build": build }] });
            note_of_builds(&serde_json::Map::from_iter([("overwrite".to_owned(), part)]))
        };
        assert!(raw(json!("debug")).unwrap().contains("with assertions"));
        assert!(raw(json!("release")).unwrap().contains("release build"));
        assert!(raw(Value::Null).unwrap().contains("not stated"));
        assert_eq!(note_of_builds(&serde_json::Map::new()), None);
    }
}
