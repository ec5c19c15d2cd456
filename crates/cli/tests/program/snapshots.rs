//! Goal: the verbs of snapshots take OpenZFS's grammar, say its words, and leave a pool as they found it where they refuse.

use crate::common;

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
    let long = "t".repeat(256);
    let too_long = format!("a:b={}", "v".repeat(8192));
    for (words, expected) in [
        (&["snapshot", "mine/a@1"][..], "cannot create snapshot 'mine/a@1': dataset already exists"),
        (&["snapshot", "mine/a@1"], "\nno snapshots were created\n"),
        (
            &["snapshot", "mine/a@2", "mine/a@3"],
            "cannot create snapshots : multiple snapshots of same fs not allowed\nno snapshots were created\n",
        ),
        (&["snapshot", "mine/a@."], "cannot create snapshots : self reference, '.' is found in name\n"),
        (&["snapshot", "mine/a@.."], "cannot create snapshots : parent reference, '..' is found in name\n"),
        (&["rename", "mine/a@1", "mine/a@.."], "parent reference, '..' is found in name"),
        (&["snapshot", "-o", "compression=off", "mine/a@2"], "this property can not be modified for snapshots"),
        (&["snapshot", "-o", "A:b=off", "mine/a@2"], "this property can not be modified for snapshots"),
        (&["snapshot", "-o", &too_long, "mine/a@2"], "property value too long"),
        (&["snapshot", "-o", "a:b=1", "-o", "a:b=2", "mine/a@2"], "property 'a:b' specified multiple times"),
        (&["set", &too_long, "mine/a"], "property value too long"),
        (&["create", "-o", &too_long, "mine/b"], "property value too long"),
        (&["clone", "-o", &too_long, "mine/a@1", "mine/c"], "property value too long"),
        (&["rollback", "mine/a@nosuch"], "dataset does not exist"),
        (&["rollback", "mine/a"], "cannot open 'mine/a': missing '@' delimiter in snapshot name"),
        (&["promote", "mine/a"], "not a cloned filesystem"),
        (&["promote", "mine/a@1"], "cannot promote 'mine/a@1': snapshots can not be promoted"),
        (&["clone", "mine/a", "mine/c"], "cannot open 'mine/a': missing '@' delimiter in snapshot name"),
        (&["clone", "mine/a@1", "mine/c@1"], "cannot create 'mine/c@1': snapshot delimiter '@' is not expected here\n"),
        (&["destroy", "mine/a@nosuch"], "could not find any snapshots to destroy; check snapshot names."),
        (&["hold", &long, "mine/a@1"], "cannot hold snapshot 'mine/a@1': tag too long"),
        (&["hold", "t", "mine/a@no"], "cannot hold snapshot 'mine/a@no': dataset does not exist"),
        (&["hold", "t", "mine/no@1"], "cannot open 'mine/no': dataset does not exist"),
        (&["release", "t", "mine/a@no"], "cannot release hold from snapshot 'mine/a@no': dataset does not exist"),
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
    let held = "cannot destroy snapshot mine/a@1: it's being held. Run 'zfs holds -r mine/a@1' to see holders.";
    assert!(refused.contains(held), "{refused}");
    let usage = images.command("zfs", &["snapshot", "mine/x@1"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2), "{}", said(&usage));
    assert!(said(&usage).contains("cannot open 'mine/x': dataset does not exist"), "{}", said(&usage));
    let usage = images.command("zfs", &["snapshot", "mine/a"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2), "{}", said(&usage));
    let token = images.command("zfs", &["send", "-t", "nothing"]).output().unwrap();
    assert_eq!(token.status.code(), Some(255), "{}", said(&token));
    let empty = images.command("zfs", &["send", "-R", "-X", "mine/a", "mine/a@1"]).output().unwrap();
    assert!(empty.status.success() && !empty.stdout.is_empty() && empty.stderr.is_empty(), "{}", said(&empty));
    images.run("zfs", &["destroy", "-d", "mine/a@1"]);
    images.run("zfs", &["release", &long[1..], "mine/a@1"]);
    assert_eq!(names(&images), ["mine/a"], "it goes with its last hold");
    images.assert_whole();
}

#[test]
fn holds_come_and_go_one_by_one() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/a/b"]);
    // One that is named twice is taken once.
    images.run("zfs", &["snapshot", "-r", "mine/a@1", "mine/a/b@1"]);
    let holds = || images.run("zfs", &["holds", "-rH", "mine/a@1"]).lines().count();
    let refused = images.refused("zfs", &["hold", "t", "mine/a@1", "mine/a@1", "mine/a", "mine/a@no", "mine/a/b@1"]);
    for expected in [
        "cannot hold snapshot 'mine/a@1': tag already exists on this dataset\n",
        "'mine/a' is not a snapshot\n",
        "cannot hold snapshot 'mine/a@no': dataset does not exist\n",
    ] {
        assert_eq!(refused.matches(expected).count(), 1, "{refused}");
    }
    assert_eq!(holds(), 2);
    let refused = images.refused("zfs", &["release", "-r", "t", "mine/a@1", "mine/a/b@1"]);
    assert!(
        refused.contains("cannot release hold from snapshot 'mine/a/b@1': no such tag on this dataset\n"),
        "{refused}"
    );
    assert_eq!(holds(), 0);
    // Below one without the snapshot those that have it are held.
    images.run("zfs", &["snapshot", "mine/a/b@2"]);
    images.run("zfs", &["hold", "-r", "t", "mine/a@2"]);
    images.run("zfs", &["release", "-r", "t", "mine/a@2"]);
    images.assert_whole();
}

