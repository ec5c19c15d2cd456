//! `cenote build`: a pool with files in it, made in one go.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cenote_admin::Line;
use cenote_host::layout::parse_layout;
use cenote_image::build::{
    Budget, Builder, Choice, Event, FileTree, Folder, Room, Source, SourceKind, bytes_below, size_of_devices,
    size_that_is_enough,
};
use cenote_server::{NewPool, NewPoolRequest, check_pool_name};

use super::put::{as_it_was, tell};
use super::verify::verify_with_progress;
use crate::args::parse_size;
use crate::output::{counted, nicebytes};
use crate::prelude::*;

/// Make a pool from a directory, an archive or an OCI image.
///
/// VDEV is as for `zpool create`; files are made, each of the size that is given. Owners, modes, modification times, extended
/// attributes, ACLs, holes, hard links, symbolic links and special files are kept. No privileges are needed but those to
/// read the source. In the end everything is read back and verified.
///
/// Changes in a directory while it is read are reported, and the status is 1; the pool then has each file as it was when it was read,
/// as with tar. A file that cannot be read is an error, and then there is no pool. Files made for the pool get their names when it is
/// whole; until then they are called NAME.unfinished, and where the command fails or is interrupted they are removed.
///
/// With --seed, and SOURCE_DATE_EPOCH in the environment, the same source and options give the same bytes: nothing then depends on the
/// machine, on the user, or on the names of the files that are made, and no time in the pool is later than that. Without --seed the root
/// directory of an archive or image that does not describe it belongs to the user and group of the process that runs this command.
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
    /// Where files come from: a directory, a tar archive (plain, gzip or zstd; `-` is standard input), or an image of a container, whose
    /// layers are put one over the other: a directory with an OCI image layout, an archive of one, or an archive as `docker save` and
    /// `podman save` write it.
    #[arg(long, value_name = "DIR|TAR|-")]
    from: PathBuf,
    /// The kind of the source, where it is ambiguous: a directory or an archive with an image can be taken as a plain one.
    #[arg(long = "as", value_name = "KIND")]
    kind: Option<Kind>,
    /// Of several images, the one with this tag, or this name and tag.
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// The image for this platform, such as linux/arm64 or linux/arm/v7: that is what the image's own configuration has to say.
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<String>,
    /// Memory for names, records and attributes of an archive's or image's files, which are gathered before any is written;
    /// 512M by default.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    archive_memory: Option<u64>,
}

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Kind {
    /// A directory of this machine.
    Dir,
    /// A tar archive.
    Tar,
    /// An OCI image layout: a directory, or an archive of it.
    Oci,
    /// An archive of images as `docker save` writes it.
    Docker,
}

impl SourceArgs {
    /// The place that it names.
    pub(super) fn path(&self) -> &Path {
        &self.from
    }

    /// The source, of the kind that it is.
    pub(super) fn source(&self) -> Result<Source> {
        let kind = self.kind.map(|kind| match kind {
            Kind::Dir => SourceKind::Folder,
            Kind::Tar => SourceKind::Archive,
            Kind::Oci => SourceKind::Image,
            Kind::Docker => SourceKind::Docker,
        });
        let choice = Choice { tag: self.tag.clone(), platform: self.platform.clone() };
        let source = Source::new(&self.from, kind, choice)?;
        Ok(Source { memory_bytes: self.archive_memory.unwrap_or(Budget::DEFAULT_BYTES), ..source })
    }
}

/// All files of an archive or image, put together before any is written; nothing of a folder.
pub(super) fn gathered(context: &Context, source: &Source, mut room: Room) -> Result<Option<FileTree>> {
    if source.kind == SourceKind::Folder {
        return Ok(None);
    }
    let progress = context.progress("unpacking", None);
    let (tree, image) = source.gathered(&mut room, &mut |bytes| progress.advance(bytes))?;
    drop(progress);
    if let Some(image) = image {
        context.err(format!("image {image}"));
    }
    Ok(Some(tree))
}

/// The rate of so many bytes, where they are enough for one.
fn rate(bytes: u64, seconds: f64) -> String {
    const BYTES_MIN: u64 = 16 << 20;
    match bytes >= BYTES_MIN && seconds > 0.0 {
        true => format!(", {}/s", nicebytes((bytes as f64 / seconds) as u64)),
        false => String::new(),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    check_pool_name(&args.pool)?;
    let layout = parse_layout(&args.vdevs)?;
    let source = args.source.source()?;
    let request = NewPoolRequest {
        name: &args.pool,
        layout: &layout,
        pool: &args.properties,
        dataset: &args.dataset_properties,
        size: args.size,
        seed: args.seed,
        force: args.force,
        command: Line::new("cenote build").words(["--pool", &args.pool]),
    };
    let start = context.handle().now();
    let tree = gathered(context, &source, Room::for_pool(size_of_devices(&layout, args.size)))?;
    // The files made here are removed again if the rest fails.
    let (new, made) = NewPool::make(context, &request).await?;
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
        Err(error) if error.is_no_space() => {
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
        "{}, {}, {}, {} in {}, {seconds:.1} s{}\n",
        counted(counts.files, "file", "files"),
        counted(counts.directories, "directory", "directories"),
        counted(counts.others, "other", "others"),
        nicebytes(counts.bytes),
        counted(counts.txgs, "txg", "txgs"),
        rate(counts.bytes, seconds)
    ))?;
    if !args.no_verify {
        let context = context.with(&Search { paths: places, force: true });
        let pool = context.open_pool(&args.pool).await?;
        let (report, bytes) = verify_with_progress(&context, &pool, true, true).await?;
        if !report.is_clean() {
            bail!(
                "what was written is not what is read back: {}, {}, {} leaked; no pool is left",
                counted(report.error_count, "error", "errors"),
                counted(report.bad_copy_count, "bad copy", "bad copies"),
                counted(report.leaked_bytes, "byte", "bytes")
            );
        }
        context.out(format!(
            "verified: {} in {}\n",
            nicebytes(bytes),
            counted(report.statistics.total.count, "block", "blocks")
        ))?;
    }
    made.keep()?;
    Ok(as_it_was(context, &counts))
}
