//! A tree, read from a file system.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cenote_format::ids::ObjectId;
use cenote_zpl::{Cursor, FileKind, FileSystem};

use super::{Kind, Names, Node, Sparse, Tree};

/// Names of a directory read at once.
const NAMES_AT_ONCE: usize = 200;
/// Bytes of a file read at once.
const READ_BYTES: u64 = 1 << 20;

/// Reads all of a file system.
///
/// # Errors
/// It cannot be read, or contradicts itself.
pub async fn look(fs: &FileSystem) -> Result<Tree> {
    let mut tree = Tree { root: fs.root(), nodes: BTreeMap::new() };
    let mut pending = vec![fs.root()];
    let (mut named, mut counted) = (BTreeMap::new(), BTreeMap::new());
    while let Some(id) = pending.pop() {
        let attributes = fs.attributes(id).await.with_context(|| format!("object {id}"))?;
        let kind = match attributes.kind {
            FileKind::Directory => {
                let mut names = Names::new();
                let mut cursor = Cursor::default();
                loop {
                    let entries = fs.list(id, cursor, NAMES_AT_ONCE).await?;
                    let Some(last) = entries.last() else { break };
                    cursor = last.next;
                    for entry in entries {
                        *named.entry(entry.object).or_insert(0) += 1;
                        if named[&entry.object] == 1 {
                            pending.push(entry.object);
                        }
                        ensure!(names.insert(entry.name, entry.object).is_none(), "directory {id} has a name twice");
                    }
                }
                let size = attributes.size_bytes;
                ensure!(size == names.len() as u64 + 2, "directory {id} has {} names and counts {size}", names.len());
                Kind::Directory(names)
            }
            FileKind::File => Kind::File(bytes(fs, id).await.with_context(|| format!("object {id}"))?),
            FileKind::Symlink => Kind::Symlink(fs.read_link(id).await?),
            other => Kind::Special(other, attributes.device),
        };
        if !matches!(kind, Kind::Directory(_)) {
            counted.insert(id, attributes.link_count);
        }
        let (permissions, uid, gid) = (attributes.permissions, attributes.uid, attributes.gid);
        let (created, links) = (attributes.created, attributes.link_count);
        let project = attributes.project.filter(|project| *project != 0);
        let xattrs = fs.xattrs(id).await?;
        tree.nodes.insert(id, Node { kind, permissions, uid, gid, project, created, links, opens: 0, xattrs });
    }
    for (id, count) in counted {
        ensure!(named.get(&id) == Some(&count), "object {id} has {:?} names and counts {count}", named.get(&id));
    }
    Ok(tree)
}

async fn bytes(fs: &FileSystem, id: ObjectId) -> Result<Sparse> {
    let file = fs.open_file(id).await?;
    let size = file.size_bytes();
    let mut bytes = Sparse::zeros(size);
    let mut at = 0;
    while let Some(data) = file.next_data(at).await?.filter(|data| *data < size) {
        let end = file.next_hole(data).await?.unwrap_or(size).min(size);
        ensure!(end > data, "data that is none at {data}");
        at = data;
        while at < end {
            let read = file.read(at, (end - at).min(READ_BYTES) as usize).await?;
            bytes.write(at, &read);
            at += read.len() as u64;
        }
    }
    Ok(bytes)
}
