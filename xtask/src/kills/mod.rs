//! `cargo xtask kills [COUNT] [SEED]`: a server that writes a pool is killed at any moment, again and again.
//!
//! Each time `cenote serve --rw` mounts the pool and serves a volume of it, clients work there, and the process is killed (SIGKILL).
//! Then the pool is judged, it is served again, and what the clients were told is compared with what is there. The clients are writers of
//! our own ([`own`]).
//!
//! A kill keeps what the kernel was given; devices that lose it are the matter of `cargo xtask cuts`.

mod blocks;
mod own;
mod place;

use std::fs::OpenOptions;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::zdb::program;

use crate::steps::{Context, Outcome};

/// Kills in a test run.
const COUNT_IN_STEP: u64 = 6;
/// Kills between two judgements of `zdb`.
const ZDB_EVERY: u64 = 10;

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (count, seed) = match args {
        [] => (COUNT_IN_STEP, 1),
        [count] => (count.parse().context("COUNT is a number")?, 1),
        [count, seed] => (count.parse().context("COUNT is a number")?, seed.parse().context("SEED is a number")?),
        _ => bail!("usage: cargo xtask kills [COUNT] [SEED]"),
    };
    if let Some(reason) = missing() {
        bail!("{reason}");
    }
    let tally = own::campaign(count, seed)?;
    ensure!(tally.failed == 0, "{} of {count} kills failed", tally.failed);
    Ok(())
}

/// The step. Each kill counts.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    match missing() {
        Some(reason) => Ok(Outcome::LeftOut(reason)),
        None => Ok(Outcome::Done(own::campaign(COUNT_IN_STEP, 1)?)),
    }
}

fn missing() -> Option<String> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match (fuse, program("fusermount3"), program("zdb")) {
        (Err(error), ..) => Some(format!("/dev/fuse: {error}")),
        (_, None, _) => Some("fusermount3 is not installed (Debian package fuse3)".to_owned()),
        (.., None) => Some("zdb is not installed (Debian package zfsutils-linux)".to_owned()),
        _ => None,
    }
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % bound.max(1)
    }
}
