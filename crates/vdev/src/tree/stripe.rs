//! Reading through parity: raidz and draid.
//!
//! A read goes through stages; each stage runs only if the previous one gave no bytes that verify:
//!
//! 1. The data columns, where all their children can be read; otherwise all columns at once.
//! 2. The parity columns, and what is known to be lost rebuilt from them.
//! 3. The columns of children that have missed the block's txg: if they verify, they are not stale after all.
//! 4. Some column is silently corrupt, and no device reports an error: every set of up to `parity` *suspects* is taken for lost in turn and
//!    rebuilt from the others, until the block verifies.
//! 5. A child that is being replaced, or that a spare stands for, has several devices, and one of them was read. A power cut may have cost that one what
//!    another has: each choice of one device of each such child is read instead, without suspects at first, and then as in stage 4.
//!
//! Then the columns that were read are compared with the verified data, and the children of wrong columns, parity included, are reported.
//!
//! A child that is far slower than its siblings *sits out* ([`super::sit_out`]): its columns count as missing in stages 1 and 2, and are
//! read before stage 3 if still necessary. A column that does not come for `zfs_vdev_mirror_reroute_ms` is treated likewise. Scrubs read all.
//!
//! A suspect is a child. On an expanded raidz vdev it can also be a child of an earlier, narrower layout: the expansion has copied
//! silently corrupt data of a disk, so that data is now spread diagonally across all children.
//!
//! A stripe that is a mirror's child goes through the same stages for itself before the mirror asks another child.
//!
//! Neighbouring columns on a child are read with one I/O, across gaps of up to [`GAP_MAX_BYTES`].

use std::collections::BTreeMap;

use cenote_codec::raidz::{self, Column as Parity};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::Buf;
use cenote_taskq::{join_all, yield_now};

use super::gate::Flight;
use super::node::{Kind, Node};
use super::write::parity_columns;
use super::{Check, Depth, Extent, Faults, Patience, ReadContext, Seen, Topology};
use crate::error::VdevError;
use crate::fault::{Compared, Fault, FaultKind, IoCause};
use crate::layout::{Column, StripeMap};

/// Read this much more rather than send a second I/O (`zfs_vdev_read_gap_limit`).
const GAP_MAX_BYTES: u64 = 32 << 10;
/// How many sets of suspects are tried for one block: covers 3 of 70 children. A wider vdev gives up with fewer than all.
const ATTEMPTS_MAX: u64 = 1 << 16;
/// How many bytes are verified in all of a block's attempts: bounds the time that a large block can take.
const ATTEMPT_BYTES_MAX: u64 = 64 << 30;
/// Attempts between two looks at what else is to do.
const ATTEMPTS_PER_TURN: u64 = 16;

/// How many devices of a child are read in stage 5, and how many choices of them are tried.
const DEVICES_MAX: usize = 4;
const CHOICES_MAX: usize = 64;

/// The state of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// The block does not reach it.
    Empty,
    /// Can be read.
    Untried,
    /// Can be read, but its child is slow: others first.
    Slow,
    /// Can be read, but its child has missed the txg.
    Stale,
    /// Cannot be had.
    Dead,
    /// Read: at `start` of a run.
    Have { run: u32, start: u32, stale: bool },
}

/// A block being read from a raidz or draid vdev.
pub(super) struct Stripe<'a> {
    tree: &'a Topology,
    node: &'a Node,
    extent: Extent,
    map: StripeMap,
    cells: Vec<Cell>,
    runs: Vec<Buf>,
    context: ReadContext<'a>,
    pub(super) faults: Faults,
    /// Sets of columns that one bad device would spoil.
    suspects: Suspects<'a>,
    /// As long as columns are read, what is at their places stays there.
    _flight: Option<Flight<'a>>,
}

/// The inputs for finding suspects, should they be needed.
struct Suspects<'a> {
    kind: &'a Kind,
    offset_bytes: u64,
}

/// A device of a child that has several.
struct Held<'a> {
    child: u32,
    leaf: &'a Node,
    /// It may lack the block.
    is_stale: bool,
    /// Its columns, and the runs where they were read to.
    columns: Vec<(usize, u32)>,
}

/// Columns that were rebuilt.
type Rebuilt = Vec<(usize, Vec<u8>)>;

