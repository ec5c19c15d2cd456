//! A request's turn: alone, or as the leader of neighbours; or its result, when another one led.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{BoxFuture, oneshot};

use super::limits::QueueClass;
use super::order::Waiting;
use super::room::{LeafQueue, Room};
use crate::disk::Disk;
use crate::iostat::Turn;

/// Reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Read = 0,
    Write = 1,
}

/// The outcome of waiting in a queue.
#[derive(Debug)]
pub(crate) enum Dequeued {
    /// The device is to be asked, for this request and those that come with it.
    Lead(Aggregate),
    /// Another one's request to the device covers this one.
    Joined(Joined),
}

/// The answer to another one's request; for a read, with the bytes. An error where that failed or never was: this one is to
/// go alone.
#[derive(Debug)]
pub(crate) struct Joined {
    leaf: Arc<LeafQueue>,
    answer: oneshot::Receiver<Option<Buf>>,
}

impl Dequeued {
    /// The queue of the leaf that the request goes to.
    pub(crate) const fn leaf(&self) -> &Arc<LeafQueue> {
        match self {
            Self::Lead(aggregate) => aggregate.room.leaf(),
            Self::Joined(joined) => &joined.leaf,
        }
    }
}

impl Future for Joined {
    type Output = Result<Option<Buf>, oneshot::Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context)
    }
}

/// A request that waits: what it asks for, and where its task is told.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) kind: Kind,
    pub(super) range: Range<u64>,
    /// For a write, what to write: as long as the range.
    pub(super) block: Option<Block>,
    pub(super) sender: oneshot::Sender<Dequeued>,
}

impl Member {
    /// Tells a request that another one leads it. It goes along even if its task has gone meanwhile: the aggregate's range was chosen
    /// with it, and a write without its bytes would have a gap.
    pub(super) fn join(self, leaf: &Arc<LeafQueue>) -> JoinedRequest {
        let (sender, answer) = oneshot::channel();
        let _ = self.sender.send(Dequeued::Joined(Joined { leaf: Arc::clone(leaf), answer }));
        JoinedRequest { range: self.range, block: self.block, sender }
    }
}

/// A request that another one leads.
#[derive(Debug)]
pub(super) struct JoinedRequest {
    range: Range<u64>,
    block: Option<Block>,
    sender: oneshot::Sender<Option<Buf>>,
}

/// A read on its way: the device's answer, and the bytes.
pub(crate) type Reading = BoxFuture<'static, (io::Result<()>, Buf)>;

/// The requests that go to the device as one. Dropping it frees its room, and requests of the aggregate that have no result yet wait again.
#[derive(Debug)]
pub(crate) struct Aggregate {
    /// From the first byte that anyone wants to the last.
    range: Range<u64>,
    /// The range that the leader asked for.
    own: Range<u64>,
    others: Vec<JoinedRequest>,
    room: Room<Arc<LeafQueue>>,
    /// When the leader began to wait; `None` if it did not.
    since_ns: Option<u64>,
}

impl Aggregate {
    pub(super) const fn new(
        range: Range<u64>,
        own: Range<u64>,
        others: Vec<JoinedRequest>,
        room: Room<Arc<LeafQueue>>,
        since_ns: Option<u64>,
    ) -> Self {
        debug_assert!(range.start <= own.start && own.end <= range.end, "an aggregate covers its leader's request");
        Self { range, own, others, room, since_ns }
    }

    const fn turn(&self) -> Turn {
        Turn { class: self.room.class().index(), since_ns: self.since_ns }
    }

