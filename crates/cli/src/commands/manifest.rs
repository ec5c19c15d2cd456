//! `cenote manifest`.

use std::io::{BufWriter, Write as _};

use crate::output::Content;
use crate::prelude::*;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Print what a pool contains, as JSON: every file's metadata and hash.
///
/// The JSON is written while the pool is read, and is cut short by an error. Extended attributes are shown as hexadecimal digits;
/// of a file that has more than 256 KiB of them, large values are shown by size and SHA-256.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// The pool's name or guid.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    // Only looks: a pool that some system has left open is described as it lies there.
    let context = context.with(&Search { force: true, ..args.search });
    let pool = context.open_pool(&args.pool).await?;
    let mut sink = BufWriter::with_capacity(BUFFER_BYTES, Content(context.output().clone()));
    cenote_image::manifest::manifest(context.handle(), &pool, &mut sink).await?;
    sink.flush()?;
    Ok(Outcome::Good)
}
