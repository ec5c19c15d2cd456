//! A leaf's storage: a device, or one partition of it.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Device, Handle, boxed};

use crate::iostat::{self, Io, IoStats, Slow, Turn};
use crate::partition::Partition;
use crate::watch::{Kind, Watch};

/// A device or a partition of one. Cloning gives another handle on it.
#[derive(Clone)]
pub struct Disk {
    device: Device,
    start_bytes: u64,
    size_bytes: u64,
    is_whole: bool,
    path: Arc<str>,
    /// There once its pool is in use; all handles share it.
    watch: Arc<OnceLock<Arc<Watch>>>,
    /// There once a pool is read through it; all handles share it.
    stats: Arc<OnceLock<IoStats>>,
}

impl Disk {
    /// All of a device.
    #[must_use]
    pub fn whole(device: Device) -> Self {
        let path = device.path().to_string_lossy().into();
        Self {
            start_bytes: 0,
            size_bytes: device.size_bytes(),
            is_whole: true,
            device,
            path,
            watch: Arc::default(),
            stats: Arc::default(),
        }
    }

    /// The part of a device that a partition table names; its path is the device's with the partition's number.
    #[must_use]
    pub(crate) fn partition(device: Device, partition: &Partition) -> Self {
        let whole = device.size_bytes();
        let start_bytes = partition.start_bytes.min(whole);
        let path = format!("{}#{}", device.path().display(), partition.number).into();
        Self {
            start_bytes,
            size_bytes: partition.size_bytes.min(whole - start_bytes),
            is_whole: false,
            device,
            path,
            watch: Arc::default(),
            stats: Arc::default(),
        }
    }

    /// Where it is, for messages.
    #[must_use]
    pub const fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// Its size.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The same, with the room that its device has got since it was opened; none if it has got none. (A partition is as large as its table
    /// said.)
    ///
    /// # Errors
    /// The size of the device cannot be read.
    pub fn grown(&self) -> io::Result<Option<Self>> {
        if !self.is_whole {
            return Ok(None);
        }
        let size_bytes = self.device.look_at_size()?;
        Ok((size_bytes > self.size_bytes).then(|| Self { size_bytes, ..self.clone() }))
    }

    /// The device below.
    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Where on the device this begins: 0, or the partition's start.
    #[must_use]
    pub const fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// From now on `watch` notes each request until the device answers. Only the first call has an effect.
    pub(crate) fn watch(&self, watch: Arc<Watch>) {
        let _ = self.watch.set(watch);
    }

    /// The watch with the unanswered requests, if there is one.
    pub(crate) fn watched(&self) -> Option<&Arc<Watch>> {
        self.watch.get()
    }

    /// From now on requests are counted, and timed by this clock, and those that take long are told. Only the first call has an effect.
    pub(crate) fn count(&self, clock: Option<&Handle>, slow: impl FnOnce() -> Slow) {
        let _ = self.stats.get_or_init(|| IoStats::new(clock.cloned(), slow()));
    }

    /// The counts, if it is counted.
    pub(crate) fn stats(&self) -> Option<&IoStats> {
        self.stats.get()
    }

