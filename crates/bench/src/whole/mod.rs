//! `cenote bench pool`: the whole read path on a pool that OpenZFS wrote, beside the raw device and, if there is one, a peer
//! program with the OpenZFS code in userspace, on the same files in one run.

mod others;
mod pool;
mod reads;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use self::others::peer;
use self::pool::{Bench, Place, Which};
use self::reads::{Clients, Order, Round};
use crate::report::{Suite, Table, short};

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Verified reads of 4 KiB from a device of memory.
    MemoryRandom,
    /// Reads of 4 KiB that the cache holds.
    CacheHit,
    /// Cold reads of 4 KiB at random, 32 under way.
    Random,
    /// As that, 64 under way: through the cache and past it, by 64 clients and by one.
    Direct,
    /// Strided readers, 256 at once: what the document on roots measured.
    Strided,
    /// A pass over large records.
    Sequential,
    /// A client that reads piece by piece, with and without reading ahead.
    Ahead,
    /// Whether the cache's limit holds.
    Limit,
}

impl Part {
    /// All parts and their words on the command line.
    pub const ALL: [(&'static str, Self); 8] = [
        ("memory-random", Self::MemoryRandom),
        ("cache-hit", Self::CacheHit),
        ("random", Self::Random),
        ("direct", Self::Direct),
        ("strided", Self::Strided),
        ("sequential", Self::Sequential),
        ("ahead", Self::Ahead),
        ("limit", Self::Limit),
    ];
    /// Those that a quick run leaves out.
    const LONG: [Self; 3] = [Self::Sequential, Self::Ahead, Self::Limit];
}

/// The parts to measure, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image of a pool that `crates/bench/make-pool` made.
    pub image: Option<PathBuf>,
    /// A peer program: it makes a pool of its own, and both read that. Only without an image.
    pub peer: Option<PathBuf>,
    /// A folder for the peer's pool.
    pub folder: PathBuf,
    /// The parts; empty for all.
    pub parts: Vec<Part>,
    /// Fewer parts, fewer and shorter rounds.
    pub quick: bool,
    /// Rounds of each part.
    pub rounds: Option<u32>,
    /// Seconds of a round.
    pub seconds: Option<f64>,
    /// Reads under way in `memory-random`.
    pub tasks: u64,
    /// Worker threads in `memory-random` and `cache-hit`.
    pub workers: usize,
}

/// The middle one.
fn middle(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn listed(values: impl IntoIterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    if values.is_empty() {
        return "-".into();
    }
    let all = values.iter().map(|value| short(*value)).collect::<Vec<_>>().join(", ");
    if values.len() == 1 { all } else { format!("{} of {all}", short(middle(values))) }
}

struct Run<'a> {
    options: &'a Options,
    image: PathBuf,
    rounds: u32,
    seconds: f64,
    memory: Option<Place>,
    table: Table,
    suite: Suite,
    raw: Map<String, Value>,
    /// The peer's processor time of a cold read and of a hit, in µs, and its rates.
    peer: Option<Peer>,
}

/// The figures that the peer reported of its pool.
#[derive(Clone, Copy, Debug, Serialize)]
struct Peer {
    cold_cpu_us: f64,
    cold_per_s: f64,
    hit_cpu_us: f64,
    hit_per_s: f64,
}

