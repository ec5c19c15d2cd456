//! `cenote build`: a pool with files in it, made in one go.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cenote_scan::VerifyOptions;
use serde::{Deserialize, Serialize};

use super::verify::verify_with_progress;
use crate::args::{Search, parse_size};
use crate::build::{Builder, add_folder};
use crate::context::Context;
use crate::newpool::{NewPool, Wish};
use crate::outcome::Outcome;
use crate::output::nicebytes;
use crate::vdevspec::parse_layout;

/// Make a pool from a directory.
///
/// VDEV is as for `zpool create`; files are made, each of the size that is given. Owners, modes, modification times, extended
/// attributes, ACLs, holes, hard links, symbolic links and special files are kept. No privileges are needed but those to
/// read the source. In the end everything is read back and verified.
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
    /// The directory with the files.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Set a property of the pool: ashift, feature@NAME.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Set a property of the root file system.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    dataset_properties: Vec<String>,
    /// Draw guids and salts from this number.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Use devices that are part of another pool.
    #[arg(short = 'f')]
    force: bool,
    /// Do not read everything back in the end.
    #[arg(long)]
    no_verify: bool,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let layout = parse_layout(&args.vdevs)?;
    if args.from.as_os_str() == "-" || !args.from.is_dir() {
        bail!("not supported yet: building from anything but a directory ('{}')", args.from.display());
    }
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
    // What was made of files goes again where this fails.
    let (new, made) = NewPool::make(context, &wish).await?;
    let progress = context.progress("writing", None);
    let mut builder = Builder::new(context.handle().clone(), new);
    add_folder(&mut builder, &args.from, &mut |bytes| progress.advance(bytes)).await?;
    let counts = builder.finish(None).await?;
    made.keep();
    drop(progress);
    let seconds = context.handle().now().since(start).as_secs_f64();
    context.out(format!(
        "{} files, {} directories, {} others, {} in {} txgs, {seconds:.1} s, {}/s\n",
        counts.files,
        counts.directories,
        counts.others,
        nicebytes(counts.bytes),
        counts.txgs,
        nicebytes((counts.bytes as f64 / seconds.max(0.001)) as u64)
    ))?;
    if args.no_verify {
        return Ok(Outcome::Good);
    }
    let paths = layout.paths().map(Path::to_owned).collect();
    let context = context.with(&Search { paths, force: true });
    let pool = context.open_pool(&args.pool).await?;
    let (report, bytes) = verify_with_progress(&context, &pool, VerifyOptions { data: true, space: true }).await?;
    if report.is_clean() {
        context.out(format!("verified: {} in {} blocks\n", nicebytes(bytes), report.statistics.total.count))?;
        return Ok(Outcome::Good);
    }
    context.err(format!(
        "verified: {} errors, {} bad copies, {} bytes leaked; see 'cenote verify'",
        report.error_count, report.bad_copy_count, report.leaked_bytes
    ));
    Ok(Outcome::Failed)
}
