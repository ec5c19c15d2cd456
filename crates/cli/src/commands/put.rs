//! `cenote put`: files into a file system that exists.

use std::path::PathBuf;

use anyhow::bail;
use cenote_admin::Line;
use cenote_image::build::{Builder, Counts, Event, Folder, folder_of, open_files};
use cenote_server::writing::open_for_writing;

use crate::output::{Progress, counted, nicebytes};
use crate::prelude::*;

/// Add the contents of a directory to a file system.
///
/// Directories that are there already are added to; anything else that is there already is an error, and then nothing is
/// changed. All of it appears at once: whatever happens, either everything was added or nothing. Owners, modes, modification
/// times, extended attributes, ACLs, holes, hard links, symbolic links and special files are kept. The pool is exported
/// afterwards.
///
/// Changes in the directory while it is read are reported, and the status is 1; each file is then added as it was when it was read,
/// as with tar. A file that cannot be read is an error, and then nothing is added.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// The file system.
    filesystem: String,
    /// The directory whose contents are added.
    source: PathBuf,
    /// The directory of the file system to add to.
    #[arg(default_value = "/")]
    target: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = &context.with(&args.search);
    let name = &args.filesystem;
    if !args.source.try_exists().unwrap_or(true) {
        bail!("'{}' does not exist", args.source.display());
    }
    if !args.source.is_dir() {
        bail!("not supported yet: adding anything but what a directory holds ('{}')", args.source.display());
    }
    let (found, _) = context.locate(pool_of(name)).await?;
    let devices: Vec<PathBuf> = found.leaves.values().map(|leaf| leaf.disk.path().as_ref().into()).collect();
    drop(found);
    let pool = open_for_writing(context, pool_of(name)).await?;
    let files = open_files(&pool, name).await?;
    let directory = folder_of(&files, name, &args.target).await?;
    let progress = context.progress("adding", None);
    let mut builder = Builder::into_existing(pool, files, directory).await?;
    let mut tell = |event: Event<'_>| tell(context, &progress, event);
    Folder::new(&mut builder, &devices, &mut tell).add(&args.source).await?;
    let source = args.source.display().to_string();
    let counts = builder.finish(Some(Line::new("cenote put").words([name, &source, &args.target]).text())).await?;
    drop(progress);
    context.out(format!(
        "{}, {}, {}, {}\n",
        counted(counts.files, "file", "files"),
        counted(counts.directories, "directory", "directories"),
        counted(counts.others, "other", "others"),
        nicebytes(counts.bytes)
    ))?;
    Ok(as_it_was(context, &counts))
}

/// Shows what happens while a directory is read.
pub(super) fn tell(context: &Context, progress: &Progress, event: Event<'_>) {
    match event {
        Event::Bytes(bytes) => progress.advance(bytes),
        Event::Changed(path, what) => context.err(format!("{}: {what}", path.display())),
        Event::Own(path) => context.err(format!("{}: is of the pool that is written: left out", path.display())),
    }
}

/// The outcome: a failure where the source changed while it was read.
pub(super) fn as_it_was(context: &Context, counts: &Counts) -> Outcome {
    if counts.changed > 0 {
        let places = counted(counts.changed, "place", "places");
        context.err(format!(
            "the source changed while it was read, in {places}: some of it is there as it was, some as it is"
        ));
    }
    Outcome::unless(counts.changed > 0)
}
