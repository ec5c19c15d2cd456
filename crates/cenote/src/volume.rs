//! Volumes.

use std::fmt;
use std::sync::Arc;

use cenote_dsl::{Dataset, Dir, Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_spa::{LiveHead, LongHold, User};
use cenote_zvol::live::{Clear, LiveVolume, LiveVolumeError};
use cenote_zvol::{VolumeError, VolumeProperties};

use crate::error::Error;
use crate::file::Bytes;
use crate::filesystem::{frozen_objset, same_dataset};
use crate::pool::{Access, Open, Pool};
use crate::raise::{Lower as _, Raise as _, Raised};

pub(crate) struct Inner {
    pub(crate) name: String,
    state: State,
}

enum State {
    /// It is changed.
    Live(LiveVolume),
    /// It is read as it is on disk, and kept there.
    Frozen { volume: cenote_zvol::Volume, _hold: Option<LongHold> },
}

/// A volume as it was found by its name.
enum Found {
    Head(LiveHead, VolumeProperties),
    Frozen(LongHold),
}

/// A volume, or a snapshot of one: a block device's bytes. Cheap to clone, and any number of tasks may use it at once.
///
/// ```no_run
/// # async fn example(pool: cenote::Pool) -> Result<(), cenote::Error> {
/// let disk = pool.create_volume("tank/disk", 64 << 20, &[]).await?.volume().await?;
/// disk.write_at(4096, b"hello").await?;
/// disk.flush().await?;
/// assert_eq!(&disk.read_at(4096, 5).await?[..], b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens a volume, or a snapshot of one.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Misuse`](crate::ErrorKind::Misuse) (it is a file system),
    /// [`Key`](crate::ErrorKind::Key).
    pub async fn volume(&self, dataset: &str) -> Result<Volume, Error> {
        open(self, dataset).await.map_err(|error| error.of_dataset(dataset))
    }
}

async fn open(pool: &Pool, name: &str) -> Result<Volume, Error> {
    let mut open = pool.inner.open.lock().await;
    let whole = name.to_owned();
    let found = pool.look(move |dsl| {
        Box::pin(async move {
            let dataset = dsl.dataset(&whole).await?;
            let kind = dsl.kind(&dataset).await?;
            Ok((dataset, kind))
        })
    });
    let (dataset, kind) = found.await?;
    let no_volume = || Error::misuse(format!("'{name}' is no volume"));
    match open.get(&dataset.object) {
        Some(Open::Volume(inner)) => return Ok(Volume { inner: inner.clone() }),
        Some(Open::Files(_)) => return Err(no_volume()),
        None => {}
    }
    if kind != ObjsetType::Zvol {
        return Err(no_volume());
    }
    let state = match &pool.inner.access {
        Access::Read(_) => frozen(pool, &dataset, None).await?,
        Access::Write(spa) => match find(spa, &dataset, name).await? {
            Found::Frozen(hold) => frozen(pool, &dataset, Some(hold)).await?,
            Found::Head(head, properties) => {
                let live = LiveVolume::open(head.objset(), head.log(properties.sync)).await.raised()?;
                live.replay().await.raised()?;
                live.obey(properties);
                State::Live(live)
            }
        },
    };
    let inner = Arc::new(Inner { name: name.to_owned(), state });
    open.insert(dataset.object, Open::Volume(inner.clone()));
    Ok(Volume { inner })
}

/// Finds a volume between two changes of the pool, and takes a head to be changed, where that can be.
async fn find(spa: &cenote_spa::Pool, dataset: &Dataset, name: &str) -> Result<Found, Error> {
    let (pool, wanted, name) = (spa.clone(), dataset.clone(), name.to_owned());
    let found = spa.look(move |syncer| {
        Box::pin(async move {
            let dsl = syncer.dsl().clone();
            let dataset = same_dataset(&dsl, &wanted, &name).await?;
            if dataset.is_snapshot() {
                return Ok(Found::Frozen(syncer.long_hold(dataset.object)));
            }
            let properties = properties(&dsl, &dataset.dir).await?;
            let head = match syncer.open_head(&name).await {
                Ok(head) => head,
                // It can be read all the same.
                Err(error) if error.is_unsupported() => return Ok(Found::Frozen(syncer.long_hold(dataset.object))),
                Err(error) => return Err(error.into()),
            };
            Ok(Found::Head(pool.adopt(syncer, &name, head, User::Library).await?, properties))
        })
    });
    found.await.map_err(|Raised(error)| error)
}