    /// Fills all of `buf` from `address_bytes`, or fails.
    pub fn read(&self, address_bytes: u64, buf: Buf) -> impl Future<Output = (io::Result<()>, Buf)> + Send + '_ {
        self.read_as(Kind::Read, address_bytes, buf, None)
    }

    /// The same for a request whose turn it is in the leaf's queue.
    pub(crate) fn read_in_turn(
        &self,
        turn: Turn,
        address_bytes: u64,
        buf: Buf,
    ) -> impl Future<Output = (io::Result<()>, Buf)> + Send + '_ {
        self.read_as(Kind::Read, address_bytes, buf, Some(turn))
    }

    /// As [`Self::read`], but with the watch that writes have: a device that hangs is reported, and the pool may give it up.
    pub(crate) fn probe(
        &self,
        address_bytes: u64,
        buf: Buf,
    ) -> impl Future<Output = (io::Result<()>, Buf)> + Send + '_ {
        self.read_as(Kind::Change, address_bytes, buf, None)
    }

    async fn read_as(&self, kind: Kind, address_bytes: u64, buf: Buf, turn: Option<Turn>) -> (io::Result<()>, Buf) {
        if address_bytes.checked_add(buf.len() as u64).is_none_or(|end| end > self.size_bytes) {
            return (Err(io::ErrorKind::UnexpectedEof.into()), buf);
        }
        let (offset_bytes, len) = (self.start_bytes + address_bytes, buf.len() as u64);
        let begun = Begun::new(&self.stats, Io::Read, address_bytes, len, turn);
        let Some(watch) = self.watch.get() else {
            let (result, buf) = self.device.read(offset_bytes, buf).await;
            return (begun.ended(result), buf);
        };
        let device = self.device.clone();
        // Boxed in place: what a future is moved from takes room in this one.
        let asked = watch.ask(
            kind,
            Box::pin(async move {
                let (result, buf) = device.read(offset_bytes, buf).await;
                (begun.ended(result), buf)
            }),
        );
        let read = match asked {
            Ok(asked) => asked.await,
            Err(error) => Err(error),
        };
        // The request that is late keeps its buffer.
        read.unwrap_or_else(|error| (Err(error), Buf::unfilled(0)))
    }

    /// Writes all of `block` at `address_bytes`, or fails. It is stable after the next [`Disk::flush`].
    ///
    /// # Errors
    /// The device's; also where the disk was opened read-only, or the range lies outside it.
    #[boxed]
    pub async fn write(&self, address_bytes: u64, block: Block) -> io::Result<()> {
        self.write_as(address_bytes, block, false, None).await
    }

    /// Writes all of `block` at `address_bytes`, or fails; with `is_stable` it is stable when this is done
    /// ([`Device::write_stable`](cenote_taskq::Device::write_stable)). `turn`: its turn in the leaf's queue, if it waits in one.
    pub(crate) async fn write_as(
        &self,
        address_bytes: u64,
        block: Block,
        is_stable: bool,
        turn: Option<Turn>,
    ) -> io::Result<()> {
        if address_bytes.checked_add(block.len() as u64).is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let offset_bytes = self.start_bytes + address_bytes;
        let begun = Begun::new(&self.stats, Io::Write, address_bytes, block.len() as u64, turn);
        let device = self.device.clone();
        let write = async move {
            begun.ended(match is_stable {
                true => device.write_stable(offset_bytes, block).await,
                false => device.write(offset_bytes, block).await,
            })
        };
        match self.watch.get() {
            None => write.await,
            Some(watch) => watch.ask(Kind::Change, Box::pin(write))?.await?,
        }
    }

    /// Tells the device that what a range has is not needed any more ([`Device::discard`](cenote_taskq::Device::discard)).
    pub(crate) async fn discard(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        if range.end > self.size_bytes || range.start > range.end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (offset_bytes, len_bytes) = (self.start_bytes + range.start, range.end - range.start);
        let (device, stats) = (self.device.clone(), self.stats.clone());
        let discard = async move {
            device.discard(offset_bytes, len_bytes).await?;
            if let Some(stats) = stats.get() {
                stats.discarded(len_bytes);
            }
            Ok(())
        };
        match self.watch.get() {
            None => discard.await,
            Some(watch) => watch.ask(Kind::Change, Box::pin(discard))?.await?,
        }
    }

    /// Makes stable every write that was done before this began.
    ///
    /// # Errors
    /// The device's.
    pub async fn flush(&self) -> io::Result<()> {
        let begun = Begun::new(&self.stats, Io::Flush, 0, 0, None);
        let Some(watch) = self.watch.get() else { return begun.ended(self.device.flush().await) };
        let device = self.device.clone();
        watch.ask(Kind::Change, Box::pin(async move { begun.ended(device.flush().await) }))?.await?
    }
}

/// A request at the device, until it is counted.
struct Begun {
    stats: Arc<OnceLock<IoStats>>,
    io: Io,
    address_bytes: u64,
    bytes: u64,
    begun: Option<iostat::Begun>,
}

impl Begun {
    fn new(stats: &Arc<OnceLock<IoStats>>, io: Io, address_bytes: u64, bytes: u64, turn: Option<Turn>) -> Self {
        let begun = stats.get().and_then(|stats| stats.begin(turn));
        Self { stats: stats.clone(), io, address_bytes, bytes, begun }
    }

    /// Counts the request, if it succeeded.
    fn ended(self, result: io::Result<()>) -> io::Result<()> {
        if let (Ok(()), Some(stats)) = (&result, self.stats.get()) {
            stats.done(self.io, self.address_bytes, self.bytes, self.begun);
        }
        result
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({}, {} bytes at {})", self.path, self.size_bytes, self.start_bytes)
    }
}
