//! The datasets of a pool that are mounted to be changed.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use cenote_dsl::{Dir, Dsl};
use cenote_fuse::{LiveServer, MountHandle, MountOptions, remount};
use cenote_spa::{FileSizes, Pool, Syncer};
use cenote_taskq::sync::Mutex;
use cenote_zpl::{Forbidden, Properties};

use crate::datasets::{Mounted, Mounts};

/// Properties that a mount obeys as they were when it was mounted.
const OBEYED_WHEN_MOUNTED: [&str; 2] = ["acltype", "sync"];

/// A dataset that is mounted to be changed.
#[derive(Clone)]
struct LiveMount {
    /// Its number among the mounts that are listed.
    id: u64,
    dataset: String,
    at: PathBuf,
    server: LiveServer,
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
    pub(crate) fn list(
        self: Arc<Self>,
        mount: MountHandle,
        dataset: &str,
        server: LiveServer,
        options: MountOptions,
        forbidden: Forbidden,
    ) -> Listed {
        let (dataset, at) = (dataset.to_owned(), mount.mountpoint().to_owned());
        let id = {
            let mut all = self.0.lock();
            let id = all.last().map_or(0, |last| last.id + 1);
            all.push(LiveMount { id, dataset, at, server, options, forbidden });
            id
        };
        Listed { mount, mounts: self, id }
    }

    /// Datasets and where they are mounted, in the order of mounting.
    pub(crate) fn all(&self) -> Vec<(String, PathBuf)> {
        self.0.lock().iter().map(|mount| (mount.dataset.clone(), mount.at.clone())).collect()
    }

    /// Has mounts obey the properties of their datasets as they are now, of which those called `changed` were just changed. Returns a
    /// sentence for each property that a mount obeys only later.
    pub(crate) async fn refresh(&self, pool: &Pool, changed: &[String]) -> Vec<String> {
        let mounts = self.0.lock().clone();
        let mut later = Vec::new();
        for mount in mounts {
            let (name, at) = (mount.dataset.clone(), mount.at.display());
            let reading = pool.look(move |writer| Box::pin(async move { read_wanted(writer, &name).await }));
            // One that has another name now, or is gone, is served as it was.
            let Ok(properties) = reading.await else { continue };
            let forbidden = properties.forbidden;
            mount.server.set_options(mount.options.over(properties));
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

/// Where the sync looks at the pool.
async fn read_wanted(writer: &mut Syncer, name: &str) -> Result<Properties> {
    let view = writer.dsl().clone();
    let dataset = view.dataset(name).await?;
    wanted(writer, &view, &dataset.dir).await
}

/// How properties want a file system served, in sizes that the pool's features allow.
pub(crate) async fn wanted(writer: &Syncer, view: &Dsl, dir: &Dir) -> Result<Properties> {
    let mut properties = Properties::read(view, dir).await?;
    let FileSizes { record_bytes, dnode_slots } = writer.file_sizes(view, dir).await?;
    (properties.files.record_bytes, properties.files.dnode_slots) = (record_bytes, dnode_slots);
    Ok(properties)
}
