//! Goal: what fingers and scripts do every day has the effect that they expect, or is refused in words that help. Method: the program
//! on pools made here; verbs and spellings of OpenZFS's tools, terminals that close, sockets in places where others could be.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::Serving;
use common::{good, program, said};

fn cenote(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

#[test]
fn a_verb_that_is_missing_says_so_and_a_slip_gets_usage() {
    for (words, line, status) in [
        (&["zfs", "program", "p", "x"][..], "not supported yet: zfs program\ninstead: ", 1),
        (&["zpool", "-d", "/tmp", "ddtprune", "p"], "not supported yet: zpool ddtprune\ninstead: ", 1),
        (&["zfs", "wait", "p"], "not supported yet: zfs wait\ninstead: ", 1),
        (&["zpool", "help", "prefetch"], "not supported yet: zpool prefetch\ninstead: ", 0),
        (&["zpool", "condense", "--help"], "not supported yet: zpool condense\ninstead: ", 0),
    ] {
        let output = cenote(words);
        let text = String::from_utf8(if status == 0 { output.stdout } else { output.stderr }).unwrap();
        assert!(output.status.code() == Some(status) && text.starts_with(line), "{words:?}: {text}");
    }
    assert!(said(&cenote(&["zfs", "wait", "p"])).contains("freeing"));
    for (words, verb) in [(["zfs", "snapshoot", "p@x"], "snapshot"), (["zpool", "stauts", "p"], "status")] {
        let slip = cenote(&words);
        assert_eq!(slip.status.code(), Some(2));
        let text = said(&slip);
        assert!(text.contains("Usage:") && text.contains("tip:") && text.contains(verb), "{text}");
    }
    let images = Images::none();
    let output = images.bare().args(["zpool", "create", "q", "mirorr", "/a", "/b"]).output().unwrap();
    assert!(said(&output).contains("is 'mirror' meant?"), "{}", said(&output));
}

#[test]
fn a_wrong_spelling_of_help_behind_a_verb_is_a_wrong_option() {
    for words in
        [&["zfs", "list", "-?"][..], &["zfs", "get", "-h", "all"], &["zpool", "status", "-h"], &["zpool", "-h"]]
    {
        let output = cenote(words);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{words:?}");
        assert!(said(&output).contains("Usage:"), "{words:?}: {}", said(&output));
    }
    // An option that means something there.
    assert!(!said(&cenote(&["zfs", "receive", "-?", "p/x"])).contains("cannot receive"));
    for words in [&["zfs", "list", "--help"][..], &["ls", "-h"], &["zpool", "-?"]] {
        assert_eq!(cenote(words).status.code(), Some(0), "{words:?}");
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zpool", &["history", "-lil", "mine"]);
    images.run("zfs", &["list", "-H", "-H", "-p", "-p", "-o", "used", "-o", "name"]);
}

#[test]
fn pools_are_listed_again_and_again_at_an_interval() {
    let images = Images::made(&[], 1, &[]);
    let lines = |words: &[&str]| images.run("zpool", words).lines().map(str::to_owned).collect::<Vec<_>>();
    let listed = lines(&["list", "mine", "0.05", "3"]);
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert!(listed[0].starts_with("NAME") && listed[1..].iter().all(|line| line.starts_with("mine ")), "{listed:?}");
    assert_eq!(
        lines(&["list", "-H", "-T", "u", "-o", "name", "0.05", "2"]).iter().filter(|line| *line == "mine").count(),
        2
    );
    assert_eq!(lines(&["status", "0.05", "2"]).iter().filter(|line| line.contains("pool: mine")).count(), 2);
    for wrong in [&["list", "0"][..], &["status", "mine", "1", "0"]] {
        let output = images.command("zpool", wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", said(&output));
    }
}

/// Goal: programs that take each line on standard error for a fault see none where all is well. Method: commands that scripts read, of a pool
/// that another process has, of one with a disk missing, and of one that was killed.
#[test]
fn commands_that_scripts_read_say_nothing_where_all_is_well() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    images.run("zfs", &["snapshot", "mine@1"]);
    let silent = |tool: &str, words: &[&str]| {
        let output = images.command(tool, words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{tool} {words:?}: {}", said(&output));
    };
    let read = || {
        for words in [
            &["send", "mine@1"][..],
            &["send", "-nP", "mine@1"],
            &["diff", "mine@1"],
            &["holds", "mine@1"],
            &["list", "-t", "all"],
            &["get", "all", "mine"],
            &["userspace", "mine"],
        ] {
            silent("zfs", words);
        }
        for words in [&["list"][..], &["status"], &["get", "all", "mine"], &["history", "mine"]] {
            silent("zpool", words);
        }
    };
    let mounted = Mounted::new(&images, "mine");
    read();
    // One that asks for it, and commands of our own, are told.
    for (tool, words) in [("zfs", &["send", "-v", "mine@1"][..]), ("ls", &["mine"])] {
        let output = images.command(tool, words).output().unwrap();
        assert!(said(&output).contains("in use by process"), "{tool}: {}", said(&output));
    }
    let at = mounted.at().to_owned();
    mounted.kill();
    let _ = Command::new("fusermount3").arg("-uz").arg(at).output();
    silent("zfs", &["set", "a:b=1", "mine"]);
    fs::remove_file(&images.files[1]).unwrap();
    for words in [&["snapshot", "mine@2"][..], &["set", "a:b=2", "mine"], &["create", "mine/a"]] {
        silent("zfs", words);
    }
    read();
}

#[test]
fn versions_and_help_are_told_in_every_spelling() {
    let version = env!("CARGO_PKG_VERSION");
    for words in [&["version"][..], &["--version"], &["-V"]] {
        let output = cenote(words);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("cenote {version}\n"), "{words:?}");
    }
    for tool in ["zfs", "zpool"] {
        for word in ["version", "--version", "-V"] {
            let output = cenote(&[tool, word]);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                format!("zfs-2.3.0-cenote-{version}\n"),
                "{tool} {word}"
            );
            assert!(output.status.success());
        }
        for words in [&[tool, "help"][..], &[tool, "-?"], &["help", tool]] {
            let output = cenote(words);
            assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage:"), "{words:?}");
        }
    }
    let json: serde_json::Value = serde_json::from_slice(&cenote(&["zpool", "version", "-j"]).stdout).unwrap();
    assert!(json["zfs_version"]["userland"].as_str().unwrap().starts_with("zfs-2.3"));
}

/// The same command, to which SIGHUP is what it is by default, however these tests were started.
fn that_minds_hangups(command: &Command) -> Command {
    let mut with = Command::new("env");
    with.arg("--default-signal=HUP").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => with.env(name, value),
            None => with.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        with.current_dir(folder);
    }
    with
}

