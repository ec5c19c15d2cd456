//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod indirect;
mod logged;
mod logs;
