//! A pool's vdevs on modelled disks, and the readers of the founding measurement, in virtual time.
//!
//! The vdev layer is the one that reads pools; disks are models with exact service times (`cenote_taskq::sim::model`); nothing
//! else has a cost. So a run is a comparison of policies on the same disks under the same load, and the same every time.
//!
//! # The load
//!
//! 16 readers, each with a file of its own, records of 128 KiB, as in the measurement of 2013 (mechanism M3). Its figures
//! depend as much on its prefetcher as on its mirrors, so the prefetcher is part of the load ([`Streams`]):
//!
//! * A reader's place in a file that was read up to there is a *stream*. Each record read from it doubles how far it is read
//!   ahead, up to 256 records: 32 MiB.
//! * A file has up to 8 streams. One that was not read for 3 seconds makes room for another; until then nothing is read ahead
//!   of reads that belong to no stream.
//!
//! A random 1 MiB is 8 records in a row: the second to eighth double the read-ahead to 128 records. So it moves 17 MiB, 16 of
//! them for nothing, unless the file has its 8 streams already; which is why 2 striped drives of the table that read 226 MB/s in
//! sequence read 11 random megabytes a second, and why random 1 MiB reads follow the pool's sequential rate until there are more
//! than 8 / 3 a second of each file.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::sim::disk::{SimDisk, SimDiskOptions};
use cenote_taskq::sim::model::{Flash, FlashOptions, Rotating, RotatingOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Instant, Join, JoinSet, OpenOptions, Rng, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{ReadContext, VdevTree};
use cenote_vdev::tunables::Tunables;

/// A record of a file.
const RECORD: u64 = 128 << 10;
/// How much goes to one top-level vdev before the next, for each of its children: OpenZFS's `metaslab_aliquot` of the time.
const ALIQUOT: u64 = 512 << 10;
/// How many records a stream is read ahead at most, how many streams a file has, and after how long one makes room for another:
/// `zfetch_block_cap`, `zfetch_max_streams` and `zfetch_min_sec_reap` of the time, the last in whole seconds that must be passed.
const AHEAD_MAX: u64 = 256;
const STREAMS_MAX: usize = 8;
const REAP: Duration = Duration::from_secs(3);

/// One disk's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Model {
    /// With a head.
    Rotating(RotatingOptions),
    /// Without.
    Flash(FlashOptions),
}

/// The reads of each reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Each reads its file in pieces of so many bytes.
    Sequential(u64),
    /// Each reads so many neighbouring records at a random place.
    Random(u64),
    /// Each reads 4 KiB at a random place, and no more than that is read.
    Small,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Virtual seconds.
    pub(crate) seconds: f64,
    /// Pieces that readers got.
    pub(crate) pieces: u64,
    /// Bytes that readers got.
    pub(crate) bytes: u64,
    /// Time of each piece in nanoseconds, sorted.
    pub(crate) times_ns: Vec<u64>,
    /// Reads that the tree was asked for.
    pub(crate) asked: u64,
    /// Reads that its disks got.
    pub(crate) sent: u64,
}

impl Outcome {
    /// Pieces a second.
    pub(crate) fn per_s(&self) -> f64 {
        self.pieces as f64 / self.seconds
    }

    /// Megabytes a second.
    pub(crate) fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    /// The time in milliseconds within which this share of the pieces came.
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let index = ((self.times_ns.len() as f64 * share) as usize).min(self.times_ns.len().saturating_sub(1));
        self.times_ns.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    }

    /// Reads that were sent beyond those asked for, as a share.
    pub(crate) fn extra(&self) -> f64 {
        self.sent as f64 / self.asked.max(1) as f64 - 1.0
    }
}

/// Disks as mirrors, side by side.
pub(crate) struct Rig {
    runtime: Runtime,
    tree: Arc<VdevTree>,
    disks: Vec<Arc<SimDisk>>,
    tops: u64,
    ways: u64,
    classes: bool,
}

fn vdev(kind: &str, guid: u64, id: u64) -> NvList {
    let mut list = NvList::new();
    list.push("type", kind);
    list.push("guid", guid);
    list.push("id", id);
    list.push("ashift", 12_u64);
    list
}