#[test]
fn a_terminal_that_closes_loses_nothing() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--rw", "mine"]);
    command.arg(folder.path());
    let mounted = Mounted::start(that_minds_hangups(&command), folder);
    fs::write(mounted.path("kept"), [7; 100_000]).unwrap();
    mounted.end(End::Signal("-HUP"));
    images.assert_whole();
    let mounted = Mounted::new(&images, "mine");
    assert!(fs::read(mounted.path("kept")).unwrap() == [7; 100_000]);
    mounted.end(End::Unmount);
    // Where these tests were started by `nohup`, SIGHUP is nothing to a server that they start.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0 {
        eprintln!("left out: a server that minds hangups; SIGHUP is ignored");
        return;
    }
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let socket = images.cache.path().join("nbd.sock");
    let serving = Serving::start(&images.dir, "mine", &socket, &["--rw"]).unwrap();
    serving.end_by("-HUP").unwrap();
    images.assert_whole();
}

#[test]
fn a_control_socket_takes_nobodys_place_and_clients_believe_no_stranger() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let folder = tempfile::tempdir().unwrap();
    let (data, nbd) = (folder.path().join("data"), folder.path().join("nbd"));
    fs::write(&data, "precious").unwrap();
    let mut command = images.command("serve", &["--rw", "--unix", nbd.to_str().unwrap(), "--control"]);
    let output = command.arg(&data).arg("mine").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no socket"), "{}", said(&output));
    assert_eq!(fs::read(&data).unwrap(), b"precious");
    // A folder in which others could put a socket of theirs.
    let control = folder.path().join("control");
    let options = ["--rw", "--control", control.to_str().unwrap()];
    let serving = Serving::start(&images.dir, "mine", &nbd, &options).unwrap();
    let ask = || images.command("zfs", &["set", "a:b=c", "mine"]).env("CENOTE_CONTROL", &control).output().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = ask();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("written by others"), "{}", said(&output));
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ask().status.success());
    // A server that is named, and has another pool, is neither asked for this one nor taken for its user.
    let other = Images::made(&[], 1, &[]);
    let mut command = other.command("zfs", &["set", "a:b=c", "mine"]);
    let output = command.env("CENOTE_CONTROL", &control).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let output = other.command("ls", &["mine"]).env("CENOTE_CONTROL", &control).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    assert_eq!(other.get("a:b", "mine"), "c\tlocal");
    serving.end().unwrap();
    assert!(!control.exists());
}

