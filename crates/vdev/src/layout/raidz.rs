//! raidz: variable-width stripes over all children, and the history of its expansions.
//!
//! The children's data areas together form one line of sectors, dealt out like cards: sector `b` of the vdev is sector
//! `b / width` of child `b % width`. An allocation of `tot` sectors starting at `b` takes the next `tot` of the line, and
//! its columns are the cards each child got. Parity takes the first columns; data fills the others column by column.
//!
//! ```text
//!   width 5, raidz1, 8 data sectors from b = 2          child: 0   1   2   3   4
//!   tot = 8 + 2 parity                                              P   d0  d2
//!   big columns: none (8 = 2 * 4)                              d4  d6  P   d1  d3
//!                                                              d5  d7
//! ```
//!
//! Two quirks are part of the format. In raidz1, where bit 20 of the block's offset is set, columns 0 and 1 change places.
//! And an allocation is rounded up to a multiple of `parity + 1` sectors, so that no free piece is too small to use; the
//! rounding shows as *skip sectors*.
//!
//! **Expansion.** When a child is added, old blocks keep the *logical width* they were written with while all sectors are
//! dealt out anew over one more child, in the order of the line. A block of an older width then has a row for each
//! of its stripe rows: sector `b + row * logical_width + column` of the line, at its new place. Which width a block
//! has follows from its physical birth and the list of txgs at which expansions were done. While an expansion is
//! running, the *reflow offset* in the uberblock says how far the sectors have moved: rows wholly before it lie at the
//! new place, others at the old. For a crash at the very start, where source and target overlap, the first sectors are kept in
//! the scratch area (the boot block region) and are read from there while the uberblock says that it is valid.

use cenote_format::ids::Txg;
use cenote_format::uberblock::{ReflowScratch, Uberblock};

use super::{Column, LayoutError, MAX_CHILDREN, MAX_PARITY, SkipSector, Spread, StripeMap, check_ashift, sectors};
use cenote_format::label::{BOOT_AREA_BYTES, START_BYTES as DATA_START_BYTES};

/// Swapping of the first two columns of raidz1 follows this bit of the block's offset.
const SWAP_BIT: u64 = 1 << 20;

/// Where a running expansion stands: first as the uberblock's reflow word says, then as the copy goes on.
///
/// A sector of the line can lie at three places: where it was before (*old*), where it is to be (*new*), and at the new place's counterpart in
/// the scratch area. Reads go to one of them, writes to each that a later state may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Rows wholly before this offset of the vdev have moved, and the uberblock on disk says so.
    pub synced_bytes: u64,
    /// Rows that have moved are read from the scratch area, and not from their new place.
    pub scratch_valid: bool,
    /// Sectors before this are kept in the scratch area, wherever they are read from.
    pub scratch_bytes: u64,
    /// Sectors before this are kept at their new place, wherever they are read from.
    pub copied_bytes: u64,
}

impl Reflow {
    /// No expansion is running, or it has moved everything.
    pub const COMPLETE: Self =
        Self { synced_bytes: u64::MAX, scratch_valid: false, scratch_bytes: 0, copied_bytes: u64::MAX };

    /// An expansion that has moved everything before this offset, into the scratch area or to the new place, and nothing behind it.
    #[must_use]
    pub const fn at(synced_bytes: u64, scratch_valid: bool) -> Self {
        let (scratch_bytes, copied_bytes) = if scratch_valid { (synced_bytes, 0) } else { (0, synced_bytes) };
        Self { synced_bytes, scratch_valid, scratch_bytes, copied_bytes }
    }

    /// Where the expansion stood when this uberblock was written.
    #[must_use]
    pub fn of(uberblock: &Uberblock) -> Self {
        Self::at(uberblock.reflow_offset_bytes(), uberblock.reflow_scratch() == ReflowScratch::Valid)
    }
}

