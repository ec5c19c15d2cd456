//! Goal: `zfs receive` works into file systems that are mounted and volumes that have clients, as in OpenZFS. Users wait for a moment when
//! all has come, and then see the new state: the kernel drops its cache, open files that are still there go on, others fail. Changes made
//! by users are kept, or go with `-F`. Method: `cenote mount --rw` and `cenote serve --rw` on pools made here, system calls, an NBD client;
//! `zdb` checks the pool.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::good;
use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use rustix::io::Errno;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw_os_error)
}

/// Everything in a directory: what each is, its links, content or target. By paths below it.
fn seen(at: &Path) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
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
            if metadata.is_dir() {
                left.push(path.clone());
            }
            let name = path.strip_prefix(at).unwrap().to_owned();
            found.insert(name, (metadata.mode(), metadata.nlink(), content));
        }
    }
    found
}

/// A stream in a file.
fn sent(images: &Images, arguments: &[&str], to: &Path) {
    let mut command = images.command("zfs", &["send"]);
    assert!(command.args(arguments).stdout(File::create(to).unwrap()).status().unwrap().success(), "{arguments:?}");
}

/// Receives it: what was said, where it was refused.
fn received(images: &Images, from: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = images.command("zfs", &["receive"]);
    let output = command.args(arguments).stdin(File::open(from).unwrap()).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// Changes a file system in every way, by its number of the time.
fn change(at: &Path, round: usize) {
    let path = |name: &str| at.join(name);
    fs::create_dir_all(path("dir/deep")).unwrap();
    fs::write(path("same"), format!("same {round}").repeat(3000 + round)).unwrap();
    fs::write(path(&format!("dir/deep/{round}")), vec![round as u8; 300_000]).unwrap();
    fs::write(path(&format!("only {round}")), b"x").unwrap();
    if round > 0 {
        fs::remove_file(path(&format!("only {}", round - 1))).unwrap();
        fs::rename(path("moved"), path("dir/moved")).unwrap();
        fs::remove_file(path("link")).unwrap();
        File::options().write(true).open(path("dir/deep/0")).unwrap().set_len(round as u64).unwrap();
    }
    fs::write(path("moved"), format!("moved {round}")).unwrap();
    symlink(format!("to {round}"), path("link")).unwrap();
    // New files get the numbers of those that go.
    for number in 0..20 {
        let name = format!("many {} {number}", round % 2);
        let _ = fs::remove_file(path(&format!("many {} {number}", (round + 1) % 2)));
        fs::write(path(&name), name.repeat(round + 1)).unwrap();
    }
}

/// Receives into `mine/b`, which is mounted itself, or nested at `below` in the mounted dataset.
fn comes(mount: &str, below: &str) {
    let images = Images::made(&[], 1, &["-O", "atime=off"]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    images.run("zfs", &["create", "mine/a"]);
    let source = |round: usize| {
        let mounted = Mounted::new(&images, "mine/a");
        change(&mounted.path(""), round);
        let seen = seen(&mounted.path(""));
        mounted.end(End::Unmount);
        images.run("zfs", &["snapshot", &format!("mine/a@{round}")]);
        seen
    };
    source(0);
    sent(&images, &["mine/a@0"], &stream);
    received(&images, &stream, &["mine/b"]).unwrap();
    let states: Vec<_> = (1..4).map(source).collect();
    let mounted = Mounted::new(&images, mount);
    let at = |path: &str| mounted.path(below).join(path);
    let (mut same, mut only) = (Vec::new(), Vec::new());
    let mut byte = [0; 6];
    for (state, round) in states.iter().zip(1..) {
        // The kernel has cached everything.
        seen(&at(""));
        same.push(OpenOptions::new().read(true).write(true).open(at("same")).unwrap());
        only.push(File::open(at(&format!("only {}", round - 1))).unwrap());
        sent(&images, &["-i", &format!("mine/a@{}", round - 1), &format!("mine/a@{round}")], &stream);
        if round == 2 {
            // A change of a user is not lost, nor is the change half made.
            fs::write(at("own"), b"own").unwrap();
            same[0].write_all_at(b"SAME", 0).unwrap();
            let refused = received(&images, &stream, &["mine/b"]).unwrap_err();
            assert!(refused.contains("has been modified"), "{refused}");
            assert_eq!(fs::read(at("own")).unwrap(), b"own");
            assert!(fs::read(at("same")).unwrap().starts_with(b"SAME 1"));
            let own = File::open(at("own")).unwrap();
            received(&images, &stream, &["-F", "mine/b"]).unwrap();
            let failed = errno(own.read_exact_at(&mut byte[..3], 0)).unwrap();
            assert!([Errno::STALE, Errno::IO].contains(&failed), "{failed}");
        } else {
            received(&images, &stream, &["mine/b"]).unwrap();
        }
        assert_eq!(seen(&at("")), *state, "round {round}");
        for open in &same {
            open.read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(byte, format!("same {round}").as_bytes());
        }
        for open in &only {
            let failed = errno(open.read_exact_at(&mut byte[..1], 0)).unwrap();
            assert!([Errno::STALE, Errno::IO].contains(&failed), "{failed}");
        }
        assert!(fs::read(at(&format!(".zfs/snapshot/{round}/moved"))).unwrap().starts_with(b"moved"));
    }
    // It is written on, and what is written then is no part of the snapshot.
    same[2].write_all_at(b"mine", 0).unwrap();
    same[2].sync_all().unwrap();
    assert!(fs::read(at(".zfs/snapshot/3/same")).unwrap().starts_with(b"same 3"));
    drop((same, only));
    mounted.end(End::Unmount);
    images.assert_whole();
    let mounted = Mounted::new(&images, mount);
    assert!(fs::read(mounted.path(below).join("same")).unwrap().starts_with(b"mine 3"));
    mounted.end(End::Unmount);
}

#[test]
fn a_mounted_file_system_gets_what_comes_under_its_users() {
    if can_mount() {
        comes("mine/b", "");
    }
}

#[test]
fn a_file_system_that_is_nested_in_a_mount_gets_what_comes_under_its_users() {
    if can_mount() {
        comes("mine", "b");
    }
}

#[test]
fn a_whole_stream_takes_the_place_of_a_mounted_file_system() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "atime=off"]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    for name in ["mine/a", "mine/b"] {
        images.run("zfs", &["create", name]);
    }
    let mounted = Mounted::new(&images, "mine/a");
    change(&mounted.path(""), 0);
    let state = seen(&mounted.path(""));
    mounted.end(End::Unmount);
    images.run("zfs", &["snapshot", "mine/a@0"]);
    sent(&images, &["mine/a@0"], &stream);
    let mounted = Mounted::new(&images, "mine/b");
    for number in 0..200 {
        fs::write(mounted.path(&format!("file {number}")), b"here before").unwrap();
    }
    let before = File::open(mounted.path("file 7")).unwrap();
    let refused = received(&images, &stream, &["mine/b"]).unwrap_err();
    assert!(refused.contains("must specify -F"), "{refused}");
    received(&images, &stream, &["-F", "mine/b"]).unwrap();
    assert_eq!(seen(&mounted.path("")), state);
    assert!(before.read_exact_at(&mut [0], 0).is_err());
    drop(before);
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// Found by a hostile reader, regression: the source was marked to go with its last clone, which the dataset that was received is, and
/// somebody read it. That was noticed after the first change, and the whole pool failed.
#[test]
fn a_source_that_is_to_go_and_is_read_ends_the_receive_and_not_the_pool() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "atime=off"]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    images.run("zfs", &["create", "mine/a"]);
    let source = Mounted::new(&images, "mine/a");
    change(&source.path(""), 0);
    images.run("zfs", &["snapshot", "mine/a@0"]);
    sent(&images, &["mine/a@0"], &stream);
    change(&source.path(""), 1);
    let state = seen(&source.path(""));
    images.run("zfs", &["snapshot", "mine/a@1"]);
    source.end(End::Unmount);
    received(&images, &stream, &["mine/b"]).unwrap();
    sent(&images, &["-i", "@0", "mine/a@1"], &stream);
    let bytes = fs::read(&stream).unwrap();
    let mounted = Mounted::new(&images, "mine/b");
    let mut command = images.command("zfs", &["receive", "-s", "-F", "mine/b"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&bytes[..bytes.len() / 2]).unwrap();
    let token = || images.get("receive_resume_token", "mine/b");
    while token().starts_with('-') {
        std::thread::sleep(Duration::from_millis(20));
    }
    images.run("zfs", &["destroy", "-d", "mine/b@0"]);
    let read = File::open(mounted.path(".zfs/snapshot/0/same")).unwrap();
    pipe.write_all(&bytes[bytes.len() / 2..]).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("busy") && said.contains("zfs send -t"), "{said}");
    assert!(fs::read(mounted.path("same")).unwrap().starts_with(b"same 0"), "nothing has changed");
    fs::write(mounted.path("on"), b"and it goes on").unwrap();
    drop(read);
    let token = token().split('\t').next().unwrap().to_owned();
    sent(&images, &["-t", &token], &stream);
    received(&images, &stream, &["-s", "-F", "mine/b"]).unwrap();
    assert_eq!(seen(&mounted.path("")), state);
    mounted.end(End::Unmount);
    images.assert_whole();
}

