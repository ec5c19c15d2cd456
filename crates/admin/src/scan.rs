//! Scrub and resilver: `zpool scrub`, `zpool resilver`, `zpool wait`.

use std::time::Duration;

use cenote_format::dsl::{ScanFlags, ScanFunction, ScanPhys, ScanState};
use cenote_scan::attend;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// How often a wait looks.
const LOOK_AFTER: Duration = Duration::from_millis(200);

/// The use that a command makes of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubAction {
    /// Begin one, or go on with one that is paused.
    #[default]
    Start,
    /// Have it wait (`-p`).
    Pause,
    /// Give it up (`-s`).
    Stop,
}

/// A scrub to be begun, paused or given up: `zpool scrub`.
#[derive(Clone, Debug, Default)]
pub struct ScrubRequest {
    /// The pool.
    pub pool: String,
    /// The action.
    pub action: ScrubAction,
    /// Wait until it has ended (`-w`).
    pub waits: bool,
}

impl Request for ScrubRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        match self.action {
            ScrubAction::Pause => pool.pause_scrub().await?,
            ScrubAction::Stop => pool.stop_scan().await?,
            ScrubAction::Start => {
                // One that a command has left goes on with the next one.
                let scan = pool.scan().await?.filter(is_active);
                if !users.keep_pool() {
                    attend(pool);
                }
                let goes_on = scan.is_some_and(|scan| scan.function == ScanFunction::SCRUB) && !users.keep_pool();
                if !goes_on {
                    pool.scrub().await?;
                }
                if self.waits && users.keep_pool() {
                    wait(pool, &[Activity::Scrub]).await?;
                }
            }
        }
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zpool scrub");
        let line = line.flag(self.action == ScrubAction::Pause, "-p").flag(self.action == ScrubAction::Stop, "-s");
        Some(line.flag(self.waits, "-w").word(&self.pool))
    }

    fn is_long(&self) -> bool {
        self.action == ScrubAction::Start
    }

    fn works_on(&self, (): &()) -> Option<&'static str> {
        (self.action == ScrubAction::Start).then_some("scrubbing")
    }
}

/// A resilver to be begun of what devices lack: `zpool resilver`.
#[derive(Clone, Debug, Default)]
pub struct ResilverRequest(pub String);

impl Request for ResilverRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.0
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        if !users.keep_pool() {
            attend(pool);
        }
        Ok(pool.resilver().await?)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool resilver").word(&self.0))
    }

    fn is_long(&self) -> bool {
        true
    }

    fn works_on(&self, (): &()) -> Option<&'static str> {
        Some("resilvering")
    }
}

/// Work that `zpool wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The space is freed that only a discarded checkpoint had.
    Discard,
    /// Blocks of what was destroyed are freed.
    Free,
    /// A scrub; one that is paused is not waited for.
    Scrub,
    /// A resilver.
    Resilver,
    /// A device that is replaced, or for which a spare is made ready.
    Replace,
}

impl Activity {
    /// The words of OpenZFS for activities, and whether Cenote ever has it under way.
    pub const WORDS: [(&'static str, Option<Self>); 9] = [
        ("discard", Some(Self::Discard)),
        ("free", Some(Self::Free)),
        ("initialize", None),
        ("replace", Some(Self::Replace)),
        ("remove", None),
        ("resilver", Some(Self::Resilver)),
        ("scrub", Some(Self::Scrub)),
        ("trim", None),
        ("raidz_expand", None),
    ];
}

fn is_active(scan: &ScanPhys) -> bool {
    scan.state == ScanState::SCANNING && !scan.flags.contains(ScanFlags::SCRUB_PAUSED)
}

/// Waits until none of these is under way.
///
/// # Errors
/// The pool is closed, suspended, or has failed.
#[boxed]
pub async fn wait(pool: &Pool, activities: &[Activity]) -> Result<(), AdminError> {
    let waits_for = |activity| activities.contains(&activity);
    loop {
        let scan = pool.scan().await?.filter(is_active);
        let is_scanned = scan.is_some_and(|scan| match scan.function {
            ScanFunction::RESILVER => waits_for(Activity::Resilver),
            _ => waits_for(Activity::Scrub),
        });
        let is_replaced = waits_for(Activity::Replace) && pool.peek(|syncer| syncer.is_replacing()).await?;
        let is_discarded = waits_for(Activity::Discard) && pool.peek(|syncer| syncer.is_discarding()).await?;
        let is_freed = waits_for(Activity::Free) && pool.peek(|syncer| syncer.is_freeing()).await?;
        if !is_scanned && !is_replaced && !is_discarded && !is_freed {
            return Ok(());
        }
        pool.handle().sleep(LOOK_AFTER).await;
    }
}
