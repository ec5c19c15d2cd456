//! A command's or client request's access to pools: the places to search, the way to open them, and the processes that have them.
//!
//! # Theory
//!
//! **Need.** A command finds its pool by name or guid, among devices that are given, recorded or in the usual places. Another process may have
//! it, be about to close it, or have to carry out the whole command. And all data read from a pool in use must be of one txg. A process that
//! serves pools does the same for its clients, with its own pool.
//!
//! **Shape.** [`Session`] is cheap to clone, and all clones share the opened pools. Messages for a person go to its [`Console`].
//!
//! **Invariants.** 1. Background tasks of opened pools end with [`Session::close_pools`]. 2. A server's pool is read at a txg that the server keeps until the end; [`Session::check_views`] tells if
//! it did.

mod found;
mod keeping;
mod keyfile;
mod missing;
mod served;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cenote_admin::Owner;
use cenote_dsl::Secret;
use cenote_format::ids::Guid;
use cenote_format::uberblock::Uberblock;
use cenote_host::{CacheFile, Entry, Holder, HostError, default_cache_bytes, device_paths, holder, search, usable};
use cenote_kstat::Settings;
use cenote_props::WrongUse;
use cenote_spa::{FoundPool, ImportOptions, Notice, PoolState, Rewind, SkipReason, SpaError, View, find, import};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Group, Handle, boxed};
use cenote_zio::DataErrors;

use crate::error::{Result, ServerError, refused};
use crate::{Console, Owned, Passed, PinnedTxg, ServedPool, Who, protocol};

pub use found::{Found, no_label};
pub(crate) use keeping::config_here;
use missing::User;
pub use missing::{Gone, Lost, NoSuchPool, Shown};

/// The time that the end of a command waits for devices that do not answer, before the runtime gives them up too.
pub(crate) const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);

/// The time to wait for an ending process, which writes everything it has in memory.
const END_TIME_MAX: Duration = Duration::from_secs(600);
/// The time to wait for a process that has the devices without saying why.
const SILENT_TIME_MAX: Duration = Duration::from_secs(10);
/// The interval between checks for its end.
pub(crate) const END_POLL: Duration = Duration::from_millis(50);
/// The time for which a disconnected client may still seem connected.
pub(crate) const UNUSED_TIME_MAX: Duration = Duration::from_secs(2);
/// The time before the wait is reported.
const TELL_AFTER: Duration = Duration::from_millis(500);

/// The options for finding and opening pools.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Files, devices and folders to search, instead of the usual ones.
    pub paths: Vec<PathBuf>,
    /// Also open pools that were last in use by another system.
    pub force: bool,
    /// Keys to load: `DATASET=FILE`, or `DATASET=-`.
    pub keys: Vec<String>,
    /// Memory for the block cache.
    pub cache_bytes: Option<u64>,
    /// The root to open.
    pub rewind: Rewind,
    /// Open pools as of their checkpoints.
    pub at_checkpoint: bool,
    /// Top-level vdevs and logs may be missing.
    pub allow_missing: bool,
    /// Values of tunables.
    pub tunables: Settings,
    /// The folder for mount points, in place of that of the import.
    pub altroot: Option<String>,
}

impl SessionOptions {
    /// True if a pool's newest state is wanted.
    fn is_of_newest(&self) -> bool {
        matches!(self.rewind, Rewind::None) && !self.at_checkpoint
    }
}

/// The context of a command: its options, console and opened pools. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    handle: Handle,
    options: SessionOptions,
    console: Arc<dyn Console>,
    opened: Arc<Opened>,
    /// The pool of this process, if it carries out a client's request.
    served: Option<Served>,
    /// Txgs of servers' pools that the command reads, with the pools' names.
    kept: Arc<Mutex<Vec<Kept>>>,
    /// A server that has a pool can carry out the command.
    may_send: bool,
}

/// A txg of a server's pool that a command reads.
struct Kept {
    /// The pool's name.
    pool: String,
    pinned: PinnedTxg,
    /// Blocks that the command could not read.
    errors: Option<Arc<DataErrors>>,
}

/// The pool of a server, and the state of a client's request.
#[derive(Clone)]
struct Served {
    of: ServedPool,
    /// The user and group of that client.
    client: Owner,
    /// The txg that the command reads.
    view: Arc<Mutex<Option<View>>>,
    is_to_end: Arc<AtomicBool>,
    /// Its standard input, until the command takes it.
    input: Arc<Mutex<Option<Passed>>>,
}

