//! Commands of clients, in the process that has their pool; and whether another process should do a command.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_dsl::Dataset;
use cenote_format::ids::ObjectId;
use cenote_fuse::{MountError, Unmount};
use cenote_host::{Mounted, Mounts};
use cenote_spa::{FoundPool, Pool, SpaError};
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;

use super::{END_POLL, Served, Session};
use crate::error::{Result, ServerError, refused};
use crate::{Console, Input, OpenVolumes, Owned, Passed, ServedPool, SuspendedDataset, protocol};

/// Properties of which a mount obeys the value.
const OF_MOUNTS: [&str; 6] = ["acltype", "devices", "exec", "readonly", "setuid", "xattr"];
/// How long a client that has gone may seem to be there.
const UNUSED_TIME_MAX: Duration = Duration::from_secs(2);

impl Session {
    /// For a client of this process, which has this pool.
    #[must_use]
    pub fn served_by(&self, of: &ServedPool, console: Arc<dyn Console>, input: Option<Passed>) -> Self {
        let input = Arc::new(Mutex::new(input));
        let served = Served { of: of.clone(), view: Arc::default(), is_to_end: Arc::default(), input };
        let mut session = self.clone();
        (session.console, session.opened, session.served) = (console, Arc::default(), Some(served));
        session.kept = Arc::default();
        // Its own labels say that it is in use.
        session.options.force = true;
        session
    }

    /// Standard input: of this process, or of the client whose work it does. A client's is given out once.
    ///
    /// # Errors
    /// The client has sent none.
    pub fn input(&self) -> Result<Input> {
        match &self.served {
            None => Ok(Input::Own(std::io::stdin())),
            Some(served) => match served.input.lock().take() {
                Some(passed) => Ok(Input::Passed(passed)),
                None => Err(refused("this command reads standard input, and its client has sent none")),
            },
        }
    }

    /// The pool of this process, where it does a client's work.
    pub fn served(&self) -> Option<&Pool> {
        self.served.as_ref().map(|served| &served.of.pool)
    }

    /// All that it serves of that pool.
    pub fn served_pool(&self) -> Option<&ServedPool> {
        self.served.as_ref().map(|served| &served.of)
    }

    /// The pool of this process, if it has one, has got devices: clients find it by them too.
    pub fn devices_added(&self, paths: &[PathBuf]) {
        let Some(served) = &self.served else { return };
        let mut devices = served.of.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let new: Vec<PathBuf> = paths.iter().filter(|path| !devices.contains(path)).cloned().collect();
        devices.extend(new);
    }

    /// It has lost devices.
    pub fn devices_removed(&self, paths: &[PathBuf]) {
        let Some(served) = &self.served else { return };
        let mut devices = served.of.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        devices.retain(|path| !paths.contains(path));
    }

