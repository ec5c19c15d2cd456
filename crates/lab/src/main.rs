//! The laboratory: each mechanism that Cenote grew out of beside its predecessors, in one run on one machine.
//!
//! Historic variants live here and nowhere else, and so do measurements on drives that are models. No part of the product depends on this
//! crate; what people measure their own pools with is `cenote bench`, in the crate below, which also has the form of results and how they
//! are shown (`cenote bench --from FILE`).
//!
//! A suite is a module with a function that makes a [`Suite`](cenote_bench::report::Suite).

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "what is measured is the machine: its clock, its threads, its files"
)]

mod codec;
mod mirror;
mod modelled_write;
mod roots;
mod send;
mod suites;
mod taskq;
mod zil;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cenote_bench::suites::{Choice as _, Request};
use clap::Parser as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use suites::Which;

/// Measure the mechanisms that Cenote grew out of, each beside what came before it.
///
/// A target that was reached or missed is printed beside it and does not change the exit status.
#[derive(clap::Parser)]
#[command(name = "cenote-lab")]
struct Args {
    /// Suites to run; if none is named `taskq`, `roots`, `mirror` and `codec`.
    #[arg(value_name = "SUITE", value_parser = suite())]
    suites: Vec<Which>,
    /// Within a minute, and less exact.
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON, every round of them; `cenote bench --from FILE` shows them.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as one page with pictures.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// For `taskq`: a program that measures other queues in the same run, of tools/queue-peers or one that drives OpenZFS's code.
    #[arg(long = "peer", value_name = "PROGRAM")]
    peers: Vec<PathBuf>,
    /// For `zil` and `send`: a program with OpenZFS's code in userspace, which does the same.
    #[arg(long, value_name = "PROGRAM")]
    peer_pool: Option<PathBuf>,
    /// For `zil` and `send`: make files in this folder, up to 4 GiB at a time; the disk that it is on is what is measured.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// For `send`: the program that lists snapshots, if not the `cenote` beside this one.
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Of `zil` and `send`, only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(suites::parts()))]
    only: Vec<String>,
    /// Rounds of each part of `zil` and `send`.
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u32>,
    /// Seconds of a round of `zil`.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// A tunable of the engine, as the program's option of this name.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

/// The suites that there are, by their names.
fn suite() -> impl TypedValueParser<Value = Which> {
    let names = Which::ALL.iter().map(|which| PossibleValue::new(which.name()).help(which.about()));
    PossibleValuesParser::new(names).try_map(|name| Which::named(&name).ok_or("there is no such suite"))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut settings = cenote_spa::tunables::settings();
    for setting in &args.settings {
        settings.set_from(setting)?;
    }
    let request = Request {
        quick: args.quick,
        peers: args.peers,
        peer_pool: args.peer_pool,
        folder: args.folder,
        program: args.program,
        only: args.only,
        rounds: args.rounds,
        seconds: args.seconds,
        ..Request::new(args.suites)
    };
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
    let report = request.measure(&settings, date, &|name| eprintln!("measuring {name}"))?;
    let write = |path: &PathBuf, text: String| std::fs::write(path, text).with_context(|| path.display().to_string());
    if let Some(path) = &args.json {
        write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    if let Some(path) = &args.html {
        write(path, report.html())?;
    }
    print!("{}", report.text());
    Ok(())
}
