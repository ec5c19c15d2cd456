//! `zfs mount`: file systems at their mount points.
//!
//! There is no kernel that would keep them mounted: this process serves them, until it is interrupted or they are
//! unmounted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use cenote_fuse::{Layout, MountHandle, MountOptions};
use cenote_host::Mounts;
use cenote_listing::{Column, Item, Selection, document};
use cenote_props::Types;
use cenote_server::{ending, signals};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::args::GoesOn;
use crate::commands::mount::parse_options;
use crate::context::Context;
use crate::datasets::select;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_host::device_paths;
use cenote_server::background::Going;

/// List mounted file systems, or mount some at their mount points, read-only, until interrupted.
///
/// What is mounted is served by this process. With -a and -R one mount shows a file system and those below it.
///
/// A pool in image files may come from anybody, and its mount points are directories of this system. They are used only below an
/// alternate root (--altroot, or `zpool import -R`), or with -O as they are; and only -O lets a mount hide a directory that is not
/// empty, whatever the property `overlay` says. A mount point that a symbolic link leads out of the alternate root is refused.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Mount all file systems that have a mount point and may be mounted.
    #[arg(short = 'a')]
    all: bool,
    /// Also mount those below.
    #[arg(short = 'R')]
    recursive: bool,
    /// Mount on directories that are not empty, also where `overlay` is off or the pool is in image files.
    #[arg(short = 'O')]
    overlay: bool,
    /// Accepted for the sake of scripts.
    #[arg(short = 'f')]
    force: bool,
    /// Say what is mounted.
    #[arg(short = 'v')]
    verbose: bool,
    /// Print the list as JSON.
    #[arg(short = 'j', long)]
    json: bool,
    /// Mount options, as of `cenote mount`.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Put mount points below this directory.
    #[arg(long, value_name = "DIR")]
    altroot: Option<String>,
    #[command(flatten)]
    goes_on: GoesOn,
    /// The file system.
    #[arg(value_name = "FILESYSTEM")]
    filesystem: Option<String>,
}