#[test]
fn programs_that_write_go_on_while_streams_come_by_force() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = |round: usize| scratch.path().join(format!("{round}"));
    images.run("zfs", &["create", "mine/a"]);
    let mounted = Mounted::new(&images, "mine/a");
    for round in 0..6 {
        fs::write(mounted.path("file"), vec![1; 1 << 20]).unwrap();
        fs::write(mounted.path("mark"), format!("{round}")).unwrap();
        images.run("zfs", &["snapshot", &format!("mine/a@{round}")]);
        match round {
            0 => sent(&images, &["mine/a@0"], &stream(0)),
            _ => sent(&images, &["-i", &format!("@{}", round - 1), &format!("mine/a@{round}")], &stream(round)),
        }
    }
    mounted.end(End::Unmount);
    received(&images, &stream(0), &["mine/b"]).unwrap();
    let mounted = Mounted::new(&images, "mine/b");
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (path, ends) = (mounted.path("file"), &ends);
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
                }
            });
        }
        for round in 1..6 {
            received(&images, &stream(round), &["-F", "mine/b"]).unwrap();
            assert_eq!(fs::read(mounted.path("mark")).unwrap(), format!("{round}").as_bytes());
        }
        ends.store(true, Ordering::SeqCst);
    });
    assert!(fs::read(mounted.path(".zfs/snapshot/5/file")).unwrap() == vec![1; 1 << 20]);
    fs::write(mounted.path("mark"), b"logged since").unwrap();
    File::open(mounted.path("mark")).unwrap().sync_all().unwrap();
    mounted.kill();
    let mounted = Mounted::new(&images, "mine/b");
    assert_eq!(fs::read(mounted.path("mark")).unwrap(), b"logged since");
    mounted.end(End::Unmount);
    images.assert_whole();
}

