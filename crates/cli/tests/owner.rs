//! Goal: a pool, and a device, has one owner. Method: servers that are killed, pools that others left, devices that the kernel uses,
//! and the program asked to write them. What needs loop devices says so where there are none.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::images::Images;
use common::serving::Serving;
use common::{good, said};

fn bytes_of(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|file: &PathBuf| std::fs::read::<&Path>(file).unwrap()).collect()
}

/// `zfs set` on the pool in a folder, without -f, with the notes of a server of [`Serving`].
fn set(images: &Images, dir: &Path, force: &[&str]) -> Output {
    let mut command = images.bare();
    command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    command.args(["zfs", "-d"]).arg(dir).args(force).args(["set", "org.example:a=b", "mine"]).output().unwrap()
}

/// A server that has written a txg, which says that the pool is in use.
fn serving(images: &Images) -> Serving {
    let socket = images.dir.parent().unwrap().join("nbd.sock");
    let _ = std::fs::remove_file(&socket);
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    let mut sync = images.bare();
    sync.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    good(sync.args(["zpool", "-d"]).arg(&images.dir).args(["sync", "mine"]));
    serving
}

#[test]
fn a_killed_server_s_pool_is_opened_again_with_a_word_and_without_force() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    serving(&images).kill().unwrap();
    let output = set(&images, &images.dir, &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("was not exported, but process "), "{}", said(&output));
    // Exported now, and nothing to say.
    let output = set(&images, &images.dir, &[]);
    assert!(output.status.success() && !said(&output).contains("exported"), "{}", said(&output));
    let notes = images.dir.parent().unwrap().join("serving/owners");
    assert_eq!(std::fs::read_dir(notes).unwrap().count(), 0, "an exported pool has no note");
    images.assert_whole();
}

#[test]
fn a_pool_in_use_whose_owner_is_not_known_to_be_gone_is_not_written_without_force() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    serving(&images).kill().unwrap();
    std::fs::remove_dir_all(images.dir.parent().unwrap().join("serving/owners")).unwrap();
    let before = bytes_of(&images.files);
    let output = set(&images, &images.dir, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for part in ["cannot open 'mine' for writing", "was not exported", "'-f'"] {
        assert!(said(&output).contains(part), "{}", said(&output));
    }
    assert!(bytes_of(&images.files) == before, "it was written");
    // Looking is no harm.
    let mut list = images.bare();
    good(list.args(["zfs", "-d"]).arg(&images.dir).args(["list", "mine"]));
    let output = set(&images, &images.dir, &["-f"]);
    assert!(output.status.success(), "{}", said(&output));
    images.assert_whole();
}

/// A copy of a served image says that it is the server's, which lives.
#[test]
fn a_copy_of_a_pool_in_use_is_not_written_without_force() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let serving = serving(&images);
    let copies = tempfile::tempdir().unwrap();
    std::fs::copy(&images.files[0], copies.path().join("copy.img")).unwrap();
    let mut command = images.bare();
    command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    // Its server would be asked otherwise.
    std::fs::remove_dir_all(images.dir.parent().unwrap().join("serving/servers")).unwrap();
    command.args(["zfs", "-d"]).arg(copies.path()).args(["set", "org.example:a=b", "mine"]);
    let output = command.output().unwrap();
    assert!(said(&output).contains("may still be in use"), "{}", said(&output));
    serving.kill().unwrap();
}

#[test]
fn a_pool_that_openzfs_left_open_needs_force_whatever_the_host_ids_are() {
    let images = Images::of_theme("log_spacemap");
    let before = bytes_of(&images.files);
    let mut command = images.bare();
    let output = command.args(["zpool", "-d"]).arg(&images.dir).args(["set", "comment=x", &images.pool]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("in use"), "{}", said(&output));
    assert!(bytes_of(&images.files) == before, "it was written");
}

/// A loop device that goes away again.
struct Loop(PathBuf);

impl Loop {
    /// None, with the reason printed, where there are none to be had.
    fn over(image: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok();
        let Some(output) = output.filter(|output| output.status.success()) else {
            eprintln!("left out: no loop devices here (root, losetup)");
            return None;
        };
        Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_pool_that_a_server_has_is_not_opened_through_its_image_s_loop_device() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let Some(device) = Loop::over(&images.files[0]) else { return };
    let socket = images.dir.parent().unwrap().join("nbd.sock");
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    let mut command = images.bare();
    command.args(["zfs", "-d", device.name(), "-f", "set", "org.example:a=b", "mine"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("in use by another process"), "{}", said(&output));
    serving.end().unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

