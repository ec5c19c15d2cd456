//! File systems at their mount points, read-only: `zfs mount`.
//!
//! A pool in image files may come from a stranger, but its mount points are directories of this system. So they are used only below an alternate
//! root, or if the caller says so; and a symbolic link may not lead out of that root.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use cenote_dsl::name::{is_at_or_below, pool_of};
use cenote_fuse::{Layout, MountHandle, MountOptions};
use cenote_host::device_paths;
use cenote_host::owners::Reading;
use cenote_props::WrongUse;
use cenote_spa::View;
use cenote_taskq::boxed;
use signal_hook::iterator::Signals;

use super::{note_reading, parse_options, report};
use crate::background::Going;
use crate::error::{Context as _, Result};
use crate::{Session, ending};

/// A file system that may be mounted, with the values of its properties as texts.
#[derive(Clone)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its pool.
    pub pool: &'a View,
    /// It is only partly received.
    pub is_inconsistent: bool,
    /// `mounted`: yes or no.
    pub mounted: String,
    /// `canmount`: on, off or noauto.
    pub canmount: String,
    /// `keystatus`: available, unavailable, or empty.
    pub keystatus: String,
    /// `mountpoint`: a path, none or legacy.
    pub mountpoint: String,
    /// `overlay`: on or off.
    pub overlay: String,
}

/// The place of a mount.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    at: PathBuf,
    /// The mount may hide a directory that is not empty.
    is_overlay: bool,
}

/// The reason why a file system is not mounted.
#[derive(Debug)]
enum NoPlace {
    /// It is not meant to be mounted: if all are mounted, it is skipped.
    NotMeant(String),
    /// It is a fault.
    Fault(String),
}

/// File systems mounted one after the other.
pub struct MountPoints<'a> {
    session: &'a Session,
    options: MountOptions,
    /// Mount all that may be mounted (`-a`).
    is_all: bool,
    /// Use mount points as they are, even of pools in image files, and directories that are not empty (`-O`).
    is_overlay: bool,
    is_verbose: bool,
    mounts: Vec<(String, Arc<MountHandle>)>,
    /// For each pool seen: true if it is in image files.
    of_files: BTreeMap<String, bool>,
    has_failed: bool,
    /// The records that this process shows these pools.
    notes: Vec<Reading>,
}

impl<'a> MountPoints<'a> {
    /// Without mounts yet. `lists` are mount options; `is_tree`: mounts include the file systems below theirs.
    pub fn new(
        session: &'a Session,
        lists: &[String],
        (is_all, is_tree, is_overlay, is_verbose): (bool, bool, bool, bool),
    ) -> Result<Self, WrongUse> {
        let mut options = parse_options(lists)?;
        options.layout = if is_tree { Layout::Mountpoints } else { Layout::Alone };
        let (mounts, of_files) = (Vec::new(), BTreeMap::new());
        Ok(Self {
            session,
            options,
            is_all,
            is_overlay,
            is_verbose,
            mounts,
            of_files,
            has_failed: false,
            notes: Vec::new(),
        })
    }

    /// Reports a file system that cannot be mounted. Others are still mounted.
    pub fn failed(&mut self, name: &str, error: &str) {
        self.session.warn(format!("cannot mount '{name}': {error}"));
        self.has_failed = true;
    }

