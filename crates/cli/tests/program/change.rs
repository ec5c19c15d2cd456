//! Goal: commands that change a pool that exists leave it whole, with what was asked for and nothing else changed; where
//! OpenZFS's `zdb` is installed it agrees. Method: pools made here and pools of OpenZFS, changed by the program, looked at by
//! the program and by `zdb`.

use crate::common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::images::Images;
use common::{good, said, theme};

fn bytes_of(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|file: &PathBuf| std::fs::read::<&Path>(file).unwrap()).collect()
}

#[test]
fn properties_are_set_inherited_and_noted() {
    let images = Images::made(&["raidz1"], 3, &[]);
    images.run("zfs", &["create", "-p", "-o", "compression=zstd-7", "mine/a/b"]);
    assert_eq!(images.get("compression", "mine/a/b"), "zstd-7\tlocal");
    images.run("zfs", &["set", "recordsize=1M", "org.example:note=a b", "mine", "mine/a"]);
    assert_eq!(images.get("recordsize", "mine/a/b"), "1M\tinherited from mine/a");
    assert_eq!(images.get("org.example:note", "mine"), "a b\tlocal");
    images.run("zfs", &["inherit", "recordsize", "mine/a"]);
    assert_eq!(images.get("recordsize", "mine/a/b"), "1M\tinherited from mine");
    images.run("zfs", &["inherit", "-r", "recordsize", "mine"]);
    assert_eq!(images.get("recordsize", "mine/a/b"), "128K\tdefault");
    images.run("zfs", &["set", "quota=30M", "mine/a"]);
    assert_eq!(images.get("quota", "mine/a"), "30M\tlocal");
    images.run("zpool", &["set", "comment=ours", "mine"]);
    images.run("zpool", &["set", "autotrim=on", "mine"]);
    let got = images.run("zpool", &["get", "-H", "-o", "value,source", "comment,autotrim", "mine"]);
    assert_eq!(got, "ours\tlocal\non\tlocal\n");
    let history = images.run("zpool", &["history", "-i", "mine"]);
    for part in ["zfs create -p -o compression=zstd-7 mine/a/b", "zpool set comment=ours mine", "recordsize=1048576"] {
        assert!(history.contains(part), "{part}: {history}");
    }
    assert!(!history.contains("unrecognized"), "{history}");
    let event = history.lines().find(|line| line.ends_with("recordsize=1048576")).unwrap();
    assert!(event.contains("] set mine ("), "as OpenZFS shows what it noted itself: {event}");
    images.assert_whole();
    for (tool, line, why) in [
        ("zfs", vec!["set", "dedup=on", "mine"], "not supported yet"),
        ("zfs", vec!["set", "used=5", "mine"], "readonly"),
        ("zfs", vec!["set", "atime=on", "atime=off", "mine"], "property 'atime' specified multiple times"),
        ("zfs", vec!["create", "-o", "exec=on", "-o", "exec=on", "mine/x"], "property 'exec' specified multiple times"),
        ("zfs", vec!["inherit", "org.example:note", "mine@s"], "cannot open 'mine@s': dataset does not exist"),
        ("zfs", vec!["set", "atime=perhaps", "mine"], "'atime' must be one of 'on | off'"),
        ("zfs", vec!["set", "mountpoint=relative", "mine"], "must be an absolute path"),
        ("zfs", vec!["set", "quota=1K", "mine"], "size is less than current used or reserved space"),
        ("zfs", vec!["set", "volsize=1M", "mine"], "does not apply to datasets of this type"),
        ("zfs", vec!["create", "-p", "mine/new/a@b"], "snapshot delimiter '@' is not expected here"),
        ("zfs", vec!["create", "mine/a#b"], "bookmark delimiter '#' is not expected here"),
        ("zfs", vec!["create", "mine/p%q"], "invalid character '%' in name"),
        ("zfs", vec!["create", "mine/d$e"], "invalid character '$' in name"),
        ("zfs", vec!["create", "-V", "16M", "mine/v%"], "invalid character '%' in name"),
        ("zfs", vec!["rename", "mine/a", "mine/a%"], "invalid character '%' in name"),
        ("zfs", vec!["create", "-o", "encryption=on", "mine/x"], "not supported yet"),
        ("zfs", vec!["set", "atime=off", "mine/nothing"], "does not exist"),
        ("zfs", vec!["create", "mine/a"], "already exists"),
        ("zfs", vec!["create", "mine/x/y"], "parent does not exist"),
        ("zpool", vec!["set", "size=1", "mine"], "readonly"),
    ] {
        let before = bytes_of(&images.files);
        let said = images.refused(tool, &line);
        assert!(said.contains(why), "{line:?}: {said}");
        assert!(bytes_of(&images.files) == before, "{line:?} changed something");
    }
}

