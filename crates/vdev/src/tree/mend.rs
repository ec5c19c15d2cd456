//! Mending: a block's copies and columns are compared with the block, and what differs is written again, in its place.
//!
//! # Theory
//!
//! **Need.** A read that finds a copy bad and another good gives its caller the good bytes. The bad copy stays, and redundancy is gone
//! until the next scrub: one more failure, and the block is lost.
//!
//! **Life of a mend** ([`VdevTree::mend`]). The caller has the block, verified, and what keeps its place from being used again.
//! ```text
//!   block ─► parts: each leaf's range with the bytes that belong there      as a write would lay them out, parity included
//!   of each part:  read ─ same? ─ yes ─► nothing
//!                    │ no, or the device says that it has none
//!                    └► write ─► read back ─ same? ─ yes ─► healed: counted for the leaf
//!                                              └ no ─► left: a fault of the leaf
//! ```
//! The parts are those of all copies, not only of those that a reader found bad: who comes to mend a block leaves it whole.
//!
//! **In a resilver** every copy has just been read, past the leaves that have missed the block ([`ReadContext::past_lacking`](super::ReadContext::past_lacking)).
//! Where nothing was wrong but them, they are written and nothing is compared ([`Mend::is_resilver`]): a new device gets each byte once, and the others give
//! it once.
//!
//! **Leaves that have missed the block's txg** are written too. That is a resilver's work, and a resilver calls this; for a reader's mend it
//! costs one write more, and the block has its redundancy sooner. Their old bytes are no fault of theirs, and their dirty time logs stay as
//! they are: only a resilver knows that a txg is made up for. A leaf that is not there, faulted, or not to be written is left out; what a
//! distributed spare should have there it lacks from then on ([`super::passed_over`]).
//!
//! **Invariants.**
//! 1. What is written is a block that was verified, to a place that is kept for it until devices have answered: the *keep* that the caller
//!    gives is held by the task that writes. A caller that goes away does not end it.
//! 2. Nothing is written while the pool is suspended, or another host may have it. A mend is under way like other writes, so a pool that
//!    goes on waits for it first.
//! 3. No mend is under way while the topology changes ([`VdevTree::pause_mends`]): a device that leaves the pool gets no late write.
//! 4. On a raidz vdev that is expanded a mend is a write like others ([`super::reflow`]): it goes to each place that its columns are kept at, and the copy
//!    waits for it. What is wrong at a place that nobody reads yet is no damage: it may not have been copied.
//!
//! **Crash.** A part that was being written is wrong as before, or torn, or right. The other copies are not touched: each differs from the
//! block only if it was wrong before. A mend is stable with the next flush; nobody relies on it before.
//!
//! **Rejected.** *Writing what the read found bad, at once, in the read*: the reader would wait for it, and a mirror's read knows of one
//! leg alone. *Writing the whole block again*: good copies would be at risk, and a device that is full of good blocks would get as many
//! writes as a bad one.

use std::sync::Arc;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Notify, boxed, for_each_concurrent};

use super::gate::Flight;
use super::node::{Kind, Leaf, Node};
use super::write::{WriteContext, column_bytes, parity_columns};
use super::{Damage, Depth, Extent, ReadContext, Seen, Topology, VdevTree};
use crate::dtl::Dtl;
use crate::error::VdevError;
use crate::fault::{About, Compared, Fault, FaultKind, IoCause};
use crate::queue::QueueClass;

/// Parts of one block that are compared at once.
const PARTS_AT_ONCE: usize = 16;

/// A block to be mended on one top-level vdev.
#[derive(Clone, Debug)]
pub struct Mend {
    /// The vdev.
    pub vdev: VdevId,
    /// Where, as DVAs count.
    pub offset_bytes: u64,
    /// The physical bytes, verified, with zeros up to the vdev's next sector.
    pub block: Block,
    /// How many of them were verified.
    pub size_bytes: u64,
    /// The block's physical birth.
    pub birth: Txg,
    /// Its class in the queue.
    pub class: QueueClass,
    /// All leaves were read, and nothing is wrong but on those that have missed the block: these alone are written, as by any write, and what they
    /// have is not looked at.
    pub is_resilver: bool,
    /// Leaves that are charged with the damage already. `None`: no leaf is to be, since damage is no wonder here.
    pub charged: Option<Vec<Guid>>,
    /// The block, for those who are told of more damage.
    pub about: About,
}

