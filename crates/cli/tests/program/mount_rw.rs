//! Goal: what programs do in a file system that is mounted for writing is there afterwards: after a clean end however it comes, and as
//! far as it was synced after the process was killed; a full pool says so and can be emptied; and the pool is whole every time, for us
//! and for OpenZFS's `zdb`. Method: `cenote mount --rw` on pools made here, ordinary programs and system calls on it, an ordinary
//! directory with the same as the model.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_testkit::Elsewhere;
use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::{good, said};
use rustix::fs::{FallocateFlags, XattrFlags};

/// The facts of a file by which trees are compared: mode, links, size, time of change in nanoseconds, an attribute, content.
type Seen = (u32, u64, u64, i128, Vec<u8>, Vec<u8>);

fn seen(at: &Path) -> BTreeMap<PathBuf, Seen> {
    fn walk(at: &Path, below: &Path, into: &mut BTreeMap<PathBuf, Seen>) {
        for entry in fs::read_dir(at.join(below)).unwrap() {
            let path = below.join(entry.unwrap().file_name());
            let whole = at.join(&path);
            let metadata = fs::symlink_metadata(&whole).unwrap();
            let mut note = [0; 64];
            let len = rustix::fs::lgetxattr(&whole, "user.note", &mut note).unwrap_or(0);
            let (size, content) = match () {
                () if metadata.is_dir() => (0, Vec::new()),
                () if metadata.is_symlink() => {
                    (metadata.size(), fs::read_link(&whole).unwrap().into_os_string().into_encoded_bytes())
                }
                () => (metadata.size(), fs::read(&whole).unwrap()),
            };
            let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
            let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            if metadata.is_dir() {
                walk(at, &path, into);
            }
            into.insert(path, (metadata.mode(), links, size, changed, note[..len].to_vec(), content));
        }
    }
    let mut into = BTreeMap::new();
    walk(at, Path::new(""), &mut into);
    into
}

fn assert_same(found: &BTreeMap<PathBuf, Seen>, wanted: &BTreeMap<PathBuf, Seen>, times: bool) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (path, (mode, links, size, changed, note, content)) in found {
        let other = &wanted[path];
        assert_eq!((mode, links, size, note), (&other.0, &other.1, &other.2, &other.4), "{}", path.display());
        assert!(*content == other.5, "{}: content", path.display());
        assert!(!times || *changed == other.3, "{}: time", path.display());
    }
}

