//! Goal: one process serves volumes and file systems of several pools, each for itself: each is exported alone, takes commands at its own
//! socket, and goes on, also to its end, while the devices of another fail. Method: `cenote serve --rw` on pools made here, one of
//! them in a file system that is full at times, with libnbd's tools, and OpenZFS's `zdb` at the end.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::has;
use common::{good, said};

/// Two pools, each with a file system and a volume.
struct Two {
    mine: Images,
    other: Images,
    scratch: tempfile::TempDir,
}

impl Two {
    fn new() -> Self {
        Self::with(Images::made(&["mirror"], 2, &[]))
    }

    fn with(mine: Images) -> Self {
        let mut other = Images::none();
        other.pool = "other".into();
        let image = other.dir.join("0.img");
        good(other.bare().args(["zpool", "create", "--size", "80M", "other"]).arg(image));
        other.note_files();
        for images in [&mine, &other] {
            let pool = &images.pool;
            images.run("zfs", &["create", &format!("{pool}/a")]);
            images.run("zfs", &["create", "-V", "4M", "-s", &format!("{pool}/v")]);
        }
        Self { mine, other, scratch: tempfile::tempdir().unwrap() }
    }

    /// The program on both pools, with the sockets of a server of theirs.
    fn command(&self, tool: &str, rest: &[&str]) -> Command {
        let mut command = self.mine.bare();
        command.arg(tool).arg("-d").arg(&self.mine.dir).arg("-d").arg(&self.other.dir).arg("-f").args(rest);
        command
    }

    fn run(&self, tool: &str, rest: &[&str]) -> String {
        String::from_utf8(good(&mut self.command(tool, rest))).unwrap()
    }

