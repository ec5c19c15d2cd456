//! `cenote zpool …`: pools, in OpenZFS's grammar.

mod add;
mod attach;
mod checkpoint;
mod clear;
mod create;
mod destroy;
mod detach;
mod events;
mod export;
mod get;
mod history;
mod import;
mod initialize;
mod iostat;
mod labelclear;
mod list;
mod offline;
mod online;
mod reguid;
mod remove;
mod reopen;
mod replace;
mod resilver;
mod scrub;
mod set;
mod split;
mod status;
mod sync;
mod trim;
mod upgrade;
mod version;
mod wait;

use crate::args::Repeats;
use crate::prelude::*;

/// Refuses the name of a dataset or snapshot in the place of a pool's.
fn only_pool(name: &str) -> Result<()> {
    match name.chars().find(|letter| "/@#".contains(*letter)) {
        Some(letter) => anyhow::bail!("cannot open '{name}': invalid character '{letter}' in pool name"),
        None => Ok(()),
    }
}

/// Pools: create, add, attach, replace, detach, split, remove, offline, online, scrub, resilver, clear, upgrade, destroy, import, list, status,
/// properties, history, events.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Zpool,
}

crate::table::commands! {
    /// The commands for pools.
    enum Zpool {
        Add => add,
        Attach => attach,
        Checkpoint => checkpoint,
        Clear => clear,
        Create => create,
        Destroy => destroy,
        Detach => detach,
        Events => events,
        Export => export,
        Get => get,
        History => history,
        Import => import,
        Initialize => initialize,
        Iostat => iostat,
        Labelclear => labelclear,
        List => list,
        Offline => offline,
        Online => online,
        Reguid => reguid,
        Remove => remove,
        Reopen => reopen,
        Replace => replace,
        Resilver => resilver,
        Scrub => scrub,
        Set => set,
        Split => split,
        Status => status,
        Sync => sync,
        Trim => trim,
        Upgrade => upgrade,
        Version => version,
        Wait => wait,
    }
}

impl Args {
    /// The commands that make up this one, each for one pool, where it is for several: whoever has a pool does its part.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let parts: Vec<Zpool> = match &self.command {
            Zpool::Initialize(args) => args.of_pools().into_iter().map(Zpool::Initialize).collect(),
            Zpool::Trim(args) => args.of_pools().into_iter().map(Zpool::Trim).collect(),
            Zpool::Reopen(args) => args.of_pools().into_iter().map(Zpool::Reopen).collect(),
            Zpool::Resilver(args) => args.of_pools().into_iter().map(Zpool::Resilver).collect(),
            Zpool::Scrub(args) => args.of_pools().into_iter().map(Zpool::Scrub).collect(),
            _ => Vec::new(),
        };
        parts.into_iter().map(|command| Self { command, search: self.search.clone() }).collect()
    }

    /// Whether the server that has the pool can do it.
    pub(crate) const fn is_for_server(&self) -> bool {
        matches!(
            self.command,
            Zpool::Add(_)
                | Zpool::Attach(_)
                | Zpool::Checkpoint(_)
                | Zpool::Clear(_)
                | Zpool::Detach(_)
                | Zpool::Events(_)
                | Zpool::Export(_)
                | Zpool::Get(_)
                | Zpool::History(_)
                | Zpool::Initialize(_)
                | Zpool::Iostat(_)
                | Zpool::List(_)
                | Zpool::Offline(_)
                | Zpool::Online(_)
                | Zpool::Reguid(_)
                | Zpool::Remove(_)
                | Zpool::Reopen(_)
                | Zpool::Replace(_)
                | Zpool::Resilver(_)
                | Zpool::Scrub(_)
                | Zpool::Set(_)
                | Zpool::Split(_)
                | Zpool::Status(_)
                | Zpool::Sync(_)
                | Zpool::Trim(_)
                | Zpool::Wait(_)
        )
    }

    /// Whether it is `zpool status`.
    pub(crate) const fn is_status(&self) -> bool {
        matches!(&self.command, Zpool::Status(args) if !args.is_json())
    }

    /// How often it is done, where its line says so.
    pub(crate) fn repeats(&mut self) -> Result<Option<Repeats>> {
        match &mut self.command {
            Zpool::List(args) => take_repeats(&mut args.pools),
            Zpool::Status(args) => take_repeats(&mut args.pools),
            _ => Ok(None),
        }
    }

    /// From now on it is done again.
    pub(crate) fn go_on(&mut self) {
        if let Zpool::List(args) = &mut self.command {
            args.is_again = true;
        }
    }

    /// Whether it can be done while the pool's devices fail.
    pub(crate) const fn is_for_suspended(&self) -> bool {
        matches!(self.command, Zpool::Clear(_) | Zpool::Events(_) | Zpool::Export(_) | Zpool::Status(_))
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}

/// The interval and count at the end of a command's words, in OpenZFS's form: the last word is an interval, in seconds, or it is a count with
/// the interval before it. They are taken off. A number that is too large for an interval may be a pool's guid.
fn take_repeats(words: &mut Vec<String>) -> Result<Option<Repeats>> {
    const INTERVAL_MAX_S: f64 = 1e6;
    let seconds = |word: Option<&String>| {
        let seconds = word?.parse::<f64>().ok()?;
        (seconds < INTERVAL_MAX_S).then_some(seconds)
    };
    let Some(last) = seconds(words.last()) else { return Ok(None) };
    let before = words.len().checked_sub(2).and_then(|at| seconds(words.get(at)));
    let (interval, count) = match before {
        Some(interval) => (interval, Some(last)),
        None => (last, None),
    };
    let is_count = |count: f64| count >= 1.0 && count.fract() == 0.0;
    if interval <= 0.0 || !interval.is_finite() {
        return Err(crate::outcome::usage("interval cannot be zero"));
    }
    if count.is_some_and(|count| !is_count(count)) {
        return Err(crate::outcome::usage("count cannot be zero, nor a part of a number"));
    }
    words.truncate(words.len() - if count.is_some() { 2 } else { 1 });
    Ok(Some(Repeats { interval: std::time::Duration::from_secs_f64(interval), count: count.map(|count| count as u64) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_and_a_count_stand_behind_the_pools() {
        let taken = |line: &str| {
            let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let repeats = take_repeats(&mut words).map_err(|error| error.to_string());
            (words.join(" "), repeats.map(|repeats| repeats.map(|it| (it.interval.as_secs_f64(), it.count))))
        };
        assert_eq!(taken("tank pool2"), ("tank pool2".into(), Ok(None)));
        assert_eq!(taken("tank 1"), ("tank".into(), Ok(Some((1.0, None)))));
        assert_eq!(taken("0.5 3"), (String::new(), Ok(Some((0.5, Some(3))))));
        assert_eq!(taken("12345678901234567890").1, Ok(None), "a guid");
        for wrong in ["tank 0", "tank -1", "1 0", "1 2.5", "nan"] {
            assert!(taken(wrong).1.is_err() || wrong == "nan", "{wrong}");
        }
    }
}
