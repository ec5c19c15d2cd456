//! The real OpenZFS in a virtual machine: `tools/openzfs-vm`, and its preparation while other steps run.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::{Golden, repository_root};

use crate::steps::{Context, Outcome, Tally};
use crate::{golden, packages, process};

/// The setup that runs in the background, if one does.
static SETUP: Mutex<Option<Child>> = Mutex::new(None);

const SETUP_LOG: &str = "target/openzfs-vm-setup.log";

/// `openzfs-vm setup|run|smoke [ARG…]`
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some((word, rest)) = args.split_first() else {
        bail!("usage: cargo xtask openzfs-vm setup|run|smoke|judge|written [ARG…]")
    };
    if word == "written" {
        return written();
    }
    if !["setup", "run", "smoke", "judge"].contains(&word.as_str()) {
        bail!("openzfs-vm: setup, run, smoke, judge or written, not {word}");
    }
    let mut command = process::script(&format!("tools/openzfs-vm/{word}"));
    // The caller's own standard input: a script may come that way.
    let status = command.args(rest).status().context("cannot start bash")?;
    if !status.success() {
        bail!("openzfs-vm {word}: {status}");
    }
    Ok(())
}

/// Starts the setup if it may be done here and is not done already.
pub(crate) fn prepare_in_background(_: &Context) {
    if ready() || !packages::may_install() {
        return;
    }
    let start = || -> Result<Child> {
        std::fs::create_dir_all(repository_root().join("target"))?;
        let log = File::create(repository_root().join(SETUP_LOG))?;
        let errors = log.try_clone()?;
        let mut command = process::script("tools/openzfs-vm/setup");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Ok(command.spawn()?)
    };
    match start() {
        Ok(child) => {
            println!("preparing the virtual machine in the background ({SETUP_LOG})");
            *SETUP.lock().expect("no step panics with the lock") = Some(child);
        }
        Err(error) => println!("cannot prepare the virtual machine: {error:#}"),
    }
}

fn ready() -> bool {
    process::output(process::script("tools/openzfs-vm/setup").arg("--check")).is_ok_and(|output| output.good)
}

/// The step.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    if SETUP.lock().expect("no step panics with the lock").is_none() {
        prepare_in_background(context);
    }
    if let Some(mut setup) = SETUP.lock().expect("no step panics with the lock").take() {
        println!("waiting for the virtual machine's setup");
        if !setup.wait()?.success() {
            let log = std::fs::read_to_string(repository_root().join(SETUP_LOG)).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            for line in tail.iter().rev() {
                println!("    {line}");
            }
            bail!("the virtual machine's setup failed");
        }
    }
    if !ready() {
        return Ok(Outcome::LeftOut("no virtual machine (tools/openzfs-vm/setup, as root on Debian 12)".to_owned()));
    }
    let unpacked = Golden::selection()?.theme("basic")?.unpacked()?;
    process::run(process::script("tools/openzfs-vm/smoke").args(&unpacked.images))?;
    written()?;
    Ok(Outcome::Done(Tally { passed: 2, failed: 0 }))
}

/// A pool that Cenote builds from this repository's own files and changes, given to OpenZFS: it must find it sound, with the same contents, and
/// go on with it; and what it makes of it Cenote must read.
fn written() -> Result<()> {
    const POOL: &str = "written";
    const SUMS: &str = "sums";
    let cenote = golden::built_program()?;
    let temp = tempfile::tempdir()?;
    let share = temp.path();
    let cenote = || {
        let mut command = Command::new(&cenote);
        command.env("CENOTE_CACHE", share.join("cache.json"));
        command
    };
    let source = repository_root().join("crates");
    let images = ["a.img", "b.img", "c.img"].map(|name| share.join(name));
    let options = ["build", "--pool", POOL, "--size", "128M", "-O", "compression=zstd", "--from"];
    process::run(cenote().args(options).arg(&source).arg("raidz1").args(&images))?;
    sums_to(&source, &share.join(SUMS))?;
    // Opened again and changed, once without one of its devices, which OpenZFS then resilvers by the log of what it missed.
    let zfs = |words: &[&str]| process::run(cenote().args(["zfs", "-d"]).arg(share).args(words));
    zfs(&["create", "-o", "compression=gzip-2", "written/made"])?;
    // Folders are not looked into.
    let elsewhere = share.join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    let away = elsewhere.join("b.img");
    std::fs::rename(&images[1], &away)?;
    zfs(&["set", "atime=off", POOL])?;
    zfs(&["create", "written/gone"])?;
    std::fs::rename(&away, &images[1])?;
    zfs(&["destroy", "written/gone"])?;
    process::run(process::script("tools/openzfs-vm/judge").arg(share).args([POOL, SUMS]))?;

    zfs(&["create", "written/second"])?;
    zfs(&["destroy", "written/second"])?;
    process::run(cenote().args(["verify", "-d"]).arg(share).arg(POOL))?;
    let copy = share.join("copy");
    process::run(cenote().args(["cp", "-a", "-d"]).arg(share).args([POOL, "/"]).arg(&copy))?;
    process::run(
        cenote().args(["cp", "-a", "-d"]).arg(share).args([&format!("{POOL}/child"), "/"]).arg(copy.join("child")),
    )?;
    process::run(Command::new("sha256sum").args(["--quiet", "-c"]).arg(share.join("sums.after")).current_dir(&copy))
}

/// Sums of all files of a folder, with paths relative to it.
fn sums_to(folder: &Path, target: &Path) -> Result<()> {
    let mut command = Command::new("find");
    command.args([".", "-type", "f", "-exec", "sha256sum", "{}", "+"]).current_dir(folder);
    process::run(command.stdout(File::create(target)?))
}
