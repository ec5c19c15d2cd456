//! `cargo xtask kills [CLIENT,…] [COUNT] [SEED]`: a server that writes a pool is killed at any moment, again and again.
//!
//! Each time `cenote serve --rw` mounts the pool and serves a volume of it, clients work there, and the process is killed (SIGKILL).
//! Then the pool is judged, it is served again, and what the clients were told is compared with what is there. The clients are writers of
//! our own ([`own`]), programs of others that rely on `fsync` ([`clients`]: databases and fio), or threads that share a tree and whose whole
//! history is judged ([`history`]).
//!
//! A kill keeps what the kernel was given; devices that lose it are the matter of `cargo xtask crash`.

mod account;
mod blocks;
mod clients;
mod fio;
mod fio_blocks;
mod history;
mod own;
mod place;
mod postgresql;
mod sqlite;

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::zdb::program;

use crate::rotation;
use crate::steps::{Context, Outcome, Tally};

/// Kills in the runs of a day, of which each does a part.
const COUNT_IN_STEP: u64 = 6;
/// The same under SQLite.
const SQLITE_COUNT_IN_STEP: u64 = 3;
/// The same with histories that are judged.
const HISTORIES_IN_STEP: u64 = 3;
/// Parts that they are cut into.
const PARTS: u64 = 3;
/// Kills between two judgements of `zdb`.
const ZDB_EVERY: u64 = 10;

const USAGE: &str = "usage: cargo xtask kills [CLIENT,…] [COUNT] [SEED]\n       cargo xtask kills history --json FILE…\n\
    COUNT kills under each client: own (if none is named), history, databases (all that follow); or a judgement of kept histories";

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let [client, option, files @ ..] = args
        && client == clients::HISTORY
        && option == "--json"
    {
        ensure!(!files.is_empty(), "{USAGE}");
        return history::judge_files(files.iter().map(Path::new));
    }
    let (names, rest) = match args.split_first() {
        Some((names, rest)) if names.parse::<u64>().is_err() => (names.as_str(), rest),
        _ => ("own", args),
    };
    let (count, seed) = match rest {
        [] => (COUNT_IN_STEP, 1),
        [count] => (count.parse().context("COUNT is a number")?, 1),
        [count, seed] => (count.parse().context("COUNT is a number")?, seed.parse().context("SEED is a number")?),
        _ => bail!("{USAGE}, {}", databases().join(", ")),
    };
    let mut chosen = Vec::new();
    for name in names.split(',') {
        match name {
            "databases" => chosen.extend(databases()),
            name => match clients::names().into_iter().chain(["own"]).find(|known| *known == name) {
                Some(known) => chosen.push(known),
                None => bail!("there is no client {name}; {USAGE}, {}", databases().join(", ")),
            },
        }
    }
    let reasons = missing().into_iter().chain(chosen.iter().filter_map(|name| clients::missing(name)));
    if let Some(reason) = reasons.into_iter().next() {
        bail!("{reason}");
    }
    let mut tally = Tally::default();
    for name in chosen {
        tally.absorb(if name == "own" {
            own::campaign((0, count), seed)?
        } else {
            clients::campaign(name, (0, count), seed)?
        });
    }
    ensure!(tally.failed == 0, "{} of {} kills failed", tally.failed, tally.failed + tally.passed);
    Ok(())
}

/// Databases and fio.
fn databases() -> Vec<&'static str> {
    clients::names().into_iter().filter(|name| *name != clients::HISTORY).collect()
}

/// The step. Each kill counts.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let client = "sqlite-wal";
    if let Some(reason) = missing().or_else(|| clients::missing(client)) {
        return Ok(Outcome::LeftOut(reason));
    }
    let part = rotation::of_commit(PARTS);
    let mut tally = own::campaign(part.share(COUNT_IN_STEP), 1)?;
    tally.absorb(clients::campaign(client, part.share(SQLITE_COUNT_IN_STEP), 1)?);
    tally.absorb(clients::campaign(clients::HISTORY, part.share(HISTORIES_IN_STEP), 1)?);
    let by_hand: Vec<&str> = databases().into_iter().filter(|name| *name != client).collect();
    println!(
        "by hand, since they take minutes and PostgreSQL is not among the packages of a test run: kills under {}",
        by_hand.join(", ")
    );
    Ok(Outcome::Done(tally))
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
