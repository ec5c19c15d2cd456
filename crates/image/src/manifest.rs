//! `cenote manifest`: the contents of a pool as JSON, the basis for comparing contents.
//!
//! The form is that of the golden pools' manifests: `{"datasets": {NAME: {...}}}` with every file's metadata and the
//! SHA-256 of its content.
//!
//! It is written in one pass: only the names of one directory, the directories still to be listed, and the descriptions of a few files are in
//! memory. Extended attributes of a file beyond [`XATTRS_SHOWN_MAX_BYTES`] are read for one file at a time, and their large values are shown as
//! `{"size": BYTES, "sha256": HASH}` instead of hexadecimal digits.

use std::io::Write;
use std::sync::Arc;

use cenote_dmu::Run;
use cenote_dsl::Dataset;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_spa::View;
use cenote_taskq::{Class, Handle, Semaphore};
use cenote_zpl::{Attributes, Cursor, FileKind, FileSystem, Listed, SpaceKind, ZplError};
use cenote_zvol::Volume;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Context as _, Result};

/// Files up to this size are hashed whole; larger ones by their data segments.
const WHOLE_MAX_BYTES: u64 = 64 << 20;
/// Bytes of reads in flight for one file.
const WINDOW_BYTES: u64 = 8 << 20;
/// Directory entries in one request.
const BATCH: usize = 1024;
/// Files described concurrently.
const FILES_AT_ONCE: usize = 16;

/// If all extended attributes of a file have at most this size, they are shown in full.
const XATTRS_SHOWN_MAX_BYTES: usize = 256 << 10;
/// Otherwise values up to this size are.
const VALUE_SHOWN_MAX_BYTES: usize = 1 << 10;

/// Writes a description of the whole pool to `sink`.
///
/// # Errors
/// Something cannot be read or written; the output is then incomplete JSON.
pub async fn manifest(handle: &Handle, pool: &View, sink: &mut dyn Write) -> Result<()> {
    let dsl = pool.dsl();
    write!(sink, "{{\"pool\":{},\"section\":\"contents\",\"datasets\":{{", json!(pool.name()))?;
    let mut comma = "";
    for dir in dsl.tree(dsl.root_dir().await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        let kind = dsl.kind(&head).await?;
        let mut all = vec![head.clone()];
        all.extend(dsl.snapshots(&head).await?);
        for dataset in all {
            write!(sink, "{comma}{}:{{", json!(dataset.name()))?;
            comma = ",";
            describe(handle, pool, &dataset, kind, sink).await.with_context(|| dataset.name())?;
            write!(sink, "}}")?;
        }
        for bookmark in dsl.bookmarks(&head).await? {
            let value = json!({
                "type": "bookmark",
                "guid": bookmark.phys.guid.0,
                "createtxg": bookmark.phys.creation_txg.0,
            });
            write!(sink, "{comma}{}:{value}", json!(bookmark.name))?;
            comma = ",";
        }
    }
    Ok(writeln!(sink, "}}}}")?)
}

/// The fields of an object, one after the other.
struct Fields<'a> {
    sink: &'a mut dyn Write,
    count: usize,
}

impl Fields<'_> {
    fn name(&mut self, name: &str) -> Result<&mut dyn Write> {
        let comma = if self.count > 0 { "," } else { "" };
        self.count += 1;
        write!(self.sink, "{comma}{}:", json!(name))?;
        Ok(self.sink)
    }

    fn insert(&mut self, name: &str, value: &Value) -> Result<()> {
        Ok(write!(self.name(name)?, "{value}")?)
    }
}

async fn describe(
    handle: &Handle,
    pool: &View,
    dataset: &Dataset,
    kind: ObjsetType,
    sink: &mut dyn Write,
) -> Result<()> {
    let dsl = pool.dsl();
    let mut out = Fields { sink, count: 0 };
    let type_name = match kind {
        _ if dataset.is_snapshot() => "snapshot",
        ObjsetType::Zvol => "volume",
        _ => "filesystem",
    };
    out.insert("type", &json!(type_name))?;
    out.insert("guid", &json!(dataset.phys.guid.0))?;
    out.insert("createtxg", &json!(dataset.phys.creation_txg.0))?;
    if dsl.encryption(&dataset.dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
        return out.insert("error", &json!("key not loaded"));
    }
    let Some(objset) = dsl.open_as_is(dataset).await? else {
        return out.insert("error", &json!("no contents"));
    };
    if dataset.is_inconsistent() {
        // A half-received dataset cannot be mounted; this is the error of mount(2).
        return out.insert("error", &json!("mount: Device or resource busy"));
    }
    match kind {
        ObjsetType::Zvol => {
            let volume = Volume::open(&objset).await?;
            out.insert("size", &json!(volume.size_bytes()))?;
            let mut stream = volume.stream(WINDOW_BYTES);
            let mut hash = Sha256::new();
            while let Some(run) = stream.next().await? {
                feed(&mut hash, &run);
            }
            out.insert("sha256", &json!(hex(&hash.finalize())))
        }
        ObjsetType::Zfs => match FileSystem::open(objset).await {
            Ok(filesystem) => {
                let root = root_entry(pool, dataset, &filesystem).await?;
                entries(handle, &filesystem, &root, out.name("entries")?).await?;
                if dataset.is_snapshot() {
                    return Ok(());
                }
                for (name, kind) in [
                    ("userspace", SpaceKind::User),
                    ("groupspace", SpaceKind::Group),
                    ("projectspace", SpaceKind::Project),
                ] {
                    out.insert(name, &space(&filesystem, kind).await?)?;
                }
                Ok(())
            }
            Err(error) => out.insert("error", &json!(error.to_string())),
        },
        other => out.insert("error", &json!(format!("objset type {other}"))),
    }
}

