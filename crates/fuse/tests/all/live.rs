//! A file system that is changed through the kernel: the same random calls on a mount and on an ordinary directory have the
//! same results, and leave the same tree; then the pool is judged by OpenZFS's `zdb`.

use crate::support;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cenote_format::enums::ObjsetType;
use cenote_fuse::{Access, Layout, MountOptions, Tree, Unmount, mount_tree};
use cenote_spa::{Pool, SpaError};
use cenote_taskq::{Rng, Runtime, RuntimeOptions};
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use support::live::{judge, mounted, mounted_as, new_pool};

/// Everything below a directory: kind, mode, links of files, size, and content or target.
fn tree(at: &Path, below: &Path, into: &mut BTreeMap<PathBuf, (u32, u64, u64, Vec<u8>)>) {
    for entry in fs::read_dir(at.join(below)).unwrap() {
        let path = below.join(entry.unwrap().file_name());
        let whole = at.join(&path);
        let metadata = fs::symlink_metadata(&whole).unwrap();
        let (links, size, content) = if metadata.is_dir() {
            tree(at, &path, into);
            (0, 0, Vec::new())
        } else if metadata.is_symlink() {
            let target = fs::read_link(&whole).unwrap().into_os_string().into_encoded_bytes();
            (metadata.nlink(), metadata.size(), target)
        } else {
            (metadata.nlink(), metadata.size(), fs::read(&whole).unwrap())
        };
        into.insert(path, (metadata.mode(), links, size, content));
    }
}

/// One random call below a directory.
fn call(at: &Path, rng: &mut Rng) -> io::Result<u64> {
    let name = |rng: &mut Rng| {
        let mut path = PathBuf::new();
        for _ in 0..1 + rng.below(3) {
            path.push(format!("n{}", rng.below(5)));
        }
        at.join(path)
    };
    let (one, other) = (name(rng), name(rng));
    let (offset, len, fill) = (rng.below(300_000), rng.below(100_000) as usize, rng.below(250) as u8);
    match rng.below(14) {
        0 | 1 => fs::create_dir(&one).map(|()| 0),
        2 | 3 => OpenOptions::new().write(true).create_new(true).open(&one).map(|_| 0),
        4..=6 => {
            let file = OpenOptions::new().write(true).open(&one)?;
            file.write_all_at(&vec![fill; len], offset).map(|()| 0)
        }
        7 => OpenOptions::new().write(true).open(&one)?.set_len(offset).map(|()| 0),
        8 => fs::remove_file(&one).map(|()| 0),
        9 => fs::remove_dir(&one).map(|()| 0),
        10 | 11 => fs::rename(&one, &other).map(|()| 0),
        12 if rng.chance(1, 2) => fs::hard_link(&one, &other).map(|()| 0),
        12 => symlink("somewhere", &one).map(|()| 0),
        _ => {
            let metadata = fs::symlink_metadata(&one)?;
            if !metadata.is_symlink() {
                // Not so that a directory could not be used.
                let mode = 0o700 | u32::from(fill) & 0o77;
                fs::set_permissions(&one, fs::Permissions::from_mode(mode))?;
            }
            Ok(if metadata.is_dir() { 0 } else { metadata.size() })
        }
    }
}

#[test]
fn random_calls_have_the_results_that_an_ordinary_directory_gives() {
    mounted(|at| {
        let reference = tempfile::tempdir().unwrap();
        for seed in 0..4 {
            let (mut mine, mut theirs) = (Rng::new(seed), Rng::new(seed));
            for step in 0..800 {
                let told = call(at, &mut mine).map_err(|error| error.raw_os_error());
                let wanted = call(reference.path(), &mut theirs).map_err(|error| error.raw_os_error());
                assert_eq!(told, wanted, "seed {seed} step {step}");
                assert_eq!(mine.next_u64(), theirs.next_u64());
            }
            let (mut found, mut wanted) = (BTreeMap::new(), BTreeMap::new());
            tree(at, Path::new(""), &mut found);
            tree(reference.path(), Path::new(""), &mut wanted);
            assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
            for (path, (mode, links, size, content)) in &found {
                let other = &wanted[path];
                assert_eq!((mode, links, size), (&other.0, &other.1, &other.2), "{}", path.display());
                assert!(*content == other.3, "{}", path.display());
            }
        }
    });
}

#[test]
fn an_open_file_outlives_its_name_and_fsync_makes_durable() {
    mounted(|at| {
        let path = at.join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(b"hello", 0).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all_at(b" there", 5).unwrap();
        let mut read = [0; 11];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"hello there");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        rustix::fs::setxattr(at, "user.note", b"root", rustix::fs::XattrFlags::CREATE).unwrap();
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(at, "user.note", &mut value).unwrap(), 4);
        let hole = File::create(at.join("hole")).unwrap();
        hole.write_all_at(&[1; 4 << 20], 0).unwrap();
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&hole, flags, 1 << 20, 2 << 20).unwrap();
        assert_eq!(rustix::fs::seek(&hole, rustix::fs::SeekFrom::Hole(0)).unwrap(), 1 << 20);
        assert_eq!(rustix::fs::seek(&hole, rustix::fs::SeekFrom::Data(1 << 20)).unwrap(), 3 << 20);
    });
}

