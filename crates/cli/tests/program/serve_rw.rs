//! Goal: what real clients write to a volume is there when they read it, when another does, after a clean end, and, as far as they had
//! flushed it, after the server was killed; and the pool is whole every time, for us and for OpenZFS's `zdb`. Method: `cenote serve
//! --rw` on pools made here, with libnbd's tools and Python module, fio, and a file system made and checked inside the volume.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::good;
use common::images::Images;
use common::serving::{Serving, has, python};

struct Fixture {
    images: Images,
    scratch: tempfile::TempDir,
}

impl Fixture {
    fn new(layout: &[&str], count: usize) -> Self {
        Self { images: Images::made(layout, count, &[]), scratch: tempfile::tempdir().unwrap() }
    }

    fn serve(&self) -> Serving {
        Serving::start(&self.images.dir, "mine", &self.socket(), &["--rw"]).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("nbd.sock")
    }

    fn file(&self, name: &str) -> String {
        self.scratch.path().join(name).to_str().unwrap().to_owned()
    }

    fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    fn script(&self, python: &str, what: &str, rest: &[&str]) -> Command {
        let mut command = Command::new(python);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve_rw.py");
        command.arg(script).args([what, &self.uri("mine/v")]).args(rest);
        command
    }
}

#[test]
fn a_session_with_everything_leaves_what_it_should_on_disk() {
    let Some(python) = python() else { return };
    for (layout, count, block) in [(&["raidz1"][..], 3, "8K"), (&[][..], 1, "64K")] {
        let fixture = Fixture::new(layout, count);
        fixture.images.run("zfs", &["create", "-V", "16M", "-b", block, "mine/v"]);
        let model = fixture.file("model");
        for _ in 0..2 {
            let serving = fixture.serve();
            good(&mut fixture.script(python, "session", &[&model]));
            serving.end().unwrap();
            fixture.images.assert_whole();
        }
        // As it is on disk.
        let serving = Serving::start(&fixture.images.dir, "mine", &fixture.socket(), &[]).unwrap();
        let copy = fixture.file("copy");
        good(Command::new("nbdcopy").args([&fixture.uri("mine/v"), &copy]));
        serving.end().unwrap();
        assert!(std::fs::read(&model).unwrap() == std::fs::read(&copy).unwrap());
        // Nothing of what was reserved is lost or counted twice.
        let reserved = fixture.images.run("zfs", &["get", "-Hpo", "value", "refreservation,used", "mine/v"]);
        let numbers: Vec<u64> = reserved.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers[0], numbers[1]);
    }
}

#[test]
fn images_are_copied_in_and_out_and_the_volume_grows() {
    if !has("nbdcopy", "libnbd-bin") {
        return;
    }
    let fixture = Fixture::new(&["mirror"], 2);
    fixture.images.run("zfs", &["create", "-s", "-V", "8M", "mine/v"]);
    let (source, copy) = (fixture.file("source"), fixture.file("copy"));
    let bytes: Vec<u8> =
        (0..8_u32 << 18).flat_map(|word| (word.wrapping_mul(2_654_435_761) >> 3).to_le_bytes()).collect();
    std::fs::write(&source, &bytes).unwrap();
    let serving = fixture.serve();
    // While it is served it is nobody else's.
    let said = fixture.images.refused("zfs", &["set", "volsize=16M", "mine/v"]);
    assert!(said.contains("in use") || said.contains("another process") || said.contains("lock"), "{said}");
    good(Command::new("nbdcopy").args(["--flush", &source, &fixture.uri("mine/v")]));
    good(Command::new("nbdcopy").args(["--connections=4", &fixture.uri("mine/v"), &copy]));
    assert!(std::fs::read(&copy).unwrap() == bytes);
    serving.end().unwrap();
    fixture.images.assert_whole();
    fixture.images.run("zfs", &["set", "volsize=9M", "mine/v"]);
    let serving = fixture.serve();
    good(Command::new("nbdcopy").args([&fixture.uri("mine/v"), &copy]));
    serving.end().unwrap();
    let grown = std::fs::read(&copy).unwrap();
    assert!(grown.len() == 9 << 20 && grown[..8 << 20] == bytes && grown[8 << 20..].iter().all(|byte| *byte == 0));
    // A read-only volume is exported all the same.
    fixture.images.run("zfs", &["set", "readonly=on", "mine/v"]);
    let serving = fixture.serve();
    let info = String::from_utf8(good(Command::new("nbdinfo").arg(fixture.uri("mine/v")))).unwrap();
    assert!(info.contains("is_read_only: true"), "{info}");
    serving.end().unwrap();
    fixture.images.assert_whole();
}

