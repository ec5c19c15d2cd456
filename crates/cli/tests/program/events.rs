//! Goal: what happens to a pool in use is told as OpenZFS tells it, a device that gives too many errors is taken note of, and what devices do
//! and are can be seen. Method: a mount of a pool on files, of which one is spoilt; the command line beside it; `zdb` afterwards.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::{good, said};

/// Bytes that no compression makes fewer.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Ends a mount whose process has told of a device.
fn end(mut mounted: Mounted) {
    mounted.signal("-TERM");
    assert!(mounted.wait_whatever_it_says().success());
}

/// A raidz1 of three files with a file of 4 MiB, and that file's contents.
fn pool() -> (Images, Vec<u8>) {
    let images = Images::made(&["raidz1"], 3, &["-o", "ashift=12"]);
    let source = tempfile::tempdir().unwrap();
    let contents = noise(1, 4 << 20);
    fs::write(source.path().join("file"), &contents).unwrap();
    images.run("put", &["mine", source.path().to_str().unwrap()]);
    (images, contents)
}

/// Spoils all of a file but its labels.
fn spoil(images: &Images, index: usize) {
    let file = fs::File::options().write(true).open(&images.files[index]).unwrap();
    let noise = noise(2, 1 << 20);
    for at in 5..74 {
        file.write_all_at(&noise, at << 20).unwrap();
    }
}