/// A leaf on which bytes of a block were written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MendedLeaf {
    /// The leaf.
    pub guid: Guid,
    /// Bytes that were written and read back.
    pub bytes: u64,
}

/// The result of a mend.
#[derive(Clone, Debug, Default)]
pub struct Mended {
    /// Leaves that are right now, and were not.
    pub healed: Vec<MendedLeaf>,
    /// The ranges that could not be made right.
    pub left: Vec<Fault>,
}

impl Mended {
    /// Takes in what was done elsewhere.
    pub fn absorb(&mut self, other: Self) {
        for leaf in other.healed {
            match self.healed.iter_mut().find(|known| known.guid == leaf.guid) {
                Some(known) => known.bytes += leaf.bytes,
                None => self.healed.push(leaf),
            }
        }
        for fault in other.left {
            if self.left.len() < VdevError::FAULTS_MAX {
                self.left.push(fault);
            }
        }
    }

    /// Bytes that were written again.
    #[must_use]
    pub fn healed_bytes(&self) -> u64 {
        self.healed.iter().map(|leaf| leaf.bytes).sum()
    }
}

/// The mends of a pool that are under way.
#[derive(Debug, Default)]
pub(super) struct Mends {
    state: Mutex<MendsState>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct MendsState {
    under_way: usize,
    paused: usize,
}

impl Mends {
    pub(super) fn under_way(&self) -> usize {
        self.state.lock().under_way
    }

    pub(super) fn begin(&self) -> Option<UnderWay<'_>> {
        let mut state = self.state.lock();
        (state.paused == 0).then(|| {
            state.under_way += 1;
            UnderWay(self)
        })
    }
}

pub(super) struct UnderWay<'a>(&'a Mends);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.0.state.lock();
            assert!(state.under_way > 0, "a mend that ends was under way");
            state.under_way -= 1;
            state.under_way == 0
        };
        if is_last {
            self.0.ended.all();
        }
    }
}

/// No block is mended while this is there.
#[must_use]
#[derive(Debug)]
pub struct MendsPaused(Arc<VdevTree>);

impl Drop for MendsPaused {
    fn drop(&mut self) {
        self.0.common.mends.state.lock().paused -= 1;
    }
}

/// A leaf's range, and the bytes that belong there.
struct Part<'a> {
    node: &'a Node,
    leaf: &'a Leaf,
    address: u64,
    bytes: Block,
    /// How many of them count; the rest is padding.
    size: usize,
    /// It is a further place, which nobody reads yet.
    is_shadow: bool,
    /// A distributed spare leads to it that may lack it: its old bytes are no fault of the leaf.
    is_lacking: bool,
}

impl VdevTree {
    /// Makes every copy and column of a block right; see [`mend`](self). `keep` keeps the block's place from being used for another one; it
    /// is dropped when devices have answered, also where the caller goes away before.
    ///
    /// # Errors
    /// The pool is suspended or changes its devices now, or there is no such place: nothing was written.
    #[boxed]
    pub async fn mend(self: &Arc<Self>, mend: Mend, keep: impl Send + 'static) -> Result<Mended, VdevError> {
        let tree = Arc::clone(self);
        let work = async move {
            let mended = tree.mend_here(&mend).await;
            drop(keep);
            mended
        };
        // By the tree's group, so that closing the pool waits for it. Without a clock there is no runtime to give it to.
        let Some(group) = self.left() else { return work.await };
        let refused = || VdevError::Unsupported("mending blocks of a pool that is being closed".into());
        let join = group.spawn(Class::Background, work).map_err(|_| refused())?;
        join.await.map_err(|_| refused())?
    }

    /// Waits until no block is being mended, and has none be until what this returns is dropped. Before [`TreeControl::change`](crate::tree::TreeControl::change).
    #[boxed]
    pub async fn pause_mends(self: &Arc<Self>) -> MendsPaused {
        let mends = &self.common.mends;
        mends.state.lock().paused += 1;
        let paused = MendsPaused(Arc::clone(self));
        loop {
            let ended = mends.ended.wait();
            if mends.under_way() == 0 {
                return paused;
            }
            ended.await;
        }
    }

