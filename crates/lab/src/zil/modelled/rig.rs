//! A pool of modelled drives with volumes, and writers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_format::enums::ObjsetType;
use cenote_spa::{DiskSpec, Pool, TopKind, TopSpec};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{Class, Device, Handle, Instant, Join, OpenOptions, Rng, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeSpec};
use serde::Serialize;

use crate::zil::batch::Batch;
use crate::zil::drive::Drive;
use crate::zil::{LogCounts, WRITE_BYTES, log_counts, quantile_us};
use cenote_bench::writing::rig::{PoolSpec, new_pool, noise, opened_with};

/// Volumes that are written at once.
pub(super) const VOLUMES: usize = 4;
const VOLUME_BYTES: u64 = 8 << 20;
/// So large that nothing has to be freed while it is measured: where space is short txgs follow one another, and their writes are what is
/// measured. Memory takes what is written.
const DISK_BYTES: u64 = 512 << 20;
const DIRTY_MAX_BYTES: u64 = 256 << 20;
/// Rates are compared over spans of this length.
const WINDOW: Duration = Duration::from_millis(100);
/// A pool's only vdev.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) name: &'static str,
    pub(super) parity: u64,
    pub(super) disks: usize,
}

/// From an answer to the client's next write, in nanoseconds: least and most.
const TURN_NS: (u64, u64) = (10_000, 30_000);

/// How commits are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the log does, which holds a block back for so many percent of the last ones' latency at most.
    Pipeline { commit_timeout_pct: u64 },
    /// As OpenZFS did before.
    Batch,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) layout: Layout,
    pub(super) drive: Drive,
    /// On each volume.
    pub(super) writers: usize,
    pub(super) way: Way,
    /// Most time of a step of a task, of all of which one goes on at a time.
    pub(super) step_max: Duration,
    /// Between txgs.
    pub(super) txg_s: u64,
    pub(super) seed: u64,
    /// Measured, after half as long.
    pub(super) span: Duration,
    /// The measured time has so many turns. Between two of them the writers of a volume pause for a time that is theirs: a sixteenth of a turn
    /// at most. Volumes share drives, so they fall into step in one of several ways, which last, and one run is to see many.
    pub(super) turns: u32,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) per_s: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// Of the rates of windows: their deviation, as a part of their mean. None of fewer than ten windows.
    pub(super) variation: Option<f64>,
    /// For each commit.
    pub(super) blocks: f64,
    pub(super) bytes: f64,
    pub(super) flushes: f64,
    /// Synced while it was measured.
    pub(super) txgs: u64,
}

/// The end of a commit, and how long it took.
type Commit = (Instant, Duration);

struct Rig {
    handle: Handle,
    pool: Pool,
    volumes: Vec<Arc<LiveVolume>>,
    /// One for each volume; none where the log is asked itself.
    batches: Vec<Arc<Batch>>,
}

