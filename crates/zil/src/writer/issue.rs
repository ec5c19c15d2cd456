//! Filling blocks and sending them on their way.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_dmu::tx::Tx;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_format::zil::{Chain, LogBlockId};
use cenote_taskq::Class;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::atomic::Ordering;
use cenote_zio::{Bookmark, log_pointer};

use super::LogWriter;
use super::prepared::Prepared;
use crate::data::Data;
use crate::indirect::parts;
use crate::itx::{Goal, Itx, ItxWrite, Payload, Taken};
use crate::kstat::{BlockBytes, Event, Logged};
use crate::lwb::{Lwb, WHOLE_MAX_BYTES, block_bytes_for, write_bytes};

/// Where more data is to be copied into the log at once its txg is waited for: it writes the same bytes anyway, and the log would have them
/// written twice. Writes by reference are not copied.
const LOGGED_MAX_BYTES: usize = 4 << 20;
/// Bursts whose sizes are remembered.
const BURSTS: usize = 8;
/// The largest latency that counts: after a device hung or a pool was suspended, bursts are not held for that long.
const HELD_MAX_NS: u64 = 50_000_000;
/// A block takes less on a device that a front end's thread waits for.
const SOON_NS: u64 = 1_000_000;
/// The latest latency counts for one part of so many.
const LATENCY_PARTS: u64 = 8;

/// The memory of the task that issues blocks.
#[derive(Debug, Default)]
pub(super) struct Issuer {
    /// The number of the last record.
    sequence: u64,
    /// Bytes of records in the last bursts, the newest last.
    bursts: [usize; BURSTS],
}

impl Issuer {
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn note_burst(&mut self, bytes: usize) {
        self.bursts.rotate_left(1);
        self.bursts[BURSTS - 1] = bytes;
    }

    /// The size of a block whose records are not known: most of the last bursts would have fitted.
    fn expected_bytes(&self) -> usize {
        let mut sorted = self.bursts;
        sorted.sort_unstable();
        block_bytes_for(sorted[BURSTS - 2])
    }
}

/// Why a log goes no further.
struct Broken;

/// Itxs that were taken and are not all on their way. They are lost to the log where that ends: by a failure, or because nobody waits any
/// more.
struct TakenAway<'a> {
    log: &'a LogWriter,
    until: Txg,
}

impl TakenAway<'_> {
    fn are_issued(self) {
        std::mem::forget(self);
    }
}

impl Drop for TakenAway<'_> {
    fn drop(&mut self) {
        self.log.blocks.lock().break_off();
        self.log.give_up(self.until);
    }
}

/// Blocks that are filled, one after the other.
struct Filling<'a> {
    log: &'a Arc<LogWriter>,
    issuer: &'a mut Issuer,
    lwb: Lwb,
    at: Blkptr,
    /// Bytes of the records after the present one.
    left: usize,
    /// The goal that is reached by a block that is not the last: none.
    before: Goal,
    /// Something that was written is gone by now, or is too much to be copied.
    has_gaps: bool,
    /// Blocks that records will point to.
    ahead: Prepared,
    /// Those that the records in this block point to.
    data: Data,
    /// Bytes of writes by reference that were copied all the same.
    copied: usize,
}

/// The turn of a burst, which alone fills blocks. When it is over, clients that want more get another burst. If the burst could do nothing,
/// the waiting clients check their state again.
struct BurstGuard<'a> {
    log: &'a Arc<LogWriter>,
    is_done: bool,
}

impl Drop for BurstGuard<'_> {
    fn drop(&mut self) {
        if self.log.blocks.lock().burst_over(self.is_done) {
            // Not here: the blocks of this burst are still to be written.
            self.log.begin_burst(false);
        }
        if !self.is_done {
            self.log.waiting.all();
        }
    }
}

/// A block that is full, and has its link.
struct Closed {
    at: Blkptr,
    bytes: Buf,
    data: Data,
}

impl LogWriter {
    /// Has all itxs up to a number on their way soon.
    pub(super) fn want_issued(self: &Arc<Self>, number: u64) {
        if self.blocks.lock().want(number) {
            self.begin_burst(self.is_worth_waiting_here());
        } else {
            self.joined();
        }
    }