/// The uberblocks that are written say so as OpenZFS's do, and another host watches the pool before it writes to it.
#[test]
fn multihost_is_set_kept_and_obeyed() {
    let images = Images::made(&["mirror"], 2, &[]);
    let of_host = |id: &str, tool: &str, rest: &[&str]| {
        let mut command = images.bare();
        command.env("ZFS_HOSTID", id).args(["--tunable", "zfs_multihost_interval=100", tool, "-d"]).arg(&images.dir);
        command.args(rest);
        command
    };
    let output = of_host("0", "zpool", &["set", "multihost=on", "mine"]).output().unwrap();
    assert!(
        said(&output).contains("cannot set property for 'mine': requires a non-zero system hostid"),
        "{}",
        said(&output)
    );
    good(&mut of_host("0x1234", "zpool", &["set", "multihost=on", "mine"]));
    assert_eq!(images.run("zpool", &["get", "-H", "-o", "value,source", "multihost", "mine"]), "on\tlocal\n");
    if let Some(mut zdb) = cenote_testkit::zdb::command() {
        let told = good(zdb.arg("-lu").arg(&images.files[0]));
        let told = String::from_utf8(told).unwrap();
        for line in ["mmp_magic = 00000000a11cea11", "mmp_seq = 0", "mmp_fail = 10", "mmp_write = 100", "mmp_valid = 7"]
        {
            assert!(told.contains(line), "{line}: {told}");
        }
    }
    let output = of_host("0", "zfs", &["create", "mine/a"]).output().unwrap();
    assert!(said(&output).contains("system's hostid is not set"), "{}", said(&output));
    // The host that had it goes on at once, another one watches for the time of ten intervals, twice.
    let is_silent =
        |mut command: Command| command.output().is_ok_and(|done| done.status.success() && done.stderr.is_empty());
    assert!(is_silent(of_host("0x1234", "zfs", &["create", "mine/a"])));
    let output = of_host("0x5678", "zfs", &["create", "mine/b"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("pool 'mine' may be active on"), "{}", said(&output));
    good(&mut of_host("0x5678", "zpool", &["set", "multihost=off", "mine"]));
    assert!(is_silent(of_host("0", "zfs", &["create", "mine/c"])));
    images.assert_whole();
}

#[test]
fn file_systems_come_and_go_and_a_pool_goes() {
    let images = Images::made(&["mirror"], 2, &[]);
    let used = images.run("zfs", &["get", "-H", "-p", "-o", "value", "used", "mine"]);
    images.run("zfs", &["create", "-p", "mine/a/b/c"]);
    images.run("zfs", &["create", "mine/d"]);
    let list = images.run("zfs", &["list", "-H", "-o", "name", "-r", "mine"]);
    assert_eq!(list, "mine\nmine/a\nmine/a/b\nmine/a/b/c\nmine/d\n");
    images.assert_whole();
    assert!(images.refused("zfs", &["destroy", "mine/a"]).contains("has children"));
    assert!(images.refused("zfs", &["destroy", "-nv", "mine/a"]).contains("has children"));
    assert!(images.run("zfs", &["destroy", "-rnv", "mine/a"]).ends_with("would destroy mine/a\n"));
    assert!(images.refused("zfs", &["destroy", "mine"]).contains("does not apply to pools"));
    // One byte, which a micro ZAP cannot hold.
    images.run("zfs", &["set", "a:b=", "mine/a"]);
    assert_eq!(images.run("zfs", &["get", "-Ho", "value,source", "a:b", "mine/a"]), "\tlocal\n");
    images.run("zfs", &["destroy", "-r", "mine/a"]);
    images.run("zfs", &["destroy", "mine/d"]);
    assert_eq!(images.run("zfs", &["list", "-H", "-o", "name", "-r", "mine"]), "mine\n");
    images.assert_whole();
    let after = images.run("zfs", &["get", "-H", "-p", "-o", "value", "used", "mine"]);
    let [used, after] = [used, after].map(|text| text.trim().parse::<u64>().unwrap());
    assert!(after < used + (64 << 10), "{used} before, {after} after");

    let file = images.files[0].to_str().unwrap().to_owned();
    assert!(images.refused("zpool", &["labelclear", &file]).contains("active pool 'mine'"));
    images.run("zpool", &["destroy", "mine"]);
    assert!(images.refused("zfs", &["list", "mine"]).contains("destroyed"));
    assert!(images.run("zpool", &["import", "-D"]).contains("mine"));
    // Something else has the place of the first two labels by now.
    let image = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    image.write_all_at(&[0xc3; 512 << 10], 0).unwrap();
    images.run("zpool", &["labelclear", &file]);
    let mut bytes = vec![0; 512 << 10];
    image.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xc3), "what is no label is not touched");
    let end = image.metadata().unwrap().len() / (256 << 10) * (256 << 10);
    image.read_exact_at(&mut bytes, end - (512 << 10)).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "labels are");
    assert!(images.refused("zpool", &["labelclear", &file]).contains("no label"));
}