/// Uses a directory as people and programs do, the same in any.
fn use_it(at: &Path) {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    good(Command::new("cp").arg("-a").arg(tree).arg(at.join("tree")));
    // Moved, replaced, and moved into one another.
    fs::rename(at.join("tree/commands"), at.join("moved")).unwrap();
    fs::rename(at.join("tree/main.rs"), at.join("moved/ls.rs")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    fs::rename(at.join("tree/datasets"), at.join("empty")).unwrap();
    assert_eq!(fs::remove_dir(at.join("moved")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::remove_dir_all(at.join("tree/pools")).unwrap();
    // Names that are as long as can be, and too long to be anyone's.
    let (longest, longer) = (at.join("n".repeat(255)), at.join("n".repeat(256)));
    assert_eq!(fs::metadata(&longest).unwrap_err().raw_os_error(), Some(2));
    fs::write(&longest, "").unwrap();
    let too_long = [
        fs::metadata(&longer).map(drop),
        fs::write(&longer, ""),
        fs::remove_file(&longer),
        fs::remove_dir(&longer),
        fs::rename(&longer, at.join("short")),
        fs::rename(&longest, &longer),
        fs::hard_link(&longer, at.join("short")),
    ];
    assert!(too_long.iter().all(|result| result.as_ref().unwrap_err().raw_os_error() == Some(36)), "{too_long:?}");
    // Open and without a name.
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(at.join("nameless")).unwrap();
    file.write_all_at(&[7; 300_000], 0).unwrap();
    fs::remove_file(at.join("nameless")).unwrap();
    file.write_all_at(&[8; 10], 299_995).unwrap();
    let mut end = [0; 10];
    file.read_exact_at(&mut end, 299_990).unwrap();
    assert_eq!(end, [7, 7, 7, 7, 7, 8, 8, 8, 8, 8]);
    // Cut, grown, with holes.
    let cut = File::create(at.join("cut")).unwrap();
    cut.write_all_at(&[1; 500_000], 0).unwrap();
    cut.set_len(123_457).unwrap();
    cut.set_len(700_000).unwrap();
    let sparse = File::create(at.join("sparse")).unwrap();
    sparse.write_all_at(b"far", 40 << 20).unwrap();
    sparse.write_all_at(&[3; 1 << 20], 1 << 20).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&sparse, punch, (1 << 20) + 5, 700_000).unwrap();
    let mut appended = OpenOptions::new().append(true).open(at.join("cut")).unwrap();
    appended.write_all(b"more").unwrap();
    // Names, attributes, modes.
    fs::hard_link(at.join("cut"), at.join("moved/link")).unwrap();
    symlink("../nowhere", at.join("symlink")).unwrap();
    let name = "n\u{e9}".repeat(80);
    fs::write(at.join(&name), name.as_bytes()).unwrap();
    rustix::fs::setxattr(at.join("cut"), "user.note", b"short", XattrFlags::CREATE).unwrap();
    rustix::fs::setxattr(at.join("empty"), "user.note", &[b'x'; 60], XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(at.join(&name), "user.gone", &[b'y'; 2_000], XattrFlags::empty()).unwrap();
    rustix::fs::removexattr(at.join(&name), "user.gone").unwrap();
    fs::set_permissions(at.join("empty"), fs::Permissions::from_mode(0o2750)).unwrap();
    for index in 0..700 {
        fs::write(at.join("empty").join(format!("many {index}")), vec![0xab; index]).unwrap();
    }
    for index in (0..700).step_by(3) {
        fs::remove_file(at.join("empty").join(format!("many {index}"))).unwrap();
    }
    // And by a program.
    good(Command::new("truncate").args(["-s", "+5"]).arg(at.join("symlink-not")));
}

#[test]
fn what_programs_do_is_there_after_each_clean_end() {
    if !can_mount() {
        return;
    }
    for (layout, count, how) in [
        (&["raidz1"][..], 3, End::Unmount),
        (&["mirror"][..], 2, End::Signal("-TERM")),
        (&[][..], 1, End::Signal("-INT")),
    ] {
        let images = Images::made(layout, count, &[]);
        images.run("zfs", &["create", "mine/fs"]);
        let model = tempfile::tempdir().unwrap();
        use_it(model.path());
        let mounted = Mounted::new(&images, "mine/fs");
        use_it(mounted.at());
        let before = seen(mounted.at());
        assert_same(&before, &seen(model.path()), false);
        // While it is mounted it is nobody else's, but for commands that the mount itself does.
        images.run("zfs", &["set", "a:b=c", "mine/fs"]);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let said = images.refused("put", &["mine/fs", source.to_str().unwrap()]);
        assert!(said.contains("in use") || said.contains("another process") || said.contains("lock"), "{said}");
        mounted.end(how);
        images.assert_whole();
        let mounted = Mounted::new(&images, "mine/fs");
        assert_same(&seen(mounted.at()), &before, true);
        let shown = rustix::fs::statvfs(mounted.at()).unwrap();
        fs::remove_dir_all(mounted.path("moved")).unwrap();
        mounted.end(how);
        images.assert_whole();
        // `df` shows the same space as `zfs list`, in whole blocks.
        let mounted = Mounted::new(&images, "mine/fs");
        let now = rustix::fs::statvfs(mounted.at()).unwrap();
        mounted.end(End::Unmount);
        let listed = images.run("zfs", &["get", "-Hpo", "value", "referenced,available", "mine/fs"]);
        let listed: Vec<u64> = listed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(now.f_frsize, 128 << 10);
        assert_eq!(now.f_blocks - now.f_bfree, listed[0].div_ceil(now.f_frsize));
        // The MOS of another txg is some blocks more or less.
        assert!(now.f_bavail.abs_diff(listed[1] / now.f_frsize) <= 4, "{} {}", now.f_bavail, listed[1]);
        assert!(shown.f_bfree < now.f_bfree, "removing gives space back");
    }
}

#[test]
fn what_was_synced_is_there_after_the_process_is_killed() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    for (round, lines) in [2_usize, 5, 9].into_iter().enumerate() {
        let mounted = Mounted::new(&images, "mine");
        let folder = format!("round{round}");
        fs::create_dir(mounted.path(&folder)).unwrap();
        let durable = AtomicUsize::new(0);
        let content = |index: usize| vec![index as u8 ^ 0x5a; 1 + index * 7919 % 200_000];
        std::thread::scope(|scope| {
            let (at, durable) = (mounted.path(&folder), &durable);
            // Until the mount is gone below it: synced files, by one call or the other, among others that are not.
            scope.spawn(move || {
                for index in 1_usize.. {
                    let stay = || -> std::io::Result<()> {
                        fs::write(at.join(format!("loose {index}")), content(index))?;
                        let path = at.join(format!("synced {index}"));
                        let mut options = OpenOptions::new();
                        options.write(true).create_new(true);
                        if index.is_multiple_of(2) {
                            options.custom_flags(rustix::fs::OFlags::SYNC.bits().cast_signed());
                        }
                        let mut file = options.open(&path)?;
                        file.write_all(&content(index))?;
                        match index % 4 {
                            1 => file.sync_all()?,
                            3 => file.sync_data()?,
                            _ => {}
                        }
                        Ok(())
                    };
                    if stay().is_err() {
                        return;
                    }
                    durable.store(index, Ordering::SeqCst);
                }
            });
            let at = mounted.path(&folder);
            // Somebody who just writes and removes, all the time.
            scope.spawn(move || {
                let path = at.join("noise");
                while fs::write(&path, vec![1; 3 << 20]).is_ok() && fs::remove_file(&path).is_ok() {}
            });
            while durable.load(Ordering::SeqCst) < lines {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            mounted.kill();
        });
        let count = durable.load(Ordering::SeqCst);
        assert!(count >= lines);
        images.assert_whole();
        let mounted = Mounted::new(&images, "mine");
        for index in 1..=count {
            let found = fs::read(mounted.path(&folder).join(format!("synced {index}"))).unwrap();
            assert!(found == content(index), "round {round}: file {index}");
        }
        mounted.end(End::Unmount);
        images.assert_whole();
    }
}

#[test]
fn a_full_pool_and_a_quota_say_so_and_removing_helps() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "mine/small"]);
    images.run("zfs", &["set", "quota=8M", "mine/small"]);
    for (dataset, errno) in [("mine/small", rustix::io::Errno::DQUOT), ("mine", rustix::io::Errno::NOSPC)] {
        let mounted = Mounted::new(&images, dataset);
        let space = rustix::fs::statvfs(mounted.at()).unwrap();
        let size = space.f_blocks * space.f_frsize;
        assert!(if dataset == "mine" { size > 20 << 20 } else { size <= 9 << 20 }, "{size}");
        let mut rng = cenote_taskq::Rng::new(5);
        let mut kept = Vec::new();
        let error = loop {
            let bytes: Vec<u8> = (0..128 << 10).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            let path = mounted.path(&format!("f{}", kept.len()));
            match fs::write(&path, &bytes) {
                Ok(()) => kept.push((path, bytes)),
                Err(error) => break error,
            }
            assert!(kept.len() < 200, "it never gets full");
        };
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{dataset}: {error}");
        assert!(kept.len() > 2, "{dataset} was full with {} MiB", kept.len());
        let full = rustix::fs::statvfs(mounted.at()).unwrap();
        assert!(full.f_bavail * full.f_frsize < 8 << 20, "{dataset}: {} are left", full.f_bavail * full.f_frsize);
        // The files written before are there still, and can be removed.
        for (path, bytes) in &kept {
            assert!(fs::read(path).unwrap() == *bytes);
        }
        // The dataset below is shown too.
        for path in fs::read_dir(mounted.at()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
        {
            fs::remove_file(path).unwrap();
        }
        // There is room again: at once or, where freed space waits for the next txgs, after waiting for them.
        let again = mounted.path("again");
        fs::write(&again, vec![9; 1 << 20]).unwrap();
        File::open(&again).unwrap().sync_all().unwrap();
        mounted.end(End::Unmount);
        images.assert_whole();
    }
}

#[test]
fn properties_are_obeyed_and_what_cannot_be_written_is_refused_by_name() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "4M", "-s", "mine/v"]);
    images.run("zfs", &["create", "mine/fs"]);
    for setting in ["recordsize=16K", "xattr=off", "sync=disabled"] {
        images.run("zfs", &["set", setting, "mine/fs"]);
    }
    let mounted = Mounted::new(&images, "mine/fs");
    let path = mounted.path("f");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().blksize(), 16 << 10);
    file.sync_all().unwrap();
    let set = rustix::fs::setxattr(&path, "user.note", b"x", XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    mounted.end(End::Unmount);
    images.run("zfs", &["set", "sync=always", "mine/fs"]);
    // Each of these needs a feature, which is in use once a file is written, and not before.
    for setting in ["recordsize=1M", "dnodesize=2k", "checksum=sha512"] {
        images.run("zfs", &["set", setting, "mine/fs"]);
    }
    let features = || {
        let names = "feature@large_blocks,feature@large_dnode,feature@sha512,feature@userobj_accounting,feature@blake3";
        images.run("zpool", &["get", "-H", "-o", "value", names, "mine"])
    };
    assert_eq!(features(), "enabled\nenabled\nenabled\nactive\nenabled\n");
    let mounted = Mounted::new(&images, "mine/fs");
    fs::write(mounted.path("always"), vec![2; 2 << 20]).unwrap();
    fs::rename(mounted.path("f"), mounted.path("g")).unwrap();
    mounted.kill();
    let mounted = Mounted::new(&images, "mine/fs");
    assert!(fs::read(mounted.path("always")).unwrap() == vec![2; 2 << 20]);
    assert_eq!(fs::metadata(mounted.path("always")).unwrap().blksize(), 1 << 20);
    assert_eq!(fs::read(mounted.path("g")).unwrap().len(), 100_000);
    mounted.end(End::Unmount);
    assert_eq!(features(), "active\nactive\nactive\nactive\nenabled\n");
    images.run("zfs", &["set", "readonly=on", "mine/fs"]);
    let at = tempfile::tempdir().unwrap();
    let at = at.path().to_str().unwrap();
    for (dataset, reason) in [("mine/fs", "readonly"), ("mine/v", "volume"), ("mine/none", "does not exist")] {
        let said = images.refused("mount", &["--rw", dataset, at]);
        assert!(said.contains(reason) && said.contains(dataset), "{said}");
    }
    let status = images.command("mount", &["--rw", "-o", "ro", "mine", at]).output().unwrap().status;
    assert_eq!(status.code(), Some(2));
    images.assert_whole();
}

