//! `zpool wait`.

use std::time::Duration;

use cenote_admin::{Activity, wait};
use cenote_listing::{Left, nicenum};

use crate::pools::facts;
use crate::prelude::*;
use crate::time;

/// Wait until work in the background of a pool is done; with an interval, show how many bytes are left of each activity.
///
/// Only a pool that a mount or a server has works in the background; of others there is nothing to wait for.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
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
        context.check_reachable(&args.pool).await?;
        if interval.is_some() {
            args.heading(context)?;
            args.row(context).await?;
        }
        return Ok(Outcome::Good);
    };
    context.check_served(&args.pool)?;
    let meant = args.meant();
    let activities: Vec<Activity> = meant.iter().filter_map(|(_, activity)| *activity).collect();
    let Some(interval) = interval else {
        wait(pool, &activities).await?;
        return Ok(Outcome::Good);
    };
    args.heading(context)?;
    loop {
        args.row(context).await?;
        if let Some(done) = context.handle().timeout(interval, wait(pool, &activities)).await {
            done?;
            return Ok(Outcome::Good);
        }
    }
}

impl Args {
    /// The activities that are meant, in the order of their columns.
    fn meant(&self) -> Vec<(&'static str, Option<Activity>)> {
        let is_meant = |word: &str| self.activities.is_empty() || self.activities.iter().any(|meant| meant == word);
        Activity::WORDS.into_iter().filter(|(word, _)| is_meant(word)).collect()
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

    /// The rest of each activity now.
    async fn row(&self, context: &Context) -> Result<()> {
        let left = Left::read(&facts(context, context.open_pool(&self.pool).await?)).await?;
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
        context.out(line + "\n")?;
        context.output().flush()?;
        Ok(())
    }
}

/// The width of a column: that of its title or of a number, and of the space before it.
fn width(word: &str) -> usize {
    word.len().max(6) + 2
}
