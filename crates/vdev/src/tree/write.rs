//! Writing a block through the tree.
//!
//! ```text
//!   write(VdevId, offset, block, birth)
//!     leaf            one write
//!     mirror          every child at once; good while one child has it
//!     raidz, draid    data columns are slices of the block, parity is computed here; good while no more columns fail
//!                     than there is parity, columns that are padding alone left out
//! ```
//!
//! A child that is not there or fails has *missed* the block's txg, if the block is written without it: that is noted with the
//! child, so that from then on a reader asks it last, and told in the [`Written`] of the write, so that the pool can put it into the child's dirty time
//! log. A write that too few children took is an error: the caller allocates elsewhere or stops.
//!
//! A leaf that fails a write is asked once more, alone. So a single failure costs no redundancy, and one that stays is in the leaf's log: none is
//! overlooked because others sufficed. (OpenZFS reads such a block back and heals it, since 2.4.) The failure is counted either way.
//!
//! A write becomes stable with [`VdevTree::flush`], which asks every leaf that may be written, or with its own write
//! ([`WriteContext::is_stable`]). Writes are not ordered here: a caller that needs an order waits for the first write.
//!
//! A raidz vdev's skip sectors stay unwritten; a draid's padding is written as the zeros that its parity counts it as.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_codec::raidz;
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::{BOOT_AREA_OFFSET, START_BYTES};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{boxed, join_all};

use super::gate::Flight;
use super::node::{Kind, Leaf, Node};
use super::pieces::{Pieces, is_in_pieces};
use super::{Depth, Extent, Faults, ReadContext, Topology, VdevSet, VdevTree};
use crate::disk::Disk;
use crate::error::VdevError;
use crate::fault::{Fault, FaultKind, IoCause};
use crate::layout::raidz::{Reflow, Shadow};
use crate::layout::{Column, LayoutError, StripeMap};
use crate::queue::{self, Dequeued, LeafQueue, QueueClass};

/// The txg and the purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteContext {
    /// The txg that it is written in.
    pub birth: Txg,
    /// Its purpose: the requests that it waits behind, and those that it goes before.
    pub class: QueueClass,
    /// It is stable on each leaf that takes it when it is done, without a flush, and says nothing of what was written before.
    pub is_stable: bool,
}

impl WriteContext {
    /// For a block of this physical birth, which is written with its txg.
    #[must_use]
    pub const fn new(birth: Txg) -> Self {
        Self { birth, class: QueueClass::AsyncWrite, is_stable: false }
    }

    /// The same, for a write that a client waits for.
    #[must_use]
    pub const fn waited_for(self) -> Self {
        Self { class: QueueClass::SyncWrite, ..self }
    }

    /// The same, stable when it is done if `is_stable`.
    #[must_use]
    pub const fn stable(self, is_stable: bool) -> Self {
        Self { is_stable, ..self }
    }
}

impl From<Txg> for WriteContext {
    fn from(birth: Txg) -> Self {
        Self::new(birth)
    }
}

/// The outcome of a write that is good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The leaves that should have it and have not. Empty on a healthy pool.
    pub missed: Vec<Guid>,
}

/// The result of a write below some vdev: the leaves that have missed it, and whether the vdev as a whole has it.
pub(super) struct Part {
    missed: Vec<Guid>,
    faults: Faults,
    is_good: bool,
}

impl Part {
    fn good() -> Self {
        Self { missed: Vec::new(), faults: Faults::default(), is_good: true }
    }

    pub(super) const fn is_good(&self) -> bool {
        self.is_good
    }

    pub(super) fn into_faults(self) -> Vec<Fault> {
        self.faults.0
    }

    /// Takes in what happened below.
    fn absorb(&mut self, other: Part) {
        self.missed.extend(other.missed);
        self.faults.extend(other.faults);
    }
}

impl VdevTree {
    /// Writes a block at `offset_bytes` of a top-level vdev, as DVAs count, with all the copies or parity that the vdev
    /// keeps. The length of `block` is a multiple of the vdev's sector: the block's physical size, padded with zeros.
    ///
    /// Where too few children take it, it waits until they do, if the pool waits for devices ([`VdevTree::wait_for_devices`]).
    ///
    /// # Errors
    /// [`VdevError::Unwritable`] when too few children took it; others as their names say.
    pub async fn write(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        block: &Block,
        context: impl Into<WriteContext>,
    ) -> Result<Written, VdevError> {
        let context = context.into();
        match self.suspension() {
            Some(suspension) => self.write_patiently(suspension, vdev, offset_bytes, block, context).await,
            None => self.write_once(vdev, offset_bytes, block, context).await,
        }
    }

