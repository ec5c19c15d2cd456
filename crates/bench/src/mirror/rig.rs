//! A pool's vdevs on modelled disks, and readers that keep them busy, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::sim::disk::{SimDisk, SimDiskOptions};
use cenote_taskq::sim::model::{Flash, FlashOptions, Rotating, RotatingOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Instant, Join, JoinSet, OpenOptions, Rng, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::tree::{ReadContext, VdevTree};
use cenote_vdev::tunables::Tunables;

/// A record of a file.
pub(super) const RECORD: u64 = 128 << 10;
/// How much goes to one top-level vdev before the next, for each of its children: OpenZFS's `metaslab_aliquot` of the time.
const ALIQUOT: u64 = 512 << 10;

/// One disk's model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Model {
    Rotating(RotatingOptions),
    Flash(FlashOptions),
}

/// Disks as mirrors, side by side.
pub(super) struct Rig {
    pub(super) runtime: Runtime,
    tree: Arc<VdevTree>,
    disks: Vec<Arc<SimDisk>>,
    tops: u64,
    ways: u64,
}

/// What the readers do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Each reads its file in pieces of `piece` bytes, `ahead` bytes being read ahead.
    Sequential { piece: u64, ahead: u64 },
    /// Each reads `records` neighbouring records at a random place. A prefetcher that takes them for a stream reads
    /// `misled` bytes behind them for nothing.
    Random { records: u64, misled: u64 },
    /// Each reads 4 KiB at a random place.
    Small,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Virtual seconds.
    pub(super) seconds: f64,
    /// Pieces that readers got.
    pub(super) pieces: u64,
    /// Bytes that readers got.
    pub(super) bytes: u64,
    /// Time of each piece in nanoseconds, sorted.
    pub(super) times_ns: Vec<u64>,
    /// Reads that the tree was asked for, and reads that its disks got.
    pub(super) asked: u64,
    pub(super) sent: u64,
}

impl Outcome {
    pub(super) fn per_s(&self) -> f64 {
        self.pieces as f64 / self.seconds
    }

    pub(super) fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }

    /// The time in milliseconds within which this share of the pieces came.
    pub(super) fn quantile_ms(&self, share: f64) -> f64 {
        let index = ((self.times_ns.len() as f64 * share) as usize).min(self.times_ns.len().saturating_sub(1));
        self.times_ns.get(index).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    }

    /// Reads that were sent beyond those asked for, as a share.
    pub(super) fn extra(&self) -> f64 {
        self.sent as f64 / self.asked.max(1) as f64 - 1.0
    }
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
    pub(super) fn new(seed: u64, tops: u64, models: &[Model], tunables: &Tunables) -> Result<Self> {
        let runtime = Runtime::simulated(seed);
        let (handle, sim) = (runtime.handle(), runtime.sim().context("a simulation")?);
        sim.set_step_time_max(Duration::ZERO);
        let (mut lists, mut disks, mut opened) = (Vec::new(), Vec::new(), Vec::new());
        for top in 0..tops {
            let mut leaves = Vec::new();
            for (id, model) in (0_u64..).zip(models) {
                let guid = 100 + top * 100 + id;
                let path = format!("/disk{guid}");
                let (rotational, size_bytes) = match model {
                    Model::Rotating(options) => (true, options.size_bytes),
                    Model::Flash(_) => (false, 1 << 40),
                };
                let disk = sim.add_disk(&handle, &path, SimDiskOptions { size_bytes, rotational, ..Default::default() });
                match *model {
                    Model::Rotating(options) => disk.set_model(Rotating::new(options)),
                    Model::Flash(options) => disk.set_model(Flash::new(options)),
                }
                let device = runtime.block_on(handle.open(path.as_ref(), OpenOptions::default()))?;
                opened.push((Guid(guid), Disk::whole(device)));
                disks.push(disk);
                leaves.push(vdev("file", guid, id));
            }
            lists.push(if models.len() == 1 {
                let mut only = leaves.remove(0);
                only.push("id", top);
                only
            } else {
                let mut mirror = vdev("mirror", 10 + top, top);
                mirror.push("children", NvValue::NvlistArray(leaves));
                mirror
            });
        }
        let mut root = vdev("root", 1, 0);
        root.push("children", NvValue::NvlistArray(lists));
        let config = VdevConfig::parse(&root)?;
        let tree = VdevTree::open_with(&config, opened, tunables, Some(handle))?;
        Ok(Self { runtime, tree: Arc::new(tree), disks, tops, ways: models.len() as u64 })
    }

    fn sent(&self) -> u64 {
        self.disks.iter().map(|disk| disk.counts().reads).sum()
    }

    /// Has `readers` read files of `file_bytes` for `seconds`, after some time to get going.
    pub(super) fn run(&self, work: Work, readers: u64, file_bytes: u64, seconds: f64) -> Result<Outcome> {
        let handle = self.runtime.handle();
        let span = Duration::from_secs_f64(seconds);
        // Windows fill before anything is steady.
        let warm = if matches!(work, Work::Sequential { .. }) { span / 2 } else { span / 10 };
        let begin = handle.now() + warm;
        let end = begin + span;
        let shared = Arc::new(Shared {
            tree: Arc::clone(&self.tree),
            handle: handle.clone(),
            asked: AtomicU64::new(0),
            begin,
            end,
            outcome: Mutex::default(),
        });
        let sent_before = self.sent();
        self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for reader in 0..readers {
                let shared = Arc::clone(&shared);
                let place = self.places(reader * file_bytes, file_bytes);
                let rng = Rng::new(1000 + reader);
                set.push(handle.spawn(Class::Issue, async move { shared.read(work, place, rng).await }));
            }
            while let Some(done) = set.next().await {
                done.map_err(|error| anyhow::anyhow!("{error}"))??;
            }
            anyhow::Ok(())
        })?;
        let mut outcome = std::mem::take(&mut *shared.outcome.lock());
        outcome.times_ns.sort_unstable();
        outcome.seconds = seconds;
        outcome.asked = shared.asked.load(Ordering::Relaxed);
        outcome.sent = self.sent() - sent_before;
        Ok(outcome)
    }

    fn places(&self, start: u64, file_bytes: u64) -> Places {
        let (tops, turn) = (self.tops, ALIQUOT * self.ways);
        Places { start, file_bytes, tops, turn }
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
    asked: AtomicU64,
    begin: Instant,
    end: Instant,
    outcome: Mutex<Outcome>,
}

