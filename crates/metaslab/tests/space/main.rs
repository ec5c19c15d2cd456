//! The write side of space accounting, on objects in memory.

mod common;
mod history;
mod hostile;
mod placing;
