//! `cenote bench`: what reading and writing cost on this machine.

use std::path::PathBuf;

use anyhow::Context as _;
use cenote_bench::report::Report;
use cenote_bench::suites::{self, Choice as _, Request, Which};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::prelude::*;

/// Measure what reading, writing and scrubbing a pool cost on this machine, and a mount beside other file systems.
///
/// Whether a target was reached is printed beside it and does not change the exit status.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Suites to run; if none is named `pool` where --image or --peer-pool says of what, and `write` otherwise.
    #[arg(value_name = "SUITE", value_parser = suite())]
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
    /// A program with OpenZFS's code in userspace: for `pool` without an image it makes a pool that both read; `write` and `redundancy` have it do the same.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "image")]
    peer_pool: Option<PathBuf>,
    /// For `write`, `mount` and `redundancy`: make files in this folder, up to 4 GiB at a time; the disk that it is on is what is measured.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// For `mount`: the program that mounts, if another build of this one is to be measured.
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// Of the suites, only these parts.
    #[arg(long, value_name = "PART", value_delimiter = ',', value_parser = PossibleValuesParser::new(suites::parts()))]
    only: Vec<String>,
    /// Rounds of each part.
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u32>,
    /// Seconds of a round.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Reads under way in `pool`'s memory-random.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    tasks: u64,
    /// Worker threads in `pool`'s memory-random and cache-hit.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    workers: usize,
    /// Measure nothing; show results that were written as JSON.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suites", "quick", "json", "image", "peer_pool"])]
    from: Option<PathBuf>,
    /// With --from: print Markdown.
    #[arg(long, requires = "from")]
    markdown: bool,
}

/// The suites that there are, by their names.
fn suite() -> impl TypedValueParser<Value = Which> {
    let names = Which::ALL.iter().map(|which| PossibleValue::new(which.name()).help(which.about()));
    PossibleValuesParser::new(names).try_map(|name| Which::named(&name).ok_or("there is no such suite"))
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let report = match &args.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            serde_json::from_str(&text).with_context(|| format!("{}: no results of cenote bench", path.display()))?
        }
        None => measure(context, args.clone())?,
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

fn measure(context: &Context, args: Args) -> Result<Report> {
    let request = Request {
        quick: args.quick,
        image: args.image,
        peer_pool: args.peer_pool,
        folder: args.folder,
        program: args.program,
        only: args.only,
        rounds: args.rounds,
        seconds: args.seconds,
        tasks: args.tasks,
        workers: args.workers,
        ..Request::new(args.suites)
    };
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string();
    request.measure(context.tunables(), date, &|name| context.err(format!("measuring {name}")))
}
