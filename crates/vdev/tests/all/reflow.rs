//! Goal: while the sectors of a raidz are dealt out over one child more, each block can be read by the word that is on disk, without as many children as
//! there is parity, whatever was written meanwhile. Method: batches as the pool makes them, blocks written before, amid and after each, and after each step a
//! reader that opens the disks anew, as after a power cut.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::Block;
use cenote_taskq::{Device, Rng};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::raidz::{Raidz, Reflow, ReflowPlace, reflow_limit_bytes, scratch_bytes};
use cenote_vdev::tree::{ReadContext, VdevTree};

use crate::common::made::{Made, leaves, raidz, vdev, with_children};

const TOP: VdevId = VdevId(0);
const BIRTH: Txg = Txg(100);
const ASHIFT: u32 = 12;
/// The part of the vdev that has blocks.
const TOTAL: u64 = 48 << 20;

/// A raidz of the first children, or of all while the last one is new.
fn config(parity: u64, children: usize, mark: impl FnOnce(&mut NvList)) -> VdevConfig {
    let mut list = raidz(parity, u64::from(ASHIFT), leaves(10, children));
    mark(&mut list);
    VdevConfig::parse(&with_children(vdev("root", 1), vec![list])).unwrap()
}

struct Model {
    made: Made,
    layout: Raidz,
    /// Contents and births by offset.
    blocks: BTreeMap<u64, (Vec<u8>, Txg)>,
    rng: Rng,
}

impl Model {
    fn disks(&self, without: &[u64]) -> HashMap<Guid, Disk> {
        let there = self.made.disks.iter().filter(|(guid, _)| !without.contains(&guid.0));
        there.map(|(guid, disk)| (*guid, Disk::whole(Device::from_driver(disk.clone())))).collect()
    }

    fn asize(&self, len: usize, birth: Txg) -> u64 {
        self.layout.psize_to_asize(len as u64, birth)
    }

    /// Writes blocks to places where none is.
    fn write(&mut self, tree: &VdevTree, count: usize, birth: Txg) {
        for _ in 0..count {
            let len = (1 + self.rng.below(24) as usize) << ASHIFT;
            let offset = self.rng.below((TOTAL >> ASHIFT) - 64) << ASHIFT;
            let end = offset + self.asize(len, birth);
            let is_free = |(at, (bytes, birth)): (&u64, &(Vec<u8>, Txg))| {
                *at >= end || at + self.asize(bytes.len(), *birth) <= offset
            };
            if !self.blocks.iter().all(is_free) {
                continue;
            }
            let mut bytes = vec![0; len];
            self.rng.fill(&mut bytes);
            let written = self.made.runtime.block_on(tree.write(TOP, offset, &Block::copied_from(&bytes), birth));
            assert_eq!(written.unwrap().missed, []);
            self.blocks.insert(offset, (bytes, birth));
        }
    }