    /// As [`Self::write`], in one attempt through the topology that is current: what too few devices take is an error, in a pool that waits
    /// for devices too.
    pub fn write_once<'a>(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        block: &'a Block,
        context: WriteContext,
    ) -> impl Future<Output = Result<Written, VdevError>> + Send + use<'a> {
        self.current.of(vdev).write(vdev, offset_bytes, block, context)
    }

    /// Makes all that was written before stable, on every leaf that can be written. Leaves that fail are returned: what
    /// they were told since the last flush may be lost.
    ///
    /// # Errors
    /// None, unless the pool waits for devices and was given up.
    pub async fn flush(&self) -> Result<Vec<Guid>, VdevError> {
        self.flush_of(VdevSet::ALL).await
    }

    /// The same of what was written to these top-level vdevs, by a flush of their leaves alone. The result may name leaves of other vdevs,
    /// if they failed a flush that no result has named yet.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn flush_of(&self, vdevs: VdevSet) -> Result<Vec<Guid>, VdevError> {
        match self.suspension() {
            Some(suspension) => self.flush_patiently_of(suspension, vdevs).await,
            None => Ok(self.topology().flush(vdevs).await),
        }
    }
}

impl Topology {
    async fn write(
        self: Arc<Self>,
        vdev: VdevId,
        offset_bytes: u64,
        block: &Block,
        context: WriteContext,
    ) -> Result<Written, VdevError> {
        let size_bytes = block.len() as u64;
        let (node, extent) = self.locate(vdev, offset_bytes, size_bytes)?;
        if extent.len != size_bytes {
            return Err(VdevError::BadRange { vdev, source: LayoutError::BadRange { offset_bytes, size_bytes } });
        }
        let part = match &node.kind {
            Kind::Leaf(leaf) => self.write_leaf(node, leaf, extent.address, block.clone(), context).await,
            Kind::Mirror => self.write_mirror(node, extent.address, block, context, Depth::START).await,
            Kind::Raidz(_) | Kind::Draid(_) => self.write_stripe(node, extent, block, context, Depth::START).await?,
            Kind::Indirect => return Err(VdevError::Unsupported("writing to a removed vdev".into())),
            Kind::Missing => return Err(VdevError::Missing(vdev)),
            Kind::Hole | Kind::DraidSpare { .. } => return Err(VdevError::NoSuchVdev(vdev)),
        };
        if part.is_good && mutant::is(Mutant::MissUnnoted) {
            return Ok(Written::default());
        }
        if part.is_good {
            let is_leaf = |guid: &Guid| self.lookup(*guid).is_some_and(|node| matches!(node.kind, Kind::Leaf(_)));
            debug_assert!(part.missed.iter().all(is_leaf), "leaves of the topology that was written to have missed it");
            for guid in &part.missed {
                self.lookup(*guid).inspect(|leaf| leaf.missed.insert(context.birth));
            }
            return Ok(Written { missed: part.missed });
        }
        // A leaf at the top has been counted already.
        let kind = FaultKind::Write(IoCause { kind: std::io::ErrorKind::Other, errno: None });
        if !matches!(node.kind, Kind::Leaf(_)) {
            node.errors.count(kind);
        }
        self.common.root.errors.count(kind);
        Err(VdevError::Unwritable { vdev, offset_bytes, size_bytes, faults: part.faults.0 })
    }

