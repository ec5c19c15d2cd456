//! Reading one leaf: its queue, the device, the check of what came, the statistics, and the end of patience.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use cenote_taskq::buf::Buf;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{Either, Instant, race};

use super::detached::Detached;
use super::node::{Leaf, Node};
use super::pieces::{Pieces, is_in_pieces};
use super::{Check, Extent, Faults, ReadContext, Seen, Topology};
use crate::disk::Disk;
use crate::fault::{Fault, FaultKind, IoCause};
use crate::iostat::Turn;
use crate::mirror::{Flight, Outcome};
use crate::queue::{Dequeued, Kind, LeafQueue, Room};

/// A read's turn, if it has waited for it, and where to note when the device was given it (0 until then).
pub(super) struct Waited<'a> {
    pub(super) turn: Option<Dequeued>,
    pub(super) given_ns: Option<&'a AtomicU64>,
}

/// How long one device's answer is waited for.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// Until others should be asked: `zfs_vdev_mirror_reroute_ms`.
    Short,
    /// Until it has failed: `zfs_deadman_ziotime_ms`; no longer than the other where the block has another copy elsewhere.
    Long,
}

impl Topology {
    /// Reads a leaf and checks the bytes, if there is a check. Reports what is wrong.
    pub(super) async fn read_leaf(
        &self,
        node: &Node,
        leaf: &Leaf,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
        stale: bool,
    ) -> Result<Buf, Faults> {
        let (disk, queue) = self.disk_for(node, leaf, extent, context)?;
        debug_assert!(leaf.holds(extent.address, extent.len), "no read leaves the data area (vdev, invariant 2)");
        if is_in_pieces(disk, queue, extent, context.class) {
            let (result, buf) = Box::pin(self.read_in_pieces(disk, queue, extent, context)).await;
            return self.checked(node, result, buf, extent, check, context, stale);
        }
        let (result, buf) = match Room::pass(queue, context.class, &extent.range()) {
            Some(_room) => {
                let turn = Turn { class: context.class.index(), since_ns: None };
                disk.read_in_turn(turn, extent.address, Buf::unfilled(extent.len as usize)).await
            }
            // Boxed: a read that finds the device free needs no room for one that waits.
            None => {
                Box::pin(async {
                    let turn = self.turn(queue, extent, context, false).await;
                    self.read_in_turn(turn, disk, queue, extent, context).await
                })
                .await
            }
        };
        self.checked(node, result, buf, extent, check, context, stale)
    }

    /// Waits for a read's turn at a leaf.
    async fn turn(&self, queue: &Arc<LeafQueue>, extent: Extent, context: ReadContext<'_>, alone: bool) -> Dequeued {
        let now_ns = self.common.clock.as_ref().map_or(0, |clock| clock.now().as_ns());
        queue.turn(context.class, Kind::Read, extent.range(), None, now_ns, alone).await
    }

    /// Asks the device, or waits for the answer to another one's request; should that come to nothing, asks alone.
    async fn read_in_turn(
        &self,
        mut turn: Dequeued,
        disk: &Disk,
        queue: &Arc<LeafQueue>,
        extent: Extent,
        context: ReadContext<'_>,
    ) -> (std::io::Result<()>, Buf) {
        loop {
            match turn {
                Dequeued::Lead(aggregate) => {
                    let (_room, read) = aggregate.read(disk.clone());
                    return read.await;
                }
                Dequeued::Joined(joined) => {
                    if let Ok(Some(buf)) = joined.await {
                        return (Ok(()), buf);
                    }
                }
            }
            turn = self.turn(queue, extent, context, true).await;
        }
    }

    /// Reads piece after piece, each in its own turn.
    async fn read_in_pieces(
        &self,
        disk: &Disk,
        queue: &Arc<LeafQueue>,
        extent: Extent,
        context: ReadContext<'_>,
    ) -> (std::io::Result<()>, Buf) {
        let mut pieces = Pieces::new(extent);
        while let Some(piece) = pieces.next(disk, queue, context.class) {
            let turn = self.turn(queue, piece, context, false).await;
            let (result, buf) = self.read_in_turn(turn, disk, queue, piece, context).await;
            if result.is_err() {
                return (result, buf);
            }
            pieces.put(buf);
        }
        (Ok(()), pieces.whole())
    }

