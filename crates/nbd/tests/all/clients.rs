//! Real clients: libnbd's tools and shell, QEMU, fio. Programs that are not installed are left out, with a note.

use crate::support;

use std::process::Command;
use std::sync::Arc;

use cenote_nbd::{Listener, MemoryExport, Server, ServerOptions, StaticExports};
use cenote_testkit::zdb::program;
use support::{Fixture, contents};

const SIZE: usize = 8 << 20;

fn fixture() -> Fixture {
    Fixture::new(vec![
        ("pool/vol@snap", Arc::new(MemoryExport::with_contents(&contents(SIZE)).read_only())),
        ("pool/scratch", Arc::new(MemoryExport::new(64 << 20))),
        ("pool/odd", Arc::new(MemoryExport::with_contents(&contents(1_000_001)).read_only())),
    ])
}

/// Runs a client; `None` if it is not installed.
fn run(name: &str, arguments: &[&str]) -> Option<String> {
    let Some(path) = program(name) else {
        eprintln!("left out: {name} is not installed");
        return None;
    };
    let output = Command::new(path).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    Some(text(&output.stdout))
}

#[test]
fn nbdinfo_sees_all_exports_with_sizes_flags_and_maps() {
    let fixture = fixture();
    let Some(list) = run("nbdinfo", &["--list", "--json", &fixture.uri("")]) else { return };
    for name in ["pool/vol@snap", "pool/scratch", "pool/odd"] {
        assert!(list.contains(&format!("\"{name}\"")), "{list}");
    }
    let info = run("nbdinfo", &[&fixture.uri("pool/vol@snap")]).unwrap();
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 8388608 (8M)",
        "is_read_only: true",
        "can_multi_conn: true",
        "can_df: true",
        "block_size_maximum: 33554432",
        "base:allocation",
    ] {
        assert!(info.contains(line), "no \"{line}\" in {info}");
    }
    let map = run("nbdinfo", &["--map", &fixture.uri("pool/vol@snap")]).unwrap();
    let mut rows = map.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(rows.next().unwrap()[..3], ["0", "20480", "0"], "{map}");
    assert_eq!(rows.next().unwrap()[..3], ["20480", "20480", "3"], "{map}");
    let total = run("nbdinfo", &["--size", &fixture.uri("pool/odd")]).unwrap();
    assert_eq!(total.trim(), "1000001");
}

#[test]
fn nbdcopy_copies_out_and_in_over_several_connections() {
    let fixture = fixture();
    let out = fixture.dir.path().join("out.img");
    let out = out.to_str().unwrap();
    if run("nbdcopy", &["--connections=4", "--requests=32", &fixture.uri("pool/vol@snap"), out]).is_none() {
        return;
    }
    assert!(std::fs::read(out).unwrap() == contents(SIZE));
    run("nbdcopy", &["--flush", out, &fixture.uri("pool/scratch")]).unwrap();
    let back = fixture.dir.path().join("back.img");
    run("nbdcopy", &[&fixture.uri("pool/scratch"), back.to_str().unwrap()]).unwrap();
    let back = std::fs::read(back).unwrap();
    assert!(back[..SIZE] == contents(SIZE));
    assert!(back[SIZE..].iter().all(|byte| *byte == 0));
    run("nbdcopy", &["--synchronous", &fixture.uri("pool/odd"), out]).unwrap();
    assert!(std::fs::read(out).unwrap() == contents(1_000_001));
}

#[test]
fn qemu_maps_compares_converts_and_writes() {
    let fixture = fixture();
    let (source, scratch) = (fixture.uri("pool/vol@snap"), fixture.uri("pool/scratch"));
    let Some(map) = run("qemu-img", &["map", "-f", "raw", "--output=json", &source]) else { return };
    assert!(map.contains("\"start\": 20480, \"length\": 20480") && map.contains("\"zero\": true"), "{map}");
    let raw = fixture.dir.path().join("image.raw");
    let raw = raw.to_str().unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &source, raw]).unwrap();
    assert!(std::fs::read(raw).unwrap() == contents(SIZE));
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, &source]).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &source, &scratch]).unwrap();
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &source, &scratch]).unwrap();
    let io = [
        "write -P 0xa5 1M 64k",
        "read -P 0xa5 1M 64k",
        "write -z 1M 32k",
        "read -P 0 1M 32k",
        "discard 2M 1M",
        "flush",
        "read -P 0xa5 1081344 32k",
    ];
    let mut arguments = vec!["-f", "raw"];
    for command in &io {
        arguments.extend(["-c", command]);
    }
    arguments.push(&scratch);
    let text = run("qemu-io", &arguments).unwrap();
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn libnbd_drives_every_command_with_many_in_flight() {
    let fixture = fixture();
    let expected = fixture.dir.path().join("expected.img");
    std::fs::write(&expected, contents(SIZE)).unwrap();
    let script = include_str!("../clients.py")
        .replace("@SOURCE@", &fixture.uri("pool/vol@snap"))
        .replace("@SCRATCH@", &fixture.uri("pool/scratch"))
        .replace("@EXPECTED@", expected.to_str().unwrap());
    let path = fixture.dir.path().join("script.py");
    std::fs::write(&path, script).unwrap();
    // The system's Python has libnbd's module; one earlier in the path may not.
    let has_module = |python: &&str| {
        let probe = Command::new(python).args(["-c", "import nbd"]).output();
        probe.is_ok_and(|output| output.status.success())
    };
    let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(has_module) else {
        eprintln!("left out: libnbd's Python module is not installed");
        return;
    };
    let output = Command::new(python).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.trim_end().ends_with("all good"), "{text}");
}

#[test]
fn fio_verifies_what_it_wrote() {
    let fixture = fixture();
    let uri = format!("--uri={}", fixture.uri("pool/scratch"));
    let arguments = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bs=4k",
        "--size=8m",
        "--iodepth=32",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--output-format=terse",
    ];
    if program("fio").is_some() && !run("fio", &["--enghelp"]).unwrap().contains("nbd") {
        eprintln!("left out: this fio has no nbd engine");
        return;
    }
    run("fio", &arguments);
}

#[test]
fn tcp_serves_as_the_unix_socket_does() {
    let fixture = fixture();
    let listener = Listener::tcp("127.0.0.1:0").unwrap();
    let address = listener.tcp_address().unwrap();
    let export: Arc<dyn cenote_nbd::Export> = Arc::new(MemoryExport::with_contents(&contents(SIZE)).read_only());
    let exports = Arc::new(StaticExports::new([("only".to_owned(), export)]));
    let server = Server::start(fixture.runtime.handle(), exports, vec![listener], ServerOptions::default()).unwrap();
    let out = fixture.dir.path().join("tcp.img");
    // The only export is the default.
    let copied = run("nbdcopy", &[&format!("nbd://{address}"), out.to_str().unwrap()]);
    if copied.is_some() {
        assert!(std::fs::read(out).unwrap() == contents(SIZE));
    }
    server.shutdown();
}
