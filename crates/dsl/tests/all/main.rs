//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod clones;
mod destroyed;
mod histories;
mod hostile;
mod limits;
mod livelists;
mod snapshots;
