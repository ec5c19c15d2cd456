//! Goal: a mount begins and ends the same whether its requests come by the device or by a ring (FUSE over io_uring), and whether root or
//! fusermount3 made it. Method: `cenote mount --rw` as a process, both ways; it is killed, detached, aborted, stopped and mounted again.
//! The system's switch for rings is set here, and put back. Left out: what the machine does not let be tried, which is printed.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::good;
use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use rustix::mount::{UnmountFlags, unmount};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const USER: u32 = 65534;
/// The switch is the system's: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Puts the switch back.
struct Switch(String);

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// Does something by the device, and by a ring where there can be one.
fn both_ways(work: impl Fn(&'static str)) {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root sets the switch and becomes another user");
        return;
    }
    work("no_io_uring");
    let before = fs::read_to_string(SWITCH);
    match before.and_then(|before| fs::write(SWITCH, "Y").map(|()| Switch(before.trim().to_owned()))) {
        Ok(_switch) => work("io_uring"),
        Err(error) => eprintln!("left out: FUSE over io_uring cannot be switched on: {SWITCH}: {error}"),
    }
}

fn mounted(images: &Images, options: &str) -> Mounted {
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--rw", "mine", "-o", options]);
    command.arg(folder.path());
    Mounted::start(command, folder)
}

/// Whether a mount is there, whatever has become of its server.
fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == at.to_str())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "it takes too long: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn ends(mut child: Child) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(120), "a program hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn what_was_synced_is_there_after_a_kill_and_programs_do_not_hang() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        for round in 0..3 {
            let mut mounted = mounted(&images, way);
            let at = mounted.at().to_owned();
            let mut synced = File::create(at.join(format!("synced{round}"))).unwrap();
            synced.write_all(&vec![round; 300_000]).unwrap();
            synced.sync_all().unwrap();
            std::thread::scope(|scope| {
                for thread in 0..12 {
                    let path = at.join(format!("noise{thread}"));
                    scope.spawn(move || while fs::write(&path, vec![1; 1 << 20]).is_ok() && fs::read(&path).is_ok() {});
                }
                std::thread::sleep(Duration::from_millis(200));
                mounted.signal("-KILL");
                mounted.wait_whatever_it_says();
            });
            // Its server is gone, and it stays until somebody unmounts it.
            assert!(is_mounted(&at), "{way}");
            assert_eq!(
                fs::metadata(at.join("other")).unwrap_err().raw_os_error(),
                Some(rustix::io::Errno::NOTCONN.raw_os_error())
            );
            unmount(&at, UnmountFlags::DETACH).unwrap();
            drop(synced);
        }
        let mounted = mounted(&images, way);
        for round in 0..3 {
            assert_eq!(fs::read(mounted.path(&format!("synced{round}"))).unwrap(), vec![round; 300_000]);
        }
        mounted.end(End::Unmount);
        images.assert_whole();
    });
}

#[test]
fn a_detached_mount_ends_with_its_last_user_and_an_aborted_one_at_once() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        for forced in [false, true] {
            let mut mounted = mounted(&images, way);
            let mut file = File::create(mounted.path(&format!("file{forced}"))).unwrap();
            file.write_all(b"before").unwrap();
            let how = if forced { UnmountFlags::FORCE | UnmountFlags::DETACH } else { UnmountFlags::DETACH };
            unmount(mounted.at(), how).unwrap();
            if forced {
                assert!(file.write_all(b"after").is_err());
            } else {
                file.write_all(b"after").unwrap();
                std::thread::sleep(Duration::from_millis(200));
                assert!(mounted.runs());
            }
            drop(file);
            mounted.wait_whatever_it_says();
        }
        assert_eq!(images.run("cat", &["mine", "filefalse"]), "beforeafter", "{way}");
        images.assert_whole();
    });
}

#[test]
fn programs_that_are_killed_while_they_wait_end_with_their_request() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        let mounted = mounted(&images, way);
        fs::create_dir(mounted.path("dir")).unwrap();
        mounted.signal("-STOP");
        // More than a ring has room for; none of these names is known.
        let waiting: Vec<_> =
            (0..40).map(|index| quiet("stat").arg(mounted.path(&format!("dir/{index}"))).spawn().unwrap()).collect();
        std::thread::sleep(Duration::from_millis(300));
        for child in &waiting {
            good(Command::new("kill").arg("-KILL").arg(child.id().to_string()));
        }
        std::thread::sleep(Duration::from_millis(100));
        mounted.signal("-CONT");
        waiting.into_iter().for_each(ends);
        fs::write(mounted.path("dir/file"), way).unwrap();
        mounted.end(End::Unmount);
        images.assert_whole();
    });
}