/// One process has a pool, and another pool is beside it: a command about both is no server's, and sees both.
#[test]
fn pools_of_which_a_server_has_one_are_listed_together() {
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let serving = Serving::start(&images.dir, "mine", &images.cache.path().join("nbd.sock"), &["--rw"]).unwrap();
    good(images.bare().args(["zpool", "create", "--size", "80M", "other"]).arg(images.dir.join("other.img")));
    // As its user, and as one who cannot ask the server.
    for cache in [images.cache.path().join("serving/cache.json"), images.cache.path().join("another.json")] {
        for names in [&[][..], &["mine", "other"]] {
            let mut command = images.bare();
            command.env("CENOTE_CACHE", &cache).args(["zpool", "-d"]).arg(&images.dir);
            let output = command.args(["list", "-Ho", "name,health"]).args(names).output().unwrap();
            let listed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(listed, "mine\tONLINE\nother\tONLINE\n", "{names:?}: {}", said(&output));
            assert!(output.status.success(), "{}", said(&output));
        }
    }
    serving.end().unwrap();
}

/// The error that ends a command in the background is in its log: its caller has gone. The log is a pipe, since the process may write
/// no files any more.
#[test]
fn an_error_of_a_command_that_went_on_is_in_its_log() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let (folder, scratch) = (tempfile::tempdir().unwrap(), images.cache.path());
    let (pid_file, log) = (scratch.join("pid"), scratch.join("log"));
    images.run("zfs", &["create", NAMED_TOO]);
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut said_later = fs::File::options().read(true).write(true).open(&log).unwrap();
    let mut mount = images.command("mount", &["--rw", "--background", "--pid-file"]);
    mount.arg(&pid_file).arg("--log").arg(&log).arg(NAMED_TOO).arg(folder.path());
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(mount.get_program()).args(mount.get_args());
    good(command.envs(mount.get_envs().filter_map(|(name, value)| Some((name, value?)))));
    let pid = fs::read_to_string(&pid_file).unwrap();
    let pid = pid.trim();
    good(Command::new("prlimit").args(["--pid", pid, "--fsize=0:unlimited"]));
    // On a busy machine a txg may fail before this write has come: then the write waits, as in any suspended pool, until the mount is given up.
    let file = folder.path().join("file");
    let writer = std::thread::spawn(move || drop(fs::write(file, "x")));
    // Told again and again, it gives up what is not on disk.
    let deadline = Instant::now() + Duration::from_secs(120);
    while Path::new("/proc").join(pid).exists() {
        let _ = Command::new("kill").args(["-TERM", pid]).stderr(Stdio::null()).status();
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::sleep(Duration::from_millis(300));
    }
    writer.join().unwrap();
    said_later.write_all(b"end of the log\n").unwrap();
    let mut text = String::new();
    while !text.ends_with("end of the log\n") {
        let mut bytes = [0; 4096];
        let len = said_later.read(&mut bytes).unwrap();
        text.push_str(&String::from_utf8_lossy(&bytes[..len]));
    }
    assert!(text.contains("could not be written to the end"), "{text}");
}

