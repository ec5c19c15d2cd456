//! `zstream decompress`, `drop_record`, `recompress` and `redup`: streams made of streams.

use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;

use anyhow::Context as _;
use cenote_admin::stream::{self, ReadAt, StreamError, Target, Waiting};

use super::{input, output};
use crate::outcome::with_status;
use crate::prelude::*;

/// Decompress blocks whose compression may be recorded wrongly.
///
/// The stream comes from standard input and goes to standard output. Each WRITE record of these objects at these offsets is
/// decompressed if it can be, and left as it is if not. Checksums are computed anew.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Decompress {
    /// Say what became of each record.
    #[arg(short = 'v')]
    verbose: bool,
    /// OBJECT,OFFSET or OBJECT,OFFSET,TYPE: the algorithm is lz4 (the default), gzip, lzjb, zstd or zle; off says that the block is not
    /// compressed, whatever its record says.
    #[arg(value_name = "OBJECT,OFFSET[,TYPE]")]
    records: Vec<String>,
}

/// Leave records out of a stream.
///
/// The stream comes from standard input and goes to standard output, without the WRITE and WRITE_EMBEDDED records of these objects at
/// these offsets.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct DropRecord {
    /// Say which records are left out.
    #[arg(short = 'v')]
    verbose: bool,
    /// Object and offset of a record.
    #[arg(value_name = "OBJECT,OFFSET")]
    records: Vec<String>,
}

/// Compress the blocks of a stream in another way.
///
/// The stream comes from standard input and goes to standard output. A block that gets no smaller stays uncompressed. Metadata, blocks
/// in block pointers (zfs send -e) and encrypted blocks stay as they are.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Recompress {
    /// The level, for zstd: 1 to 19, or 103 and more for the fast ones, as pools number them.
    #[arg(short = 'l', value_name = "LEVEL", allow_hyphen_values = true)]
    level: Option<i64>,
    /// Threads that compress, up to 4 for each core; all cores without it.
    #[arg(short = 't', value_name = "THREADS")]
    threads: Option<NonZeroUsize>,
    /// The algorithm, as the property compression names it; off for none.
    #[arg(value_name = "TYPE")]
    algorithm: String,
}

/// Make a stream without references of one with them (zfs send -D).
///
/// The stream must be a file: blocks are read again from it. Memory does not grow with it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Redup {
    /// Say how many records there were.
    #[arg(short = 'v')]
    verbose: bool,
    /// The file.
    file: PathBuf,
}

pub(super) fn decompress(context: &Context, args: &Decompress) -> Result<Outcome> {
    let blocks = stream::decompressions(&args.records).map_err(failed)?;
    let tell = |line| context.err(line);
    stream::decompress(input()?, output(context)?, &blocks, args.verbose, tell).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn drop_record(context: &Context, args: &DropRecord) -> Result<Outcome> {
    let places = stream::places(&args.records).map_err(failed)?;
    let tell = |line| context.err(line);
    stream::drop_records(input()?, output(context)?, &places, args.verbose, tell).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn recompress(context: &Context, args: &Recompress) -> Result<Outcome> {
    let target = stream::target(&args.algorithm, args.level).map_err(failed)?;
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    // More would only take memory, and there may be a limit of them.
    let threads = args.threads.map_or(cores, |threads| threads.get().min(cores.saturating_mul(4)));
    let spread = |batch: &mut [Waiting], target: &Target| {
        let works = batch.iter().filter(|waiting| waiting.is_work()).count();
        let share = batch.len().div_ceil(threads.min(works).max(1)).max(1);
        thread::scope(|scope| {
            for part in batch.chunks_mut(share) {
                scope.spawn(move || stream::in_turn(part, target));
            }
        });
    };
    stream::recompress(input()?, output(context)?, &target, &spread).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn redup(context: &Context, args: &Redup) -> Result<Outcome> {
    let out = output(context)?;
    let file = File::open(&args.file);
    let file = file.with_context(|| format!("Error while opening file '{}'", args.file.display()))?;
    let line = stream::redup(BufReader::with_capacity(1 << 20, &file), &Seekable(&file), out).map_err(failed)?;
    if args.verbose {
        context.err(line);
    }
    Ok(Outcome::Good)
}

/// A file that is read anywhere.
struct Seekable<'a>(&'a File);

impl ReadAt for Seekable<'_> {
    fn read_at(&self, target: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(target, offset_bytes)
    }
}

/// The error with the exit status of OpenZFS's tool.
fn failed(error: StreamError) -> anyhow::Error {
    match error.status() {
        Some(status) => with_status(status, error.into()),
        None => error.into(),
    }
}
