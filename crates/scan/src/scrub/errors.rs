//! The scrub of the error log: each block that the log names is read in all its copies, wherever it is still.
//!
//! A dataset's errors are reported together. A pause, a stop or the pool's end is seen at each block; the dataset is then begun again later.
//! So it is if something could not be written again since devices were being changed.

use cenote_dmu::Zap;
use cenote_spa::{ErrorReport, ErrorScrubbed, ImportOptions, ScanSeat, SpaError, View, WeakPool};
use cenote_taskq::Handle;

use super::{AGAIN_AFTER, LOST_AFTER, recorded};

/// The end of a part of the scrub.
enum Part {
    /// All before this cursor is done.
    Done(u64),
    /// It is not wanted any more.
    Unwanted,
    /// A write was refused: the part is to be done again.
    Refused,
}

/// Does the task until it is done or not wanted any more.
pub(super) async fn work((handle, pool, seat): (&Handle, &WeakPool, &ScanSeat), round: u64, mut cursor: u64) {
    while seat.is_wanted(round) {
        match scrubbed(pool, seat, round, cursor).await {
            Ok(Part::Done(Zap::CURSOR_END)) => return recorded((handle, pool, seat), round).await,
            Ok(Part::Done(next)) => cursor = next,
            Ok(Part::Unwanted) => return,
            Ok(Part::Refused) => handle.sleep(LOST_AFTER).await,
            Err(_) => handle.sleep(AGAIN_AFTER).await,
        }
    }
}

/// Scrubs the errors of the next dataset.
async fn scrubbed(pool: &WeakPool, seat: &ScanSeat, round: u64, cursor: u64) -> Result<Part, SpaError> {
    let Some(pool) = pool.upgrade() else { return Ok(Part::Unwanted) };
    let view: View = pool.view(&ImportOptions::default()).await?;
    drop(pool);
    let mut report = ErrorReport { examined_count: 0, error_count: 0, cursor: Zap::CURSOR_END };
    if let Some((errors, next)) = view.errors_from(cursor).await? {
        assert_ne!(next, cursor, "a scrub of errors goes on");
        for error in errors {
            if !seat.is_wanted(round) {
                return Ok(Part::Unwanted);
            }
            match view.scrub_error(&error).await {
                ErrorScrubbed::Well => {}
                ErrorScrubbed::Bad => report.error_count += 1,
                ErrorScrubbed::Refused => return Ok(Part::Refused),
            }
            report.examined_count += 1;
        }
        report.cursor = next;
    }
    // Of a view that was given up nothing is known.
    view.check()?;
    seat.report_errors(round, report);
    Ok(Part::Done(report.cursor))
}