#[test]
fn what_was_flushed_is_there_after_the_server_is_killed() {
    let Some(python) = python() else { return };
    let fixture = Fixture::new(&["mirror"], 2);
    fixture.images.run("zfs", &["create", "-s", "-V", "1M", "-b", "4K", "mine/v"]);
    for lines in [3, 12, 30] {
        let serving = fixture.serve();
        let mut writer =
            fixture.script(python, "write", &[]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut told = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut flushed = told.by_ref().take(lines).last().unwrap().unwrap();
        serving.kill().unwrap();
        // The lines that the writer printed in the meantime count too.
        if let Some(Ok(last)) = told.last() {
            flushed = last;
        }
        writer.wait().unwrap();
        fixture.images.assert_whole();
        std::fs::remove_file(fixture.socket()).unwrap();
        let serving = fixture.serve();
        good(&mut fixture.script(python, "check", &[&flushed]));
        serving.end().unwrap();
    }
}

/// The kernel's module opens image files without a lock, and so does whoever only reads: what shows them that the pool is in use
/// stands on disk, with the property `multihost` off. Here another user, who cannot ask the server.
#[test]
fn a_pool_that_is_served_shows_on_disk_that_it_is_until_it_is_exported() {
    let fixture = Fixture::new(&[], 1);
    fixture.images.run("zfs", &["create", "-s", "-V", "1M", "mine/v"]);
    let elsewhere = tempfile::tempdir().unwrap();
    let image = elsewhere.path().join("0.img");
    std::fs::hard_link(&fixture.images.files[0], &image).unwrap();
    let by_another = |tool: &[&str], rest: &[&str]| {
        let mut command = fixture.images.bare();
        command.env("CENOTE_CACHE", elsewhere.path().join("cache.json")).env("ZFS_HOSTID", "0x5678");
        command.args(tool).arg("-d").arg(elsewhere.path()).args(rest).output().unwrap()
    };
    let told = |what: &str| {
        let mut zdb = cenote_testkit::zdb::command()?;
        let text = String::from_utf8(good(zdb.arg("-lu").arg(&fixture.images.files[0]))).unwrap();
        Some(text.contains(what))
    };
    let serving = fixture.serve();
    // Reading is possible where the lock names the process, and says that it goes on.
    let output = by_another(&["ls"], &["mine"]);
    assert!(common::said(&output).contains("pool 'mine' is in use by process"), "{}", common::said(&output));
    for force in ["-f", "--"] {
        let output = by_another(&["zpool", "import"], &[force, "mine"]);
        assert!(
            !output.status.success() && common::said(&output).contains("pool is imported on"),
            "{}",
            common::said(&output)
        );
        assert!(common::said(&output).contains("cenote@"), "{}", common::said(&output));
    }
    let output = by_another(&["zfs"], &["-f", "create", "mine/a"]);
    assert!(!output.status.success(), "{}", common::said(&output));
    let output = by_another(&["zpool", "import"], &[]);
    let listing = String::from_utf8(output.stdout).unwrap();
    for part in
        ["state: UNAVAIL", "currently imported by another system", "must be exported from cenote@", "currently in use"]
    {
        assert!(listing.contains(part), "{part}: {listing}");
    }
    assert_ne!(told("hostname: 'cenote@"), Some(false));
    assert_ne!(told("mmp_write = 1000"), Some(false));
    serving.end().unwrap();
    // Nobody waits, and nobody needs `-f`.
    let output = by_another(&["zfs"], &["create", "mine/a"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", common::said(&output));
    assert_ne!(told("hostname: 'cenote@"), Some(true));
    fixture.images.assert_whole();
}

#[test]
fn fio_finds_what_it_wrote() {
    if !has("fio", "fio") {
        return;
    }
    let engines = String::from_utf8(good(Command::new("fio").arg("--enghelp"))).unwrap();
    if !engines.contains("nbd") {
        eprintln!("left out: this fio has no nbd engine");
        return;
    }
    let fixture = Fixture::new(&["mirror"], 2);
    fixture.images.run("zfs", &["create", "-s", "-V", "16M", "mine/v"]);
    let serving = fixture.serve();
    let mut fio = Command::new("fio");
    fio.current_dir(fixture.scratch.path()).arg("--name=verify").arg("--ioengine=nbd");
    fio.arg(format!("--uri={}", fixture.uri("mine/v"))).args(["--rw=randrw", "--bsrange=512-64k", "--blockalign=512"]);
    fio.args(["--size=16m", "--iodepth=32", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fsync=64"]);
    good(fio.args(["--verify_state_save=0", "--output-format=terse"]));
    serving.end().unwrap();
    fixture.images.assert_whole();
}

#[test]
fn a_file_system_is_made_and_checked_inside_a_volume() {
    if !has("nbdfuse", "nbdfuse") || !has("mkfs.ext4", "e2fsprogs") {
        return;
    }
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        assert!(std::env::var_os("CI").is_none(), "/dev/fuse: {error}");
        eprintln!("left out: /dev/fuse: {error}");
        return;
    }
    let fixture = Fixture::new(&["raidz1"], 3);
    fixture.images.run("zfs", &["create", "-s", "-V", "32M", "-o", "compression=zstd", "mine/v"]);
    for round in 0..2 {
        let serving = fixture.serve();
        let at = fixture.file("disk");
        std::fs::write(&at, b"").unwrap();
        let mut fuse = Command::new("nbdfuse").args([&at, &fixture.uri("mine/v")]).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::fs::metadata(&at).unwrap().len() == 0 {
            assert!(std::time::Instant::now() < deadline, "nbdfuse shows nothing after a minute");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if round == 0 {
            good(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0", "-d", "src", &at]));
        }
        good(Command::new("e2fsck").args(["-f", "-n", &at]));
        good(Command::new("fusermount3").args(["-u", &at]));
        fuse.wait().unwrap();
        serving.end().unwrap();
        fixture.images.assert_whole();
    }
}
