//! Devices that are to be one process's alone, by whatever name others come. Tests that need loop devices say so where there are none.
#![allow(clippy::disallowed_methods)]

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cenote_taskq::{Block, Class, Device, Direct, Holder, InUse, IoChoice, OpenOptions, Runtime, RuntimeOptions};

const IMAGE_BYTES: u64 = 16 << 20;

fn runtime() -> Runtime {
    Runtime::real(RuntimeOptions { workers: Some(1), io: IoChoice::Threads }).expect("a runtime")
}

/// A folder with an image. Not in `/tmp`, which may forbid device nodes.
fn image() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(".").expect("a folder");
    let path = folder.path().canonicalize().expect("there").join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(IMAGE_BYTES)).expect("an image");
    (folder, path)
}

fn output(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device that goes away again.
struct Loop(PathBuf);

impl Loop {
    /// None, with the reason printed, where there are none to be had.
    fn over(image: &Path) -> Option<Self> {
        let node = output("losetup", &["--find", "--show", image.to_str().expect("text")]);
        if node.is_none() {
            eprintln!("left out: no loop devices here (root, losetup)");
        }
        node.map(|node| Self(node.into()))
    }

    /// Its partition, once the kernel has made the node.
    fn partition(&self, number: u32) -> PathBuf {
        PathBuf::from(format!("{}p{number}", self.0.display()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        for number in 1..3 {
            if self.partition(number).exists() {
                output("delpart", &[self.0.to_str().expect("text"), &number.to_string()]);
            }
        }
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Waits for whoever may be about to end: a program that a test beside this one starts has this one's descriptors for a moment.
fn alone(runtime: &Runtime, path: &Path) -> std::io::Result<Device> {
    runtime.block_on(runtime.handle().open_alone(path, Duration::from_secs(60)))
}

/// Does not wait.
fn at_once(runtime: &Runtime, path: &Path) -> std::io::Result<Device> {
    runtime.block_on(runtime.handle().open_alone(path, Duration::ZERO))
}

#[track_caller]
fn refused(opened: std::io::Result<Device>) -> InUse {
    let error = opened.expect_err("it is somebody else's");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
    InUse::of(&error)
}

#[test]
fn a_file_is_one_openers_also_through_a_hard_link() {
    let (folder, path) = image();
    let link = folder.path().join("link");
    std::fs::hard_link(&path, &link).expect("linked");
    let runtime = runtime();
    let handle = runtime.handle();
    let first = alone(&runtime, &path).expect("open");
    refused(at_once(&runtime, &path));
    refused(at_once(&runtime, &link));
    assert_eq!(
        runtime.block_on(handle.identity(&path)).expect("known"),
        runtime.block_on(handle.identity(&link)).expect("known")
    );
    // Looking at it stays possible.
    runtime.block_on(handle.open(&path, OpenOptions::default())).expect("open");
    drop(first);
    alone(&runtime, &link).expect("open");
}

/// `cenote serve` that was killed and is started again at once: the kernel gives the lock of the dead back when their last request
/// is done (kill 163 of seed 20261123 was refused: "in use by another process").
#[test]
fn a_claim_that_is_given_back_late_is_waited_for() {
    let (_folder, path) = image();
    let runtime = runtime();
    let handle = runtime.handle();
    runtime.block_on(async {
        let dying = handle.open_alone(&path, Duration::ZERO).await.expect("open");
        let late = handle.clone();
        let end = handle.spawn(Class::Sync, async move {
            late.sleep(Duration::from_millis(50)).await;
            drop(dying);
        });
        handle.open_alone(&path, Duration::from_secs(600)).await.expect("open");
        end.await.expect("no panic");
    });
}

#[test]
fn two_nodes_of_a_device_are_one_device() {
    let (folder, path) = image();
    let Some(device) = Loop::over(&path) else { return };
    let number = std::fs::metadata(&device.0).expect("there").rdev();
    let node = folder.path().join("node");
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        &node,
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::from_raw_mode(0o600),
        number,
    );
    if made.is_err() || std::fs::File::open(&node).is_err() {
        eprintln!("left out: no device nodes can be made and opened here");
        return;
    }
    let runtime = runtime();
    let handle = runtime.handle();
    assert_eq!(runtime.block_on(handle.identity(&node)), runtime.block_on(handle.identity(&device.0)));
    let first = alone(&runtime, &device.0).expect("open");
    refused(at_once(&runtime, &node));
    drop(first);
    let second = alone(&runtime, &node).expect("open");
    refused(at_once(&runtime, &device.0));
    drop(second);
}

#[test]
fn an_image_and_its_loop_devices_exclude_each_other() {
    let (_folder, path) = image();
    let Some(one) = Loop::over(&path) else { return };
    let Some(two) = Loop::over(&path) else { return };
    let runtime = runtime();
    let handle = runtime.handle();
    assert_eq!(runtime.block_on(handle.identity(&path)), runtime.block_on(handle.identity(&one.0)));
    for (first, others) in [(&path, [&one.0, &two.0]), (&one.0, [&path, &two.0]), (&two.0, [&one.0, &path])] {
        let held = alone(&runtime, first).expect("open");
        for other in others {
            refused(at_once(&runtime, other));
        }
        drop(held);
    }
}

/// `O_EXCL` of a device says nothing of the loop devices over it, which the kernel may use.
#[test]
fn a_device_is_refused_while_a_loop_device_over_it_is_used() {
    let (_folder, path) = image();
    let Some(lower) = Loop::over(&path) else { return };
    let Some(upper) = Loop::over(&lower.0) else { return };
    let runtime = runtime();
    // `O_EXCL` and no more, as the kernel's users have it.
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let used = runtime.block_on(runtime.handle().open(&upper.0, options)).expect("open");
    for name in [&lower.0, &path] {
        assert_eq!(refused(at_once(&runtime, name)).through.as_ref(), Some(&upper.0));
    }
    drop(used);
    for name in [&upper.0, &lower.0, &path] {
        alone(&runtime, name).expect("open");
    }
}

#[test]
fn a_mounted_device_is_refused_by_every_name_and_where_it_is_mounted_is_said() {
    let (folder, path) = image();
    if output("mkfs.ext4", &["-q", path.to_str().expect("text")]).is_none() {
        eprintln!("left out: no mkfs.ext4");
        return;
    }
    let Some(device) = Loop::over(&path) else { return };
    let at = folder.path().canonicalize().expect("there").join("mounted");
    std::fs::create_dir(&at).expect("made");
    if output("mount", &[device.0.to_str().expect("text"), at.to_str().expect("text")]).is_none() {
        eprintln!("left out: nothing can be mounted here");
        return;
    }
    let runtime = runtime();
    let (by_device, by_image) = (at_once(&runtime, &device.0), at_once(&runtime, &path));
    let ended = output("umount", &[at.to_str().expect("text")]);
    let by = Holder::Mount { at: at.clone(), kind: "ext4".to_owned() };
    assert_eq!(refused(by_device), InUse { by: by.clone(), through: None });
    assert_eq!(refused(by_image), InUse { by, through: Some(device.0.clone()) });
    ended.expect("unmounted");
    alone(&runtime, &device.0).expect("open again");
}

#[test]
fn a_disk_and_its_partitions_exclude_each_other() {
    let (_folder, path) = image();
    let Some(disk) = Loop::over(&path) else { return };
    let (one, two) = (disk.partition(1), disk.partition(2));
    // Told to the kernel, which need not know any kind of table for it.
    for (number, start) in [("1", "2048"), ("2", "12288")] {
        output("addpart", &[disk.0.to_str().expect("text"), number, start, "8192"]);
    }
    if !one.exists() || !two.exists() {
        eprintln!("left out: the kernel makes no partitions of loop devices here");
        return;
    }
    let runtime = runtime();
    let handle = runtime.handle();
    let node = runtime.block_on(handle.partition_node(&disk.0, 2048 * 512, 8192 * 512));
    assert_eq!(node.as_ref(), Some(&one));
    assert_eq!(runtime.block_on(handle.partition_node(&disk.0, 2048 * 512, 8193 * 512)), None);
    let whole = alone(&runtime, &disk.0).expect("open");
    refused(at_once(&runtime, &one));
    refused(at_once(&runtime, &path));
    drop(whole);
    let held = alone(&runtime, &one).expect("open");
    refused(at_once(&runtime, &disk.0));
    refused(at_once(&runtime, &path));
    let neighbour = alone(&runtime, &two).expect("a partition leaves its neighbour alone");
    drop((held, neighbour));
    // A whole disk whose partition the kernel has names the partition.
    if output("mkfs.ext4", &["-q", two.to_str().expect("text")]).is_none() {
        return;
    }
    let at = tempfile::tempdir().expect("a folder");
    let mounted = output("mount", &[two.to_str().expect("text"), at.path().to_str().expect("text")]);
    if mounted.is_some() {
        let (whole, neighbour) = (at_once(&runtime, &disk.0), alone(&runtime, &one));
        output("umount", &[at.path().to_str().expect("text")]).expect("unmounted");
        assert_eq!(refused(whole).through, Some(two));
        neighbour.expect("what is beside a mounted partition is free");
    }
}

/// Nothing goes through a second opening: what is not of whole sectors is refused, and changes nothing.
#[test]
fn only_whole_sectors_reach_a_device_that_is_held_alone() {
    let (_folder, path) = image();
    let Some(device) = Loop::over(&path) else { return };
    let runtime = runtime();
    let handle = runtime.handle();
    let held = alone(&runtime, &device.0).expect("open");
    let error = runtime.block_on(held.write(100, Block::copied_from(b"odd"))).expect_err("a part of a sector");
    assert!(error.to_string().contains("not of whole sectors"), "{error}");
    runtime.block_on(held.write(512, Block::from(vec![7; 512]))).expect("written");
    runtime.block_on(held.flush()).expect("stable");
    drop(held);
    let options = OpenOptions { direct: Direct::Never, ..OpenOptions::default() };
    let again = runtime.block_on(handle.open(&device.0, options)).expect("open");
    let (result, buf) = runtime.block_on(again.read(100, cenote_taskq::Buf::unfilled(1024)));
    result.expect("read");
    assert_eq!((&buf[..3], &buf[412..924]), (&[0; 3][..], &[7; 512][..]));
}
