//! Verify: a walk whose sink checks all that there is, and accounts for it.
//!
//! **Going on.** A verify that stopped leaves a [`VerifyStop`]: the cursor, and the faults found before it. If the pool is as it was, it goes through
//! all blocks before the cursor once more, without their data, for the account of space, and reports the same as one that never stopped. If
//! the pool has gone on it goes on from the cursor alone, and says nothing of space.
//!
//! **A pool that is written meanwhile** is read as of one txg for as long as the pool keeps that; the rest of the walk is then of later txgs
//! (`crate::walk` says what that promises), and the report says which.

mod error;
mod findings;
mod options;
mod report;
mod stop;
mod verifier;

use cenote_spa::View;
use cenote_taskq::{BoxFuture, Handle};

use crate::roots::{self, Listing};
use crate::visit::Reads;
use crate::walk::{Cursor, Ended, Progress, Sink as _, Views, Walk, WalkControl};
pub use error::VerifyError;
pub use findings::BadBlock;
use findings::Findings;
pub use options::VerifyOptions;
pub use report::VerifyReport;
pub use stop::VerifyStop;
use verifier::Verifier;

/// Views at most that are given up before the walk could begin in one.
const ATTEMPTS_MAX: u32 = 3;

/// A verify.
pub struct Verification<'a> {
    /// The runtime.
    pub handle: &'a Handle,
    /// The pool.
    pub views: &'a dyn Views,
    /// The checks to make.
    pub options: VerifyOptions,
    /// Steers it.
    pub control: WalkControl,
    /// Where an earlier one stopped.
    pub from: Option<VerifyStop>,
}

/// Walks the whole pool. `progress` is called every so many blocks; returning `false` from it ends the walk early (the
/// report then covers what was visited, without a verdict on leaks).
pub fn verify<'a>(
    handle: &'a Handle,
    pool: &'a View,
    options: VerifyOptions,
    progress: &'a mut (dyn FnMut(Progress) -> bool + Send),
) -> BoxFuture<'a, Result<VerifyReport, VerifyError>> {
    let all = Verification { handle, views: pool, options, control: WalkControl::new(), from: None };
    all.run(progress)
}

impl<'a> Verification<'a> {
    /// Walks the whole pool, as [`verify`] does, or what is left of it.
    ///
    /// # Errors
    /// The pool cannot be read far enough, or the stop is not one of this pool and these options.
    pub fn run<'p>(
        self,
        progress: &'p mut (dyn FnMut(Progress) -> bool + Send),
    ) -> BoxFuture<'p, Result<VerifyReport, VerifyError>>
    where
        'a: 'p,
    {
        Box::pin(self.walk(progress))
    }

    async fn walk(self, progress: &mut (dyn FnMut(Progress) -> bool + Send)) -> Result<VerifyReport, VerifyError> {
        let Self { handle, views, options, control, from } = self;
        let mut attempts = 0;
        // A view that was given up meanwhile is no beginning, and what was found in it does not count; one after it may be.
        let (view, is_same, mut sink, trees) = loop {
            let view = views.view().await?;
            if let Some(stop) = &from {
                check_stop(stop, &view, options)?;
            }
            let is_same = from.as_ref().is_none_or(|stop| stop.cursor.is_at(&view) && !stop.cursor.has_moved());
            let begun = begun(&view, &from, is_same, options).await;
            attempts += 1;
            match views.check(&view) {
                Ok(()) => {
                    let (sink, trees) = begun?;
                    break (view, is_same, sink, trees);
                }
                Err(error) if attempts >= ATTEMPTS_MAX => return Err(error.into()),
                Err(_) => {}
            }
        };
        let pool = view.guid();
        let keeps_known = from.is_some() && is_same;
        let cursor = match from {
            Some(stop) => stop.cursor,
            None => Cursor::at_start(&view, &trees),
        };
        if keeps_known && !cursor.is_of(&trees) {
            return Err(VerifyError::OtherState { was: cursor.txg, is: view.txg() });
        }
        let reads = if options.data { Reads::All } else { Reads::Pointers };
        let mut walk = Walk::new((handle, views, &control), cursor, reads, progress);
        // From here on the walk alone has the view.
        let ended = walk.run((view, trees), keeps_known, &mut sink).await;
        let cursor = walk.cursor;
        match ended {
            Ended::Stopped(reason) => {
                let findings = sink.kept.clone();
                let mut report = sink.finish(false, &cursor);
                report.problems.extend(reason.map(|reason| reason.to_string()));
                report.stop = Some(VerifyStop { pool, options, cursor, findings });
                Ok(report)
            }
            Ended::Whole(view) => {
                if !cursor.has_moved() {
                    let problems = sink.feature_problems(&view).await;
                    match views.check(&view) {
                        Ok(()) => sink.problems(problems),
                        Err(_) => sink.moved(),
                    }
                }
                Ok(sink.finish(true, &cursor))
            }
        }
    }
}

/// The sink with what it knows before the walk, and the trees to walk.
async fn begun(
    view: &View,
    from: &Option<VerifyStop>,
    is_same: bool,
    options: VerifyOptions,
) -> Result<(Verifier, Vec<roots::Tree>), VerifyError> {
    let found = from.as_ref().map(|stop| stop.findings.clone());
    if !is_same {
        let has_moved = from.as_ref().is_some_and(|stop| stop.cursor.has_moved());
        let Listing { trees, problems, invalid, cut_off } = roots::objsets(view).await;
        if let Some(error) = cut_off {
            return Err(VerifyError::Datasets(error));
        }
        let mut sink = Verifier::new(found.unwrap_or_default(), has_moved);
        // The MOS may have been walked before they became so.
        sink.problems(problems);
        sink.problems(invalid);
        return Ok((sink, trees));
    }
    let mut sink = match found {
        Some(found) => Verifier::going_through_known(found),
        None => Verifier::new(Findings::default(), false),
    };
    let trees = sink.begin(view, options).await?;
    Ok((sink, trees))
}

fn check_stop(stop: &VerifyStop, view: &View, options: VerifyOptions) -> Result<(), VerifyError> {
    if stop.pool() != view.guid() {
        return Err(VerifyError::OtherPool { was: stop.pool(), is: view.guid() });
    }
    if stop.options() != options {
        return Err(VerifyError::OtherOptions);
    }
    if stop.txg() > view.txg() || stop.txg() == view.txg() && !stop.cursor.is_at(view) {
        return Err(VerifyError::OtherState { was: stop.txg(), is: view.txg() });
    }
    Ok(())
}
