//! `zstream token`.

use anyhow::{Result, anyhow};
use cenote_send::dump_nvlist;
use cenote_send::sender::ResumeToken;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;

/// Spaces before each line, as in the original.
const INDENT: usize = 5;

/// Print what a resume token (receive_resume_token) says.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The token.
    resume_token: String,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Outcome> {
    let list =
        ResumeToken::list_of(&args.resume_token).map_err(|error| anyhow!("Unable to parse resume token: {error}"))?;
    dump_nvlist(&list, INDENT, &mut context.output())?;
    Ok(Outcome::Good)
}