impl Args {
    /// Its options as a command that goes on until it is ended.
    pub(crate) const fn goes_on(&self) -> &GoesOn {
        &self.goes_on
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.json && (args.all || args.filesystem.is_some()) {
        return Err(usage("-j is for the list of mounted file systems"));
    }
    match (&args.filesystem, args.all) {
        (Some(_), true) => return Err(usage("too many arguments")),
        (None, false) if args.recursive => return Err(usage("missing dataset argument")),
        (None, false) => return list(context, args.json),
        _ => {}
    }
    if let Some(root) = &args.altroot
        && !root.starts_with('/')
    {
        return Err(usage(format!("bad alternate root '{root}': it must be an absolute path")));
    }
    let mut options = parse_options(&args.options)?;
    options.layout = if args.all || args.recursive { Layout::Mountpoints } else { Layout::Alone };
    let context = context.with_altroot(args.altroot.clone());
    let going = Going::begin((&args.goes_on).into(), args.filesystem.as_deref().unwrap_or("all"))?;
    // Before anything is mounted: an interrupt from now on ends the mounts and not the program.
    let signals = signals::ending()?;
    let selection = Selection {
        names: args.filesystem.clone().into_iter().collect(),
        types: Types::FILESYSTEM,
        may_list_snapshots: false,
        depth: None,
    };
    let (items, mut failed) = select(&context, selection, &[]).await?;
    let mut mounts: Vec<(String, Arc<MountHandle>)> = Vec::new();
    let mut pools: BTreeMap<&str, bool> = BTreeMap::new();
    for item in &items {
        let pool = pool_of(&item.name);
        let (is_of_files, is_first) = match pools.get(pool) {
            Some(is_of_files) => (*is_of_files, false),
            None => (is_of_files(&context, pool).await?, true),
        };
        pools.insert(pool, is_of_files);
        if is_of_files && !args.overlay && item.opened_pool().altroot().is_none() {
            if is_first {
                context.err(format!(
                    "cannot mount '{pool}': the pool is in image files, and its mount points are not taken on its word: --altroot DIR \
                     puts them below DIR, -O takes them as they are"
                ));
                failed = true;
            }
            continue;
        }
        // What stands in the mount of one above it needs none of its own.
        let is_shown = |(name, mount): &(String, Arc<MountHandle>), at: &PathBuf| {
            item.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
                && at.starts_with(mount.mountpoint())
        };
        let (at, is_overlay) = match place(item, &args, is_of_files).await {
            Ok(place) => place,
            // With -a those are left out, as OpenZFS does.
            Err(error) if args.all && error.is::<NotMeant>() => continue,
            Err(error) => {
                context.err(format!("cannot mount '{}': {error:#}", item.name));
                failed = true;
                continue;
            }
        };
        if mounts.iter().any(|mount| is_shown(mount, &at)) {
            continue;
        }
        // Only now: a mount that already shows this file system shows its files in that directory.
        if !is_overlay && fs::read_dir(&at).is_ok_and(|mut entries| entries.next().is_some()) {
            context.err(format!("cannot mount '{}': directory is not empty", item.name));
            failed = true;
            continue;
        }
        match mount(&context, item, &at, &options).await {
            Ok(mount) => {
                if args.verbose {
                    context.err(format!("'{}' is mounted at {}", item.name, mount.mountpoint().display()));
                }
                mounts.push((item.name.clone(), Arc::new(mount)));
            }
            Err(error) => {
                context.err(format!("cannot mount '{}': {error:#}", item.name));
                failed = true;
            }
        }
    }
    if mounts.is_empty() {
        if !failed && args.goes_on.background {
            context.err("nothing is to be mounted");
        }
        return Ok(Outcome::unless(failed));
    }
    context.err(format!("{} mounted read-only; {}", described(&mounts), going.options().end("unmount")));
    going.ready(&**context.console())?;
    let mounts: Vec<_> = mounts.into_iter().map(|(_, mount)| mount).collect();
    ending::wait_for(context.handle(), &**context.console(), &mounts, signals).await?;
    Ok(Outcome::unless(failed))
}

fn described(mounts: &[(String, Arc<MountHandle>)]) -> String {
    match mounts {
        [(name, mount)] => format!("'{name}' is at {},", mount.mountpoint().display()),
        _ => format!("{} file systems are", mounts.len()),
    }
}

/// The mounted file systems.
fn list(context: &Context, is_json: bool) -> Result<Outcome> {
    let mounts = Mounts::read();
    let mounted: Vec<(&str, String)> = mounts
        .all()
        .filter(|(name, _)| !name.contains('@'))
        .map(|(name, at)| (name, at.display().to_string()))
        .collect();
    if !is_json {
        for (name, at) in mounted {
            context.out(format!("{name:30}  {at}\n"))?;
        }
    } else if !mounted.is_empty() {
        let entry = |(name, at): (&str, String)| (name.to_owned(), json!({ "filesystem": name, "mountpoint": at }));
        let datasets: Map<String, Value> = mounted.into_iter().map(entry).collect();
        context.out(document("zfs mount", [("datasets", Value::Object(datasets))]))?;
    }
    Ok(Outcome::Good)
}

/// The reason why `-a` passes over a file system without an error.
#[derive(Debug)]
struct NotMeant(String);

impl std::fmt::Display for NotMeant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotMeant {}

/// True for a pool in image files, which may come from anybody.
async fn is_of_files(context: &Context, pool: &str) -> Result<bool> {
    let (found, _) = context.locate(pool).await?;
    Ok(device_paths(&found)?.iter().any(|path| path.is_file()))
}

/// Refuses a mount point that a symbolic link leads out of the alternate root: a file system that is mounted there already may have
/// such links.
fn check_below(root: &Path, at: &Path) -> Result<()> {
    let Some(there) = at.ancestors().find(|path| path.symlink_metadata().is_ok()) else { return Ok(()) };
    let (root, real) = (root.canonicalize(), there.canonicalize());
    match (root, real) {
        (Ok(root), Ok(real)) if real.starts_with(&root) => Ok(()),
        (Err(_), _) => Ok(()),
        _ => bail!("a link leads from its mount point '{}' out of the alternate root", at.display()),
    }
}

/// The mount point of a file system, and whether the mount may hide a directory that is not empty; the error says why it cannot be
/// mounted.
async fn place(item: &Item, args: &Args, is_of_files: bool) -> Result<(PathBuf, bool)> {
    let not_meant = |text: String| Err(anyhow::Error::from(NotMeant(text)));
    let value = async |name: &str| -> Result<String> {
        let column = Column::find(name).with_context(|| format!("no property '{name}'"))?;
        Ok(column.cell(item, true).await?.map(|cell| cell.text).unwrap_or_default())
    };
    if value("mounted").await? == "yes" {
        return not_meant("filesystem already mounted".into());
    }
    match value("canmount").await?.as_str() {
        "off" => return not_meant("'canmount' property is set to 'off'".into()),
        "noauto" if args.all => return not_meant("'canmount' property is set to 'noauto'".into()),
        _ => {}
    }
    if value("keystatus").await? == "unavailable" {
        return not_meant("encryption key not loaded; give it with --key DATASET=FILE".into());
    }
    if item.is_inconsistent() {
        return not_meant("it is half-received".into());
    }
    let mountpoint = value("mountpoint").await?;
    match mountpoint.as_str() {
        "none" => return not_meant("no mountpoint set".into()),
        "legacy" => {
            return not_meant(format!("legacy mountpoint; 'cenote mount {} DIR' mounts it anywhere", item.name));
        }
        "/" => bail!("its mount point is '/'; --altroot DIR puts it elsewhere"),
        _ => {}
    }
    let at = PathBuf::from(mountpoint);
    if at.components().any(|part| part == std::path::Component::ParentDir) {
        bail!("its mount point '{}' leads up", at.display());
    }
    if let Some(root) = item.opened_pool().altroot().filter(|_| is_of_files) {
        check_below(Path::new(root), &at)?;
    }
    let is_overlay = args.overlay || (!is_of_files && value("overlay").await? == "on");
    Ok((at, is_overlay))
}

async fn mount(context: &Context, item: &Item, at: &PathBuf, options: &MountOptions) -> Result<MountHandle> {
    fs::create_dir_all(at).with_context(|| at.display().to_string())?;
    let report = context.clone();
    let report = Arc::new(move |line: &str| report.err(line));
    let pool = item.opened_pool();
    cenote_fuse::mount(context.handle(), pool, &item.name, at, options, report).await.map_err(|error| anyhow!(error))
}
