//! The users of this process's datasets, as a verb meets them ([`Users`]): mounts, and volumes that clients have.
//!
//! `admin` refuses a dataset in use; here is known which uses end without harm, and which have to wait. Mounts release datasets that are to
//! go, and show afterwards those that still exist. In a process that serves nothing, only the mounts of other processes matter, which show
//! the pool read-only ([`shown`]).

use std::collections::BTreeSet;

use cenote_admin::{AdminError, Changed, Going, Suspended, Users, Verb, Volumes};
use cenote_dsl::Dataset;
use cenote_dsl::name::is_at_or_below;
use cenote_format::ids::{Guid, ObjectId};
use cenote_host::{Mounts, owners};
use cenote_spa::{Pool, SpaError};
use cenote_taskq::boxed;

use crate::error::{Result, ServerError, refused};
use crate::protocol::usual_socket;
use crate::session::{END_POLL, UNUSED_TIME_MAX};
use crate::{Locked, Session, SuspendedDataset, shown};

/// Properties that mounts obey.
const OF_MOUNTS: [&str; 6] = ["acltype", "devices", "exec", "readonly", "setuid", "xattr"];

impl Users for Session {
    #[boxed]
    async fn before(&self, going: Going<'_>) -> Result<(), AdminError> {
        self.ends(going).await.map_err(AdminError::of_users)
    }

    #[boxed]
    async fn suspend(&self, dataset: &str, other: &str) -> Result<Box<dyn Suspended>, AdminError> {
        let suspended = self.suspend_users(dataset, other).await.map_err(AdminError::of_users)?;
        Ok(Box::new(suspended) as Box<dyn Suspended>)
    }

    #[boxed]
    async fn after(&self, changed: Changed<'_>) -> Result<(), AdminError> {
        match changed {
            Changed::Datasets(datasets) => self.datasets_changed(datasets).await,
            Changed::Properties { datasets, names } => self.properties_changed(names, datasets).await,
        }
        Ok(())
    }

    fn renaming(&self) -> Box<dyn FnOnce() + Send> {
        let volumes = self.served_volumes().cloned();
        Box::new(move || volumes.iter().for_each(|volumes| volumes.names_changed()))
    }

    #[boxed]
    async fn volumes(&self) -> Option<Box<dyn Volumes + '_>> {
        Some(Box::new(self.served_volumes()?.lock().await) as Box<dyn Volumes + '_>)
    }

    fn guid_changes(&self, from: Guid, to: Guid) -> Result<(), AdminError> {
        let is_of_another = |noted: Option<(String, _)>| {
            noted.is_some_and(|(name, _)| Some(name.as_str()) != self.served().map(Pool::name))
        };
        if self.noted(from).is_some() && is_of_another(self.noted(to)) {
            return Err(AdminError::Said(format!("the guid {to} is in use by another pool")));
        }
        owners::guid_changes(from, to).map_err(|error| AdminError::of_users(ServerError::from(error)))?;
        if let (Some(_), Ok(old), Ok(new)) = (self.served(), usual_socket(from), usual_socket(to)) {
            // Commands look for a pool's server by its guid. One that listens elsewhere, or not at all, goes on so.
            let _ = std::fs::rename(old, new);
        }
        Ok(())
    }

    fn keep_pool(&self) -> bool {
        self.served().is_some()
    }

    fn tell(&self, line: &str) {
        self.warn(line);
    }
}

impl Volumes for Locked<'_> {
    #[boxed]
    async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<(), AdminError> {
        Locked::resize(self, name, size_bytes).await.map_err(AdminError::of_users)
    }
}

impl Suspended for SuspendedDataset {
    #[boxed]
    async fn resume(self: Box<Self>) -> Result<(), AdminError> {
        Self::resume(*self).await.map_err(AdminError::of_users)
    }
}