#[test]
fn deferred_origins_go_with_their_clones_and_nothing_is_said_unasked() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    for (clone, words) in [("mine/c", &["destroy", "-R", "mine/a@1"][..]), ("mine/d", &["destroy", "-R", "mine/a"])] {
        images.run("zfs", &["snapshot", "mine/a@1"]);
        images.run("zfs", &["clone", "mine/a@1", clone]);
        assert_eq!(images.run("zfs", &["destroy", "-Rn", "mine/a"]), "");
        images.run("zfs", &["destroy", "-d", "mine/a@1"]);
        images.run("zfs", words);
    }
    assert!(names(&images).is_empty(), "{:?}", names(&images));
    images.assert_whole();
}

#[test]
fn clones_take_sizes_and_a_target_that_is_there_is_left_alone() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-s", "-V", "8M", "mine/v"]);
    images.run("zfs", &["snapshot", "mine/v@1"]);
    images.run("zfs", &["clone", "-o", "volsize=16M", "mine/v@1", "mine/w"]);
    assert_eq!(images.run("zfs", &["get", "-Hp", "-o", "value", "volsize", "mine/w"]).trim(), (16 << 20).to_string());
    assert_eq!(images.run("zfs", &["get", "-Hp", "-o", "value", "volsize", "mine/v"]).trim(), (8 << 20).to_string());
    images.run("zfs", &["create", "-V", "8M", "mine/usual"]);
    images.run("zfs", &["clone", "-o", "refreservation=auto", "mine/v@1", "mine/r"]);
    let reserved = |name: &str| images.run("zfs", &["get", "-Hp", "-o", "value", "refreservation", name]);
    assert_eq!(reserved("mine/r"), reserved("mine/usual"));
    images.run("zfs", &["clone", "-p", "mine/v@1", "mine/r"]);
    for (option, expected) in [("volsize=1000", "must be a multiple of volume block size"), ("volsize=0", "zero")] {
        let refused = images.refused("zfs", &["clone", "-o", option, "mine/v@1", "mine/x"]);
        assert!(refused.contains(expected), "{refused}");
    }
    let refused = images.refused("zfs", &["destroy", "-r", "mine/v"]);
    assert!(refused.contains("volume has dependent clones"), "{refused}");
    // A name that is on both sides.
    images.run("zfs", &["snapshot", "mine/w@1"]);
    let refused = images.refused("zfs", &["promote", "mine/w"]);
    assert!(refused.contains("conflicting snapshot '1' from parent 'mine/v@1'"), "{refused}");
    images.assert_whole();
}

#[test]
fn a_rollback_takes_features_back_that_came_after_the_snapshot() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-o", "compression=off", "mine/a"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    images.run("zfs", &["set", "recordsize=1M", "mine/a"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("large"), vec![1; 3 << 20]).unwrap();
    images.run("put", &["mine/a", folder.path().to_str().unwrap()]);
    let state = || images.run("zpool", &["get", "-H", "-o", "value", "feature@large_blocks", "mine"]);
    assert_eq!(state(), "active\n");
    images.run("zfs", &["rollback", "mine/a@1"]);
    assert_eq!(state(), "enabled\n");
    images.assert_whole();
}

#[test]
fn a_rollback_takes_clones_of_newer_snapshots_along() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    for name in ["mine/a@1", "mine/a@2"] {
        images.run("zfs", &["snapshot", name]);
    }
    images.run("zfs", &["clone", "mine/a@1", "mine/stays"]);
    images.run("zfs", &["clone", "mine/a@2", "mine/goes"]);
    images.run("zfs", &["create", "mine/goes/below"]);
    images.run("zfs", &["snapshot", "mine/goes@x"]);
    images.run("zfs", &["clone", "mine/goes@x", "mine/goes-too"]);
    let refused = images.refused("zfs", &["rollback", "-r", "mine/a@1"]);
    assert!(refused.contains("mine/goes"), "{refused}");
    // A dataset that would go with the clone that it is below.
    images.run("zfs", &["rename", "mine/a", "mine/goes/a"]);
    let refused = images.refused("zfs", &["rollback", "-R", "mine/goes/a@1"]);
    assert!(refused.contains("it is below 'mine/goes'"), "{refused}");
    images.run("zfs", &["rename", "mine/goes/a", "mine/a"]);
    images.run("zfs", &["rollback", "-R", "mine/a@1"]);
    let names = images.run("zfs", &["list", "-H", "-o", "name", "-t", "all"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["mine", "mine/a", "mine/a@1", "mine/stays"]);
    images.assert_whole();
}
