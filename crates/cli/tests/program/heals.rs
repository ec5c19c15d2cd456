//! Goal: `zfs receive -c` heals the damaged blocks of a snapshot from a stream of it, and changes nothing else. Method: each test makes a
//! pool, sends streams, and overwrites blocks in the image; `verify` and OpenZFS's `zdb` check all blocks afterwards.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Output, Stdio};

use common::good;
use common::images::Images;

/// The offset of the vdev's space on a device.
const SPACE_OFFSET_BYTES: u64 = 4 << 20;

fn fed(images: &Images, words: &[&str], stream: &[u8]) -> Output {
    let mut command = images.command("zfs", &[&["receive"], words].concat());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let stream = stream.to_vec();
    // The command may exit before it has read the whole stream.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&stream)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

/// All that a command has printed, on both outputs.
fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap()
}

fn sent(images: &Images, words: &[&str]) -> Vec<u8> {
    let output = images.command("zfs", &[&["send"], words].concat()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    output.stdout
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The offsets and sizes of a file's blocks on the pool's only device.
fn places(images: &Images, snapshot: &str, file: &str) -> Vec<(u64, u64)> {
    let mut command = images.bare();
    command.args(["inspect", "object", "-f", "-v", "-d"]).arg(&images.dir).args([snapshot, file]);
    let told = String::from_utf8(good(&mut command)).unwrap();
    let place = |line: &str| {
        let rest = line.split("DVA[0]=<0:").nth(1).filter(|_| line.contains("[L0 ZFS plain file]"))?;
        let (at, size) = rest.split_once('>')?.0.split_once(':')?;
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        Some((SPACE_OFFSET_BYTES + number(at), number(size)))
    };
    told.lines().filter_map(place).collect()
}

/// Damages each of these blocks of the image.
fn damage(images: &Images, places: &[(u64, u64)]) {
    let file = File::options().read(true).write(true).open(&images.files[0]).unwrap();
    for (at, size) in places {
        let mut bytes = vec![0; *size as usize];
        file.read_exact_at(&mut bytes, *at).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&bytes, *at).unwrap();
    }
    file.sync_all().unwrap();
}

fn is_whole(images: &Images) -> bool {
    let mut verify = images.bare();
    let status = verify.args(["verify", "-d"]).arg(&images.dir).args(["-f", "mine"]).output().unwrap().status;
    status.success()
}

/// A pool with two snapshots. The second has one more file.
fn made(compression: &str) -> Images {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-o", &format!("compression={compression}"), "-o", "recordsize=16k", "mine/a"]);
    let put = |directory: &str, files: &[(&str, Vec<u8>)]| {
        let source = tempfile::tempdir().unwrap();
        fs::create_dir(source.path().join(directory)).unwrap();
        for (name, bytes) in files {
            fs::write(source.path().join(directory).join(name), bytes).unwrap();
        }
        images.run("put", &["mine/a", source.path().to_str().unwrap()]);
    };
    let words = noise(9, 200_000).into_iter().map(|byte| b"etaoin shrdlu..."[usize::from(byte & 15)]).collect();
    let text = b"what is said again and again takes little room. ".repeat(8000);
    put("one", &[("noise", noise(7, 300_000)), ("text", text), ("words", words)]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    put("two", &[("noise", noise(11, 300_000))]);
    images.run("zfs", &["snapshot", "mine/a@2"]);
    images
}

#[test]
fn damaged_blocks_are_healed_whatever_their_compression() {
    for compression in ["off", "lz4", "zstd-7", "gzip-4"] {
        let images = made(compression);
        let whole = fs::read(&images.files[0]).unwrap();
        // A compressed stream has the stored bytes. From an uncompressed one our encoders make the same bytes again, since they wrote them.
        for words in [&["-c", "mine/a@1"][..], &["mine/a@1"]] {
            let stream = sent(&images, words);
            let files = ["/one/noise", "/one/text", "/one/words"];
            let blocks: Vec<_> = files.iter().flat_map(|file| places(&images, "mine/a@1", file)).collect();
            assert!(blocks.len() > 30, "{}", blocks.len());
            let chosen: Vec<_> = blocks.iter().copied().step_by(3).collect();
            damage(&images, &chosen);
            let output = fed(&images, &["-c", "-v", "mine/a@1"], &stream);
            assert!(output.status.success(), "{compression} {words:?}: {}", said(&output));
            let healed = format!("healed {0} of {0} damaged blocks", chosen.len());
            assert!(said(&output).contains(&healed), "{compression} {words:?}: {}", said(&output));
            let now = fs::read(&images.files[0]).unwrap();
            for (at, size) in &blocks {
                let range = *at as usize..(*at + *size) as usize;
                assert!(now[range.clone()] == whole[range], "{compression}: block at {at}");
            }
        }
        images.assert_whole();
    }
}

#[test]
fn an_increment_heals_what_it_has_and_what_is_left_is_told() {
    let images = made("lz4");
    let increment = sent(&images, &["-c", "-i", "@1", "mine/a@2"]);
    let full = sent(&images, &["-c", "mine/a@2"]);
    let (old, new) = (places(&images, "mine/a@2", "/one/noise"), places(&images, "mine/a@2", "/two/noise"));
    damage(&images, &[old[2], new[3], new[5]]);
    let output = fed(&images, &["-c", "-v", "mine/a"], &increment);
    assert!(output.status.success(), "{}", said(&output));
    let told = said(&output);
    assert!(told.contains("receiving corrective incremental stream of mine/a@2 into mine/a@2"), "{told}");
    assert!(told.contains("healed 2 of 2 damaged blocks"), "{told}");
    // The increment does not have the damaged block of the older file; the full stream has it. A third receive finds no damage.
    assert!(!is_whole(&images));
    let output = fed(&images, &["-c", "-v", "mine/a@2"], &full);
    assert!(said(&output).contains("healed 1 of 1 damaged blocks"), "{}", said(&output));
    images.assert_whole();
    let output = fed(&images, &["-c", "-v", "mine/a@2"], &full);
    assert!(said(&output).contains("healed 0 of 0 damaged blocks"), "{}", said(&output));
    // A stream of another pool's snapshot is refused.
    let other = made("gzip-4");
    damage(&other, &places(&other, "mine/a@1", "/one/words")[..1]);
    let output = fed(&other, &["-c", "mine/a@1"], &sent(&images, &["-c", "mine/a@1"]));
    assert_eq!(output.status.code(), Some(1));
    let why = "cannot receive: local snapshot doesn't match the snapshot in the provided stream\n";
    assert!(said(&output).ends_with(why), "{}", said(&output));
}

#[test]
fn what_cannot_heal_is_refused() {
    let images = made("off");
    let stream = sent(&images, &["mine/a@1"]);
    for (words, why) in [
        (&["-c", "mine/a@none"][..], "cannot receive: corrective recv must specify an existing snapshot to heal"),
        (&["-c", "mine/a@2"], "local snapshot doesn't match the snapshot in the provided stream"),
        (&["-c", "-F", "mine/a@1"], "corrective recv can not be used when combined with this flag"),
        (&["-c", "-s", "mine/a@1"], "corrective recv can not be used when combined with this flag"),
    ] {
        let output = fed(&images, words, &stream);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
    }
    let package = sent(&images, &["-R", "mine/a@1"]);
    assert!(said(&fed(&images, &["-c", "mine/a@1"], &package)).contains("not supported yet: healing from packages"));
    // A truncated stream is an error, but the blocks that it brought are healed.
    let place = places(&images, "mine/a@1", "/one/noise")[0];
    damage(&images, &[place]);
    let output = fed(&images, &["-c", "mine/a@1"], &stream[..stream.len() - 312]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    images.assert_whole();
}
