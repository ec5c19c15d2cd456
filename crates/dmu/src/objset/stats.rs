//! Counts of the requests of a dataset's users, under the names of OpenZFS's `objset-0x...` (`dataset_kstats`).

use cenote_kstat::{Counters, Sheet};

const READS: usize = 0;
const NREAD: usize = 1;
const WRITES: usize = 2;
const NWRITTEN: usize = 3;
const NUNLINKS: usize = 4;
const NUNLINKED: usize = 5;

/// The counts of a dataset that is in use. The front ends count: what is read and written for its own sake, as metadata, is not
/// asked for by anybody.
#[derive(Debug, Default)]
pub struct ObjsetStats(Counters<6>);

impl ObjsetStats {
    /// Somebody has read so many bytes.
    pub fn read(&self, bytes: u64) {
        self.0.add([(READS, 1), (NREAD, bytes)]);
    }

    /// Somebody has written so many bytes.
    pub fn wrote(&self, bytes: u64) {
        self.0.add([(WRITES, 1), (NWRITTEN, bytes)]);
    }

    /// Files have lost their last names, and files without names were freed.
    pub fn unlinked(&self, unlinks: u64, unlinked: u64) {
        self.0.add([(NUNLINKS, unlinks), (NUNLINKED, unlinked)]);
    }

    /// Enters them into a group.
    pub fn kstat(&self, sheet: &mut Sheet) {
        let names = ["reads", "nread", "writes", "nwritten", "nunlinks", "nunlinked"];
        names.into_iter().zip(self.0.sums()).for_each(|(name, count)| sheet.count(name, count));
    }
}
