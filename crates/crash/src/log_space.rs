//! Pools that are short of space while clients wait for every write: the log of few bytes that are overwritten again and again may not take
//! the space that txgs need.
//!
//! # Theory
//!
//! **Need.** The lives of [`crate::life`] have so small files, and txgs so soon after each other, that a log is never long. A log that is
//! longer than what is left of a pool needs a txg that stays open, and clients that overwrite the same blocks. Then neither may a client
//! stop the pool, nor a crash leave a pool that cannot be opened any more.
//!
//! **Life of one.** A pool of 64 to 128 MiB on one disk, a mirror or raidz, with a log device or without one, empty or filled until it
//! refuses more, gets some clients. Each overwrites a few blocks of a file or of a volume, and waits until each write is stable. No txg is
//! written but for want of space. The log device may fail meanwhile. The power goes after any number of bytes, and while the log is replayed;
//! then the pool is opened again.
//!
//! **Verdict.** The pool is never suspended, and somebody is answered; it opens after each cut; each sector of a block is of a write that was
//! begun, and not of one before the last that was answered; `verify` finds nothing wrong before the pool is opened and when it is exported.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{SyncMode, TxError, TxTunables};
use cenote_format::enums::ObjsetType;
use cenote_sim::{CACHE_BYTES, Layout, Machine, check, new_pool, options};
use cenote_spa::{Clock, ImportOptions, Pool, TopKind, WriteOptions, open};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Either, Handle, Rng, Runtime, join_all, race};
use cenote_testkit::campaign::take_panics;
use cenote_vdev::config::AllocationClass;
use cenote_zil::Log;
use cenote_zpl::{File, FileSystem, FileSystemOptions, NewNode, ZplError};
use cenote_zvol::live::{LiveVolume, LiveVolumeError};
use cenote_zvol::{Volume, VolumeSpec};

use crate::judge::found;
use crate::life::{host, run};
use crate::stage::words;

const POOL: &str = "small";
const VOLUME: &str = "small/v";
const MIB: u64 = 1 << 20;
/// A write that nobody was answered for may be there in part, to the sector.
const SECTOR_BYTES: usize = 512;
/// Blocks that a client overwrites.
const SLOTS: u64 = 4;
/// Clients that have files; one more has the volume.
const FILES: u64 = 3;
/// A part of the reason with which a pool without space is suspended.
pub const NO_SPACE: &str = "no space for a block";
const FILL: &[u8] = b"fill";
/// Bytes of the file that fills the pool which are written at a time, and taken off its end afterwards.
const FILL_BYTES: usize = 128 << 10;
const LEFT_BYTES: u64 = 4 * MIB;
/// Begins the reason why a pool does not open: nothing is replayed yet.
const UNOPENED: &str = "to be written";
/// A log without a limit is given so many times the size of its pool: more than there is space for.
const UNLIMITED_LOADS: u64 = 2;
/// Somebody is answered within this time, and a pool is open.
const ANSWER_MAX: Duration = Duration::from_secs(300);
/// The pool is looked at so often.
const LOOK: Duration = Duration::from_millis(2);
/// A client that was refused for want of space waits so long.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Polls that a life may take.
const STEPS_MAX: u64 = 50_000_000;

const LAYOUTS: [Layout; 3] = [&[(TopKind::Single, 1)], &[(TopKind::Mirror, 2)], &[(TopKind::Raidz { parity: 1 }, 3)]];

/// The shape of a life.
#[derive(Clone, Debug)]
struct Shape {
    size_bytes: u64,
    layout: Layout,
    has_log: bool,
    log_fails: bool,
    is_full: bool,
    /// Sectors of a client's block.
    sectors: usize,
    record_bytes: u32,
    volume_block_bytes: u32,
    /// Sectors of vdevs, as a power of two.
    ashift: u32,
    sync: SyncMode,
    is_for_throughput: bool,
}

impl Shape {
    /// Each third life from the second on has blocks that are smaller than sectors: each takes a whole one.
    fn draw(number: u64, rng: &mut Rng) -> Self {
        let mut shape = Self::draw_large(rng);
        if number % 3 == 1 {
            let mut rng = Rng::new(number);
            shape.ashift = 12 + rng.below(2) as u32;
            shape.record_bytes = 512 << rng.below(3);
            shape.volume_block_bytes = 512 << rng.below(3);
            shape.sectors /= 4;
        }
        shape
    }

