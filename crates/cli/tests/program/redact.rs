//! Goal: `zfs redact` makes the bookmark that OpenZFS makes, says its words, and works beside a server. Method: the golden pool has a bookmark
//! that OpenZFS made and the clone it was made by; ours of the same must make the same stream. Impossible requests are refused.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::process::{Output, Stdio};
use std::time::Duration;

use common::images::Images;
use common::said;

fn sent(images: &Images, words: &[&str]) -> Vec<u8> {
    let output = images.command("zfs", &[&["send"], words].concat()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

fn get(images: &Images, property: &str, of: &str) -> String {
    images.run("zfs", &["get", "-Hp", "-o", "value", property, of]).trim().to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_bookmark_of_ours_redacts_as_that_of_openzfs() {
    let images = Images::of_theme("streams");
    let name = |rest: &str| format!("{}/{rest}", images.pool);
    images.run("zfs", &["redact", &name("src@three"), "ours", &name("redact@r")]);
    assert_eq!(get(&images, "redact_snaps", &name("src#ours")), get(&images, "redact_snaps", &name("src#book")));
    for property in ["guid", "createtxg", "creation", "referenced"] {
        assert_eq!(get(&images, property, &name("src#ours")), get(&images, property, &name("src@three")), "{property}");
    }
    let theirs = sent(&images, &["--redact", "book", &name("src@three")]);
    assert!(sent(&images, &["--redact", "ours", &name("src@three")]) == theirs);
    assert!(theirs.len() < sent(&images, &[&name("src@three")]).len());
    let clone = sent(&images, &["-i", &name("src#book"), &name("redact@r")]);
    assert!(sent(&images, &["-i", &name("src#ours"), &name("redact@r")]) == clone);
    images.assert_whole();
    images.run("zfs", &["destroy", &name("src#ours")]);
    images.assert_whole();
}

#[test]
fn what_cannot_be_redacted_is_refused_in_openzfs_words() {
    let images = Images::made(&[], 1, &[]);
    for name in ["mine/a", "mine/b"] {
        images.run("zfs", &["create", name]);
    }
    images.run("zfs", &["snapshot", "mine/a@0", "mine/b@0"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["clone", "mine/a@1", "mine/c"]);
    images.run("zfs", &["snapshot", "mine/c@x"]);
    images.run("zfs", &["bookmark", "mine/a@1", "#plain"]);
    let refused = |words: &[&str], status: i32, line: &str| {
        let output = images.command("zfs", &[&["redact"], words].concat()).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).trim()), (Some(status), line), "{words:?}");
    };
    let descendant = "redaction snapshot must be descendent of snapshot being redacted";
    refused(&["mine/a@1", "r", "mine/b@0"], 22, descendant);
    refused(&["mine/a@1", "r", "mine/a@0"], 22, descendant);
    refused(&["mine/a@1", "r", "mine/a@1"], 22, descendant);
    refused(&["mine/a@1", "r", "mine/c"], 22, descendant);
    refused(&["mine/a", "r", "mine/c@x"], 22, descendant);
    refused(&["mine/a@1", "r#s", "mine/c@x"], 22, "redaction bookmark name must not contain '#'");
    refused(&["mine/a@1", "plain", "mine/c@x"], 17, "specified redaction bookmark (plain) provided already exists");
    let absent = "cannot open 'mine/c@y': dataset does not exist\nprovided snapshot mine/c@y does not exist";
    refused(&["mine/a@1", "r", "mine/c@y", "mine/c@x"], 2, absent);
    refused(&["mine/a@1", "r", "other/c@y"], 18, "potentially invalid redaction snapshot; full dataset names required");
    let long = "l".repeat(250);
    refused(
        &["mine/a@1", &long, "mine/c@x"],
        36,
        "provided bookmark name cannot be used, final name would be too long",
    );
    images.run("zfs", &["redact", "mine/a@0", "r", "mine/a@1", "mine/c@x", "mine/a@1"]);
    assert_eq!(get(&images, "redact_snaps", "mine/a#r").split(',').count(), 2);
    refused(&["mine/a@0", "r", "mine/a@1", "mine/c@x"], 17, "specified redaction bookmark (r) provided already exists");
    let few = "attempted to resume redaction  with a mismatched redaction list";
    refused(&["mine/a@0", "r", "mine/c@x"], 3, few);
    images.assert_whole();
    images.run("zfs", &["destroy", "-R", "mine/a"]);
    images.assert_whole();
    let features = ["-o", "feature@redaction_bookmarks=disabled", "-o", "feature@redaction_list_spill=disabled"];
    let bare = Images::made(&[], 1, &features);
    bare.run("zfs", &["snapshot", "mine@1"]);
    bare.run("zfs", &["snapshot", "mine@3"]);
    let output = bare.command("zfs", &["redact", "mine@1", "r", "mine@3"]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).trim()), (Some(95), "redaction bookmarks feature not enabled"));
}

#[test]
fn a_pool_that_a_server_has_takes_it_too() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["clone", "mine/a@1", "mine/c"]);
    images.run("zfs", &["snapshot", "mine/c@x"]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let socket = images.cache.path().join("nbd.sock");
    let mut serve = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "mine"]);
    let mut serving = serve.stderr(Stdio::null()).spawn().unwrap();
    while !socket.exists() {
        assert!(serving.try_wait().unwrap().is_none(), "the server ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    images.run("zfs", &["redact", "mine/a@1", "r", "mine/c@x"]);
    let again = images.command("zfs", &["redact", "mine/a@1", "r", "mine/c@x"]).output().unwrap();
    let words = "specified redaction bookmark (r) provided already exists";
    assert_eq!((again.status.code(), stderr(&again).trim()), (Some(17), words));
    assert!(!sent(&images, &["--redact", "r", "mine/a@1"]).is_empty());
    images.run("zpool", &["export", "mine"]);
    assert!(serving.wait().unwrap().success());
    assert!(images.run("zpool", &["history", "mine"]).contains("zfs redact mine/a@1 r mine/c@x"));
    images.assert_whole();
}

#[test]
fn a_dataset_whose_key_is_not_loaded_is_refused_before_its_bookmark_is_made() {
    let images = Images::of_theme("streams");
    let root = common::theme("streams").manifest().unwrap().keys.into_keys().next().unwrap();
    let (snapshot, by) = (format!("{root}@one"), format!("{root}@two"));
    let output = images.command("zfs", &["redact", &snapshot, "book", &by]).output().unwrap();
    let line = format!("cannot redact '{snapshot}': its key is not loaded");
    assert_eq!((output.status.code(), stderr(&output).trim()), (Some(13), line.as_str()));
    let bookmarks = images.run("zfs", &["list", "-H", "-t", "bookmark", "-o", "name", "-r", &root]);
    assert_eq!(bookmarks, "");
    images.assert_whole();
}
