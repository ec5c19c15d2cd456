//! A simulated disk: content in memory, a service time, faults on request, and a write cache that a crash empties.
//!
//! ```text
//!   write --> (service time) --> current, unflushed.push(write)     reads see `current`
//!   flush --> (service time) --> durable = durable + unflushed[..what there was when the flush began]
//!   stable write --> both services, and durable = durable + this write alone
//!   crash --> current = durable = durable + some of unflushed and of what was in flight, some of them torn
//!             ... and some of what was in flight lands later still, when others read already (`Late`)
//! ```
//!
//! The module [`medium`](super::medium) has the disk's content, and the part of it that a crash keeps.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::history::History;
pub use super::medium::{Crash, Image, Late};
use super::medium::{Event, Medium, Sectors, Write};
use super::model::{Asked, DeviceModel, Done};
pub use super::touched::Touched;
use crate::buf::{Block, Buf};
use crate::combine::race;
use crate::device::{BoxFuture, Device, Driver};
use crate::event::Notify;
use crate::handle::{Class, Handle};
use crate::oneshot;
use crate::open_options::check_aligned;
use crate::rng::Rng;
use crate::sync::Mutex;
use crate::time::Instant;

/// How to make a simulated disk.
#[derive(Clone, Debug)]
pub struct SimDiskOptions {
    /// Its size; with a base, at least the base's to see all of it.
    pub size_bytes: u64,
    /// Its sector: what is written as a whole or not at all. Writes of anything but whole ones are refused.
    pub sector_bytes: u32,
    /// The medium's sector, which the device says that it has. Where it is larger than the one above, a smaller write has the device
    /// read and write back the rest, and a torn write can destroy all of it ([`Crash::Garbage`]). 0: the same.
    pub physical_sector_bytes: u32,
    /// Whether it says that distance costs time.
    pub rotational: bool,
    /// Its initial content, shared until written. Beyond it, and without it, there are zeros.
    pub base: Option<Block>,
    /// How long requests take.
    pub latency: Latency,
    /// Whether writes are volatile until a flush. Without a cache each write is stable when it is done.
    pub write_cache: bool,
}

impl Default for SimDiskOptions {
    fn default() -> SimDiskOptions {
        SimDiskOptions {
            size_bytes: 64 << 20,
            sector_bytes: 512,
            physical_sector_bytes: 0,
            rotational: false,
            base: None,
            latency: Latency::default(),
            write_cache: true,
        }
    }
}

/// A constant service time for each kind of request, plus up to `jitter` drawn from the seed. Requests do not wait for
/// each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Of a read.
    pub read: Duration,
    /// Of a write.
    pub write: Duration,
    /// Of a flush.
    pub flush: Duration,
    /// The most that is added.
    pub jitter: Duration,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            read: Duration::from_micros(80),
            write: Duration::from_micros(20),
            flush: Duration::from_micros(500),
            jitter: Duration::from_micros(40),
        }
    }
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
}

/// A request as a fault hook or a service model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub kind: RequestKind,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub size_bytes: u64,
    /// How many requests this disk was given before.
    pub sequence: u64,
}

/// The fault that is injected into a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It fails with this error and no effect.
    Error(io::ErrorKind),
    /// A read gives wrong bytes, a write leaves wrong bytes, and neither says so: one bit in each sector is flipped.
    Corrupt,
    /// A read fills half and fails as at a device's end; a write leaves its first half and fails.
    Short,
    /// It never comes back.
    Hang,
    /// It takes this much longer.
    Delay(Duration),
    /// A write or a flush is acknowledged and not done.
    Lost,
    /// A read or a write is done at this offset instead of its own.
    Misdirected(u64),
}

type FaultHook = dyn FnMut(&Request, &mut Rng) -> Fault + Send;
type ServiceModel = dyn FnMut(&Request, Instant, &mut Rng) -> Duration + Send;

struct State {
    medium: Medium,
    sequence: u64,
    /// Counts crashes: a request that began before one fails after it.
    life: u64,
    off: bool,
    /// Openers from before this one are gone, and ask nothing more.
    openers: u64,
    rng: Rng,
    fault: Option<Box<FaultHook>>,
    service: Option<Box<ServiceModel>>,
    model: Option<Modelled>,
    counts: Counts,
    /// The history that notes each event of the medium, and this disk's number there.
    history: Option<(Arc<History>, usize)>,
    /// The content that requests depend on, if that is wanted.
    touched: Option<Touched>,
}