    fn output(&self, tool: &str, rest: &[&str]) -> Output {
        self.command(tool, rest).output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.path("nbd.sock").display())
    }

    /// A server of both, with mounts of `mine/a` at the folder of what comes back and of `other/a` at `other`.
    fn serve(&self, options: &[&str]) -> Mounted {
        let (socket, other) = (self.path("nbd.sock"), self.path("other"));
        let _ = fs::remove_file(&socket);
        let _ = fs::create_dir(&other);
        let folder = tempfile::tempdir().unwrap();
        let mount = |dataset: &str, at: &Path| format!("--mount={dataset}={}", at.display());
        let mut command = self.command("serve", options);
        command.arg("--unix").arg(&socket);
        // The last one is waited for.
        command.arg(mount("other/a", &other)).arg(mount("mine/a", folder.path())).args(["mine", "other"]);
        let mounted = Mounted::start(command, folder);
        until("no socket", || socket.exists());
        mounted
    }

    fn listed(&self) -> Vec<String> {
        let text = String::from_utf8(good(Command::new("nbdinfo").arg("--list").arg(self.uri("")))).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("export=\"")?.strip_suffix("\":"));
        names.map(str::to_owned).collect()
    }

    /// Writes a volume and reads it back.
    fn write(&self, volume: &str, byte: u8) {
        let source = self.path("source");
        fs::write(&source, vec![byte; 4 << 20]).unwrap();
        good(Command::new("nbdcopy").arg("--flush").arg(&source).arg(self.uri(volume)));
        self.check(volume, byte);
    }

    fn check(&self, volume: &str, byte: u8) {
        let copy = self.path("copy");
        good(Command::new("nbdcopy").arg(self.uri(volume)).arg(&copy));
        assert!(fs::read(copy).unwrap() == vec![byte; 4 << 20], "{volume}");
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn can_serve() -> bool {
    can_mount() && has("nbdcopy", "libnbd-bin")
}

#[test]
fn two_pools_are_served_each_for_itself() {
    if !can_serve() {
        return;
    }
    let two = Two::new();
    let mut serving = two.serve(&["--rw"]);
    assert_eq!(two.listed(), ["mine/v", "other/v"]);
    for (volume, byte) in [("mine/v", 1), ("other/v", 2)] {
        two.write(volume, byte);
    }
    fs::write(serving.path("file"), "mine").unwrap();
    fs::write(two.path("other/file"), "other").unwrap();
    // Commands for each go to its own socket.
    for pool in ["mine", "other"] {
        two.run("zfs", &["set", "a:b=c", pool]);
        two.run("zfs", &["create", &format!("{pool}/a/new")]);
    }
    fs::write(serving.path("new/file"), "mine").unwrap();
    fs::write(two.path("other/new/file"), "other").unwrap();
    assert!(two.run("zpool", &["list", "-Ho", "name"]).lines().eq(["mine", "other"]));
    // One for both is about each.
    two.run("zfs", &["set", "a:b=both", "mine", "other"]);
    let got = two.run("zfs", &["get", "-Ho", "value", "a:b", "mine", "other"]);
    assert!(got.lines().eq(["both", "both"]), "{got}");
    assert!(two.run("zfs", &["list", "-Ho", "name", "mine", "other/a"]).lines().eq(["mine", "other/a"]));
    // A further mount of the second one, by a command.
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().to_str().unwrap();
    let third = Mounted::start(two.command("mount", &["--rw", "-o", "layout=alone", "other", at]), folder);
    fs::write(third.path("third"), "other").unwrap();
    // One is exported alone: not while it is used.
    let open = File::open(two.path("other/file")).unwrap();
    let output = two.output("zpool", &["export", "other"]);
    assert!(said(&output).contains("pool is busy: 'other/a' is in use at"), "{}", said(&output));
    drop(open);
    two.run("zpool", &["export", "other"]);
    two.other.assert_whole();
    assert_eq!(two.other.run("cat", &["other/a/new", "/file"]), "other");
    assert!(fs::read_dir(two.path("other")).unwrap().next().is_none(), "it is unmounted");
    third.wait();
    // The other goes on.
    assert!(serving.runs());
    assert_eq!(two.listed(), ["mine/v"]);
    assert!(!Command::new("nbdinfo").arg(two.uri("other/v")).output().unwrap().status.success());
    two.write("mine/v", 3);
    fs::write(serving.path("more"), "mine").unwrap();
    let busy = serving.processor_time();
    std::thread::sleep(Duration::from_secs(1));
    assert!(serving.processor_time() - busy < Duration::from_millis(500), "the exported pool keeps it busy");
    // It can be had by another process meanwhile, and changed.
    two.other.run("zfs", &["set", "a:b=d", "other"]);
    serving.end(End::Signal("-TERM"));
    two.mine.assert_whole();
    two.other.assert_whole();
    // All is there, in the next process.
    let serving = two.serve(&["--rw"]);
    two.check("mine/v", 3);
    two.check("other/v", 2);
    assert_eq!(fs::read(serving.path("more")).unwrap(), b"mine");
    assert_eq!(fs::read(two.path("other/new/file")).unwrap(), b"other");
    serving.end(End::Signal("-INT"));
    two.mine.assert_whole();
    two.other.assert_whole();
    let serving = two.serve(&[]);
    assert_eq!(two.listed(), ["mine/v", "other/v"]);
    two.check("other/v", 2);
    assert_eq!(fs::read(two.path("other/file")).unwrap(), b"other");
    assert!(fs::write(two.path("other/file"), "").is_err());
    serving.end(End::Signal("-TERM"));
}

#[test]
fn a_pool_is_exported_by_force_from_under_its_clients_and_the_other_goes_on() {
    let Some(python) = common::serving::python().filter(|_| can_serve()) else { return };
    let two = Two::new();
    let serving = two.serve(&["--rw"]);
    let script = "import nbd, sys\n\
                  h = nbd.NBD(); h.connect_uri(sys.argv[1])\n\
                  h.pwrite(b'x' * 65536, 0); h.flush(); print('written', flush=True); sys.stdin.readline()\n\
                  try:\n    h.pwrite(b'y' * 65536, 0); print('no error')\n\
                  except nbd.Error as error: print(error.errno)\n\
                  sys.stdin.readline()\n";
    let client = |volume: &str| {
        let mut command = Command::new(python);
        command.args(["-c", script, &two.uri(volume)]);
        let pipe = std::process::Stdio::piped;
        command.stdin(pipe()).stdout(pipe()).spawn().unwrap()
    };
    let mut clients = ["mine/v", "other/v"].map(client);
    let line = |client: &mut std::process::Child| {
        let (mut text, mut byte) = (String::new(), [0]);
        while std::io::Read::read(client.stdout.as_mut().unwrap(), &mut byte).unwrap() > 0 && byte[0] != b'\n' {
            text.push(char::from(byte[0]));
        }
        text
    };
    assert!(clients.iter_mut().all(|client| line(client) == "written"));
    let mut file = File::create(two.path("other/file")).unwrap();
    let output = two.output("zpool", &["export", "other"]);
    assert!(said(&output).contains("pool is busy: a client has the volume 'other/v'"), "{}", said(&output));
    two.run("zpool", &["export", "-f", "other"]);
    assert!(std::io::Write::write_all(&mut file, b"late").is_err());
    drop(file);
    for client in &mut clients {
        std::io::Write::write_all(client.stdin.as_mut().unwrap(), b"\n").unwrap();
    }
    assert_eq!(line(&mut clients[0]), "no error");
    assert_eq!(line(&mut clients[1]), "ESHUTDOWN");
    // Its client is connected still, and its devices are free.
    two.other.assert_whole();
    two.other.run("zfs", &["set", "a:b=d", "other"]);
    for mut client in clients {
        drop(client.stdin.take());
        assert!(client.wait().unwrap().success());
    }
    serving.end(End::Signal("-TERM"));
    two.mine.assert_whole();
    two.other.assert_whole();
}

#[test]
fn without_volumes_each_pool_ends_with_its_last_mount() {
    if !can_mount() {
        return;
    }
    let two = Two::new();
    let folder = tempfile::tempdir().unwrap();
    let at = [two.path("other"), two.path("second")];
    at.iter().for_each(|at| fs::create_dir(at).unwrap());
    let mut command = two.command("serve", &["--rw", "-o", "layout=alone"]);
    for (dataset, at) in [("other", at[0].as_path()), ("other/a", at[1].as_path()), ("mine", folder.path())] {
        command.arg("--mount").arg(format!("{dataset}={}", at.display()));
    }
    command.args(["other", "mine"]);
    let mut serving = Mounted::start(command, folder);
    for at in [at[0].as_path(), &at[1], serving.at()] {
        fs::write(at.join("file"), "written").unwrap();
    }
    let unmount = |at: &Path| good(two.mine.bare().arg("unmount").arg(at));
    unmount(&at[0]);
    assert_eq!(two.run("cat", &["other", "/file"]), "written");
    unmount(&at[1]);
    two.other.assert_whole();
    assert!(serving.runs());
    fs::write(serving.path("more"), "written").unwrap();
    unmount(serving.at());
    two.mine.assert_whole();
    serving.wait();
    assert_eq!(two.other.run("cat", &["other/a", "/file"]), "written");
    assert_eq!(two.mine.run("cat", &["mine", "/more"]), "written");
}

#[test]
fn what_was_synced_in_two_pools_is_there_after_the_process_is_killed() {
    if !can_serve() {
        return;
    }
    let two = Two::new();
    let serving = two.serve(&["--rw"]);
    two.write("mine/v", 1);
    two.write("other/v", 2);
    for at in [serving.at(), &two.path("other")] {
        let path = at.join("synced");
        fs::write(&path, "synced").unwrap();
        File::open(path).unwrap().sync_all().unwrap();
        fs::write(at.join("loose"), "loose").unwrap();
    }
    serving.kill();
    good(Command::new("fusermount3").args(["-u", "-z"]).arg(two.path("other")));
    two.mine.assert_whole();
    two.other.assert_whole();
    let serving = two.serve(&["--rw"]);
    two.check("mine/v", 1);
    two.check("other/v", 2);
    assert_eq!(fs::read(serving.path("synced")).unwrap(), b"synced");
    assert_eq!(fs::read(two.path("other/synced")).unwrap(), b"synced");
    serving.end(End::Signal("-TERM"));
    two.mine.assert_whole();
    two.other.assert_whole();
}

#[test]
fn what_cannot_be_served_is_refused_and_leaves_the_others_whole() {
    if !can_mount() {
        return;
    }
    let two = Two::new();
    let at = two.path("at");
    fs::create_dir(&at).unwrap();
    let at = at.to_str().unwrap();
    let (mine, none, missing) = (format!("mine={at}"), format!("none={at}"), format!("other/a={at}/missing"));
    for (rest, status, reason) in [
        (&["mine", "other"][..], 2, "nothing to serve 'mine' by"),
        (&["--mount", at, "mine", "other"], 2, "say which dataset"),
        (&["--mount", &none, "mine", "other"], 2, "none of the datasets"),
        (&["--mount", &mine, "mine", "other"], 2, "nothing to serve 'other' by"),
        (&["--tcp", "127.0.0.1:0", "--control", "/tmp/none", "mine", "other"], 2, "--control is for one pool"),
        (&["--tcp", "127.0.0.1:0", "mine", "none"], 1, "none"),
        (&["--tcp", "127.0.0.1:0", "mine/a", "other/a"], 1, "'mine/a', 'other/a' has no volumes"),
        (&["--mount", &mine, "--mount", &missing, "mine", "other"], 1, "No such file or directory"),
        (&["--mount", &mine, "--mount", &mine, "mine"], 1, "mounted already"),
    ] {
        for write in [&["--rw"][..], &[]] {
            let is_twice = reason == "mounted already";
            if write.is_empty() && (is_twice || rest.contains(&"--control")) {
                continue;
            }
            let output = two.output("serve", &[write, rest].concat());
            assert_eq!(output.status.code(), Some(status), "{rest:?}: {}", said(&output));
            assert!(said(&output).contains(reason), "{rest:?}: {}", said(&output));
        }
        // Exported, without anything mounted.
        two.mine.assert_whole();
        two.other.assert_whole();
        assert!(fs::read_dir(at).unwrap().next().is_none());
    }
}

/// A small file system in memory. Unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn over(at: &Path) -> Self {
        good(Command::new("mount").args(["-t", "tmpfs", "-o", "size=48m", "small"]).arg(at));
        Self(at.to_owned())
    }

    fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_pool_whose_devices_fail_holds_up_no_other() {
    if !can_serve() || !common::is_root() {
        return;
    }
    for is_given_up in [false, true] {
        let mut mine = Images::none();
        let small = Small::over(&mine.dir);
        good(mine.bare().args(["zpool", "create", "--size", "80M", "mine"]).arg(mine.dir.join("0.img")));
        mine.note_files();
        let two = Two::with(mine);
        let mut serving = two.serve(&["--rw"]);
        let before = serving.path("before");
        fs::write(&before, "before").unwrap();
        File::open(&before).unwrap().sync_all().unwrap();
        two.write("mine/v", 1);
        small.fill();
        let is_suspended = || two.run("zpool", &["status", "mine"]).contains("SUSPENDED");
        until("it is not suspended", || {
            let random: Vec<u8> =
                (0..1_u32 << 16).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
            let late = serving.path("late");
            std::thread::spawn(move || fs::write(late, random));
            let _ = two.output("zfs", &["set", "a:b=c", "mine"]);
            is_suspended()
        });
        // The other is as it was, for clients and commands, one of which waits for the first.
        two.write("other/v", 2);
        assert_eq!(two.listed(), ["other/v"]);
        fs::write(two.path("other/file"), "other").unwrap();
        File::open(two.path("other/file")).unwrap().sync_all().unwrap();
        two.run("zfs", &["create", "other/b"]);
        assert!(said(&two.output("zfs", &["create", "mine/b"])).contains("suspended"));
        serving.signal("-TERM");
        // It is exported, while the first waits for its devices.
        until("it is not exported", || {
            let output = two.other.command("zfs", &["set", "a:b=c", "other"]).output().unwrap();
            output.status.success()
        });
        two.other.assert_whole();
        assert!(serving.runs());
        small.empty();
        if is_given_up {
            small.fill();
            serving.signal("-TERM");
            assert!(!serving.wait_whatever_it_says().success());
            small.empty();
        } else {
            two.run("zpool", &["clear", "mine"]);
            assert!(serving.wait_whatever_it_says().success());
        }
        two.mine.assert_whole();
        assert_eq!(two.mine.run("cat", &["mine/a", "/before"]), "before");
        assert_eq!(two.other.run("cat", &["other/a", "/file"]), "other");
        drop(serving);
        drop(two);
        drop(small);
    }
}
