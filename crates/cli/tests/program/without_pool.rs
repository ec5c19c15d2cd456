//! Goal: streams without pools. `cenote send` makes one of a directory or an archive that receivers take, the same bytes each time;
//! `cenote receive` unpacks one into a directory or an archive, increments on top. Method: trees that go there and back are compared entry by
//! entry, golden streams of OpenZFS with what `cp` takes out of the pool that they are of.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::images::Images;
use common::{Pool, program, said, theme};

/// All that can be seen of each entry of a tree, but times of directories.
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
    // A snapshot that is there is neither received twice nor lost.
    let again = fed(
        program().args(["receive", "--to", text(&to), "--keep", text(&keep)]),
        &theme.stream_bytes("full.zfs").unwrap(),
    );
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    assert_eq!(tree(&to), tree(&scratch.path().join("two")));
}

/// A file's bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A whole stream, of a directory with mode 0700, and an increment.
fn two_streams(scratch: &Path) -> [Vec<u8>; 2] {
    let (from, more) = (scratch.join("from"), scratch.join("more"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("noise"), noise(100_000)).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(&more).unwrap();
    fs::write(more.join("second"), b"two").unwrap();
    let whole = send(&["--from", text(&from)]);
    let images = Images::made(&[], 1, &[]);
    let output = fed(&mut images.command("zfs", &["receive", "mine/in"]), &whole);
    assert!(output.status.success(), "{}", said(&output));
    images.run("put", &["mine/in", text(&more)]);
    images.run("zfs", &["snapshot", "mine/in@2"]);
    let output = images.command("zfs", &["send", "-i", "mine/in@1", "mine/in@2"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    [whole, output.stdout]
}

/// The place of these bytes in a sparse file.
fn place_of(bytes: &[u8], path: &Path) -> u64 {
    const SECTOR_BYTES: u64 = 512;
    let file = fs::File::open(path).unwrap();
    let mut at = 0;
    loop {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)).unwrap() / SECTOR_BYTES * SECTOR_BYTES;
        let mut sector = vec![0; SECTOR_BYTES as usize];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut sector, at).unwrap();
        if bytes.starts_with(&sector) {
            return at;
        }
        at += SECTOR_BYTES;
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_increment_replaces_only_what_was_unpacked_from_the_pool() {
    let scratch = tempfile::tempdir().unwrap();
    let [whole, increment] = two_streams(scratch.path());
    let work = scratch.path().join("work");
    fs::create_dir_all(work.join("other")).unwrap();
    fs::write(work.join("other/precious"), b"mine").unwrap();
    let at = |name: &str| work.join(name);
    let keep = at("kept.img");
    receive(&["--to", text(&at("to")), "--keep", text(&keep)], &whole);
    assert_eq!(fs::metadata(at("to")).unwrap().mode() & 0o7777, 0o700);

    let refused = |to: &Path| {
        let output = fed(program().args(["receive", "--to", text(to), "--keep", text(&keep)]), &increment);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("is not what was unpacked"), "{}", said(&output));
    };
    refused(&at("other"));
    // Another one under the name.
    fs::rename(at("to"), at("aside")).unwrap();
    fs::rename(at("other"), at("to")).unwrap();
    refused(&at("to"));
    fs::rename(at("to"), at("other")).unwrap();
    fs::rename(at("aside"), at("to")).unwrap();
    assert_eq!(names(&at("other")), ["precious"]);
    assert_eq!(names(&at("to")), ["noise"]);
    let output = fed(program().args(["receive", "--to", text(&work), "--keep", text(&keep)]), &increment);
    assert!(said(&output).contains("keep it elsewhere"), "{}", said(&output));

    // By a link, which stays.
    symlink("to", at("link")).unwrap();
    receive(&["--to", text(&at("link")), "--keep", text(&keep)], &increment);
    assert!(at("link").is_symlink());
    assert_eq!(names(&at("to")), ["noise", "second"]);
    assert_eq!(fs::metadata(at("to")).unwrap().mode() & 0o7777, 0o700, "the root's attributes hold");
    // The same again is unpacked again; what was changed meanwhile goes.
    fs::remove_file(at("to/second")).unwrap();
    receive(&["--to", text(&at("to")), "--keep", text(&keep)], &increment);
    assert_eq!(names(&at("to")), ["noise", "second"]);
    assert_eq!(names(&work), ["kept.img", "link", "other", "to"]);
}

#[test]
fn a_directory_stays_where_not_all_of_the_new_one_can_be_copied() {
    let scratch = tempfile::tempdir().unwrap();
    let [whole, increment] = two_streams(scratch.path());
    let work = scratch.path().join("work");
    fs::create_dir(&work).unwrap();
    let (to, keep) = (work.join("to"), work.join("kept.img"));
    receive(&["--to", text(&to), "--keep", text(&keep)], &whole);
    let before = (tree(&to), fs::metadata(&to).unwrap().ino());

    let place = place_of(&noise(100_000), &keep);
    let image = fs::File::options().write(true).open(&keep).unwrap();
    let put = |bytes: &[u8]| std::os::unix::fs::FileExt::write_all_at(&image, bytes, place).unwrap();
    put(b"damaged");
    let failing = || fed(program().args(["receive", "--to", text(&to), "--keep", text(&keep)]), &increment);
    // The second time the pool has the snapshot.
    for _ in 0..2 {
        let output = failing();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("is left as it was"), "{}", said(&output));
        assert_eq!((tree(&to), fs::metadata(&to).unwrap().ino()), before);
        assert_eq!(names(&work), ["kept.img", "to"]);
    }
    // An archive too.
    let archive = work.join("files.tar");
    fs::write(&archive, b"before").unwrap();
    let output = fed(program().args(["receive", "--to", text(&archive), "--keep", text(&keep)]), &increment);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert_eq!(fs::read(&archive).unwrap(), b"before");

    put(&noise(100_000));
    receive(&["--to", text(&archive), "--keep", text(&keep)], &increment);
    assert_eq!(fs::metadata(&archive).unwrap().mode() & 0o7777, 0o600);
    receive(&["--to", text(&to), "--keep", text(&keep)], &increment);
    assert_eq!(names(&to), ["noise", "second"]);
    assert_eq!(names(&work), ["files.tar", "kept.img", "to"]);
    // The refusal of a stream that does not belong on top names the way to the files that are there.
    let output = fed(program().args(["receive", "--to", text(&to), "--keep", text(&keep)]), &whole);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("cenote cp -d"), "{}", said(&output));
    let mut copied = program();
    copied.args(["cp", "-d", text(&keep), "-f", "received/data@2", "/"]).arg(work.join("copied"));
    assert!(copied.output().unwrap().status.success());
    assert_eq!(tree(&work.join("copied")), tree(&to));
}

#[test]
fn files_of_holes_larger_than_a_pool_are_sent() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
    fs::create_dir(&from).unwrap();
    for name in ["a", "b"] {
        fs::File::create(from.join(name)).unwrap().set_len(15 << 40).unwrap();
    }
    receive(&["--to", text(&to)], &send(&["--from", text(&from)]));
    assert_eq!(fs::metadata(to.join("b")).unwrap().len(), 15 << 40);
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
