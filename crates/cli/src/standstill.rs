//! A dataset that its users in this process wait for, while it becomes another state of itself.

use anyhow::Result;
use cenote_fuse::Still;
use cenote_server::{ServedPool, StillVolume};
use cenote_spa::Pool;

/// A dataset that stands still, where somebody uses it. Dropped, it goes on.
#[derive(Default)]
pub(crate) struct Standstill {
    mounts: Vec<Still>,
    volume: Option<StillVolume>,
}

impl Standstill {
    /// Of a pool of this process.
    pub(crate) async fn begin(of: &ServedPool, dataset: &str) -> Result<Self> {
        let volume = of.volumes.lock().await.stand_still(&of.volumes, dataset).await?;
        Ok(Self { mounts: of.mounts.stand_still(dataset).await, volume })
    }

    /// Finds out what mounts have to have forgotten once the dataset is as a snapshot of it.
    pub(crate) async fn note_changes(&mut self, pool: &Pool, dataset: &str, snapshot: &str) -> Result<()> {
        if self.mounts.is_empty() {
            return Ok(());
        }
        // As it is on disk is as it is: nobody changes it.
        pool.sync().await?;
        let dsl = pool.dsl()?;
        let (head, snapshot) = (dsl.dataset(dataset).await?, dsl.dataset(snapshot).await?);
        for mount in &mut self.mounts {
            mount.note_changes(&head, &snapshot).await?;
        }
        Ok(())
    }

    /// Goes on, with what the dataset is now.
    pub(crate) async fn go_on(self) -> Result<()> {
        let mut result = Ok(());
        if let Some(volume) = self.volume {
            result = volume.go_on().await.map_err(Into::into);
        }
        for mount in self.mounts {
            let went_on = mount.go_on().await;
            result = result.and(went_on.map_err(Into::into));
        }
        result
    }
}