/// Runs the suite.
///
/// # Errors
/// When there is no such pool, or neither an image nor a peer to make one.
pub fn run(options: &Options) -> Result<Suite> {
    let (rounds, seconds) = if options.quick { (2, 0.5) } else { (5, 1.0) };
    let (rounds, seconds) = (options.rounds.unwrap_or(rounds).max(1), options.seconds.unwrap_or(seconds));
    let mut peer = None;
    let image = match (&options.image, &options.peer) {
        (Some(image), _) => image.clone(),
        (None, Some(program)) => {
            let (image, figures) = peer_pool(program, &options.folder, options.quick)?;
            peer = Some(figures);
            image
        }
        (None, None) => anyhow::bail!("a pool is needed: the image of one, or a peer program that makes one"),
    };
    let mut run = Run {
        options,
        image,
        rounds,
        seconds,
        memory: None,
        table: Table::new(
            "Reads: the median of all rounds",
            &["what", "unit", "ours", "raw device", "OpenZFS code in userspace", "ceiling (model)"],
        ),
        suite: Suite { name: "pool".into(), title: "reading a pool, all layers".into(), ..Suite::default() },
        raw: Map::new(),
        peer,
    };
    run.notes();
    for (name, part) in Part::ALL {
        let wanted = match options.parts.is_empty() {
            true => !(options.quick && Part::LONG.contains(&part)),
            false => options.parts.contains(&part),
        };
        if wanted {
            run.part(name, part).with_context(|| format!("pool {name}"))?;
        }
    }
    let mut suite = run.suite;
    suite.tables.insert(0, run.table);
    suite.raw = Value::Object(run.raw);
    Ok(suite)
}

/// Has the peer make its pool in one file, and measure its own reads of it.
fn peer_pool(program: &Path, folder: &Path, quick: bool) -> Result<(PathBuf, Peer)> {
    let folder_text = folder.display().to_string();
    let seconds = if quick { "1" } else { "3" };
    let measure = |cache: &str| {
        let arguments = [
            "randread",
            "--keep",
            "--dir",
            &folder_text,
            "--layout",
            "single",
            "--filesize",
            "1g",
            "--objsize",
            "256m",
            "--recordsize",
            "4k",
            "-b",
            "4k",
            "-t",
            "2",
            "-s",
            seconds,
            "--cache",
            cache,
            "--prefetch",
            "off",
            "--io",
            "direct",
            "-o",
            "zfs_arc_min=33554432",
            "-o",
            if cache == "cold" { "zfs_arc_max=67108864" } else { "zfs_arc_max=1073741824" },
        ];
        let lines = peer(program, &arguments)?;
        let line = lines.first().context("the peer reported nothing")?;
        let field = |name: &str| line[name].as_f64().with_context(|| format!("the peer's report has no {name}"));
        anyhow::Ok((field("cpu_us_per_op")?, field("iops")?))
    };
    // In this order, so that the pool that is left is the one of the cold reads.
    let (hit_cpu_us, hit_per_s) = measure("hot")?;
    let (cold_cpu_us, cold_per_s) = measure("cold")?;
    let mut files = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    files.retain(|file| file.metadata().is_ok_and(|metadata| metadata.len() > 1 << 20));
    ensure!(files.len() == 1, "the peer left {} files in {folder_text}", files.len());
    Ok((files.remove(0).path(), Peer { cold_cpu_us, cold_per_s, hit_cpu_us, hit_per_s }))
}

