//! `cargo xtask zdb-check`: what Cenote writes against OpenZFS's `zdb`.
//!
//! Pools are made in every layout with small, usual and large sectors, empty and filled from this repository's own files
//! with various properties. `zdb -bcc` must read every block, find the sums of blocks and space maps equal, and count what
//! `cenote verify` counts; `zdb -d` must find the counts of features right. A pool that is built twice must have the same
//! bytes.
//!
//! Several pools are looked at at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::repository_root;
use cenote_testkit::zdb::{Devices, program, run as run_zdb};

use crate::steps::{Context, Outcome, Tally};
use crate::zdb::{compare_with, judge};
use crate::{golden, process};

/// Layouts, as words of a command line in which each `@` stands for a file.
const LAYOUTS: &[&str] = &[
    "@",
    "@ @ @",
    "mirror @ @",
    "raidz1 @ @ @",
    "raidz2 @ @ @ @ @",
    "raidz3 @ @ @ @ @ @",
    "draid1:2d @ @ @ @",
    "draid2:3d @ @ @ @ @ @ @",
    "draid1:2d:2s @ @ @ @ @ @ @ spare @",
    "mirror @ @ special mirror @ @ log @ cache @ spare @",
    "raidz1 @ @ @ special mirror @ @ dedup mirror @ @ log mirror @ @",
];
/// Layouts of pools that are filled.
const FILLED: &[&str] = &["@", "raidz1 @ @ @", "mirror @ @ special mirror @ @ log @", "draid1:2d:1s @ @ @ @ @"];
/// The vdevs that pools are extended with, one after the other.
const ADDED: &[&str] = &["mirror @ @", "special mirror @ @", "log @ cache @ spare @", "draid1:1d:1s @ @ @ @"];
/// Pools looked at at a time.
const AT_A_TIME: usize = 3;
/// The properties of pools that are filled.
const PROPERTIES: &[&[&str]] = &[
    &[],
    &["-O", "compression=zstd-3", "-O", "recordsize=1M", "-O", "special_small_blocks=16K"],
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

/// A check with its name.
type Job<'a> = (String, Box<dyn FnOnce() -> Result<String> + Send + 'a>);

fn run() -> Result<Tally> {
    let cenote = golden::built_program()?;
    let source = repository_root().join("crates");
    let (cenote, source) = (cenote.as_path(), source.as_path());
    let mut jobs: Vec<Job<'_>> = Vec::new();
    // The longest job comes first.
    jobs.push(("the same bytes twice".to_owned(), Box::new(move || twice(cenote, source))));
    for properties in PROPERTIES {
        for layout in FILLED {
            let name = format!("filled {layout} {}", properties.join(" "));
            jobs.push((name, Box::new(move || filled(cenote, layout, properties, source))));
        }
    }
    for ashift in ["9", "12"] {
        let name = format!("extended ashift {ashift}");
        jobs.push((name, Box::new(move || extended(cenote, ashift))));
    }
    for layout in LAYOUTS {
        for ashift in ["9", "12", "13"] {
            let name = format!("empty {layout} ashift {ashift}");
            jobs.push((name, Box::new(move || empty(cenote, layout, ashift))));
        }
    }
    Ok(all(jobs))
}

/// Carries out the checks, some at a time.
fn all(jobs: Vec<Job<'_>>) -> Tally {
    let (waiting, tally) = (Mutex::new(jobs.into_iter()), Mutex::new(Tally::default()));
    let next = || waiting.lock().ok()?.next();
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, job)) = next() {
                    let outcome = job();
                    if let Ok(mut tally) = tally.lock() {
                        tally.count(judge(&name, outcome));
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap_or_default()
}

/// The program, away from the user's cache file.
fn cenote_in(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("CENOTE_CACHE", dir.join("cache.json"));
    command
}

/// A pool's files, in a folder of their own.
struct Images {
    temp: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Images {
    fn new() -> Result<Self> {
        let temp = tempfile::tempdir()?;
        fs::create_dir_all(temp.path().join("images"))?;
        Ok(Self { temp, files: Vec::new() })
    }

    fn dir(&self) -> PathBuf {
        self.temp.path().join("images")
    }

    /// The words of a layout, with files in it that are to be made.
    fn words(&mut self, layout: &str) -> Vec<String> {
        let mut words = Vec::new();
        for word in layout.split_whitespace() {
            if word == "@" {
                let file = self.dir().join(format!("{}.img", self.files.len()));
                words.push(file.display().to_string());
                self.files.push(file);
            } else {
                words.push(word.to_owned());
            }
        }
        words
    }

    fn create(&mut self, program: &Path, layout: &str, ashift: &str) -> Result<()> {
        let words = self.words(layout);
        let mut command = cenote_in(program, self.temp.path());
        command.args(["zpool", "create", "--size", SIZE, "-o"]).arg(format!("ashift={ashift}")).arg("checked");
        process::run(command.args(words))
    }
}

fn empty(program: &Path, layout: &str, ashift: &str) -> Result<String> {
    let mut images = Images::new()?;
    images.create(program, layout, ashift)?;
    check(program, &images.files)
}

/// A pool that gets more vdevs, and is looked at after each.
fn extended(program: &Path, ashift: &str) -> Result<String> {
    let mut images = Images::new()?;
    images.create(program, "mirror @ @", ashift)?;
    let mut text = String::new();
    for added in ADDED {
        let words = images.words(added);
        let mut command = cenote_in(program, images.temp.path());
        command.args(["zpool", "-d"]).arg(images.dir()).args(["add", "--size", SIZE, "checked"]);
        process::run(command.args(words))?;
        check(program, &images.files).with_context(|| format!("after {added}"))?;
        let mut command = cenote_in(program, images.temp.path());
        command.args(["zfs", "-d"]).arg(images.dir()).arg("create").arg(format!("checked/{}", images.files.len()));
        process::run(&mut command)?;
        text = check(program, &images.files).with_context(|| format!("a file system after {added}"))?;
    }
    Ok(text)
}

fn build(program: &Path, temp: &Path, layout: &[String], properties: &[&str], source: &Path) -> Result<()> {
    let mut command = cenote_in(program, temp);
    command.args(["build", "--pool", "checked", "--size", SIZE, "--seed", "1", "--from"]).arg(source).args(properties);
    process::run(command.args(layout).env("SOURCE_DATE_EPOCH", "1700000000"))
}

fn filled(program: &Path, layout: &str, properties: &[&str], source: &Path) -> Result<String> {
    let mut images = Images::new()?;
    let words = images.words(layout);
    build(program, images.temp.path(), &words, properties, source)?;
    let text = check(program, &images.files)?;
    let copy = images.temp.path().join("copy");
    let mut command = cenote_in(program, images.temp.path());
    command.args(["cp", "-a", "--privileged", "-d"]).arg(images.dir()).args(["checked", "/"]).arg(&copy);
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
        let built = build(program, temp.path(), &[place.display().to_string()], &[], source);
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