    /// Flushes every leaf of these vdevs that can be written. Returns the leaves that failed.
    pub(super) async fn flush(&self, vdevs: VdevSet) -> Vec<Guid> {
        let nodes = || self.nodes.iter().filter(|node| vdevs.contains(node.top));
        let leaves = nodes().filter_map(|node| match &node.kind {
            Kind::Leaf(leaf) => leaf.writable_disk().map(|(disk, _)| (node, disk)),
            _ => None,
        });
        // Data that a leaf took before it was given up may never become stable.
        let is_given_up = |node: &&Node| match &node.kind {
            Kind::Leaf(leaf) => leaf.hang_status().is_some_and(|hang| hang.is_given_up),
            _ => false,
        };
        let given_up: Vec<Guid> = nodes().filter(is_given_up).map(|node| node.guid).collect();
        let flushes = leaves.map(|(node, disk)| async move {
            let error = disk.flush().await.err()?;
            let extent = Extent { address: 0, len: 0 };
            self.report(node, extent, FaultKind::Write(IoCause::from(&error)), ReadContext::new(Txg(0)));
            Some(node.guid)
        });
        let failed = join_all(flushes).await.into_iter().flatten();
        failed.chain(given_up).collect::<BTreeSet<_>>().into_iter().collect()
    }

    async fn write_leaf(&self, node: &Node, leaf: &Leaf, address: u64, block: Block, context: WriteContext) -> Part {
        let extent = Extent { address, len: block.len() as u64 };
        let reading = ReadContext::new(context.birth);
        let fault = match leaf.writable_disk() {
            None => self.fault(node, extent, FaultKind::Unavailable),
            Some(_) if !leaf.holds(address, extent.len) => {
                let cause = IoCause { kind: std::io::ErrorKind::UnexpectedEof, errno: None };
                self.report(node, extent, FaultKind::Write(cause), reading)
            }
            Some((disk, queue)) => match self.write_in_turn(disk, queue, context, extent, block.clone()).await {
                Ok(()) => return Part::good(),
                Err(error) => {
                    self.write_failed(node, context);
                    let fault = self.report(node, extent, FaultKind::Write(IoCause::from(&error)), reading);
                    // The same once more: a request that was lost on its way costs no redundancy then. One that was given up is not sent again.
                    let again = leaf.writable_disk().filter(|_| error.kind() != std::io::ErrorKind::TimedOut);
                    if let Some((disk, queue)) = again {
                        match self.write_in_turn(disk, queue, context, extent, block).await {
                            Ok(()) => return Part::good(),
                            Err(_) => self.write_failed(node, context),
                        }
                    }
                    fault
                }
            },
        };
        Part { missed: vec![node.guid], faults: fault.into(), is_good: false }
    }

    /// The failure of a write that was to be stable may be that of a flush, which a device tells once.
    fn write_failed(&self, node: &Node, context: WriteContext) {
        if context.is_stable
            && let Some(suspension) = self.common.suspension.get()
        {
            suspension.stable_write_failed(node.guid);
        }
    }

    /// Writes when it is the block's turn in the queue, in pieces where long work goes so.
    pub(super) async fn write_in_turn(
        &self,
        disk: &Disk,
        queue: &Arc<LeafQueue>,
        context: WriteContext,
        extent: Extent,
        block: Block,
    ) -> std::io::Result<()> {
        if context.is_stable || !is_in_pieces(disk, queue, extent, context.class) {
            return self.write_whole_in_turn(disk, queue, context, extent, block).await;
        }
        Box::pin(async {
            let mut pieces = Pieces::new(extent);
            while let Some(piece) = pieces.next(disk, queue, context.class) {
                self.write_whole_in_turn(disk, queue, context, piece, pieces.part(piece, &block)).await?;
                pieces.wrote(piece.len);
            }
            Ok(())
        })
        .await
    }

    /// Writes when it is the block's turn in the queue, or as a part of another write's aggregate.
    async fn write_whole_in_turn(
        &self,
        disk: &Disk,
        queue: &Arc<LeafQueue>,
        context: WriteContext,
        extent: Extent,
        block: Block,
    ) -> std::io::Result<()> {
        debug_assert_eq!(block.len() as u64, extent.len, "a write has as many bytes as its place");
        debug_assert!(extent.address >= BOOT_AREA_OFFSET, "no block goes where labels are (vdev, invariant 2)");
        let WriteContext { class, is_stable, .. } = context;
        let now_ns = self.common.clock.as_ref().map_or(0, |clock| clock.now().as_ns());
        let mut alone = is_stable;
        loop {
            match queue.turn(class, queue::Kind::Write, extent.range(), Some(&block), now_ns, alone).await {
                Dequeued::Lead(aggregate) => return aggregate.write(disk, block, is_stable).await,
                Dequeued::Joined(joined) => {
                    if joined.await.is_ok() {
                        return Ok(());
                    }
                    // Its aggregate failed, which says nothing about this block.
                    alone = true;
                }
            }
        }
    }

