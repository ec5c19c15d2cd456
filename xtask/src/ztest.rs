//! `cargo xtask ztest-pools COUNT DIR`: fresh pools by OpenZFS's own stress test, as further reading matter; and
//! `cargo xtask ztest-judge DIR`: what `cenote verify` says of them, against zdb.
//!
//! `ztest` builds a random topology on files and works on it with many threads, killing itself now and then. It runs in
//! userspace, but asks `/dev/zfs` whether a pool is in use elsewhere; where no module is loaded a link to `/dev/null` there
//! answers that. The link is made for the run and removed after it. Each pool ends up in `DIR/N/` with `zdb.txt`, zdb's
//! account of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::zdb::{command as zdb_command, program};

use crate::steps::{Context, Outcome, Tally};
use crate::{golden, process, zdb};

const DEVICE: &str = "/dev/zfs";
const POOL: &str = "ztest";

/// Pools made in a test run: one of each kind of vdev, at some forty seconds each.
const POOLS_IN_STEP: usize = 3;

/// Layouts asked for in turn: mirrors and parity, one to three levels, with and without expansion.
const LAYOUTS: &[&[&str]] = &[
    &["-m", "2", "-K", "raidz", "-r", "4", "-R", "1"],
    &["-m", "1", "-K", "raidz", "-r", "5", "-R", "2"],
    &["-m", "1", "-K", "draid", "-r", "8", "-D", "4", "-S", "1", "-R", "1"],
    &["-m", "3", "-K", "raidz", "-r", "1"],
    &["-m", "1", "-K", "raidz", "-r", "6", "-R", "3"],
    &["-m", "0", "-K", "raidz", "-r", "1"],
];

/// The link that stands in for the module's device, removed when it goes.
struct StandIn;

impl StandIn {
    fn make() -> Result<Option<StandIn>> {
        if Path::new(DEVICE).symlink_metadata().is_ok() {
            return Ok(None);
        }
        std::os::unix::fs::symlink("/dev/null", DEVICE).context("cannot link /dev/zfs to /dev/null (are you root?)")?;
        Ok(Some(StandIn))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = fs::remove_file(DEVICE);
    }
}

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let [count, dir] = args else { bail!("usage: cargo xtask ztest-pools COUNT DIR") };
    let count: usize = count.parse().context("COUNT is a number")?;
    let made = make(count, Path::new(dir))?;
    println!("{} of {count} pools in {dir} are sound", made.len());
    if made.len() < count {
        bail!("not all pools are sound by zdb's account");
    }
    Ok(())
}

/// Carries out the chore that judges pools made before: what `cenote verify` says of each, against zdb.
pub(crate) fn main_judge(args: &[String]) -> Result<()> {
    let [dir] = args else { bail!("usage: cargo xtask ztest-judge DIR") };
    let cenote = golden::built_program()?;
    let mut places: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    places.retain(|place| place.is_dir());
    places.sort();
    let mut tally = Tally::default();
    places.iter().for_each(|place| tally.count(judge(&cenote, place)));
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 || tally.passed == 0 {
        bail!("not all pools are judged as zdb judges them");
    }
    Ok(())
}

/// Whether `cenote verify` says of a pool what zdb says.
fn judge(cenote: &Path, place: &Path) -> bool {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    zdb::judge(&name, vdevs(place).and_then(|vdevs| zdb::compare(cenote, &vdevs, POOL)))
}

/// The step: fresh pools, each judged by zdb and by us.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    if program("ztest").is_none() || program("zdb").is_none() {
        return Ok(Outcome::LeftOut("ztest is not installed (Debian package zfs-test, from backports)".to_owned()));
    }
    if !process::may_install() && Path::new(DEVICE).symlink_metadata().is_err() {
        return Ok(Outcome::LeftOut("ztest wants /dev/zfs, and only root can make a stand-in for it".to_owned()));
    }
    let cenote = golden::built_program()?;
    let temp = tempfile::tempdir()?;
    let mut tally = Tally::default();
    for place in make(POOLS_IN_STEP, temp.path())? {
        tally.count(judge(&cenote, &place));
    }
    Ok(Outcome::Done(tally))
}

/// The vdevs that ztest left in a folder.
fn vdevs(place: &Path) -> Result<Vec<PathBuf>> {
    let mut vdevs = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if path.file_name().unwrap_or_default().to_string_lossy().starts_with("ztest.") {
            vdevs.push(path);
        }
    }
    vdevs.sort();
    Ok(vdevs)
}

/// Makes pools in `DIR/00`, `DIR/01`, … and returns the folders of those that zdb finds sound.
fn make(count: usize, dir: &Path) -> Result<Vec<PathBuf>> {
    let ztest = program("ztest").context("ztest is not installed (Debian package zfs-test, from backports)")?;
    let _stand_in = StandIn::make()?;
    let mut sound = Vec::new();
    for index in 0..count {
        let place = dir.join(format!("{index:02}"));
        if place.exists() {
            bail!("{} is there already", place.display());
        }
        fs::create_dir_all(&place)?;
        let layout = LAYOUTS[index % LAYOUTS.len()];
        // 15 seconds in passes of 5, killed at times; 512 MiB per vdev is the least at which it does not run out.
        let mut command = Command::new(&ztest);
        command.args(["-T", "15", "-P", "5", "-s", "512m", "-p", POOL, "-f"]).arg(&place).args(layout);
        let output = process::output(&mut command)?;
        let mut zdb = zdb_command().context("zdb is not installed (Debian package zfsutils-linux, from backports)")?;
        let account = process::output(zdb.args(["-e", "-p"]).arg(&place).args(["-bcc", POOL]))?;
        let text = format!("{}{}", String::from_utf8_lossy(&account.stdout), account.stderr);
        let good = account.good && text.contains("No leaks");
        fs::write(place.join("zdb.txt"), &text)?;
        println!(
            "{index:02}: ztest {}: {}; zdb: {}",
            layout.join(" "),
            output.status,
            if good { "no leaks" } else { "not sound, see zdb.txt" }
        );
        if good {
            sound.push(place);
        }
    }
    Ok(sound)
}
