//! `cenote verify`.

use std::fmt::Write as _;

use anyhow::Result;
use cenote_scan::{BlockCounts, VerifyOptions, VerifyReport, verify};
use cenote_spa::View;
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::nicebytes;

/// Lines of each kind that the text form shows.
const LINES_MAX: usize = 20;

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
    let options = VerifyOptions { data: !args.metadata_only, space: !args.no_space };
    let start = context.handle().now();
    let (report, done_bytes) = verify_with_progress(&context, &pool, options).await?;
    // Blocks read after a view was given up may be of another txg, and look like damage.
    context.check_views()?;
    let seconds = context.handle().now().since(start).as_secs_f64();
    let is_clean = report.is_clean();
    if args.json {
        context.out(format!("{:#}\n", cenote_inspect::verified(&pool, &report, seconds)))?;
    } else {
        context.out(as_text(&pool, &report, done_bytes, seconds))?;
    }
    // A device that has missed txgs is damage to come, even if every block could be read.
    Ok(Outcome::unless(!is_clean || !pool.tree().status().behind().is_empty()))
}

/// Verifies with a bar on terminals. Returns the bytes read too.
pub(crate) async fn verify_with_progress(
    context: &Context,
    pool: &View,
    options: VerifyOptions,
) -> Result<(VerifyReport, u64)> {
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

/// The findings for a person.
pub(crate) fn as_text(pool: &View, report: &VerifyReport, done_bytes: u64, seconds: f64) -> String {
    let mut text = String::new();
    let total: BlockCounts = report.statistics.total;
    let rate = done_bytes as f64 / seconds.max(1e-6);
    let _ = writeln!(text, "pool '{}' at txg {}", pool.name(), pool.txg());
    let _ = writeln!(
        text,
        "read {} blocks, {} in {seconds:.1} s ({}/s)",
        total.count,
        nicebytes(done_bytes),
        nicebytes(rate as u64)
    );
    let _ = writeln!(
        text,
        "logical {}, physical {}, allocated {}",
        nicebytes(total.lsize_bytes),
        nicebytes(total.psize_bytes),
        nicebytes(total.asize_bytes)
    );
    let statistics = &report.statistics;
    if statistics.dedup_count > 0 {
        let _ = writeln!(
            text,
            "shared by dedup: {} in {} references",
            nicebytes(statistics.dedup_bytes),
            statistics.dedup_count
        );
    }
    if statistics.clone_count > 0 {
        let _ = writeln!(
            text,
            "shared by cloning: {} in {} references",
            nicebytes(statistics.clone_bytes),
            statistics.clone_count
        );
    }
    list(&mut text, "blocks that cannot be read", report.error_count, report.errors.iter());
    list(&mut text, "bad copies of readable blocks", report.bad_copy_count, report.bad_copies.iter());
    list(&mut text, "blocks in places that are not theirs", report.misuse_count, report.misuses.iter());
    if report.leaked_bytes > 0 {
        let _ = writeln!(text, "leaked: {}", nicebytes(report.leaked_bytes));
        for leak in report.leaks.iter().take(LINES_MAX) {
            let _ = writeln!(text, "  vdev {} {:#x}..{:#x}", leak.vdev, leak.range.start, leak.range.end);
        }
    }
    list(&mut text, "other problems", report.problems.len() as u64, report.problems.iter());
    let status = pool.tree().status();
    let behind: Vec<String> =
        status.behind().iter().map(|leaf| format!("{}: missed txgs {}", leaf.name, leaf.missed)).collect();
    list(&mut text, "devices that have missed txgs and need to be resilvered", behind.len() as u64, behind.iter());
    let verdict = match (report.is_clean(), report.space.is_some()) {
        (true, _) if !behind.is_empty() => {
            "every block is readable in every copy, but the pool is degraded: devices have missed txgs"
        }
        (true, true) => {
            "all is well: every block is readable in every copy, and the space maps account for all of them"
        }
        (true, false) => "every block is readable in every copy; space was not accounted for",
        (false, _) => "the pool has damage",
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn list(text: &mut String, what: &str, count: u64, lines: impl Iterator<Item = impl std::fmt::Display>) {
    if count == 0 {
        return;
    }
    let _ = writeln!(text, "{what}: {count}");
    for line in lines.take(LINES_MAX) {
        let _ = writeln!(text, "  {line}");
    }
    if count > LINES_MAX as u64 {
        let _ = writeln!(text, "  ... and {} more", count - LINES_MAX as u64);
    }
}
