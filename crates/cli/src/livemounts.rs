//! The datasets of a pool that are mounted to be changed.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use cenote_fuse::{MountHandle, MountOptions, Tree, remount};
use cenote_taskq::sync::Mutex;
use cenote_zpl::Forbidden;

use crate::datasets::{Mounted, Mounts};

/// Properties that a mount obeys as they were when it was mounted.
const OBEYED_WHEN_MOUNTED: [&str; 2] = ["acltype", "sync"];

/// A dataset that is mounted to be changed.
#[derive(Clone)]
struct LiveMount {
    /// Its number among the mounts that are listed.
    id: u64,
    /// As the mount table has it.
    dataset: String,
    at: PathBuf,
    tree: Tree,
    /// As they were asked for.
    options: MountOptions,
    forbidden: Forbidden,
}

/// The datasets that are mounted to be changed.
#[derive(Default)]
pub(crate) struct LiveMounts(Mutex<Vec<LiveMount>>);

/// A dataset's mount, which is one of [`LiveMounts`] until this is dropped: a later mount at its mount point is not the pool's to
/// change, and its dataset is not busy any more.
pub(crate) struct Listed {
    mount: MountHandle,
    mounts: Arc<LiveMounts>,
    id: u64,
}

impl Deref for Listed {
    type Target = MountHandle;

    fn deref(&self) -> &MountHandle {
        &self.mount
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.mounts.0.lock().retain(|mount| mount.id != self.id);
    }
}

impl LiveMounts {
    /// Lists a mount.
    pub(crate) fn list(self: Arc<Self>, mount: MountHandle, tree: Tree, options: MountOptions) -> Listed {
        let (dataset, at, forbidden) = (tree.dataset(), mount.mountpoint().to_owned(), tree.forbidden());
        let id = {
            let mut all = self.0.lock();
            let id = all.last().map_or(0, |last| last.id + 1);
            all.push(LiveMount { id, dataset, at, tree, options, forbidden });
            id
        };
        Listed { mount, mounts: self, id }
    }

    /// Datasets and where they are mounted, in the order of mounting.
    pub(crate) fn all(&self) -> Vec<(String, PathBuf)> {
        self.0.lock().iter().map(|mount| (mount.dataset.clone(), mount.at.clone())).collect()
    }

    /// Has datasets and those below them leave the mounts that show them nested in others. One that somebody uses there, or that is
    /// mounted by itself, comes back. [`Self::refresh`] brings back those that are there still.
    pub(crate) async fn release(&self, datasets: &[String]) -> Result<Option<String>> {
        let mounts = self.0.lock().clone();
        for mount in mounts {
            if let Some(busy) = mount.tree.release_datasets(datasets).await? {
                return Ok(Some(busy));
            }
        }
        Ok(None)
    }

    /// Has mounts show datasets as they are now, which were just made, destroyed, renamed or set, and obey their properties, of which those
    /// called `changed` were just changed. Returns a sentence for each property that a mount obeys only later.
    pub(crate) async fn refresh(&self, datasets: &[String], changed: &[String]) -> Vec<String> {
        let mounts = self.0.lock().clone();
        let mut later = Vec::new();
        for mount in mounts {
            let at = mount.at.display();
            if let Err(error) = mount.tree.refresh(datasets).await {
                later.push(format!("'{}' is mounted at {at}, where all is as before: {error}", mount.dataset));
                continue;
            }
            let forbidden = mount.tree.forbidden();
            let dataset = &mount.dataset;
            for property in changed.iter().filter(|name| OBEYED_WHEN_MOUNTED.contains(&name.as_str())) {
                later
                    .push(format!("'{dataset}' is mounted at {at}: '{property}' takes effect there at the next mount"));
            }
            // The mount may have ended a moment ago, and another one be there.
            let is_there = |there: &Mounted| there.dataset == *dataset && there.at == mount.at;
            if forbidden == mount.forbidden || !Mounts::read().ours().any(is_there) {
                continue;
            }
            match remount(&mount.at, &mount.options.without(forbidden), forbidden.write) {
                Ok(()) => {
                    let mut all = self.0.lock();
                    let same = all.iter_mut().find(|other| other.id == mount.id);
                    same.into_iter().for_each(|same| same.forbidden = forbidden);
                }
                Err(error) => later.push(format!(
                    "'{dataset}' is mounted at {at}: what was set takes effect there at the next mount: the kernel refuses it now \
                     ({error})"
                )),
            }
        }
        later
    }
}
