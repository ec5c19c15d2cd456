//! `cenote bench`: the mechanisms that the project grew out of, each beside its predecessors, in one run on the user's machine.
//!
//! No part of the engine. A suite is a module with a function that makes a [`report::Suite`]; what a run found is a
//! [`report::Report`], which is kept as JSON and shown as text, Markdown or a page. Historic variants live here and nowhere
//! else.

pub mod codec;
mod machine;
pub mod mirror;
mod page;
pub mod report;
pub mod roots;
pub mod taskq;
pub mod whole;

// Also modules of the program `cenote-bench`, which uses more of them.
#[allow(dead_code, reason = "the program uses it")]
mod clock;
#[allow(dead_code, reason = "the program uses it")]
mod others;
mod pool;
#[allow(dead_code, reason = "the program uses it")]
mod reads;

pub use machine::machine;