    /// Whether a front end's thread fills and writes the next block itself: no other need wake for a client that is alone. The block lies on
    /// a single leaf, which has answered soon lately; more than one leaf, or a slow one, is left to workers.
    fn is_worth_waiting_here(&self) -> bool {
        let latency_ns = self.latency_ns.load(Ordering::Relaxed);
        if !(1..SOON_NS).contains(&latency_ns) || !self.handle.may_wait_here() {
            return false;
        }
        let tail = self.blocks.lock().tail();
        tail.is_some_and(|tail| self.io.is_on_one_leaf(&tail))
    }

    /// One client more waits. A burst that is held for others may have them all by that.
    pub(super) fn joined(&self) {
        if !self.clients.may_come() {
            self.io.nobody_comes();
        }
    }

    fn begin_burst(self: &Arc<Self>, is_here: bool) {
        let log = self.clone();
        let burst = async move {
            let last = log.clone().burst().await;
            if let Some(closed) = last {
                log.put(closed).await;
            }
        };
        let tasks = self.io.dmu.detached();
        let begun = match is_here {
            true => tasks.begin(Class::Issue, burst),
            false => tasks.spawn(Class::Issue, burst).map(drop),
        };
        if begun.is_err() {
            // The pool is closed.
            self.blocks.lock().no_burst();
            let until = self.queue.lock().last().txg;
            self.give_up(until);
        }
    }

    /// Takes all itxs in their order and puts them into blocks. Returns the last block, still to be written; the others are on their
    /// way.
    async fn burst(self: Arc<Self>) -> Option<Closed> {
        let mut guard = BurstGuard { log: &self, is_done: false };
        let mut issuer = self.issuer.lock().await;
        self.commit_timeout().await;
        let tail = self.blocks.lock().tail()?;
        // Nothing where a change without a record has come before: its txg is waited for.
        let taken = self.queue.lock().take()?;
        if taken.itxs.is_empty() {
            self.reached(taken.goal);
            guard.is_done = true;
            return None;
        }
        let until = taken.goal.txg;
        if taken.itxs.iter().map(itx_bytes).sum::<usize>() > LOGGED_MAX_BYTES {
            self.give_up(until);
            return None;
        }
        self.count(Event::Writer);
        self.count_all(Event::Itx, taken.itxs.len());
        let taken_away = TakenAway { log: &self, until };
        let last = self.fill(&mut issuer, tail, taken).await.ok()?;
        taken_away.are_issued();
        guard.is_done = true;
        last
    }

    fn reached(&self, goal: Goal) {
        let stable = {
            let mut blocks = self.blocks.lock();
            blocks.reached(goal);
            blocks.stable
        };
        self.waiting.reached(stable);
    }

    /// Waits a little for other clients' records, if more clients may come: clients that wait for blocks in flight do not count, nor does a
    /// single client wait.
    async fn commit_timeout(&self) {
        self.clients.burst_begins();
        let latency_ns = self.latency_ns.load(Ordering::Relaxed);
        let most_ns = latency_ns.min(HELD_MAX_NS) * self.io.tunables.zfs_commit_timeout_pct / 100;
        if most_ns > 0 {
            self.io.while_others_are_ahead(Duration::from_nanos(most_ns), &self.clients).await;
        }
    }

    async fn fill(self: &Arc<Self>, issuer: &mut Issuer, tail: Blkptr, taken: Taken) -> Result<Option<Closed>, Broken> {
        let total = taken.itxs.iter().map(itx_bytes).sum();
        issuer.note_burst(total);
        let before = Goal { number: self.blocks.lock().issued, txg: Txg(0) };
        let lwb = Lwb::new(tail.psize_bytes() as usize);
        let mut filling = Filling {
            log: self,
            issuer,
            lwb,
            at: tail,
            left: total,
            before,
            has_gaps: false,
            ahead: Prepared::new(self, &taken.itxs),
            data: Data::default(),
            copied: 0,
        };
        for itx in taken.itxs {
            filling.left -= itx_bytes(&itx);
            match itx.payload {
                Payload::Record(record) => filling.record(itx.txg, &record).await?,
                Payload::Write(write) => match write.indirect {
                    Some(block_bytes) => filling.indirect(itx.txg, write, block_bytes).await?,
                    None => filling.write(itx.txg, write).await?,
                },
            }
            if filling.has_gaps {
                break;
            }
        }
        let goal = match filling.has_gaps {
            false => taken.goal,
            true => {
                // The change that took it away is in the open txg at latest. Its record need not be among these, and those that follow
                // make no sense without what is gone: their clients wait for that txg.
                self.give_up(taken.goal.txg.max(self.txgs.open_txg()));
                before
            }
        };
        if filling.lwb.is_empty() {
            self.reached(goal);
            return Ok(None);
        }
        Ok(Some(filling.finish(goal).await))
    }

