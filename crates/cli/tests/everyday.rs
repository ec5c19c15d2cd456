//! Goal: what fingers and scripts do every day has the effect that they expect, or is refused in words that help. Method: the program
//! on pools made here; verbs and spellings of OpenZFS's tools, terminals that close, sockets in places where others could be.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::Serving;
use common::{program, said};

fn cenote(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

#[test]
fn a_verb_that_is_missing_says_so_and_a_slip_gets_usage() {
    for (words, line) in [
        (&["zfs", "send", "p@x"][..], "not supported yet: zfs send\n"),
        (&["zfs", "snapshot", "-r", "p@x"], "not supported yet: zfs snapshot\n"),
        (&["zpool", "-d", "/tmp", "scrub", "p"], "not supported yet: zpool scrub\n"),
        (&["zpool", "help", "iostat"], "not supported yet: zpool iostat\n"),
    ] {
        let output = cenote(words);
        assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), line), "{words:?}");
    }
    let slip = cenote(&["zfs", "snapshoot", "p@x"]);
    assert_eq!(slip.status.code(), Some(2));
    assert!(said(&slip).contains("Usage:") && !said(&slip).contains("tip:"), "{}", said(&slip));
}

#[test]
fn versions_and_help_are_told_in_every_spelling() {
    let version = env!("CARGO_PKG_VERSION");
    for words in [&["version"][..], &["--version"], &["-V"]] {
        let output = cenote(words);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("cenote {version}\n"), "{words:?}");
    }
    for tool in ["zfs", "zpool"] {
        for word in ["version", "--version", "-V"] {
            let output = cenote(&[tool, word]);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                format!("zfs-2.3.0-cenote-{version}\n"),
                "{tool} {word}"
            );
            assert!(output.status.success());
        }
        for words in [&[tool, "help"][..], &[tool, "-?"], &["help", tool]] {
            let output = cenote(words);
            assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage:"), "{words:?}");
        }
    }
    let json: serde_json::Value = serde_json::from_slice(&cenote(&["zpool", "version", "-j"]).stdout).unwrap();
    assert!(json["zfs_version"]["userland"].as_str().unwrap().starts_with("zfs-2.3"));
}

#[test]
fn a_terminal_that_closes_loses_nothing() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    fs::write(mounted.path("kept"), [7; 100_000]).unwrap();
    mounted.end(End::Signal("-HUP"));
    images.assert_whole();
    let mounted = Mounted::new(&images, "mine");
    assert!(fs::read(mounted.path("kept")).unwrap() == [7; 100_000]);
    mounted.end(End::Unmount);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let socket = images.cache.path().join("nbd.sock");
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    serving.end_by("-HUP").unwrap();
    images.assert_whole();
}

#[test]
fn a_control_socket_takes_nobodys_place_and_clients_believe_no_stranger() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let folder = tempfile::tempdir().unwrap();
    let (data, nbd) = (folder.path().join("data"), folder.path().join("nbd"));
    fs::write(&data, "precious").unwrap();
    let mut command = images.command("serve", &["--rw", "--unix", nbd.to_str().unwrap(), "--control"]);
    let output = command.arg(&data).arg("mine").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no socket"), "{}", said(&output));
    assert_eq!(fs::read(&data).unwrap(), b"precious");
    // A folder in which others could put a socket of theirs.
    let control = folder.path().join("control");
    let options = ["--rw", "--control", control.to_str().unwrap()];
    let serving = Serving::start(&images.dir, "mine", &nbd, &options).unwrap();
    let ask = || images.command("zfs", &["set", "a:b=c", "mine"]).env("CENOTE_CONTROL", &control).output().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = ask();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("written by others"), "{}", said(&output));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ask().status.success());
    serving.end().unwrap();
    assert!(!control.exists());
}
