//! Describing a folder as a golden manifest describes a file system, to compare a mount or a copy with it.
//!
//! The order is that of the manifests: the root as `.`, then each folder's entries sorted by name, folders entered after the list they
//! stand in. Attributes that the folder's file system does not know (project ids, `chattr` bits) are not in the description.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::compare::{Options, Report, compare};
use crate::manifest::hex;

/// Files larger than this are described by their data segments instead of one hash.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// Largest list of names, and value, that Linux allows an extended attribute.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The entries of a folder, as a manifest's `entries`.
pub fn entries(root: &Path) -> Result<Value> {
    let mut out = vec![entry(root, b".").with_context(|| format!("cannot look at {}", root.display()))?];
    let mut todo = vec![Vec::new()];
    while let Some(folder) = todo.pop() {
        let path = root.join(std::ffi::OsStr::from_bytes(&folder));
        let mut names = Vec::new();
        for item in fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
            names.push(item?.file_name().into_vec());
        }
        names.sort();
        let mut folders = Vec::new();
        for name in names {
            let relative = if folder.is_empty() { name } else { [&folder[..], b"/", &name].concat() };
            let path = root.join(std::ffi::OsStr::from_bytes(&relative));
            let entry = entry(&path, &relative).with_context(|| format!("cannot look at {}", path.display()))?;
            if entry["type"] == "d" {
                folders.push(relative);
            }
            out.push(entry);
        }
        todo.extend(folders.into_iter().rev());
    }
    Ok(Value::Array(out))
}

/// Compares what [`entries`] found in a mount of a dataset with the manifest's `entries` of it.
///
/// Values that differ between any two mounts are not compared: the mount's own part of inode numbers, when `.zfs` came to be, and the
/// entries of a snapshot's folder before somebody enters it. Nor are attributes that `stat` does not tell.
pub fn compare_mount(dataset: &str, expected: &Value, found: &Value) -> Report {
    let account = |entries: &Value| {
        let mut entries = entries.clone();
        entries.as_array_mut().into_iter().flatten().for_each(without_mount);
        json!({"datasets": {dataset: {"entries": entries}}})
    };
    let ignore = ["projid", "flags"].map(str::to_owned).into_iter().collect();
    compare(&account(expected), &account(found), &Options { ignore, ..Options::default() })
}

/// Takes out of an entry what differs between any two mounts.
fn without_mount(entry: &mut Value) {
    // The slot above the object number, in nested datasets and snapshots.
    if let Some(number) = entry["ino"].as_u64() {
        entry["ino"] = json!(number & 0xffff_ffff_ffff);
    }
    let path = entry["path"].as_str().unwrap_or_default().to_owned();
    let Some(object) = entry.as_object_mut() else { return };
    if [".zfs", ".zfs/shares"].contains(&&*path) {
        // The time of mounting.
        object.retain(|key, _| !["mtime", "ctime"].contains(&key.as_str()));
    }
    if path.strip_prefix(".zfs/snapshot/").is_some_and(|rest| !rest.contains('/')) {
        // OpenZFS mounts a snapshot when it is entered, and the manifest has what is there before.
        object.retain(|key, _| ["path", "type", "ino"].contains(&key.as_str()));
    }
}

/// The SHA-256 of a whole file, in hex.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let size_bytes = file.metadata()?.len();
    hash(&mut file, 0, size_bytes).with_context(|| format!("cannot read {}", path.display()))
}