impl Run<'_> {
    fn notes(&mut self) {
        let what = if self.peer.is_some() {
            "The pool: made by the peer program, one file of 1 GiB with an object of 256 MiB in records of 4 KiB, read by both in \
             this run."
        } else {
            "The pool: that of crates/bench/make-pool, made by OpenZFS: a file of 256 MiB in records of 4 KiB and one of 1.5 GiB \
             in records of 1 MiB. No peer program was run; the figures of the OpenZFS code are those of 2.3.2 on another machine \
             (2 virtual cores of a Xeon, docs/bench/history/reading.md), so compare processor time, and that roughly."
        };
        self.suite.notes.extend([
            format!("{what} Cells: median, and all rounds where there are several."),
            "From memory: the image is a device of memory, so that only the path is measured; a cache of 32 MiB. Ceiling, a model: \
             a verified read from a device is 1 µs of processor (submission 0.26, pointer 0.2, fletcher4 0.3, copy 0.3), a hit \
             0.5 µs."
                .into(),
        ]);
    }

    fn memory(&mut self) -> Result<Place> {
        if self.memory.is_none() {
            self.memory = Some(Place::copied(&self.image)?);
        }
        self.memory.clone().context("no device of memory")
    }

    fn image(&self) -> Place {
        Place::Image(self.image.clone())
    }

    fn row(&mut self, what: &str, unit: &str, cells: [String; 4]) {
        self.table.row([what.to_owned(), unit.to_owned()].into_iter().chain(cells));
    }

    fn keep(&mut self, name: &str, value: impl Serialize) -> Result<()> {
        self.raw.insert(name.into(), serde_json::to_value(value)?);
        Ok(())
    }

    fn part(&mut self, name: &str, part: Part) -> Result<()> {
        match part {
            Part::MemoryRandom => self.memory_random(name),
            Part::CacheHit => self.cache_hit(name),
            Part::Random => self.random(name),
            Part::Direct => self.direct(name),
            Part::Strided => self.strided(name),
            Part::Sequential => self.sequential(name),
            Part::Ahead => self.ahead(name),
            Part::Limit => self.limit(name),
        }
    }

    fn memory_random(&mut self, name: &str) -> Result<()> {
        let (tasks, workers) = (self.options.tasks, self.options.workers);
        let place = self.memory()?;
        let mut all = [Vec::new(), Vec::new()];
        for (direct, rounds) in [(false, 0), (true, 1)] {
            let bench = Bench::open(&place, workers, 32 << 20)?;
            let data = bench.data(Which::Small)?;
            let clients = |seed| Clients { direct, ..Clients::random(tasks, seed) };
            reads::timed(&bench, &data, clients(99), 0.3)?;
            for round in 0..self.rounds {
                all[rounds].push(reads::timed(&bench, &data, clients(u64::from(round) * 1000), self.seconds)?);
            }
        }
        self.keep(name, json!({ "tasks": tasks, "workers": workers, "cached": all[0], "direct": all[1] }))?;
        let peer = self.peer.map_or_else(|| "19 000 to 22 000".into(), |peer| short(1e6 / peer.cold_cpu_us));
        for (rounds, what) in all.iter().zip(["through the cache", "past the cache"]) {
            let cells = [
                listed(rounds.iter().map(Round::verified_per_core_second)),
                "-".into(),
                peer.clone(),
                "1 000 000".into(),
            ];
            self.row(&format!("4 KiB verified, from memory, {what}"), "reads a core-second", cells);
        }
        let found = middle(all[0].iter().map(Round::verified_per_core_second));
        self.suite.target(
            "verified reads of 4 KiB from memory: at least 500 000 a core-second",
            format!(
                "{} through the cache, {} past it",
                short(found),
                short(middle(all[1].iter().map(Round::verified_per_core_second)))
            ),
            found >= 500_000.0,
        );
        if let Some(peer) = self.peer {
            let times = peer.cold_cpu_us * 1000.0 / middle(all[0].iter().map(Round::cpu_ns_per_verified));
            self.suite.target(
                "at least 4 times the OpenZFS code a core-second",
                format!("{} times", short(times)),
                times >= 4.0,
            );
        }
        Ok(())
    }

    fn cache_hit(&mut self, name: &str) -> Result<()> {
        let workers = self.options.workers;
        let bench = Bench::open(&self.memory()?, workers, 1 << 30)?;
        let data = bench.data(Which::Small)?;
        reads::make_resident(&bench, &data)?;
        let mut all = Vec::new();
        for round in 0..self.rounds {
            let found =
                reads::timed(&bench, &data, Clients::random(workers as u64, u64::from(round) * 1000), self.seconds)?;
            ensure!(found.verified == 0, "not all were hits");
            all.push(found);
        }
        self.keep(name, json!({ "workers": workers, "rounds": all }))?;
        let peer = self.peer.map_or_else(|| "9 500 to 11 100".into(), |peer| short(peer.hit_cpu_us * 1e3));
        let cells = [listed(all.iter().map(Round::cpu_ns_per_read)), "-".into(), peer, "500".into()];
        self.row("4 KiB resident", "ns of processor", cells);
        let found = 1e9 / middle(all.iter().map(Round::cpu_ns_per_read));
        self.suite.target("resident reads: at least 1 000 000 a core-second", short(found), found >= 1e6);
        Ok(())
    }

    fn cold(&self, workers: usize, clients: Clients) -> Result<Round> {
        let bench = Bench::open(&self.image(), workers, 32 << 20)?;
        let data = bench.data(Which::Small)?;
        reads::timed(&bench, &data, clients, self.seconds)
    }

    fn random(&mut self, name: &str) -> Result<()> {
        let (mut raw, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds {
            // In turns, so that all meet the same noise.
            let seed = u64::from(round) * 1000;
            raw.push(others::raw(&self.image, true, 4096, 32, self.seconds)?);
            one.push(self.cold(1, Clients::random(32, seed))?);
            two.push(self.cold(2, Clients::random(32, seed + 500))?);
        }
        self.keep(name, json!({ "raw": raw, "one_worker": one, "two_workers": two }))?;
        let raw_iops = listed(raw.iter().map(|raw| raw.iops));
        let peer_rate = self.peer.map_or_else(|| "-".into(), |peer| short(peer.cold_per_s));
        let peer_cpu = self.peer.map_or_else(|| "47 to 61".into(), |peer| short(peer.cold_cpu_us));
        for (rounds, workers) in [(&one, "one worker"), (&two, "two workers")] {
            let rate = listed(rounds.iter().map(Round::verified_per_s));
            self.row(
                &format!("4 KiB cold, 32 at once, {workers}"),
                "reads/s",
                [rate, raw_iops.clone(), peer_rate.clone(), "raw".into()],
            );
            let cpu = listed(rounds.iter().map(|round| round.cpu_ns_per_verified() / 1e3));
            let raw_cpu = listed(raw.iter().map(|raw| raw.cpu_us_per_read));
            self.row("  and", "µs of processor", [cpu, raw_cpu, peer_cpu.clone(), "raw + 0.7".into()]);
        }
        let ratios =
            |rounds: &[Round]| middle(rounds.iter().zip(&raw).map(|(round, raw)| round.verified_per_s() / raw.iops));
        let (one, two) = (ratios(&one), ratios(&two));
        let by = raw.first().map_or_else(String::new, |raw| raw.by.clone());
        self.suite.notes.push(format!("The raw device was read by: {by}."));
        self.suite.target(
            "cold reads at depth 32: at least 0.9 of raw",
            format!("{} with one worker, {} with two", short(one), short(two)),
            one.max(two) >= 0.9,
        );
        Ok(())
    }

    fn direct(&mut self, name: &str) -> Result<()> {
        let (mut raw, mut cached, mut many, mut single) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let seed = u64::from(round) * 1000;
            raw.push(others::raw(&self.image, true, 4096, 64, self.seconds)?);
            cached.push(self.cold(2, Clients::random(64, seed))?);
            many.push(self.cold(2, Clients { direct: true, ..Clients::random(64, seed + 500) })?);
            let bench = Bench::open(&self.image(), 2, 32 << 20)?;
            let data = bench.data(Which::Small)?;
            single.push(reads::one_client(&bench, &data, 64, true, seed + 700, self.seconds)?);
        }
        self.keep(name, json!({ "raw": raw, "cached": cached, "clients_64": many, "client_1": single }))?;
        let raw_iops = listed(raw.iter().map(|raw| raw.iops));
        for (rounds, what) in [
            (&cached, "64 clients, through the cache"),
            (&many, "64 clients, past the cache"),
            (&single, "one client with 64 under way, past the cache"),
        ] {
            let rate = listed(rounds.iter().map(Round::verified_per_s));
            self.row(
                &format!("4 KiB cold, {what}"),
                "reads/s",
                [rate, raw_iops.clone(), "a depth of 1 (#18660)".into(), "raw".into()],
            );
        }
        let ratio = middle(single.iter().zip(&many).map(|(one, many)| one.verified_per_s() / many.verified_per_s()));
        self.suite.target("one client at depth 64: at least 0.8 of 64 clients", short(ratio), ratio >= 0.8);
        Ok(())
    }

    fn strided(&mut self, name: &str) -> Result<()> {
        let place = self.memory()?;
        let mut all = Vec::new();
        for round in 0..self.rounds {
            let bench = Bench::open(&place, self.options.workers.max(2), 64 << 20)?;
            let data = bench.data(Which::Small)?;
            let clients = Clients { order: Order::Strided(7), ..Clients::random(256, u64::from(round)) };
            all.push(reads::timed(&bench, &data, clients, self.seconds)?);
        }
        self.keep(name, &all)?;
        let cells = [listed(all.iter().map(Round::reads_per_s)), "-".into(), "-".into(), "-".into()];
        self.row("4 KiB strided, 256 readers, from memory", "reads/s", cells);
        let cells = [listed(all.iter().map(Round::cpu_ns_per_read)), "-".into(), "-".into(), "1 000".into()];
        self.row("  and", "ns of processor", cells);
        Ok(())
    }

    fn sequential(&mut self, name: &str) -> Result<()> {
        let (mut raw, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            raw.push(others::raw(&self.image, false, 1 << 20, 8, self.seconds)?);
            ours.push(reads::sequential(&self.image(), 8 << 20)?);
        }
        let memory = reads::sequential(&self.memory()?, 8 << 20)?;
        self.keep(name, json!({ "raw": raw, "ours": ours, "memory": memory }))?;
        let cells = [
            listed(ours.iter().map(Round::gb_per_s)),
            listed(raw.iter().map(|raw| raw.gb_per_s)),
            "1.21 to 1.87".into(),
            "raw".into(),
        ];
        self.row("records in sequence, cold", "GB/s", cells);
        let cells =
            [listed(ours.iter().map(Round::gb_per_core_second)), "-".into(), "1.17 to 1.31".into(), "6.7".into()];
        self.row("  and", "GB a core-second", cells);
        self.row(
            "records in sequence, from memory",
            "GB a core-second",
            [short(memory.gb_per_core_second()), "-".into(), "-".into(), "6.7".into()],
        );
        if self.peer.is_some() {
            self.suite
                .notes
                .push("The peer's pool has records of 4 KiB alone; targets in sequence are for 1 MiB.".into());
            return Ok(());
        }
        let ratio = middle(ours.iter().zip(&raw).map(|(ours, raw)| ours.gb_per_s() / raw.gb_per_s));
        self.suite.target("records in sequence: at least 0.9 of raw", short(ratio), ratio >= 0.9);
        let cpu = middle(ours.iter().map(Round::gb_per_core_second));
        self.suite.target(
            "processor time a GB at most half of the OpenZFS code's",
            format!("{} GB a core-second, of 1.31", short(cpu)),
            cpu >= 2.6,
        );
        Ok(())
    }

    fn ahead(&mut self, name: &str) -> Result<()> {
        let mut kept = Vec::new();
        for (len, label) in [(128 << 10, "128 KiB"), (1 << 20, "1 MiB")] {
            for (ahead, how) in [(false, "nothing ahead"), (true, "ahead")] {
                let mut all = Vec::new();
                for _ in 0..self.rounds {
                    all.push(reads::one_at_a_time(&self.image(), len, ahead)?);
                }
                let cells = [listed(all.iter().map(Round::gb_per_s)), "-".into(), "-".into(), "raw".into()];
                self.row(&format!("piece by piece, {label} at a time, {how}"), "GB/s", cells);
                kept.push(json!({ "len_bytes": len, "ahead": ahead, "rounds": all }));
            }
        }
        self.keep(name, kept)
    }

    fn limit(&mut self, name: &str) -> Result<()> {
        let limit = reads::memory_limit(&self.image(), 512 << 20, self.seconds)?;
        self.keep(name, limit)?;
        let ratio = limit.growth_bytes as f64 / limit.limit_bytes as f64;
        self.suite.target("memory within 5 % of the cache's limit of 512 MiB", short(ratio), ratio <= 1.05);
        Ok(())
    }
}
