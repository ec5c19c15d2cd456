//! The refusals of the program. Goal: a pool that cannot or must not be opened is reported in its own words and with status 1
//! (2 where the command itself is wrong), and nothing is written to any image, whatever was tried. Method: golden pools,
//! copied and changed where needed, hashed before and after.

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_codec::checksum::embedded::{label_verifier, seal_embedded};
use cenote_format::Endian;
use cenote_format::enums::Checksum;
use cenote_format::label::{DeviceLayout, LABEL_COUNT, RING_BYTES, RING_OFFSET, VDEV_PHYS_BYTES, VDEV_PHYS_OFFSET};
use cenote_format::uberblock::{Mmp, Uberblock};
use cenote_testkit::Scratch;
use common::{program, said, theme};
use sha2::{Digest, Sha256};

/// The host id of the machine that made the golden pools.
const MAKERS_HOST_ID: u32 = 0x6f7a_766d;
/// A ring's slot where sectors have 4 KiB or less.
const SLOT_BYTES: usize = 4096;

/// A pool's images in a folder of their own.
struct Images {
    scratch: Scratch,
    name: String,
}

impl Images {
    fn of(theme_name: &str) -> Self {
        let theme = theme(theme_name);
        Self { scratch: theme.scratch().unwrap(), name: theme.manifest().unwrap().pools[0].clone() }
    }

    fn dir(&self) -> &Path {
        self.scratch.dir()
    }

    /// Runs a command on what is in the folder; fails if it wrote to an image.
    fn run(&self, words: &[&str]) -> Output {
        let before = hashes(self.dir());
        let output = program().args(words).arg("-d").arg(self.dir()).output().unwrap();
        assert_eq!(hashes(self.dir()), before, "{words:?} wrote to an image");
        output
    }

    /// Runs a command that must be refused with these words.
    fn refused(&self, words: &[&str], status: i32, texts: &[&str]) {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        for text in texts {
            assert!(said(&output).contains(text), "{words:?} does not say {text:?}: {}", said(&output));
        }
    }

    fn accepted(&self, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    }

    /// Changes every label of every image; its checksums are made right again.
    fn edit_labels(&self, edit: impl Fn(&mut [u8])) {
        for image in &self.scratch.images {
            let file = writable(image);
            for at in label_addresses(&file) {
                edit_block(&file, at + VDEV_PHYS_OFFSET as u64, VDEV_PHYS_BYTES, &edit);
            }
        }
    }
}

fn hashes(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let hash = |path: &PathBuf| cenote_testkit::manifest::hex(&Sha256::digest(fs::read(path).unwrap()));
    files.into_iter().map(|path| (path.clone(), hash(&path))).collect()
}

fn writable(image: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(image).unwrap()
}

fn label_addresses(file: &File) -> Vec<u64> {
    let layout = DeviceLayout::new(file.metadata().unwrap().len()).unwrap();
    (0..LABEL_COUNT).map(|index| layout.label_offset(index)).collect()
}

/// Changes a block of a label and seals it again.
fn edit_block(file: &File, at: u64, len: usize, edit: impl Fn(&mut [u8])) {
    let mut block = vec![0; len];
    file.read_exact_at(&mut block, at).unwrap();
    edit(&mut block);
    seal_embedded(Checksum::Label, &mut block, label_verifier(at), Endian::Little, None).unwrap();
    file.write_all_at(&block, at).unwrap();
}

/// The addresses of all uberblocks of an image.
fn uberblock_addresses(file: &File) -> Vec<u64> {
    let mut found = Vec::new();
    for label in label_addresses(file) {
        for slot in 0..RING_BYTES / SLOT_BYTES {
            let at = label + (RING_OFFSET + slot * SLOT_BYTES) as u64;
            let mut block = [0; SLOT_BYTES];
            file.read_exact_at(&mut block, at).unwrap();
            if Uberblock::parse(&block).is_ok() {
                found.push(at);
            }
        }
    }
    found
}

/// Sets the multihost fields of the uberblocks at these places.
fn set_multihost(file: &File, places: &[u64], mmp: Mmp) {
    for at in places {
        edit_block(file, *at, SLOT_BYTES, |block| {
            let uberblock = Uberblock { mmp: Some(mmp), ..Uberblock::parse(block).unwrap() };
            let bytes = uberblock.emit();
            block[..bytes.len()].copy_from_slice(&bytes);
        });
    }
}

/// The same bytes in place of others, of the same length.
fn replace(block: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let at = block.windows(old.len()).position(|window| window == old).expect("the label has these bytes");
    block[at..at + new.len()].copy_from_slice(new);
}