impl Topology {
    /// Reads a block of a raidz or draid vdev.
    pub(super) async fn read_stripe(
        &self,
        node: &Node,
        extent: Extent,
        check: Check<'_>,
        context: ReadContext<'_>,
    ) -> Result<Result<Buf, Faults>, VdevError> {
        let mut stripe = Stripe::new(self, node, extent, context)?;
        Ok(match stripe.solve(check, false).await {
            Some(buf) => Ok(buf),
            None => Err(stripe.failure()),
        })
    }

    /// Reads a block of a raidz or draid vdev below a mirror. Without a check it brings what the columns say.
    pub(super) async fn read_nested_stripe(
        &self,
        node: &Node,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
    ) -> Result<Buf, Faults> {
        let anything = |_: &[u8]| true;
        let check = check.unwrap_or(Check { verify: &anything, size: 0 });
        match self.read_stripe(node, extent, check, context).await {
            Ok(Ok(buf)) => Ok(buf),
            Ok(Err(faults)) => {
                self.count_failed_stripe(node, &faults, context);
                Err(faults)
            }
            Err(_) => Err(self.misplaced(node, extent)),
        }
    }

    /// Counts a block that a stripe below a mirror could not bring, as top-level vdevs count theirs.
    pub(super) fn count_failed_stripe(&self, node: &Node, faults: &Faults, context: ReadContext<'_>) {
        if !context.speculative
            && let Some(own) = faults.0.iter().find(|fault| fault.guid == node.guid)
        {
            node.errors.count(own.kind);
        }
    }

    /// The faults of a range where no block can lie.
    pub(super) fn misplaced(&self, node: &Node, extent: Extent) -> Faults {
        let cause = IoCause { kind: std::io::ErrorKind::InvalidInput, errno: None };
        self.fault(node, extent, FaultKind::Read(cause)).into()
    }

    /// Reads a range of a child of a raidz or draid vdev.
    async fn read_column(
        &self,
        child: &Node,
        extent: Extent,
        context: ReadContext<'_>,
        patience: Patience,
    ) -> Result<Buf, Faults> {
        match &child.kind {
            Kind::Leaf(leaf) => self.read_bounded_leaf(child, leaf, extent, None, context, patience).await,
            _ => self.read_nested(child, extent, None, context, Depth::START).await,
        }
    }
}

impl<'a> Stripe<'a> {
    pub(super) fn new(
        tree: &'a Topology,
        node: &'a Node,
        extent: Extent,
        context: ReadContext<'a>,
    ) -> Result<Self, VdevError> {
        let offset_bytes = extent.address - START_BYTES;
        let flight = tree.read_flight(node);
        let map = tree.stripe_map(node, extent, context.birth, flight.as_ref())?;
        debug_assert_eq!(map.block_bytes(), extent.len, "a stripe's columns have the whole block");
        let mut stripe = Self {
            tree,
            node,
            extent,
            cells: Vec::with_capacity(map.columns().len()),
            map,
            runs: Vec::new(),
            context,
            faults: Faults::default(),
            suspects: Suspects { kind: &node.kind, offset_bytes },
            _flight: flight,
        };
        for column in stripe.map.columns() {
            let child = stripe.child(column);
            let cell = if column.size_bytes == 0 {
                Cell::Empty
            } else if !tree.is_readable(child, column.address_bytes, Depth::START) {
                Cell::Dead
            } else if tree.has_missed(child, column.address_bytes, context.birth, Depth::START) {
                Cell::Stale
            } else {
                Cell::Untried
            };
            stripe.cells.push(cell);
        }
        debug_assert_eq!(stripe.cells.len(), stripe.map.columns().len(), "each column has a state");
        let unavailable = stripe.faults_of(Cell::Dead, FaultKind::Unavailable);
        unavailable.into_iter().for_each(|fault| stripe.faults.add(fault));
        Ok(stripe)
    }

    pub(super) const fn map(&self) -> &StripeMap {
        &self.map
    }

