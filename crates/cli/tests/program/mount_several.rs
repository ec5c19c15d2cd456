//! Goal: datasets of a pool that several commands mount for writing are served by one process: each is used and unmounted by itself, what
//! was written is on disk when a command says so, and the process ends with the last of them. Method: `cenote mount --rw` and the helper
//! of `mount(8)` on pools made here, ended in each way, and OpenZFS's `zdb` at the end.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::{good, said};

/// A pool with two file systems.
fn made() -> Images {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/b"]);
    images
}

fn unmount(images: &Images, words: &[&str], at: &Path) -> Output {
    let mut command = images.bare();
    command.arg("unmount").args(words).arg(at).output().unwrap()
}

fn unmounted(images: &Images, words: &[&str], at: &Path) {
    let output = unmount(images, words, at);
    assert!(output.status.success(), "{}", said(&output));
}

/// The content that another process reads on disk now.
fn on_disk(images: &Images, dataset: &str, path: &str) -> String {
    images.run("cat", &[dataset, path])
}

fn is_mounted(images: &Images, dataset: &str) -> String {
    images.run("zfs", &["get", "-Ho", "value", "mounted", dataset]).trim().to_owned()
}

/// Datasets that no other test mounts: the property `mounted` is looked up in the system's table of mounts by a dataset's name, and tests
/// that run beside this one have pools of the same name.
const FIRST: &str = "mine/first";
const SECOND: &str = "mine/second";

#[test]
fn each_of_two_mounts_ends_by_itself_and_the_process_with_the_last() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    for dataset in [FIRST, SECOND] {
        images.run("zfs", &["create", dataset]);
    }
    let mut first = Mounted::new(&images, FIRST);
    let second = Mounted::new(&images, SECOND);
    fs::write(first.path("file"), "of a").unwrap();
    fs::write(second.path("file"), "of b").unwrap();
    assert_eq!((is_mounted(&images, FIRST), is_mounted(&images, SECOND)), ("yes".into(), "yes".into()));
    let listed = String::from_utf8(good(images.bare().args(["zfs", "mount"]))).unwrap();
    assert!([&first, &second].iter().all(|mounted| listed.contains(mounted.at().to_str().unwrap())), "{listed}");
    // The second one's folder is free at once, and the process goes on with the first.
    unmounted(&images, &[], second.at());
    second.wait();
    assert!(first.runs());
    assert_eq!(on_disk(&images, SECOND, "/file"), "of b");
    assert_eq!((is_mounted(&images, FIRST), is_mounted(&images, SECOND)), ("yes".into(), "no".into()));
    fs::write(first.path("more"), "of a").unwrap();
    // Mounted again, it outlives the one that the process was begun for.
    let mut second = Mounted::new(&images, SECOND);
    unmounted(&images, &[], first.at());
    assert!(first.runs() && second.runs());
    assert_eq!(fs::read(second.path("file")).unwrap(), b"of b");
    fs::write(second.path("more"), "of b").unwrap();
    images.run("zfs", &["set", "a:b=c", FIRST]);
    unmounted(&images, &[], second.at());
    images.assert_whole();
    first.wait();
    second.wait();
    for (dataset, text) in [(FIRST, "of a"), (SECOND, "of b")] {
        assert_eq!(on_disk(&images, dataset, "/more"), text);
    }
}

#[test]
fn an_interrupt_ends_the_mount_of_its_command_and_of_the_process_all() {
    if !can_mount() {
        return;
    }
    let images = made();
    for (signal, is_process) in [("-INT", false), ("-TERM", false), ("-INT", true), ("-TERM", true)] {
        let mut first = Mounted::new(&images, "mine/a");
        let second = Mounted::new(&images, "mine/b");
        fs::write(first.path("file"), signal).unwrap();
        fs::write(second.path("file"), signal).unwrap();
        if is_process {
            first.end(End::Signal(signal));
            second.wait();
        } else {
            second.end(End::Signal(signal));
            assert!(first.runs());
            assert_eq!(on_disk(&images, "mine/b", "/file"), signal);
            first.end(End::Unmount);
        }
        images.assert_whole();
        assert_eq!(on_disk(&images, "mine/a", "/file"), signal);
        assert_eq!(on_disk(&images, "mine/b", "/file"), signal);
    }
}

