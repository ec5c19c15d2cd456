//! `cenote receive`: streams into a directory or an archive, without a pool.
//!
//! **How.** The stream is received into a pool in a sparse file, by the receiver that `zfs receive` has, and the files of its last snapshot are
//! copied out of that, as by `cenote cp` and `cenote tar`: paths of a hostile stream do not lead out of the directory, and nothing is copied
//! before all was verified. The file goes with the command, or stays where `--keep` says: an increment needs what came before.
//!
//! **A directory that is there** is replaced as a whole: the new one is made beside it, and the two change places in one step. Before that all
//! of the new one was copied, and is on disk; otherwise the old one stays. The kept pool notes which directory was unpacked from it, by path and
//! inode ([`cenote_image::unpack::NOTE`]), and no other one that has something in it is replaced: a mistyped name costs nothing. The inodes of both directories are
//! noted before they change places, so that a crash on either side of it leaves one that is known.
//!
//! **The pool is ahead of the directory** where unpacking failed. The same stream again is then verified, and not received, but unpacked.

use std::fs;
use std::io::{self, BufReader, Cursor, IsTerminal, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use cenote_admin::Line;
use cenote_admin::receive::{FIRST_BYTES, ReceiveRequest, Told, receive, sent_snapshot, verify_stream};
use cenote_host::layout::parse_layout;
use cenote_image::archive::{Archive, Options as ArchiveOptions};
use cenote_image::build::Builder;
use cenote_image::copy::{Keep, Options, Privileged, Source, copy, raise_descriptor_limit};
use cenote_image::unpack::{
    ArchiveTarget, NOTE, ReceiveNote, exchange, free_bytes, is_free, last_snapshot, resolved, sync_filesystem,
};
use cenote_server::writing::Writing;
use cenote_server::{NewPool, NewPoolRequest, View};

use super::cp::summary;
use crate::files::{Dataset, FileSystem, filesystem, shown};
use crate::output::{Content, counted};
use crate::prelude::*;

/// The pool that streams are received into, and the dataset.
const POOL: &str = "received";
const DATASET: &str = "received/data";
/// The largest pool that is made. It is sparse, and no larger than what the file system has left.
pub(super) const SIZE_MAX_BYTES: u64 = 8 << 40;
/// The least size of a pool, below which nothing fits.
const SIZE_MIN_BYTES: u64 = 128 << 20;

/// Unpack a stream of 'zfs send' into a directory or a tar archive.
///
/// The stream comes from standard input: one snapshot, or with those between (zfs send -I), of which the last is unpacked. No pool and no
/// privileges are needed; what a user may not set (owners, devices) is told and left out, and an archive has it. A pool in a sparse file in
/// TMPDIR holds the files meanwhile.
///
/// With --keep that pool stays, in this file, and the next increment (zfs send -i) is received on top of it: the file knows which snapshot it
/// has, and which directory was unpacked from it: no other one is replaced. The directory then gets what the new snapshot has, as a whole and in
/// one step; what was changed in it by others goes. If not all can be copied it stays as it was, and the same stream again tries anew.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The directory, which must not be there or be empty, unless it was unpacked from the file of --keep; or an archive: a name that ends in
    /// .tar, which is replaced when the new one is whole, or '-' for standard output.
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

pub(crate) async fn run(context: &Context, mut args: Args) -> Result<Outcome> {
    if io::stdin().is_terminal() {
        bail!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
    }
    if args.to.as_os_str() == "-" && context.output().is_terminal() {
        bail!("an archive is not for a terminal: redirect it, or name a file");
    }
    let is_kept = args.keep.as_ref().is_some_and(|file| file.exists());
    if args.to.as_os_str() != "-" {
        // A link stays, and what it leads to is replaced.
        args.to = resolved(&args.to)?;
    }
    if let Some(keep) = &args.keep
        && !args.is_archive()
        && resolved(keep)?.starts_with(&args.to)
    {
        bail!("'{}' is in '{}', which is replaced as a whole: keep it elsewhere", keep.display(), args.to.display());
    }
    let folder = tempfile::tempdir()?;
    let file = std::path::absolute(args.keep.clone().unwrap_or_else(|| folder.path().join("pool")))?;
    let kept = if is_kept { Some(read_kept(&context.with(&only(&file))).await?) } else { None };
    if !args.is_archive() && !is_free(&args.to)? {
        check_ours(kept.as_ref(), &args)?;
    }
    let made = if is_kept { None } else { Some(empty_pool(context, &file).await?) };
    let within = context.with(&only(&made.as_ref().map_or_else(|| file.clone(), |made| made.place(&file))));
    let context = context.with(&only(&file));

    let mut input = BufReader::with_capacity(1 << 20, io::stdin());
    let mut first = Vec::new();
    input.by_ref().take(FIRST_BYTES as u64).read_to_end(&mut first)?;
    let guid = sent_snapshot(&first);
    let input = Cursor::new(first).chain(input);
    let newest = kept.as_ref().and_then(|kept| kept.newest.as_ref());
    if let Some((name, _)) = newest.filter(|(_, newest)| guid == Some(*newest)) {
        verify_stream(input)?;
        context.err(format!("'{name}' was received before, and is unpacked again"));
        return unpacked(&context, &args, kept.as_ref()).await;
    }
    let request = ReceiveRequest { target: DATASET.to_owned(), is_verbose: args.verbose, ..ReceiveRequest::default() };
    let mut told = |told: Told| match told {
        Told::Out(text) | Told::Err(text) => context.err(text.trim_end()),
    };
    let work = async |writing: &mut Writing| -> Result<_> {
        writing.begin_background(&within).await;
        writing.record(&Line::new("cenote receive"));
        Ok(receive(writing.pool(), input, &request, &mut told).await)
    };
    let received = Writing::run(&within, POOL, work).await?;
    if let (Err(_), Some((name, _))) = (&received, newest) {
        let file = file.display();
        context.err(format!("'{file}' has '{name}': 'cenote cp -d {file} -f {name} / DIR' unpacks that"));
    }
    received?;
    match made {
        Some(made) if args.keep.is_some() => {
            made.keep()?;
            unpacked(&context, &args, None).await
        }
        // It goes when all is copied.
        made => {
            let outcome = unpacked(&within, &args, kept.as_ref()).await;
            drop(made);
            outcome
        }
    }
}

/// The search for a pool in this file.
fn only(file: &Path) -> Search {
    Search { paths: vec![file.to_owned()], force: true }
}

/// The facts of the kept pool.
async fn read_kept(context: &Context) -> Result<ReceiveNote> {
    let view = context.open_pool(POOL).await?;
    let kept = ReceiveNote::read(&view, DATASET).await?;
    view.close().await;
    Ok(kept)
}

/// Refuses a directory that was not unpacked from the kept pool.
fn check_ours(kept: Option<&ReceiveNote>, args: &Args) -> Result<()> {
    let to = args.to.display();
    let Some(kept) = kept else { bail!("'{to}' is there, and not empty") };
    if !kept.is_of(&args.to)? {
        let keep = args.keep.as_deref().unwrap_or(Path::new("")).display();
        bail!(
            "'{to}' is there, and not empty, and is not what was unpacked from '{keep}': name that, or a directory that is not there"
        );
    }
    Ok(())
}

/// Notes in the kept pool which directory is unpacked from it.
async fn note(context: &Context, to: &Path, inodes: [u64; 2]) -> Result<()> {
    let work = async |writing: &mut Writing| -> Result<()> {
        writing.record(&Line::new("cenote receive"));
        writing.pool().change_property(POOL, NOTE, Some(&ReceiveNote::note(to, inodes))).await?;
        Ok(())
    };
    Writing::run(context, POOL, work).await
}

/// A pool in a new file.
async fn empty_pool(context: &Context, file: &Path) -> Result<cenote_server::ImageFiles> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let layout = parse_layout(&[file.display().to_string()])?;
    let request = NewPoolRequest {
        name: POOL,
        layout: &layout,
        pool: &[],
        dataset: &[],
        size: Some(free_bytes(folder)?.clamp(SIZE_MIN_BYTES, SIZE_MAX_BYTES) & !((1 << 20) - 1)),
        seed: None,
        force: true,
        command: Line::new("cenote receive"),
    };
    let (new, made) = NewPool::make(context, &request).await?;
    Builder::new(new.made, new.latest_s).finish(None).await?;
    Ok(made)
}

