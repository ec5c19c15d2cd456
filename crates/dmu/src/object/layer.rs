//! Layers: the changes of an object by txg, for the txgs that are not on disk yet (OpenZFS's dirty records).
//!
//! ```text
//!   newest dnode ─► (txg 12) dnode, blocks, freed ─► (txg 11, syncing) dnode, blocks, freed ─► tree on disk
//! ```
//! A reader goes from left to right, and takes the block from the first layer that has it. A txg's layer is not changed once the
//! txg is quiesced, so its sync needs no lock but the short one that takes the layer out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::DnodePhys;
use cenote_format::ids::Txg;
use cenote_taskq::buf::Block;
use cenote_zio::{ReadyBlock, ReadyForm};

use crate::tree::BlockTree;
use crate::tx::UNWRITTEN_TXGS_MAX;

/// Blocks that are looked at for one run at most.
const RUN_MAX: u64 = 1 << 16;

/// One txg's changes.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// The dnode as of the end of the txg; its pointers mean nothing.
    pub(crate) head: DnodePhys,
    /// Data blocks written. The sync shares them with readers: a change made while it does has a copy of the table.
    pub(crate) blocks: Arc<BTreeMap<u64, Block>>,
    /// Data blocks freed before those were written: in order, apart.
    pub(crate) freed: Vec<Range<u64>>,
    /// Of the data blocks written, those whose bytes are as they are stored (see [`super::ready`]).
    pub(crate) ready: BTreeMap<u64, ReadyForm>,
    /// The spill block: written, or freed.
    pub(crate) spill: Option<Option<Block>>,
    /// The form of the spill block's bytes, where they are as they are stored.
    pub(crate) spill_form: Option<ReadyForm>,
    /// The object as a whole is freed.
    pub(crate) is_freed: bool,
    /// Of the data blocks written, those that are stored as they are: the intent log points to them (see [`super::logged`]).
    pub(crate) logged: BTreeMap<u64, Blkptr>,
    /// Blocks that were stored for the intent log, and were changed since.
    pub(crate) unused: Vec<Blkptr>,
}

impl Layer {
    /// True if the dnode alone has changed.
    pub(crate) fn changes_no_block(&self) -> bool {
        !self.is_freed && self.blocks.is_empty() && self.freed.is_empty()
    }

    /// The blocks next to one, on either side, that are written or freed.
    pub(super) fn neighbours(&self, block: u64) -> (Option<u64>, Option<u64>) {
        let written = self.blocks.range(..block).next_back().map(|(at, _)| *at);
        let at = self.freed.partition_point(|range| range.end <= block);
        let freed = at.checked_sub(1).and_then(|at| self.freed.get(at)).map(|range| range.end - 1);
        let next_written = self.blocks.range(block..).next().map(|(at, _)| *at);
        let next_freed = self.freed.get(at).map(|range| range.start.max(block));
        let (before, after) = (written.max(freed), next_written.into_iter().chain(next_freed).min());
        debug_assert!(before.is_none_or(|before| before < block), "a neighbour before is before");
        debug_assert!(after.is_none_or(|after| block <= after), "a neighbour after is not before");
        (before, after)
    }

    /// The range freed that a block lies in, or the next one.
    fn freed_from(&self, block: u64) -> Option<&Range<u64>> {
        self.freed.get(self.freed.partition_point(|range| range.end <= block))
    }

    /// A data block that is written.
    fn data(&self, block: u64) -> Option<Known> {
        let bytes = self.blocks.get(&block)?.clone();
        Some(match self.ready.get(&block) {
            None => Known::Data(bytes),
            Some(form) => Known::Ready(ReadyBlock { bytes, form: *form }),
        })
    }

    /// A data block is changed: as it is stored it is of no use to the txg.
    pub(super) fn changes(&mut self, block: u64) {
        self.ready.remove(&block);
        if let Some(stored) = self.logged.remove(&block) {
            self.unused.push(stored);
        }
    }

    /// The same of a range of them.
    fn changes_all(&mut self, blocks: Range<u64>) {
        while let Some((block, _)) = self.ready.range(blocks.clone()).next() {
            let block = *block;
            self.ready.remove(&block);
        }
        while let Some((block, _)) = self.logged.range(blocks.clone()).next() {
            let block = *block;
            self.changes(block);
        }
    }

