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

use cenote_dsl::{Dir, Dsl, DslError};
use cenote_format::ids::ObjectId;
use cenote_nbd::{Export, ExportError};
use cenote_spa::{LongHold, Pool, SpaError, Syncer};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{AsyncMutex, AsyncMutexGuard, boxed};
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeProperties};

use super::gate::Gate;
use super::zvol_state::{SuspendedVolume, ZvolState};
use super::{frozen, io_error, live};
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

/// The result of looking up a name.
pub(super) enum Found {
    /// A volume that can be written.
    Written(Arc<ZvolState>),
    /// One that cannot be written now: a snapshot, one with `readonly=on`, an unsupported one. It is not destroyed meanwhile.
    Frozen(Volume, LongHold),
}

/// The volume that a txg's sync has found; if it is already open, only its object.
enum Seen {
    Open(ObjectId),
    New(ObjectId, LiveVolume),
    Frozen(Volume, LongHold),
}

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

    /// Opens a suspended volume again.
    pub(super) async fn reopened(&self, name: &str) -> Result<LiveVolume, ExportError> {
        let (pool, wanted) = (self.pool.clone(), name.to_owned());
        let opened = self.pool.look(move |writer| {
            Box::pin(async move {
                let opened = async {
                    let view = writer.dsl().clone();
                    let dir = view.dataset(&wanted).await.map_err(|error| io_error(&error))?.dir;
                    let how = properties(&view, &dir).await.map_err(|error| io_error(&error))?;
                    let head = writer.open_head(&wanted).await.map_err(|error| io_error(&error))?;
                    live::open(&pool, writer, &wanted, head, how).await
                };
                Ok::<_, SpaError>(opened.await)
            })
        });
        let live = opened.await.map_err(|error| io_error(&error))??;
        live.replay().await.map_err(|error| live::live_error(&error))?;
        Ok(live)
    }

    /// The pool.
    pub(super) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Waits for the exclusive right to open, close and resize volumes. Clients continue with those they have.
    #[boxed]
    pub async fn lock(&self) -> Locked<'_> {
        Locked { all: self, volumes: self.volumes.lock().await }
    }

    /// Makes open volumes obey the present values of their properties `readonly`, `sync` and `logbias`, if `changed` includes one of these.
    /// Returns a sentence for each failure.
    #[boxed]
    pub async fn refresh(&self, changed: &[String]) -> Vec<String> {
        if !changed.iter().any(|name| VolumeProperties::NAMES.contains(&name.as_str())) {
            return Vec::new();
        }
        // A suspended volume reads its properties when it resumes (`reopened`).
        let open: Vec<Arc<LiveVolume>> = self.volumes.lock().await.values().filter_map(|zvol| zvol.now()).collect();
        let datasets: Vec<ObjectId> = open.iter().map(|live| live.dataset()).collect();
        let now = self.pool.look(move |writer| {
            Box::pin(async move {
                let view = writer.dsl().clone();
                let mut now = Vec::new();
                for dataset in datasets {
                    let name = view.dataset_name(dataset).await?;
                    let dir = view.dataset(&name).await?.dir;
                    now.push(properties(&view, &dir).await?);
                }
                Ok::<_, SpaError>(now)
            })
        });
        let now = match now.await {
            Ok(now) => now,
            Err(error) => return vec![format!("volumes that are open go on as they were: {error}")],
        };
        open.iter().zip(now).for_each(|(live, properties)| live.obey(properties));
        Vec::new()
    }

    /// The name of a volume that a client has, if any.
    #[boxed]
    pub async fn in_use(&self) -> Option<String> {
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
pub struct Locked<'a> {
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
        if let Some(live) = known.and_then(|dataset| self.volumes.get(&dataset)) {
            return Ok(Some(Found::Written(live.clone())));
        }
        let (pool, wanted) = (self.all.pool.clone(), name.to_owned());
        let open: Vec<ObjectId> = self.volumes.keys().copied().collect();
        let seen = self
            .all
            .pool
            .look(move |writer| Box::pin(async move { Ok::<_, SpaError>(seen(&pool, writer, &wanted, &open).await) }));
        let (dataset, live) = match seen.await.map_err(|error| io_error(&error))?? {
            None => return Ok(None),
            Some(Seen::Frozen(volume, hold)) => return Ok(Some(Found::Frozen(volume, hold))),
            Some(Seen::Open(dataset)) => (dataset, self.volumes.get(&dataset).cloned()),
            Some(Seen::New(dataset, live)) => {
                live.replay().await.map_err(|error| live::live_error(&error))?;
                let live = ZvolState::new(live);
                self.volumes.insert(dataset, live.clone());
                (dataset, Some(live))
            }
        };
        let mut names = self.all.names.lock();
        if names.changes == changes {
            names.datasets.insert(name.to_owned(), dataset);
        }
        Ok(live.map(Found::Written))
    }

    /// Changes the size of a volume to a multiple of its block size. It is on disk when this returns.
    ///
    /// # Errors
    /// There is no volume with this name that can be written, or no space for the change.
    #[boxed]
    pub async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<()> {
        match self.find(name).await? {
            Some(Found::Written(zvol)) => Ok(live::resize(&*zvol.share().await?, size_bytes).await?),
            Some(Found::Frozen(..)) => Err(ServerError::Refused("it cannot be written".to_owned())),
            None => Err(ServerError::NoSuchVolume),
        }
    }

    /// Suspends the volume with this name, if clients have it: see [`SuspendedVolume`].
    #[boxed]
    pub async fn suspend(&mut self, all: &Arc<OpenVolumes>, name: &str) -> Result<Option<SuspendedVolume>> {
        self.close_unused();
        if self.volumes.is_empty() {
            return Ok(None);
        }
        let wanted = name.to_owned();
        let looked = self.all.pool.look(move |writer| {
            Box::pin(async move { Ok::<_, SpaError>(writer.dsl().dataset(&wanted).await?.object) })
        });
        let Some(zvol) = self.volumes.get(&looked.await?).cloned() else { return Ok(None) };
        Ok(SuspendedVolume::begin(all, zvol, name).await)
    }

    /// Closes the volumes that no client has, so that they can be destroyed. Their changes are in the open txg, or an earlier one.
    pub fn close_unused(&mut self) {
        self.volumes.retain(|_, live| Arc::strong_count(live) > 1);
        self.all.names.lock().datasets.retain(|_, dataset| self.volumes.contains_key(dataset));
    }
}

