//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod compress;
mod crypt_hostile;
mod golden_blocks;
mod golden_compress;
mod golden_crypt;
mod raidz_model;