impl State {
    fn crash(&mut self, crash: Crash) {
        self.life += 1;
        self.off = true;
        self.medium.crash(crash, &mut self.rng);
        // From here on the medium's past is another one.
        self.history = None;
    }

    fn happens(&mut self, event: Event) {
        if let Some((history, disk)) = &self.history {
            history.note(*disk, event.clone());
        }
        self.medium.happens(event);
    }
}

/// A device model at work.
struct Modelled {
    model: Box<dyn DeviceModel>,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    /// Whether a task is driving the model. One does while there is anything to wait for.
    driven: bool,
}

/// How long a request takes.
enum Service {
    /// This long.
    For(Duration),
    /// Until the model says so.
    Until(oneshot::Receiver<()>),
}

/// Counts of the requests that a disk was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads begun.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes begun.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Flushes begun.
    pub flushes: u64,
}

/// A disk of a simulation. Holds its content whether or not anyone has it open.
pub struct SimDisk {
    handle: Handle,
    path: PathBuf,
    options: SimDiskOptions,
    state: Mutex<State>,
    /// Tells the driver of the model that its next event may have moved.
    submitted: Notify,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDisk({})", self.path.display())
    }
}

fn off() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the simulated disk is off")
}

impl SimDisk {
    pub(crate) fn new(handle: Handle, path: PathBuf, options: SimDiskOptions, seed: u64) -> Arc<SimDisk> {
        let sectors = Sectors {
            shown_bytes: options.sector_bytes,
            medium_bytes: options.physical_sector_bytes.max(options.sector_bytes),
            disk_bytes: options.size_bytes,
        };
        let image = Image::over(options.base.clone().unwrap_or_default());
        let medium = Medium::new(image, sectors, options.write_cache);
        Arc::new(SimDisk {
            handle,
            path,
            options,
            state: Mutex::new(State {
                medium,
                sequence: 0,
                life: 0,
                openers: 0,
                off: false,
                rng: Rng::new(seed),
                fault: None,
                service: None,
                model: None,
                counts: Counts::default(),
                history: None,
                touched: None,
            }),
            submitted: Notify::new(),
        })
    }

    /// Asks `hook` about every request from now on. It is called when a request begins, in the order they begin.
    pub fn set_faults(&self, hook: impl FnMut(&Request, &mut Rng) -> Fault + Send + 'static) {
        self.state.lock().fault = Some(Box::new(hook));
    }

    /// Nothing goes wrong from now on.
    pub fn clear_faults(&self) {
        self.state.lock().fault = None;
    }

    /// Has `model` say how long each request takes, in place of the constant latency.
    pub fn set_service_model(&self, model: impl FnMut(&Request, Instant, &mut Rng) -> Duration + Send + 'static) {
        self.state.lock().service = Some(Box::new(model));
    }

    /// Has `model` say when each request is done, in place of the constant latency; requests then wait for each other as
    /// they do on the device. For times that are exact, take the simulation's own steps out of them
    /// ([`Sim::set_step_time_max`](super::Sim::set_step_time_max)). Set it while nothing is outstanding.
    pub fn set_model(&self, model: impl DeviceModel + 'static) {
        self.state.lock().model = Some(Modelled { model: Box::new(model), waiting: BTreeMap::new(), driven: false });
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.options.size_bytes
    }

    /// The counts of requests so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Cuts the power: requests under way fail, and what was not flushed is treated as `crash` says. The disk stays off,
    /// failing everything, until [`SimDisk::power_on`].
    pub fn crash(&self, crash: Crash) {
        self.state.lock().crash(crash);
    }

    /// As [`SimDisk::crash`], but each write that was under way is late with even odds: it comes back, to be landed
    /// ([`SimDisk::land`]) on this disk or on another one with its content.
    #[must_use]
    pub fn crash_with_late(&self, crash: Crash) -> Late {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let late = state.medium.take_late(&mut state.rng);
        state.crash(crash);
        late
    }

    /// Late writes reach the medium, whole and for good.
    pub fn land(&self, late: &Late) {
        self.state.lock().medium.land(late);
    }