/// The kernel leaves it to us to take set-ids away, and keeps what it was told of a file's mode.
#[test]
fn set_ids_go_with_a_new_owner_and_stay_where_root_writes() {
    mounted(|at| {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: only root gives files away");
            return;
        }
        let reference = tempfile::tempdir().unwrap();
        let told = |at: &Path, mode: u32| {
            let path = at.join("f");
            fs::write(&path, b"some content").unwrap();
            let set = || fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let mode = || fs::metadata(&path).unwrap().mode();
            set();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"more", 3).unwrap();
            let written = mode();
            file.set_len(5).unwrap();
            let cut = mode();
            rustix::fs::fchown(&file, Some(rustix::process::Uid::from_raw(1234)), None).unwrap();
            let given = mode();
            set();
            rustix::fs::fchown(&file, None, Some(rustix::process::Gid::from_raw(4321))).unwrap();
            (written, cut, given, mode())
        };
        for mode in [0o6755, 0o4711, 0o2755, 0o2644, 0o6644, 0o755] {
            assert_eq!(told(at, mode), told(reference.path(), mode), "{mode:o}");
        }
    });
}

/// The kernel had the old mode still, and ran as root what anybody had written.
#[test]
fn nobody_runs_as_its_owner_what_another_has_written() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root mounts with set-ids in force for others");
        return;
    }
    let options = MountOptions { access: Access::All, suid: true, ..MountOptions::default() };
    mounted_as(&[], &options, 1, |_, at| {
        let program = at.join("program");
        let changes = [
            "dd if=/usr/bin/id of=program bs=1 count=1 conv=notrunc status=none",
            "fallocate -l 1000000 program",
            "truncate -s +1 program",
        ];
        for change in changes {
            fs::copy("/usr/bin/id", &program).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4777)).unwrap();
            let run = |command: &str| {
                let mut shell = std::process::Command::new("sh");
                shell.args(["-c", command]).current_dir(at).uid(NOBODY).gid(NOBODY);
                let output = shell.output().unwrap();
                assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
                String::from_utf8(output.stdout).unwrap().trim().to_owned()
            };
            assert_eq!(run("./program -u"), "0");
            assert_eq!(run(&format!("{change} && ./program -u")), NOBODY.to_string(), "{change}");
        }
    });
}

#[test]
fn a_tree_is_copied_in_and_out_by_ordinary_programs() {
    mounted(|at| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let shell = |command: &str| {
            let status = std::process::Command::new("sh").arg("-ec").arg(command).status().unwrap();
            assert!(status.success(), "{command}");
        };
        let (source, at) = (source.display(), at.display());
        shell(&format!("cp -a {source} {at}/a && diff -r {source} {at}/a && tar -C {at} -cf {at}/a.tar a"));
        shell(&format!(
            "mkdir {at}/b && tar -C {at}/b -xf {at}/a.tar && diff -r {source} {at}/b/a && rm -r {at}/a {at}/b"
        ));
    });
}

async fn make(pool: &Pool, name: &'static str) {
    let made = pool.change(move |syncer| {
        Box::pin(async move {
            let head = syncer.create_dataset(name, ObjsetType::Zfs).await?;
            BulkWriter::create(&head.objset, syncer.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() })
                .await
                .unwrap();
            Ok::<(), SpaError>(())
        })
    });
    made.await.unwrap();
}

#[test]
fn one_process_mounts_several_datasets_of_several_pools() {
    if !support::can_mount() {
        return;
    }
    let disks = tempfile::tempdir().unwrap();
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let paths = [disks.path().join("disk0"), disks.path().join("disk1")];
    runtime.block_on(async {
        let options = MountOptions { layout: Layout::Names, ..MountOptions::default() };
        let told = Arc::new(Mutex::new(Vec::new()));
        let (mut pools, mut mounts, mut folders) = (Vec::new(), Vec::new(), Vec::new());
        for path in &paths {
            let pool = new_pool(&handle, path).await;
            for name in ["mounted/x", "mounted/x/below", "mounted/y"] {
                make(&pool, name).await;
            }
            // The last shows those before it, which are somebody else's already.
            for dataset in ["mounted/x", "mounted/y", "mounted"] {
                let tell = Arc::clone(&told);
                let report = Arc::new(move |text: &str| tell.lock().unwrap().push(text.to_owned()));
                let tree = Tree::open_live(&pool, dataset, options.tree(report)).await.unwrap();
                let folder = tempfile::tempdir().unwrap();
                mounts.push(mount_tree(&handle, tree, folder.path(), &options).await.unwrap());
                folders.push(folder);
            }
            pools.push(pool);
        }
        let places: Vec<PathBuf> = folders.iter().map(|folder| folder.path().to_owned()).collect();
        let worked = handle.spawn_blocking(move || {
            for (number, at) in places.iter().enumerate() {
                fs::write(at.join("file"), number.to_string()).unwrap();
                if number % 3 == 0 {
                    fs::write(at.join("below/file"), number.to_string()).unwrap();
                }
                if number % 3 == 2 {
                    let busy = fs::metadata(at.join("x")).unwrap_err();
                    assert_eq!(busy.raw_os_error(), Some(rustix::io::Errno::BUSY.raw_os_error()));
                }
            }
            for (number, at) in places.iter().enumerate() {
                assert_eq!(fs::read(at.join("file")).unwrap(), number.to_string().into_bytes());
            }
        });
        worked.await.unwrap();
        for mount in mounts {
            mount.unmount(Unmount::Unused).await.unwrap();
        }
        let mut told = told.lock().unwrap().clone();
        told.sort();
        told.dedup();
        let wanted = ["x", "x/below", "y"].map(|name| format!("cannot open 'mounted/{name}': it is mounted already"));
        assert_eq!(told, wanted);
        for pool in pools {
            pool.export().await.unwrap();
        }
    });
    paths.iter().for_each(|path| judge(path));
}
