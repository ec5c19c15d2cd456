//! The library for C, and for languages that speak to C: `include/cenote.h`.
//!
//! # Theory
//!
//! **Need.** A program in C, Python or Go opens a pool as one in Rust does. It has no futures, no destructors and no enums with data, its
//! pointers may be anything, and no panic may reach it.
//!
//! **In memory.**
//! ```text
//! exports   extern "C" cenote_...      names, types and order as in the header; catches panics
//! pool, filesystem, file, volume, ...  safe Rust over the crate `cenote`, each function a few lines
//! border    In, Give, Text, Buffer     pointers of C as types: checked where they can be, promised by the header where not
//! runtime                              one for the process, made at its first use
//! ```
//! A handle is a box of a type that is `Send` and `Sync`; C has its address. A handle keeps what it needs of others, so they are freed in
//! any order.
//!
//! **Life of a call.** The arguments are checked, all of them before anything is done. The place for the answer is made `NULL`. The thread
//! waits for the future of the crate `cenote`. An error is boxed with its kind, message and place, and C frees it.
//!
//! **Invariants.**
//! 1. `unsafe` is in `border` and `exports` alone, and each block names the promise of the header that it stands on.
//! 2. Every function of the header is one of `exports`, with the same types, and the reverse: a test compares them word for word.
//! 3. A function may be called from any number of threads at once with the same handles, but to free one is the last that is done with it.
//! 4. No panic, and no unwinding, leaves this crate.
//! 5. An object to be freed is `NULL` or was given by this library; a function that frees takes `NULL`.
//!
//! **Crash.** As the crate `cenote`. A process that ends without `cenote_pool_export` leaves the pool as of its last txg.
//!
//! **Rejected.** *A header that cbindgen writes*: a header is read by people, and a test finds what differs. *The last error of a thread*, as
//! `errno`: callers that switch threads, as Python and Go do, read another's. *A handle for the runtime*: nobody has two.
//! *Structs of options*: they cannot grow without breaking programs.

#![deny(unsafe_code)]
#![warn(missing_docs)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod border;
mod errors;
mod exports;
mod fault;
mod file;
mod filesystem;
mod list;
mod options;
mod pool;
mod runtime;
mod snapshots;
#[cfg(test)]
mod spelling;
mod status;
mod stream;
mod volume;

/// A lock's value. The value that a panic has left there is whole: each change is one assignment.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