/// As [`NAMED`].
const NAMED_TOO: &str = "mine/named2";

/// Mounts in the background: returns when it is mounted.
fn in_background(images: &Images, at: &Path, more: &[&str]) -> Output {
    let mut command = images.command("mount", &["--rw", "--background"]);
    command.args(more).arg(NAMED).arg(at).output().unwrap()
}

/// A dataset that no other test mounts: it is named to be unmounted.
const NAMED: &str = "mine/named";

#[test]
fn in_the_background_it_is_ready_when_the_command_returns_and_written_when_unmount_does() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", NAMED]);
    let (scratch, folder) = (images.cache.path(), tempfile::tempdir().unwrap());
    let (pid_file, log) = (scratch.join("pid"), scratch.join("log"));
    let options = ["--pid-file", pid_file.to_str().unwrap(), "--log", log.to_str().unwrap()];
    let output = in_background(&images, folder.path(), &options);
    assert!(output.status.success() && said(&output).contains("process"), "{}", said(&output));
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(Path::new("/proc").join(pid.trim()).exists());
    // At once, without waiting for anything.
    fs::write(folder.path().join("file"), vec![5; 10 << 20]).unwrap();
    good(images.bare().arg("unmount").arg(folder.path()));
    assert!(!pid_file.exists());
    images.assert_whole();
    assert!(images.run("cat", &[NAMED, "/file"]).into_bytes() == vec![5; 10 << 20]);
    // By the dataset's name, as OpenZFS's tool has it; and what is in use.
    assert!(in_background(&images, folder.path(), &options).status.success());
    let open = fs::File::open(folder.path().join("file")).unwrap();
    let busy = images.bare().args(["zfs", "unmount", NAMED]).output().unwrap();
    assert!(said(&busy).contains("cannot unmount 'mine/named': pool or dataset is busy"), "{}", said(&busy));
    good(images.bare().args(["zfs", "umount", "-f", NAMED]));
    drop(open);
    images.assert_whole();
    let none = images.bare().args(["zfs", "unmount", NAMED]).output().unwrap();
    assert!(said(&none).contains("cannot unmount 'mine/named': not currently mounted"), "{}", said(&none));
    // Why it does not begin is said where it was asked for.
    let output = in_background(&images, &folder.path().join("none"), &options);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("No such file"), "{}", said(&output));
    assert!(!pid_file.exists());
    images.assert_whole();
}

#[test]
fn a_supervisor_is_told_of_begin_and_end() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let socket = images.cache.path().join("notify");
    let notified = UnixDatagram::bind(&socket).unwrap();
    let said = || {
        let mut said = [0; 64];
        let len = notified.recv(&mut said).unwrap();
        String::from_utf8_lossy(&said[..len]).into_owned()
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--rw", "mine"]);
    command.arg(folder.path()).env("NOTIFY_SOCKET", &socket);
    let mounted = Mounted::start(command, folder);
    assert_eq!(said(), "READY=1");
    mounted.end(End::Signal("-TERM"));
    assert_eq!(said(), "STOPPING=1");
}

