//! The promises of a mount where programs are surprised most often: the rows of docs/SEMANTICS.md, each by name. Most were found by
//! xfstests, whose number is given.

use crate::support;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cenote_fuse::server::{Caller, Errno, FileServer, NewFile, NodeId, SetAttributes};
use cenote_fuse::{Access, MountOptions};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, XattrFlags};
use support::live::{mounted, mounted_as, open, served};

fn direct(at: &Path) -> File {
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(at).unwrap()
}

/// xfstests generic/035.
#[test]
fn a_directory_that_lost_its_name_is_there_for_those_who_use_it() {
    mounted(|at| {
        for name in ["over", "gone", "new"] {
            fs::create_dir(at.join(name)).unwrap();
        }
        let (over, gone) = (direct(&at.join("over")), direct(&at.join("gone")));
        let ino = over.metadata().unwrap().ino();
        fs::rename(at.join("new"), at.join("over")).unwrap();
        fs::remove_dir(at.join("gone")).unwrap();
        for open in [&over, &gone] {
            let found = open.metadata().unwrap();
            assert!(found.is_dir());
            assert_eq!(rustix::fs::openat(open, "x", OFlags::RDONLY, Mode::empty()).unwrap_err(), Errno::NOENT);
        }
        assert_eq!(over.metadata().unwrap().ino(), ino);
        assert_ne!(fs::metadata(at.join("over")).unwrap().ino(), ino);
        // The kernel opens pipes by itself, and says so to nobody.
        let pipe = at.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let open = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        fs::remove_file(&pipe).unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 0);
    });
}

/// `open` with `O_CREAT` failed with `ENOENT` when the file of that name was removed or replaced between the kernel's look-up and its open.
#[test]
fn what_was_removed_before_it_is_opened_is_stale_and_not_absent() {
    served(async |_, server| {
        let caller = Caller { uid: 0, gid: 0, thread: 0 };
        let new = NewFile { mode: 0o100_644, umask: 0, caller, device: (0, 0), target: None };
        let made = server.create(NodeId::ROOT, b"file", &new, false).await.unwrap();
        server.remove(NodeId::ROOT, b"file", false, caller).await.unwrap();
        // The kernel still knows the node's number, and sends requests for it.
        assert_eq!(server.open(made.node, true).await.map(drop).unwrap_err(), Errno::STALE);
        assert_eq!(server.getattr(made.node).await.map(drop).unwrap_err(), Errno::STALE);
        let set = SetAttributes { size_bytes: Some(0), ..SetAttributes::default() };
        assert_eq!(server.setattr(made.node, &set).await.map(drop).unwrap_err(), Errno::STALE);
        server.forget(made.node, 1);
    });
}

/// The same through system calls, beside a thread that removes the file. The kernel retries once, so a caller can see `ESTALE`.
#[test]
fn an_open_that_creates_never_finds_the_name_absent() {
    mounted(|at| {
        let path = at.join("file");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_file(&path);
                }
            });
            for _ in 0..1000 {
                match OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path) {
                    Err(error) if error.raw_os_error() != Some(Errno::STALE.raw_os_error()) => {
                        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                        panic!("{error}");
                    }
                    _ => {}
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

/// xfstests generic/523, in both forms that attributes are kept in.
#[test]
fn the_name_of_an_attribute_may_have_slashes() {
    const DIR: u64 = 1;
    const SA: u64 = 2;
    for form in [SA, DIR] {
        mounted_as(&[("xattr", form)], &MountOptions::default(), 2, |time, at| {
            if time == 0 {
                rustix::fs::setxattr(at, "user.a/b/", b"value", XattrFlags::CREATE).unwrap();
            }
            let mut value = [0; 16];
            assert_eq!(rustix::fs::getxattr(at, "user.a/b/", &mut value), Ok(5));
            let mut names = [0; 64];
            let len = rustix::fs::listxattr(at, &mut names[..]).unwrap();
            assert_eq!(&names[..len], b"user.a/b/\0");
        });
    }
}

/// xfstests generic/426, 467, 477: by what the kernel asks for a handle whose node it has forgotten.
#[test]
fn a_file_handle_leads_to_its_file_for_as_long_as_that_has_a_name() {
    served(async |pool, server| {
        let caller = Caller { uid: 0, gid: 0, thread: 0 };
        let new = |mode| NewFile { mode, umask: 0, caller, device: (0, 0), target: None };
        let dir = server.create(NodeId::ROOT, b"dir", &new(0o040_755), false).await.unwrap();
        let file = server.create(dir.node, b"file", &new(0o100_644), false).await.unwrap();
        let handle = (file.node, file.generation);
        // Another mount.
        server.close().await;
        drop(server);
        let server = open(&pool).await;
        let found = server.lookup(handle.0, b".").await.unwrap();
        assert_eq!((found.node, found.generation), handle);
        assert_eq!(server.lookup(dir.node, b".").await.unwrap().generation, dir.generation);
        assert_eq!(server.lookup(dir.node, b"..").await.unwrap().node, NodeId::ROOT);
        assert_eq!(server.lookup(handle.0, b"..").await.unwrap_err(), Errno::NOTDIR);
        // Without its last name it is stale, also while it is open.
        server.open(handle.0, false).await.unwrap();
        server.remove(dir.node, b"file", false, caller).await.unwrap();
        assert_eq!(server.lookup(handle.0, b".").await.unwrap_err(), Errno::STALE);
        server.release(handle.0).await;
        server.remove(NodeId::ROOT, b"dir", true, caller).await.unwrap();
        assert_eq!(server.lookup(dir.node, b".").await.unwrap_err(), Errno::STALE);
        server.forget(dir.node, 1);
        // Node numbers that name no file are no handles.
        for number in [0, 2, 3, 4, 5, 1 << 40] {
            assert!(server.lookup(NodeId(number), b".").await.is_err(), "{number}");
        }
    });
}

/// xfstests generic/375. A list is set by a user who is not in the file's group.
#[test]
fn an_access_list_set_by_a_stranger_to_the_group_takes_set_group_id_away() {
    const USER: u32 = 1234;
    const GROUP: u32 = 4321;
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root becomes another user");
        return;
    }
    let options = MountOptions { access: Access::All, suid: true, ..MountOptions::default() };
    mounted_as(&[("acltype", 1)], &options, 1, |_, at| {
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
        let file = at.join("file");
        for (gid, stays) in [(GROUP, false), (USER, true)] {
            fs::write(&file, "").unwrap();
            std::os::unix::fs::chown(&file, Some(USER), Some(gid)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o2775)).unwrap();
            // The caller's groups are its one.
            let mut set = Command::new("setfacl");
            let set = set.args(["-m", "u:77:rwx"]).arg("file").current_dir(at).uid(USER).gid(USER).status();
            match set {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    assert!(std::env::var_os("CI").is_none(), "setfacl (package acl): {error}");
                    eprintln!("left out: setfacl (package acl): {error}");
                    return;
                }
                set => assert!(set.unwrap().success()),
            }
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, if stays { 0o2775 } else { 0o775 });
        }
    });
}