/// The background tasks of the pools that a command has opened. Not the pools: their open devices would prevent a command from closing one and
/// opening it again.
#[derive(Default)]
struct Opened(Mutex<Vec<Group>>);

impl Session {
    /// A session without opened pools.
    pub fn new(handle: Handle, options: SessionOptions, console: Arc<dyn Console>) -> Self {
        let (opened, kept) = (Arc::default(), Arc::default());
        Self { handle, options, console, opened, served: None, kept, may_send: false }
    }

    /// The same, with another console.
    #[must_use]
    pub fn telling(self, console: Arc<dyn Console>) -> Self {
        Self { console, ..self }
    }

    /// For a command that a server can carry out as well.
    #[must_use]
    pub fn sending(self) -> Self {
        Self { may_send: true, ..self }
    }

    /// For a command that no server may carry out.
    #[must_use]
    pub fn without_sending(&self) -> Self {
        Self { may_send: false, ..self.clone() }
    }

    /// With further places to search. No effect in a server, which knows where its pool is.
    #[must_use]
    pub fn searching(mut self, paths: &[PathBuf], force: bool) -> Self {
        if self.served.is_none() {
            self.options.paths.extend(paths.iter().cloned());
            self.options.force |= force;
        }
        self
    }

    /// With a share of the memory, for one of `pools` pools.
    #[must_use]
    pub fn sharing_memory(mut self, pools: usize) -> Self {
        if pools > 1 {
            self.options.cache_bytes = Some((self.import_options().cache_bytes / pools) as u64);
        }
        self
    }

    /// With mount points below this folder, in place of that of the import.
    #[must_use]
    pub fn with_altroot(mut self, altroot: Option<String>) -> Self {
        self.options.altroot = altroot;
        self
    }

    /// The runtime.
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its options.
    pub(crate) const fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Its console.
    pub fn console(&self) -> &Arc<dyn Console> {
        &self.console
    }

    /// The options for an import.
    pub fn import_options(&self) -> ImportOptions {
        let options = &self.options;
        let console = self.console.clone();
        ImportOptions {
            force: options.force,
            missing_log: options.allow_missing,
            missing_tops: options.allow_missing,
            checkpoint: options.at_checkpoint,
            rewind: options.rewind,
            altroot: options.altroot.clone(),
            host_id: cenote_host::host_id(),
            cache_bytes: options.cache_bytes.map_or_else(default_cache_bytes, usable),
            tunables: options.tunables.clone(),
            // An import reports when it waits.
            notice: Some(Notice::new(move |text| console.warn(text))),
            ..ImportOptions::default()
        }
    }

    /// The values of tunables.
    pub const fn tunables(&self) -> &Settings {
        &self.options.tunables
    }

    /// The memory by which parts are sized by default: the cache has a quarter of it.
    pub fn memory_bytes(&self) -> u64 {
        self.import_options().cache_bytes.saturating_mul(4) as u64
    }

    /// The files and devices to probe: those given, else those of `ZPOOL_IMPORT_PATH`, else the usual places.
    ///
    /// # Errors
    /// A given one does not exist.
    #[boxed]
    pub(crate) async fn paths(&self) -> Result<Vec<PathBuf>> {
        Ok(search(&self.handle, &self.options.paths).await?)
    }

    pub(crate) fn warn(&self, text: impl AsRef<str>) {
        self.console.warn(text.as_ref());
    }

    pub(crate) fn advise(&self, text: impl AsRef<str>) {
        self.console.advise(text.as_ref());
    }

    /// Opens a found pool. Its background tasks end with the command.
    #[boxed]
    pub async fn import(&self, found: FoundPool, options: &ImportOptions) -> Result<View, SpaError> {
        let mut options = options.clone();
        // A server that reads its own pool would see its own multihost writes.
        options.skip_activity_check |= self.served.is_some();
        // A pool whose last process is known to have ended need not be watched.
        let _ = cenote_host::owners::note_gone_owner(&found, &mut options);
        let pool = import(&self.handle, found, &options).await?;
        let mut opened = self.opened.0.lock();
        opened.push(pool.dmu().detached().clone());
        opened.extend(pool.tree().left().cloned());
        drop(opened);
        Ok(pool)
    }