#[test]
fn what_was_written_before_umount_returned_is_read_by_whoever_comes_next() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    for round in 0..3_u8 {
        let mounted = Mounted::new(&images, "mine");
        let bytes = vec![round + 1; 12 << 20];
        fs::write(mounted.path("file"), &bytes).unwrap();
        // While it is mounted: as of now, and it is said who has it.
        let output = images.command("cat", &["mine", "/file"]).output().unwrap();
        assert!(output.stdout == bytes, "round {round}: {}", said(&output));
        assert!(said(&output).contains("in use by process"), "{}", said(&output));
        assert!(images.refused("put", &["mine", env!("CARGO_MANIFEST_DIR")]).contains("in use by process"));
        let bytes = vec![round + 11; 12 << 20];
        fs::write(mounted.path("file"), &bytes).unwrap();
        good(Command::new("fusermount3").arg("-u").arg(mounted.at()));
        let output = images.command("cat", &["mine", "/file"]).output().unwrap();
        assert!(output.stdout == bytes, "round {round}: {}", said(&output));
        // Neither who changes the pool itself meets a pool in use.
        images.run("zfs", &["set", &format!("a:round={round}"), "mine"]);
        mounted.wait();
    }
    images.assert_whole();
}

#[test]
fn pools_that_processes_have_are_listed_and_those_that_are_gone_hide_no_other() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/fs"]);
    let run = |words: &[&str]| String::from_utf8(good(images.bare().args(words))).unwrap();
    // Making the pool has it remembered; it is to be known by its process alone.
    run(&["zpool", "export", "mine"]);
    let mounted = Mounted::new(&images, "mine");
    for words in [&["zpool", "list", "-Ho", "name"][..], &["zpool", "list", "-Ho", "name", "mine"]] {
        assert_eq!(run(words), "mine\n", "{words:?}");
    }
    assert_eq!(run(&["zfs", "list", "-Ho", "name"]), "mine\nmine/fs\n");
    assert_eq!(run(&["zfs", "list", "-Ho", "name", "mine/fs"]), "mine/fs\n");
    assert!(run(&["zpool", "status"]).contains("pool: mine"));
    let status = images.bare().args(["zpool", "status", "nosuch"]).output().unwrap();
    assert!(said(&status).contains("'nosuch': no such pool"), "{}", said(&status));
    // Beside another one that is remembered, and one that was and is gone.
    let (other, gone) = (images.cache.path().join("other.img"), images.cache.path().join("gone.img"));
    for (name, image) in [("other", &other), ("gone", &gone)] {
        good(images.bare().args(["zpool", "create", "--size", "80M", name]).arg(image));
    }
    fs::remove_file(&gone).unwrap();
    let list = images.bare().args(["zpool", "list", "-Ho", "name"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&list.stdout), "gone\nmine\nother\n");
    assert!(list.status.success() && said(&list).contains("'zpool export gone' forgets it"), "{}", said(&list));
    assert_eq!(images.bare().args(["zpool", "list", "gone"]).output().unwrap().status.code(), Some(1));
    run(&["zpool", "export", "gone"]);
    assert_eq!(said(&images.bare().args(["zpool", "list"]).output().unwrap()).lines().count(), 1);
    mounted.end(End::Unmount);
    assert_eq!(run(&["zpool", "list", "-Ho", "name"]), "other\n");
}

/// The options of the mount at a folder, by the kernel's table.
fn options_of(at: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == at.to_str()).unwrap();
    line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect()
}

