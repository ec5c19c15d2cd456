//! The public face: the examples, and what they do not show, on pools that OpenZFS made and on pools of its own.

#![allow(clippy::duplicate_mod, reason = "each example is a program of its own, with the same set-up")]

#[path = "../examples/cat.rs"]
mod cat;
#[path = "../examples/damaged.rs"]
mod damaged;
#[path = "../examples/list.rs"]
mod list;
#[path = "../examples/power_cut.rs"]
mod power_cut;
#[path = "../examples/replicate.rs"]
mod replicate;
#[path = "../examples/server.rs"]
mod server;
#[path = "../examples/volume.rs"]
mod volume;
#[path = "../examples/watch.rs"]
mod watch;
#[path = "../examples/write_tree.rs"]
mod write_tree;

mod face {
    mod admin;
    mod changes;
    mod errors;
    mod examples;
    mod files;
    mod kept;
    mod pools;
    mod streams;
}
