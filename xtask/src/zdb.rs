//! `cargo xtask zdb DIR`: our traversal of a pool against zdb's.
//!
//! `cenote verify --json` walks every block and accounts for every allocated byte; `zdb -bcc` does the same. On pools that
//! OpenZFS wrote and left alone both must find nothing wrong, and count the same blocks and bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::Golden;
use cenote_testkit::zdb::{BlockStatistics, Devices, Output, program, run as run_zdb};
use serde_json::Value;

use crate::steps::{Context, Outcome, Tally};
use crate::{golden, process};

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let golden = match args {
        [] => Golden::find()?,
        [dir] => Golden::at(&PathBuf::from(dir))?,
        _ => bail!("zdb: one folder at most"),
    };
    let tally = run(&golden)?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    if tally.failed > 0 || tally.passed == 0 {
        bail!("verify and zdb do not agree");
    }
    Ok(())
}

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    if program("zdb").is_none() {
        return Ok(Outcome::LeftOut("zdb is not installed (Debian package zfsutils-linux)".to_owned()));
    }
    Ok(Outcome::Done(run(&Golden::find()?)?))
}

fn run(golden: &Golden) -> Result<Tally> {
    let cenote = golden::built_program()?;
    let mut tally = Tally::default();
    for theme in golden.themes()? {
        for pool in theme.manifest()?.pools {
            let unpacked = theme.unpacked()?;
            tally.count(judge(theme.name(), compare(&cenote, &unpacked.images, &pool)));
        }
    }
    Ok(tally)
}

/// Prints how a comparison ended and returns whether it was good.
pub(crate) fn judge(name: &str, outcome: Result<String>) -> bool {
    match &outcome {
        Ok(text) => println!("ok      {name}: {text}"),
        Err(error) => println!("FAILED  {name}: {error:#}"),
    }
    outcome.is_ok()
}

/// Compares the two accounts of the pool on these images, which lie in one folder.
pub(crate) fn compare(cenote: &Path, images: &[PathBuf], pool: &str) -> Result<String> {
    let dir = images.first().and_then(|image| image.parent()).context("no images")?;
    let told = run_zdb(&Devices::of(images)?, &["-bcc"], pool)?;
    compare_with(&told, cenote, dir, pool)
}

/// The same with what `zdb -bcc` has said of the pool on the images in `dir`.
pub(crate) fn compare_with(told: &Output, cenote: &Path, dir: &Path, pool: &str) -> Result<String> {
    let zdb = BlockStatistics::parse(&told.text).with_context(|| format!("zdb said: {}", told.text.trim()))?;
    let output = process::output(Command::new(cenote).args(["verify", "--json", "-d"]).arg(dir).arg(pool))?;
    let ours: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cenote verify: {}: {}", output.status, output.stderr.trim()))?;
    if output.good != zdb.leak_free {
        bail!("verify: {}, zdb found {}", output.status, if zdb.leak_free { "no leaks" } else { "leaks" });
    }
    let pairs = [
        ("block_count", zdb.bp_count),
        ("logical_bytes", zdb.bp_logical_bytes),
        ("physical_bytes", zdb.bp_physical_bytes),
        ("allocated_bytes", zdb.bp_allocated_bytes),
    ];
    for (name, theirs) in pairs {
        let ours = ours.get(name).and_then(Value::as_u64);
        if ours != Some(theirs) {
            bail!("{name}: verify says {ours:?}, zdb {theirs}");
        }
    }
    Ok(format!("{} blocks, {} bytes allocated", zdb.bp_count, zdb.bp_allocated_bytes))
}
