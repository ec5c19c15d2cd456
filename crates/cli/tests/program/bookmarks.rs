//! Goal: bookmarks and renames of snapshots take OpenZFS's grammar, say its words, and leave a pool as they found it where they refuse.

use crate::common;

use common::images::Images;
use common::said;

fn feature(images: &Images, name: &str) -> String {
    images.run("zpool", &["get", "-H", "-o", "value", &format!("feature@{name}"), "mine"]).trim().to_owned()
}

fn names(images: &Images, kind: &str) -> Vec<String> {
    let listed = images.run("zfs", &["list", "-H", "-t", kind, "-o", "name", "-s", "name", "-r", "mine"]);
    listed.lines().map(str::to_owned).collect()
}

fn get(images: &Images, property: &str, of: &str) -> String {
    images.run("zfs", &["get", "-Hp", "-o", "value", property, of]).trim().to_owned()
}

#[test]
fn bookmarks_are_made_copied_listed_and_destroyed() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/a/b"]);
    images.run("zfs", &["create", "mine/a/c"]);
    assert_eq!([feature(&images, "bookmarks"), feature(&images, "bookmark_written")], ["enabled", "enabled"]);
    images.run("zfs", &["snapshot", "mine/a@1", "mine/a/b@1"]);
    images.run("zfs", &["bookmark", "mine/a@1", "#one"]);
    images.run("zfs", &["bookmark", "#one", "mine/a#copy"]);
    images.run("zfs", &["bookmark", "-r", "mine/a@1", "#all"]);
    assert_eq!(names(&images, "bookmark"), ["mine/a#all", "mine/a#copy", "mine/a#one", "mine/a/b#all"]);
    for feature_name in ["bookmarks", "bookmark_v2", "bookmark_written"] {
        assert_eq!(feature(&images, feature_name), "active", "{feature_name}");
    }
    for property in ["guid", "createtxg", "creation", "referenced", "logicalreferenced"] {
        assert_eq!(get(&images, property, "mine/a#copy"), get(&images, property, "mine/a@1"), "{property}");
    }
    images.run("zfs", &["destroy", "mine/a@1"]);
    assert_eq!(get(&images, "written#one", "mine/a"), "0");
    // A clone may have bookmarks of the time before it was one.
    images.run("zfs", &["clone", "mine/a/b@1", "mine/d"]);
    images.run("zfs", &["bookmark", "mine/a/b@1", "mine/d#origin"]);
    images.run("zfs", &["promote", "mine/d"]);
    assert_eq!(names(&images, "bookmark")[3..], ["mine/d#all", "mine/d#origin"]);
    images.assert_whole();
    images.run("zfs", &["destroy", "mine/a#one"]);
    images.run("zfs", &["destroy", "-R", "mine/d"]);
    images.run("zfs", &["destroy", "-r", "mine/a"]);
    for feature_name in ["bookmarks", "bookmark_v2", "bookmark_written"] {
        assert_eq!(feature(&images, feature_name), "enabled", "{feature_name}");
    }
    images.assert_whole();
}

