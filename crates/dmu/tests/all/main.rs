//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod cached;
mod hostile;
mod live;
mod orders;
