//! How a pool comes to be open for writing: a new one ([`new`]), or one that exists ([`existing`]); the devices that either is given.

pub(crate) mod existing;
pub(crate) mod new;
pub(crate) mod spares_l2cache;
pub(crate) mod vdevs;
mod writable;
