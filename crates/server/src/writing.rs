//! Pools that a command changes: opened for writing, changed in one txg, and exported.
//!
//! The txg with the changes also records that the pool is exported: the change is atomic, even if the command is interrupted.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_dmu::tx::TxTunables;
use cenote_host::{Holder, clock, device_paths, host, owners};
use cenote_spa::{FoundPool, ImportOptions, NamePool, Pool, SpaError, Syncer, WriteOptions, open};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, boxed};

use crate::error::{Result, refused};
use crate::session::server_of;
use crate::{Session, shown, signals};

/// A pool that is changed in steps: each step is atomic, and sees the results of earlier ones.
///
/// A command ends it with [`Writing::finish`] or [`Writing::leave`]. If the command returns early, usually with an error, the session exports
/// the pool at its end if a txg was written ([`Session::close_pools`]): the pool does not look as if its user had been killed.
pub struct Writing {
    pool: Pool,
    /// The pools of the session's commands that ended early.
    left: Left,
    is_ended: bool,
    /// A server has the pool and continues to use it: each step is on disk at its end. Otherwise only this command has the pool, and all steps
    /// are in one txg: they are on disk together or not at all.
    is_served: bool,
}

impl Writing {
    /// Opens a pool for changes, unless this process already has it.
    #[boxed]
    pub async fn open(session: &Session, name: &str) -> Result<Self> {
        session.check_served(name)?;
        match session.served() {
            Some(pool) => Ok(Self::of(session, pool.clone(), true)),
            None => Ok(Self::of(session, open_for_writing(session, name).await?, false)),
        }
    }

    fn of(session: &Session, pool: Pool, is_served: bool) -> Self {
        Self { pool, left: session.left(), is_ended: false, is_served }
    }

    /// The pool, which the caller exports.
    fn ended(mut self) -> Pool {
        self.is_ended = true;
        self.pool.clone()
    }

    /// The same, with txgs that are written in the background as they fill, for changes that do not fit in one.
    pub async fn in_background(self, session: &Session) -> Self {
        if self.is_served {
            return self;
        }
        let tunables = TxTunables::for_memory(session.memory_bytes()).with(session.tunables());
        Self::of(session, self.ended().start(tunables).await, false)
    }

    /// The pool.
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool, if a server has it.
    pub fn served(&self) -> Option<Pool> {
        self.is_served.then(|| self.pool.clone())
    }

    /// Makes a step.
    ///
    /// # Errors
    /// As [`Pool::change`].
    pub async fn step<T, E, W>(&self, work: W) -> Result<T, E>
    where
        T: Send + 'static,
        E: NamePool + Display + Send + 'static,
        W: for<'a> FnOnce(&'a mut Syncer) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
    {
        self.pool.change(work).await
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
        let mut done_bytes = 0;
        while pool.peek(|syncer| syncer.has_work()).await? && signals.pending().next().is_none() {
            pool.sync().await?;
            let now_bytes = total_bytes.saturating_sub(left_bytes());
            advance(now_bytes.saturating_sub(done_bytes));
            done_bytes = now_bytes;
        }
        drop(advance);
        for job in pool.jobs() {
            let bytes = job.left_bytes;
            match job.stalled {
                Some(reason) => session.warn(format!("{bytes} bytes are not freed yet: {reason}")),
                None => {
                    session.advise(format!("{bytes} bytes are not freed yet; this goes on when the pool is next used"))
                }
            }
        }
        Ok(())
    }

    /// Leaves the pool without a record in its history. It is exported if a txg was written.
    pub async fn leave(self) -> Result<()> {
        if self.is_served {
            return Ok(());
        }
        Ok(leave(self.ended()).await?)
    }

    /// As [`Self::finish`], for a command that changes the pool's configuration.
    pub async fn finish_config(self, session: &Session, line: String) -> Result<()> {
        let guid = self.pool.guid();
        self.finish(line).await?;
        session.keep_config(guid).await
    }

    /// Records the command, and waits until everything is on disk. A server writes the record with one of its next txgs, as OpenZFS does.
    pub async fn finish(self, line: String) -> Result<()> {
        if !self.is_served {
            return finish(self.ended(), &line).await;
        }
        let user = u64::from(rustix::process::getuid().as_raw());
        let what = "a command cannot be noted in the pool's history";
        let noted = self
            .pool
            .change_later(what, move |syncer| Box::pin(async move { syncer.record_command(&line, user).await }));
        Ok(noted?)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.is_ended && !self.is_served && !self.pool.history().is_empty() {
            self.left.lock().push(self.pool.clone());
        }
    }
}

/// Pools that commands have left early.
pub(crate) type Left = Arc<Mutex<Vec<Pool>>>;

/// Exports a pool if a txg of it was written. Otherwise it is unchanged on disk.
#[boxed]
pub(crate) async fn leave(pool: Pool) -> Result<(), SpaError> {
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
pub async fn open_with_devices(session: &Session, name: &str) -> Result<(Pool, Vec<PathBuf>)> {
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
        return Err(refused(format!("cannot open '{name}' for writing: it is in use by {holder}")));
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
///
/// # Errors
/// They cannot be written.
#[boxed]
pub(crate) async fn revive(session: &Session, found: FoundPool, how: &ImportOptions, line: &str) -> Result<()> {
    // In the pool it keeps its old name.
    let mut how = ImportOptions { new_name: None, ..how.clone() };
    owners::note_gone_owner(&found, &mut how);
    how.owner_mark = owners::begin(&found).ok();
    let options = WriteOptions { clock: clock()?, host: host(false), check: false };
    let pool = open(session.handle(), found, &how, options).await?;
    finish(pool, line).await
}

/// Records the command and writes its changes.
#[boxed]
pub async fn finish(pool: Pool, line: &str) -> Result<()> {
    pool.record_command(line, u64::from(rustix::process::getuid().as_raw())).await?;
    let guid = pool.guid();
    pool.export().await?;
    owners::ended(guid);
    Ok(())
}

/// A command's line for the history.
pub fn line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