#[test]
fn what_is_in_use_stays_until_it_is_forced() {
    if !can_mount() {
        return;
    }
    let images = made();
    let mut first = Mounted::new(&images, "mine/a");
    let mut second = Mounted::new(&images, "mine/b");
    let mut file = File::create(second.path("file")).unwrap();
    file.write_all(b"one").unwrap();
    let output = unmount(&images, &[], second.at());
    // It says who uses it: this test.
    let user = format!("busy: process {}", std::process::id());
    assert!(said(&output).contains(&user), "{}", said(&output));
    // An interrupt says so, and a second one does not ask.
    second.signal("-INT");
    second.says("in use; interrupt again");
    assert!(second.runs());
    file.write_all(b" two").unwrap();
    second.signal("-INT");
    second.wait_whatever_it_says();
    assert!(file.write_all(b" three").is_err());
    assert!(first.runs());
    assert_eq!(on_disk(&images, "mine/b", "/file"), "one two");
    drop(file);
    // As `unmount -f`, here of the process's own.
    let third = Mounted::new(&images, "mine/b");
    let mut file = OpenOptions::new().append(true).open(third.path("file")).unwrap();
    file.write_all(b" four").unwrap();
    let mut own = File::create(first.path("file")).unwrap();
    own.write_all(b"own").unwrap();
    unmounted(&images, &["-f"], first.at());
    assert!(own.write_all(b" more").is_err());
    file.write_all(b" five").unwrap();
    assert_eq!(on_disk(&images, "mine/a", "/file"), "own");
    unmounted(&images, &["-f"], third.at());
    assert!(file.write_all(b" six").is_err());
    images.assert_whole();
    assert_eq!(on_disk(&images, "mine/b", "/file"), "one two four five");
    third.wait();
    first.wait();
}

