//! `cenote inspect bp`.

use anyhow::bail;
use cenote_inspect::{Address, BlockOf, Place, PlaceForm, Report, Target, dmu_of_labels};

use super::report::{Common, context_of, open};
use crate::prelude::*;

/// Read one block, check it and decode it.
///
/// VDEV:OFFSET:SIZE or VDEV:OFFSET:SIZE:FLAGS is a place as DVAs count (VDEV decimal, the others hexadecimal; SIZE may be LSIZE/PSIZE): there
/// is no checksum to check then, and the checksums of what was read are shown. OBJSET:OBJECT:LEVEL:BLOCK, all
/// decimal as error messages have them, is a block by what it belongs to; level -1 is the objset's own block. FLAGS are
/// those of `zdb -R`: r (raw), d (decompress), i (an indirect block), g (a gang header), c (checksums), v.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write the bytes to standard output and nothing else. Of a block by what it belongs to: the logical bytes.
    #[arg(short = 'r', long)]
    pub(crate) raw: bool,
    /// With --raw: the physical bytes, as they lie on disk.
    #[arg(long)]
    pub(crate) physical: bool,
    /// Of a place: try every compression, for LSIZE or for any size that fits.
    #[arg(long)]
    pub(crate) decompress: bool,
    /// Of a place: take the bytes for an indirect block.
    #[arg(short = 'i', long)]
    pub(crate) indirect: bool,
    /// Of a place: take the bytes for a gang header.
    #[arg(short = 'g', long)]
    pub(crate) gang: bool,
    /// Of a place: the txg in which the block was written, which decides its layout on an expanded raidz; by default the
    /// newest.
    #[arg(long, value_name = "TXG")]
    pub(crate) birth: Option<u64>,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
    /// The block.
    #[arg(value_name = "PLACE|OBJSET:OBJECT:LEVEL:BLOCK", allow_hyphen_values = true)]
    pub(crate) block: String,
}

impl Args {
    /// A block, with whatever its flags say.
    pub(crate) fn of_place(common: Common, pool: String, block: String) -> Self {
        Self {
            common,
            raw: false,
            physical: false,
            decompress: false,
            indirect: false,
            gang: false,
            birth: None,
            pool,
            block,
        }
    }
}

pub(crate) async fn run(context: &Context, mut args: Args) -> Result<Outcome> {
    let context = context_of(context, &args.common);
    let mut report = args.common.report();
    match Address::parse(&args.block)? {
        Address::Place { vdev, offset_bytes, lsize_bytes, psize_bytes, flags } => {
            for flag in flags.chars() {
                match flag {
                    'r' => args.raw = true,
                    'd' => args.decompress = true,
                    'i' | 'b' => args.indirect = true,
                    'g' => args.gang = true,
                    'c' | 'v' => {}
                    other => return Err(usage(format!("not supported yet: the flag '{other}' of a place"))),
                }
            }
            // A pool that cannot be opened has a tree nevertheless.
            let (dmu, newest) = match open(&context, &mut report, &args.pool).await {
                Ok(pool) => (pool.dmu().clone(), pool.txg()),
                Err(error) => {
                    report.problem(format_args!("{}; going by the labels alone", causes(&error)));
                    let found = context.devices_of(&args.pool).await?;
                    let newest = found.newest().map(|leaf| leaf.txg).unwrap_or_default();
                    (dmu_of_labels(context.handle(), &found, context.import_options().cache_bytes)?, newest)
                }
            };
            let mut birth = newest;
            birth.0 = args.birth.unwrap_or(birth.0);
            let place = Place { vdev, offset_bytes, lsize_bytes, psize_bytes, birth };
            let bytes = place.read(&mut report, &dmu).await;
            let Some(bytes) = bytes else {
                return if args.raw { finish_raw(&context, &report) } else { report.finish(&context) };
            };
            if args.raw && args.decompress {
                let candidates = place.decompressed(&bytes);
                let Some((_, bytes)) = candidates.first() else {
                    bail!("no compression that is known made these bytes; without --raw more is said");
                };
                context.out(bytes)?;
                return Ok(Outcome::Good);
            }
            if args.raw {
                context.out(&bytes[..])?;
                return Ok(Outcome::Good);
            }
            let Args { decompress, indirect, gang, .. } = args;
            place.show(&mut report, &bytes, PlaceForm { decompress, indirect, gang });
        }
        Address::Tuple { objset, object, level, block } => {
            let pool = open(&context, &mut report, &args.pool).await?;
            let target = Target::find(&pool, &format!("{}/objset-{objset}", pool.name())).await?;
            let of = BlockOf::new(object, level, block);
            if args.raw {
                let bytes = cenote_inspect::bytes_of_block(&mut report, pool.dmu(), &target, of, args.physical).await?;
                let Some(bytes) = bytes else { return finish_raw(&context, &report) };
                context.out(&bytes[..])?;
                return Ok(Outcome::Good);
            }
            cenote_inspect::block_of(&mut report, pool.dmu(), &target, of).await?;
        }
    }
    report.finish(&context)
}

/// Prints the problems that kept the bytes from being read, on standard error alone.
fn finish_raw(context: &Context, report: &Report) -> Result<Outcome> {
    for problem in report.problems() {
        context.err(problem);
    }
    Ok(Outcome::Failed)
}
