//! The users of a pool's datasets in this program, as a verb meets them: whatever is open.

use std::collections::BTreeMap;

use cenote_admin::{AdminError, Changed, Going, Suspended, Users, Verb, Volumes};
use cenote_format::ids::ObjectId;
use cenote_taskq::{AsyncMutexGuard, boxed};

use crate::dataset::Reach;
use crate::error::Error;
use crate::filesystem;
use crate::open::{Open, SuspendedOpen};
use crate::pool::Pool;
use crate::raise::Lower as _;

impl Users for Pool {
    #[boxed]
    async fn before(&self, going: Going<'_>) -> Result<(), AdminError> {
        // Handles go on under another name, and see another size.
        if matches!(going.verb, Verb::Rename | Verb::SetProperty) {
            return Ok(());
        }
        let reach = if going.is_recursive { Reach::AllBelow } else { Reach::Itself };
        for name in going.names {
            self.let_go(name, reach, "it cannot be destroyed").await.map_err(AdminError::of_users)?;
        }
        Ok(())
    }

    #[boxed]
    async fn suspend(&self, dataset: &str, _: &str) -> Result<Box<dyn Suspended>, AdminError> {
        let suspended = self.suspended(dataset).await.map_err(AdminError::of_users)?;
        Ok(Box::new(Here(suspended)) as Box<dyn Suspended>)
    }

    #[boxed]
    async fn after(&self, _: Changed<'_>) -> Result<(), AdminError> {
        // A dataset that was renamed or received may inherit other properties now.
        filesystem::refresh(self).await.map_err(AdminError::of_users)
    }

    #[boxed]
    async fn volumes(&self) -> Option<Box<dyn Volumes + '_>> {
        Some(Box::new(Locked { pool: self, open: self.inner.open.lock().await }) as Box<dyn Volumes + '_>)
    }
}

/// A dataset that waits, if it is open here.
struct Here(Option<SuspendedOpen>);

impl Suspended for Here {
    #[boxed]
    async fn resume(self: Box<Self>) -> Result<(), AdminError> {
        match self.0 {
            Some(open) => open.resume().await.map_err(AdminError::of_users),
            None => Ok(()),
        }
    }
}

/// Exclusive access to what is open.
struct Locked<'a> {
    pool: &'a Pool,
    open: AsyncMutexGuard<'a, BTreeMap<ObjectId, Open>>,
}

impl Volumes for Locked<'_> {
    #[boxed]
    async fn resize(&mut self, name: &str, size_bytes: u64) -> Result<(), AdminError> {
        self.resized(name, size_bytes).await.map_err(AdminError::of_users)
    }
}

impl Locked<'_> {
    async fn resized(&mut self, name: &str, size_bytes: u64) -> Result<(), Error> {
        let no_volume = || Error::misuse(format!("'{name}' is no volume that can be written")).of_dataset(name);
        let Open::Disk(disk) = self.pool.opened_in(&mut self.open, name, true).await? else { return Err(no_volume()) };
        let opened = disk.enter().await?;
        let live = opened.live().ok_or_else(no_volume)?;
        live.resize(size_bytes).await.map(drop).map_err(|error| error.raise().of_dataset(name))
    }
}

impl Pool {
    /// Suspends what is open of a dataset that is about to change under its handles.
    async fn suspended(&self, dataset: &str) -> Result<Option<SuspendedOpen>, Error> {
        let name = dataset.to_owned();
        let object = self.look(move |dsl| Box::pin(async move { Ok(dsl.dataset(&name).await?.object) })).await?;
        let open = {
            let mut open = self.inner.open.lock().await;
            Self::close_unused(&mut open).await;
            open.get(&object).cloned()
        };
        Ok(match open {
            Some(open) => open.suspend().await,
            None => None,
        })
    }

    /// Changes the pool by a verb.
    pub(crate) async fn make<R: cenote_admin::Request>(&self, request: &R) -> Result<R::Made, crate::Error> {
        use crate::raise::Raise as _;
        request.run(self.writable()?, self).await.raised()
    }
}
