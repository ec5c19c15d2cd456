//! The volumes of a pool that is open for writing, each opened once for all users: clients of NBD, and commands.
//!
//! # Theory
//!
//! **Need.** A client reads and flushes the writes of another, and a command that changes the size of a volume affects all its writers. So each
//! volume has one [`LiveVolume`], which is found here.
//!
//! **In memory.** Volumes by their dataset's object, which does not change with its name; and the names that were looked up. A volume remains
//! open after its last client disconnects: it records what a flush, even a later client's, must write.
//!
//! **Life of a volume.** It is opened in a txg's sync when it is first requested. It is closed before its dataset is destroyed, if no client has
//! it ([`Locked::close_unused`]). All are closed before the pool is ([`OpenVolumes::close`]).
//!
//! **Invariants.**
//! 1. There is at most one `LiveVolume` of a dataset.
//! 2. A known name leads to the dataset that has it: a change of names reports itself in its txg's sync ([`OpenVolumes::names_changed`]), and
//!    results of earlier look-ups are not recorded after it.
//! 3. Only one caller at a time changes a volume's size: under the lock that opening takes.
//!
//! **Rejected.** *By name only*: after a rename, a volume was opened twice. *Asking the pool for each client*: that takes a txg, which a
//! suspended pool does not have.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Opened, Source, is_obeyed, obey, open_volume, properties_of};
use cenote_nbd::{Export, ExportError};
use cenote_spa::{Pool, SpaError};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{AsyncMutex, AsyncMutexGuard, boxed};
use cenote_zvol::Volume;
use cenote_zvol::live::LiveVolume;

use super::errors::{live_error, open_error};
use super::gate::Gate;
use super::zvol_state::{SuspendedVolume, ZvolState, user};
use super::{find, io_error};
use crate::error::{Result, ServerError};

/// See the module comment.
pub struct OpenVolumes {
    pool: Pool,
    names: Mutex<Names>,
    volumes: AsyncMutex<BTreeMap<ObjectId, Arc<ZvolState>>>,
    gate: Gate,
}

#[derive(Default)]
struct Names {
    datasets: BTreeMap<String, ObjectId>,
    /// The number of changes of names so far.
    changes: u64,
}

/// The result of looking up a name: a volume that clients change, unless its property `readonly` is on; or a snapshot, or one that Cenote cannot
/// change yet.
pub(super) type Found = Opened<Arc<ZvolState>, Volume>;

impl OpenVolumes {
    /// Without open volumes yet.
    pub fn new(pool: Pool) -> Arc<Self> {
        let gate = Gate::new(pool.handle());
        Arc::new(Self { pool, names: Mutex::default(), volumes: AsyncMutex::new(BTreeMap::new()), gate })
    }

    /// A client's export of a volume, until [`Self::close`].
    pub(super) fn give(&self, export: Arc<dyn Export>) -> Arc<dyn Export> {
        self.gate.give(export)
    }

    /// Finishes the requests of clients, refuses later ones, and closes all volumes, before the pool is closed.
    #[boxed]
    pub async fn close(&self) {
        self.gate.close().await;
        self.volumes.lock().await.clear();
        self.names_changed();
    }

    /// Opens a volume, or a snapshot of one.
    pub(super) async fn opened(&self, dataset: &Dataset) -> Result<Opened<LiveVolume, Volume>, OpenError> {
        open_volume(Source::Pool(&self.pool), dataset, &user()).await
    }