    /// Mounts a file system, unless the mount of an ancestor already shows it.
    ///
    /// # Errors
    /// Its pool is no longer found. Other failures are reported.
    #[boxed]
    pub async fn add(&mut self, candidate: &Candidate<'_>) -> Result<()> {
        let name = candidate.name;
        let Some(Place { at, is_overlay }) = self.allowed_place(candidate).await? else { return Ok(()) };
        // A file system that the mount of an ancestor shows needs no mount of its own.
        let is_shown = |(above, mount): &(String, Arc<MountHandle>)| {
            name != above && is_at_or_below(name, above) && at.starts_with(mount.mountpoint())
        };
        if self.mounts.iter().any(is_shown) {
            return Ok(());
        }
        if !self.may_hide(name, &at, is_overlay) {
            return Ok(());
        }
        // From its first mount on, this process uses the pool.
        if !self.mounts.iter().any(|(other, _)| pool_of(other) == pool_of(name)) {
            self.notes.extend(note_reading(self.session, candidate.pool).await);
        }
        match self.mount(candidate, &at).await {
            Ok(mount) => {
                if self.is_verbose {
                    self.session.warn(format!("'{name}' is mounted at {}", mount.mountpoint().display()));
                }
                self.mounts.push((name.to_owned(), Arc::new(mount)));
            }
            Err(error) => self.failed(name, &error.chain()),
        }
        Ok(())
    }

    /// The folder on which another process is to mount a file system; it is created if missing. `None` if it cannot be mounted, which is
    /// reported.
    ///
    /// # Errors
    /// Its pool is no longer found, or the folder cannot be created.
    #[boxed]
    pub async fn folder(&mut self, candidate: &Candidate<'_>) -> Result<Option<PathBuf>> {
        let Some(Place { at, is_overlay }) = self.allowed_place(candidate).await? else { return Ok(None) };
        if !self.may_hide(candidate.name, &at, is_overlay) {
            return Ok(None);
        }
        make_folder(&at)?;
        Ok(Some(at))
    }

    /// True if a mount may hide a folder; otherwise that is reported. Called only if no mount shows the file system there.
    fn may_hide(&mut self, name: &str, at: &Path, is_overlay: bool) -> bool {
        let is_full = !is_overlay && fs::read_dir(at).is_ok_and(|mut entries| entries.next().is_some());
        if is_full {
            self.failed(name, "directory is not empty");
        }
        !is_full
    }

    /// The place of a file system. `None` if it has none, which is reported unless it is not meant to be mounted.
    async fn allowed_place(&mut self, candidate: &Candidate<'_>) -> Result<Option<Place>> {
        let name = candidate.name;
        let pool = pool_of(name);
        let (is_of_files, is_first) = match self.of_files.get(pool) {
            Some(is_of_files) => (*is_of_files, false),
            None => (is_of_files(self.session, pool).await?, true),
        };
        self.of_files.insert(pool.to_owned(), is_of_files);
        if is_of_files && !self.is_overlay && candidate.pool.altroot().is_none() {
            if is_first {
                let why = "the pool is in image files, and its mount points are not taken on its word: --altroot DIR puts them below DIR, \
                           -O takes them as they are";
                self.failed(pool, why);
            }
            return Ok(None);
        }
        match self.place(candidate, is_of_files) {
            Ok(place) => Ok(Some(place)),
            // As OpenZFS does.
            Err(NoPlace::NotMeant(_)) if self.is_all => Ok(None),
            Err(NoPlace::NotMeant(why) | NoPlace::Fault(why)) => {
                self.failed(name, &why);
                Ok(None)
            }
        }
    }

    async fn mount(&self, candidate: &Candidate<'_>, at: &Path) -> Result<MountHandle> {
        make_folder(at)?;
        let (handle, report) = (self.session.handle(), report(self.session));
        Ok(cenote_fuse::mount(handle, candidate.pool, candidate.name, at, &self.options, report).await?)
    }

