//! `zpool remove`.

use std::path::{Path, PathBuf};

use cenote_admin::{Activity, LeafWorkRequest, Line, NamedDevice, wait};
use cenote_format::ids::Guid;
use cenote_format::indirect::IndirectMappingEntry;
use cenote_host::CacheFile;
use cenote_taskq::boxed;
use cenote_vdev::config::{VdevConfig, VdevKind};

use crate::Session;
use crate::error::{Result, ServerError, refused};
use crate::writing::Writing;

/// The state of a removal that is under way.
const RUNS: u64 = 1;

/// A device of a pool.
#[derive(Clone, Debug)]
pub struct Device {
    /// The word that named it.
    pub word: String,
    guid: Guid,
    /// Paths of its leaves, as recorded elsewhere.
    paths: Vec<PathBuf>,
    /// The file or device that the word names, if there is one.
    given: Option<PathBuf>,
}

impl Device {
    /// Paths of its leaves, as recorded elsewhere.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl From<Device> for NamedDevice {
    fn from(device: Device) -> Self {
        Self { word: device.word, guid: device.guid, path: device.given }
    }
}

/// The devices of a pool that the words name: paths, as recorded in the pool or relative to `folder`; names as `zpool status` shows them; guids.
/// False if one does not exist, which is reported: `verb` cannot be done to it.
///
/// # Errors
/// Several devices have a name; or the pool cannot be read.
pub async fn find_devices(
    session: &Session,
    verb: &str,
    pool: &str,
    folder: &Path,
    words: &[String],
) -> Result<(Vec<Device>, bool)> {
    let all = Named::read(session, pool).await?;
    let mut found = Vec::new();
    for word in words {
        match all.find(verb, pool, folder, word)? {
            Some(device) => found.push(device),
            None => session.warn(format!("cannot {verb} {word}: no such device in pool")),
        }
    }
    let is_all = found.len() == words.len();
    Ok((found, is_all))
}

/// The vdevs of a pool, by their names.
pub(crate) struct Named {
    /// Each with the path at which its device was found, as it is shown: the recorded one may be another (`zpool set path=`).
    all: Vec<(VdevConfig, Option<String>)>,
}

impl Named {
    /// Reads those of a pool. It is opened for writing only if there is something to change.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) async fn read(session: &Session, pool: &str) -> Result<Self> {
        let view = session.open_pool(pool).await?;
        let mut all = Vec::new();
        for top in &view.vdevs().children {
            top.walk(&mut |vdev| all.push(vdev.clone()));
        }
        all.retain(|vdev: &VdevConfig| vdev.kind != VdevKind::Hole);
        all.extend(view.spares().await?);
        all.extend(view.cache_devices().await?);
        let shown = |vdev: VdevConfig| {
            let leaf = view.found().leaves.get(&vdev.guid);
            let recorded = || vdev.path.as_deref().map(str::to_owned);
            let path = leaf.map(|leaf| leaf.disk.path().to_string()).or_else(recorded);
            (vdev, path)
        };
        let all = all.into_iter().map(shown).collect();
        view.close().await;
        drop(view);
        // If this command kept a view of an earlier txg, a log device could not become empty.
        session.let_go_of_views();
        Ok(Self { all })
    }

    /// The only vdev that a word names; none if there is none.
    ///
    /// # Errors
    /// It names several.
    pub(crate) fn find(&self, verb: &str, pool: &str, folder: &Path, word: &str) -> Result<Option<Device>> {
        find(&self.all, verb, pool, folder, word)
    }
}

/// Carries out work on the devices that words name, or on all of the pool. True if all was done; failures are reported.
///
/// # Errors
/// The pool cannot be read or written, or a word names several devices.
pub async fn work_on_leaves(session: &Session, request: LeafWorkRequest, folder: &Path) -> Result<bool> {
    let words = &request.words.1;
    let (devices, is_found) = match words.is_empty() {
        true => (leaves_of(session, &request.pool).await?, true),
        false => {
            let (found, is_all) = find_devices(session, request.word(), &request.pool, folder, words).await?;
            (found.into_iter().map(NamedDevice::from).collect(), is_all)
        }
    };
    if devices.is_empty() {
        return Ok(is_found);
    }
    let changed = session.carry_out(&LeafWorkRequest { is_of_all: words.is_empty(), devices, ..request }).await?;
    Ok(is_found && changed.is_all)
}

/// All devices of a pool that have blocks.
async fn leaves_of(session: &Session, pool: &str) -> Result<Vec<NamedDevice>> {
    let view = session.open_pool(pool).await?;
    let leaves = view.vdevs().leaves().into_iter();
    let named = leaves
        .filter(|leaf| matches!(leaf.kind, VdevKind::Disk | VdevKind::File))
        .map(|leaf| NamedDevice { word: leaf.display_name(), guid: leaf.guid, path: None })
        .collect();
    view.close().await;
    drop(view);
    session.let_go_of_views();
    Ok(named)
}

