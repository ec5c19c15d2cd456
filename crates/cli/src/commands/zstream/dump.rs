//! `zstream dump`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

use anyhow::Context as _;
use cenote_admin::stream::DumpOptions;

use super::input;
use crate::prelude::*;

/// Print what a stream holds, and check its checksums.
///
/// The exit status is that of OpenZFS's tool: 0 also for streams that are cut or whose checksums are wrong, about which
/// standard error has a word.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// A line for each record; twice: with its checksum.
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
    /// Verify no checksums.
    #[arg(short = 'C')]
    ignore_checksums: bool,
    /// The contents too.
    #[arg(short = 'd')]
    contents: bool,
    /// The file; standard input without one.
    file: Option<PathBuf>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Outcome> {
    let options = DumpOptions {
        verbose: args.verbose > 0,
        very_verbose: args.verbose > 1,
        contents: args.contents,
        ignore_checksums: args.ignore_checksums,
    };
    let input: Box<dyn Read> = match &args.file {
        Some(path) => {
            let file = File::open(path);
            let file = file.with_context(|| format!("Error while opening file '{}'", path.display()))?;
            Box::new(BufReader::with_capacity(1 << 20, file))
        }
        None => Box::new(input()?),
    };
    let outcome = cenote_admin::stream::dump(input, &options, context.output())?;
    for complaint in &outcome.complaints {
        context.err(complaint);
    }
    Ok(Outcome::unless(outcome.exit_status != 0))
}