    /// Reads for all of them; the leader's bytes come out. The room is to be kept until then, or until no request waits any more.
    pub(crate) fn read(self, disk: Disk) -> (Room<Arc<LeafQueue>>, Reading) {
        let turn = self.turn();
        let Self { range: all, own, others, room, .. } = self;
        let read = Box::pin(async move {
            let buf = Buf::unfilled((own.end - own.start) as usize);
            if others.is_empty() {
                return disk.read_in_turn(turn, own.start, buf).await;
            }
            let wide = Buf::unfilled((all.end - all.start) as usize);
            let (result, wide) = disk.read_in_turn(turn, all.start, wide).await;
            if result.is_err() {
                // Which part of it failed is not known: each finds out alone.
                drop(others);
                return disk.read_in_turn(turn, own.start, buf).await;
            }
            let part = |range: &Range<u64>, mut buf: Buf| {
                let from = (range.start - all.start) as usize;
                let len = buf.len();
                buf.copy_from_slice(&wide[from..from + len]);
                buf
            };
            for member in others {
                let buf = Buf::unfilled((member.range.end - member.range.start) as usize);
                let buf = part(&member.range, buf);
                // The request may have been dropped.
                let _ = member.sender.send(Some(buf));
            }
            (Ok(()), part(&own, buf))
        });
        (room, read)
    }

    /// Writes for all of them; `block` is the leader's. One that is to be stable when it is done leads nobody: it has asked to be alone.
    pub(crate) async fn write(self, disk: &Disk, block: Block, is_stable: bool) -> io::Result<()> {
        assert!(self.others.is_empty() || !is_stable, "a write that makes itself stable goes alone");
        if self.others.is_empty() {
            let result = disk.write_as(self.own.start, block, is_stable, Some(self.turn())).await;
            drop(self.room);
            return result;
        }
        debug_assert_eq!(block.len() as u64, self.own.end - self.own.start, "a write has as many bytes as its place");
        let is_whole = |member: &JoinedRequest| {
            member.block.as_ref().is_some_and(|block| block.len() as u64 == member.range.end - member.range.start)
        };
        debug_assert!(self.others.iter().all(is_whole), "each write that another one leads has its bytes");
        let mut wide = Buf::unfilled((self.range.end - self.range.start) as usize);
        let parts = self.others.iter().filter_map(|member| Some((&member.range, member.block.as_ref()?)));
        let mut filled_bytes = 0;
        for (range, bytes) in parts.chain([(&self.own, &block)]) {
            let from = (range.start - self.range.start) as usize;
            wide[from..from + bytes.len()].copy_from_slice(bytes);
            filled_bytes += bytes.len();
        }
        assert_eq!(
            filled_bytes,
            wide.len(),
            "the memory of an aggregated write is filled by its requests, without a gap"
        );
        let turn = Some(self.turn());
        let result = disk.write_as(self.range.start, wide.freeze(), false, turn).await;
        drop(self.room);
        if result.is_err() {
            drop(self.others);
            return disk.write_as(self.own.start, block, false, turn).await;
        }
        for member in self.others {
            let _ = member.sender.send(None);
        }
        Ok(())
    }
}

impl LeafQueue {
    /// Waits for a request's turn. `range`: where on the disk. `block`: for a write, what. `now_ns`: the time. `alone`: it neither
    /// leads others nor joins one: after an aggregate that it was in failed, or since it is to be stable by itself.
    ///
    /// Cancel safe: dropped, it does not wait any more.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        class: QueueClass,
        kind: Kind,
        range: Range<u64>,
        block: Option<&Block>,
        now_ns: u64,
        alone: bool,
    ) -> Dequeued {
        debug_assert_eq!(block.is_some(), kind == Kind::Write, "a write has what to write, and no read has");
        debug_assert!(
            block.is_none_or(|block| block.len() as u64 == range.end - range.start),
            "a write has as many bytes as its range"
        );
        if let Some(room) = Room::pass(Arc::clone(self), class, &range) {
            return Dequeued::Lead(Aggregate::new(range.clone(), range, Vec::new(), room, None));
        }
        loop {
            let (sender, receiver) = oneshot::channel();
            let member = Member { kind, range: range.clone(), block: block.cloned(), sender };
            let _place = self.enter(Waiting { class, arrived_ns: now_ns, alone, children: u32::MAX, member });
            if let Ok(turn) = receiver.await {
                let is_alone = matches!(&turn, Dequeued::Lead(aggregate) if aggregate.others.is_empty());
                debug_assert!(!alone || is_alone, "a request that is to go alone does (invariant 3)");
                return turn;
            }
        }
    }
}