/// The entry of a mounted root, which differs from that on disk: with a visible `.zfs` a file system's has one more link; a snapshot's, which
/// has no `.zfs`, has an inode number made from its objset's (`ZFSCTL_INO_SNAPDIRS` less the number).
async fn root_entry(pool: &View, dataset: &Dataset, filesystem: &FileSystem) -> Result<Value> {
    const SNAPSHOT_INODES: u64 = 0xffff_ffff_fffc;
    const VISIBLE: u64 = 1;
    let mut root = entry(filesystem, filesystem.root(), b".", &Semaphore::new(1)).await;
    if dataset.is_snapshot() {
        root["ino"] = json!(SNAPSHOT_INODES.saturating_sub(dataset.object.0));
        return Ok(root);
    }
    let snapdir = pool.dsl().property(&dataset.dir, "snapdir", true).await?;
    if snapdir.and_then(|property| property.value.number()) == Some(VISIBLE)
        && let Some(links) = root["nlink"].as_u64()
    {
        root["nlink"] = json!(links + 1);
    }
    Ok(root)
}

async fn space(filesystem: &FileSystem, kind: SpaceKind) -> Result<Value> {
    let rows = filesystem.space(kind).await?;
    Ok(rows
        .into_iter()
        .map(|(id, row)| {
            let mut line = match kind {
                SpaceKind::User => vec!["POSIX User".to_owned()],
                SpaceKind::Group => vec!["POSIX Group".to_owned()],
                SpaceKind::Project => vec![],
            };
            line.extend([
                id.to_string(),
                row.used_bytes.to_string(),
                row.quota_bytes.to_string(),
                row.used_objects.map_or("-".into(), |count| count.to_string()),
                row.used_objects.map_or("-".into(), |_| row.quota_objects.to_string()),
            ]);
            json!(line)
        })
        .collect())
}

/// Every entry of a file system, the root as `.`, depth first in the order of names.
async fn entries(handle: &Handle, filesystem: &FileSystem, root: &Value, sink: &mut dyn Write) -> Result<()> {
    write!(sink, "[{root}")?;
    let large = Arc::new(Semaphore::new(1));
    let mut pending: Vec<(Vec<u8>, ObjectId)> = vec![(Vec::new(), filesystem.root())];
    let mut seen = crate::ObjectSet::default();
    while let Some((path, directory)) = pending.pop() {
        // A sound directory has one place; a damaged one may contain itself.
        if !seen.insert(directory.0) {
            let error = "the directory has another place already";
            write!(sink, ",{}", json!({ "path": name(&path), "listing_error": error }))?;
            continue;
        }
        let mut names = Vec::new();
        let mut cursor = Cursor::START;
        loop {
            match filesystem.list_with_odd(directory, cursor, BATCH).await {
                Ok(Listed { entries: batch, odd }) => {
                    if let Some(odd) = odd {
                        write!(sink, ",{}", json!({ "path": name(&path), "listing_error": odd.to_string() }))?;
                    }
                    let Some(last) = batch.last() else { break };
                    cursor = last.next;
                    names.extend(batch.into_iter().map(|entry| (entry.name, entry.object)));
                }
                Err(error) => {
                    write!(sink, ",{}", json!({ "path": name(&path), "listing_error": error.to_string() }))?;
                    break;
                }
            }
        }
        names.sort();
        let mut subdirectories = Vec::new();
        for chunk in names.chunks(FILES_AT_ONCE) {
            let described: Vec<_> = chunk
                .iter()
                .map(|(file, object)| {
                    let mut path = path.clone();
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(file);
                    let (filesystem, object, large) = (filesystem.clone(), *object, large.clone());
                    let task = {
                        let path = path.clone();
                        async move { entry(&filesystem, object, &path, &large).await }
                    };
                    (path, object, handle.spawn(Class::Issue, task))
                })
                .collect();
            for (path, object, task) in described {
                let value = task.await?;
                if value["type"] == "d" {
                    subdirectories.push((path, object));
                }
                write!(sink, ",{value}")?;
            }
        }
        pending.extend(subdirectories.into_iter().rev());
    }
    Ok(write!(sink, "]")?)
}

