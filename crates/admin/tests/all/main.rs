//! All tests of this crate that use it from outside, in one program, so that it is linked once.

mod recorded;
mod redact;
mod replicas;
mod requests;
mod verbs;
