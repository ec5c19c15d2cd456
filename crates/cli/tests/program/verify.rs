//! Goal: `verify` that is interrupted goes on where it was, and says the same as one that was not. Method: the program on a pool of some megabytes,
//! ended by a signal as soon as it watches for one.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::images::Images;
use common::{good, said};
use rustix::process::{Pid, Signal, kill_process};

/// A pool with some thousand blocks.
fn filled() -> Images {
    let images = Images::none();
    let source = images.cache.path().join("source");
    fs::create_dir(&source).unwrap();
    let noise: Vec<u8> = (0..1_u32 << 16).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for index in 0..160 {
        fs::write(source.join(format!("{index}")), &noise).unwrap();
    }
    let mut build = images.bare();
    build.args(["build", "--pool", "mine", "--size", "200M", "--no-verify", "-O", "recordsize=8K", "--from"]);
    build.arg(&source).arg(images.dir.join("0.img"));
    good(&mut build);
    images
}

fn verify(images: &Images, words: &[&str], file: Option<&Path>) -> Command {
    let mut command = images.bare();
    command.args(["verify", "-d"]).arg(&images.dir).args(words);
    if let Some(file) = file {
        command.arg("--resume").arg(file);
    }
    command.arg("mine");
    command
}

/// The findings, without the time that they took.
fn found(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().filter(|line| !line.starts_with("read ")).map(|line| format!("{line}\n")).collect()
}

/// True if a process has a handler for SIGINT.
fn watches(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(caught.trim(), 16).unwrap_or(0) & 1 << (Signal::INT.as_raw() - 1) != 0
}

/// Has a verify interrupted while it reads; what it said. A signal comes as soon as the program watches for it.
fn interrupted(images: &Images, file: &Path) -> Output {
    for _ in 0..200 {
        let before = fs::read(file).ok();
        let mut command = verify(images, &[], Some(file));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let process = Pid::from_child(&child);
        while !watches(process) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ = kill_process(process, Signal::INT);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), None, "it watches: {}", said(&output));
        if output.status.success() {
            // It was done before this process got its turn.
            assert!(before.is_none(), "a stop that was there is done with");
        } else if fs::read(file).ok() != before {
            return output;
        } else {
            panic!("{}", said(&output));
        }
    }
    panic!("no signal met it while it read");
}

#[test]
fn an_interrupted_verify_goes_on_where_it_was() {
    let images = filled();
    let file = images.cache.path().join("stop");
    let whole = verify(&images, &[], None).output().unwrap();
    assert!(whole.status.success(), "{}", said(&whole));
    let stopped = interrupted(&images, &file);
    let told = said(&stopped);
    assert!(told.contains("verify of 'mine' stopped at ") && told.contains("--resume"), "{told}");
    assert!(stopped.stdout.is_empty(), "{told}");
    // Other checks are not mixed with it, and the file stays.
    let other = verify(&images, &["--no-space"], Some(&file)).output().unwrap();
    assert!(!other.status.success() && said(&other).contains("other options"), "{}", said(&other));
    let rest = verify(&images, &[], Some(&file)).output().unwrap();
    assert!(rest.status.success(), "{}", said(&rest));
    assert_eq!(found(&rest), found(&whole));
    assert!(!file.exists(), "all is read");
}

#[test]
fn a_pool_that_was_changed_since_is_verified_without_its_space() {
    let images = filled();
    let file = images.cache.path().join("stop");
    interrupted(&images, &file);
    images.run("zfs", &["snapshot", "mine@later"]);
    let rest = verify(&images, &[], Some(&file)).output().unwrap();
    assert!(rest.status.success(), "{}", said(&rest));
    let told = found(&rest);
    assert!(told.contains("the pool was written meanwhile") && told.contains("space was not accounted for"), "{told}");
    fs::write(&file, "{}").unwrap();
    let refused = verify(&images, &[], Some(&file)).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("remove it"), "{}", said(&refused));
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}", "a file that is none of ours stays");
    fs::File::create(&file).unwrap().set_len((64 << 20) + 1).unwrap();
    let refused = verify(&images, &[], Some(&file)).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("more than 67108864 bytes"), "{}", said(&refused));
}
