//! Importing pools: finding them, opening them once as a test, and recording them in the cache file, where other commands find them.
//!
//! Opening a pool only reads it: its devices do not change, except for a destroyed pool, whose labels are corrected at once. So an import never
//! competes with another system's. But reads of a pool that changes meanwhile need not be consistent, which is why `-f` is still required.

use std::path::PathBuf;

use cenote_admin::Line;
use cenote_dsl::name::check_new_pool;
use cenote_format::ids::Txg;
use cenote_host::{CacheFile, CacheSetting, Entry, Holder, all_device_paths, device_paths, holder};
use cenote_spa::{FoundPool, PoolState, Rewind, SpaError, View, find};
use cenote_taskq::boxed;

use crate::error::{Result, ServerError, refused};
use crate::session::{config_here, server_of};
use crate::writing::{revive, rewind};
use crate::{Found, Session, choose, protocol};

/// The options of an import, in addition to those of the session.
#[derive(Clone, Debug, Default)]
pub struct ImportRequest {
    /// The pool was destroyed.
    pub destroyed: bool,
    /// Log devices may be missing.
    pub missing_log: bool,
    /// Take it back to its checkpoint; one that is read-only is only opened as of that.
    pub at_checkpoint: bool,
    /// Mount points are below this folder.
    pub altroot: Option<String>,
    /// Its name here.
    pub new_name: Option<String>,
    /// The root to open; the session's choice if none.
    pub rewind: Option<Rewind>,
    /// Only test if it can be opened.
    pub is_dry: bool,
    /// It is never written while it is imported.
    pub is_read_only: bool,
    /// The setting of the file to record it in.
    pub cachefile: CacheSetting,
}

/// The root of this txg, or the newest before it.
pub const fn rewind_to(txg: u64) -> Rewind {
    Rewind::ToTxg(Txg(txg))
}

impl Found {
    /// Keeps only destroyed pools, or only others.
    #[must_use]
    pub fn of_state(mut self, destroyed: bool) -> Self {
        self.pools.retain(|pool| (pool.state() == PoolState::Destroyed) == destroyed);
        self
    }
}

impl Session {
    /// The one found pool with this name or guid. Refuses one that is imported already, under any name, and a new name that is not valid.
    ///
    /// # Errors
    /// The refusals above; or there is no such pool, with hints.
    #[boxed]
    pub async fn choose_import(&self, found: Found, name: &str, new_name: Option<&str>) -> Result<FoundPool> {
        if let Some(new_name) = new_name {
            check_new_pool(new_name).map_err(|reason| refused(format!("cannot import '{new_name}': {reason}")))?;
        }
        let noted = CacheFile::of_user()?.pools()?;
        let target = new_name.unwrap_or(name);
        let is_noted = noted.contains_key(target) || noted.values().any(|entry| target.parse() == Ok(entry.guid));
        let hints = found.hints(self.handle()).await;
        let none = SpaError::NoSuchPool(name.to_owned());
        let found = choose(found.pools, name).map_err(|error| match error {
            ServerError::NoSuchPool(_) if hints.is_empty() => none.into(),
            ServerError::NoSuchPool(_) => refused(format!("{none}\n{}", hints.join("\n"))),
            error => error,
        })?;
        if is_noted {
            return Err(refused(format!(
                "cannot import '{name}': a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it \
                 a new name"
            )));
        }
        if let Some((other, _)) = noted.iter().find(|(_, entry)| entry.guid == found.guid.0) {
            return Err(refused(format!(
                "cannot import '{name}': it is imported already, as '{other}'\nuse 'zpool export {other}' first"
            )));
        }
        Ok(found)
    }

    /// Refuses a pool that a process of this system has: it must not be imported as well.
    fn check_unused_here(found: &FoundPool) -> Result<()> {
        let devices = device_paths(found)?;
        let holder = match server_of(found) {
            Some((_, who)) if who.is_ending => return Ok(()),
            Some((_, who)) => Some(Holder { pid: Some(who.pid) }),
            None => holder::of(devices.iter().map(PathBuf::as_path)),
        };
        match holder {
            None => Ok(()),
            Some(holder) => {
                let pool = found.name();
                let what = format!(
                    "cannot import '{pool}': pool is in use on this system by {holder}; commands find it as '{pool}'"
                );
                Err(refused(format!("{what}\n'zpool export {pool}' ends that")))
            }
        }
    }

