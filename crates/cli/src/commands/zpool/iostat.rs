//! `zpool iostat`: what the devices of served pools do.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cenote_listing::{IoTable, NamedVdev, Names, VdevIo};
use cenote_server::protocol;
use serde_json::{Value, json};

use crate::args::Repeats;
use crate::pools::{NameArgs, facts, scripts};
use crate::prelude::*;
use crate::time;

/// Show what the devices of pools that a server or a mount has are doing: since it has them, or in each interval.
///
/// Requests are counted at the devices. A vdev above them shows what its devices read; of a mirror, the writes of the device that has most.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Also the vdevs.
    #[arg(short = 'v')]
    verbose: bool,
    /// Mean times: those at the device are counted.
    #[arg(short = 'l', conflicts_with = "histogram")]
    latencies: bool,
    /// Requests that wait in queues, and those that devices have.
    #[arg(short = 'q', conflicts_with = "histogram")]
    queues: bool,
    /// How often requests took how long.
    #[arg(short = 'w')]
    histogram: bool,
    /// How often requests had which size: those that went to a device alone, and those that took others along.
    #[arg(short = 'r', conflicts_with_all = ["latencies", "queues", "histogram"])]
    request_sizes: bool,
    /// Not what came before the first interval.
    #[arg(short = 'y')]
    omits_first: bool,
    /// The heading once.
    #[arg(short = 'n')]
    heading_once: bool,
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// Run scripts for each device, and show what they tell: names with commas between them. Without one, those that there are.
    #[arg(short = 'c', value_name = "SCRIPTS", num_args = 0..=1, default_missing_value = "")]
    scripts: Option<String>,
    #[command(flatten)]
    names: NameArgs,
    /// Show the time first: u in seconds since 1970, d as a date.
    #[arg(short = 'T', value_name = "u|d")]
    timestamp: Option<String>,
    /// The counts, for the process that asks.
    #[arg(long, hide = true)]
    counts: bool,
    /// The pools, or a pool and vdevs of it, or vdevs of any pool; and behind them after how many seconds it is done again, and how often, such as `tank 5 10`.
    #[arg(value_name = "POOL|VDEV")]
    names_of: Vec<String>,
}

/// The counts of a pool, and when they were taken: since the process has the pool, in nanoseconds.
type Counted = (VdevIo, u64);

pub(crate) async fn run(context: &Context, mut args: Args) -> Result<Outcome> {
    if let Some(pool) = context.served() {
        let name = pool.name().to_owned();
        let facts = facts(context, context.open_pool(&name).await?);
        let tree = facts.tree(Names::from(args.names)).await?;
        let leaves = pool.leaf_io();
        let at = u64::try_from(pool.open_for().as_nanos()).unwrap_or(u64::MAX);
        context.out(serde_json::to_vec(&json!([at, VdevIo::of_tree(&tree, leaves).to_json()]))?)?;
        return Ok(Outcome::Good);
    }
    let repeats = super::take_repeats(&mut args.names_of)?;
    match args.scripts.as_deref() {
        Some("") => {
            context.out(scripts::available("iostat"))?;
            return Ok(Outcome::Good);
        }
        Some(_) => scripts::check()?,
        None => {}
    }
    let plain = IoTable {
        is_verbose: args.verbose || args.scripts.is_some(),
        has_latencies: args.latencies,
        has_queues: args.queues,
        is_histogram: args.histogram,
        is_of_sizes: args.request_sizes,
        is_scripted: args.scripted,
        is_exact: args.exact,
        scripts: None,
        only: &[],
    };
    let mut before: Vec<Counted> = Vec::new();
    let Repeats { interval, count } = repeats.unwrap_or(Repeats { interval: Duration::ZERO, count: Some(1) });
    let (mut is_first, mut has_shown, mut left) = (true, false, count);
    loop {
        let (counted, only) = args.counted(context).await?;
        let told = args.scripts.as_ref().map(|names| {
            let of_pool = |pool: &VdevIo| {
                pool.paths().into_iter().map(|path| (pool.name().to_owned(), path.to_owned())).collect::<Vec<_>>()
            };
            scripts::run(names, &counted.iter().flat_map(|(pool, _)| of_pool(pool)).collect::<Vec<_>>())
        });
        let table = IoTable { scripts: told.as_ref(), only: &only, ..plain };
        let skips = is_first && args.omits_first && repeats.is_some();
        if !skips {
            if let Some(how) = &args.timestamp {
                context.out(time::stamp(context.handle(), how)? + "\n")?;
            }
            let width = table.name_width(counted.iter().map(|(pool, _)| pool));
            let is_other = before.len() != counted.len() || table.has_vdevs();
            // An interval that was left out (`-y`) had no heading either.
            let has_heading = !has_shown || (is_other && !args.heading_once);
            if has_heading && !args.scripted && !table.has_histograms() {
                context.out(table.heading(width))?;
            }
            has_shown = true;
            for (pool, at) in &counted {
                let earlier = before.iter().find(|(other, _)| other.name() == pool.name());
                let (since, from) = earlier.map_or_else(|| (pool.clone(), 0), |(old, from)| (pool.since(old), *from));
                context.out(table.rows(&since, Duration::from_nanos(at.saturating_sub(from)), width))?;
            }
            if counted.len() > 1 && !table.has_vdevs() && !args.scripted && !table.has_histograms() {
                context.out(table.line(width))?;
            }
            context.output().flush()?;
            left = left.map(|left| left.saturating_sub(1));
        }
        if left == Some(0) {
            return Ok(Outcome::Good);
        }
        (before, is_first) = (counted, false);
        context.handle().sleep(interval).await;
    }
}

