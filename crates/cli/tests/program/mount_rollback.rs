//! Goal: `zfs rollback` works on a mounted file system and on a volume that has clients, as in OpenZFS. Users wait for a moment and then see
//! the snapshot's state, the kernel drops what it had cached of newer states, and operations on files that the snapshot lacks fail. Method:
//! `cenote mount --rw` and `cenote serve --rw` on pools made here, system calls, an NBD client; `zdb` checks the pool.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::good;
use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw_os_error)
}

/// Everything in a directory: what each is, its inode number, size and content or target.
fn seen(at: &Path) -> BTreeMap<PathBuf, (u32, u64, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![at.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let content = match () {
                () if metadata.is_dir() => Vec::new(),
                () if metadata.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                () => fs::read(&path).unwrap(),
            };
            let size = if metadata.is_dir() { 0 } else { metadata.size() };
            if metadata.is_dir() {
                left.push(path.clone());
            }
            found.insert(path, (metadata.mode(), metadata.ino(), size, content));
        }
    }
    found
}

/// A descriptor of a directory, as a current directory is one.
fn directory(at: &Path) -> rustix::fd::OwnedFd {
    rustix::fs::openat(CWD, at, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Rolls back `mine/a`, which is mounted itself or is nested at `below` in the mounted dataset.
fn goes_back(mount: &str, below: &str) {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/a"]);
    let mounted = Mounted::new(&images, mount);
    let at = |path: &str| mounted.path(below).join(path);
    for name in ["dir", "dir/deep", "kept", "renamed"] {
        fs::create_dir(at(name)).unwrap();
    }
    for name in ["same", "removed", "dir/file", "dir/deep/file", "kept/file", "truncated", "unlinked"] {
        fs::write(at(name), format!("{name} as it was").repeat(3000)).unwrap();
    }
    symlink("there", at("link")).unwrap();
    images.run("zfs", &["snapshot", "mine/a@1"]);
    let before = seen(&at(""));

    // The kernel has cached everything by now. Then everything changes.
    let same = OpenOptions::new().read(true).write(true).open(at("same")).unwrap();
    same.write_all_at(b"something else", 0).unwrap();
    fs::write(at("same"), b"short").unwrap();
    let unlinked = OpenOptions::new().read(true).write(true).open(at("unlinked")).unwrap();
    let removed = File::open(at("removed")).unwrap();
    for name in ["removed", "unlinked", "link"] {
        fs::remove_file(at(name)).unwrap();
        assert_eq!(errno(fs::symlink_metadata(at(name))), Some(Errno::NOENT));
    }
    OpenOptions::new().write(true).open(at("truncated")).unwrap().set_len(7).unwrap();
    fs::rename(at("renamed"), at("kept/renamed")).unwrap();
    fs::remove_dir_all(at("dir")).unwrap();
    symlink("elsewhere", at("link")).unwrap();
    fs::create_dir_all(at("new/below")).unwrap();
    let mut news = Vec::new();
    for number in 0..40 {
        let path = at(&format!("new/{number}"));
        fs::write(&path, format!("new {number}")).unwrap();
        news.push((OpenOptions::new().read(true).write(true).open(&path).unwrap(), path));
    }
    let (new_directory, kept) = (directory(&at("new/below")), directory(&at("kept")));
    let after = seen(&at(""));
    assert_ne!(before, after);
    // A write that only the intent log has is rolled back too.
    same.write_all_at(b"logged", 0).unwrap();
    same.sync_all().unwrap();

    images.run("zfs", &["rollback", "mine/a@1"]);
    assert_eq!(seen(&at("")), before);
    let mut byte = [0; 4];
    same.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"same");
    // Open files that had been removed have their names again.
    for open in [&unlinked, &removed] {
        open.read_exact_at(&mut byte, 0).unwrap();
        assert!(open.metadata().unwrap().nlink() == 1);
    }
    unlinked.write_all_at(b"BACK", 0).unwrap();
    assert!(fs::read(at("unlinked")).unwrap().starts_with(b"BACKnked as it was"));
    assert!(rustix::fs::statat(&kept, "file", AtFlags::empty()).is_ok());
    // Files that are newer than the snapshot are gone.
    for (open, path) in &news {
        let failed = errno(open.read_exact_at(&mut byte, 0)).unwrap();
        assert!([Errno::STALE, Errno::IO].contains(&failed), "{failed}");
        let failed = errno(open.write_all_at(b"x", 0)).unwrap();
        assert!([Errno::STALE, Errno::IO].contains(&failed), "{failed}");
        assert_eq!(errno(fs::metadata(path)), Some(Errno::NOENT));
    }
    assert!(rustix::fs::statat(&new_directory, "x", AtFlags::empty()).is_err());
    // New files get their object numbers. The old descriptors must not reach the new files.
    fs::create_dir(at("new")).unwrap();
    for (open, path) in &news {
        fs::write(path, b"newer").unwrap();
        assert!(open.read_exact_at(&mut byte, 0).is_err());
        assert!(open.write_all_at(b"x", 0).is_err());
    }
    for (open, path) in news {
        let again = File::open(&path).unwrap();
        drop(open);
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        fs::remove_file(&path).unwrap();
        assert_eq!(std::io::read_to_string(again).unwrap(), "newer");
    }
    fs::remove_dir(at("new")).unwrap();

    // A second rollback: refused while a newer snapshot exists, then with `-r`.
    same.write_all_at(b"later", 0).unwrap();
    images.run("zfs", &["snapshot", "mine/a@2"]);
    let refused = images.refused("zfs", &["rollback", "mine/a@1"]);
    assert!(refused.contains("more recent snapshots or bookmarks exist"), "{refused}");
    same.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"late");
    assert!(fs::read(at(".zfs/snapshot/2/same")).unwrap().starts_with(b"later"));
    images.run("zfs", &["rollback", "-r", "mine/a@1"]);
    assert_eq!(seen(&at("")), before);
    drop((same, unlinked, removed, new_directory, kept));
    mounted.end(End::Unmount);
    images.assert_whole();
    let mounted = Mounted::new(&images, mount);
    let again: Vec<_> = seen(&mounted.path(below)).into_values().collect();
    assert_eq!(again, before.into_values().collect::<Vec<_>>());
    mounted.end(End::Unmount);
}

