//! A dataset that is suspended for a rollback or the end of a receive: its users in this process wait until it resumes.

use cenote_fuse::SuspendedFs;
use cenote_spa::Pool;
use cenote_taskq::boxed;

use crate::error::Result;
use crate::{ServedPool, SuspendedVolume};

/// A suspended dataset: its mounts and its volume, if they are in use. Dropping this resumes them.
#[derive(Default)]
pub(crate) struct SuspendedDataset {
    mounts: Vec<SuspendedFs>,
    volume: Option<SuspendedVolume>,
}

impl SuspendedDataset {
    /// Suspends a dataset of a pool that this process serves.
    #[boxed]
    pub(crate) async fn begin(of: &ServedPool, dataset: &str) -> Result<Self> {
        let volume = of.volumes.lock().await.suspend(dataset).await?;
        Ok(Self { mounts: of.mounts.suspend(dataset).await, volume })
    }

    /// Compares the dataset with the snapshot or dataset `other`, to find what the kernel must forget when it takes on the state of that.
    #[boxed]
    pub(crate) async fn note_changes(&mut self, pool: &Pool, dataset: &str, other: &str) -> Result<()> {
        if self.mounts.is_empty() {
            return Ok(());
        }
        // The comparison reads the state on disk. The dataset does not change now, so after a sync that is its current state.
        pool.sync().await?;
        let dsl = pool.dsl()?;
        let (head, other) = (dsl.dataset(dataset).await?, dsl.dataset(other).await?);
        for mount in &mut self.mounts {
            mount.note_changes(&head, &other).await?;
        }
        Ok(())
    }

    /// Resumes the mounts and the volume, with the state that the dataset has now.
    pub(crate) async fn resume(self) -> Result<()> {
        let mut result = Ok(());
        if let Some(volume) = self.volume {
            result = volume.resume().await.map_err(Into::into);
        }
        for mount in self.mounts {
            let resumed = mount.resume().await;
            result = result.and(resumed.map_err(Into::into));
        }
        result
    }
}