#[test]
fn what_a_dataset_forbids_reaches_its_mounts_also_while_they_are_mounted() {
    // Only root changes a mount.
    if !can_mount() || !common::is_root() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    for setting in ["exec=off", "setuid=off", "devices=off"] {
        images.run("zfs", &["set", setting, "mine"]);
    }
    let has = |at: &Path, option: &str| options_of(at).iter().any(|each| each == option);
    for write in [&["--rw"][..], &[]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = images.command("mount", write);
        command.args(["-o", "exec,suid,dev", "mine"]).arg(folder.path());
        let mounted = Mounted::start(command, folder);
        for option in ["noexec", "nosuid", "nodev"] {
            assert!(has(mounted.at(), option), "{write:?}: {:?}", options_of(mounted.at()));
        }
        mounted.end(End::Unmount);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = images.command("mount", &["--rw", "-o", "suid"]);
    command.arg("mine").arg(folder.path());
    let mounted = Mounted::start(command, folder);
    images.run("zfs", &["set", "exec=on", "mine"]);
    images.run("zfs", &["inherit", "setuid", "mine"]);
    assert!(!has(mounted.at(), "noexec") && !has(mounted.at(), "nosuid") && has(mounted.at(), "nodev"));
    images.run("zfs", &["set", "recordsize=16K", "mine"]);
    fs::write(mounted.path("small"), vec![1; 100_000]).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::blksize(&fs::metadata(mounted.path("small")).unwrap()), 16 << 10);
    images.run("zfs", &["set", "readonly=on", "mine"]);
    let refused = fs::write(mounted.path("more"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    images.run("zfs", &["set", "readonly=off", "mine"]);
    // A change that cannot be made now is told.
    let open = fs::File::create(mounted.path("more")).unwrap();
    let late = images.command("zfs", &["set", "readonly=on", "mine"]).output().unwrap();
    assert!(late.status.success() && said(&late).contains("at the next mount"), "{}", said(&late));
    let late = images.command("zfs", &["set", "readonly=off", "acltype=posix", "mine"]).output().unwrap();
    assert!(said(&late).contains("'acltype' takes effect there at the next mount"), "{}", said(&late));
    drop(open);
    images.run("zfs", &["set", "sync=always", "mine"]);
    let itxs = || {
        let output = images.run("kstat", &["mine", "--json"]);
        output.lines().filter(|line| line.contains("zil_itx_count")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = itxs();
    fs::write(mounted.path("logged"), "x").unwrap();
    assert_ne!(itxs(), before, "sync=always is obeyed at once");
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// A mount that has ended is nothing to the server which goes on: its dataset is not busy, and another mount in its place not its own.
#[test]
fn a_mount_that_has_ended_is_let_go_of() {
    if !can_mount() || !common::is_root() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    images.run("zfs", &["create", "mine/fs"]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/fs/v"]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/v"]);
    let (folder, socket) = (tempfile::tempdir().unwrap(), images.cache.path().join("nbd.sock"));
    let mut command = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "--mount"]);
    command.arg(folder.path()).arg("mine/fs");
    let mounted = Mounted::start(command, folder);
    let deadline = Instant::now() + Duration::from_secs(60);
    // Other tests look at all mounts, and one that is looked at is busy.
    while !Command::new("fusermount3").arg("-u").arg(mounted.at()).status().unwrap().success() {
        assert!(Instant::now() < deadline, "the mount remains busy");
        std::thread::sleep(Duration::from_millis(50));
    }
    images.run("zfs", &["destroy", "mine/fs/v"]);
    let another = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(mounted.at()).status().unwrap();
    assert!(another.success());
    // The server notices the end of its mount by itself.
    while !images.command("zfs", &["destroy", "mine/fs"]).output().unwrap().status.success() {
        assert!(Instant::now() < deadline, "{}", images.refused("zfs", &["destroy", "mine/fs"]));
        images.run("zfs", &["set", "exec=off", "mine/fs"]);
        std::thread::sleep(Duration::from_millis(50));
    }
    images.run("zfs", &["set", "exec=off", "mine"]);
    let options = options_of(mounted.at());
    good(Command::new("umount").arg(mounted.at()));
    assert!(!options.contains(&"noexec".to_owned()), "{options:?}");
    mounted.end(End::Signal("-TERM"));
    images.assert_whole();
}

#[test]
fn a_pool_in_files_is_not_mounted_where_it_says_unless_that_is_asked_for() {
    if !can_mount() || !common::is_root() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let (root, places) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let said_place = places.path().join("etc");
    fs::create_dir(&said_place).unwrap();
    fs::write(said_place.join("passwd"), "mine").unwrap();
    images.run("zfs", &["set", &format!("mountpoint={}", said_place.display()), "mine"]);
    for words in [&["mount", "-a"][..], &["mount", "mine"]] {
        let refused = images.refused("zfs", words);
        assert!(refused.contains("not taken on its word") && refused.contains("--altroot"), "{refused}");
    }
    assert_eq!(fs::read(said_place.join("passwd")).unwrap(), b"mine");
    // Below an alternate root, but over nothing that is there, and not by way of a link.
    let below = root.path().join(said_place.strip_prefix("/").unwrap());
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("file"), "").unwrap();
    let altroot = ["--altroot", root.path().to_str().unwrap()];
    let refused = images.refused("zfs", &[&["mount", "-a"], &altroot[..]].concat());
    assert!(refused.contains("not empty"), "{refused}");
    fs::remove_dir_all(&below).unwrap();
    std::os::unix::fs::symlink(&said_place, &below).unwrap();
    let refused = images.refused("zfs", &[&["mount", "-a", "-v"], &altroot[..]].concat());
    assert!(refused.contains("a link leads"), "{refused}");
    fs::remove_file(&below).unwrap();
    let options = ["--background", "--log", "/dev/null"];
    good(&mut images.command("zfs", &[&["mount", "-a"], &altroot[..], &options].concat()));
    assert!(options_of(&below).contains(&"ro".to_owned()));
    good(images.bare().args(["zfs", "unmount"]).arg(&below));
}

#[test]
fn a_build_is_the_same_wherever_it_is_made() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    let archive = scratch.path().join("source.tar");
    good(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg("file"));
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Another folder, user, umask, time zone, locale, host id and name of the files.
    let built = |folder: &str, user: u32, names: [&str; 2], setting: &str| {
        let dir = scratch.path().join(folder);
        fs::create_dir(&dir).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(user), Some(user)).unwrap();
        }
        let run = |words: &str| {
            let mut command = Command::new("sh");
            let line = format!(
                "{setting}; export SOURCE_DATE_EPOCH=1700000000 CENOTE_CACHE=$PWD/cache/c; exec \"$0\" {words}"
            );
            command.arg("-c").arg(line).arg(program().get_program()).current_dir(&dir).env("HOME", &dir);
            if rustix::process::geteuid().is_root() {
                std::os::unix::process::CommandExt::gid(
                    std::os::unix::process::CommandExt::uid(&mut command, user),
                    user,
                );
            }
            good(&mut command)
        };
        let [a, b] = names;
        let mut all = Vec::new();
        for from in [&source, &archive] {
            let from = from.display();
            let said = run(&format!("build --pool p --size 80M --seed 1 --from {from} mirror {a} {b}"));
            assert!(String::from_utf8_lossy(&said).starts_with("1 file, 0 directories, 0 others"), "{said:?}");
            all.extend([a, b].map(|name| fs::read(dir.join(name)).unwrap()));
            run(&format!("zpool create -f --seed 1 --size 80M q q{a} special mirror {b}x {b}y cache {b}c"));
            run("zpool export q");
            all.extend(
                [format!("q{a}"), format!("{b}x"), format!("{b}c")].map(|name| fs::read(dir.join(name)).unwrap()),
            );
            [a, b].iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
            for name in [format!("q{a}"), format!("{b}x"), format!("{b}y"), format!("{b}c")] {
                fs::remove_file(dir.join(name)).unwrap();
            }
        }
        all
    };
    let here = built("here", 0, ["p.img", "q.img"], "umask 022");
    let other = "umask 077; export TZ=Asia/Tokyo LC_ALL=de_DE.UTF-8 ZFS_HOSTID=0xabcd";
    let there = built("there", 4321, ["first", "second"], other);
    for (at, (here, there)) in here.iter().zip(&there).enumerate() {
        assert!(here == there, "image {at} differs");
    }
    assert_eq!(here.len(), there.len());
}