    pub(super) const fn node(&self) -> &'a Node {
        self.node
    }

    pub(super) const fn context(&self) -> ReadContext<'a> {
        self.context
    }

    fn child(&self, column: &Column) -> &'a Node {
        self.tree.node(self.node.children[column.child as usize])
    }

    fn is_data(&self, index: usize) -> bool {
        !self.map.is_parity(index)
    }

    /// A column's bytes, if they were read.
    fn bytes(&self, index: usize) -> Option<&[u8]> {
        match self.cells[index] {
            Cell::Empty => Some(&[]),
            Cell::Have { run, start, .. } => {
                let size = self.map.columns()[index].size_bytes as usize;
                self.runs[run as usize].get(start as usize..)?.get(..size)
            }
            Cell::Untried | Cell::Slow | Cell::Stale | Cell::Dead => None,
        }
    }

    /// Brings the block, verified; see the module comment. `everything`: reads and audits all columns, as a scrub does.
    pub(super) async fn solve(&mut self, check: Check<'_>, everything: bool) -> Option<Buf> {
        let is_lost = |cell: &Cell| matches!(cell, Cell::Dead | Cell::Stale | Cell::Slow);
        let patience = if everything { Patience::Long } else { Patience::Short };
        if !everything {
            self.sit_out();
        }
        let data_lost = (0..self.cells.len()).any(|index| self.is_data(index) && is_lost(&self.cells[index]));
        let parity_too = everything || data_lost;
        self.fetch(Cell::Untried, parity_too, patience).await;
        if !everything && self.is_whole() && check.passes(&self.runs[0]) {
            return self.runs.pop();
        }
        if let Some(mut block) = self.assemble(&Vec::new())
            && check.passes(&block)
        {
            if everything {
                check.clear_padding(&mut block);
                self.audit(&block, true);
            }
            return Some(block);
        }
        self.fetch(Cell::Untried, true, patience).await;
        if let Some(block) = self.rebuilt_block(check, is_lost, everything) {
            return Some(block);
        }
        if self.cells.contains(&Cell::Slow) {
            self.fetch(Cell::Slow, true, Patience::Long).await;
            if let Some(block) = self.rebuilt_block(check, is_lost, everything) {
                return Some(block);
            }
        }
        self.fetch(Cell::Stale, true, Patience::Long).await;
        let mut attempts = 0;
        if let Some(mut block) = self.try_suspects(check, &mut attempts).await {
            check.clear_padding(&mut block);
            self.audit(&block, true);
            return Some(block);
        }
        let devices = self.read_devices().await;
        let mut block = self.try_devices(check, &devices).await?;
        check.clear_padding(&mut block);
        self.audit(&block, true);
        // All of them are compared by whoever reads everything.
        if !everything {
            self.audit_devices(&block, &devices);
        }
        Some(block)
    }

    /// Leaves slow children's columns for later, as far as parity can stand in for them.
    fn sit_out(&mut self) {
        let Some(now) = self.tree.common.clock.as_ref().map(cenote_taskq::Handle::now) else { return };
        let size_bytes = self.map.columns().iter().map(|column| column.size_bytes).max().unwrap_or(0);
        self.tree.compare_children(self.node, size_bytes, self.extent, self.context);
        let width = self.map.row_width();
        for index in 0..self.cells.len() {
            let is_slow = self.cells[index] == Cell::Untried && {
                self.tree.sits_out(self.child(&self.map.columns()[index]), now)
            };
            let row = index / width * width;
            let missing = self.cells[row..row + width]
                .iter()
                .filter(|cell| matches!(cell, Cell::Dead | Cell::Stale | Cell::Slow))
                .count();
            if is_slow && missing < self.map.parity_count() {
                self.cells[index] = Cell::Slow;
            }
        }
    }

    /// The block, if what was read and what can be rebuilt from it come to it.
    fn rebuilt_block(
        &mut self,
        check: Check<'_>,
        is_lost: impl Fn(&Cell) -> bool + Copy,
        everything: bool,
    ) -> Option<Buf> {
        if let Some(rebuilt) = self.rebuild_lost(is_lost)
            && let Some(mut block) = self.assemble(&rebuilt)
            && check.passes(&block)
        {
            check.clear_padding(&mut block);
            self.audit(&block, everything);
            return Some(block);
        }
        None
    }

    /// The reason why the block could not be read. If there are enough columns, but no choice of suspects gives a block that verifies, no
    /// child can be blamed: the error names the stripe. Its bytes are old where columns of children that have missed the txg were necessary;
    /// where the others are enough, it has never had the block, or has lost it: the end of an intent log is known by that.
    pub(super) fn failure(mut self) -> Faults {
        let is_stale = |cell: &Cell| matches!(cell, Cell::Have { stale: true, .. });
        let comes_without = |is_lost: &dyn Fn(&Cell) -> bool| {
            self.rebuild_lost(is_lost).is_some_and(|rebuilt| self.assemble(&rebuilt).is_some())
        };
        let kind = if comes_without(&|cell| *cell == Cell::Dead || is_stale(cell)) {
            Some(FaultKind::Checksum)
        } else {
            comes_without(&|cell| *cell == Cell::Dead).then_some(FaultKind::Stale)
        };
        if let Some(kind) = kind {
            self.faults.add(self.tree.fault(self.node, self.extent, kind));
        }
        self.faults
    }

    /// Names the columns that differ from a block that this stripe could not bring, but another copy did.
    pub(super) fn audit_by(&mut self, block: &[u8]) {
        if block.len() as u64 == self.map.block_bytes() {
            self.audit(block, true);
        }
    }

    /// Reads the columns that are in `state`, data only or parity too. Columns that fail are dead afterwards.
    async fn fetch(&mut self, state: Cell, parity_too: bool, patience: Patience) {
        let wanted = |&index: &usize| self.cells[index] == state && (parity_too || self.is_data(index));
        let order = in_address_order(self.map.columns(), (0..self.cells.len()).filter(wanted));
        let columns = self.map.columns();
        let parts = neighbours(columns, &order);
        let failed = self.fetch_parts(&parts, patience).await;
        // One bad sector must not cost all the columns that were read along with it.
        let singles: Vec<&[usize]> = failed.iter().flat_map(|part| part.chunks(1)).collect();
        for part in self.fetch_parts(&singles, patience).await {
            part.iter().for_each(|&index| self.cells[index] = Cell::Dead);
        }
    }

    /// Reads each part with one I/O, all at once; gives back those that failed, where they had several columns, and
    /// marks those dead that had one.
    async fn fetch_parts<'p>(&mut self, parts: &[&'p [usize]], patience: Patience) -> Vec<&'p [usize]> {
        let columns = self.map.columns();
        let reads = parts.iter().map(|part| {
            self.tree.read_column(self.child(&columns[part[0]]), span(columns, part), self.context, patience)
        });
        let results = join_all(reads).await;
        let mut failed = Vec::new();
        for (part, result) in parts.iter().zip(results) {
            match result {
                Ok(buf) => {
                    debug_assert_eq!(buf.len() as u64, span(columns, part).len, "a good read fills its range");
                    let run = self.runs.len() as u32;
                    let base = self.map.columns()[part[0]].address_bytes;
                    for &index in *part {
                        let start = (self.map.columns()[index].address_bytes - base) as u32;
                        let stale = self.cells[index] == Cell::Stale;
                        self.cells[index] = Cell::Have { run, start, stale };
                    }
                    self.runs.push(buf);
                }
                Err(faults) => {
                    let is_overdue = faults.0.iter().any(|fault| fault.kind == FaultKind::Overdue);
                    self.faults.extend(faults);
                    if is_overdue {
                        part.iter().for_each(|&index| self.cells[index] = Cell::Slow);
                    } else if part.len() > 1 {
                        failed.push(*part);
                    } else {
                        self.cells[part[0]] = Cell::Dead;
                    }
                }
            }
        }
        failed
    }

    /// Puts the block together from what was read and rebuilt; `None` while a column lacks.
    fn assemble(&self, rebuilt: &Rebuilt) -> Option<Buf> {
        let lacks = |index: usize| self.bytes(index).is_none() && rebuilt.iter().all(|(other, _)| *other != index);
        if (0..self.cells.len()).any(|index| self.is_data(index) && lacks(index)) {
            return None;
        }
        let mut block = Buf::unfilled(self.map.block_bytes() as usize);
        for index in (0..self.cells.len()).filter(|&index| self.is_data(index)) {
            if let Some(bytes) = self.bytes(index) {
                block[self.place(index)].copy_from_slice(bytes);
            }
        }
        for (index, bytes) in rebuilt {
            block[self.place(*index)].copy_from_slice(bytes);
        }
        Some(block)
    }

    /// Where a data column stands in the block.
    fn place(&self, index: usize) -> std::ops::Range<usize> {
        let column = &self.map.columns()[index];
        let start = column.block_offset_bytes as usize;
        start..start + column.size_bytes as usize
    }

    /// Whether the block is one column that was read by itself, so that nothing needs copying.
    fn is_whole(&self) -> bool {
        let [only] = &self.runs[..] else { return false };
        let mut data = (0..self.cells.len()).filter(|&index| self.is_data(index) && self.cells[index] != Cell::Empty);
        let first = data.next().map(|index| self.cells[index]);
        matches!(first, Some(Cell::Have { start: 0, .. }))
            && data.next().is_none()
            && only.len() as u64 == self.map.block_bytes()
    }

    /// Rebuilds all data columns that are lost, in every row; `None` where too many are.
    fn rebuild_lost(&self, is_lost: impl Fn(&Cell) -> bool) -> Option<Rebuilt> {
        let width = self.map.row_width();
        let mut rebuilt = Vec::new();
        for row in 0..self.cells.len() / width {
            let indexes = row * width..(row + 1) * width;
            if indexes.clone().any(|index| self.is_data(index) && is_lost(&self.cells[index])) {
                rebuilt.extend(self.rebuild_row(row, |index| is_lost(&self.cells[index]))?);
            }
        }
        Some(rebuilt)
    }

    /// Rebuilds the data columns of a row that are lost; columns that were not read count as lost too.
    fn rebuild_row(&self, row: usize, is_lost: impl Fn(usize) -> bool) -> Option<Rebuilt> {
        let width = self.map.row_width();
        let parity_count = self.map.parity_count();
        let first = row * width;
        let known = |index: usize| if is_lost(index) { None } else { self.bytes(index) };
        let mut rebuilt: Rebuilt = (first + parity_count..first + width)
            .filter(|&index| known(index).is_none())
            .map(|index| (index, vec![0; self.map.columns()[index].size_bytes as usize]))
            .collect();
        let mut spaces = rebuilt.iter_mut();
        let mut columns: Vec<Parity<'_>> = (first..first + width)
            .map(|index| match known(index) {
                Some(bytes) => Parity::Known(bytes),
                None if index < first + parity_count => Parity::Unread,
                None => spaces.next().map_or(Parity::Unread, |(_, space)| Parity::Missing(space)),
            })
            .collect();
        raidz::reconstruct(parity_count, &mut columns).ok()?;
        drop(columns);
        Some(rebuilt)
    }

    /// Reads what each device of the children with several has.
    async fn read_devices(&mut self) -> Vec<Held<'a>> {
        let mut asked = Vec::new();
        for (index, child) in self.nested_columns().filter(|(index, _)| self.bytes(*index).is_some()) {
            let column = self.map.columns()[index];
            let holders = self.tree.holders_below(child, column.address_bytes);
            if holders.len() > 1 {
                asked.extend(holders.into_iter().take(DEVICES_MAX).enumerate().map(|holder| (column, index, holder)));
            }
        }
        let reads = asked
            .iter()
            .map(|(column, _, (_, (leaf, _)))| self.tree.read_one(leaf, extent_of(column), None, self.context));
        let mut devices: Vec<(usize, Held<'a>)> = Vec::new();
        for ((column, index, (number, (leaf, lacks))), read) in asked.iter().zip(join_all(reads).await) {
            let Ok(read) = read else { continue };
            debug_assert_eq!(read.len() as u64, column.size_bytes, "a column is read whole");
            let read_to = (*index, self.runs.len() as u32);
            self.runs.push(read);
            let is_same = |known: &&mut (usize, Held<'a>)| known.0 == *number && known.1.child == column.child;
            match devices.iter_mut().find(is_same) {
                Some((_, held)) => held.columns.push(read_to),
                None => {
                    let is_stale = *lacks || leaf.missed.contains(self.context.birth);
                    devices.push((*number, Held { child: column.child, leaf, is_stale, columns: vec![read_to] }));
                }
            }
        }
        devices.into_iter().map(|(_, held)| held).collect()
    }

    /// Has each child with several devices give what one of them has, in all choices, until the block verifies.
    async fn try_devices(&mut self, check: Check<'_>, devices: &[Held<'a>]) -> Option<Buf> {
        // Of each child those that differ from what was read at first.
        let mut others: Vec<(u32, Vec<&Held<'a>>)> = Vec::new();
        for held in devices {
            let is_other =
                held.columns.iter().any(|(index, run)| self.bytes(*index) != Some(&self.runs[*run as usize]));
            match others.iter_mut().find(|(child, _)| *child == held.child) {
                _ if !is_other => {}
                Some((_, of_child)) => of_child.push(held),
                None => others.push((held.child, vec![held])),
            }
        }
        let before = self.cells.clone();
        let mut attempts = 0;
        for has_suspects in [false, true] {
            let mut choice = vec![0; others.len()];
            for _ in 0..CHOICES_MAX {
                if !next_choice(&mut choice, |child| others[child].1.len()) {
                    break;
                }
                self.cells.clone_from(&before);
                for (number, (_, of_child)) in choice.iter().zip(&others).filter(|(number, _)| **number > 0) {
                    let held = of_child[*number - 1];
                    for (index, run) in &held.columns {
                        self.cells[*index] = Cell::Have { run: *run, start: 0, stale: held.is_stale };
                    }
                }
                let block = match has_suspects {
                    false => {
                        let rebuilt = self.rebuild_lost(|cell| *cell == Cell::Dead);
                        rebuilt.and_then(|rebuilt| self.assemble(&rebuilt)).filter(|block| check.passes(block))
                    }
                    true => self.try_suspects(check, &mut attempts).await,
                };
                if block.is_some() {
                    return block;
                }
            }
        }
        self.cells = before;
        None
    }

    /// Reports each device that differs from the block, which has been verified.
    fn audit_devices(&mut self, block: &Buf, devices: &[Held<'a>]) {
        let Ok(parity) = parity_columns(&self.map, &Buf::copied_from(block).freeze()) else { return };
        for held in devices {
            let compared = |(index, run): &(usize, u32)| {
                let good = parity[*index].as_deref().unwrap_or_else(|| &block[self.place(*index)]);
                (*index, Compared::whole(good, &self.runs[*run as usize]))
            };
            let differs = |(_, compared): &(usize, Compared<'_>)| compared.good != compared.bad;
            let kind = if held.is_stale { FaultKind::Stale } else { FaultKind::Checksum };
            if let Some((index, compared)) = held.columns.iter().map(compared).find(differs) {
                let extent = extent_of(&self.map.columns()[index]);
                let seen = Seen::Compared(&[compared]);
                let fault = self.tree.report_seen(held.leaf, extent, kind, self.context, seen);
                self.faults.add(fault);
            }
        }
    }

    /// Takes sets of suspects for lost until the block verifies. `attempts`: how many there were, of all that a block may have.
    async fn try_suspects(&mut self, check: Check<'_>, attempts: &mut u64) -> Option<Buf> {
        let base = self.rebuild_lost(|cell| *cell == Cell::Dead)?;
        let mut block = self.assemble(&base)?;
        if check.passes(&block) {
            return Some(block);
        }
        let suspects = self.suspect_sets();
        let budget = ATTEMPTS_MAX.min(ATTEMPT_BYTES_MAX / self.map.block_bytes().max(1));
        for count in 1..=self.map.parity_count().min(suspects.len()) {
            let mut chosen: Vec<usize> = (0..count).collect();
            loop {
                if self.try_set(&suspects, &chosen, &base, &mut block, check) {
                    return Some(block);
                }
                *attempts += 1;
                if *attempts >= budget {
                    return None;
                }
                if attempts.is_multiple_of(ATTEMPTS_PER_TURN) {
                    yield_now().await;
                }
                if !next_combination(&mut chosen, suspects.len()) {
                    break;
                }
            }
        }
        None
    }

    /// Sets of columns, each of which one bad device would spoil. Columns that are known to be lost are in none.
    fn suspect_sets(&self) -> Vec<Vec<usize>> {
        let mut sets = match self.suspects.kind {
            Kind::Raidz(raidz) => raidz.suspects(&self.map, self.suspects.offset_bytes, self.context.birth),
            _ => self.map.columns_by_child(),
        };
        for set in &mut sets {
            set.retain(|&index| matches!(self.cells[index], Cell::Have { .. }));
        }
        sets.retain(|set| !set.is_empty());
        sets.dedup();
        debug_assert!(sets.iter().all(|set| set.is_sorted()), "columns are looked for in sets of suspects by halves");
        sets
    }

    /// Takes the chosen suspects for lost, rebuilds and verifies. Leaves the block as it was if it fails.
    fn try_set(
        &self,
        suspects: &[Vec<usize>],
        chosen: &[usize],
        base: &Rebuilt,
        block: &mut Buf,
        check: Check<'_>,
    ) -> bool {
        let width = self.map.row_width();
        let is_suspect = |index: usize| chosen.iter().any(|&set| suspects[set].binary_search(&index).is_ok());
        let is_lost = |index: usize| self.cells[index] == Cell::Dead || is_suspect(index);
        let mut rows: Vec<usize> = chosen.iter().flat_map(|&set| &suspects[set]).map(|index| index / width).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut rebuilt = Vec::new();
        for row in rows {
            // Where no data is lost, another choice of parity changes nothing.
            if (row * width..(row + 1) * width).any(|index| self.is_data(index) && is_lost(index)) {
                match self.rebuild_row(row, is_lost) {
                    Some(columns) => rebuilt.extend(columns),
                    None => return false,
                }
            }
        }
        if rebuilt.is_empty() {
            return false;
        }
        for (index, bytes) in &rebuilt {
            block[self.place(*index)].copy_from_slice(bytes);
        }
        if check.passes(block) {
            return true;
        }
        for (index, _) in &rebuilt {
            let known = self.bytes(*index);
            let before = known.or_else(|| base.iter().find(|(other, _)| other == index).map(|(_, bytes)| &bytes[..]));
            if let Some(before) = before {
                block[self.place(*index)].copy_from_slice(before);
            }
        }
        false
    }

    /// Compares the columns that were read with the block, which has been verified, and reports those that differ.
    ///
    /// Unless `all` are wanted, only parity that was not needed to rebuild something can differ, and is compared.
    fn audit(&mut self, block: &[u8], all: bool) {
        let width = self.map.row_width();
        let parity_count = self.map.parity_count();
        let mut wrong = Vec::new();
        // The right bytes of wrong columns of parity.
        let mut parity_truths = BTreeMap::new();
        debug_assert_eq!(block.len() as u64, self.map.block_bytes(), "columns are compared with all of the block");
        for row in 0..self.cells.len() / width {
            let (first, first_data, end) = (row * width, row * width + parity_count, (row + 1) * width);
            let lost_data = (first_data..end).filter(|&index| self.bytes(index).is_none()).count();
            let have_parity = (first..first_data).filter(|&index| self.bytes(index).is_some()).count();
            if have_parity > lost_data || (all && have_parity > 0) {
                let data: Vec<&[u8]> = (first_data..end).map(|index| &block[self.place(index)]).collect();
                let mut parity = vec![vec![0; self.map.columns()[first].size_bytes as usize]; parity_count];
                let mut spaces: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                if raidz::generate(&data, &mut spaces).is_ok() {
                    let differs = |index: usize, truth: &[u8]| self.bytes(index).is_some_and(|read| read != truth);
                    for (index, truth) in
                        (first..first_data).zip(parity).filter(|(index, truth)| differs(*index, truth))
                    {
                        wrong.push(index);
                        parity_truths.insert(index, truth);
                    }
                }
            }
            if all {
                let differs = |&index: &usize| self.bytes(index).is_some_and(|read| *read != block[self.place(index)]);
                wrong.extend((first_data..end).filter(differs));
            }
        }
        // A child that is wrong in neighbouring columns is wrong once.
        let columns = self.map.columns();
        let wrong = in_address_order(columns, wrong.into_iter());
        for part in neighbours(columns, &wrong) {
            let stale = matches!(self.cells[part[0]], Cell::Have { stale: true, .. });
            let kind = if stale { FaultKind::Stale } else { FaultKind::Checksum };
            let (child, extent) = (self.child(&columns[part[0]]), span(columns, part));
            let compared = part.iter().filter_map(|&index| {
                let good = parity_truths.get(&index).map_or_else(|| &block[self.place(index)], Vec::as_slice);
                let at_bytes = columns[index].address_bytes - extent.address;
                Some(Compared { at_bytes, ..Compared::whole(good, self.bytes(index)?) })
            });
            let compared: Vec<_> = compared.collect();
            let fault = self.tree.report_seen(child, extent, kind, self.context, Seen::Compared(&compared));
            self.faults.add(fault);
        }
    }

    /// Faults for columns in this state, unreported.
    fn faults_of(&self, state: Cell, kind: FaultKind) -> Vec<Fault> {
        let columns = self.map.columns();
        let order = in_address_order(columns, (0..columns.len()).filter(|&index| self.cells[index] == state));
        let parts = neighbours(columns, &order);
        parts.iter().map(|part| self.tree.fault(self.child(&columns[part[0]]), span(columns, part), kind)).collect()
    }

    /// Columns whose child is not a leaf: only one of its devices was read.
    pub(super) fn nested_columns(&self) -> impl Iterator<Item = (usize, &'a Node)> {
        self.map
            .columns()
            .iter()
            .enumerate()
            .filter(|(_, column)| column.size_bytes != 0)
            .map(|(index, column)| (index, self.child(column)))
            .filter(|(_, child)| !matches!(child.kind, Kind::Leaf(_)))
    }

    /// How many columns were read.
    pub(super) fn columns_read(&self) -> usize {
        self.cells.iter().filter(|cell| matches!(cell, Cell::Have { .. })).count()
    }

    /// Faults for the columns of children that were left out since they have missed the txg.
    pub(super) fn stale_faults(&self) -> Vec<Fault> {
        self.faults_of(Cell::Stale, FaultKind::Stale)
    }
}

pub(super) const fn extent_of(column: &Column) -> Extent {
    Extent { address: column.address_bytes, len: column.size_bytes }
}

/// The columns sorted by child and address.
fn in_address_order(columns: &[Column], indexes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut order: Vec<usize> = indexes.collect();
    order.sort_unstable_by_key(|&index| (columns[index].child, columns[index].address_bytes));
    order
}

/// Splits columns in address order where the next one is on another child or far away.
fn neighbours<'o>(columns: &[Column], order: &'o [usize]) -> Vec<&'o [usize]> {
    order.chunk_by(|&a, &b| adjoin(&columns[a], &columns[b])).collect()
}

