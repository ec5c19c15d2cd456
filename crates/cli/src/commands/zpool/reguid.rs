//! `zpool reguid`.

use std::num::ParseIntError;

use cenote_admin::ReguidRequest;

use super::only_pool;
use crate::prelude::*;

/// Give a pool another guid, as for a pool whose devices were copied.
///
/// All devices of the pool have to be online.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The guid; one is drawn if it is left out. A negative one counts from 2^64 down.
    #[arg(short = 'g', value_name = "GUID", value_parser = parse_guid, allow_negative_numbers = true)]
    guid: Option<u64>,
    /// The pool.
    pool: String,
}

fn parse_guid(word: &str) -> Result<u64, ParseIntError> {
    match word.strip_prefix('-') {
        Some(number) => number.parse().map(u64::wrapping_neg),
        None => word.parse(),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    only_pool(&args.pool)?;
    context.carry_out(&ReguidRequest { pool: args.pool, guid: args.guid }).await?;
    Ok(Outcome::Good)
}
