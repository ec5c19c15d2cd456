//! Files with the configurations of pools, of which the property `cachefile` names one: OpenZFS's `zpool import -c` and `zdb -U` read them.
//!
//! ```text
//! zpool.cache   packed nvlist (XDR here; the kernel's are native)
//! └ POOL        the configuration, as the MOS has it, with paths where the devices are: version, name, state, pool_guid, vdev_tree, ...
//! ```
//! Several pools share a file, also ones that OpenZFS put there: what is not the pool's own stays as it is. A file that is anything else
//! is not written over. It is written under the lock of the user's list of imported pools.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use cenote_format::ids::Guid;
use cenote_format::nvlist::{NvList, NvValue};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::HostError;
use crate::error::At as _;
use crate::folders::own_folder;

type Result<T> = std::result::Result<T, HostError>;

/// Bytes of a file at most: OpenZFS's of thousands of vdevs have a few MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The place where it is noted that a pool is imported, by the property `cachefile`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheSetting {
    /// The user's list.
    #[default]
    List,
    /// The user's list, until the system is started anew.
    UntilBoot,
    /// The same, and a file that `zpool import -c` finds it by after that.
    File(PathBuf),
}

impl CacheSetting {
    /// From the property's value.
    ///
    /// # Errors
    /// It is none, or there is no such folder.
    pub fn parse(value: &str) -> Result<Self> {
        let invalid = |what: String| Err(HostError::Setting(what));
        match value {
            "" => return Ok(Self::List),
            "none" => return Ok(Self::UntilBoot),
            _ if !value.starts_with('/') => {
                return invalid("property 'cachefile' must be empty, an absolute path, or 'none'".into());
            }
            _ => {}
        }
        let (folder, name) = value.rsplit_once('/').unwrap_or(("", value));
        if ["", ".", ".."].contains(&name) {
            return invalid(format!("'{value}' is not a valid file"));
        }
        if !folder.is_empty() && !Path::new(folder).is_dir() {
            return invalid(format!("'{folder}' is not a valid directory"));
        }
        Ok(Self::File(value.into()))
    }

    /// The same of an import or a new pool, for which the property may not be given. As OpenZFS has it, a pool with an alternate root is for now,
    /// unless a place is named.
    pub fn of_import(named: Option<&str>, has_root: bool) -> Result<Self> {
        Self::parse(named.unwrap_or(if has_root { "none" } else { "" }))
    }

    /// Refuses a file that a configuration cannot be put into, before something is done that is to be noted there.
    ///
    /// # Errors
    /// It is something else, or this user cannot write it.
    pub fn check_writable(&self) -> Result<()> {
        let Self::File(path) = self else { return Ok(()) };
        ConfigFile::at(path).check_writable()
    }
}

/// A pool in such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPool {
    /// Its guid.
    pub guid: Guid,
    /// The devices of its vdevs.
    pub paths: Vec<PathBuf>,
}

/// A file with configurations.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
}

impl ConfigFile {
    /// The file of this name.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The pools in it.
    ///
    /// # Errors
    /// It cannot be read, or has something else.
    pub fn pools(&self) -> Result<Vec<ListedPool>> {
        let configs = self.read()?.ok_or_else(|| HostError::Io {
            path: self.path.clone(),
            error: io::Error::from(io::ErrorKind::NotFound),
        })?;
        let pool = |(_, config): (_, &NvValue)| {
            let NvValue::Nvlist(config) = config else { return None };
            let mut paths = Vec::new();
            config.list("vdev_tree").iter().for_each(|tree| add_paths(tree, &mut paths));
            Some(ListedPool { guid: Guid(config.u64("pool_guid")?), paths })
        };
        Ok(configs.iter().filter_map(pool).collect())
    }

    /// Its content; none if it is not there.
    fn read(&self) -> Result<Option<NvList>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).at(&self.path),
        };
        let wrong = || HostError::Content {
            path: self.path.clone(),
            what: "it has something else than configurations of pools (a 'cachefile')".into(),
        };
        // Neither a pipe, which would be waited for, nor a device.
        if !file.metadata().at(&self.path)?.is_file() {
            return Err(wrong());
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).at(&self.path)?;
        // OpenZFS empties one where it cannot remove it.
        if bytes.is_empty() {
            return Ok(Some(NvList::new()));
        }
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(wrong());
        }
        let list = NvList::parse(&bytes).map_err(|_| wrong())?;
        let is_config = |value: &NvValue| matches!(value, NvValue::Nvlist(config) if config.has("pool_guid"));
        if list.iter().all(|(_, value)| is_config(value)) { Ok(Some(list)) } else { Err(wrong()) }
    }

    fn folder(&self) -> Result<(File, &OsStr)> {
        let no_name = || HostError::Content { path: self.path.clone(), what: "no name of a file".into() };
        let name = self.path.file_name().ok_or_else(no_name)?;
        Ok((own_folder(self.path.parent().unwrap_or_else(|| Path::new("")))?, name))
    }

    fn check_writable(&self) -> Result<()> {
        self.read()?;
        let (folder, name) = self.folder()?;
        drop(fresh(&folder, name, &self.path)?);
        unlinkat(&folder, fresh_name(name), AtFlags::empty()).at(&self.path)
    }

    /// Puts a pool's configuration into it, in place of what it has of that pool.
    pub(crate) fn put(&self, guid: Guid, config: &NvList) -> Result<()> {
        let name = config.str("name").unwrap_or_default().to_owned();
        let mut list = self.without(guid, Some(&name))?;
        list.push(name.as_str(), NvValue::Nvlist(config.clone()));
        self.write(&list)
    }

    /// Takes a pool out of it. The file goes with the last.
    pub(crate) fn forget(&self, guid: Guid) -> Result<()> {
        match self.read() {
            // A file of others by now, or in a folder that is gone: it is not ours to mend.
            Ok(None) | Err(HostError::Content { .. }) => return Ok(()),
            Ok(Some(_)) => {}
            Err(error) => return Err(error),
        }
        let list = self.without(guid, None)?;
        if !list.is_empty() {
            return self.write(&list);
        }
        let (folder, name) = self.folder()?;
        unlinkat(&folder, name, AtFlags::empty()).at(&self.path)
    }

    /// Its pools but this one, be it known by its name alone.
    fn without(&self, guid: Guid, name: Option<&str>) -> Result<NvList> {
        let mut list = NvList::new();
        for (other, value) in self.read()?.unwrap_or_default().iter() {
            let is_it = matches!(value, NvValue::Nvlist(config) if config.u64("pool_guid") == Some(guid.0));
            let has_its_name = name.is_some_and(|name| other.as_str() == Some(name));
            if !is_it && !has_its_name {
                list.push(other.clone(), value.clone());
            }
        }
        Ok(list)
    }

    fn write(&self, list: &NvList) -> Result<()> {
        let (folder, name) = self.folder()?;
        replace(&folder, name, &list.emit_xdr(), &self.path)
    }
}

