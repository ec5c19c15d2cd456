//! `cenote man`: manual pages from the grammar.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::prelude::*;

/// Write manual pages into a directory.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The directory.
    dir: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    clap_mangen::generate_to(context.program()?.grammar(), &args.dir)
        .with_context(|| args.dir.display().to_string())?;
    Ok(Outcome::Good)
}
