//! Real mounts of golden pools, seen through the kernel by ordinary programs.
//!
//! The manifests have each dataset as OpenZFS showed it; a mount must show the same: every name, attribute, time,
//! link, extended attribute and byte. Then the parts of FUSE's own: `.zfs`, nested datasets, many readers at once, ends of
//! mounts of all kinds.

use crate::support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use cenote_fuse::{Layout, MountError, MountOptions, Unmount, Unmounted};
use cenote_testkit::{Elsewhere, walk};
use rustix::io::Errno;
use support::{Opened, alone, can_mount};

/// Every dataset and snapshot of a theme, mounted by itself, is what the manifest says.
fn theme_matches(theme: &str) {
    if !can_mount() {
        return;
    }
    let opened = Opened::new(theme);
    let datasets = opened.mountable();
    assert!(!datasets.is_empty());
    for dataset in datasets {
        opened.mounted(&dataset, &alone(), |at| opened.compare(&dataset, walk::entries(at).unwrap()));
    }
    assert_eq!(*opened.reports.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn basic_pools_look_as_they_did_in_openzfs() {
    theme_matches("basic");
}

#[test]
fn snapshots_and_clones_look_as_they_did_in_openzfs() {
    theme_matches("snapshots");
}

#[test]
fn extended_attributes_look_as_they_did_in_openzfs() {
    theme_matches("xattrs");
}

#[test]
fn acls_look_as_they_did_in_openzfs() {
    theme_matches("acl");
}

#[test]
fn encrypted_datasets_look_as_they_did_in_openzfs() {
    theme_matches("encryption_small");
}

#[test]
fn files_of_all_record_sizes_look_as_they_did_in_openzfs() {
    theme_matches("recordsizes");
}

#[test]
fn one_mount_shows_nested_datasets_and_all_snapshots() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    let pool = opened.manifest.pools[0].clone();
    let mut seen = 0;
    opened.mounted(&pool, &MountOptions::default(), |at| {
        for dataset in opened.mountable() {
            let (head, snapshot) = match dataset.split_once('@') {
                Some((head, snapshot)) => (head, Some(snapshot)),
                None => (dataset.as_str(), None),
            };
            let mut folder = at.join(head.strip_prefix(&pool).unwrap().trim_start_matches('/'));
            if let Some(snapshot) = snapshot {
                folder = folder.join(".zfs/snapshot").join(snapshot);
            } else {
                continue;
            }
            opened.compare(&dataset, walk::entries(&folder).unwrap());
            seen += 1;
        }
    });
    assert!(seen >= 5, "{seen}");
}

#[test]
fn no_two_files_of_a_mount_have_the_same_inode_number() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    let pool = opened.manifest.pools[0].clone();
    opened.mounted(&pool, &MountOptions::default(), |at| {
        let mut places = vec![at.to_owned()];
        for dataset in opened.mountable() {
            if let Some((head, snapshot)) = dataset.split_once('@') {
                let head = at.join(head.strip_prefix(&pool).unwrap().trim_start_matches('/'));
                places.push(head.join(".zfs/snapshot").join(snapshot));
            }
        }
        let mut seen = std::collections::BTreeMap::new();
        let mut files = 0;
        while let Some(place) = places.pop() {
            for item in fs::read_dir(&place).unwrap() {
                let path = item.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                files += 1;
                if metadata.is_dir() {
                    if path.file_name().unwrap() != ".zfs" {
                        places.push(path.clone());
                    }
                    if let Some(other) = seen.insert(metadata.ino(), path.clone()) {
                        panic!("{path:?} and {other:?} are both {}", metadata.ino());
                    }
                } else if metadata.nlink() == 1
                    && let Some(other) = seen.insert(metadata.ino(), path.clone())
                {
                    panic!("{path:?} and {other:?} are both {}", metadata.ino());
                }
            }
        }
        assert!(files > 500, "{files}");
    });
}

