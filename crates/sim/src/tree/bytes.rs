//! Bytes that are mostly zeros: of a file or a volume, however large.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Bytes, of which only pages that are not all zeros are kept. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sparse {
    size_bytes: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Sparse {
    /// So many zeros.
    #[must_use]
    pub const fn zeros(size_bytes: u64) -> Self {
        Self { size_bytes, pages: BTreeMap::new() }
    }

    /// Their number.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// All of them.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size_bytes as usize];
        for (at, page) in &self.pages {
            let from = (at * PAGE_BYTES) as usize;
            let count = (bytes.len() - from).min(PAGE_BYTES as usize);
            bytes[from..from + count].copy_from_slice(&page[..count]);
        }
        bytes
    }

    /// Writes; the end moves as far as is needed, which for no bytes is nowhere.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.size_bytes = self.size_bytes.max(offset_bytes + bytes.len() as u64);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset_bytes + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let count = (PAGE_BYTES as usize - within).min(bytes.len() - done);
            self.change(at / PAGE_BYTES, |page| {
                page[within..within + count].copy_from_slice(&bytes[done..done + count])
            });
            done += count;
        }
    }

    /// Makes zeros, as far as there are bytes.
    pub fn clear(&mut self, range: Range<u64>) {
        let end = range.end.min(self.size_bytes);
        if range.start >= end {
            return;
        }
        let pages: Vec<u64> =
            self.pages.range(range.start / PAGE_BYTES..=(end - 1) / PAGE_BYTES).map(|(at, _)| *at).collect();
        for page in pages {
            let base = page * PAGE_BYTES;
            let first = range.start.saturating_sub(base).min(PAGE_BYTES) as usize;
            let last = (end - base).min(PAGE_BYTES) as usize;
            self.change(page, |bytes| bytes[first..last].fill(0));
        }
    }

    /// Cuts off, or adds zeros.
    pub fn resize(&mut self, size_bytes: u64) {
        self.clear(size_bytes..self.size_bytes);
        self.size_bytes = size_bytes;
    }

    fn change(&mut self, page: u64, change: impl FnOnce(&mut Page)) {
        let mut bytes = self.pages.get(&page).map_or([0; PAGE_BYTES as usize], |page| **page);
        change(&mut bytes);
        match bytes.iter().all(|byte| *byte == 0) {
            true => self.pages.remove(&page),
            false => self.pages.insert(page, Arc::new(bytes)),
        };
    }

    /// The first byte that the other has otherwise, or that only one of them has.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        let zeros: Page = [0; PAGE_BYTES as usize];
        let mut pages: Vec<u64> = self.pages.keys().chain(other.pages.keys()).copied().collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            let (ours, theirs) = (self.pages.get(&page), other.pages.get(&page));
            let (ours, theirs) = (ours.map_or(&zeros, |page| page), theirs.map_or(&zeros, |page| page));
            if let Some(at) = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
                return Some(page * PAGE_BYTES + at as u64);
            }
        }
        (self.size_bytes != other.size_bytes).then(|| self.size_bytes.min(other.size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_bytes_are_those_of_a_plain_list() {
        let mut rng = cenote_taskq::Rng::new(3);
        let (mut plain, mut sparse) = (Vec::new(), Sparse::default());
        for _ in 0..400 {
            let (at, len) = (rng.below(20_000), rng.below(9_000));
            match rng.below(3) {
                0 => {
                    let bytes = vec![rng.below(3) as u8; len as usize];
                    if len > 0 {
                        plain.resize(plain.len().max((at + len) as usize), 0);
                        plain[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                    }
                    sparse.write(at, &bytes);
                }
                1 => {
                    let (first, end) = ((at as usize).min(plain.len()), ((at + len) as usize).min(plain.len()));
                    plain[first..end].fill(0);
                    sparse.clear(at..at + len);
                }
                _ => {
                    plain.resize(at as usize, 0);
                    sparse.resize(at);
                }
            }
            let mut other = Sparse::default();
            other.write(0, &plain);
            other.resize(plain.len() as u64);
            assert_eq!(sparse, other);
            assert_eq!(sparse.to_vec(), plain);
            assert_eq!(sparse.first_difference(&other), None);
        }
        let mut other = sparse.clone();
        other.write(7_000, b"x");
        assert_eq!(sparse.first_difference(&other), Some(7_000));
    }
}