/// A place of sectors while a vdev is expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReflowPlace {
    /// Over the children that there were before.
    Old,
    /// The part of the new layout that is kept in front of the data area.
    Scratch,
    /// Over all children.
    New,
}

/// A second place that a column is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shadow {
    /// Index of the column in its map.
    pub(crate) column: usize,
    /// Index of the child.
    pub(crate) child: u32,
    /// First byte on the child, label area included.
    pub(crate) address_bytes: u64,
}

/// Bytes of a vdev that an expansion to so many children keeps in the scratch area, which is as much as OpenZFS keeps there: as many sectors of each
/// child as the area has.
#[must_use]
pub const fn scratch_bytes(children: usize, ashift: u32) -> u64 {
    (BOOT_AREA_BYTES >> ashift << ashift) * children as u64
}

/// How far sectors may be copied while rows before `synced_bytes` have moved: one row before the first copy that would overwrite the old place of
/// a row that has not. `children` are those after the expansion.
///
/// With `n` old children, sector `b` of the line takes the old place of sector `b - b / (n + 1)`, and a row that has not moved wholly begins
/// behind sector `synced - n`.
#[must_use]
pub const fn reflow_limit_bytes(synced_bytes: u64, children: usize, ashift: u32) -> u64 {
    let (synced, old) = (synced_bytes >> ashift, children as u64 - 1);
    (synced.saturating_add(synced / old).saturating_sub(old)) << ashift
}

/// The parameters of a raidz vdev that decide where bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raidz {
    ashift: u32,
    parity: u64,
    physical_width: u64,
    original_width: u64,
    /// For each finished expansion, oldest first: blocks born in or after the txg have the width.
    widths: Vec<(Txg, u64)>,
    /// An expansion to `physical_width` children is running.
    expanding: bool,
}

impl Raidz {
    /// A raidz vdev of `children` children. `expand_txgs` are the txgs at which expansions finished, in any order;
    /// `expanding` says that another one, to `children` children, is running.
    ///
    /// # Errors
    /// Parameters that no raidz vdev can have.
    pub fn new(
        ashift: u32,
        parity: u64,
        children: usize,
        expand_txgs: &[Txg],
        expanding: bool,
    ) -> Result<Self, LayoutError> {
        check_ashift(ashift)?;
        if parity == 0 || parity > MAX_PARITY as u64 {
            return Err(LayoutError::BadParameters("raidz parity"));
        }
        if children > MAX_CHILDREN {
            return Err(LayoutError::BadParameters("too many raidz children"));
        }
        let physical_width = children as u64;
        let expansions = expand_txgs.len() as u64 + u64::from(expanding);
        let original_width = physical_width
            .checked_sub(expansions)
            .ok_or(LayoutError::BadParameters("more expansions than children"))?;
        if original_width < parity + 1 {
            return Err(LayoutError::BadParameters("fewer raidz children than parity needs"));
        }
        let mut txgs = expand_txgs.to_vec();
        txgs.sort_unstable();
        let widths: Vec<(Txg, u64)> = txgs.into_iter().zip(original_width + 1..).collect();
        let last = widths.last().map_or(original_width, |(_, width)| *width);
        assert_eq!(last + u64::from(expanding), physical_width, "each expansion has made it wider by one child");
        Ok(Self { ashift, parity, physical_width, original_width, widths, expanding })
    }

    /// Its children.
    pub(crate) const fn physical_width(&self) -> u64 {
        self.physical_width
    }

    /// The part of a child's data area that a range of the vdev takes; none while it is expanded, since sectors move. After an expansion all sectors,
    /// those of old blocks too, are dealt out over the children that there are now.
    pub(crate) fn part_of_child(&self, child: u64, range: std::ops::Range<u64>) -> Option<std::ops::Range<u64>> {
        if self.expanding {
            return None;
        }
        // Sectors of this child before a sector of the vdev.
        let before = |offset: u64| before_child(offset >> self.ashift, self.physical_width, child);
        let part = before(range.start) << self.ashift..before(range.end) << self.ashift;
        debug_assert!(part.start <= part.end, "a range has its order on each child");
        Some(part)
    }

