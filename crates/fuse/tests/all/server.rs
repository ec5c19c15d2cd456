//! The file server without a kernel: what any front end would see, and what no sound kernel would ask.

use crate::support;

use std::collections::BTreeMap;

use cenote_fuse::server::{Caller, DirItem, Errno, FileServer, NodeId, Seek};
use cenote_fuse::{Layout, Tree};
use cenote_zpl::FileKind;
use support::Opened;

const ROOT_USER: Caller = Caller { uid: 0, gid: 0, thread: 0 };

async fn names(tree: &Tree, node: NodeId, batch: usize) -> Vec<DirItem> {
    let (mut all, mut position) = (Vec::new(), 0);
    loop {
        let items = tree.readdir(node, position, false, batch).await.unwrap();
        let Some(last) = items.last() else { return all };
        assert!(items.len() <= batch);
        position = last.next;
        all.extend(items);
        assert!(all.len() < 100_000, "a listing without end");
    }
}

async fn walk_to(tree: &Tree, path: &str) -> Result<NodeId, Errno> {
    let mut node = NodeId::ROOT;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let entry = tree.lookup(node, part.as_bytes()).await?;
        assert_eq!(tree.getattr(entry.node).await?, entry.stat);
        node = entry.node;
        entry.pin.keep();
    }
    Ok(node)
}

#[test]
fn a_listing_is_the_same_in_batches_of_any_size() {
    let opened = Opened::new("snapshots");
    for dataset in ["duncorel0", "duncorel0/kelvenur1", "duncorel0/promoted@s2"] {
        let tree = opened.tree(dataset, Layout::Mountpoints);
        opened.runtime.block_on(async {
            let list = async |batch| {
                let items = names(&tree, NodeId::ROOT, batch).await;
                items.into_iter().map(|item| (item.name, item.ino, item.next)).collect::<Vec<_>>()
            };
            let whole = list(10_000).await;
            assert!(whole.len() > 4);
            assert_eq!(whole[0].0, b".");
            assert_eq!(whole[1].0, b"..");
            for batch in [1, 2, 3, 7] {
                assert_eq!(list(batch).await, whole);
            }
            // And resumed anywhere.
            for (at, (_, _, position)) in whole.iter().enumerate() {
                let rest = tree.readdir(NodeId::ROOT, *position, false, 10_000).await.unwrap();
                assert_eq!(rest.len(), whole.len() - at - 1);
            }
        });
    }
}

#[test]
fn what_is_listed_is_found_and_has_the_number_that_was_listed() {
    let opened = Opened::new("snapshots");
    let tree = opened.tree("duncorel0", Layout::Mountpoints);
    opened.runtime.block_on(async {
        let mut pending = vec![(NodeId::ROOT, 0)];
        let mut count = 0;
        while let Some((node, depth)) = pending.pop() {
            let plain = names(&tree, node, 50).await;
            let full = tree.readdir(node, 0, true, 10_000).await.unwrap();
            assert_eq!(plain.len(), full.len());
            for item in full {
                if item.name == b"." || item.name == b".." {
                    continue;
                }
                let entry = tree.lookup(node, &item.name).await.unwrap();
                assert_eq!(entry.stat.ino, item.ino);
                assert_eq!(Some(entry.stat.kind), item.kind);
                if let Some(listed) = item.entry {
                    assert_eq!((listed.node, listed.stat), (entry.node, entry.stat.clone()));
                }
                count += 1;
                if entry.stat.kind == FileKind::Directory && depth < 8 {
                    entry.pin.keep();
                    pending.push((entry.node, depth + 1));
                }
            }
        }
        assert!(count > 700, "{count}");
    });
}

