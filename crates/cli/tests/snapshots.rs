//! Goal: the verbs of snapshots take OpenZFS's grammar, say its words, and leave a pool as they found it where they refuse.

mod common;

use common::images::Images;
use common::said;

/// The names of all datasets of the pool, without the pool's own.
fn names(images: &Images) -> Vec<String> {
    let listed = images.run("zfs", &["list", "-H", "-t", "all", "-o", "name", "-s", "name", "-r", "mine"]);
    listed.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn lists_and_ranges_of_snapshots_are_destroyed_and_what_depends_on_them_is_named() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/a/b"]);
    for number in 1..=6 {
        images.run("zfs", &["snapshot", "-r", &format!("mine/a@{number}")]);
    }
    assert_eq!(names(&images).len(), 2 + 12);
    let would = images.run("zfs", &["destroy", "-nv", "mine/a@2%4,6,nosuch"]);
    let expected = ["2", "3", "4", "6"].map(|name| format!("would destroy mine/a@{name}\n")).concat();
    assert_eq!(would, format!("{expected}would reclaim 0B\n"));
    let would = images.run("zfs", &["destroy", "-npv", "mine/a@5%"]);
    assert_eq!(would, "destroy\tmine/a@5\ndestroy\tmine/a@6\nreclaim\t0\n");
    images.run("zfs", &["destroy", "-r", "mine/a@%2,5"]);
    assert_eq!(names(&images).len(), 2 + 6);
    images.run("zfs", &["clone", "mine/a@3", "mine/c"]);
    let refused = images.refused("zfs", &["destroy", "mine/a@3%4"]);
    assert!(refused.contains("snapshot has dependent clones") && refused.contains("\nmine/c\n"), "{refused}");
    let refused = images.refused("zfs", &["destroy", "-r", "mine/a"]);
    assert!(refused.contains("filesystem has dependent clones") && refused.contains("\nmine/c\n"), "{refused}");
    let refused = images.refused("zfs", &["destroy", "mine/a"]);
    assert!(refused.contains("filesystem has children") && refused.contains("\nmine/a@3\n"), "{refused}");
    // All of them are as they were.
    assert_eq!(names(&images).len(), 3 + 6);
    images.run("zfs", &["promote", "mine/c"]);
    assert!(names(&images).contains(&"mine/c@3".to_owned()));
    images.run("zfs", &["destroy", "-R", "mine/c"]);
    assert!(names(&images).is_empty(), "the origin of the clone was a clone of what went: {:?}", names(&images));
    images.assert_whole();
}

#[test]
fn a_refused_verb_leaves_the_pool_exported() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    let long = "t".repeat(239);
    for (words, expected) in [
        (&["snapshot", "mine/a@1"][..], "cannot create snapshot 'mine/a@1': dataset already exists"),
        (&["snapshot", "mine/x@1"], "cannot create snapshot 'mine/x@1': dataset does not exist"),
        (&["snapshot", "mine/a@2", "mine/a@3"], "multiple snapshots of same fs not allowed"),
        (&["snapshot", "-o", "compression=off", "mine/a@2"], "does not apply to datasets of this type"),
        (&["rollback", "mine/a@nosuch"], "dataset does not exist"),
        (&["promote", "mine/a"], "not a cloned filesystem"),
        (&["clone", "mine/a", "mine/c"], "'mine/a' is no snapshot"),
        (&["destroy", "mine/a@nosuch"], "could not find any snapshots to destroy; check snapshot names."),
        (&["hold", &long, "mine/a@1"], "tag too long"),
        (&["release", "t", "mine/a@1"], "no such tag on this dataset"),
    ] {
        let refused = images.refused("zfs", words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
        // A pool that was not exported is opened with a note.
        let next = images.command("zfs", &["hold", "kept", "mine/a@1"]).output().unwrap();
        assert!(next.status.success() && next.stderr.is_empty(), "after {words:?}: {}", said(&next));
        images.run("zfs", &["release", "kept", "mine/a@1"]);
    }
    let usage = images.command("zfs", &["hold", ".t", "mine/a@1"]).output().unwrap();
    assert!(usage.status.code() == Some(2) && said(&usage).contains("tag may not start with '.'"), "{}", said(&usage));
    images.run("zfs", &["hold", &long[1..], "mine/a@1"]);
    let refused = images.refused("zfs", &["destroy", "mine/a@1"]);
    assert!(refused.contains("cannot destroy snapshot mine/a@1: dataset is busy"), "{refused}");
    images.run("zfs", &["destroy", "-d", "mine/a@1"]);
    images.run("zfs", &["release", &long[1..], "mine/a@1"]);
    assert_eq!(names(&images), ["mine/a"], "it goes with its last hold");
    images.assert_whole();
}
