//! Goal: `zfs send` writes OpenZFS's streams, and says what OpenZFS says. Method: the pool that the golden streams were made of, each line
//! that made one, and the bytes compared; then what is refused, and a pool that a server has.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cenote_testkit::zdb::program as system_program;
use common::images::Images;
use common::{Pool, theme};

/// Streams of the golden set whose every byte is the program's: not those that have defects of OpenZFS 2.3.2 in them, which the tests
/// of the engine compare.
const SAME: [&str; 15] = [
    "full.zfs",
    "full-large.zfs",
    "full-compressed.zfs",
    "full-props.zfs",
    "incr.zfs",
    "incr-I.zfs",
    "incr-bookmark.zfs",
    "replication.zfs",
    "replication-incr.zfs",
    "holds.zfs",
    "volume.zfs",
    "volume-incr.zfs",
    "volume-w.zfs",
    "enc-plain.zfs",
    "kid.zfs",
];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn send(pool: &Pool, words: &[&str]) -> Output {
    pool.command(&["zfs"], &[&["send"], words].concat()).output().unwrap()
}

#[test]
fn the_lines_that_made_the_golden_streams_make_them_again() {
    let theme = theme("streams");
    let pool = Pool::of("streams");
    let manifest = theme.manifest_json().unwrap();
    let present = theme.streams().unwrap();
    let mut compared = 0;
    for stream in manifest["streams"].as_array().unwrap() {
        let (file, line) = (stream["file"].as_str().unwrap(), stream["command"].as_str().unwrap());
        if !SAME.contains(&file) || !present.iter().any(|stream| stream.file == file) {
            continue;
        }
        let words: Vec<&str> = line.split(' ').skip(2).collect();
        let output = send(&pool, &words);
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {}", said(&output));
        assert!(output.stdout == theme.stream_bytes(file).unwrap(), "{line}: another stream");
        compared += 1;
    }
    assert!(compared >= 5, "only {compared} streams at hand");
}

#[test]
fn a_stream_goes_on_where_its_token_says() {
    let theme = theme("streams");
    let pool = Pool::of("streams");
    let token = theme.manifest_json().unwrap()["notes"]["resume-token"].as_str().unwrap().to_owned();
    let output = send(&pool, &["-t", &token]);
    assert!(output.status.success(), "{}", said(&output));
    // Those before the token are not sent again.
    let whole = send(&pool, &["-L", &format!("{}/src@one", pool.name)]).stdout;
    assert!(output.stdout.len() < whole.len() && output.stdout.len() > 1000);
    let told = send(&pool, &["-nv", "-t", &token]);
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(text.starts_with("resume token contents:\nnvlist version: 0\n\tobject = "), "{text}");
    assert!(text.contains("full send of ") && text.contains("total estimated size is "), "{text}");
    let damaged = send(&pool, &["-t", &token.replace("789c", "789d")]);
    assert_eq!(damaged.status.code(), Some(255));
    assert_eq!(said(&damaged), "cannot resume send: resume token is corrupt (incorrect checksum)\n");
}

#[test]
fn every_stream_passes_openzfs_own_reader() {
    let Some(zstream) = system_program("zstream") else { return };
    let pool = Pool::of("streams");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stream");
    let name = |rest: &str| format!("{}/{rest}", pool.name);
    let lines: [&[&str]; 6] = [
        &["-Lec", &name("src@three")],
        &["-w", &name("enc@two")],
        &["-R", "-w", &name("src@three")],
        &["-i", "#one", "-c", &name("src@three")],
        &["--redact", "book", &name("src@three")],
        &["-L", &name("src")],
    ];
    for line in lines {
        let output = send(&pool, line);
        assert!(output.status.success(), "{line:?}: {}", said(&output));
        std::fs::write(&file, &output.stdout).unwrap();
        let dumped = Command::new(&zstream).args(["dump", "-v"]).arg(&file).output().unwrap();
        assert!(dumped.status.success() && dumped.stderr.is_empty(), "{line:?}: {}", said(&dumped));
        let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
        assert!(text.contains("SUMMARY:"), "{line:?}");
    }
}

