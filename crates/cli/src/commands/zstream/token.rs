//! `zstream token`.

use cenote_admin::stream::print_token;

use crate::prelude::*;

/// Print what a resume token (receive_resume_token) says.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The token.
    resume_token: String,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Outcome> {
    print_token(&args.resume_token, &mut context.output())?;
    Ok(Outcome::Good)
}
