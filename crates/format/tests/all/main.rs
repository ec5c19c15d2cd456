//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod constants;
mod fuzz_corpus;
mod golden_core;
mod golden_objects;
mod golden_zil;
mod mini;
mod zap_model;
