//! `zpool events`: what happened to the pools that servers and mounts have.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use cenote_listing::{event_line, event_members};
use cenote_server::protocol;

use crate::prelude::*;
use crate::time;

/// How often processes are asked for new events.
const ASKED_EVERY: Duration = Duration::from_millis(500);

/// Show what happened to pools that a server or a mount has, since it has them: errors of devices, changes, what was done.
///
/// A process keeps the newest events of each of its pools (--tunable zfs_zevent_len_max), and they end with it. Commands that open a pool by
/// themselves keep none: 'zpool history -i' has what they did.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// All that each event says.
    #[arg(short = 'v')]
    verbose: bool,
    /// A tab in place of a space, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Go on, and show new ones as they come.
    #[arg(short = 'f')]
    follow: bool,
    /// Forget all events.
    #[arg(short = 'c', conflicts_with_all = ["verbose", "scripted", "follow", "pool"])]
    clear: bool,
    /// Those after this one, for the process that asks.
    #[arg(long, hide = true)]
    after: Option<u64>,
    /// Of this pool only.
    #[arg(value_name = "POOL")]
    pool: Option<String>,
}

/// The answer of a process that has a pool.
#[derive(Default, Serialize, Deserialize)]
struct Told {
    /// Events that it cleared.
    cleared: usize,
    /// Events that were dropped before they were told.
    dropped: u64,
    /// The last that it has told.
    last: u64,
    /// For each its time, in seconds and nanoseconds, and its text.
    events: Vec<((u64, u32), String)>,
}

/// Whether a pool can be called so: with '-f' one that is not there yet is waited for.
fn is_pool_name(name: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.: ".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphabetic()) && name.chars().all(is_plain)
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if let Some(pool) = args.pool.as_ref().filter(|name| !is_pool_name(name)) {
        anyhow::bail!("cannot open '{pool}': invalid pool name");
    }
    if let Some(pool) = context.served() {
        let events = pool.events();
        let mut told = Told { cleared: if args.clear { events.clear() } else { 0 }, ..Told::default() };
        let new = events.after(args.after.unwrap_or(0));
        told.dropped = new.dropped;
        told.last = new.events.last().map_or(args.after.unwrap_or(0), |event| event.eid);
        for event in new.events {
            let mut text = event_line(&event.list, args.scripted, time::format);
            if args.verbose {
                text.push_str(&event_members(&event.list));
            }
            told.events.push((event.time(), text));
        }
        context.out(serde_json::to_vec(&told)?)?;
        return Ok(Outcome::Good);
    }
    let mut seen: BTreeMap<PathBuf, u64> = BTreeMap::new();
    let mut is_first = true;
    loop {
        let mut servers = protocol::servers();
        servers.retain(|(_, who)| args.pool.as_ref().is_none_or(|pool| who.is_called(pool)));
        if is_first && servers.is_empty() && !args.follow {
            if let Some(pool) = &args.pool {
                context.without_sending().check_reachable(pool).await?;
            }
            let which = args.pool.as_ref().map_or_else(|| "a pool".to_owned(), |pool| format!("the pool '{pool}'"));
            bail!(
                "no server has {which}: events are kept by 'cenote serve --rw' and 'cenote mount --rw', while they run"
            );
        }
        if std::mem::take(&mut is_first) && !args.scripted && !args.clear {
            context.out(format!("{:<30} {}\n", "TIME", "CLASS"))?;
        }
        let (mut events, mut cleared) = (Vec::new(), 0);
        for (socket, _) in servers {
            let after = seen.entry(socket.clone()).or_default();
            let Ok(told) = args.told(context, &socket, *after) else { continue };
            if told.dropped > 0 {
                context.out(format!("dropped {} events\n", told.dropped))?;
            }
            (*after, cleared) = (told.last, cleared + told.cleared);
            events.extend(told.events);
        }
        if args.clear {
            context.out(format!("cleared {cleared} events\n"))?;
            return Ok(Outcome::Good);
        }
        events.sort_by_key(|(time, _)| *time);
        events.iter().try_for_each(|(_, text)| context.out(text))?;
        if !args.follow {
            return Ok(Outcome::Good);
        }
        context.output().flush()?;
        context.handle().sleep(ASKED_EVERY).await;
    }
}

impl Args {
    /// Asks the process at a socket.
    fn told(&self, context: &Context, socket: &std::path::Path, after: u64) -> Result<Told> {
        let after = format!("--after={after}");
        let flags = [(self.verbose, "-v"), (self.scripted, "-H"), (self.clear, "-c"), (!self.clear, &*after)];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        let line: Vec<&OsStr> = ["cenote", "zpool", "events"].into_iter().chain(flags).map(OsStr::new).collect();
        let (text, status) = context.asked(socket, &line)?;
        anyhow::ensure!(status == 0, "a process does not tell its events");
        Ok(serde_json::from_slice(&text)?)
    }
}
