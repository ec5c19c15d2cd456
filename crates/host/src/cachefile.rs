//! The cache file: the pools that were imported, and where their devices were.
//!
//! A command lives for the length of one command, so "imported" is a note on disk: `zpool import` writes it, `zpool
//! export` takes it back, and every other command finds its pool by it. It is JSON, per user; root's is the system's.
//!
//! ```text
//! {"version": 1, "pools": {NAME: {"guid": …, "paths": [...], "force": …, "altroot": …, …}}}
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use cenote_format::ids::{Guid, Txg};
use cenote_format::nvlist::NvList;
use cenote_spa::{ImportOptions, Rewind};
use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use crate::HostError;
use crate::configs::{CacheSetting, ConfigFile, replace};
use crate::error::At as _;
use crate::folders::{own_folder, unwritable};

type Result<T> = std::result::Result<T, HostError>;

/// The form that this program writes.
const VERSION: u32 = 1;
/// The folder of root's.
const SYSTEM_DIR: &str = "/var/cache";

/// The record of an imported pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its guid.
    pub guid: u64,
    /// The devices that it was put together from.
    pub paths: Vec<PathBuf>,
    /// It was in use by another system and imported all the same.
    #[serde(default)]
    pub force: bool,
    /// It was imported although it was destroyed.
    #[serde(default)]
    pub destroyed: bool,
    /// Missing logs are accepted.
    #[serde(default)]
    pub missing_log: bool,
    /// Prefix of mount points.
    #[serde(default)]
    pub altroot: Option<String>,
    /// Which root: "recent", "extreme", or a txg.
    #[serde(default)]
    pub rewind: Option<String>,
    /// As of its checkpoint.
    #[serde(default)]
    pub checkpoint: bool,
    /// The name in the pool itself, where it was imported under another.
    #[serde(default)]
    pub own_name: Option<String>,
    /// It is never written while it is imported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub readonly: bool,
    /// The kernel's number of the boot for which it is imported, with `cachefile=none` or a file. Otherwise for all that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The file of `cachefile=`, which has its configuration too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cachefile: Option<PathBuf>,
    /// Other properties given to this import.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

impl Entry {
    /// The same, noted in a place that the property `cachefile` names.
    #[must_use]
    pub fn kept_in(self, setting: &CacheSetting) -> Self {
        let (boot, cachefile) = match setting {
            CacheSetting::List => (None, None),
            CacheSetting::UntilBoot => (Some(this_boot()), None),
            CacheSetting::File(path) => (Some(this_boot()), Some(path.clone())),
        };
        Self { boot, cachefile, ..self }
    }

    /// The value of that property, where it has one.
    #[must_use]
    pub fn cachefile_value(&self) -> Option<String> {
        let none = || self.boot.as_ref().map(|_| "none".to_owned());
        self.cachefile.as_ref().map(|path| path.display().to_string()).or_else(none)
    }

    /// Puts what the import said into `options`, as far as they do not say it themselves. `name` is the pool's name in the list.
    ///
    /// # Errors
    /// The entry names no root.
    pub fn apply(&self, name: &str, options: &mut ImportOptions) -> Result<()> {
        options.force |= self.force;
        options.destroyed |= self.destroyed;
        options.missing_log |= self.missing_log;
        options.checkpoint |= self.checkpoint;
        if options.altroot.is_none() {
            options.altroot = self.altroot.clone();
        }
        if self.own_name.is_some() {
            options.new_name = Some(name.to_owned());
        }
        if options.rewind == Rewind::None {
            options.rewind = match self.rewind.as_deref() {
                None => Rewind::None,
                Some("recent") => Rewind::Recent,
                Some("extreme") => Rewind::Extreme,
                Some(txg) => match txg.parse() {
                    Ok(txg) => Rewind::ToTxg(Txg(txg)),
                    Err(_) => return Err(HostError::Variable("the cache file names no txg".into())),
                },
            };
        }
        Ok(())
    }
}

/// The kernel's number of this boot; empty where it has none.
pub(crate) fn this_boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The file's content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Content {
    version: u32,
    pools: BTreeMap<String, Entry>,
}

/// A cache file at its place.
#[derive(Clone, Debug)]
pub struct CacheFile {
    path: PathBuf,
}