#[test]
fn files_of_others_are_open_to_whoever_their_modes_let_in() {
    // Giving files away is root's.
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    for acltype in ["off", "posix"] {
        images.run("zfs", &["set", &format!("acltype={acltype}"), "mine"]);
        let mounted = Mounted::new(&images, "mine");
        let (folder, file) = (mounted.path(acltype), mounted.path(acltype).join("file"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, b"theirs").unwrap();
        for path in [&file, &folder] {
            std::os::unix::fs::chown(path, Some(1001), Some(1002)).unwrap();
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o770)).unwrap();
        }
        mounted.end(End::Unmount);
        let mounted = Mounted::new(&images, "mine");
        let folder = mounted.path(acltype);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert_eq!(fs::read(folder.join("file")).unwrap(), b"theirs");
        mounted.end(End::Unmount);
    }
    images.assert_whole();
}

/// Goal: the end of a mount is the end of its process, with everything written, although another mount namespace still has the mount.
/// Would go wrong if the process waited for that namespace.
#[test]
fn a_mount_that_another_namespace_has_too_ends_by_a_signal() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/fs"]);
    let mounted = Mounted::new(&images, "mine/fs");
    fs::write(mounted.path("file"), b"written").unwrap();
    let elsewhere = Elsewhere::new().unwrap();
    let mut unmount = images.bare();
    let output = unmount.arg("unmount").arg(mounted.at()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("another mount namespace"), "{}", said(&output));
    mounted.end(End::Signal("-TERM"));
    images.assert_whole();
    let model = tempfile::tempdir().unwrap();
    fs::write(model.path().join("file"), b"written").unwrap();
    let mounted = Mounted::new(&images, "mine/fs");
    assert_same(&seen(mounted.at()), &seen(model.path()), false);
    mounted.end(End::Unmount);
    drop(elsewhere);
}