    /// Every child gets the block; one is enough.
    async fn write_mirror(
        &self,
        node: &Node,
        address: u64,
        block: &Block,
        context: WriteContext,
        depth: Depth,
    ) -> Part {
        let children = if mutant::is(Mutant::OneLeg) { &node.children[..1] } else { &node.children[..] };
        let writes =
            children.iter().map(|child| self.write_nested(self.node(*child), address, block.clone(), context, depth));
        let mut all = Part { is_good: false, ..Part::good() };
        for part in join_all(writes).await {
            all.is_good |= part.is_good;
            all.absorb(part);
        }
        all
    }

    /// Writes to a vdev that is not top-level.
    #[boxed]
    pub(super) async fn write_nested(
        &self,
        node: &Node,
        address: u64,
        block: Block,
        context: WriteContext,
        depth: Depth,
    ) -> Part {
        let extent = Extent { address, len: block.len() as u64 };
        let lost = |kind| Part { missed: Vec::new(), faults: self.fault(node, extent, kind).into(), is_good: false };
        let Some(depth) = depth.below() else { return lost(FaultKind::Unavailable) };
        match &node.kind {
            Kind::Leaf(leaf) => self.write_leaf(node, leaf, address, block, context).await,
            Kind::Mirror => self.write_mirror(node, address, &block, context, depth).await,
            Kind::DraidSpare { .. } => match self.spare_target(node, address) {
                Some(target) => self.write_nested(target, address, block, context, depth).await,
                None => lost(FaultKind::Unavailable),
            },
            Kind::Raidz(_) | Kind::Draid(_) => match self.write_stripe(node, extent, &block, context, depth).await {
                Ok(part) => part,
                Err(_) => Part { missed: Vec::new(), faults: self.misplaced(node, extent), is_good: false },
            },
            Kind::Indirect | Kind::Hole | Kind::Missing => lost(FaultKind::Unavailable),
        }
    }

    /// How a block of a raidz or draid vdev lies on its children.
    pub(super) fn stripe_map(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        flight: Option<&Flight<'_>>,
    ) -> Result<StripeMap, VdevError> {
        let (vdev, offset_bytes) = (node.top, extent.address - START_BYTES);
        let reflow = flight.map_or(Reflow::COMPLETE, |flight| flight.reflow);
        match &node.kind {
            Kind::Raidz(raidz) => raidz.map(offset_bytes, extent.len, birth, reflow),
            Kind::Draid(draid) => draid.map(offset_bytes, extent.len),
            _ => return Err(VdevError::NoSuchVdev(vdev)),
        }
        .map_err(|source| VdevError::BadRange { vdev, source })
    }