    async fn read(&self, write: &ItxWrite) -> Result<Option<Block>, Broken> {
        if let Some(data) = &write.data {
            return Ok(Some(data.clone()));
        }
        let len = (write.bytes.end - write.bytes.start) as usize;
        let data = self.data.lock().as_ref().and_then(Weak::upgrade).ok_or(Broken)?;
        let read = data.read(write.object, write.generation, write.bytes.start, len).await;
        read.map_err(|_| Broken)
    }
}

fn itx_bytes(itx: &Itx) -> usize {
    match &itx.payload {
        Payload::Record(record) => record.len(),
        Payload::Write(ItxWrite { bytes, indirect: Some(block_bytes), .. }) => {
            parts(bytes, *block_bytes).count() * write_bytes(0)
        }
        Payload::Write(write) => write_bytes(write.bytes.end - write.bytes.start),
    }
}

impl Filling<'_> {
    async fn record(&mut self, txg: Txg, record: &[u8]) -> Result<(), Broken> {
        let sequence = self.issuer.next_sequence();
        if self.lwb.put_record(txg, record, sequence) {
            return Ok(());
        }
        self.next(record.len(), record.len()).await?;
        // No block takes a record that does not fit now.
        self.lwb.put_record(txg, record, sequence).then_some(()).ok_or(Broken)
    }

    async fn write(&mut self, txg: Txg, write: ItxWrite) -> Result<(), Broken> {
        let Some(data) = self.log.read(&write).await? else {
            self.has_gaps = true;
            return Ok(());
        };
        let how = if write.data.is_some() { Logged::Copied } else { Logged::NeedCopy };
        self.log.count_write(how, data.len() as u64);
        let mut done = 0;
        while done < data.len() {
            let sequence = self.issuer.next_sequence();
            let offset = write.bytes.start + done as u64;
            done += self.lwb.put_write(txg, write.object, offset, &data[done..], sequence);
            if done < data.len() {
                let left = data.len() - done;
                self.next(write_bytes(left as u64), write_bytes(left.min(WHOLE_MAX_BYTES) as u64)).await?;
            }
        }
        Ok(())
    }

    /// A write whose blocks are stored: a record for each of them.
    async fn indirect(&mut self, txg: Txg, write: ItxWrite, block_bytes: u64) -> Result<(), Broken> {
        for bytes in parts(&write.bytes, block_bytes) {
            let len = bytes.end - bytes.start;
            match self.ahead.next().await {
                Some(stored) => {
                    self.log.count_write(Logged::Indirect, len);
                    let record = Lwb::indirect_record(txg, write.object, bytes, stored.pointer);
                    self.record(txg, &record).await?;
                    self.data.push(stored);
                }
                None => {
                    self.copied += len as usize;
                    self.has_gaps |= self.copied > LOGGED_MAX_BYTES;
                    if !self.has_gaps {
                        self.write(txg, ItxWrite { bytes, indirect: None, ..write.clone() }).await?;
                    }
                }
            }
            if self.has_gaps {
                break;
            }
        }
        Ok(())
    }

    /// Sends the block on its way and goes on with the next: for what is left of the present record, in room for at least so many bytes of
    /// it, and for the records after that.
    async fn next(&mut self, record_bytes: usize, least_bytes: usize) -> Result<(), Broken> {
        let most_bytes = self.log.io.block_max_bytes() - Chain::SIZE;
        let next_bytes = block_bytes_for((record_bytes + self.left).min(most_bytes).max(least_bytes));
        let lwb = std::mem::replace(&mut self.lwb, Lwb::new(next_bytes));
        let data = std::mem::take(&mut self.data);
        let (closed, next) = self.log.close(self.at, lwb, data, next_bytes, self.before).await;
        self.log.send(closed);
        self.at = next.ok_or(Broken)?;
        Ok(())
    }

    /// Closes the last block.
    async fn finish(self, goal: Goal) -> Closed {
        let next_bytes = self.issuer.expected_bytes().min(self.log.io.block_max_bytes());
        self.log.close(self.at, self.lwb, self.data, next_bytes, goal).await.0
    }
}

