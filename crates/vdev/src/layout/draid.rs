//! draid: fixed-width redundancy groups spread over all children by permutation maps, with spare space spread likewise.
//!
//! ```text
//!   row    16 MiB of every child at the same offset
//!   group  data + parity columns, each 16 MiB tall; fills consecutive *positions* of a row and wraps to the next row
//!   slice  the rows that hold a whole number of groups (`group_count`); every row leaves the last `spares` positions free
//!
//!            position   0    1    2    3    4    5      6 children, 1 spare, groups of 3:
//!   slice 0    row 0  | g0 | g0 | g0 | g1 | g1 | s |    5 groups in 3 rows
//!              row 1  | g1 | g2 | g2 | g2 | g3 | s |
//!              row 2  | g3 | g3 | g4 | g4 | g4 | s |
//!   slice 1    row 3  | g5 ...                          each slice has its own permutation: position -> child
//! ```
//!
//! The permutation of slice `p` is base map `p / children` rotated by `p % children`: `child = (base[position] + rotation)
//! mod children`, base maps repeating after `map_count`. Base maps come from a fixed generator and a seed that the format
//! fixes for each number of children. A distributed spare `s` is, at any offset, the child at position
//! `children - 1 - s` of that offset's slice.
//!
//! Every allocation is a whole number of group rows: columns shorter than the parity are padded with zeros **that are
//! written**, so that a rebuild can go by offset without knowing about blocks. A block that would cross the end of a group
//! continues at the start of the next, as a second row of the stripe map.

use std::ops::Range;
use std::sync::Arc;

use super::draid_table::SEEDS;
use super::{Column, LayoutError, MAX_CHILDREN, MAX_PARITY, Spread, StripeMap, check_ashift, sectors};
use cenote_format::label::START_BYTES as DATA_START_BYTES;

/// Height of a row: the largest block a pool writes, so that one data column can hold it.
pub(crate) const ROW_BYTES: u64 = 16 << 20;
/// Kept free at the end of each child for a future expansion.
pub const RESERVE_BYTES: u64 = 2 * ROW_BYTES;
/// The most distributed spares a draid may have.
const MAX_SPARES: u64 = 100;
/// The second word of the generator's seed; the first is in the table.
const GENERATOR_SEED: u64 = 0x000d_7a1d_5eed;

/// The permutation maps for one number of children.
#[derive(Debug, PartialEq, Eq)]
struct Permutations {
    children: usize,
    /// `map_count` rows of `children` entries.
    entries: Vec<u8>,
}

impl Permutations {
    /// How many base maps there are for this number of children.
    const fn map_count(children: usize) -> usize {
        if children < 32 { 256 } else { 512 }
    }

    /// Makes the maps: each is a Fisher-Yates shuffle of the one before, the first of the identity.
    fn generate(children: usize) -> Result<Self, LayoutError> {
        let (seed, checksum) = children
            .checked_sub(2)
            .and_then(|index| SEEDS.get(index))
            .ok_or(LayoutError::BadParameters("number of draid children"))?;
        let count = Self::map_count(children);
        let mut generator = Xoroshiro { words: [GENERATOR_SEED, *seed] };
        let mut row: Vec<u8> = (0..children).map(|child| child as u8).collect();
        let mut entries = Vec::with_capacity(children * count);
        for _ in 0..count {
            for last in (1..children).rev() {
                let other = generator.next() % (last as u64 + 1);
                row.swap(last, other as usize);
            }
            entries.extend_from_slice(&row);
        }
        if first_fletcher4_word(&entries) != *checksum {
            return Err(LayoutError::BadParameters("draid permutation map fails its checksum"));
        }
        Ok(Self { children, entries })
    }

    /// The child at `position` in the permutation of slice `slice`.
    fn child(&self, slice: u64, position: u64) -> u32 {
        let children = self.children as u64;
        debug_assert!(position < children, "a row has a position for each child");
        let count = self.entries.len() as u64 / children;
        let (map, rotation) = (slice / children % count, slice % children);
        let entry = self.entries[(map * children + position % children) as usize];
        ((u64::from(entry) + rotation) % children) as u32
    }
}

/// The first word of fletcher4: the sum of all 32-bit little-endian words (the length is a multiple of 4 because the
/// number of maps is).
fn first_fletcher4_word(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum()
}

