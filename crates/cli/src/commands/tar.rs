//! `cenote tar`: files of a dataset as a pax archive.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use cenote_image::archive::{Archive, Options};

use crate::files::{self, bytes_of, follow, shown};
use crate::output::{Content, counted};
use crate::prelude::*;

/// Bytes gathered before they are written to a file.
const BUFFER_BYTES: usize = 1 << 20;

/// Write files of a dataset as a tar archive (pax), to standard output or a file.
///
/// Names are those inside the dataset, without a leading slash. The archive has nanosecond times, extended attributes
/// (SCHILY.xattr), POSIX ACLs (SCHILY.acl), hard links, devices, and sparse files in GNU's format 1.0, which GNU tar,
/// bsdtar and Python read.
///
/// `-f` names the archive, as it does for tar; a pool of another system is opened with `--force`.
///
/// An archive is data, and has everything: set-id bits, devices, `trusted.*` and `security.*` attributes. The program that unpacks
/// it decides whether to leave out privileges (`tar --no-same-permissions`, `--no-same-owner`); `cenote cp` leaves them out by
/// itself. A new archive is readable by its owner alone.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Look for the pool's devices in this directory, or at this file or device; may be given several times.
    #[arg(id = "search-dir", short = 'd', value_name = "DIR|FILE")]
    search_paths: Vec<PathBuf>,
    /// Open the pool even if it was last in use by another system.
    #[arg(id = "search-force", long = "force")]
    force: bool,
    /// Write to this file; `-` is standard output.
    #[arg(short = 'f', long = "file", visible_short_alias = 'o', visible_alias = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write holes as zeros, for readers that do not know GNU's sparse files.
    #[arg(long)]
    no_sparse: bool,
    /// Leave out extended attributes and access control lists.
    #[arg(long)]
    no_xattrs: bool,
    /// File system or snapshot.
    dataset: Option<String>,
    /// Paths inside it; all of it where there is none.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context.with(&Search { paths: args.search_paths, force: args.force });
    let Some(dataset) = args.dataset else {
        let what = args.output.map(|path| format!(": -f names the archive, so it would be '{}'", path.display()));
        return Err(usage(format!("missing dataset{}", what.unwrap_or_default())));
    };
    let (found, filesystem) = files::open(&context, &dataset).await?;
    let output = args.output.filter(|path| path.as_os_str() != "-");
    if output.is_none() && context.output().is_terminal() {
        bail!("an archive is not for a terminal: redirect it, or name a file with -f");
    }
    let mut sink: Box<dyn Write> = match &output {
        Some(path) => {
            // It contains files that only their owners may read.
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            let file = file.with_context(|| path.display().to_string())?;
            Box::new(BufWriter::with_capacity(BUFFER_BYTES, file))
        }
        None => Box::new(Content(context.output().clone())),
    };
    let total = args.paths.is_empty().then_some(found.phys.uncompressed_bytes);
    let progress = context.progress(&dataset, total);
    let failed = std::cell::Cell::new(false);
    let mut report = |path: &[u8], what: &str| {
        failed.set(true);
        context.err(format!("/{}: {what}", shown(path, true)));
    };
    let options = Options { sparse: !args.no_sparse, xattrs: !args.no_xattrs };
    let mut starts = vec![(filesystem.root(), Vec::new())];
    if !args.paths.is_empty() {
        starts.clear();
        for path in &args.paths {
            let path = bytes_of(path);
            let attributes = follow(&filesystem, &path, false).await?;
            // Names that climb would be refused by whoever unpacks them.
            let name: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| *part != b"..").collect();
            starts.push((attributes.object, name.join(&b'/')));
        }
    }
    let handle = context.handle();
    let mut archive = Archive::new(handle, &filesystem, options, &mut *sink, &progress, &mut report);
    for (start, name) in starts {
        archive.tree(start, &name).await?;
    }
    let (foreign_lists, sockets) = (archive.foreign_lists, archive.sockets);
    archive.finish()?;
    if foreign_lists > 0 && options.xattrs {
        let files = counted(foreign_lists, "file has", "files have");
        context.err(format!("{files} NFSv4 access control lists, which the archive does not hold"));
    }
    if sockets > 0 {
        let sockets = counted(sockets, "socket", "sockets");
        context.err(format!("{sockets} left out: archives cannot hold them"));
    }
    Ok(Outcome::unless(failed.get()))
}