    /// Begins a read of a vdev; goes by where its expansion stands, if there is one.
    pub(super) fn read_flight(&self, node: &Node) -> Option<Flight<'_>> {
        matches!(&node.kind, Kind::Raidz(raidz) if raidz.is_expanding()).then(|| self.common.reflow.begin_read())
    }

    /// Begins a write to a vdev; waits while its sectors are copied, if it is expanded.
    pub(super) async fn write_flight(&self, node: &Node, extent: Extent, birth: Txg) -> Option<Flight<'_>> {
        let Kind::Raidz(raidz) = &node.kind else { return None };
        if !raidz.is_expanding() {
            return None;
        }
        let start = extent.address.saturating_sub(START_BYTES);
        let end = start.saturating_add(raidz.psize_to_asize(extent.len, birth));
        Some(self.common.reflow.begin_write(start..end).await)
    }

    /// The further places of a block's columns, where its vdev is expanded.
    pub(super) fn shadows(
        &self,
        node: &Node,
        extent: Extent,
        birth: Txg,
        map: &StripeMap,
        flight: Option<&Flight<'_>>,
    ) -> Vec<Shadow> {
        match (&node.kind, flight) {
            (Kind::Raidz(raidz), Some(flight)) => {
                raidz.shadows(map, extent.address - START_BYTES, birth, flight.reflow)
            }
            _ => Vec::new(),
        }
    }

    /// Writes data and parity columns, all at once.
    async fn write_stripe(
        &self,
        node: &Node,
        extent: Extent,
        block: &Block,
        context: WriteContext,
        depth: Depth,
    ) -> Result<Part, VdevError> {
        let flight = self.write_flight(node, extent, context.birth).await;
        let map = self.stripe_map(node, extent, context.birth, flight.as_ref())?;
        debug_assert_eq!(map.block_bytes(), block.len() as u64, "a stripe's columns have the whole block");
        let shadows = self.shadows(node, extent, context.birth, &map, flight.as_ref());
        let row_count = map.rows().len();
        let parity = parity_columns(&map, block)?;
        debug_assert_eq!(parity.len(), map.columns().len(), "a column is parity or data");
        let mut writes = Vec::new();
        let mut rows = Vec::new();
        for (index, (column, parity)) in map.columns().iter().zip(parity).enumerate() {
            let Some(bytes) = column_bytes(column, parity, block) else { continue };
            // A column of padding is known without the child, so a reader of the block does not need it.
            let is_needed = column.size_bytes > 0;
            let row = index / map.row_width();
            let places = shadows.iter().filter(|shadow| shadow.column == index).zip(1..);
            for (shadow, which) in places {
                let child = self.node(node.children[shadow.child as usize]);
                writes.push(self.write_nested(child, shadow.address_bytes, bytes.clone(), context, depth));
                rows.push((which * row_count + row, is_needed));
            }
            let child = self.node(node.children[column.child as usize]);
            writes.push(self.write_nested(child, column.address_bytes, bytes, context, depth));
            rows.push((row, is_needed));
        }
        let mut all = Part::good();
        // Of a row as it is read now, and as it is to be read from its further places.
        let mut failed = vec![0_usize; row_count * 3];
        for ((row, is_needed), part) in rows.into_iter().zip(join_all(writes).await) {
            failed[row] += usize::from(is_needed && !part.is_good);
            all.absorb(part);
        }
        // A child may have columns in several rows.
        all.missed.sort_unstable();
        all.missed.dedup();
        all.is_good = failed.iter().all(|count| *count <= map.parity_count());
        Ok(all)
    }
}

/// The parity of each row, at the places of the parity columns; nothing at those of data.
pub(super) fn parity_columns(map: &StripeMap, block: &Block) -> Result<Vec<Option<Buf>>, VdevError> {
    let mut all = Vec::with_capacity(map.columns().len());
    for row in map.rows() {
        let (parity, data) = row.split_at(map.parity_count());
        let data: Vec<&[u8]> = data.iter().map(|column| &block[place(column)]).collect();
        let mut made: Vec<Buf> = parity.iter().map(|column| Buf::unfilled(column.size_bytes as usize)).collect();
        let mut spaces: Vec<&mut [u8]> = made.iter_mut().map(|buf| &mut buf[..]).collect();
        raidz::generate(&data, &mut spaces)
            .map_err(|error| VdevError::BadConfig { guid: None, reason: format!("parity cannot be made: {error}") })?;
        all.extend(made.into_iter().map(Some));
        all.extend(data.iter().map(|_| None));
    }
    Ok(all)
}

/// Where a data column stands in the block.
pub(super) fn place(column: &Column) -> std::ops::Range<usize> {
    let start = column.block_offset_bytes as usize;
    start..start + column.size_bytes as usize
}

/// The bytes that a child is to write, its padding included; `None` where the block does not reach it.
pub(super) fn column_bytes(column: &Column, parity: Option<Buf>, block: &Block) -> Option<Block> {
    debug_assert!(parity.is_none() || column.padding_bytes == 0, "of a row's columns only data is padded");
    debug_assert!(parity.as_ref().is_none_or(|buf| buf.len() as u64 == column.size_bytes), "parity fills its column");
    let size = column.size_bytes as usize + column.padding_bytes as usize;
    if size == 0 {
        return None;
    }
    if column.padding_bytes == 0 {
        return Some(parity.map_or_else(|| block.slice(place(column)), Buf::freeze));
    }
    // Of a row's columns only the shorter data columns are padded.
    let mut padded = Buf::zeroed(size);
    padded[..column.size_bytes as usize].copy_from_slice(&block[place(column)]);
    Some(padded.freeze())
}