/// Goal: a copy of a device that lies beside it is not taken for it. Method: it is made while the pool is in use, so its label is as new,
/// and it comes first by its name. Would go wrong if labels alone were compared.
#[test]
fn a_pool_that_somebody_uses_is_exported_with_force_alone() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    let mut log = File::create(mounted.path("log")).unwrap();
    log.write_all(b"first").unwrap();
    let said = images.refused("zpool", &["export", "mine"]);
    assert!(said.contains("pool is busy: 'mine' is in use at"), "{said}");
    log.write_all(b" and second").unwrap();
    drop(log);
    images.run("zpool", &["export", "mine"]);
    mounted.wait();
    images.assert_whole();
    assert_eq!(images.run("cat", &["mine", "/log"]), "first and second");

    let mounted = Mounted::new(&images, "mine");
    let mut log = OpenOptions::new().append(true).open(mounted.path("log")).unwrap();
    log.write_all(b" and third").unwrap();
    images.run("zpool", &["export", "-f", "mine"]);
    assert!(log.write_all(b" and fourth").is_err());
    drop(log);
    mounted.wait();
    images.assert_whole();
    assert_eq!(images.run("cat", &["mine", "/log"]), "first and second and third");
}

#[test]
fn an_older_copy_of_a_device_is_named_and_not_used() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    let write = |name: &str| File::create(mounted.path(name)).unwrap().sync_all().unwrap();
    write("one");
    let copy = images.dir.join("0-copy");
    fs::copy(&images.files[0], &copy).unwrap();
    write("two");
    // A change that is stable in the intent log alone makes no copy older.
    images.run("zfs", &["set", "a:b=b", "mine"]);
    mounted.kill();
    let output = images.command("ls", &["mine"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("two"), "{}", said(&output));
    assert!(said(&output).contains("0-copy' is an older copy of"), "{}", said(&output));
    images.run("zfs", &["set", "a:b=c", "mine"]);
    fs::remove_file(copy).unwrap();
    images.assert_whole();
    assert_eq!(images.run("zfs", &["get", "-Ho", "value", "a:b", "mine"]), "c\n");
}

