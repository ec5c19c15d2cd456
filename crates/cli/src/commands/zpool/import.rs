//! `zpool import`: which pools are there, and noting that they are imported ([`cenote_server::importing`]).

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use cenote_admin::values::{check_first, is_pool_property};
use cenote_host::CacheSetting;
use cenote_host::owners::note_gone_owner;
use cenote_listing::Importable;
use cenote_server::importing::{ImportRequest, rewind_to};
use cenote_server::{FoundPool, Rewind};

use crate::prelude::*;

/// List pools that can be imported, or import some: check that they open, and note where they are.
///
/// Nothing is mounted, and nothing is written to a pool's devices until a command changes it; but the labels of a pool that was destroyed say
/// at once that it is not.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Look for devices in this directory, or at this file or device.
    #[arg(id = "import-dir", short = 'd', value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Look at the devices of the pools that are noted in this file, and for no others.
    #[arg(short = 'c', value_name = "CACHEFILE")]
    cachefile: Option<PathBuf>,
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
    /// Properties for this import: readonly=on (nothing changes it), cachefile=none (until the system is started anew), cachefile=FILE (which
    /// `-c` finds it by after that), altroot=ROOT.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    options: Vec<String>,
    /// Search devices: this is always done.
    #[arg(short = 's')]
    scan: bool,
    /// The new name is for this import alone: it always is.
    #[arg(short = 't')]
    temporary: bool,
    /// Take the pool back to its checkpoint: what came after it is lost. With -o readonly=on it is only shown so.
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
    let searched = match &args.cachefile {
        Some(file) => context.search_listed(file).await?,
        None => context.search_pools().await?,
    };
    let searched = searched.of_state(args.destroyed);
    if let Some(name) = &args.pool {
        let found = context.choose_import(searched, name, args.new_name.as_deref()).await?;
        return import_one(&context, &args, found).await;
    }
    let (hints, denied) = (searched.hints(context.handle()).await, searched.denied());
    // Pools that are imported already cannot be imported.
    let (found, imported) = context.importable(searched.pools)?;
    if found.is_empty() {
        context.err("no pools available to import");
        hints.iter().for_each(|hint| context.err(hint));
        // There may be pools on devices that this user may not open.
        return Ok(Outcome::unless(args.all || denied > 0));
    }
    let mut failed = false;
    let mut text = String::new();
    let mut imported: BTreeSet<String> = imported.into_iter().collect();
    for pool in found {
        if args.all {
            if !imported.insert(pool.name().to_owned()) {
                context.err(format!("cannot import '{}': a pool with that name already exists", pool.name()));
                failed = true;
                continue;
            }
            if let Err(error) = import_one(&context, &args, pool).await {
                context.err(causes(&error));
                failed = true;
            }
            continue;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        let looking = Importable::looking(context.import_options());
        let opened = context.import(pool.clone(), &looking).await;
        let mut writing = context.import_options();
        note_gone_owner(&pool, &mut writing);
        let needs_force = pool.needs_force(&writing);
        Importable { found: pool, opened, needs_force }.describe(&mut text).await;
    }
    context.out(text)?;
    Ok(Outcome::unless(failed))
}

/// Refuses what contradicts itself, and what cannot be done.
fn check(args: &Args) -> Result<()> {
    if (args.dry_run || args.extreme) && !args.rewind {
        return Err(usage("-n or -X only meaningful with -F"));
    }
    if args.cachefile.is_some() && (!args.paths.is_empty() || args.scan) {
        return Err(usage(format!("-c is incompatible with -{}", if args.scan { 's' } else { 'd' })));
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
        check_first(name)
            .map_err(|error| anyhow!("cannot import {}: {error}", args.pool.as_deref().unwrap_or("pools")))?;
        match name {
            "readonly" if matches!(value, "on" | "off") => {}
            "readonly" => bail!("invalid value '{value}' for property 'readonly': 'on' or 'off'"),
            "cachefile" => drop(CacheSetting::parse(value)?),
            "altroot" => {}
            _ if is_pool_property(name) => {
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
    let rewind = match (&args.txg, args.rewind, args.extreme) {
        (Some(txg), ..) => Some(rewind_to(parse_txg(txg)?)),
        (None, true, true) => Some(Rewind::Extreme),
        (None, true, false) => Some(Rewind::Recent),
        (None, false, _) => None,
    };
    let altroot = args.root.as_deref().or_else(|| option(args, "altroot")).map(str::to_owned);
    let request = ImportRequest {
        destroyed: args.destroyed,
        missing_log: args.missing_log,
        at_checkpoint: args.rewind_to_checkpoint,
        new_name: args.new_name.clone(),
        rewind,
        is_dry: args.dry_run,
        is_read_only: option(args, "readonly") == Some("on"),
        cachefile: CacheSetting::of_import(option(args, "cachefile"), altroot.is_some())?,
        altroot,
    };
    let pool = context.import_noted(found, &request).await?;
    let state = pool.tree().status().state.name();
    let (did, name) = (if args.dry_run { "can be" } else { "is" }, pool.name());
    let how = if request.is_read_only { " read-only" } else { "" };
    context.advise(format!(
        "pool '{name}' {did} imported{how} as of txg {}, {state}; nothing is mounted by that",
        pool.txg()
    ));
    pool.notes().iter().for_each(|note| context.advise(format!("  {note}")));
    Ok(Outcome::Good)
}