    /// The mount point of a file system.
    fn place(&self, candidate: &Candidate<'_>, is_of_files: bool) -> Result<Place, NoPlace> {
        let not_meant = |text: &str| Err(NoPlace::NotMeant(text.to_owned()));
        if candidate.mounted == "yes" {
            return not_meant("filesystem already mounted");
        }
        match candidate.canmount.as_str() {
            "off" => return not_meant("'canmount' property is set to 'off'"),
            "noauto" if self.is_all => return not_meant("'canmount' property is set to 'noauto'"),
            _ => {}
        }
        if candidate.keystatus == "unavailable" {
            return not_meant("encryption key not loaded; give it with --key DATASET=FILE");
        }
        if candidate.is_inconsistent {
            return not_meant("it is half-received");
        }
        match candidate.mountpoint.as_str() {
            "none" => return not_meant("no mountpoint set"),
            "legacy" => {
                let how = format!("legacy mountpoint; 'cenote mount {} DIR' mounts it anywhere", candidate.name);
                return not_meant(&how);
            }
            "/" => return Err(NoPlace::Fault("its mount point is '/'; --altroot DIR puts it elsewhere".into())),
            _ => {}
        }
        let at = PathBuf::from(&candidate.mountpoint);
        if at.components().any(|part| part == Component::ParentDir) {
            return Err(NoPlace::Fault(format!("its mount point '{}' leads up", at.display())));
        }
        if let Some(root) = candidate.pool.altroot().filter(|_| is_of_files)
            && leads_out(Path::new(root), &at)
        {
            let why = format!("a link leads from its mount point '{}' out of the alternate root", at.display());
            return Err(NoPlace::Fault(why));
        }
        let is_overlay = self.is_overlay || (!is_of_files && candidate.overlay == "on");
        Ok(Place { at, is_overlay })
    }

    /// Serves the mounts until they have ended, or a signal ends them. True if all could be mounted, and the caller had no other failure
    /// (`has_failed`).
    ///
    /// # Errors
    /// The caller that waits for the mounts has ended, or a mount ended with an error.
    pub async fn serve(self, going: &Going, signals: Signals, has_failed: bool) -> Result<bool> {
        let is_good = !self.has_failed && !has_failed;
        let console = self.session.console();
        let described = match &self.mounts[..] {
            [] => {
                if is_good && going.options().background {
                    console.warn("nothing is to be mounted");
                }
                return Ok(is_good);
            }
            [(name, mount)] => format!("'{name}' is at {},", mount.mountpoint().display()),
            mounts => format!("{} file systems are", mounts.len()),
        };
        let only = if let [(_, mount)] = &self.mounts[..] { Some(mount.mountpoint()) } else { None };
        let end = going.options().unmount(only);
        console.warn(&format!("{described} mounted read-only ('-o rw' mounts one to be written); {end}"));
        going.ready(&**console)?;
        let mounts: Vec<_> = self.mounts.into_iter().map(|(_, mount)| mount).collect();
        ending::wait_for(self.session.handle(), &**console, &mounts, signals).await?;
        Ok(is_good)
    }
}

/// Creates a folder to mount on. For a dead mount there, mounting reports how to remove it.
fn make_folder(at: &Path) -> Result<()> {
    match fs::create_dir_all(at) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        made => made.with_context(|| at.display()),
    }
}

/// True for a pool in image files, which may come from a stranger.
async fn is_of_files(session: &Session, pool: &str) -> Result<bool> {
    let (found, _) = session.locate(pool).await?;
    Ok(device_paths(&found)?.iter().any(|path| path.is_file()))
}

/// True if a symbolic link leads from a mount point out of the alternate root: a file system already mounted there may contain such links.
fn leads_out(root: &Path, at: &Path) -> bool {
    let Some(there) = at.ancestors().find(|path| path.symlink_metadata().is_ok()) else { return false };
    match (root.canonicalize(), there.canonicalize()) {
        (Ok(root), Ok(real)) => !real.starts_with(&root),
        (Err(_), _) => false,
        (Ok(_), Err(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_out_of_the_alternate_root_is_found_and_one_within_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("in")).unwrap();
        std::os::unix::fs::symlink("/tmp", root.join("out")).unwrap();
        std::os::unix::fs::symlink("in", root.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
        for (at, is_out) in
            [("in/a/b", false), ("new", false), ("link/a", false), ("out/a", true), ("dangling/a", true)]
        {
            assert_eq!(leads_out(&root, &root.join(at)), is_out, "{at}");
        }
        assert!(!leads_out(&folder.path().join("missing"), &folder.path().join("missing/a")));
    }
}