    /// Answers requests again.
    pub fn power_on(&self) {
        self.state.lock().off = false;
    }

    /// The processes that have it open are gone, and with them what they would still ask: for what is left of them in a simulation, it is off.
    pub fn forget_openers(&self) {
        self.state.lock().openers += 1;
    }

    /// The content that a reader would see now, to be kept, compared, or given to a disk of another simulation.
    pub fn image(&self) -> Image {
        self.state.lock().medium.current().clone()
    }

    /// Makes `image` the disk's content, stable and with nothing unflushed.
    pub fn restore(&self, image: &Image) {
        self.state.lock().medium.restore(image);
    }

    /// Has all that happens to the medium from now on noted, until a crash. Nothing may be poked, landed or restored meanwhile.
    pub fn record(&self, history: &Arc<History>) {
        let mut state = self.state.lock();
        let disk = history.begin(state.medium.clone());
        state.history = Some((Arc::clone(history), disk));
    }

    /// Has it noted what requests depend on from now on, beside what is known of the content already.
    pub fn note_touched(&self, before: Touched) {
        self.state.lock().touched = Some(before);
    }

    /// Takes that note.
    pub fn take_touched(&self) -> Option<Touched> {
        self.state.lock().touched.take()
    }

    /// Writes that are done and not flushed.
    pub fn unflushed_count(&self) -> usize {
        self.state.lock().medium.unflushed_count()
    }

    /// The bytes a reader would see now, without time or faults.
    pub fn peek(&self, offset_bytes: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.state.lock().medium.current().read(offset_bytes, &mut bytes);
        bytes
    }

    /// About the memory that its content takes, in bytes: for tests that look at the process's.
    pub fn memory_bytes(&self) -> u64 {
        self.state.lock().medium.memory_bytes()
    }

    /// Changes the stored bytes at once and for good, without time or faults: a test's damage.
    pub fn poke(&self, offset_bytes: u64, bytes: &[u8]) {
        self.state.lock().medium.poke(offset_bytes, bytes);
    }

    pub(crate) fn device(self: &Arc<Self>, writable: bool) -> Device {
        let opener = self.state.lock().openers;
        Device::from_driver(Arc::new(OpenDisk { disk: Arc::clone(self), writable, opener }))
    }