    /// Fails where clients use the pool of this process: a mount, or a volume. Mounts that nobody uses are unmounted on the way.
    #[boxed]
    pub async fn check_unused(&self) -> Result<()> {
        let Some(served) = &self.served else { return Ok(()) };
        let pool = served.of.pool.name();
        let begun = self.handle.now();
        while let Some(volume) = served.of.volumes.in_use().await {
            // A client that has just gone is noticed a moment later.
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
            // A mount that is gone already, or cannot be unmounted from here, ends with the pool.
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
    pub fn served_volumes(&self) -> Option<&Arc<OpenVolumes>> {
        self.served.as_ref().map(|served| &served.of.volumes)
    }

    /// Has what is mounted obey properties of datasets that were just changed, and says what obeys them only later.
    #[boxed]
    pub async fn properties_changed(&self, changed: &[String], datasets: &[String]) {
        if let Some(served) = &self.served {
            served.of.mounts.refresh(datasets, changed).await.iter().for_each(|line| self.warn(line));
            served.of.volumes.refresh(changed).await.iter().for_each(|line| self.warn(line));
            return;
        }
        // Read-only mounts, whose processes see the pool as it was.
        if !changed.iter().any(|name| OF_MOUNTS.contains(&name.as_str())) {
            return;
        }
        let is_at_or_below = |mounted: &Mounted, dataset: &String| {
            mounted.dataset.strip_prefix(dataset.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let mounts = Mounts::read();
        for mounted in mounts.ours().filter(|mounted| datasets.iter().any(|dataset| is_at_or_below(mounted, dataset))) {
            let (dataset, at) = (&mounted.dataset, mounted.at.display());
            self.warn(format!("'{dataset}' is mounted at {at}: what was set takes effect there at the next mount"));
        }
    }

    /// Has what is mounted show datasets that were just made, destroyed or renamed, with those below them.
    #[boxed]
    pub async fn datasets_changed(&self, datasets: &[String]) {
        if let Some(served) = &self.served {
            served.of.mounts.refresh(datasets, &[]).await.iter().for_each(|line| self.warn(line));
        }
    }

    /// Has datasets leave the mounts of this process before `verb` (`destroy`, ...) is done to them; fails where somebody uses one there.
    #[boxed]
    pub async fn release(&self, datasets: &[String], verb: &str) -> Result<()> {
        let Some(served) = &self.served else { return Ok(()) };
        match served.of.mounts.release(datasets).await? {
            Some(busy) => Err(refused(format!("cannot {verb} '{busy}': dataset is busy"))),
            None => Ok(()),
        }
    }

    /// Suspends a dataset for a rollback or the end of a receive, if this process has it mounted or serves it as a volume.
    #[boxed]
    pub async fn suspend(&self, dataset: &str) -> Result<SuspendedDataset> {
        match &self.served {
            Some(served) => SuspendedDataset::begin(&served.of, dataset).await,
            None => Ok(SuspendedDataset::default()),
        }
    }

    /// Has snapshots that are about to go be let go by what has only looked at them: mounts, and clients of volumes that have just gone. Those
    /// that somebody uses stay as they are, and whoever would destroy them is refused.
    pub async fn let_go(&self, is_going: impl Fn(&Dataset) -> bool) -> Result<()> {
        let Some(served) = &self.served else { return Ok(()) };
        let pool = &served.of.pool;
        let held = pool.long_held();
        if held.is_empty() {
            return Ok(());
        }
        let look = pool.look(move |syncer| {
            Box::pin(async move {
                let dsl = syncer.dsl().clone();
                let mut found = Vec::new();
                for object in held {
                    if let Ok(name) = dsl.dataset_name(object).await {
                        found.extend(dsl.dataset(&name).await.ok());
                    }
                }
                Ok::<_, SpaError>(found)
            })
        });
        let going: BTreeSet<ObjectId> =
            look.await?.into_iter().filter(|dataset| is_going(dataset)).map(|dataset| dataset.object).collect();
        let begun = self.handle.now();
        loop {
            served.of.mounts.let_go(&going).await;
            let is_held = going.iter().any(|dataset| pool.is_long_held(*dataset));
            if !is_held || self.handle.now() - begun >= UNUSED_TIME_MAX {
                return Ok(());
            }
            self.handle.sleep(END_POLL).await;
        }
    }

    /// Has the pool exported when the client has its answer, and this process end if it has no other.
    pub fn ask_to_end(&self) {
        if let Some(served) = &self.served {
            served.is_to_end.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was asked to.
    pub fn is_to_end(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.is_to_end.load(Ordering::SeqCst))
    }

    /// Refuses what is not about the pool that this process has.
    pub fn check_served(&self, name: &str) -> Result<()> {
        match self.served() {
            Some(pool) if pool.name() != name => {
                Err(refused(format!("this server has the pool '{}', not '{name}'", pool.name())))
            }
            _ => Ok(()),
        }
    }

    /// Has a pool's server asked instead, if there is one that goes on.
    pub fn check_server(&self, found: &FoundPool) -> Result<()> {
        let Some(socket) = protocol::find(found.guid).filter(|_| self.may_send) else { return Ok(()) };
        match protocol::who(&socket) {
            // Another pool's server, which `CENOTE_CONTROL` names, is not asked for this one.
            Ok(who) if who.is_ending || who.guid != found.guid.0 => Ok(()),
            // The reason why a server does not say who it is comes with the request.
            Ok(_) | Err(_) => Err(Owned { pool: found.name().to_owned(), socket }.into()),
        }
    }

    /// Has a pool's server asked, if there is one; also where the pool's devices do not let themselves be read, if there is but one
    /// server that it may be.
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

    /// As [`Session::check_reachable`] where the pool's devices do not let themselves be read; nothing where they do, or there is no
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