    /// Closes every pool that was opened, as [`View::close`] does: background tasks end, and none begin. For the end of a command, successful or
    /// not.
    #[boxed]
    pub async fn close_pools(&self) {
        if let Some(served) = &self.served {
            *served.view.lock() = None;
        }
        let opened = std::mem::take(&mut *self.opened.0.lock());
        let closed = async {
            for detached in opened {
                detached.close().await;
            }
        };
        if self.handle.timeout(CLOSE_TIME_MAX, closed).await.is_none() {
            self.warn(
                "reads that were begun ahead are still with the devices, which do not answer; not waiting for them",
            );
        }
    }

    /// Reports the notes about opening a pool.
    pub(crate) fn say_notes(&self, pool: &str, notes: &[String]) {
        notes.iter().for_each(|note| self.advise(format!("pool '{pool}': {note}")));
    }

    /// All pools that are found.
    #[boxed]
    pub(crate) async fn find_pools(&self) -> Result<Vec<FoundPool>> {
        Ok(self.search_pools().await?.pools)
    }

    /// Opens a pool by name or guid: from the devices of `-d`, else as recorded in the cache file, else from the usual places. Keys given with
    /// `--key` for its datasets are loaded.
    pub async fn open_pool(&self, name: &str) -> Result<View> {
        let pool = self.open_without_keys(name).await?;
        self.load_keys(&pool).await?;
        Ok(pool)
    }

    async fn open_without_keys(&self, name: &str) -> Result<View> {
        self.check_served(name)?;
        if let Some(served) = &self.served {
            let pool = self.viewed(served).await?;
            if self.options.is_of_newest() {
                return Ok(pool);
            }
            // Older states are found by the labels; from now on their blocks remain.
        }
        let (pool, user) = self.open_located(async || self.locate_now(name).await, true).await?;
        if let Some(user) = user {
            self.tell_user(&pool, &user);
        }
        let copies: Vec<String> = pool.found().copies.iter().map(ToString::to_string).collect();
        self.say_notes(pool.name(), &copies);
        Ok(pool)
    }

    /// The pool of this process, as of one txg for the whole command.
    async fn viewed(&self, served: &Served) -> Result<View> {
        if let Some(view) = &*served.view.lock() {
            return Ok(view.clone());
        }
        let mut options = self.import_options();
        if options.altroot.is_none() {
            options.altroot = self.noted(served.of.pool.guid()).and_then(|(_, entry)| entry.altroot);
        }
        let view = served.of.pool.view(&options).await?;
        self.opened.0.lock().push(view.dmu().detached().clone());
        *served.view.lock() = Some(view.clone());
        Ok(view)
    }

    /// Releases the txg as of which this command has read its own pool; later reads are as of a later one.
    pub(crate) fn let_go_of_views(&self) {
        if let Some(served) = &self.served {
            let view = served.view.lock().take();
            drop(view);
        }
    }

    /// The record of an imported pool, and its name here.
    pub fn noted(&self, guid: Guid) -> Option<(String, Entry)> {
        let pools = CacheFile::of_user().ok()?.pools().ok()?;
        pools.into_iter().find(|(_, entry)| entry.guid == guid.0)
    }

    /// The root that a server keeps for this command.
    fn kept_root(&self, pool: &str) -> Option<Uberblock> {
        self.kept.lock().iter().rev().find(|kept| kept.pool == pool).map(|kept| *kept.pinned.root())
    }

    /// Fails if a server has given up a txg of its pool that the command reads. Servers are asked again later.
    pub fn check_kept(&self) -> Result<(), Box<SpaError>> {
        for Kept { pool, pinned, .. } in &mut *self.kept.lock() {
            if pinned.is_whole() == Some(false) {
                return Err(Box::new(SpaError::ViewGivenUp { pool: pool.clone(), txg: pinned.root().txg }));
            }
        }
        Ok(())
    }

