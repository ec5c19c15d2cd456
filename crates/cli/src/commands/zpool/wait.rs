//! `zpool wait`.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use cenote_admin::{Activity, wait};
use cenote_listing::{Left, nicenum};
use cenote_server::ServerError;

use crate::pools::facts;
use crate::prelude::*;
use crate::time;

/// Wait until work in the background of a pool is done; with an interval, show how many bytes are left of each activity.
///
/// Only a pool that a mount or a server has works in the background. Where no process has it and such work was begun and has not ended, this command says so,
/// with what makes it go on ('zpool resilver', 'zpool scrub', or a mount), and ends with status 1.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// The activities, with commas between them: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand. All of them if none is given.
    #[arg(short = 't', value_delimiter = ',', value_parser = activity)]
    activities: Vec<String>,
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// The heading once.
    #[arg(short = 'n')]
    heading_once: bool,
    /// Show the time first: u in seconds since 1970, d as a date.
    #[arg(short = 'T', value_name = "u|d")]
    timestamp: Option<String>,
    /// The rest of each activity now, for the process that asks.
    #[arg(long, hide = true, conflicts_with = "part")]
    row: bool,
    /// Wait for so many seconds at most, and tell whether it is done, for the process that asks.
    #[arg(long, hide = true, value_name = "SECONDS")]
    part: Option<f64>,
    /// The pool.
    pool: String,
    /// Show what is left each time so many seconds have passed.
    interval: Option<String>,
}

/// A word for an activity.
fn activity(word: &str) -> std::result::Result<String, String> {
    match Activity::WORDS.iter().any(|(known, _)| *known == word) {
        true => Ok(word.to_owned()),
        false => Err(format!("invalid activity '{word}'")),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let interval = args.interval()?;
    let Some(pool) = context.served() else {
        return match (context.check_reachable(&args.pool).await, interval) {
            (Err(ServerError::Owned(owned)), Some(interval)) => args.ask(context, &owned.socket, interval),
            (reachable, _) => {
                reachable?;
                args.alone(context, interval.is_some()).await
            }
        };
    };
    context.check_served(&args.pool)?;
    let meant = args.meant();
    let activities: Vec<Activity> = meant.iter().filter_map(|(_, activity)| *activity).collect();
    if args.row {
        context.out(args.row_of(context, &args.left(context).await?)?)?;
        return Ok(Outcome::Good);
    }
    let Some(part) = args.part.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) else {
        wait(pool, &activities).await?;
        return Ok(Outcome::Good);
    };
    let done = context.handle().timeout(part, wait(pool, &activities)).await.transpose()?;
    context.out(if done.is_some() { "done" } else { "" })?;
    Ok(Outcome::Good)
}

impl Args {
    /// The activities that are meant, in the order of their columns.
    fn meant(&self) -> Vec<(&'static str, Option<Activity>)> {
        let is_meant = |word: &str| self.activities.is_empty() || self.activities.iter().any(|meant| meant == word);
        Activity::WORDS.into_iter().filter(|(word, _)| is_meant(word)).collect()
    }

    /// Of a pool that no process has: what was begun stands.
    async fn alone(&self, context: &Context, shows_left: bool) -> Result<Outcome> {
        let left = self.left(context).await?;
        if shows_left {
            self.heading(context)?;
            context.out(self.row_of(context, &left)?)?;
        }
        let begun: Vec<&str> =
            self.meant().into_iter().map(|(word, _)| word).filter(|word| left.is_begun(word)).collect();
        if begun.is_empty() {
            return Ok(Outcome::Good);
        }
        let (pool, verb) = (&self.pool, if begun == ["scrub"] { "scrub" } else { "resilver" });
        context.err(format!(
            "no process works on '{pool}': {} {} begun and not done; 'zpool {verb} {pool}' goes on with it, or 'cenote mount --rw {pool} FOLDER' in \
             the background",
            begun.join(", "),
            if begun.len() == 1 { "was" } else { "were" },
        ));
        Ok(Outcome::Failed)
    }

    /// Of a pool that another process has: each line is shown as that tells it.
    fn ask(&self, context: &Context, socket: &Path, interval: Duration) -> Result<Outcome> {
        self.heading(context)?;
        let activities = self.activities.join(",");
        let activities = ["-t", &activities].into_iter().filter(|_| !self.activities.is_empty());
        let flags = [(self.scripted, "-H"), (self.exact, "-p")];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        let timestamp = self.timestamp.iter().flat_map(|how| ["-T", how]);
        let words: Vec<&str> = activities.chain(flags).chain(timestamp).collect();
        let part = format!("--part={}", interval.as_secs_f64());
        let told = |what: &str| {
            let line = ["cenote", "zpool", "wait", what].into_iter().chain(words.iter().copied()).chain([&*self.pool]);
            context.asked(socket, &line.map(OsStr::new).collect::<Vec<_>>())
        };
        loop {
            let (row, status) = told("--row")?;
            context.out(row)?;
            context.output().flush()?;
            let (done, waited) = if status == 0 { told(&part)? } else { (Vec::new(), status) };
            if waited != 0 {
                return Ok(Outcome::Failed);
            }
            if done == b"done" {
                return Ok(Outcome::Good);
            }
        }
    }

    fn interval(&self) -> Result<Option<Duration>> {
        let Some(word) = &self.interval else { return Ok(None) };
        let seconds = word.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds < 1e9);
        match seconds {
            Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
            None => Err(usage(format!("invalid interval '{word}': seconds, more than 0"))),
        }
    }

    fn heading(&self, context: &Context) -> Result<()> {
        if self.scripted {
            return Ok(());
        }
        let columns = self
            .meant()
            .into_iter()
            .map(|(word, _)| format!("{:>width$}", word.to_ascii_uppercase(), width = width(word)));
        context.out(columns.collect::<String>() + "\n")
    }

    async fn left(&self, context: &Context) -> Result<Left> {
        Ok(Left::read(&facts(context, context.open_pool(&self.pool).await?)).await?)
    }

    /// A line of the rest of each activity.
    fn row_of(&self, context: &Context, left: &Left) -> Result<String> {
        let mut line = match &self.timestamp {
            Some(how) => time::stamp(context.handle(), how)? + "\n",
            None => String::new(),
        };
        for (word, _) in self.meant() {
            let bytes = left.of(word);
            let shown = if self.exact { bytes.to_string() } else { nicenum(bytes) };
            match self.scripted {
                // As OpenZFS has it: each column but the very first of all has a tab before it.
                true if word == Activity::WORDS[0].0 => line.push_str(&shown),
                true => line.extend(["\t", &shown]),
                false => line.push_str(&format!(" {shown:>width$}", width = width(word) - 1)),
            }
        }
        Ok(line + "\n")
    }
}

/// The width of a column: that of its title or of a number, and of the space before it.
fn width(word: &str) -> usize {
    word.len().max(6) + 2
}
