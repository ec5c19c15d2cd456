//! Where the bytes of a block lie on the children of a raidz or draid vdev: pure arithmetic, no I/O.
//!
//! A *stripe map* is a rectangle of columns. Each row is one parity group: the first [`StripeMap::parity_count`] columns of
//! a row are parity (P, Q, R), the others hold data. Every row of one map has the same number of columns, so the columns
//! stand in one flat vector:
//!
//! ```text
//!   row 0:  | P | Q | d0 | d1 | d2 |      each column: child, address on that child, size,
//!   row 1:  | P | Q | d3 | d4 | d5 |      and for data: its offset within the block
//! ```
//!
//! - raidz: one row; columns are as tall as the block needs ([`raidz::Raidz::map`]).
//! - raidz after an expansion, for blocks older than it: a row per stripe row, each column one sector.
//! - draid: one row, or two when the block crosses the end of a redundancy group ([`draid::Draid::map`]).
//!
//! Invariants, checked by the property tests: the data columns cover every byte of the (sector-rounded) block exactly
//! once; no two columns of a map overlap on a child; within a row no child appears twice; no data column is taller than
//! the parity columns of its row.
//!
//! Addresses count from the start of the child device, labels included, so that the scratch area of a raidz expansion, which lies in
//! front of the data area, has an address too.

pub mod draid;
mod draid_table;
pub mod raidz;

use std::collections::BTreeMap;
use std::fmt;

use cenote_format::label::BOOT_AREA_OFFSET;

/// The largest number of parity columns.
pub(crate) const MAX_PARITY: usize = 3;

/// The largest physical block that a block pointer can name: 16 bits of 512-byte sectors.
pub const MAX_BLOCK_BYTES: u64 = 32 << 20;

/// The largest number of children of one vdev that this crate accepts: raidz and draid stop at 255.
pub(crate) const MAX_CHILDREN: usize = 255;

/// One column of a stripe map: a contiguous range of one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Index of the child.
    pub child: u32,
    /// First byte on the child, from the start of the device (label area included).
    pub address_bytes: u64,
    /// Length; 0 for a column that the block does not reach.
    pub size_bytes: u64,
    /// For a data column: where its bytes stand in the block. 0 for parity.
    pub block_offset_bytes: u64,
    /// Zero-filled bytes that lie right after the column on the child and count as part of the parity group (draid
    /// only: raidz leaves its skip sectors unwritten).
    pub padding_bytes: u64,
}

/// A sector that belongs to a raidz allocation but is never written: padding that keeps freed space usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SkipSector {
    /// Index of the child.
    pub child: u32,
    /// First byte on the child, label area included.
    pub address_bytes: u64,
}

/// The columns of one block. See the module comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeMap {
    /// All rows' columns, row after row.
    columns: Vec<Column>,
    /// Columns in a row, parity included.
    row_width: usize,
    /// Parity columns in front of each row.
    parity_count: usize,
    /// Bytes of the block covered: its size rounded up to whole sectors.
    block_bytes: u64,
    /// Padding sectors of a raidz allocation.
    skips: Vec<SkipSector>,
}

impl StripeMap {
    /// The map, once debug builds have looked whether it is sound.
    fn checked(self) -> Self {
        debug_assert!(self.parity_count > 0 && self.parity_count < self.row_width, "a row has parity and data");
        debug_assert!(self.columns.len().is_multiple_of(self.row_width), "all rows are equally wide");
        let data = || self.columns.iter().enumerate().filter(|(index, _)| !self.is_parity(*index));
        debug_assert_eq!(
            data().map(|(_, column)| column.size_bytes).sum::<u64>(),
            self.block_bytes,
            "the data columns cover every byte of the block once"
        );
        let is_within = |column: &Column| column.block_offset_bytes + column.size_bytes <= self.block_bytes;
        debug_assert!(
            data().all(|(_, column)| column.size_bytes == 0 || is_within(column)),
            "no data column reaches beyond the block"
        );
        let is_once = |row: &[Column], index: usize| row[..index].iter().all(|other| other.child != row[index].child);
        debug_assert!(
            self.rows().all(|row| (0..row.len()).all(|index| is_once(row, index))),
            "within a row no child appears twice"
        );
        debug_assert!(
            self.rows().all(|row| row.iter().all(|column| column.size_bytes <= row[0].size_bytes)),
            "no column is taller than the parity of its row"
        );
        debug_assert!(
            self.columns.iter().all(|column| column.address_bytes >= BOOT_AREA_OFFSET),
            "labels are never data (vdev, invariant 2)"
        );
        self
    }

