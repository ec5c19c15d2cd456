//! The part of a disk's content on which what was done with the disk can depend.
//!
//! A simulation depends on its seed and on what it reads. So a second simulation with the same seed, of disks that are equal wherever the first one
//! read what it had not written before, does the same, and need not be run.

use std::collections::BTreeSet;

use super::medium::{Image, PAGE_BYTES};

/// Pages of a disk's first content.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// Those that were read, or written in part, before they were written as a whole.
    needed: BTreeSet<u64>,
    /// Those that were written as a whole, and were not needed before.
    replaced: BTreeSet<u64>,
}

impl Touched {
    /// Takes note of bytes that were read.
    pub(super) fn read(&mut self, offset_bytes: u64, size_bytes: u64) {
        let end = (offset_bytes + size_bytes).div_ceil(PAGE_BYTES);
        let pages = (offset_bytes / PAGE_BYTES..end).filter(|page| !self.replaced.contains(page));
        self.needed.extend(pages);
    }

    /// Takes note of bytes that have been written: of a page that is written in part the rest stays.
    pub(super) fn written(&mut self, offset_bytes: u64, size_bytes: u64) {
        let end = offset_bytes + size_bytes;
        for page in offset_bytes / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let is_whole = offset_bytes <= page * PAGE_BYTES && (page + 1) * PAGE_BYTES <= end;
            match is_whole {
                true if !self.needed.contains(&page) => drop(self.replaced.insert(page)),
                true => {}
                false => self.read(page * PAGE_BYTES, PAGE_BYTES),
            }
        }
    }

    /// Whether two contents are the same for whoever did this with one of them.
    #[must_use]
    pub fn is_same(&self, one: &Image, other: &Image) -> bool {
        self.needed.iter().all(|page| one.has_same_page(other, *page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same_after_change(touched: &Touched, offset_bytes: u64) -> bool {
        let mut one = Image::default();
        one.write(0, &[1; 40_000]);
        let mut other = one.clone();
        other.write(offset_bytes, &[2]);
        touched.is_same(&one, &other)
    }

    #[test]
    fn what_was_read_before_it_was_written_counts() {
        let mut touched = Touched::default();
        touched.read(4096, 1);
        touched.written(8192, 4096);
        touched.read(8192, 4096);
        touched.written(4096, 4096);
        touched.written(12_288, 512);
        touched.written(16_384, 8192 + 100);
        let counts = |offset_bytes| !is_same_after_change(&touched, offset_bytes);
        assert!(counts(4096) && counts(8191), "it was read");
        assert!(!counts(8192), "it was written first");
        assert!(counts(16_383), "it was written in part");
        assert!(!counts(16_384) && !counts(20_480) && counts(24_576), "the last page was written in part");
        assert!(!counts(0) && !counts(30_000), "nobody looked");
    }

    #[test]
    fn pages_without_content_are_equal_to_zeros() {
        let (mut touched, mut zeros) = (Touched::default(), Image::default());
        touched.read(0, 8192);
        zeros.write(0, &[0; 4096]);
        assert!(touched.is_same(&zeros, &Image::default()) && touched.is_same(&Image::default(), &zeros));
        zeros.write(4097, &[1]);
        assert!(!touched.is_same(&zeros, &Image::default()));
    }
}