    /// Whether an expansion is running.
    pub(crate) const fn is_expanding(&self) -> bool {
        self.expanding
    }

    /// Parity columns.
    #[must_use]
    pub const fn parity(&self) -> u64 {
        self.parity
    }

    /// The stripe width of blocks born in `birth`.
    #[must_use]
    pub(crate) fn logical_width(&self, birth: Txg) -> u64 {
        let later = self.widths.partition_point(|&(txg, _)| txg <= birth);
        let width = if later == 0 { self.original_width } else { self.widths[later - 1].1 };
        debug_assert!(width > self.parity && width <= self.physical_width, "parity is not all of a stripe");
        width
    }

    /// Bytes that an allocation for `psize_bytes` takes: data, parity and padding.
    #[must_use]
    pub fn psize_to_asize(&self, psize_bytes: u64, birth: Txg) -> u64 {
        let data = psize_bytes.div_ceil(1 << self.ashift).max(1);
        let data_columns = self.logical_width(birth) - self.parity;
        let all = data + self.parity * data.div_ceil(data_columns);
        let asize_bytes = all.next_multiple_of(self.parity + 1) << self.ashift;
        debug_assert!(asize_bytes > psize_bytes, "an allocation has the block and its parity");
        asize_bytes
    }

    /// The largest psize that fits an allocation of `asize_bytes`.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn asize_to_psize(&self, asize_bytes: u64, birth: Txg) -> u64 {
        let width = self.logical_width(birth);
        let mut sectors = asize_bytes >> self.ashift;
        // A last row that has room for parity only holds nothing: it is padding.
        if sectors % width <= self.parity {
            sectors -= sectors % width;
        }
        (sectors - self.parity * sectors.div_ceil(width)) << self.ashift
    }

    /// Where a block born in `birth` lies.
    ///
    /// # Errors
    /// A range that no block can have.
    pub fn map(
        &self,
        offset_bytes: u64,
        size_bytes: u64,
        birth: Txg,
        reflow: Reflow,
    ) -> Result<StripeMap, LayoutError> {
        let (start, data_sectors) = sectors(offset_bytes, size_bytes, self.ashift)?;
        let width = self.logical_width(birth);
        let swap = self.parity == 1 && offset_bytes & SWAP_BIT != 0;
        if width == self.physical_width {
            Ok(self.map_plain(start, data_sectors, swap))
        } else {
            let reflow = if self.expanding { reflow } else { Reflow::COMPLETE };
            Ok(self.map_rows(start, data_sectors, width, swap, reflow))
        }
    }

    /// Sets of columns, each of which one bad device would spoil: the columns on one child, and for each narrower shape
    /// that the vdev had since the block was born, those whose sectors lay on one child then. Expansion copies sectors
    /// without verifying them, so what a device spoilt before lies scattered now.
    #[must_use]
    pub(crate) fn suspects(&self, map: &StripeMap, offset_bytes: u64, birth: Txg) -> Vec<Vec<usize>> {
        let mut sets = map.columns_by_child();
        let width = self.logical_width(birth);
        if width == self.physical_width {
            return sets;
        }
        let line = |index: usize| self.line(map, offset_bytes, width, index);
        for earlier in (width..self.physical_width).rev() {
            sets.extend(map.group_columns(|index| line(index) % earlier));
        }
        sets
    }

    /// The sector of the line that a column of a map in rows has.
    fn line(&self, map: &StripeMap, offset_bytes: u64, width: u64, index: usize) -> u64 {
        let swap = self.parity == 1 && offset_bytes & SWAP_BIT != 0;
        let (row, column) = ((index / map.row_width()) as u64, (index % map.row_width()) as u64);
        (offset_bytes >> self.ashift) + row * width + if swap && column < 2 { 1 - column } else { column }
    }

    /// The further places that the columns of a block are written to while the vdev is expanded; none of a vdev that is not.
    #[must_use]
    pub(crate) fn shadows(&self, map: &StripeMap, offset_bytes: u64, birth: Txg, reflow: Reflow) -> Vec<Shadow> {
        let width = self.logical_width(birth);
        if !self.expanding {
            return Vec::new();
        }
        assert!(width < self.physical_width, "no block is as wide as a vdev that is still expanded");
        let mut shadows = Vec::new();
        for (column, at) in map.columns().iter().enumerate().filter(|(_, at)| at.size_bytes != 0) {
            let row_start = (offset_bytes >> self.ashift) + (column / map.row_width()) as u64 * width;
            let is_moved = self.is_moved(row_start, map.row_width() as u64, reflow);
            let sector = self.line(map, offset_bytes, width, column);
            let is_kept = |bytes: u64| sector < bytes >> self.ashift;
            let in_scratch = is_moved && reflow.scratch_valid;
            let wanted = [
                (ReflowPlace::Scratch, is_kept(reflow.scratch_bytes) && !in_scratch),
                (ReflowPlace::New, is_kept(reflow.copied_bytes) && (in_scratch || !is_moved)),
            ];
            for (place, _) in wanted.into_iter().filter(|(_, is_wanted)| *is_wanted) {
                let (child, address_bytes) = self.sector_at(sector, place);
                // The first row stays where it is.
                if (child, address_bytes) != (at.child, at.address_bytes) {
                    shadows.push(Shadow { column, child, address_bytes });
                }
            }
        }
        shadows
    }

    /// A row that straddles the reflow offset is still at its old place.
    const fn is_moved(&self, row_start: u64, row_width: u64, reflow: Reflow) -> bool {
        row_start + row_width <= reflow.synced_bytes >> self.ashift
    }

    /// The child that a sector of the line is on, and its address there, while the vdev is expanded.
    const fn sector_at(&self, sector: u64, place: ReflowPlace) -> (u32, u64) {
        let children = self.children_at(place);
        ((sector % children) as u32, ((sector / children) << self.ashift) + area_start(place))
    }

    /// The children that sectors are dealt over.
    pub(crate) const fn children_at(&self, place: ReflowPlace) -> u64 {
        match place {
            ReflowPlace::Old => self.physical_width - 1,
            ReflowPlace::Scratch | ReflowPlace::New => self.physical_width,
        }
    }

    /// The sectors of a range of the line that a child has: index of the first in its area, and how many.
    pub(crate) const fn sectors_of_child(&self, child: u64, line: (u64, u64), place: ReflowPlace) -> (u64, u64) {
        let children = self.children_at(place);
        let (first, end) = (before_child(line.0, children, child), before_child(line.1, children, child));
        (first, end - first)
    }

    /// Sector size as a power of two.
    pub(crate) const fn ashift(&self) -> u32 {
        self.ashift
    }

    /// The map of a block as wide as the vdev: one row of tall columns.
    fn map_plain(&self, start: u64, data_sectors: u64, swap: bool) -> StripeMap {
        let width = self.physical_width;
        let spread = Spread::new(data_sectors, width - self.parity, self.parity);
        let used = if spread.quotient == 0 { spread.tall_columns } else { width };
        let place = |column: u64| {
            let line = start + column;
            let (child, row) = (line % width, line / width);
            (child as u32, (row << self.ashift) + DATA_START_BYTES)
        };
        let mut columns = Vec::with_capacity(used as usize);
        let mut block_offset = 0;
        for index in 0..used {
            let (child, address_bytes) = place(index);
            let size_bytes = spread.height(index) << self.ashift;
            let is_data = index >= self.parity;
            columns.push(Column {
                child,
                address_bytes,
                size_bytes,
                block_offset_bytes: if is_data { block_offset } else { 0 },
                padding_bytes: 0,
            });
            if is_data {
                block_offset += size_bytes;
            }
        }
        // The padding is simply the next sectors of the line.
        let skip_count = spread.total.next_multiple_of(self.parity + 1) - spread.total;
        let skips = (spread.total..spread.total + skip_count)
            .map(|index| {
                let (child, address_bytes) = place(index);
                SkipSector { child, address_bytes }
            })
            .collect();
        if swap {
            swap_first_two(&mut columns);
        }
        let map = StripeMap {
            row_width: columns.len(),
            columns,
            parity_count: self.parity as usize,
            block_bytes: data_sectors << self.ashift,
            skips,
        };
        map.checked()
    }

    /// The map of a block narrower than the vdev: a row of single sectors for each of its stripe rows.
    fn map_rows(&self, start: u64, data_sectors: u64, width: u64, swap: bool, reflow: Reflow) -> StripeMap {
        let spread = Spread::new(data_sectors, width - self.parity, self.parity);
        let row_count = spread.total.div_ceil(width);
        let row_width = spread.total.min(width);
        let mut columns = Vec::with_capacity((row_count * row_width) as usize);
        for row in 0..row_count {
            let row_start = start + row * width;
            let place = match self.is_moved(row_start, row_width, reflow) {
                true if reflow.scratch_valid => ReflowPlace::Scratch,
                true => ReflowPlace::New,
                false => ReflowPlace::Old,
            };
            for index in 0..row_width {
                let line = row_start + index;
                let beyond = row + 1 == row_count && spread.tall_columns != 0 && index >= spread.tall_columns;
                // Data fills column by column: the tall columns first, then those that are a sector shorter.
                let block_sector = match index.checked_sub(self.parity) {
                    None => 0,
                    Some(_) if beyond => 0,
                    Some(data) if data < spread.remainder || spread.remainder == 0 => data * row_count + row,
                    Some(data) => spread.remainder * row_count + (data - spread.remainder) * (row_count - 1) + row,
                };
                let (child, address_bytes) = self.sector_at(line, place);
                columns.push(Column {
                    child,
                    address_bytes,
                    size_bytes: if beyond { 0 } else { 1 << self.ashift },
                    block_offset_bytes: block_sector << self.ashift,
                    padding_bytes: 0,
                });
            }
            if swap {
                let row_first = (row * row_width) as usize;
                swap_first_two(&mut columns[row_first..]);
            }
        }
        let map = StripeMap {
            columns,
            row_width: row_width as usize,
            parity_count: self.parity as usize,
            block_bytes: data_sectors << self.ashift,
            skips: Vec::new(),
        };
        map.checked()
    }
}

