//! `cenote receive`: streams into a directory or an archive, without a pool.
//!
//! **How.** The stream is received into a pool in a sparse file, by the receiver that `zfs receive` has, and the files of its last snapshot are
//! copied out of that, as by `cenote cp` and `cenote tar`: paths of a hostile stream do not lead out of the directory, and nothing is copied
//! before all was verified. The file goes with the command, or stays where `--keep` says: an increment needs what came before.
//!
//! **A directory that is there** is replaced as a whole: the new one is made beside it, and the two change places in one step.

use std::fs;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use cenote_admin::receive::{ReceiveRequest, Told, receive};
use cenote_dsl::Dataset;
use cenote_host::layout::parse_layout;
use cenote_image::archive::{Archive, Options as ArchiveOptions};
use cenote_image::build::Builder;
use cenote_image::copy::{Keep, Options, Privileged, Source, copy};
use cenote_spa::View;
use cenote_zpl::FileSystem;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::cp::{raise_descriptor_limit, summary};
use super::send::free_bytes;
use super::tar::Standard;
use crate::args::Search;
use crate::context::Context;
use crate::files::{filesystem, shown};
use crate::newpool::{NewPool, Wish};
use crate::outcome::Outcome;
use crate::writing::{Writing, line};

/// The pool that streams are received into, and the dataset.
const POOL: &str = "received";
const DATASET: &str = "received/data";
/// The largest pool that is made. It is sparse, and no larger than what the file system has left.
const SIZE_MAX_BYTES: u64 = 8 << 40;
/// The least size of a pool, below which nothing fits.
const SIZE_MIN_BYTES: u64 = 128 << 20;
/// Bytes of an archive gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Unpack a stream of 'zfs send' into a directory or a tar archive.
///
/// The stream comes from standard input: one snapshot, or with those between (zfs send -I), of which the last is unpacked. No pool and no
/// privileges are needed; what a user may not set (owners, devices) is told and left out, and an archive has it. A pool in a sparse file in
/// TMPDIR holds the files meanwhile.
///
/// With --keep that pool stays, in this file, and the next increment (zfs send -i) is received on top of it: the file knows which snapshot it
/// has. The directory then gets what the new snapshot has, as a whole and in one step; what was changed in it by others goes.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The directory, which must not be there or be empty, unless --keep has what came before; or an archive: a name that ends in .tar, or
    /// '-' for standard output.
    #[arg(long, value_name = "DIR|FILE.tar|-")]
    to: PathBuf,
    /// Keep the pool in this file, for increments.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Leave out owners.
    #[arg(long)]
    no_owner: bool,
    /// Leave out extended attributes and access control lists.
    #[arg(long)]
    no_xattrs: bool,
    /// Set-user-id bits, devices and trusted.* and security.* attributes too.
    #[arg(long)]
    privileged: bool,
    /// Say what was received.
    #[arg(short = 'v', long)]
    verbose: bool,
}

impl Args {
    fn is_archive(&self) -> bool {
        self.to.as_os_str() == "-" || self.to.extension().is_some_and(|end| end == "tar")
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if io::stdin().is_terminal() {
        bail!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
    }
    if args.to.as_os_str() == "-" && context.output().is_terminal() {
        bail!("an archive is not for a terminal: redirect it, or name a file");
    }
    let is_kept = args.keep.as_ref().is_some_and(|file| file.exists());
    if !args.is_archive() && !is_kept && !is_free(&args.to)? {
        bail!("'{}' is there, and not empty", args.to.display());
    }
    let folder = tempfile::tempdir()?;
    let file = std::path::absolute(args.keep.clone().unwrap_or_else(|| folder.path().join("pool")))?;
    let made = if is_kept { None } else { Some(empty_pool(context, &file).await?) };
    let place = made.as_ref().map_or_else(|| file.clone(), |made| made.place(&file));
    let within = context.with(&Search { paths: vec![place], force: true });
    let context = context.with(&Search { paths: vec![file], force: true });

    let pool = Writing::open(&within, POOL).await?.in_background(&within).await;
    let request = ReceiveRequest { target: DATASET.to_owned(), is_verbose: args.verbose, ..ReceiveRequest::default() };
    let mut told = |told: Told| match told {
        Told::Out(text) | Told::Err(text) => context.err(text.trim_end()),
    };
    let received = receive(pool.pool(), BufReader::with_capacity(1 << 20, io::stdin()), &request, &mut told).await;
    pool.finish(line(["cenote", "receive"])).await?;
    received?;
    match made {
        Some(made) if args.keep.is_some() => {
            made.keep()?;
            unpacked(&context, &args).await
        }
        // It goes when all is copied.
        made => {
            let outcome = unpacked(&within, &args).await;
            drop(made);
            outcome
        }
    }
}

/// A pool in a new file.
async fn empty_pool(context: &Context, file: &Path) -> Result<crate::made::Made> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let layout = parse_layout(&[file.display().to_string()])?;
    let wish = Wish {
        name: POOL,
        layout: &layout,
        pool: &[],
        dataset: &[],
        size: Some(free_bytes(folder)?.clamp(SIZE_MIN_BYTES, SIZE_MAX_BYTES) & !((1 << 20) - 1)),
        seed: None,
        force: true,
        command: "cenote receive".to_owned(),
    };
    let (new, made) = NewPool::make(context, &wish).await?;
    Builder::new(new.made, new.latest_s).finish(None).await?;
    Ok(made)
}

