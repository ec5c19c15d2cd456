//! `cenote kstat`.

use anyhow::bail;
use cenote_listing::{chosen_kstats, kstats_document, kstats_lines, kstats_text};

use crate::prelude::*;

/// Show statistics of a pool that a server or a mount has, under OpenZFS's names where it has them.
///
/// arcstats: the cache. dmu_tx: how changes got their transaction groups. txgs: the last hundred groups, with bytes that were dirty and
/// nanoseconds of the sync. objset-0x...: what clients read and wrote of a dataset. iostats-0x...: what a device did; its histograms
/// count answers by the power of two of their nanoseconds. nbd: clients of volumes. cenote_buffers: memory of blocks, of all pools of
/// the process.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// A line for each value, as GROUP:NAME, a tab and the value; of a histogram one for each bucket that is not empty.
    #[arg(short = 'p', long = "parsable")]
    is_parsable: bool,
    /// As JSON.
    #[arg(short = 'j', long = "json")]
    is_json: bool,
    /// The pool's name or guid.
    pool: String,
    /// These only.
    #[arg(value_name = "GROUP[:NAME]")]
    chosen: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some(pool) = context.served() else {
        let context = context.with(&Search { force: true, ..args.search });
        // A server that has it is asked.
        context.check_server(&context.locate(&args.pool).await?.0)?;
        bail!(
            "no server has the pool '{}': statistics are kept by 'cenote serve --rw' and 'cenote mount --rw', while they run",
            args.pool
        );
    };
    context.check_served(&args.pool)?;
    let groups = chosen_kstats(pool.kstats().snapshot(), &args.chosen)?;
    context.out(match (args.is_json, args.is_parsable) {
        (true, _) => kstats_document(&groups),
        (false, true) => groups.iter().map(kstats_lines).collect(),
        (false, false) => groups.iter().map(kstats_text).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(Outcome::Good)
}
