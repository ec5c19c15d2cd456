//! Goal: raw and redacted streams are received. Method: those that OpenZFS has made, compared with what its pool has, read with the key that
//! the receiver never had; what is received is sent on and has the same records; what cannot be is refused.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::images::Images;
use common::{Pool, entries_of as entries, said, theme};

fn fed(images: &Images, words: &[&str], stream: &[u8]) -> Output {
    let mut command = images.command("zfs", &[&["receive"], words].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().unwrap();
    let stream = stream.to_vec();
    // It may end before it has read all.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&stream)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

fn receive(images: &Images, words: &[&str], stream: &[u8]) {
    let output = fed(images, words, stream);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
}

fn refused(images: &Images, words: &[&str], stream: &[u8]) -> String {
    let output = fed(images, words, stream);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {}", said(&output));
    said(&output)
}

fn sent(images: &Images, words: &[&str]) -> Vec<u8> {
    let output = images.command("zfs", &[&["send"], words].concat()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

/// A command of `zfs` on the pool that the streams are of.
fn at_source(source: &Pool, words: &[&str]) -> Vec<u8> {
    let output = source.command(&["zfs"], words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

/// The records of a stream as `zstream dump` tells them, without the sums and what names the sender.
fn records(images: &Images, stream: &[u8]) -> Vec<String> {
    let mut command = images.bare();
    command.args(["zstream", "dump", "-v"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stream = stream.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&stream)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    // The list behind BEGIN may be packed in another way.
    let kept = text.lines().take_while(|line| !line.starts_with("SUMMARY"));
    let of_sender = ["toname", "checksum", "payloadlen", "features"];
    kept.filter(|line| !of_sender.iter().any(|word| line.contains(word))).map(str::to_owned).collect()
}

/// The files of snapshots, read with keys.
fn manifest(images: &Images, keys: &[(&str, &PathBuf)]) -> String {
    let mut command = images.bare();
    command.args(["manifest", "-d"]).arg(&images.dir).args(["-f", "mine"]);
    for (dataset, file) in keys {
        command.arg("--key").arg(format!("{dataset}={}", file.display()));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn verify_with_key(images: &Images, dataset: &str, key: &Path) {
    let mut command = images.bare();
    command.args(["verify", "-d"]).arg(&images.dir).args(["-f", "mine", "--key"]);
    let output = command.arg(format!("{dataset}={}", key.display())).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

fn names(images: &Images) -> Vec<String> {
    let listed = images.run("zfs", &["list", "-H", "-t", "all", "-o", "name", "-s", "name", "-r", "mine"]);
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn raw_streams_bring_datasets_that_their_key_opens() {
    let theme = theme("streams");
    let source = Pool::of("streams");
    let keys = tempfile::tempdir().unwrap();
    let key = theme.write_keys(keys.path()).unwrap().remove(0).1;
    let (whole, increment) =
        (theme.stream_bytes("enc-raw.zfs").unwrap(), theme.stream_bytes("enc-raw-incr.zfs").unwrap());
    let images = Images::made(&[], 1, &[]);
    receive(&images, &["-o", "keylocation=file:///nowhere/key", "mine/in"], &whole);
    for (property, value) in [
        ("encryption", "aes-256-gcm"),
        ("keystatus", "unavailable"),
        ("keyformat", "raw"),
        ("encryptionroot", "mine/in"),
        ("keylocation", "file:///nowhere/key"),
    ] {
        assert_eq!(images.get(property, "mine/in").split('\t').next(), Some(value), "{property}");
    }
    // The increment comes in two pieces.
    let said = refused(&images, &["-s", "mine/in"], &increment[..increment.len() / 2]);
    assert!(said.contains("Partially received snapshot is saved."), "{said}");
    let token = images.run("zfs", &["get", "-H", "-o", "value", "receive_resume_token", "mine/in"]);
    // A stream that is not raw does not go on with it.
    let said =
        refused(&images, &["-s", "mine/in"], &at_source(&source, &["send", "-i", "@one", "vendunquin0/enc@two"]));
    assert!(said.contains("encrypted") || said.contains("partially-complete"), "{said}");
    receive(&images, &["-s", "mine/in"], &at_source(&source, &["send", "-t", token.trim()]));
    let there = source.text(&["manifest"], &[&source.name]);
    let here = manifest(&images, &[("mine/in", &key)]);
    for snapshot in ["one", "two"] {
        let sent = entries(&there, &format!("{}/enc@{snapshot}", source.name));
        assert_eq!(entries(&here, &format!("mine/in@{snapshot}")), sent, "{snapshot}");
    }
    verify_with_key(&images, "mine/in", &key);
    images.assert_whole();
    // Sent on it is the same.
    let again = sent(&images, &["-w", "mine/in@one"]);
    assert_eq!(records(&images, &again), records(&images, &whole));
    let again_on_top = sent(&images, &["-w", "-i", "@one", "mine/in@two"]);
    assert_eq!(records(&images, &again_on_top), records(&images, &increment));
    // As a package, below another encrypted dataset; its top stays an encryption root.
    images.run("zfs", &["snapshot", "-r", "mine/in@all"]);
    let package = sent(&images, &["-w", "-R", "mine/in@all"]);
    receive(&images, &["mine/copy"], &package);
    receive(&images, &["mine/in/below"], &again);
    receive(&images, &["mine/in/below"], &again_on_top);
    for copy in ["mine/copy", "mine/in/below"] {
        assert_eq!(images.get("encryptionroot", copy).split('\t').next(), Some(copy));
        verify_with_key(&images, copy, &key);
    }
    assert_eq!(images.get("keylocation", "mine/copy").split('\t').next(), Some("file:///nowhere/key"));
    images.run("zfs", &["rollback", "mine/copy@all"]);
    images.run("zfs", &["destroy", "-r", "mine/copy"]);
    images.run("zfs", &["destroy", "-r", "mine/in"]);
    assert_eq!(names(&images), ["mine"]);
    images.assert_whole();
}

#[test]
fn raw_streams_that_do_not_fit_are_refused_and_change_nothing() {
    let theme = theme("streams");
    let source = Pool::of("streams");
    let (whole, increment) =
        (theme.stream_bytes("enc-raw.zfs").unwrap(), theme.stream_bytes("enc-raw-incr.zfs").unwrap());
    let plain = theme.stream_bytes("enc-plain.zfs").unwrap();
    let images = Images::made(&[], 1, &[]);
    receive(&images, &["mine/in"], &whole);
    receive(&images, &["mine/plain"], &plain);
    receive(&images, &["mine/later"], &whole);
    images.run("zfs", &["snapshot", "mine/later@own"]);
    let before = names(&images);
    let over = "cannot be used to destroy an encrypted filesystem";
    let plain_increment = at_source(&source, &["send", "-i", "@one", "vendunquin0/enc@two"]);
    for (words, stream, expected) in [
        (&["mine/in"][..], &whole, "destination 'mine/in' exists"),
        (&["-F", "mine/in"], &whole, over),
        (&["-F", "mine/in"], &plain, over),
        (&["-F", "mine/plain"], &whole, over),
        (&["mine/plain"], &increment, "cannot perform raw receive on top of existing unencrypted dataset"),
        (&["mine/in"], &plain_increment, "not supported yet: receiving into an encrypted dataset"),
        (&["mine/in/new"], &plain, "below an encrypted one"),
        (&["mine/later"], &increment, "has been modified\nsince most recent snapshot"),
        (&["mine/new"], &increment, "destination 'mine/new' does not exist"),
        (&["-o", "encryption=off", "mine/new"], &whole, "encryption property 'encryption' cannot be set or excluded"),
        (&["-x", "keyformat", "mine/new"], &whole, "encryption property 'keyformat' cannot be set or excluded"),
        (&["mine/new"], &whole[..whole.len() / 2].to_vec(), "incomplete stream"),
    ] {
        let said = refused(&images, words, stream);
        assert!(said.contains(expected), "{words:?}: {said:?}, not {expected:?}");
        assert_eq!(names(&images), before, "{words:?}");
    }
    // Later snapshots go with -F alone.
    receive(&images, &["-F", "mine/later"], &increment);
    assert!(!names(&images).contains(&"mine/later@own".to_owned()));
    // A set of IVs that a snapshot of ours has is not that of the sender's snapshot.
    images.run("zfs", &["snapshot", "mine/in@mine"]);
    images.run("zfs", &["snapshot", "mine/in@other"]);
    let foreign = sent(&images, &["-w", "-i", "@mine", "mine/in@other"]);
    let said = refused(&images, &["mine/later"], &foreign);
    assert!(said.contains("most recent snapshot of mine/later does not\nmatch incremental source"), "{said}");
    // A part can be given up.
    let said = refused(&images, &["-s", "mine/part"], &whole[..whole.len() / 2]);
    assert!(said.contains("Partially received snapshot is saved."), "{said}");
    receive(&images, &["-A", "mine/part"], &[]);
    let said = refused(&images, &["-s", "-F", "mine/in"], &increment[..increment.len() / 2]);
    assert!(said.contains("Partially received snapshot is saved."), "{said}");
    receive(&images, &["-A", "mine/in"], &[]);
    images.assert_whole();
}

#[test]
fn redacted_streams_leave_holes_and_say_so() {
    let theme = theme("streams");
    let source = Pool::of("streams");
    let images = Images::made(&[], 1, &[]);
    receive(&images, &["mine/in"], &theme.stream_bytes("redacted.zfs").unwrap());
    let (there, here) = (source.text(&["manifest"], &[&source.name]), manifest(&images, &[]));
    let whole = entries(&there, &format!("{}/src@three", source.name));
    let received = entries(&here, "mine/in@three");
    let differing = whole.iter().zip(&received).filter(|(whole, received)| whole != received);
    let differing: Vec<_> = differing.map(|(whole, received)| (&whole["path"], &received["path"])).collect();
    assert_eq!(whole.len(), received.len());
    assert!((1..8).contains(&differing.len()) && differing.iter().all(|(one, other)| one == other), "{differing:?}");
    let guid =
        String::from_utf8(at_source(&source, &["get", "-Hpo", "value", "guid", "vendunquin0/redact@r"])).unwrap();
    assert_eq!(images.run("zfs", &["get", "-Hpo", "value", "redact_snaps", "mine/in@three"]), guid);
    // A clone of the snapshot that it was redacted by can come on top of it.
    let clone = at_source(&source, &["send", "-i", "vendunquin0/src#book", "vendunquin0/redact@r"]);
    receive(&images, &["-o", "origin=mine/in@three", "mine/clone"], &clone);
    let here = manifest(&images, &[]);
    assert_eq!(entries(&here, "mine/clone@r"), entries(&there, &format!("{}/redact@r", source.name)));
    // A stream that lacks the blocks that are left out here cannot.
    let other = Images::of_theme("streams");
    let snapshot = format!("{}/src@four", other.pool);
    other.run("zfs", &["snapshot", &snapshot]);
    let said = refused(&images, &["mine/in"], &sent(&other, &["-i", "@three", &snapshot]));
    assert!(said.contains("the stream is not redacted in a way that fits what is there"), "{said}");
    images.run("zfs", &["destroy", "-r", "mine/clone"]);
    images.run("zfs", &["destroy", "-r", "mine/in"]);
    images.assert_whole();
}
