//! Sending and receiving streams.

use anyhow::{Context as _, Result};
use cenote_admin::send::SendFlags;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::rig::{Records, Rig, Stream, raw_read, raw_write};
use super::{Options, best, rates};
use cenote_bench::clock::Took;
use cenote_bench::report::{Suite, Table, short};
use cenote_bench::whole::peer;

/// Bytes of a pool's device, for each byte of data: what is freed in a txg is used again two later.
const ROOM: u64 = 2;
/// Space of a pool beside its data.
const POOL_MIN_BYTES: u64 = 512 << 20;
/// Bytes that fit into the cache.
const RESIDENT_BYTES: u64 = 128 << 20;

const LARGE_PER_CORE_S_MIN: f64 = 3.0;
const SMALL_PER_S_MIN: f64 = 400_000.0;
const RECEIVE_MIN: f64 = 1.3;
const COLD_MIN: f64 = 0.85;

/// One round.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    wall_s: f64,
    cpu_s: f64,
    bytes: u64,
    records: u64,
}

impl Round {
    const fn new(took: Took, records: Records) -> Self {
        Self { wall_s: took.wall_s, cpu_s: took.cpu_s, bytes: records.bytes(), records: records.count() }
    }

    fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.wall_s
    }

    fn gb_per_core_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.cpu_s
    }

    fn records_per_s(&self) -> f64 {
        self.records as f64 / self.wall_s
    }

    fn records_per_core_s(&self) -> f64 {
        self.records as f64 / self.cpu_s
    }
}

fn each(rounds: &[Round], of: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(of).collect()
}

const COLUMNS: [&str; 5] = ["what", "GB/s", "GB/s a core-second", "records a second", "records a core-second"];

fn row(table: &mut Table, what: String, rounds: &[Round]) {
    let rate = |of: fn(&Round) -> f64| rates(&each(rounds, of));
    table.row([
        what,
        rate(Round::gb_per_s),
        rate(Round::gb_per_core_s),
        rate(Round::records_per_s),
        rate(Round::records_per_core_s),
    ]);
}

/// Times of OpenZFS's code in userspace on a file: sending, and receiving.
fn peers(options: &Options, records: Records, is_resident: bool) -> Result<Option<[Vec<Round>; 2]>> {
    let Some(program) = &options.peer else { return Ok(None) };
    let folder = tempfile::tempdir_in(&options.folder)?;
    let numbers = [records.record_bytes, records.bytes(), pool_bytes(records) * 2].map(|number| number.to_string());
    let folder = folder.path().display().to_string();
    let cache = if is_resident { "hot" } else { "cold" };
    let mut arguments = vec!["send", "--recordsize", &numbers[0], "--bytes", &numbers[1], "--filesize", &numbers[2]];
    // Small pools distort: each change is taken for 24 times its size.
    arguments.extend(["--cache", cache, "--dir", &folder, "-o", "spa_asize_inflation=3"]);
    let mut rounds = [Vec::new(), Vec::new()];
    for line in peer(program, &arguments)? {
        let number = |what: &str| line[what].as_f64().with_context(|| format!("the peer says no {what}"));
        let took = Took { wall_s: number("seconds")?, cpu_s: number("cpu_s")? };
        rounds[usize::from(line["direction"] == "receive")].push(Round::new(took, records));
    }
    Ok(Some(rounds))
}

/// All records in one object.
const fn one_object(record_bytes: u64, bytes: u64) -> Records {
    Records { record_bytes, records: bytes / record_bytes, objects: 1 }
}

const fn pool_bytes(records: Records) -> u64 {
    records.bytes() * ROOM + POOL_MIN_BYTES
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

const LARGE: SendFlags = SendFlags { large_blocks: true, embedded: false, compressed: false, raw: false };

/// Sends from a device in memory, past the cache and from it.
pub(super) fn send_warm(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let bytes = if options.quick { 256 << 20 } else { 1 << 30 };
    let mut table = Table::new("Sending from a device in memory", &COLUMNS);
    let (mut kept, mut large, mut small) = (Vec::new(), f64::NAN, (f64::NAN, f64::NAN));
    for (record_bytes, is_resident) in
        [(1 << 20, false), (1 << 20, true), (128 << 10, false), (16 << 10, false), (4 << 10, false), (4 << 10, true)]
    {
        let records = one_object(record_bytes, if is_resident { RESIDENT_BYTES } else { bytes });
        let rig = Rig::in_memory(pool_bytes(records))?;
        rig.fill(records)?;
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            if !is_resident {
                rig.empty_cache()?;
            }
            rounds.push(Round::new(rig.send(LARGE)?, records));
        }
        let place = if is_resident { "in the cache" } else { "from the device" };
        row(&mut table, format!("records of {}, {place}", size(record_bytes)), &rounds);
        if let Some([sent, _]) = peers(options, records, is_resident)? {
            row(&mut table, format!("OpenZFS code, records of {}, {place}", size(record_bytes)), &sent);
            kept.push(
                json!({ "peer": true, "record_bytes": record_bytes, "is_resident": is_resident, "rounds": sent }),
            );
        }
        if !is_resident && record_bytes == 1 << 20 {
            large = best(&each(&rounds, Round::gb_per_core_s));
        } else if !is_resident && record_bytes == 4 << 10 {
            small = (best(&each(&rounds, Round::records_per_s)), best(&each(&rounds, Round::records_per_core_s)));
        }
        kept.push(json!({ "record_bytes": record_bytes, "is_resident": is_resident, "rounds": rounds }));
    }
    suite.tables.push(table);
    raw.insert("send-warm".into(), json!(kept));
    suite.target("send 1 MiB records: at least 3 GB/s a core-second", short(large), large >= LARGE_PER_CORE_S_MIN);
    suite.target("send 4 KiB records: at least 400 000 a second", short(small.0), small.0 >= SMALL_PER_S_MIN);
    suite.target("and a core-second", short(small.1), small.1 >= SMALL_PER_S_MIN);
    Ok(())
}