    /// Admits a request: its sequence, the disk's life it began in, its fault, and how long it takes.
    fn begin(
        self: &Arc<Self>,
        kind: RequestKind,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> io::Result<(u64, u64, Fault, Service)> {
        let now = self.handle.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.off {
            return Err(off());
        }
        let sequence = state.sequence;
        state.sequence += 1;
        let counts = &mut state.counts;
        match kind {
            RequestKind::Read => (counts.reads, counts.read_bytes) = (counts.reads + 1, counts.read_bytes + size_bytes),
            RequestKind::Write => {
                (counts.writes, counts.written_bytes) = (counts.writes + 1, counts.written_bytes + size_bytes);
            }
            RequestKind::Flush => counts.flushes += 1,
        }
        let request = Request { kind, offset_bytes, size_bytes, sequence };
        let fault = match &mut state.fault {
            Some(hook) => hook(&request, &mut state.rng),
            None => Fault::None,
        };
        if let Some(modelled) = &mut state.model
            && fault != Fault::Hang
        {
            let (sender, receiver) = oneshot::channel();
            modelled.settle(now);
            modelled.waiting.insert(sequence, sender);
            modelled.model.submit(now, Asked { id: sequence, kind, offset_bytes, size_bytes });
            if std::mem::replace(&mut modelled.driven, true) {
                self.submitted.all();
            } else {
                drop(self.handle.spawn(Class::Interrupt, Arc::clone(self).drive()));
            }
            return Ok((sequence, state.life, fault, Service::Until(receiver)));
        }
        let latency = &self.options.latency;
        let time = match &mut state.service {
            Some(model) => model(&request, now, &mut state.rng),
            None => {
                let jitter_ns = u64::try_from(latency.jitter.as_nanos()).unwrap_or(u64::MAX);
                let jitter = Duration::from_nanos(state.rng.below(jitter_ns.saturating_add(1)));
                jitter
                    + match kind {
                        RequestKind::Read => latency.read,
                        RequestKind::Write => latency.write,
                        RequestKind::Flush => latency.flush,
                    }
            }
        };
        Ok((sequence, state.life, fault, Service::For(time)))
    }

    /// Drives the model until nothing is outstanding.
    async fn drive(self: Arc<Self>) {
        loop {
            let submitted = self.submitted.wait();
            let next = {
                let now = self.handle.now();
                let mut state = self.state.lock();
                let Some(modelled) = &mut state.model else { return };
                modelled.settle(now);
                let next = modelled.model.next_event();
                modelled.driven = next.is_some();
                next
            };
            match next {
                Some(next) => {
                    race(self.handle.sleep_until(next), submitted).await;
                }
                None => return,
            }
        }
    }

    /// Waits out a request's time; fails if the power went meanwhile.
    async fn serve(&self, life: u64, fault: Fault, service: Service) -> io::Result<()> {
        if fault == Fault::Hang {
            std::future::pending::<()>().await;
        }
        let extra = match fault {
            Fault::Delay(extra) => extra,
            _ => Duration::ZERO,
        };
        match service {
            Service::For(time) => self.handle.sleep(time + extra).await,
            Service::Until(done) => {
                // The sender goes when the model is replaced: then the request is done at once.
                let _ = done.await;
                if !extra.is_zero() {
                    self.handle.sleep(extra).await;
                }
            }
        }
        let same_life = self.state.lock().life == life;
        if !same_life {
            return Err(off());
        }
        match fault {
            Fault::Error(kind) => Err(io::Error::new(kind, "a simulated fault")),
            _ => Ok(()),
        }
    }

    fn place(&self, offset_bytes: u64, size_bytes: u64, fault: Fault) -> u64 {
        match fault {
            Fault::Misdirected(other) => other.min(self.options.size_bytes.saturating_sub(size_bytes)),
            _ => offset_bytes,
        }
    }

    fn flip_bits(&self, bytes: &mut [u8]) {
        let mut state = self.state.lock();
        for sector in bytes.chunks_mut(self.options.sector_bytes.max(1) as usize) {
            let bit = state.rng.below(sector.len() as u64 * 8);
            sector[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }

    async fn read(self: &Arc<Self>, offset_bytes: u64, buf: &mut Buf) -> io::Result<()> {
        let size_bytes = buf.len() as u64;
        let (_, life, fault, time) = self.begin(RequestKind::Read, offset_bytes, size_bytes)?;
        self.serve(life, fault, time).await?;
        let filled = if fault == Fault::Short { buf.len() / 2 } else { buf.len() };
        let place = self.place(offset_bytes, size_bytes, fault);
        {
            let mut state = self.state.lock();
            state.medium.current().read(place, &mut buf[..filled]);
            state.touched.iter_mut().for_each(|touched| touched.read(place, filled as u64));
        }
        match fault {
            Fault::Corrupt => self.flip_bits(buf),
            Fault::Short => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a simulated short read")),
            _ => {}
        }
        Ok(())
    }

    /// Gives back the number of the write.
    async fn write(self: &Arc<Self>, offset_bytes: u64, block: Block) -> io::Result<u64> {
        let sent_bytes = block.len() as u64;
        self.write_sent(offset_bytes, block, sent_bytes).await
    }

    /// The same, of which the device is sent so many bytes.
    async fn write_sent(self: &Arc<Self>, offset_bytes: u64, block: Block, sent_bytes: u64) -> io::Result<u64> {
        let size_bytes = block.len() as u64;
        let (sequence, life, fault, time) = self.begin(RequestKind::Write, offset_bytes, sent_bytes)?;
        let block = match fault {
            Fault::Corrupt => {
                let mut bytes = Buf::copied_from(&block);
                self.flip_bits(&mut bytes);
                bytes.freeze()
            }
            Fault::Short => block.slice(..block.len() / 2),
            _ => block,
        };
        let write = Write { offset_bytes: self.place(offset_bytes, size_bytes, fault), block };
        let (place, written_bytes) = (write.offset_bytes, write.block.len() as u64);
        let effective = !matches!(fault, Fault::Error(_) | Fault::Lost);
        if effective {
            self.state.lock().happens(Event::Begun { sequence, write });
        }
        self.serve(life, fault, time).await?;
        if effective {
            let mut state = self.state.lock();
            state.happens(Event::Done { sequence });
            state.touched.iter_mut().for_each(|touched| touched.written(place, written_bytes));
        }
        match fault {
            Fault::Short => Err(io::Error::new(io::ErrorKind::WriteZero, "a simulated short write")),
            _ => Ok(sequence),
        }
    }

    /// A write, and a flush of what it has written alone: faults meet both.
    async fn write_stable(self: &Arc<Self>, offset_bytes: u64, block: Block) -> io::Result<()> {
        let sequence = self.write(offset_bytes, block).await?;
        let (_, life, fault, time) = self.begin(RequestKind::Flush, 0, 0)?;
        self.serve(life, fault, time).await?;
        if fault != Fault::Lost {
            self.state.lock().happens(Event::Stable { sequence });
        }
        Ok(())
    }

    async fn flush(self: &Arc<Self>) -> io::Result<()> {
        let (_, life, fault, time) = self.begin(RequestKind::Flush, 0, 0)?;
        // Writes done by now are covered. If a concurrent flush takes some of them out first, this one takes as many
        // newer ones instead, which a disk may do.
        let covered = self.state.lock().medium.unflushed_count();
        self.serve(life, fault, time).await?;
        if fault != Fault::Lost {
            self.state.lock().happens(Event::Flushed { covered });
        }
        Ok(())
    }
}

impl Modelled {
    /// Carries out the events up to `now`, and wakes their waiters.
    fn settle(&mut self, now: Instant) {
        let mut done = Vec::new();
        self.model.advance(now, &mut done);
        for Done { id, .. } in done {
            if let Some(sender) = self.waiting.remove(&id) {
                let _ = sender.send(());
            }
        }
    }
}

/// A disk as one opener sees it.
struct OpenDisk {
    disk: Arc<SimDisk>,
    writable: bool,
    opener: u64,
}

impl OpenDisk {
    fn check_opener(&self) -> io::Result<()> {
        if self.opener == self.disk.state.lock().openers { Ok(()) } else { Err(off()) }
    }

    fn check_write(&self, offset_bytes: u64, block: &Block) -> io::Result<()> {
        self.check_opener()?;
        if !self.writable {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the device is open read-only"));
        }
        check_aligned(self.disk.options.sector_bytes.max(1) as usize, offset_bytes, block.len())
    }
}

impl Driver for OpenDisk {
    fn read(&self, offset_bytes: u64, mut buf: Buf) -> BoxFuture<'_, (io::Result<()>, Buf)> {
        Box::pin(async move {
            let result = match self.check_opener() {
                Ok(()) => self.disk.read(offset_bytes, &mut buf).await,
                Err(gone) => Err(gone),
            };
            (result, buf)
        })
    }

    fn write(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_write(offset_bytes, &block)?;
            self.disk.write(offset_bytes, block).await.map(drop)
        })
    }

