//! All tests of this crate that use it from outside, in one program, so that it is linked once.
//!
//! Goal: pools that we write are whole: an import finds them, every block is good in every copy, and the sum of blocks is what space maps say is
//! allocated; after any number of txgs, on any layout, and wherever the power went. Method: pools on simulated disks, written with a second book of
//! extents, then imported and verified by the read path, which was tested against OpenZFS's pools. The same seed must give the same bytes.

mod added;
mod attach;
mod checkpoint;
mod condensed;
mod evacuated;
mod expand;
mod expanded;
mod failing;
mod faults;
mod features;
mod gangs;
mod grown;
mod hanging;
mod healing;
mod health;
mod hostile;
mod kstats;
mod leaf_work;
mod lost;
mod made;
mod maps;
mod multihost;
mod offline;
mod rebuilt;
mod reguid;
mod removed;
mod reopened;
mod sectors;
mod shared;
mod spares;
mod split;
mod vdev_properties;
mod views;