    async fn mend_here(&self, mend: &Mend) -> Result<Mended, VdevError> {
        let refused = |why: &str| Err(VdevError::Suspended(why.to_owned()));
        let Some(_mending) = self.common.mends.begin() else { return refused("its devices are being changed") };
        let _under_way = match self.suspension() {
            Some(suspension) => match suspension.enter_unless_suspended() {
                Some(under_way) => Some(under_way),
                None => return refused(suspension.reason().as_deref().unwrap_or_default()),
            },
            None => None,
        };
        let topology = self.current.of(mend.vdev);
        topology.mend(mend).await
    }
}

impl Topology {
    async fn mend(&self, mend: &Mend) -> Result<Mended, VdevError> {
        let (node, extent) = self.locate(mend.vdev, mend.offset_bytes, mend.size_bytes)?;
        assert_eq!(extent.len, mend.block.len() as u64, "a block that is mended fills its sectors");
        let mut parts = Vec::new();
        let flight = self.write_flight(node, extent, mend.birth).await;
        if matches!(node.kind, Kind::Indirect) {
            for (node, extent, bytes) in self.indirect_places(mend.vdev, mend.offset_bytes, &mend.block).await? {
                let size = bytes.len();
                let address = extent.address;
                if matches!(&node.kind, Kind::Raidz(raidz) if raidz.is_expanding()) {
                    // No vdev is removed from a pool that has one.
                    let what = format!("blocks of a removed vdev on {}, which is expanded", node.path);
                    return Err(VdevError::Unsupported(what));
                }
                self.collect_parts(node, address, bytes, size, mend.birth, None, Depth::START, &mut parts)?;
            }
        } else {
            let (block, size) = (mend.block.clone(), mend.size_bytes as usize);
            let birth = mend.birth;
            self.collect_parts(node, extent.address, block, size, birth, flight.as_ref(), Depth::START, &mut parts)?;
        }
        let mended = Mutex::new(Mended::default());
        for_each_concurrent(PARTS_AT_ONCE, parts, |part| {
            let mended = &mended;
            async move {
                match self.mend_part(&part, mend).await {
                    Ok(0) => {}
                    Ok(bytes) => {
                        let leaf = MendedLeaf { guid: part.node.guid, bytes };
                        mended.lock().absorb(Mended { healed: vec![leaf], left: Vec::new() });
                    }
                    Err(fault) => mended.lock().absorb(Mended { healed: Vec::new(), left: vec![fault] }),
                }
            }
        })
        .await;
        Ok(mended.into_inner())
    }

