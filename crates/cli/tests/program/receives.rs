//! Goal: `zfs receive` takes what `zfs send` of OpenZFS and of Cenote writes, and says what OpenZFS says. Method: the golden streams into a new
//! pool, whose snapshots then have the files that those of the sender's pool have; packages and their changes; what is refused.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::io::Write;
use std::process::{Output, Stdio};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::{Pool, entries_of as entries, said, theme};

/// Gives a stream to a verb's standard input.
fn fed(images: &Images, words: &[&str], stream: &[u8]) -> Output {
    let mut command = images.command("zfs", words);
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

fn receive(images: &Images, words: &[&str], stream: &[u8]) -> String {
    let output = fed(images, &[&["receive"], words].concat(), stream);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(images: &Images, words: &[&str], stream: &[u8]) -> String {
    let output = fed(images, &[&["receive"], words].concat(), stream);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {}", said(&output));
    said(&output)
}

fn names(images: &Images, kind: &str) -> Vec<String> {
    let listed = images.run("zfs", &["list", "-H", "-t", kind, "-o", "name", "-s", "name", "-r", "mine"]);
    listed.lines().map(str::to_owned).filter(|name| name.contains('/')).collect()
}

fn sent(images: &Images, words: &[&str]) -> Vec<u8> {
    let output = images.command("zfs", &[&["send"], words].concat()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

fn manifest(images: &Images) -> String {
    let output = images.bare().args(["manifest", "-d"]).arg(&images.dir).args(["-f", "mine"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Streams of the golden set: what they are called here, the snapshots that they bring, and streams that come before.
const STREAMS: [(&str, &[&str], &[&str]); 10] = [
    ("full.zfs", &["src@one"], &[]),
    ("full-large.zfs", &["src@one"], &[]),
    ("full-compressed.zfs", &["src@one"], &[]),
    ("full-props.zfs", &["src@three"], &[]),
    ("incr.zfs", &["src@one", "src@two"], &["full.zfs"]),
    ("incr-I.zfs", &["src@one", "src@two", "src@three"], &["full.zfs"]),
    ("holds.zfs", &["src@three"], &[]),
    ("replication.zfs", &["src@one", "src@two", "src@three", "src/kid@one", "src/kid@three"], &[]),
    ("kid.zfs", &["src/kid@one"], &[]),
    ("enc-plain.zfs", &["enc@one"], &[]),
];

#[test]
fn golden_streams_bring_what_was_sent() {
    let theme = theme("streams");
    let source = Pool::of("streams");
    let present = theme.streams().unwrap();
    let there = source.text(&["manifest"], &[&source.name]);
    let has = |file: &str| present.iter().any(|stream| stream.file == file);
    let mut compared = 0;
    for (file, snapshots, before) in STREAMS {
        if !has(file) || !before.iter().all(|file| has(file)) {
            continue;
        }
        let images = Images::made(&[], 1, &[]);
        // A tree has its names, a stream of one dataset gets one.
        let top = snapshots[0].split('@').next().unwrap();
        for file in before.iter().chain([&file]) {
            receive(&images, &["mine/in"], &theme.stream_bytes(file).unwrap());
        }
        let here = manifest(&images);
        for snapshot in snapshots {
            let received = entries(&here, &format!("mine/in{}", snapshot.strip_prefix(top).unwrap()));
            assert_eq!(received, entries(&there, &format!("{}/{snapshot}", source.name)), "{file}: {snapshot}");
            compared += 1;
        }
        images.assert_whole();
    }
    assert!(compared >= 5, "only {compared} snapshots at hand");
}

#[test]
fn a_partial_stream_is_gone_on_with_where_openzfs_says() {
    let theme = theme("streams");
    let present = theme.streams().unwrap();
    if !["partial.zfs", "resumed.zfs"].iter().all(|file| present.iter().any(|stream| stream.file == *file)) {
        println!("left out: the streams are not in this selection");
        return;
    }
    let source = Pool::of("streams");
    let images = Images::made(&[], 1, &[]);
    let said = refused(&images, &["-s", "mine/in"], &theme.stream_bytes("partial.zfs").unwrap());
    assert!(said.contains("checksum mismatch or incomplete stream.\nPartially received snapshot is saved."), "{said}");
    let token = images.run("zfs", &["get", "-H", "-o", "value", "receive_resume_token", "mine/in"]);
    assert!(said.contains(&format!("zfs send -t {}", token.trim())), "{said}");
    // Our own program goes on from it too.
    let resumed = source.command(&["zfs"], &["send", "-t", token.trim()]).output().unwrap();
    assert!(resumed.status.success(), "{}", common::said(&resumed));
    receive(&images, &["-s", "mine/in"], &resumed.stdout);
    let there = source.text(&["manifest"], &[&source.name]);
    let sent = entries(&there, &format!("{}/src@one", source.name));
    assert_eq!(entries(&manifest(&images), "mine/in@one"), sent);
    assert_eq!(images.run("zfs", &["get", "-H", "-o", "value", "receive_resume_token", "mine/in"]).trim(), "-");
    images.assert_whole();
}

/// `zfs send -S`: what one pool has of a stream goes to another, also in two pieces, and then the sender's stream goes on in both.
#[test]
fn what_has_come_in_part_is_sent_on_and_both_are_gone_on_with() {
    let source = Pool::of("streams");
    let pools = [Images::made(&[], 1, &[]), Images::made(&[], 1, &[])];
    let token = |images: &Images| {
        let token = images.run("zfs", &["get", "-H", "-o", "value", "receive_resume_token", "mine/in"]);
        token.trim().to_owned()
    };
    let send = |words: &[&str]| {
        let output = source.command(&["zfs"], &[&["send"][..], words].concat()).output().unwrap();
        assert!(output.status.success(), "{}", common::said(&output));
        output.stdout
    };
    let is_saved = |said: String| assert!(said.contains("Partially received snapshot is saved."), "{said}");
    let there = source.text(&["manifest"], &[&source.name]);
    let [src, one, two] = ["src", "src@one", "src@two"].map(|name| format!("{}/{name}", source.name));
    for (snapshot, words) in [(&one, &[one.as_str()][..]), (&two, &["-i", "@one", two.as_str()])] {
        let stream = send(words);
        is_saved(refused(&pools[0], &["-s", "mine/in"], &stream[..stream.len() / 3 * 2]));
        let saved = sent(&pools[0], &["-S", "mine/in"]);
        assert!(saved.len() > stream.len() / 5, "{} of {}", saved.len(), stream.len());
        is_saved(refused(&pools[1], &["-s", "mine/in"], &saved[..saved.len() / 2]));
        let rest = sent(&pools[0], &["-S", "-t", &token(&pools[1]), "mine/in"]);
        assert!(rest.len() < saved.len(), "{} of {}", rest.len(), saved.len());
        is_saved(refused(&pools[1], &["-s", "mine/in"], &rest));
        for images in &pools {
            receive(images, &["-s", "mine/in"], &send(&["-t", &token(images)]));
            let name = snapshot.replacen(&src, "mine/in", 1);
            assert_eq!(entries(&manifest(images), &name), entries(&there, snapshot), "{name}");
            assert_eq!(token(images), "-");
        }
    }
    let said = said(&pools[0].command("zfs", &["send", "-S", "mine/in"]).output().unwrap());
    assert!(said.contains("'mine/in' has no partially-received state"), "{said}");
    pools.iter().for_each(Images::assert_whole);
}

/// Regression: nothing said that a part is kept, and how to go on, where the room ended and not the stream.
#[test]
fn a_stream_that_there_is_no_room_for_is_gone_on_with_too() {
    let source = Pool::of("streams");
    let images = Images::made(&[], 1, &[]);
    let send = |words: &[&str]| {
        let output = source.command(&["zfs"], &[&["send"][..], words].concat()).output().unwrap();
        assert!(output.status.success(), "{}", common::said(&output));
        output.stdout
    };
    images.run("zfs", &["create", "-o", "quota=300K", "mine/q"]);
    let said = refused(&images, &["-s", "mine/q/in"], &send(&[&format!("{}/src@one", source.name)]));
    assert!(!said.contains("mismatch") && said.contains(".\nPartially received snapshot is saved.\n"), "{said}");
    let (_, token) = said.split_once("zfs send -t ").unwrap();
    images.run("zfs", &["set", "quota=none", "mine/q"]);
    receive(&images, &["-s", "mine/q/in"], &send(&["-t", token.trim()]));
    let there = source.text(&["manifest"], &[&source.name]);
    let sent = entries(&there, &format!("{}/src@one", source.name));
    assert_eq!(entries(&manifest(&images), "mine/q/in@one"), sent);
    images.assert_whole();
}

#[test]
fn a_tree_is_replicated_with_its_changes() {
    let images = Images::made(&[], 1, &[]);
    for name in ["a", "a/b", "a/gone", "a/old"] {
        images.run("zfs", &["create", &format!("mine/{name}")]);
    }
    images.run("zfs", &["set", "compression=zstd", "mine/a"]);
    images.run("zfs", &["set", "my:note=kept", "mine/a/b"]);
    images.run("zfs", &["create", "-V", "1M", "mine/a/vol"]);
    images.run("zfs", &["snapshot", "-r", "mine/a@1"]);
    images.run("zfs", &["snapshot", "mine/a@extra"]);
    images.run("zfs", &["hold", "keep", "mine/a/b@1"]);
    let first = sent(&images, &["-R", "-h", "mine/a@1"]);
    let told = receive(&images, &["-nv", "mine/copy"], &first);
    assert!(told.starts_with("would receive full stream of mine/a@1 into mine/copy@1\n"), "{told}");
    assert!(names(&images, "all").iter().all(|name| !name.starts_with("mine/copy")));
    let told = receive(&images, &["-v", "-o", "my:set=here", "-x", "compression", "mine/copy"], &first);
    assert!(told.contains("receiving full stream of mine/a/vol@1 into mine/copy/vol@1\nreceived "), "{told}");
    let copies = || names(&images, "filesystem,volume").into_iter().filter(|name| name.starts_with("mine/copy"));
    assert_eq!(
        copies().collect::<Vec<_>>(),
        ["mine/copy", "mine/copy/b", "mine/copy/gone", "mine/copy/old", "mine/copy/vol"]
    );
    assert_eq!(images.get("my:note", "mine/copy/b"), "kept\treceived");
    assert_eq!(images.get("my:set", "mine/copy"), "here\tlocal");
    assert_eq!(images.get("compression", "mine/copy").split('\t').next(), Some("on"));
    let held = images.run("zfs", &["holds", "-H", "mine/copy/b@1"]);
    assert!(held.starts_with("mine/copy/b@1\tkeep\t"), "{held}");
    // Datasets that go or get other names at the sender do so here.
    images.run("zfs", &["destroy", "-r", "mine/a/gone"]);
    images.run("zfs", &["rename", "mine/a/old", "mine/a/new"]);
    images.run("zfs", &["clone", "mine/a/b@1", "mine/a/clone"]);
    images.run("zfs", &["snapshot", "-r", "mine/a@2"]);
    let second = sent(&images, &["-R", "-I", "@1", "mine/a@2"]);
    images.run(
        "zfs",
        &["snapshot", "mine/copy/new@mine"]
            .map(|word| if word == "mine/copy/new@mine" { "mine/copy/old@mine" } else { word }),
    );
    receive(&images, &["-F", "mine/copy"], &second);
    assert_eq!(
        copies().collect::<Vec<_>>(),
        ["mine/copy", "mine/copy/b", "mine/copy/clone", "mine/copy/new", "mine/copy/vol"]
    );
    assert_eq!(images.get("origin", "mine/copy/clone").split('\t').next(), Some("mine/copy/b@1"));
    let snapshots: Vec<String> =
        names(&images, "snapshot").into_iter().filter(|name| name.contains("copy/new@")).collect();
    assert_eq!(snapshots, ["mine/copy/new@1", "mine/copy/new@2"]);
    for (option, expected) in [("-d", "mine/under/a@1"), ("-e", "mine/under/a@1")] {
        images.run("zfs", &["create", "mine/under"]);
        receive(&images, &[option, "mine/under"], &sent(&images, &["mine/a@1"]));
        assert!(names(&images, "snapshot").contains(&expected.to_owned()), "{option}");
        images.run("zfs", &["destroy", "-r", "mine/under"]);
    }
    images.assert_whole();
}

#[test]
fn what_cannot_be_received_is_refused_and_changes_nothing() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["snapshot", "mine/a@2"]);
    images.run("zfs", &["create", "-V", "1M", "mine/vol"]);
    let full = sent(&images, &["mine/a@1"]);
    let increment = sent(&images, &["-i", "@1", "mine/a@2"]);
    images.run("zfs", &["snapshot", "mine/vol@1"]);
    let volume = sent(&images, &["mine/vol@1"]);
    receive(&images, &["mine/b"], &full);
    let output = fed(&images, &["receive", "-x", "recordsize", "mine/other"], &volume);
    let warning = "Warning: mine/other: property 'recordsize' does not apply to datasets of this type\n";
    assert!(output.status.success() && said(&output).ends_with(warning), "{}", said(&output));
    let before = names(&images, "all");
    let mut damaged = full.clone();
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    let mut dedup = full.clone();
    dedup[16] |= 4;
    for (words, stream, expected) in [
        (
            &["mine/b"][..],
            &full[..],
            "cannot receive new filesystem stream: destination 'mine/b' exists\nmust specify -F to overwrite it\n",
        ),
        (
            &["-F", "mine/b"],
            &full,
            "cannot receive new filesystem stream: destination has snapshots (eg. mine/b@1)\nmust destroy them to overwrite it\n",
        ),
        (&["mine/none"], &increment, "cannot receive incremental stream: destination 'mine/none' does not exist\n"),
        (&["mine/none/below"], &full, "cannot receive new filesystem stream: destination 'mine/none' does not exist\n"),
        // A dry run says the same of a destination.
        (&["-n", "mine/b"], &full, "destination 'mine/b' exists\nmust specify -F to overwrite it\n"),
        (&["-n", "mine/none"], &increment, "destination 'mine/none' does not exist\n"),
        (&["-n", "mine/none/below"], &full, "destination 'mine/none' does not exist\n"),
        (&["-d", "mine/none"], &full, "cannot receive: specified fs (mine/none) does not exist\n"),
        (&["-e", "mine/none"], &full, "cannot receive: specified fs (mine/none) does not exist\n"),
        (&["mine/vol/below"], &full, "cannot receive new filesystem stream: parent 'mine/vol' is not a filesystem\n"),
        (&["mine/new"], &full[..full.len() / 2], "cannot receive new filesystem stream: incomplete stream\n"),
        (&["mine/new"], &damaged, "checksum mismatch"),
        (&["mine/new"], b"no stream at all", "cannot receive: "),
        (&["mine/new"], &vec![7; 4096], "cannot receive: not a send stream (bad magic number)\n"),
        (&["mine/new"], &dedup, "stream has deprecated feature: dedup"),
        (&["-d", "mine/new@x"], &full, "cannot receive: invalid argument - snapshot not allowed with -d\n"),
        (&["-o", "nosuch=1", "mine/new"], &full, "cannot receive: "),
        (&["-x", "nosuch", "mine/new"], &full, "cannot receive: invalid property 'nosuch'\n"),
        (&["-o", "atime=on", "-x", "atime", "mine/new"], &full, "property 'atime' specified multiple times\n"),
        (&["-o", "volsize=4M", "mine/new"], &volume, "not supported yet: changing the property 'volsize'"),
        (
            &["-o", "recordsize=4k", "mine/new"],
            &volume,
            "cannot receive new filesystem stream: property 'recordsize' does not apply to datasets of this type\n",
        ),
        (&["-A", "mine/b"], &[], "'mine/b' does not have any resumable receive state to abort\n"),
        (&["-c", "mine/b@no"], &full, "corrective recv must specify an existing snapshot to heal\n"),
    ] {
        let said = refused(&images, words, stream);
        assert!(said.contains(expected), "{words:?}: {said:?}, not {expected:?}");
        assert_eq!(names(&images, "all"), before, "{words:?}");
    }
    let none = images.command("zfs", &["receive", "-A", "mine/none"]).output().unwrap();
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    // Later snapshots go with -F alone.
    images.run("zfs", &["snapshot", "mine/b@own"]);
    images.run("zfs", &["set", "my:x=y", "mine/b"]);
    receive(&images, &["mine/b"], &increment);
    assert_eq!(names(&images, "snapshot").iter().filter(|name| name.starts_with("mine/b@")).count(), 3);
    let third = {
        images.run("zfs", &["snapshot", "mine/a@3"]);
        sent(&images, &["-i", "@1", "mine/a@3"])
    };
    receive(&images, &["-F", "mine/b"], &third);
    let left: Vec<String> = names(&images, "snapshot").into_iter().filter(|name| name.starts_with("mine/b@")).collect();
    assert_eq!(left, ["mine/b@1", "mine/b@3"]);
    // A partial receive can be given up.
    let said = refused(&images, &["-s", "mine/part"], &full[..full.len() - 400]);
    assert!(said.contains("Partially received snapshot is saved."), "{said}");
    let said = refused(&images, &["mine/part"], &full);
    assert!(said.contains("exists") || said.contains("partially-complete state"), "{said}");
    receive(&images, &["-A", "mine/part"], &[]);
    assert!(!names(&images, "all").iter().any(|name| name.starts_with("mine/part")));
    images.assert_whole();
}

/// Regression: a rename that found its name taken was given up, and the next package with -F destroyed the dataset.
#[test]
fn datasets_and_snapshots_that_change_their_names_with_others_do_so_here() {
    let images = Images::made(&[], 1, &[]);
    for name in ["s", "s/a", "s/b", "s/x", "s/x/y"] {
        images.run("zfs", &["create", &format!("mine/{name}")]);
        images.run("zfs", &["set", &format!("my:was={name}"), &format!("mine/{name}")]);
    }
    images.run("zfs", &["snapshot", "-r", "mine/s@1"]);
    images.run("zfs", &["snapshot", "-r", "mine/s@p"]);
    images.run("zfs", &["snapshot", "-r", "mine/s@q"]);
    receive(&images, &["mine/d"], &sent(&images, &["-R", "mine/s@q"]));
    let rename = |from: &str, to: &str| drop(images.run("zfs", &["rename", from, to]));
    for (one, other) in [("mine/s/a", "mine/s/b"), ("mine/s/b@p", "mine/s/b@q")] {
        let aside = format!("{one}-aside");
        rename(one, &aside);
        rename(other, one);
        rename(&aside, other);
    }
    // The child becomes the parent.
    rename("mine/s/x/y", "mine/s/t");
    rename("mine/s/x", "mine/s/t/x");
    rename("mine/s/t", "mine/s/x");
    images.run("zfs", &["snapshot", "-r", "mine/s@2"]);
    receive(&images, &["-F", "mine/d"], &sent(&images, &["-R", "-I", "@1", "mine/s@2"]));
    let told = |top: &str| {
        let columns = ["list", "-H", "-t", "filesystem,snapshot", "-o", "name,guid,my:was", "-s", "name", "-r"];
        let listed = images.run("zfs", &[&columns[..], &[top]].concat());
        // A file system has a guid of its own everywhere.
        let lines = listed.lines().map(|line| line.strip_prefix(top).unwrap().split('\t').collect::<Vec<_>>());
        let mut lines: Vec<_> = lines
            .map(|words| match words[0].contains('@') {
                true => format!("{} {}", words[0], words[1]),
                false => format!("{} {}", words[0], words[2]),
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(told("mine/d"), told("mine/s"));
    images.assert_whole();
}

/// Regression: a reservation that was asked for was set without being looked at, and one that had come already was counted once more.
#[test]
fn reservations_are_those_that_there_is_room_for() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "8M", "mine/v"]);
    images.run("zfs", &["snapshot", "mine/v@1"]);
    images.run("zfs", &["snapshot", "mine/v@2"]);
    let get = |property: &str, dataset: &str| -> u64 {
        images.run("zfs", &["get", "-Hpo", "value", property, dataset]).trim().parse().unwrap()
    };
    let number = |dataset: &str| get("refreservation", dataset);
    let usual = number("mine/v");
    let whole = sent(&images, &["mine/v@1"]);
    receive(&images, &["-o", "refreservation=auto", "mine/auto"], &whole);
    assert_eq!(number("mine/auto"), usual);
    let output = fed(&images, &["receive", "-o", "refreservation=1T", "mine/much"], &whole);
    assert!(said(&output).contains("size is greater than available space"), "{}", said(&output));
    assert_eq!(number("mine/much"), 0);
    receive(&images, &["mine/p"], &sent(&images, &["-p", "mine/v@1"]));
    assert_eq!(number("mine/p"), usual);
    // Nothing is left for a second reservation of that size.
    let rest = (get("available", "mine") - (1 << 20)).to_string();
    images.run("zfs", &["create", "-o", &format!("refreservation={rest}"), "mine/rest"]);
    let output = fed(&images, &["receive", "mine/p"], &sent(&images, &["-p", "-i", "@1", "mine/v@2"]));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert_eq!(number("mine/p"), usual);
    images.assert_whole();
}

/// Regression: the pool was left as if in use where what is said could not be written.
#[test]
fn a_full_standard_output_is_told_when_the_pool_is_exported() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    let stream = sent(&images, &["mine/a@1"]);
    let mut command = images.command("zfs", &["receive", "-v", "mine/b"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = command.stdout(full).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&stream).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let listed = images.command("zfs", &["list", "mine/b@1"]).output().unwrap();
    assert!(listed.status.success() && listed.stderr.is_empty(), "{}", said(&listed));
    let next = images.command("zfs", &["snapshot", "mine/b@2"]).output().unwrap();
    assert!(next.status.success() && next.stderr.is_empty(), "{}", said(&next));
}

/// `zfs send` into `zfs receive`, as a shell would have it. The receiver's end.
fn piped(images: &Images, send: &[&str], receive: &[&str]) -> Output {
    let mut sender =
        images.command("zfs", &[&["send"], send].concat()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut receiver = images.command("zfs", &[&["receive"], receive].concat());
    let output = receiver.stdin(sender.stdout.take().unwrap()).output().unwrap();
    sender.wait().unwrap();
    output
}

#[test]
fn a_pool_that_is_mounted_and_written_sends_and_receives() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    // The received files are read here, which is not to change their dataset.
    images.run("zfs", &["set", "atime=off", "mine"]);
    let mut mounted = Mounted::new(&images, "mine");
    std::fs::write(mounted.path("a/first"), "one").unwrap();
    images.run("zfs", &["snapshot", "mine/a@1"]);
    let output = piped(&images, &["mine/a@1"], &["-v", "mine/b"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("receiving full stream of mine/a@1 into mine/b@1"));
    // It is where it belongs, and what comes on top of it is there when the command ends.
    assert_eq!(std::fs::read_to_string(mounted.path("b/first")).unwrap(), "one");
    std::fs::write(mounted.path("a/second"), "two").unwrap();
    images.run("zfs", &["snapshot", "mine/a@2"]);
    // Somebody uses it.
    let open = std::fs::File::open(mounted.path("b/first")).unwrap();
    let output = piped(&images, &["-i", "@1", "mine/a@2"], &["mine/b"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(mounted.path("b/second")).unwrap(), "two");
    assert_eq!(std::io::read_to_string(open).unwrap(), "one");
    // A tree with what its sender has no more.
    images.run("zfs", &["create", "mine/b/gone"]);
    images.run("zfs", &["create", "mine/a/new"]);
    std::fs::write(mounted.path("a/new/third"), "three").unwrap();
    images.run("zfs", &["snapshot", "-r", "mine/a@3"]);
    let output = piped(&images, &["-R", "-I", "@1", "mine/a@3"], &["-F", "mine/b"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(mounted.path("b/new/third")).unwrap(), "three");
    assert!(!mounted.path("b/gone").exists());
    assert!(mounted.runs());
    mounted.end(End::Unmount);
    let all = manifest(&images);
    assert_eq!(entries(&all, "mine/b@3"), entries(&all, "mine/a@3"));
    assert_eq!(entries(&all, "mine/b/new@3"), entries(&all, "mine/a/new@3"));
    images.assert_whole();
}

#[test]
fn a_receive_into_a_mounted_pool_ends_with_its_command() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let mounted = Mounted::new(&images, "mine");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(mounted.path("a/file"), &bytes).unwrap();
    images.run("zfs", &["snapshot", "mine/a@1"]);
    let stream = sent(&images, &["mine/a@1"]);
    for words in [&["receive", "mine/b"][..], &["receive", "-s", "mine/b"]] {
        let mut receiver = images.command("zfs", words);
        let mut receiver = receiver.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = receiver.stdin.take().unwrap();
        // More than a pipe holds, so the server has read of it; then the command is killed, and the pipe stays open.
        stdin.write_all(&stream[..stream.len() / 2]).unwrap();
        receiver.kill().unwrap();
        receiver.wait().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            // The part that came is given up, or kept for a receive that goes on.
            let output = images.command("zfs", &["receive", "-A", "mine/b"]).output().unwrap();
            let is_over = match words.contains(&"-s") {
                true => output.status.success(),
                false => said(&output).contains("does not exist") || said(&output).contains("does not have any"),
            };
            if is_over {
                break;
            }
            assert!(std::time::Instant::now() < until, "{}", said(&output));
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        drop(stdin);
        assert_eq!(names(&images, "filesystem"), ["mine/a"], "nothing is seen of it");
    }
    receive(&images, &["mine/b"], &stream);
    assert_eq!(std::fs::read(mounted.path("b/file")).unwrap(), bytes);
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// Goal: where nothing is freed in the background, a dataset that is replaced, rolled back or destroyed gives back its own blocks alone: not
/// those of its origin or of its snapshots. Method: a clone and datasets beside it in a pool without features, each verb followed by
/// `verify`, which reads all that snapshots have, and by `zdb`, which finds what is freed and in use.
#[test]
fn what_is_freed_at_once_is_the_datasets_own() {
    let images = Images::made(&[], 1, &["-d"]);
    let zfs = |line: &str| images.run("zfs", &line.split(' ').collect::<Vec<_>>());
    let mut round = 0_u32;
    let mut put = |dataset: &str| {
        round += 1;
        let folder = tempfile::tempdir().unwrap();
        let mut rng = cenote_taskq::Rng::new(round.into());
        for name in ["a", "b"].map(|name| format!("{name}{round}")) {
            let mut bytes = vec![0; 300_000];
            rng.fill(&mut bytes);
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        images.run("put", &[dataset, folder.path().to_str().unwrap()]);
        images.assert_whole();
    };
    let files = |dataset: &str| images.run("ls", &[dataset]);
    zfs("create mine/a");
    put("mine/a");
    zfs("snapshot mine/a@1");
    for clone in ["mine/c", "mine/d"] {
        zfs(&format!("clone mine/a@1 {clone}"));
        put(clone);
    }
    zfs("snapshot mine/c@2");
    let full = sent(&images, &["mine/c@2"]);
    receive(&images, &["mine/s"], &full);
    put("mine/s");
    zfs("snapshot mine/s@3");
    let delta = sent(&images, &["-i", "@2", "mine/s@3"]);
    // Changes since, in a snapshot that goes and after it.
    put("mine/c");
    zfs("snapshot mine/c@later");
    put("mine/c");
    receive(&images, &["-F", "mine/c"], &delta);
    images.assert_whole();
    assert_eq!(files("mine/c"), files("mine/s@3"));
    put("mine/c");
    zfs("rollback mine/c@3");
    images.assert_whole();
    zfs("rollback mine/c@3");
    put("mine/c");
    zfs("snapshot mine/c@4");
    put("mine/c");
    zfs("rollback -r mine/c@2");
    images.assert_whole();
    // Changes of a dataset that has no snapshot give way to a whole one.
    zfs("create mine/e");
    put("mine/e");
    receive(&images, &["-F", "mine/e"], &full);
    images.assert_whole();
    // A stream that breaks off leaves nothing.
    put("mine/c");
    zfs("rollback mine/c@2");
    let output = fed(&images, &["receive", "-F", "mine/c"], &delta[..delta.len() / 2]);
    assert!(!output.status.success());
    images.assert_whole();
    receive(&images, &["-F", "mine/c"], &delta);
    images.assert_whole();
    for line in ["destroy mine/d", "promote mine/c", "destroy mine/a", "destroy -r mine/c", "destroy -r mine/s"] {
        zfs(line);
        images.assert_whole();
    }
}

/// Regression test: a bookmark whose snapshot is gone said that nearly all space there is was written since, once a receive had gone back behind it.
#[test]
fn a_bookmark_that_a_receive_goes_back_behind_knows_what_was_written_since() {
    let images = Images::made(&[], 1, &[]);
    let put = |dataset: &str, len: usize| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("f{len}")), vec![7; len]).unwrap();
        images.run("put", &[dataset, folder.path().to_str().unwrap()]);
    };
    let sent = |words: &[&str]| {
        let output = images.command("zfs", &[&["send"], words].concat()).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        output.stdout
    };
    let get = |property: &str| {
        images.run("zfs", &["get", "-Hp", "-o", "value", property, "mine/in"]).trim().parse::<u64>().unwrap()
    };
    images.run("zfs", &["set", "compression=off", "mine"]);
    images.run("zfs", &["create", "mine/out"]);
    put("mine/out", 100_000);
    images.run("zfs", &["snapshot", "mine/out@1"]);
    receive(&images, &["mine/in"], &sent(&["mine/out@1"]));
    put("mine/out", 300_000);
    images.run("zfs", &["snapshot", "mine/out@2"]);
    put("mine/in", 700_000);
    images.run("zfs", &["snapshot", "mine/in@own"]);
    images.run("zfs", &["bookmark", "mine/in@own", "#own"]);
    images.run("zfs", &["destroy", "mine/in@own"]);
    receive(&images, &["-F", "mine/in"], &sent(&["-i", "@1", "mine/out@2"]));
    assert_eq!(get("written#own"), get("written@1"));
    assert!((300_000..1_000_000).contains(&get("written#own")), "{}", get("written#own"));
    images.assert_whole();
}