    /// Fails unless all data that a command has read from each pool in use was of one txg. The pool's process is told of blocks that could not be read.
    pub fn check_views(&self) -> Result<()> {
        for Kept { pool, mut pinned, errors } in std::mem::take(&mut *self.kept.lock()) {
            pinned.tell_damage(&errors.map(|errors| errors.known()).unwrap_or_default());
            match pinned.is_whole() {
                Some(true) => {}
                Some(false) => return Err(SpaError::ViewGivenUp { pool, txg: pinned.root().txg }.into()),
                None => self.warn(format!(
                    "the process that had pool '{pool}' has ended meanwhile; what came after that may show"
                )),
            }
        }
        let view = self.served.as_ref().and_then(|served| served.view.lock().clone());
        view.map_or(Ok(()), |view| Ok(view.check()?))
    }

    /// Opens a pool for reading that `locate` finds, even if another process has it; that process is returned. If it takes commands, it first
    /// writes everything that it has in memory. One that is about to close the pool is waited for. `may_ask`: the pool's server may carry out
    /// the command instead ([`Session::check_server`]).
    async fn open_located(
        &self,
        locate: impl AsyncFn() -> Result<(FoundPool, ImportOptions)>,
        may_ask: bool,
    ) -> Result<(View, Option<User>)> {
        let (mut found, mut options) = locate().await?;
        if self.await_end(&found).await? {
            (found, options) = locate().await?;
        }
        if may_ask {
            self.check_server(&found)?;
        }
        let user = self.user_of(&found)?;
        if user.is_some() {
            (found, options) = locate().await?;
            // The other user of the pool is known.
            (options.force, options.skip_activity_check) = (true, true);
            // The last kept root is the one just requested.
            options.root = self.options.is_of_newest().then(|| self.kept_root(found.name())).flatten();
        }
        let view = self.import(found, &options).await?;
        if let Some(kept) = self.kept.lock().last_mut().filter(|kept| user.is_some() && kept.pool == view.name()) {
            kept.errors = Some(view.dmu().zio().data_errors().clone());
        }
        Ok((view, user))
    }

    fn tell_user(&self, pool: &View, user: &User) {
        self.advise(format!("pool '{}' is in use by {user}; reading it as of txg {}", pool.name(), pool.txg()));
    }

    /// Finds a pool as [`Session::open_pool`] does, with the options for importing it. A process that is about to close it is waited for.
    #[boxed]
    pub async fn locate(&self, name: &str) -> Result<(FoundPool, ImportOptions)> {
        let located = match self.locate_now(name).await {
            // A process that has the pool open does without the labels by which others find its devices.
            Err(error) => return Err(self.owner_of_lost(name).map_or(error, ServerError::from)),
            Ok(located) => located,
        };
        let has_waited = self.await_end(&located.0).await?;
        // A process may have closed the pool and ended since its labels were read.
        let is_old = has_waited || (self.served.is_none() && located.0.state() == PoolState::Active);
        if is_old { self.locate_now(name).await } else { Ok(located) }
    }

    async fn locate_now(&self, name: &str) -> Result<(FoundPool, ImportOptions)> {
        let options = self.import_options();
        if !self.options.paths.is_empty() {
            return Ok((self.choose_found(name).await?, options));
        }
        let pools = CacheFile::of_user()?.pools()?;
        let by_guid = || pools.iter().find(|(_, entry)| name.parse() == Ok(entry.guid));
        if let Some((name, entry)) = pools.get_key_value(name).or_else(by_guid) {
            return self.locate_entry(name, entry, options).await;
        }
        // A process that has it knows where it is.
        if self.served.is_none()
            && let Some(who) = protocol::servers().into_iter().map(|(_, who)| who).find(|who| who.is_called(name))
            && let Some(found) = find(&self.handle, &who.devices).await.0.into_iter().find(|it| it.guid.0 == who.guid)
        {
            return Ok((found, ImportOptions { force: true, ..options }));
        }
        Ok((self.choose_found(name).await?, options))
    }

    /// The only pool with that name or guid that is found.
    async fn choose_found(&self, name: &str) -> Result<FoundPool> {
        let mut found = self.search_pools().await?;
        let hints = found.hints(&self.handle).await;
        choose(std::mem::take(&mut found.pools), name).map_err(|error| match error {
            ServerError::NoSuchPool(NoSuchPool { name, .. }) => NoSuchPool { name, hints }.into(),
            error => error,
        })
    }

