//! `cenote`: OpenZFS pools without a kernel module.
//!
//! # Theory
//!
//! **Need.** One program for people who know `zpool` and `zfs`, for scripts written for those, and for verbs of our own;
//! the same commands whether this process opens the pool or a server that has it open already.
//!
//! **Shape.**
//! ```text
//! argv ─ argv[0] decides the tool ─ clap ─► Request (serialisable) ─ handle() ─► command's run(ctx, args) ─► Outcome
//!                                                                       │
//!                                     Context: the output, and the Session (crate `server`) that finds and opens pools
//! ```
//! A command is one module under `commands/`: its `Args` (clap and serde in one definition) and `async fn run(ctx, args)`.
//! `commands/mod.rs` (and `commands/zpool/mod.rs`, `commands/zfs/mod.rs`) list them in a table; that line and the module
//! are all that a new command needs. Manual pages and completions come from the same definitions.
//!
//! **Invariants.**
//! 1. Text goes out through [`output::Output`] alone, never through `println!`: a server has no terminal.
//! 2. Exit statuses: 0 good, 1 the operation found or met an error (text on stderr), 2 wrong usage.
//! 3. A command parses and prints. Its work is a function of a crate below, and of those only the ones for programs are used
//!    (`cargo xtask house`).
//! 4. A reader that closes our output early (`| head`) ends the program without a word.
//!
//! **Rejected.** A hand-written parser after `getopt`, as the original's: one definition gives parsing, help, manual
//! pages, completions and the serialised request.

mod args;
mod commands;
mod context;
mod datasets;
mod files;
mod live;
mod options;
mod outcome;
mod output;
mod pools;
mod prelude;
mod request;
mod table;
mod time;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    request::main(std::env::args_os().collect())
}
