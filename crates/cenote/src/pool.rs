//! Pools.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cenote_admin::Owner;
use cenote_dmu::tx::TxTunables;
use cenote_dsl::{Dsl, Secret};
use cenote_format::ids::{Guid, ObjectId};
use cenote_host::owners;
use cenote_inuse::Source;
use cenote_spa::View;
use cenote_taskq::{AsyncMutex, BoxFuture};

use crate::error::{Error, ErrorKind, Place};
use crate::open::Open;
use crate::raise::{Raise as _, Raised};

/// The engine's handle.
pub(crate) enum Access {
    Read(View),
    Write(cenote_spa::Pool),
}

/// The owner of root directories that this process makes. Root's belong to root.
pub(crate) fn maker() -> Owner {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() { Owner::ROOT } else { Owner { uid: uid.as_raw(), gid: gid.as_raw() } }
}

pub(crate) struct Inner {
    pub(crate) access: Access,
    guid: Guid,
    /// A note says that this process has it.
    is_noted: bool,
    pub(crate) open: AsyncMutex<BTreeMap<ObjectId, Open>>,
}

/// A pool that is open. Cheap to clone.
///
/// A pool that was opened to be changed is written in the background, as a kernel does it: what was changed is on disk a few seconds
/// later, or when [`sync`](Self::sync), [`FileSystem::sync`](crate::FileSystem::sync) or [`File::sync`](crate::File::sync) has returned. [`export`](Self::export)
/// writes everything and lets the pool go. Where the last handle is dropped without it, what is not on disk is lost, as in a crash, and
/// the pool is whole as of its last txg.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(access: Access, guid: Guid, is_noted: bool) -> Self {
        Self { inner: Arc::new(Inner { access, guid, is_noted, open: AsyncMutex::default() }) }
    }

    /// Has an opened pool written in the background from now on, and says so on disk.
    pub(crate) async fn begin(
        pool: cenote_spa::Pool,
        tunables: TxTunables,
        guid: Guid,
        is_noted: bool,
    ) -> Result<Self, Error> {
        pool.hold().await.raised()?;
        let pool = pool.start(tunables).await;
        cenote_scan::attend(&pool);
        pool.take_spares();
        pool.sync().await.raised()?;
        Ok(Self::new(Access::Write(pool), guid, is_noted))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.inner.access {
            Access::Read(view) => view.name(),
            Access::Write(pool) => pool.name(),
        }
    }

    /// The owner of root directories that are made in it.
    pub(crate) fn owner(&self) -> Owner {
        // A simulated machine has no other user than root.
        if self.inner.is_noted { maker() } else { Owner::ROOT }
    }

    /// Its guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.inner.guid.0
    }

    /// True unless it is open to be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.inner.access, Access::Read(_))
    }

    /// The last txg that is on disk; of a pool that is open read-only, the one that it is read as of.
    #[must_use]
    pub fn txg(&self) -> u64 {
        match &self.inner.access {
            Access::Read(view) => view.txg().0,
            Access::Write(pool) => pool.txgs().synced_txg().0,
        }
    }

    /// Notes about its opening, each a sentence.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.inner.access {
            Access::Read(view) => view.notes(),
            Access::Write(pool) => pool.notes(),
        }
    }

    /// Gives the key of an encrypted dataset, which opens all datasets that share it.
    ///
    /// # Errors
    /// [`Key`](ErrorKind::Key): it is not the dataset's.
    pub async fn load_key(&self, dataset: &str, key: &[u8]) -> Result<(), Error> {
        let (dataset, key) = (dataset.to_owned(), Secret::new(key.to_vec()));
        self.look(move |dsl| Box::pin(async move { Ok(dsl.load_key(&dataset, key).await.map(drop)?) })).await
    }

    pub(crate) fn source(&self) -> Source<'_> {
        match &self.inner.access {
            Access::Read(view) => Source::View(view),
            Access::Write(pool) => Source::Pool(pool),
        }
    }

    /// A dataset or snapshot that is open, or is opened now: as a volume, or as a file system.
    pub(crate) async fn opened(&self, name: &str, is_volume: bool) -> Result<Open, Error> {
        let mut open = self.inner.open.lock().await;
        self.opened_in(&mut open, name, is_volume).await
    }

    /// The same, of the table of what is open.
    pub(crate) async fn opened_in(
        &self,
        open: &mut BTreeMap<ObjectId, Open>,
        name: &str,
        is_volume: bool,
    ) -> Result<Open, Error> {
        let opened = async {
            let whole = name.to_owned();
            let found = self.look(move |dsl| Box::pin(async move { Ok(dsl.dataset(&whole).await?) }));
            let dataset = found.await?;
            if let Some(open) = open.get(&dataset.object).filter(|open| !open.is_lost()) {
                return Ok(open.clone());
            }
            let opened = Open::new(self.source(), &dataset, is_volume).await?;
            open.insert(dataset.object, opened.clone());
            Ok(opened)
        };
        opened.await.map_err(|error: Error| error.of_dataset(name))
    }

    /// Waits until all that was changed is on disk. Of a pool that is open read-only nothing was.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self) -> Result<(), Error> {
        match &self.inner.access {
            Access::Read(_) => Ok(()),
            Access::Write(pool) => pool.sync().await.map(drop).raised(),
        }
    }

    /// Writes everything, marks the pool as exported and lets go of its devices. Handles of what was open in it are of no use any
    /// more; where some are left, the devices are kept from others until the last of them is dropped. A pool that is open read-only is
    /// let go.
    ///
    /// # Errors
    /// Something could not be written: on disk the pool is as of its last txg.
    pub async fn export(self) -> Result<(), Error> {
        let open = std::mem::take(&mut *self.inner.open.lock().await);
        for (_, open) in open {
            open.close().await;
        }
        match &self.inner.access {
            Access::Read(view) => view.close().await,
            Access::Write(pool) => {
                pool.clone().export().await.raised()?;
                if self.inner.is_noted {
                    owners::ended(self.inner.guid);
                }
            }
        }
        Ok(())
    }

    /// Looks at the datasets. Of a pool that is written, between two txgs or changes: while one is made its newest blocks are on their way
    /// to devices.
    pub(crate) async fn look<T, F>(&self, look: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a Dsl) -> BoxFuture<'a, Result<T, Raised>> + Send + 'static,
    {
        let seen = match &self.inner.access {
            Access::Read(view) => look(view.dsl()).await,
            Access::Write(pool) => {
                pool.look(move |syncer| {
                    Box::pin(async move {
                        let dsl = syncer.dsl().clone();
                        look(&dsl).await
                    })
                })
                .await
            }
        };
        seen.map_err(|Raised(error)| error)
    }

    /// The engine's handle of a pool that is open to be changed.
    pub(crate) fn writable(&self) -> Result<&cenote_spa::Pool, Error> {
        match &self.inner.access {
            Access::Write(pool) => Ok(pool),
            Access::Read(_) => {
                let place = Place { pool: Some(self.name().to_owned()), ..Place::default() };
                Err(Error::new(ErrorKind::ReadOnly, place, format!("pool '{}' is open read-only", self.name())))
            }
        }
    }
}
