//! Leaves that did not get what was written to a distributed spare in their place.
//!
//! A distributed spare lies on the other children of its draid. While one of those is away, a second spare may stand for it. What a rebuild or a
//! resilver gives to the first spare is then on the second one, and the first has everything. The leaf that is away has none of it, and its dirty
//! time log says nothing of blocks that are older than its absence. When it is back, and the second spare goes, the first one would have old bytes
//! there (#18286 of OpenZFS). So such a leaf lacks the txgs of what it was passed over with: at once in memory, and on disk with the txg that takes
//! the report of whoever wrote it ([`VdevTree::take_passed_over`]).

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ids::Guid;
use cenote_taskq::mutant::{self, Mutant};

use super::node::Node;
use super::{Topology, VdevTree};
use crate::dtl::Dtl;

impl VdevTree {
    /// The leaves that were passed over since this was asked last, and the txgs that they lack for it. All that was written before a report was
    /// made is in what is asked after the report was taken.
    #[must_use]
    pub fn take_passed_over(&self) -> BTreeMap<Guid, Dtl> {
        std::mem::take(&mut *self.common.passed_over.lock())
    }
}

impl Topology {
    /// A leaf did not get what spares were given in its place, in blocks of these txgs.
    pub(super) fn pass_over(&self, leaf: &Node, txgs: &Dtl) {
        if txgs.is_empty() || mutant::is(Mutant::PassedOverForgotten) {
            return;
        }
        leaf.missed.absorb(txgs);
        self.common.passed_over.lock().entry(leaf.guid).or_default().absorb(txgs);
    }

    /// The same of a rebuild, which gives these spares all that they lack.
    pub(super) fn pass_over_for(&self, leaf: &Node, spares: &BTreeSet<Guid>) {
        for spare in spares.iter().filter(|guid| **guid != leaf.guid).filter_map(|guid| self.lookup(*guid)) {
            self.pass_over(leaf, &spare.missed.get());
        }
    }
}
