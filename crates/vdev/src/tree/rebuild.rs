//! Rebuilding: the leaves of a mirror or draid that lack something get a range of the vdev, whatever blocks are in it.
//!
//! # Theory
//!
//! **Need.** A new disk gets all that its siblings have. A resilver reads block by block, as the tree has them; in the order of the disk it is faster, and
//! needs to know only which ranges are in use. No checksum says then which bytes are right.
//!
//! **Rows.** A mirror is a row with one column. A draid has rows of columns with parity, and each allocation is whole rows, padding included: so a range in
//! use is a sequence of rows, and parity can be reckoned without knowing its blocks. (A raidz has no such rows.)
//! ```text
//!   of each row:   columns with targets ─ has a whole leaf ─► its bytes ────────────────┐
//!                                       └ has none ─► the other columns, reconstructed ─┴─► written to the targets below the column
//! ```
//! A column's child may be a mirror (`replacing`, `spare`), whose children have the same bytes, and a distributed spare: then it is a part of another child.
//!
//! **Sources.** A leaf is *whole* if it is there and its dirty time log is empty. What is copied has no birth that is known, so a leaf that has missed
//! anything at all gives nothing. *Targets* are the leaves that lack something and can be written, and distributed spares likewise.
//!
//! **Invariants.**
//! 1. Nothing is read from a leaf that has missed anything.
//! 2. The caller keeps the range: all in it is in use on disk, and is not used for anything else, until devices have answered (`keep`).
//! 3. As for a mend: nothing is written while the pool is suspended or its vdevs change.
//!
//! **Crash.** A target has old bytes, or new ones. Its dirty time log says that it lacks them, until the whole vdev is rebuilt.
//!
//! **Rejected.** *Reading all columns, and comparing them*: the scrub that follows does that, with checksums.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_codec::raidz::{self, Column as Parity};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Class, boxed, join_all};

use super::node::{Kind, Node};
use super::write::WriteContext;
use super::{Depth, Extent, ReadContext, Topology, VdevTree};
use crate::error::VdevError;
use crate::fault::{FaultKind, IoCause};
use crate::queue::QueueClass;

/// Bytes of a leaf that are copied at once (`zfs_rebuild_max_segment`).
const COLUMN_BYTES: u64 = 1 << 20;

/// A range that is rebuilt.
#[derive(Clone, Debug)]
pub struct RebuildRange {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Where, as DVAs count.
    pub offset_bytes: u64,
    /// Bytes of it, [`VdevTree::rebuild_unit`] at most; on draid whole rows of groups.
    pub size_bytes: u64,
    /// The leaves and distributed spares that get what they lack.
    pub targets: Arc<BTreeSet<Guid>>,
}

/// The result of rebuilding a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Bytes that were written, on all leaves.
    pub bytes: u64,
    /// Targets that did not get all of it.
    pub failed: BTreeSet<Guid>,
}

/// A column: the vdev that it lies on, and where.
struct Place<'a> {
    node: &'a Node,
    extent: Extent,
}

/// A leaf that is to get a column, and the targets that need it to.
struct Target<'a> {
    leaf: &'a Node,
    needed_by: BTreeSet<Guid>,
}

impl VdevTree {
    /// Bytes of a top-level vdev that are rebuilt at once. `None` for vdevs that cannot be rebuilt: those with one leaf, and raidz.
    #[must_use]
    pub fn rebuild_unit(&self, vdev: VdevId) -> Option<u64> {
        self.current.look(vdev, |topology| match &topology.node(topology.tops.get(vdev.0 as usize)?.node).kind {
            Kind::Mirror => Some(COLUMN_BYTES),
            Kind::Draid(draid) => Some(draid.group_width() * COLUMN_BYTES),
            _ => None,
        })
    }

    /// The leaves and distributed spares below a top-level vdev that lack something and can be written.
    #[must_use]
    pub fn rebuild_targets(&self, vdev: VdevId) -> BTreeSet<Guid> {
        self.current.look(vdev, |topology| {
            let lacks = |node: &&super::node::Node| match &node.kind {
                Kind::Leaf(leaf) => leaf.writable_disk().is_some() && !node.missed.get().is_empty(),
                Kind::DraidSpare { draid: Some(_), .. } => !node.missed.get().is_empty(),
                _ => false,
            };
            topology.nodes.iter().filter(|node| node.top == vdev).filter(lacks).map(|node| node.guid).collect()
        })
    }

