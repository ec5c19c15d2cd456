//! `zpool import`: which pools are there, and opening them.
//!
//! Opening a pool is reading it: what is imported is noted in the cache file, where other commands find it, and nothing on
//! the pool's devices changes. An import therefore never competes with another system's, but what is read of a pool that
//! changes meanwhile need not be consistent, which is why `-f` is asked for all the same.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use cenote_format::ids::Txg;
use cenote_listing::{DEDUP, Facts, LOGS, Names, SPECIAL, Tree, Vdev, found_tree};
use cenote_server::protocol;
use cenote_spa::{FoundPool, ImportOptions, PoolState, Rewind, SpaError, View, device_condition};
use serde::{Deserialize, Serialize};

use super::status::width;
use crate::args::Search;
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::output::escape::one_line;
use crate::pools::advice::{self, ImportAdvice};
use cenote_host::device_paths;
use cenote_host::{CacheFile, Entry};

/// Where OpenZFS explains its messages.
const MESSAGES: &str = "https://openzfs.github.io/openzfs-docs/msg";
/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;

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
    let (hints, denied) = (searched.hints(&context).await, searched.denied());
    let mut found = searched.pools;
    found.retain(|pool| (pool.state() == PoolState::Destroyed) == args.destroyed);
    if let Some(name) = &args.pool {
        let target = args.new_name.as_ref().unwrap_or(name);
        if let Some(new_name) = &args.new_name {
            cenote_dsl::name::check_new_pool(new_name)
                .map_err(|reason| anyhow!("cannot import '{new_name}': {reason}"))?;
        }
        let is_noted = noted.contains_key(target) || noted.values().any(|entry| target.parse() == Ok(entry.guid));
        let found =
            crate::context::choose(found, name).map_err(|error| match crate::missingpool::is_no_such_pool(&error) {
                true if hints.is_empty() => SpaError::NoSuchPool(name.clone()).into(),
                true => anyhow!("{}\n{}", SpaError::NoSuchPool(name.clone()), hints.join("\n")),
                false => error,
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
        show(&context, &mut text, pool).await;
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

/// Describes a pool that could be imported.
async fn show(context: &Context, text: &mut String, found: FoundPool) {
    let (name, guid) = (found.name().to_owned(), found.guid.0);
    let is_destroyed = found.state() == PoolState::Destroyed;
    let names = Names::default().with_paths();
    // Looks as hard as it can: what stands in the way of an import is what is to be shown.
    let looking = ImportOptions {
        force: true,
        destroyed: true,
        missing_log: true,
        missing_tops: true,
        ..context.import_options()
    };
    let is_elsewhere = is_elsewhere(&found, &looking);
    let opened = context.import(found.clone(), &looking).await;
    let mut active = None;
    let (tree, state, mut advice, unknown) = match opened {
        Ok(pool) => {
            let status = pool.tree().status();
            let state = status.state.name();
            let condition = cenote_spa::condition(&pool).await.ok().flatten();
            let condition = device_condition(&status).or(condition);
            let advice = advice::of_import(condition, state == "ONLINE", state == "UNAVAIL");
            let view = Facts::new(pool);
            (view.tree(names).await.ok(), state, advice, Vec::new())
        }
        Err(error) => {
            if let SpaError::Active { hostname, hostid, .. } = &error {
                active = Some(format!(
                    "The pool must be exported from {hostname} (hostid={hostid:x})\n\tbefore it can be safely imported."
                ));
            }
            let (advice, unknown) = refusal(error);
            let tree = match (found.vdevs(), found.status()) {
                (Ok(config), Ok(status)) => {
                    let root = found_tree(&found, &name, &config, &status, names);
                    Some(Tree { root, caches: Vec::new(), spares: Vec::new() })
                }
                _ => None,
            };
            (tree, "UNAVAIL", advice, unknown)
        }
    };
    if is_elsewhere && state != "UNAVAIL" {
        advice = advice::OTHER_SYSTEM;
    }
    // The text of a label was checked by nobody yet, and may be anything.
    let _ = writeln!(text, "  pool: {}\n    id: {guid}", one_line(&name));
    let _ = writeln!(text, " state: {state}{}", if is_destroyed { " (DESTROYED)" } else { "" });
    if let Some(status) = advice.status {
        let _ = writeln!(text, "status: {status}");
        for feature in unknown {
            let _ = writeln!(text, "\t{}", one_line(&feature));
        }
    }
    let _ = writeln!(text, "action: {}", active.as_deref().unwrap_or(advice.action));
    if let Some(comment) = found.newest().and_then(|leaf| leaf.config.str("comment")) {
        let _ = writeln!(text, "comment: {}", one_line(comment));
    }
    if is_destroyed {
        text.push_str("\tThe pool was destroyed, but can be imported using the '-Df' flags.\n");
    }
    if let Some(message) = advice.message {
        let _ = writeln!(text, "   see: {MESSAGES}/{message}");
    }
    text.push_str("config:\n\n");
    if let Some(tree) = &tree {
        let mut rows = Rows { width: width(tree).max(NAME_WIDTH_MIN), text };
        rows.all(tree, state, if active.is_some() { "currently in use" } else { "corrupted data" });
    }
    if advice.message == advice::UNKNOWN_DEVICES.message {
        text.push_str(
            "\n\tAdditional devices are known to be part of this pool, though their\n\texact configuration cannot be determined.\n",
        );
    }
}

/// Whether another system had the pool open.
fn is_elsewhere(found: &FoundPool, options: &ImportOptions) -> bool {
    let hostid = found.newest().and_then(|leaf| leaf.config.u64("hostid")).unwrap_or(0);
    found.state() == PoolState::Active && hostid != 0 && hostid != options.host_id
}

/// What to say of a pool that does not open, and which features are to blame.
fn refusal(error: SpaError) -> (ImportAdvice, Vec<String>) {
    match error {
        SpaError::Active { .. } => (advice::ACTIVE, Vec::new()),
        SpaError::UnsupportedFeatures { features, .. } => (advice::UNKNOWN_FEATURES, features),
        SpaError::UnsupportedVersion { .. } => (advice::UNKNOWN_VERSION, Vec::new()),
        SpaError::MissingDevices { .. } | SpaError::MissingLog { .. } => (advice::UNKNOWN_DEVICES, Vec::new()),
        _ => (advice::DAMAGED_ROOT, Vec::new()),
    }
}

/// The lines under `config:`.
struct Rows<'a> {
    width: usize,
    text: &'a mut String,
}

impl Rows<'_> {
    /// `problem` says why the pool is unavailable if its devices do not.
    fn all(&mut self, tree: &Tree, state: &str, problem: &str) {
        let width = self.width;
        let root = &tree.root;
        let _ = write!(self.text, "\t{:width$}  {state}", one_line(&root.name));
        match root.reason {
            Some(reason) => {
                let _ = writeln!(self.text, "  {}", reason.text());
            }
            None if state == "UNAVAIL" => {
                let _ = writeln!(self.text, "  {problem}");
            }
            None => self.text.push('\n'),
        }
        let tops = || root.children.iter().filter(|top| !top.is_placeholder && top.kind != "missing");
        tops().filter(|top| top.heading().is_none()).for_each(|top| self.vdev(top, 2));
        for (heading, members) in [("cache", &tree.caches), ("spares", &tree.spares)] {
            if !members.is_empty() {
                let _ = writeln!(self.text, "\t{heading}");
                members.iter().for_each(|member| {
                    let _ = writeln!(self.text, "\t  {}", one_line(&member.name));
                });
            }
        }
        for class in [DEDUP, SPECIAL, LOGS] {
            let members: Vec<&Vdev> = tops().filter(|top| top.heading() == Some(class)).collect();
            if !members.is_empty() {
                let _ = writeln!(self.text, "\t{class}\t");
                members.into_iter().for_each(|member| self.vdev(member, 2));
            }
        }
    }

    fn vdev(&mut self, vdev: &Vdev, depth: usize) {
        let width = self.width.saturating_sub(depth);
        let _ = write!(self.text, "\t{:depth$}{:width$}  {}", "", one_line(&vdev.name), vdev.state);
        if let Some(remark) = vdev.remark() {
            let _ = write!(self.text, "  {remark}");
        }
        self.text.push('\n');
        vdev.children.iter().for_each(|child| self.vdev(child, depth + 2));
    }
}