/// xfstests generic/213.
#[test]
fn no_more_is_promised_by_fallocate_than_there_is() {
    mounted(|at| {
        let file = File::create(at.join("file")).unwrap();
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            let told = rustix::fs::fallocate(&file, flags, 0, 1 << 40);
            assert_eq!(told, Err(Errno::NOSPC));
        }
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    });
}

/// xfstests generic/436, 445, 490 and 539: programs take the size of a block for the size of holes.
#[test]
fn holes_are_whole_blocks_of_the_size_that_stat_tells() {
    const BLOCK: u64 = 128 << 10;
    mounted(|at| {
        let file = File::create(at.join("file")).unwrap();
        assert_eq!(file.metadata().unwrap().blksize(), BLOCK, "that of a file that has not grown yet");
        file.write_all_at(b"short", 0).unwrap();
        assert_eq!(file.metadata().unwrap().blksize(), BLOCK);
        file.set_len(32 * BLOCK).unwrap();
        assert_eq!(file.metadata().unwrap().blksize(), BLOCK);
        file.write_all_at(&[1; 3], 7 * BLOCK + 1000).unwrap();
        let seek = |to| rustix::fs::seek(&file, to);
        for _ in 0..2 {
            assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
            assert_eq!(seek(SeekFrom::Hole(0)), Ok(BLOCK));
            assert_eq!(seek(SeekFrom::Data(BLOCK)), Ok(7 * BLOCK));
            assert_eq!(seek(SeekFrom::Hole(7 * BLOCK)), Ok(8 * BLOCK));
            assert_eq!(seek(SeekFrom::Data(8 * BLOCK)), Err(Errno::NXIO));
            file.sync_all().unwrap();
        }
    });
}

fn options_of(at: &Path) -> (String, Vec<String>) {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let fields: Vec<&str> = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| Path::new(fields[1]) == at)
        .unwrap();
    (fields[2].to_owned(), fields[3].split(',').map(str::to_owned).collect())
}

#[test]
fn the_systems_table_of_mounts_has_the_type_and_the_options() {
    for (list, there, absent) in [
        ("", &["rw", "nosuid", "nodev"][..], &["noatime", "noexec"][..]),
        ("noatime,noexec", &["rw", "noatime", "noexec"], &["relatime"]),
        ("sync", &["rw", "sync"], &[]),
    ] {
        let mut options = MountOptions::default();
        options.parse(list).unwrap();
        mounted_as(&[], &options, 1, move |_, at| {
            let (kind, options) = options_of(&at.canonicalize().unwrap());
            assert_eq!(kind, "fuse.cenote");
            let has = |name: &&&str| options.iter().any(|option| option == **name);
            assert!(
                there.iter().all(|name| has(&name)) && !absent.iter().any(|name| has(&name)),
                "{list}: {options:?}"
            );
        });
    }
}

#[test]
fn access_times_are_kept_as_the_mount_says_whatever_the_properties_say() {
    let mut options = MountOptions::default();
    options.parse("noatime").unwrap();
    mounted_as(&[("relatime", 0)], &options, 1, |_, at| {
        let file = at.join("file");
        fs::write(&file, "content").unwrap();
        let before = fs::metadata(&file).unwrap().accessed().unwrap();
        fs::read(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().accessed().unwrap(), before);
    });
}

/// xfstests generic/003: the second reader got its bytes from pages of the kernel's, of which the server hears nothing.
#[test]
fn each_reader_of_a_file_counts_where_access_times_are_strict() {
    let mut options = MountOptions::default();
    options.parse("strictatime").unwrap();
    mounted_as(&[], &options, 1, |_, at| {
        let file = at.join("file");
        fs::write(&file, "content").unwrap();
        let accessed = || {
            fs::read(&file).unwrap();
            fs::metadata(&file).unwrap().accessed().unwrap()
        };
        let (first, second, third) = (accessed(), accessed(), accessed());
        assert!(first < second && second < third, "{first:?}, {second:?}, {third:?}");
    });
}