#[test]
fn a_bookmark_that_cannot_be_is_refused_in_openzfs_words() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/b"]);
    images.run("zfs", &["snapshot", "-r", "mine@1"]);
    images.run("zfs", &["bookmark", "mine/a@1", "mine/a#one"]);
    for (words, expected) in [
        (&["bookmark", "mine/a@1", "mine/a#one"][..], "cannot create bookmark 'mine/a#one': bookmark exists"),
        (
            &["bookmark", "mine/a@1", "mine/b#x"],
            "cannot create bookmark 'mine/b#x': source is not an ancestor of the new bookmark's dataset",
        ),
        (
            &["bookmark", "mine/a#one", "mine/b#x"],
            "cannot create bookmark 'mine/b#x': source is not an ancestor of the new bookmark's dataset",
        ),
        (&["bookmark", "mine/a@1", "mine/x#x"], "cannot create bookmark 'mine/x#x': dataset does not exist"),
        (&["bookmark", "mine/a@1", "other/a#x"], "cannot create bookmark 'other/a#x': bookmark is in a different pool"),
        (&["bookmark", "mine/a@1", "#x%"], "cannot create bookmark 'mine/a#x%': invalid argument"),
        (&["bookmark", "-r", "mine@1", "#one"], "cannot create bookmark 'mine/a#one': bookmark exists"),
        (&["destroy", "mine/a#nosuch"], "bookmark 'mine/a#nosuch' does not exist."),
        (&["destroy", "-n", "mine/a#one"], "dryrun is not supported with bookmark"),
        (&["destroy", "-d", "mine/a#one"], "defer destroy is not supported with bookmark"),
        (&["destroy", "-r", "mine/a#one"], "recursive is not supported with bookmark"),
    ] {
        let refused = images.refused("zfs", words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    for (words, expected) in [
        (&["bookmark", "mine/a", "mine/a#x"][..], "invalid source name 'mine/a': must contain a '@' or '#'"),
        (&["bookmark", "mine/a@1", "mine/a"], "invalid bookmark name 'mine/a': must contain a '#'"),
        (&["bookmark", "@1", "#x"], "either source or bookmark must be specified as full dataset paths"),
        (&["bookmark", "mine/a@2", "#x"], "cannot open 'mine/a@2': dataset does not exist"),
        (&["bookmark", "mine/a#2", "#x"], "cannot open 'mine/a#2': dataset does not exist"),
        (
            &["bookmark", "-r", "mine/a#one", "#x"],
            "recursive bookmarks (-r) can only be created from a snapshot source",
        ),
    ] {
        let usage = images.command("zfs", words).output().unwrap();
        assert!(usage.status.code() == Some(2) && said(&usage).contains(expected), "{words:?}: {}", said(&usage));
    }
    // A bookmark that is newer stands in the way of a rollback.
    images.run("zfs", &["snapshot", "mine/a@2"]);
    images.run("zfs", &["bookmark", "mine/a@2", "#two"]);
    images.run("zfs", &["destroy", "mine/a@2"]);
    let refused = images.refused("zfs", &["rollback", "mine/a@1"]);
    assert!(
        refused.contains("more recent snapshots or bookmarks exist") && refused.contains("\nmine/a#two"),
        "{refused}"
    );
    images.run("zfs", &["rollback", "-r", "mine/a@1"]);
    assert_eq!(names(&images, "bookmark"), ["mine/a#one"]);
    images.assert_whole();
}

#[test]
fn snapshots_get_other_names_one_by_one_and_all_below() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "mine/a/b"]);
    images.run("zfs", &["snapshot", "-r", "mine/a@1"]);
    images.run("zfs", &["snapshot", "mine/a/b@2"]);
    let long = "n".repeat(250);
    for (words, expected) in [
        (&["rename", "mine/a/b@1", "@2"][..], "cannot rename 'mine/a/b@1': dataset already exists"),
        (
            &["rename", "-r", "mine/a@1", "@2"],
            "cannot rename 'mine/a@1': a child dataset already has a snapshot with the new name",
        ),
        (
            &["rename", "mine/a@1", "mine/a/b@x"],
            "cannot rename to 'mine/a/b@x': snapshots must be part of same dataset",
        ),
        (&["rename", "mine/a@1", "@x/y"], "cannot rename to '@x/y': "),
        (&["rename", "mine/a@1", &long], "name is too long"),
        (&["rename", "mine/a@9", "@x"], "dataset does not exist"),
        (&["rename", "-u", "mine/a@1", "@x"], "snapshot delimiter '@' is not expected here"),
    ] {
        let refused = images.refused("zfs", words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    let usage = images.command("zfs", &["rename", "-r", "mine/a", "mine/c"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2), "{}", said(&usage));
    images.run("zfs", &["rename", "mine/a@1", "mine/a@1"]);
    images.run("zfs", &["rename", "-r", "mine/a@1", "one"]);
    assert_eq!(names(&images, "snapshot"), ["mine/a/b@2", "mine/a/b@one", "mine/a@one"]);
    images.run("zfs", &["rename", "mine/a/b@one", "@again"]);
    images.run("zfs", &["rename", "mine/a/b@2", "mine/a/b@TWO"]);
    assert_eq!(names(&images, "snapshot"), ["mine/a/b@TWO", "mine/a/b@again", "mine/a@one"]);
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for event in ["rename mine/a@1 (", "-> @one", "rename mine/a/b@1 ("] {
        assert!(history.contains(event), "{event}: {history}");
    }
    images.assert_whole();
}