type Read = Join<Result<()>>;

impl Shared {
    fn send(self: &Arc<Self>, (vdev, offset): (VdevId, u64), size: u64) -> Read {
        let shared = Arc::clone(self);
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.handle.spawn(Class::Issue, async move {
            let context = ReadContext::new(Txg(1));
            shared.tree.read(vdev, offset, size, &|_: &[u8]| true, &context).await?;
            Ok(())
        })
    }

    fn got(&self, began: Instant, bytes: u64) {
        let now = self.handle.now();
        if now > self.begin && now <= self.end {
            let mut outcome = self.outcome.lock();
            outcome.pieces += 1;
            outcome.bytes += bytes;
            outcome.times_ns.push((now - began).as_nanos() as u64);
        }
    }

    async fn read(self: Arc<Self>, work: Work, places: Places, rng: Rng) -> Result<()> {
        match work {
            Work::Sequential { piece, ahead } => self.sequential(places, rng, piece, ahead).await,
            Work::Random { records, misled } => self.random(places, rng, records, misled).await,
            Work::Small => self.small(places, rng).await,
        }
    }

    async fn sequential(self: &Arc<Self>, places: Places, mut rng: Rng, piece: u64, ahead: u64) -> Result<()> {
        // Readers do not start in step.
        let mut sent = rng.below(places.file_bytes / RECORD) * RECORD;
        let mut window: VecDeque<Read> = VecDeque::new();
        while self.handle.now() < self.end {
            let began = self.handle.now();
            while (window.len() as u64) < (piece + ahead) / RECORD {
                window.push_back(self.send(places.at(sent), RECORD));
                sent += RECORD;
            }
            for _ in 0..piece / RECORD {
                let Some(read) = window.pop_front() else { break };
                read.await.map_err(|error| anyhow::anyhow!("{error}"))??;
            }
            self.got(began, piece);
        }
        for read in window {
            read.await.map_err(|error| anyhow::anyhow!("{error}"))??;
        }
        Ok(())
    }

    async fn random(self: &Arc<Self>, places: Places, mut rng: Rng, records: u64, misled: u64) -> Result<()> {
        let size = records * RECORD;
        let mut useless: VecDeque<Read> = VecDeque::new();
        while self.handle.now() < self.end {
            let began = self.handle.now();
            let byte = rng.below(places.file_bytes / size) * size;
            let reads: Vec<Read> = (0..records).map(|record| self.send(places.at(byte + record * RECORD), RECORD)).collect();
            for record in 0..misled / RECORD {
                useless.push_back(self.send(places.at(byte + size + record * RECORD), RECORD));
            }
            for read in reads {
                read.await.map_err(|error| anyhow::anyhow!("{error}"))??;
            }
            self.got(began, size);
            // No more is outstanding for nothing than one piece's worth.
            while useless.len() as u64 > misled / RECORD {
                let Some(read) = useless.pop_front() else { break };
                read.await.map_err(|error| anyhow::anyhow!("{error}"))??;
            }
        }
        for read in useless {
            read.await.map_err(|error| anyhow::anyhow!("{error}"))??;
        }
        Ok(())
    }

    async fn small(self: &Arc<Self>, places: Places, mut rng: Rng) -> Result<()> {
        while self.handle.now() < self.end {
            let began = self.handle.now();
            let byte = rng.below(places.file_bytes / 4096) * 4096;
            let (vdev, offset) = places.at(byte);
            self.asked.fetch_add(1, Ordering::Relaxed);
            let context = ReadContext::new(Txg(1));
            self.tree.read(vdev, offset, 4096, &|_: &[u8]| true, &context).await?;
            self.got(began, 4096);
        }
        Ok(())
    }
}
