//! Goal: what a person meets who keeps pools from day to day is as OpenZFS's tools have it, and says what to do next. Method: the findings of a new user, by
//! commands alone and beside a server that has the pool.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::common;
use crate::common::images::Images;
use crate::devices::{made, served};

/// Bytes that cannot be compressed, as a file of the pool.
fn put_noise(images: &Images, bytes: usize) {
    let source = tempfile::tempdir().unwrap();
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    let noise: Vec<u8> = noise.take(bytes).collect();
    std::fs::File::create(source.path().join("file")).unwrap().write_all(&noise).unwrap();
    images.run("put", &["mine", source.path().to_str().unwrap()]);
}

fn path(images: &Images, name: &str) -> String {
    images.dir.join(name).display().to_string()
}

fn tune(images: &Images, given: &str) {
    common::good(images.bare().args(["tunables", "--pool", "mine", given]));
}

/// Status and what is said, of a command that fails or not.
fn told(images: &Images, words: &[&str]) -> (Option<i32>, String) {
    let output = images.command("zpool", words).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn waiting_for_what_no_process_works_on_says_so_and_fails() {
    let images = made(&["raidz1"], 3);
    put_noise(&images, 8_000_000);
    assert_eq!(told(&images, &["wait", "mine"]), (Some(0), String::new()));
    images.run("zpool", &["attach", "mine", "raidz1-0", &path(&images, "x")]);
    for words in [&["wait", "-t", "raidz_expand", "mine"][..], &["wait", "mine"], &["wait", "mine", "1"]] {
        let (status, text) = told(&images, words);
        let part =
            "no process works on 'mine': raidz_expand was begun and not done; 'zpool resilver mine' goes on with it";
        assert!(status == Some(1) && text.contains(part), "{words:?}: {status:?} {text}");
    }
    assert_eq!(told(&images, &["wait", "-t", "scrub,remove", "mine"]), (Some(0), String::new()));
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("nothing works on it now\n\t'zpool resilver', or a mount"), "{status}");
    images.run("zpool", &["resilver", "mine"]);
    assert_eq!(told(&images, &["wait", "mine"]), (Some(0), String::new()));
    assert!(images.run("zpool", &["status", "mine"]).contains("expand: expanded raidz1-0 copied "));
}

#[test]
fn devices_of_a_pool_that_commands_open_are_cleared_replaced_and_named() {
    let images = made(&[], 1);
    let status = || images.run("zpool", &["status", "mine"]);
    images.run("zpool", &["attach", "mine", "0.img", &path(&images, "x")]);
    let (code, text) = told(&images, &["wait", "-t", "resilver", "mine"]);
    assert!(code == Some(1) && text.contains("'zpool resilver mine' goes on with it"), "{code:?} {text}");
    images.run("zpool", &["resilver", "mine"]);
    assert_eq!(told(&images, &["wait", "mine"]), (Some(0), String::new()));

    // A pool is cleared with all of its devices.
    images.run("zpool", &["offline", "-f", "mine", "x"]);
    assert!(status().contains("FAULTED"), "{}", status());
    images.run("zpool", &["clear", "mine"]);
    assert!(!status().contains("FAULTED"), "{}", status());
    images.run("zpool", &["resilver", "mine"]);

    // Devices that are not there, and those that are there already.
    for (words, wanted) in [
        (&["attach", "mine", "nothing", "y"][..], "no such device in pool"),
        (&["replace", "mine", "nothing", "y"], "no such device in pool"),
        (&["attach", "mine", "0.img", &path(&images, "x")], "it is part of active pool 'mine'"),
        (&["replace", "mine", "0.img", &path(&images, "x")], "it is part of active pool 'mine'"),
        (&["scrub", "nosuch"], "cannot open 'nosuch': no such pool"),
        (&["resilver", "nosuch"], "cannot open 'nosuch': no such pool"),
        (&["iostat", "nosuch"], "cannot open 'nosuch': no such pool"),
        (&["events", "nosuch"], "cannot open 'nosuch': no such pool"),
        (&["set", "allocating=off", "mine", "mirror-0"], "cannot set property for 'mirror-0': it is the last vdev"),
    ] {
        let text = images.refused("zpool", words);
        assert!(text.contains(wanted) && text.trim().lines().count() == 1, "{words:?}: {text}");
        assert!(!text.contains("cannot scrub") && !text.contains("cannot resilver"), "{words:?}: {text}");
    }

    let (code, text) = told(&images, &["get", "nonsense", "mine", "x"]);
    assert!(code == Some(2) && text.contains("invalid property 'nonsense'"), "{code:?} {text}");

    // The name that status shows is good for changes, whatever path is recorded.
    images.run("zpool", &["set", "path=/dev/else", "mine", "x"]);
    assert!(status().contains(&path(&images, "x")), "{}", status());
    images.run("zpool", &["set", "failfast=off", "mine", "x"]);
    images.run("zpool", &["initialize", "mine", "x"]);
    images.run("zpool", &["initialize", "-u", "mine", "else"]);

    // A device that is gone and was replaced needs a resilver, and not to be attached again.
    std::fs::remove_file(images.dir.join("x")).unwrap();
    assert!(status().contains("Attach the missing device"), "{}", status());
    images.run("zpool", &["replace", "mine", "else", &path(&images, "y")]);
    let shown = status();
    assert!(!shown.contains("Attach the missing device") && shown.contains("run 'zpool resilver'"), "{shown}");
    images.run("zpool", &["resilver", "mine"]);
    assert!(status().contains("state: ONLINE"), "{}", status());
}

