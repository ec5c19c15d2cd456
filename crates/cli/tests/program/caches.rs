//! Goal: a cache device takes what is read, has it again after the pool was closed, and may lie, go and come back without anybody noticing;
//! `zdb` reads its header and logs as they are. Method: a pool and a cache device on files, a mount with a small cache in memory, statistics, damage by hand.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};

const FILES: usize = 24;
const FILE_BYTES: usize = 512 << 10;
/// Labels and header of a cache device.
const LABELS_BYTES: u64 = (4 << 20) + 4096;

/// A pool with a cache device that has log blocks, though it is small.
fn made() -> (Images, PathBuf) {
    let images = Images::made(&[], 1, &[]);
    let cache = images.cache.path().join("images").join("cache");
    File::create(&cache).unwrap().set_len(120 << 20).unwrap();
    images.run("zpool", &["add", "mine", "cache", cache.to_str().unwrap()]);
    (images, cache)
}

fn mounted(images: &Images) -> Mounted {
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--cache-bytes", "64M", "--rw"]);
    for tunable in
        ["l2arc_rebuild_blocks_min_l2size=0", "l2arc_noprefetch=0", "l2arc_feed_min_ms=10", "l2arc_headroom=1000"]
    {
        command.args(["--tunable", tunable]);
    }
    command.arg("mine").arg(folder.path());
    Mounted::start(command, folder)
}

fn content(number: usize) -> Vec<u8> {
    // Half of it compresses.
    let mut state = number as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..FILE_BYTES).map(|at| if at % 8192 < 4096 { next() } else { number as u8 }).collect()
}

fn read_all(mounted: &Mounted) {
    for number in 0..FILES {
        assert!(std::fs::read(mounted.path(&number.to_string())).unwrap() == content(number), "{number}");
    }
}

fn counts(images: &Images) -> BTreeMap<String, u64> {
    let text = images.run("kstat", &["-p", "mine"]);
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.rsplit(':').next()?.to_owned(), value.trim().parse().ok()?))
    });
    pairs.collect()
}

/// Waits until something holds of the statistics.
fn until(images: &Images, what: &str, holds: impl Fn(&BTreeMap<String, u64>) -> bool) -> BTreeMap<String, u64> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let counts = counts(images);
        if holds(&counts) {
            return counts;
        }
        let of_caches: Vec<_> = counts.iter().filter(|(name, _)| name.starts_with("l2_")).collect();
        assert!(Instant::now() < deadline, "{what}: {of_caches:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// `zdb` finds as many log blocks as the header counts, each as it was written.
fn zdb(cache: &PathBuf) {
    if cenote_testkit::zdb::program("zdb").is_none() {
        return;
    }
    let output = Command::new("zdb").arg("-lll").arg(cache).output().unwrap();
    let text = common::said(&output) + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("L2ARC device header"), "{text}");
    let number = |name: &str| -> u64 {
        let line =
            text.lines().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(text.contains("0 with invalid cksum"), "{text}");
    assert!(number("log_blk_count:") > 0 && number("log_blk_count:") == number("lb_count_refcount:"), "{text}");
    assert_eq!(number("log_blk_asize:"), number("lb_asize_refcount:"), "{text}");
}

#[test]
fn a_cache_device_is_filled_found_again_and_not_believed() {
    if !can_mount() {
        return;
    }
    let (images, cache) = made();
    let pool = mounted(&images);
    for number in 0..FILES {
        std::fs::write(pool.path(&number.to_string()), content(number)).unwrap();
    }
    pool.end(End::Unmount);
    let pool = mounted(&images);
    // No more at once than may wait.
    for number in 0..FILES {
        assert!(std::fs::read(pool.path(&number.to_string())).unwrap() == content(number), "{number}");
        if number % 6 == 5 {
            until(&images, "it is written", |counts| counts["l2_waiting_size"] == 0);
        }
    }
    let filled =
        until(&images, "it is filled", |counts| counts["l2_asize"] > 4 << 20 && counts["l2_waiting_size"] == 0);
    assert!(filled["l2_log_blk_count"] > 0 && filled["l2_hdr_size"] > 0, "{filled:?}");
    let shown = images.run("zpool", &["iostat", "-v", "mine"]);
    let line = shown.lines().skip_while(|line| !line.starts_with("cache ")).nth(1).unwrap().to_owned();
    let alloc = line.split_whitespace().nth(1).unwrap();
    assert!(line.contains("cache") && alloc.ends_with('M'), "{shown}");
    let listed = images.run("zpool", &["list", "-v", "-H", "-p", "mine"]);
    let row: Vec<&str> = listed.lines().find(|line| line.contains("cache\t1")).unwrap().split('\t').collect();
    assert!(row[3].parse::<u64>().unwrap() > 4 << 20, "{listed}");
    pool.end(End::Unmount);
    zdb(&cache);

    // Its blocks are found again, and used.
    let pool = mounted(&images);
    let found = until(&images, "it is found again", |counts| counts["l2_rebuild_success"] == 1);
    assert!(found["l2_rebuild_bufs"] > 10 && found["l2_rebuild_cksum_lb_errors"] == 0, "{found:?}");
    read_all(&pool);
    let used = counts(&images);
    assert!(used["l2_hits"] > 10 && used["l2_cksum_bad"] == 0, "{used:?}");

    // Bytes that are others than were written are left, and counted.
    let mut device = File::options().write(true).open(&cache).unwrap();
    device.seek(SeekFrom::Start(LABELS_BYTES)).unwrap();
    device.write_all(&vec![0xa5; 24 << 20]).unwrap();
    drop(device);
    Command::new("sync").status().unwrap();
    pool.end(End::Unmount);
    let pool = mounted(&images);
    read_all(&pool);
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("errors: No known data errors"), "{status}");

    // It goes, comes back, and goes for good.
    images.run("zpool", &["offline", "mine", "cache"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("OFFLINE"));
    read_all(&pool);
    images.run("zpool", &["online", "mine", "cache"]);
    assert!(!images.run("zpool", &["status", "mine"]).contains("OFFLINE"));
    images.run("zpool", &["clear", "mine", "cache"]);
    images.run("zpool", &["remove", "mine", "cache"]);
    assert!(!images.run("zpool", &["status", "mine"]).contains("cache"));
    read_all(&pool);
    assert_eq!(counts(&images)["l2_size"], 0);
    images.run("zpool", &["add", "mine", "cache", cache.to_str().unwrap()]);
    // Blocks that waited for a device are written to the new one.
    until(&images, "what waited is written", |counts| counts["l2_waiting_size"] == 0);
    images.run("zfs", &["set", "secondarycache=none", "mine"]);
    let before = counts(&images)["l2_write_bytes"];
    read_all(&pool);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(counts(&images)["l2_write_bytes"], before);
    pool.end(End::Unmount);
    images.assert_whole();
}
