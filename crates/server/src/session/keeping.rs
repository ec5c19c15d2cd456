//! The cache files in which pools' configurations are kept (`cachefile=PATH`): written when a pool is imported or changed.

use std::path::Path;

use cenote_format::ids::Guid;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_host::{CacheFile, CacheSetting, ConfigFile};
use cenote_spa::{FoundPool, View};
use cenote_taskq::boxed;

use super::{Found, Session};
use crate::error::{Result, ServerError, refused};

/// `POOL_STATE_ACTIVE`: after each command the pool itself is exported, but it is imported.
const ACTIVE: u64 = 0;

/// A pool's configuration with the present paths of its devices.
pub(crate) fn config_here(pool: &View) -> NvList {
    let mut config = pool.config().clone();
    set(&mut config, "state", ACTIVE);
    if let Some(tree) = config.list("vdev_tree").cloned() {
        set(&mut config, "vdev_tree", NvValue::Nvlist(with_paths(tree, pool.found())));
    }
    config
}

fn set(list: &mut NvList, name: &str, value: impl Into<NvValue>) {
    list.remove(name);
    list.push(name, value);
}

fn with_paths(mut vdev: NvList, found: &FoundPool) -> NvList {
    let leaf = vdev.u64("guid").and_then(|guid| found.leaves.get(&Guid(guid)));
    let here = leaf.and_then(|leaf| std::path::absolute(leaf.disk.device().path()).ok());
    if let Some(path) = here.as_deref().and_then(Path::to_str) {
        set(&mut vdev, "path", path);
    }
    if let Some(children) = vdev.lists("children") {
        let children = children.iter().map(|child| with_paths(child.clone(), found)).collect();
        set(&mut vdev, "children", NvValue::NvlistArray(children));
    }
    vdev
}

impl Session {
    /// Updates the file that a pool's `cachefile` names, if any, with the pool's present configuration.
    ///
    /// # Errors
    /// The pool cannot be read, or the file cannot be written.
    #[boxed]
    pub async fn keep_config(&self, guid: Guid) -> Result<()> {
        let noted = self.noted(guid).filter(|(_, entry)| entry.cachefile.is_some());
        let Some((name, _)) = noted else { return Ok(()) };
        // Read it as of the last txg.
        self.let_go_of_views();
        let config = config_here(&self.read_here(&name).await?);
        self.let_go_of_views();
        Ok(CacheFile::of_user()?.keep_config(guid, &config)?)
    }

    /// The pool of this process; or any other, without asking a server for its state in memory.
    async fn read_here(&self, name: &str) -> Result<View> {
        if let Some(served) = &self.served {
            return self.viewed(served).await;
        }
        let (found, options) = self.locate(name).await?;
        Ok(self.import(found, &options).await?)
    }

    /// The pools that a file names, at their present places.
    ///
    /// # Errors
    /// It cannot be read, or is not such a file.
    #[boxed]
    pub async fn search_listed(&self, file: &Path) -> Result<Found> {
        let listed = ConfigFile::at(file).pools();
        let listed = listed.map_err(|error| refused(format!("cannot open cache file: {error}")))?;
        let mut there = self.clone();
        // If all of them have moved, they may be in the usual places.
        there.options.paths =
            listed.iter().flat_map(|pool| &pool.paths).filter(|path| path.exists()).cloned().collect();
        let mut found = there.search_pools().await?;
        found.pools.retain(|found| listed.iter().any(|pool| pool.guid == found.guid));
        Ok(found)
    }

    /// Sets the property `cachefile` of an imported pool.
    ///
    /// # Errors
    /// It cannot have the value, the pool is not imported, or a file cannot be written.
    #[boxed]
    pub async fn set_cachefile(&self, name: &str, value: &str) -> Result<()> {
        let setting = CacheSetting::parse(value);
        let setting = setting.map_err(|error| refused(format!("cannot set property for '{name}': {error}")))?;
        setting.check_writable()?;
        self.check_served(name)?;
        let guid = match &self.served {
            Some(served) => served.of.pool.guid(),
            None => {
                let (found, _) = self.locate(name).await?;
                // A server changes its own list.
                self.check_server(&found)?;
                found.guid
            }
        };
        CacheFile::of_user()?.update(|pools| {
            let Some(entry) = pools.values_mut().find(|entry| entry.guid == guid.0) else {
                return Err(refused(format!(
                    "cannot set property for '{name}': it is not imported: 'zpool import {name}' notes it in the list of imported pools"
                )));
            };
            *entry = std::mem::take(entry).kept_in(&setting);
            Ok::<_, ServerError>(())
        })?;
        self.keep_config(guid).await
    }
}