/// xoroshiro128++ 1.0 (Blackman and Vigna, public domain): the generator that the format prescribes.
struct Xoroshiro {
    words: [u64; 2],
}

impl Xoroshiro {
    const fn next(&mut self) -> u64 {
        let [low, high] = self.words;
        let result = low.wrapping_add(high).rotate_left(17).wrapping_add(low);
        let mixed = high ^ low;
        self.words = [low.rotate_left(49) ^ mixed ^ (mixed << 21), mixed.rotate_left(28)];
        result
    }
}

/// The parameters of a draid vdev, and its permutation maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draid {
    ashift: u32,
    parity: u64,
    data: u64,
    children: u64,
    spares: u64,
    /// Groups in a slice.
    group_count: u64,
    permutations: Arc<Permutations>,
}

/// Where a group starts: the first column's place before permutation.
struct GroupPlace {
    slice: u64,
    position: u64,
    /// Offset within each child's data area.
    offset_bytes: u64,
}

impl Draid {
    /// A draid vdev.
    ///
    /// # Errors
    /// Parameters that no draid vdev can have.
    pub fn new(
        ashift: u32,
        parity: u64,
        data: u64,
        spares: u64,
        group_count: u64,
        children: usize,
    ) -> Result<Self, LayoutError> {
        check_ashift(ashift)?;
        if parity == 0 || parity > MAX_PARITY as u64 {
            return Err(LayoutError::BadParameters("draid parity"));
        }
        if !(2..=MAX_CHILDREN).contains(&children) {
            return Err(LayoutError::BadParameters("number of draid children"));
        }
        if data == 0 || data > children as u64 || spares > MAX_SPARES {
            return Err(LayoutError::BadParameters("draid data or spare count"));
        }
        let children = children as u64;
        if data + parity + spares > children {
            return Err(LayoutError::BadParameters("draid group and spares need more children"));
        }
        if group_count == 0 || group_count > MAX_CHILDREN as u64 {
            return Err(LayoutError::BadParameters("draid group count"));
        }
        if !((data + parity) * group_count).is_multiple_of(children - spares) {
            return Err(LayoutError::BadParameters("draid groups do not fill whole rows"));
        }
        let permutations = Arc::new(Permutations::generate(children as usize)?);
        let this = Self { ashift, parity, data, children, spares, group_count, permutations };
        assert!(this.slice_bytes().is_multiple_of(ROW_BYTES), "a slice is a whole number of rows");
        assert!(this.group_width() <= this.positions(), "a group has a column on each child at most");
        Ok(this)
    }

    /// Parity columns of a group.
    #[must_use]
    pub const fn parity(&self) -> u64 {
        self.parity
    }

    /// Columns of a group.
    #[must_use]
    pub(crate) const fn group_width(&self) -> u64 {
        self.data + self.parity
    }

    /// Positions of a row that groups use.
    const fn positions(&self) -> u64 {
        self.children - self.spares
    }

    /// Bytes of the vdev's address space in one group.
    const fn group_bytes(&self) -> u64 {
        self.group_width() * ROW_BYTES
    }

    /// Bytes of each child in one slice.
    const fn slice_bytes(&self) -> u64 {
        self.group_bytes() * self.group_count / self.positions()
    }

    /// The child that stands in for distributed spare `spare` at this offset of the children's data areas.
    #[must_use]
    pub fn spare_child(&self, spare: u64, offset_bytes: u64) -> Option<u32> {
        if spare >= self.spares {
            return None;
        }
        Some(self.permutations.child(offset_bytes / self.slice_bytes(), self.children - 1 - spare))
    }

    /// Bytes that an allocation for `psize_bytes` takes: whole rows of a group.
    #[must_use]
    pub fn psize_to_asize(&self, psize_bytes: u64) -> u64 {
        let rows = psize_bytes.div_ceil(self.data << self.ashift).max(1);
        let asize_bytes = (rows * self.group_width()) << self.ashift;
        debug_assert!(asize_bytes > psize_bytes, "an allocation has the block and its parity");
        asize_bytes
    }

    /// The largest psize that fits an allocation of `asize_bytes`.
    #[must_use]
    pub(crate) const fn asize_to_psize(&self, asize_bytes: u64) -> u64 {
        asize_bytes / (self.group_width() << self.ashift) * (self.data << self.ashift)
    }