/// Where the sectors of a place begin on a child.
pub(crate) const fn area_start(place: ReflowPlace) -> u64 {
    match place {
        ReflowPlace::Scratch => DATA_START_BYTES - BOOT_AREA_BYTES,
        ReflowPlace::Old | ReflowPlace::New => DATA_START_BYTES,
    }
}

/// Sectors of a child before a sector of the line.
const fn before_child(sector: u64, children: u64, child: u64) -> u64 {
    (sector + children - 1 - child) / children
}

/// Lets the parity column and the first data column of a row change places on the children.
fn swap_first_two(row: &mut [Column]) {
    let (child, address_bytes) = (row[0].child, row[0].address_bytes);
    (row[0].child, row[0].address_bytes) = (row[1].child, row[1].address_bytes);
    (row[1].child, row[1].address_bytes) = (child, address_bytes);
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const K: u64 = 1 << 10;
    const TXG: Txg = Txg(100);

    /// The contents of a sector of the map, one sector at a time: `(child, address) -> role`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Role {
        Parity { row: u64, which: u64 },
        Data { sector: u64, row: u64 },
    }

    /// The naive model: deals the sectors of one allocation out one by one.
    ///
    /// Row and column of each dealt sector follow from its number; data is numbered column by column.
    fn deal(width: u64, children: u64, parity: u64, start: u64, data: u64, swap: bool) -> BTreeMap<(u64, u64), Role> {
        let rows = data.div_ceil(width - parity);
        let total = data + parity * rows;
        let mut cells = BTreeMap::new();
        let mut next_data = 0;
        for column in 0..width {
            for row in 0..rows {
                let number = row * width + column;
                if number >= total {
                    continue;
                }
                let role = if column < parity {
                    Role::Parity { row, which: column }
                } else {
                    next_data += 1;
                    Role::Data { sector: next_data - 1, row }
                };
                let dealt = if swap && column < 2 { row * width + (1 - column) } else { number };
                let line = start + dealt;
                cells.insert((line % children, line / children), role);
            }
        }
        assert_eq!(next_data, data);
        cells
    }

    fn cells(map: &StripeMap, ashift: u32) -> BTreeMap<(u64, u64), Role> {
        let mut cells = BTreeMap::new();
        let tall_rows = map.rows().len() as u64;
        for (row, columns) in map.rows().enumerate() {
            let seen: BTreeSet<u32> = columns.iter().map(|c| c.child).collect();
            assert_eq!(seen.len(), columns.len(), "a child appears twice in a row");
            for (index, column) in columns.iter().enumerate() {
                assert!(column.size_bytes <= columns[0].size_bytes);
                for sector in 0..column.size_bytes >> ashift {
                    let row = if tall_rows == 1 { sector } else { row as u64 };
                    let role = if index < map.parity_count() {
                        Role::Parity { row, which: index as u64 }
                    } else {
                        Role::Data { sector: (column.block_offset_bytes >> ashift) + sector, row }
                    };
                    let address = ((column.address_bytes - DATA_START_BYTES) >> ashift) + sector;
                    assert_eq!(cells.insert((u64::from(column.child), address), role), None, "overlap");
                }
            }
        }
        cells
    }

    proptest! {
        /// Every sector of every plain map is where dealing the sectors out one by one puts it, and the padding follows.
        #[test]
        fn plain_maps_agree_with_dealing_sectors_out(
            parity in 1_u64..=3, extra in 1_u64..9, start in 0_u64..10_000, data in 1_u64..200,
            ashift in prop::sample::select(vec![9_u32, 12, 13]),
        ) {
            let width = parity + extra;
            let raidz = Raidz::new(ashift, parity, width as usize, &[], false).unwrap();
            let offset = start << ashift;
            let map = raidz.map(offset, data << ashift, TXG, Reflow::COMPLETE).unwrap();
            let swap = parity == 1 && offset & (1 << 20) != 0;
            let found = cells(&map, ashift);
            prop_assert_eq!(&found, &deal(width, width, parity, start, data, swap));
            prop_assert_eq!(map.block_bytes(), data << ashift);
            let asize = raidz.psize_to_asize(data << ashift, TXG);
            prop_assert_eq!((found.len() + map.skips().len()) as u64, asize >> ashift);
            prop_assert_eq!(raidz.psize_to_asize(raidz.asize_to_psize(asize, TXG), TXG), asize);
            prop_assert!(raidz.asize_to_psize(asize, TXG) >= data << ashift);
            // Data, parity and padding are together the allocation's sectors of the line, each once.
            let mut line: BTreeSet<u64> = found.keys().map(|&(child, sector)| sector * width + child).collect();
            for skip in map.skips() {
                let sector = (skip.address_bytes - DATA_START_BYTES) >> ashift;
                prop_assert!(line.insert(sector * width + u64::from(skip.child)));
            }
            prop_assert!(line.into_iter().eq(start..start + (asize >> ashift)));
        }

        /// After an expansion, a block of the old width lies on the line dealt over the new number of children; during one,
        /// rows before the reflow offset do, the others do not.
        #[test]
        fn expanded_maps_agree_with_dealing_sectors_out(
            parity in 1_u64..=3, extra in 1_u64..7, added in 1_u64..4, start in 0_u64..10_000, data in 1_u64..150,
            synced in 0_u64..12_000,
        ) {
            let ashift = 12;
            let width = parity + extra;
            let children = width + added;
            let offset = start << ashift;
            let swap = parity == 1 && offset & (1 << 20) != 0;
            let txgs: Vec<Txg> = (0..added).map(|i| Txg(1000 + i)).collect();
            let done = Raidz::new(ashift, parity, children as usize, &txgs, false).unwrap();
            let map = done.map(offset, data << ashift, TXG, Reflow::COMPLETE).unwrap();
            prop_assert_eq!(cells(&map, ashift), deal(width, children, parity, start, data, swap));

            // The same block while the last of these expansions is running.
            let running = Raidz::new(ashift, parity, children as usize, &txgs[1..], true).unwrap();
            let reflow = Reflow::at(synced << ashift, false);
            let map = running.map(offset, data << ashift, TXG, reflow).unwrap();
            let new_place = deal(width, children, parity, start, data, swap);
            let old_place = deal(width, children - 1, parity, start, data, swap);
            for (row, columns) in map.rows().enumerate() {
                let end = start + row as u64 * width + columns.len() as u64;
                let expected = if end <= synced { &new_place } else { &old_place };
                for column in columns.iter().filter(|c| c.size_bytes != 0) {
                    let key = (u64::from(column.child), (column.address_bytes - DATA_START_BYTES) >> ashift);
                    let (Role::Parity { row: r, .. } | Role::Data { row: r, .. }) = expected[&key];
                    prop_assert_eq!(r, row as u64);
                }
            }
        }
    }

    proptest! {
        /// The parts of a range on all children are the places of the range's sectors, each once, also after expansions.
        #[test]
        fn parts_of_children_are_where_sectors_are_dealt(
            parity in 1_u64..=3, extra in 1_u64..7, added in 0_u64..4, start in 0_u64..10_000, sectors in 1_u64..300,
        ) {
            let children = parity + extra + added;
            let txgs: Vec<Txg> = (0..added).map(|i| Txg(1000 + i)).collect();
            let raidz = Raidz::new(12, parity, children as usize, &txgs, false).unwrap();
            let mut found = BTreeSet::new();
            for child in 0..children {
                let part = raidz.part_of_child(child, start << 12..(start + sectors) << 12).unwrap();
                prop_assert!(part.start.is_multiple_of(1 << 12) && part.end.is_multiple_of(1 << 12));
                found.extend((part.start >> 12..part.end >> 12).map(|row| row * children + child));
            }
            prop_assert!(found.into_iter().eq(start..start + sectors));
            let moving = Raidz::new(12, parity, children as usize + 1, &txgs, true).unwrap();
            prop_assert!(moving.part_of_child(0, 0..1 << 20).is_none());
        }
    }

    /// By hand: 5 children, raidz1, 4 KiB sectors, 8 data sectors from sector 2.
    #[test]
    fn the_picture_of_this_module_is_true() {
        let raidz = Raidz::new(12, 1, 5, &[], false).unwrap();
        let map = raidz.map(2 << 12, 32 * K, TXG, Reflow::COMPLETE).unwrap();
        let places: Vec<_> = map
            .columns()
            .iter()
            .map(|c| {
                (c.child, (c.address_bytes - DATA_START_BYTES) >> 12, c.size_bytes >> 12, c.block_offset_bytes >> 12)
            })
            .collect();
        assert_eq!(places, [(2, 0, 2, 0), (3, 0, 2, 0), (4, 0, 2, 2), (0, 1, 2, 4), (1, 1, 2, 6)]);
        assert_eq!(map.skips(), []);
    }

    /// By hand: raidz1 with 3 children, 1.5 KiB in 512-byte sectors: 3 data, 2 parity, 1 skipped.
    #[test]
    fn small_blocks_are_padded_to_parity_plus_one() {
        let raidz = Raidz::new(9, 1, 3, &[], false).unwrap();
        let map = raidz.map(0, 1536, TXG, Reflow::COMPLETE).unwrap();
        let sizes: Vec<_> = map.columns().iter().map(|c| c.size_bytes).collect();
        assert_eq!(sizes, [1024, 1024, 512]);
        assert_eq!(map.skips(), [SkipSector { child: 2, address_bytes: DATA_START_BYTES + 512 }]);
        assert_eq!(raidz.psize_to_asize(1536, TXG), 3072);
        assert_eq!(raidz.psize_to_asize(1, TXG), 1024);
    }

    #[test]
    fn parity_of_raidz1_changes_places_in_odd_mebibytes() {
        let raidz = Raidz::new(12, 1, 4, &[], false).unwrap();
        let even = raidz.map(0, 8 * K, TXG, Reflow::COMPLETE).unwrap();
        let odd = raidz.map(1 << 20, 8 * K, TXG, Reflow::COMPLETE).unwrap();
        assert_eq!(even.columns().iter().map(|c| c.child).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(odd.columns().iter().map(|c| c.child).collect::<Vec<_>>(), [1, 0, 2]);
        let raidz2 = Raidz::new(12, 2, 4, &[], false).unwrap();
        let odd = raidz2.map(1 << 20, 4 * K, TXG, Reflow::COMPLETE).unwrap();
        assert_eq!(odd.columns().iter().map(|c| c.child).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn blocks_keep_the_width_of_their_birth() {
        let raidz = Raidz::new(12, 2, 6, &[Txg(200), Txg(100)], false).unwrap();
        assert_eq!(raidz.original_width, 4);
        let widths: Vec<_> = [99, 100, 199, 200, 999].map(|txg| raidz.logical_width(Txg(txg))).to_vec();
        assert_eq!(widths, [4, 5, 5, 6, 6]);
        let expanding = Raidz::new(12, 2, 6, &[Txg(100)], true).unwrap();
        assert_eq!(expanding.original_width, 4);
        assert_eq!(expanding.logical_width(Txg(u64::MAX)), 5);
    }

    #[test]
    fn the_scratch_area_is_read_while_it_is_valid() {
        let raidz = Raidz::new(12, 1, 4, &[], true).unwrap();
        let reflow = Reflow::at(1 << 20, true);
        let map = raidz.map(0, 8 * K, TXG, reflow).unwrap();
        assert!(map.columns().iter().all(|c| c.address_bytes < DATA_START_BYTES));
        assert_eq!(map.columns()[0].address_bytes, 512 * K);
        let after = raidz.map(2 << 20, 8 * K, TXG, reflow).unwrap();
        assert!(after.columns().iter().all(|c| c.address_bytes >= DATA_START_BYTES));
    }

    #[test]
    fn impossible_parameters_and_ranges_are_refused() {
        assert!(Raidz::new(12, 0, 3, &[], false).is_err());
        assert!(Raidz::new(12, 4, 9, &[], false).is_err());
        assert!(Raidz::new(8, 1, 3, &[], false).is_err());
        assert!(Raidz::new(12, 2, 2, &[], false).is_err());
        assert!(Raidz::new(12, 1, 256, &[], false).is_err());
        assert!(Raidz::new(12, 1, 3, &[Txg(1), Txg(2), Txg(3), Txg(4)], false).is_err());
        let raidz = Raidz::new(12, 1, 3, &[], false).unwrap();
        assert!(raidz.map(512, 4096, TXG, Reflow::COMPLETE).is_err());
        assert!(raidz.map(0, 0, TXG, Reflow::COMPLETE).is_err());
        assert!(raidz.map(0, u64::MAX, TXG, Reflow::COMPLETE).is_err());
        assert!(raidz.map(1 << 62, 4096, TXG, Reflow::COMPLETE).is_err());
    }
}
