//! Goal: devices of a pool are attached, replaced, taken offline and away by OpenZFS's words, of a pool that a command opens and of one that a
//! server has, and refused in its words. Method: pools on files, the program, and `zdb` where it is installed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};

/// A pool of one layout, and files for more.
pub(crate) fn made(layout: &[&str], count: usize) -> Images {
    let images = Images::made(layout, count, &[]);
    for name in ["x", "y", "z"] {
        File::create(images.dir.join(name)).unwrap().set_len(80 << 20).unwrap();
    }
    images
}

/// The names below the pool's, without states and folders.
fn tree(images: &Images) -> String {
    let status = images.run("zpool", &["status", "mine"]);
    let lines = status.lines().skip_while(|line| !line.contains("NAME")).skip(2).take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next()?.rsplit('/').next());
    names.collect::<Vec<_>>().join(" ")
}

fn zdb(images: &Images) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let devices = cenote_testkit::zdb::Devices::of(&images.files).unwrap();
        let told = cenote_testkit::zdb::run(&devices, &["-bcc"], "mine").unwrap();
        assert_eq!(told.status, Some(0), "{}", told.text);
    }
}

/// The steps of a test, by whoever has the pool.
fn steps(images: &Images, is_served: bool) {
    let path = |name: &str| images.dir.join(name).display().to_string();
    let (own, x, y) = (path("0.img"), path("x"), path("y"));
    for (words, said) in [
        (&["offline", "mine", "0.img"][..], "cannot offline 0.img: no valid replicas"),
        (&["offline", "mine", "nothing"], "cannot offline nothing: no such device in pool"),
        (&["detach", "mine", "0.img"], "cannot detach 0.img: only applicable to mirror and replacing vdevs"),
        (&["attach", "mine", "0.img", &own], "0.img is busy"),
    ] {
        let refused = images.refused("zpool", words);
        assert!(refused.contains(said), "{words:?}: {refused}");
    }
    assert_eq!(tree(images), "0.img");
    images.run("zpool", &["attach", "mine", "0.img", &x]);
    assert_eq!(tree(images), "mirror-0 0.img x");
    // By whoever has the pool.
    images.run("zpool", &["resilver", "mine"]);
    images.run("zpool", &["wait", "mine"]);
    images.run("zpool", &["scrub", "-w", "mine"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("scrub repaired 0B"));
    images.run("zpool", &["offline", "mine", "x"]);
    let refused = images.refused("zpool", &["detach", "mine", "0.img"]);
    assert!(refused.contains("cannot detach 0.img: no valid replicas"), "{refused}");
    assert!(images.run("zpool", &["status", "mine"]).contains("OFFLINE"));
    images.run("zpool", &["online", "mine", "x"]);
    assert!(!images.run("zpool", &["status", "mine"]).contains("OFFLINE"));
    images.run("zpool", &["offline", "-f", "mine", "x"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("FAULTED"));
    images.run("zpool", &["clear", "mine", "x"]);
    assert!(!images.run("zpool", &["status", "mine"]).contains("FAULTED"));
    images.run("zpool", &["replace", "mine", "x", &y]);
    if is_served {
        images.run("zpool", &["wait", "mine"]);
        assert_eq!(tree(images), "mirror-0 0.img y");
        images.run("zpool", &["attach", "mine", "0.img", &x]);
        assert_eq!(tree(images), "mirror-0 0.img y x");
        // It lacks nothing now, so that the other can go.
        images.run("zpool", &["wait", "mine"]);
    } else {
        assert_eq!(tree(images), "mirror-0 0.img replacing-1 x y");
    }
    images.run("zpool", &["reopen", "mine"]);
    images.run("zpool", &["detach", "mine", "y"]);
    images.run("zpool", &["add", "mine", "spare", &y]);
    images.run("zpool", &["replace", "mine", "0.img", &y]);
    assert!(images.run("zpool", &["status", "mine"]).contains("INUSE"));
    images.run("zpool", &["detach", "mine", "y"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("AVAIL"));
    images.run("zpool", &["detach", "mine", "x"]);
    assert!(tree(images).starts_with("0.img"), "{}", tree(images));
}

/// Verbs that wait for what they have begun, another guid, and a checkpoint, by whoever has the pool.
fn waited(images: &Images) {
    let path = |name: &str| images.dir.join(name).display().to_string();
    let (x, z) = (path("x"), path("z"));
    let status = || images.run("zpool", &["status", "mine"]);
    images.run("zpool", &["attach", "-w", "mine", "0.img", &x]);
    assert!(tree(images).starts_with("mirror-0 0.img x") && !status().contains("DEGRADED"), "{}", status());
    images.run("zpool", &["replace", "-w", "mine", "x", &z]);
    assert!(tree(images).starts_with("mirror-0 0.img z") && !status().contains("DEGRADED"), "{}", status());
    images.run("zpool", &["wait", "-t", "replace,resilver,discard", "mine"]);
    // In the order of the vdev, and checked by a scrub afterwards.
    for (old, new, name) in [("z", &x, "x"), ("x", &z, "z")] {
        images.run("zpool", &["replace", "-s", "-w", "mine", old, new]);
        assert!(tree(images).starts_with(&format!("mirror-0 0.img {name}")), "{}", status());
        let told = status();
        assert!(told.contains("scan: resilvered (mirror-0) ") && told.contains("scan: scrub "), "{told}");
    }
    images.run("zpool", &["wait", "mine"]);
    assert!(!status().contains("DEGRADED"), "{}", status());
    let guid = || images.run("zpool", &["get", "-H", "-o", "value", "guid", "mine"]).trim().to_owned();
    let before = guid();
    images.run("zpool", &["reguid", "mine"]);
    let drawn = guid();
    images.run("zpool", &["reguid", "-g", "12345", "mine"]);
    assert!(before != drawn && drawn != "12345" && guid() == "12345");
    images.run("zpool", &["reguid", "-g", "-1", "mine"]);
    assert_eq!(images.run("zpool", &["get", "-Ho", "value", "guid", "mine"]).trim(), u64::MAX.to_string());
    images.run("zpool", &["reguid", "-g", "12345", "mine"]);
    let refused = images.refused("zpool", &["reguid", "-g", "12345", "mine"]);
    assert!(refused.contains("cannot reguid 'mine': the guid 12345 is in use"), "{refused}");
    images.run("zfs", &["create", "mine/old"]);
    images.run("zpool", &["checkpoint", "mine"]);
    let json = images.run("zpool", &["status", "-j", "mine"]);
    assert!(status().contains("checkpoint: created ") && json.contains("\"checkpoint_stats\""), "{json}");
    for (words, said) in [
        (&["checkpoint", "mine"][..], "cannot checkpoint 'mine': checkpoint exists"),
        (&["checkpoint", "-d", "mine/fs"], "cannot open 'mine/fs': invalid character '/' in pool name"),
        (&["reguid", "mine/fs"], "cannot open 'mine/fs': invalid character '/' in pool name"),
        (&["reopen", "mine@now"], "cannot open 'mine@now': invalid character '@' in pool name"),
        (&["scrub", "mine/fs"], "cannot open 'mine/fs': invalid character '/' in pool name"),
        (&["resilver", "mine/fs"], "cannot open 'mine/fs': invalid character '/' in pool name"),
        (&["set", "comment=x", "mine/fs"], "cannot open 'mine/fs': invalid character '/' in pool name"),
        (&["detach", "mine", "z"], "cannot detach z: checkpoint exists"),
        (&["reguid", "mine"], "cannot reguid 'mine': checkpoint exists"),
    ] {
        let refused = images.refused("zpool", words);
        assert!(refused.contains(said), "{words:?}: {refused}");
    }
    images.run("zfs", &["destroy", "mine/old"]);
    images.run("zfs", &["create", "mine/new"]);
    let kept = images.run("zpool", &["get", "-Hp", "-o", "value", "checkpoint", "mine"]);
    assert!(kept.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0), "{kept}");
    images.run("zpool", &["checkpoint", "-d", "-w", "mine"]);
    assert!(!status().contains("checkpoint"), "{}", status());
    let refused = images.refused("zpool", &["checkpoint", "-d", "mine"]);
    assert!(refused.contains("cannot discard checkpoint in 'mine': checkpoint does not exist"), "{refused}");
    images.run("zpool", &["detach", "mine", "z"]);
    // A device that has grown, while the pool is in use or not.
    let size = || images.run("zpool", &["list", "-Hp", "-o", "size", "mine"]).trim().parse::<u64>().unwrap();
    let before = size();
    File::options().write(true).open(path("0.img")).unwrap().set_len(200 << 20).unwrap();
    images.run("zpool", &["online", "mine", "0.img"]);
    assert_eq!(size(), before);
    images.run("zpool", &["online", "-e", "mine", "0.img"]);
    assert!(size() > before + (100 << 20), "{before} {}", size());
    images.run("zfs", &["create", "mine/grown"]);
}

/// A raidz gets two more devices, by whoever has the pool.
fn expanded(images: &mut Images, is_served: bool) {
    let path = |images: &Images, name: &str| images.dir.join(name).display().to_string();
    let (x, y) = (path(images, "x"), path(images, "y"));
    let status = |images: &Images| images.run("zpool", &["status", "mine"]);
    let size =
        |images: &Images| images.run("zpool", &["list", "-Hp", "-o", "size", "mine"]).trim().parse::<u64>().unwrap();
    let refused = images.refused("zpool", &["attach", "mine", "0.img", &x]);
    assert!(refused.contains("can only attach to mirrors and top-level disks"), "{refused}");
    let before = size(images);
    images.run("zpool", &["attach", "-w", "mine", "raidz1-0", &x]);
    assert_eq!(tree(images), "raidz1-0 0.img 1.img 2.img x");
    assert!(status(images).contains("expand: expanded raidz1-0 copied "), "{}", status(images));
    assert!(size(images) > before + (40 << 20), "{before} {}", size(images));
    images.run("zfs", &["create", "mine/after"]);
    images.run("zpool", &["wait", "mine"]);
    images.run("zpool", &["attach", "mine", "raidz1-0", &y]);
    assert_eq!(tree(images), "raidz1-0 0.img 1.img 2.img x y");
    if is_served {
        images.run("zpool", &["wait", "-t", "raidz_expand", "mine"]);
    } else {
        let refused = images.refused("zpool", &["checkpoint", "mine"]);
        assert!(refused.contains("raidz expansion is in progress"), "{refused}");
        assert!(status(images).contains("expand: expansion of raidz1-0 in progress since "), "{}", status(images));
        // Amid it, for others.
        images.note_files();
        zdb(images);
        images.run("zpool", &["scrub", "mine"]);
    }
    assert!(status(images).contains("expand: expanded raidz1-0 copied "), "{}", status(images));
    images.run("zpool", &["wait", "mine"]);
    images.run("zfs", &["destroy", "mine/after"]);
    images.run("zfs", &["create", "mine/again"]);
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in ["zpool attach -w mine raidz1-0", "raidz vdev expansion started", "raidz vdev expansion completed"] {
        assert!(history.contains(part), "{part}: {history}");
    }
}

/// A raidz1 with some files, and devices for more.
fn made_raidz() -> Images {
    let images = made(&["raidz1"], 3);
    let source = tempfile::tempdir().unwrap();
    // Bytes that cannot be compressed.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    File::create(source.path().join("file")).unwrap().write_all(&noise.take(30_000_000).collect::<Vec<_>>()).unwrap();
    images.run("put", &["mine", source.path().to_str().unwrap()]);
    images.run("zfs", &["snapshot", "mine@before"]);
    images
}

#[test]
fn a_raidz_that_commands_open_gets_more_devices() {
    let mut images = made_raidz();
    expanded(&mut images, false);
    images.note_files();
    images.assert_whole();
    zdb(&images);
}

#[test]
fn a_raidz_that_a_mount_has_gets_more_devices() {
    if !can_mount() {
        return;
    }
    let mut images = made_raidz();
    let mounted = Mounted::new(&images, "mine");
    expanded(&mut images, true);
    mounted.end(End::Unmount);
    images.note_files();
    images.assert_whole();
    zdb(&images);
}

/// An expansion stands in each of its states, and goes on, with a device gone meanwhile.
#[test]
fn an_expansion_waits_for_a_device_in_each_of_its_states() {
    for tunable in [
        "raidz_expand_pause_point=1",
        "raidz_expand_pause_point=4",
        "raidz_expand_pause_point=6",
        "raidz_expand_max_reflow_bytes=20000000",
    ] {
        let mut images = made_raidz();
        let x = images.dir.join("x").display().to_string();
        let mut held = images.bare();
        held.args(["--tunable", tunable, "--tunable", "raidz_expand_max_copy_bytes=1048576", "zpool", "-d"]);
        common::good(held.arg(&images.dir).args(["-f", "attach", "-w", "mine", "raidz1-0", &x]));
        let status = || images.run("zpool", &["status", "mine"]);
        assert!(status().contains("expand: expansion of raidz1-0 in progress since "), "{tunable}: {}", status());
        images.run("zpool", &["offline", "mine", "1.img"]);
        images.run("zfs", &["create", "mine/without"]);
        images.run("zfs", &["snapshot", "-r", "mine@without"]);
        // It would go on here.
        images.run("zpool", &["scrub", "mine"]);
        assert!(status().contains("expand: expansion of raidz1-0 in progress since "), "{tunable}: {}", status());
        assert!(status().contains("scrub repaired 0B"), "{tunable}: {}", status());
        assert!(
            status().contains("% done, paused for resilver or clear\n\tthe expansion waits until "),
            "{}",
            status()
        );
        let json = images.run("zpool", &["status", "-j", "mine"]);
        assert!(json.contains("\"waiting_for_resilver\":\"1\""), "{json}");
        images.note_files();
        zdb(&images);
        images.run("zpool", &["online", "mine", "1.img"]);
        images.run("zpool", &["resilver", "mine"]);
        images.run("zpool", &["scrub", "mine"]);
        let status = images.run("zpool", &["status", "mine"]);
        assert!(status.contains("expand: expanded raidz1-0 copied "), "{tunable}: {status}");
        assert!(status.contains("scrub repaired 0B"), "{tunable}: {status}");
        images.run("zfs", &["destroy", "-r", "mine/without"]);
        images.note_files();
        images.assert_whole();
        zdb(&images);
    }
}

/// The pool on disk, and what its history says.
fn ended(images: &mut Images) {
    images.note_files();
    images.assert_whole();
    zdb(images);
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in [
        "zpool attach mine 0.img",
        "zpool offline -f mine x",
        "zpool online mine x",
        "detach vdev=",
        "zpool detach mine y",
        "zpool attach -w mine 0.img",
        "guid change",
        "zpool checkpoint -d -w mine",
        "checkpointed uberblock txg=",
        "finished discarding checkpointed state",
        "zpool online -e mine 0.img",
    ] {
        assert!(history.contains(part), "{part}: {history}");
    }
}

#[test]
fn devices_go_and_come_in_a_pool_that_commands_open() {
    let mut images = made(&[], 1);
    steps(&images, false);
    waited(&images);
    ended(&mut images);
}

/// Does something while a server has the pool, for its volume `v`.
pub(crate) fn served(images: &Images, work: impl FnOnce()) {
    let socket = images.cache.path().join("nbd.sock");
    let mut serve = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "mine"]);
    let mut server = serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !socket.exists() {
        assert!(server.try_wait().unwrap().is_none() && Instant::now() < deadline, "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    assert!(server.wait().unwrap().success());
    done.unwrap();
}

#[test]
fn devices_go_and_come_in_a_pool_that_a_server_has() {
    let mut images = made(&[], 1);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    served(&images, || {
        steps(&images, true);
        waited(&images);
    });
    ended(&mut images);
}

/// A tunable that counts live goes to the process that has the pool: a scrub there stands still until it is given again.
#[test]
fn a_live_tunable_of_a_pool_that_a_server_has_is_changed() {
    let images = made(&["mirror"], 2);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    let tune = |given: &str, status: i32| {
        let mut command = images.bare();
        let output = command.args(["tunables", "--pool", "mine", given]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{given}: {}", common::said(&output));
        common::said(&output)
    };
    let refused = tune("zfs_scan_suspend_progress=1", 1);
    assert!(refused.contains("no mount or server has 'mine'"), "{refused}");
    let status = || images.run("zpool", &["status", "mine"]);
    served(&images, || {
        tune("zfs_scan_suspend_progress=1", 0);
        images.run("zpool", &["scrub", "mine"]);
        for _ in 0..3 {
            images.run("zpool", &["sync", "mine"]);
        }
        assert!(status().contains("scrub in progress"), "{}", status());
        images.run("zpool", &["scrub", "-p", "mine"]);
        let refused = images.refused("zpool", &["scrub", "-p", "mine"]);
        assert!(refused.contains("scrub is paused; use 'zpool scrub' to resume scrub"), "{refused}");
        images.run("zpool", &["scrub", "mine"]);
        images.run("zpool", &["clear", "mine"]);
        let refused = tune("zfs_scan_legacy=1", 1);
        assert!(refused.contains("it counts when a pool is opened"), "{refused}");
        tune("zfs_scan_suspend_progress=0", 0);
        images.run("zpool", &["wait", "-t", "scrub", "mine"]);
        assert!(status().contains("scrub repaired 0B"), "{}", status());
        let history = images.run("zpool", &["history", "mine"]);
        assert!(history.contains("zpool clear mine"), "also where there is nothing to be cleared: {history}");
        // One device is waited for, and not another one, which cannot go on.
        let path = |at: usize| images.files[at].to_str().unwrap().to_owned();
        tune("zfs_initialize_chunk_size=512", 0);
        images.run("zpool", &["initialize", "mine", &path(0)]);
        images.run("zpool", &["offline", "mine", &path(0)]);
        tune("zfs_initialize_chunk_size=1M", 0);
        images.run("zpool", &["initialize", "-w", "mine", &path(1)]);
        let told = images.run("zpool", &["status", "-i", "mine"]);
        assert!(told.contains("(100% initialized, completed at "), "{told}");
        images.run("zpool", &["online", "mine", &path(0)]);
    });
    tune("zfs_scan_suspend_progress", 2);
}

/// A spare stands for a device that is faulted, goes when that is forgiven, and is not available when its file is gone; a new device in the place of one that
/// is gone replaces it where the property says so.
#[test]
fn spares_and_new_devices_are_taken_by_themselves() {
    let images = made(&["mirror"], 2);
    let path = |name: &str| images.dir.join(name).display().to_string();
    images.run("zpool", &["add", "mine", "spare", &path("x"), &path("y")]);
    images.run("zpool", &["set", "autoreplace=on", "mine"]);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    let status = || images.run("zpool", &["status", "mine"]);
    let until = |what: &str, is_so: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_so(&status()) {
            assert!(Instant::now() < deadline, "{what}: {}", status());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    served(&images, || {
        images.run("zpool", &["offline", "-f", "mine", "1.img"]);
        until("a spare", &|status| status.contains("INUSE") && status.contains("spare-1"));
        images.run("zpool", &["wait", "mine"]);
        std::fs::remove_file(path("y")).unwrap();
        let words = status();
        let y = words.lines().find(|line| line.split_whitespace().next().is_some_and(|name| name.ends_with('y')));
        assert!(y.is_some_and(|line| line.contains("UNAVAIL")), "{words}");
        images.run("zpool", &["clear", "mine", "1.img"]);
        until("no spare", &|status| status.contains("AVAIL") && !status.contains("spare-1"));
    });
    // Another file in the place of one that is gone.
    std::fs::remove_file(path("1.img")).unwrap();
    File::create(path("1.img")).unwrap().set_len(80 << 20).unwrap();
    served(&images, || {
        until("a new device", &|status| {
            !status.contains("DEGRADED") && !status.contains("replacing") && !status.contains("spare-1")
        });
    });
    let history = images.run("zpool", &["history", "-i", "mine"]);
    assert!(history.contains("spare in vdev=") && history.contains("replace vdev="), "{history}");
}

/// A pool goes back to its checkpoint with all of its datasets, and is shown so before.
#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    let mut images = made(&["mirror"], 2);
    // As it is imported, not as it is found in the folder.
    let datasets = || {
        let listed = common::good(images.bare().args(["zfs", "list", "-H", "-o", "name"]));
        String::from_utf8(listed).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    images.run("zfs", &["create", "mine/before"]);
    images.run("zpool", &["checkpoint", "mine"]);
    images.run("zfs", &["destroy", "mine/before"]);
    images.run("zfs", &["create", "mine/after"]);
    images.run("zpool", &["export", "mine"]);
    images.run("zpool", &["import", "-o", "readonly=on", "--rewind-to-checkpoint", "mine"]);
    assert_eq!(datasets(), "mine mine/before");
    images.run("zpool", &["export", "mine"]);
    images.run("zpool", &["import", "mine"]);
    assert_eq!(datasets(), "mine mine/after");
    images.run("zpool", &["export", "mine"]);
    images.run("zpool", &["import", "--rewind-to-checkpoint", "mine"]);
    assert_eq!(datasets(), "mine mine/before");
    assert!(!images.run("zpool", &["status", "mine"]).contains("checkpoint"));
    images.run("zfs", &["create", "mine/more"]);
    let history = images.run("zpool", &["history", "mine"]);
    assert!(history.contains("zpool import --rewind-to-checkpoint mine"), "{history}");
    images.run("zpool", &["export", "mine"]);
    let refused = images.refused("zpool", &["import", "--rewind-to-checkpoint", "mine"]);
    assert!(refused.contains("checkpoint"), "{refused}");
    images.note_files();
    images.assert_whole();
}

/// A log that is in use ends with a block that is allocated and not written: a scan that read it would find damage where there is none.
#[test]
fn a_scan_finds_no_damage_in_a_log_that_is_in_use() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let mounted = Mounted::new(&images, "mine");
    for round in 0..4_u8 {
        let mut file = File::create(mounted.path(&format!("file{round}"))).unwrap();
        file.write_all(&vec![round; 100_000]).unwrap();
        file.sync_all().unwrap();
        match round % 2 {
            0 => images.run("zpool", &["scrub", "-w", "mine"]),
            _ => {
                images.run("zpool", &["offline", "mine", "1.img"]);
                file.write_all(&vec![round; 100_000]).unwrap();
                file.sync_all().unwrap();
                images.run("zpool", &["online", "mine", "1.img"]);
                images.run("zpool", &["wait", "mine"])
            }
        };
        let status = images.run("zpool", &["status", "-v", "mine"]);
        let vdevs =
            status.lines().skip_while(|line| !line.contains("CKSUM")).skip(1).take_while(|line| !line.is_empty());
        for line in vdevs {
            assert_eq!(line.split_whitespace().nth(4), Some("0"), "{status}");
        }
        assert!(status.contains("with 0 errors") && status.contains("No known data errors"), "{status}");
    }
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// Emptied and deleted below a mount, a device is given up where a person has it looked at, is replaced in its place, and its mirror cannot go meanwhile.
#[test]
fn a_device_that_is_emptied_or_deleted_below_a_mount_is_replaced_in_its_place() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let mounted = Mounted::new(&images, "mine");
    std::fs::write(mounted.path("file"), vec![7; 3 << 20]).unwrap();
    images.run("zpool", &["sync", "mine"]);
    let path = images.dir.join("1.img");
    let size = std::fs::metadata(&path).unwrap().len();
    for is_deleted in [false, true] {
        match is_deleted {
            true => std::fs::remove_file(&path).unwrap(),
            false => File::options().write(true).open(&path).unwrap().set_len(0).unwrap(),
        }
        File::options().write(true).create(true).truncate(false).open(&path).unwrap().set_len(size).unwrap();
        if !is_deleted {
            images.run("zpool", &["online", "mine", "1.img"]);
            assert!(images.run("zpool", &["status", "mine"]).contains("UNAVAIL"));
            let refused = images.refused("zpool", &["detach", "mine", "0.img"]);
            assert!(refused.contains("no valid replicas"), "{refused}");
        }
        images.run("zpool", &["replace", "mine", path.to_str().unwrap()]);
        images.run("zpool", &["wait", "mine"]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while tree(&images) != "mirror-0 0.img 1.img" {
            assert!(Instant::now() < deadline, "{}", tree(&images));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(std::fs::read(mounted.path("file")).unwrap(), vec![7; 3 << 20]);
    // Without a pool it is about all that are served.
    images.run("zpool", &["reopen"]);
    mounted.end(End::Unmount);
    images.assert_whole();
    zdb(&images);
}

/// Goal: changes of devices are the events that OpenZFS has for them, each once; and a pool without a removed log device is whole.
#[test]
fn each_change_of_a_device_is_an_event() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let [first, second, third] =
        ["0.img", "1.img", "third.img"].map(|name| images.dir.join(name).display().to_string());
    File::create(&third).unwrap().set_len(std::fs::metadata(&first).unwrap().len()).unwrap();
    let mounted = Mounted::new(&images, "mine");
    let steps: &[(&[&str], &[&str])] = &[
        (&["offline", "mine", &second], &["statechange"]),
        (&["online", "mine", &second], &["statechange", "vdev_online", "resilver_start", "resilver_finish"]),
        (&["attach", "mine", &first, &third], &["vdev_attach", "resilver_start", "resilver_finish"]),
        (&["detach", "mine", &third], &["vdev_remove"]),
        (&["replace", "mine", &second, &third], &["vdev_attach", "resilver_start", "resilver_finish", "vdev_remove"]),
        (&["offline", "-f", "mine", &third], &["statechange"]),
        (&["clear", "mine", &third], &["statechange", "vdev_clear", "resilver_start", "resilver_finish"]),
        (&["add", "mine", "log", &second], &["vdev_add"]),
        (&["remove", "mine", &second], &["vdev_remove_dev"]),
        (&["reguid", "mine"], &["pool_reguid"]),
    ];
    for (words, wanted) in steps {
        images.run("zpool", &["events", "-c"]);
        images.run("zpool", words);
        images.run("zpool", &["wait", "mine"]);
        images.run("zpool", &["sync", "mine"]);
        let text = images.run("zpool", &["events", "-H"]);
        let members = images.run("zpool", &["events", "-v"]);
        for about in
            members.split("\n\n").filter(|event| event.contains(".vdev_attach") || event.contains(".vdev_remove\""))
        {
            assert!(about.contains("vdev_path = "), "{about}");
        }
        let mut told: Vec<&str> = text.lines().filter_map(|line| line.rsplit('.').next()).collect();
        told.retain(|name| !["history_event", "config_sync"].contains(name));
        let mut wanted = wanted.to_vec();
        told.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(told, wanted, "{words:?}: {text}");
    }
    mounted.end(End::Unmount);
    zdb(&images);
}

/// A mount that looks for devices often.
fn watching(images: &Images) -> Mounted {
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--rw", "--tunable", "cenote_device_look_ms=100", "mine"]);
    command.arg(folder.path());
    Mounted::start(command, folder)
}

/// A hot spare and a cache device are pulled, and put back elsewhere.
#[test]
fn a_spare_and_a_cache_device_are_taken_back_under_another_path() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let path = |name: &str| images.dir.join(name).to_str().unwrap().to_owned();
    for (class, name) in [("spare", "s"), ("cache", "c")] {
        File::create(path(name)).unwrap().set_len(80 << 20).unwrap();
        images.run("zpool", &["add", "mine", class, &path(name)]);
    }
    let mut mounted = watching(&images);
    let until = |names: [&str; 2], state: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = images.run("zpool", &["status", "mine"]);
            let is_so = |name: &str| {
                let mut lines = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
                lines.any(|words| {
                    words.first().is_some_and(|word| word.ends_with(&format!("/{name}"))) && words[1] == state
                })
            };
            if is_so(names[0]) && (names[1].is_empty() || is_so(names[1])) {
                return;
            }
            assert!(Instant::now() < deadline, "{names:?} {state}: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    until(["s", ""], "AVAIL");
    until(["c", ""], "ONLINE");
    let away = images.cache.path();
    for name in ["s", "c"] {
        // Another file system's copy: the first one is gone.
        std::fs::copy(path(name), away.join(name)).unwrap();
        std::fs::remove_file(path(name)).unwrap();
    }
    until(["s", "c"], "UNAVAIL");
    std::fs::rename(away.join("s"), path("s2")).unwrap();
    std::fs::rename(away.join("c"), path("c2")).unwrap();
    until(["s2", ""], "AVAIL");
    until(["c2", ""], "ONLINE");
    for name in ["s2", "c2"] {
        mounted.says(&format!("{name} is back\n"));
    }
    std::fs::write(mounted.path("file"), vec![7; 3 << 20]).unwrap();
    images.run("zpool", &["offline", "-f", "mine", "1.img"]);
    until(["s2", ""], "INUSE");
    images.run("zpool", &["wait", "-t", "resilver,replace", "mine"]);
    // A person asks for a state that is there.
    images.run("zpool", &["replace", "-w", "mine", "1.img", &path("s2")]);
    mounted.end(End::Unmount);
    zdb(&images);
}

/// A cable is pulled, and put back elsewhere: the device has not failed, is taken back by its label, and an older copy beside it is not.
#[test]
fn a_device_that_is_back_under_another_path_is_taken_back_by_itself() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let [first, second, third, copy] =
        ["1.img", "second.img", "third.img", "a-copy.img"].map(|name| images.dir.join(name));
    let unplugged = images.cache.path().join("unplugged");
    let older = std::fs::read(&first).unwrap();
    let mut mounted = watching(&images);
    std::fs::write(&copy, &older).unwrap();
    std::fs::write(mounted.path("file"), vec![7; 3 << 20]).unwrap();
    images.run("zpool", &["sync", "mine"]);
    for (is_noticed, from, to, name) in [(false, &first, &second, "second.img"), (true, &second, &third, "third.img")] {
        if is_noticed {
            // Its requests fail.
            std::fs::copy(from, &unplugged).unwrap();
            std::fs::remove_file(from).unwrap();
        } else {
            // They do not, and a person says so.
            std::fs::rename(from, &unplugged).unwrap();
            std::fs::write(from, "another one is in the slot").unwrap();
            images.run("zpool", &["reopen", "mine"]);
        }
        std::fs::write(mounted.path(name), vec![8; 3 << 20]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            images.run("zpool", &["sync", "mine"]);
            let status = images.run("zpool", &["status", "mine"]);
            if status.contains("UNAVAIL") {
                break;
            }
            assert!(is_noticed && !status.contains("FAULTED") && Instant::now() < deadline, "{status}");
            std::thread::sleep(Duration::from_millis(50));
        }
        std::fs::rename(&unplugged, to).unwrap();
        let healthy = || images.run("zpool", &["status", "mine"]).contains(" state: ONLINE");
        while tree(&images) != format!("mirror-0 0.img {name}") || !healthy() {
            assert!(Instant::now() < deadline, "{}", images.run("zpool", &["status", "mine"]));
            std::thread::sleep(Duration::from_millis(100));
        }
        mounted.says(&format!("{name} is back\n"));
    }
    mounted.end(End::Unmount);
    assert!(older == std::fs::read(&copy).unwrap(), "an older copy is left alone");
    std::fs::remove_file(&copy).unwrap();
    std::fs::rename(&third, &first).unwrap();
    images.assert_whole();
    zdb(&images);
}

/// Taken by its name, rebuilt or resilvered, seen in use, and given back; no disk is charged with what the spare lacked.
#[test]
fn a_distributed_spare_is_used_and_given_back() {
    for flags in [&["-s", "-w"][..], &["-w"]] {
        let images = made(&["draid1:2d:5c:1s"], 5);
        images.run("zpool", &["offline", "-f", "mine", "1.img"]);
        images.run("zpool", &[&["replace"], flags, &["mine", "1.img", "draid1-0-0"]].concat());
        let status = images.run("zpool", &["status", "mine"]);
        assert!(
            status.contains("spare-1") && status.contains("INUSE") && !status.contains("data errors, use"),
            "{status}"
        );
        let spare = status.lines().find(|line| line.contains("draid1-0-0")).unwrap();
        assert!(spare.split_whitespace().skip(1).eq(["ONLINE", "0", "0", "0"]), "{status}");
        for disk in ["0.img", "2.img", "3.img", "4.img"] {
            let line = status.lines().find(|line| line.contains(disk)).unwrap();
            assert!(line.split_whitespace().skip(1).eq(["ONLINE", "0", "0", "0"]), "{status}");
        }
        zdb(&images);
        images.run("zpool", &["clear", "mine", "1.img"]);
        images.run("zpool", &["online", "mine", "1.img"]);
        images.run("zpool", &["resilver", "mine"]);
        let status = images.run("zpool", &["status", "mine"]);
        if status.contains("spare-1") {
            images.run("zpool", &["detach", "mine", "draid1-0-0"]);
        }
        let status = images.run("zpool", &["status", "mine"]);
        assert!(status.contains("AVAIL") && !status.contains("spare-1"), "{status}");
        zdb(&images);
    }
}

/// The failed device is detached for good: its spare stays in use in its place, and goes when a new disk is there.
#[test]
fn a_distributed_spare_stays_when_its_device_is_detached() {
    let images = made(&["draid1:2d:5c:1s"], 5);
    images.run("zpool", &["offline", "-f", "mine", "1.img"]);
    images.run("zpool", &["replace", "-w", "mine", "1.img", "draid1-0-0"]);
    images.run("zpool", &["detach", "mine", "1.img"]);
    let status = images.run("zpool", &["status", "mine"]);
    assert!(!status.contains("1.img") && !status.contains("spare-1"), "{status}");
    assert!(status.contains("INUSE") && status.matches("draid1-0-0").count() == 2, "{status}");
    zdb(&images);
    let new = images.dir.join("new.img");
    File::create(&new).unwrap().set_len(std::fs::metadata(images.dir.join("0.img")).unwrap().len()).unwrap();
    images.run("zpool", &["replace", "-w", "mine", "draid1-0-0", new.to_str().unwrap()]);
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("AVAIL") && status.contains("new.img") && !status.contains("replacing"), "{status}");
    zdb(&images);
}

/// All free space of devices is initialized and trimmed, by a command alone and below a mount.
#[test]
fn free_space_is_initialized_and_trimmed() {
    use std::os::unix::fs::MetadataExt;
    let images = made(&["mirror"], 2);
    let size = |name: &str| std::fs::metadata(images.dir.join(name)).unwrap().blocks() * 512;
    images.run("zpool", &["initialize", "mine"]);
    let full = size("0.img");
    assert!(full > 32 << 20, "{full}");
    let status = images.run("zpool", &["status", "-i", "mine"]);
    assert_eq!(status.matches("100% initialized, completed").count(), 2, "{status}");
    images.run("zpool", &["trim", "-w", "mine", "0.img"]);
    assert!(size("0.img") < full / 4 && size("1.img") == full, "{} {}", size("0.img"), size("1.img"));
    let refused = images.refused("zpool", &["trim", "-s", "mine", "0.img"]);
    assert!(refused.contains("cannot suspend trimming 0.img: there is no active trim"), "{refused}");
    assert!(images.refused("zpool", &["trim", "mine", "nothing"]).contains("no such device in pool"));
    let refused = images.refused("zpool", &["trim", "-d", "mine"]);
    assert!(refused.contains("0.img: trim operations are not supported by device"), "{refused}");
    if can_mount() {
        let mounted = Mounted::new(&images, "mine");
        images.run("zpool", &["trim", "-r", "1M", "mine", "1.img"]);
        assert!(images.refused("zpool", &["trim", "mine", "1.img"]).contains("currently trimming"));
        images.run("zpool", &["trim", "-s", "mine", "1.img"]);
        assert!(images.run("zpool", &["status", "-t", "mine"]).contains("trimmed, suspended"));
        images.run("zpool", &["trim", "-c", "mine", "1.img"]);
        images.run("zpool", &["initialize", "-u", "mine"]);
        images.run("zpool", &["initialize", "-w", "mine", "1.img"]);
        mounted.end(End::Unmount);
    }
    images.assert_whole();
    zdb(&images);
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in ["zpool trim -w mine 0.img", "zpool initialize mine", "initialize vdev=", " complete"] {
        assert!(history.contains(part), "{part}: {history}");
    }
}

/// Without encrypted datasets there are no keys to be loaded.
#[test]
fn a_split_that_loads_keys_is_one_of_a_pool_without_any() {
    let images = made(&["mirror"], 2);
    images.run("zpool", &["split", "-l", "-R", "/r", "mine", "copy"]);
    let names = images.run("zpool", &["list", "-Ho", "name"]);
    assert!(names.contains("copy\n") && names.contains("mine\n"), "{names}");
}

/// A pool of mirrors becomes two, by whoever has it; the new one can be imported at once.
#[test]
fn a_pool_is_split_by_whoever_has_it() {
    for is_served in [false, true] {
        let images = made(&["mirror"], 2);
        let cache = images.cache.path().join("cache.json");
        images.run("zfs", &["create", "mine/data"]);
        images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
        let steps = || {
            for (words, said) in [
                (&["split", "mine", "mine"][..], "Unable to split mine: pool already exists"),
                (&["split", "mine", "1x"], "Unable to split mine: "),
                (&["split", "mine", "copy", "nothing"], "at most one disk from each mirror"),
                (&["split", "mine", "copy", "0.img", "1.img"], "at most one disk from each mirror"),
                (&["split", "-o", "nothing=1", "mine", "copy"], "Unable to split mine: "),
            ] {
                let refused = images.refused("zpool", words);
                assert!(refused.contains(said), "{words:?}: {refused}");
            }
            let shown = images.run("zpool", &["split", "-n", "-P", "mine", "copy", "0.img"]);
            let own = images.dir.join("0.img").display().to_string();
            assert_eq!(shown, format!("would create 'copy' with the following layout:\n\n\tcopy\n\t  {own}\n"));
            assert_eq!(tree(&images), "mirror-0 0.img 1.img");
            images.run("zpool", &["split", "-R", "/elsewhere", "-o", "comment=half", "mine", "copy", "0.img"]);
            assert_eq!(tree(&images), "1.img");
            images.run("zfs", &["create", "mine/later"]);
        };
        if is_served {
            served(&images, steps)
        } else {
            steps()
        }
        let listed = |pool: &str| {
            let listed = common::good(images.bare().args(["zfs", "list", "-H", "-o", "name", "-r", pool]));
            String::from_utf8(listed).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(listed("mine"), "mine mine/data mine/later mine/v");
        assert_eq!(listed("copy"), "copy copy/data copy/v");
        let get = |property: &str| {
            let got = common::good(images.bare().args(["zpool", "get", "-H", "-o", "value", property, "copy"]));
            String::from_utf8(got).unwrap().trim().to_owned()
        };
        assert_eq!((get("comment"), get("altroot")), ("half".to_owned(), "/elsewhere".to_owned()));
        let history = images.run("zpool", &["history", "-i", "mine"]);
        for part in ["zpool split -R /elsewhere -o comment=half mine copy 0.img", "detach vdev="] {
            assert!(history.contains(part), "{part}: {history}");
        }
        let history = images.run("zpool", &["history", "-i", "copy"]);
        assert!(history.contains("split from pool mine"), "{history}");
        let noted = std::fs::read_to_string(&cache).unwrap();
        assert_eq!(noted.matches("0.img").count(), 1, "{noted}");
        for pool in ["mine", "copy"] {
            images.run("zpool", &["export", pool]);
            if cenote_testkit::zdb::program("zdb").is_some() {
                let devices = cenote_testkit::zdb::Devices::of(&images.files).unwrap();
                let told = cenote_testkit::zdb::run(&devices, &["-bcc"], pool).unwrap();
                assert_eq!(told.status, Some(0), "{pool}: {}", told.text);
            }
        }
    }
}

/// Pools share a spare, as in OpenZFS: one has it at a time, which the other sees, and it is free for both again.
#[test]
fn two_pools_share_a_spare() {
    let images = made(&["mirror"], 2);
    let path = |name: &str| images.dir.join(name).to_str().unwrap().to_owned();
    let mut create = images.bare();
    common::good(create.args(["zpool", "create", "other", "mirror", &path("x"), &path("y")]));
    let spare = path("z");
    for pool in ["mine", "other"] {
        images.run("zpool", &["add", pool, "spare", &spare]);
        let again = images.refused("zpool", &["add", pool, "spare", &spare]);
        assert!(again.contains("is part of this pool"), "{again}");
    }
    let seen = |pool: &str, state: &str| {
        let status = images.run("zpool", &["status", pool]);
        assert!(status.lines().any(|line| line.contains(&spare) && line.ends_with(state)), "{pool}, {state}: {status}");
    };
    for pool in ["mine", "other"] {
        seen(pool, "AVAIL   ");
    }
    images.run("zpool", &["offline", "-f", "mine", "1.img"]);
    images.run("zpool", &["offline", "-f", "other", &path("y")]);
    images.run("zpool", &["replace", "-w", "mine", "1.img", &spare]);
    seen("mine", "INUSE     currently in use");
    seen("other", "INUSE     in use by pool 'mine'");
    let refused = images.refused("zpool", &["replace", "other", &path("y"), &spare]);
    assert!(refused.contains("pool 'mine'"), "{refused}");
    let refused = images.refused("zpool", &["remove", "mine", &spare]);
    assert!(refused.contains("the spare is in use"), "{refused}");
    images.run("zpool", &["detach", "mine", &spare]);
    for pool in ["mine", "other"] {
        seen(pool, "AVAIL   ");
    }
    images.run("zpool", &["replace", "-w", "other", &path("y"), &spare]);
    seen("other", "INUSE     currently in use");
    seen("mine", "INUSE     in use by pool 'other'");
    images.run("zpool", &["remove", "mine", &spare]);
    assert!(!images.run("zpool", &["status", "mine"]).contains(&spare));
    seen("other", "INUSE     currently in use");
    images.run("zpool", &["detach", "other", &spare]);
    seen("other", "AVAIL   ");
}

/// The same while servers have both: neither keeps the spare from the other before it takes it.
#[test]
fn two_servers_share_a_spare() {
    if !can_mount() {
        return;
    }
    let images = made(&["mirror"], 2);
    let path = |name: &str| images.dir.join(name).to_str().unwrap().to_owned();
    let mut create = images.bare();
    common::good(create.args(["zpool", "create", "other", "mirror", &path("x"), &path("y")]));
    let (spare, y) = (path("z"), path("y"));
    let servers = ["mine", "other"].map(|pool| Mounted::new(&images, pool));
    for pool in ["mine", "other"] {
        images.run("zpool", &["add", pool, "spare", &spare]);
    }
    let until_seen = |pool: &str, state: &str| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = images.run("zpool", &["status", pool]);
            if status.lines().any(|line| line.contains(&spare) && line.contains(state)) {
                return;
            }
            assert!(Instant::now() < deadline, "{pool}, {state}: {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    for pool in ["mine", "other"] {
        until_seen(pool, "AVAIL");
    }
    // It is taken by itself, and not twice.
    images.run("zpool", &["offline", "-f", "mine", "1.img"]);
    until_seen("mine", "currently in use");
    until_seen("other", "in use by pool 'mine'");
    images.run("zpool", &["offline", "-f", "other", &y]);
    images.refused("zpool", &["replace", "other", &y, &spare]);
    images.run("zpool", &["wait", "-t", "resilver,replace", "mine"]);
    until_seen("other", "in use by pool 'mine'");
    // It is free when the device is back, and the other server has waited for it.
    images.run("zpool", &["online", "mine", "1.img"]);
    until_seen("other", "currently in use");
    until_seen("mine", "in use by pool 'other'");
    images.run("zpool", &["wait", "-t", "resilver,replace", "other"]);
    images.run("zpool", &["online", "other", &y]);
    for pool in ["mine", "other"] {
        until_seen(pool, "AVAIL");
    }
    // Both want it at the same moment: one gets it.
    let offline = |pool: &str, device: &str| images.command("zpool", &["offline", "-f", pool, device]).spawn().unwrap();
    let both = [offline("mine", "1.img"), offline("other", &y)];
    for mut command in both {
        assert!(command.wait().unwrap().success());
    }
    let has = |pool: &str| {
        let status = images.run("zpool", &["status", pool]);
        status.lines().any(|line| line.contains(&spare) && line.contains("currently in use"))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has("mine") && !has("other") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    let (winner, loser) = if has("mine") { ("mine", "other") } else { ("other", "mine") };
    until_seen(loser, &format!("in use by pool '{winner}'"));
    assert!(has(winner) && !has(loser));
    for server in servers {
        server.end(End::Unmount);
    }
    zdb(&images);
}
