//! Reading every copy of a block there is: what a scrub and `verify` do.

use std::pin::pin;

use cenote_format::ids::VdevId;
use cenote_taskq::buf::Buf;
use cenote_taskq::{boxed, join_all};

use super::node::{Kind, Node};
use super::stripe::{Stripe, extent_of};
use super::write::{parity_columns, place};
use super::{Check, Depth, Extent, Faults, Patience, ReadContext, Topology, VdevTree, Verify};
use crate::error::VdevError;
use crate::fault::{Fault, FaultKind};

/// The result of reading every copy of a block.
#[derive(Debug)]
pub struct CopiesReport {
    /// The block.
    pub block: Buf,
    /// How many copies, or columns of a parity stripe, were read and compared.
    pub read_count: usize,
    /// Copies and columns that are wrong or could not be had.
    pub bad: Vec<Fault>,
}

/// The result of reading one copy on a mirror.
enum Copy<'a> {
    Good(CopiesReport),
    Bad(Faults),
    /// A stripe whose columns do not come to the block.
    Unsolved(Box<Stripe<'a>>),
}

impl VdevTree {
    /// Reads every copy of a range, or every data and parity column of it, and says which are wrong. They are also
    /// reported as [`VdevTree::read`] reports.
    ///
    /// # Errors
    /// As [`VdevTree::read`]; only when the block cannot be had at all.
    #[boxed]
    pub async fn read_copies(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        verify: Verify<'_>,
        context: &ReadContext<'_>,
    ) -> Result<CopiesReport, VdevError> {
        let topology = self.current.of(vdev);
        Box::pin(topology.read_copies(vdev, offset_bytes, size_bytes, verify, *context)).await
    }
}

impl Topology {
    async fn read_copies(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        verify: Verify<'_>,
        context: ReadContext<'_>,
    ) -> Result<CopiesReport, VdevError> {
        let (node, extent) = self.locate(vdev, offset_bytes, size_bytes)?;
        let check = Check { verify, size: size_bytes as usize };
        let read = match &node.kind {
            Kind::Leaf(_) | Kind::Mirror => self.all_copies(node, extent, check, context).await,
            Kind::Raidz(_) | Kind::Draid(_) => {
                let stripe = Stripe::new(self, node, extent, context)?;
                self.stripe_copies(stripe, check).await.map_err(|stripe| stripe.failure())
            }
            Kind::Indirect => Ok(self.indirect_copies(vdev, offset_bytes, extent.len, check, context).await?),
            Kind::Missing => return Err(VdevError::Missing(vdev)),
            Kind::Hole | Kind::DraidSpare { .. } => return Err(VdevError::NoSuchVdev(vdev)),
        };
        let mut report =
            read.map_err(|faults| self.unreadable(node, vdev, offset_bytes, size_bytes, faults, context))?;
        debug_assert!(
            report.block.len() as u64 >= size_bytes,
            "what was verified is all of the block (vdev, invariant 1)"
        );
        report.block.truncate(size_bytes as usize);
        Ok(report)
    }

    /// Reads every copy that a mirror has, on leaves and in stripes; or the one leaf that the vdev is.
    async fn all_copies(
        &self,
        node: &Node,
        extent: Extent,
        check: Check<'_>,
        context: ReadContext<'_>,
    ) -> Result<CopiesReport, Faults> {
        let holders = self.holders_at(node, extent.address);
        let reads = holders.iter().map(|holder| self.one_copy(holder, extent, check, context));
        let mut block = None;
        let mut bad = Faults::default();
        let mut read_count = 0;
        let mut unsolved = Vec::new();
        for copy in join_all(reads).await {
            match copy {
                Copy::Good(report) => {
                    read_count += report.read_count;
                    bad.extend(Faults(report.bad));
                    block.get_or_insert(report.block);
                }
                Copy::Bad(faults) => {
                    read_count += faults.0.iter().filter(|fault| fault.kind == FaultKind::Checksum).count();
                    bad.extend(faults);
                }
                Copy::Unsolved(stripe) => unsolved.push(stripe),
            }
        }
        for mut stripe in unsolved {
            if let Some(block) = &block {
                // The comparison with a good copy finds the bad columns that the stripe could not find by itself.
                stripe.audit_by(block);
                let report = self.finish(stripe, Buf::copied_from(block)).await;
                read_count += report.read_count;
                bad.extend(Faults(report.bad));
            } else {
                let stripe_node = stripe.node();
                let faults = stripe.failure();
                self.count_failed_stripe(stripe_node, &faults, context);
                bad.extend(faults);
            }
        }
        match block {
            Some(block) => Ok(CopiesReport { block, read_count, bad: bad.0 }),
            None => Err(bad),
        }
    }

