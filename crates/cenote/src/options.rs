//! Finding pools and opening them.

use std::fmt;
use std::path::{Path, PathBuf};

use cenote_dmu::tx::TxTunables;
use cenote_format::ids::Txg;
use cenote_host::{CacheFile, Holder, HostError, device_paths, holder, owners};
use cenote_kstat::Settings;
use cenote_spa::{Clock, Host, ImportOptions, PoolState, Rewind, WriteOptions, import, open, tunables};
use cenote_taskq::Handle;

use crate::error::{Error, ErrorKind, Place};
use crate::pool::{Access, Pool};
use crate::raise::{Lower as _, Raise as _};
use crate::runtime::Runtime;
use crate::setters::setters;

/// The block cache of a pool in a simulation, in bytes.
const SIMULATED_CACHE_BYTES: usize = 64 << 20;

/// The options with which a pool is found and opened: read-only, unless [`write`](Self::write) says otherwise.
///
/// ```no_run
/// use cenote::{Error, OpenOptions, Runtime};
///
/// # fn main() -> Result<(), Error> {
/// let runtime = Runtime::new()?;
/// let options = OpenOptions::new().search("/dev/disk/by-id");
/// for found in runtime.block_on(options.find(&runtime))? {
///     println!("{} ({})", found.name, found.guid);
/// }
/// let pool = runtime.block_on(options.open(&runtime, "tank"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct OpenOptions {
    search: Vec<PathBuf>,
    write: bool,
    force: bool,
    allow_missing: bool,
    rewind: Rewind,
    cache_bytes: Option<usize>,
    tunables: Vec<(String, String)>,
    keys: Vec<(String, Vec<u8>)>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are nobody's business.
        let Self { search, write, force, .. } = self;
        f.debug_struct("OpenOptions").field("search", search).field("write", write).field("force", force).finish()
    }
}