    /// The found pools that are neither imported nor served, in the order of their names; and the names of imported pools.
    pub fn importable(&self, mut found: Vec<FoundPool>) -> Result<(Vec<FoundPool>, Vec<String>)> {
        let noted = CacheFile::of_user()?.pools()?;
        let served = protocol::servers();
        let is_served = |pool: &FoundPool| served.iter().any(|(_, who)| who.guid == pool.guid.0);
        found.retain(|pool| !noted.values().any(|entry| entry.guid == pool.guid.0) && !is_served(pool));
        found.sort_by(|a, b| (a.name(), a.guid).cmp(&(b.name(), b.guid)));
        Ok((found, noted.into_keys().collect()))
    }

    /// Imports a pool: opens it, with the session's keys, and records it.
    ///
    /// # Errors
    /// It cannot be opened, a key is wrong, or the cache file cannot be written.
    #[boxed]
    pub async fn import_noted(&self, found: FoundPool, request: &ImportRequest) -> Result<View> {
        Self::check_unused_here(&found)?;
        let mut options = self.import_options();
        options.destroyed = request.destroyed;
        options.missing_log |= request.missing_log;
        options.checkpoint |= request.at_checkpoint;
        options.altroot.clone_from(&request.altroot);
        options.new_name.clone_from(&request.new_name);
        if let Some(root) = options.altroot.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(refused(format!("cannot import '{}': bad alternate root '{root}'", found.name())));
        }
        options.rewind = request.rewind.unwrap_or(options.rewind);
        let own_name = found.name().to_owned();
        if !request.is_dry {
            CacheFile::of_user()?.check_writable()?;
            request.cachefile.check_writable()?;
        }
        let mut entry = Entry {
            guid: found.guid.0,
            force: options.force,
            destroyed: options.destroyed,
            missing_log: options.missing_log,
            altroot: options.altroot.clone(),
            rewind: match options.rewind {
                Rewind::None => None,
                Rewind::Recent => Some("recent".into()),
                Rewind::Extreme => Some("extreme".into()),
                Rewind::ToTxg(txg) => Some(txg.0.to_string()),
            },
            checkpoint: options.checkpoint,
            own_name: request.new_name.is_some().then_some(own_name),
            readonly: request.is_read_only,
            ..Entry::default()
        }
        .kept_in(&request.cachefile);
        let mut pool = self.import(found.clone(), &options).await?;
        self.load_keys(&pool).await?;
        entry.paths = all_device_paths(&pool).await?;
        if request.destroyed && !request.is_dry && !request.is_read_only {
            let name = pool.name().to_owned();
            // Its devices are opened for writing next.
            pool.close().await;
            drop(pool);
            let line = Line::new("zpool import").words(["-D", found.name()]).words(&request.new_name);
            match revive(self, found.clone(), &options, &line).await {
                Ok(()) => (entry.destroyed, options.destroyed) = (false, false),
                Err(error) => self.warn(format!(
                    "pool '{name}' is imported, but its devices still say that it is destroyed, and other systems take them without a \
                     question: {}",
                    error.chain()
                )),
            }
            let (found_now, _) = find(self.handle(), &entry.paths).await;
            let again = found_now.into_iter().find(|now| now.guid == found.guid).unwrap_or_else(|| found.clone());
            pool = self.import(again, &options).await?;
            self.load_keys(&pool).await?;
        }
        if options.checkpoint && !request.is_dry && !request.is_read_only {
            // Its devices are opened for writing next.
            pool.close().await;
            drop(pool);
            let line = Line::new("zpool import --rewind-to-checkpoint").word(found.name()).words(&request.new_name);
            rewind(self, found.clone(), &options, &line).await?;
            (entry.checkpoint, options.checkpoint) = (false, false);
            let (found_now, _) = find(self.handle(), &entry.paths).await;
            let again = found_now.into_iter().find(|now| now.guid == found.guid).unwrap_or_else(|| found.clone());
            pool = self.import(again, &options).await?;
            self.load_keys(&pool).await?;
        }
        // This record makes it imported.
        if !request.is_dry {
            CacheFile::of_user()?.update(|pools| {
                pools.insert(pool.name().to_owned(), entry);
                Ok::<_, ServerError>(())
            })?;
            CacheFile::of_user()?.keep_config(pool.guid(), &config_here(&pool))?;
        }
        Ok(pool)
    }
}