    /// Whether there is a whole leaf for as many children of a top-level vdev as are needed for all its contents.
    #[must_use]
    pub fn has_rebuild_sources(&self, vdev: VdevId) -> bool {
        self.current.look(vdev, |topology| {
            let Some(top) = topology.tops.get(vdev.0 as usize).map(|top| topology.node(top.node)) else { return false };
            let is_whole = |child: &super::node::NodeIndex| topology.is_whole(topology.node(*child), Depth::START);
            top.children.iter().filter(|child| !is_whole(child)).count() <= top.dispensable_children()
        })
    }

    /// Gives targets a range of a top-level vdev. `keep` keeps the range from being used for anything else; it is dropped when devices have
    /// answered, also where the caller goes away before.
    ///
    /// # Errors
    /// There is nothing to copy from, or the pool is suspended or changes its devices now. A part may have been written.
    #[boxed]
    pub async fn rebuild(
        self: &Arc<Self>,
        range: RebuildRange,
        keep: impl Send + 'static,
    ) -> Result<Rebuilt, VdevError> {
        let tree = Arc::clone(self);
        let work = async move {
            let rebuilt = tree.rebuild_here(&range).await;
            drop(keep);
            rebuilt
        };
        // By the tree's group, so that closing the pool waits for it.
        let Some(group) = self.left() else { return work.await };
        let refused = || VdevError::Unsupported("rebuilding devices of a pool that is being closed".into());
        let join = group.spawn(Class::Background, work).map_err(|_| refused())?;
        join.await.map_err(|_| refused())?
    }

    async fn rebuild_here(&self, range: &RebuildRange) -> Result<Rebuilt, VdevError> {
        let refused = |why: &str| Err(VdevError::Suspended(why.to_owned()));
        let Some(_writing) = self.common.mends.begin() else { return refused("its devices are being changed") };
        let _under_way = match self.suspension() {
            Some(suspension) => match suspension.enter_unless_suspended() {
                Some(under_way) => Some(under_way),
                None => return refused(suspension.reason().as_deref().unwrap_or_default()),
            },
            None => None,
        };
        let topology = self.current.of(range.vdev);
        topology.rebuild(range).await
    }
}

impl Topology {
    async fn rebuild(&self, range: &RebuildRange) -> Result<Rebuilt, VdevError> {
        let RebuildRange { vdev, offset_bytes, size_bytes, targets } = range;
        let (node, extent) = self.locate(*vdev, *offset_bytes, *size_bytes)?;
        let mut rebuilt = Rebuilt::default();
        match &node.kind {
            Kind::Mirror => self.rebuild_row(vdev, &[Place { node, extent }], 0, targets, &mut rebuilt).await?,
            Kind::Draid(draid) => {
                let psize_bytes = draid.asize_to_psize(extent.len);
                let map = draid.map(*offset_bytes, psize_bytes);
                let map = map.map_err(|source| VdevError::BadRange { vdev: *vdev, source })?;
                let covered_bytes: u64 = map.rows().map(|row| row[0].size_bytes * draid.group_width()).sum();
                if covered_bytes != extent.len {
                    let what =
                        format!("rebuilding a range that is not whole rows: {size_bytes} bytes at {offset_bytes}");
                    return Err(VdevError::Unsupported(what));
                }
                for row in map.rows() {
                    let place = |column: &crate::layout::Column| Place {
                        node: self.node(node.children[column.child as usize]),
                        extent: Extent { address: column.address_bytes, len: column.size_bytes },
                    };
                    let columns: Vec<Place<'_>> = row.iter().map(place).collect();
                    assert!(row.iter().all(|column| column.padding_bytes == 0), "whole rows have no padding");
                    self.rebuild_row(vdev, &columns, map.parity_count(), targets, &mut rebuilt).await?;
                }
            }
            _ => return Err(VdevError::Unsupported(format!("rebuilding {}", node.path))),
        }
        Ok(rebuilt)
    }