    /// All of its data goes, with the object.
    pub(super) fn free_all(&mut self) -> usize {
        debug_assert!(!self.is_freed, "an object is freed once");
        self.is_freed = true;
        self.changes_all(0..u64::MAX);
        self.changes(u64::MAX);
        let blocks = std::mem::take(&mut self.blocks);
        let spill = self.spill.take().flatten();
        blocks.values().chain(&spill).map(|data| data.len()).sum()
    }

    /// Frees data blocks. Returns the bytes of blocks that this txg had written.
    pub(super) fn free(&mut self, blocks: Range<u64>) -> usize {
        assert!(!blocks.is_empty(), "some blocks are freed");
        self.changes_all(blocks.clone());
        let written: Vec<u64> = self.blocks.range(blocks.clone()).map(|(block, _)| *block).collect();
        let mut undone = 0;
        if !written.is_empty() {
            let table = Arc::make_mut(&mut self.blocks);
            undone = written.iter().filter_map(|block| table.remove(block)).map(|data| data.len()).sum();
        }
        let Range { mut start, mut end } = blocks;
        self.freed.retain(|other| {
            let is_apart = other.end < start || end < other.start;
            if !is_apart {
                (start, end) = (start.min(other.start), end.max(other.end));
            }
            is_apart
        });
        let at = self.freed.partition_point(|other| other.start < start);
        self.freed.insert(at, start..end);
        debug_assert!(
            self.freed.windows(2).all(|pair| pair[0].end < pair[1].start),
            "freed ranges are in order, apart"
        );
        debug_assert!(self.freed.iter().all(|range| range.start < range.end), "no freed range is empty");
        undone
    }
}

/// The content of a block, according to the layers in memory.
pub(super) enum Known {
    Data(Block),
    /// Data that is as it is stored.
    Ready(ReadyBlock),
    Hole,
    /// No layer has it: it is as on disk, if anything is.
    OnDisk(Option<BlockTree>),
}

/// An object in its objset's open state.
pub(super) struct State {
    /// The dnode as the newest change left it; its pointers mean nothing.
    pub(super) head: Arc<DnodePhys>,
    /// The tree on disk.
    pub(super) synced: Option<BlockTree>,
    /// Changes that are not on disk, oldest first.
    pub(super) txgs: Vec<(Txg, Layer)>,
    /// The object was freed, and is on disk no more.
    pub(super) is_gone: bool,
    /// The newest txg of which anything of it is on disk, since it is in memory: it may still be written (a txg is synced in passes),
    /// those before it are done.
    pub(super) written: Txg,
}

impl State {
    /// The layer of a txg, made if there is none.
    pub(super) fn layer(&mut self, txg: Txg) -> &mut Layer {
        let at = match self.txgs.iter().position(|(other, _)| *other >= txg) {
            Some(at) if self.txgs[at].0 == txg => at,
            at => {
                let at = at.unwrap_or(self.txgs.len());
                assert!(txg >= self.written, "nothing changes in a txg that is on disk");
                let layer = Layer {
                    head: (*self.head).clone(),
                    blocks: Arc::default(),
                    freed: Vec::new(),
                    ready: BTreeMap::new(),
                    spill: None,
                    spill_form: None,
                    is_freed: false,
                    logged: BTreeMap::new(),
                    unused: Vec::new(),
                };
                self.txgs.insert(at, (txg, layer));
                debug_assert!(
                    self.txgs.len() <= UNWRITTEN_TXGS_MAX,
                    "an object has a layer for each txg that is not on disk"
                );
                debug_assert!(self.txgs.is_sorted_by_key(|(txg, _)| *txg), "layers are in the order of their txgs");
                at
            }
        };
        &mut self.txgs[at].1
    }