/// All extended attributes of a file. If they are large, only hashes of large values, and for only one file at a time.
async fn xattrs(filesystem: &FileSystem, object: ObjectId, large: &Semaphore) -> Result<Map<String, Value>, ZplError> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    if let Some(found) = filesystem.xattrs_within(object, XATTRS_SHOWN_MAX_BYTES).await? {
        return Ok(found.iter().map(|(name, value)| (text(name), json!(hex(value)))).collect());
    }
    let _turn = large.acquire(1).await;
    let shown = |value: &[u8]| match value.len() > VALUE_SHOWN_MAX_BYTES {
        true => json!({ "size": value.len(), "sha256": hex(&Sha256::digest(value)) }),
        false => json!(hex(value)),
    };
    Ok(filesystem.xattrs(object).await?.iter().map(|(name, value)| (text(name), shown(value))).collect())
}

async fn entry(filesystem: &FileSystem, object: ObjectId, path: &[u8], large: &Semaphore) -> Value {
    let mut out = Map::new();
    out.insert("path".into(), name(path));
    let attributes = match filesystem.attributes(object).await {
        Ok(attributes) => attributes,
        Err(error) => {
            out.insert("error".into(), json!(error.to_string()));
            return Value::Object(out);
        }
    };
    describe_attributes(&mut out, &attributes);
    if attributes.kind == FileKind::Symlink {
        match filesystem.read_link(object).await {
            Ok(target) => drop(out.insert("target".into(), name(&target))),
            Err(error) => drop(out.insert("error".into(), json!(error.to_string()))),
        }
    }
    match xattrs(filesystem, object, large).await {
        Ok(xattrs) if xattrs.is_empty() => {}
        Ok(xattrs) => drop(out.insert("xattrs".into(), Value::Object(xattrs))),
        Err(error) => drop(out.insert("xattr_error".into(), json!(error.to_string()))),
    }
    if matches!(attributes.kind, FileKind::File | FileKind::Directory) {
        if let Some(project) = attributes.project.filter(|project| *project != 0) {
            out.insert("projid".into(), json!(project));
        }
        let flags = attributes.flags.linux_bits();
        if flags != 0 {
            out.insert("flags".into(), json!(flags));
        }
    }
    if attributes.kind == FileKind::File
        && let Err(error) = content(filesystem, &attributes, &mut out).await
    {
        out.insert("error".into(), json!(error.to_string()));
    }
    Value::Object(out)
}

/// Adds a file's data other than its content: kind, mode, owner, size, times.
pub(crate) fn describe_attributes(out: &mut Map<String, Value>, attributes: &Attributes) {
    let time = |time: cenote_zpl::Time| json!(format!("{}.{:09}", time.seconds, time.nanoseconds));
    out.insert("type".into(), json!(attributes.kind.letter().to_string()));
    out.insert("ino".into(), json!(attributes.object.0));
    out.insert("mode".into(), json!(format!("{:04o}", attributes.permissions)));
    out.insert("uid".into(), json!(attributes.uid));
    out.insert("gid".into(), json!(attributes.gid));
    out.insert("nlink".into(), json!(attributes.link_count));
    out.insert("size".into(), json!(attributes.size_bytes));
    out.insert("blocks".into(), json!(attributes.blocks));
    out.insert("mtime".into(), time(attributes.modified));
    out.insert("ctime".into(), time(attributes.changed));
    if matches!(attributes.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        out.insert("rdev".into(), json!([attributes.device.0, attributes.device.1]));
    }
}

async fn content(filesystem: &FileSystem, attributes: &Attributes, out: &mut Map<String, Value>) -> Result<()> {
    let file = filesystem.open_file(attributes.object).await?;
    if attributes.size_bytes <= WHOLE_MAX_BYTES {
        let mut hash = Sha256::new();
        let mut stream = file.stream(WINDOW_BYTES);
        while let Some(run) = stream.next().await? {
            feed(&mut hash, &run);
        }
        out.insert("sha256".into(), json!(hex(&hash.finalize())));
        return Ok(());
    }
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(start) = file.next_data(at).await? {
        let end = file.next_hole(start).await?.unwrap_or(attributes.size_bytes);
        let mut hash = Sha256::new();
        let mut stream = file.stream_range(start..end, WINDOW_BYTES);
        while let Some(run) = stream.next().await? {
            feed(&mut hash, &run);
        }
        segments.push(json!([start, end - start, hex(&hash.finalize())]));
        at = end;
    }
    out.insert("data".into(), Value::Array(segments));
    Ok(())
}

fn feed(hash: &mut Sha256, run: &Run) {
    const ZEROS: &[u8] = &[0; 64 << 10];
    match run {
        Run::Data { block, .. } => hash.update(&block[..]),
        Run::Hole { len_bytes, .. } => {
            let mut left = *len_bytes;
            while left > 0 {
                let len = left.min(ZEROS.len() as u64);
                hash.update(&ZEROS[..len as usize]);
                left -= len;
            }
        }
    }
}

/// A name as text, or as hexadecimal if it is not UTF-8.
pub fn name(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": hex(bytes) }),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