impl Session {
    /// Ends uses of datasets and snapshots that are about to go. Verbs other than these concern no use.
    async fn ends(&self, going: Going<'_>) -> Result<()> {
        let Going { verb, names, is_recursive, is_going, is_dry } = going;
        if verb == Verb::Destroy {
            if !is_dry {
                shown::check_unshown(self, names, "destroy").await?;
            }
            if is_recursive && !names.is_empty() {
                if let (Some(pool), Some(volumes)) = (self.served(), self.served_volumes()) {
                    // Writes of disconnected clients must be on disk before their dataset is destroyed.
                    volumes.lock().await.close_unused();
                    pool.sync().await?;
                }
                self.release(names, "destroy").await?;
            }
        }
        match verb {
            Verb::Destroy | Verb::Release => self.let_go(is_going).await,
            _ => Ok(()),
        }
    }

    /// Suspends a dataset that is about to take on the state of `other`, if this process has it mounted or serves it as a volume.
    pub(crate) async fn suspend_users(&self, dataset: &str, other: &str) -> Result<SuspendedDataset> {
        let Some(of) = self.served_pool() else { return Ok(SuspendedDataset::default()) };
        let mut suspended = SuspendedDataset::begin(of, dataset).await?;
        let compared = async {
            of.pool.wait_logs_freed().await?;
            suspended.note_changes(&of.pool, dataset, other).await
        };
        match compared.await {
            Ok(()) => Ok(suspended),
            Err(error) => {
                if let Err(error) = suspended.resume().await {
                    self.warn(error.chain());
                }
                Err(error)
            }
        }
    }

    /// Makes mounts and volumes obey properties of datasets that were just changed, and reports those that take effect only later.
    #[boxed]
    pub(crate) async fn properties_changed(&self, changed: &[String], datasets: &[String]) {
        if let Some(of) = self.served_pool() {
            of.mounts.refresh(datasets, changed).await.iter().for_each(|line| self.warn(line));
            of.volumes.refresh(changed).await.iter().for_each(|line| self.warn(line));
            return;
        }
        // The processes of read-only mounts see an earlier state of the pool.
        if !changed.iter().any(|name| OF_MOUNTS.contains(&name.as_str())) {
            return;
        }
        let mounts = Mounts::read();
        for mounted in
            mounts.ours().filter(|mounted| datasets.iter().any(|dataset| is_at_or_below(&mounted.dataset, dataset)))
        {
            let (dataset, at) = (&mounted.dataset, mounted.at.display());
            self.warn(format!("'{dataset}' is mounted at {at}: what was set takes effect there at the next mount"));
        }
    }

    /// Makes mounts show datasets that were just created, destroyed or renamed, with those below them.
    #[boxed]
    pub(crate) async fn datasets_changed(&self, datasets: &[String]) {
        if let Some(of) = self.served_pool() {
            of.mounts.refresh(datasets, &[]).await.iter().for_each(|line| self.warn(line));
            // A dataset that was renamed or received may inherit other properties now.
            of.volumes.refresh(&[]).await.iter().for_each(|line| self.warn(line));
        }
    }

    /// Removes datasets from the mounts of this process before `verb` (`destroy`, ...). Fails if one is in use there.
    #[boxed]
    pub(crate) async fn release(&self, datasets: &[String], verb: &str) -> Result<()> {
        let Some(of) = self.served_pool() else { return Ok(()) };
        match of.mounts.release(datasets).await? {
            Some(busy) => Err(refused(format!("cannot {verb} '{busy}': dataset is busy"))),
            None => Ok(()),
        }
    }

    /// Makes mounts, and disconnected clients of volumes, release snapshots that are about to be destroyed. Those in use remain held, so the
    /// destroy will be refused.
    pub(crate) async fn let_go(&self, is_going: impl Fn(&Dataset) -> bool) -> Result<()> {
        let Some(of) = self.served_pool() else { return Ok(()) };
        let pool = &of.pool;
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
        let begun = self.handle().now();
        loop {
            of.mounts.let_go(&going).await;
            let is_held = going.iter().any(|dataset| pool.is_long_held(*dataset));
            if !is_held || self.handle().now() - begun >= UNUSED_TIME_MAX {
                return Ok(());
            }
            self.handle().sleep(END_POLL).await;
        }
    }
}