#[test]
fn one_process_has_several_mounts_of_which_each_ends_by_itself() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        images.run("zfs", &["create", "mine/a"]);
        images.run("zfs", &["create", "mine/b"]);
        let folder = tempfile::tempdir().unwrap();
        let mut command = images.command("mount", &["--rw", "mine/a", "-o", way]);
        command.arg(folder.path());
        let first = Mounted::start(command, folder);
        let other = tempfile::tempdir().unwrap();
        let mut command = images.command("mount", &["--rw", "mine/b", "-o", way, "--background"]);
        good(command.arg(other.path()));
        assert!(is_mounted(other.path()));
        fs::write(other.path().join("file"), "b").unwrap();
        fs::write(first.path("file"), "a").unwrap();
        unmount(other.path(), UnmountFlags::empty()).unwrap();
        assert_eq!(fs::read(first.path("file")).unwrap(), b"a");
        first.end(End::Unmount);
        for (dataset, content) in [("mine/a", "a"), ("mine/b", "b")] {
            assert_eq!(images.run("cat", &[dataset, "file"]), content, "{way}");
        }
    });
}

/// By the device in any case. By root, since others need a line in `/etc/fuse.conf` for it.
#[test]
fn a_mount_that_unmounts_itself_is_gone_when_its_process_is_killed() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        for (who, lets_in) in [("allow_root", false), ("allow_other", true)] {
            let mut mounted = mounted(&images, &format!("auto_unmount,{who},{way}"));
            fs::set_permissions(mounted.at(), fs::Permissions::from_mode(0o755)).unwrap();
            let stranger = quiet("ls").arg(mounted.at()).uid(USER).gid(USER).status().unwrap();
            assert_eq!(stranger.success(), lets_in, "{who}, {way}");
            mounted.signal("-KILL");
            mounted.wait_whatever_it_says();
            until("it unmounts itself", || !is_mounted(mounted.at()));
        }
        let mut mounted = mounted(&images, &format!("auto_unmount,allow_root,{way}"));
        fs::write(mounted.path("file"), "f").unwrap();
        mounted.signal("-INT");
        assert!(mounted.wait_whatever_it_says().success());
        images.assert_whole();
    });
}

#[test]
fn a_user_who_may_not_mount_has_fusermount3_do_it() {
    both_ways(|way| {
        let images = Images::made(&[], 1, &[]);
        let folder = tempfile::tempdir().unwrap();
        let cache = images.dir.parent().unwrap();
        for path in [cache, &images.dir, &*images.files[0], folder.path()] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        fs::set_permissions(cache, fs::Permissions::from_mode(0o755)).unwrap();
        // The root directory is root's: the pool was made by it.
        let by_root = mounted(&images, way);
        chown(by_root.at(), Some(USER), Some(USER)).unwrap();
        by_root.end(End::Unmount);
        // The program, where others can start it.
        let program = cache.join("program");
        fs::copy(images.bare().get_program(), &program).unwrap();
        let mut command = Command::new(program);
        command.args(["mount", "--rw", "mine", "-o", way, "-f", "-d"]).arg(&images.dir).arg(folder.path());
        command.env("XDG_RUNTIME_DIR", cache).env("HOME", cache).current_dir(cache).uid(USER).gid(USER);
        let at = folder.path().to_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("it is mounted", || is_mounted(&at));
        // Root is a stranger to it.
        assert!(fs::read_dir(&at).is_err(), "{way}");
        let as_user = |script: &str| {
            let mut shell = quiet("sh");
            shell.arg("-c").arg(script).current_dir("/").env("AT", &at).uid(USER).gid(USER).status().unwrap().success()
        };
        assert!(as_user("echo hello > $AT/file && mkdir $AT/dir && test \"$(cat $AT/file)\" = hello"), "{way}");
        assert!(as_user("fusermount3 -u $AT"), "{way}");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("requests come by"), "{said}");
        assert_eq!(images.run("cat", &["mine", "file"]), "hello\n");
        images.assert_whole();
    });
}
