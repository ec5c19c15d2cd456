//! Goal: what OpenZFS logged and could not write to a txg any more is there after this program has opened the pool to be changed: the
//! same files, bytes and accounts as after OpenZFS's own replay. Method: the golden pool `zil`, whose manifest has both, through a
//! mount and a volume's export; `verify` and `zdb` judge each state in between.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cenote_testkit::compare::{Options, compare};
use serde_json::Value;

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::Serving;
use common::{good, theme};

/// The pool's account of itself.
fn manifest(images: &Images) -> Value {
    let mut command = images.bare();
    command.args(["manifest", "-d"]).arg(&images.dir).arg("-f").arg(&images.pool);
    serde_json::from_slice(&good(&mut command)).unwrap()
}

fn section(name: &str) -> Value {
    let manifest = theme("zil").manifest_json().unwrap();
    let mut sections = manifest["sections"].as_array().unwrap().iter();
    sections.find(|section| section["section"] == name).unwrap().clone()
}

/// Compares some datasets; times are those of the replay.
fn assert_same(images: &Images, want: &Value, datasets: &[&str]) {
    let ignore = ["mtime", "ctime"].map(str::to_owned);
    let datasets = datasets.iter().map(|name| format!("{}/{name}", images.pool)).collect();
    let options = Options { ignore: BTreeSet::from(ignore), subset: true, datasets };
    let report = compare(want, &manifest(images), &options);
    assert!(report.is_match(), "{report}: {:#?}", report.differences);
}

/// A dataset's entries with their times of modification, in seconds.
fn modified(account: &Value, dataset: &str) -> BTreeMap<String, f64> {
    let entries = account["datasets"][dataset]["entries"].as_array().unwrap().iter();
    let time = |entry: &Value| entry["mtime"].as_str().unwrap().parse().unwrap();
    entries.map(|entry| (entry["path"].to_string(), time(entry))).collect()
}

/// Entries older than the replay have the times that clients gave them, or had before.
fn assert_times(images: &Images, before: &Value, after: &Value, dataset: &str) {
    let name = format!("{}/{dataset}", images.pool);
    let newest = modified(before, &name)["\".\""];
    let got = modified(&manifest(images), &name);
    let older: Vec<_> = modified(after, &name).into_iter().filter(|(_, time)| *time <= newest).collect();
    assert!(!older.is_empty(), "some files were left as they were");
    for (path, time) in older {
        assert_eq!(got.get(&path), Some(&time), "{path}");
    }
}

/// Whether a dataset's log is claimed, and waits to be replayed.
fn is_waiting(images: &Images, dataset: &str) -> bool {
    let mut command = images.bare();
    command.args(["inspect", "zil", "-a", "--json", "-d"]).arg(&images.dir).arg(format!("{}/{dataset}", images.pool));
    let shown: Value = serde_json::from_slice(&good(&mut command)).unwrap();
    shown["logs"][0]["replay_needed"].as_bool().unwrap()
}

#[test]
fn logs_of_openzfs_are_claimed_with_the_pool_and_replayed_with_their_datasets() {
    if !can_mount() {
        return;
    }
    let images = Images::of_theme("zil");
    let (before, after) = (section("contents"), section("after_replay"));
    // Reading replays nothing.
    assert_same(&images, &before, &["fs", "indirect", "vol"]);
    // A change of the pool claims all logs, that of the encrypted dataset too, whose key is not there.
    images.run("zpool", &["set", "comment=claimed", &images.pool]);
    images.assert_whole();
    assert_same(&images, &before, &["fs", "indirect", "vol"]);
    for dataset in ["fs", "indirect", "vol", "enc"] {
        assert!(is_waiting(&images, dataset), "{dataset}");
    }
    for dataset in ["fs", "indirect"] {
        let name = format!("{}/{dataset}", images.pool);
        Mounted::new(&images, &name).end(End::Unmount);
        images.assert_whole();
        assert!(!is_waiting(&images, dataset), "{dataset}");
    }
    let socket = images.cache.path().join("socket");
    let name = format!("{}/vol", images.pool);
    let serving = Serving::start(&images.dir, &name, &socket, &["--rw"]).unwrap();
    read_something(&socket, &name);
    serving.end().unwrap();
    images.assert_whole();
    assert_same(&images, &after, &["fs", "indirect", "vol"]);
    assert_times(&images, &before, &after, "fs");
    assert!(is_waiting(&images, "enc"), "its key is not there");
}

/// Opens a volume as a client does.
fn read_something(socket: &Path, export: &str) {
    let uri = format!("nbd+unix:///{}?socket={}", export.replace('/', "%2F"), socket.display());
    let Ok(told) = std::process::Command::new("nbdinfo").arg("--size").arg(&uri).output() else {
        panic!("nbdinfo (package libnbd-bin) is needed");
    };
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    std::thread::sleep(Duration::from_millis(10));
}

/// The blocks of a log go with its dataset.
#[test]
fn a_dataset_is_destroyed_with_its_log() {
    let images = Images::of_theme("zil");
    for dataset in ["fs", "indirect", "vol"] {
        images.run("zfs", &["destroy", &format!("{}/{dataset}", images.pool)]);
        images.assert_whole();
    }
}