/// Goal: a user can write to what the user makes. Method: the owner of root directories in all ways to make a file system, made by root and
/// by somebody else.
#[test]
fn a_new_root_directory_belongs_to_who_makes_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(scratch.path().join("file"), "x").unwrap();
    good(Command::new("tar").arg("-cf").arg(scratch.path().join("a.tar")).arg("-C").arg(scratch.path()).arg("file"));
    for user in [0, 4321] {
        let dir = scratch.path().join(user.to_string());
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(user), Some(user)).unwrap();
        let cenote = |line: &str| {
            let mut command = program();
            command.args(line.split(' ')).current_dir(&dir).env("HOME", &dir).env("XDG_RUNTIME_DIR", &dir);
            command.env("CENOTE_CACHE", dir.join("cache/c"));
            std::os::unix::process::CommandExt::gid(std::os::unix::process::CommandExt::uid(&mut command, user), user);
            String::from_utf8(good(&mut command)).unwrap()
        };
        let owner = |dataset: &str| {
            let pool = dataset.split('/').next().unwrap();
            let manifest: serde_json::Value = serde_json::from_str(&cenote(&format!("manifest {pool}"))).unwrap();
            let root = manifest["datasets"][dataset]["entries"].as_array().unwrap();
            let root = root.iter().find(|entry| entry["path"] == ".").unwrap();
            (root["uid"].as_u64().unwrap(), root["gid"].as_u64().unwrap())
        };
        cenote("zpool create --size 80M p p.img");
        cenote("zfs create p/a");
        cenote("zfs create -p p/b/c/d");
        cenote("zfs create -p -s -V 8M p/above/volume");
        cenote("zfs snapshot p/a@s");
        cenote("zfs clone -p p/a@s p/e/clone");
        cenote("zfs rename -p p/b/c/d p/f/g");
        for dataset in ["p", "p/a", "p/b", "p/b/c", "p/f", "p/f/g", "p/above", "p/e", "p/e/clone"] {
            assert_eq!(owner(dataset), (user.into(), user.into()), "{dataset} of {user}");
        }
        cenote("build --pool built --size 80M --from ../a.tar built.img");
        cenote("zpool import -d built.img built");
        assert_eq!(owner("built"), (user.into(), user.into()), "an archive that does not describe it");
    }
}

