//! `zfs mount`: file systems at their mount points.
//!
//! There is no kernel that would keep them mounted: this process serves them, until it is interrupted or they are
//! unmounted.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use cenote_fuse::{Layout, MountError, MountHandle, MountOptions, Unmount};
use cenote_props::Types;
use cenote_taskq::Either;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use crate::commands::mount::parse_options;
use crate::context::Context;
use crate::datasets::{Column, Item, Mounts, Selection, select};
use crate::outcome::{Outcome, usage};
use crate::output::output_version;
use crate::signals;

/// List mounted file systems, or mount some at their mount points, read-only, until interrupted.
///
/// What is mounted is served by this process. With -a and -R one mount shows a file system and those below it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Mount all file systems that have a mount point and may be mounted.
    #[arg(short = 'a')]
    all: bool,
    /// Also mount those below.
    #[arg(short = 'R')]
    recursive: bool,
    /// Mount on directories that are not empty, also where `overlay` is off.
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
    /// The file system.
    #[arg(value_name = "FILESYSTEM")]
    filesystem: Option<String>,
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
    // Before anything is mounted: an interrupt from now on ends the mounts and not the program.
    let signals = signals::ending()?;
    let selection = Selection {
        names: args.filesystem.clone().into_iter().collect(),
        types: Types::FILESYSTEM,
        may_list_snapshots: false,
        depth: None,
    };
    let (items, mut failed) = select(&context, selection, &[]).await?;
    let mut mounts: Vec<(String, MountHandle)> = Vec::new();
    for item in &items {
        // What stands in the mount of one above it needs none of its own.
        let is_shown = |(name, mount): &(String, MountHandle), at: &PathBuf| {
            item.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
                && at.starts_with(mount.mountpoint())
        };
        let at = match place(item, &args).await {
            Ok(at) => at,
            // Of all file systems those are meant that can be mounted.
            Err(_) if args.all => continue,
            Err(error) => {
                context.err(format!("cannot mount '{}': {error:#}", item.name));
                failed = true;
                continue;
            }
        };
        if mounts.iter().any(|mount| is_shown(mount, &at)) {
            continue;
        }
        match mount(&context, item, &at, &options).await {
            Ok(mount) => {
                if args.verbose {
                    context.err(format!("'{}' is mounted at {}", item.name, mount.mountpoint().display()));
                }
                mounts.push((item.name.clone(), mount));
            }
            Err(error) => {
                context.err(format!("cannot mount '{}': {error:#}", item.name));
                failed = true;
            }
        }
    }
    if mounts.is_empty() {
        return Ok(Outcome::unless(failed));
    }
    context.err(format!("{} mounted read-only; interrupt to unmount", described(&mounts)));
    wait(&context, mounts, signals).await?;
    Ok(Outcome::unless(failed))
}

fn described(mounts: &[(String, MountHandle)]) -> String {
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
        let mut document = output_version("zfs mount");
        document.insert("datasets".into(), Value::Object(datasets));
        context.out(format!("{}\n", json!(document)))?;
    }
    Ok(Outcome::Good)
}

/// Where a file system is to be mounted; why it cannot be, else.
async fn place(item: &Item, args: &Args) -> Result<PathBuf> {
    let value = async |name: &str| -> Result<String> {
        let column = Column::find(name).with_context(|| format!("no property '{name}'"))?;
        Ok(column.cell(item, true).await?.map(|cell| cell.text).unwrap_or_default())
    };
    if value("mounted").await? == "yes" {
        bail!("filesystem already mounted");
    }
    match value("canmount").await?.as_str() {
        "off" => bail!("'canmount' property is set to 'off'"),
        "noauto" if args.all => bail!("'canmount' property is set to 'noauto'"),
        _ => {}
    }
    if value("keystatus").await? == "unavailable" {
        bail!("encryption key not loaded; give it with --key DATASET=FILE");
    }
    if item.is_inconsistent() {
        bail!("it is half-received");
    }
    let mountpoint = value("mountpoint").await?;
    match mountpoint.as_str() {
        "none" => bail!("no mountpoint set"),
        "legacy" => bail!("legacy mountpoint; 'cenote mount {} DIR' mounts it anywhere", item.name),
        "/" => bail!("its mount point is '/'; --altroot DIR puts it elsewhere"),
        _ => {}
    }
    let at = PathBuf::from(mountpoint);
    if at.components().any(|part| part == std::path::Component::ParentDir) {
        bail!("its mount point '{}' leads up", at.display());
    }
    let is_overlay = args.overlay || value("overlay").await? == "on";
    if !is_overlay && fs::read_dir(&at).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("directory is not empty");
    }
    Ok(at)
}

async fn mount(context: &Context, item: &Item, at: &PathBuf, options: &MountOptions) -> Result<MountHandle> {
    fs::create_dir_all(at).with_context(|| at.display().to_string())?;
    let report = context.clone();
    let report = Arc::new(move |line: &str| report.err(line));
    cenote_fuse::mount(context.handle(), item.opened_pool(), &item.name, at, options, report)
        .await
        .map_err(|error| anyhow!(error))
}

/// Waits until all mounts have ended, by others or by a signal. An interrupt unmounts what is not in use; a second one, or
/// a request to end, detaches what is. What was mounted last goes first.
async fn wait(context: &Context, mounts: Vec<(String, MountHandle)>, mut signals: Signals) -> Result<()> {
    let mut is_second = false;
    loop {
        let closing = signals.handle();
        let waiting = context.handle().spawn_blocking(move || {
            let signal = signals.forever().next();
            (signal, signals)
        });
        let all_ended = async {
            for (_, mount) in &mounts {
                mount.ended().await?;
            }
            Ok::<_, MountError>(())
        };
        let signal = match cenote_taskq::race(all_ended, waiting).await {
            Either::Left(ended) => {
                closing.close();
                return Ok(ended?);
            }
            Either::Right(waited) => {
                let (signal, back) = waited?;
                signals = back;
                signal
            }
        };
        let is_forced = is_second || signal != Some(SIGINT);
        let mut is_busy = false;
        for (_, mount) in mounts.iter().rev() {
            match mount.unmount(Unmount::Unused).await {
                Err(MountError::Busy(_)) if is_forced => mount.unmount(Unmount::Detach).await?,
                Err(error @ MountError::Busy(_)) => {
                    context.err(format!("{error}; interrupt again to detach it"));
                    is_busy = true;
                }
                result => result?,
            }
        }
        if !is_busy {
            return Ok(());
        }
        is_second = true;
    }
}
