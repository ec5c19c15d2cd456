//! Goal: each verb that changes a pool leaves its line in the pool's history, in one form whoever carries it out; one that changes nothing, or
//! fails, leaves none. Method: a table of commands and their lines, on a pool that nobody has and on one that a server has.

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::images::Images;
use common::said;

/// A command, its exit status, and its line in the history: the same words, other words, or none.
enum Line {
    Same,
    Words(&'static str),
    None,
}

use Line::{None as Nothing, Same, Words};

const VERBS: &[(&str, i32, Line)] = &[
    ("zfs create mine/a", 0, Same),
    (
        "zfs create -o compression=zstd-7 -p -o org.x:note=1 mine/a/b/c",
        0,
        Words("zfs create -p -o compression=zstd-7 -o org.x:note=1 mine/a/b/c"),
    ),
    ("zfs create -v -u mine/t", 0, Words("zfs create mine/t")),
    ("zfs create -nv mine/u", 0, Nothing),
    ("zfs create mine/a", 1, Nothing),
    ("zfs create -p mine/a", 0, Same),
    ("zfs create -s -V 4M -b 8K -o readonly=off mine/v", 0, Words("zfs create -s -b 8K -o readonly=off -V 4M mine/v")),
    ("zfs create -V 4M -o volblock=8K -s mine/w", 0, Words("zfs create -s -o volblock=8K -V 4M mine/w")),
    ("zfs snapshot mine/a@1 mine/v@1", 0, Same),
    ("zfs snap -o org.x:why=z -r mine/a@2", 0, Words("zfs snapshot -r -o org.x:why=z mine/a@2")),
    ("zfs snapshot mine/a@1", 1, Nothing),
    ("zfs clone mine/a@1 mine/c", 0, Same),
    (
        "zfs clone -u -o atime=off -p mine/a@2 mine/deep/er/d",
        0,
        Words("zfs clone -p -o atime=off mine/a@2 mine/deep/er/d"),
    ),
    ("zfs clone -p mine/a@1 mine/c", 0, Nothing),
    ("zfs bookmark mine/a@1 #b", 0, Same),
    ("zfs bookmark -r mine/a@2 mine/a#r", 0, Same),
    ("zfs hold keep mine/a@1 mine/a@2", 0, Same),
    ("zfs hold -r tree mine/a@2", 0, Same),
    ("zfs hold keep mine/a@1", 1, Nothing),
    ("zfs hold more mine/a@1 mine/a@9", 1, Same),
    ("zfs release more mine/a@1", 0, Same),
    ("zfs release -r tree mine/a@2", 0, Same),
    ("zfs release keep mine/a@1 mine/a@2", 0, Same),
    ("zfs set mine/a compression=lz4 quota=50M mine/c", 0, Same),
    ("zfs set volsize=6M mine/v", 0, Same),
    ("zfs set atime=perhaps mine/a", 1, Nothing),
    ("zfs inherit -r -S compression mine/a", 0, Same),
    ("zfs inherit quota mine/a", 1, Nothing),
    ("zfs rename -p mine/c mine/new/er/c", 0, Same),
    ("zfs rename -u -f mine/new/er/c mine/c", 0, Words("zfs rename -f -u mine/new/er/c mine/c")),
    ("zfs rename -r mine/a@2 @two", 0, Same),
    ("zfs rename mine/a@two mine/a@two", 0, Nothing),
    ("zfs rename mine/none mine/x", 1, Nothing),
    ("zfs promote mine/c", 0, Same),
    ("zfs promote mine/c", 1, Nothing),
    ("zfs snapshot mine/t@1", 0, Same),
    ("zfs snapshot mine/t@2", 0, Same),
    ("zfs rollback mine/t@1", 1, Nothing),
    ("zfs rollback -r -f mine/t@1", 0, Words("zfs rollback -r mine/t@1")),
    ("zfs snapshot mine/t@2", 0, Same),
    ("zfs clone mine/t@2 mine/tc", 0, Same),
    ("zfs rollback -r mine/t@1", 1, Nothing),
    ("zfs rollback -rR mine/t@1", 0, Words("zfs rollback -R mine/t@1")),
    ("zfs redact mine/t@1 book mine/t@1", 22, Nothing),
    ("zfs destroy -nv mine/t@1", 0, Nothing),
    ("zfs destroy mine/t", 1, Nothing),
    ("zfs destroy -v mine/t@1", 0, Words("zfs destroy mine/t@1")),
    ("zfs destroy mine/a#b", 1, Nothing),
    ("zfs destroy mine/a#r", 0, Same),
    ("zfs destroy -d mine/v@1", 0, Same),
    ("zfs destroy -f mine/t", 0, Words("zfs destroy mine/t")),
    ("zfs destroy -r mine/a", 1, Nothing),
    ("zfs destroy -R -r mine/a", 0, Words("zfs destroy -r -R mine/a")),
    ("zpool set comment=ours mine", 0, Same),
    ("zpool set feature@zstd_compress=enabled mine", 0, Same),
    ("zpool set size=1 mine", 1, Nothing),
];

/// Carries out all of them. The lines that should be in the history after them.
fn carried_out(images: &Images) -> Vec<&'static str> {
    let mut lines = Vec::new();
    for (command, status, line) in VERBS {
        let words: Vec<&str> = command.split(' ').collect();
        let output = images.command(words[0], &words[1..]).output().unwrap();
        assert_eq!(output.status.code(), Some(*status), "{command}: {}", said(&output));
        lines.extend(match line {
            Same => Some(*command),
            Words(line) => Some(*line),
            Nothing => None,
        });
    }
    lines
}

fn assert_recorded(images: &Images, lines: &[&str]) {
    let history = images.run("zpool", &["history", "mine"]);
    let found: Vec<&str> = history.lines().skip(2).filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    assert_eq!(found, lines);
    images.assert_whole();
}

#[test]
fn each_verb_has_its_line_in_the_history_and_what_changes_nothing_has_none() {
    let images = Images::made(&["mirror"], 2, &[]);
    assert_recorded(&images, &carried_out(&images));
}

#[test]
fn a_server_records_the_same_lines_as_a_command_alone() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-s", "-V", "8M", "mine/served"]);
    let socket = images.cache.path().join("nbd.sock");
    let mut command = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "mine"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !socket.exists() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lines = [vec!["zfs create -s -V 8M mine/served"], carried_out(&images)].concat();
    images.run("zpool", &["export", "mine"]);
    assert!(child.wait().unwrap().success());
    assert_recorded(&images, &lines);
}
