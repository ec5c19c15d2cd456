//! `cenote_filesystem` and `cenote_dir`: files and directories by their paths.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use cenote::{FileKind, FileSystem, Metadata, ReadDir};

use crate::border::{Buffer, Data, Give, GiveText, In, Out, Text};
use crate::fault::Fault;
use crate::locked;
use crate::pool::PoolHandle;
use crate::runtime::wait;

type Done = Result<(), Fault>;

/// A file system that is open.
pub(crate) struct Files(pub(crate) FileSystem);

/// A listing of a directory.
pub(crate) struct Dir(Mutex<ReadDir>);

/// A time: `cenote_time`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct CTime {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
    pub(crate) reserved: u32,
}

/// Attributes of a file: `cenote_metadata`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CMetadata {
    pub(crate) object: u64,
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) allocated: u64,
    pub(crate) links: u64,
    pub(crate) kind: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) accessed: CTime,
    pub(crate) modified: CTime,
    pub(crate) changed: CTime,
    pub(crate) created: CTime,
}

/// The number of a kind: `enum cenote_file_kind`.
pub(crate) fn number(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Pipe => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
    }
}

pub(crate) fn c_time(time: SystemTime) -> CTime {
    let (seconds, nanoseconds) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
        Err(before) => {
            // Nanoseconds count forwards, before 1970 too.
            let before = before.duration();
            let whole = 0_i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN);
            match before.subsec_nanos() {
                0 => (whole, 0),
                nanos => (whole.saturating_sub(1), 1_000_000_000 - nanos),
            }
        }
    };
    CTime { seconds, nanoseconds, reserved: 0 }
}

pub(crate) fn c_metadata(found: &Metadata) -> CMetadata {
    CMetadata {
        object: found.object,
        generation: found.generation,
        size: found.len,
        allocated: found.allocated_bytes,
        links: found.links,
        kind: number(found.kind),
        mode: found.mode,
        uid: found.uid,
        gid: found.gid,
        accessed: c_time(found.accessed),
        modified: c_time(found.modified),
        changed: c_time(found.changed),
        created: c_time(found.created),
    }
}

pub(crate) fn open(pool: In<PoolHandle>, dataset: Text, filesystem: Give<Files>) -> Done {
    let place = filesystem.get("filesystem")?;
    let opened = wait(pool.get("pool")?.pool.filesystem(dataset.get("dataset")?))?;
    place.give(Files(opened));
    Ok(())
}

pub(crate) fn is_read_only(filesystem: In<Files>) -> bool {
    filesystem.optional().is_some_and(|files| files.0.is_read_only())
}

pub(crate) fn space(filesystem: In<Files>, used: Out<u64>, available: Out<u64>) -> Done {
    let (used, available) = (used.get("used_bytes")?, available.get("available_bytes")?);
    let space = filesystem.get("filesystem")?.0.space();
    let space =
        space.ok_or_else(|| Fault::misuse("the space of a file system that is open read-only is its dataset's"))?;
    used.put(space.used_bytes);
    available.put(space.available_bytes);
    Ok(())
}

pub(crate) fn stat(filesystem: In<Files>, path: Text, follow: bool, metadata: Out<CMetadata>) -> Done {
    let (files, path, place) = (filesystem.get("filesystem")?, path.path("path")?, metadata.get("metadata")?);
    let found = wait(async {
        match follow {
            true => files.0.metadata(path).await,
            false => files.0.symlink_metadata(path).await,
        }
    })?;
    place.put(c_metadata(&found));
    Ok(())
}

pub(crate) fn open_dir(filesystem: In<Files>, path: Text, dir: Give<Dir>) -> Done {
    let place = dir.get("dir")?;
    let listing = wait(filesystem.get("filesystem")?.0.read_dir(path.path("path")?))?;
    place.give(Dir(Mutex::new(listing)));
    Ok(())
}

pub(crate) fn next_entry(dir: In<Dir>, name: GiveText, kind: Out<u32>, object: Out<u64>) -> Done {
    let (name, kind, object) = (name.get("name")?, kind.get("kind")?, object.get("object")?);
    let dir = dir.get("dir")?;
    let Some(entry) = wait(locked(&dir.0).next())? else { return Ok(()) };
    kind.put(entry.kind.map_or(0, number));
    object.put(entry.object);
    name.text(entry.name.as_bytes())
}