#[test]
fn a_wrong_key_a_key_of_the_wrong_form_and_no_key_are_told_apart() {
    let images = Images::of("encryption_small");
    let (root, key) = theme("encryption_small").manifest().unwrap().keys.into_iter().next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let right = key.bytes();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        format!("{root}={}", path.display())
    };
    // Another key of the same form: a digit, a letter or a byte is another.
    let mut wrong = right.clone();
    wrong[0] = if wrong[0] == b'1' { b'2' } else { b'1' };
    let wrong = file("wrong", &wrong);
    images.refused(&["ls", "-f", "--key", &wrong, &root], 1, &["incorrect key provided for", &root]);
    let short = file("short", &right[..3]);
    images.refused(&["ls", "-f", "--key", &short, &root], 1, &["Key load error", &root]);
    images.refused(&["ls", "-f", "--key", &file("empty", b""), &root], 1, &["Key load error", &root]);
    let absent = format!("{root}={}", dir.path().join("absent").display());
    images.refused(&["ls", "-f", "--key", &absent, &root], 1, &["absent", "No such file"]);
    let plain = format!("{}={}", images.name, dir.path().join("wrong").display());
    images.refused(&["ls", "-f", "--key", &plain, &root], 1, &[&images.name, "is not encrypted"]);
    images.refused(&["ls", "-f", &root], 1, &["key is not loaded", "--key"]);
    images.refused(&["ls", "-f", "--key", "nonsense", &root], 2, &["DATASET=FILE"]);
    images.accepted(&["ls", "-f", "--key", &file("right", &right), &root]);
}

#[test]
fn missing_devices_are_named() {
    let raidz = Images::of("raidz1");
    fs::remove_file(&raidz.scratch.images[0]).unwrap();
    raidz.accepted(&["ls", "-f", &raidz.name]);
    fs::remove_file(&raidz.scratch.images[1]).unwrap();
    let texts = ["one or more devices is currently unavailable", "raidz", &raidz.name];
    raidz.refused(&["ls", "-f", &raidz.name], 1, &texts);

    let stripe = Images::of("log_spacemap");
    let [first, second] = &stripe.scratch.images[..] else { panic!("two images") };
    let (kept, lost) = (first.clone(), second.file_name().unwrap().to_str().unwrap().to_owned());
    fs::remove_file(second).unwrap();
    stripe.refused(&["ls", "-f", &stripe.name], 1, &["one or more devices is currently unavailable", &lost]);
    fs::remove_file(kept).unwrap();
    stripe.refused(&["ls", "-f", &stripe.name], 1, &["no such pool", &stripe.name]);
    let nowhere = stripe.dir().join("nowhere");
    let output = program().args(["ls", &stripe.name, "-d"]).arg(&nowhere).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("no such file or directory") && said(&output).contains("nowhere"));
}

#[test]
fn an_image_that_is_cut_off_or_no_pool_at_all_is_no_pool() {
    let images = Images::of("snapshots");
    let file = writable(&images.scratch.images[0]);
    for len in [0, 1, 511, 300 << 10, (64 << 20) - 1] {
        file.set_len(len).unwrap();
        let output = images.run(&["ls", "-f", &images.name]);
        assert_eq!(output.status.code(), Some(1), "{len}: {}", said(&output));
        assert!(!said(&output).contains("panic"), "{len}: {}", said(&output));
    }
}

#[test]
fn an_unknown_feature_is_named() {
    let images = Images::of("basic");
    images.edit_labels(|block| replace(block, b"com.delphix:hole_birth", b"com.delphix:hole_dirth"));
    images.refused(&["ls", "-f", &images.name], 1, &["unsupported feature", "com.delphix:hole_dirth", &images.name]);
    images.refused(&["verify", "-f", &images.name], 1, &["unsupported feature", "com.delphix:hole_dirth"]);
}

#[test]
fn an_unknown_version_is_named() {
    let images = Images::of("basic");
    // The first pair of the packed list: version 5000.
    let pair = |version: u64| [&b"version\0"[..], &[0, 0, 0, 8, 0, 0, 0, 1], &version.to_be_bytes()].concat();
    images.edit_labels(|block| replace(block, &pair(5000), &pair(5001)));
    images.refused(&["ls", "-f", &images.name], 1, &["unsupported ZFS version (5001)", &images.name]);
}

#[test]
fn a_pool_in_use_by_another_host_is_refused_without_force() {
    if fs::read("/etc/hostid").is_ok_and(|bytes| bytes == MAKERS_HOST_ID.to_le_bytes()) {
        eprintln!("left out: this host has the host id of the golden pools' maker");
        return;
    }
    let images = Images::of("log_spacemap");
    let texts = ["previously in use from another system", "hostid=6f7a766d", &images.name, "-f"];
    images.refused(&["ls", &images.name], 1, &texts);
    images.accepted(&["ls", "-f", &images.name]);
}

