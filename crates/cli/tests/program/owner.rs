//! Goal: a pool, and a device, has one owner. Method: servers that are killed, pools that others left, devices that the kernel uses,
//! and the program asked to write them. Tests that need loop devices say so where there are none.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::images::Images;
use common::loops::Loop;
use common::serving::Serving;
use common::{good, said};

fn bytes_of(files: &[PathBuf]) -> Vec<Vec<u8>> {
    files.iter().map(|file: &PathBuf| std::fs::read::<&Path>(file).unwrap()).collect()
}

/// `zfs set` on the pool in a folder, without -f, with the notes of a server of [`Serving`].
fn set(images: &Images, dir: &Path, force: &[&str]) -> Output {
    let mut command = images.bare();
    command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    command.args(["zfs", "-d"]).arg(dir).args(force).args(["set", "org.example:a=b", "mine"]).output().unwrap()
}

/// A server that has written a txg, which says that the pool is in use.
fn serving(images: &Images) -> Serving {
    let socket = images.dir.parent().unwrap().join("nbd.sock");
    let _ = std::fs::remove_file(&socket);
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    let mut sync = images.bare();
    sync.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    good(sync.args(["zpool", "-d"]).arg(&images.dir).args(["sync", "mine"]));
    serving
}

#[test]
fn a_killed_server_s_pool_is_opened_again_without_force() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    serving(&images).kill().unwrap();
    let output = set(&images, &images.dir, &[]);
    assert!(output.status.success(), "{}", said(&output));
    // Exported now, and nothing to say.
    let output = set(&images, &images.dir, &[]);
    assert!(output.status.success() && !said(&output).contains("exported"), "{}", said(&output));
    let notes = images.dir.parent().unwrap().join("serving/owners");
    assert_eq!(std::fs::read_dir(notes).unwrap().count(), 0, "an exported pool has no note");
    images.assert_whole();
}

#[test]
fn a_pool_in_use_whose_owner_is_not_known_to_be_gone_is_not_written_without_force() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    serving(&images).kill().unwrap();
    std::fs::remove_dir_all(images.dir.parent().unwrap().join("serving/owners")).unwrap();
    let before = bytes_of(&images.files);
    let output = set(&images, &images.dir, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for part in ["cannot open 'mine' for writing", "was not exported", "'-f'"] {
        assert!(said(&output).contains(part), "{}", said(&output));
    }
    assert!(bytes_of(&images.files) == before, "it was written");
    // Looking is no harm.
    let mut list = images.bare();
    good(list.args(["zfs", "-d"]).arg(&images.dir).args(["list", "mine"]));
    let output = set(&images, &images.dir, &["-f"]);
    assert!(output.status.success(), "{}", said(&output));
    images.assert_whole();
}

/// A copy of a served image says that it is the server's, which lives.
#[test]
fn a_copy_of_a_pool_in_use_is_not_written_without_force() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let serving = serving(&images);
    let copies = tempfile::tempdir().unwrap();
    std::fs::copy(&images.files[0], copies.path().join("copy.img")).unwrap();
    let mut command = images.bare();
    command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
    // Its server would be asked otherwise.
    std::fs::remove_dir_all(images.dir.parent().unwrap().join("serving/servers")).unwrap();
    command.args(["zfs", "-d"]).arg(copies.path()).args(["set", "org.example:a=b", "mine"]);
    let output = command.output().unwrap();
    assert!(said(&output).contains("may still be in use"), "{}", said(&output));
    serving.kill().unwrap();
}