/// The only vdev that a word names: by the path at which it was found, or else by the recorded one.
fn find(
    all: &[(VdevConfig, Option<String>)],
    verb: &str,
    pool: &str,
    folder: &Path,
    word: &str,
) -> Result<Option<Device>> {
    let given = folder.join(word);
    let given = given.canonicalize().unwrap_or(given);
    let at = &given;
    let is_at = |path: &str| {
        let path = Path::new(path);
        path == Path::new(word)
            || path.file_name().is_some_and(|name| name == word)
            || path.canonicalize().is_ok_and(|path| path == *at)
    };
    let is_found = |(_, path): &&(VdevConfig, Option<String>)| path.as_deref().is_some_and(is_at);
    let is_named = |(vdev, _): &&(VdevConfig, Option<String>)| {
        word == vdev.guid.0.to_string() || word == vdev.display_name() || vdev.path.as_deref().is_some_and(is_at)
    };
    let mut found: Vec<&VdevConfig> = all.iter().filter(is_found).map(|(vdev, _)| vdev).collect();
    if found.is_empty() {
        found = all.iter().filter(is_named).map(|(vdev, _)| vdev).collect();
    }
    // A spare in use is in the tree and in the list.
    found.sort_by_key(|vdev| vdev.guid);
    found.dedup_by_key(|vdev| vdev.guid);
    if found.len() > 1 {
        let what = format!("cannot {verb} {word}: several devices of '{pool}' have this name: use a guid");
        return Err(refused(what));
    }
    Ok(found.pop().map(|vdev| Device {
        word: word.to_owned(),
        guid: vdev.guid,
        paths: vdev.leaves().iter().filter_map(|leaf| leaf.path.as_deref()).map(PathBuf::from).collect(),
        given: Some(given).filter(|given| given.is_absolute() && given.exists()),
    }))
}

/// Removes devices, one after the other. True if all were removed, or their removal has begun; failures are reported. A vdev with blocks of datasets
/// is evacuated: by the server, where there is one, for which the command waits if `waits`; otherwise by the command.
///
/// # Errors
/// The pool cannot be opened for writing, or the command cannot be recorded.
#[boxed]
pub async fn remove_devices(session: &Session, pool: &str, devices: Vec<Device>, waits: bool) -> Result<bool> {
    let work = async |writing: &mut Writing| {
        writing.record(&Line::new("zpool remove").word(pool).words(devices.iter().map(|device| &device.word)));
        let (mut gone, mut begun, mut is_good) = (Vec::new(), 0, true);
        for device in devices {
            match writing.pool().remove_vdev(device.guid).await {
                Ok(_) => {
                    if evacuates(writing, session, waits).await? {
                        gone.push(device);
                    } else {
                        begun += 1;
                    }
                }
                Err(error) => {
                    session.warn(format!("cannot remove {}: {error}", device.word));
                    is_good = false;
                }
            }
        }
        if gone.is_empty() && begun == 0 {
            writing.forget_record();
        }
        let paths: Vec<PathBuf> = gone.iter().flat_map(|device| device.paths.clone()).collect();
        session.devices_removed(&paths);
        Ok::<_, ServerError>((paths, is_good, writing.pool().guid()))
    };
    let (paths, is_good, guid) = Writing::run(session, pool, work).await?;
    CacheFile::of_user()?.update(|pools| {
        if let Some(entry) = pools.get_mut(pool) {
            entry.paths.retain(|path| !paths.contains(path));
        }
        Ok::<_, ServerError>(())
    })?;
    session.keep_config(guid).await?;
    Ok(is_good)
}

/// Waits for an evacuation, where there is one to be waited for. Whether the device is gone.
async fn evacuates(writing: &mut Writing, session: &Session, waits: bool) -> Result<bool> {
    let pool = writing.pool().clone();
    let runs = async || Ok::<_, ServerError>(pool.removal().await?.is_some_and(|removal| removal.state == RUNS));
    if !runs().await? {
        return Ok(true);
    }
    writing.work_off(session, "removing").await?;
    // A command alone has done what it can.
    if waits && session.served().is_some() {
        wait(&pool, &[Activity::Remove]).await?;
    }
    Ok(!runs().await?)
}

/// The memory that the mapping of a vdev would take if it were removed: none for a log device, a spare or a cache device.
///
/// # Errors
/// The pool cannot be read.
pub async fn mapping_bytes(session: &Session, pool: &str, device: &Device) -> Result<u64> {
    let view = session.open_pool(pool).await?;
    let entries = view.mapping_entries(device.guid).await?;
    view.close().await;
    Ok(entries * IndirectMappingEntry::SIZE as u64)
}