    /// Has the object reach to its block `last`, or no further, from a txg on: those after it were begun without this change.
    pub(super) fn set_last(&mut self, txg: Txg, last: impl Fn(u64) -> u64) {
        self.layer(txg);
        for (_, layer) in self.txgs.iter_mut().filter(|(other, _)| *other >= txg) {
            layer.head.max_block_id = last(layer.head.max_block_id);
        }
        let newest = last(self.head.max_block_id);
        if newest != self.head.max_block_id {
            Arc::make_mut(&mut self.head).max_block_id = newest;
        }
    }

    /// The content of a block, according to the layers.
    pub(super) fn known(&self, block: u64) -> Known {
        for (_, layer) in self.txgs.iter().rev() {
            if let Some(data) = layer.data(block) {
                return data;
            }
            if layer.freed_from(block).is_some_and(|range| range.start <= block) {
                return Known::Hole;
            }
        }
        Known::OnDisk(self.synced.clone())
    }

    /// The content of a block according to the layers, and a block before `limit` up to which they know the same of all.
    pub(super) fn known_run(&self, block: u64, limit: u64) -> (Known, u64) {
        // The blocks of a newer layer end the run of an older one.
        let mut end = limit;
        for (_, layer) in self.txgs.iter().rev() {
            if let Some(data) = layer.data(block) {
                let most = end.min(block.saturating_add(RUN_MAX));
                let following = layer.blocks.range(block + 1..most.max(block + 1)).zip(block + 1..);
                let count = following.take_while(|((at, _), expected)| *at == expected).count() as u64;
                return (data, block + 1 + count);
            }
            end = layer.blocks.range(block..end.max(block)).next().map_or(end, |(next, _)| *next);
            match layer.freed_from(block) {
                Some(range) if range.start <= block => return (Known::Hole, end.min(range.end)),
                Some(range) => end = end.min(range.start),
                None => {}
            }
        }
        (Known::OnDisk(self.synced.clone()), end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ObjectSpec;
    use cenote_format::dmu_type::DmuType;

    fn layer() -> Layer {
        let head = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, 512).dnode().unwrap();
        let (blocks, logged) = (Arc::default(), BTreeMap::new());
        let (freed, unused, ready) = (Vec::new(), Vec::new(), BTreeMap::new());
        Layer { head, blocks, freed, ready, spill: None, spill_form: None, is_freed: false, logged, unused }
    }

    /// A pointer that is told from others by its birth.
    fn stored(number: u64) -> Blkptr {
        let mut bp = Blkptr::HOLE;
        bp.set_births(Txg(number), Txg(number));
        bp
    }

    proptest! {
        /// Each block that was stored is either the pointer of a block that has not changed since, or in the list of unused ones, once.
        #[test]
        fn a_stored_block_is_of_use_or_unused(
            steps in prop::collection::vec((0_u64..8, 0_u64..12, 1_u64..6), 1..60),
            ends_freed in any::<bool>(),
        ) {
            let (mut layer, mut count) = (layer(), 0);
            let mut now: BTreeMap<u64, u64> = BTreeMap::new();
            for (what, block, len) in steps {
                match what {
                    0 => {
                        layer.free(block..block + len);
                        now.retain(|at, _| !(block..block + len).contains(at));
                    }
                    1 => {
                        layer.free(block..u64::MAX);
                        now.retain(|at, _| *at < block);
                    }
                    2..=4 => {
                        layer.changes(block);
                        Arc::make_mut(&mut layer.blocks).insert(block, Block::empty());
                        now.remove(&block);
                    }
                    _ if layer.blocks.contains_key(&block) && !layer.logged.contains_key(&block) => {
                        count += 1;
                        layer.logged.insert(block, stored(count));
                        now.insert(block, count);
                    }
                    _ => {}
                }
            }
            if ends_freed {
                layer.free_all();
                now.clear();
            }
            let logged: BTreeMap<u64, u64> = layer.logged.iter().map(|(at, bp)| (*at, bp.logical_birth().0)).collect();
            prop_assert_eq!(&logged, &now);
            prop_assert!(layer.logged.keys().all(|block| layer.blocks.contains_key(block)));
            let mut all: Vec<u64> = logged.into_values().collect();
            all.extend(layer.unused.iter().map(|bp| bp.logical_birth().0));
            all.sort_unstable();
            prop_assert_eq!(all, (1..=count).collect::<Vec<_>>());
        }
    }
}
