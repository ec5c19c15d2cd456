//! `kills [--program PATH] [--first N] [CLIENT,…] [COUNT] [SEED]`: a server that writes a pool is killed at any moment, again and again.
//!
//! Each time `cenote serve --rw` mounts the pool and serves a volume of it, clients work there, and the process is killed (SIGKILL).
//! Then the pool is judged, it is served again, and what the clients were told is compared with what is there. The clients are writers of
//! our own ([`own`]), programs of others that rely on `fsync` ([`clients`]: databases and fio), or threads that share a tree and whose whole
//! history is judged ([`history`]).
//!
//! A kill keeps what the kernel was given; devices that lose it are the matter of the program `crash`.
//!
//! The last line has the count of kills and of failed ones. The status is 0 if all were good, 1 if not, 3 if a client cannot be run here: then
//! the reason is on standard output.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is killed and judged are processes of this machine"
)]

mod account;
mod blocks;
mod client;
mod clients;
mod fio;
mod fio_blocks;
mod history;
mod nbd_client;
mod numbers;
mod own;
mod place;
mod postgresql;
mod process;
mod sqlite;
mod tally;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::zdb::program;

use tally::Tally;

/// Kills where no count is said.
const COUNT: u64 = 6;
/// The status where a client cannot be run.
const LEFT_OUT: u8 = 3;

const USAGE: &str = "usage: kills [--program PATH] [--first N] [CLIENT,…] [COUNT] [SEED]\n       kills history --json FILE…\n\
    COUNT kills of the program (cenote) under each client, from kill N on: own (if none is named), history, databases (all that follow);\n\
    or a judgement of kept histories. Clients: own, history";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match carry_out(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kills: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The kills that are asked for.
struct Request {
    program: PathBuf,
    first: u64,
    clients: Vec<&'static str>,
    count: u64,
    seed: u64,
}

impl Request {
    fn parse(args: &[String]) -> Result<Self> {
        let usage = || format!("{USAGE}, {}", databases().join(", "));
        let mut found = Self { program: "cenote".into(), first: 0, clients: vec!["own"], count: COUNT, seed: 1 };
        let mut numbers = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--program" => found.program = args.next().with_context(usage)?.into(),
                "--first" => found.first = args.next().with_context(usage)?.parse().with_context(usage)?,
                number if number.parse::<u64>().is_ok() => numbers.push(number.parse()?),
                names if numbers.is_empty() && !names.starts_with('-') => found.clients = clients_of(names)?,
                _ => bail!("{}", usage()),
            }
        }
        match numbers[..] {
            [] => {}
            [count] => found.count = count,
            [count, seed] => (found.count, found.seed) = (count, seed),
            _ => bail!("{}", usage()),
        }
        Ok(found)
    }
}

fn clients_of(names: &str) -> Result<Vec<&'static str>> {
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
    Ok(chosen)
}

fn carry_out(args: &[String]) -> Result<ExitCode> {
    if let [client, option, files @ ..] = args
        && client == clients::HISTORY
        && option == "--json"
    {
        ensure!(!files.is_empty(), "{USAGE}");
        return history::judge_files(files.iter().map(Path::new)).map(|()| ExitCode::SUCCESS);
    }
    let Request { program, first, clients: chosen, count, seed } = Request::parse(args)?;
    let reasons = missing().into_iter().chain(chosen.iter().filter_map(|name| clients::missing(name)));
    if let Some(reason) = reasons.into_iter().next() {
        println!("{reason}");
        return Ok(ExitCode::from(LEFT_OUT));
    }
    let mut tally = Tally::default();
    for name in chosen {
        tally.absorb(match name {
            "own" => own::campaign(&program, (first, count), seed)?,
            name => clients::campaign(&program, name, (first, count), seed)?,
        });
    }
    println!("{} kills in all: {} failed", tally.passed + tally.failed, tally.failed);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Databases and fio.
fn databases() -> Vec<&'static str> {
    clients::names().into_iter().filter(|name| *name != clients::HISTORY).collect()
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