#[test]
fn estimates_are_told_and_nothing_is_written() {
    let pool = Pool::of("streams");
    let one = format!("{}/src@one", pool.name);
    let two = format!("{}/src@two", pool.name);
    let text = |words: &[&str]| {
        let output = send(&pool, words);
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(text(&["-n", &one]), "");
    let full = text(&["-nP", &one]);
    let bytes = full.strip_prefix(&format!("full\t{one}\t")).unwrap().split('\n').next().unwrap();
    assert!(bytes.parse::<u64>().unwrap() > 1_000_000);
    assert_eq!(full, format!("full\t{one}\t{bytes}\nsize\t{bytes}\n"));
    let words = text(&["-nv", "-i", "@one", &two]);
    assert!(words.starts_with(&format!("send from {one} to {two} estimated size is ")), "{words}");
    // A package has the short name, and a sum of its own.
    let many = text(&["-nP", "-R", "-I", "@one", &format!("{}/src@three", pool.name)]);
    assert!(many.starts_with(&format!("incremental\tone\t{two}\t")), "{many}");
    let sum: u64 = many.lines().filter(|line| !line.starts_with("size")).map(number).sum();
    assert_eq!(many.lines().last().unwrap(), format!("size\t{sum}"));
    // Where the accounts do not tell, the stream is made without its data: the estimate is its length.
    let redacted = text(&["-nP", "--redact", "book", &format!("{}/src@three", pool.name)]);
    let stream = send(&pool, &["--redact", "book", &format!("{}/src@three", pool.name)]).stdout;
    assert_eq!(number(redacted.lines().last().unwrap()), stream.len() as u64);
    let shown = send(&pool, &["-v", &one]);
    assert!(shown.status.success());
    let said = said(&shown);
    assert!(said.starts_with(&format!("full send of {one} estimated size is ")), "{said}");
    assert!(said.contains(&format!("TIME        SENT   SNAPSHOT {one}\n")), "{said}");
}

fn number(line: &str) -> u64 {
    line.rsplit('\t').next().unwrap().parse().unwrap()
}

#[test]
fn what_cannot_be_sent_is_told_in_openzfs_words() {
    let pool = Pool::of("streams");
    let name = |rest: &str| format!("{}/{rest}", pool.name);
    let cases: [(&[&str], i32, String); 9] = [
        (
            &["-i", "@two", &name("src@one")],
            1,
            format!("warning: cannot send '{}': not an earlier snapshot from the same fs\n", name("src@one")),
        ),
        (
            &["-i", "@none", &name("src@one")],
            1,
            format!("cannot open '{}': dataset does not exist\n", name("src@none")),
        ),
        (
            &["-i", "#none", &name("src@one")],
            1,
            format!(
                "warning: cannot send '{}': incremental source ({}) does not exist\n",
                name("src@one"),
                name("src#none")
            ),
        ),
        (&["-I", "#one", &name("src@two")], 1, "Error: multiple snapshots cannot be sent from a bookmark.\n".into()),
        (&["-R", &name("src")], 1, "Error: Unsupported flag with filesystem or bookmark.\n".into()),
        (&["-s", &name("src@one")], 2, String::new()),
        (
            &["--redact", "one", &name("src@three")],
            1,
            format!("warning: cannot send '{}': not a redaction bookmark\n", name("src@three")),
        ),
        (&["-w", "--redact", "book", &name("src@three")], 1, "Error: raw sends may not be redacted.\n".into()),
        (
            &["-p", &name("enc@one")],
            1,
            format!(
                "cannot send {0}@one: encrypted dataset {0} may not be sent with properties without the raw flag or no-preserve-encryption flag\nwarning: cannot send '{0}@one': backup failed\n",
                name("enc")
            ),
        ),
    ];
    for (words, status, text) in cases {
        let output = send(&pool, words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(status == 2 || said(&output) == text, "{words:?}: {}", said(&output));
    }
    // Without its key an encrypted dataset is sent raw or not at all.
    let bare = |words: &[&str]| {
        common::program().args(["zfs", "-d"]).arg(&pool.dir).args(["-f", "send"]).args(words).output().unwrap()
    };
    let refused = bare(&[&name("enc@one")]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(said(&refused), format!("warning: cannot send '{}': dataset key must be loaded\n", name("enc@one")));
    let raw = bare(&["-w", &name("enc@one")]);
    assert!(raw.status.success() && raw.stdout == send(&pool, &["-w", &name("enc@one")]).stdout);
}

#[test]
fn a_pool_that_a_server_has_is_sent_beside_it() {
    let images = Images::of_theme("streams");
    let pool = theme("streams").manifest().unwrap().pools[0].clone();
    let one = format!("{pool}/src@one");
    let alone = images.command("zfs", &["send", "-Lec", &one]).output().unwrap();
    assert!(alone.status.success(), "{}", said(&alone));
    let socket = images.cache.path().join("nbd.sock");
    let mut command = images.command("serve", &["--rw", "--unix", socket.to_str().unwrap(), &pool]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !socket.exists() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    let beside = images.command("zfs", &["send", "-Lec", &one]).output().unwrap();
    Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    child.wait().unwrap();
    assert!(beside.status.success(), "{}", said(&beside));
    assert!(beside.stdout == alone.stdout, "another stream");
}
