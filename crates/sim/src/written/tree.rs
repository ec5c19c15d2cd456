//! Random changes of a file system, of which a client sees a [`Tree`].

use cenote_format::ids::ObjectId;
use cenote_taskq::Rng;
use cenote_zpl::{Allocation, AttributeChange, FileKind, FileSystem, NewNode, RenameMode, Time, XattrSet, ZplError};

use crate::tree::{Tree, look};

/// Reads all of a file system.
pub async fn seen(fs: &FileSystem) -> Tree {
    look(fs).await.unwrap()
}

/// A node of this kind, drawn among all paths.
fn any(tree: &Tree, rng: &mut Rng, kind: FileKind) -> Option<(String, ObjectId)> {
    let all: Vec<_> = tree.paths().into_iter().filter(|(_, id)| tree.nodes[id].file_kind() == kind).collect();
    all.get(rng.below(all.len().max(1) as u64) as usize).cloned()
}

/// The extended attribute that holds the access control list of a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

const DEFAULT: &[u8] = b"system.posix_acl_default";

/// An access control list with a named user, as the kernel has them: tags, permissions and ids after a version.
fn acl(rng: &mut Rng) -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, id) in [(1_u16, u32::MAX), (2, 1000), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)] {
        list.extend(tag.to_le_bytes());
        list.extend((rng.below(8) as u16).to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Makes a change at random; those that POSIX refuses are none.
pub async fn change(fs: &FileSystem, tree: &Tree, rng: &mut Rng) {
    let name = format!("n{}", rng.below(12)).into_bytes();
    let (_, directory) = any(tree, rng, FileKind::Directory).unwrap();
    let paths = tree.paths();
    let parent_of = |path: &str| path.rsplit_once('/').map(|(above, name)| (paths[above], name.as_bytes().to_vec()));
    let new = |mode| NewNode { mode, uid: 1000 + mode % 7, gid: 100, ..NewNode::default() };
    let result: Result<(), ZplError> = match rng.below(15) {
        0 | 1 => fs.create(directory, &name, &new(0o100_640)).await.map(drop),
        2 => fs.create(directory, &name, &new(0o042_750)).await.map(drop),
        3 => {
            let target = Some(vec![b't'; 1 + rng.below(300) as usize]);
            fs.create(directory, &name, &NewNode { target, ..new(0o120_777) }).await.map(drop)
        }
        4 => fs.create(directory, &name, &NewNode { device: (8, 3), ..new(0o060_600) }).await.map(drop),
        5..=7 => match any(tree, rng, FileKind::File) {
            Some((_, id)) => {
                let file = fs.open_file(id).await.unwrap();
                let most = if rng.chance(1, 6) { 300_000 } else { 9_000 };
                let (offset, len) = (rng.below(200_000), 1 + rng.below(most));
                let bytes: Vec<u8> = (0..len).map(|at| (at + offset) as u8 ^ rng.next_u64() as u8).collect();
                file.write(offset, &bytes).await
            }
            None => Ok(()),
        },
        8 => match any(tree, rng, FileKind::File) {
            Some((_, id)) => {
                let file = fs.open_file(id).await.unwrap();
                let at = rng.below(150_000);
                match rng.below(3) {
                    0 => file.truncate(at).await,
                    1 => file.allocate(Allocation::Punch, at..at + 1 + rng.below(50_000)).await,
                    _ => file.allocate(Allocation::Zero { keep_size: false }, at..at + 1 + rng.below(50_000)).await,
                }
            }
            None => Ok(()),
        },
        9 => {
            let (_, id) = any(tree, rng, FileKind::File).unwrap_or((String::new(), directory));
            let change = AttributeChange {
                permissions: Some(0o600 | rng.below(0o200) as u32),
                uid: rng.chance(1, 2).then_some(rng.below(5) as u32),
                modified: rng.chance(1, 2).then_some(Time { seconds: rng.below(1 << 30) as i64, nanoseconds: 5 }),
                ..AttributeChange::default()
            };
            fs.set_attributes(id, &change).await.map(drop)
        }
        10 => {
            let kind = if rng.chance(1, 2) { FileKind::File } else { FileKind::Directory };
            let (_, id) = any(tree, rng, kind).unwrap_or((String::new(), directory));
            let key = format!("user.k{}", rng.below(3)).into_bytes();
            let value = vec![b'v'; rng.below(400) as usize];
            match rng.below(4) {
                0 => fs.remove_xattr(id, &key).await,
                _ => fs.set_xattr(id, &key, &value, XattrSet::Any).await,
            }
        }
        11 if rng.chance(1, 3) => {
            let kind = if rng.chance(1, 2) { FileKind::File } else { FileKind::Directory };
            let (_, id) = any(tree, rng, kind).unwrap_or((String::new(), directory));
            let name: &[u8] = if kind == FileKind::File { ACCESS } else { DEFAULT };
            fs.set_xattr(id, name, &acl(rng), XattrSet::Any).await
        }
        11 | 12 => match any(tree, rng, FileKind::File) {
            Some((_, id)) => fs.link(id, directory, &name).await.map(drop),
            None => Ok(()),
        },
        13 => {
            let kind = if rng.chance(1, 4) { FileKind::Directory } else { FileKind::File };
            match any(tree, rng, kind).and_then(|(path, _)| parent_of(&path)) {
                Some((from, from_name)) => {
                    let mode = if rng.chance(1, 3) { RenameMode::Exchange } else { RenameMode::Replace };
                    fs.rename(from, &from_name, directory, &name, mode).await
                }
                None => Ok(()),
            }
        }
        _ => {
            let kind = if rng.chance(1, 3) { FileKind::Directory } else { FileKind::File };
            match any(tree, rng, kind).and_then(|(path, _)| parent_of(&path)) {
                Some((from, name)) if kind == FileKind::Directory => fs.rmdir(from, &name).await,
                Some((from, name)) => fs.unlink(from, &name).await,
                None => Ok(()),
            }
        }
    };
    drop(result);
}