    /// Rebuilds a row of columns, of which the first are parity.
    async fn rebuild_row(
        &self,
        vdev: &VdevId,
        columns: &[Place<'_>],
        parity_count: usize,
        targets: &BTreeSet<Guid>,
        rebuilt: &mut Rebuilt,
    ) -> Result<(), VdevError> {
        assert!(columns.len() > parity_count, "a row has data");
        let wanted: Vec<Vec<Target<'_>>> = columns.iter().map(|column| self.targets_at(column, targets)).collect();
        if wanted.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let read = |is_read: bool, column: usize| {
            let column = &columns[column];
            async move { if is_read { self.read_whole(column).await } else { None } }
        };
        let mut bytes = join_all((0..columns.len()).map(|at| read(!wanted[at].is_empty(), at))).await;
        if (0..columns.len()).any(|at| !wanted[at].is_empty() && bytes[at].is_none()) {
            let others = join_all((0..columns.len()).map(|at| read(wanted[at].is_empty(), at))).await;
            for (bytes, other) in bytes.iter_mut().zip(others) {
                *bytes = bytes.take().or(other);
            }
            reconstruct(&mut bytes, columns, parity_count).ok_or_else(|| {
                let extent = columns[0].extent;
                let lost = (0..columns.len()).filter(|at| bytes[*at].is_none());
                let faults = lost.map(|at| self.fault(columns[at].node, columns[at].extent, FaultKind::Unavailable));
                VdevError::Unreadable {
                    vdev: *vdev,
                    offset_bytes: extent.address,
                    size_bytes: extent.len,
                    faults: faults.take(VdevError::FAULTS_MAX).collect(),
                }
            })?;
        }
        let mut writes = Vec::new();
        for ((wanted, bytes), column) in wanted.into_iter().zip(bytes).zip(columns) {
            let bytes = bytes.map(Buf::freeze);
            let needed_by: BTreeSet<Guid> = wanted.iter().flat_map(|target| target.needed_by.iter().copied()).collect();
            let (mut taken, mut passed_over) = (BTreeSet::new(), Vec::new());
            for Target { leaf, needed_by } in wanted {
                let bytes = bytes.clone().expect("what has targets was read, or reconstructed");
                // A spare's place may be on a disk that is away, for which another spare stands.
                if self.can_take(leaf, column.extent) {
                    taken.extend(needed_by.iter().copied());
                    writes.push(self.write_target(leaf, needed_by, column.extent, bytes));
                } else {
                    passed_over.push((leaf, needed_by));
                }
            }
            for (leaf, needed_by) in passed_over {
                self.pass_over_for(leaf, &(&needed_by & &taken));
            }
            rebuilt.failed.extend(needed_by.difference(&taken));
        }
        for written in join_all(writes).await {
            match written {
                Ok(bytes) => rebuilt.bytes += bytes,
                Err(needed_by) => rebuilt.failed.extend(needed_by),
            }
        }
        Ok(())
    }

    /// The leaves that are to get a column.
    fn targets_at<'a>(&'a self, column: &Place<'a>, targets: &BTreeSet<Guid>) -> Vec<Target<'a>> {
        let mut found = Vec::new();
        self.collect_targets(column.node, column.extent.address, targets, &BTreeSet::new(), Depth::START, &mut found);
        found
    }

    fn collect_targets<'a>(
        &'a self,
        node: &'a Node,
        address: u64,
        targets: &BTreeSet<Guid>,
        above: &BTreeSet<Guid>,
        depth: Depth,
        found: &mut Vec<Target<'a>>,
    ) {
        let Some(depth) = depth.below() else { return };
        let mut needed_by = above.clone();
        needed_by.extend(targets.get(&node.guid));
        match &node.kind {
            Kind::Leaf(_) if !needed_by.is_empty() => {
                match found.iter_mut().find(|target| target.leaf.guid == node.guid) {
                    Some(target) => target.needed_by.append(&mut needed_by),
                    None => found.push(Target { leaf: node, needed_by }),
                }
            }
            Kind::Mirror => {
                for child in &node.children {
                    self.collect_targets(self.node(*child), address, targets, above, depth, found);
                }
            }
            Kind::DraidSpare { .. } => {
                if let Some(target) = self.spare_target(node, address) {
                    self.collect_targets(target, address, targets, &needed_by, depth, found);
                }
            }
            _ => {}
        }
    }

    /// Whether a vdev has all that it should, on one leaf that is there. Of a distributed spare only its log is known here.
    fn is_whole(&self, node: &Node, depth: Depth) -> bool {
        let Some(depth) = depth.below() else { return false };
        match &node.kind {
            Kind::Leaf(leaf) => leaf.readable_disk().is_some() && node.missed.get().is_empty(),
            Kind::Mirror => node.children.iter().any(|child| self.is_whole(self.node(*child), depth)),
            Kind::DraidSpare { draid: Some(_), .. } => !node.is_rebuilding() && node.missed.get().is_empty(),
            _ => false,
        }
    }