#[test]
fn a_mount_outlives_its_command_and_not_its_process() {
    if !can_mount() {
        return;
    }
    let images = made();
    let first = Mounted::new(&images, "mine/a");
    let mut second = Mounted::new(&images, "mine/b");
    second.signal("-KILL");
    second.wait_whatever_it_says();
    fs::write(second.path("file"), "written").unwrap();
    unmounted(&images, &[], second.at());
    assert_eq!(on_disk(&images, "mine/b", "/file"), "written");
    let mut second = Mounted::new(&images, "mine/b");
    for at in [first.at(), second.at()] {
        let mut file = File::create(at.join("synced")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        fs::write(at.join("loose"), "loose").unwrap();
    }
    first.kill();
    second.says("is gone: what was written last");
    assert!(!second.wait_whatever_it_says().success());
    images.assert_whole();
    // The folders are freed by then.
    drop(second);
    let first = Mounted::new(&images, "mine/b");
    let second = Mounted::new(&images, "mine/a");
    for mounted in [&first, &second] {
        assert_eq!(fs::read(mounted.path("synced")).unwrap(), b"synced");
    }
    unmounted(&images, &[], first.at());
    second.end(End::Unmount);
    first.wait();
    images.assert_whole();
}

#[test]
fn what_cannot_be_mounted_is_refused_and_changes_nothing() {
    if !can_mount() {
        return;
    }
    let images = made();
    images.run("zfs", &["create", "-V", "4M", "-s", "mine/v"]);
    images.run("zfs", &["create", "mine/a/nested"]);
    images.run("zfs", &["create", "-o", "readonly=on", "mine/fixed"]);
    let mut first = Mounted::new(&images, "mine/a");
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let (missing, file) = (format!("{at}/missing"), format!("{at}/file"));
    for (words, reason) in [
        (&["mine/b", missing.as_str()][..], "No such file or directory"),
        (&["mine/b", file.as_str()], "not a directory"),
        (&["mine/none", at], "does not exist"),
        (&["mine/v", at], "volume"),
        (&["mine/fixed", at], "readonly"),
        // It stands at one place: its own, or that in the mount of one above it.
        (&["mine/a", at], "mounted already"),
        (&["mine/a/nested", at], "mounted already"),
    ] {
        for background in [&[][..], &["--background"]] {
            let said = images.refused("mount", &[&["--rw"][..], background, words].concat());
            assert!(said.contains(reason), "{words:?}: {said}");
        }
    }
    for options in [&["-o", "ro"][..], &["-o", "frobnicate"], &["--control", "/tmp/none"]] {
        let output = images.command("mount", &[&["--rw"][..], options, &["mine/b", at]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    // Reading is a process of its own, as before.
    let mut read_only = images.command("mount", &["mine/b"]);
    let folder = tempfile::tempdir().unwrap();
    read_only.arg(folder.path());
    let mut read_only = Mounted::start(read_only, folder);
    assert!(fs::write(read_only.path("file"), "").is_err());
    read_only.signal("-INT");
    read_only.wait_whatever_it_says();
    // One that shows it nested has a hole there meanwhile.
    let above = Mounted::new(&images, "mine");
    assert_eq!(fs::read_dir(above.path("a")).err().and_then(|error| error.raw_os_error()), Some(16));
    fs::write(above.path("b/file"), "nested").unwrap();
    unmounted(&images, &[], first.at());
    // The other mount learns of it a moment later.
    let begun = std::time::Instant::now();
    while let Err(error) = fs::write(above.path("a/file"), "nested") {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{error}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    unmounted(&images, &[], above.at());
    above.wait();
    first.wait_whatever_it_says();
    images.assert_whole();
    assert_eq!(on_disk(&images, "mine/a", "/file"), "nested");
}

#[test]
fn lines_of_fstab_for_one_pool_are_mounted_by_the_helper() {
    if !can_mount() || !common::is_root() {
        return;
    }
    let images = made();
    let folder = tempfile::tempdir().unwrap();
    let helper = |name: &str| {
        let link = folder.path().join(name);
        if !link.exists() {
            symlink(images.bare().get_program(), &link).unwrap();
        }
        let mut command = Command::new(link);
        command.env("CENOTE_CACHE", images.cache.path().join("cache.json"));
        command
    };
    let options = |rest: &str| format!("{rest},dir={},force", images.dir.display());
    let at = ["a", "b"].map(|name| folder.path().join(format!("at {name}")));
    for (name, at) in ["a", "b"].iter().zip(&at) {
        fs::create_dir(at).unwrap();
        let output = helper("mount.fuse.cenote")
            .arg(format!("mine/{name}"))
            .arg(at)
            .args(["-o", &options("rw,noatime,nosuid")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        fs::write(at.join("file"), *name).unwrap();
    }
    let has = |at: &Path, wanted: &str| {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let shown = at.display().to_string().replace(' ', "\\040");
        table.lines().any(|line| line.contains(&shown) && line.split([' ', ',']).any(|word| word == wanted))
    };
    assert!(at.iter().all(|at| has(at, "rw") && has(at, "noatime") && has(at, "nosuid")));
    let remount = |option: &str| {
        let option = format!("remount,{option}");
        good(helper("mount.fuse.cenote").arg("mine/b").arg(&at[1]).args(["-o", &options(&option)]));
    };
    remount("ro");
    assert!(has(&at[1], "ro") && has(&at[0], "rw"));
    assert_eq!(fs::write(at[1].join("file"), "").err().and_then(|error| error.raw_os_error()), Some(30));
    remount("rw");
    fs::write(at[1].join("more"), "more").unwrap();
    good(helper("umount.fuse.cenote").arg(&at[0]));
    assert_eq!(on_disk(&images, "mine/a", "/file"), "a");
    assert_eq!(fs::read(at[1].join("file")).unwrap(), b"b");
    good(helper("umount.fuse.cenote").arg(&at[1]));
    // It returns when the pool is exported.
    images.assert_whole();
    assert_eq!(on_disk(&images, "mine/b", "/more"), "more");
}

#[test]
fn a_served_pool_takes_mounts_and_goes_on_without_them() {
    if !can_mount() {
        return;
    }
    let images = made();
    images.run("zfs", &["create", "-V", "4M", "-s", "mine/v"]);
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nbd.sock");
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("serve", &["--rw", "--unix"]);
    command.arg(&socket).arg("--mount").arg(folder.path()).arg("mine/a");
    // Only the mounted dataset has no volumes below it.
    let output = command.output().unwrap();
    assert!(said(&output).contains("has no volumes"), "{}", said(&output));
    let mut command = images.command("serve", &["--rw", "-o", "layout=alone", "--unix"]);
    command.arg(&socket).arg("--mount").arg(folder.path()).arg("mine");
    let mut serving = Mounted::start(command, folder);
    let second = Mounted::new(&images, "mine/b");
    fs::write(serving.path("file"), "served").unwrap();
    fs::write(second.path("file"), "mounted").unwrap();
    unmounted(&images, &[], serving.at());
    assert_eq!(on_disk(&images, "mine", "/file"), "served");
    unmounted(&images, &[], second.at());
    second.wait();
    assert_eq!(on_disk(&images, "mine/b", "/file"), "mounted");
    assert!(serving.runs());
    let second = Mounted::new(&images, "mine/b");
    fs::write(second.path("file"), "again").unwrap();
    serving.end(End::Signal("-TERM"));
    second.wait();
    images.assert_whole();
    assert_eq!(on_disk(&images, "mine/b", "/file"), "again");
}

/// A mount keeps in the system's table the name that its dataset had; commands know it by the name that it has.
#[test]
fn a_dataset_that_is_renamed_while_it_is_mounted_is_known_by_its_new_name() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/old"]);
    images.run("zfs", &["create", "mine/keeper"]);
    let keeper = Mounted::new(&images, "mine/keeper");
    for flags in [&["-u"][..], &[]] {
        let mounted = Mounted::new(&images, "mine/old");
        fs::write(mounted.path("file"), "content").unwrap();
        images.run("zfs", &[&["rename"], flags, &["mine/old", "mine/renamed"]].concat());
        assert_eq!(is_mounted(&images, "mine/renamed"), "yes", "{flags:?}");
        let listed = String::from_utf8(good(images.bare().args(["zfs", "mount"]))).unwrap();
        let at = mounted.at().display().to_string();
        let line = listed.lines().find(|line| line.ends_with(&at)).unwrap();
        assert_eq!(line.split_whitespace().next(), Some("mine/renamed"), "{listed}");
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
        good(images.bare().args(["zfs", "unmount", "mine/renamed"]));
        mounted.wait();
        assert_eq!(is_mounted(&images, "mine/renamed"), "no");
        images.run("zfs", &["rename", "mine/renamed", "mine/old"]);
    }
    images.run("zfs", &["destroy", "mine/old"]);
    keeper.end(End::Unmount);
    images.assert_whole();
}

/// A read-only mount sees the pool as it was. Whoever changes the pool is told of it, and what it shows is not destroyed under it.
#[test]
fn what_a_read_only_mount_shows_is_in_use() {
    if !can_mount() {
        return;
    }
    let images = Images::made_as("seen", &[], 1, &[]);
    images.run("zfs", &["create", "seen/shown"]);
    images.run("zfs", &["create", "seen/shown/below"]);
    images.run("zfs", &["snapshot", "seen/shown@snap"]);
    images.run("zfs", &["create", "seen/other"]);
    for (dataset, busy, free) in [
        ("seen", &["seen/shown", "seen/shown/below", "seen/other"][..], &[][..]),
        ("seen/shown", &["seen/shown", "seen/shown/below"], &[]),
        ("seen/shown@snap", &["seen/shown@snap", "seen/shown"], &["seen/shown/below"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = images.command("mount", &[dataset]);
        command.arg(folder.path());
        let mounted = Mounted::start(command, folder);
        for name in busy {
            let said = images.refused("zfs", &["destroy", "-r", name]);
            assert!(said.contains("dataset is busy: a read-only mount"), "{said}");
        }
        let output = images.command("zfs", &["set", "a:b=c", "seen/other"]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(said(&output).contains("is mounted read-only at"), !dataset.contains('@'), "{}", said(&output));
        for name in free {
            images.run("zfs", &["destroy", name]);
        }
        mounted.end(End::Unmount);
    }
    images.run("zfs", &["destroy", "-r", "seen/shown"]);
    images.assert_whole();
}