/// True if nothing is in the way.
fn is_free(folder: &Path) -> Result<bool> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| folder.display().to_string()),
    }
}

/// Copies the last snapshot out.
async fn unpacked(context: &Context, args: &Args) -> Result<Outcome> {
    let view = context.open_pool(POOL).await?;
    let last = last_snapshot(context, &view).await?;
    let files = filesystem(&view, &last).await?;
    if args.is_archive() {
        return archived(context, args, &files).await;
    }
    if is_free(&args.to)? {
        return copied(context, args, &files, &last, &args.to).await;
    }
    let parent = args.to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = tempfile::Builder::new().prefix(".cenote-receive-").tempdir_in(parent)?;
    let new = beside.path().join("new");
    fs::create_dir(&new)?;
    let outcome = copied(context, args, &files, &last, &new).await?;
    renameat_with(CWD, &new, CWD, &args.to, RenameFlags::EXCHANGE)
        .map_err(io::Error::from)
        .with_context(|| format!("cannot put the new directory in the place of '{}'", args.to.display()))?;
    beside.close().context("cannot remove what was there before")?;
    Ok(outcome)
}

/// The newest snapshot of what was received; datasets below it are left out, and told.
async fn last_snapshot(context: &Context, view: &View) -> Result<Dataset> {
    let head = view.dsl().dataset(DATASET).await?;
    let below = view.dsl().tree(head.dir.clone(), false).await?;
    for dir in below.iter().filter(|dir| dir.name != DATASET) {
        let name = dir.name.trim_start_matches(DATASET).trim_start_matches('/');
        context.err(format!("'{name}', below what the stream is of, is left out"));
    }
    let snapshots = view.dsl().snapshots(&head).await?;
    snapshots.into_iter().max_by_key(|snapshot| snapshot.phys.creation_txg).context("no snapshot was received")
}

async fn copied(context: &Context, args: &Args, files: &FileSystem, last: &Dataset, to: &Path) -> Result<Outcome> {
    raise_descriptor_limit();
    let sources = [Source { object: files.root(), name: None }];
    let progress = Arc::new(context.progress("unpacking", Some(last.phys.uncompressed_bytes)));
    let reported = context.clone();
    let report = Arc::new(move |path: &[u8], what: &str| reported.err(format!("/{}: {what}", shown(path, true))));
    let is_privileged = args.privileged;
    let privileged = Privileged { set_id: is_privileged, devices: is_privileged, xattrs: is_privileged };
    let keep = Keep { owner: !args.no_owner, xattrs: !args.no_xattrs, privileged };
    let options = Options { resume: false, keep };
    let account = copy(context.handle(), files, &sources, to, options, progress.clone(), report).await?;
    drop(progress);
    summary(context, &account, !args.no_xattrs, args.verbose);
    Ok(Outcome::unless(account.failures.load(Ordering::Relaxed) > 0))
}

async fn archived(context: &Context, args: &Args, files: &FileSystem) -> Result<Outcome> {
    let mut sink: Box<dyn Write> = if args.to.as_os_str() == "-" {
        Box::new(Standard(context.clone()))
    } else {
        // It contains files that only their owners may read.
        let file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&args.to);
        Box::new(BufWriter::with_capacity(BUFFER_BYTES, file.with_context(|| args.to.display().to_string())?))
    };
    let progress = context.progress("unpacking", None);
    let failures = AtomicU64::new(0);
    let mut report = |path: &[u8], what: &str| {
        failures.fetch_add(1, Ordering::Relaxed);
        context.err(format!("/{}: {what}", shown(path, true)));
    };
    let options = ArchiveOptions { sparse: true, xattrs: !args.no_xattrs };
    let mut archive = Archive::new(context.handle(), files, options, &mut *sink, &progress, &mut report);
    archive.tree(files.root(), b"").await?;
    let sockets = archive.sockets;
    archive.finish()?;
    if sockets > 0 {
        context.err(format!("{sockets} sockets left out: archives cannot hold them"));
    }
    Ok(Outcome::unless(failures.load(Ordering::Relaxed) > 0))
}
