//! `zpool import`: which pools are there, and opening them.
//!
//! Opening a pool is reading it: what is imported is noted in the cache file, where other commands find it, and nothing on
//! the pool's devices changes. An import therefore never competes with another system's, but what is read of a pool that
//! changes meanwhile need not be consistent, which is why `-f` is asked for all the same.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use cenote_format::ids::Txg;
use cenote_listing::Importable;
use cenote_server::{ServerError, protocol};
use cenote_spa::{FoundPool, PoolState, Rewind, SpaError, View};
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use cenote_host::device_paths;
use cenote_host::{CacheFile, Entry};

/// List pools that can be imported, or import some: check that they open, and note where they are.
///
/// Every pool is opened read-only, whatever the options say; nothing is written to its devices.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Look for devices in this directory, or at this file or device.
    #[arg(id = "import-dir", short = 'd', value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Import all pools that are found.
    #[arg(short = 'a')]
    all: bool,
    /// Only destroyed pools.
    #[arg(short = 'D')]
    destroyed: bool,
    /// Import although the pool was last in use by another system, or was not exported.
    #[arg(short = 'f')]
    force: bool,
    /// Go back to an earlier txg if the newest cannot be read.
    #[arg(short = 'F')]
    rewind: bool,
    /// With -F, only say whether that would work.
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -F, go back as far as it takes.
    #[arg(short = 'X')]
    extreme: bool,
    /// Import at this txg, or the newest before it.
    #[arg(short = 'T', value_name = "TXG")]
    txg: Option<String>,
    /// Go on without log devices that are missing.
    #[arg(short = 'm')]
    missing_log: bool,
    /// Do not mount anything: nothing is ever mounted by an import here.
    #[arg(short = 'N')]
    no_mount: bool,
    /// Put mount points below this directory.
    #[arg(short = 'R', value_name = "ROOT")]
    root: Option<String>,
    /// Properties for this import, such as readonly=on or cachefile=none.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    options: Vec<String>,
    /// Search devices: this is always done.
    #[arg(short = 's')]
    scan: bool,
    /// The new name is for this import alone: it always is.
    #[arg(short = 't')]
    temporary: bool,
    /// Import the pool as of its checkpoint.
    #[arg(long)]
    rewind_to_checkpoint: bool,
    /// The pool's name or guid.
    pool: Option<String>,
    /// A name to have here.
    #[arg(value_name = "NEWPOOL")]
    new_name: Option<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    check(&args)?;
    let context = context.with(&Search { paths: args.paths.clone(), force: args.force });
    let noted = CacheFile::of_user()?.pools()?;
    let searched = context.search_pools().await?;
    let (hints, denied) = (searched.hints(context.handle()).await, searched.denied());
    let mut found = searched.pools;
    found.retain(|pool| (pool.state() == PoolState::Destroyed) == args.destroyed);
    if let Some(name) = &args.pool {
        let target = args.new_name.as_ref().unwrap_or(name);
        if let Some(new_name) = &args.new_name {
            cenote_dsl::name::check_new_pool(new_name)
                .map_err(|reason| anyhow!("cannot import '{new_name}': {reason}"))?;
        }
        let is_noted = noted.contains_key(target) || noted.values().any(|entry| target.parse() == Ok(entry.guid));
        let found = cenote_server::choose(found, name).map_err(|error| match error {
            ServerError::NoSuchPool(_) if hints.is_empty() => SpaError::NoSuchPool(name.clone()).into(),
            ServerError::NoSuchPool(_) => anyhow!("{}\n{}", SpaError::NoSuchPool(name.clone()), hints.join("\n")),
            error => error.into(),
        })?;
        if is_noted {
            bail!(
                "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name"
            );
        }
        if let Some((other, _)) = noted.iter().find(|(_, entry)| entry.guid == found.guid.0) {
            bail!("cannot import '{name}': it is imported already, as '{other}'\nuse 'zpool export {other}' first");
        }
        return import_one(&context, &args, found).await;
    }
    // What is imported is not there to be imported.
    let served = protocol::servers();
    let is_served = |pool: &FoundPool| served.iter().any(|(_, who)| who.guid == pool.guid.0);
    found.retain(|pool| !noted.values().any(|entry| entry.guid == pool.guid.0) && !is_served(pool));
    found.sort_by(|a, b| (a.name(), a.guid).cmp(&(b.name(), b.guid)));
    if found.is_empty() {
        context.err("no pools available to import");
        hints.iter().for_each(|hint| context.err(hint));
        // There may be pools on devices that this user may not open.
        return Ok(Outcome::unless(args.all || denied > 0));
    }
    let mut failed = false;
    let mut text = String::new();
    let mut imported: BTreeSet<String> = noted.keys().cloned().collect();
    for pool in found {
        if args.all {
            if !imported.insert(pool.name().to_owned()) {
                context.err(format!("cannot import '{}': a pool with that name already exists", pool.name()));
                failed = true;
                continue;
            }
            if let Err(error) = import_one(&context, &args, pool).await {
                context.err(format!("{error:#}"));
                failed = true;
            }
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let looking = Importable::looking(context.import_options());
        let opened = context.import(pool.clone(), &looking).await;
        Importable { found: pool, opened, host_id: looking.host_id }.describe(&mut text).await;
    }
    context.out(text)?;
    Ok(Outcome::unless(failed))
}

