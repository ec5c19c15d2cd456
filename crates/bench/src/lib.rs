//! `cenote bench`: what reading and writing a pool cost through all layers, and a mount beside other file systems, on the user's machine.
//!
//! No part of the engine. A suite is a module with a function that makes a [`report::Suite`]; what a run found is a
//! [`report::Report`], which is kept as JSON and shown as text, Markdown or a page. Mechanisms beside their predecessors, and drives that
//! are models, are in the laboratory (`crates/lab`), which stands on this crate and is no part of the product.
//!
//! On a machine that others use, processor time and the best round say most: noise only slows. So each table has them, and
//! every round is in the JSON.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is measured is the machine: its clock, its threads, its files"
)]

pub mod clock;
mod machine;
pub mod mounted;
mod page;
pub mod redundancy;
pub mod report;
pub mod suites;
pub mod whole;
pub mod writing;

pub use machine::machine;