#[test]
fn one_process_serves_volumes_and_files_for_writing() {
    if !can_mount() || !common::serving::has("nbdcopy", "libnbd-bin") {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["create", "-V", "4M", "-s", "mine/v"]);
    let scratch = tempfile::tempdir().unwrap();
    let (source, copy) = (scratch.path().join("source"), scratch.path().join("copy"));
    let bytes: Vec<u8> = (0..1_u32 << 20).flat_map(|word| word.wrapping_mul(40_503).to_le_bytes()).collect();
    fs::write(&source, &bytes).unwrap();
    for round in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let socket = scratch.path().join(format!("{round}.sock"));
        let uri = format!("nbd+unix:///mine/v?socket={}", socket.display());
        let mut command = images.command("serve", &["--rw", "--unix"]);
        command.arg(&socket).arg("--mount").arg(folder.path()).arg("mine").stderr(Stdio::piped());
        let mounted = Mounted::start(command, folder);
        if round == 0 {
            good(Command::new("nbdcopy").arg("--flush").arg(&source).arg(&uri));
            fs::write(mounted.path("file"), &bytes).unwrap();
        }
        good(Command::new("nbdcopy").arg(&uri).arg(&copy));
        assert!(fs::read(&copy).unwrap() == bytes);
        assert!(fs::read(mounted.path("file")).unwrap() == bytes);
        mounted.end(End::Signal("-TERM"));
        images.assert_whole();
    }
}