#[test]
fn a_build_that_is_too_small_says_which_size_is_enough() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut rng = cenote_taskq::Rng::new(3);
    let bytes: Vec<u8> = (0..6 << 20).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs::write(source.join("file"), bytes).unwrap();
    let build = |size: &str| {
        let mut command = program();
        command.args(["build", "--no-verify", "--pool", "p", "--size", size, "--from"]);
        command.arg(&source).arg(scratch.path().join("p.img")).output().unwrap()
    };
    let small = build("64M");
    assert_eq!(small.status.code(), Some(1));
    let text = said(&small);
    let enough = text.split("--size ").nth(1).unwrap().split(' ').next().unwrap();
    let large = build(enough);
    assert!(large.status.success(), "{text} {}", said(&large));
}

#[test]
fn a_folder_whose_name_is_no_text_is_mounted_and_unmounted() {
    use std::os::unix::ffi::OsStrExt as _;
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join(std::ffi::OsStr::from_bytes(b"a \xff"));
    fs::create_dir(&folder).unwrap();
    for (round, force) in [&[][..], &["--force"]].iter().enumerate() {
        good(images.command("mount", &["--rw", "--background", "--log", "/dev/null", "mine"]).arg(&folder));
        fs::write(folder.join(round.to_string()), "x").unwrap();
        good(images.bare().arg("unmount").args(*force).arg(&folder));
    }
    assert_eq!(good(&mut images.command("ls", &["mine"])), b"0\n1\n");
    assert!(said(&images.bare().arg("unmount").arg(&folder).output().unwrap()).contains("not currently mounted"));
}