#[test]
fn of_equal_copies_the_one_that_the_label_names_is_written_and_where_it_names_none_neither() {
    let images = Images::made(&[], 1, &[]);
    // Its name comes first.
    let copy = images.dir.join("0-copy");
    std::fs::copy(&images.files[0], &copy).unwrap();
    let before = bytes_of(std::slice::from_ref(&copy));
    let mut command = images.bare();
    command.current_dir(images.dir.parent().unwrap());
    let output = command.args(["zfs", "-d", "images", "set", "org.example:a=b", "mine"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(bytes_of(std::slice::from_ref(&copy)) == before, "the copy was written");
    std::fs::remove_file(copy).unwrap();
    assert_eq!(images.get("org.example:a", "mine"), "b\tlocal");

    let elsewhere = tempfile::tempdir().unwrap();
    let copies = ["x.img", "y.img"].map(|name| elsewhere.path().join(name));
    for copy in &copies {
        std::fs::copy(&images.files[0], copy).unwrap();
    }
    let before = bytes_of(&copies);
    let output = set(&images, elsewhere.path(), &[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("equal copies of one device"), "{}", said(&output));
    assert!(bytes_of(&copies) == before, "a copy was written");
    let output = set(&images, &copies[1], &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(bytes_of(&copies[..1]) == before[..1], "the other copy was written");
}

#[test]
fn a_pool_that_openzfs_left_open_needs_force_whatever_the_host_ids_are() {
    let images = Images::of_theme("log_spacemap");
    let before = bytes_of(&images.files);
    let mut command = images.bare();
    let output = command.args(["zpool", "-d"]).arg(&images.dir).args(["set", "comment=x", &images.pool]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("in use"), "{}", said(&output));
    assert!(bytes_of(&images.files) == before, "it was written");
}

#[test]
fn a_pool_that_a_server_has_is_not_opened_through_its_image_s_loop_device() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let Some(device) = Loop::over(&images.files[0], None) else { return };
    let socket = images.dir.parent().unwrap().join("nbd.sock");
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    let mut command = images.bare();
    command.args(["zfs", "-d", device.name(), "-f", "set", "org.example:a=b", "mine"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("in use by another process"), "{}", said(&output));
    serving.end().unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

fn installed(program: &str, words: &[&str]) -> bool {
    let is_done = Command::new(program).args(words).output().is_ok_and(|output| output.status.success());
    if !is_done {
        assert!(std::env::var_os("CI").is_none(), "{program} {words:?}");
        eprintln!("left out: {program} {words:?} cannot be had here");
    }
    is_done
}

/// `zpool create` with words of a vdev.
fn create(images: &Images, words: &[&str]) -> Output {
    images.bare().args(["zpool", "create"]).args(words).output().unwrap()
}

#[test]
fn a_mounted_device_is_not_made_part_of_a_pool_whatever_the_force() {
    let images = Images::none();
    let image = images.dir.join("image");
    std::fs::File::create(&image).unwrap().set_len(80 << 20).unwrap();
    if !installed("mkfs.ext4", &["-q", image.to_str().unwrap()]) {
        return;
    }
    let Some(device) = Loop::over(&image, None) else { return };
    let at = images.dir.join("mounted");
    std::fs::create_dir(&at).unwrap();
    if !installed("mount", &[device.name(), at.to_str().unwrap()]) {
        return;
    }
    std::fs::write(at.join("file"), "kept").unwrap();
    let outputs: Vec<Output> = [device.name(), image.to_str().unwrap()]
        .into_iter()
        .flat_map(|path| [create(&images, &["mine", path]), create(&images, &["-f", "mine", path])])
        .collect();
    let clear = images.bare().args(["zpool", "labelclear", "-f", device.name()]).output().unwrap();
    let is_kept = std::fs::read_to_string(at.join("file")).is_ok_and(|text| text == "kept");
    assert!(installed("umount", &[at.to_str().unwrap()]));
    assert!(is_kept);
    for output in outputs.iter().chain([&clear]) {
        assert_eq!(output.status.code(), Some(1), "{}", said(output));
        assert!(said(output).contains("is mounted at '"), "{}", said(output));
        assert!(said(output).contains(at.to_str().unwrap()), "{}", said(output));
    }
    // Not mounted any more, it is still a file system.
    let output = create(&images, &["mine", device.name()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let text =
        format!("use '-f' to override the following errors:\n{} contains a filesystem of type 'ext4'", device.name());
    assert!(said(&output).contains(&text), "{}", said(&output));
    let output = create(&images, &["-f", "mine", device.name()]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn what_lies_on_a_device_or_file_is_named_and_needs_force() {
    let images = Images::none();
    let image = images.dir.join("image");
    let path = image.to_str().unwrap();
    let parts: [(usize, &[u8], &str); 5] = [
        (4086, b"SWAPSPACE2", "contains swap space"),
        (0, b"XFSB", "contains a filesystem of type 'xfs'"),
        (0, b"LUKS\xba\xbe\0\x02", "contains an encrypted volume (LUKS2)"),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0], "is a member of another device (md 1.2)"),
        (0, b"QFI\xfb\0\0\0\x03", "is an image in the format qcow2"),
    ];
    for (offset, bytes, what) in parts {
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(80 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, offset as u64).unwrap();
        drop(file);
        let before = bytes_of(std::slice::from_ref(&image));
        let output = create(&images, &["mine", path]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(&format!("following errors:\n{path} {what}")), "{}", said(&output));
        assert!(bytes_of(std::slice::from_ref(&image)) == before, "it was written");
    }
    assert!(create(&images, &["-f", "mine", path]).status.success());
    // A pool that exists, in OpenZFS's words.
    let output = create(&images, &["other", path]);
    assert!(said(&output).contains(&format!("{path} is part of active pool 'mine'")), "{}", said(&output));
}

#[test]
fn two_names_of_one_device_make_no_mirror() {
    let images = Images::none();
    let (image, link) = (images.dir.join("image"), images.dir.join("link"));
    std::fs::File::create(&image).unwrap().set_len(80 << 20).unwrap();
    std::fs::hard_link(&image, &link).unwrap();
    let refused = |other: &str| {
        let output = create(&images, &["-f", "mine", "mirror", image.to_str().unwrap(), other]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("is the same device as"), "{}", said(&output));
    };
    refused(link.to_str().unwrap());
    let Some(device) = Loop::over(&image, None) else { return };
    refused(device.name());
}

#[test]
fn a_file_that_holds_something_else_than_a_raw_image_is_named_as_what_it_is() {
    let images = Images::none();
    let file = images.dir.join("disk.qcow2");
    let mut bytes = vec![0; 1 << 20];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    std::fs::write(&file, &bytes).unwrap();
    let ask = |words: &[&str]| images.bare().args(words).output().unwrap();
    let name = file.to_str().unwrap();
    for words in [&["ls", "-d", name, "mine"][..], &["zpool", "-d", name, "import"]] {
        let output = ask(words);
        for part in [&format!("'{name}' is an image in the format qcow2"), "qemu-img convert -O raw"] {
            assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
        }
    }
    let output = ask(&["inspect", "labels", name]);
    assert!(said(&output).contains("qemu-img convert -O raw"), "{}", said(&output));
    std::fs::write(&file, b"\x28\xb5\x2f\xfd, packed").unwrap();
    let output = ask(&["ls", "-d", name, "mine"]);
    assert!(said(&output).contains("unpack it with 'zstd -d"), "{}", said(&output));
    let output = ask(&["inspect", "labels", "/nosuch/file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot open '/nosuch/file': no such file"), "{}", said(&output));
}

#[test]
fn a_device_that_may_not_be_opened_is_told_as_such() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let images = Images::made(&[], 1, &[]);
    let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    for folder in [images.dir.parent().unwrap(), &images.dir] {
        mode(folder, 0o755);
    }
    mode(&images.files[0], 0o600);
    let (dir, file) = (images.dir.to_str().unwrap(), images.files[0].to_str().unwrap());
    let ask = |words: &[&str]| {
        let mut command = images.bare();
        command.args(words);
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.output()
    };
    if !ask(&["--help"]).is_ok_and(|output| output.status.success()) {
        eprintln!("left out: the program cannot be started as another user here");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        mode(&images.files[0], 0);
    }
    for words in [&["ls", "-d", file, "mine"][..], &["zpool", "-d", file, "import"]] {
        let output = ask(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(&format!("cannot open '{file}': permission denied")), "{}", said(&output));
    }
    for words in [
        &["ls", "-d", dir, "mine"][..],
        &["zpool", "-d", dir, "import"],
        &["zpool", "-d", dir, "list"],
        &["zpool", "-d", dir, "status"],
        &["zfs", "-d", dir, "list"],
        &["zfs", "-d", dir, "get", "all"],
    ] {
        let output = ask(words).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", said(&output));
        assert!(said(&output).contains("1 device could not be opened: permission denied"), "{}", said(&output));
    }
}

#[test]
fn of_two_pools_of_a_name_the_second_is_not_imported() {
    let (one, two) = (Images::made(&[], 1, &[]), Images::made(&[], 1, &[]));
    let mut import = one.bare();
    import.args(["zpool", "-d"]).arg(&one.dir).arg("-d").arg(&two.dir).args(["import", "-a"]);
    let output = import.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("cannot import 'mine': a pool with that name already exists"), "{}", said(&output));
}

/// A folder with image files and a cache file, and the program in it.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(80 << 20).unwrap();
        path
    }

    /// A line of words; those that begin with `@` are files here.
    fn output(&self, line: &str) -> Output {
        let mut command = common::program();
        command.env("CENOTE_CACHE", self.path("cache/pools.json"));
        for word in line.split(' ') {
            match word.strip_prefix('@') {
                Some(name) => command.arg(self.path(name)),
                None => command.arg(word),
            };
        }
        command.output().unwrap()
    }

    fn run(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, line: &str) -> String {
        let output = self.output(line);
        assert_eq!(output.status.code(), Some(1), "{line}: {}", said(&output));
        said(&output)
    }
}

/// The labels at both ends of a file.
fn labels(path: &str) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::open(path).unwrap();
    let (bytes, mut ends) = (512 << 10, vec![0; 1 << 20]);
    let (head, tail) = ends.split_at_mut(bytes);
    file.read_exact_at(head, 0).unwrap();
    file.read_exact_at(tail, file.metadata().unwrap().len() - bytes as u64).unwrap();
    ends
}

/// Whether a verb takes a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    Yes,
    WithForce,
    Never,
}

/// States of a device `@x`, each with the commands that lead to it, and whether `create`, `add` and `labelclear` take it. (A file without a
/// label has none to clear.)
const STATES: [(&str, &[&str], Takes, &str); 16] = [
    ("of an imported pool", &["zpool create pa @x"], Takes::Never, "x"),
    ("the same by a link", &["zpool create pa @x", "LINK"], Takes::Never, "link"),
    ("the same by a hard link", &["zpool create pa @x", "HARD"], Takes::Never, "hard"),
    ("moved while its pool is imported", &["zpool create pa @x", "MOVE"], Takes::Never, "moved"),
    ("a copy of one", &["zpool create pa @x", "COPY"], Takes::WithForce, "copy"),
    ("of a pool under another name", &["zpool create -t other pa @x"], Takes::Never, "x"),
    ("of one with an alternate root", &["zpool create -R /nowhere pa @x"], Takes::Never, "x"),
    ("of one that is imported until a restart", &["zpool create -o cachefile=none pa @x"], Takes::Never, "x"),
    ("of an exported pool", &["zpool create pa @x", "zpool export pa"], Takes::WithForce, "x"),
    ("of a destroyed pool", &["zpool create pa @x", "zpool destroy pa"], Takes::Yes, "x"),
    (
        "of one that was destroyed and imported",
        &["zpool create pa @x", "zpool destroy pa", "zpool import -d @x -D pa"],
        Takes::Never,
        "x",
    ),
    (
        "of one that was destroyed, imported and exported",
        &["zpool create pa @x", "zpool destroy pa", "zpool import -d @x -D pa", "zpool export pa"],
        Takes::WithForce,
        "x",
    ),
    ("a spare of an imported pool", &["zpool create pa @a spare @x"], Takes::Never, "x"),
    ("a cache device of one", &["zpool create pa @a cache @x"], Takes::Never, "x"),
    ("a former spare", &["zpool create pa @a spare @x", "zpool remove pa @x"], Takes::Yes, "x"),
    ("a former cache device", &["zpool create pa @a cache @x", "zpool destroy pa"], Takes::Yes, "x"),
];

#[test]
fn a_device_is_taken_as_its_state_says_by_every_verb() {
    let verbs = ["create -f new", "create new", "add -f more", "add more", "labelclear -f", "labelclear"];
    for (state, commands, takes, name) in STATES {
        let mut world = in_state(commands);
        for verb in verbs {
            let line = format!("zpool {verb} @{name}");
            let path = world.path(name);
            let before = labels(&path);
            let output = world.output(&line);
            let is_taken = takes == Takes::Yes || takes == Takes::WithForce && verb.contains("-f");
            assert_eq!(output.status.success(), is_taken, "{state}: {line}: {}", said(&output));
            if is_taken {
                world = in_state(commands);
            } else {
                assert!(labels(&path) == before, "{state}: {line}: it was written");
            }
            if takes == Takes::Never {
                assert!(said(&output).contains("active pool"), "{state}: {line}: {}", said(&output));
            }
        }
    }
}

/// Files `@x` and `@a`, after these commands, and another pool.
fn in_state(commands: &[&str]) -> World {
    let world = World::new();
    for file in ["x", "a", "b"] {
        world.file(file);
    }
    world.run("zpool create more @b");
    let path = |name: &str| world.path(name);
    for command in commands {
        match *command {
            "LINK" => std::os::unix::fs::symlink(path("x"), path("link")).unwrap(),
            "HARD" => std::fs::hard_link(path("x"), path("hard")).unwrap(),
            "MOVE" => std::fs::rename(path("x"), path("moved")).unwrap(),
            "COPY" => drop(std::fs::copy(path("x"), path("copy")).unwrap()),
            line => drop(world.run(line)),
        }
    }
    world
}

#[test]
fn a_log_device_that_was_removed_is_free() {
    let world = World::new();
    for name in ["a", "x"] {
        world.file(name);
    }
    world.run("zpool create pa @a log @x");
    assert!(world.refused("zpool create -f pb @x").contains("active pool 'pa'"));
    world.run("zpool remove pa @x");
    world.run("zpool create pb @x");
}

#[test]
fn a_read_only_import_is_not_written() {
    let world = World::new();
    world.file("x");
    world.run("zpool create pa @x");
    world.run("zpool export pa");
    world.run("zpool import -d @x -o readonly=on pa");
    assert!(world.run("zpool get -H -o value readonly pa").contains("on"));
    assert!(world.refused("zfs create pa/fs").contains("readonly=on"));
    assert!(world.refused("zpool create -f pb @x").contains("active pool"));
    world.run("zpool export pa");
    world.run("zpool import -d @x -o cachefile=none pa");
    assert!(world.run("zpool get -H -o value readonly,cachefile pa").contains("off\nnone"));
    world.run("zfs create pa/fs");
    // As after a restart.
    let list = world.path("cache/pools.json");
    let text = std::fs::read_to_string(&list).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&list, text.replace(boot.trim(), "another")).unwrap();
    assert!(world.run("zpool list").contains("no pools available"));
}

