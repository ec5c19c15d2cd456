//! `cenote build`: a pool with files in it, made in one go.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cenote_image::build::{
    Budget, Builder, Choice, Event, FileTree, Folder, Room, Whiteouts, add_archive, add_image, archive, is_layout,
};
use cenote_scan::VerifyOptions;
use cenote_spa::TopKind;
use serde::{Deserialize, Serialize};

use super::put::{as_it_was, tell};
use super::verify::verify_with_progress;
use crate::args::{Search, parse_size};
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::output::{counted, nicebytes};
use cenote_host::layout::{Layout, Top, parse_layout};
use cenote_server::{NewPool, Wish};

/// The words of an error for a full pool.
const NO_SPACE: &str = "no space for";
/// Space for a file beside its data: a dnode and its share of directories, in two copies, and the old blocks that a txg keeps.
const ENTRY_BYTES: u64 = 4 << 10;
/// The least space that a pool keeps back for itself, with labels.
const KEPT_BACK_BYTES: u64 = 160 << 20;

/// Make a pool from a directory, an archive or an OCI image.
///
/// VDEV is as for `zpool create`; files are made, each of the size that is given. Owners, modes, modification times, extended
/// attributes, ACLs, holes, hard links, symbolic links and special files are kept. No privileges are needed but those to
/// read the source. In the end everything is read back and verified.
///
/// What changes in a directory while it is read is told, and the status is 1; the pool then has what was there when each file
/// was read, as with tar. What cannot be read is an error, and then there is no pool. Files that are made get their names when the
/// pool is whole; until then they are called NAME.unfinished, and where the command fails or is interrupted they are removed.
///
/// With --seed, and SOURCE_DATE_EPOCH in the environment, the same source gives the same bytes: nothing then depends on the
/// machine, and no time in the pool is later than that.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pool's name.
    #[arg(long, value_name = "NAME")]
    pool: String,
    /// The size of each file that is made.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    source: SourceArgs,
    /// Set a property of the pool: ashift, feature@NAME.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Set a property of the root file system.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    dataset_properties: Vec<String>,
    /// Draw guids and salts from this number.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Overwrite what lies on the devices (file systems, partition tables, other pools). A device in use is refused all the same.
    #[arg(short = 'f')]
    force: bool,
    /// Do not read everything back in the end.
    #[arg(long)]
    no_verify: bool,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
}

/// The source of the files.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(super) struct SourceArgs {
    /// Where files come from: a directory, a tar archive (plain, gzip or zstd; `-` is standard input), or a directory with
    /// an OCI image layout, whose layers are put one over the other.
    #[arg(long, value_name = "DIR|TAR|-")]
    from: PathBuf,
    /// What that is, where it is not plain from what it is: a directory with an OCI layout can be taken as it is.
    #[arg(long = "as", value_name = "KIND")]
    kind: Option<SourceKind>,
    /// Of an OCI layout, the image with this tag.
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// Of an OCI layout, the image for this platform, such as linux/arm64.
    #[arg(long, value_name = "OS/ARCH")]
    platform: Option<String>,
    /// Memory for names, records and attributes of an archive's or image's files, which are gathered before any is written;
    /// 512M by default.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    archive_memory: Option<u64>,
}

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(super) enum SourceKind {
    /// A directory of this machine.
    Dir,
    /// A tar archive.
    Tar,
    /// A directory with an OCI image layout.
    Oci,
}

impl SourceArgs {
    /// The place that it names.
    pub(super) fn path(&self) -> &Path {
        &self.from
    }

    /// What it is.
    pub(super) fn kind(&self) -> Result<SourceKind> {
        let is_dir = self.from.is_dir();
        let kind = self.kind.unwrap_or(match is_dir {
            true if is_layout(&self.from) => SourceKind::Oci,
            true => SourceKind::Dir,
            false => SourceKind::Tar,
        });
        match kind {
            SourceKind::Dir | SourceKind::Oci if !is_dir => bail!("'{}' is no directory", self.from.display()),
            SourceKind::Oci if !is_layout(&self.from) => bail!("'{}' is no OCI image layout", self.from.display()),
            SourceKind::Tar if is_dir => bail!("'{}' is a directory", self.from.display()),
            SourceKind::Dir | SourceKind::Tar if self.tag.is_some() || self.platform.is_some() => {
                Err(usage("--tag and --platform are for OCI image layouts"))
            }
            kind => Ok(kind),
        }
    }

    /// All files of an archive or image, put together before any is written.
    pub(super) fn gathered(&self, context: &Context, kind: SourceKind, mut room: Room) -> Result<FileTree> {
        let progress = context.progress("unpacking", None);
        let mut advance = |bytes| progress.advance(bytes);
        let mut tree = FileTree::new(Budget::new(self.archive_memory.unwrap_or(Budget::DEFAULT_BYTES)));
        let from = || self.from.display().to_string();
        if kind == SourceKind::Oci {
            let choice = Choice { tag: self.tag.clone(), platform: self.platform.clone() };
            add_image(&mut tree, &self.from, &choice, &mut room, &mut advance).with_context(from)?;
        } else {
            let file = archive(&self.from, &mut room, &mut advance).with_context(from)?;
            add_archive(&mut tree, file, Whiteouts::Ignore).with_context(from)?;
        }
        Ok(tree)
    }
}

