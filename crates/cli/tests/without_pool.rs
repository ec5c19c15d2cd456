//! Goal: streams without pools. `cenote send` makes one of a directory or an archive that receivers take, the same bytes each time;
//! `cenote receive` unpacks one into a directory or an archive, increments on top. Method: trees that go there and back are compared entry by
//! entry, golden streams of OpenZFS with what `cp` takes out of the pool that they are of.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::images::Images;
use common::{Pool, program, said, theme};

/// What can be seen of each entry of a tree, but times of directories.
fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let what = if meta.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if meta.is_dir() {
                left.push(path.clone());
                format!("directory {:o}", meta.mode())
            } else if !meta.is_file() {
                format!("{:o}", meta.mode())
            } else {
                let bytes = some_of(&path, meta.len());
                let sum = cenote_codec::checksum::fletcher::fletcher4(&bytes, cenote_format::Endian::Little);
                let note = rustix_xattr(&path);
                format!(
                    "{:o} {} {}.{} {} links {sum:x?} {note:?}",
                    meta.mode(),
                    meta.len(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                    meta.nlink()
                )
            };
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            found.insert(name, what);
        }
    }
    found
}

/// A file's bytes, in whole words; of one that is large, which has holes, those at both ends.
fn some_of(path: &Path, length: u64) -> Vec<u8> {
    const END_BYTES: u64 = 4 << 20;
    let mut file = fs::File::open(path).unwrap();
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(2 * END_BYTES).read_to_end(&mut bytes).unwrap();
    if length > 2 * END_BYTES {
        file.seek(SeekFrom::End(-(END_BYTES as i64))).unwrap();
        file.read_to_end(&mut bytes).unwrap();
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A file's attribute `user.note`.
fn rustix_xattr(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0_u8; 256];
    let length = rustix::fs::lgetxattr(path, "user.note", &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

/// A directory with a bit of everything that needs no rights.
fn files(dir: &Path) {
    fs::create_dir_all(dir.join("a/deep/er")).unwrap();
    fs::create_dir(dir.join("many")).unwrap();
    for number in 0..300 {
        fs::write(dir.join(format!("many/{number}")), format!("file {number}\n").repeat(number % 50)).unwrap();
    }
    fs::write(dir.join("a/large"), (0..3_000_000_u32).flat_map(|number| [(number % 251) as u8]).collect::<Vec<_>>())
        .unwrap();
    let mut sparse = fs::File::create(dir.join("a/sparse")).unwrap();
    sparse.seek(SeekFrom::Start(5 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
    symlink("../many/7", dir.join("a/link")).unwrap();
    fs::hard_link(dir.join("many/7"), dir.join("a/deep/er/seven")).unwrap();
    fs::set_permissions(dir.join("many/8"), fs::Permissions::from_mode(0o640)).unwrap();
    let _ = rustix::fs::lsetxattr(dir.join("many/9"), "user.note", b"of nine", rustix::fs::XattrFlags::empty());
}

fn fed(command: &mut Command, stream: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stream = stream.to_vec();
    // It may end before it has read all.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&stream)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

fn receive(words: &[&str], stream: &[u8]) {
    let output = fed(program().arg("receive").args(words), stream);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
}

fn send(words: &[&str]) -> Vec<u8> {
    let output = program().arg("send").args(words).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_directory_goes_into_a_stream_and_back() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("from")).unwrap();
    files(&at("from"));
    // No time is later than the one that the streams are said to be of.
    for entry in fs::read_dir(at("from"))
        .unwrap()
        .chain(fs::read_dir(at("from/a")).unwrap())
        .chain(fs::read_dir(at("from/many")).unwrap())
    {
        let path = entry.unwrap().path();
        if !path.is_symlink() && path.is_file() {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
            fs::File::open(&path).unwrap().set_modified(time).unwrap();
        }
    }
    let from = at("from");
    let plain = send(&["--from", text(&from), "--seed", "7"]);
    assert!(
        plain == send(&["--from", text(&from), "--seed", "7"]),
        "the same source, seed and time give the same bytes"
    );
    let wanted = tree(&from);
    assert!(wanted.len() > 300);
    let forms = [
        &["-c", "-e"][..],
        &["-L", "-O", "recordsize=1M"],
        &["-L", "-c", "-O", "compression=zstd", "--name", "etc@monday"],
    ];
    for (index, form) in [&[][..]].into_iter().chain(forms).enumerate() {
        let stream = send(&[&["--from", text(&from), "--seed", "7"], form].concat());
        let to = at(&format!("to{index}"));
        receive(&["--to", text(&to)], &stream);
        assert_eq!(tree(&to), wanted, "{form:?}");
    }
    // A pool takes it too.
    let images = Images::made(&[], 1, &[]);
    let output = fed(&mut images.command("zfs", &["receive", "mine/in"]), &plain);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(images.run("zfs", &["list", "-H", "-o", "name", "-t", "snapshot"]), "mine/in@1\n");
    let mut copied = images.bare();
    let out = at("copied");
    copied.args(["cp", "-d"]).arg(&images.dir).args(["-f", "mine/in@1", "/"]).arg(&out);
    assert!(copied.output().unwrap().status.success());
    assert_eq!(tree(&out), wanted);
    images.assert_whole();

    let archive = at("files.tar");
    receive(&["--to", text(&archive)], &plain);
    let of_archive = send(&["--from", text(&archive), "--seed", "8"]);
    receive(&["--to", text(&at("unpacked"))], &of_archive);
    assert_eq!(tree(&at("unpacked")), wanted);
}

#[test]
fn golden_streams_are_unpacked_and_increments_on_top() {
    let theme = theme("streams");
    let present = theme.streams().unwrap();
    let source = Pool::of("streams");
    let scratch = tempfile::tempdir().unwrap();
    let (to, keep) = (scratch.path().join("to"), scratch.path().join("kept.img"));
    let out_of_pool = |snapshot: &str| {
        let out = scratch.path().join(snapshot);
        source.run(&["cp"], &[&format!("{}/src@{snapshot}", source.name), "/", text(&out)]);
        tree(&out)
    };
    for (file, snapshot) in [("full.zfs", "one"), ("incr.zfs", "two")] {
        if !present.iter().any(|stream| stream.file == file) {
            println!("left out: {file} is not in this selection");
            return;
        }
        receive(&["--to", text(&to), "--keep", text(&keep)], &theme.stream_bytes(file).unwrap());
        assert_eq!(tree(&to), out_of_pool(snapshot), "{file}");
    }
    // What is there is neither received twice nor lost.
    let again = fed(
        program().args(["receive", "--to", text(&to), "--keep", text(&keep)]),
        &theme.stream_bytes("full.zfs").unwrap(),
    );
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    assert_eq!(tree(&to), tree(&scratch.path().join("two")));
}

#[test]
fn nothing_is_left_of_what_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), b"text").unwrap();
    let stream = send(&["--from", text(&from)]);
    let keep = scratch.path().join("kept.img");
    for broken in [&b"no stream"[..], &stream[..stream.len() / 2], &[]] {
        let output = fed(program().args(["receive", "--to", text(&to), "--keep", text(&keep)]), broken);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(!to.exists() && !keep.exists());
    }
    let output = fed(program().args(["receive", "--to", text(&from)]), &stream);
    assert!(said(&output).contains("is there, and not empty"), "{}", said(&output));
    let output = program().args(["send", "--from", "/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output = program().args(["send", "--name", "a/b@c", "--from", text(&from)]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
