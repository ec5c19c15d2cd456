//! `zpool reguid`.

use cenote_admin::ReguidRequest;

use crate::prelude::*;

/// Give a pool another guid, as for a pool whose devices were copied.
///
/// All devices of the pool have to be online.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The guid; one is drawn if it is left out.
    #[arg(short = 'g', value_name = "GUID")]
    guid: Option<u64>,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    context.carry_out(&ReguidRequest { pool: args.pool, guid: args.guid }).await?;
    Ok(Outcome::Good)
}
