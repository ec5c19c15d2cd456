//! `cenote cat`: a file's bytes, or a volume's.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use cenote_dmu::{DataStream, Run};
use cenote_format::enums::ObjsetType;
use cenote_zvol::Volume;
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::files::{self, bytes_of, follow, shown};
use crate::outcome::{Outcome, usage};

/// Bytes of reads in flight.
const WINDOW_BYTES: u64 = 8 << 20;
/// Zeros written at a time for a hole.
const ZEROS: &[u8] = &[0; 64 << 10];

/// Write files of a dataset, one after the other, to standard output.
///
/// Without a path the dataset is a volume (or a snapshot of one), and its bytes are written.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// File system, volume, or snapshot of one.
    dataset: String,
    /// Files inside it.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context.with(&args.search);
    let (pool, dataset) = files::dataset(&context, &args.dataset).await?;
    if args.paths.is_empty() {
        if pool.dsl().kind(&dataset).await? != ObjsetType::Zvol {
            return Err(usage(format!("'{}' is not a volume: name the files to write", args.dataset)));
        }
        files::check_key(&pool, &dataset).await?;
        let objset = pool.dsl().open(&dataset).await?.context("the volume has no contents")?;
        let volume = Volume::open(&objset).await?;
        let progress = progress(&context, &args.dataset, volume.size_bytes());
        write(&context, volume.stream(WINDOW_BYTES), progress.as_ref()).await.context(args.dataset)?;
        return Ok(Outcome::Good);
    }
    let filesystem = files::filesystem(&pool, &dataset).await?;
    let mut failed = false;
    for path in &args.paths {
        let path = bytes_of(path);
        let write = async {
            let attributes = follow(&filesystem, &path, true).await?;
            let file = filesystem.open_file(attributes.object).await.with_context(|| shown(&path, true))?;
            let progress = progress(&context, &shown(&path, true), attributes.size_bytes);
            write(&context, file.stream(WINDOW_BYTES), progress.as_ref()).await.with_context(|| shown(&path, true))
        };
        let result: Result<()> = write.await;
        if let Err(error) = result {
            if crate::outcome::is_broken_pipe(&error) {
                return Err(error);
            }
            context.err(format!("{error:#}"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}

/// Progress is for bytes that go elsewhere: a bar among them on one terminal would spoil both.
fn progress(context: &Context, label: &str, size_bytes: u64) -> Option<crate::output::Progress> {
    (!context.output().is_terminal()).then(|| context.progress(label, Some(size_bytes)))
}

async fn write(context: &Context, mut stream: DataStream, progress: Option<&crate::output::Progress>) -> Result<()> {
    while let Some(run) = stream.next().await? {
        let len = match run {
            Run::Data { block, .. } => {
                context.output().bytes(&block[..])?;
                block.len() as u64
            }
            Run::Hole { len_bytes, .. } => {
                let mut left = len_bytes;
                while left > 0 {
                    let len = left.min(ZEROS.len() as u64);
                    context.output().bytes(&ZEROS[..len as usize])?;
                    left -= len;
                }
                len_bytes
            }
        };
        if let Some(progress) = progress {
            progress.advance(len);
        }
    }
    Ok(())
}