/// The words of `zdb` with this cache file, and its verdict.
fn zdb_of(file: &str, words: &[&str]) -> Option<(bool, String)> {
    let zdb = cenote_testkit::zdb::program("zdb")?;
    let output = Command::new(zdb).args(["-U", file]).args(words).output().unwrap();
    Some((output.status.success(), said(&output) + &String::from_utf8_lossy(&output.stdout)))
}

/// Goal: the file that `cachefile` names has what its pools consist of as long as they are imported with it. Method: OpenZFS's tests of it;
/// its `zdb -U` reads the file, and `zpool import -c` has the pool back.
#[test]
fn a_cachefile_has_its_pools_until_they_are_exported_or_have_another() {
    let world = World::new();
    for name in ["a", "b", "c", "moved"] {
        world.file(name);
    }
    let value = |pool: &str| world.run(&format!("zpool get -H -o value cachefile {pool}")).trim().to_owned();
    let one = std::path::PathBuf::from(world.path("one"));
    let can_zdb = cenote_testkit::zdb::program("zdb").is_some();
    let (here, there) = (one.display().to_string(), world.path("two"));
    let has = |file: &str, what: &str| {
        let text = zdb_of(file, &["-C"]);
        text.is_none_or(|(is_good, text)| is_good && text.contains(what))
    };
    world.run(&format!("zpool create -o cachefile={here} pa @a"));
    world.run("zpool create pb @b");
    assert_eq!((value("pa"), value("pb")), (here.clone(), "-".into()));
    world.run(&format!("zpool set cachefile={here} pb"));
    for what in ["name: 'pa'", "name: 'pb'", &world.path("a"), &world.path("b")] {
        assert!(has(&here, what), "{what}");
    }
    // Device paths that are added are noted, and removed ones are forgotten.
    world.run("zpool add pa log @c");
    assert!(has(&here, &world.path("c")));
    world.run("zpool remove pa @c");
    assert!(!can_zdb || !has(&here, &world.path("c")));
    world.run(&format!("zpool set cachefile={there} pa"));
    assert_eq!(value("pa"), there);
    assert!(has(&there, "name: 'pa'") && has(&here, "name: 'pb'"));
    assert!(!can_zdb || !has(&here, "name: 'pa'"));
    world.run("zpool set cachefile=none pb");
    assert_eq!(value("pb"), "none");
    assert!(!one.exists(), "its last pool has left it");
    world.run(&format!("zpool set cachefile={there} pb"));
    let copy = world.path("copy");
    std::fs::copy(&there, &copy).unwrap();
    world.run("zpool export pa");
    world.run("zpool destroy pb");
    assert!(!std::path::Path::new(&there).exists());
    // By a file that was kept: the devices that it names and no others; the destroyed pool is none.
    assert!(world.run("zpool import -c @copy").contains("pool: pa"));
    world.run(&format!("zpool import -a -c @copy -o cachefile={here}"));
    assert_eq!(world.run("zpool list -H -o name"), "pa\n");
    assert!(has(&here, &world.path("a")));
    world.run("zpool export pa");
    std::fs::rename(world.path("a"), world.path("moved")).unwrap();
    world.run(&format!("zpool import -d @moved -o cachefile={here} pa"));
    assert!(has(&here, &world.path("moved")));
    world.run("zpool set cachefile= pa");
    assert!(!one.exists() && value("pa") == "-");
    // Any other file is kept as it is.
    std::fs::write(&one, "something").unwrap();
    for line in [format!("zpool set cachefile={here} pa"), format!("zpool create -o cachefile={here} pc @c")] {
        assert!(world.refused(&line).contains("something else than configurations"), "{line}");
    }
    assert_eq!(std::fs::read(&one).unwrap(), b"something");
    assert!(
        world
            .refused("zpool set cachefile=x pa")
            .contains("cannot set property for 'pa': property 'cachefile' must be empty, an absolute path, or 'none'")
    );
    assert!(world.refused("zpool import -c @none pa").contains("cannot open cache file"));
    let both = world.output("zpool import -c @copy -d @moved pa");
    assert!(said(&both).contains("-c is incompatible with -d") && both.status.code() == Some(2));
}

