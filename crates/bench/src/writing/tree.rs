//! A pool from a folder of many small files, by the command that users have.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cenote_taskq::Rng;
use serde_json::{Map, Value, json};

use super::Options;
use crate::report::{Suite, Table, short};

/// Files in a folder.
const FOLDER_FILES: u64 = 100;
/// The largest file.
const FILE_MAX_BYTES: u64 = 8 << 10;

/// Builds the pool, and reads the same files as `tar` would, which is the least that anyone can do with them.
pub(super) fn tree(options: &Options, suite: &mut Suite, raw: &mut Map<String, Value>) -> Result<()> {
    let files: u64 = if options.quick { 20_000 } else { 100_000 };
    let program = std::env::current_exe().context("where this program is")?;
    let source = options.folder.join("tree");
    let image = options.folder.join("tree.pool");
    let bytes = make(&source, files)?;
    let (mut builds, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let begun = Instant::now();
        read_all(&source)?;
        reads.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        let mut command = Command::new(&program);
        command.args(["build", "--pool", "tree", "--no-verify", "--size", "2G", "--from"]).args([&source, &image]);
        let told = command.stdout(Stdio::null()).stderr(Stdio::piped()).output().context("cenote build")?;
        ensure!(told.status.success(), "cenote build: {}", String::from_utf8_lossy(&told.stderr));
        builds.push(begun.elapsed().as_secs_f64());
        fs::remove_file(&image)?;
    }
    fs::remove_dir_all(&source)?;
    raw.insert("tree".into(), json!({ "files": files, "bytes": bytes, "build_s": builds, "read_s": reads }));
    let title = format!("cenote build from {files} files of up to 8 KiB, {} MB", short(bytes as f64 / 1e6));
    let mut table = Table::new(title, &["what", "seconds", "files a second"]);
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    for (name, seconds) in [("build, without verifying", best(&builds)), ("only reading the files", best(&reads))] {
        table.row([name.into(), short(seconds), short(files as f64 / seconds)]);
    }
    suite.tables.push(table);
    Ok(())
}

/// Makes the files; how many bytes they have comes back.
fn make(folder: &Path, files: u64) -> Result<u64> {
    let mut rng = Rng::new(5);
    let mut content = vec![0; FILE_MAX_BYTES as usize];
    let mut bytes = 0;
    for first in (0..files).step_by(FOLDER_FILES as usize) {
        let within = folder.join(format!("{:04}", first / FOLDER_FILES));
        fs::create_dir_all(&within)?;
        for number in first..files.min(first + FOLDER_FILES) {
            let len = rng.below(FILE_MAX_BYTES + 1);
            // Half of it compresses, as of much that people have.
            rng.fill(&mut content[..len as usize / 2]);
            fs::write(within.join(format!("file-{number}")), &content[..len as usize])?;
            bytes += len;
        }
    }
    Ok(bytes)
}

fn read_all(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_all(&path)?;
        } else {
            fs::metadata(&path)?;
            fs::read(&path)?;
        }
    }
    Ok(())
}