impl OpenOptions {
    /// Read-only, in the usual places.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Looks at this device or image file, or at all in this folder. Several are searched together; without one, the pools that
        /// `zpool import` has noted come first, then `ZPOOL_IMPORT_PATH`, then `/dev`. In a simulation it is all disks.
        search(self, path: impl AsRef<Path>) { self.search.push(path.as_ref().to_owned()); }
        /// Opens the pool to be changed. Its devices are this process's alone until it is exported.
        write(self, write: bool) { self.write = write; }
        /// Opens a pool that was not exported, and may be in use: by another system, or by a process that ended without exporting it
        /// (`zpool import -f`). Devices that somebody of this system has, and pools that are seen being written, are refused all the same
        /// when they are to be changed.
        force(self, force: bool) { self.force = force; }
        /// Goes on where a whole top-level vdev or a log device is missing: blocks that lie there cannot be read.
        allow_missing(self, allow: bool) { self.allow_missing = allow; }
        /// Opens the pool as of this txg, or the newest before it that is still there. Read-only.
        at_txg(self, txg: u64) { self.rewind = Rewind::ToTxg(Txg(txg)); }
        /// Goes back a few txgs where the newest does not hold (`zpool import -F`). Read-only.
        rewind(self) { self.rewind = Rewind::Recent; }
        /// Memory of the block cache in bytes; without this, a quarter of what this process may use.
        cache_bytes(self, bytes: usize) { self.cache_bytes = Some(bytes); }
        /// A tunable with OpenZFS's name, such as `zfs_txg_timeout`.
        tunable(self, name: &str, value: impl fmt::Display) { self.tunables.push((name.to_owned(), value.to_string())); }
        /// The key of an encrypted dataset, in the form of its `keyformat`. It is for all datasets that share the dataset's key.
        key(self, dataset: &str, key: impl Into<Vec<u8>>) { self.keys.push((dataset.to_owned(), key.into())); }
    }

    /// The pools that can be found, in the order of their names.
    ///
    /// # Errors
    /// A path that was named is not there.
    pub async fn find(&self, runtime: &Runtime) -> Result<Vec<FoundPool>, Error> {
        let (pools, _) = cenote_spa::find(&runtime.handle(), &self.paths(runtime).await?).await;
        let mut found: Vec<FoundPool> = pools.iter().map(FoundPool::of).collect();
        found.sort_by(|one, other| (&one.name, one.guid).cmp(&(&other.name, other.guid)));
        Ok(found)
    }

    /// Opens the pool of this name or guid.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound): there is none. [`Busy`](ErrorKind::Busy): somebody has it, or may have it.
    /// [`Unavailable`](ErrorKind::Unavailable): devices are missing that it cannot do without.
    /// [`NotSupported`](ErrorKind::NotSupported): it has a feature that cannot be read or written yet.
    pub async fn open(&self, runtime: &Runtime, name: &str) -> Result<Pool, Error> {
        let handle = runtime.handle();
        let is_simulated = runtime.simulated_disks().is_some();
        let mut how = self.import_options(is_simulated)?;
        let found = self.locate(runtime, name, &mut how).await?;
        let pool = match self.write {
            true => self.open_for_writing(&handle, found, how, is_simulated).await?,
            false => self.open_read_only(&handle, found, how, is_simulated).await?,
        };
        for (dataset, key) in &self.keys {
            pool.load_key(dataset, key).await?;
        }
        Ok(pool)
    }

    async fn open_read_only(
        &self,
        handle: &Handle,
        found: cenote_spa::FoundPool,
        mut how: ImportOptions,
        is_simulated: bool,
    ) -> Result<Pool, Error> {
        if !is_simulated {
            let devices = device_paths(&found).raised()?;
            // A process that has it writes: its changes are not seen, and blocks that it frees may be overwritten while they are read.
            if let Some(user) = holder::of(devices.iter().map(PathBuf::as_path)).filter(|_| !self.force) {
                return Err(in_use(found.name(), &user));
            }
            owners::note_gone_owner(&found, &mut how);
        }
        let guid = found.guid;
        let view = import(handle, found, &how).await.raised()?;
        Ok(Pool::new(Access::Read(view), guid, false))
    }

    async fn open_for_writing(
        &self,
        handle: &Handle,
        found: cenote_spa::FoundPool,
        mut how: ImportOptions,
        is_simulated: bool,
    ) -> Result<Pool, Error> {
        let guid = found.guid;
        let (mut clock, mut host) = (Clock::Now, simulated_host());
        if !is_simulated {
            owners::note_gone_owner(&found, &mut how);
            // Without the note the pool opens with `force` alone after a crash.
            how.owner_mark = owners::begin(&found).ok();
            (clock, host) = (cenote_host::clock().raised()?, cenote_host::host(false));
        }
        let pool = open(handle, found, &how, WriteOptions { clock, host, check: false }).await.raised()?;
        if !is_simulated && !rustix::process::geteuid().is_root() {
            pool.obey_limits().await.raised()?;
        }
        let memory_bytes = how.cache_bytes.saturating_mul(4) as u64;
        Pool::begin(pool, TxTunables::for_memory(memory_bytes).with(&how.tunables), guid, !is_simulated).await
    }

    fn import_options(&self, is_simulated: bool) -> Result<ImportOptions, Error> {
        Ok(ImportOptions {
            force: self.force,
            missing_log: self.allow_missing,
            missing_tops: self.allow_missing,
            rewind: self.rewind,
            host_id: if is_simulated { 0 } else { cenote_host::host_id() },
            cache_bytes: cache_bytes(self.cache_bytes, is_simulated),
            tunables: settings(&self.tunables)?,
            ..ImportOptions::default()
        })
    }

    async fn paths(&self, runtime: &Runtime) -> Result<Vec<PathBuf>, Error> {
        match runtime.simulated_disks() {
            Some(disks) if self.search.is_empty() => Ok(disks),
            Some(_) => Ok(self.search.clone()),
            None => cenote_host::search(&runtime.handle(), &self.search).await.raised(),
        }
    }

    async fn locate(
        &self,
        runtime: &Runtime,
        name: &str,
        how: &mut ImportOptions,
    ) -> Result<cenote_spa::FoundPool, Error> {
        let handle = runtime.handle();
        if self.search.is_empty() && runtime.simulated_disks().is_none() {
            let noted = CacheFile::of_user().and_then(|file| file.pools()).raised()?;
            let is_it = |own: &str, guid: u64| own == name || name.parse() == Ok(guid);
            if let Some((own, entry)) = noted.iter().find(|(own, entry)| is_it(own, entry.guid)) {
                let (pools, _) = cenote_spa::find(&handle, &entry.paths).await;
                if let Some(found) = pools.into_iter().find(|found| found.guid.0 == entry.guid) {
                    entry.apply(own, how).raised()?;
                    if self.write && how.new_name.as_ref().is_some_and(|new| new != found.name()) {
                        let what = "not supported yet: changing a pool that was imported under another name";
                        return Err(Error::new(ErrorKind::NotSupported, pool_place(name), what));
                    }
                    return Ok(found);
                }
            }
        }
        let (pools, _) = cenote_spa::find(&handle, &self.paths(runtime).await?).await;
        cenote_host::choose(pools, name).map_err(|error| match error {
            // OpenZFS's words are about importing; a program may never have.
            HostError::NoSuchPool(name) => {
                Error::new(ErrorKind::NotFound, pool_place(&name), format!("no pool '{name}' can be found"))
            }
            error => error.raise(),
        })
    }
}

/// The memory of a block cache in bytes.
pub(crate) fn cache_bytes(wanted: Option<usize>, is_simulated: bool) -> usize {
    match wanted {
        Some(bytes) => bytes,
        None if is_simulated => SIMULATED_CACHE_BYTES,
        None => cenote_host::default_cache_bytes(),
    }
}

/// The host that writes pools of a simulation.
pub(crate) fn simulated_host() -> Host {
    Host { id: 0, name: "simulated".to_owned() }
}

fn settings(given: &[(String, String)]) -> Result<Settings, Error> {
    let mut settings = tunables::settings();
    for (name, value) in given {
        settings.set(name, value).map_err(|error| Error::misuse(error.to_string()))?;
    }
    Ok(settings)
}

fn pool_place(name: &str) -> Place {
    Place { pool: Some(name.to_owned()), ..Place::default() }
}

fn in_use(name: &str, user: &Holder) -> Error {
    Error::new(ErrorKind::Busy, pool_place(name), format!("pool '{name}' is in use by {user}"))
}

/// A pool that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// Its guid, by which it can be opened where several have the name.
    pub guid: u64,
    /// Its devices that were found.
    pub devices: Vec<PathBuf>,
    /// It was exported: nobody has it.
    pub is_exported: bool,
}

impl FoundPool {
    fn of(found: &cenote_spa::FoundPool) -> Self {
        let mut devices: Vec<PathBuf> =
            found.leaves.values().map(|leaf| leaf.disk.device().path().to_owned()).collect();
        devices.sort();
        devices.dedup();
        let is_exported = found.state() == PoolState::Exported;
        Self { name: found.name().to_owned(), guid: found.guid.0, devices, is_exported }
    }
}