impl LogWriter {
    /// Closes a block, once the next of this size has its place, which comes back; without one the log is broken behind this block.
    async fn close(&self, at: Blkptr, lwb: Lwb, data: Data, next_bytes: usize, goal: Goal) -> (Closed, Option<Blkptr>) {
        let mut identity = at.checksum_words();
        identity[3] += u64::from(!mutant::is(Mutant::LogWrongNext));
        let placed = self.place(next_bytes, identity).await;
        let next = placed.as_ref().map(|(next, _)| *next);
        let link = next.unwrap_or_else(|| log_pointer(&[], 0, Txg(0), identity));
        // A block of raidz or draid lies otherwise where it is shorter.
        let is_whole = at.dvas().any(|dva| dva.asize_bytes != at.psize_bytes());
        let newest = lwb.newest;
        let records = lwb.records_bytes();
        let bytes = lwb.close(link, is_whole);
        self.count_block(&at, BlockBytes { records, written: bytes.len(), allocated: at.psize_bytes() });
        self.blocks.lock().issued(newest, goal, next);
        // The txg of its allocation may sync from now on, and waits for the block that leads to it.
        drop(placed);
        if mutant::is(Mutant::LogAcksIssued) {
            self.waiting.all();
        }
        (Closed { at, bytes, data }, next)
    }

    /// Allocates the next block, in the open txg, which is held until that is noted.
    async fn place(&self, size_bytes: usize, identity: [u64; 4]) -> Option<(Blkptr, Tx)> {
        let tx = self.txgs.enter().ok()?;
        let placed =
            self.io.dmu.zio().place_log(self.io.allocator.as_ref(), size_bytes as u64, tx.txg(), identity).await;
        if self.io.allocator.logs_want_txg() {
            self.txgs.want(tx.txg());
        }
        Some((placed.ok()?, tx))
    }

    /// Sends a block on its way, in a task of its own.
    fn send(self: &Arc<Self>, closed: Closed) {
        let (log, sequence) = (self.clone(), LogBlockId::of(&closed.at).sequence);
        let sent = self.io.dmu.detached().spawn(Class::Issue, async move { log.put(closed).await });
        if sent.is_err() {
            self.flush_done(sequence, false, 0);
        }
    }

    /// Writes a block, and has it be stable.
    async fn put(&self, closed: Closed) {
        let Closed { at, bytes, data } = closed;
        let sequence = LogBlockId::of(&at).sequence;
        let begun = self.handle.now();
        let write = self.io.write(self.bookmark(sequence), &at, bytes, data, &self.txgs);
        let is_good = self.handle.urgently(write).await;
        let took = u64::try_from((self.handle.now() - begun).as_nanos()).unwrap_or(u64::MAX);
        self.flush_done(sequence, is_good, took);
    }

    fn flush_done(&self, sequence: u64, is_good: bool, took_ns: u64) {
        let before = self.latency_ns.load(Ordering::Relaxed);
        let latency_ns = if before == 0 { took_ns } else { before - before / LATENCY_PARTS + took_ns / LATENCY_PARTS };
        self.latency_ns.store(latency_ns, Ordering::Relaxed);
        let (is_broken, stable) = {
            let mut blocks = self.blocks.lock();
            (blocks.flush_done(sequence, is_good), blocks.stable)
        };
        if is_broken {
            let until = self.queue.lock().last().txg;
            self.give_up(until);
        }
        self.waiting.reached(stable);
    }

    fn bookmark(&self, sequence: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: ObjectId(0), level: Bookmark::LEVEL_ZIL, block: BlockId(sequence) }
    }
}