impl CacheFile {
    /// The user's: `$CENOTE_CACHE`, else `pools.json` in `$XDG_CACHE_HOME/cenote` or `~/.cache/cenote`; root's is in
    /// `/var/cache/cenote`.
    pub fn of_user() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = variable("CENOTE_CACHE") {
            return Ok(Self { path });
        }
        let dir = match variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()) {
            Some(dir) => dir,
            None if rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM_DIR),
            None => {
                let none =
                    || HostError::Variable("neither XDG_CACHE_HOME nor HOME says where the cache file is".into());
                variable("HOME").ok_or_else(none)?.join(".cache")
            }
        };
        Ok(Self { path: dir.join("cenote").join("pools.json") })
    }

    /// Root's, which is the system's.
    fn of_system() -> Self {
        Self { path: PathBuf::from(SYSTEM_DIR).join("cenote").join("pools.json") }
    }

    /// The pools that are imported on this system as far as this user may know: his own and root's. A list of root's that cannot be read
    /// has none.
    ///
    /// # Errors
    /// The user's own has not the content that it should have.
    pub(crate) fn of_all() -> Result<Vec<(String, Entry)>> {
        let (own, system) = (Self::of_user().ok(), Self::of_system());
        let mut all = Vec::new();
        if let Some(own) = &own {
            match own.pools() {
                Ok(pools) => all.extend(pools),
                // He has imported nothing by a list that he may not read.
                Err(HostError::Untrusted { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if own.is_none_or(|own| own.path != system.path) {
            all.extend(system.pools().unwrap_or_default());
        }
        Ok(all)
    }

    /// Refuses a list that this user cannot change, before something is done that is to be noted in it.
    pub fn check_writable(&self) -> Result<()> {
        self.update(|_| Ok(()))
    }

    /// The folder that it stands in.
    pub fn dir(&self) -> &std::path::Path {
        self.path.parent().unwrap_or_else(|| std::path::Path::new(""))
    }

    /// The imported pools, by the names that they have here. A file that does not exist has none.
    pub fn pools(&self) -> Result<BTreeMap<String, Entry>> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            // Where no folder can be there is no list either.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(BTreeMap::new());
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let what = "permission denied: this list of imported pools is another user's; XDG_CACHE_HOME or CENOTE_CACHE names it \
                            (kept by 'su' or 'sudo'?), and can name another";
                return Err(HostError::Untrusted { path: self.path.clone(), what: what.to_owned() });
            }
            Err(error) => return Err(error).at(&self.path),
        };
        let wrong = |what: String| HostError::Content { path: self.path.clone(), what };
        let content: Content =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("not a cache file: {error}")))?;
        if content.version != VERSION {
            return Err(wrong(format!("version {} of cache files is not supported", content.version)));
        }
        let mut pools = content.pools;
        // `cachefile=none`, or a file: until the system is started anew.
        pools.retain(|_, entry| entry.boot.as_ref().is_none_or(|boot| *boot == this_boot()));
        Ok(pools)
    }

    /// Changes the list. The file is replaced whole, so that a reader sees the old or the new one; of two that change it
    /// at once both get in, one after the other. A pool that is gone, or has another `cachefile` by then, is taken out of that which it had.
    ///
    /// # Errors
    /// The error of the change; or the file cannot be read or written, or others could put something into its folder. Or, when the list is
    /// changed, a pool cannot be taken out of its `cachefile`.
    pub fn update<E: From<HostError>>(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Entry>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let at = &self.path;
        let (folder, name, _lock) = self.locked()?;
        let mut pools = self.pools()?;
        let kept: Vec<(u64, PathBuf)> =
            pools.values().filter_map(|entry| Some((entry.guid, entry.cachefile.clone()?))).collect();
        change(&mut pools)?;
        let is_kept = |guid, path: &PathBuf| {
            pools.values().any(|entry| entry.guid == guid && entry.cachefile.as_ref() == Some(path))
        };
        let left: Vec<(u64, PathBuf)> = kept.into_iter().filter(|(guid, path)| !is_kept(*guid, path)).collect();
        let text = serde_json::to_vec_pretty(&Content { version: VERSION, pools });
        let mut text = text.map_err(io::Error::from).at(at)?;
        text.push(b'\n');
        replace(&folder, name, &text, at)?;
        for (guid, path) in left {
            ConfigFile::at(&path).forget(Guid(guid))?;
        }
        Ok(())
    }

    /// Puts a pool's configuration into the file that its `cachefile` names, if it names one.
    ///
    /// # Errors
    /// The file has something else, or cannot be written.
    pub fn keep_config(&self, guid: Guid, config: &NvList) -> Result<()> {
        let (_, _, _lock) = self.locked()?;
        let pools = self.pools()?;
        let entry = pools.values().find(|entry| entry.guid == guid.0);
        let file = entry.filter(|entry| !entry.readonly).and_then(|entry| entry.cachefile.as_ref());
        file.map_or(Ok(()), |path| ConfigFile::at(path).put(guid, config))
    }

    /// The folder, made if need be, the file's name in it, and the lock that whoever changes the list has.
    fn locked(&self) -> Result<(File, &OsStr, File)> {
        let at = &self.path;
        if let Some(dir) = at.parent() {
            std::fs::create_dir_all(dir).map_err(|error| unwritable(dir, error))?;
        }
        let folder = own_folder(self.dir())?;
        let no_name = || HostError::Content { path: at.clone(), what: "no name of a file".into() };
        let name = at.file_name().ok_or_else(no_name)?;
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&folder, &lock_name, flags, Mode::from_raw_mode(0o644));
        let lock: File = lock.map_err(|error| unwritable(at, error.into()))?.into();
        lock.lock().at(at)?;
        Ok((folder, name, lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_again_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let file = CacheFile { path: dir.path().join("deep/pools.json") };
        assert!(file.pools().unwrap().is_empty());
        let entry = Entry { guid: u64::MAX, paths: vec!["/x".into()], force: true, ..Entry::default() };
        file.update(|pools| {
            pools.insert("tank".into(), entry.clone());
            Ok::<_, HostError>(())
        })
        .unwrap();
        assert_eq!(file.pools().unwrap().get("tank"), Some(&entry));
        file.update(|pools| {
            pools.remove("tank");
            Ok::<_, HostError>(())
        })
        .unwrap();
        assert!(file.pools().unwrap().is_empty());
        // A link that somebody put where the new list is written, or where the lock is, is not written through.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("deep/pools.json.new")).unwrap();
        file.update(|_| Ok::<_, HostError>(())).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        std::fs::remove_file(dir.path().join("deep/pools.json.lock")).unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("deep/pools.json.lock")).unwrap();
        assert!(file.update(|_| Ok::<_, HostError>(())).is_err());
        std::fs::remove_file(dir.path().join("deep/pools.json.lock")).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path().join("deep"), Some(1001), None).unwrap();
            let told = format!("{:#}", file.update(|_| Ok::<_, HostError>(())).unwrap_err());
            assert!(told.contains("user 1001"), "{told}");
            std::os::unix::fs::chown(dir.path().join("deep"), Some(0), None).unwrap();
        }
        std::fs::write(&file.path, "{").unwrap();
        assert!(file.pools().is_err());
    }
}