#[test]
fn pools_of_openzfs_are_changed() {
    for name in ["basic", "log_spacemap", "raidz1", "snapshots"] {
        let images = Images::of_theme(name);
        let pool = images.pool.clone();
        let child = format!("{pool}/newchild");
        images.run("zfs", &["create", "-o", "compression=gzip-3", &child]);
        images.run("zfs", &["set", "atime=off", &pool]);
        images.run("zpool", &["set", "comment=changed", &pool]);
        assert_eq!(images.get("compression", &child), "gzip-3\tlocal");
        images.assert_whole();
        images.run("zfs", &["create", &format!("{child}/below")]);
        images.run("zfs", &["destroy", "-r", &child]);
        images.assert_whole();
        let theme = theme(name);
        let manifest = theme.manifest().unwrap();
        for (dataset, account) in manifest.contents().datasets.iter().filter(|(_, it)| it.error.is_none()) {
            if account.entries.is_empty() || dataset.contains('@') {
                continue;
            }
            let mut list = images.bare();
            list.args(["ls", "-R", "-d"]).arg(&images.dir).args(["-f", dataset, "/"]);
            good(&mut list);
        }
    }
}

#[test]
fn missing_devices_are_respected() {
    let images = Images::made(&["mirror"], 2, &[]);
    let away = images.cache.path().join("away.img");
    std::fs::rename(&images.files[1], &away).unwrap();
    images.run("zfs", &["create", "mine/meanwhile"]);
    std::fs::rename(&away, &images.files[1]).unwrap();
    assert_eq!(images.run("zfs", &["list", "-H", "-o", "name", "mine/meanwhile"]), "mine/meanwhile\n");
    let status = images.run("zpool", &["status", "mine"]);
    assert!(status.contains("mine"), "{status}");
    images.run("zfs", &["destroy", "mine/meanwhile"]);
    // Only the device that was never away is needed.
    std::fs::rename(&images.files[1], &away).unwrap();
    images.run("zfs", &["list", "mine"]);
}

/// A folder with what files can be, made from a seed.
fn folder(at: &Path) {
    std::fs::create_dir_all(at.join("sub/deeper")).unwrap();
    std::fs::write(at.join("one"), b"one").unwrap();
    std::fs::write(at.join("sub/large"), vec![7_u8; 700_000]).unwrap();
    let noise: Vec<u8> = (0..300_000_u32).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(at.join("sub/deeper/noise"), noise).unwrap();
    std::fs::hard_link(at.join("one"), at.join("sub/again")).unwrap();
    std::os::unix::fs::symlink("sub/large", at.join("link")).unwrap();
}

fn same_trees(images: &Images, filesystem: &str, path: &str, source: &Path) {
    let out = tempfile::tempdir().unwrap();
    let copy = out.path().join("copy");
    let mut cp = images.bare();
    cp.args(["cp", "-a", "-d"]).arg(&images.dir).args(["-f", filesystem, path]).arg(&copy);
    good(&mut cp);
    // A directory that is not the root is copied as such.
    let copied = path.rsplit('/').next().filter(|last| !last.is_empty()).map_or(copy.clone(), |last| copy.join(last));
    good(Command::new("diff").args(["-r", "--no-dereference"]).arg(source).arg(&copied));
}

fn put(images: &Images, rest: &[&str]) -> Command {
    let mut command = images.bare();
    command.args(["put", "-d"]).arg(&images.dir).arg("-f").args(rest);
    command
}

