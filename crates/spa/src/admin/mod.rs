//! Changes of the pool itself: datasets, properties, vdevs, features. Each is made in the sync's hands, in one txg.

pub(crate) mod add;
pub(crate) mod attach;
pub(crate) mod bookmark;
pub(crate) mod checkpoint;
mod clone;
pub(crate) mod command;
pub(crate) mod dataset;
mod destroy;
mod evacuate;
pub(crate) mod examine;
mod expand;
pub(crate) mod expansion;
mod limits;
pub(crate) mod offline;
pub(crate) mod properties;
pub(crate) mod receive;
mod receive_raw;
mod receive_redacted;
pub(crate) mod receive_spec;
pub(crate) mod received;
mod reguid;
pub(crate) mod remove;
mod rename;
pub(crate) mod snapshot;
mod spares;
mod upgrade;
mod volume;
