//! Pools that a command changes: opened for writing, changed in one txg, and exported.
//!
//! The txg with the changes also records that the pool is exported: the change is atomic, even if the command is interrupted.

use std::path::PathBuf;
use std::time::Duration;

use cenote_admin::values::pool_of;
use cenote_admin::{Line, Request};
use cenote_dmu::tx::TxTunables;
use cenote_host::{Holder, clock, device_paths, host, owners};
use cenote_spa::{FoundPool, ImportOptions, LogLeaves, Pool, SpaError, WriteOptions, open};
use cenote_taskq::boxed;
use cenote_vdev::fault::ErrorTotals;
use cenote_vdev::tree::VdevStatus;

use crate::error::{Result, ServerError, refused};
use crate::session::{CLOSE_TIME_MAX, server_of};
use crate::{Session, shown, signals};

/// Txgs that a command has written at most until log devices lack nothing: a new one lacks a few of those to come, too.
const LOG_TXGS: usize = 8;

/// A pool that is changed in steps, while [`Writing::run`] runs: each step is atomic, and sees the results of earlier ones.
pub struct Writing {
    pool: Pool,
    /// The command is to be recorded in the pool's history: with its first change, or at the end.
    is_recorded: bool,
    /// A server has the pool and continues to use it: each step is on disk at its end. Otherwise only this command has the pool, and all steps
    /// are in one txg: they are on disk together or not at all.
    is_served: bool,
}

impl Session {
    /// Carries out a verb on its pool, which no process has or this one serves, and records its line.
    ///
    /// # Errors
    /// The request is wrong; the pool cannot be opened for changes, or written; or as [`Request::run`].
    pub async fn carry_out<R: Request>(&self, request: &R) -> Result<R::Made> {
        request.check()?;
        let work = async |writing: &mut Writing| {
            if request.is_long() {
                writing.begin_background(self).await;
            }
            if let Some(line) = request.history_line() {
                writing.record(&line);
            }
            let made = request.run(writing.pool(), self).await?;
            if writing.is_recorded
                && let Some(work) = request.works_on(&made)
            {
                writing.work_off(self, work).await?;
            }
            if request.is_void(&made) {
                writing.forget_record();
            }
            Ok::<_, ServerError>((made, writing.pool.guid()))
        };
        let (made, guid) = Writing::run(self, pool_of(request.subject()), work).await?;
        if request.changes_config() {
            self.keep_config(guid).await?;
        }
        Ok(made)
    }
}

/// How often a command looks how far a scan is.
/// Devices that are named at most.
const TOLD_MAX: usize = 16;

const SCAN_POLL: Duration = Duration::from_millis(200);

impl Writing {
    /// Opens a pool for changes, unless this process already has it, and has `work` change it. If that is recorded in the history
    /// ([`Self::record`]), its line is, and everything is on disk. Otherwise the pool is exported if a txg was written, also after an
    /// error: it does not look as if its user had been killed. Only a server may drop the future, since the pool remains open there.
    ///
    /// # Errors
    /// Of `work`; or the pool cannot be opened for changes, or written.
    pub async fn run<T, E, W>(session: &Session, name: &str, work: W) -> Result<T, E>
    where
        E: From<ServerError>,
        W: AsyncFnOnce(&mut Self) -> Result<T, E>,
    {
        let mut writing = Self::open(session, name).await?;
        let worked = work(&mut writing).await;
        let ended = writing.end(session, worked.is_ok()).await;
        ended?;
        worked
    }

    #[boxed]
    async fn open(session: &Session, name: &str) -> Result<Self> {
        session.check_served(name)?;
        Ok(match session.served() {
            Some(pool) => Self { pool: pool.clone(), is_recorded: false, is_served: true },
            None => Self { pool: open_for_writing(session, name).await?, is_recorded: false, is_served: false },
        })
    }

    /// Records the command if no change has, or leaves the pool without a record. A server does so with one of its next txgs, as OpenZFS does.
    /// After a failure of the work, one of leaving is only reported.
    #[boxed]
    async fn end(&mut self, session: &Session, is_good: bool) -> Result<()> {
        let pool = self.pool.clone();
        match self.is_recorded && is_good {
            true if self.is_served => Ok(pool.record_later()?),
            true => finish(pool).await,
            false if self.is_served => Ok(()),
            false if is_good => Ok(leave(pool).await?),
            false => {
                let name = pool.name().to_owned();
                match session.handle().timeout(CLOSE_TIME_MAX, leave(pool)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => session.warn(format!("pool '{name}' was not exported: {error}")),
                    None => session.warn(format!("pool '{name}' was not exported: its devices do not answer")),
                }
                Ok(())
            }
        }
    }