    fn read(&self, tree: &VdevTree, what: &str) {
        for (offset, (bytes, birth)) in &self.blocks {
            let verify = |read: &[u8]| read == &bytes[..];
            let context = ReadContext::new(*birth);
            let read = tree.read(TOP, *offset, bytes.len() as u64, &verify, &context);
            self.made.runtime.block_on(read).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }

    /// Reads all as one who opens the disks now, without some of them.
    fn read_anew(&mut self, config: &VdevConfig, word: Reflow, parity: u64, what: &str) {
        let width = config.children[0].children.len() as u64;
        let first = self.rng.below(width);
        let without: Vec<u64> = (0..parity).map(|at| 10 + (first + at) % width).collect();
        let tree = VdevTree::open(config, self.disks(&without)).unwrap();
        tree.control().unwrap().set_reflow(word);
        self.read(&tree, &format!("{what}, without {without:?}"));
    }

    /// The ranges of a batch that blocks are in.
    fn in_use(&self, range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
        let used = self.blocks.iter().map(|(at, (bytes, birth))| *at..at + self.asize(bytes.len(), *birth));
        let cut = used.map(|used| used.start.max(range.start)..used.end.min(range.end));
        cut.filter(|used| used.start < used.end).collect()
    }
}

fn expand(seed: u64, parity: u64, old: usize) {
    let what = format!("seed {seed}: raidz{parity} of {old}");
    let wide = old + 1;
    let made = Made::new(vec![raidz(parity, u64::from(ASHIFT), leaves(10, wide))]);
    let layout = Raidz::new(ASHIFT, parity, wide, &[], true).unwrap();
    let mut model = Model { made, layout, blocks: BTreeMap::new(), rng: Rng::new(seed) };
    let tree: Arc<VdevTree> = VdevTree::open(&config(parity, old, |_| ()), model.disks(&[])).unwrap();
    let mut control = tree.control().unwrap();
    model.write(&tree, 60, BIRTH);
    let expanding = config(parity, wide, |list| list.push("raidz_expanding", NvValue::Boolean));
    let mut word = Reflow::at(0, false);
    control.set_reflow(word);
    control.change(&expanding, model.disks(&[])).unwrap();
    model.read(&tree, &what);
    let first = scratch_bytes(wide, ASHIFT);
    let mut batches = 0;
    while word.scratch_valid || word.synced_bytes < TOTAL {
        batches += 1;
        let synced = word.synced_bytes;
        let limit = reflow_limit_bytes(synced, wide, ASHIFT).min(TOTAL);
        let (range, from, to, during, after) = match (word.scratch_valid, synced) {
            (true, _) => {
                let during = Reflow { copied_bytes: synced, ..word };
                (0..synced, ReflowPlace::Scratch, ReflowPlace::New, during, Reflow::at(synced, false))
            }
            (false, 0) => {
                let during = Reflow { scratch_bytes: first, ..word };
                (0..first, ReflowPlace::Old, ReflowPlace::Scratch, during, Reflow::at(first, true))
            }
            (false, _) => {
                let end = limit.min(synced + ((1 + model.rng.below(1024)) << ASHIFT));
                let during = Reflow { copied_bytes: end, ..word };
                (synced..end, ReflowPlace::Old, ReflowPlace::New, during, Reflow::at(end, false))
            }
        };
        model.write(&tree, 3, BIRTH);
        control.set_reflow(during);
        assert!(tree.is_reflow_settled(), "no I/O is under way here");
        model.write(&tree, 3, BIRTH);
        let listed = model.in_use(range);
        model.write(&tree, 3, BIRTH);
        for range in listed {
            model.made.runtime.block_on(tree.reflow_range(TOP, range, from, to)).unwrap();
            if model.rng.below(8) == 0 {
                model.write(&tree, 1, BIRTH);
            }
        }
        // The power goes here, or after the word.
        model.read_anew(&expanding, word, parity, &format!("{what}, batch {batches} is copied"));
        model.read_anew(&expanding, after, parity, &format!("{what}, batch {batches} is claimed"));
        control.set_reflow(after);
        model.write(&tree, 3, BIRTH);
        word = after;
        model.read(&tree, &format!("{what}, batch {batches} has moved"));
    }
    assert!(batches > 5, "{what}: {batches} batches");
    let done = config(parity, wide, |list| list.push("raidz_expand_txgs", NvValue::Uint64Array(vec![200])));
    control.change(&done, model.disks(&[])).unwrap();
    control.set_reflow(Reflow::COMPLETE);
    model.layout = Raidz::new(ASHIFT, parity, wide, &[Txg(200)], false).unwrap();
    model.write(&tree, 20, BIRTH);
    model.write(&tree, 20, Txg(200));
    model.read(&tree, &what);
    model.read_anew(&done, Reflow::COMPLETE, parity, &what);
}

#[test]
fn every_block_can_be_read_at_each_step_of_an_expansion() {
    for (seed, (parity, old)) in (0..).zip([(1, 2), (1, 3), (1, 5), (2, 4), (2, 3), (3, 5), (3, 4)]) {
        expand(seed, parity, old);
    }
}

/// The sectors that would be overwritten next are those that nobody reads: the picture of `reflow_limit_bytes`, by counting.
#[test]
fn no_copy_up_to_the_limit_overwrites_a_row_that_has_not_moved() {
    for old in 2_u64..12 {
        for synced in old * (old + 1)..old * (old + 1) * 6 {
            let limit = reflow_limit_bytes(synced << ASHIFT, old as usize + 1, ASHIFT) >> ASHIFT;
            for sector in synced..limit.max(synced) {
                let (child, row) = (sector % (old + 1), sector / (old + 1));
                // The sector whose old place that is; the new child has none.
                if child < old {
                    let overwritten = row * old + child;
                    assert!(overwritten + old <= synced, "a row with sector {overwritten} may end behind {synced}");
                }
            }
        }
    }
}
