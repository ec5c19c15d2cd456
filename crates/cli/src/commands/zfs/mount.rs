//! `zfs mount`: file systems at their mount points.
//!
//! There is no kernel that would keep them mounted: this process serves them, until it is interrupted or they are
//! unmounted.

use anyhow::{Context as _, bail};
use cenote_admin::values::Types;
use cenote_listing::{Column, Item, Selection, document};
use cenote_server::background::Going;
use cenote_server::mounting::{Candidate, MountPoints, MountRequest, mount};
use cenote_server::{protocol, signals};
use serde_json::{Map, Value, json};

use crate::args::GoesOn;
use crate::datasets::select;
use crate::live;
use crate::prelude::*;

/// List mounted file systems, or mount some at their mount points, until interrupted: read-only, or one to be written with `-o rw`.
///
/// This process serves the mounts. With -a and -R one mount shows a file system and those below it.
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
    /// Not supported yet: keys are given with --key.
    #[arg(short = 'l')]
    load_keys: bool,
    /// Mount options, as of `cenote mount`; `rw` mounts one file system to be written.
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
    if let Some(root) = args.altroot.as_ref().filter(|root| !root.starts_with('/')) {
        return Err(usage(format!("bad alternate root '{root}': it must be an absolute path")));
    }
    if args.load_keys {
        bail!("not supported yet: asking for keys; '--key DATASET=FILE' gives one");
    }
    let context = context.with_altroot(args.altroot.clone());
    let words = args.options.iter().flat_map(|list| list.split(','));
    if words.clone().any(|word| word == "rw") {
        if args.all || args.recursive {
            bail!(
                "not supported yet: mounting several to be written; 'cenote mount --rw DATASET FOLDER' mounts one, with those below it"
            );
        }
        let options = words.filter(|word| *word != "rw").map(str::to_owned).collect();
        return mount_writable(&context, args, options).await;
    }
    let how = (args.all, args.all || args.recursive, args.overlay, args.verbose);
    let mut points = MountPoints::new(&context, &args.options, how)?;
    let going = Going::begin((&args.goes_on).into(), args.filesystem.as_deref().unwrap_or("all"))?;
    // Before anything is mounted: an interrupt from now on ends the mounts and not the program.
    let signals = signals::ending()?;
    let names = args.filesystem.into_iter().collect();
    let selection = Selection { names, types: Types::FILESYSTEM, may_list_snapshots: false, depth: None };
    let (items, has_failed) = select(&context, selection, &[]).await?;
    for item in &items {
        match candidate(item).await {
            Ok(candidate) => points.add(&candidate).await?,
            Err(error) => points.failed(&item.name, &causes(&error)),
        }
    }
    let is_good = points.serve(&going, signals, has_failed).await?;
    Ok(Outcome::unless(!is_good))
}

/// Mounts one file system at its mount point, to be written.
async fn mount_writable(context: &Context, args: Args, options: Vec<String>) -> Result<Outcome> {
    let mut points = MountPoints::new(context, &options, (false, false, args.overlay, args.verbose))?;
    let names = args.filesystem.into_iter().collect();
    let selection = Selection { names, types: Types::FILESYSTEM, may_list_snapshots: false, depth: None };
    let (items, has_failed) = select(context, selection, &[]).await?;
    let (Some(item), false) = (items.first(), has_failed) else { return Ok(Outcome::Failed) };
    let Some(at) = points.folder(&candidate(item).await?).await? else { return Ok(Outcome::Failed) };
    let options = options.into_iter().chain(["layout=alone".to_owned()]).collect();
    let request = MountRequest { dataset: item.name.clone(), at, options, is_writable: true, control: None };
    drop(items);
    let is_good = mount(context, &request, (&args.goes_on).into(), live::clients(context)).await?;
    Ok(Outcome::unless(!is_good))
}

/// A file system with the values that say where and whether it is mounted.
async fn candidate(item: &Item) -> Result<Candidate<'_>> {
    let value = async |name: &str| -> Result<String> {
        let column = Column::find(name).with_context(|| format!("no property '{name}'"))?;
        Ok(column.cell(item, true).await?.map(|cell| cell.text).unwrap_or_default())
    };
    Ok(Candidate {
        name: &item.name,
        pool: item.opened_pool(),
        is_inconsistent: item.is_inconsistent(),
        mounted: value("mounted").await?,
        canmount: value("canmount").await?,
        keystatus: value("keystatus").await?,
        mountpoint: value("mountpoint").await?,
        overlay: value("overlay").await?,
    })
}

/// The mounted file systems.
fn list(context: &Context, is_json: bool) -> Result<Outcome> {
    let mounts = protocol::mounts();
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
