//! Reflow: the sectors of a raidz vdev are dealt out anew over one child more, while the pool is in use.
//!
//! # Theory
//!
//! **Need.** A raidz vdev gets a further disk. All sectors have to move, and each block has to be readable, with all its redundancy, at any moment: while
//! its sectors are copied, after a power cut, and with as many children gone as there is parity.
//!
//! **Structures.**
//! ```text
//!  sectors    0 .......... synced ............ copied .......... end        (`Reflow`)
//!  read from  new place    old place           old place
//!  written to new place    old and new place   old place
//! ```
//! `synced` is what the uberblock on disk says (the *reflow word*), `copied` lies before the *limit* that follows from it (`reflow_limit_bytes`): what is
//! written up to there lands on old places of rows before `synced` alone, which nobody reads any more. At the beginning the limit
//! would be 0. So the first sectors go to the *scratch area* of each child, in front of the data, then from there to their new places, each step
//! with a reflow word of its own; the picture has a third place then.
//!
//! **Life of a row.** At its old place ─► `copied` is behind it, so what is written in it goes to both places ─► copied, if it was in use when `copied` was
//! set ─► stable with a txg's flush, and that txg's uberblock has a word behind it ─► read and written at its new place ─► its old place is
//! overwritten by rows that are copied later.
//!
//! **I/O that is under way** was mapped by the state at its beginning. A state that follows is only acted upon when all I/O of earlier ones has ended
//! ([`VdevTree::is_reflow_settled`]): reads, since their old place is overwritten next; writes, since they go to one place where the next state has
//! two. A copy and a write of the same sectors exclude each other: the write waits for a piece of [`PIECE_SECTORS`] of each child.
//!
//! **A loss** is anything by which a device may lack what it was told: a write or flush that failed. The one who copies looks at their number
//! ([`VdevTree::reflow_losses`]) before a batch and when its word is about to be written, and does the batch again if it differs.
//!
//! **Invariants.**
//! 1. The word on disk never claims a place that is not stable.
//! 2. No place from which the word on disk has a row read is overwritten by another sector.
//! 3. `synced` is set after the uberblock that says so, and never before: until then both places have the row.
//!
//! **Crash.** The word on disk says where each row is; by invariants 1 and 2 it is there. What was copied behind it is copied again.
//!
//! **Rejected.** *Closing metaslabs while they are copied, as OpenZFS does*: with writes to both places nothing needs to be closed. *Uberblocks of one
//! txg that differ in the word, as OpenZFS writes around the scratch area*: the one that was written last must win against multihost writes
//! and rings of devices that took only one; a txg of its own for each state has no such question.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sync::atomic::Ordering;
use cenote_taskq::{boxed, join_all};

use super::node::{Kind, Node};
use super::write::WriteContext;
use super::{Depth, Extent, ReadContext, Topology, TreeControl, VdevTree};
use crate::error::VdevError;
use crate::layout::raidz::{Raidz, Reflow, ReflowPlace, area_start};
use crate::queue::QueueClass;

/// Sectors of each child that are copied at once: writes to them wait meanwhile.
const PIECE_SECTORS: u64 = 128;

impl TreeControl {
    /// Says where a running raidz expansion stands. I/O that has begun goes by what was said before ([`VdevTree::is_reflow_settled`]).
    pub fn set_reflow(&mut self, reflow: Reflow) {
        self.common.reflow.set(reflow);
    }
}

impl VdevTree {
    /// Whether all I/O that goes by an earlier state of an expansion has ended.
    #[must_use]
    pub fn is_reflow_settled(&self) -> bool {
        self.common.reflow.is_settled()
    }

    /// How often a device may have lost something that it was told, since the pool was opened.
    #[must_use]
    pub fn reflow_losses(&self) -> u64 {
        self.common.reflow.losses.load(Ordering::Acquire)
    }

    /// The child of a raidz vdev for which its expansion has to wait, if there is one: one that is not there, is not read and written, lacks something, or is
    /// being replaced.
    #[must_use]
    pub fn reflow_obstacle(&self, vdev: VdevId) -> Option<Guid> {
        let topology = self.current.of(vdev);
        let node = topology.node(topology.tops.get(vdev.0 as usize)?.node);
        let is_whole = |child: &Node| match &child.kind {
            Kind::Leaf(leaf) => {
                leaf.writable_disk().is_some() && leaf.hang_status().is_none() && child.missed.get().is_empty()
            }
            _ => false,
        };
        node.children.iter().map(|child| topology.node(*child)).find(|child| !is_whole(child)).map(|child| child.guid)
    }