#[test]
fn snapshots_are_reached_below_every_nested_dataset() {
    let opened = Opened::new("snapshots");
    let tree = opened.tree("duncorel0", Layout::Mountpoints);
    opened.runtime.block_on(async {
        for path in [".zfs/snapshot", "promoted/.zfs/snapshot/s1", "kelvenur1/wildunmor2/.zfs/snapshot/s2", "clone1"] {
            let node = walk_to(&tree, path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(!names(&tree, node, 10).await.is_empty());
        }
        for path in [
            ".zfs/snapshot/s1",
            ".zfs/nothing",
            "promoted/.zfs/snapshot/s9",
            "promoted/.zfs/snapshot/s1/.zfs",
            "promoted/.zfs/snapshot/a@b",
            "promoted/.zfs/snapshot/..",
            ".zfs/shares/x",
        ] {
            assert_eq!(walk_to(&tree, path).await, Err(Errno::NOENT), "{path}");
        }
    });
}

#[test]
fn numbers_that_were_never_handed_out_are_errors_and_nothing_else() {
    let opened = Opened::new("snapshots");
    let tree = opened.tree("duncorel0", Layout::Mountpoints);
    let lows = [
        0,
        1,
        2,
        34,
        1 << 20,
        0xffff_ffff_ffff,
        0xffff_ffff_fffe,
        0xffff_ffff_fffd,
        0xffff_ffff_fffc,
        0xffff_ffff_0000,
    ];
    opened.runtime.block_on(async {
        for slot in [0_u64, 1, 3, 100, 0xffef, 0xfffe, 0xffff] {
            for low in lows {
                let node = NodeId(slot << 48 | low);
                // Some of these are there. The point is that each call comes back.
                let _ = tree.getattr(node).await;
                let _ = tree.lookup(node, b"x").await;
                let _ = tree.lookup(node, &[b'n'; 5000]).await;
                let _ = tree.readlink(node).await;
                let _ = tree.open(node, false).await;
                let _ = tree.read(node, u64::MAX, u32::MAX).await;
                let _ = tree.seek(node, u64::MAX, Seek::Data).await;
                let _ = tree.statfs(node).await;
                let _ = tree.listxattr(node, ROOT_USER).await;
                let _ = tree.getxattr(node, b"user.\0", ROOT_USER).await;
                let _ = tree.inode_flags(node).await;
                let _ = tree.access(node, 7).await;
                for position in [0, 4, 5, 1 << 32, 1 << 62, u64::MAX, u64::MAX >> 1] {
                    let _ = tree.readdir(node, position, true, 3).await;
                }
                tree.forget(node, u64::MAX);
            }
        }
    });
}

#[test]
fn reading_in_order_gives_what_the_library_gives() {
    let opened = Opened::new("recordsizes");
    for dataset in opened.mountable() {
        let tree = opened.tree(&dataset, Layout::Alone);
        opened.runtime.block_on(async {
            let items = tree.readdir(NodeId::ROOT, 0, true, 1000).await.unwrap();
            for item in items {
                let Some(entry) = item.entry.filter(|entry| entry.stat.kind == FileKind::File) else { continue };
                let (mut at, mut sum) = (0_u64, BTreeMap::new());
                loop {
                    let block = tree.read(entry.node, at, 100_000).await.unwrap();
                    if block.is_empty() {
                        break;
                    }
                    for byte in block.iter() {
                        *sum.entry(*byte).or_insert(0_u64) += 1;
                    }
                    at += block.len() as u64;
                }
                assert_eq!(at, entry.stat.size_bytes);
                let whole = tree.read(entry.node, 0, 16 << 20).await.unwrap();
                let mut again = BTreeMap::new();
                for byte in whole.iter() {
                    *again.entry(*byte).or_insert(0_u64) += 1;
                }
                assert!(entry.stat.size_bytes > 16 << 20 || again == sum);
            }
            tree.close().await;
        });
    }
}

#[test]
fn errors_are_those_of_a_file_system() {
    let opened = Opened::new("basic");
    let dataset = opened.mountable().into_iter().find(|name| !name.contains('@')).unwrap();
    let tree = opened.tree(&dataset, Layout::Alone);
    opened.runtime.block_on(async {
        let root = NodeId::ROOT;
        assert_eq!(tree.lookup(root, b"not there").await.unwrap_err(), Errno::NOENT);
        assert_eq!(tree.open(root, false).await, Err(Errno::ISDIR));
        assert_eq!(tree.open(root, true).await, Err(Errno::ROFS));
        assert_eq!(tree.access(root, 2).await, Err(Errno::ROFS));
        assert_eq!(tree.access(root, 5).await, Ok(()));
        assert_eq!(tree.readlink(root).await, Err(Errno::INVAL));
        assert_eq!(tree.getxattr(root, b"user.absent", ROOT_USER).await, Err(Errno::NODATA));
        let items = tree.readdir(root, 0, true, 1000).await.unwrap();
        let file = items.into_iter().filter_map(|item| item.entry).find(|entry| entry.stat.kind == FileKind::File);
        if let Some(file) = file {
            assert_eq!(tree.lookup(file.node, b"x").await.unwrap_err(), Errno::NOTDIR);
            assert_eq!(tree.readdir(file.node, 0, false, 10).await.unwrap_err(), Errno::NOTDIR);
            assert_eq!(tree.seek(file.node, file.stat.size_bytes, Seek::Data).await, Err(Errno::NXIO));
        }
    });
    assert_eq!(*opened.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn trusted_attributes_are_listed_for_root_alone() {
    let opened = Opened::new("xattrs");
    let mut trusted = 0;
    for dataset in opened.mountable() {
        let tree = opened.tree(&dataset, Layout::Alone);
        opened.runtime.block_on(async {
            for item in tree.readdir(NodeId::ROOT, 0, true, 10_000).await.unwrap() {
                let Some(entry) = item.entry else { continue };
                let root = tree.listxattr(entry.node, ROOT_USER).await.unwrap();
                let user = tree.listxattr(entry.node, Caller { uid: 1000, gid: 1000, thread: 0 }).await.unwrap();
                let count =
                    |names: &[u8]| names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"trusted.")).count();
                trusted += count(&root);
                assert_eq!(count(&user), 0);
            }
        });
    }
    assert!(trusted > 0);
}
