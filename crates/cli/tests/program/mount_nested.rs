//! Goal: a mount for writing shows snapshots, which do not change, and the datasets below the mounted one, which do: each as its own
//! properties say, with numbers of its own, as they come and go by commands. Method: `cenote mount --rw` on a golden pool and on pools
//! made here, commands to its process, and OpenZFS's `zdb` at the end.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::walk;
use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use rustix::io::Errno;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().map(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap()))
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Fails where two files have one number. How many there are comes back.
fn assert_numbers(places: Vec<PathBuf>) -> usize {
    let (mut places, mut seen, mut count) = (places, BTreeMap::new(), 0);
    while let Some(place) = places.pop() {
        for item in fs::read_dir(&place).unwrap() {
            let item = item.unwrap();
            let (path, metadata) = (item.path(), fs::symlink_metadata(item.path()).unwrap());
            count += 1;
            if (metadata.is_dir() || metadata.nlink() == 1)
                && let Some(other) = seen.insert(metadata.ino(), path.clone())
            {
                panic!("{path:?} and {other:?} are both {}", metadata.ino());
            }
            if metadata.is_dir() && item.file_name() != ".zfs" {
                places.push(path);
            }
        }
    }
    count
}

#[test]
fn snapshots_in_a_live_mount_are_as_they_were_in_openzfs_and_stay_so() {
    if !can_mount() {
        return;
    }
    let images = Images::of_theme("snapshots");
    let theme = common::theme("snapshots");
    let (manifest, json) = (theme.manifest().unwrap(), theme.manifest_json().unwrap());
    let contents =
        json["sections"].as_array().unwrap().iter().find(|section| section["section"] == "contents").unwrap();
    let mounted = Mounted::new(&images, &images.pool);
    let below = |head: &str| mounted.path(head.strip_prefix(&images.pool).unwrap().trim_start_matches('/'));
    let mut snapshots = Vec::new();
    for (name, dataset) in &manifest.contents().datasets {
        if let Some((head, snapshot)) = name.split_once('@')
            && !dataset.entries.is_empty()
        {
            snapshots.push((name.clone(), below(head), below(head).join(".zfs/snapshot").join(snapshot)));
        }
    }
    assert!(snapshots.len() >= 5, "{}", snapshots.len());
    for round in 0..2 {
        for (name, head, at) in &snapshots {
            let report = walk::compare_mount(name, &contents["datasets"][name]["entries"], &walk::entries(at).unwrap());
            assert!(report.is_match(), "round {round}: {name}: {report}: {:?}", report.differences.first());
            let first = names(at).into_iter().map(|name| at.join(name)).find(|path| path.is_file());
            assert_eq!(errno(File::create(at.join("new"))), Some(Errno::ROFS));
            assert_eq!(errno(fs::create_dir(at.join("new"))), Some(Errno::ROFS));
            if let Some(file) = first {
                assert_eq!(errno(File::options().append(true).open(&file)), Some(Errno::ROFS));
                assert_eq!(errno(fs::remove_file(&file)), Some(Errno::ROFS));
                assert_eq!(errno(fs::rename(&file, head.join("moved"))), Some(Errno::ROFS));
                assert!(matches!(errno(fs::hard_link(&file, head.join("linked"))), Some(Errno::XDEV | Errno::ROFS)));
            }
            let listed = names(at.parent().unwrap());
            assert!(listed.contains(&name.split_once('@').unwrap().1.to_owned()), "{listed:?}");
            assert_eq!(errno(fs::read_dir(at.parent().unwrap().join("absent"))), Some(Errno::NOENT));
            let errnos = [Some(Errno::ACCESS), Some(Errno::ROFS)];
            assert!(errnos.contains(&errno(fs::create_dir(head.join(".zfs/snapshot/made")))));
            assert_eq!(errno(fs::create_dir(head.join(".zfs"))), Some(Errno::EXIST));
        }
        // Now the heads change that the snapshots were taken of.
        for (_, head, _) in &snapshots {
            for name in names(head).into_iter().map(|name| head.join(name)).filter(|path| path.is_file()) {
                if let Ok(file) = File::options().write(true).open(&name) {
                    file.set_len(round).unwrap();
                }
            }
        }
        images.run("zpool", &["sync", &images.pool]);
    }
    // One that gets another name has that at once, for those too who have looked for it.
    let (name, _, at) = &snapshots[0];
    let (other, first) = (at.with_file_name("renamed"), names(at));
    assert_eq!(errno(fs::metadata(&other)), Some(Errno::NOENT));
    images.run("zfs", &["rename", name, "@renamed"]);
    assert_eq!((names(&other), errno(fs::metadata(at))), (first, Some(Errno::NOENT)));
    let listed = names(at.parent().unwrap());
    assert!(listed.contains(&"renamed".to_owned()) && !listed.contains(&name.split_once('@').unwrap().1.to_owned()));
    images.run("zfs", &["rename", &format!("{}@renamed", name.split_once('@').unwrap().0), name]);
    assert!(rustix::fs::statvfs(&snapshots[0].2).unwrap().f_blocks > 0);
    let mut places: Vec<PathBuf> = snapshots.iter().map(|(.., at)| at.clone()).collect();
    places.push(mounted.at().to_owned());
    assert!(assert_numbers(places) > 300);
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn datasets_below_the_mounted_one_are_shown_and_written() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    for words in [
        &["mine/a"][..],
        &["mine/a/b"],
        &["-o", "mountpoint=/mine/dir/c", "mine/c"],
        &["-o", "mountpoint=none", "mine/none"],
        &["-o", "canmount=off", "mine/off"],
        &["-o", "canmount=noauto", "mine/noauto"],
        &["-o", "readonly=on", "mine/fixed"],
        &["-o", "xattr=off", "-o", "recordsize=16K", "mine/a/plain"],
    ] {
        images.run("zfs", &[&["create"][..], words].concat());
    }
    images.run("zfs", &["set", "quota=8M", "mine/a/b"]);
    let mounted = Mounted::new(&images, "mine");
    assert_eq!(names(mounted.at()), ["a", "dir", "fixed"]);
    assert_eq!(names(&mounted.path("a")), ["b", "plain"]);
    for folder in ["", "a", "a/b", "dir/c"] {
        fs::create_dir(mounted.path(folder).join("folder")).unwrap();
        for file in ["one", "two", "folder/three"] {
            fs::write(mounted.path(folder).join(file), format!("{folder} {file}")).unwrap();
        }
    }
    // Each as its properties say.
    assert_eq!(errno(fs::write(mounted.path("fixed/file"), "")), Some(Errno::ROFS));
    assert_eq!(errno(fs::write(mounted.path("dir/file"), "")), Some(Errno::ROFS));
    fs::write(mounted.path("a/plain/file"), vec![1; 50_000]).unwrap();
    assert_eq!(fs::metadata(mounted.path("a/plain/file")).unwrap().blksize(), 16 << 10);
    let set = |at: &str| rustix::fs::setxattr(mounted.path(at), "user.x", b"y", rustix::fs::XattrFlags::empty());
    assert_eq!((set("a/plain/file"), set("a/one")), (Err(Errno::OPNOTSUPP), Ok(())));
    let blocks = |at: &str| {
        let space = rustix::fs::statvfs(mounted.path(at)).unwrap();
        space.f_blocks * space.f_frsize
    };
    assert!(blocks("a/b") <= 9 << 20 && blocks("a") > 20 << 20, "{} {}", blocks("a/b"), blocks("a"));
    // A dataset ends where another begins.
    assert_eq!(errno(fs::rename(mounted.path("a/one"), mounted.path("one"))), Some(Errno::XDEV));
    assert_eq!(errno(fs::hard_link(mounted.path("a/one"), mounted.path("a/b/link"))), Some(Errno::XDEV));
    assert_eq!(errno(fs::rename(mounted.path("a/b"), mounted.path("a/moved"))), Some(Errno::BUSY));
    assert_eq!(errno(fs::rename(mounted.path("a/one"), mounted.path("a/b"))), Some(Errno::ISDIR));
    assert_eq!(errno(fs::remove_dir(mounted.path("a"))), Some(Errno::BUSY));
    assert_eq!(errno(fs::create_dir(mounted.path("a/b"))), Some(Errno::EXIST));
    assert!(assert_numbers(vec![mounted.at().to_owned()]) > 15);
    File::open(mounted.path("a/b/one")).unwrap().sync_all().unwrap();
    // They come, move and go by commands.
    images.run("zfs", &["create", "mine/a/new"]);
    fs::write(mounted.path("a/new/file"), "new").unwrap();
    assert_eq!(names(&mounted.path("a")), ["b", "folder", "new", "one", "plain", "two"]);
    images.run("zfs", &["rename", "mine/a/new", "mine/renamed"]);
    assert_eq!(fs::read(mounted.path("renamed/file")).unwrap(), b"new");
    assert_eq!(errno(fs::metadata(mounted.path("a/new"))), Some(Errno::NOENT));
    images.run("zfs", &["set", "canmount=on", "mine/off"]);
    fs::write(mounted.path("off/file"), "on").unwrap();
    images.run("zfs", &["set", "readonly=off", "mine/fixed"]);
    fs::write(mounted.path("fixed/file"), "").unwrap();
    images.run("zfs", &["set", "readonly=on", "mine/a"]);
    assert_eq!(errno(fs::write(mounted.path("a/one"), "")), Some(Errno::ROFS));
    images.run("zfs", &["inherit", "readonly", "mine/a"]);
    // One that is in use is not destroyed, and goes where nobody uses it any more.
    let open = File::open(mounted.path("renamed/file")).unwrap();
    let said = images.refused("zfs", &["destroy", "mine/renamed"]);
    assert!(said.contains("dataset is busy"), "{said}");
    assert_eq!(fs::read(mounted.path("renamed/file")).unwrap(), b"new");
    drop(open);
    images.run("zfs", &["destroy", "mine/renamed"]);
    // The innermost is named, which is the one that is in use.
    images.run("zfs", &["create", "-p", "mine/x/y/z"]);
    fs::write(mounted.path("x/y/file"), "").unwrap();
    let open = File::open(mounted.path("x/y/file")).unwrap();
    let said = images.refused("zfs", &["destroy", "-r", "mine/x"]);
    assert!(said.contains("'mine/x/y': dataset is busy"), "{said}");
    assert_eq!(
        images.run("zfs", &["list", "-Hr", "-o", "name,mounted", "mine/x"]),
        "mine/x\tyes\nmine/x/y\tyes\nmine/x/y/z\tyes\n"
    );
    // A look by name: until then the kernel keeps what was below the names that it was told to forget (see docs/LIMITS.md).
    assert_eq!(fs::read(mounted.path("x/y/file")).unwrap(), b"");
    drop(open);
    images.run("zfs", &["destroy", "-r", "mine/x"]);
    // A second place of the mount is unmounted, and the mount goes on.
    let second = tempfile::tempdir().unwrap();
    let bound = Command::new("mount").arg("--bind").args([mounted.at(), second.path()]).status().unwrap();
    assert!(bound.success());
    common::good(images.bare().arg("unmount").arg(second.path()));
    assert!(mounted.path("a").is_dir());
    // One that has the name of the control directory does not hide it.
    images.run("zfs", &["create", "mine/.zfs"]);
    assert!(!names(mounted.at()).contains(&".zfs".to_owned()));
    assert!(mounted.path(".zfs/snapshot").is_dir());
    assert_eq!(images.run("zfs", &["get", "-Ho", "value", "mounted", "mine/.zfs"]), "no\n");
    images.run("zfs", &["destroy", "mine/.zfs"]);
    assert_eq!(errno(fs::metadata(mounted.path("renamed"))), Some(Errno::NOENT));
    assert_eq!(names(mounted.at()), ["a", "dir", "fixed", "folder", "off", "one", "two"]);
    // Its number may be another's.
    images.run("zfs", &["create", "mine/again"]);
    fs::write(mounted.path("again/file"), "again").unwrap();
    images.refused("zfs", &["destroy", "mine"]);
    // The mount is in use where one of them is.
    let open = File::open(mounted.path("a/b/one")).unwrap();
    let mut unmount = images.bare();
    let output = unmount.arg("unmount").arg(mounted.at()).output().unwrap();
    assert!(common::said(&output).contains("busy"), "{}", common::said(&output));
    drop(open);
    mounted.end(End::Unmount);
    images.assert_whole();
    // All of it is there, in each dataset by itself and in all together.
    let mounted = Mounted::new(&images, "mine/a");
    assert_eq!(names(mounted.at()), ["b", "folder", "one", "plain", "two"]);
    assert_eq!(fs::read(mounted.path("b/folder/three")).unwrap(), b"a/b folder/three");
    mounted.end(End::Signal("-TERM"));
    let mounted = Mounted::new(&images, "mine");
    assert_eq!(fs::read(mounted.path("again/file")).unwrap(), b"again");
    assert_eq!(fs::read(mounted.path("dir/c/two")).unwrap(), b"dir/c two");
    images.run("zfs", &["destroy", "-rn", "mine/a"]);
    assert_eq!(fs::read(mounted.path("a/b/one")).unwrap(), b"a/b one");
    images.run("zfs", &["destroy", "-r", "mine/a"]);
    assert_eq!(names(mounted.at()), ["again", "dir", "fixed", "folder", "off", "one", "two"]);
    images.run("zfs", &["destroy", "-r", "mine"]);
    assert_eq!(names(mounted.at()), ["folder", "one", "two"]);
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn a_snapshot_that_somebody_uses_in_a_mount_is_not_destroyed_and_one_that_was_looked_at_is() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let mounted = Mounted::new(&images, "mine/a");
    fs::write(mounted.path("file"), b"as it was").unwrap();
    for name in ["1", "2", "3"] {
        images.run("zfs", &["snapshot", &format!("mine/a@{name}")]);
    }
    let below = |path: &str| mounted.path(".zfs/snapshot").join(path);
    let file = File::open(below("2/file")).unwrap();
    fs::write(mounted.path("file"), b"as it is now").unwrap();
    for words in [&["destroy", "mine/a@2"][..], &["destroy", "-d", "mine/a@2"], &["destroy", "mine/a@1%3"]] {
        let refused = images.refused("zfs", words);
        assert!(refused.contains("cannot destroy snapshot mine/a@2: dataset is busy"), "{words:?}: {refused}");
    }
    assert_eq!(std::io::read_to_string(&file).unwrap(), "as it was");
    drop(file);
    images.run("zfs", &["destroy", "mine/a@2"]);
    // Nobody uses them, though the kernel remembers what it saw.
    for name in ["1", "3"] {
        assert_eq!(fs::read(below(name).join("file")).unwrap(), b"as it was");
    }
    images.run("zfs", &["destroy", "mine/a@1"]);
    assert_eq!(names(&below("")), ["3"]);
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn snapshots_that_a_promotion_moves_are_found_where_they_are() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let mounted = Mounted::new(&images, "mine/a");
    fs::write(mounted.path("file"), b"text").unwrap();
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["clone", "mine/a@1", "mine/a/c"]);
    let (here, there) = (mounted.path(".zfs/snapshot/1/file"), mounted.path("c/.zfs/snapshot/1/file"));
    for _ in 0..2 {
        assert_eq!(fs::read(&here).unwrap(), b"text");
        assert_eq!(errno(fs::metadata(&there)), Some(Errno::NOENT));
        images.run("zfs", &["promote", "mine/a/c"]);
        assert_eq!(fs::read(&there).unwrap(), b"text");
        assert_eq!(errno(fs::metadata(&here)), Some(Errno::NOENT));
        assert_eq!(names(&mounted.path("c/.zfs/snapshot")), ["1"]);
        images.run("zfs", &["promote", "mine/a"]);
    }
    assert_eq!(fs::read(&here).unwrap(), b"text");
    mounted.end(End::Unmount);
    images.assert_whole();
}