impl Rig {
    /// `tops` vdevs, each a mirror of disks of these models; a single disk is no mirror.
    pub(crate) fn new(seed: u64, tops: u64, models: &[Model], tunables: &Tunables) -> Self {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let sim = runtime.sim().expect("it is simulated");
        sim.set_step_time_max(Duration::ZERO);
        let (mut lists, mut disks, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        for top in 0..tops {
            let mut leaves = Vec::new();
            for (id, model) in (0_u64..).zip(models) {
                let guid = 100 + top * 100 + id;
                let path = PathBuf::from(format!("/disk{guid}"));
                let (rotational, size_bytes) = match model {
                    Model::Rotating(options) => (true, options.size_bytes),
                    Model::Flash(_) => (false, 1 << 40),
                };
                let disk =
                    sim.add_disk(&handle, &path, SimDiskOptions { size_bytes, rotational, ..Default::default() });
                match *model {
                    Model::Rotating(options) => disk.set_model(Rotating::new(options)),
                    Model::Flash(options) => disk.set_model(Flash::new(options)),
                }
                let device = runtime.block_on(handle.open(&path, OpenOptions::default())).expect("it was added");
                opened.push((Guid(guid), Disk::whole(device)));
                disks.push(disk);
                leaves.push(vdev("file", guid, id));
            }
            lists.push(if models.len() == 1 {
                vdev("file", 100 + top * 100, top)
            } else {
                let mut mirror = vdev("mirror", 10 + top, top);
                mirror.push("children", NvValue::NvlistArray(leaves));
                mirror
            });
        }
        let mut root = vdev("root", 1, 0);
        root.push("children", NvValue::NvlistArray(lists));
        let config = VdevConfig::parse(&root).expect("a sound configuration");
        let tree = VdevTree::open_with(&config, opened, tunables, Some(handle)).expect("a sound configuration");
        Self { runtime, tree, disks, tops, ways: models.len() as u64, classes: true }
    }

    /// Without classes, as it was before there were any.
    pub(crate) fn without_classes(self) -> Self {
        Self { classes: false, ..self }
    }

    fn sent(&self) -> u64 {
        self.disks.iter().map(|disk| disk.counts().reads).sum()
    }

    /// Has `readers` read files of `file_bytes` for `seconds`, after some time to get going.
    pub(crate) fn run(&self, work: Work, readers: u64, file_bytes: u64, seconds: f64) -> Outcome {
        let handle = self.runtime.handle();
        let span = Duration::from_secs_f64(seconds);
        // Streams fill before anything is steady.
        let warm = if work == Work::Small { span / 10 } else { span / 2 };
        let begin = handle.now() + warm;
        let shared = Arc::new(Shared {
            tree: Arc::clone(&self.tree),
            handle: handle.clone(),
            classes: self.classes,
            asked: AtomicU64::new(0),
            begin,
            end: begin + span,
            outcome: Mutex::default(),
        });
        let sent_before = self.sent();
        self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for index in 0..readers {
                let reader = Reader {
                    shared: Arc::clone(&shared),
                    places: Places {
                        start: index * file_bytes,
                        file_bytes,
                        tops: self.tops,
                        turn: ALIQUOT * self.ways,
                    },
                    streams: Streams::default(),
                    rng: Rng::new(1000 + index),
                };
                set.push(handle.spawn(Class::Issue, reader.run(work)));
            }
            while let Some(done) = set.next().await {
                done.expect("no reader fails");
            }
        });
        let mut outcome = std::mem::take(&mut *shared.outcome.lock());
        outcome.times_ns.sort_unstable();
        outcome.seconds = seconds;
        outcome.asked = shared.asked.load(Ordering::Relaxed);
        outcome.sent = self.sent() - sent_before;
        outcome
    }
}

/// Where a file lies.
#[derive(Clone, Copy)]
struct Places {
    start: u64,
    file_bytes: u64,
    tops: u64,
    turn: u64,
}

impl Places {
    fn at(&self, byte: u64) -> (VdevId, u64) {
        let byte = self.start + byte % self.file_bytes;
        let (chunk, within) = (byte / self.turn, byte % self.turn);
        (VdevId((chunk % self.tops) as u32), chunk / self.tops * self.turn + within)
    }
}

struct Shared {
    tree: Arc<VdevTree>,
    handle: Handle,
    /// Whether what is read ahead is less urgent than what is waited for.
    classes: bool,
    asked: AtomicU64,
    begin: Instant,
    end: Instant,
    outcome: Mutex<Outcome>,
}

