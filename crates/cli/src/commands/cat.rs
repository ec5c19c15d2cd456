//! `cenote cat`: a file's bytes, or a volume's.

use std::ffi::OsString;

use anyhow::Context as _;
use cenote_image::files::Bytes;

use crate::files::{self, bytes_of, shown};
use crate::output::Content;
use crate::prelude::*;

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
        let bytes = Bytes::of_volume(&pool, &dataset).await?;
        write(&context, &args.dataset, bytes).await.context(args.dataset)?;
        return Ok(Outcome::Good);
    }
    let filesystem = files::filesystem(&pool, &dataset).await?;
    let mut failed = false;
    for path in &args.paths {
        let path = bytes_of(path);
        let written = async {
            let bytes = Bytes::of_file(&filesystem, &path).await?;
            write(&context, &shown(&path, true), bytes).await.with_context(|| shown(&path, true))
        };
        let written: Result<()> = written.await;
        if let Err(error) = written {
            if crate::outcome::is_broken_pipe(&error) {
                return Err(error);
            }
            context.err(causes(&error));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}

async fn write(context: &Context, label: &str, bytes: Bytes) -> Result<()> {
    // Progress is for bytes that go elsewhere: a bar among them on one terminal would spoil both.
    let size = Some(bytes.size_bytes);
    let progress = (!context.output().is_terminal()).then(|| context.progress(label, size));
    let mut done = |more| progress.iter().for_each(|progress| progress.advance(more));
    Ok(bytes.write(&mut Content(context.output().clone()), &mut done).await?)
}
