//! A mount whose requests come by io_uring: the same as by the device. The system's switch for it is set here, and put back.

use crate::support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use cenote_fuse::{MountOptions, Transport, Unmount};
use cenote_taskq::Rng;
use cenote_testkit::walk;
use support::live::mounted_as;
use support::{Opened, alone, can_mount};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The switch is the system's: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Puts the switch back.
struct Switch(String);

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Does something while the system allows rings. Says so where it does not.
fn with_ring(work: impl FnOnce()) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !can_mount() {
        return;
    }
    let before = fs::read_to_string(SWITCH);
    let set = before.and_then(|before| fs::write(SWITCH, "Y").map(|()| Switch(before.trim().to_owned())));
    match set {
        Ok(_switch) => work(),
        Err(error) => println!("skipped: FUSE over io_uring cannot be switched on: {SWITCH}: {error}"),
    }
}

fn options() -> MountOptions {
    MountOptions { transport: Transport::IoUring, ..alone() }
}

#[test]
fn pools_look_as_they_did_in_openzfs_by_a_ring() {
    with_ring(|| {
        for theme in ["basic", "xattrs"] {
            let opened = Opened::new(theme);
            for dataset in opened.mountable() {
                let dir = tempfile::tempdir().unwrap();
                let mount = opened.mount(&dataset, dir.path(), &options());
                assert!(mount.uses_io_uring());
                opened.compare(&dataset, walk::entries(dir.path()).unwrap());
                opened.runtime.block_on(mount.unmount(Unmount::Unused)).unwrap();
            }
        }
    });
}

#[test]
fn the_switch_decides_unless_an_option_wants_the_device() {
    with_ring(|| {
        let opened = Opened::new("basic");
        let dataset = opened.mountable().remove(0);
        let serves = |switch: &str, options: &MountOptions| {
            fs::write(SWITCH, switch).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let mount = opened.mount(&dataset, dir.path(), options);
            fs::read_dir(dir.path()).unwrap().for_each(drop);
            let by_ring = mount.uses_io_uring();
            opened.runtime.block_on(mount.unmount(Unmount::Unused)).unwrap();
            by_ring
        };
        let device = MountOptions { transport: Transport::Device, ..alone() };
        assert_eq!([serves("N", &alone()), serves("N", &options()), serves("Y", &device)], [false; 3]);
        assert_eq!([serves("Y", &alone()), serves("Y", &options())], [true; 2]);
    });
}

#[test]
fn many_threads_write_and_read_what_they_wrote_by_a_ring() {
    with_ring(|| {
        mounted_as(&[], &options(), 2, |time, at| {
            std::thread::scope(|scope| {
                for thread in 0..24u64 {
                    scope.spawn(move || one_of_many(at, time, thread));
                }
            });
        });
    });
}

fn one_of_many(at: &Path, time: u32, thread: u64) {
    let path = at.join(format!("{time}-{thread}"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut rng = Rng::new(thread);
    let mut expected = vec![0; 3 << 20];
    for _ in 0..30 {
        let (offset, len) = (rng.below(2 << 20) as usize, rng.below(1 << 20) as usize);
        let fill = rng.below(250) as u8;
        expected[offset..offset + len].fill(fill);
        file.write_all_at(&vec![fill; len], offset as u64).unwrap();
    }
    // It waits for a txg, and so goes on as a task.
    file.sync_all().unwrap();
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut File::open(&path).unwrap(), &mut read).unwrap();
    assert!(expected.starts_with(&read) && expected[read.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_mount_that_is_detached_or_aborted_ends_by_a_ring() {
    with_ring(|| {
        let opened = Opened::new("basic");
        let dataset = opened.mountable().remove(0);
        let dir = tempfile::tempdir().unwrap();
        for forced in [false, true] {
            let mount = opened.mount(&dataset, dir.path(), &options());
            assert!(mount.uses_io_uring());
            let held = File::open(dir.path()).unwrap();
            if forced {
                let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::FORCE);
                drop(held);
                opened.runtime.block_on(mount.unmount(Unmount::Detach)).unwrap();
            } else {
                opened.runtime.block_on(mount.unmount(Unmount::Detach)).unwrap();
                drop(held);
            }
            let begun = Instant::now();
            while !mount.has_ended() {
                assert!(begun.elapsed() < Duration::from_secs(20), "the mount has not ended");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}