    /// The volume or snapshot with this name, if it is one.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Dataset>, SpaError> {
        let wanted = name.to_owned();
        self.pool.look(move |syncer| Box::pin(async move { Ok(find(&syncer.dsl().clone(), &wanted).await?) })).await
    }

    /// The pool.
    pub(super) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Waits for the exclusive right to open, close and resize volumes. Clients continue with those they have.
    #[boxed]
    pub(crate) async fn lock(&self) -> Locked<'_> {
        Locked { all: self, volumes: self.volumes.lock().await }
    }

    /// Makes open volumes obey the present values of their properties, if they obey one of these; an empty list stands for all. Returns a
    /// sentence for each failure.
    #[boxed]
    pub async fn refresh(&self, changed: &[String]) -> Vec<String> {
        if !is_obeyed(changed) {
            return Vec::new();
        }
        // Held meanwhile: of two refreshes the later one is obeyed.
        let volumes = self.volumes.lock().await;
        // A suspended volume reads its properties when it resumes.
        let open: Vec<Arc<LiveVolume>> = volumes.values().filter_map(|zvol| zvol.now()).collect();
        match properties_of(&self.pool, open.iter().map(|live| live.dataset()).collect()).await {
            Ok(now) => open.iter().zip(&now).for_each(|(live, properties)| obey(live, properties)),
            Err(error) => return vec![format!("volumes that are open go on as they were: {error}")],
        }
        Vec::new()
    }

    /// The name of a volume that a client has, if any.
    #[boxed]
    pub(crate) async fn in_use(&self) -> Option<String> {
        let volumes = self.volumes.lock().await;
        let (dataset, _) = volumes.iter().find(|(_, live)| Arc::strong_count(live) > 1)?;
        let names = self.names.lock();
        let name = names.datasets.iter().find(|(_, of)| *of == dataset).map(|(name, _)| name.clone());
        Some(name.unwrap_or_else(|| format!("with dataset {dataset}")))
    }

    /// Forgets the names of volumes. For use in the change that renames a dataset: the caller may be gone by the time it is made.
    pub(crate) fn names_changed(&self) {
        let mut names = self.names.lock();
        names.datasets.clear();
        names.changes += 1;
    }
}

/// Exclusive access to [`OpenVolumes`].
pub(crate) struct Locked<'a> {
    all: &'a OpenVolumes,
    volumes: AsyncMutexGuard<'a, BTreeMap<ObjectId, Arc<ZvolState>>>,
}

impl Locked<'_> {
    /// The volume or snapshot with this name, if it is one. Opening it waits for a txg to be written.
    pub(super) async fn find(&mut self, name: &str) -> Result<Option<Found>, ExportError> {
        let (known, changes) = {
            let names = self.all.names.lock();
            (names.datasets.get(name).copied(), names.changes)
        };
        // One that could not be opened again is opened anew: whoever still has it gets errors.
        self.volumes.retain(|_, zvol| !zvol.is_lost());
        if let Some(live) = known.and_then(|dataset| self.volumes.get(&dataset)) {
            return Ok(Some(Found::Live(live.clone())));
        }
        let Some(dataset) = self.all.find(name).await.map_err(|error| io_error(&error))? else { return Ok(None) };
        let live = match self.volumes.get(&dataset.object) {
            Some(live) => live.clone(),
            None => match self.all.opened(&dataset).await.map_err(|error| open_error(&error))? {
                Opened::Frozen(frozen) => return Ok(Some(Found::Frozen(frozen))),
                Opened::Live(live) => {
                    let live = ZvolState::new(&self.all.pool, live);
                    self.volumes.insert(dataset.object, live.clone());
                    live
                }
            },
        };
        let mut names = self.all.names.lock();
        if names.changes == changes {
            names.datasets.insert(name.to_owned(), dataset.object);
        }
        Ok(Some(Found::Live(live)))
    }

    /// Changes the size of a volume to a multiple of its block size. It is on disk when this returns.
    ///
    /// # Errors
    /// There is no volume with this name that can be written, or no space for the change.
    #[boxed]
    pub(crate) async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<()> {
        match self.find(name).await? {
            Some(Found::Live(zvol)) => {
                let resized = zvol.share().await?.resize(size_bytes).await;
                Ok(resized.map(drop).map_err(|error| live_error(&error))?)
            }
            Some(Found::Frozen(_)) => Err(ServerError::Refused("it cannot be written".to_owned())),
            None => Err(ServerError::NoSuchVolume),
        }
    }

    /// Suspends the volume with this name, if clients have it: see [`SuspendedVolume`].
    #[boxed]
    pub(crate) async fn suspend(&mut self, name: &str) -> Result<Option<SuspendedVolume>> {
        self.close_unused();
        if self.volumes.is_empty() {
            return Ok(None);
        }
        let Some(dataset) = self.all.find(name).await? else { return Ok(None) };
        let Some(zvol) = self.volumes.get(&dataset.object).cloned() else { return Ok(None) };
        Ok(SuspendedVolume::begin(zvol).await)
    }

    /// Closes the volumes that no client has, so that they can be destroyed. Their changes are in the open txg, or an earlier one.
    pub(crate) fn close_unused(&mut self) {
        self.volumes.retain(|_, live| Arc::strong_count(live) > 1);
        self.all.names.lock().datasets.retain(|_, dataset| self.volumes.contains_key(dataset));
    }
}