    fn draw_large(rng: &mut Rng) -> Self {
        let layout = LAYOUTS[rng.below(8).saturating_sub(5) as usize];
        let has_log = rng.chance(1, 3);
        let sectors = [32, 32, 128, 256][rng.below(4) as usize];
        Self {
            size_bytes: (64 + 32 * rng.below(3)) * MIB,
            layout,
            has_log,
            log_fails: has_log && rng.chance(1, 2),
            is_full: rng.chance(1, 2),
            sectors,
            record_bytes: if rng.chance(1, 2) { 16 << 10 } else { 128 << 10 },
            volume_block_bytes: 16 << 10,
            ashift: 12,
            sync: if rng.chance(1, 4) { SyncMode::Always } else { SyncMode::Standard },
            is_for_throughput: rng.chance(1, 4),
        }
    }

    fn disks(&self) -> usize {
        self.layout.iter().map(|(_, count)| count).sum::<usize>() + usize::from(self.has_log)
    }

    /// Clients whose blocks are smaller than sectors write one part in so many: each of their bytes takes more, and waits longer for room.
    const fn load_part(&self) -> u64 {
        if self.record_bytes < 4 << 10 { 8 } else { 1 }
    }

    /// Bytes that the last of a file which fills the pool is cut by.
    const fn left_bytes(&self) -> u64 {
        if self.record_bytes < 4 << 10 { LEFT_BYTES / 16 } else { LEFT_BYTES }
    }

    const fn block_bytes(&self) -> u64 {
        (self.sectors * SECTOR_BYTES) as u64
    }
}

/// The versions of a client's block: that of the last write, and of the last that was answered.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    begun: u64,
    promised: u64,
}

/// Of a client.
type Slots = Arc<Mutex<[Slot; SLOTS as usize]>>;

/// The writes of clients.
#[derive(Clone)]
enum Target {
    File(File, Arc<Log>),
    Volume(Arc<LiveVolume>),
}

/// How a life ended well.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Bytes of writes that were answered.
    pub answered_bytes: u64,
    /// Writes that were refused for want of space.
    pub refused: u64,
    /// Txgs that were written while clients wrote.
    pub txgs: u64,
    /// A log without a limit took all space of the pool, which was suspended.
    pub was_suspended: bool,
    /// It took so much that the txg that claims it has no place, so the pool stays as it is.
    pub is_beyond_help: bool,
}