pub(crate) fn create_dir(filesystem: In<Files>, path: Text, parents: bool) -> Done {
    let (files, path) = (filesystem.get("filesystem")?, path.path("path")?);
    wait(async {
        match parents {
            true => files.0.create_dir_all(path).await,
            false => files.0.create_dir(path).await,
        }
    })
}

pub(crate) fn remove_file(filesystem: In<Files>, path: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.remove_file(path.path("path")?))
}

pub(crate) fn remove_dir(filesystem: In<Files>, path: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.remove_dir(path.path("path")?))
}

pub(crate) fn rename(filesystem: In<Files>, from: Text, to: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.rename(from.path("from")?, to.path("to")?))
}

pub(crate) fn hard_link(filesystem: In<Files>, file: Text, path: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.hard_link(file.path("file")?, path.path("path")?))
}

pub(crate) fn symlink(filesystem: In<Files>, target: Text, path: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.symlink(target.path("target")?, path.path("path")?))
}

pub(crate) fn read_link(filesystem: In<Files>, path: Text, target: GiveText) -> Done {
    let place = target.get("target")?;
    let found = wait(filesystem.get("filesystem")?.0.read_link(path.path("path")?))?;
    place.text(found.as_os_str().as_bytes())
}

pub(crate) fn set_mode(filesystem: In<Files>, path: Text, mode: u32) -> Done {
    wait(filesystem.get("filesystem")?.0.set_mode(path.path("path")?, mode))
}

pub(crate) fn set_owner(filesystem: In<Files>, path: Text, uid: u32, gid: u32) -> Done {
    wait(filesystem.get("filesystem")?.0.set_owner(path.path("path")?, uid, gid))
}

pub(crate) fn set_modified(filesystem: In<Files>, path: Text, seconds: i64, nanoseconds: u32) -> Done {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    let time = time.filter(|_| nanoseconds < 1_000_000_000);
    let time = time.and_then(|time| time.checked_add(Duration::from_nanos(nanoseconds.into())));
    let time = time.ok_or_else(|| Fault::misuse("no such time"))?;
    wait(filesystem.get("filesystem")?.0.set_modified(path.path("path")?, time))
}

pub(crate) fn get_xattr(
    filesystem: In<Files>,
    path: Text,
    name: Text,
    buffer: Buffer,
    len: usize,
    value_len: Out<usize>,
) -> Done {
    let (files, value_len, mut room) =
        (filesystem.get("filesystem")?, value_len.get("value_len")?, buffer.get(len, "buffer")?);
    let (path, name) = (path.path("path")?, name.get("name")?);
    let Some(value) = wait(files.0.xattr(path, name))? else {
        return Err(Fault::not_found(format!("there is no attribute '{name}'")));
    };
    value_len.put(value.len());
    if value.len() <= room.left() {
        room.put(&value);
    }
    Ok(())
}

pub(crate) fn set_xattr(filesystem: In<Files>, path: Text, name: Text, value: Data, len: usize) -> Done {
    let (files, value) = (filesystem.get("filesystem")?, value.get(len, "value")?);
    wait(files.0.set_xattr(path.path("path")?, name.get("name")?, value))
}

pub(crate) fn remove_xattr(filesystem: In<Files>, path: Text, name: Text) -> Done {
    wait(filesystem.get("filesystem")?.0.remove_xattr(path.path("path")?, name.get("name")?))
}

pub(crate) fn list_xattrs(
    filesystem: In<Files>,
    path: Text,
    buffer: Buffer,
    len: usize,
    names_len: Out<usize>,
) -> Done {
    let (files, names_len, mut room) =
        (filesystem.get("filesystem")?, names_len.get("names_len")?, buffer.get(len, "buffer")?);
    let names = wait(files.0.xattrs(path.path("path")?))?;
    let all: Vec<u8> = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
    names_len.put(all.len());
    if all.len() <= room.left() {
        room.put(&all);
    }
    Ok(())
}

pub(crate) fn sync(filesystem: In<Files>) -> Done {
    wait(filesystem.get("filesystem")?.0.sync())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_count_forwards() {
        let at = |time: SystemTime| (c_time(time).seconds, c_time(time).nanoseconds);
        let half = Duration::from_millis(1500);
        assert_eq!(at(SystemTime::UNIX_EPOCH + half), (1, 500_000_000));
        assert_eq!(at(SystemTime::UNIX_EPOCH - half), (-2, 500_000_000));
        assert_eq!(at(SystemTime::UNIX_EPOCH - Duration::from_secs(2)), (-2, 0));
    }
}