    /// Waits while a process that has the pool's devices is about to close them: it says so, or it takes no commands, like one that only makes a
    /// change. True if it waited, so the pool may have been written.
    async fn await_end(&self, found: &FoundPool) -> Result<bool> {
        if self.served.is_some() {
            return Ok(false);
        }
        let devices = device_paths(found)?;
        let begun = self.handle.now();
        let (mut has_waited, mut is_told) = (false, false);
        loop {
            let (holder, wait_max) = match server_of(found) {
                Some((_, who)) if !who.is_ending => return Ok(has_waited),
                Some((_, who)) => (Holder { pid: Some(who.pid) }, END_TIME_MAX),
                None => match holder::of(devices.iter().map(PathBuf::as_path)) {
                    Some(holder) => (holder, SILENT_TIME_MAX),
                    None => return Ok(has_waited),
                },
            };
            let waited = self.handle.now() - begun;
            if waited >= wait_max {
                return Ok(has_waited);
            }
            if waited >= TELL_AFTER && !std::mem::replace(&mut is_told, true) {
                self.advise(format!(
                    "waiting for {holder}, which has the pool '{}' and may be writing it",
                    found.name()
                ));
            }
            has_waited = true;
            self.handle.sleep(END_POLL).await;
        }
    }

    /// The process that has a pool which is to be read. A server first writes everything in memory; `is_synced` tells if it did.
    fn user_of(&self, found: &FoundPool) -> Result<Option<User>> {
        if self.served.is_some() {
            return Ok(None);
        }
        if let Some((socket, who)) = server_of(found) {
            let kept = PinnedTxg::ask(&socket);
            let is_synced = kept.is_ok() || Self::sync_server(&socket);
            let named = |pinned| Kept { pool: found.name().to_owned(), pinned, errors: None };
            self.kept.lock().extend(kept.ok().map(named));
            return Ok(Some(User { holder: Holder { pid: Some(who.pid) }, is_synced }));
        }
        let holder = holder::of(device_paths(found)?.iter().map(PathBuf::as_path));
        Ok(holder.map(|holder| User { holder, is_synced: false }))
    }

    /// Asks a server to write everything in memory. True if it did.
    pub fn sync_server(socket: &Path) -> bool {
        protocol::sync(socket).is_ok()
    }