/// Copies the last snapshot out.
async fn unpacked(context: &Context, args: &Args, kept: Option<&ReceiveNote>) -> Result<Outcome> {
    let view = context.open_pool(POOL).await?;
    let (last, left_out) = last_snapshot(&view, DATASET).await?;
    left_out.iter().for_each(|name| context.err(format!("'{name}', below what the stream is of, is left out")));
    let files = filesystem(&view, &last).await?;
    if args.is_archive() {
        return archived(context, args, &files).await;
    }
    if !is_free(&args.to)? {
        check_ours(kept, args)?;
        return replaced(context, args, &view, &files, &last).await;
    }
    let outcome = copied(context, args, &files, &last, &args.to).await?;
    if args.keep.is_some() {
        // Also one that is not whole: the same stream again replaces it.
        let inode = fs::metadata(&args.to)?.ino();
        view.close().await;
        note(context, &args.to, [inode, inode]).await?;
    }
    Ok(outcome)
}

/// Copies the last snapshot out, beside the directory, and has the two change places.
async fn replaced(context: &Context, args: &Args, view: &View, files: &FileSystem, last: &Dataset) -> Result<Outcome> {
    let to = args.to.display();
    let parent = args.to.parent().with_context(|| format!("'{to}' cannot be replaced"))?;
    let beside = tempfile::Builder::new().prefix(".cenote-receive-").tempdir_in(parent)?;
    let (place, new) = (beside.path().to_owned(), beside.path().join("new"));
    // Opened before the copy, so that errors of late writes are told.
    let folder = fs::File::open(&place)?;
    let outcome = copied(context, args, files, last, &new).await?;
    if outcome != Outcome::Good {
        beside.close().with_context(|| format!("'{to}' is left as it was, and cannot remove '{}'", place.display()))?;
        let keep = args.keep.as_deref().unwrap_or(Path::new("")).display();
        bail!(
            "'{to}' is left as it was, since not all could be copied; '{keep}' has what was received, and the same stream again unpacks it"
        );
    }
    sync_filesystem(&folder).with_context(|| format!("'{to}' is left as it was"))?;
    view.close().await;
    note(context, &args.to, [fs::metadata(&new)?.ino(), fs::metadata(&args.to)?.ino()]).await?;
    exchange(&new, &args.to).with_context(|| format!("cannot put the new directory in the place of '{to}'"))?;
    // Both directories that have changed are on it, and the right to read the parent is not needed.
    sync_filesystem(&folder)?;
    beside
        .close()
        .with_context(|| format!("'{to}' is new; cannot remove what was there before from '{}'", place.display()))?;
    Ok(outcome)
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
    let mut target = match args.to.as_os_str() == "-" {
        true => ArchiveTarget::of(Box::new(Content(context.output().clone()))),
        false => ArchiveTarget::at(&args.to)?,
    };
    let progress = context.progress("unpacking", None);
    let failures = AtomicU64::new(0);
    let mut report = |path: &[u8], what: &str| {
        failures.fetch_add(1, Ordering::Relaxed);
        context.err(format!("/{}: {what}", shown(path, true)));
    };
    let options = ArchiveOptions { sparse: true, xattrs: !args.no_xattrs };
    let mut archive = Archive::new(context.handle(), files, options, target.sink(), &progress, &mut report);
    archive.tree(files.root(), b"").await?;
    let sockets = archive.sockets;
    archive.finish()?;
    if sockets > 0 {
        let sockets = counted(sockets, "socket", "sockets");
        context.err(format!("{sockets} left out: archives cannot hold them"));
    }
    let is_whole = failures.load(Ordering::Relaxed) == 0;
    target.finish(is_whole)?;
    Ok(Outcome::unless(!is_whole))
}