fn add_paths(vdev: &NvList, paths: &mut Vec<PathBuf>) {
    paths.extend(vdev.str("path").map(PathBuf::from));
    vdev.lists("children").into_iter().flatten().for_each(|child| add_paths(child, paths));
}

fn fresh_name(name: &OsStr) -> std::ffi::OsString {
    let mut fresh = name.to_owned();
    fresh.push(".new");
    fresh
}

/// A new file beside the one of this name.
fn fresh(folder: &File, name: &OsStr, at: &Path) -> Result<File> {
    let fresh = fresh_name(name);
    // One that is there is a killed command's, or a link that somebody would have written through.
    match unlinkat(folder, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error).at(at),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(folder, &fresh, flags, Mode::from_raw_mode(0o644)).at(at)?))
}

/// Replaces a file whole: a reader sees the old or the new one.
pub(crate) fn replace(folder: &File, name: &OsStr, bytes: &[u8], at: &Path) -> Result<()> {
    let mut file = fresh(folder, name, at)?;
    file.write_all(bytes).at(at)?;
    // A power cut must not leave the name with nothing in it.
    file.sync_all().at(at)?;
    renameat(folder, fresh_name(name), folder, name).at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, guid: u64, path: &str) -> NvList {
        let (mut config, mut tree, mut leaf) = (NvList::new(), NvList::new(), NvList::new());
        leaf.push("path", path);
        tree.push("children", NvValue::NvlistArray(vec![leaf]));
        config.push("name", name);
        config.push("pool_guid", guid);
        config.push("vdev_tree", NvValue::Nvlist(tree));
        config
    }

    #[test]
    fn a_file_has_each_of_its_pools_once_and_goes_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let file = ConfigFile::at(&path);
        assert!(file.pools().is_err(), "it is not there");
        file.put(Guid(1), &config("one", 1, "/a")).unwrap();
        file.put(Guid(2), &config("two", 2, "/b")).unwrap();
        file.put(Guid(1), &config("uno", 1, "/c")).unwrap();
        file.put(Guid(3), &config("two", 3, "/d")).unwrap();
        let listed = |guid, path: &str| ListedPool { guid: Guid(guid), paths: vec![path.into()] };
        assert_eq!(file.pools().unwrap(), [listed(1, "/c"), listed(3, "/d")]);
        file.forget(Guid(2)).unwrap();
        file.forget(Guid(1)).unwrap();
        assert_eq!(file.pools().unwrap(), [listed(3, "/d")]);
        file.forget(Guid(3)).unwrap();
        assert!(!path.exists());
        file.forget(Guid(3)).unwrap();
    }

    #[test]
    fn what_is_no_file_of_configurations_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        let file = ConfigFile::at(&path);
        let mut other = NvList::new();
        other.push("name", "x");
        for bytes in [b"root:x:0".to_vec(), other.emit_xdr()] {
            std::fs::write(&path, &bytes).unwrap();
            assert!(CacheSetting::File(path.clone()).check_writable().is_err());
            assert!(file.put(Guid(1), &config("one", 1, "/a")).is_err());
            file.forget(Guid(1)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        std::fs::write(&path, "").unwrap();
        CacheSetting::File(path.clone()).check_writable().unwrap();
        file.put(Guid(1), &config("one", 1, "/a")).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn values_of_the_property_are_openzfs_own() {
        assert_eq!(CacheSetting::parse("").unwrap(), CacheSetting::List);
        assert_eq!(CacheSetting::parse("none").unwrap(), CacheSetting::UntilBoot);
        assert_eq!(CacheSetting::parse("/x").unwrap(), CacheSetting::File("/x".into()));
        for (wrong, why) in [
            ("x", "property 'cachefile' must be empty, an absolute path, or 'none'"),
            ("/", "'/' is not a valid file"),
            ("/tmp/..", "'/tmp/..' is not a valid file"),
            ("/there/is/none", "'/there/is' is not a valid directory"),
        ] {
            assert_eq!(CacheSetting::parse(wrong).unwrap_err().to_string(), why);
        }
    }
}
