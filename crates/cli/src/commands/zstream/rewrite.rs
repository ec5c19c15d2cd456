//! `zstream decompress`, `drop_record`, `recompress` and `redup`: streams made of streams.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, Error, Result, anyhow};
use cenote_codec::compress::{CompressLevel, Compression};
use cenote_format::enums::Compress;
use cenote_format::stream::RecordKind;
use cenote_send::rewrite::redup::ReadAt;
use cenote_send::rewrite::{self, Decompressed, Place, RewriteError, Target, Waiting};
use serde::{Deserialize, Serialize};

use super::{input, output};
use crate::context::Context;
use crate::outcome::{Outcome, with_status};
use crate::output::nicenum;

/// Exit status where an algorithm does not exist, one in the stream does not, and where a block does not unpack.
const NO_ALGORITHM: u8 = 2;
const NO_ALGORITHM_IN_STREAM: u8 = 3;
const NOT_DECOMPRESSED: u8 = 4;

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
    let mut blocks = BTreeMap::new();
    for text in &args.records {
        let (place, kind) = place(text)?;
        let kind = match kind.unwrap_or("lz4") {
            "off" => Compress::Off,
            "lz4" => Compress::Lz4,
            "lzjb" => Compress::Lzjb,
            "gzip" => Compress::Gzip1,
            "zle" => Compress::Zle,
            "zstd" => Compress::Zstd,
            other => return Err(no_algorithm(other, "\nSupported types are off, lz4, lzjb, gzip, zle, and zstd")),
        };
        blocks.insert(place, kind);
    }
    let told = |(object, offset): Place, what| match what {
        Decompressed::Failed(_) => context.err(format!("decompression failed for ino {object} offset {offset}")),
        _ if !args.verbose => {}
        Decompressed::Unpacked => context.err(format!("successfully decompressed ino {object} offset {offset}")),
        Decompressed::Reset => {
            context.err(format!("Resetting compression type to off for ino {object} offset {offset}"));
        }
    };
    rewrite::decompress(input()?, output(context)?, &blocks, told).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn drop_record(context: &Context, args: &DropRecord) -> Result<Outcome> {
    let places = args.records.iter().map(|text| Ok(place(text)?.0)).collect::<Result<BTreeSet<_>>>()?;
    let told = |(object, offset): Place, kind: RecordKind| {
        if args.verbose {
            let name = kind.name().trim_start_matches("DRR_");
            context.err(format!("dropping {name} record for object {object} offset {offset}"));
        }
    };
    rewrite::drop_records(input()?, output(context)?, &places, told).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn recompress(context: &Context, args: &Recompress) -> Result<Outcome> {
    let named = Compression::from_name(&args.algorithm).filter(|named| named.kind != Compress::On);
    let Compression { kind, level } = named.ok_or_else(|| no_algorithm(&args.algorithm, "."))?.resolved(true);
    let level = match args.level {
        Some(number) if kind == Compress::Zstd => {
            let level = u8::try_from(number).ok().map(CompressLevel).filter(|level| level.zstd_level().is_some());
            level.ok_or_else(|| crate::outcome::usage(format!("zstd has no level {number}")))?
        }
        // As in the original: the names of the others say all.
        _ => level,
    };
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).get();
    // More would only take memory, and there may be a limit of them.
    let threads = args.threads.map_or(cores, |threads| threads.get().min(cores.saturating_mul(4)));
    let spread = |batch: &mut [Waiting], target: &Target| {
        let works = batch.iter().filter(|waiting| waiting.is_work()).count();
        let share = batch.len().div_ceil(threads.min(works).max(1)).max(1);
        thread::scope(|scope| {
            for part in batch.chunks_mut(share) {
                scope.spawn(move || rewrite::in_turn(part, target));
            }
        });
    };
    rewrite::recompress(input()?, output(context)?, &Target { kind, level }, &spread).map_err(failed)?;
    Ok(Outcome::Good)
}

pub(super) fn redup(context: &Context, args: &Redup) -> Result<Outcome> {
    let out = output(context)?;
    let file = File::open(&args.file);
    let file = file.with_context(|| format!("Error while opening file '{}'", args.file.display()))?;
    let done = rewrite::redup(BufReader::with_capacity(1 << 20, &file), &Seekable(&file), out).map_err(failed)?;
    if args.verbose {
        context.err(format!(
            "converted stream with {} total records, including {} dedup records, using {}B memory.",
            done.records,
            done.by_ref,
            nicenum(done.index_bytes)
        ));
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

/// `OBJECT,OFFSET[,REST]`.
fn place(text: &str) -> Result<(Place, Option<&str>)> {
    let mut parts = text.splitn(3, ',');
    let object = parts.next().unwrap_or_default();
    let Some(offset) = parts.next() else {
        return Err(crate::outcome::usage(format!("'{text}' is not OBJECT,OFFSET")));
    };
    let object = number(object).ok_or_else(|| anyhow!("invalid value for object: '{object}'"))?;
    let offset = number(offset).ok_or_else(|| anyhow!("invalid value for offset: '{offset}'"))?;
    Ok(((object, offset), parts.next()))
}

/// A number as C writes it: decimal, with 0x hexadecimal, with 0 octal.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}

fn no_algorithm(name: &str, rest: &str) -> Error {
    with_status(NO_ALGORITHM, anyhow!("Invalid compression type {name}{rest}"))
}

fn failed(error: RewriteError) -> Error {
    let status = match error {
        RewriteError::Compression { .. } => NO_ALGORITHM_IN_STREAM,
        RewriteError::Decompress { .. } => NOT_DECOMPRESSED,
        _ => return error.into(),
    };
    with_status(status, error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_in_c() {
        assert_eq!(place("128,0,lz4").unwrap(), ((128, 0), Some("lz4")));
        assert_eq!(place("0x10,010").unwrap(), ((16, 8), None));
        assert_eq!(place("3545761,18446744073709486080").unwrap().0.1, 18_446_744_073_709_486_080);
        for wrong in ["1", "", "a,1", "1,b", ",1", "1,", "+1,2", "1,08", "0x,1", "-1,0"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