#[test]
fn files_are_put_into_file_systems_that_exist_all_or_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let source = temp.path().join("source");
    folder(&source);
    let source_text = source.to_str().unwrap().to_owned();

    let images = Images::made(&["raidz1"], 3, &[]);
    images.run("zfs", &["create", "-o", "recordsize=16K", "mine/a"]);
    good(&mut put(&images, &["mine/a", &source_text]));
    same_trees(&images, "mine/a", "/", &source);
    images.assert_whole();
    // A second time the files are there, and nothing changes.
    let before = bytes_of(&images.files);
    let output = put(&images, &["mine/a", &source_text]).output().unwrap();
    assert!(said(&output).contains("exists already"), "{}", said(&output));
    assert!(bytes_of(&images.files) == before);
    good(&mut put(&images, &["mine/a", &source_text, "/sub/deeper"]));
    same_trees(&images, "mine/a", "/sub/deeper/sub/deeper", &source.join("sub/deeper"));
    good(&mut put(&images, &["mine", &source_text]));
    same_trees(&images, "mine", "/", &source);
    images.assert_whole();

    for name in ["basic", "raidz1", "snapshots", "xattrs"] {
        let images = Images::of_theme(name);
        let owners = |what| images.run("zfs", &[what, "-H", "-p", "-n", "-o", "name,used,objused", &images.pool]);
        let before = owners("userspace");
        good(&mut put(&images, &[&images.pool, &source_text]));
        let after = owners("userspace");
        same_trees(&images, &images.pool, "/sub", &source.join("sub"));
        assert_ne!(before, after, "{name}: nobody's account has changed");
        images.assert_whole();
    }
}

#[test]
fn what_is_renamed_moves_with_all_that_it_uses() {
    let images = Images::made(&["mirror"], 2, &[]);
    let source = images.cache.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), vec![7; 300_000]).unwrap();
    images.run("zfs", &["create", "-p", "mine/a/below"]);
    images.run("zfs", &["create", "-o", "compression=off", "mine/a/below/it"]);
    images.run("zfs", &["create", "-p", "mine/b/c"]);
    let mut put = images.command("put", &["mine/a/below/it"]);
    good(put.arg(&source));
    let used =
        |name: &str| -> u64 { images.run("zfs", &["get", "-Hp", "-o", "value", "used", name]).trim().parse().unwrap() };
    let (all, moved, target, rest) = (used("mine"), used("mine/a/below"), used("mine/b"), used("mine/a"));
    images.run("zfs", &["rename", "mine/a/below", "mine/b/c/new"]);
    assert_eq!(used("mine/b/c/new"), moved);
    assert_eq!((used("mine/b"), used("mine/a")), (target + moved, rest - moved));
    assert!(used("mine").abs_diff(all) < 64 << 10, "the pool uses what it used, but for its own tables");
    let list = images.run("zfs", &["list", "-H", "-o", "name", "-r", "mine"]);
    assert_eq!(list, "mine\nmine/a\nmine/b\nmine/b/c\nmine/b/c/new\nmine/b/c/new/it\n");
    assert!(images.run("cat", &["mine/b/c/new/it", "/file"]).len() == 300_000);
    images.assert_whole();
    images.run("zfs", &["rename", "mine/b/c/new", "mine/b/c/newer"]);
    assert!(images.run("zpool", &["history", "-i", "mine"]).contains("-> mine/b/c/newer"));
    images.run("zfs", &["set", "quota=1M", "mine/a"]);
    for (from, to, reason) in [
        ("mine/b", "mine/b/c/d", "cannot be a descendant"),
        ("mine/b", "mine/a", "already exists"),
        ("mine/b", "mine/no/such", "parent does not exist"),
        ("mine", "other", "root dataset"),
        ("mine/b", "other/b", "same pool"),
        ("mine/b", "mine/b@c", "stays a snapshot"),
        ("mine/no", "mine/such", "does not exist"),
    ] {
        let before = bytes_of(&images.files);
        let said = images.refused("zfs", &["rename", from, to]);
        assert!(said.contains(reason), "{from} to {to}: {said}");
        assert!(bytes_of(&images.files) == before, "{from} to {to} changed something");
    }
    images.assert_whole();
}

#[test]
fn a_snapshot_gets_another_name() {
    let images = Images::of_theme("snapshots");
    let list = |images: &Images| images.run("zfs", &["list", "-H", "-t", "snapshot", "-o", "name"]);
    let before = list(&images);
    let head = |name: &str| name.split('@').next().unwrap().to_owned();
    let names: Vec<&str> = before.lines().collect();
    let pair = names.windows(2).find(|pair| head(pair[0]) == head(pair[1])).unwrap();
    let (first, second) = (pair[0], pair[1]);
    images.run("zfs", &["rename", first, "@renamed"]);
    let renamed = format!("{}@renamed", head(first));
    assert_eq!(list(&images).lines().filter(|name| *name == renamed).count(), 1);
    assert!(!list(&images).lines().any(|name| name == first));
    assert!(images.refused("zfs", &["rename", &renamed, second]).contains("already exists"));
    images.assert_whole();
}