/// As above, where a server has the pool: it changes the file, by which `zdb` opens the pool. (One that no process has is exported by its
/// labels.)
#[test]
fn a_servers_pool_has_a_cachefile() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let file = images.dir.parent().unwrap().join("kept");
    let imported = |words: &[&str]| {
        let mut command = images.bare();
        command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json")).args(words);
        common::good(&mut command)
    };
    imported(&["zpool", "import", "-d", images.dir.to_str().unwrap(), "mine"]);
    let serving = serving(&images);
    let set = format!("cachefile={}", file.display());
    imported(&["zpool", "set", &set, "mine"]);
    assert!(file.exists());
    imported(&["zpool", "set", "comment=seen", "mine"]);
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.windows(4).any(|word| word == b"seen"));
    let opened = zdb_of(file.to_str().unwrap(), &["-d", "mine"]);
    assert!(
        opened.as_ref().is_none_or(|(is_good, text)| *is_good && text.contains("Dataset mine/v [ZVOL]")),
        "{opened:?}"
    );
    drop(serving);
}

#[test]
fn every_pool_is_exported_or_told_of() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let serving = serving(&images);
    let command = |words: &[&str]| {
        let mut command = images.bare();
        command.env("CENOTE_CACHE", images.dir.parent().unwrap().join("serving/cache.json"));
        command.args(words).output().unwrap()
    };
    let other = images.dir.parent().unwrap().join("other.img");
    let made = command(&["zpool", "create", "--size", "80M", "other", other.to_str().unwrap()]);
    assert!(made.status.success(), "{}", said(&made));
    let imported = command(&["zpool", "import", "-d", images.dir.to_str().unwrap(), "mine"]);
    assert!(said(&imported).contains("in use on this system by process"), "{}", said(&imported));
    let exported = command(&["zpool", "export", "-a"]);
    assert!(exported.status.success(), "{}", said(&exported));
    assert_eq!(String::from_utf8(command(&["zpool", "list"]).stdout).unwrap(), "no pools available\n");
    // Its process has ended with it.
    drop(serving);
    images.assert_whole();
}

