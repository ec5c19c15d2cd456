//! `cenote zstream …`: send streams, in OpenZFS's grammar.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use cenote_send::{DumpOptions, dump};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::Output;

/// Look into send streams.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Clone, Debug, clap::Subcommand, Serialize, Deserialize)]
enum Verb {
    Dump(Dump),
    #[command(hide = true)]
    Decompress(Rest),
    #[command(hide = true)]
    Recompress(Rest),
    #[command(hide = true)]
    Redup(Rest),
    #[command(hide = true)]
    Token(Rest),
}

/// Print what a stream holds, and check its checksums.
///
/// The exit status is that of OpenZFS's tool: 0 also for streams that are cut or whose checksums are wrong, about which
/// standard error has a word.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
struct Dump {
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

/// Whatever a verb that is not there yet is given.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let verb = match args.command {
        Verb::Dump(args) => return run_dump(context, &args),
        Verb::Decompress(_) => "decompress",
        Verb::Recompress(_) => "recompress",
        Verb::Redup(_) => "redup",
        Verb::Token(_) => "token",
    };
    bail!("not supported yet: zstream {verb}")
}

fn run_dump(context: &Context, args: &Dump) -> Result<Outcome> {
    let options = DumpOptions {
        verbose: args.verbose > 0,
        very_verbose: args.verbose > 1,
        contents: args.contents,
        ignore_checksums: args.ignore_checksums,
    };
    let input: Box<dyn Read> = match &args.file {
        Some(path) => {
            let file = File::open(path);
            Box::new(file.with_context(|| format!("Error while opening file '{}'", path.display()))?)
        }
        None if io::stdin().is_terminal() => bail!(
            "Error: The send stream is a binary format and can not be read from a\nterminal.  Standard input must be redirected."
        ),
        None => Box::new(io::stdin().lock()),
    };
    let outcome = dump(io::BufReader::with_capacity(1 << 20, input), &options, Sink(context.output()))?;
    for complaint in &outcome.complaints {
        context.err(complaint);
    }
    Ok(Outcome::unless(outcome.exit_status != 0))
}

/// The command's output as a writer.
struct Sink<'a>(&'a Output);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.out(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