    /// Opens all imported pools, in the order of names; or, if `-d` gives places to search, every pool there. For a pool that cannot be opened,
    /// the result is the reason. `may_ask`: even of several pools, those that a process has are left to it ([`ServerError::Owned`]).
    async fn open_all(&self, may_ask: bool) -> Result<Vec<(String, Result<View>)>> {
        let mut pools = Vec::new();
        if let Some(served) = &self.served {
            let name = served.of.pool.name().to_owned();
            pools.push((name.clone(), self.open_without_keys(&name).await));
        } else if self.options.paths.is_empty() {
            let mut entries: Vec<_> = CacheFile::of_user()?.pools()?.into_iter().collect();
            for (_, who) in protocol::servers() {
                if !entries.iter().any(|(_, entry)| entry.guid == who.guid) {
                    entries.push((
                        who.pool,
                        Entry { guid: who.guid, paths: who.devices, force: true, ..Entry::default() },
                    ));
                }
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let is_only = entries.len() == 1;
            for (name, entry) in entries {
                let locate = async || self.locate_entry(&name, &entry, self.import_options()).await;
                // A process that knows its pool is not asked for anything that the pool's devices would have to answer.
                let opened = match may_ask.then(|| owned(&name, Guid(entry.guid))).flatten() {
                    Some(owned) => Err(owned.into()),
                    None => self.open_for_list(locate, is_only || may_ask).await,
                };
                pools.push((name, opened));
            }
        } else {
            let searched = self.search_pools().await?;
            if searched.pools.is_empty() {
                // There may be pools on devices that this user may not open; a file that was named contains none.
                let hints = searched.hints(&self.handle).await;
                if !hints.is_empty() {
                    return Err(refused(format!("no pools available\n{}", hints.join("\n"))));
                }
            }
            let all = searched.pools;
            let is_only = all.len() == 1;
            for found in all {
                let (name, guid) = (found.name().to_owned(), found.guid);
                let first = Mutex::new(Some(found));
                let locate = async || {
                    let first = first.lock().take();
                    let now = match first {
                        Some(found) => Some(found),
                        None => self.find_pools().await?.into_iter().find(|found| found.guid == guid),
                    };
                    Ok((now.ok_or_else(|| Gone { name: name.clone(), denied: None })?, self.import_options()))
                };
                let opened = self.open_for_list(locate, is_only || may_ask).await;
                pools.push((name, opened));
            }
            pools.sort_by(|a, b| a.0.cmp(&b.0));
        }
        for (_, pool) in &pools {
            if let Ok(pool) = pool {
                self.load_keys(pool).await?;
            }
        }
        Ok(pools)
    }

    /// Opens the named pools, or all if none is named. A pool that cannot be opened is reported and left out; the second
    /// value is true if there was one.
    pub async fn open_pools(&self, names: &[String]) -> Result<(Vec<View>, bool)> {
        let (shown, failed) = self.open_to_show(names, false).await?;
        let opened = shown.into_iter().filter_map(|pool| match pool {
            Shown::Open(view) => Some(view),
            Shown::Lost(_) | Shown::Owned(_) => None,
        });
        Ok((opened.collect(), failed))
    }

    /// The named pools, or all, each once and in the order of their names, by the way in which they can be shown. `may_ask`: pools about which a
    /// process knows more than can be read (the errors of its devices) are left to that process; a single one always is, by
    /// [`ServerError::Owned`]. The second value is true if one could not be shown, or not completely.
    pub async fn open_to_show(&self, names: &[String], may_ask: bool) -> Result<(Vec<Shown>, bool)> {
        let may_ask = may_ask && self.may_send && self.served.is_none() && self.options.is_of_newest();
        let mut results = Vec::new();
        if names.is_empty() {
            results = self.open_all(may_ask).await?;
        }
        let names: BTreeSet<&String> = names.iter().collect();
        for name in &names {
            let opened = match names.len() {
                1 => self.open_pool(name).await,
                _ if may_ask => match self.owned_by_name(name) {
                    Some(owned) => Err(owned.into()),
                    None => self.open_pool(name).await,
                },
                // No single server can list them all.
                _ => self.without_sending().open_pool(name).await,
            };
            results.push(((*name).clone(), opened));
        }
        let (mut pools, mut failed) = (Vec::new(), false);
        let (is_only, is_all) = (results.len() == 1, names.is_empty());
        let noted = match self.served.is_none() && self.options.paths.is_empty() {
            true => CacheFile::of_user()?.pools().unwrap_or_default(),
            false => std::collections::BTreeMap::new(),
        };
        for (name, result) in results {
            match result {
                Ok(pool) => pools.push(Shown::Open(pool)),
                // Only its server has everything about the pool.
                Err(error) if matches!(error, ServerError::Owned(_)) && is_only => return Err(error),
                Err(ServerError::Owned(owned)) => pools.push(Shown::Owned(owned)),
                Err(error) => {
                    self.warn(error.chain());
                    // A recorded pool that is gone does not fail a command about the others.
                    failed |= !(is_all && matches!(error, ServerError::Gone(_)));
                    if let Some(entry) = noted.get(&name) {
                        // Its remaining devices describe the others.
                        let found = match &error {
                            ServerError::Gone(_) => None,
                            _ => self.locate_entry(&name, entry, self.import_options()).await.ok(),
                        };
                        let found = found.map(|(found, _)| found);
                        pools.push(Shown::Lost(Lost {
                            name,
                            guid: entry.guid,
                            paths: entry.paths.clone(),
                            found,
                            error,
                        }));
                    }
                }
            }
        }
        pools.sort_by(|a, b| a.name().cmp(b.name()));
        Ok((pools, failed))
    }

    /// The same of a pool whose devices cannot be found, if it may be asked.
    fn owner_of_lost(&self, name: &str) -> Option<Owned> {
        if self.may_send && self.served.is_none() { self.owned_by_name(name) } else { None }
    }

    /// The process that has the pool with this name or guid, and takes commands for it.
    fn owned_by_name(&self, name: &str) -> Option<Owned> {
        if !self.options.paths.is_empty() {
            return None;
        }
        let pools = CacheFile::of_user().and_then(|file| file.pools()).unwrap_or_default();
        let noted = pools.iter().find(|(noted, entry)| *noted == name || name.parse() == Ok(entry.guid));
        if let Some((name, entry)) = noted {
            return owned(name, Guid(entry.guid));
        }
        let (socket, who) = protocol::servers().into_iter().find(|(_, who)| who.is_called(name))?;
        (!who.is_ending).then_some(Owned { pool: who.pool, socket })
    }

    /// Opens one of all pools. Its process is reported only if it has not written its memory. `may_ask`: that process may be asked instead.
    async fn open_for_list(
        &self,
        locate: impl AsyncFn() -> Result<(FoundPool, ImportOptions)>,
        may_ask: bool,
    ) -> Result<View> {
        let (pool, user) = self.open_located(locate, may_ask).await?;
        if let Some(user) = user.filter(|user| !user.is_synced) {
            self.tell_user(&pool, &user);
        }
        Ok(pool)
    }

    async fn locate_entry(
        &self,
        name: &str,
        entry: &Entry,
        mut options: ImportOptions,
    ) -> Result<(FoundPool, ImportOptions)> {
        entry.apply(name, &mut options)?;
        let (pools, skipped) = find(&self.handle, &entry.paths).await;
        let denied =
            skipped.into_iter().find(|skipped| skipped.reason == SkipReason::Denied).map(|skipped| skipped.path);
        let found = pools.into_iter().find(|found| found.guid.0 == entry.guid);
        // Devices may have moved meanwhile.
        let found = match found {
            Some(found) => Some(found),
            None => self.find_pools().await?.into_iter().find(|found| found.guid.0 == entry.guid),
        };
        let found = found.ok_or_else(|| Gone { name: name.to_owned(), denied })?;
        Ok((found, options))
    }

    /// Reports a pool whose passphrase takes long to process: the pool itself sets the number of iterations.
    async fn tell_of_slow_key(&self, pool: &View, dataset: &str) {
        // Some seconds of a core; thirty times OpenZFS's number for a new key.
        const TOLD_ITERATIONS: u64 = 10_000_000;
        let dsl = pool.dsl();
        // Errors are reported when the key is loaded.
        let Ok(dir) = dsl.dir(dataset).await else { return };
        let Ok(Some(encryption)) = dsl.encryption(&dir).await else { return };
        let Ok(root) = dsl.dir(&encryption.root).await else { return };
        let Ok(iterations) = dsl.key_field(&root, "pbkdf2iters").await else { return };
        if iterations > TOLD_ITERATIONS {
            self.advise(format!(
                "'{dataset}' wants its passphrase to be hashed {iterations} times (usual are 350000): this takes long"
            ));
        }
    }

    /// Loads the keys of `--key` that are for this pool.
    #[boxed]
    pub async fn load_keys(&self, pool: &View) -> Result<()> {
        for key in &self.options.keys {
            let (dataset, file) =
                key.split_once('=').ok_or_else(|| WrongUse::new("--key wants DATASET=FILE, or DATASET=-"))?;
            if dataset.split('/').next() != Some(pool.name()) {
                continue;
            }
            if let Some(mode) = keyfile::mode_for_others(file) {
                self.warn(format!("the key file '{file}' can be read by others (mode {mode:03o}): 'chmod go= {file}'"));
            }
            self.tell_of_slow_key(pool, dataset).await;
            pool.dsl().load_key(dataset, Secret::new(keyfile::key_bytes(file)?)).await?;
        }
        Ok(())
    }
}

/// The process that has this pool and takes commands for it.
fn owned(name: &str, guid: Guid) -> Option<Owned> {
    let socket = protocol::find(guid)?;
    protocol::who(&socket).ok().filter(|who| who.guid == guid.0 && !who.is_ending)?;
    Some(Owned { pool: name.to_owned(), socket })
}

/// A pool's server, if there is one that confirms that it has this pool, and its socket.
pub(crate) fn server_of(found: &FoundPool) -> Option<(PathBuf, Who)> {
    let socket = protocol::find(found.guid)?;
    let who = protocol::who(&socket).ok().filter(|who| who.guid == found.guid.0)?;
    Some((socket, who))
}

/// The only pool with that name or guid.
pub fn choose(pools: Vec<FoundPool>, name: &str) -> Result<FoundPool> {
    cenote_host::choose(pools, name).map_err(|error| match error {
        HostError::NoSuchPool(name) => NoSuchPool { name, hints: Vec::new() }.into(),
        HostError::Spa(error) => ServerError::Spa(error),
        error => error.into(),
    })
}
