//! Goal: scrubs of the words of OpenZFS's, of several pools, of the error log, and of what is new. Method: pools on files, spoilt behind their back, and `zdb` where
//! it is installed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::os::unix::fs::FileExt;

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};

/// Writes a file into a dataset, and finds where its first bytes lie.
fn put(images: &Images, dataset: &str, name: &str, mark: u32) -> Vec<u64> {
    let source = tempfile::tempdir().unwrap();
    let marked: Vec<u8> = (0..8000_u32).flat_map(|at| (at ^ mark).to_le_bytes()).collect();
    std::fs::write(source.path().join(name), &marked).unwrap();
    images.run("put", &[dataset, source.path().to_str().unwrap()]);
    let whole = std::fs::read(&images.files[0]).unwrap();
    let is_here = |at: &usize| whole[*at..*at + 64] == marked[..64];
    let places: Vec<u64> = (0..whole.len() - 64).step_by(512).filter(is_here).map(|at| at as u64).collect();
    assert!(!places.is_empty());
    places
}

/// The zdb of the machine says which entries the error logs have.
fn zdb_says(images: &Images, part: &str, is_there: bool) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let devices = cenote_testkit::zdb::Devices::of(&images.files).unwrap();
        let told = cenote_testkit::zdb::run(&devices, &["-dddd"], "mine").unwrap().text;
        assert_eq!(told.contains(part), is_there, "{told}");
    }
}

