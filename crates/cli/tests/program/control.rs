//! Goal: commands for a pool that a server has are done by the server, as if the pool were nobody's; who asks wrongly is told, and
//! does no harm. Method: `cenote serve --rw` on a pool made here, the command line beside it, and bytes sent to its socket.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::images::Images;
use common::mounted::{End, Mounted, can_mount};
use common::serving::python;

struct Server {
    images: Images,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let images = Images::made(&["mirror"], 2, &[]);
        images.run("zfs", &["create", "-V", "8M", "-s", "mine/v"]);
        let socket = images.cache.path().join("nbd.sock");
        let mut command = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), "mine"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { images, child };
        let deadline = Instant::now() + Duration::from_secs(120);
        while server.socket().is_none() || !socket.exists() {
            assert!(server.child.try_wait().unwrap().is_none() && Instant::now() < deadline, "no server");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn socket(&self) -> Option<PathBuf> {
        let found = std::fs::read_dir(self.images.cache.path().join("servers")).ok()?;
        found.filter_map(Result::ok).map(|entry| entry.path()).find(|path| UnixStream::connect(path).is_ok())
    }

    /// The server's kstats, by `GROUP:NAME`.
    fn kstats(&self) -> BTreeMap<String, String> {
        let mut command = self.images.bare();
        let output = command.args(["kstat", "-p", "-d"]).arg(&self.images.dir).arg("mine").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let pair = |line: &str| line.split_once('\t').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    fn txgs(&self, options: &str) -> Output {
        let mut command = self.images.bare();
        command.args(["inspect", "txgs", options, "-d"]).arg(&self.images.dir).arg("mine").output().unwrap()
    }

    /// The server's answer to these bytes, up to the end of the connection.
    fn say(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket().unwrap()).unwrap();
        // It may hang up before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_for_a_pool_that_a_server_has_are_done_by_the_server() {
    let mut server = Server::start();
    let images = &server.images;
    images.run("zfs", &["create", "-p", "-o", "compression=zstd", "mine/a/b"]);
    images.run("zfs", &["create", "-V", "1M", "-s", "mine/w"]);
    images.run("zfs", &["set", "copies=2", "a:b=c", "mine/a"]);
    assert_eq!(images.get("copies", "mine/a/b"), "2\tinherited from mine/a");
    images.run("zfs", &["inherit", "copies", "mine/a"]);
    assert_eq!(images.get("copies", "mine/a/b"), "1\tdefault");
    images.run("zfs", &["rename", "mine/a/b", "mine/c"]);
    images.run("zpool", &["set", "comment=served", "mine"]);
    assert_eq!(images.run("zpool", &["get", "-Ho", "value", "comment", "mine"]).trim(), "served");
    let names = images.run("zfs", &["list", "-Hro", "name", "mine"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["mine", "mine/a", "mine/c", "mine/v", "mine/w"]);
    // Refusals have the same words, and the server goes on.
    assert!(images.refused("zfs", &["create", "mine/c"]).contains("dataset already exists"));
    assert!(images.refused("zfs", &["destroy", "mine/x"]).contains("mine/x"));
    images.run("zfs", &["set", "volsize=2M", "mine/w"]);
    assert_eq!(images.get("volsize", "mine/w"), "2M\tlocal");
    images.run("zfs", &["destroy", "-r", "mine/a"]);
    images.run("zfs", &["destroy", "mine/w"]);
    // The history of txgs, which only a server knows.
    let text = String::from_utf8(server.txgs("-Hp").stdout).unwrap();
    let rows: Vec<Vec<u64>> =
        text.lines().map(|line| line.split('\t').filter_map(|cell| cell.parse().ok()).collect()).collect();
    assert!(rows.len() > 5 && rows.windows(2).all(|pair| pair[0][0] + 1 == pair[1][0]), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&server.txgs("-vj").stdout).unwrap();
    for txg in json["txgs"].as_array().unwrap() {
        let (metaslabs, sum) = (txg["metaslabs"].as_array().unwrap(), |name: &str| {
            let metaslabs = txg["metaslabs"].as_array().unwrap().iter();
            metaslabs.map(|metaslab| metaslab[name].as_u64().unwrap()).sum::<u64>()
        });
        assert!(!metaslabs.is_empty() && txg["metaslabs_left_out"] == 0, "{txg}");
        for name in ["allocated_bytes", "freed_bytes", "map_bytes", "log_bytes"] {
            assert_eq!(txg[name], sum(name), "{name}: {txg}");
        }
        assert!(sum("allocated_bytes") > 0 && sum("log_bytes") > 0, "each txg writes the pool's own objects: {txg}");
    }
    assert!(images.run("zpool", &["history", "mine"]).contains("zfs rename mine/a/b mine/c"));
    // The end: when the command has ended, the pool is free.
    images.run("zpool", &["export", "mine"]);
    assert!(server.child.wait().unwrap().success());
    let images = &server.images;
    images.assert_whole();
    assert_eq!(images.run("zfs", &["list", "-Hro", "name", "mine"]).lines().count(), 3);
    let none = server.txgs("-Hp");
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("no server has the pool"), "{none:?}");
}

/// A client of a volume that does what it is told. Hangs up when dropped.
struct Client {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Client {
    fn of(server: &Server, python: &str, volume: &str) -> Self {
        let socket = server.images.cache.path().join("nbd.sock");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve_rw.py");
        let mut command = Command::new(python);
        command.arg(script).arg("obey").arg(format!("nbd+unix:///{volume}?socket={}", socket.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
        self.said.next().unwrap().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_volume_that_clients_use_changes_its_size_and_its_name() {
    const MIB: u64 = 1 << 20;
    let Some(python) = python() else { return };
    let server = Server::start();
    let images = &server.images;
    let number = |property: &str, volume: &str| -> u64 {
        images.run("zfs", &["get", "-Hpo", "value", property, volume]).trim().parse().unwrap()
    };
    images.run("zfs", &["create", "-V", "4M", "-b", "8K", "mine/r"]);
    let reserved = number("refreservation", "mine/r");
    let mut early = Client::of(&server, python, "mine/r");
    assert_eq!(early.tell("size"), "4194304");
    assert_eq!(early.tell("write 0 1048576 7"), "done");
    assert_eq!(early.tell("write 3145728 1048576 9"), "done");
    // Larger: clients that connect from now on have all of it. The reservation follows.
    images.run("zfs", &["set", "volsize=8M", "mine/r"]);
    assert_eq!(number("volsize", "mine/r"), 8 * MIB);
    assert!(number("refreservation", "mine/r") >= reserved + 4 * MIB);
    let mut late = Client::of(&server, python, "mine/r");
    assert_eq!((late.tell("size"), early.tell("size")), ("8388608".into(), "4194304".into()));
    assert_eq!(late.tell("write 7340032 1048576 5"), "done");
    // Smaller: the part cut off cannot be written, is read as zeros, and stays zeros when there is room for it again.
    images.run("zfs", &["set", "volsize=2M", "mine/r"]);
    assert!(number("refreservation", "mine/r") < reserved);
    assert_eq!((early.tell("read 3145728 1048576"), early.tell("read 0 1048576")), ("0".into(), "7".into()));
    assert_eq!(early.tell("write 3145728 1048576 9"), "ENOSPC");
    images.run("zfs", &["set", "volsize=4M", "mine/r"]);
    assert_eq!(number("refreservation", "mine/r"), reserved);
    assert_eq!(early.tell("read 3145728 1048576"), "0");
    assert_eq!(early.tell("write 3145728 1048576 4"), "done");
    // Requests that cannot be fulfilled are refused, and change nothing.
    for (size, volume, why) in [
        ("5000", "mine/r", "multiple of volume block size"),
        ("1T", "mine/r", "greater than available space"),
        ("1M", "mine", "no volume"),
        ("1M", "mine/x", "mine/x"),
    ] {
        let said = images.refused("zfs", &["set", &format!("volsize={size}"), volume]);
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(number("volsize", "mine/r"), 4 * MIB);
    // Under its new name it is the same one, and the old name is free.
    images.run("zfs", &["rename", "mine/r", "mine/s"]);
    images.run("zfs", &["create", "-s", "-V", "1M", "mine/r"]);
    let (mut same, mut other) = (Client::of(&server, python, "mine/s"), Client::of(&server, python, "mine/r"));
    assert_eq!((same.tell("size"), other.tell("size")), ("4194304".into(), "1048576".into()));
    assert_eq!(early.tell("write 0 4096 3"), "done");
    assert_eq!((same.tell("read 0 4096"), other.tell("read 0 4096")), ("3".into(), "0".into()));
    assert_eq!(same.tell("flush"), "done");
    // `logbias` is obeyed at once: small writes are logged by reference, too.
    let referenced = || -> u64 { server.kstats()["zil:zil_itx_indirect_count"].parse().unwrap() };
    let mut logged = |logbias: &str, wanted: bool| {
        images.run("zfs", &["set", &format!("logbias={logbias}"), "mine/s"]);
        let before = referenced();
        // One may have to wait for a transaction group, and is not logged.
        (0..20).any(|_| {
            assert_eq!((same.tell("write 0 4096 3"), same.tell("flush")), ("done".into(), "done".into()));
            wanted && referenced() > before
        }) || referenced() > before
    };
    assert!(!logged("latency", false));
    assert!(logged("throughput", true));
    // The requests of clients are counted.
    let kstats = server.kstats();
    let of = |volume: &str| {
        let found = kstats.iter().find(|(name, value)| name.ends_with(":dataset_name") && *value == volume);
        found.unwrap_or_else(|| panic!("{volume}: {kstats:?}")).0.trim_end_matches("dataset_name").to_owned()
    };
    let (other_group, connections) = (of("mine/r"), &kstats["nbd:connections"]);
    let count = |name: &str| kstats[&format!("{other_group}{name}")].as_str();
    assert_eq!((count("reads"), count("nread"), count("writes"), count("nwritten")), ("1", "4096", "0", "0"));
    assert_eq!(connections, "4");
    // It goes when nobody has it any more.
    assert!(images.refused("zfs", &["destroy", "mine/r"]).contains("busy"));
    drop(other);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !images.command("zfs", &["destroy", "mine/r"]).output().unwrap().status.success() {
        assert!(Instant::now() < deadline, "it is busy though nobody has it");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop((early, late, same));
    images.run("zpool", &["export", "mine"]);
    images.assert_whole();
    assert_eq!((number("volsize", "mine/s"), number("refreservation", "mine/s")), (4 * MIB, reserved));
}

#[test]
fn many_commands_at_once_wait_for_their_turns() {
    let server = Server::start();
    let images = &server.images;
    // Those who say nothing keep nobody from being heard.
    let silent: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(server.socket().unwrap()).unwrap()).collect();
    let set = |number: usize| {
        let mut command = images.command("zfs", &["set", &format!("k:{number}=v"), "mine"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..40).map(set).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    drop(silent);
    let all = images.run("zfs", &["get", "-H", "-s", "local", "-o", "property", "all", "mine"]);
    assert_eq!(all.lines().filter(|line| line.starts_with("k:")).count(), 40);
}

#[test]
fn a_volume_obeys_readonly_at_once_and_a_pool_with_clients_is_busy() {
    let Some(python) = python() else { return };
    let server = Server::start();
    let images = &server.images;
    let mut early = Client::of(&server, python, "mine/v");
    assert_eq!(early.tell("write 0 4096 7"), "done");
    images.run("zfs", &["set", "readonly=on", "mine"]);
    assert_eq!((early.tell("write 0 4096 8"), early.tell("read 0 4096")), ("EPERM".into(), "7".into()));
    let mut late = Client::of(&server, python, "mine/v");
    assert_ne!(late.tell("write 0 4096 8"), "done");
    images.run("zfs", &["inherit", "readonly", "mine"]);
    assert_eq!((early.tell("write 0 4096 9"), early.tell("read 0 4096")), ("done".into(), "9".into()));
    let said = images.refused("zpool", &["export", "mine"]);
    assert!(said.contains("pool is busy: a client has the volume 'mine/v'"), "{said}");
    assert_eq!(early.tell("write 0 4096 5"), "done");
    drop((early, late));
    images.run("zpool", &["export", "mine"]);
    images.assert_whole();
}

#[test]
fn a_pool_that_is_written_is_read_by_other_processes_as_of_one_txg() {
    let Some(python) = python() else { return };
    let server = Server::start();
    let images = &server.images;
    let mut client = Client::of(&server, python, "mine/v");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let mut writes = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                writes += 1;
                let offset = (writes % 8) << 20;
                assert_eq!(client.tell(&format!("write {offset} 1048576 {}", writes % 200 + 1)), "done");
                assert_eq!(client.tell("flush"), "done");
            }
            writes
        });
        for _ in 0..4 {
            let mut verify = images.bare();
            verify.args(["verify", "-d"]).arg(&images.dir).args(["-f", "mine"]);
            let output = verify.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            assert!(said.contains("reading it as of txg"), "{said}");
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(writes.join().unwrap() > 8);
    });
    drop(client);
    images.run("zpool", &["export", "mine"]);
    images.assert_whole();
}

#[test]
fn a_process_that_mounts_for_writing_takes_commands_too() {
    if !can_mount() {
        return;
    }
    let images = Images::made(&["mirror"], 2, &[]);
    let mounted = Mounted::new(&images, "mine");
    std::fs::write(mounted.path("before"), [1; 100_000]).unwrap();
    images.run("zfs", &["create", "-o", "compression=zstd", "mine/a"]);
    images.run("zfs", &["create", "-V", "2M", "mine/v"]);
    images.run("zfs", &["set", "volsize=3M", "mine/v"]);
    assert_eq!(images.get("volsize", "mine/v"), "3M\tlocal");
    let names = images.run("zfs", &["list", "-Hro", "name", "mine"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["mine", "mine/a", "mine/v"]);
    assert!(images.run("zpool", &["status", "mine"]).contains("ONLINE"));
    assert!(images.refused("zfs", &["destroy", "mine"]).contains("cannot destroy 'mine'"));
    // Synced data is there whatever happens to the process.
    std::fs::write(mounted.path("between"), [3; 100_000]).unwrap();
    images.run("zpool", &["sync"]);
    images.run("zpool", &["sync", "mine"]);
    assert!(images.refused("zpool", &["sync", "other"]).contains("other"));
    mounted.kill();
    let mounted = Mounted::new(&images, "mine");
    assert!(std::fs::read(mounted.path("between")).unwrap() == [3; 100_000]);
    std::fs::write(mounted.path("after"), [2; 100_000]).unwrap();
    images.run("zpool", &["export", "mine"]);
    mounted.wait();
    images.assert_whole();
    let mounted = Mounted::new(&images, "mine/a");
    assert!(images.refused("zfs", &["destroy", "mine/a"]).contains("busy"));
    mounted.end(End::Unmount);
    let mounted = Mounted::new(&images, "mine");
    for (name, byte) in [("before", 1), ("after", 2)] {
        assert!(std::fs::read(mounted.path(name)).unwrap() == [byte; 100_000], "{name}");
    }
    // All but the pool's own, which stays mounted.
    images.run("zfs", &["destroy", "-r", "mine"]);
    assert_eq!(images.run("zfs", &["list", "-Hro", "name", "mine"]).trim(), "mine");
    mounted.end(End::Signal("-INT"));
    images.assert_whole();
}

#[test]
fn whoever_asks_wrongly_is_told_and_does_no_harm() {
    let server = Server::start();
    let socket = server.socket().unwrap();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    for bytes in [
        &b"\n"[..],
        b"{}\n",
        b"\xff\xfe\n",
        b"{\"version\":2,\"request\":{}}\n",
        b"{\"version\":1,\"request\":{\"command\":{}}}\n",
        b"[[[[[[[[[[",
    ] {
        let said = server.say(bytes);
        assert!(said.contains("\"err\"") && said.ends_with("{\"status\":1}\n"), "{said}");
    }
    assert!(server.say(b"{\"version\":2,\"request\":{}}\n").contains("version 2 of requests is not supported"));
    server.say(&vec![b'['; 3 << 20]);
    server.say(b"");
    // Others that say nothing take no one's turn but their own.
    let silent: Vec<_> = (0..4).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    server.images.run("zfs", &["create", "mine/still"]);
    drop(silent);
}

/// Goal: `zpool add` of a pool that a server has is what it is of one that nobody has: the same checks, words and result.
#[test]
fn devices_are_added_to_a_pool_that_a_server_has() {
    let server = Server::start();
    let images = &server.images;
    let image = |name: &str| images.dir.join(name).display().to_string();
    let names = ["c", "d", "s", "k"].map(image);
    let [c, d, spare, cache] = &names;
    fn add<'a>(rest: &[&'a str]) -> Vec<&'a str> {
        [&["add"][..], rest].concat()
    }
    // Requests that are refused, in the words used for a pool that nobody has; nothing is changed or made.
    let pair = ["mine", "mirror", c.as_str(), d.as_str()];
    for (rest, why) in [
        (vec!["--size", "80M", "mine", c], "mismatched replication level: pool uses mirror and new vdev is file"),
        (vec!["mine", "mirror", c, d], "no such device"),
        (vec!["--size", "80M", "-o", "ashift=13", "mine", "mirror", c, d], "mismatched ashift"),
        (vec!["--size", "80M", "-o", "comment=x", "mine", "mirror", c, d], "cannot be set while vdevs are added"),
        (vec!["--size", "80M", "mine", "mirror", c, c], "is named twice"),
        (vec!["-f", "mine", "mirror", &image("0.img"), &image("1.img")], "is part of this pool"),
    ] {
        let said = images.refused("zpool", &add(&rest));
        assert!(said.contains(why), "{rest:?}: {said}");
        assert!(names.iter().all(|name| !Path::new(name).exists()), "{rest:?} left files");
    }
    let shown = images.run("zpool", &add(&[&["-n"][..], &pair].concat()));
    assert!(shown.contains("would update 'mine'") && shown.contains(c.as_str()), "{shown}");
    assert!(!Path::new(c).exists());
    // Paths begin where the command is given, not where the server works.
    let mut command = images.command("zpool", &add(&["--size", "80M", "mine", "mirror", "c", "d"]));
    common::good(command.current_dir(&images.dir));
    let rest = ["--size", "80M", "mine", "spare", spare, "cache", cache];
    images.run("zpool", &add(&rest));
    let status = images.run("zpool", &["status", "-P", "mine"]);
    for (name, state) in [(c, "ONLINE"), (d, "ONLINE"), (spare, "AVAIL"), (cache, "ONLINE")] {
        let line = status.lines().find(|line| line.contains(&format!("{name} "))).unwrap_or_default();
        assert!(line.contains(state), "{name}: {status}");
    }
    let history = images.run("zpool", &["history", "mine"]);
    assert!(history.contains("zpool add mine mirror c d"), "{history}");
    // The files belong to this pool now, and no other pool can take them.
    let said = images.refused("zpool", &["create", "-f", "other", c]);
    assert!(said.contains(c.as_str()), "{said}");
    images.run("zpool", &["export", "mine"]);
    let mut server = server;
    server.images.note_files();
    server.images.assert_whole();
    assert!(server.images.run("zpool", &["status", "mine"]).contains("mirror-1"));
}