#[test]
fn a_resilver_is_not_given_up_and_what_is_left_of_it_is_shown_as_it_goes() {
    let images = made(&[], 1);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    put_noise(&images, 2_000_000);
    served(&images, || {
        tune(&images, "zfs_scan_suspend_progress=1");
        images.run("zpool", &["attach", "mine", "0.img", &path(&images, "x")]);
        images.run("zpool", &["sync", "mine"]);
        let refused = images.refused("zpool", &["scrub", "-s", "mine"]);
        assert!(refused.trim().ends_with("cannot cancel scrubbing mine: currently resilvering"), "{refused}");
        let refused = images.refused("zpool", &["scrub", "mine"]);
        assert!(refused.trim().ends_with("cannot scrub mine: currently resilvering"), "{refused}");
        // Lines come while it waits: the second of them before the resilver can go on.
        let mut waiting = images.command("zpool", &["wait", "-t", "resilver", "mine", "0.2"]);
        let mut waiting = waiting.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap().trim(), "RESILVER");
        assert!(!lines.next().unwrap().unwrap().trim().is_empty());
        assert!(!lines.next().unwrap().unwrap().trim().is_empty());
        assert!(waiting.try_wait().unwrap().is_none());
        tune(&images, "zfs_scan_suspend_progress=0");
        lines.for_each(drop);
        assert!(waiting.wait().unwrap().success());
        let status = images.run("zpool", &["status", "mine"]);
        assert!(status.contains("resilvered") && !status.contains("DEGRADED"), "{status}");
        // The first interval is left out with its heading; the next one has a heading.
        let told = images.run("zpool", &["iostat", "-y", "mine", "0.1", "1"]);
        assert!(told.contains("capacity") && told.lines().any(|line| line.starts_with("mine ")), "{told}");
    });
}

#[test]
fn a_vdev_that_is_evacuated_is_not_initialized() {
    let images = made(&[], 2);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    images.run("zpool", &["add", "mine", &path(&images, "x"), &path(&images, "y"), &path(&images, "z")]);
    put_noise(&images, 4_000_000);
    served(&images, || {
        tune(&images, "zfs_removal_suspend_progress=1");
        images.run("zpool", &["remove", "mine", "1.img"]);
        for verb in ["initialize", "trim"] {
            let refused = images.refused("zpool", &[verb, "mine", "1.img"]);
            assert!(refused.contains("its vdev is being removed"), "{verb}: {refused}");
        }
        tune(&images, "zfs_removal_suspend_progress=0");
        images.run("zpool", &["wait", "-t", "remove", "mine"]);
    });
}

/// A pool of a mirror and three disks; one side of the mirror is damaged all over.
fn with_a_damaged_side() -> Images {
    use std::os::unix::fs::FileExt;
    let images = made(&["mirror"], 2);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    put_noise(&images, 6_000_000);
    images.run("zpool", &["add", "-f", "mine", &path(&images, "x"), &path(&images, "y"), &path(&images, "z")]);
    let damaged = std::fs::File::options().write(true).open(images.dir.join("0.img")).unwrap();
    let end = damaged.metadata().unwrap().len() - (1 << 20);
    for at in (5 << 20..end).step_by(32 << 10) {
        damaged.write_all_at(&[0xee; 4096], at).unwrap();
    }
    images
}

fn assert_removed_whole(images: &Images) {
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("remove: Removal of vdev 0 copied "), "{status}");
    images.run("zpool", &["scrub", "mine"]);
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("with 0 errors") && status.contains("No known data errors"), "{status}");
}

/// Regression: a command alone waited for ever for the scrub that a removal asks for.
#[test]
fn a_mirror_with_a_damaged_side_is_removed_by_a_command_alone_and_loses_nothing() {
    let images = with_a_damaged_side();
    images.run("zpool", &["remove", "-w", "mine", "mirror-0"]);
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("scrub repaired ") && !status.contains("repaired 0B"), "{status}");
    assert_removed_whole(&images);
}

/// The verb has the scrub done that the removal waits for, and so has the removal: one worker does it.
#[test]
fn a_removal_that_a_server_has_left_waiting_is_ended_by_a_resilver_alone() {
    let images = with_a_damaged_side();
    served(&images, || {
        tune(&images, "zfs_scan_suspend_progress=1");
        images.run("zpool", &["remove", "mine", "mirror-0"]);
        while !images.run("zpool", &["status", "mine"]).contains("the removal waits for a scrub") {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    assert!(images.run("zpool", &["status", "mine"]).contains("scrub in progress"));
    images.run("zpool", &["resilver", "mine"]);
    assert_removed_whole(&images);
}

/// Regression: a command alone that frees something waited for ever for a scrub that another process had left.
#[test]
fn a_command_alone_does_not_wait_for_a_scrub_that_nobody_does() {
    let images = made(&[], 1);
    images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
    put_noise(&images, 2_000_000);
    images.run("zfs", &["snapshot", "mine@before"]);
    served(&images, || {
        tune(&images, "zfs_scan_suspend_progress=1");
        images.run("zpool", &["scrub", "mine"]);
        images.run("zpool", &["sync", "mine"]);
    });
    images.run("zfs", &["destroy", "mine@before"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("scrub in progress"));
    images.run("zpool", &["scrub", "mine"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("with 0 errors"));
}
