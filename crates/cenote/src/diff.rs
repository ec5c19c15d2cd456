//! The changes of a file system between two of its states.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use cenote_dsl::{Dataset as Found, DslError};
use cenote_spa::View;
use cenote_zpl::{Changed, Differences, ZplError};

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Place};
use crate::metadata::{FileKind, system_time};
use crate::pool::Pool;
use crate::pulled::{self, Pulled};
use crate::raise::{Lower as _, Raise as _};
use crate::snapshot::Snapshot;

/// The way in which a file changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Its contents or attributes.
    Modified,
    /// It is new.
    Added,
    /// It was removed.
    Removed,
    /// It has this path now.
    Renamed(PathBuf),
    /// It has this many more names, or fewer.
    Links(i64),
}

/// A file that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Its path, from the root directory of the file system; of one that was renamed, the former.
    pub path: PathBuf,
    /// Its kind.
    pub file_kind: FileKind,
    /// The way in which it changed.
    pub kind: ChangeKind,
    /// The time of its last change.
    pub changed: SystemTime,
}

/// The changes of a file system (`zfs diff`), found while they are taken.
///
/// ```
/// # use cenote::{CreateOptions, Error, Runtime};
/// # fn main() -> Result<(), Error> {
/// # let runtime = Runtime::simulated(1);
/// # runtime.add_disk("/a", 128 << 20);
/// # runtime.block_on(async {
/// # let pool = CreateOptions::new(["/a"]).create(&runtime, "tank").await?;
/// # let home = pool.create_filesystem("tank/home", &[]).await?;
/// let monday = home.snapshot("monday").await?;
/// home.filesystem().await?.write("/note", "water the plants").await?;
/// let mut changes = home.changes_since(&monday).await?;
/// let mut paths = Vec::new();
/// while let Some(change) = changes.next().await? {
///     paths.push(change.path);
/// }
/// assert_eq!(paths, [std::path::Path::new("/"), "/note".as_ref()]);
/// # pool.export().await
/// # })
/// # }
/// ```
pub struct Changes {
    pulled: Pulled<VecDeque<Change>, ()>,
    unreadable: pulled::Found<Vec<String>>,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

impl Snapshot {
    /// The changes from an earlier snapshot, of the same file system or of the origin of a clone, to this one.
    ///
    /// # Errors
    /// [`Misuse`](ErrorKind::Misuse): the other is no earlier snapshot of it, or it is a volume. [`Key`](ErrorKind::Key).
    pub async fn changes_since(&self, earlier: &Self) -> Result<Changes, Error> {
        self.pool().changes(earlier.name(), self.name()).await
    }
}

impl Dataset {
    /// The changes from a snapshot to the present state, as of a txg that is written for this.
    ///
    /// # Errors
    /// As [`Snapshot::changes_since`].
    pub async fn changes_since(&self, earlier: &Snapshot) -> Result<Changes, Error> {
        self.pool().changes(earlier.name(), self.name()).await
    }
}

impl Pool {
    async fn changes(&self, from: &str, to: &str) -> Result<Changes, Error> {
        let view = self.view().await?;
        let (earlier, later) = (view.dsl().dataset(from).await.raised()?, view.dsl().dataset(to).await.raised()?);
        if !view.dsl().is_before(&earlier, &later).await.raised()? {
            return Err(Error::misuse(format!("'{from}' is not an earlier snapshot of '{to}'")).of_dataset(to));
        }
        let (files, since) = (files(&view, &earlier).await?, earlier.phys.creation_txg);
        let later_files = self::files(&view, &later).await?;
        let (found, unreadable) = (pulled::Found::new(), pulled::Found::new());
        let mut collector = Collector { found: found.clone(), unreadable: unreadable.clone() };
        let names = (earlier.name(), later.name());
        let future = Box::pin(async move {
            let done =
                cenote_zpl::diff((names.0, &files), (names.1, &later_files), since, &mut collector).await.raised();
            // Objects that cannot be read are those that were freed, if the pool has given the view up.
            view.check().raised()?;
            done
        });
        Ok(Changes { pulled: Pulled::new(found, future), unreadable })
    }
}

async fn files(view: &View, dataset: &Found) -> Result<cenote_zpl::FileSystem, Error> {
    let (dsl, name) = (view.dsl(), dataset.name());
    if dsl.encryption(&dataset.dir).await.raised()?.is_some_and(|encryption| !encryption.is_loaded) {
        return Err(DslError::KeyNotLoaded(name).raise());
    }
    if dsl.kind(dataset).await.raised()? == cenote_format::enums::ObjsetType::Zvol {
        return Err(Error::misuse(format!("'{name}' is a volume, which has no files to compare")).of_dataset(&name));
    }
    let objset = dsl
        .open_for_clients(dataset)
        .await
        .raised()?
        .ok_or_else(|| Error::misuse(format!("'{name}' has no contents")))?;
    cenote_zpl::FileSystem::open(objset).await.raised().map_err(|error| error.of_dataset(&name))
}

impl Changes {
    /// The next change, in the order of the files' numbers; none at the end.
    ///
    /// # Errors
    /// A state cannot be read at all; or, after all changes, [`Corrupt`](ErrorKind::Corrupt): some files could not be compared, and the message
    /// says which.
    pub async fn next(&mut self) -> Result<Option<Change>, Error> {
        if let Some(change) = self.pulled.next(VecDeque::pop_front).await? {
            return Ok(Some(change));
        }
        let unreadable = self.unreadable.put(std::mem::take);
        match unreadable.is_empty() {
            true => Ok(None),
            false => Err(Error::new(ErrorKind::Corrupt, Place::default(), unreadable.join("\n"))),
        }
    }
}

/// Collects changes.
struct Collector {
    found: pulled::Found<VecDeque<Change>>,
    unreadable: pulled::Found<Vec<String>>,
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

impl Differences for Collector {
    type Error = ZplError;

    fn changed(&mut self, changed: &Changed<'_>) -> Result<(), ZplError> {
        use cenote_zpl::Change as How;
        let kind = match changed.change {
            How::Modified => ChangeKind::Modified,
            How::Added => ChangeKind::Added,
            How::Removed => ChangeKind::Removed,
            How::Renamed(to) => ChangeKind::Renamed(path(to)),
            How::Links(more) => {
                ChangeKind::Links(i64::try_from(more).unwrap_or(if more < 0 { i64::MIN } else { i64::MAX }))
            }
        };
        let change = Change {
            path: path(changed.path),
            file_kind: FileKind::of(changed.kind),
            kind,
            changed: system_time(changed.at),
        };
        self.found.put(|found| found.push_back(change));
        Ok(())
    }

    fn unreadable(&mut self, what: String) {
        self.unreadable.put(|unreadable| unreadable.push(what));
    }
}