/// The properties that a volume obeys, including inherited ones.
async fn properties(view: &Dsl, dir: &Dir) -> Result<VolumeProperties, DslError> {
    let found = view.properties(dir, |name| VolumeProperties::NAMES.contains(&name)).await?;
    Ok(VolumeProperties::of(|name| found.get(name).and_then(|found| found.value.number())))
}

/// Looks up a name, and opens the volume if it is not open, in a txg's sync.
async fn seen(pool: &Pool, writer: &mut Syncer, name: &str, open: &[ObjectId]) -> Result<Option<Seen>, ExportError> {
    let view = writer.dsl().clone();
    let Some(volume) = frozen(&view, name).await? else { return Ok(None) };
    let dataset = view.dataset(name).await.map_err(|error| io_error(&error))?;
    if dataset.is_snapshot() {
        return Ok(Some(Seen::Frozen(volume, writer.long_hold(dataset.object))));
    }
    if open.contains(&dataset.object) {
        return Ok(Some(Seen::Open(dataset.object)));
    }
    let properties = properties(&view, &dataset.dir).await.map_err(|error| io_error(&error))?;
    if properties.is_read_only {
        return Ok(Some(Seen::Frozen(volume, writer.long_hold(dataset.object))));
    }
    let head = match writer.open_head(name).await {
        Ok(head) => head,
        // It can still be read.
        Err(error) if error.is_unsupported() => {
            return Ok(Some(Seen::Frozen(volume, writer.long_hold(dataset.object))));
        }
        Err(error) => return Err(io_error(&error)),
    };
    let live = live::open(pool, writer, name, head, properties).await?;
    Ok(Some(Seen::New(dataset.object, live)))
}
