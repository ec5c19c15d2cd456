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
fn a_killed_server_s_pool_is_opened_again_with_a_word_and_without_force() {
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-V", "1M", "mine/v"]);
    serving(&images).kill().unwrap();
    let output = set(&images, &images.dir, &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("was not exported, but process "), "{}", said(&output));
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
    assert!(output.status.success() && said(&output).contains("0-copy' is a copy of"), "{}", said(&output));
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
    assert!(said(&output).contains(&format!("{path} is part of exported pool 'mine'")), "{}", said(&output));
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
