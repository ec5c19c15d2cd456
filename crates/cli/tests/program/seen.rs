//! Goal: what `zpool status`, `iostat`, `get` and `wait` say has the fields of OpenZFS 2.3.2's for the same state. Method: facts that its module told
//! in the virtual machine (`openzfs-vm seen`), looked for in what the program says of pools in these states.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::{good, said};
use serde_json::Value;

fn status(images: &Images, options: &[&str]) -> Value {
    let text = images.run("zpool", &[&["status", "-j"], options, &["mine"]].concat());
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["pools"]["mine"].take()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().map(String::as_str).collect()
}

#[test]
fn a_flat_document_has_each_device_beside_its_parents_and_within_them() {
    let images = Images::made(&["mirror"], 2, &[]);
    let pool = status(&images, &["--json-flat-vdevs", "--json-int"]);
    let (first, second) = (images.files[0].to_str().unwrap(), images.files[1].to_str().unwrap());
    assert_eq!(keys(&pool["vdevs"]), [first, second, "mirror-0", "mine"]);
    let leaf = &pool["vdevs"][first];
    assert_eq!(
        keys(leaf),
        [
            "name",
            "vdev_type",
            "guid",
            "path",
            "class",
            "state",
            "parent",
            "rep_dev_size",
            "phys_space",
            "read_errors",
            "write_errors",
            "checksum_errors",
            "slow_ios"
        ]
    );
    assert_eq!((leaf["parent"].as_str(), leaf["slow_ios"].as_u64()), (Some("mirror-0"), Some(0)));
    assert_eq!(&pool["vdevs"]["mirror-0"]["vdevs"][first], leaf);
    assert_eq!(keys(&pool["vdevs"]["mine"]["vdevs"]), [first, second, "mirror-0"]);
}

#[test]
fn work_on_devices_has_its_bytes() {
    let images = Images::made(&["mirror"], 2, &[]);
    let leaf = |options: &[&str]| {
        let file = images.files[0].to_str().unwrap();
        status(&images, options)["vdevs"]["mine"]["vdevs"]["mirror-0"]["vdevs"][file].take()
    };
    let unbegun = leaf(&["-i", "-t"]);
    assert_eq!(keys(&unbegun)[keys(&unbegun).len() - 3..], ["init_state", "trim_state", "trim_notsup"]);
    assert_eq!((unbegun["init_state"].as_str(), unbegun["trim_notsup"].as_str()), (Some("UNINITIALIZED"), Some("0")));
    images.run("zpool", &["initialize", "-w", "mine", images.files[0].to_str().unwrap()]);
    let done = leaf(&["-i", "--json-int"]);
    assert_eq!(
        keys(&done)[keys(&done).len() - 5..],
        ["init_state", "initialized", "to_initialize", "init_time", "init_errors"]
    );
    assert_eq!(done["init_state"], "COMPLETE");
    assert_eq!(done["initialized"], done["to_initialize"]);
    assert!(done["initialized"].as_u64().unwrap() > 1 << 20, "{done}");
    // A column of exact numbers has numbers in all its rows.
    let text = images.run("zpool", &["status", "-sp", "mine"]);
    let row = text.lines().find(|line| line.contains("mirror-0")).unwrap();
    assert!(row.ends_with("    0     0     0     0"), "{text}");
}

#[test]
fn a_scan_and_a_rebuild_have_their_figures() {
    let mut images = Images::made(&[], 1, &[]);
    images.run("zpool", &["scrub", "-w", "mine"]);
    let scan = status(&images, &["--json-int"])["scan_stats"].take();
    assert_eq!(
        keys(&scan),
        [
            "function",
            "state",
            "start_time",
            "end_time",
            "to_examine",
            "examined",
            "skipped",
            "processed",
            "errors",
            "bytes_per_scan",
            "pass_start",
            "scrub_pause",
            "scrub_spent_paused",
            "issued_bytes_per_scan",
            "issued"
        ]
    );
    assert_eq!((scan["function"].as_str(), scan["state"].as_str()), (Some("SCRUB"), Some("FINISHED")));
    let added = images.dir.join("x");
    fs::File::create(&added).unwrap().set_len(80 << 20).unwrap();
    images.run("zpool", &["attach", "-s", "-w", "mine", images.files[0].to_str().unwrap(), added.to_str().unwrap()]);
    images.note_files();
    let rebuild = status(&images, &["--json-int"])["scan_stats"]["rebuild_stats"]["mirror-0"].take();
    assert_eq!(
        keys(&rebuild),
        [
            "name",
            "vdev_type",
            "guid",
            "class",
            "state",
            "start_time",
            "end_time",
            "scan_time",
            "scanned",
            "issued",
            "rebuilt",
            "to_scan",
            "errors",
            "pass_time",
            "pass_scanned",
            "pass_issued",
            "pass_skipped"
        ]
    );
    assert_eq!((rebuild["state"].as_str(), rebuild["errors"].as_u64()), (Some("COMPLETE"), Some(0)));
}