/// The properties that a volume obeys, inherited ones too.
pub(crate) async fn properties(dsl: &Dsl, dir: &Dir) -> Result<VolumeProperties, DslError> {
    let found = dsl.properties(dir, |name| VolumeProperties::NAMES.contains(&name)).await?;
    Ok(VolumeProperties::of(|name| found.get(name).and_then(|found| found.value.number())))
}

impl Inner {
    /// Obeys changed properties from the next call on.
    pub(crate) fn obey(&self, properties: VolumeProperties) {
        if let State::Live(live) = &self.state {
            live.obey(properties);
        }
    }
}

async fn frozen(pool: &Pool, dataset: &Dataset, hold: Option<LongHold>) -> Result<State, Error> {
    let objset = frozen_objset(pool, dataset).await?;
    let volume = cenote_zvol::Volume::open(&objset).await.raised()?;
    Ok(State::Frozen { volume, _hold: hold })
}

impl Volume {
    /// The name of the dataset or snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    fn volume(&self) -> &cenote_zvol::Volume {
        match &self.inner.state {
            State::Live(live) => live.volume(),
            State::Frozen { volume, .. } => volume,
        }
    }

    fn live(&self) -> Result<&LiveVolume, Error> {
        match &self.inner.state {
            State::Live(live) => Ok(live),
            State::Frozen { .. } => Err(self.error(LiveVolumeError::ReadOnly)),
        }
    }

    fn error(&self, error: LiveVolumeError) -> Error {
        error.raise().of_dataset(&self.inner.name)
    }

    /// True if nothing can be changed: a snapshot, a pool that is open read-only, a volume with `readonly=on`.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        match &self.inner.state {
            State::Live(live) => live.is_read_only(),
            State::Frozen { .. } => true,
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.volume().size_bytes()
    }

    /// The size of its blocks in bytes: writes of whole blocks read nothing.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.volume().block_size_bytes()
    }

    /// So many bytes at an offset.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse) (they do not lie within it); or they cannot be read: [`Error::place`] says which block, where.
    pub async fn read_at(&self, offset_bytes: u64, len: usize) -> Result<Bytes, Error> {
        let (end, size_bytes) = (offset_bytes.saturating_add(len as u64), self.size_bytes());
        if end > size_bytes {
            let error = VolumeError::BeyondEnd { bytes: offset_bytes..end, size_bytes };
            return Err(self.error(error.into()));
        }
        let read = async |at, len| {
            self.volume().read(at, len).await.map_err(|error| self.error(VolumeError::from(error).into()))
        };
        let read = Bytes::gather(offset_bytes, len, read).await?;
        if let State::Live(live) = &self.inner.state {
            live.count_read(read.len() as u64);
        }
        Ok(read)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// [`Misuse`](crate::ErrorKind::Misuse) (they do not lie within it), [`NoSpace`](crate::ErrorKind::NoSpace),
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly).
    pub async fn write_at(&self, offset_bytes: u64, content: impl AsRef<[u8]>) -> Result<(), Error> {
        let live = self.live()?;
        live.write(offset_bytes, content.as_ref()).await.map_err(|error| self.error(error))?;
        live.commit_if_sync(false).await.map_err(|error| self.error(error))
    }

    /// Frees a range, which reads as zeros then. Parts of blocks at its ends stay as they are.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn trim(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Error> {
        let live = self.live()?;
        live.clear(offset_bytes, len_bytes, Clear::Discarded).await.map_err(|error| self.error(error))?;
        live.commit_if_sync(false).await.map_err(|error| self.error(error))
    }

    /// Waits until all that was written is on disk, in the intent log at least. With the property `sync=disabled` it does not wait.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn flush(&self) -> Result<(), Error> {
        match &self.inner.state {
            State::Live(live) => live.flush().await.map_err(|error| self.error(error)),
            State::Frozen { .. } => Ok(()),
        }
    }
}
