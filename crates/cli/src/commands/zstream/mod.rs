//! `cenote zstream …`: send streams, in OpenZFS's grammar.

mod dump;
mod rewrite;
mod token;

use std::io::{self, IsTerminal, Read};

use anyhow::bail;

use crate::output::Output;
use crate::prelude::*;

/// Look into send streams, and make others of them.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Clone, Debug, clap::Subcommand, Serialize, Deserialize)]
enum Verb {
    Dump(dump::Args),
    Decompress(rewrite::Decompress),
    #[command(name = "drop_record")]
    DropRecord(rewrite::DropRecord),
    Recompress(rewrite::Recompress),
    Redup(rewrite::Redup),
    Token(token::Args),
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    match args.command {
        Verb::Dump(args) => dump::run(context, &args),
        Verb::Decompress(args) => rewrite::decompress(context, &args),
        Verb::DropRecord(args) => rewrite::drop_record(context, &args),
        Verb::Recompress(args) => rewrite::recompress(context, &args),
        Verb::Redup(args) => rewrite::redup(context, &args),
        Verb::Token(args) => token::run(context, &args),
    }
}

/// Standard input, which must not be a terminal.
fn input() -> Result<impl Read> {
    if io::stdin().is_terminal() {
        bail!(
            "Error: The send stream is a binary format and can not be read from a\nterminal.  Standard input must be redirected."
        );
    }
    Ok(io::BufReader::with_capacity(1 << 20, io::stdin().lock()))
}

/// Standard output for a stream, which must not be a terminal.
fn output(context: &Context) -> Result<&Output> {
    if context.output().is_terminal() {
        bail!("Error: Stream can not be written to a terminal.\nYou must redirect standard output.");
    }
    Ok(context.output())
}
