//! Goal: with the tunable `zfs_admin_snapshot`, `mkdir`, `rmdir` and `rename` in a mount's `.zfs/snapshot` take, destroy and rename snapshots,
//! as in OpenZFS; what OpenZFS refuses is refused with the same errno. Method: `cenote mount --rw` on pools made here, and system calls.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw_os_error)
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A dataset that is mounted with the tunable set.
fn mounted(images: &Images, dataset: &str, options: &[&str]) -> Mounted {
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--tunable", "zfs_admin_snapshot=1", "--rw"]);
    command.args(options).arg(dataset).arg(folder.path());
    Mounted::start(command, folder)
}

fn snapshots(images: &Images) -> String {
    let listed = images.run("zfs", &["list", "-H", "-t", "snapshot", "-o", "name", "-r", "mine"]);
    let mut names: Vec<&str> = listed.lines().collect();
    names.sort_unstable();
    names.join(", ")
}

#[test]
fn directories_made_removed_and_renamed_are_snapshots() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/a/b"]);
    let mounted = mounted(&images, "mine/a", &[]);
    let at = |path: &str| mounted.path(".zfs/snapshot").join(path);
    fs::write(mounted.path("file"), b"one").unwrap();
    fs::write(mounted.path("b/file"), b"below").unwrap();
    fs::create_dir(at("1")).unwrap();
    fs::create_dir(mounted.path("b/.zfs/snapshot/1")).unwrap();
    fs::write(mounted.path("file"), b"two").unwrap();
    fs::create_dir(at("2")).unwrap();
    fs::create_dir(at("with space")).unwrap();
    assert_eq!(fs::read(at("1/file")).unwrap(), b"one");
    assert_eq!(fs::read(at("2/file")).unwrap(), b"two");
    assert_eq!(fs::read(mounted.path("b/.zfs/snapshot/1/file")).unwrap(), b"below");
    assert_eq!(names(&at("")), ["1", "2", "with space"]);
    assert_eq!(snapshots(&images), "mine/a/b@1, mine/a@1, mine/a@2, mine/a@with space");

    // Names that exist, are too long, or are invalid.
    assert_eq!(errno(fs::create_dir(at("1"))), Some(Errno::EXIST));
    assert_eq!(errno(fs::create_dir(at(&"n".repeat(255)))), Some(Errno::NAMETOOLONG));
    for name in ["a@b", "a#b", "a%b", "ä"] {
        assert_eq!(errno(fs::create_dir(at(name))), Some(Errno::ILSEQ), "{name}");
        assert_eq!(errno(fs::rename(at("1"), at(name))), Some(Errno::ILSEQ), "{name}");
    }
    assert_eq!(errno(fs::rename(at("1"), at(&"n".repeat(255)))), Some(Errno::NAMETOOLONG));
    // The directory takes no files and links, and nothing is renamed into or out of it.
    assert_eq!(errno(File::create(at("file"))), Some(Errno::PERM));
    assert_eq!(errno(std::os::unix::fs::symlink("x", at("link"))), Some(Errno::PERM));
    fs::create_dir(mounted.path("dir")).unwrap();
    for (from, to) in [(at("1"), mounted.path("one")), (mounted.path("dir"), at("dir"))] {
        assert_eq!(errno(fs::rename(from, to)), Some(Errno::INVAL));
    }
    assert_eq!(errno(fs::rename(at("1"), mounted.path("b/.zfs/snapshot/2"))), Some(Errno::INVAL));
    let exchange = rustix::fs::renameat_with(CWD, at("1"), CWD, at("2"), RenameFlags::EXCHANGE);
    assert_eq!(exchange, Err(Errno::INVAL));
    for missing in [fs::remove_dir(at("none")), fs::rename(at("none"), at("some"))] {
        assert_eq!(errno(missing), Some(Errno::NOENT));
    }

    // A snapshot with an open file can be renamed. Only the new name is found then, by commands too.
    let open = File::open(at("1/file")).unwrap();
    assert_eq!(errno(fs::rename(at("1"), at("2"))), Some(Errno::EXIST));
    fs::rename(at("1"), at("first")).unwrap();
    rustix::fs::renameat_with(CWD, at("with space"), CWD, at("third"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(errno(fs::metadata(at("1"))), Some(Errno::NOENT));
    assert_eq!(fs::read(at("first/file")).unwrap(), b"one");
    assert_eq!(names(&at("")), ["2", "first", "third"]);
    // The open file keeps it from being destroyed.
    assert_eq!(errno(fs::remove_dir(at("first"))), Some(Errno::BUSY));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "one");
    drop(open);
    images.run("zfs", &["rename", "mine/a@first", "mine/a@1"]);
    assert_eq!(fs::read(at("1/file")).unwrap(), b"one");

    // So do holds and clones.
    images.run("zfs", &["hold", "keep", "mine/a@2"]);
    images.run("zfs", &["clone", "mine/a@third", "mine/clone"]);
    for kept in ["2", "third"] {
        assert_eq!(errno(fs::remove_dir(at(kept))), Some(Errno::BUSY), "{kept}");
    }
    assert_eq!(fs::read(at("2/file")).unwrap(), b"two");
    images.run("zfs", &["release", "keep", "mine/a@2"]);
    images.run("zfs", &["destroy", "mine/clone"]);
    // Names that the kernel merely remembers do not keep a snapshot.
    for gone in ["2", "third", "1"] {
        fs::remove_dir(at(gone)).unwrap();
        assert_eq!(errno(fs::metadata(at(gone))), Some(Errno::NOENT));
    }
    assert!(names(&at("")).is_empty());
    assert_eq!(snapshots(&images), "mine/a/b@1");
    fs::create_dir(at("1")).unwrap();
    assert_eq!(fs::read(at("1/file")).unwrap(), b"two");
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn a_directory_of_a_snapshot_that_was_removed_is_stale() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = mounted(&images, "mine", &[]);
    fs::create_dir_all(mounted.path("dir/below")).unwrap();
    let at = mounted.path(".zfs/snapshot/1");
    fs::create_dir(&at).unwrap();
    let directory = rustix::fs::openat(CWD, at.join("dir"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    fs::remove_dir(&at).unwrap();
    let below = |name: &str| rustix::fs::statat(&directory, name, rustix::fs::AtFlags::empty()).map(drop);
    assert_eq!(below("below"), Err(Errno::STALE));
    // A new snapshot of the same name does not revive the old descriptor.
    fs::create_dir(&at).unwrap();
    assert_eq!(below("below"), Err(Errno::STALE));
    assert_eq!(names(&at.join("dir")), ["below"]);
    drop(directory);
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// Runs `mkdir` as another user; the errno that it failed with.
fn made_by_stranger(at: &Path) -> Option<i32> {
    let status = Command::new("mkdir").arg(at).uid(65534).gid(65534).env("LC_ALL", "C").output().unwrap();
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    let reasons = [("Permission denied", 13), ("Operation not permitted", 1)];
    reasons.into_iter().find(|(words, _)| said.contains(words)).map(|(_, number)| number)
}

#[test]
fn strangers_and_mounts_without_the_tunable_change_no_snapshots() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/fixed"]);
    images.run("zfs", &["snapshot", "mine/fixed@1"]);
    images.run("zfs", &["set", "readonly=on", "mine/fixed"]);
    {
        let mounted = mounted(&images, "mine", &["-o", "allow_other"]);
        fs::set_permissions(mounted.at(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        if rustix::process::geteuid().is_root() {
            assert_eq!(made_by_stranger(&mounted.path(".zfs/snapshot/1")), Some(1));
        }
        let fixed = mounted.path("fixed/.zfs/snapshot");
        for refused in [fs::create_dir(fixed.join("2")), fs::remove_dir(fixed.join("1"))] {
            assert_eq!(errno(refused), Some(Errno::ROFS));
        }
        fs::create_dir(mounted.path(".zfs/snapshot/1")).unwrap();
        mounted.end(End::Unmount);
    }
    let mounted = Mounted::new(&images, "mine");
    let at = |path: &str| mounted.path(".zfs/snapshot").join(path);
    for refused in [fs::create_dir(at("2")), fs::remove_dir(at("1")), fs::rename(at("1"), at("2"))] {
        assert_eq!(errno(refused), Some(Errno::ACCESS));
    }
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// The kernel keeps listings and attributes: it is told when a property, a snapshot or a txg changes them.
#[test]
fn what_the_root_and_its_snapshots_show_is_as_new_as_the_pool() {
    use std::os::unix::fs::MetadataExt as _;

    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    let mounted = mounted(&images, "mine", &["-o", "strictatime"]);
    let at = mounted.at();
    fs::write(mounted.path("file"), vec![7; 3 << 20]).unwrap();
    let links = || fs::metadata(at).unwrap().nlink();
    for (snapdir, is_listed) in [("hidden", false), ("visible", true), ("hidden", false), ("visible", true)] {
        images.run("zfs", &["set", &format!("snapdir={snapdir}"), "mine"]);
        assert_eq!(names(at).contains(&".zfs".to_owned()), is_listed, "{snapdir}");
        assert_eq!(links(), 2 + u64::from(is_listed), "{snapdir}");
    }
    images.run("zfs", &["snapshot", "mine@taken"]);
    // Its space on disk is known when all is on disk.
    let before = fs::metadata(mounted.path("file")).unwrap().blocks();
    fs::write(mounted.path("file"), vec![8; 9 << 20]).unwrap();
    fs::metadata(mounted.path("file")).unwrap();
    images.run("zpool", &["sync", "mine"]);
    let after = fs::metadata(mounted.path("file")).unwrap().blocks();
    assert!(after > before + (5 << 20) / 512, "{before} {after}");
    // Nothing is read of an empty file, and it is read all the same.
    fs::write(mounted.path("empty"), "").unwrap();
    let accessed = || {
        let found = fs::metadata(mounted.path("empty")).unwrap();
        (found.atime(), found.atime_nsec())
    };
    let then = accessed();
    assert_eq!(fs::read(mounted.path("empty")).unwrap(), b"");
    assert!(accessed() > then);
    mounted.end(End::Unmount);
    images.assert_whole();
}
