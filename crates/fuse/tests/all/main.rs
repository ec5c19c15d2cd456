//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod kernel;
mod live;
mod placed;
mod ring;
mod semantics;
mod server;
mod support;
