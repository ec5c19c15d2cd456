//! `cargo xtask zdb-check`: what Cenote writes against OpenZFS's `zdb`.
//!
//! Pools are made in every layout with small, usual and large sectors, empty and filled from this repository's own files
//! with various properties. `zdb -bcc` must read every block, find the sums of blocks and space maps equal, and count what
//! `cenote verify` counts; `zdb -d` must find the counts of features right. A pool that is built twice must have the same
//! bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::repository_root;
use cenote_testkit::zdb::{Devices, program, run as run_zdb};

use crate::steps::{Context, Outcome, Tally};
use crate::zdb::{compare_with, judge};
use crate::{golden, process};

/// Layouts, as words of a command line with a number of files for each.
const LAYOUTS: &[(&str, usize)] =
    &[("", 1), ("", 3), ("mirror", 2), ("raidz1", 3), ("raidz2", 5), ("raidz3", 6), ("draid1:2d", 4), ("draid2:3d", 7)];
/// What is set on pools that are filled.
const PROPERTIES: &[&[&str]] = &[
    &[],
    &["-O", "compression=zstd-3", "-O", "recordsize=1M"],
    &["-O", "compression=off", "-O", "checksum=blake3", "-O", "recordsize=4K", "-O", "copies=2"],
    &["-O", "compression=gzip", "-O", "checksum=sha512", "-O", "xattr=dir", "-o", "feature@log_spacemap=disabled"],
];
/// Each file's size.
const SIZE: &str = "96M";

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    ensure!(args.is_empty(), "zdb-check: no arguments");
    let tally = run()?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 || tally.passed == 0 {
        bail!("zdb finds fault with pools that Cenote wrote");
    }
    Ok(())
}

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    if program("zdb").is_none() {
        return Ok(Outcome::LeftOut("zdb is not installed (Debian package zfsutils-linux)".to_owned()));
    }
    Ok(Outcome::Done(run()?))
}

fn run() -> Result<Tally> {
    let cenote = golden::built_program()?;
    let mut tally = Tally::default();
    for (layout, count) in LAYOUTS {
        for ashift in ["9", "12", "13"] {
            let name = format!("empty {count} {layout} ashift {ashift}");
            tally.count(judge(&name, empty(&cenote, layout, *count, ashift)));
        }
    }
    let source = repository_root().join("crates");
    for properties in PROPERTIES {
        for (layout, count) in [LAYOUTS[0], LAYOUTS[3]] {
            let name = format!("filled {layout} {}", properties.join(" "));
            tally.count(judge(&name, filled(&cenote, layout, count, properties, &source)));
        }
    }
    tally.count(judge("the same bytes twice", twice(&cenote, &source)));
    Ok(tally)
}

/// The program, away from the user's cache file.
fn cenote_in(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("CENOTE_CACHE", dir.join("cache.json"));
    command
}

fn files(dir: &Path, count: usize) -> Result<(PathBuf, Vec<PathBuf>)> {
    let images = dir.join("images");
    fs::create_dir_all(&images)?;
    let files = (0..count).map(|index| images.join(format!("{index}.img"))).collect();
    Ok((images, files))
}

fn empty(program: &Path, layout: &str, count: usize, ashift: &str) -> Result<String> {
    let temp = tempfile::tempdir()?;
    let (_, images) = files(temp.path(), count)?;
    let mut command = cenote_in(program, temp.path());
    command.args(["zpool", "create", "--size", SIZE, "-o"]).arg(format!("ashift={ashift}")).arg("checked");
    command.args(layout.split_whitespace()).args(&images);
    process::run(&mut command)?;
    check(program, &images)
}

fn build(
    program: &Path,
    temp: &Path,
    layout: &str,
    images: &[PathBuf],
    properties: &[&str],
    source: &Path,
) -> Result<()> {
    let mut command = cenote_in(program, temp);
    command.args(["build", "--pool", "checked", "--size", SIZE, "--seed", "1", "--from"]).arg(source).args(properties);
    command.args(layout.split_whitespace()).args(images).env("SOURCE_DATE_EPOCH", "1700000000");
    process::run(&mut command)
}

fn filled(program: &Path, layout: &str, count: usize, properties: &[&str], source: &Path) -> Result<String> {
    let temp = tempfile::tempdir()?;
    let (images_dir, images) = files(temp.path(), count)?;
    build(program, temp.path(), layout, &images, properties, source)?;
    let text = check(program, &images)?;
    let copy = temp.path().join("copy");
    let mut command = cenote_in(program, temp.path());
    command.args(["cp", "-a", "-d"]).arg(&images_dir).args(["checked", "/"]).arg(&copy);
    process::run(&mut command)?;
    process::run(Command::new("diff").args(["-r", "--no-dereference"]).arg(source).arg(&copy))?;
    Ok(text)
}

fn twice(program: &Path, source: &Path) -> Result<String> {
    let mut all = Vec::new();
    for _ in 0..2 {
        let temp = tempfile::tempdir()?;
        // Labels name the files' places, so these must be the same.
        let place = std::env::temp_dir().join("cenote-twice.img");
        let _ = fs::remove_file(&place);
        let built = build(program, temp.path(), "", std::slice::from_ref(&place), &[], source);
        let bytes = built.and_then(|()| Ok(fs::read(&place)?));
        let _ = fs::remove_file(&place);
        all.push(bytes?);
    }
    ensure!(all[0] == all[1], "two builds differ");
    Ok(format!("{} bytes", all[0].len()))
}

/// zdb's judgement of the pool on these images.
fn check(program: &Path, images: &[PathBuf]) -> Result<String> {
    let devices = Devices::of(images)?;
    let told = run_zdb(&devices, &["-bcc"], "checked")?;
    ensure!(told.status == Some(0), "zdb -bcc: {:?}: {}", told.status, last_lines(&told.text));
    let dir = images.first().and_then(|image| image.parent()).context("no images")?;
    let text = compare_with(&told, program, dir, "checked")?;
    let told = run_zdb(&devices, &["-d"], "checked")?;
    ensure!(told.status == Some(0), "zdb -d: {:?}: {}", told.status, last_lines(&told.text));
    Ok(text)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