/// Goal: a pool grows while a program writes into its file system, and what was written is there, on old devices and new.
#[test]
fn a_pool_gets_devices_while_files_are_written() {
    if !can_mount() {
        return;
    }
    let mut images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    let at = mounted.at().to_owned();
    // Nothing of it can be compressed.
    let content = |file: usize| -> Vec<u8> {
        let mut state = (file as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..1_500_000).map(byte).collect()
    };
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut count = 0;
            // More than the first device has room for, so that it goes on only since there are others.
            while count < 60 || !is_done.load(Ordering::SeqCst) {
                match fs::write(at.join(format!("f{count}")), content(count)) {
                    Ok(()) => count += 1,
                    // Until the devices are there.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::StorageFull, "file {count}"),
                }
            }
            count
        });
        for (name, class) in [("b.img", ""), ("c.img", "special"), ("d.img", "")] {
            let path = images.dir.join(name).display().to_string();
            let words = ["add", "-f", "--size", "160M", "mine", class, path.as_str()];
            images.run("zpool", &words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>());
        }
        is_done.store(true, Ordering::SeqCst);
        writer.join().unwrap()
    });
    for file in count..count + 20 {
        fs::write(at.join(format!("f{file}")), content(file)).unwrap();
    }
    let count = count + 20;
    images.run("zpool", &["sync", "mine"]);
    for file in 0..count {
        assert!(fs::read(at.join(format!("f{file}"))).unwrap() == content(file), "file {file}");
    }
    let listed = images.run("zpool", &["list", "-Hpvo", "name,size,alloc", "mine"]);
    let used = listed.lines().filter(|line| line.contains(".img"));
    let used: Vec<u64> = used.map(|line| line.split_whitespace().nth(2).unwrap().parse().unwrap()).collect();
    assert!(used.len() == 4 && used.iter().all(|bytes| *bytes > 0), "{listed}");
    mounted.end(End::Unmount);
    images.note_files();
    images.assert_whole();
    let mounted = Mounted::new(&images, "mine");
    for file in 0..count {
        assert!(fs::read(mounted.path(&format!("f{file}"))).unwrap() == content(file), "file {file} again");
    }
    mounted.end(End::Unmount);
}

/// The options of what the system has mounted at a folder, with its type.
fn mounted_how(at: &Path) -> Option<(String, Vec<String>)> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| Path::new(line[1]) == at)?;
    Some((line[2].to_owned(), line[3].split(',').map(str::to_owned).collect()))
}

#[test]
fn mount_and_umount_find_their_helpers_in_the_program() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/fs"]);
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    let helper = |name: &str| {
        let link = folder.path().join(name);
        if !link.exists() {
            symlink(images.bare().get_program(), &link).unwrap();
        }
        let mut command = Command::new(link);
        command.env("CENOTE_CACHE", images.cache.path().join("cache.json")).stdin(Stdio::null());
        command
    };
    let mount = |options: &str| {
        let options = format!("{options},dir={},force", images.dir.display());
        let mut mount = helper("mount.fuse.cenote");
        mount.arg("mine/fs").arg(&at).args(["-n", "-o", &options]).stdout(Stdio::null()).stderr(Stdio::null());
        mount.status().unwrap().success()
    };
    let has = |wanted: &[&str]| {
        let (kind, options) = mounted_how(&at).unwrap();
        assert_eq!(kind, "fuse.cenote");
        wanted.iter().all(|wanted| options.iter().any(|option| option == wanted))
    };
    assert!(mount("rw,noatime,nosuid"));
    assert!(has(&["rw", "noatime", "nosuid", "allow_other"]));
    fs::write(at.join("file"), "content").unwrap();
    assert!(mount("remount,ro"));
    assert!(has(&["ro"]));
    assert_eq!(fs::write(at.join("file"), "other").unwrap_err().raw_os_error(), Some(30));
    assert!(mount("remount,rw"));
    fs::write(at.join("other"), "content").unwrap();
    // It returns when everything is on disk, so another mount may follow at once.
    good(helper("umount.fuse.cenote").arg(&at));
    assert_eq!(mounted_how(&at), None);
    assert!(mount("ro"));
    assert!(has(&["ro"]));
    assert_eq!(fs::read(at.join("other")).unwrap(), b"content");
    assert!(!mount("remount,rw"), "the pool is open read-only");
    good(helper("umount.fuse.cenote").arg(&at));
    images.assert_whole();
}

/// Holds a file open and mapped, and does in it what its input says: `N TEXT` stores a text at an offset; a line comes when that is done.
const MAPPER: &str = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, os.fstat(fd).st_size)
print('ready', flush=True)
for line in sys.stdin:
    at, text = line.split()
    m[int(at):int(at) + len(text)] = text.encode()
    print('done', flush=True)
"#;

