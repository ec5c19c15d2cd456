//! Fingerprints of disk images, to recognise equal contents.
//!
//! Images share most of their pages. So the hash of a shared page is cached by its address. The cache keeps the page too, so that the address is
//! not reused. A page that only one image has is hashed each time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::medium::Image;

/// Makes fingerprints of images, and caches the hashes of their shared pages.
#[derive(Default)]
pub struct Fingerprints {
    pages: HashMap<usize, (Arc<[u8]>, u64)>,
}

impl std::fmt::Debug for Fingerprints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprints({} pages)", self.pages.len())
    }
}

impl Fingerprints {
    /// A 64-bit hash of all written pages and their places. Equal contents over the same base have the same fingerprint.
    pub fn of(&mut self, images: &[Image]) -> u64 {
        let mut all = DefaultHasher::new();
        for image in images {
            image.base().as_ptr().hash(&mut all);
            for (index, page) in image.page_refs() {
                (index, self.page(page)).hash(&mut all);
            }
            u64::MAX.hash(&mut all);
        }
        all.finish()
    }

    fn page(&mut self, page: &Arc<[u8]>) -> u64 {
        let hash = || {
            let mut one = DefaultHasher::new();
            one.write(page);
            one.finish()
        };
        if Arc::strong_count(page) == 1 {
            return hash();
        }
        self.pages.entry(page.as_ptr() as usize).or_insert_with(|| (page.clone(), hash())).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_share_a_fingerprint_and_others_do_not() {
        let mut fingerprints = Fingerprints::default();
        let mut image = Image::default();
        image.write(4096, &[1; 8192]);
        let first = fingerprints.of(std::slice::from_ref(&image));
        let shared = image.clone();
        assert_eq!(fingerprints.of(std::slice::from_ref(&shared)), first);
        let mut again = Image::default();
        again.write(8192, &[1; 4096]);
        again.write(4096, &[1; 4096]);
        assert_eq!(fingerprints.of(std::slice::from_ref(&again)), first);
        for (offset_bytes, byte) in [(8191, 2), (4096, 0), (20_000, 1)] {
            let mut other = image.clone();
            other.write(offset_bytes, &[byte]);
            assert_ne!(fingerprints.of(&[other]), first, "{byte} at {offset_bytes}");
        }
        let two = [image.clone(), Image::default()];
        assert_ne!(fingerprints.of(&two), fingerprints.of(&[Image::default(), image]));
    }
}