    /// Reads the copy that a leaf or stripe has.
    async fn one_copy<'a>(
        &'a self,
        holder: &'a Node,
        extent: Extent,
        check: Check<'_>,
        context: ReadContext<'a>,
    ) -> Copy<'a> {
        if matches!(holder.kind, Kind::Raidz(_) | Kind::Draid(_)) {
            return match Stripe::new(self, holder, extent, context) {
                Ok(stripe) => self.stripe_copies(stripe, check).await.map_or_else(Copy::Unsolved, Copy::Good),
                Err(_) => Copy::Bad(self.misplaced(holder, extent)),
            };
        }
        match self.read_one(holder, extent, Some(check), context).await {
            Ok(block) => Copy::Good(CopiesReport { block, read_count: 1, bad: Vec::new() }),
            Err(faults) => Copy::Bad(faults),
        }
    }

    /// Reads every column of a stripe; gives it back where that does not bring the block.
    async fn stripe_copies<'a>(
        &self,
        mut stripe: Stripe<'a>,
        check: Check<'_>,
    ) -> Result<CopiesReport, Box<Stripe<'a>>> {
        match stripe.solve(check, true).await {
            Some(block) => Ok(self.finish(Box::new(stripe), block).await),
            None => Err(Box::new(stripe)),
        }
    }

    /// The report on a stripe's columns, compared with the block that it should have.
    async fn finish(&self, mut stripe: Box<Stripe<'_>>, block: Buf) -> CopiesReport {
        let mut report = CopiesReport { block, read_count: stripe.columns_read(), bad: Vec::new() };
        self.compare_nested(&mut stripe, &mut report).await;
        report.bad.extend(stripe.stale_faults());
        report.bad.append(&mut stripe.faults.0);
        report
    }

    /// Compares the devices behind columns that have several with what they should have, parity included.
    async fn compare_nested(&self, stripe: &mut Stripe<'_>, report: &mut CopiesReport) {
        let context = stripe.context();
        let nested: Vec<_> = stripe.nested_columns().collect();
        if nested.is_empty() {
            return;
        }
        let block = Buf::copied_from(&report.block).freeze();
        let Ok(parity) = parity_columns(stripe.map(), &block) else { return };
        for (index, child) in nested {
            let column = stripe.map().columns()[index];
            let truth = match &parity[index] {
                Some(parity) => Buf::copied_from(parity).freeze(),
                None => block.slice(place(&column)),
            };
            self.compare_leaves(child, extent_of(&column), &truth, report, context).await;
        }
    }

    /// Compares every leaf's bytes with what they should be. For vdevs without a stripe.
    pub(super) async fn compare_leaves(
        &self,
        node: &Node,
        extent: Extent,
        truth: &[u8],
        report: &mut CopiesReport,
        context: ReadContext<'_>,
    ) {
        let verify = |bytes: &[u8]| bytes == truth;
        let check = Check { verify: &verify, size: truth.len() };
        for (leaf, lacks) in self.holders_below(node, extent.address) {
            if lacks {
                // Its old bytes are no fault of the disk on which a distributed spare lies.
                if let Ok(read) = self.read_one(leaf, extent, None, context).await {
                    report.read_count += 1;
                    if read[..] != *truth && report.bad.len() < VdevError::FAULTS_MAX {
                        report.bad.push(self.fault(leaf, extent, FaultKind::Stale));
                    }
                }
                continue;
            }
            match self.read_one(leaf, extent, Some(check), context).await {
                Ok(_) => report.read_count += 1,
                Err(faults) => {
                    for fault in faults.0 {
                        report.read_count += usize::from(fault.kind == FaultKind::Checksum);
                        context.right(truth);
                        if !report.bad.contains(&fault) && report.bad.len() < VdevError::FAULTS_MAX {
                            report.bad.push(fault);
                        }
                    }
                }
            }
        }
    }

    /// The leaves and stripes that should each have what is at this address of a vdev: what mirrors come down to.
    pub(super) fn holders_at<'a>(&'a self, node: &'a Node, address: u64) -> Vec<&'a Node> {
        self.holders_below(node, address).into_iter().map(|(node, _)| node).collect()
    }

    /// The same, and of each whether it is led to by a distributed spare that may lack what belongs there.
    pub(super) fn holders_below<'a>(&'a self, node: &'a Node, address: u64) -> Vec<(&'a Node, bool)> {
        let mut found = Vec::new();
        self.collect_holders(node, address, false, Depth::START, &mut found);
        found
    }

    /// `lacks`: it is led to by a distributed spare that may lack what belongs there.
    fn collect_holders<'a>(
        &'a self,
        node: &'a Node,
        address: u64,
        lacks: bool,
        depth: Depth,
        found: &mut Vec<(&'a Node, bool)>,
    ) {
        let Some(depth) = depth.below() else { return };
        match &node.kind {
            Kind::Leaf(_) | Kind::Raidz(_) | Kind::Draid(_) => found.push((node, lacks)),
            Kind::Mirror => {
                for child in &node.children {
                    self.collect_holders(self.node(*child), address, lacks, depth, found);
                }
            }
            Kind::DraidSpare { .. } => {
                let lacks = lacks || node.is_rebuilding() || !node.missed.get().is_empty();
                if let Some(target) = self.spare_target(node, address) {
                    self.collect_holders(target, address, lacks, depth, found);
                }
            }
            _ => {}
        }
    }

    /// Reads one leaf.
    pub(super) async fn read_one(
        &self,
        node: &Node,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
    ) -> Result<Buf, Faults> {
        match &node.kind {
            Kind::Leaf(leaf) => {
                let stale = node.missed.contains(context.birth);
                // Without a check the bytes are wanted as they are.
                if stale && context.is_past_lacking && check.is_some() {
                    return Err(self.fault(node, extent, FaultKind::Stale).into());
                }
                let read = pin!(self.read_leaf(node, leaf, extent, check, context, stale));
                self.bounded(node, extent, context, Patience::Long, read).await
            }
            _ => Err(self.fault(node, extent, FaultKind::Unavailable).into()),
        }
    }
}
