//! Goal: forms of OpenZFS's commands that scripts rarely use do what they do there, and say the same. Method: the program on pools of its own;
//! what is refused changes nothing.

use crate::common;

use std::fs::File;
use std::path::PathBuf;

use common::images::Images;
use common::{good, said};

fn bytes_of(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Refusals, each with its status and a part of its words.
fn refuses(images: &Images, cases: &[(&[&str], i32, &str)]) {
    for (line, status, why) in cases {
        let before = bytes_of(&images.files);
        let output = images.command("zfs", line).output().unwrap();
        assert_eq!(output.status.code(), Some(*status), "{line:?}: {}", said(&output));
        assert!(said(&output).contains(why), "{line:?}: {}", said(&output));
        assert!(bytes_of(&images.files) == before, "{line:?} changed something");
    }
}

fn names(images: &Images) -> Vec<String> {
    images.run("zfs", &["list", "-H", "-o", "name"]).lines().map(str::to_owned).collect()
}

/// Sends a snapshot into a new dataset.
fn replicate(images: &Images, send: &[&str], receive: &[&str]) {
    let stream = good(&mut images.command("zfs", send));
    let file = images.cache.path().join("stream");
    std::fs::write(&file, stream).unwrap();
    good(images.command("zfs", receive).stdin(File::open(&file).unwrap()));
}

#[test]
fn a_rename_makes_what_is_missing_above() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-p", "mine/a/b/c"]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    refuses(
        &images,
        &[
            (&["rename", "-p", "mine/a", "mine/a/new/d"], 1, "cannot be a descendant of current dataset name"),
            (&["rename", "-p", "mine/a", "other/new/d"], 1, "datasets must be within same pool"),
            (&["rename", "-p", "mine/a@1", "mine/z@1"], 1, "snapshot delimiter '@' is not expected here"),
            (&["rename", "-p", "mine/nothing", "mine/new/d"], 1, "does not exist"),
            (&["rename", "-p", "mine/a", "mine/new/d%"], 1, "invalid character '%' in name"),
            (&["rename", "-r", "-p", "mine/a@1", "mine/z"], 2, "-p and -r options are mutually exclusive"),
            (&["rename", "-u", "-p", "mine/a", "mine/z"], 2, "-u and -p options are mutually exclusive"),
            (&["rename", "mine/a/b", "mine/x/y/b"], 1, "parent does not exist"),
        ],
    );
    images.run("zfs", &["rename", "-p", "mine/a/b", "mine/x/y/b"]);
    assert_eq!(names(&images), ["mine", "mine/a", "mine/x", "mine/x/y", "mine/x/y/b", "mine/x/y/b/c"]);
    images.run("zfs", &["rename", "-p", "mine/x/y/b", "mine/x/b"]);
    let history = images.run("zpool", &["history", "mine"]);
    assert!(history.contains("zfs rename -p mine/a/b mine/x/y/b"), "{history}");
    images.assert_whole();
}

#[test]
fn what_would_be_made_is_told_and_not_made() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let before = bytes_of(&images.files);
    for (line, told) in [
        (&["create", "-n", "mine/b"][..], String::new()),
        (&["create", "-nv", "mine/b"], "would create mine/b\n".to_owned()),
        // As there, nobody looks whether it could be made.
        (&["create", "-nP", "mine/nothing/b"], "create\tmine/nothing/b\n".to_owned()),
        (
            &["create", "-nv", "-p", "-o", "exec=off", "mine/p/q"],
            "would create ancestors of mine/p/q\nwould create mine/p/q\n\texec=off\n".to_owned(),
        ),
        (&["create", "-nvp", "mine/a"], String::new()),
        (
            &["create", "-nvP", "-s", "-V", "1000000", "-b", "8k", "mine/v"],
            "create\tmine/v\nproperty\tvolblocksize\t8192\nproperty\tvolsize\t1007616\n".to_owned(),
        ),
    ] {
        assert_eq!(images.run("zfs", line), told, "{line:?}");
    }
    assert!(bytes_of(&images.files) == before, "something was made");
    refuses(
        &images,
        &[
            (&["create", "-n", "-o", "exec=maybe", "mine/b"], 1, "cannot verify 'mine/b': 'exec' must be one of"),
            (&["create", "-n", "mine/b@c"], 1, "cannot verify 'mine/b@c': "),
            (&["create", "-nv", "-s", "mine/b"], 2, "'-s' and '-b' can only be used when creating a volume"),
        ],
    );
    let would = images.run("zfs", &["create", "-nP", "-V", "1M", "mine/v"]);
    let (head, reserved) = would.trim_end().rsplit_once('\t').unwrap();
    assert_eq!(head, "create\tmine/v\nproperty\tvolsize\t1048576\nproperty\trefreservation");
    assert_eq!(images.run("zfs", &["create", "-P", "-V", "1M", "mine/v"]), would);
    assert_eq!(images.run("zfs", &["get", "-Hp", "-o", "value", "refreservation", "mine/v"]).trim(), reserved);
    assert_eq!(
        images.run("zfs", &["create", "-v", "-p", "mine/p/q"]),
        "create ancestors of mine/p/q\ncreate mine/p/q\n"
    );
    assert_eq!(names(&images), ["mine", "mine/a", "mine/p", "mine/p/q", "mine/v"]);
    images.assert_whole();
}

