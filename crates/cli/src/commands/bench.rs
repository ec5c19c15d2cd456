//! `cenote bench`: the founding mechanisms, each beside its predecessors, on this machine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cenote_bench::report::{Report, Suite};
use cenote_bench::whole::{self, Part};
use cenote_bench::{codec, machine, mirror, mounted, roots, taskq, writing, zil};
use cenote_kstat::Settings;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::{Outcome, usage};

/// Measure the mechanisms that Cenote grew out of, each beside what came before it, and what reading costs.
///
/// Whether a target was reached is printed beside it and does not change the exit status.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// What to measure; if nothing is named all but `write` and `mount`, and `pool` only where --image or --peer-pool says of what.
    #[arg(value_name = "SUITE")]
    suites: Vec<Which>,
    /// Within a minute, and less exact.
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON, every round of them.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as one page with pictures.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The image for `pool`, made by crates/bench/make-pool.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// A program that measures other queues in the same run: of tools/queue-peers, or one that drives OpenZFS's code.
    #[arg(long = "peer", value_name = "PROGRAM")]
    peers: Vec<PathBuf>,
    /// A program with OpenZFS's code in userspace: for `pool` without an image it makes a pool that both read; `write` and `zil`
    /// have it write the same.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "image")]
    peer_pool: Option<PathBuf>,
    /// For `write`, `zil` and `mount`: make files in this folder, up to 4 GiB at a time; the disk that it is on is what is measured.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// For `mount`: the program that mounts, if another build of this one is to be measured.
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Of `pool`, `write`, `zil` and `mount`, only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = parts())]
    only: Vec<String>,
    /// Rounds of each part of `pool`, `write`, `zil` and `mount`.
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u32>,
    /// Seconds of a round of `pool`, `write`, `zil` and `mount`.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Reads under way in `pool`'s memory-random.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    tasks: u64,
    /// Worker threads in `pool`'s memory-random and cache-hit.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    workers: usize,
    /// Measure nothing; show results that were written as JSON.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suites", "quick", "json", "image", "peers", "peer_pool"])]
    from: Option<PathBuf>,
    /// With --from: print Markdown.
    #[arg(long, requires = "from")]
    markdown: bool,
}