/// A host that has the pool writes an uberblock to some leaf every interval. Where one is seen to change, not even force
/// opens the pool.
#[test]
fn a_pool_that_is_being_written_is_refused_with_force_too() {
    let images = Images::of("log_spacemap");
    let multihost = |sequence| Mmp::new(100_000_000, Some(100), Some(sequence), Some(10));
    let files: Vec<File> = images.scratch.images.iter().map(|image| writable(image)).collect();
    let places: Vec<Vec<u64>> = files.iter().map(uberblock_addresses).collect();
    assert!(places.iter().all(|places| places.len() > 4));
    // At rest the leaves differ, as the last write went to one of them.
    for (sequence, (file, places)) in (6..).zip(files.iter().zip(&places)) {
        set_multihost(file, places, multihost(sequence));
    }
    images.accepted(&["ls", "-f", &images.name]);

    let done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sequence = 100;
            while !done.load(Ordering::Relaxed) {
                set_multihost(&files[0], &places[0], multihost(sequence));
                sequence = (sequence + 1).min(60_000);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let output = program().args(["ls", "-f", &images.name, "-d"]).arg(images.dir()).output();
        done.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for text in ["pool is imported on host", "hostid=6f7a766d", &images.name] {
        assert!(said(&output).contains(text), "{text:?}: {}", said(&output));
    }
}

#[test]
fn a_destroyed_pool_says_so() {
    let images = Images::of("basic");
    // The pair of the packed list that holds the pool's state, exported, becomes that of a destroyed one.
    let pair = |state: u64| [&b"state\0\0\0"[..], &[0, 0, 0, 8, 0, 0, 0, 1], &state.to_be_bytes()].concat();
    images.edit_labels(|block| replace(block, &pair(1), &pair(2)));
    images.refused(&["ls", &images.name], 1, &["pool was destroyed", &images.name]);
}

/// Messages named files that nobody had asked for, told things twice, or looked at devices before the name.
#[test]
fn a_refusal_is_about_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |words: &[&str]| {
        let output = program().env("CENOTE_CACHE", dir.path().join("cache.json")).args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let file = dir.path().join("disk").display().to_string();
    let (status, small) = ask(&["zpool", "create", "--size", "1M", "mine", &file]);
    assert!(status == Some(1) && small.contains(&file) && !small.contains("unfinished"), "{small}");
    for words in [&["zpool", "create", "mirror", "/nosuch"][..], &["zpool", "create", "a%b", "lgo", "/nosuch"]] {
        let (status, told) = ask(words);
        assert!(status == Some(1) && told.starts_with("cannot create '") && !told.contains("/nosuch"), "{told}");
    }
    let there = dir.path().join("there").display().to_string();
    assert_eq!(ask(&["zpool", "create", "--size", "80M", "mine", &there]).0, Some(0));
    let build = ["build", "--pool", "new", "--from", "/"];
    for tool in [&["zpool", "add", "mine"][..], &["zpool", "create", "new"], &build] {
        let (status, told) = ask(&[tool, &["--size", "80M", "mirorr", &file, &file]].concat());
        assert!(status == Some(1) && told.contains("is 'mirror' meant?"), "{tool:?}: {told}");
        assert!(!dir.path().join("disk").exists());
    }
    let (status, told) = ask(&["zfs", "set", "one/a", "two/b"]);
    assert_eq!((status, told.as_str()), (Some(2), "missing property=value argument\n"));
    let (_, told) = ask(&["zpool", "status", "mine/data"]);
    assert!(told.contains("the name of a dataset, of the pool 'mine'"), "{told}");

    // Of a folder only images are told of.
    for name in ["backup.tar.gz", "notes.gz", "disk.img.gz"] {
        fs::write(dir.path().join(name), b"\x1f\x8b\x08\0packed").unwrap();
    }
    let (_, told) = ask(&["zpool", "import", "-d", dir.path().to_str().unwrap()]);
    assert!(told.contains("disk.img.gz") && !told.contains("backup") && !told.contains("notes"), "{told}");

    // Notes have no place.
    let mut command = program();
    command.env_remove("CENOTE_CACHE").env("XDG_CACHE_HOME", "/dev/null").args(["zpool", "create", "--size", "80M"]);
    let output = command.args(["mine", &file]).output().unwrap();
    assert!(said(&output).contains("CENOTE_CACHE=FILE names another place"), "{}", said(&output));
}
