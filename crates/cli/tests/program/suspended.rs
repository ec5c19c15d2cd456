//! Goal: a server whose devices fail does what the property `failmode` says, tells so, loses nothing when they are back and are
//! cleared, and leaves a whole pool however it ends. Method: `cenote serve --rw` on files that the kernel lets it write or not, by the
//! limit on the size of files, and the command line beside it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::images::Images;

const PATIENCE: Duration = Duration::from_secs(120);

struct Server {
    images: Images,
    child: Child,
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Server {
    fn start(failmode: &str) -> Self {
        let images = Images::made(&["mirror"], 2, &[]);
        images.run("zpool", &["set", &format!("failmode={failmode}"), "mine"]);
        images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
        let socket = images.cache.path().join("nbd.sock");
        let serve = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "mine"]);
        // A write beyond the limit is an error, and not the end.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
        command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { images, child };
        until("no server", || {
            assert!(server.child.try_wait().unwrap().is_none(), "the server has ended");
            let Ok(found) = std::fs::read_dir(server.images.cache.path().join("servers")) else { return false };
            socket.exists() && found.flatten().any(|entry| UnixStream::connect(entry.path()).is_ok())
        });
        server
    }

    /// Lets it write to files, or not.
    fn may_write(&self, may: bool) {
        let limit = if may { "--fsize=unlimited:unlimited" } else { "--fsize=0:unlimited" };
        let done = Command::new("prlimit").args(["--pid", &self.child.id().to_string(), limit]).status().unwrap();
        assert!(done.success());
    }

    fn status(&self) -> String {
        self.images.run("zpool", &["status", "mine"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_suspended_pool_says_so_and_goes_on_when_it_is_cleared() {
    for failmode in ["wait", "continue"] {
        let mut server = Server::start(failmode);
        let images = &server.images;
        images.run("zpool", &["clear", "mine"]);
        assert!(server.status().contains(" state: ONLINE"));
        // Of a txg that is being committed one leg could miss the labels.
        images.run("zpool", &["sync", "mine"]);
        server.may_write(false);
        let refused = images.refused("zpool", &["set", "comment=late", "mine"]);
        assert!(refused.contains("suspended"), "{refused}");
        let status = server.status();
        for words in [" state: SUSPENDED", "faulted in response to IO failures", "run 'zpool clear'", "0.img"] {
            assert!(status.contains(words), "{words}: {status}");
        }
        // A txg may have got as far as its uberblock before.
        assert!(status.contains("write error") || status.contains("no device took the uberblock"), "{status}");
        let json = images.run("zpool", &["status", "-j", "mine"]);
        assert!(json.contains("\"state\":\"SUSPENDED\""), "{json}");
        assert!(images.refused("zfs", &["list", "mine"]).contains("currently suspended"));
        // A process that reads the devices itself does not wait for the server's.
        let read = images.command("ls", &["mine"]).output().unwrap();
        let told = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success() && told.contains("without what that has in memory"), "{read:?}");
        assert!(images.refused("zpool", &["export", "mine"]).contains("suspended"));
        assert!(images.refused("zpool", &["clear", "mine"]).contains("cannot clear errors for mine"));
        assert!(server.status().contains("SUSPENDED"));
        server.may_write(true);
        images.run("zpool", &["clear", "mine"]);
        let status = server.status();
        assert!(status.contains(" state: ONLINE"), "{status}");
        // The refused requests may have been carried out or not; from now on all are.
        images.run("zpool", &["set", "comment=late", "mine"]);
        assert_eq!(images.run("zpool", &["get", "-Ho", "value", "comment", "mine"]).trim(), "late");
        images.run("zfs", &["create", "mine/after"]);
        images.run("zpool", &["export", "mine"]);
        assert!(server.child.wait().unwrap().success());
        server.images.assert_whole();
    }
}

/// A leg that a person has taken offline lacks what was written since: it is no way out, and the message says so; when the other one is back both are.
#[test]
fn a_leg_that_is_offline_cannot_stand_in_for_the_last_one() {
    let mut server = Server::start("continue");
    let images = &server.images;
    images.run("zpool", &["offline", "mine", "1.img"]);
    images.run("zpool", &["sync", "mine"]);
    server.may_write(false);
    images.refused("zpool", &["set", "comment=late", "mine"]);
    let refused = images.refused("zpool", &["online", "mine", "1.img"]);
    assert!(refused.contains("1.img' is OFFLINE and cannot stand in: it lacks txgs "), "{refused}");
    assert!(refused.contains("'zpool clear mine' once its devices are back"), "{refused}");
    server.may_write(true);
    images.run("zpool", &["clear", "mine"]);
    images.run("zpool", &["online", "mine", "1.img"]);
    images.run("zpool", &["wait", "mine"]);
    until("it is resilvered", || server.status().contains(" state: ONLINE"));
    images.run("zpool", &["export", "mine"]);
    assert!(server.child.wait().unwrap().success());
    server.images.assert_whole();
}

#[test]
fn with_failmode_panic_the_server_ends_at_once_and_the_pool_is_whole() {
    let mut server = Server::start("panic");
    server.may_write(false);
    // Whether it still answers is a matter of luck.
    let _ = server.images.command("zpool", &["set", "comment=never", "mine"]).output().unwrap();
    let status = server.child.wait().unwrap();
    assert_eq!(status.signal(), Some(6), "{status}");
    server.images.assert_whole();
}

#[test]
fn a_suspended_pool_that_is_exported_by_force_or_killed_is_as_of_the_last_txg() {
    for is_killed in [false, true] {
        let mut server = Server::start("wait");
        server.images.run("zfs", &["create", "mine/before"]);
        server.may_write(false);
        server.images.refused("zfs", &["create", "mine/after"]);
        if is_killed {
            server.child.kill().unwrap();
        } else {
            // Nobody has said that the devices are back.
            server.may_write(true);
            server.images.run("zpool", &["export", "-f", "mine"]);
        }
        assert!(!server.child.wait().unwrap().success());
        server.images.assert_whole();
        let names = server.images.run("zfs", &["list", "-Hro", "name", "mine"]);
        assert_eq!(names.lines().collect::<Vec<_>>(), ["mine", "mine/before", "mine/v"]);
    }
}

/// `zpool status` of all pools showed no error that a server had counted, and nothing of a pool that was suspended.
#[test]
fn the_status_of_several_pools_is_what_their_processes_know() {
    let server = Server::start("wait");
    let images = &server.images;
    let other = images.cache.path().join("other").display().to_string();
    common::good(images.bare().args(["zpool", "create", "--size", "80M", "other", &other]));
    let bare = |words: &[&str]| String::from_utf8(common::good(images.bare().args(words))).unwrap();
    images.run("zpool", &["sync", "mine"]);
    server.may_write(false);
    images.refused("zpool", &["set", "comment=late", "mine"]);
    for line in [&["zpool", "status"][..], &["zpool", "status", "other", "mine", "mine"]] {
        let all = bare(line);
        let states: Vec<&str> =
            all.lines().filter(|line| line.starts_with("  pool: ") || line.starts_with(" state: ")).collect();
        assert_eq!(states, ["  pool: mine", " state: SUSPENDED", "  pool: other", " state: ONLINE"], "{all}");
        assert!(all.contains("\n\n  pool: other") && all.contains("run 'zpool clear'"), "{all}");
    }
    let bad = bare(&["zpool", "status", "-x"]);
    assert!(bad.starts_with("  pool: mine\n state: SUSPENDED") && !bad.contains("other"), "{bad}");
    let document: serde_json::Value = serde_json::from_str(&bare(&["zpool", "status", "-j"])).unwrap();
    for (pool, state) in [("mine", "SUSPENDED"), ("other", "ONLINE")] {
        assert_eq!(document["pools"][pool]["state"], state, "{document}");
    }
    server.may_write(true);
    images.run("zpool", &["clear", "mine"]);
    assert_eq!(bare(&["zpool", "status", "-x"]), "all pools are healthy\n");
    let each = "pool 'mine' is healthy\npool 'other' is healthy\n";
    assert_eq!(bare(&["zpool", "status", "-x", "mine", "other"]), each);
    let health = bare(&["zpool", "list", "-H", "-o", "name,health"]);
    assert_eq!(health, "mine\tONLINE\nother\tONLINE\n");
}

/// Found by an outsider: commands did not reach the process of a pool whose labels were overwritten, and `export` forgot the pool, which went on.
#[test]
fn a_pool_whose_labels_are_gone_is_reached_through_its_process() {
    let mut server = Server::start("wait");
    let images = &server.images;
    images.run("zpool", &["sync", "mine"]);
    for file in std::fs::read_dir(&images.dir).unwrap().flatten() {
        let file = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        let size_bytes = file.metadata().unwrap().len();
        for at in [0, size_bytes - (512 << 10)] {
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; 512 << 10], at).unwrap();
        }
    }
    let bare = |words: &[&str]| String::from_utf8(common::good(images.bare().args(words))).unwrap();
    let status = bare(&["zpool", "status", "mine"]);
    assert!(status.contains(" state: ONLINE"), "{status}");
    bare(&["zfs", "create", "mine/later"]);
    bare(&["zpool", "sync", "mine"]);
    bare(&["zpool", "scrub", "-w", "mine"]);
    let status = bare(&["zpool", "status", "mine"]);
    assert!(status.contains("scrub repaired 896K"), "eight labels of 112 KiB: {status}");
    bare(&["zpool", "export", "mine"]);
    assert!(server.child.wait().unwrap().success());
    server.images.assert_whole();
    assert!(server.images.run("zfs", &["list", "-Hro", "name", "mine"]).contains("mine/later"));
}