/// The range from the first to the last of neighbouring columns.
fn span(columns: &[Column], part: &[usize]) -> Extent {
    let (first, last) = (&columns[part[0]], &columns[part[part.len() - 1]]);
    debug_assert_eq!(first.child, last.child, "one read is of one child");
    debug_assert!(first.address_bytes <= last.address_bytes, "columns are read in the order of their addresses");
    let len = last.address_bytes + last.size_bytes - first.address_bytes;
    Extent { address: first.address_bytes, len }
}

/// Whether two columns, in the order of their addresses, are worth one I/O.
fn adjoin(first: &Column, second: &Column) -> bool {
    let end = first.address_bytes + first.size_bytes;
    first.child == second.child && second.address_bytes.saturating_sub(end) <= GAP_MAX_BYTES
}

/// Steps to the next choice of one of several at each place, where 0 chooses none of them; `false` after the last.
fn next_choice(choice: &mut [usize], count_at: impl Fn(usize) -> usize) -> bool {
    for (place, chosen) in choice.iter_mut().enumerate() {
        debug_assert!(*chosen <= count_at(place), "a choice is among what there is");
        if *chosen < count_at(place) {
            *chosen += 1;
            return true;
        }
        *chosen = 0;
    }
    false
}

/// Steps to the next ascending choice of numbers below `count`; `false` after the last.
fn next_combination(chosen: &mut [usize], count: usize) -> bool {
    let size = chosen.len();
    debug_assert!(chosen.is_sorted_by(|one, next| one < next), "a choice ascends");
    debug_assert!(chosen.last().is_none_or(|last| *last < count), "a choice is among what there is");
    for slot in (0..size).rev() {
        if chosen[slot] < count - (size - slot) {
            let next = chosen[slot] + 1;
            chosen[slot..].iter_mut().zip(next..).for_each(|(number, value)| *number = value);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_come_each_once_and_in_order() {
        let mut chosen = vec![0, 1];
        let mut all = vec![chosen.clone()];
        while next_combination(&mut chosen, 4) {
            all.push(chosen.clone());
        }
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert!(!next_combination(&mut [0], 1));
    }

    #[test]
    fn choices_come_each_once() {
        let (mut choice, mut all) = (vec![0, 0], Vec::new());
        while next_choice(&mut choice, |place| place + 1) {
            all.push(choice.clone());
        }
        assert_eq!(all, [[1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]);
        assert!(!next_choice(&mut [], |_| 1));
    }
}