/// Waits until a text about the pool has this.
fn wait_for(what: &str, text: impl Fn() -> String) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let now = text();
        if now.contains(what) {
            return now;
        }
        assert!(Instant::now() < until, "no {what}: {now}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_happens_to_a_pool_in_use_is_told_as_openzfs_tells_it() {
    if !can_mount() {
        return;
    }
    let (images, _) = pool();
    assert!(images.refused("zpool", &["events"]).contains("no server has a pool: events are kept by"));
    for wrong in ["/tmp", "mine/fs", "mine@now"] {
        assert!(images.refused("zpool", &["events", "-f", wrong]).contains("invalid pool name"));
    }
    assert!(images.refused("zpool", &["iostat", "mine"]).contains("no server has the pool 'mine'"));
    let mounted = Mounted::new(&images, "mine");
    let text = images.run("zpool", &["events"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("{:<30} CLASS", "TIME"));
    // `Jun 30 1993 21:49:08.123456789 class`
    let (time, class) = lines[1].split_at(30);
    assert_eq!((class, time.rfind('.')), (" sysevent.fs.zfs.pool_import", Some(20)), "{text}");
    assert!(text.contains(" sysevent.fs.zfs.config_sync\n"), "{text}");

    let mut follow = images.command("zpool", &["events", "-Hf", "mine"]).stdout(Stdio::piped()).spawn().unwrap();
    images.run("zfs", &["set", "compression=off", "mine"]);
    let text = images.run("zpool", &["events", "-Hv", "mine"]);
    let history = text.split("\n\n").find(|event| event.contains("history_event")).unwrap();
    for member in [
        "        version = 0x0\n",
        "        class = \"sysevent.fs.zfs.history_event\"\n",
        "        pool = \"mine\"\n",
        "        pool_context = 0x0\n",
        "        history_hostname = \"",
        "        history_internal_str = \"compression=",
        "        time = 0x",
        "        eid = 0x",
    ] {
        assert!(history.contains(member), "{member}: {history}");
    }
    let mut followed = BufReader::new(follow.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(followed.any(|line| line.ends_with("\tsysevent.fs.zfs.history_event")));
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert!(images.run("zpool", &["events", "-H", "mine"]).lines().count() > 2);
    assert!(images.run("zpool", &["events", "-c"]).starts_with("cleared "));
    assert_eq!(images.run("zpool", &["events", "-H"]), "");
    let wrong = images.command("zpool", &["events", "-cH"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    mounted.end(End::Unmount);
}

#[test]
fn a_device_with_too_many_checksum_errors_is_degraded_on_disk_until_it_is_cleared() {
    if !can_mount() {
        return;
    }
    let (images, contents) = pool();
    spoil(&images, 1);
    let leaf = |status: &str| {
        let line = status.lines().find(|line| line.contains("1.img")).unwrap_or_else(|| panic!("{status}"));
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let mounted = Mounted::new(&images, "mine");
    assert!(fs::read(mounted.path("file")).unwrap() == contents, "it is read from the others");
    let status = wait_for("too many errors", || images.run("zpool", &["status", "mine"]));
    assert_eq!(leaf(&status)[0], "DEGRADED", "{status}");
    assert!(leaf(&status)[3].parse::<u64>().is_ok_and(|count| count >= 10), "{status}");
    let text = wait_for("statechange", || images.run("zpool", &["events", "-Hv"]));
    let changed = text.split("\n\n").find(|event| event.contains("resource.fs.zfs.statechange")).unwrap();
    assert!(changed.contains("vdev_state = \"DEGRADED\" (0x6)"), "{changed}");
    assert!(changed.contains("vdev_laststate = \"ONLINE\" (0x7)"), "{changed}");
    let checksum = text.split("\n\n").find(|event| event.contains("ereport.fs.zfs.checksum")).unwrap();
    for member in [
        "vdev_type = \"file\"",
        "vdev_delays = 0x0",
        "dio_verify_errors = 0x0",
        "parent_type = \"raidz\"",
        "zio_err = 0x34",
        "zio_type = 0x1 [READ]",
        "zio_objset = 0x",
        "zio_object = 0x",
        "zio_level = 0x",
        "zio_blkid = 0x",
        "bad_ranges = 0x",
        "bad_ranges_min_gap = 0x8",
        "bad_range_sets = 0x",
        "bad_range_clears = 0x",
    ] {
        assert!(checksum.contains(member), "{member}: {checksum}");
    }
    // No column of a raidz has a checksum.
    assert!(!checksum.contains("cksum_algorithm"), "{checksum}");
    end(mounted);
    if cenote_testkit::zdb::program("zdb").is_some() {
        let label = good(Command::new("zdb").arg("-l").arg(&images.files[0]));
        let label = String::from_utf8(label).unwrap();
        assert!(label.contains("degraded: 1") && label.contains("aux_state: 'err_exceeded'"), "{label}");
    }
    assert_eq!(leaf(&images.run("zpool", &["status", "mine"]))[0], "DEGRADED");
    // A command that opens the pool by itself clears it too.
    images.run("zpool", &["clear", "mine"]);
    assert_eq!(leaf(&images.run("zpool", &["status", "mine"]))[0], "ONLINE");
    if cenote_testkit::zdb::program("zdb").is_some() {
        let label = good(Command::new("zdb").arg("-l").arg(&images.files[0]));
        assert!(!String::from_utf8(label).unwrap().contains("err_exceeded"));
    }
}

#[test]
fn room_that_devices_of_a_pool_in_use_have_got_is_told() {
    if !can_mount() {
        return;
    }
    let (images, _) = pool();
    let mounted = Mounted::new(&images, "mine");
    let expandable = || images.run("zpool", &["get", "-Hp", "-o", "value", "expandsize", "mine"]);
    assert_eq!(expandable(), "-\n");
    for file in &images.files {
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_len(file.metadata().unwrap().len() + (64 << 20)).unwrap();
    }
    images.run("zpool", &["reopen", "mine"]);
    let bytes: u64 = expandable().trim().parse().expect("the devices have room");
    assert!((128 << 20..=192 << 20).contains(&bytes), "of three devices: {bytes}");
    end(mounted);
}

#[test]
fn properties_of_vdevs_are_kept_where_openzfs_keeps_them_and_are_obeyed() {
    let (images, _) = pool();
    images.run("zpool", &["set", "checksum_n=3", "mine", "raidz1-0"]);
    let leaf = images.files[1].to_str().unwrap();
    for setting in ["comment=by the window", "my:rack=7", "io_n=5", "slow_io_events=off"] {
        images.run("zpool", &["set", setting, "mine", leaf]);
    }
    let get = |list: &str, vdev: &str| {
        images.run("zpool", &["get", "-Hp", "-o", "property,value,source", list, "mine", vdev])
    };
    let list = "comment,my:rack,io_n,io_t,slow_io_events,failfast,parent,numchildren,state,ashift,removing,guid";
    let text = get(list, "1.img");
    let wanted = "comment\tby the window\tlocal\nmy:rack\t7\tlocal\nio_n\t5\tlocal\nio_t\t-\tdefault\nslow_io_events\toff\tlocal\n\
                  failfast\tinherit\tdefault\nparent\traidz-0\t-\nnumchildren\t0\t-\nstate\tONLINE\t-\nashift\t12\t-\nremoving\toff\t-\nguid\t";
    assert!(text.starts_with(wanted), "{text}");
    let text = get("checksum_n,parity,numchildren,allocating,raidz_expanding,parent", "raidz1-0");
    assert_eq!(
        text,
        "checksum_n\t3\tlocal\nparity\t1\t-\nnumchildren\t3\t-\nallocating\ton\tdefault\nraidz_expanding\toff\t-\nparent\tmine\t-\n"
    );
    let all = images.run("zpool", &["get", "all", "mine", "all-vdevs"]);
    for name in ["capacity", "expandsize", "read_errors", "slow_io_t", "alloc_bias", "my:rack"] {
        assert!(all.lines().any(|line| line.split_whitespace().nth(1) == Some(name)), "{name}: {all}");
    }
    assert_eq!(
        get("sit_out,autosit,scheduler,encpath", leaf),
        "sit_out\toff\t-\nautosit\t-\t-\nscheduler\tauto\tdefault\nencpath\t-\tdefault\n"
    );
    images.run("zpool", &["set", "autosit=off", "mine", "raidz1-0"]);
    images.run("zpool", &["set", "scheduler=on", "mine", leaf]);
    assert_eq!(
        get("autosit,alloc_bias,sit_out", "raidz1-0"),
        "autosit\toff\tlocal\nalloc_bias\tnone\tdefault\nsit_out\t-\t-\n"
    );
    assert_eq!(get("scheduler", leaf), "scheduler\ton\tlocal\n");
    images.run("zpool", &["set", "comment=", "mine", leaf]);
    images.run("zpool", &["set", "io_n=none", "mine", leaf]);
    assert_eq!(get("comment,io_n", leaf), "comment\t-\tdefault\nio_n\t-\tdefault\n");
    assert!(images.run("zpool", &["history", "-i", "mine"]).contains("vdev set"));
    for (setting, vdev, why) in [
        ("io_n=x", leaf, "bad numeric value"),
        ("allocating=off", "raidz1-0", "the last vdev on which blocks of files can be placed"),
        ("allocating=off", leaf, "only top-level vdevs have this property"),
        ("alloc_bias=special", "raidz1-0", "the last vdev"),
        ("sit_out=on", leaf, "none has 'mine'"),
        ("autosit=on", leaf, "only devices of a raidz or draid sit out by themselves"),
        ("path=/tmp/x", leaf, "a path begins with '/dev/'"),
        ("guid=1", leaf, "cannot be set"),
        ("io_n=1", "other", "no such vdev in pool 'mine'"),
    ] {
        let output = images.command("zpool", &["set", setting, "mine", vdev]).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(why), "{setting}: {}", said(&output));
    }
    let output = images.command("zpool", &["get", "io_n", "mine", "other"]).output().unwrap();
    assert!(said(&output).contains("no such vdev"), "{}", said(&output));
    images.assert_whole();
    if !can_mount() {
        return;
    }
    // Three errors are enough, by the property of the vdev above.
    spoil(&images, 1);
    let mounted = Mounted::new(&images, "mine");
    let _ = fs::read(mounted.path("file")).unwrap();
    wait_for("too many errors", || images.run("zpool", &["status", "mine"]));
    images.run("zpool", &["set", "sit_out=on", "mine", leaf]);
    let other = images.files[2].to_str().unwrap();
    let output = images.command("zpool", &["set", "sit_out=on", "mine", other]).output().unwrap();
    assert!(said(&output).contains("too many disks already sitting out"), "{}", said(&output));
    assert_eq!((get("sit_out", leaf), get("sit_out", other)), ("sit_out\ton\t-\n".into(), "sit_out\toff\t-\n".into()));
    images.run("zpool", &["set", "sit_out=off", "mine", leaf]);
    assert_eq!(get("sit_out", leaf), "sit_out\toff\t-\n");
    let counted = get("read_ops,checksum_errors", "1.img");
    let numbers: Vec<u64> = counted.lines().map(|line| line.split('\t').nth(1).unwrap().parse().unwrap()).collect();
    assert!(numbers.iter().all(|count| *count > 2), "{counted}");
    images.run("zpool", &["clear", "mine"]);
    assert!(images.run("zpool", &["events", "-H"]).contains("sysevent.fs.zfs.vdev_clear"));
    end(mounted);
}

#[test]
fn devices_of_a_pool_in_use_are_seen_at_work() {
    if !can_mount() {
        return;
    }
    let (images, contents) = pool();
    let mounted = Mounted::new(&images, "mine");
    assert!(fs::read(mounted.path("file")).unwrap() == contents);
    let text = images.run("zpool", &["iostat", "-v"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].trim_start().starts_with("capacity     operations     bandwidth"), "{text}");
    assert!(lines[1].starts_with("pool ") && lines[1].ends_with("alloc   free   read  write   read  write"), "{text}");
    assert!(
        lines[2].starts_with("----------") && lines[3].starts_with("mine ") && lines[4].starts_with("  raidz1-0"),
        "{text}"
    );
    assert_eq!(lines.len(), 9, "{text}");
    let exact = images.run("zpool", &["iostat", "-Hpv"]);
    let rows: Vec<Vec<&str>> = exact.lines().map(|line| line.split('\t').collect()).collect();
    assert!(rows.len() == 5 && rows.iter().all(|row| row.len() == 7), "{exact}");
    assert!(rows[2][0].ends_with("0.img") && rows[2][1..3] == ["0", "0"], "{exact}");
    for options in [&["-l"][..], &["-q"], &["-lq"], &["-w"], &["-vw"], &["-r"], &["-vr"]] {
        let text = images.run("zpool", &[&["iostat"], options].concat());
        assert!(text.contains("mine"), "{options:?}: {text}");
    }
    // Vdevs are named with their pool and without it; the table has them alone.
    for words in [&["mine", "1.img", "raidz1-0"][..], &["1.img", "raidz1-0"]] {
        let text = images.run("zpool", &[&["iostat", "-Hp"], words].concat());
        let names: Vec<&str> = text.lines().filter_map(|line| line.split('\t').next()).collect();
        assert!(names.len() == 2 && names[0] == "raidz1-0" && names[1].ends_with("1.img"), "{text}");
    }
    assert!(images.run("zpool", &["iostat", "1.img"]).contains("\nvdev "));
    for words in [&["mine", "9.img"][..], &["9.img", "mine"], &["9.img"]] {
        assert!(images.refused("zpool", &[&["iostat"], words].concat()).contains("'9.img'"), "{words:?}");
    }
    // Of the second interval alone, in which nothing is read.
    let text = images.run("zpool", &["iostat", "-Hpy", "mine", "0.2", "2"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    // Sizes of requests: alone, and with others.
    let sizes = images.run("zpool", &["iostat", "-rHp", "mine"]);
    let rows: Vec<Vec<&str>> = sizes.lines().skip(2).map(|line| line.split('\t').collect()).collect();
    assert!(rows.len() == 16 && rows.iter().all(|row| row.len() == 15), "{sizes}");
    assert_eq!((rows[0][0], rows[15][0]), ("512", "16777216"), "{sizes}");
    let count: u64 = rows.iter().flat_map(|row| &row[1..]).map(|count| count.parse::<u64>().unwrap()).sum();
    assert!(count > 0, "{sizes}");
    mounted.end(End::Unmount);
}

#[test]
fn hooks_run_for_each_event_with_what_it_says() {
    if !can_mount() {
        return;
    }
    let (images, _) = pool();
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let hook = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text} >> {}\n", told.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    hook("all-class", "echo $ZEVENT_EID $ZEVENT_SUBCLASS $ZEVENT_POOL");
    hook("history_event-name", "echo set: $ZEVENT_HISTORY_INTERNAL_NAME $HOME");
    let at = tempfile::tempdir().unwrap();
    let mut command = images.command("serve", &["--rw", "--hooks", folder.path().to_str().unwrap(), "--mount"]);
    command.arg(at.path()).arg("mine");
    let mounted = Mounted::start(command, at);
    images.run("zfs", &["set", "compression=off", "mine"]);
    let text = || fs::read_to_string(&told).unwrap_or_default();
    wait_for("set: set\n", text);
    mounted.end(End::Signal("-TERM"));
    let text = text();
    assert!(text.starts_with("1 pool_import mine\n") && text.contains(" config_sync mine\n"), "{text}");
    assert!(text.trim_end().ends_with("mine") && text.contains(" pool_export mine\n"), "{text}");
}
