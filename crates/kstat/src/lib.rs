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
//! A number that is computed, as a part of the memory, is computed before [`tunables!`]'s `with`: so a value that was given wins.
//!
//! **Statistics.** [`Counters`] are split by thread and added up when they are read; a [`Histogram`] has a bucket for each power of two.
//! A [`Registry`] belongs to a pool. It holds functions that read what the layers count anyway, and the owner of each number only
//! weakly: what goes away leaves the list.
//!
//! **Invariants.**
//! 1. There is no state of the process: several pools, and several simulated machines, have their own values and counts.
//! 2. No counter is read to decide anything, so neither its order nor its lag shows in what is written.
//! 3. A value that is out of its range is refused, and changes nothing.
//!
//! **Rejected.** *Values by name on the way*: each use would look a name up, and a wrong name would show when it is used. *Counters that
//! register themselves*: a registry of the process, which tests and pools would share.

mod counter;
mod declare;
mod near;
mod registry;
mod settings;
#[cfg(test)]
mod tests;
mod tunable;

pub use counter::{Counters, Histogram};
pub use near::near;
pub use registry::{Body, Group, Registry, Sheet, Snapshot, Stat};
pub use settings::Settings;
pub use tunable::{Domain, Tunable, TunableError, TunableValue, When, find, split};