impl Args {
    /// The counts of the pools that are meant, each from the process that has it, and the vdevs that are; none where the pools themselves are.
    async fn counted(&self, context: &Context) -> Result<(Vec<Counted>, Vec<NamedVdev>)> {
        let words = &self.names_of;
        let servers = protocol::servers();
        let is_pool = |word: &String| servers.iter().any(|(_, who)| who.is_called(word));
        // Words behind the first are vdevs of that pool, if it is one, unless all are pools.
        let (pools, vdevs) = match words.first() {
            _ if words.iter().all(is_pool) => (&words[..], &[][..]),
            Some(first) if is_pool(first) => words.split_at(1),
            _ => (&[][..], &words[..]),
        };
        let no_server = |word: &str| {
            anyhow!(
                "no server has the pool '{word}': requests are counted by 'cenote serve --rw' and 'cenote mount --rw', while they run; \
                 'zpool list -v {word}' shows its space"
            )
        };
        if let (true, Some(word)) = (servers.is_empty(), words.first()) {
            context.without_sending().check_reachable(word).await?;
            return Err(no_server(word));
        }
        let counted = self.asked(context, servers, pools)?;
        let mut only = Vec::new();
        for word in vdevs {
            let found = counted.iter().find_map(|(pool, _)| pool.named(word));
            match pools.first() {
                None if found.is_none() => {
                    context.without_sending().check_reachable(word).await?;
                    return Err(no_server(word));
                }
                Some(pool) if found.is_none() => {
                    bail!("'{word}' is no vdev of '{pool}', and no pool that a server has")
                }
                _ => only.extend(found),
            }
        }
        Ok((counted, only))
    }

    /// The counts of these pools, and of all if none is named.
    fn asked(
        &self,
        context: &Context,
        servers: Vec<(PathBuf, protocol::Who)>,
        pools: &[String],
    ) -> Result<Vec<Counted>> {
        let is_meant = |who: &protocol::Who| pools.is_empty() || pools.iter().any(|name| who.is_called(name));
        let mut counted = Vec::new();
        for (socket, who) in servers.into_iter().filter(|(_, who)| is_meant(who)) {
            let line = ["cenote", "zpool", "iostat", "--counts"].into_iter().chain(self.names.options());
            let (text, status) = context.asked(&socket, &line.map(OsStr::new).collect::<Vec<_>>())?;
            anyhow::ensure!(status == 0, "pool '{}': its process does not tell its counts", who.pool);
            let value: Value = serde_json::from_slice(&text)?;
            let pool = value.get(1).and_then(VdevIo::from_json);
            let at = value.get(0).and_then(Value::as_u64);
            counted.push(pool.zip(at).context("these are no counts")?);
        }
        anyhow::ensure!(
            !counted.is_empty(),
            "no server has a pool: requests are counted by 'cenote serve --rw' and 'cenote mount --rw', while they run"
        );
        counted.sort_by(|(one, _), (other, _)| one.name().cmp(other.name()));
        Ok(counted)
    }
}