/// A server, which a test that fails leaves to nobody.
struct Serving(std::process::Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_volume_gets_what_comes_under_its_clients() {
    let Some(python) = common::serving::python() else { return };
    let images = Images::made(&[], 1, &[]);
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("nbd.sock");
    let stream = scratch.path().join("stream");
    images.run("zfs", &["create", "-V", "4M", "mine/v"]);
    let serve = || {
        let mut command = images.command("serve", &["--rw", "--unix"]);
        let serving = command.arg(&socket).arg("mine").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Serving(serving)
    };
    let client = |volume: &str| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve_rw.py");
        let uri = format!("nbd+unix:///mine/{volume}?socket={}", socket.display());
        let mut client = Command::new(python);
        client.arg(script).args(["obey", &uri]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let end = |mut serving: Serving| {
        good(Command::new("kill").arg(serving.0.id().to_string()));
        assert!(serving.0.wait().unwrap().success());
        let _ = fs::remove_file(&socket);
    };
    images.run("zfs", &["snapshot", "mine/v@0"]);
    sent(&images, &["mine/v@0"], &stream);
    received(&images, &stream, &["mine/w"]).unwrap();
    let serving = serve();
    let (mut one, mut two) = (client("v"), client("w"));
    let mut lines = [&mut one, &mut two].map(|client| {
        let (tell, told) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        (tell, BufReader::new(told).lines())
    });
    let mut ask = |of: usize, what: &str| {
        let (tell, told) = &mut lines[of];
        writeln!(tell, "{what}").unwrap();
        told.next().unwrap().unwrap()
    };
    for round in 1..4 {
        assert_eq!(ask(0, &format!("write 0 65536 {round}")), "done");
        images.run("zfs", &["snapshot", &format!("mine/v@{round}")]);
        sent(&images, &["-i", &format!("@{}", round - 1), &format!("mine/v@{round}")], &stream);
        if round == 2 {
            assert_eq!(ask(1, "write 131072 4096 9"), "done");
            let refused = received(&images, &stream, &["mine/w"]).unwrap_err();
            assert!(refused.contains("has been modified"), "{refused}");
            assert_eq!(ask(1, "read 131072 4096"), "9");
        }
        received(&images, &stream, &["-F", "mine/w"]).unwrap();
        assert_eq!(ask(1, "read 0 65536"), format!("{round}"));
        assert_eq!(ask(1, "read 131072 4096"), "0");
    }
    assert_eq!(ask(0, "write 0 65536 4"), "done");
    images.run("zfs", &["snapshot", "mine/v@4"]);
    sent(&images, &["-i", "@3", "mine/v@4"], &stream);
    for (tell, told) in lines {
        drop(tell);
        told.for_each(drop);
    }
    for client in [&mut one, &mut two] {
        client.wait().unwrap();
    }
    // A client of a volume with `readonly=on` is a user like others. It read as of the txg that it had found, and after a receive blocks that
    // were free.
    end(serving);
    images.run("zfs", &["set", "readonly=on", "mine/w"]);
    let serving = serve();
    let mut reader = client("w");
    let mut tell = reader.stdin.take().unwrap();
    let mut told = BufReader::new(reader.stdout.take().unwrap()).lines();
    let mut read = || {
        writeln!(tell, "read 0 65536").unwrap();
        told.next().unwrap().unwrap()
    };
    assert_eq!(read(), "3");
    received(&images, &stream, &["-F", "mine/w"]).unwrap();
    assert_eq!(read(), "4");
    drop(tell);
    told.for_each(drop);
    reader.wait().unwrap();
    end(serving);
    images.assert_whole();
}

/// Runs a verb that must be refused, in whatever words.
fn fails(images: &Images, tool: &str, words: &[&str]) {
    let output = images.command(tool, words).output().unwrap();
    assert!(!output.status.success(), "{tool} {words:?} was carried out");
}

/// Goal: what is half received is used by no verb and opened by nobody but its receiver, whoever has the pool. Method: a file system and a
/// volume that came in part, and the hidden clone of an increment that did; all verbs and openers, each opening the pool itself, and then
/// through the process of another dataset's mount. At the end the streams are gone on with, and bring what was sent.
#[test]
fn what_is_half_received_is_used_by_no_verb_and_by_no_opener() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    images.run("zfs", &["create", "mine/a"]);
    images.run("zfs", &["create", "-s", "-V", "8M", "mine/v"]);
    let mounted = Mounted::new(&images, "mine/a");
    fs::write(mounted.path("f"), vec![7; 900_000]).unwrap();
    images.run("zfs", &["snapshot", "mine/a@1", "mine/v@1"]);
    fs::write(mounted.path("g"), vec![8; 900_000]).unwrap();
    images.run("zfs", &["snapshot", "mine/a@2"]);
    mounted.end(End::Unmount);
    sent(&images, &["mine/a@1"], &stream);
    received(&images, &stream, &["mine/b"]).unwrap();
    let parts: [(&[&str], &str); 3] =
        [(&["mine/a@1"], "mine/half"), (&["mine/v@1"], "mine/halfv"), (&["-i", "@1", "mine/a@2"], "mine/b")];
    for (what, target) in parts {
        sent(&images, what, &stream);
        let len = fs::metadata(&stream).unwrap().len();
        File::options().write(true).open(&stream).unwrap().set_len(len * 2 / 3).unwrap();
        received(&images, &stream, &["-s", target]).unwrap_err();
    }
    let all = || images.run("zfs", &["list", "-Hp", "-o", "name,guid,origin,inconsistent", "-t", "all", "-r", "mine"]);
    let before = all();
    assert!(before.lines().filter(|line| line.ends_with("\t1")).count() == 2, "{before}");
    let folder = scratch.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("own"), "own").unwrap();
    let at = folder.to_str().unwrap();
    let tried = || {
        for name in ["mine/half", "mine/halfv", "mine/b/%recv"] {
            let of = |rest: &str| format!("{name}{rest}");
            let (one, new, mark) = (&*of("@1"), &*of("@new"), &*of("#new"));
            let verbs: [&[&str]; 12] = [
                &["snapshot", new],
                &["snapshot", "-r", new],
                &["clone", one, "mine/x"],
                &["clone", one, &of("/x")],
                &["promote", name],
                &["rename", name, "mine/x"],
                &["rollback", one],
                &["bookmark", one, mark],
                &["hold", "t", one],
                &["send", name],
                &["redact", one, "new", one],
                &["set", "volsize=16M", name],
            ];
            verbs.iter().for_each(|verb| fails(&images, "zfs", verb));
            for opener in [&["--rw", name, at][..], &[name, at], &["--rw", "-o", "layout=alone", name, at]] {
                fails(&images, "mount", opener);
            }
            fails(&images, "ls", &[name]);
            fails(&images, "cat", &[name]);
            fails(&images, "put", &[name, at]);
            fails(&images, "tar", &[name]);
        }
        assert_eq!(all(), before);
    };
    tried();
    let other = Mounted::new(&images, "mine/a");
    tried();
    for ((_, target), source) in parts.iter().zip(["mine/a@1", "mine/v@1", "mine/a@2"]) {
        let token = images.run("zfs", &["get", "-H", "-o", "value", "receive_resume_token", target]);
        sent(&images, &["-t", token.trim()], &stream);
        received(&images, &stream, &["-s", target]).unwrap();
        let (_, snapshot) = source.split_once('@').unwrap();
        assert_eq!(images.get("guid", source), images.get("guid", &format!("{target}@{snapshot}")));
    }
    other.end(End::Unmount);
    let whole = Mounted::new(&images, "mine/half");
    assert_eq!(fs::read(whole.path("f")).unwrap(), vec![7; 900_000]);
    assert_eq!(fs::read_dir(whole.path("")).unwrap().count(), 1);
    whole.end(End::Unmount);
    images.assert_whole();
}