fn sector(client: u64, slot: u64, at: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR_BYTES];
    if version > 0 {
        Rng::new(client << 56 ^ slot << 48 ^ (at as u64) << 40 ^ version).fill(&mut bytes);
        bytes[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

fn block(client: u64, slot: u64, sectors: usize, version: u64) -> Vec<u8> {
    (0..sectors).flat_map(|at| sector(client, slot, at, version)).collect()
}

/// An open pool.
struct Open {
    pool: Pool,
    targets: Vec<Target>,
    filesystem: FileSystem,
}

/// A life.
struct Life {
    shape: Shape,
    handle: Handle,
    machine: Machine,
    clients: Vec<Slots>,
}

/// Lives the life of this number: its shape in words, and how it ended.
///
/// # Errors
/// The fault that was found, in words.
pub fn live(number: u64) -> Result<(String, Done), String> {
    with_life(number, async |life, rng| life.run(rng).await)
}

/// The pool of this number as an engine leaves it whose logs have no limit: a log takes all space, and the power goes. It is opened by one
/// that has the limit, and goes on. Where large blocks of data have little space left, each few of them wait for a txg that gives them some.
/// It frees the log too, which so takes no more; the power goes after a while.
///
/// A pool whose logs leave less than a claim takes, some 200 KiB, is beyond help: it is told apart, and counted.
///
/// # Errors
/// The fault that was found, in words.
pub fn rescue(number: u64) -> Result<(String, Done), String> {
    with_life(number, async |life, rng| life.rescue(rng).await)
}

fn with_life<T>(
    number: u64,
    lived: impl AsyncFnOnce(&Life, &mut Rng) -> Result<T, String>,
) -> Result<(String, T), String> {
    take_panics();
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6c6f_6773;
    let mut rng = Rng::new(seed);
    let shape = Shape::draw(number, &mut rng);
    let runtime = Runtime::simulated(seed);
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(STEPS_MAX);
    }
    let options =
        SimDiskOptions { size_bytes: shape.size_bytes, latency: Latency::default(), ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, shape.disks(), &options);
    let clients = (0..=FILES).map(|_| Slots::default()).collect();
    let life = Life { shape: shape.clone(), handle: runtime.handle(), machine, clients };
    let done = run(&runtime, lived(&life, &mut rng));
    done.map(|done| (format!("{shape:?}"), done)).map_err(|error| format!("{shape:?}: {error}"))
}

impl Life {
    async fn run(&self, rng: &mut Rng) -> Result<Done, String> {
        self.make().await?;
        let mut done = Done::default();
        let cuts = 1 + rng.below(2);
        for cut in 0..=cuts {
            let about = |error: String| format!("after {cut} cuts: {error}");
            let opened = self.open().await.map_err(about)?;
            self.judge(&opened).await.map_err(about)?;
            if cut == 0 && self.shape.is_full {
                self.fill(&opened).await.map_err(about)?;
            }
            let bytes = (self.shape.size_bytes / 4 + rng.below(self.shape.size_bytes * 2)) / self.shape.load_part();
            self.load(&opened, bytes, rng, &mut done).await.map_err(about)?;
            let Open { pool, targets, filesystem } = opened;
            if cut == cuts {
                drop((targets, filesystem));
                self.export(pool).await?;
                break;
            }
            self.cut(rng).await;
            drop((targets, filesystem, pool));
            self.machine.disks.iter().for_each(|disk| disk.clear_faults());
            self.verify().await.map_err(about)?;
            if rng.chance(1, 2) {
                // The power goes again while the log is replayed.
                let opening = self.handle.timeout(Duration::from_micros(rng.below(400_000)), self.open()).await;
                self.cut(rng).await;
                opening.transpose().map_err(about)?;
                self.verify().await.map_err(|error| format!("cut in a replay: {error}"))?;
            }
        }
        Ok(done)
    }

    async fn rescue(&self, rng: &mut Rng) -> Result<Done, String> {
        self.make().await?;
        let opened = self.open().await?;
        if self.shape.is_full {
            self.fill(&opened).await?;
        }
        mutant::set(Some(Mutant::LogSpaceUnlimited));
        let loaded = self.load(&opened, self.shape.size_bytes * UNLIMITED_LOADS, rng, &mut Done::default()).await;
        mutant::set(None);
        let was_suspended = match loaded {
            Ok(()) => false,
            Err(why) if why.contains(NO_SPACE) => true,
            Err(why) => return Err(format!("with logs that have no limit: {why}")),
        };
        self.cut(rng).await;
        drop(opened);
        self.machine.disks.iter().for_each(|disk| disk.clear_faults());
        self.verify().await?;
        let opened = match self.open().await {
            Err(why) if was_suspended && why.starts_with(UNOPENED) && why.contains("no space for") => {
                return Ok(Done { was_suspended, is_beyond_help: true, ..Done::default() });
            }
            opened => opened?,
        };
        self.judge(&opened).await?;
        let mut done = Done { was_suspended, ..Done::default() };
        self.load(&opened, self.shape.size_bytes / 4, rng, &mut done).await?;
        let Open { pool, targets, filesystem } = opened;
        drop((targets, filesystem));
        self.export(pool).await?;
        Ok(done)
    }

    /// Exports the pool, and finds nothing wrong with it when a log device that has failed meanwhile is there again.
    async fn export(&self, pool: Pool) -> Result<(), String> {
        pool.export().await.map_err(words)?;
        self.machine.disks.iter().for_each(|disk| disk.clear_faults());
        self.verify().await.map_err(|error| format!("exported: {error}"))
    }

    async fn cut(&self, rng: &mut Rng) {
        let how = if rng.chance(1, 2) { Crash::Random } else { Crash::LoseAll };
        self.machine.disks.iter().for_each(|disk| disk.crash(how));
        self.handle.sleep(Duration::from_secs(20)).await;
        self.machine.disks.iter().for_each(|disk| disk.power_on());
    }

    async fn verify(&self) -> Result<(), String> {
        let (txg, report) = check(&self.handle, &self.machine.paths).await.map_err(words)?;
        if report.is_clean() { Ok(()) } else { Err(format!("as of txg {txg}: {report}")) }
    }

    async fn make(&self) -> Result<(), String> {
        let mut layout = self.shape.layout.to_vec();
        layout.extend(self.shape.has_log.then_some((TopKind::Single, 1)));
        let mut tops = self.machine.tops(&self.handle, &layout).await.map_err(words)?;
        if self.shape.has_log {
            tops.last_mut().ok_or("no vdev")?.class = AllocationClass::Log;
        }
        let pool = new_pool(&self.handle, options(POOL, tops, self.shape.ashift)).await.map_err(words)?;
        let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.map_err(words)?;
        let size_bytes = SLOTS * self.shape.block_bytes();
        let spec = VolumeSpec { size_bytes, block_bytes: self.shape.volume_block_bytes };
        Volume::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
        pool.sync().await.map_err(words)?;
        pool.export().await.map_err(words)
    }

    fn paths(&self) -> &[PathBuf] {
        &self.machine.paths
    }

    /// Opens the pool and replays its logs, within some time.
    async fn open(&self) -> Result<Open, String> {
        let how = ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() };
        let options = WriteOptions { clock: Clock::Now, host: host(), check: true };
        let pool = open(&self.handle, found(&self.handle, self.paths()).await?, &how, options).await;
        let pool = pool.map_err(|error| format!("{UNOPENED}: {error}"))?;
        let pool = pool.start(TxTunables { zfs_txg_timeout: 3600, ..TxTunables::default() }).await;
        match self.handle.timeout(ANSWER_MAX, self.open_datasets(&pool)).await {
            Some(opened) => opened,
            None => Err(format!("its datasets do not open: {:?}", pool.suspended())),
        }
    }

    async fn open_datasets(&self, pool: &Pool) -> Result<Open, String> {
        let head = pool.open_head(POOL).await.map_err(words)?;
        let log = Arc::new(head.log(self.shape.sync));
        let options = FileSystemOptions { record_bytes: self.shape.record_bytes, ..FileSystemOptions::default() };
        let filesystem = FileSystem::open_logged(head.objset(), log.clone(), options).await;
        let filesystem = filesystem.map_err(|error| format!("{POOL}: {error}"))?;
        log.set_for_throughput(self.shape.is_for_throughput);
        let mut targets = Vec::new();
        for client in 0..FILES {
            let name = format!("f{client}").into_bytes();
            let file = match filesystem.lookup(filesystem.root(), &name).await {
                Ok(id) => filesystem.open_file(id).await.map_err(words)?,
                Err(_) => {
                    let new = NewNode { mode: 0o100_644, ..NewNode::default() };
                    filesystem.create_file(filesystem.root(), &name, &new).await.map_err(words)?.0
                }
            };
            targets.push(Target::File(file, log.clone()));
        }
        let head = pool.open_head(VOLUME).await.map_err(words)?;
        let volume = LiveVolume::open(head.objset(), head.log(self.shape.sync)).await.map_err(words)?;
        volume.replay().await.map_err(|error| format!("{VOLUME}: {error}"))?;
        volume.set_for_throughput(self.shape.is_for_throughput);
        targets.push(Target::Volume(Arc::new(volume)));
        Ok(Open { pool: pool.clone(), targets, filesystem })
    }

    /// Fills the pool until it refuses more, and takes a little back. A pool that is suspended meanwhile answers nobody.
    async fn fill(&self, opened: &Open) -> Result<(), String> {
        let watch = async {
            loop {
                self.handle.sleep(LOOK).await;
                if let Some(reason) = opened.pool.suspended() {
                    return format!("suspended while it was filled: {reason}");
                }
            }
        };
        match race(pin!(self.fill_up(opened)), pin!(watch)).await {
            Either::Left(filled) => filled,
            Either::Right(why) => Err(why),
        }
    }

    async fn fill_up(&self, opened: &Open) -> Result<(), String> {
        for (client, target) in opened.targets.iter().enumerate() {
            for slot in 0..SLOTS {
                self.write(client as u64, target, slot, &mut Done::default()).await?;
            }
        }
        let filesystem = &opened.filesystem;
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (file, _) = filesystem.create_file(filesystem.root(), FILL, &new).await.map_err(words)?;
        let (mut at, mut bytes) = (0, vec![0; FILL_BYTES]);
        loop {
            Rng::new(at + 1).fill(&mut bytes);
            match file.write(at, &bytes).await {
                Ok(()) => at += FILL_BYTES as u64,
                Err(ZplError::NoSpace) => break,
                Err(error) => return Err(format!("filling it: {error}")),
            }
        }
        file.truncate(at.saturating_sub(self.shape.left_bytes())).await.map_err(words)?;
        for _ in 0..4 {
            opened.pool.sync().await.map_err(words)?;
        }
        Ok(())
    }

    /// Has all clients write, until so many bytes were.
    async fn load(&self, opened: &Open, bytes: u64, rng: &mut Rng, done: &mut Done) -> Result<(), String> {
        let answered = Mutex::new(Done::default());
        let fails_at = if self.shape.log_fails { rng.below(bytes) } else { u64::MAX };
        let clients = opened.targets.iter().enumerate().map(|(client, target)| {
            let (answered, mut rng) = (&answered, Rng::new(rng.next_u64()));
            async move {
                loop {
                    let mut done = Done::default();
                    self.write(client as u64, target, rng.below(SLOTS), &mut done).await?;
                    {
                        let mut sum = answered.lock();
                        sum.answered_bytes += done.answered_bytes;
                        sum.refused += done.refused;
                        if sum.answered_bytes >= bytes {
                            return Ok(());
                        }
                    }
                    if done.refused > 0 {
                        self.handle.sleep(REFUSED_PAUSE).await;
                    }
                }
            }
        });
        let clients: Vec<_> = clients.collect();
        let clients = async { join_all(clients).await.into_iter().collect::<Result<(), String>>() };
        let watch = async {
            let (mut last, mut since) = (0, self.handle.now());
            loop {
                self.handle.sleep(LOOK).await;
                if let Some(reason) = opened.pool.suspended() {
                    return format!("suspended after {} MiB: {reason}", answered.lock().answered_bytes / MIB);
                }
                let now = answered.lock().answered_bytes;
                if now >= fails_at
                    && let Some(disk) = self.machine.disks.last()
                {
                    disk.set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
                }
                if now > last {
                    (last, since) = (now, self.handle.now());
                } else if self.handle.now() - since > ANSWER_MAX {
                    return format!("nobody was answered after {} MiB: {:?}", now / MIB, *answered.lock());
                }
            }
        };
        let txgs = opened.pool.history().len() as u64;
        match race(pin!(clients), pin!(watch)).await {
            Either::Left(ended) => ended?,
            Either::Right(why) => return Err(why),
        }
        let answered = *answered.lock();
        done.answered_bytes += answered.answered_bytes;
        done.refused += answered.refused;
        done.txgs += (opened.pool.history().len() as u64).saturating_sub(txgs);
        Ok(())
    }

    /// Overwrites a block, and waits until that is stable.
    async fn write(&self, client: u64, target: &Target, slot: u64, done: &mut Done) -> Result<(), String> {
        let slots = &self.clients[client as usize];
        let version = {
            let mut slots = slots.lock();
            slots[slot as usize].begun += 1;
            slots[slot as usize].begun
        };
        let bytes = block(client, slot, self.shape.sectors, version);
        let offset_bytes = slot * self.shape.block_bytes();
        let is_refused = match target {
            Target::File(file, log) => match file.write(offset_bytes, &bytes).await {
                Ok(()) => log.commit_if_sync(true, Some(file.id())).await.map(|()| false).map_err(words)?,
                Err(ZplError::NoSpace) => true,
                Err(error) => return Err(format!("client {client}: {error}")),
            },
            Target::Volume(volume) => match volume.write(offset_bytes, &bytes).await {
                Ok(_) => volume.commit_if_sync(true).await.map(|()| false).map_err(words)?,
                Err(LiveVolumeError::Tx(TxError::NoSpace)) => true,
                Err(error) => return Err(format!("client {client}: {error}")),
            },
        };
        match is_refused {
            true => done.refused += 1,
            false => {
                slots.lock()[slot as usize].promised = version;
                done.answered_bytes += self.shape.block_bytes();
            }
        }
        Ok(())
    }

    /// Compares what is there with what was written, and goes on from there.
    async fn judge(&self, opened: &Open) -> Result<(), String> {
        for (client, target) in opened.targets.iter().enumerate() {
            for slot in 0..SLOTS {
                let known = self.clients[client].lock()[slot as usize];
                let (at, len) = (slot * self.shape.block_bytes(), self.shape.block_bytes() as usize);
                let mut there = match target {
                    Target::File(file, _) => file.read(at, len).await.map_err(words)?.to_vec(),
                    Target::Volume(volume) => volume.volume().read(at, len).await.map_err(words)?.to_vec(),
                };
                there.resize(len, 0);
                for (index, bytes) in there.chunks(SECTOR_BYTES).enumerate() {
                    let version = u64::from_le_bytes(bytes[..8].try_into().map_err(words)?);
                    let is_known = (known.promised..=known.begun).contains(&version);
                    if !is_known || bytes != sector(client as u64, slot, index, version) {
                        let about = format!("client {client}, block {slot}, sector {index}");
                        return Err(format!("{about}: version {version:#x} is there, not one of {known:?}"));
                    }
                }
            }
        }
        Ok(())
    }
}
