//! `cenote send`: a stream of a directory, an archive or an image, without a pool.
//!
//! **How.** A pool is made in a sparse file that has no name when the command ends, as `cenote build` makes one; a snapshot of it is taken and
//! sent. So what the stream has is what a pool of these files has, and memory is bounded as there: by the names of a directory at a time, or
//! `--archive-memory`. The file takes the space of the compressed files.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use cenote_admin::Line;
use cenote_admin::send::{SendFlags, send_whole, take_seeded_snapshot};
use cenote_host::layout::parse_layout;
use cenote_image::build::{Builder, Event, FileTree, Folder, Room, bytes_below};
use cenote_image::unpack::free_bytes;
use cenote_server::writing::{finish, open_for_writing, recording};
use cenote_server::{NewPool, NewPoolRequest};

use super::build::{SourceArgs, gathered};
use super::put::{as_it_was, tell};
use super::receive::SIZE_MAX_BYTES;
use crate::output::Content;
use crate::prelude::*;

/// The least size of the pool that is made, in bytes. It is sparse.
const SIZE_MIN_BYTES: u64 = 1 << 30;

/// Write a stream of a directory, an archive or an OCI image, as 'zfs send' writes one of a snapshot.
///
/// It goes to standard output; 'zfs receive' of OpenZFS and of Cenote make a file system of it. No pool and no privileges are needed. A pool is
/// made in a sparse file in TMPDIR meanwhile, which takes the space of the compressed files.
///
/// With --seed, and SOURCE_DATE_EPOCH in the environment, the same source gives the same bytes. A receiver takes streams with the same
/// seed for the same snapshot, so two sources want two seeds.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// The name of the file system and the snapshot in the stream, which 'zfs receive -d' and '-e' look at.
    #[arg(long, value_name = "NAME@SNAPSHOT", default_value = "files@1")]
    name: String,
    /// Set a property of the file system that is sent: recordsize, compression, xattr, and others that say how files are kept. Properties
    /// themselves are not in the stream.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Blocks above 128K are sent as they are.
    #[arg(short = 'L', long)]
    large_block: bool,
    /// The contents of tiny files are sent as they are in block pointers.
    #[arg(short = 'e', long)]
    embed: bool,
    /// Blocks are sent compressed.
    #[arg(short = 'c', long)]
    compressed: bool,
    /// Draw guids from this number.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if context.output().is_terminal() {
        bail!("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
    }
    let (pool, snapshot) = match args.name.split_once('@') {
        Some((pool, snapshot)) if !pool.contains('/') && !snapshot.is_empty() => (pool, snapshot),
        _ => return Err(usage(format!("'{}' is not NAME@SNAPSHOT, with a NAME that a pool can have", args.name))),
    };
    let source = args.source.source()?;
    let folder = tempfile::tempdir()?;
    let free_bytes = free_bytes(folder.path())?;
    let tree = gathered(context, &source, Room::new(free_bytes))?;
    let file = folder.path().join("pool");
    let layout = parse_layout(&[file.display().to_string()])?;
    let data_bytes = tree.as_ref().map_or_else(|| bytes_below(args.source.path()), FileTree::data_bytes);
    let request = NewPoolRequest {
        name: pool,
        layout: &layout,
        pool: &[],
        dataset: &args.properties,
        size: Some(size_for(data_bytes)),
        seed: args.seed,
        force: true,
        command: Line::new("cenote send"),
    };
    let (new, made) = NewPool::make(context, &request).await?;
    let places: Vec<PathBuf> = layout.paths().map(|path| made.place(path)).collect();
    let progress = context.progress("reading", Some(data_bytes));
    let mut builder = Builder::new(new.made, new.latest_s);
    match tree {
        None => {
            let mut tell = |event: Event<'_>| tell(context, &progress, event);
            Folder::new(&mut builder, &places, &mut tell).add(args.source.path()).await?;
        }
        Some(tree) => tree.add_to(&mut builder, &mut |bytes| progress.advance(bytes)).await?,
    }
    let counts = builder.finish(None).await?;
    drop(progress);

    let context = context.with(&Search { paths: places, force: true });
    let writing = recording(&open_for_writing(&context, pool).await?, &Line::new("cenote send"));
    let name = format!("{pool}@{snapshot}");
    take_seeded_snapshot(&writing, &name, args.seed).await?;
    finish(writing).await?;

    let view = context.open_pool(pool).await?;
    let flags =
        SendFlags { large_blocks: args.large_block, embedded: args.embed, compressed: args.compressed, raw: false };
    let mut out = Content(context.output().clone());
    let sent = send_whole(&view, &name, flags, &mut out).await;
    sent.map_err(|error| anyhow!("cannot send '{}': {error}", args.source.path().display()))?;
    out.flush()?;
    Ok(as_it_was(&context, &counts))
}

/// The size of a pool for so much data. It is sparse, and so it may be too large; but holes count as data here, of which a file may have more
/// than a file system takes in one file.
fn size_for(data_bytes: u64) -> u64 {
    data_bytes.saturating_mul(2).saturating_add(SIZE_MIN_BYTES).min(SIZE_MAX_BYTES).next_multiple_of(1 << 20)
}