/// Goal: a receive that cannot be gone on with leaves nothing when its process was killed: the next that opens the pool for writing destroys
/// what came, as OpenZFS does when it imports a pool. What can be gone on with stays. Method: both, killed amid a stream.
#[test]
fn what_a_killed_receive_leaves_goes_when_the_pool_is_opened_again() {
    let images = Images::made(&[], 1, &["-O", "compression=off"]);
    let scratch = tempfile::tempdir().unwrap();
    let stream = scratch.path().join("stream");
    let folder = scratch.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("f"), vec![7; 2_000_000]).unwrap();
    images.run("zfs", &["create", "mine/a"]);
    images.run("put", &["mine/a", folder.to_str().unwrap()]);
    images.run("zfs", &["snapshot", "mine/a@1"]);
    sent(&images, &["mine/a@1"], &stream);
    let bytes = fs::read(&stream).unwrap();
    let names = || images.run("zfs", &["list", "-H", "-o", "name", "-r", "mine"]);
    for words in [&["receive", "mine/lost"][..], &["receive", "-s", "mine/kept"]] {
        let mut command = images.command("zfs", words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&bytes[..bytes.len() / 2]).unwrap();
        let name = words.last().unwrap();
        while !names().lines().any(|line| line == *name) {
            assert!(child.try_wait().unwrap().is_none(), "the receive has ended");
            std::thread::sleep(Duration::from_millis(50));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        drop(stdin);
    }
    assert!(!names().contains("mine/lost"), "the second receive has opened the pool");
    images.run("zfs", &["set", "a:b=c", "mine"]);
    assert_eq!(names(), "mine\nmine/a\nmine/kept\n");
    images.assert_whole();
}
