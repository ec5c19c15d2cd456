//! Tunables and statistics, with OpenZFS's names.
//!
//! # Theory
//!
//! **Need.** An administrator turns a number and wants to see the effect. For both there is one place to look: a list of tunables
//! with unit, range and effect, and groups of counters under the names that OpenZFS's documentation, scripts and dashboards use.
//!
//! **Tunables.**
//! ```text
//! tunables! { struct … }        a crate declares its tunables once: field, type, default, unit, range, effect
//!   ├─ the struct               what the crate works with: plain fields, so a read costs nothing
//!   └─ TABLE: &[Tunable]        the records, for lists, checks and documentation
//! Settings                      values that somebody gave, by name; checked when they are given
//! struct.with(&settings)        when a pool is opened: the values that were given, over all others
//! ```
//! A default that is computed (a part of memory, for example) is computed before [`tunables!`]'s `with`, so an explicit setting overrides
//! it.
//!
//! **Statistics.** [`Counters`] are split by thread and added up when they are read; a [`Histogram`] has a bucket for each power of two.
//! A [`Registry`] belongs to a pool. It holds functions that read the counters of the layers, with weak references to their owners: a
//! counter whose owner is dropped disappears from the list.
//!
//! **Invariants.**
//! 1. Nothing is global to the process: each pool, and each simulated machine, has its own tunables and counters.
//! 2. No counter is read to decide anything, so neither its order nor its lag shows in what is written.
//! 3. A value that is out of its range is refused, and changes nothing.
//!
//! **Rejected.** *Looking tunables up by name at each use*: this costs a look-up, and a wrong name would be detected only at its use.
//! *Counters that register themselves*: they need a global registry, which tests and pools would share.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod counter;
mod declare;
mod near;
mod registry;
mod settings;
#[cfg(test)]
mod tests;
mod tunable;

pub use counter::{Counters, Histogram};
pub(crate) use near::near;
pub use registry::{Body, Group, Registry, Sheet, Snapshot, Stat};
pub use settings::Settings;
pub(crate) use tunable::split;
pub use tunable::{Domain, Tunable, TunableError, TunableValue, When, find};