/// Receives into a pool on a device in memory.
pub(super) fn receive_warm(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let bytes: u64 = if options.quick { 256 << 20 } else { 1 << 30 };
    let mut table = Table::new("Receiving into a pool on a device in memory", &COLUMNS);
    let mut kept = Vec::new();
    let mut small = f64::NAN;
    let of_files = Records { record_bytes: 4 << 10, records: 1, objects: bytes / (16 << 10) };
    let all = [4, 8, 16, 128, 1024].map(|kib| one_object(kib << 10, bytes));
    for records in all.into_iter().chain([of_files]) {
        let stream: Stream = {
            let rig = Rig::in_memory(pool_bytes(records))?;
            rig.fill(records)?;
            rig.stream(LARGE)?.into()
        };
        let mut rounds = Vec::new();
        for _ in 0..options.rounds {
            let rig = Rig::in_memory(pool_bytes(records))?;
            rounds.push(Round::new(rig.receive(stream.clone())?, records));
        }
        let what = match records.objects {
            1 => format!("records of {}", size(records.record_bytes)),
            count => format!("{count} files of {}", size(records.record_bytes)),
        };
        row(&mut table, what.clone(), &rounds);
        let peers = if records.objects == 1 { peers(options, records, true)? } else { None };
        if let Some([_, received]) = peers {
            row(&mut table, format!("OpenZFS code, {what}"), &received);
            kept.push(json!({ "peer": true, "record_bytes": records.record_bytes, "rounds": received }));
        }
        if records.objects == 1 && records.record_bytes == 4 << 10 {
            small = best(&each(&rounds, Round::gb_per_s));
        }
        let Records { record_bytes, objects, .. } = records;
        kept.push(json!({ "record_bytes": record_bytes, "objects": objects, "rounds": rounds }));
    }
    suite.tables.push(table);
    raw.insert("receive-warm".into(), json!(kept));
    suite.target("receive 4 KiB records: at least 1.3 GB/s", short(small), small >= RECEIVE_MIN);
    Ok(())
}

/// Sends a pool that was just opened, and receives into a new one, in a file beside raw access to the same file.
pub(super) fn cold(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let bytes: u64 = if options.quick { 512 << 20 } else { 1 << 30 };
    let mut table =
        Table::new("Cold, in a file", &["what", "GB/s", "raw device, GB/s", "of raw", "GB/s a core-second"]);
    let (mut kept, mut worst) = (Vec::new(), [f64::NAN; 2]);
    for record_bytes in [1 << 20, 128 << 10] {
        let records = one_object(record_bytes, bytes);
        let (mut sent, mut received, mut raws) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        let mut stream: Option<Stream> = None;
        for _ in 0..options.rounds {
            let mut rig = Rig::in_file(&options.folder, pool_bytes(records), false)?;
            let from = match &stream {
                None => {
                    let made = Rig::in_memory(pool_bytes(records))?;
                    made.fill(records)?;
                    stream.insert(made.stream(LARGE)?.into())
                }
                Some(stream) => stream,
            };
            received.push(Round::new(rig.receive(from.clone())?, records));
            rig.reopen()?;
            sent.push(Round::new(rig.send_received(LARGE)?, records));
            let path = rig.path().to_owned();
            drop(rig);
            raws[0].push(bytes as f64 / 1e9 / raw_read(&path, bytes)?);
            raws[1].push(bytes as f64 / 1e9 / raw_write(&path, bytes)?);
        }
        for (at, (what, rounds)) in [("send", &sent), ("receive", &received)].into_iter().enumerate() {
            let ours = each(rounds, Round::gb_per_s);
            let shares: Vec<f64> = ours.iter().zip(&raws[at]).map(|(ours, raw)| ours / raw).collect();
            table.row([
                format!("{what}, records of {}", size(record_bytes)),
                rates(&ours),
                rates(&raws[at]),
                rates(&shares),
                rates(&each(rounds, Round::gb_per_core_s)),
            ]);
            let mut sorted = shares.clone();
            sorted.sort_by(f64::total_cmp);
            let median = sorted.get(sorted.len() / 2).copied().context("a round")?;
            worst[at] = worst[at].min(median);
        }
        kept.push(json!({ "record_bytes": record_bytes, "send": sent, "receive": received, "raw_gb_s": raws }));
    }
    suite.tables.push(table);
    raw.insert("streams-cold".into(), json!(kept));
    suite.target("cold send at least 0.85 of the raw device (median)", short(worst[0]), worst[0] >= COLD_MIN);
    suite.target("cold receive at least 0.85 of the raw device (median)", short(worst[1]), worst[1] >= COLD_MIN);
    Ok(())
}
