//! Clients' commands in the process that has their pool; and the decision if another process should carry out a command.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_admin::Owner;
use cenote_fuse::{MountError, Unmount};
use cenote_host::Mounts;
use cenote_spa::{FoundPool, Pool};
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;
use rustix::process::{getegid, geteuid};

use super::{END_POLL, Served, Session, UNUSED_TIME_MAX};
use crate::error::{Result, ServerError, refused};
use crate::{Console, Input, OpenVolumes, Owned, Passed, ServedPool, protocol};

impl Session {
    /// A session for a client of this process, which has this pool. `client` is the user and group that the system reports for it.
    #[must_use]
    pub fn served_by(&self, of: &ServedPool, client: Owner, console: Arc<dyn Console>, input: Option<Passed>) -> Self {
        let input = Arc::new(Mutex::new(input));
        let served = Served { of: of.clone(), client, view: Arc::default(), is_to_end: Arc::default(), input };
        let mut session = self.clone();
        (session.console, session.opened, session.served) = (console, Arc::default(), Some(served));
        session.kept = Arc::default();
        // The pool's own labels say that it is in use.
        session.options.force = true;
        session
    }

    /// Standard input: of this process, or of the client for which it works. A client's is returned only once.
    pub fn input(&self) -> Result<Input> {
        match &self.served {
            None => Ok(Input::Own(std::io::stdin())),
            Some(served) => match served.input.lock().take() {
                Some(passed) => Ok(Input::Passed(passed)),
                None => Err(refused("this command reads standard input, and its client has sent none")),
            },
        }
    }

    /// The owner for new root directories: the user of this process, or the client for which it works. Root's belong to root.
    pub fn owner(&self) -> Owner {
        let own = || Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let owner = self.served.as_ref().map_or_else(own, |served| served.client);
        if owner.uid == 0 { Owner::ROOT } else { owner }
    }

    /// The pool of this process, if it carries out a client's request.
    pub fn served(&self) -> Option<&Pool> {
        self.served.as_ref().map(|served| &served.of.pool)
    }

    /// That pool with everything served of it.
    pub fn served_pool(&self) -> Option<&ServedPool> {
        self.served.as_ref().map(|served| &served.of)
    }

    /// Records devices added to the pool of this process, if it has one: clients find the pool by them too.
    pub(crate) fn devices_added(&self, paths: &[PathBuf]) {
        let Some(served) = &self.served else { return };
        let mut devices = served.of.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new: Vec<PathBuf> = paths.iter().filter(|path| !devices.contains(path)).cloned().collect();
        devices.extend(new);
    }

    /// Records devices removed from it.
    pub(crate) fn devices_removed(&self, paths: &[PathBuf]) {
        let Some(served) = &self.served else { return };
        let mut devices = served.of.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        devices.retain(|path| !paths.contains(path));
    }

    /// Fails if clients use the pool of this process: a mount, or a volume. Mounts that are not in use are unmounted first.
    #[boxed]
    pub async fn check_unused(&self) -> Result<()> {
        let Some(served) = &self.served else { return Ok(()) };
        let pool = served.of.pool.name();
        let begun = self.handle.now();
        while let Some(volume) = served.of.volumes.in_use().await {
            // The end of a client's connection is noticed a moment later.
            if self.handle.now() - begun < UNUSED_TIME_MAX {
                self.handle.sleep(END_POLL).await;
                continue;
            }
            return Err(refused(format!(
                "cannot export '{pool}': pool is busy: a client has the volume '{volume}' ('-f' exports it nevertheless)"
            )));
        }
        let table = Mounts::read();
        let mut mounts = served.of.mounts.places();
        mounts.reverse();
        for (dataset, at) in mounts {
            if !table.has(&dataset, &at) {
                continue;
            }
            let path = at.clone();
            // A mount that has already ended, or cannot be unmounted from here, ends with the pool.
            let ended = self.handle.spawn_blocking(move || cenote_fuse::unmount(&path, Unmount::Unused)).await?;
            if let Err(MountError::Busy(_)) = ended {
                return Err(refused(format!(
                    "cannot export '{pool}': pool is busy: '{dataset}' is in use at {} ('-f' exports it nevertheless)",
                    at.display()
                )));
            }
        }
        Ok(())
    }

    /// The volumes of that pool.
    pub(crate) fn served_volumes(&self) -> Option<&Arc<OpenVolumes>> {
        self.served.as_ref().map(|served| &served.of.volumes)
    }

    /// Requests an export of the pool after the client has its answer, and the end of this process if it has no other.
    pub fn ask_to_end(&self) {
        if let Some(served) = &self.served {
            served.is_to_end.store(true, Ordering::SeqCst);
        }
    }

    /// True if that was requested.
    pub fn is_to_end(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.is_to_end.load(Ordering::SeqCst))
    }

    /// Refuses a pool other than the one that this process has.
    pub fn check_served(&self, name: &str) -> Result<()> {
        match self.served() {
            Some(pool) if pool.name() != name => {
                Err(refused(format!("this server has the pool '{}', not '{name}'", pool.name())))
            }
            _ => Ok(()),
        }
    }

    /// Returns [`ServerError::Owned`], so that a pool's server is asked instead, if one is running.
    pub fn check_server(&self, found: &FoundPool) -> Result<()> {
        let Some(socket) = protocol::find(found.guid).filter(|_| self.may_send) else { return Ok(()) };
        match protocol::who(&socket) {
            // The server of another pool, named by `CENOTE_CONTROL`, is not asked for this one.
            Ok(who) if who.is_ending || who.guid != found.guid.0 => Ok(()),
            // If it does not answer, the request will report the reason.
            Ok(_) | Err(_) => Err(Owned { pool: found.name().to_owned(), socket }.into()),
        }
    }

    /// Like [`Session::check_server`], but also works if the pool's devices cannot be read, as long as only one server is running.
    #[boxed]
    pub async fn check_reachable(&self, name: &str) -> Result<()> {
        match self.locate(name).await {
            Ok((found, _)) => self.check_server(&found),
            Err(error) => match if self.may_send { protocol::only() } else { None } {
                // Another pool's server is not asked for this one.
                Some(socket) if protocol::who(&socket).is_ok_and(|who| !who.is_called(name)) => Err(error),
                Some(socket) => Err(Owned { pool: name.to_owned(), socket }.into()),
                None => Err(error),
            },
        }
    }

    /// As [`Session::check_reachable`] if the pool's devices cannot be read. Returns without an error if they can, or if there is no
    /// server.
    #[boxed]
    pub async fn check_failing(&self, name: &str) -> Result<()> {
        if !self.may_send || protocol::only().is_none() {
            return Ok(());
        }
        match self.check_reachable(name).await {
            Err(error @ ServerError::Owned(_)) => Err(error),
            _ => Ok(()),
        }
    }
}
