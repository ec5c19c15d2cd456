//! `cenote manifest`: what a pool contains, as JSON; the contract by which contents are compared.
//!
//! The form is that of the golden pools' manifests: `{"datasets": {NAME: {...}}}` with every file's metadata and the
//! SHA-256 of its content.

use anyhow::{Context, Result};
use cenote_dmu::Run;
use cenote_dsl::Dataset;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_spa::Pool;
use cenote_taskq::{Class, Handle};
use cenote_zpl::{Attributes, Cursor, FileKind, FileSystem, SpaceKind};
use cenote_zvol::Volume;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Files up to this size are hashed whole; larger ones by their data segments.
const WHOLE_MAX_BYTES: u64 = 64 << 20;
/// Bytes of reads in flight for one file.
const WINDOW_BYTES: u64 = 8 << 20;
/// Directory entries asked for at a time.
const BATCH: usize = 1024;
/// Files described at once.
const FILES_AT_ONCE: usize = 16;

/// Describes the whole pool.
pub(crate) async fn manifest(handle: &Handle, pool: &Pool) -> Result<Value> {
    let dsl = pool.dsl();
    let mut datasets = Map::new();
    for dir in dsl.tree(dsl.root_dir().await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        let kind = dsl.kind(&head).await?;
        let mut all = vec![head.clone()];
        all.extend(dsl.snapshots(&head).await?);
        for dataset in all {
            let described = describe(handle, pool, &dataset, kind).await;
            datasets.insert(dataset.name(), described.with_context(|| dataset.name())?);
        }
        for bookmark in dsl.bookmarks(&head).await? {
            let value = json!({
                "type": "bookmark",
                "guid": bookmark.phys.guid.0,
                "createtxg": bookmark.phys.creation_txg.0,
            });
            datasets.insert(bookmark.name, value);
        }
    }
    Ok(json!({ "pool": pool.name(), "section": "contents", "datasets": datasets }))
}

async fn describe(handle: &Handle, pool: &Pool, dataset: &Dataset, kind: ObjsetType) -> Result<Value> {
    let dsl = pool.dsl();
    let mut out = Map::new();
    let type_name = match kind {
        _ if dataset.is_snapshot() => "snapshot",
        ObjsetType::Zvol => "volume",
        _ => "filesystem",
    };
    out.insert("type".into(), json!(type_name));
    out.insert("guid".into(), json!(dataset.phys.guid.0));
    out.insert("createtxg".into(), json!(dataset.phys.creation_txg.0));
    if dsl.encryption(&dataset.dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
        out.insert("error".into(), json!("key not loaded"));
        return Ok(Value::Object(out));
    }
    let Some(objset) = dsl.open(dataset).await? else {
        out.insert("error".into(), json!("no contents"));
        return Ok(Value::Object(out));
    };
    if dataset.is_inconsistent() {
        // What is half-received cannot be mounted; this is what mount(2) says of it.
        out.insert("error".into(), json!("mount: Device or resource busy"));
        return Ok(Value::Object(out));
    }
    match kind {
        ObjsetType::Zvol => {
            let volume = Volume::open(objset).await?;
            out.insert("size".into(), json!(volume.size_bytes()));
            let mut stream = volume.stream(WINDOW_BYTES);
            let mut hash = Sha256::new();
            while let Some(run) = stream.next().await? {
                feed(&mut hash, &run);
            }
            out.insert("sha256".into(), json!(hex(&hash.finalize())));
        }
        ObjsetType::Zfs => match FileSystem::open(objset).await {
            Ok(filesystem) => {
                let mut entries = entries(handle, &filesystem).await?;
                adjust_root(pool, dataset, &mut entries).await?;
                out.insert("entries".into(), Value::Array(entries));
                if dataset.is_snapshot() {
                    return Ok(Value::Object(out));
                }
                for (name, kind) in [
                    ("userspace", SpaceKind::User),
                    ("groupspace", SpaceKind::Group),
                    ("projectspace", SpaceKind::Project),
                ] {
                    out.insert(name.into(), space(&filesystem, kind).await?);
                }
            }
            Err(error) => drop(out.insert("error".into(), json!(error.to_string()))),
        },
        other => drop(out.insert("error".into(), json!(format!("objset type {other}")))),
    }
    Ok(Value::Object(out))
}

/// A mounted root shows what is not in it: of a file system, a link more if `.zfs` is visible; of a snapshot, which has no
/// `.zfs`, an inode number made from its objset's (`ZFSCTL_INO_SNAPDIRS` less the number).
async fn adjust_root(pool: &Pool, dataset: &Dataset, entries: &mut [Value]) -> Result<()> {
    const SNAPSHOT_INODES: u64 = 0xffff_ffff_fffc;
    const VISIBLE: u64 = 1;
    let Some(root) = entries.first_mut() else { return Ok(()) };
    if dataset.is_snapshot() {
        root["ino"] = json!(SNAPSHOT_INODES - dataset.object.0);
        return Ok(());
    }
    let snapdir = pool.dsl().property(&dataset.dir, "snapdir", true).await?;
    if snapdir.and_then(|property| property.value.number()) == Some(VISIBLE)
        && let Some(links) = root["nlink"].as_u64()
    {
        root["nlink"] = json!(links + 1);
    }
    Ok(())
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
async fn entries(handle: &Handle, filesystem: &FileSystem) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    out.push(entry(filesystem, filesystem.root(), b".").await);
    let mut pending: Vec<(Vec<u8>, ObjectId)> = vec![(Vec::new(), filesystem.root())];
    let mut seen = crate::files::ObjectSet::default();
    while let Some((path, directory)) = pending.pop() {
        // A sound directory has one place; a damaged one may contain itself.
        if !seen.insert(directory.0) {
            out.push(json!({ "path": name(&path), "listing_error": "the directory has another place already" }));
            continue;
        }
        let mut names = Vec::new();
        let mut cursor = Cursor::START;
        loop {
            match filesystem.list(directory, cursor, BATCH).await {
                Ok(batch) => {
                    let Some(last) = batch.last() else { break };
                    cursor = last.next;
                    names.extend(batch.into_iter().map(|entry| (entry.name, entry.object)));
                }
                Err(error) => {
                    out.push(json!({ "path": name(&path), "listing_error": error.to_string() }));
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
                    let (filesystem, object) = (filesystem.clone(), *object);
                    let task = {
                        let path = path.clone();
                        async move { entry(&filesystem, object, &path).await }
                    };
                    (path, object, handle.spawn(Class::Issue, task))
                })
                .collect();
            for (path, object, task) in described {
                let value = task.await?;
                if value["type"] == "d" {
                    subdirectories.push((path, object));
                }
                out.push(value);
            }
        }
        pending.extend(subdirectories.into_iter().rev());
    }
    Ok(out)
}

async fn entry(filesystem: &FileSystem, object: ObjectId, path: &[u8]) -> Value {
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
    match filesystem.xattrs(object).await {
        Ok(xattrs) if xattrs.is_empty() => {}
        Ok(xattrs) => {
            let map: Map<_, _> = xattrs
                .iter()
                .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), json!(hex(value))))
                .collect();
            out.insert("xattrs".into(), Value::Object(map));
        }
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

/// A name as text, or as hexadecimal where it is not UTF-8.
pub(crate) fn name(bytes: &[u8]) -> Value {
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