#[test]
fn the_control_directory_is_hidden_or_listed_as_snapdir_says_and_always_found_by_name() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    let names = |at: &Path| {
        let mut names: Vec<String> =
            fs::read_dir(at).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // snapdir=visible
    opened.mounted("duncorel0/kelvenur1/wildunmor2", &alone(), |at| {
        assert!(names(at).contains(&".zfs".to_owned()));
        assert_eq!(names(&at.join(".zfs")), ["shares", "snapshot"]);
        assert_eq!(names(&at.join(".zfs/snapshot")), ["s1", "s2"]);
        assert_eq!(names(&at.join(".zfs/shares")), Vec::<String>::new());
        let ino = |name: &str| fs::metadata(at.join(name)).unwrap().ino();
        assert_eq!(ino(".zfs"), 0x0000_ffff_ffff_ffff);
        assert_eq!(ino(".zfs/shares"), 0x0000_ffff_ffff_fffe);
        assert_eq!(ino(".zfs/snapshot"), 0x0000_ffff_ffff_fffd);
        assert_eq!(ino(".zfs/snapshot/s1"), 281_474_976_710_556);
        assert_eq!(fs::metadata(at.join(".zfs/snapshot")).unwrap().nlink(), 4);
    });
    // snapdir=hidden
    opened.mounted("duncorel0/promoted", &alone(), |at| {
        assert!(!names(at).contains(&".zfs".to_owned()));
        assert_eq!(names(&at.join(".zfs/snapshot")), ["s1", "s2", "s3"]);
        assert_eq!(fs::metadata(at.join(".zfs/snapshot/s4")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    });
    // A snapshot has none.
    opened.mounted("duncorel0/promoted@s1", &alone(), |at| {
        assert_eq!(fs::metadata(at.join(".zfs")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    });
}

#[test]
fn holes_are_found_by_seeking() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    let mut with_holes = 0;
    for dataset in opened.mountable() {
        opened.mounted(&dataset, &alone(), |at| {
            for entry in opened.expected(&dataset)["entries"].as_array().unwrap() {
                let Some(path) = entry["path"].as_str().filter(|_| entry["type"] == "f") else { continue };
                let file = File::open(at.join(path)).unwrap();
                let size = file.metadata().unwrap().len();
                let mut at = 0;
                let mut data = vec![0; 0];
                while let Ok(begin) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
                    // Between the ends of data there are only zeros.
                    assert!(begin >= at);
                    with_holes += u32::from(begin > at);
                    data.resize((begin - at).min(1 << 20) as usize, 1);
                    file.read_exact_at(&mut data, at).unwrap();
                    assert!(data.iter().all(|byte| *byte == 0));
                    at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(begin)).unwrap();
                    assert!(at > begin && at <= size);
                }
                assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(size)).unwrap_err(), Errno::NXIO);
            }
        });
    }
    assert!(with_holes > 0);
}

#[test]
fn many_readers_at_once_all_read_the_same() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("recordsizes");
    let dataset = opened.mountable().pop().unwrap();
    opened.mounted(&dataset, &alone(), |at| {
        let whole = walk::entries(at).unwrap();
        std::thread::scope(|scope| {
            let walks: Vec<_> = (0..6).map(|_| scope.spawn(|| walk::entries(at).unwrap())).collect();
            for walk in walks {
                assert_eq!(walk.join().unwrap(), whole);
            }
        });
    });
}

#[test]
fn reads_at_any_offset_agree_with_reading_in_order() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("recordsizes");
    for dataset in opened.mountable() {
        opened.mounted(&dataset, &alone(), |at| {
            for entry in opened.expected(&dataset)["entries"].as_array().unwrap() {
                let Some(path) = entry["path"].as_str().filter(|_| entry["type"] == "f") else { continue };
                let mut file = File::open(at.join(path)).unwrap();
                let mut whole = Vec::new();
                file.read_to_end(&mut whole).unwrap();
                let len = whole.len() as u64;
                for (offset, want) in [(len / 3, 70_001), (len.saturating_sub(5), 100), (len, 10), (len / 2, 1)] {
                    let mut part = vec![0; want];
                    file.seek(SeekFrom::Start(offset)).unwrap();
                    let got = file.read(&mut part).unwrap();
                    let rest = &whole[offset as usize..];
                    assert_eq!(part[..got], rest[..got]);
                    assert!(got == want.min(rest.len()) || got > 0);
                }
            }
        });
    }
}

