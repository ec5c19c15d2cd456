//! The volumes of a pool that is open for writing, each opened once, for whoever wants them: clients of NBD, and commands.
//!
//! # Theory
//!
//! **Need.** What one client wrote another reads and flushes, and a command that gives a volume another size must be heard by all
//! who write it: so there is one [`Live`] of a volume, and it is found here.
//!
//! **In memory.** Volumes by their dataset's object, which stays the same when it is renamed; and the names that were asked
//! for. A volume stays open when its last client has gone: it knows what is to be flushed, also by whoever comes later.
//!
//! **Life of one.** It is opened in a txg's sync when it is first asked for. It is closed when its dataset is to be destroyed and
//! no client has it ([`Locked::close_unused`]).
//!
//! **Invariants.**
//! 1. There is at most one `Live` of a dataset.
//! 2. A name that is known leads to the dataset that has it: whoever changes names holds the lock meanwhile, and says so
//!    ([`Locked::names_changed`]).
//! 3. One at a time gives a volume another size: under the lock too.
//!
//! **Rejected.** *By name alone*: renamed, a volume was opened twice. *Asking the pool for each client*: that is a txg, which
//! a suspended pool does not have.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, bail};
use cenote_format::ids::ObjectId;
use cenote_nbd::ExportError;
use cenote_spa::SpaError;
use cenote_spa::write::PoolWriter;
use cenote_spa::write::live::LivePool;
use cenote_taskq::{AsyncMutex, AsyncMutexGuard};
use cenote_zvol::Volume;

use super::live::Live;
use super::{frozen, io_error};

/// See the module comment.
pub(crate) struct OpenVolumes {
    pool: LivePool,
    known: AsyncMutex<Known>,
}

#[derive(Default)]
struct Known {
    names: BTreeMap<String, ObjectId>,
    volumes: BTreeMap<ObjectId, Arc<Live>>,
}

/// What a name stands for.
pub(super) enum Found {
    /// A volume that can be written.
    Written(Arc<Live>),
    /// One that stays as it is: a snapshot, one with `readonly=on`, one that cannot be written yet.
    Frozen(Volume),
}

/// What a txg's sync has found: what is open already is only named.
enum Seen {
    Open(ObjectId),
    New(ObjectId, Live),
    Frozen(Volume),
}

impl OpenVolumes {
    /// None is open yet.
    pub(crate) fn new(pool: LivePool) -> Arc<Self> {
        Arc::new(Self { pool, known: AsyncMutex::new(Known::default()) })
    }

    /// The pool.
    pub(super) const fn pool(&self) -> &LivePool {
        &self.pool
    }

    /// Waits until nobody else opens, closes, renames or resizes volumes, and keeps others from it. Clients go on with what they have.
    pub(crate) async fn lock(&self) -> Locked<'_> {
        Locked { pool: &self.pool, known: self.known.lock().await }
    }
}

/// [`OpenVolumes`], for its holder alone.
pub(crate) struct Locked<'a> {
    pool: &'a LivePool,
    known: AsyncMutexGuard<'a, Known>,
}

impl Locked<'_> {
    /// The volume or snapshot of this name, if it is one. Opening it waits for a txg.
    pub(super) async fn find(&mut self, name: &str) -> Result<Option<Found>, ExportError> {
        let known = &mut *self.known;
        if let Some(live) = known.names.get(name).and_then(|dataset| known.volumes.get(dataset)) {
            return Ok(Some(Found::Written(live.clone())));
        }
        let (pool, wanted) = (self.pool.clone(), name.to_owned());
        let open: Vec<ObjectId> = known.volumes.keys().copied().collect();
        let seen =
            self.pool.change(move |writer| Box::pin(async move { Ok(seen(&pool, writer, &wanted, &open).await) }));
        let dataset = match seen.await.map_err(|error| io_error(&error))?? {
            None => return Ok(None),
            Some(Seen::Frozen(volume)) => return Ok(Some(Found::Frozen(volume))),
            Some(Seen::Open(dataset)) => dataset,
            Some(Seen::New(dataset, live)) => {
                known.volumes.insert(dataset, Arc::new(live));
                dataset
            }
        };
        known.names.insert(name.to_owned(), dataset);
        Ok(known.volumes.get(&dataset).map(|live| Found::Written(live.clone())))
    }

    /// Gives a volume another size, in a multiple of its block size. It is on disk when this returns.
    ///
    /// # Errors
    /// There is none of this name that can be written, or no space for the change.
    pub(crate) async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<()> {
        match self.find(name).await? {
            Some(Found::Written(live)) => Ok(live.resize(size_bytes).await?),
            Some(Found::Frozen(_)) => bail!("it cannot be written"),
            None => bail!("there is no such volume"),
        }
    }

    /// Closes what no client has, so that it can be destroyed. What was changed in it is in the open txg, or before.
    pub(crate) fn close_unused(&mut self) {
        let Known { names, volumes } = &mut *self.known;
        volumes.retain(|_, live| Arc::strong_count(live) > 1);
        names.retain(|_, dataset| volumes.contains_key(dataset));
    }

    /// Forgets which volumes have which names.
    pub(crate) fn names_changed(mut self) {
        self.known.names.clear();
    }
}

/// Finds out what a name stands for, and opens it if it is not, in a txg's sync.
async fn seen(
    pool: &LivePool,
    writer: &mut PoolWriter,
    name: &str,
    open: &[ObjectId],
) -> Result<Option<Seen>, ExportError> {
    let view = writer.view().await.map_err(|error| io_error(&error))?;
    let Some(volume) = frozen(&view, name).await? else { return Ok(None) };
    if name.contains('@') {
        return Ok(Some(Seen::Frozen(volume)));
    }
    let dataset = view.dataset(name).await.map_err(|error| io_error(&error))?;
    if open.contains(&dataset.object) {
        return Ok(Some(Seen::Open(dataset.object)));
    }
    let number = async |property: &str| {
        let found = view.property(&dataset.dir, property, true).await.map_err(|error| io_error(&error))?;
        Ok::<_, ExportError>(found.and_then(|found| found.value.number()).unwrap_or(0))
    };
    let (sync, readonly) = (number("sync").await?, number("readonly").await?);
    if readonly == 1 {
        return Ok(Some(Seen::Frozen(volume)));
    }
    let head = match writer.open_head(name).await {
        Ok(head) => head,
        // It can be read all the same.
        Err(SpaError::Unwritable { .. }) => return Ok(Some(Seen::Frozen(volume))),
        Err(error) => return Err(io_error(&error)),
    };
    let live = Live::open(pool, writer, name, head, sync).await?;
    Ok(Some(Seen::New(dataset.object, live)))
}