#[test]
fn a_mounted_file_system_goes_back_under_its_users() {
    if can_mount() {
        goes_back("mine/a", "");
    }
}

#[test]
fn a_file_system_that_is_nested_in_a_mount_goes_back_under_its_users() {
    if can_mount() {
        goes_back("mine", "a");
    }
}

#[test]
fn programs_that_write_go_on_and_a_killed_process_leaves_one_state_or_the_other() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let mounted = Mounted::new(&images, "mine");
    fs::write(mounted.path("file"), vec![1; 1 << 20]).unwrap();
    fs::write(mounted.path("mark"), b"then").unwrap();
    images.run("zfs", &["snapshot", "mine@1"]);
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (path, ends, rounds) = (mounted.path("file"), &ends, &rounds);
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
                let mut page = [0; 4096];
                for number in 0.. {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    file.write_all_at(&[2; 4096], (writer * 64 + number % 64) * 4096).unwrap();
                    file.read_exact_at(&mut page, (number % 256) * 4096).unwrap();
                    if number % 16 == 0 {
                        file.sync_data().unwrap();
                    }
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..5 {
            let from = rounds.load(Ordering::SeqCst);
            while rounds.load(Ordering::SeqCst) < from + 20 {
                std::thread::yield_now();
            }
            fs::write(mounted.path("mark"), b"now").unwrap();
            images.run("zfs", &["rollback", "mine@1"]);
            assert_eq!(fs::read(mounted.path("mark")).unwrap(), b"then");
        }
        ends.store(true, Ordering::SeqCst);
    });
    fs::write(mounted.path("mark"), b"logged since").unwrap();
    File::open(mounted.path("mark")).unwrap().sync_all().unwrap();
    mounted.kill();
    let mounted = Mounted::new(&images, "mine");
    assert_eq!(fs::read(mounted.path("mark")).unwrap(), b"logged since");
    images.run("zfs", &["rollback", "mine@1"]);
    mounted.kill();
    let mounted = Mounted::new(&images, "mine");
    assert_eq!(fs::read(mounted.path("mark")).unwrap(), b"then");
    assert!(fs::read(mounted.path("file")).unwrap() == vec![1; 1 << 20]);
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn a_volume_goes_back_under_its_clients() {
    let Some(python) = common::serving::python() else { return };
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "4M", "mine/v"]);
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nbd.sock");
    let mut command = images.command("serve", &["--rw", "--unix"]);
    let mut serving = command.arg(&socket).arg("mine").stderr(Stdio::null()).spawn().unwrap();
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve_rw.py");
    let uri = format!("nbd+unix:///mine/v?socket={}", socket.display());
    let mut client = Command::new(python);
    let client = client.arg(script).args(["obey", &uri]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let (mut tell, mut told) = (client.stdin.take().unwrap(), BufReader::new(client.stdout.take().unwrap()).lines());
    let mut ask = |what: &str| {
        writeln!(tell, "{what}").unwrap();
        told.next().unwrap().unwrap()
    };
    assert_eq!(ask("write 0 65536 7"), "done");
    assert_eq!(ask("flush"), "done");
    images.run("zfs", &["snapshot", "mine/v@1"]);
    for _ in 0..2 {
        assert_eq!(ask("write 4096 65536 8"), "done");
        assert_eq!(ask("flush"), "done");
        assert_eq!(ask("write 1048576 4096 9"), "done");
        images.run("zfs", &["rollback", "mine/v@1"]);
        assert_eq!(ask("read 0 65536"), "7");
        assert_eq!(ask("read 65536 65536"), "0");
        assert_eq!(ask("read 1048576 4096"), "0");
    }
    assert_eq!(ask("write 0 4096 5"), "done");
    assert_eq!(ask("flush"), "done");
    assert_eq!(ask("read 0 4096"), "5");
    drop(tell);
    client.wait().unwrap();
    good(Command::new("kill").arg(serving.id().to_string()));
    assert!(serving.wait().unwrap().success());
    images.assert_whole();
}