#[test]
fn ordinary_programs_agree_with_each_other() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("acl");
    let dataset = "firurbe0/acl-sa";
    opened.mounted(dataset, &alone(), |at| {
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(at).output();
            let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            output.stdout
        };
        let found = run("find", &[".", "-print0"]);
        let count = found.split(|byte| *byte == 0).filter(|path| !path.is_empty()).count();
        assert_eq!(count, opened.expected(dataset)["entries"].as_array().unwrap().len());
        // The tree that tar packs and unpacks elsewhere is the same.
        let copy = tempfile::tempdir().unwrap();
        let archive = run("tar", &["-c", "--xattrs", "--acls", "--numeric-owner", "."]);
        let tar = copy.path().join("a.tar");
        fs::write(&tar, archive).unwrap();
        let listing = Command::new("tar").arg("-tf").arg(&tar).output().unwrap();
        let listed = listing.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        // tar packs no sockets.
        let expected = opened.expected(dataset);
        let sockets = expected["entries"].as_array().unwrap().iter().filter(|entry| entry["type"] == "s").count();
        assert!(listing.status.success() && listed + sockets == count, "{listed} and {count}");
        if Command::new("getfacl").arg("--version").output().is_ok() {
            let acl = String::from_utf8(run("getfacl", &["-n", "f1"])).unwrap();
            assert!(acl.lines().filter(|line| line.starts_with("user:") && !line.starts_with("user::")).count() > 0);
        }
        if Command::new("getfattr").arg("--version").output().is_ok() {
            let dump = String::from_utf8(run("getfattr", &["-d", "-m", "-", "-e", "hex", "d1"])).unwrap();
            assert!(dump.contains("system.posix_acl_default=0x02000000"), "{dump}");
        }
    });
    // With acltype=off the same bytes are there and not shown.
    opened.mounted("firurbe0/off", &alone(), |at| {
        let mut value = [0_u8; 256];
        let result = rustix::fs::lgetxattr(at, "system.posix_acl_access", &mut value);
        assert!(matches!(result, Err(Errno::NODATA | Errno::OPNOTSUPP)), "{result:?}");
    });
}

#[test]
fn statfs_has_the_figures_of_the_dataset() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    opened.mounted("duncorel0/promoted", &alone(), |at| {
        let space = rustix::fs::statvfs(at).unwrap();
        assert_eq!(space.f_frsize, 128 << 10);
        assert!(space.f_blocks > space.f_bfree && space.f_files > space.f_ffree);
        let json = opened.theme.manifest_json().unwrap();
        let properties = &json["sections"][0]["zfs_get"]["datasets"]["duncorel0/promoted"]["properties"];
        let number = |name: &str| properties[name]["value"].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(space.f_blocks - space.f_bfree, number("referenced").div_ceil(128 << 10));
        assert_eq!(space.f_bavail, number("available") / (128 << 10));
    });
}

#[test]
fn nothing_can_be_changed() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    opened.mounted(&opened.mountable()[0], &alone(), |at| {
        let is_refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        };
        is_refused(fs::write(at.join("new"), b"x"));
        is_refused(fs::create_dir(at.join("new")));
        is_refused(fs::set_permissions(at, fs::metadata(at).unwrap().permissions()));
    });
}

#[test]
fn a_mount_in_use_is_not_ended_unless_detached() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    let dir = tempfile::tempdir().unwrap();
    let dataset = &opened.mountable()[0];
    let mount = opened.mount(dataset, dir.path(), &alone());
    let held = File::open(dir.path()).unwrap();
    let busy = opened.runtime.block_on(mount.unmount(Unmount::Unused));
    assert!(matches!(busy, Err(MountError::Busy(_))), "{busy:?}");
    assert!(!mount.has_ended());
    opened.runtime.block_on(mount.unmount(Unmount::Detach)).unwrap();
    // Gone from the tree of names, and still there for who holds it.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(rustix::fs::fstat(&held).is_ok());
    drop(held);
    opened.runtime.block_on(mount.ended()).unwrap();
}

#[test]
fn a_mount_ended_by_somebody_else_is_noticed() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    let dir = tempfile::tempdir().unwrap();
    let mount = opened.mount(&opened.mountable()[0], dir.path(), &alone());
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    opened.runtime.block_on(mount.ended()).unwrap();
    assert!(mount.has_ended());
    opened.runtime.block_on(mount.unmount(Unmount::Unused)).unwrap();
}