#[test]
fn a_cache_device_is_held_like_other_devices_and_a_spare_only_while_it_is_in_use() {
    let images = Images::none();
    let file = |name: &str| images.dir.join(name).to_str().unwrap().to_owned();
    let mut create = images.bare();
    create.args(["zpool", "create", "--size", "80M", "mine", &file("d"), "spare", &file("s"), "cache", &file("c")]);
    good(&mut create);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    let serving = serving(&images);
    let is_held = |name: &str| std::fs::File::open(file(name)).unwrap().try_lock_shared().is_err();
    assert!(is_held("d") && is_held("c"));
    // Other pools may list it, and take it.
    assert!(!is_held("s"), "a spare is held that is free");
    serving.end().unwrap();
}

#[test]
fn a_pool_without_its_devices_is_listed_as_unavailable() {
    let world = World::new();
    world.file("x");
    world.run("zpool create gone @x");
    std::fs::remove_file(world.path("x")).unwrap();
    let listed = world.run("zpool list -H -o name,size,health");
    assert!(listed.contains("gone\t-\tUNAVAIL"), "{listed}");
    let status = world.run("zpool status -x");
    assert!(status.contains("state: UNAVAIL") && !status.contains("healthy"), "{status}");
    let json = world.run("zpool status -j");
    assert!(json.contains("\"state\":\"UNAVAIL\"") || json.contains("\"state\": \"UNAVAIL\""), "{json}");
}
