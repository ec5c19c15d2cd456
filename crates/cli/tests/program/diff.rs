//! `zfs diff` and `zfs userspace` against what OpenZFS printed of the same pools.

use crate::common;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Output;

use cenote_testkit::repository_root;
use common::{Pool, program, said};
use serde_json::Value;

/// The runs of a recorded text: arguments, and what was printed.
fn runs(file: &str) -> Vec<(Vec<String>, String)> {
    let text = fs::read_to_string(repository_root().join("testdata/diff").join(file)).unwrap();
    let found: Vec<_> = text
        .split("### zfs diff ")
        .filter(|part| !part.is_empty())
        .map(|part| {
            let (arguments, printed) = part.split_once('\n').unwrap();
            (arguments.split(' ').map(str::to_owned).collect(), printed.to_owned())
        })
        .collect();
    assert!(found.len() > 10, "{file}: {} runs", found.len());
    found
}

/// The pool of `testdata/diff`, in a folder of its own.
fn diff_pool() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let packed = File::open(repository_root().join("testdata/diff/pool.img.zst")).unwrap();
    zstd::stream::copy_decode(packed, File::create(dir.path().join("a.img")).unwrap()).unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}

/// Compares one run. Failures are alike where both fail for the same reason.
fn assert_same(what: &str, output: &Output, printed: &str) {
    if let Some((message, _)) = printed.split_once("exit ") {
        assert_eq!(output.status.code(), Some(1), "{what}");
        let is_order = message.contains("Not an earlier snapshot from the same fs");
        let reason = if is_order { "Not an earlier snapshot from the same fs" } else { "does not exist" };
        assert!(said(output).contains(reason), "{what}: {} but {reason}", said(output));
        return;
    }
    assert!(output.status.success(), "{what}: {}", said(output));
    let ours = String::from_utf8_lossy(&output.stdout);
    for (number, (ours, theirs)) in ours.lines().zip(printed.lines()).enumerate() {
        assert_eq!(ours, theirs, "{what}, line {}", number + 1);
    }
    assert_eq!(ours.lines().count(), printed.lines().count(), "{what}: number of lines");
}

#[test]
fn every_kind_of_change_is_shown_as_openzfs_shows_it() {
    let (_guard, dir) = diff_pool();
    for (arguments, printed) in runs("pool.txt") {
        let output = program().arg("-d").arg(&dir).args(["-f", "zfs", "diff"]).args(&arguments).output().unwrap();
        assert_same(&arguments.join(" "), &output, &printed);
    }
}

#[test]
fn differences_between_snapshots_clones_and_promoted_datasets_are_those_of_openzfs() {
    let pool = Pool::of("snapshots");
    for (arguments, printed) in runs("snapshots.txt") {
        // The pool was imported with an alternate root then.
        let printed = printed.replace("/mnt/x/", "/");
        let words: Vec<&str> = ["zfs", "diff"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let output = pool.command(&[], &words).output().unwrap();
        assert_same(&arguments.join(" "), &output, &printed);
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let pool = Pool::of("snapshots");
    let name = &pool.name;
    let volume =
        pool.command(&[], &["zfs", "diff", &format!("{name}/vol@v1"), &format!("{name}/vol@v2")]).output().unwrap();
    assert_eq!(volume.status.code(), Some(1), "{}", said(&volume));
    let no_snapshot = pool.command(&[], &["zfs", "diff", name]).output().unwrap();
    assert_eq!(no_snapshot.status.code(), Some(2), "{}", said(&no_snapshot));
}

#[test]
fn space_by_user_group_and_project_is_that_of_the_account() {
    let mut compared = 0;
    for theme in ["basic", "snapshots", "acl", "encryption_small", "mirror3"] {
        let pool = Pool::of(theme);
        let datasets = pool.section["datasets"].as_object().unwrap();
        for (dataset, account) in datasets {
            for verb in ["userspace", "groupspace", "projectspace"] {
                let Some(rows) = account.get(verb).and_then(Value::as_array) else { continue };
                let is_project = verb == "projectspace";
                // Some accounts were made with a call that printed no projects.
                if is_project && rows.is_empty() {
                    continue;
                }
                let fields = if is_project {
                    "name,used,quota,objused,objquota"
                } else {
                    "type,name,used,quota,objused,objquota"
                };
                let flags = if is_project { "-Hp" } else { "-Hpn" };
                let output = pool.command(&[], &["zfs", verb, flags, "-o", fields, dataset]).output().unwrap();
                assert!(output.status.success(), "{dataset} {verb}: {}", said(&output));
                let ours = String::from_utf8(output.stdout).unwrap();
                let want: Vec<String> = rows
                    .iter()
                    .map(|row| {
                        let cells = row.as_array().unwrap().iter().map(|cell| cell.as_str().unwrap().to_owned());
                        cells.collect::<Vec<_>>().join("\t")
                    })
                    .collect();
                let mut ours: Vec<&str> = ours.lines().collect();
                let mut want: Vec<&str> = want.iter().map(String::as_str).collect();
                ours.sort_unstable();
                want.sort_unstable();
                assert_eq!(ours, want, "{dataset} {verb}");
                compared += want.len();
            }
        }
    }
    assert!(compared > 10, "{compared} rows");
}

#[test]
fn fields_can_be_chosen_and_rows_sorted() {
    let pool = Pool::of("basic");
    let name = pool.name.as_str();
    let used = pool.text(&[], &["zfs", "userspace", "-Hpn", "-o", "used,name", "-S", "used", name]);
    let numbers: Vec<u64> = used.lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.len() > 1 && numbers.is_sorted_by(|a, b| a >= b), "{used}");
    let table = pool.text(&[], &["zfs", "groupspace", "-n", name]);
    let heading: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heading, ["TYPE", "NAME", "USED", "QUOTA", "OBJUSED", "OBJQUOTA"]);
    assert!(table.lines().nth(1).unwrap().starts_with("POSIX Group"), "{table}");
    assert!(table.lines().nth(1).unwrap().contains("none"), "{table}");
    let wrong = pool.command(&[], &["zfs", "projectspace", "-n", name]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
}