    /// Writes txgs in the background as they fill, for changes that do not fit in one. A server does so anyway.
    #[boxed]
    pub async fn begin_background(&mut self, session: &Session) {
        if !self.is_served {
            let tunables = TxTunables::for_memory(session.memory_bytes()).with(session.tunables());
            self.pool = self.pool.clone().start(tunables).await;
        }
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Records the command in the pool's history: in the txg of the first change that it makes from now on, or when it ends.
    pub fn record(&mut self, line: &Line) {
        self.pool = recording(&self.pool, line);
        self.is_recorded = true;
    }

    /// The command has changed nothing, and is not recorded.
    pub(crate) fn forget_record(&mut self) {
        self.is_recorded = false;
    }

    /// Does the background work that the steps have left, unless a server will: shown with its rate and time left. It may be interrupted; the
    /// pool's next user continues it.
    #[boxed]
    pub async fn work_off(&self, session: &Session, label: &str) -> Result<()> {
        if self.is_served {
            return Ok(());
        }
        let pool = &self.pool;
        pool.sync().await?;
        let left_bytes = || pool.jobs().iter().map(|job| job.left_bytes).sum::<u64>();
        let total_bytes = left_bytes();
        let advance = session.console().progress(label, total_bytes);
        let mut signals = signals::ending()?;
        let (mut done_bytes, mut is_scrubbing) = (0, false);
        loop {
            // A removal that waits for a scrub: nobody else does that.
            if pool.jobs().iter().any(|job| job.name == "remove" && job.stalled.is_some()) {
                cenote_scan::attend(pool);
                is_scrubbing = true;
            }
            // Of what an earlier command has left, only the work on txgs goes on in this one.
            let (has_work, is_attended) = pool.peek(|syncer| (syncer.has_work(), syncer.is_attended())).await?;
            if !has_work && !is_attended || signals.pending().next().is_some() {
                break;
            }
            match has_work {
                true => drop(pool.sync().await?),
                false => session.handle().sleep(SCAN_POLL).await,
            }
            if is_scrubbing && !has_work {
                // A txg takes what the scrub has done.
                pool.sync().await?;
            }
            let now_bytes = total_bytes.saturating_sub(left_bytes());
            advance(now_bytes.saturating_sub(done_bytes));
            done_bytes = now_bytes;
        }
        drop(advance);
        if !pool.peek(|syncer| syncer.is_scanned()).await? {
            for _ in 0..LOG_TXGS {
                if pool.go_on_with_log_leaves().await? != LogLeaves::Lack {
                    break;
                }
            }
            pool.finish_replacing().await?;
        }
        self.tell_errors(session);
        for job in pool.jobs() {
            let bytes = job.left_bytes;
            if job.name == "remove" {
                match job.stalled {
                    Some(reason) => session.warn(format!(
                        "the removal {reason}; 'zpool resilver', or a mount of the pool, goes on with both"
                    )),
                    None => session.advise(
                        "the removal is not done yet; it goes on when the pool is next used, and 'zpool remove -s' stops it",
                    ),
                }
                continue;
            }
            if job.name == "condense" {
                // It is about the MOS alone, and the next user of the pool goes on with it.
                continue;
            }
            if job.name == "raidz_expand" {
                match job.stalled {
                    Some(reason) => session.warn(format!("the expansion {reason}")),
                    None => session.advise("the expansion is not done yet; it goes on when the pool is next used"),
                }
                continue;
            }
            let verb = match job.name {
                "error scrub" => "scrub -e",
                "rebuild" => "resilver",
                name => name,
            };
            if matches!(job.name, "scrub" | "resilver" | "error scrub" | "initialize" | "trim" | "rebuild") {
                session.advise(format!(
                    "the {} is not done yet; it goes on when the pool is next served, or with 'zpool {verb}'",
                    job.name
                ));
                continue;
            }
            match job.stalled {
                Some(reason) => session.warn(format!("{bytes} bytes are not freed yet: {reason}")),
                None => {
                    session.advise(format!("{bytes} bytes are not freed yet; this goes on when the pool is next used"))
                }
            }
        }
        Ok(())
    }
}

impl Writing {
    /// Tells which devices have given errors: the counts end with the command.
    fn tell_errors(&self, session: &Session) {
        let Some(devices) = self.pool.devices() else { return };
        let faulty: Vec<&VdevStatus> =
            devices.leaves().into_iter().filter(|leaf| leaf.errors != ErrorTotals::default()).collect();
        for leaf in faulty.iter().take(TOLD_MAX) {
            let ErrorTotals { read, write, checksum } = leaf.errors;
            session.warn(format!("{}: errors of READ {read}, WRITE {write}, CKSUM {checksum}", leaf.name));
        }
        if faulty.len() > TOLD_MAX {
            session.warn(format!("and {} devices more", faulty.len() - TOLD_MAX));
        }
    }
}

/// Exports a pool if a txg of it was written. Otherwise it is unchanged on disk.
#[boxed]
async fn leave(pool: Pool) -> Result<(), SpaError> {
    if pool.history().is_empty() {
        return Ok(());
    }
    let guid = pool.guid();
    pool.export().await?;
    owners::ended(guid);
    Ok(())
}

/// Opens a pool for changes by this process alone.
#[boxed]
pub async fn open_for_writing(session: &Session, name: &str) -> Result<Pool> {
    open_with_devices(session, name).await.map(|(pool, _)| pool)
}

/// As [`open_for_writing`], with the devices from which the pool was opened.
#[boxed]
pub(crate) async fn open_with_devices(session: &Session, name: &str) -> Result<(Pool, Vec<PathBuf>)> {
    if let Some(pool) = session.served() {
        return Err(refused(format!("not supported yet: this, while a server has the pool '{}'", pool.name())));
    }
    let (found, mut how) = session.locate(name).await?;
    session.check_server(&found)?;
    if found.name() != name && how.new_name.is_some() {
        return Err(refused("not supported yet: changing a pool that was imported under another name"));
    }
    if session.noted(found.guid).is_some_and(|(_, entry)| entry.readonly) {
        return Err(refused(format!(
            "cannot open '{name}' for writing: it is imported with readonly=on; 'zpool export {name}' and import it without that"
        )));
    }
    if let Some((_, who)) = server_of(&found) {
        let holder = Holder { pid: Some(who.pid) };
        return Err(refused(format!(
            "cannot open '{name}' for writing: it is in use by {holder}; 'zpool export {name}' has that write everything and end"
        )));
    }
    let mut devices = device_paths(&found)?;
    let last = owners::note_gone_owner(&found, &mut how);
    match owners::begin(&found) {
        Ok(mark) => how.owner_mark = Some(mark),
        Err(error) => session.warn(format!(
            "no note can be kept that this process has '{name}' (if it is killed, the pool opens with -f only): {error}"
        )),
    }
    let options = WriteOptions { clock: clock()?, host: host(false), check: false };
    let pool = match open(session.handle(), found, &how, options).await {
        Ok(pool) => pool,
        Err(error) => {
            // A server may have begun meanwhile, and take commands by now.
            if let Ok((found, _)) = session.locate(name).await {
                session.check_server(&found)?;
            }
            return Err(error.into());
        }
    };
    if let Some(last) = last {
        session.advise(format!("pool '{name}' was not exported, but {last}; going on with it"));
    }
    session.say_notes(pool.name(), pool.notes());
    shown::tell(session, pool.name(), &devices);
    devices.extend(pool.auxiliary_paths().await?);
    if !rustix::process::geteuid().is_root() {
        pool.obey_limits().await?;
    }
    Ok((pool, devices))
}

/// Corrects the labels of a destroyed pool that is imported, since other systems would take its devices without a question.
#[boxed]
pub(crate) async fn revive(session: &Session, found: FoundPool, how: &ImportOptions, line: &Line) -> Result<()> {
    // In the pool it keeps its old name.
    let mut how = ImportOptions { new_name: None, ..how.clone() };
    owners::note_gone_owner(&found, &mut how);
    how.owner_mark = owners::begin(&found).ok();
    let options = WriteOptions { clock: clock()?, host: host(false), check: false };
    let pool = open(session.handle(), found, &how, options).await?;
    finish(recording(&pool, line)).await
}

/// Takes a pool back to its checkpoint.
#[boxed]
pub(crate) async fn rewind(session: &Session, found: FoundPool, how: &ImportOptions, line: &Line) -> Result<()> {
    // In the pool it keeps its old name.
    let mut how = ImportOptions { new_name: None, checkpoint: true, ..how.clone() };
    owners::note_gone_owner(&found, &mut how);
    how.owner_mark = owners::begin(&found).ok();
    let options = WriteOptions { clock: clock()?, host: host(false), check: false };
    let pool = open(session.handle(), found, &how, options).await?;
    session.advise(format!("pool '{}' is as of its checkpoint", pool.name()));
    finish(recording(&pool, line)).await
}

/// A handle by which this user's command changes a pool.
pub fn recording(pool: &Pool, line: &Line) -> Pool {
    pool.recording(line.text(), u64::from(rustix::process::getuid().as_raw()))
}

/// Records the command of a handle unless a change has, and writes its changes.
#[boxed]
pub async fn finish(pool: Pool) -> Result<()> {
    pool.record().await?;
    let guid = pool.guid();
    pool.export().await?;
    owners::ended(guid);
    Ok(())
}
