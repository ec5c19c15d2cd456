//! `cenote verify`.

use cenote_inspect::{VerifyOptions, VerifyReport, verify};
use cenote_server::View;

use crate::prelude::*;

/// Read every block in every copy, check it, and account for every allocated byte.
///
/// Exit status 0 says that all is well: everything readable in every copy, nothing leaked, nothing used twice.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Read only what leads to data: fast, and enough for the account of space.
    #[arg(long)]
    metadata_only: bool,
    /// Do not load space maps: no account of space.
    #[arg(long)]
    no_space: bool,
    /// Print the findings as JSON.
    #[arg(short = 'j', long)]
    json: bool,
    /// The pool's name or guid.
    pool: String,
}

impl Args {
    /// For commands that verify in another grammar.
    pub(crate) fn of(pool: String, no_space: bool, json: bool) -> Self {
        Self { search: Search::default(), metadata_only: false, no_space, json, pool }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    // Only looks: a pool that some system has left open is judged as it lies there.
    let context = context.with(&Search { force: true, ..args.search });
    let pool = context.open_pool(&args.pool).await?;
    let start = context.handle().now();
    let (report, done_bytes) = verify_with_progress(&context, &pool, !args.metadata_only, !args.no_space).await?;
    // Blocks read after a view was given up may be of another txg, and look like damage.
    context.check_views()?;
    let seconds = context.handle().now().since(start).as_secs_f64();
    let is_clean = report.is_clean();
    let mut places = cenote_inspect::Places::new();
    for (objset, object) in cenote_inspect::damaged(&report) {
        places.insert((objset, object), cenote_listing::place(&pool, objset, object).await);
    }
    if args.json {
        context.out(format!("{:#}\n", cenote_inspect::verified(&pool, &report, &places, seconds)))?;
    } else {
        context.out(cenote_inspect::verified_text(&pool, &report, &places, done_bytes, seconds))?;
    }
    // A device that has missed txgs is damage to come, even if every block could be read.
    Ok(Outcome::unless(!is_clean || !pool.tree().status().behind().is_empty()))
}

/// Verifies with a bar on terminals: what leads to data, with `data` that too, with `space` the account of it. Returns the bytes read too.
pub(crate) async fn verify_with_progress(
    context: &Context,
    pool: &View,
    data: bool,
    space: bool,
) -> Result<(VerifyReport, u64)> {
    let options = VerifyOptions { data, space };
    let mut bar = None;
    let mut done = 0;
    let report = verify(context.handle(), pool, options, &mut |progress| {
        let bar = bar.get_or_insert_with(|| context.progress("verifying", Some(progress.total_bytes)));
        bar.advance(progress.done_bytes.saturating_sub(done));
        done = progress.done_bytes;
        true
    })
    .await?;
    let done_bytes = report.statistics.total.asize_bytes;
    Ok((report, done_bytes))
}
