//! Scrub, resilver, and removals under way: `zpool scrub`, `zpool resilver`, `zpool remove -s`, `zpool wait`.

use std::time::Duration;

use cenote_format::dsl::{ErrorScrubPhys, ScanFlags, ScanFunction, ScanPhys, ScanState};
use cenote_scan::attend;
use cenote_spa::{JobStatus, LeafWorkKind, Pool, ScrubSince};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// How often a wait looks.
pub(crate) const LOOK_AFTER: Duration = Duration::from_millis(200);

/// The use that a command makes of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubAction {
    /// Begin one, or go on with one that is paused.
    #[default]
    Start,
    /// The same of what is newer than the last scrub (`-C`).
    StartSinceLast,
    /// The same of what was written between two times, in seconds since 1970 (`-S`, `-E`).
    StartBetween {
        /// From this time on.
        start_s: Option<u64>,
        /// Up to this time.
        end_s: Option<u64>,
    },
    /// The same of the blocks that the error log names (`-e`).
    StartErrors,
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

fn line_of_scrub() -> Line {
    Line::new("zpool scrub")
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
            ScrubAction::Stop => pool.stop_scrub().await?,
            action => {
                // One that a command has left goes on with the next one.
                let scan = pool.scan().await?.filter(is_active);
                let errors = pool.error_scrub().await?.filter(are_active);
                if !users.keep_pool() {
                    attend(pool);
                }
                let goes_on = match action {
                    ScrubAction::StartErrors => errors.is_some(),
                    _ => scan.is_some_and(|scan| scan.function == ScanFunction::SCRUB),
                };
                if !goes_on || users.keep_pool() {
                    match action {
                        ScrubAction::StartErrors => pool.scrub_errors().await?,
                        ScrubAction::StartSinceLast => pool.scrub(ScrubSince::LastScrub).await?,
                        ScrubAction::StartBetween { start_s, end_s } => {
                            pool.scrub(ScrubSince::Dates { start_s, end_s }).await?;
                        }
                        _ => pool.scrub(ScrubSince::Ever).await?,
                    }
                }
                if self.waits && users.keep_pool() {
                    wait(pool, &[Activity::Scrub]).await?;
                }
            }
        }
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        let flag = match self.action {
            ScrubAction::Start => "",
            ScrubAction::StartBetween { start_s, end_s } => {
                let times = [("-S", start_s), ("-E", end_s)];
                let line = times.into_iter().filter_map(|(flag, time_s)| Some((flag, time_s?)));
                let line = line.fold(line_of_scrub(), |line, (flag, time_s)| line.word(flag).word(time_s.to_string()));
                return Some(line.flag(self.waits, "-w").word(&self.pool));
            }
            ScrubAction::StartSinceLast => "-C",
            ScrubAction::StartErrors => "-e",
            ScrubAction::Pause => "-p",
            ScrubAction::Stop => "-s",
        };
        Some(line_of_scrub().word(flag).flag(self.waits, "-w").word(&self.pool))
    }

    fn is_long(&self) -> bool {
        !matches!(self.action, ScrubAction::Pause | ScrubAction::Stop)
    }

    fn works_on(&self, (): &()) -> Option<&'static str> {
        self.is_long().then_some("scrubbing")
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
            // A rebuild that a command has left goes on with this one.
            if pool.peek(|syncer| syncer.is_rebuilding()).await? {
                return Ok(());
            }
        }
        Ok(pool.resilver_all().await?)
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

/// A removal that is under way, to be given up: `zpool remove -s`.
#[derive(Clone, Debug, Default)]
pub struct CancelRemovalRequest(pub String);

impl Request for CancelRemovalRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.0
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        Ok(pool.cancel_removal().await?)
    }

    fn history_line(&self) -> Option<Line> {
        Some(Line::new("zpool remove").flag(true, "-s").word(&self.0))
    }

    fn changes_config(&self) -> bool {
        true
    }
}

/// Work that `zpool wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The space is freed that only a discarded checkpoint had.
    Discard,
    /// Blocks of what was destroyed are freed.
    Free,
    /// A scrub, of errors too; one that is paused is not waited for.
    Scrub,
    /// A resilver.
    Resilver,
    /// Free space is initialized.
    Initialize,
    /// Free space is trimmed.
    Trim,
    /// A vdev is evacuated.
    Remove,
    /// A raidz gets a further child.
    RaidzExpand,
    /// A device that is replaced, or for which a spare is made ready.
    Replace,
}

impl Activity {
    /// The words of OpenZFS for activities, and whether Cenote ever has it under way.
    pub const WORDS: [(&'static str, Option<Self>); 9] = [
        ("discard", Some(Self::Discard)),
        ("free", Some(Self::Free)),
        ("initialize", Some(Self::Initialize)),
        ("replace", Some(Self::Replace)),
        ("remove", Some(Self::Remove)),
        ("resilver", Some(Self::Resilver)),
        ("scrub", Some(Self::Scrub)),
        ("trim", Some(Self::Trim)),
        ("raidz_expand", Some(Self::RaidzExpand)),
    ];
}

fn expands(job: &JobStatus) -> bool {
    job.name == "raidz_expand"
}

fn evacuates(job: &JobStatus) -> bool {
    job.name == "remove"
}

fn is_active(scan: &ScanPhys) -> bool {
    scan.state == ScanState::SCANNING && !scan.flags.contains(ScanFlags::SCRUB_PAUSED)
}

fn are_active(scrub: &ErrorScrubPhys) -> bool {
    scrub.state == ScanState::ERROR_SCRUBBING && scrub.paused_flags == 0
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
        let (initializes, trims) = (waits_for(Activity::Initialize), waits_for(Activity::Trim));
        let is_worked_on = pool
            .peek(move |syncer| {
                (initializes && syncer.is_worked_on(LeafWorkKind::Initialize))
                    || (trims && syncer.is_worked_on(LeafWorkKind::Trim))
            })
            .await?;
        let is_freed = waits_for(Activity::Free) && pool.peek(|syncer| syncer.is_freeing()).await?;
        let is_evacuated =
            waits_for(Activity::Remove) && pool.peek(|syncer| syncer.jobs().iter().any(evacuates)).await?;
        let is_expanded =
            waits_for(Activity::RaidzExpand) && pool.peek(|syncer| syncer.jobs().iter().any(expands)).await?;
        let is_rebuilt = waits_for(Activity::Resilver) && pool.peek(|syncer| syncer.is_rebuilding()).await?;
        let is_scanned = is_scanned
            || is_rebuilt
            || waits_for(Activity::Scrub) && pool.error_scrub().await?.is_some_and(|it| are_active(&it));
        let is_replaced = waits_for(Activity::Replace) && pool.peek(|syncer| syncer.is_replacing()).await?;
        let is_discarded = waits_for(Activity::Discard) && pool.peek(|syncer| syncer.is_discarding()).await?;
        if !is_scanned && !is_freed && !is_evacuated && !is_expanded && !is_worked_on && !is_replaced && !is_discarded {
            return Ok(());
        }
        pool.handle().sleep(LOOK_AFTER).await;
    }
}