    /// Each leaf's part of what lies at an address of a vdev.
    #[allow(clippy::too_many_arguments, reason = "what a block is, and where")]
    fn collect_parts<'a>(
        &'a self,
        node: &'a Node,
        address: u64,
        bytes: Block,
        size: usize,
        birth: Txg,
        flight: Option<&Flight<'_>>,
        depth: Depth,
        into: &mut Vec<Part<'a>>,
    ) -> Result<(), VdevError> {
        let Some(depth) = depth.below() else { return Ok(()) };
        match &node.kind {
            Kind::Leaf(leaf) => {
                into.push(Part { node, leaf, address, bytes, size, is_shadow: false, is_lacking: false });
            }
            Kind::Mirror => {
                for child in &node.children {
                    self.collect_parts(self.node(*child), address, bytes.clone(), size, birth, flight, depth, into)?;
                }
            }
            Kind::DraidSpare { .. } => {
                if let Some(target) = self.spare_target(node, address) {
                    let before = into.len();
                    self.collect_parts(target, address, bytes, size, birth, flight, depth, into)?;
                    let is_lacking = node.is_rebuilding() || node.missed.contains(birth);
                    into[before..].iter_mut().for_each(|part| part.is_lacking |= is_lacking);
                }
            }
            Kind::Raidz(_) | Kind::Draid(_) => {
                let extent = Extent { address, len: bytes.len() as u64 };
                let map = self.stripe_map(node, extent, birth, flight)?;
                let shadows = self.shadows(node, extent, birth, &map, flight);
                for (index, (column, parity)) in map.columns().iter().zip(parity_columns(&map, &bytes)?).enumerate() {
                    // A column of padding alone has nothing to be right.
                    if column.size_bytes == 0 {
                        continue;
                    }
                    let Some(part) = column_bytes(column, parity, &bytes) else { continue };
                    let child = self.node(node.children[column.child as usize]);
                    let size = column.size_bytes as usize;
                    for shadow in shadows.iter().filter(|shadow| shadow.column == index) {
                        let (child, before) = (self.node(node.children[shadow.child as usize]), into.len());
                        self.collect_parts(
                            child,
                            shadow.address_bytes,
                            part.clone(),
                            size,
                            birth,
                            flight,
                            depth,
                            into,
                        )?;
                        into[before..].iter_mut().for_each(|part| part.is_shadow = true);
                    }
                    self.collect_parts(child, column.address_bytes, part, size, birth, flight, depth, into)?;
                }
            }
            Kind::Indirect | Kind::Hole | Kind::Missing => {}
        }
        Ok(())
    }

    /// Makes one part right. The bytes that were written for that; an error if it is not right now.
    async fn mend_part(&self, part: &Part<'_>, mend: &Mend) -> Result<u64, Fault> {
        let Part { node, leaf, address, bytes, size, is_shadow, is_lacking } = part;
        let extent = Extent { address: *address, len: bytes.len() as u64 };
        let Some((disk, queue)) = leaf.writable_disk().filter(|_| leaf.holds(extent.address, extent.len)) else {
            if *is_lacking {
                self.pass_over(node, &Dtl::of(mend.birth.0..mend.birth.0.saturating_add(1)));
            }
            return Ok(0);
        };
        let damage = Damage::of(mend.about);
        let reading = ReadContext::new(mend.birth).of_class(mend.class).noting(&damage);
        let context = WriteContext { birth: mend.birth, class: mend.class, is_stable: false };
        let is_stale = *is_lacking || node.missed.contains(mend.birth) || node.is_rebuilding();
        if mend.is_resilver {
            if !is_stale {
                return Ok(0);
            }
            if let Err(error) = self.write_in_turn(disk, queue, context, extent, bytes.clone()).await {
                return Err(self.report(node, extent, FaultKind::Write(IoCause::from(&error)), reading));
            }
            if *is_shadow {
                return Ok(0);
            }
            node.errors.count_healed(extent.len);
            return Ok(extent.len);
        }
        let is_right = |read: &[u8]| read[..*size] == bytes[..*size];
        // The reader that found the damage has counted it; damage that nobody has found yet is counted below.
        let (kind, wrong) = match self.read_one(node, extent, None, reading.speculative()).await {
            Ok(read) if is_right(&read) => return Ok(0),
            Ok(read) => (FaultKind::Checksum, Some(read)),
            Err(faults) => match faults.0.first().map(|fault| fault.kind) {
                Some(kind) if kind.is_damage() => (kind, None),
                // It does not answer, or is gone by now.
                _ => return Ok(0),
            },
        };
        if !is_stale && !is_shadow && mend.charged.as_ref().is_some_and(|charged| !charged.contains(&node.guid)) {
            let compared = wrong.as_deref().map(|bad| Compared::whole(&bytes[..*size], bad));
            self.report_seen(node, extent, kind, reading, Seen::Compared(compared.as_slice()));
        }
        if let Err(error) = self.write_in_turn(disk, queue, context, extent, bytes.clone()).await {
            return Err(self.report(node, extent, FaultKind::Write(IoCause::from(&error)), reading));
        }
        match self.read_one(node, extent, None, reading).await {
            Ok(read) if is_right(&read) => {
                if *is_shadow {
                    return Ok(0);
                }
                node.errors.count_healed(extent.len);
                Ok(extent.len)
            }
            Ok(_) => Err(self.report(node, extent, FaultKind::Checksum, reading)),
            Err(faults) => {
                let fault = faults.0.into_iter().next();
                Err(fault.unwrap_or_else(|| self.fault(node, extent, FaultKind::Unavailable)))
            }
        }
    }
}