#[test]
fn scrubs_of_errors_and_of_everything_take_off_the_log_what_is_well() {
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    for name in ["mine/a", "mine/b"] {
        images.run("zfs", &["create", name]);
    }
    assert!(images.refused("zpool", &["scrub", "-e", "mine"]).contains("no errors in the pool's error log"));
    let (a, b) = (put(&images, "mine/a", "one", 0x0bad_0001), put(&images, "mine/b", "two", 0x0bad_0002));
    let image = std::fs::File::options().read(true).write(true).open(&images.files[0]).unwrap();
    let mut saved = Vec::new();
    for at in a.iter().chain(&b) {
        let mut bytes = [0; 64];
        image.read_exact_at(&mut bytes, *at).unwrap();
        saved.push((*at, bytes));
        image.write_all_at(&[0xaa; 64], *at).unwrap();
    }
    let mend = |places: &[u64]| {
        for (at, bytes) in saved.iter().filter(|(at, _)| places.contains(at)) {
            image.write_all_at(bytes, *at).unwrap();
        }
    };
    images.run("zpool", &["scrub", "mine"]);
    let named = |count: usize| {
        let status = images.run("zpool", &["status", "-v", "mine"]);
        let lines = status.lines().filter(|line| line.trim().starts_with("mine/") && line.contains(":/"));
        assert_eq!(lines.count(), count, "{status}");
        status
    };
    let status = named(2);
    assert!(status.contains("scan: scrub repaired 0B in") && status.contains("with 2 errors"), "{status}");
    zdb_says(&images, "errlog_last = 0", false);
    zdb_says(&images, "errlog_scrub = 0", true);

    // Of the errors one is well again, which a scrub of them finds; in OpenZFS's words.
    mend(&a);
    // OpenZFS shows the one that began later, by the second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    images.run("zpool", &["scrub", "-e", "mine"]);
    let status = named(1);
    assert!(status.contains(" scrub: scrubbed 2 error blocks in 0 days 00:00:0"), "{status}");
    let document = images.run("zpool", &["status", "-j", "mine"]);
    assert!(document.contains("\"err_scrub_state\":\"FINISHED\""), "{document}");

    // Blocks that were not written since the last scrub are not read by '-C', so the error stays.
    mend(&b);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    images.run("zpool", &["scrub", "-C", "mine"]);
    let status = named(1);
    assert!(status.contains("scan: scrub repaired 0B in") && !status.contains("error blocks"), "{status}");
    images.run("zpool", &["scrub", "-e", "mine"]);
    assert!(named(0).contains("errors: No known data errors"));
    zdb_says(&images, "errlog_last = 0", true);
    for (words, said) in [
        (&["-S", "2026-01-01"][..], "the pool has no log of the times of its txgs"),
        (&["-E", "2026-01-01 10:00"], "the pool has no log of the times of its txgs"),
        (&["-s"], "there is no active scrub"),
        (&["-p"], "there is no active scrub"),
    ] {
        let refused = images.refused("zpool", &[&["scrub"], words, &["mine"]].concat());
        assert!(refused.contains(said), "{refused}");
    }
    for words in [
        &["-e", "-s"][..],
        &["-e", "-p"],
        &["-e", "-C"],
        &["-C", "-p"],
        &["-C", "-S", "2026-01-01"],
        &["-S", "soon"],
        &[],
    ] {
        let pool: &[&str] = if words.is_empty() { &[] } else { &["mine"] };
        let output = images.command("zpool", &[&["scrub"], words, pool].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", common::said(&output));
    }
    images.assert_whole();
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in ["zpool scrub -e mine", "zpool scrub -C mine", "error scrub setup func=3", "error scrub done errors=1"]
    {
        assert!(history.contains(part), "{part}: {history}");
    }
}

#[test]
fn several_pools_are_scrubbed_by_one_command() {
    let images = Images::made(&["mirror"], 2, &[]);
    let path = |name: &str| images.dir.join(name).display().to_string();
    let mut create = images.bare();
    create.args(["zpool", "create", "--size", "80M", "other", "mirror", &path("x"), &path("y")]);
    common::good(&mut create);
    let is_scrubbed = |pool: &str| images.run("zpool", &["status", pool]).contains("scrub repaired 0B");
    assert!(!is_scrubbed("mine") && !is_scrubbed("other"));
    images.run("zpool", &["scrub", "-w", "mine", "other"]);
    assert!(is_scrubbed("mine") && is_scrubbed("other"));
    // One that is not there does not keep the next from being scrubbed.
    let before = images.run("zpool", &["history", "other"]);
    let refused = images.refused("zpool", &["scrub", "nothing", "other"]);
    assert!(refused.contains("nothing"), "{refused}");
    let after = images.run("zpool", &["history", "other"]);
    assert_eq!(after.matches("zpool scrub").count(), before.matches("zpool scrub").count() + 1);
}

/// OpenZFS refuses it: all copies are read, what is bad is told, and the pool stays as it is.
#[test]
fn a_pool_that_is_read_only_is_scrubbed_and_nothing_is_written() {
    let images = Images::made(&["mirror"], 2, &["-O", "compression=off"]);
    let places = put(&images, "mine", "one", 0x0bad_0001);
    images.run("zpool", &["export", "mine"]);
    images.run("zpool", &["import", "-o", "readonly=on", "mine"]);
    let contents = || images.files.iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>();
    let before = contents();
    let told = images.run("zpool", &["scrub", "mine"]);
    assert!(contents() == before, "{told}");
    let image = std::fs::File::options().write(true).open(&images.files[0]).unwrap();
    image.write_all_at(&[0xaa; 64], places[0]).unwrap();
    let before = contents();
    let output = images.command("zpool", &["scrub", "mine"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && told.contains("0.img"), "{output:?}");
    assert!(contents() == before, "nothing is written");
    let refused = images.refused("zpool", &["clear", "mine"]);
    assert!(refused.contains("cannot clear errors for mine: pool is read-only"), "{refused}");
    images.run("zpool", &["destroy", "mine"]);
    assert!(contents() == before, "nothing is written");
    images.run("zpool", &["import", "mine"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("ONLINE"));
}

/// Encrypted blocks are found and checked without their keys: what leads to them is in the clear. (Each block of dnodes counted as an error, and nothing below
/// it was read.)
#[test]
fn encrypted_datasets_are_scrubbed_without_their_keys() {
    let images = Images::of_theme("encryption_small");
    images.run("zpool", &["scrub", &images.pool]);
    let status = images.run("zpool", &["status", "-v", &images.pool]);
    assert!(status.contains("with 0 errors on") && status.contains("No known data errors"), "{status}");
}

/// Blocks that another process could not read of a pool that a mount writes get into the pool's error log, with names, once the mount has found them bad too.
#[test]
fn what_verify_finds_of_a_pool_in_use_is_in_its_error_log() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    images.run("zfs", &["create", "mine/a"]);
    let places = put(&images, "mine/a", "one", 0x0bad_0004);
    let mounted = Mounted::new(&images, "mine");
    let image = std::fs::File::options().read(true).write(true).open(&images.files[0]).unwrap();
    let mut kept = [0; 64];
    image.read_exact_at(&mut kept, places[0]).unwrap();
    image.write_all_at(&[0xaa; 64], places[0]).unwrap();
    let status = || images.run("zpool", &["status", "-v", "mine"]);
    assert!(status().contains("No known data errors"));
    let mut verify = images.bare();
    verify.args(["verify", "-f", "-d"]).arg(&images.dir).arg("mine");
    let found = verify.output().unwrap();
    assert_eq!(found.status.code(), Some(1), "{}", common::said(&found));
    assert!(status().contains("mine/a:/one"), "{}", status());
    mounted.end(End::Unmount);
    // It is on disk.
    assert!(status().contains("mine/a:/one"), "{}", status());
    zdb_says(&images, "errlog_last = 0", false);
    image.write_all_at(&kept, places[0]).unwrap();
    images.run("zpool", &["clear", "mine"]);
    assert!(status().contains("No known data errors"), "{}", status());
    images.assert_whole();
}

/// A file of a file system that is mounted is named by its path there; and a scrub of the errors stands still while a tunable says so.
#[test]
fn errors_of_a_pool_that_is_mounted_are_named_by_the_mount_and_scrubbed_when_they_may() {
    if !can_mount() {
        return;
    }
    let images = Images::made_as("errors-named", &[], 1, &["-O", "compression=off"]);
    let places = put(&images, "errors-named", "one", 0x0bad_0001);
    images.run("zfs", &["snapshot", "errors-named@before"]);
    let image = std::fs::File::options().write(true).open(&images.files[0]).unwrap();
    image.write_all_at(&[0xaa; 64], places[0]).unwrap();
    let mounted = Mounted::new(&images, "errors-named");
    images.run("zpool", &["scrub", "-w", "errors-named"]);
    let status = images.run("zpool", &["status", "-v", "errors-named"]);
    let lines: Vec<&str> = status.lines().map(str::trim).collect();
    let path = mounted.path("one");
    assert!(lines.contains(&path.to_str().unwrap()) && lines.contains(&"errors-named@before:/one"), "{status}");
    let state = |word: &str| {
        let document = images.run("zpool", &["status", "-j", "errors-named"]);
        assert!(document.contains(&format!("\"err_scrub_state\":\"{word}\"")), "{document}");
    };
    let hold = |value: &str| {
        let given = format!("zfs_scan_suspend_progress={value}");
        common::good(images.bare().args(["tunables", "--pool", "errors-named", &given]));
    };
    hold("1");
    // By the second, OpenZFS shows the one that began later.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    images.run("zpool", &["scrub", "-e", "errors-named"]);
    for _ in 0..3 {
        images.run("zpool", &["sync", "errors-named"]);
    }
    state("ERRORSCRUBBING");
    hold("0");
    images.run("zpool", &["wait", "-t", "scrub", "errors-named"]);
    state("FINISHED");
    mounted.end(End::Unmount);
    let status = images.run("zpool", &["status", "-v", "errors-named"]);
    assert!(status.contains("errors-named:/one"), "{status}");
}