    /// The vdev's capacity when its smallest child's data area is `child_bytes` long.
    #[must_use]
    pub const fn asize_bytes(&self, child_bytes: u64) -> u64 {
        let rows = child_bytes.saturating_sub(RESERVE_BYTES) / ROW_BYTES;
        rows * ROW_BYTES * self.positions() / self.group_bytes() * self.group_bytes()
    }

    /// Bytes of the vdev's address space in one row of a group: each allocation is a whole number of them.
    #[must_use]
    pub(crate) const fn group_row_bytes(&self) -> u64 {
        self.group_width() << self.ashift
    }

    /// The parts of a child's data area that the whole rows of a range of the vdev take, in the order of the vdev, which is the child's too: one at
    /// most for each group.
    pub(crate) fn parts_of_child(&self, child: u64, range: Range<u64>) -> Vec<Range<u64>> {
        let row = self.group_row_bytes();
        let (mut at, end) = (range.start.next_multiple_of(row), range.end / row * row);
        let mut parts: Vec<Range<u64>> = Vec::new();
        while at < end {
            let group_end = (at / self.group_bytes() + 1) * self.group_bytes();
            let stop = end.min(group_end);
            let (place, rows) = (self.group_place(at), (stop - at) / row);
            let found = (0..self.group_width()).find_map(|index| {
                let (position, row_step) = self.step(&place, index);
                let is_it = u64::from(self.permutations.child(place.slice, position)) == child;
                is_it.then_some(place.offset_bytes + row_step)
            });
            if let Some(start) = found {
                debug_assert!(
                    parts.last().is_none_or(|last| last.end <= start),
                    "a child's rows follow the vdev's groups"
                );
                parts.push(start..start + (rows << self.ashift));
            }
            at = stop;
        }
        parts
    }

    /// The first offset of the vdev of which nothing lies before an offset of its children's data areas: the beginning of a slice.
    pub(crate) fn offset_after(&self, child_offset: u64) -> u64 {
        (child_offset / self.slice_bytes()).saturating_mul(self.group_count * self.group_bytes())
    }

    /// The position of a column of a group, and how far below the group's first row it lies.
    const fn step(&self, place: &GroupPlace, index: u64) -> (u64, u64) {
        let position = place.position + index;
        // Past the last position the group goes on in the next row.
        if position >= self.positions() { (position - self.positions(), ROW_BYTES) } else { (position, 0) }
    }

    fn group_place(&self, offset_bytes: u64) -> GroupPlace {
        let group = offset_bytes / self.group_bytes();
        let (slice, group_in_slice) = (group / self.group_count, group % self.group_count);
        let first_position = group_in_slice * self.group_width();
        let row_in_slice = first_position / self.positions();
        let rows_per_slice = self.group_width() * self.group_count / self.positions();
        let row = slice * rows_per_slice + row_in_slice;
        let depth_sectors = ((offset_bytes % self.group_bytes()) >> self.ashift) / self.group_width();
        GroupPlace {
            slice,
            position: first_position % self.positions(),
            offset_bytes: row * ROW_BYTES + (depth_sectors << self.ashift),
        }
    }

    /// Where a block lies.
    ///
    /// # Errors
    /// A range that no block can have.
    pub fn map(&self, offset_bytes: u64, size_bytes: u64) -> Result<StripeMap, LayoutError> {
        let (start, all_sectors) = sectors(offset_bytes, size_bytes, self.ashift)?;
        if !start.is_multiple_of(self.group_width()) {
            return Err(LayoutError::BadRange { offset_bytes, size_bytes });
        }
        let mut columns = Vec::with_capacity(self.group_width() as usize);
        let mut offset = offset_bytes;
        let mut left = all_sectors << self.ashift;
        let mut block_offset = 0;
        while left != 0 {
            let room = self.asize_to_psize(self.group_bytes() - offset % self.group_bytes());
            let part = left.min(room);
            debug_assert!(part > 0, "the start of a group's row has room for a part of a block");
            self.map_group(offset, part, block_offset, &mut columns);
            offset += self.psize_to_asize(part);
            block_offset += part;
            left -= part;
        }
        let map = StripeMap {
            columns,
            row_width: self.group_width() as usize,
            parity_count: self.parity as usize,
            block_bytes: all_sectors << self.ashift,
            skips: Vec::new(),
        };
        Ok(map.checked())
    }