fn parts() -> PossibleValuesParser {
    let known = Part::ALL.map(|(name, _)| name).into_iter().chain(writing::PARTS).chain(mounted::PARTS);
    // Some have a name that a part of another suite has too.
    let more = zil::PARTS.into_iter().filter(|name| known.clone().all(|known| known != *name));
    PossibleValuesParser::new(known.clone().chain(more))
}

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Which {
    /// The task queue, and its history.
    Taskq,
    /// Account of detached I/O.
    Roots,
    /// Which child of a mirror is read, on modelled disks.
    Mirror,
    /// Checksums and parity.
    Codec,
    /// All layers, on a pool that OpenZFS made.
    Pool,
    /// Writing, all layers, on pools made for it.
    Write,
    /// Synchronous writes through the intent log.
    Zil,
    /// A mount beside bindfs and ext4. Takes root.
    Mount,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let report = match &args.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            serde_json::from_str(&text).with_context(|| format!("{}: no results of cenote bench", path.display()))?
        }
        None => measure(context, &args)?,
    };
    let write = |path: &PathBuf, text: String| std::fs::write(path, text).with_context(|| path.display().to_string());
    if let Some(path) = &args.json {
        write(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    if let Some(path) = &args.html {
        write(path, report.html())?;
    }
    context.out(if args.markdown { report.markdown() } else { report.text() })?;
    Ok(Outcome::Good)
}

fn measure(context: &Context, args: &Args) -> Result<Report> {
    let mut suites = args.suites.clone();
    let has_pool = args.image.is_some() || args.peer_pool.is_some();
    if suites.is_empty() {
        suites = vec![Which::Taskq, Which::Roots, Which::Mirror, Which::Codec];
        suites.extend(has_pool.then_some(Which::Pool));
    }
    if suites.contains(&Which::Pool) && !has_pool {
        return Err(usage(
            "pool wants --image FILE (crates/bench/make-pool makes one) or --peer-pool PROGRAM, which makes one itself",
        ));
    }
    let mut report = Report {
        command: command(args),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        machine: machine(args.image.as_deref()),
        suites: Vec::new(),
    };
    for which in suites {
        context.err(format!("measuring {}", which.name()));
        report.suites.push(which.measure(args, context.tunables())?);
    }
    Ok(report)
}

impl Which {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// On a thread of its own: suites start runtimes, and block.
    fn measure(self, args: &Args, settings: &Settings) -> Result<Suite> {
        let (args, settings) = (args.clone(), settings.clone());
        let thread = std::thread::spawn(move || match self {
            Self::Taskq => taskq::run(args.quick, &args.peers),
            Self::Roots => roots::run(args.quick),
            Self::Mirror => mirror::run(args.quick, &settings),
            Self::Codec => codec::run(args.quick),
            Self::Mount => {
                let made = scratch(args.folder.as_deref())?;
                mounted::run(&mounted::Options {
                    folder: made.path().to_owned(),
                    program: args.program.map_or_else(std::env::current_exe, Ok)?,
                    rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
                    seconds: args.seconds.unwrap_or(if args.quick { 2.0 } else { 6.0 }),
                    quick: args.quick,
                    only: args.only,
                })
            }
            Self::Write => {
                let made = scratch(args.folder.as_deref())?;
                writing::run(&writing::Options {
                    folder: made.path().to_owned(),
                    peer: args.peer_pool,
                    rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
                    seconds: args.seconds.unwrap_or(if args.quick { 3.0 } else { 8.0 }),
                    quick: args.quick,
                    only: args.only,
                })
            }
            Self::Zil => {
                let made = scratch(args.folder.as_deref())?;
                zil::run(&zil::Options {
                    folder: made.path().to_owned(),
                    peer: args.peer_pool,
                    rounds: args.rounds.unwrap_or(if args.quick { 1 } else { 3 }),
                    seconds: args.seconds.unwrap_or(if args.quick { 1.0 } else { 4.0 }),
                    quick: args.quick,
                    only: args.only,
                })
            }
            Self::Pool => {
                let folder = tempfile::tempdir()?;
                whole::run(&whole::Options {
                    image: args.image,
                    peer: args.peer_pool,
                    folder: folder.path().to_owned(),
                    parts: Part::ALL
                        .iter()
                        .filter(|(name, _)| args.only.iter().any(|only| only == name))
                        .map(|part| part.1)
                        .collect(),
                    quick: args.quick,
                    rounds: args.rounds,
                    seconds: args.seconds,
                    tasks: args.tasks.max(1),
                    workers: args.workers.max(1),
                })
            }
        });
        thread.join().map_err(|_| anyhow::anyhow!("{} panicked", self.name()))?
    }
}

/// A folder for files that are made, in the one named or where temporary files go.
fn scratch(folder: Option<&Path>) -> std::io::Result<tempfile::TempDir> {
    folder.map_or_else(tempfile::tempdir, tempfile::tempdir_in)
}

/// The command that makes such a report, as one would type it; paths by what they are.
fn command(args: &Args) -> String {
    let mut words = vec!["cenote bench".to_owned()];
    words.extend(args.suites.iter().map(|which| which.name()));
    words.extend(args.quick.then(|| "--quick".to_owned()));
    words.extend(args.image.as_ref().map(|_| "--image IMAGE".to_owned()));
    words.extend(args.peer_pool.as_ref().map(|_| "--peer-pool PROGRAM".to_owned()));
    words.extend(args.program.as_ref().map(|_| "--program PROGRAM".to_owned()));
    words.extend(args.peers.iter().map(|_| "--peer PROGRAM".to_owned()));
    if !args.only.is_empty() {
        words.push(format!("--only {}", args.only.join(",")));
    }
    words.extend(args.rounds.map(|rounds| format!("--rounds {rounds}")));
    words.extend(args.seconds.map(|seconds| format!("--seconds {seconds}")));
    words.extend((args.tasks > 1).then(|| format!("--tasks {}", args.tasks)));
    words.extend((args.workers > 1).then(|| format!("--workers {}", args.workers)));
    words.join(" ")
}