#[test]
fn received_values_come_back() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-o", "recordsize=16k", "-o", "quota=30M", "-o", "a:b=sent", "mine/s"]);
    images.run("zfs", &["set", "refreservation=5M", "mine/s"]);
    images.run("zfs", &["snapshot", "mine/s@1"]);
    replicate(&images, &["send", "-p", "mine/s@1"], &["receive", "mine/r"]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/r/v"]);
    for (property, local, received, none) in [
        ("recordsize", "64K", "16K", Some("128K\tdefault")),
        ("a:b", "here", "sent", Some("-\t-")),
        ("quota", "50M", "30M", None),
        ("refreservation", "2M", "5M", None),
    ] {
        let received = format!("{received}\treceived");
        assert_eq!(images.get(property, "mine/r"), received);
        images.run("zfs", &["set", &format!("{property}={local}"), "mine/r"]);
        assert_eq!(images.get(property, "mine/r"), format!("{local}\tlocal"));
        images.run("zfs", &["inherit", "-S", property, "mine/r"]);
        assert_eq!(images.get(property, "mine/r"), received);
        let Some(none) = none else { continue };
        images.run("zfs", &["inherit", property, "mine/r"]);
        assert_eq!(images.get(property, "mine/r"), none);
        images.run("zfs", &["inherit", "-S", property, "mine/r"]);
        assert_eq!(images.get(property, "mine/r"), received);
        // Nothing was received there, and a volume has no records.
        images.run("zfs", &["inherit", "-S", "-r", property, "mine"]);
        assert_eq!(images.get(property, "mine/r"), received);
    }
    assert!(names(&images).contains(&"mine/r/v".to_owned()));
    refuses(
        &images,
        &[
            (&["inherit", "quota", "mine/r"], 1, "'quota' property cannot be inherited\nuse 'zfs set quota=none'"),
            (&["inherit", "quota", "mine/r"], 1, "use 'zfs inherit -S quota' to revert to received value"),
            (&["inherit", "-S", "volsize", "mine/r"], 1, "'volsize' property cannot be reverted to a received value"),
            (&["inherit", "used", "mine/r"], 1, "used property is read-only"),
            (&["inherit", "nothing", "mine/r"], 2, "invalid property 'nothing'"),
            (
                &["inherit", "recordsize", "mine/r/v"],
                1,
                "cannot inherit recordsize for 'mine/r/v': property doesn't apply to datasets of this type",
            ),
        ],
    );
    let history = images.run("zpool", &["history", "-i", "mine"]);
    assert!(history.contains("zfs inherit -S quota mine/r") && history.contains("inherit mine/r ("), "{history}");
    images.assert_whole();
}

/// A property that is left out with -x is as if it had never been set, also where it has accounts. As in OpenZFS one that is not inherited
/// does not come at all, so that there is nothing to go back to.
#[test]
fn a_reservation_that_is_left_out_is_none() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "mine/s"]);
    images.run("zfs", &["set", "refreservation=5M", "mine/s"]);
    images.run("zfs", &["snapshot", "mine/s@1"]);
    replicate(&images, &["send", "-p", "mine/s@1"], &["receive", "-x", "refreservation", "mine/r"]);
    assert_eq!(images.get("refreservation", "mine/r"), "none\tdefault");
    assert_eq!(images.get("usedbyrefreservation", "mine/r").split('\t').next(), Some("0B"));
    images.run("zfs", &["inherit", "-S", "refreservation", "mine/r"]);
    assert_eq!(images.get("refreservation", "mine/r"), "none\tdefault");
    images.assert_whole();
}

#[test]
fn a_property_is_set_in_several_pools() {
    let images = Images::made(&["mirror"], 2, &[]);
    let mut create = images.bare();
    create.args(["zpool", "create", "--size", "80M", "other"]).arg(images.dir.join("other.img"));
    good(&mut create);
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["set", "compression=off", "mine", "other", "mine/a"]);
    for name in ["mine", "mine/a", "other"] {
        assert_eq!(images.get("compression", name), "off\tlocal", "{name}");
    }
    let output = images.command("zfs", &["inherit", "compression", "mine/nothing", "other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("mine/nothing"), "{}", said(&output));
    assert_eq!(images.get("compression", "mine"), "off\tlocal");
    assert_eq!(images.get("compression", "other"), "on\tdefault");
}

#[test]
fn a_title_changes_no_stream() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "mine/s"]);
    images.run("zfs", &["snapshot", "mine/s@1"]);
    let plain = good(&mut images.command("zfs", &["send", "mine/s@1"]));
    assert_eq!(good(&mut images.command("zfs", &["send", "-V", "mine/s@1"])), plain);
    assert_eq!(good(&mut images.command("zfs", &["send", "--proctitle", "-R", "mine/s@1"])).get(..4), plain.get(..4));
}

#[test]
fn what_is_in_no_pool_is_no_dataset() {
    let images = Images::made(&["mirror"], 2, &[]);
    refuses(
        &images,
        &[
            (&["snapshot", "no/x@a"], 1, "cannot open 'no/x': dataset does not exist"),
            (&["destroy", "no/x"], 1, "cannot open 'no/x': dataset does not exist"),
            (&["send", "no/x@a"], 1, "cannot open 'no/x': dataset does not exist"),
            (&["rename", "no/x", "no/y"], 1, "cannot open 'no/x': dataset does not exist"),
            (&["list", "no/x"], 1, "cannot open 'no/x': dataset does not exist"),
            (&["create", "no/x"], 1, "cannot create 'no/x': no such pool 'no'"),
        ],
    );
}