impl Rig {
    async fn new(handle: Handle, case: Case) -> Result<Self> {
        let paths: Vec<PathBuf> = (0..case.layout.disks).map(|index| format!("/disk{index}").into()).collect();
        let mut disks = Vec::new();
        for path in &paths {
            let options = SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() };
            handle.sim().context("it is simulated")?.add_disk(&handle, path, options).set_model(case.drive.model());
            let disk = handle.open(path, OpenOptions { write: true, ..OpenOptions::default() }).await?;
            disks.push(DiskSpec { disk: Disk::whole(disk), path: path.display().to_string(), is_file: true });
        }
        let kind = TopKind::Raidz { parity: case.layout.parity };
        let spec = PoolSpec { size_bytes: 0, has_log: true, metaslabs_min: 16, dirty_max_bytes: DIRTY_MAX_BYTES };
        let pool = new_pool(&handle, vec![TopSpec { kind, class: AllocationClass::Normal, disks }], spec).await?;
        let (settings, count) = match case.way {
            Way::Pipeline { commit_timeout_pct } => {
                let mut settings = cenote_spa::tunables::settings();
                settings.set_from(&format!("zfs_commit_timeout_pct={commit_timeout_pct}"))?;
                (settings, 0)
            }
            Way::Batch => (Batch::settings()?, VOLUMES),
        };
        let pool = opened_with(&handle, pool, &paths, settings).await?;
        let mut devices: Vec<Arc<Device>> = Vec::new();
        for path in &paths {
            devices.push(Arc::new(handle.open(path, OpenOptions::default()).await?));
        }
        let batches = (0..count).map(|_| Arc::new(Batch::new(devices.clone()))).collect();
        let pace =
            TxTunables { zfs_txg_timeout: case.txg_s, zfs_dirty_data_max: DIRTY_MAX_BYTES, ..TxTunables::default() };
        let pool = pool.start(pace).await;
        let mut volumes = Vec::new();
        for index in 0..VOLUMES {
            volumes.push(Arc::new(volume(&pool, index).await?));
        }
        pool.sync().await?;
        Ok(Self { handle, pool, volumes, batches })
    }

    /// Writes at random until a moment; what was written from another moment on.
    fn writer(
        &self,
        volume: usize,
        writer: u64,
        case: Case,
        begin: Instant,
        end: Instant,
    ) -> Join<Result<Vec<Commit>>> {
        let (handle, batch) = (self.handle.clone(), self.batches.get(volume).cloned());
        let live = self.volumes[volume].clone();
        let mut rng = Rng::new(case.seed << 32 | (volume as u64) << 16 | writer);
        let (least, most) = TURN_NS;
        let turn = case.span / case.turns.max(1);
        let mut turn_end = begin;
        // The same for all writers of the volume.
        let mut pauses = Rng::new(case.seed << 8 | volume as u64);
        self.handle.spawn(Class::Issue, async move {
            let (data, mut commits) = (noise(WRITE_BYTES, rng.next_u64()), Vec::new());
            loop {
                // The first too: they do not begin at once.
                handle.sleep(Duration::from_nanos(least + rng.below(most - least + 1))).await;
                while case.turns > 1 && handle.now() >= turn_end {
                    let most_ns = u64::try_from(turn.as_nanos())? / 16;
                    handle.sleep_until(turn_end + Duration::from_nanos(pauses.below(most_ns))).await;
                    turn_end = turn_end + turn;
                }
                let begun = handle.now();
                if begun >= end {
                    return Ok(commits);
                }
                live.write(rng.below(VOLUME_BYTES / WRITE_BYTES as u64) * WRITE_BYTES as u64, &data).await?;
                match &batch {
                    Some(batch) => batch.commit(async { Ok(live.commit_if_sync(false).await?) }).await?,
                    None => live.commit_if_sync(false).await?,
                }
                let ended = handle.now();
                if ended >= begin && ended < end {
                    commits.push((ended, ended - begun));
                }
            }
        })
    }

    fn counts(&self) -> Result<LogCounts> {
        let mut counts = log_counts(&self.pool)?;
        counts.flushes += self.batches.iter().map(|batch| batch.batches()).sum::<u64>();
        Ok(counts)
    }

    async fn measured(self, case: Case) -> Result<Outcome> {
        let begin = self.handle.now() + case.span / 2;
        let end = begin + case.span;
        let writers: Vec<_> = (0..VOLUMES)
            .flat_map(|volume| (0..case.writers as u64).map(move |writer| (volume, writer)))
            .map(|(volume, writer)| self.writer(volume, writer, case, begin, end))
            .collect();
        self.handle.sleep_until(begin).await;
        let (before, first) = (self.counts()?, self.pool.txgs().synced_txg());
        self.handle.sleep_until(end).await;
        let (after, last) = (self.counts()?, self.pool.txgs().synced_txg());
        let mut commits = Vec::new();
        for writer in writers {
            commits.extend(writer.await.map_err(|error| anyhow!("{error}"))??);
        }
        self.pool.export().await?;
        Outcome::of(&commits, begin, case.span, after.since(before), last.0 - first.0)
    }
}

async fn volume(pool: &Pool, index: usize) -> Result<LiveVolume> {
    let name = format!("bench/v{index}");
    let made = pool.create_dataset(&name, ObjsetType::Zvol).await?;
    let spec = VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 4 << 10 };
    Volume::create(&made.objset, pool.txg(), &spec).await?;
    let head = pool.open_head(&name).await?;
    let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Always)).await?;
    let data = noise(1 << 20, index as u64);
    for at in 0..VOLUME_BYTES >> 20 {
        volume.write(at << 20, &data).await?;
    }
    Ok(volume)
}

impl Outcome {
    fn of(commits: &[Commit], begin: Instant, span: Duration, log: LogCounts, txgs: u64) -> Result<Self> {
        ensure!(!commits.is_empty(), "nothing was written");
        let count = commits.len() as f64;
        let mut times: Vec<u64> = commits.iter().map(|(_, took)| took.as_nanos() as u64).collect();
        times.sort_unstable();
        let mut windows = vec![0.0_f64; (span.as_nanos() / WINDOW.as_nanos()) as usize];
        for (ended, _) in commits {
            let index = ((*ended - begin).as_nanos() / WINDOW.as_nanos()) as usize;
            // Commits behind the last whole window are in none.
            if let Some(window) = windows.get_mut(index) {
                *window += 1.0;
            }
        }
        let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / windows.len() as f64;
        let mean = mean_of(&mut windows.iter().copied());
        let variance = mean_of(&mut windows.iter().map(|window| (window - mean).powi(2)));
        Ok(Self {
            per_s: count / span.as_secs_f64(),
            median_us: quantile_us(&times, 0.5),
            p99_us: quantile_us(&times, 0.99),
            p999_us: quantile_us(&times, 0.999),
            variation: (windows.len() >= 10).then(|| variance.sqrt() / mean),
            blocks: log.blocks as f64 / count,
            bytes: log.bytes as f64 / count,
            flushes: log.flushes as f64 / count,
            txgs,
        })
    }
}

impl Case {
    /// Runs it in a simulation of its own.
    pub(super) fn run(self) -> Result<Outcome> {
        let runtime = Runtime::simulated(self.seed);
        let handle = runtime.handle();
        let sim = runtime.sim().context("it is simulated")?;
        sim.set_steps_max(u64::MAX);
        sim.set_step_time_max(self.step_max);
        let work = {
            let handle = handle.clone();
            async move { Rig::new(handle, self).await?.measured(self).await }
        };
        runtime.block_on(handle.spawn(Class::Issue, work)).map_err(|error| anyhow!("{error}"))?
    }
}