type Read = Join<()>;

/// A stream: reads that were sent and not asked for yet, in order.
struct Stream {
    /// The record after the last that was asked for.
    next: u64,
    ahead: u64,
    sent: VecDeque<Read>,
    used: Instant,
}

/// A file's streams.
#[derive(Default)]
struct Streams(Vec<Stream>);

struct Reader {
    shared: Arc<Shared>,
    places: Places,
    streams: Streams,
    rng: Rng,
}

impl Reader {
    async fn run(mut self, work: Work) {
        // Readers do not start in step.
        let records = self.places.file_bytes / RECORD;
        let mut next = self.rng.below(records) * RECORD;
        while self.shared.handle.now() < self.shared.end {
            let began = self.shared.handle.now();
            let size = match work {
                Work::Sequential(size) => {
                    if next.is_multiple_of(RECORD) {
                        self.records(next / RECORD, size.div_ceil(RECORD)).await;
                    }
                    next += size;
                    size
                }
                Work::Random(count) => {
                    let first = self.rng.below(records / count) * count;
                    self.records(first, count).await;
                    count * RECORD
                }
                Work::Small => {
                    let byte = self.rng.below(self.places.file_bytes / 4096) * 4096;
                    self.send(byte, 4096, QueueClass::SyncRead).await.expect("no read fails");
                    4096
                }
            };
            self.shared.got(began, size);
        }
        // Reads that are still out belong to no one: they are left to end by themselves.
        for read in self.streams.0.drain(..).flat_map(|stream| stream.sent) {
            read.await.expect("no read fails");
        }
    }

    fn send(&self, byte: u64, size: u64, class: QueueClass) -> Read {
        let (vdev, offset) = self.places.at(byte);
        let shared = Arc::clone(&self.shared);
        shared.asked.fetch_add(1, Ordering::Relaxed);
        shared.handle.clone().spawn(Class::Issue, async move {
            let context = ReadContext::new(Txg(1)).of_class(if shared.classes { class } else { QueueClass::SyncRead });
            shared.tree.read(vdev, offset, size, &|_: &[u8]| true, &context).await.expect("healthy disks");
        })
    }

    /// Asks for records in a row, and waits for them.
    async fn records(&mut self, first: u64, count: u64) {
        let mut reads = Vec::new();
        for record in first..first + count {
            reads.push(self.record(record));
        }
        // Records that were read ahead and have not come yet are waited for from now on.
        for record in first..first + count {
            let (vdev, offset) = self.places.at(record * RECORD);
            self.shared.tree.hurry(vdev, offset, RECORD, Txg(1));
        }
        for read in reads {
            read.await.expect("no read fails");
        }
    }

    /// Asks for a record, and reads ahead as its stream says.
    fn record(&mut self, record: u64) -> Read {
        let now = self.shared.handle.now();
        let Some(index) = self.streams.0.iter().position(|stream| stream.next == record) else {
            let old = self.streams.0.iter().position(|stream| now - stream.used >= REAP);
            if let Some(old) = old {
                self.streams.0.swap_remove(old);
            }
            if self.streams.0.len() < STREAMS_MAX {
                self.streams.0.push(Stream { next: record + 1, ahead: 1, sent: VecDeque::new(), used: now });
            }
            return self.send(record * RECORD, RECORD, QueueClass::SyncRead);
        };
        let (ahead, there) = {
            let stream = &mut self.streams.0[index];
            stream.next = record + 1;
            stream.ahead = (stream.ahead * 2).min(AHEAD_MAX);
            stream.used = now;
            (stream.ahead, stream.sent.len() as u64)
        };
        // The record itself is the first of those that were sent, if any were.
        let more: Vec<Read> =
            (there..=ahead).map(|index| self.send((record + index) * RECORD, RECORD, QueueClass::AsyncRead)).collect();
        let stream = &mut self.streams.0[index];
        stream.sent.extend(more);
        stream.sent.pop_front().expect("at least one was sent")
    }
}

impl Shared {
    fn got(&self, began: Instant, bytes: u64) {
        let now = self.handle.now();
        if now > self.begin && now <= self.end {
            let mut outcome = self.outcome.lock();
            outcome.pieces += 1;
            outcome.bytes += bytes;
            outcome.times_ns.push((now - began).as_nanos() as u64);
        }
    }
}
