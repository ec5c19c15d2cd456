//! `zstream dump` as OpenZFS's, on every golden stream.

mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use cenote_testkit::zdb::program as system_program;
use common::{program, theme};

#[test]
fn a_dump_is_that_of_zstream() {
    let theme = theme("streams");
    let account = theme.zstream_text().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let streams = theme.streams().unwrap();
    assert!(streams.len() >= 5);
    for stream in streams {
        let bytes = theme.stream_bytes(&stream.file).unwrap();
        let file = dir.path().join(&stream.file);
        fs::write(&file, &bytes).unwrap();
        let head = format!("### {}\n", stream.file);
        let start = account.find(&head).unwrap() + head.len();
        let rest = &account[start..];
        let want = &rest[..rest.find("\n### ").map_or(rest.len(), |end| end + 1)];
        let ours = program().args(["zstream", "dump", "-v"]).arg(&file).output().unwrap();
        // What is cut short is complained about, and the status is 0 as the original's.
        assert_eq!(ours.status.code(), Some(0), "{}", stream.file);
        assert_eq!(ours.stderr.is_empty(), !stream.file.starts_with("partial"), "{}", stream.file);
        assert!(ours.stdout == want.as_bytes(), "{}", stream.file);
        let Some(zstream) = system_program("zstream") else { continue };
        for flags in [&[][..], &["-vv"], &["-C"]] {
            let theirs = Command::new(&zstream).arg("dump").args(flags).arg(&file).output().unwrap();
            let ours = program().args(["zstream", "dump"]).args(flags).arg(&file).output().unwrap();
            assert!(ours.stdout == theirs.stdout, "{} {flags:?}", stream.file);
            assert_eq!(ours.status.code(), theirs.status.code(), "{} {flags:?}", stream.file);
        }
    }
}

#[test]
fn a_stream_may_come_from_standard_input() {
    let theme = theme("streams");
    let stream = &theme.streams().unwrap()[0];
    let bytes = theme.stream_bytes(&stream.file).unwrap();
    let mut child = program()
        .args(["zstream", "dump"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("BEGIN record"));
}

#[test]
fn what_is_missing_says_so() {
    let output = program().args(["zstream", "redup", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not supported yet: zstream redup"));
}