#[test]
fn waiting_with_an_interval_shows_what_is_left() {
    let images = Images::made(&[], 1, &[]);
    assert_eq!(
        images.run("zpool", &["wait", "mine", "1"]),
        "  DISCARD    FREE  INITIALIZE  REPLACE  REMOVE  RESILVER   SCRUB    TRIM  RAIDZ_EXPAND\n        0       0           0        0       0         0       0       0             0\n"
    );
    assert_eq!(images.run("zpool", &["wait", "-H", "-p", "-t", "discard,scrub", "mine", "0.5"]), "0\t0\n");
    let timed = images.run("zpool", &["wait", "-H", "-T", "u", "-t", "free", "mine", "1"]);
    assert!(timed.lines().next().unwrap().parse::<u64>().is_ok() && timed.lines().nth(1) == Some("\t0"), "{timed}");
    let output = images.command("zpool", &["wait", "mine", "0"]).output().unwrap();
    assert!(said(&output).contains("invalid interval"), "{}", said(&output));
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&images, "mine");
    let text = images.run("zpool", &["wait", "-t", "scrub,resilver", "mine", "1"]);
    assert_eq!(text.lines().next(), Some("  RESILVER   SCRUB"));
    mounted.end(End::Unmount);
}

#[test]
fn scripts_add_columns_for_each_device() {
    let images = Images::made(&["mirror"], 2, &[]);
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("seen");
    fs::write(&script, "#!/bin/sh\necho base=$(basename $VDEV_PATH)\necho pool=$POOL_NAME\necho up=$VDEV_UPATH\n")
        .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.path().join("no-program"), "").unwrap();
    let with = |words: &[&str]| -> Command {
        let mut command = images.command("zpool", words);
        command.env("ZPOOL_SCRIPTS_PATH", folder.path()).env("ZPOOL_SCRIPTS_AS_ROOT", "1");
        command
    };
    let run = |words: &[&str]| String::from_utf8(good(&mut with(words))).unwrap();
    assert_eq!(run(&["status", "-c"]), "Available 'zpool status -c' commands:\n\tseen\n");
    let check = |is_served: bool| {
        let text = run(&["status", "-c", "seen,none", "mine"]);
        let heading = text.lines().find(|line| line.contains("CKSUM")).unwrap();
        assert!(heading.contains("CKSUM   base  pool  "), "{is_served}: {text}");
        for file in &images.files {
            let row = text.lines().find(|line| line.contains(file.to_str().unwrap())).unwrap();
            let end = format!("{}  mine  {}", file.file_name().unwrap().display(), file.display());
            assert!(row.ends_with(&end), "{is_served}: {text}");
        }
        let document: Value = serde_json::from_str(&run(&["status", "-j", "-c", "seen", "mine"])).unwrap();
        let leaf = &document["pools"]["mine"]["vdevs"]["mine"]["vdevs"]["mirror-0"]["vdevs"]
            [images.files[1].to_str().unwrap()];
        assert_eq!((leaf["base"].as_str(), leaf["pool"].as_str()), (Some("1.img"), Some("mine")), "{is_served}");
    };
    check(false);
    let disabled = with(&["status", "-c", "seen", "mine"]).env("ZPOOL_SCRIPTS_ENABLED", "0").output().unwrap();
    assert!(said(&disabled).contains("disabled by ZPOOL_SCRIPTS_ENABLED"), "{}", said(&disabled));
    if rustix::process::geteuid().is_root() {
        let refused = with(&["status", "-c", "seen", "mine"]).env_remove("ZPOOL_SCRIPTS_AS_ROOT").output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(said(&refused).contains("with root privileges unless ZPOOL_SCRIPTS_AS_ROOT"), "{}", said(&refused));
    }
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&images, "mine");
    check(true);
    let text = run(&["iostat", "-c", "seen", "mine"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].contains("write   base  pool") && lines[2].contains("-----  -----  ----"), "{text}");
    assert!(lines.iter().any(|line| line.contains("0.img") && line.contains("0.img  mine  ")), "{text}");
    mounted.end(End::Unmount);
}
