//! `cenote cp`: files of a dataset into a directory of this system.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_image::copy::{Account, Keep, Options, Privileged, Source, copy};
use cenote_image::files::copy_source;

use crate::files::{self, bytes_of, shown};
use crate::prelude::*;

/// Copy files of a dataset into a directory: `cenote cp -a tank/home@monday /alice /bob ./restored`.
///
/// Everything is copied as it is: directories with all that is in them, attributes, extended attributes, POSIX ACLs,
/// holes, hard links among the copied files, symbolic links, pipes and sockets. Owners and other attributes that this user may not
/// set are left out, and reported once. A path that is `/`, or ends in `/.`, means the contents of that directory, not the
/// directory itself; so does no path at all, which takes `-t`.
///
/// The target is made if it is missing. An existing target keeps its own owner, mode and attributes, and so do directories in it
/// that belong to another user than the pool says.
///
/// Privileges on this system are left out, for root too, and one line says how many: set-user-id and set-group-id bits (except a
/// directory's set-group-id bit, which gives none), devices, and extended attributes of the namespaces `trusted` and `security`,
/// file capabilities among them. `--privileged` keeps them, for pools whose makers are trusted like root.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Accepted out of habit: a copy is always an archive.
    #[arg(short = 'a', long)]
    archive: bool,
    /// The directory to copy to; without this option it is the last word.
    #[arg(short = 't', long, value_name = "DIRECTORY")]
    target: Option<PathBuf>,
    /// Leave files alone whose size and time are right: go on with a copy that was interrupted.
    #[arg(long)]
    resume: bool,
    /// Do not set owners and groups.
    #[arg(long, conflicts_with = "privileged")]
    no_owner: bool,
    /// Do not set extended attributes and access control lists.
    #[arg(long)]
    no_xattrs: bool,
    /// Keep privileges on this system too; all of them, or only some: set-id, devices, xattrs.
    #[arg(
        long,
        value_name = "WHAT,…",
        num_args = 0..=1,
        require_equals = true,
        value_delimiter = ',',
        default_missing_value = "set-id,devices,xattrs"
    )]
    #[serde(default)]
    privileged: Vec<Right>,
    /// Say what was copied.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// File system or snapshot.
    dataset: String,
    /// Paths inside it, and last the directory to copy to, unless `-t` names that.
    #[arg(value_name = "PATH… DIRECTORY")]
    paths: Vec<OsString>,
}

/// A privilege on the system that is copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Right {
    /// Set-user-id and set-group-id bits.
    SetId,
    /// Block and character devices.
    Devices,
    /// Extended attributes `trusted.*` and `security.*`.
    Xattrs,
}

/// The target and the paths: `-t TARGET PATH…`, or `PATH… TARGET` with at least one path. A single word could be either.
fn target_and_paths(args: &Args) -> Result<(PathBuf, &[OsString])> {
    match (&args.target, args.paths.split_last()) {
        (Some(target), _) => Ok((target.clone(), &args.paths)),
        (None, Some((target, paths))) if !paths.is_empty() => Ok((PathBuf::from(target), paths)),
        (None, Some((word, _))) => {
            let word = word.to_string_lossy();
            let dataset = &args.dataset;
            Err(usage(format!(
                "missing path or target directory: everything is copied by 'cenote cp {dataset} / DIRECTORY' or 'cenote cp -t \
                 DIRECTORY {dataset}'; is '{word}' the one or the other?"
            )))
        }
        (None, None) => Err(usage("missing target directory: cenote cp DATASET PATH… DIRECTORY")),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context.with(&args.search);
    let (target, paths) = target_and_paths(&args)?;
    cenote_image::copy::raise_descriptor_limit();
    let (dataset, filesystem) = files::open(&context, &args.dataset).await?;
    let mut sources = Vec::new();
    let mut is_whole = paths.is_empty();
    if paths.is_empty() {
        sources.push(Source { object: filesystem.root(), name: None });
    }
    for path in paths {
        is_whole |= bytes_of(path).is_empty();
        sources.push(copy_source(&filesystem, path).await?);
    }
    let total = is_whole.then_some(dataset.phys.uncompressed_bytes);
    let progress = Arc::new(context.progress(&args.dataset, total));
    let reported = Arc::new(AtomicU64::new(0));
    let report = {
        let (context, reported) = (context.clone(), reported.clone());
        Arc::new(move |path: &[u8], what: &str| {
            reported.fetch_add(1, Ordering::Relaxed);
            context.err(format!("/{}: {what}", shown(path, true)));
        })
    };
    let is_kept = |right| args.privileged.contains(&right);
    let privileged =
        Privileged { set_id: is_kept(Right::SetId), devices: is_kept(Right::Devices), xattrs: is_kept(Right::Xattrs) };
    let keep = Keep { owner: !args.no_owner, xattrs: !args.no_xattrs, privileged };
    let options = Options { resume: args.resume, keep };
    let account = copy(context.handle(), &filesystem, &sources, &target, options, progress.clone(), report).await?;
    drop(progress);
    summary(&context, &account, !args.no_xattrs, args.verbose);
    Ok(Outcome::unless(account.failures.load(Ordering::Relaxed) > 0))
}

/// Says what could not be kept, and with `is_verbose` what was copied.
pub(super) fn summary(context: &Context, account: &Account, has_xattrs: bool, is_verbose: bool) {
    account.losses(has_xattrs).iter().for_each(|line| context.err(line));
    if is_verbose {
        let _ = context.out(account.text());
    }
}