    /// All columns, row after row.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The rows: parity columns first, then data columns.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Column]> {
        self.columns.chunks_exact(self.row_width)
    }

    /// How many columns a row has, parity included.
    #[must_use]
    pub(crate) const fn row_width(&self) -> usize {
        self.row_width
    }

    /// How many of each row's columns, from its start, are parity.
    #[must_use]
    pub const fn parity_count(&self) -> usize {
        self.parity_count
    }

    /// Whether the column with this index (in [`Self::columns`]) is parity.
    #[must_use]
    pub(crate) const fn is_parity(&self, index: usize) -> bool {
        index % self.row_width < self.parity_count
    }

    /// Bytes of the block that the map covers: its size rounded up to whole sectors.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The columns grouped by child, ascending: what one bad device would spoil.
    #[must_use]
    pub(crate) fn columns_by_child(&self) -> Vec<Vec<usize>> {
        self.group_columns(|index| u64::from(self.columns[index].child))
    }

    /// The columns that the block reaches, grouped by a key.
    fn group_columns(&self, key: impl Fn(usize) -> u64) -> Vec<Vec<usize>> {
        let mut groups = BTreeMap::<u64, Vec<usize>>::new();
        for index in (0..self.columns.len()).filter(|&index| self.columns[index].size_bytes != 0) {
            groups.entry(key(index)).or_default().push(index);
        }
        groups.into_values().collect()
    }

    /// The padding sectors of a raidz allocation: allocated, never written, never read.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn skips(&self) -> &[SkipSector] {
        &self.skips
    }
}

/// Why a layout or a map could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The vdev's parameters contradict each other or lie outside what the format allows; the text says which.
    BadParameters(&'static str),
    /// The range is empty, larger than a block may be, not on a sector boundary, or beyond any device.
    BadRange {
        /// Offset on the top-level vdev.
        offset_bytes: u64,
        /// Size asked for.
        size_bytes: u64,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadParameters(what) => write!(f, "invalid vdev parameters: {what}"),
            Self::BadRange { offset_bytes, size_bytes } => {
                write!(f, "no block can lie at offset {offset_bytes:#x} with size {size_bytes:#x}")
            }
        }
    }
}

impl std::error::Error for LayoutError {}

/// Sector sizes that the format knows: 512 bytes to 64 KiB.
pub const ASHIFT_MIN: u32 = 9;
/// See [`ASHIFT_MIN`].
pub const ASHIFT_MAX: u32 = 16;

/// Offsets on a top-level vdev end far below this (the DVA field holds 63 bits of 512-byte sectors, no device does).
const OFFSET_LIMIT_BYTES: u64 = 1 << 62;

/// Checks a range and gives its first sector and the number of sectors.
fn sectors(offset_bytes: u64, size_bytes: u64, ashift: u32) -> Result<(u64, u64), LayoutError> {
    let sector_bytes = 1_u64 << ashift;
    if size_bytes == 0
        || size_bytes > MAX_BLOCK_BYTES
        || offset_bytes >= OFFSET_LIMIT_BYTES
        || !offset_bytes.is_multiple_of(sector_bytes)
    {
        return Err(LayoutError::BadRange { offset_bytes, size_bytes });
    }
    Ok((offset_bytes >> ashift, size_bytes.div_ceil(sector_bytes)))
}

fn check_ashift(ashift: u32) -> Result<(), LayoutError> {
    if (ASHIFT_MIN..=ASHIFT_MAX).contains(&ashift) { Ok(()) } else { Err(LayoutError::BadParameters("ashift")) }
}

/// How `data_sectors` spread over columns: full rows, and the data columns that are one sector taller.
struct Spread {
    /// Sectors in every column.
    quotient: u64,
    /// Data columns with one sector more.
    remainder: u64,
    /// Columns (parity included) with one sector more.
    tall_columns: u64,
    /// Data and parity sectors together.
    total: u64,
}

impl Spread {
    const fn new(data_sectors: u64, data_columns: u64, parity: u64) -> Self {
        let quotient = data_sectors / data_columns;
        let remainder = data_sectors % data_columns;
        let (tall_columns, parity_rows) =
            if remainder == 0 { (0, quotient) } else { (remainder + parity, quotient + 1) };
        Self { quotient, remainder, tall_columns, total: data_sectors + parity * parity_rows }
    }

    /// Sectors in the column with this index, parity included.
    const fn height(&self, column: u64) -> u64 {
        if column < self.tall_columns { self.quotient + 1 } else { self.quotient }
    }
}