fn entry(path: &Path, relative: &[u8]) -> io::Result<Value> {
    let metadata = fs::symlink_metadata(path)?;
    let kind = kind(&metadata);
    let mut entry = Map::new();
    entry.insert("path".to_owned(), name(relative));
    entry.insert("type".to_owned(), json!(kind));
    entry.insert("ino".to_owned(), json!(metadata.ino()));
    entry.insert("mode".to_owned(), json!(format!("{:04o}", metadata.mode() & 0o7777)));
    entry.insert("uid".to_owned(), json!(metadata.uid()));
    entry.insert("gid".to_owned(), json!(metadata.gid()));
    entry.insert("nlink".to_owned(), json!(metadata.nlink()));
    entry.insert("size".to_owned(), json!(metadata.size()));
    entry.insert("blocks".to_owned(), json!(metadata.blocks()));
    entry.insert("mtime".to_owned(), json!(format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec())));
    entry.insert("ctime".to_owned(), json!(format!("{}.{:09}", metadata.ctime(), metadata.ctime_nsec())));
    match kind {
        "c" | "b" => {
            let device = metadata.rdev();
            entry.insert("rdev".to_owned(), json!([rustix::fs::major(device), rustix::fs::minor(device)]));
        }
        "l" => {
            entry.insert("target".to_owned(), name(fs::read_link(path)?.as_os_str().as_bytes()));
        }
        "f" => {
            let content = content(path, metadata.size());
            match content {
                Ok((key, value)) => entry.insert(key.to_owned(), value),
                // Python's words for it, which the manifests have: the system's, without the number.
                Err(error) => entry.insert("error".to_owned(), json!(words(&error))),
            };
        }
        _ => {}
    }
    let xattrs = xattrs(path)?;
    if !xattrs.is_empty() {
        entry.insert("xattrs".to_owned(), Value::Object(xattrs));
    }
    Ok(Value::Object(entry))
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_file() {
        "f"
    } else if kind.is_dir() {
        "d"
    } else if kind.is_symlink() {
        "l"
    } else if kind.is_fifo() {
        "p"
    } else if kind.is_socket() {
        "s"
    } else if kind.is_char_device() {
        "c"
    } else {
        "b"
    }
}

fn name(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"hex": hex(bytes)}),
    }
}

/// `sha256` of the whole, or `data` with the segments of a large file.
fn content(path: &Path, size_bytes: u64) -> io::Result<(&'static str, Value)> {
    let mut file = File::open(path)?;
    if size_bytes <= WHOLE_BYTES_MAX {
        return Ok(("sha256", json!(hash(&mut file, 0, size_bytes)?)));
    }
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let begin = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // No data after this.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(begin))?;
        segments.push(json!([begin, end - begin, hash(&mut file, begin, end - begin)?]));
        at = end;
    }
    Ok(("data", Value::Array(segments)))
}

fn hash(file: &mut File, offset_bytes: u64, len_bytes: u64) -> io::Result<String> {
    file.seek(SeekFrom::Start(offset_bytes))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    let mut left = len_bytes;
    while left > 0 {
        let want = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = file.read(&mut chunk[..want])?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before its size"));
        }
        hash.update(&chunk[..count]);
        left -= count as u64;
    }
    Ok(hex(&hash.finalize()))
}

fn xattrs(path: &Path) -> io::Result<Map<String, Value>> {
    let mut names = vec![0u8; XATTR_BYTES_MAX];
    let len = match llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(Map::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Map::new();
    let mut value = vec![0u8; XATTR_BYTES_MAX];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let len = lgetxattr(path, name, &mut value)?;
        found.insert(String::from_utf8_lossy(name).into_owned(), json!(hex(&value[..len])));
    }
    Ok(found)
}

fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.clone(), |(words, _)| words.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_folder_is_described_in_the_manifests_words() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("b")).unwrap();
        fs::write(root.join("b/in"), b"abc").unwrap();
        fs::set_permissions(root.join("b/in"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::hard_link(root.join("b/in"), root.join("a")).unwrap();
        symlink("b/in", root.join("c")).unwrap();
        fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff")), b"").unwrap();
        let entries = entries(root).unwrap();
        let entries = entries.as_array().unwrap();
        let paths: Vec<&Value> = entries.iter().map(|entry| &entry["path"]).collect();
        assert_eq!(paths, [&json!("."), &json!("a"), &json!("b"), &json!("c"), &json!({"hex": "ff"}), &json!("b/in")]);
        assert_eq!(entries[1]["mode"], "4711");
        assert_eq!(entries[1]["nlink"], 2);
        assert_eq!(entries[1]["sha256"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(entries[3]["target"], "b/in");
        assert_eq!(entries[3]["type"], "l");
        assert_eq!(entries[1]["ino"], entries[5]["ino"]);
    }

    #[test]
    fn a_large_file_is_described_by_its_data_segments() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("large")).unwrap();
        io::Write::write_all(&mut file, &[1; 4096]).unwrap();
        file.set_len(WHOLE_BYTES_MAX + 1).unwrap();
        drop(file);
        let entries = entries(dir.path()).unwrap();
        let segments = entries[1]["data"].as_array().unwrap();
        assert_eq!(segments[0][0], 0);
        assert!(entries[1].get("sha256").is_none());
        // Where the file system keeps no holes there is one segment; either way the first data is where it was written.
        assert!(segments.iter().all(|segment| segment[2].is_string()));
    }
}