    /// Copies a range of a raidz vdev that is expanded, sector by sector as it lies on its children. All children have to give and take it. Nothing is said
    /// of where the range is to be read: that is [`TreeControl::set_reflow`].
    ///
    /// # Errors
    /// A child did not; what was copied is of no use then, and does no harm.
    #[boxed]
    pub async fn reflow_range(
        &self,
        vdev: VdevId,
        range: Range<u64>,
        from: ReflowPlace,
        to: ReflowPlace,
    ) -> Result<(), VdevError> {
        let topology = self.current.of(vdev);
        let top = topology.tops.get(vdev.0 as usize).ok_or(VdevError::NoSuchVdev(vdev))?;
        let node = topology.node(top.node);
        let Kind::Raidz(raidz) = &node.kind else { return Err(VdevError::NoSuchVdev(vdev)) };
        if !raidz.is_expanding() {
            return Err(VdevError::NoSuchVdev(vdev));
        }
        let ashift = raidz.ashift();
        let piece = PIECE_SECTORS * raidz.physical_width();
        let (mut at, end) = (range.start >> ashift, range.end.div_ceil(1 << ashift));
        let is_closed = || self.left().is_some_and(|left| left.is_closed());
        while at < end {
            if is_closed() {
                return Err(VdevError::Unsupported("copying in a pool that is being closed".into()));
            }
            let line = (at, end.min(at + piece));
            let _excluded = self.common.reflow.exclude(line.0 << ashift..line.1 << ashift).await;
            topology.reflow_piece(vdev, node, raidz, line, (from, to)).await?;
            at = line.1;
        }
        Ok(())
    }
}

/// The sectors of a piece that one child has.
struct Share<'a> {
    child: &'a Node,
    /// Index of the first in its area.
    first: u64,
    extent: Extent,
}

/// The shares of all children that have one, at a place.
fn shares<'a>(
    topology: &'a Topology,
    node: &'a Node,
    raidz: &Raidz,
    line: (u64, u64),
    place: ReflowPlace,
) -> BTreeMap<u64, Share<'a>> {
    let mut shares = BTreeMap::new();
    for index in 0..raidz.children_at(place) {
        let (first, count) = raidz.sectors_of_child(index, line, place);
        if count > 0 {
            let address = (first << raidz.ashift()) + area_start(place);
            let extent = Extent { address, len: count << raidz.ashift() };
            shares.insert(index, Share { child: topology.node(node.children[index as usize]), first, extent });
        }
    }
    shares
}

impl Topology {
    async fn reflow_piece(
        &self,
        vdev: VdevId,
        node: &Node,
        raidz: &Raidz,
        line: (u64, u64),
        (from, to): (ReflowPlace, ReflowPlace),
    ) -> Result<(), VdevError> {
        let (offset_bytes, size_bytes) = (line.0 << raidz.ashift(), (line.1 - line.0) << raidz.ashift());
        let sources = shares(self, node, raidz, line, from);
        let context = ReadContext::new(Txg(0)).of_class(QueueClass::Scrub);
        let reads = sources.iter().map(|(index, share)| async move {
            (*index, share.first, self.read_one(share.child, share.extent, None, context).await)
        });
        let mut read: BTreeMap<u64, (u64, Buf)> = BTreeMap::new();
        for (index, first, result) in join_all(reads).await {
            match result {
                Ok(bytes) => drop(read.insert(index, (first, bytes))),
                Err(faults) => {
                    return Err(VdevError::Unreadable { vdev, offset_bytes, size_bytes, faults: faults.0 });
                }
            }
        }
        let targets = shares(self, node, raidz, line, to);
        let mut made: BTreeMap<u64, Buf> =
            targets.iter().map(|(index, share)| (*index, Buf::unfilled(share.extent.len as usize))).collect();
        let sector_bytes = 1_usize << raidz.ashift();
        let (from_children, to_children) = (raidz.children_at(from), raidz.children_at(to));
        for sector in line.0..line.1 {
            let (first, source) = &read[&(sector % from_children)];
            let source_at = ((sector / from_children - first) as usize) * sector_bytes;
            let target = sector % to_children;
            let target_at = ((sector / to_children - targets[&target].first) as usize) * sector_bytes;
            let buf = made.get_mut(&target).expect("each sector has a child at the new place");
            buf[target_at..target_at + sector_bytes].copy_from_slice(&source[source_at..source_at + sector_bytes]);
        }
        let context = WriteContext { class: QueueClass::Scrub, ..WriteContext::new(Txg(0)) };
        let writes = made.into_iter().map(|(index, buf)| {
            let share = &targets[&index];
            let bytes: Block = buf.freeze();
            self.write_nested(share.child, share.extent.address, bytes, context, Depth::START)
        });
        let written = join_all(writes).await;
        let failed: Vec<_> =
            written.into_iter().filter(|part| !part.is_good()).flat_map(|part| part.into_faults()).collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(VdevError::Unwritable { vdev, offset_bytes, size_bytes, faults: failed }),
        }
    }
}
