//! `zpool create`.

use std::path::Path;

use anyhow::{anyhow, bail};
use cenote_admin::Line;
use cenote_host::layout::parse_layout;
use cenote_host::{CacheFile, CacheSetting, Entry};
use cenote_server::{NewPool, NewPoolRequest, check_pool_name};

use crate::args::parse_size;
use crate::prelude::*;

/// Make a pool.
///
/// VDEV is a file or device, or `mirror`, `raidz1` to `raidz3`, or `draid` (as in OpenZFS: `draid2:4d:1s:11c`) and the files
/// or devices after it. The root directory belongs to the user and group of the process that runs this command. Vdevs after `special`, `dedup` or `log` are for metadata and small blocks, for dedup tables, or for
/// the intent log; `cache` and `spare` take the devices after them. The pool is exported when the command ends, so that any
/// system can import it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Overwrite what lies on the devices (file systems, partition tables, other pools), and take vdevs that are not as redundant as
    /// each other. A device in use is refused all the same.
    #[arg(short = 'f')]
    force: bool,
    /// Only say what would be made.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Enable no features but those that -o names.
    #[arg(short = 'd')]
    no_features: bool,
    /// Where the root file system is to be mounted, or `none`, or `legacy`.
    #[arg(short = 'm', value_name = "MOUNTPOINT")]
    mountpoint: Option<String>,
    /// Put mount points below this directory, while the pool is imported here.
    #[arg(short = 'R', value_name = "ROOT")]
    root: Option<String>,
    /// Have the pool under this name here.
    #[arg(short = 't', value_name = "TNAME")]
    temporary_name: Option<String>,
    /// Set a property of the pool: ashift, feature@NAME, compatibility, or one that `zpool set` sets.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Set a property of the root file system.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    dataset_properties: Vec<String>,
    /// Make files that do not exist, of this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Draw guids and salts from this number, so that the same command makes the same pool; the time of everything is that
    /// of SOURCE_DATE_EPOCH if it is set. Its labels and history then name no paths of this machine, and its root directory is root's.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The pool's name.
    pool: String,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
}

impl Args {
    /// The line as the history has it.
    fn line(&self) -> Line {
        // A pool that is to be the same wherever it is made has no paths in it.
        if self.seed.is_some() {
            return Line::new("zpool create").word(&self.pool);
        }
        let line = Line::new("zpool create").flag(self.force, "-f").flag(self.no_features, "-d");
        let line = line.option("-m", &self.mountpoint).option("-R", &self.root).option("-t", &self.temporary_name);
        let line = line.option("-o", &self.properties).option("-O", &self.dataset_properties);
        line.word(&self.pool).words(&self.vdevs)
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    check_pool_name(&args.pool)?;
    let layout = parse_layout(&args.vdevs)?;
    let cache = CacheFile::of_user()?;
    let here = args.temporary_name.as_ref().unwrap_or(&args.pool);
    if let Some(known) = cache.pools()?.get(here) {
        let gone = !known.paths.iter().any(|path| path.exists());
        let what = if gone { ", with none of its devices where it was; 'zpool export' forgets it" } else { "" };
        bail!("cannot create '{}': pool already exists{what}", args.pool);
    }
    if let Some(root) = args.root.as_ref().filter(|root| !root.starts_with('/')) {
        bail!("cannot create '{}': bad alternate root '{root}'", args.pool);
    }
    let mut properties = args.properties.clone();
    if args.no_features {
        if properties.iter().any(|setting| setting.starts_with("compatibility=")) {
            return Err(usage("'-d' and '-o compatibility=' cannot be used together"));
        }
        properties.push("compatibility=legacy".to_owned());
    }
    let mut dataset_properties = args.dataset_properties.clone();
    if let Some(mountpoint) = &args.mountpoint {
        if !mountpoint.starts_with('/') && mountpoint != "none" && mountpoint != "legacy" {
            bail!("invalid mountpoint '{mountpoint}': must be an absolute path, 'legacy', or 'none'");
        }
        if args.seed.is_none() {
            check_empty(mountpoint, args.root.as_deref())?;
        }
        dataset_properties.push(format!("mountpoint={mountpoint}"));
    }
    let cachefile = properties.iter().rev().find_map(|setting| setting.strip_prefix("cachefile="));
    let setting = CacheSetting::of_import(cachefile, args.root.is_some());
    let setting = setting.map_err(|error| anyhow!("cannot create '{}': {error}", args.pool))?;
    let request = NewPoolRequest {
        name: &args.pool,
        layout: &layout,
        pool: &properties,
        dataset: &dataset_properties,
        size: args.size,
        seed: args.seed,
        force: args.force,
        command: args.line(),
    };
    if args.dry_run {
        request.check(context).await?;
        context.out(format!("would create '{}' with the following layout:\n\n\t{}\n", args.pool, args.pool))?;
        context.out(layout.describe())?;
        return Ok(Outcome::Good);
    }
    // Before anything is written.
    cache.check_writable()?;
    setting.check_writable()?;
    let (new, made) = NewPool::make(context, &request).await?;
    new.made.pool.sync().await?;
    let guid = new.made.pool.guid();
    new.made.pool.export().await?;
    made.keep()?;
    let paths = layout.paths().map(Path::to_owned).collect();
    cache.update(|pools| {
        let own_name = args.temporary_name.as_ref().map(|_| args.pool.clone());
        let entry = Entry { guid: guid.0, paths, altroot: args.root.clone(), own_name, ..Entry::default() };
        pools.insert(here.clone(), entry.kept_in(&setting));
        anyhow::Ok(())
    })?;
    context.keep_config(guid).await?;
    Ok(Outcome::Good)
}

/// Refuses a mount point, where one is asked for, that would hide what is in it.
fn check_empty(mountpoint: &str, root: Option<&str>) -> Result<()> {
    let at = match root {
        _ if !mountpoint.starts_with('/') => return Ok(()),
        Some(root) => Path::new(root).join(mountpoint.trim_start_matches('/')),
        None => Path::new(mountpoint).to_owned(),
    };
    if std::fs::read_dir(&at).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("mountpoint '{}' exists and is not empty\nuse '-m' option to provide a different default", at.display());
    }
    Ok(())
}