    /// The columns of a block, or the part of one that lies in one group.
    fn map_group(&self, offset_bytes: u64, size_bytes: u64, block_offset_bytes: u64, columns: &mut Vec<Column>) {
        let place = self.group_place(offset_bytes);
        let spread = Spread::new(size_bytes >> self.ashift, self.data, self.parity);
        let parity_bytes = spread.height(0) << self.ashift;
        let mut block_offset = block_offset_bytes;
        for index in 0..self.group_width() {
            let (position, row_step) = self.step(&place, index);
            debug_assert!(position < self.positions(), "no group uses a spare's position");
            let size_bytes = spread.height(index) << self.ashift;
            let is_data = index >= self.parity;
            columns.push(Column {
                child: self.permutations.child(place.slice, position),
                address_bytes: place.offset_bytes + row_step + DATA_START_BYTES,
                size_bytes,
                block_offset_bytes: if is_data { block_offset } else { 0 },
                padding_bytes: parity_bytes - size_bytes,
            });
            if is_data {
                block_offset += size_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Every map of the format, made from its seed, has the checksum that the format records, and is a permutation.
    #[test]
    fn all_permutation_maps_have_their_recorded_checksums() {
        for children in 2..=MAX_CHILDREN {
            let maps = Permutations::generate(children).unwrap();
            for map in maps.entries.chunks_exact(children) {
                assert_eq!(map.iter().collect::<BTreeSet<_>>().len(), children);
            }
        }
        assert!(Permutations::generate(1).is_err());
        assert!(Permutations::generate(256).is_err());
    }

    fn gcd(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { gcd(b, a % b) }
    }

    /// Groups of a slice as `zpool create` chooses them: the least number that fills whole rows.
    fn group_count(width: u64, positions: u64) -> u64 {
        positions / gcd(width, positions)
    }

    proptest! {
        /// All stripes of one slice, laid side by side, cover every row of every non-spare position exactly once, and the
        /// positions left over are the distributed spares'.
        #[test]
        fn a_slice_is_covered_exactly_once(
            parity in 1_u64..=3, data in 1_u64..8, spares in 0_u64..4, more in 0_u64..6, slice in 0_u64..1000,
        ) {
            let width = data + parity;
            let children = width + spares + more;
            let groups = group_count(width, children - spares);
            let draid = Draid::new(12, parity, data, spares, groups, children as usize).unwrap();
            let rows_per_slice = groups * width / (children - spares);
            let mut seen = BTreeSet::new();
            for group in 0..groups {
                let offset = (slice * groups + group) * draid.group_bytes();
                let map = draid.map(offset, data << 12).unwrap();
                prop_assert_eq!(map.rows().len(), 1);
                for column in map.columns() {
                    let row = (column.address_bytes - DATA_START_BYTES) / ROW_BYTES;
                    prop_assert!(row >= slice * rows_per_slice && row < (slice + 1) * rows_per_slice);
                    prop_assert!(seen.insert((row, column.child)));
                }
            }
            for spare in 0..spares {
                for row in slice * rows_per_slice..(slice + 1) * rows_per_slice {
                    let child = draid.spare_child(spare, row * ROW_BYTES).unwrap();
                    prop_assert!(seen.insert((row, child)));
                }
            }
            prop_assert_eq!(seen.len() as u64, rows_per_slice * children);
            prop_assert_eq!(draid.spare_child(spares, 0), None);
        }

        /// The parts of all children are the places where blocks of the range lie, each once, and go on as the range does.
        #[test]
        fn parts_of_children_are_where_blocks_lie(
            parity in 1_u64..=3, data in 1_u64..6, spares in 0_u64..3, more in 0_u64..4,
            group in 0_u64..60, start_rows in 3800_u64..4300, rows in 1_u64..200, odd in 0_u64..4096,
        ) {
            let width = data + parity;
            let children = width + spares + more;
            let draid =
                Draid::new(12, parity, data, spares, group_count(width, children - spares), children as usize).unwrap();
            let row = draid.group_row_bytes();
            let start = group * draid.group_bytes() + start_rows * row;
            let range = start..start + rows * row;
            let mut wanted = BTreeSet::new();
            for offset in range.clone().step_by(row as usize) {
                for column in draid.map(offset, data << 12).unwrap().columns() {
                    prop_assert!(wanted.insert((u64::from(column.child), column.address_bytes - DATA_START_BYTES)));
                }
            }
            let mut found = BTreeSet::new();
            for child in 0..children {
                // A part of a row is left out.
                let parts = draid.parts_of_child(child, range.start.saturating_sub(odd)..range.end + odd.min(row - 1));
                prop_assert!(parts.is_sorted_by_key(|part| part.start));
                for part in parts {
                    let before = draid.parts_of_child(child, 0..draid.offset_after(part.start));
                    prop_assert!(before.iter().all(|before| before.end <= part.start));
                    found.extend(part.step_by(1 << 12).map(|at| (child, at)));
                }
            }
            prop_assert_eq!(found, wanted);
        }

        /// Consecutive allocations never overlap, cover their block exactly, and pad every column to the parity's height.
        #[test]
        fn blocks_do_not_overlap_and_cover_their_bytes(
            parity in 1_u64..=3, data in 1_u64..8, spares in 0_u64..3,
            sizes in prop::collection::vec(1_u64..300, 1..12), start_rows in 3900_u64..4200,
        ) {
            let width = data + parity;
            let children = width + spares + 1;
            let groups = group_count(width, children - spares);
            let draid = Draid::new(12, parity, data, spares, groups, children as usize).unwrap();
            let mut offset = (start_rows * width) << 12;
            let mut used = BTreeSet::new();
            for size in sizes {
                let map = draid.map(offset, size << 12).unwrap();
                let mut covered = 0;
                for row in map.rows() {
                    let children: BTreeSet<_> = row.iter().map(|c| c.child).collect();
                    prop_assert_eq!(children.len() as u64, width);
                    for (index, column) in row.iter().enumerate() {
                        prop_assert_eq!(column.size_bytes + column.padding_bytes, row[0].size_bytes);
                        if index as u64 >= parity {
                            prop_assert_eq!(column.block_offset_bytes, covered);
                            covered += column.size_bytes;
                        }
                        for sector in 0..row[0].size_bytes >> 12 {
                            prop_assert!(used.insert((column.child, (column.address_bytes >> 12) + sector)));
                        }
                    }
                }
                prop_assert_eq!(covered, size << 12);
                prop_assert!(map.rows().len() <= 2);
                let rows_asize: u64 = map.rows().map(|row| row[0].size_bytes * width).sum();
                prop_assert_eq!(rows_asize, draid.psize_to_asize(size << 12));
                offset += draid.psize_to_asize(size << 12);
            }
        }
    }

    /// By hand: the first slice of 5 children with 1 spare and groups of 2+1: 4 groups in 3 rows.
    #[test]
    fn groups_wrap_to_the_next_row() {
        let draid = Draid::new(12, 1, 2, 1, 4, 5).unwrap();
        let rows = |group: u64| {
            let map = draid.map(group * 3 * ROW_BYTES, 8192).unwrap();
            map.columns().iter().map(|c| (c.address_bytes - DATA_START_BYTES) / ROW_BYTES).collect::<Vec<_>>()
        };
        assert_eq!(rows(0), [0, 0, 0]);
        assert_eq!(rows(1), [0, 1, 1]);
        assert_eq!(rows(2), [1, 1, 2]);
        assert_eq!(rows(3), [2, 2, 2]);
        assert_eq!(rows(4), [3, 3, 3]);
        // 3 rows of 4 positions hold 4 groups.
        assert_eq!(draid.slice_bytes(), 3 * ROW_BYTES);
        assert_eq!(draid.asize_bytes(5 * ROW_BYTES), 4 * 3 * ROW_BYTES);
    }

    #[test]
    fn impossible_parameters_are_refused() {
        assert!(Draid::new(12, 0, 2, 0, 1, 3).is_err());
        assert!(Draid::new(12, 1, 0, 0, 1, 3).is_err());
        assert!(Draid::new(12, 1, 2, 1, 1, 3).is_err());
        assert!(Draid::new(12, 1, 2, 0, 0, 3).is_err());
        assert!(Draid::new(12, 1, 2, 0, 1, 4).is_err());
        assert!(Draid::new(12, 1, u64::MAX, 0, 1, 4).is_err());
        let draid = Draid::new(12, 1, 2, 0, 1, 3).unwrap();
        assert!(draid.map(4096, 4096).is_err(), "not at a group row");
    }
}
