//! `zpool add`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use cenote_listing::Names;
use cenote_spa::{AddOptions, SpaError};
use cenote_taskq::Class;
use cenote_vdev::config::{VdevConfig, VdevKind};
use serde::{Deserialize, Serialize};

use crate::args::parse_size;
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::pools::NameArgs;
use cenote_admin::values::parse_ashift;
use cenote_host::CacheFile;
use cenote_host::inuse::refuse_used;
use cenote_host::layout::{Layout, parse_layout_in};
use cenote_host::refuse_mismatch;
use cenote_server::Made;
use cenote_server::writing::{Writing, line};

/// Add vdevs, spares and cache devices to a pool.
///
/// VDEV is as for `zpool create`. Vdevs other than log devices stay in the pool for good.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// As all options that begin with --allow together.
    #[arg(short = 'f')]
    force: bool,
    /// Only show what the pool would be.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Set a property of the new vdevs: ashift.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Add devices that are part of another pool.
    #[arg(long)]
    allow_in_use: bool,
    /// Add vdevs that are not as redundant as the rest.
    #[arg(long)]
    allow_replication_mismatch: bool,
    /// Add vdevs with another sector size than the rest.
    #[arg(long)]
    allow_ashift_mismatch: bool,
    /// Make files that do not exist, of this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    names: NameArgs,
    /// The pool.
    pool: String,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

/// The pool as it is.
struct Before {
    vdevs: VdevConfig,
    caches: Vec<VdevConfig>,
    spares: Vec<VdevConfig>,
    ashift: Option<u32>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let layout = parse_layout_in(&args.folder, &args.vdevs)?;
    let mut ashift = None;
    for setting in &args.properties {
        match setting.split_once('=') {
            Some(("ashift", value)) => ashift = parse_ashift(value)?,
            Some((name, _)) => bail!("property '{name}' cannot be set while vdevs are added"),
            None => return Err(usage("missing value in -o PROPERTY=VALUE")),
        }
    }
    let before = before(context, &args.pool).await?;
    refuse_own(&before, &layout)?;
    refuse_used(context.handle(), &layout, args.force || args.allow_in_use).await?;
    if !args.force && !args.allow_replication_mismatch {
        refuse_mismatch(Some(&before.vdevs), &layout)?;
    }
    if args.dry_run {
        context.out(format!("would update '{}' to the following configuration:\n\n\t{}\n", args.pool, args.pool))?;
        context.out(together(&before, layout, args.names.into()).describe())?;
        return Ok(Outcome::Good);
    }
    let writing = Writing::open(context, &args.pool).await?;
    let made = Made::here(&layout, args.size)?;
    let (tops, auxiliaries) = layout.open(context.handle(), &Path::to_owned, ashift.or(before.ashift)).await?;
    let options = AddOptions {
        tops,
        auxiliaries,
        ashift: ashift.or(before.ashift),
        allow_other_ashift: args.force || args.allow_ashift_mismatch,
        seed: None,
    };
    let is_served = writing.served().is_some();
    let adding = add(context.clone(), args, writing, options, made, layout);
    if is_served {
        // A pool that is suspended answers its client at once, and adds when its devices are back: whatever waits for this goes, it goes
        // on.
        context.handle().spawn(Class::Issue, adding).await??;
    } else {
        adding.await?;
    }
    Ok(Outcome::Good)
}

/// Adds the vdevs, and notes them wherever the pool's devices are noted.
async fn add(
    context: Context,
    args: Args,
    writing: Writing,
    options: AddOptions,
    made: Made,
    layout: Layout,
) -> Result<()> {
    let added = writing.pool().add_vdevs(options).await;
    // What was refused is in no pool. After any other failure the pool on disk may name the files.
    if !matches!(added, Err(SpaError::Refused { .. })) {
        made.keep()?;
    }
    added.map_err(|error| anyhow!("cannot add to '{}': {error}", args.pool))?;
    let paths: Vec<PathBuf> = layout.paths().map(Path::to_owned).collect();
    context.devices_added(&paths);
    let words = ["zpool", "add", &args.pool].into_iter().chain(args.vdevs.iter().map(String::as_str));
    writing.finish(line(words)).await?;
    CacheFile::of_user()?.update(|pools| {
        if let Some(entry) = pools.get_mut(&args.pool) {
            let new = paths.iter().filter(|path| !entry.paths.contains(path)).cloned().collect::<Vec<_>>();
            entry.paths.extend(new);
        }
        Ok(())
    })
}

async fn before(context: &Context, name: &str) -> Result<Before> {
    let pool = context.open_pool(name).await?;
    let ashift = pool.properties().await?.get("ashift").and_then(cenote_dsl::property::Value::number);
    let ashift = ashift.and_then(|ashift| u32::try_from(ashift).ok()).filter(|ashift| *ashift != 0);
    let (caches, spares) = (pool.cache_devices().await?, pool.spares().await?);
    let vdevs = pool.vdevs().clone();
    // Its devices are opened for writing next, unless a server has them.
    pool.close().await;
    Ok(Before { vdevs, caches, spares, ashift })
}

/// Refuses devices that the pool has, which nothing overrides.
fn refuse_own(before: &Before, layout: &Layout) -> Result<()> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let leaves = before.vdevs.leaves().into_iter().chain(&before.caches).chain(&before.spares);
    let own: Vec<PathBuf> = leaves.filter_map(|leaf| Some(real(Path::new(leaf.path.as_deref()?)))).collect();
    match layout.paths().find(|path| own.contains(&real(path))) {
        Some(path) => bail!("invalid vdev specification\n{} is part of this pool", path.display()),
        None => Ok(()),
    }
}

/// What the pool would be, as far as a layout shows it.
fn together(before: &Before, new: Layout, names: Names) -> Layout {
    use cenote_spa::TopKind;
    let path = |leaf: &VdevConfig| PathBuf::from(names.of(leaf, leaf.path.as_deref(), false));
    let mut all = Layout::default();
    for top in &before.vdevs.children {
        let kind = match top.kind {
            VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_) => continue,
            VdevKind::Raidz { parity, .. } => TopKind::Raidz { parity },
            VdevKind::Draid { parity, data, spares, .. } => TopKind::Draid { parity, data: Some(data), spares },
            VdevKind::Disk | VdevKind::File => TopKind::Single,
            _ => TopKind::Mirror,
        };
        let paths = top.leaves().into_iter().map(path).collect();
        all.tops.push(cenote_host::layout::Top { kind, class: top.class, paths });
    }
    all.caches = before.caches.iter().map(path).collect();
    all.spares = before.spares.iter().map(path).collect();
    all.tops.extend(new.tops);
    all.caches.extend(new.caches);
    all.spares.extend(new.spares);
    all
}
