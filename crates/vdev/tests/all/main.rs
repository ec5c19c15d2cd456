//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod commit;
mod common;
mod devices;
mod golden_labels;
mod golden_policies;
mod golden_walk;
mod modelled;
mod nested;
mod outage;
mod pieces;
mod policies;
mod reflow;
mod topology;
mod tree;
mod write;
