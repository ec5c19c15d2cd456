//! Goal: a volume that is written has at every moment what a plain array of bytes has that the same was done to, on disk too; and
//! changes of different blocks do not wait for each other, while those of one block come one after the other. Method: pools on
//! simulated disks with a second book of extents, changed at random from a seed, synced, cut off and opened again; what is on disk
//! is read by the volume's reading side and the pool is verified.

mod claims;
mod common;
mod frees;
mod model;