    /// The disk that a leaf's range is to be read from, and its queue, if it can be.
    fn disk_for<'a>(
        &self,
        node: &Node,
        leaf: &'a Leaf,
        extent: Extent,
        context: ReadContext<'_>,
    ) -> Result<(&'a Disk, &'a Arc<LeafQueue>), Faults> {
        let Some(found) = leaf.readable_disk() else {
            return Err(self.fault(node, extent, FaultKind::Unavailable).into());
        };
        if !leaf.holds(extent.address, extent.len) {
            let cause = IoCause { kind: std::io::ErrorKind::UnexpectedEof, errno: None };
            return Err(self.report(node, extent, FaultKind::Read(cause), context).into());
        }
        Ok(found)
    }

    /// As [`Self::read_leaf`], with statistics. Dropped while it waits for its turn it is forgotten; dropped later, what the
    /// device was asked goes on until it answers.
    #[allow(clippy::too_many_arguments, reason = "what a read is, and where")]
    pub(super) async fn read_counted_leaf(
        &self,
        node: &Node,
        leaf: &Leaf,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
        stale: bool,
        waited: Waited<'_>,
    ) -> Result<Buf, Faults> {
        let (disk, queue) = self.disk_for(node, leaf, extent, context)?;
        let flight = node.load.send(&self.ask(extent));
        let mut waited = waited;
        let is_lead = |turn: &Dequeued| matches!(turn, Dequeued::Lead(_));
        let (flight, (result, buf)) =
            if is_in_pieces(disk, queue, extent, context.class) && waited.turn.as_ref().is_none_or(is_lead) {
                // A turn for all of it goes to others.
                waited.turn = None;
                Box::pin(self.read_counted_pieces(node, (disk, queue), extent, context, flight, &waited)).await
            } else {
                let turn = match waited.turn.take() {
                    Some(turn) => turn,
                    None => self.turn(queue, extent, context, false).await,
                };
                self.read_counted(node, (disk, queue), turn, extent, context, flight, &waited).await
            };
        let read = self.checked(node, result, buf, extent, check, context, stale);
        flight.answered(outcome(&read, context), self.common.clock.as_ref());
        read
    }

    /// Reads in a turn, with statistics.
    #[allow(clippy::too_many_arguments, reason = "what a read is, and where")]
    async fn read_counted<'a>(
        &'a self,
        node: &'a Node,
        (disk, queue): (&Disk, &Arc<LeafQueue>),
        turn: Dequeued,
        extent: Extent,
        context: ReadContext<'_>,
        mut flight: Flight<'a>,
        waited: &Waited<'_>,
    ) -> (Flight<'a>, (std::io::Result<()>, Buf)) {
        flight.passed_on();
        if let (Some(given_ns), Some(clock)) = (waited.given_ns, &self.common.clock) {
            given_ns.store(clock.now().as_ns().max(1), Ordering::Relaxed);
        }
        match turn {
            Dequeued::Lead(aggregate) => {
                let (room, io) = aggregate.read(disk.clone());
                Detached::new(io, room, flight, &node.load, self.common.clock.as_ref().zip(self.common.left.as_ref()))
                    .await
            }
            joined @ Dequeued::Joined(_) => {
                (flight, Box::pin(self.read_in_turn(joined, disk, queue, extent, context)).await)
            }
        }
    }

    /// The same, piece after piece, each in its own turn.
    async fn read_counted_pieces<'a>(
        &'a self,
        node: &'a Node,
        (disk, queue): (&Disk, &Arc<LeafQueue>),
        extent: Extent,
        context: ReadContext<'_>,
        mut flight: Flight<'a>,
        waited: &Waited<'_>,
    ) -> (Flight<'a>, (std::io::Result<()>, Buf)) {
        let mut pieces = Pieces::new(extent);
        while let Some(piece) = pieces.next(disk, queue, context.class) {
            let turn = self.turn(queue, piece, context, false).await;
            let (back, (result, buf)) =
                self.read_counted(node, (disk, queue), turn, piece, context, flight, waited).await;
            flight = back;
            if result.is_err() {
                return (flight, (result, buf));
            }
            pieces.put(buf);
        }
        (flight, (Ok(()), pieces.whole()))
    }

    /// How long patience lasts.
    pub(super) fn patience(&self, patience: Patience, context: ReadContext<'_>) -> Duration {
        match patience {
            Patience::Long if !context.elsewhere => self.common.deadman_after,
            _ => self.common.reroute_after.min(self.common.deadman_after),
        }
    }

    /// As [`Self::read_counted_leaf`], waiting for the device's answer up to the limit that `patience` gives. Time in the queue of a device
    /// that answers other requests does not count.
    pub(super) async fn read_bounded_leaf(
        &self,
        node: &Node,
        leaf: &Leaf,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
        patience: Patience,
    ) -> Result<Buf, Faults> {
        let stale = check.is_some() && node.missed.contains(context.birth);
        let given_ns = AtomicU64::new(0);
        let waited = Waited { turn: None, given_ns: Some(&given_ns) };
        let mut read = pin!(self.read_counted_leaf(node, leaf, extent, check, context, stale, waited));
        let Some(clock) = &self.common.clock else { return read.await };
        // An answer that is there at once needs no timer.
        if let Some(answer) = poll_once(read.as_mut()).await {
            return answer;
        }
        // Boxed, as all that a read needs only when it waits.
        Box::pin(async {
            let span = self.patience(patience, context);
            let dead = clock.now() + self.common.deadman_after;
            let mut until = clock.now() + span;
            loop {
                if let Either::Left(answer) = race(read.as_mut(), clock.sleep_until(until)).await {
                    return answer;
                }
                let now = clock.now();
                until = match given_ns.load(Ordering::Relaxed) {
                    0 if u128::from(node.load.silence_ns(now)) < span.as_nanos() => (now + span).min(dead),
                    0 => now,
                    given => (Instant::from_ns(given) + span).min(dead),
                };
                if until <= now {
                    return Err(self.overdue(node, extent, context, patience).into());
                }
            }
        })
        .await
    }

    /// Reports that a device did not answer in time.
    fn overdue(&self, node: &Node, extent: Extent, context: ReadContext<'_>, patience: Patience) -> Fault {
        let cause = IoCause { kind: std::io::ErrorKind::TimedOut, errno: None };
        let kind = match patience {
            Patience::Long if !context.elsewhere => FaultKind::Read(cause),
            _ => FaultKind::Overdue,
        };
        self.report(node, extent, kind, context)
    }

    /// Waits for a device's answer no longer than patience lasts.
    pub(super) async fn bounded(
        &self,
        node: &Node,
        extent: Extent,
        context: ReadContext<'_>,
        patience: Patience,
        mut read: Pin<&mut (impl Future<Output = Result<Buf, Faults>> + Send)>,
    ) -> Result<Buf, Faults> {
        let Some(clock) = &self.common.clock else { return read.await };
        // An answer that is there at once needs no timer.
        if let Some(answer) = poll_once(read.as_mut()).await {
            return answer;
        }
        match Box::pin(race(read, clock.sleep(self.patience(patience, context)))).await {
            Either::Left(answer) => answer,
            Either::Right(()) => Err(self.overdue(node, extent, context, patience).into()),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the tail of one function")]
    fn checked(
        &self,
        node: &Node,
        result: std::io::Result<()>,
        buf: Buf,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
        stale: bool,
    ) -> Result<Buf, Faults> {
        if let Err(error) = result {
            return Err(self.report(node, extent, FaultKind::Read(IoCause::from(&error)), context).into());
        }
        debug_assert_eq!(buf.len() as u64, extent.len, "a good read fills its range");
        match check {
            Some(check) if !check.passes(&buf) => {
                let kind = if stale { FaultKind::Stale } else { FaultKind::Checksum };
                Err(self.report_seen(node, extent, kind, context, Seen::Bytes(buf, check.size)).into())
            }
            _ => Ok(buf),
        }
    }
}

/// The outcome of a read, as far as it concerns the device.
pub(super) fn outcome(read: &Result<Buf, Faults>, context: ReadContext<'_>) -> Outcome {
    let came = |fault: &Fault| matches!(fault.kind, FaultKind::Checksum | FaultKind::Stale);
    match read {
        Ok(_) => Outcome::Good,
        // Wrong bytes take as long as right ones. Where failure is expected, or the bytes are just old, nothing is wrong.
        Err(faults) if faults.0.iter().all(came) => {
            let is_wrong = !context.speculative && faults.0.iter().any(|fault| fault.kind == FaultKind::Checksum);
            if is_wrong { Outcome::Wrong } else { Outcome::Good }
        }
        Err(_) => Outcome::Failed,
    }
}

/// A future's output if it is there at once.
pub(super) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