/// The size of all files and devices of a new pool together.
fn size_of_devices(layout: &Layout, size: Option<u64>) -> u64 {
    let size_of = |path: &Path| -> u64 {
        // The end of a block device is its size; its metadata has none.
        let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        size.or(end.ok()).unwrap_or(0)
    };
    layout.paths().map(size_of).fold(0, u64::saturating_add)
}

/// Space for all files below a directory, as far as it can be read.
pub(super) fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0_u64;
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                left.push(entry.path());
            }
            let data_bytes = if found.is_file() { found.len() } else { 0 };
            bytes = bytes.saturating_add(ENTRY_BYTES).saturating_add(data_bytes);
        }
    }
    bytes
}

/// A size of each of a pool's files, in whole MiB, that is enough for so much data that does not compress.
fn size_that_is_enough(layout: &Layout, data_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    // Disks of a top-level vdev that hold data rather than copies or parity of it, in thousandths.
    let share = |top: &Top| match (top.kind, top.paths.len() as u64) {
        (TopKind::Single | TopKind::Mirror, _) => 1000,
        (TopKind::Raidz { parity }, disks) => 1000 * disks.saturating_sub(parity).max(1),
        (TopKind::Draid { parity, data, spares }, disks) => {
            let group = data.unwrap_or(8).max(1);
            1000 * disks.saturating_sub(spares).max(1) * group / (group + parity)
        }
    };
    let shares = layout.tops.iter().map(share).sum::<u64>().max(1);
    // Metadata and padding, and what a pool keeps back.
    let wanted = data_bytes.saturating_add(data_bytes / 8).saturating_mul(1000) / shares;
    (wanted + wanted / 16 + KEPT_BACK_BYTES).div_ceil(MIB) * MIB
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let layout = parse_layout(&args.vdevs)?;
    let kind = args.source.kind()?;
    let wish = Wish {
        name: &args.pool,
        layout: &layout,
        pool: &args.properties,
        dataset: &args.dataset_properties,
        size: args.size,
        seed: args.seed,
        force: args.force,
        command: format!("cenote build --pool {}", args.pool),
    };
    let start = context.handle().now();
    let tree = match kind {
        SourceKind::Dir => None,
        _ => Some(args.source.gathered(context, kind, Room::for_pool(size_of_devices(&layout, args.size)))?),
    };
    // What was made of files goes again where this fails.
    let (new, made) = NewPool::make(context, &wish).await?;
    let places: Vec<PathBuf> = layout.paths().map(|path| made.place(path)).collect();
    let progress = context.progress("writing", tree.as_ref().map(FileTree::data_bytes));
    let mut builder = Builder::new(new.made, new.latest_s);
    let data_bytes = tree.as_ref().map(FileTree::data_bytes);
    let written = async {
        match tree {
            None => {
                let mut tell = |event: Event<'_>| tell(context, &progress, event);
                Folder::new(&mut builder, &places, &mut tell).add(args.source.path()).await?;
            }
            Some(tree) => tree.add_to(&mut builder, &mut |bytes| progress.advance(bytes)).await?,
        }
        builder.finish(None).await
    };
    let counts = match Box::pin(written).await {
        // The cause alone: the error around it names a file, whose name may be anything.
        Err(error) if error.root().to_string().contains(NO_SPACE) => {
            let enough =
                size_that_is_enough(&layout, data_bytes.unwrap_or_else(|| bytes_below(args.source.path()))) >> 20;
            let what = format!(
                "'{}' does not fit: --size {enough}M is enough, and less where it compresses",
                args.source.path().display()
            );
            return Err(anyhow::Error::from(error).context(what));
        }
        written => written?,
    };
    drop(progress);
    let seconds = context.handle().now().since(start).as_secs_f64();
    context.out(format!(
        "{}, {}, {}, {} in {} txgs, {seconds:.1} s, {}/s\n",
        counted(counts.files, "file", "files"),
        counted(counts.directories, "directory", "directories"),
        counted(counts.others, "other", "others"),
        nicebytes(counts.bytes),
        counts.txgs,
        nicebytes((counts.bytes as f64 / seconds.max(0.001)) as u64)
    ))?;
    if !args.no_verify {
        let context = context.with(&Search { paths: places, force: true });
        let pool = context.open_pool(&args.pool).await?;
        let (report, bytes) = verify_with_progress(&context, &pool, VerifyOptions { data: true, space: true }).await?;
        if !report.is_clean() {
            bail!(
                "what was written is not what is read back: {} errors, {} bad copies, {} bytes leaked; no pool is left",
                report.error_count,
                report.bad_copy_count,
                report.leaked_bytes
            );
        }
        context.out(format!("verified: {} in {} blocks\n", nicebytes(bytes), report.statistics.total.count))?;
    }
    made.keep()?;
    Ok(as_it_was(context, &counts))
}