/// Goal: what a program has stored in a mapping of a file, and nobody has synced, is no hole to those who look for holes. Method: a program
/// that does so; `cp`, which asks for holes, and `lseek` through descriptors of all kinds, among them one of the program that writes.
#[test]
fn what_a_mapping_has_changed_is_never_called_a_hole() {
    use rustix::fs::{SeekFrom, seek};
    use std::io::{BufRead, BufReader};

    const MIB: u64 = 1 << 20;
    if !can_mount() {
        return;
    }
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "python3 is not installed");
        eprintln!("left out: python3 is not installed");
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    let path = mounted.path("mapped");
    let file = File::create(&path).unwrap();
    file.set_len(8 * MIB).unwrap();
    file.write_all_at(b"data", 4 * MIB).unwrap();
    drop(file);
    let mut mapper = Command::new("python3");
    mapper.args(["-c", MAPPER]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut mapper = mapper.spawn().unwrap();
    let (mut orders, answers) = (mapper.stdin.take().unwrap(), BufReader::new(mapper.stdout.take().unwrap()));
    let mut answers = answers.lines();
    assert_eq!(answers.next().unwrap().unwrap(), "ready");
    let mut store = |at: u64, text: &str| {
        writeln!(orders, "{at} {text}").unwrap();
        assert_eq!(answers.next().unwrap().unwrap(), "done");
    };
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for (round, file) in [&reader, &writer].into_iter().enumerate() {
        let at = [MIB, 6 * MIB][round];
        let hole = seek(file, SeekFrom::Data(at)).map_or(8 * MIB, |data| data);
        assert!(hole > at, "there is a hole at {at}");
        store(at + 5, "journal");
        let data = seek(file, SeekFrom::Data(at)).unwrap();
        assert!(data <= at + 5, "{data}: what was stored at {at} is called a hole");
        store(at + 300_000, "another");
        assert!(seek(file, SeekFrom::Hole(at + 300_000)).unwrap() > at + 300_000);
    }
    let copy = mounted.path("copy");
    good(Command::new("cp").arg(&path).arg(&copy));
    assert!(fs::read(&copy).unwrap() == fs::read(&path).unwrap(), "a copy has what was stored");
    assert_eq!(seek(&reader, SeekFrom::Hole(0)), Ok(0), "holes are found still");
    // A rollback brings back what a snapshot has, whatever a mapping has changed since.
    writer.sync_all().unwrap();
    images.run("zfs", &["snapshot", "mine@then"]);
    let then = fs::read(&path).unwrap();
    store(2 * MIB, "later");
    images.run("zfs", &["rollback", "mine@then"]);
    assert!(fs::read(&path).unwrap() == then, "what is rolled back stays so");
    drop((orders, answers));
    mapper.wait().unwrap();
    drop((reader, writer));
    assert!(fs::read(&path).unwrap() == then);
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// Goal: bytes that are written again as they are take no space beside those of the snapshot (nopwrite), whether the intent log has stored
/// their blocks at once or not. Method: the file of a clone, written over with its own bytes, with `O_SYNC` and without.
#[test]
fn the_same_bytes_over_a_clones_file_take_no_space() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "compression=on", "-O", "checksum=sha256"]);
    images.run("zfs", &["create", "mine/o"]);
    let bytes: Vec<u8> =
        (0_u64..1 << 19).flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).collect();
    let mounted = Mounted::new(&images, "mine/o");
    fs::write(mounted.path("f"), &bytes).unwrap();
    mounted.end(End::Unmount);
    images.run("zfs", &["snapshot", "mine/o@1"]);
    for (name, flags) in [("mine/plain", 0), ("mine/sync", rustix::fs::OFlags::SYNC.bits().cast_signed())] {
        images.run("zfs", &["clone", "mine/o@1", name]);
        let mounted = Mounted::new(&images, name);
        let file = OpenOptions::new().write(true).custom_flags(flags).open(mounted.path("f")).unwrap();
        for (at, part) in bytes.chunks(1 << 20).enumerate() {
            file.write_all_at(part, (at << 20) as u64).unwrap();
        }
        drop(file);
        assert_eq!(fs::read(mounted.path("f")).unwrap(), bytes);
        mounted.end(End::Unmount);
        let written = images.run("zfs", &["get", "-Hp", "-o", "value", "written", name]);
        assert!(written.trim().parse::<u64>().unwrap() < 500_000, "{name}: {written}");
    }
    images.assert_whole();
}
