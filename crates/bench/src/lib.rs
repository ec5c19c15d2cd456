//! `cenote bench`: the mechanisms that the project grew out of, each beside its predecessors, in one run on the user's machine;
//! what reading and writing cost through all layers, and a mount beside other file systems.
//!
//! No part of the engine. A suite is a module with a function that makes a [`report::Suite`]; what a run found is a
//! [`report::Report`], which is kept as JSON and shown as text, Markdown or a page. Historic variants live here and nowhere
//! else.
//!
//! On a machine that others use, processor time and the best round say most: noise only slows. So each table has them, and
//! every round is in the JSON.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is measured is the machine: its clock, its threads, its files"
)]

mod clock;
pub mod codec;
mod machine;
pub mod mirror;
pub mod mounted;
mod page;
pub mod report;
pub mod roots;
pub mod send;
pub mod suites;
pub mod taskq;
pub mod whole;
pub mod writing;
pub mod zil;

pub use machine::machine;
