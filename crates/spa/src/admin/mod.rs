//! Changes of the pool itself: datasets, properties, vdevs, features. Each is made in the sync's hands, in one txg.

pub(crate) mod add;
mod clone;
pub(crate) mod dataset;
mod destroy;
mod longhold;
pub(crate) mod properties;
mod rename;
pub(crate) mod snapshot;
mod upgrade;
mod volume;