    /// The leaves that have what is at an address of a vdev, and have missed nothing.
    fn collect_whole<'a>(&'a self, node: &'a Node, address: u64, depth: Depth, found: &mut Vec<&'a Node>) {
        let Some(depth) = depth.below() else { return };
        match &node.kind {
            Kind::Leaf(_) if self.is_whole(node, depth) => found.push(node),
            Kind::Mirror => {
                for child in &node.children {
                    self.collect_whole(self.node(*child), address, depth, found);
                }
            }
            Kind::DraidSpare { .. } if self.is_whole(node, depth) => {
                if let Some(target) = self.spare_target(node, address) {
                    self.collect_whole(target, address, depth, found);
                }
            }
            _ => {}
        }
    }

    /// Reads a column from a leaf that is whole, another one if that fails.
    async fn read_whole(&self, column: &Place<'_>) -> Option<Buf> {
        let mut leaves = Vec::new();
        self.collect_whole(column.node, column.extent.address, Depth::START, &mut leaves);
        // Neighbours are read from different legs.
        let first = (column.extent.address / COLUMN_BYTES) as usize % leaves.len().max(1);
        leaves.rotate_left(first);
        let context = ReadContext::new(Txg(0)).of_class(QueueClass::Scrub);
        for leaf in leaves {
            if let Ok(read) = self.read_one(leaf, column.extent, None, context).await {
                debug_assert_eq!(read.len() as u64, column.extent.len, "a column is read whole");
                return Some(read);
            }
        }
        None
    }

    /// Whether a leaf can be written there.
    fn can_take(&self, node: &Node, extent: Extent) -> bool {
        matches!(&node.kind, Kind::Leaf(leaf) if leaf.writable_disk().is_some() && leaf.holds(extent.address, extent.len))
    }

    /// Writes a column to a leaf. The bytes that were written; if it did not take them, those that need it to.
    async fn write_target(
        &self,
        node: &Node,
        needed_by: BTreeSet<Guid>,
        extent: Extent,
        bytes: Block,
    ) -> Result<u64, BTreeSet<Guid>> {
        let Kind::Leaf(leaf) = &node.kind else { return Err(needed_by) };
        let Some((disk, queue)) = leaf.writable_disk() else { return Err(needed_by) };
        let context = WriteContext { birth: Txg(0), class: QueueClass::Scrub, is_stable: false };
        match self.write_in_turn(disk, queue, context, extent, bytes).await {
            Ok(()) => Ok(extent.len),
            Err(error) => {
                let reading = ReadContext::new(Txg(0)).of_class(QueueClass::Scrub);
                self.report(node, extent, FaultKind::Write(IoCause::from(&error)), reading);
                Err(needed_by)
            }
        }
    }
}

/// Makes the columns of a row that are not there from the others. `None` where too few are.
fn reconstruct(bytes: &mut [Option<Buf>], columns: &[Place<'_>], parity_count: usize) -> Option<()> {
    let has_data = bytes[parity_count..].iter().all(Option::is_some);
    let mut made: Vec<(usize, Buf)> = (parity_count..columns.len())
        .filter(|at| bytes[*at].is_none())
        .map(|at| (at, Buf::zeroed(columns[at].extent.len as usize)))
        .collect();
    if !has_data {
        let mut spaces = made.iter_mut();
        let mut row: Vec<Parity<'_>> = bytes
            .iter()
            .enumerate()
            .map(|(at, bytes)| match bytes {
                Some(bytes) => Parity::Known(bytes),
                None if at < parity_count => Parity::Unread,
                None => spaces.next().map_or(Parity::Unread, |(_, space)| Parity::Missing(space)),
            })
            .collect();
        raidz::reconstruct(parity_count, &mut row).ok()?;
        drop(row);
        for (at, column) in made {
            bytes[at] = Some(column);
        }
    }
    let mut parity: Vec<Buf> =
        columns[..parity_count].iter().map(|column| Buf::zeroed(column.extent.len as usize)).collect();
    {
        let data: Vec<&[u8]> = bytes[parity_count..].iter().map(|bytes| bytes.as_deref().unwrap_or(&[])).collect();
        let mut spaces: Vec<&mut [u8]> = parity.iter_mut().map(|buf| &mut buf[..]).collect();
        if parity_count > 0 {
            raidz::generate(&data, &mut spaces).ok()?;
        }
    }
    for (at, made) in parity.into_iter().enumerate() {
        if bytes[at].is_none() {
            bytes[at] = Some(made);
        }
    }
    debug_assert!(bytes.iter().all(Option::is_some), "a row that was reconstructed is whole");
    Some(())
}