/// Goal: a mount ends although another mount namespace still has it, as a container's does that was started meanwhile. Would go wrong
/// if the end of the kernel's session were waited for.
#[test]
fn a_mount_that_another_namespace_has_too_ends() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    let dir = tempfile::tempdir().unwrap();
    let mount = opened.mount(&opened.mountable()[0], dir.path(), &alone());
    let elsewhere = Elsewhere::new().unwrap();
    assert_eq!(opened.runtime.block_on(mount.unmount(Unmount::Unused)).unwrap(), Unmounted::Detached);
    assert!(!mount.has_ended());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // Its users get an error, and none of them waits.
    let refused = fs::read_dir(elsewhere.path(dir.path())).and_then(|mut entries| entries.next().transpose());
    assert_eq!(refused.map(drop).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    drop(elsewhere);
    opened.runtime.block_on(mount.ended()).unwrap();
}

/// Goal: the end of a mount leaves another one alone that was mounted at its place meanwhile, over it or after
/// somebody had unmounted the first. Would go wrong
/// if a path alone said what is to be unmounted.
#[test]
fn a_later_mount_at_the_same_place_is_not_touched() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    let dir = tempfile::tempdir().unwrap();
    let is_there = || fs::read_dir(dir.path()).unwrap().count() > 0;
    for (is_dropped, is_covered) in [(true, false), (false, false), (true, true), (false, true)] {
        let first = opened.mount("duncorel0/promoted", dir.path(), &alone());
        // An open file keeps the first one's session alive, as another mount namespace does.
        let held = File::open(dir.path()).unwrap();
        if !is_covered {
            rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
            assert!(!first.has_ended() && !is_there());
        }
        let second = opened.mount("duncorel0/promoted@s1", dir.path(), &alone());
        assert!(is_there());
        if is_dropped {
            drop(first);
        } else {
            assert_eq!(opened.runtime.block_on(first.unmount(Unmount::Unused)).unwrap(), Unmounted::Detached);
        }
        assert!(is_there(), "dropped {is_dropped}, covered {is_covered}");
        drop(held);
        opened.runtime.block_on(second.unmount(Unmount::Unused)).unwrap();
        if is_covered {
            rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
        assert!(!is_there());
    }
}

#[test]
fn several_mounts_live_in_one_process_and_dropping_one_detaches_it() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("snapshots");
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = opened.mount("duncorel0/promoted", a.path(), &alone());
    let second = opened.mount("duncorel0/promoted@s1", b.path(), &alone());
    assert!(fs::read_dir(a.path()).unwrap().count() > 0);
    assert_ne!(fs::metadata(a.path()).unwrap().dev(), fs::metadata(b.path()).unwrap().dev());
    drop(first);
    assert_eq!(fs::read_dir(a.path()).unwrap().count(), 0);
    assert!(fs::read_dir(b.path()).unwrap().count() > 0);
    opened.runtime.block_on(second.unmount(Unmount::Unused)).unwrap();
}

#[test]
fn datasets_by_names_are_all_there() {
    if !can_mount() {
        return;
    }
    let opened = Opened::new("basic");
    let pool = opened.manifest.pools[0].clone();
    let options = MountOptions { layout: Layout::Names, ..MountOptions::default() };
    opened.mounted(&pool, &options, |at| {
        for dataset in opened.mountable().iter().filter(|name| !name.contains('@') && **name != pool) {
            let folder = at.join(dataset.strip_prefix(&format!("{pool}/")).unwrap());
            let expected = opened.expected(dataset)["entries"].as_array().unwrap().len();
            let found = walk::entries(&folder).unwrap();
            // Datasets nested in this one add to it.
            assert!(found.as_array().unwrap().len() >= expected, "{dataset}");
        }
    });
}

#[test]
fn a_key_that_is_not_loaded_is_said() {
    if !can_mount() {
        return;
    }
    let theme = cenote_testkit::Golden::selection().unwrap().theme("encryption_small").unwrap();
    let opened = Opened::of(theme, false);
    let root = opened.manifest.keys.keys().next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let handle = opened.handle();
    let options = MountOptions::default();
    let mount = cenote_fuse::mount(&handle, &opened.pool, root, dir.path(), &options, opened.report());
    let error = opened.runtime.block_on(mount).unwrap_err().to_string();
    assert!(error.contains(root) && error.contains("key is not loaded"), "{error}");
}
