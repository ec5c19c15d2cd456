//! `cenote bench`: the founding mechanisms, each beside its predecessors, on this machine.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cenote_bench::report::{Report, Suite};
use cenote_bench::{codec, machine, mirror, roots, taskq, whole};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::{Outcome, usage};

/// Measure the mechanisms that Cenote grew out of, each beside what came before it.
///
/// Whether a target was reached is printed beside it and does not change the exit status.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// What to measure; all but `pool` if nothing is named.
    #[arg(value_name = "SUITE")]
    suites: Vec<Which>,
    /// Within a minute, and less exact.
    #[arg(long)]
    quick: bool,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as one page with pictures.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The image for `pool`, made by crates/bench/make-pool.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Measure nothing; show results that were written as JSON.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suites", "quick", "json", "image"])]
    from: Option<PathBuf>,
    /// With --from: print Markdown.
    #[arg(long, requires = "from")]
    markdown: bool,
}

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Which {
    /// The task queue, and its history (M1).
    Taskq,
    /// Account of detached I/O (M2).
    Roots,
    /// Which child of a mirror is read, on modelled disks (M3).
    Mirror,
    /// Checksums and parity.
    Codec,
    /// All layers, on an image.
    Pool,
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
    if suites.is_empty() {
        suites = vec![Which::Taskq, Which::Roots, Which::Mirror, Which::Codec];
        suites.extend(args.image.is_some().then_some(Which::Pool));
    }
    if suites.contains(&Which::Pool) && args.image.is_none() {
        return Err(usage("pool wants --image FILE; crates/bench/make-pool makes one"));
    }
    let mut report = Report {
        command: command(args),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        machine: machine(),
        suites: Vec::new(),
    };
    for which in suites {
        context.err(format!("measuring {}", which.name()));
        report.suites.push(which.measure(args)?);
    }
    Ok(report)
}

impl Which {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// On a thread of its own: suites start runtimes, and block.
    fn measure(self, args: &Args) -> Result<Suite> {
        let quick = args.quick;
        let image = args.image.clone().unwrap_or_default();
        let thread = std::thread::spawn(move || match self {
            Self::Taskq => taskq::run(quick),
            Self::Roots => roots::run(quick),
            Self::Mirror => mirror::run(quick),
            Self::Codec => codec::run(quick),
            Self::Pool => whole::run(&image, quick),
        });
        thread.join().map_err(|_| anyhow::anyhow!("{} panicked", self.name()))?
    }
}

/// The command that makes such a report, as one would type it.
fn command(args: &Args) -> String {
    let mut words = vec!["cenote bench".to_owned()];
    words.extend(args.quick.then(|| "--quick".to_owned()));
    words.extend(args.image.as_ref().map(|_| "--image IMAGE".to_owned()));
    words.extend(args.suites.iter().map(|which| which.name()));
    words.join(" ")
}