/// Refuses what contradicts itself, and what cannot be done.
fn check(args: &Args) -> Result<()> {
    if (args.dry_run || args.extreme) && !args.rewind {
        return Err(usage("-n or -X only meaningful with -F"));
    }
    if args.all && args.pool.is_some() {
        return Err(usage("too many arguments"));
    }
    if let Some(txg) = &args.txg {
        parse_txg(txg)?;
    }
    for option in &args.options {
        let Some((name, value)) = option.split_once('=') else {
            bail!("not supported yet: mount options ('{option}')");
        };
        match name {
            "readonly" if value == "on" => {}
            "readonly" => bail!("not supported yet: importing for writing; every import is read-only"),
            "cachefile" | "altroot" => {}
            _ if cenote_props::pool::find(name).is_some() => {
                bail!("not supported yet: the property '{name}' for an import")
            }
            _ => return Err(usage(format!("property '{name}' is not a valid pool or vdev property"))),
        }
    }
    Ok(())
}

/// A txg, decimal or hexadecimal.
fn parse_txg(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| usage("invalid txg value"))
}

fn option<'a>(args: &'a Args, name: &str) -> Option<&'a str> {
    args.options.iter().rev().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

async fn import_one(context: &Context, args: &Args, found: FoundPool) -> Result<Outcome> {
    let mut options = context.import_options();
    options.destroyed = args.destroyed;
    options.missing_log |= args.missing_log;
    options.checkpoint |= args.rewind_to_checkpoint;
    options.altroot = args.root.as_deref().or_else(|| option(args, "altroot")).map(str::to_owned);
    options.new_name.clone_from(&args.new_name);
    if let Some(root) = &options.altroot
        && !root.starts_with('/')
    {
        bail!("cannot import '{}': bad alternate root '{root}'", found.name());
    }
    if let Some(txg) = &args.txg {
        options.rewind = Rewind::ToTxg(Txg(parse_txg(txg)?));
    } else if args.rewind {
        options.rewind = if args.extreme { Rewind::Extreme } else { Rewind::Recent };
    }
    let own_name = found.name().to_owned();
    let entry = Entry {
        guid: found.guid.0,
        paths: device_paths(&found)?,
        force: options.force,
        destroyed: options.destroyed,
        missing_log: options.missing_log,
        altroot: options.altroot.clone(),
        rewind: match options.rewind {
            Rewind::None => None,
            Rewind::Recent => Some("recent".into()),
            Rewind::Extreme => Some("extreme".into()),
            Rewind::ToTxg(txg) => Some(txg.0.to_string()),
        },
        checkpoint: options.checkpoint,
        own_name: args.new_name.is_some().then_some(own_name),
        ..Entry::default()
    };
    let pool = context.import(found, &options).await?;
    context.load_keys(&pool).await?;
    // The note is what makes it imported. A file from which a kernel would import it at its next start, which `cachefile`
    // is about, does not exist here.
    if !args.dry_run {
        CacheFile::of_user()?.update(|pools| {
            pools.insert(pool.name().to_owned(), entry);
            anyhow::Ok(())
        })?;
    }
    summary(context, args, &pool);
    Ok(Outcome::Good)
}

/// Says what was opened.
fn summary(context: &Context, args: &Args, pool: &View) {
    let state = pool.tree().status().state.name();
    let did = if args.dry_run { "would be" } else { "is" };
    context.err(format!("pool '{}' {did} open read-only at txg {}, {state}", pool.name(), pool.txg()));
    pool.notes().iter().for_each(|note| context.err(format!("  {note}")));
}