    fn write_stable(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_write(offset_bytes, &block)?;
            self.disk.write_stable(offset_bytes, block).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_opener()?;
            self.disk.flush().await
        })
    }

    /// As a write of zeros. A drive that is a model is sent none of them: it takes the time of its command.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> BoxFuture<'_, io::Result<()>> {
        const CHUNK_BYTES: u64 = 1 << 20;
        Box::pin(async move {
            let end = offset_bytes + len_bytes;
            let is_modelled = self.disk.state.lock().model.is_some();
            for at in (offset_bytes..end).step_by(CHUNK_BYTES as usize) {
                let block = Buf::zeroed((end - at).min(CHUNK_BYTES) as usize).freeze();
                self.check_write(at, &block)?;
                let sent_bytes = if is_modelled { 0 } else { block.len() as u64 };
                self.disk.write_sent(at, block, sent_bytes).await?;
            }
            Ok(())
        })
    }

    fn size_bytes(&self) -> u64 {
        self.disk.options.size_bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.options.sector_bytes
    }

    fn physical_sector_bytes(&self) -> u32 {
        self.disk.options.physical_sector_bytes.max(self.disk.options.sector_bytes)
    }

    fn is_rotational(&self) -> bool {
        self.disk.options.rotational
    }

    fn path(&self) -> &Path {
        &self.disk.path
    }
}
