//! `cargo xtask bench-table`: the results page again from the recorded JSON.
//!
//! `cenote bench` and `cenote-lab` record with `--json docs/bench/NAME.json`; this turns every recording of that folder into one page, so that the
//! page never says what was not recorded.

use std::fs;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;

use crate::{golden, process};

const FOLDER: &str = "docs/bench";
const PAGE: &str = "docs/bench/README.md";
const HEAD: &str = "\
# Results of `cenote bench` and of the laboratory

Made by `cargo xtask bench-table` from the recordings in this folder; change those, not this page. What a suite measures and how
stands beside its figures. A target that was not reached says so.
";

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        bail!("bench-table: unexpected {arg}");
    }
    let program = golden::released_program()?;
    let folder = repository_root().join(FOLDER);
    let mut recordings = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "json") {
            recordings.push(path);
        }
    }
    recordings.sort();
    if recordings.is_empty() {
        bail!("{FOLDER} holds no recording; cenote bench --json {FOLDER}/results.json makes one");
    }
    let mut page = HEAD.to_owned();
    for path in &recordings {
        let mut command = std::process::Command::new(&program);
        let output = process::output(command.arg("bench").arg("--from").arg(path).arg("--markdown"))?;
        if !output.good {
            bail!("{}: {}", path.display(), output.stderr.trim());
        }
        page.push('\n');
        page.push_str(&String::from_utf8_lossy(&output.stdout));
    }
    fs::write(repository_root().join(PAGE), page)?;
    println!("{PAGE}: from {} recordings", recordings.len());
    Ok(())
}
