//! The workspace's test programs, of two kinds.
//!
//! Cargo runs one after the other. Most of those that begin servers wait most of the time: for a pool's activity to be watched, for
//! devices that hang, for a mount to end. So the programs of the crates that mount and serve are a step of their own, which runs beside the
//! others; within it they run one after the other, since they share the system's mounts. A program's output is kept until it has ended,
//! and then shown as a whole.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use cenote_testkit::{PART_VARIABLE, Part};
use serde_json::Value;

use crate::passed::Sources;
use crate::{limited, process, rotation};

/// Crates whose tests mount and serve.
const SERVING: [&str; 3] = ["cli", "fuse", "nbd"];

/// The variable by which a test program knows how many tests it runs at once.
pub(crate) const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// Tests that a program of a crate that mounts and serves runs at once where nothing runs beside it: they wait most of the time.
pub(crate) fn serving_threads() -> String {
    (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string()
}

/// Whether the tests of the crate of this name mount and serve.
pub(crate) fn is_serving(package: &str) -> bool {
    package.strip_prefix("cenote-").is_some_and(|name| SERVING.contains(&name))
}

/// Parts that tests of many seeds are cut into.
const PARTS: u64 = 3;

/// A test program, built.
struct Program {
    path: PathBuf,
    /// The name of its package.
    package: String,
    /// The folder of its package, where Cargo would run it.
    folder: PathBuf,
}

/// A kind of test programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of crates that mount and serve.
    Serving,
    /// All others.
    Computing,
}

/// Builds all test programs.
///
/// # Errors
/// One cannot be built.
pub(crate) fn build() -> Result<()> {
    built().map(drop)
}

/// How a run went.
pub(crate) enum Ran {
    /// All have passed before, with the same sources.
    Nothing,
    /// Some were run.
    Some {
        /// All of them were good.
        is_good: bool,
    },
}

/// Builds all test programs and runs those of a kind, but those that have passed with the sources as they are; `each` gets every line of their
/// output.
///
/// # Errors
/// They cannot be built or begun.
pub(crate) fn run(kind: Kind, sources: Option<&Sources>, each: &mut dyn FnMut(&str)) -> Result<Ran> {
    let part = rotation::of_commit(PARTS);
    let mut packages: BTreeMap<String, Vec<Program>> = BTreeMap::new();
    for program in built()?.into_iter().filter(|program| program.kind() == kind) {
        packages.entry(program.package.clone()).or_default().push(program);
    }
    let note = |package: &str| format!("tests-{package}");
    let all = packages.len();
    packages.retain(|package, _| !sources.is_some_and(|sources| sources.has_passed(&note(package), &[package])));
    if packages.len() < all {
        println!("{} of {all} crates have passed with the same sources (all: CENOTE_WHOLE=1)", all - packages.len());
    }
    if packages.is_empty() {
        return Ok(Ran::Nothing);
    }
    let mut is_good = true;
    for (package, programs) in packages {
        let mut is_package_good = true;
        for program in programs {
            let (good, output) = program.run(part)?;
            let mut shown = std::io::stdout().lock();
            shown.write_all(&output)?;
            shown.flush()?;
            drop(shown);
            String::from_utf8_lossy(&output).lines().for_each(&mut *each);
            is_package_good &= good;
        }
        if let Some(sources) = sources {
            sources.note(&note(&package), &[&package], is_package_good);
        }
        is_good &= is_package_good;
    }
    Ok(Ran::Some { is_good })
}

/// Builds the programs. The compiler's messages are shown.
fn built() -> Result<Vec<Program>> {
    let words = ["test", "--workspace", "--lib", "--bins", "--tests", "--locked", "--no-run"];
    let mut command = process::cargo();
    let output = command
        .args(words)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests cannot be built");
    }
    let programs: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::of_line).collect();
    if programs.is_empty() {
        bail!("cargo has named no test program");
    }
    Ok(programs)
}

impl Program {
    /// The program that a line of Cargo's names, if it names one of tests.
    fn of_line(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let path = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = Self::package_of(message["package_id"].as_str()?)?.to_owned();
        Some(Self { path, package, folder })
    }

    /// The name in an id as Cargo writes it: `path+file:///a/crates/zil#cenote-zil@0.1.0`, or, where the folder has the same name,
    /// `path+file:///a/xtask#0.1.0`.
    fn package_of(id: &str) -> Option<&str> {
        let (place, name) = id.rsplit_once('#')?;
        match name.split_once('@') {
            Some((name, _)) => Some(name),
            None => place.rsplit('/').next(),
        }
    }

    fn kind(&self) -> Kind {
        match is_serving(&self.package) {
            true => Kind::Serving,
            false => Kind::Computing,
        }
    }

    /// Runs it within a time, with its output kept.
    fn run(&self, part: Part) -> Result<(bool, Vec<u8>)> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let mut output = format!("     Running {name}\n").into_bytes();
        let [this, limited] = limited::runner()?;
        // A file: a process that a test has left behind would keep a pipe open.
        let mut kept = tempfile::tempfile()?;
        let mut command = Command::new(this);
        command
            .arg(limited)
            .arg(&self.path)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env(PART_VARIABLE, part.text());
        command.stdin(Stdio::null()).stdout(kept.try_clone()?).stderr(kept.try_clone()?);
        let status = command.status().with_context(|| format!("cannot start {name}"))?;
        kept.rewind()?;
        kept.read_to_end(&mut output)?;
        Ok((status.success(), output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_known_by_what_cargo_says() {
        let line = |reason: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"{reason}","package_id":"path+file:///w/a#cenote-a@0.1.0","manifest_path":"/w/a/Cargo.toml","profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = Program::of_line(&line("compiler-artifact", true, r#""/t/a-1""#)).unwrap();
        assert!(found.kind() == Kind::Computing);
        assert_eq!((found.path, found.folder), (PathBuf::from("/t/a-1"), PathBuf::from("/w/a")));
        assert_eq!(found.package, "cenote-a");
        assert_eq!(Program::package_of("path+file:///w/xtask#0.1.0"), Some("xtask"));
        let of_fuse = Program {
            path: PathBuf::new(),
            package: "cenote-fuse".to_owned(),
            folder: PathBuf::from("/w/crates/fuse"),
        };
        assert!(of_fuse.kind() == Kind::Serving);
        for other in [
            line("compiler-artifact", false, r#""/t/a""#),
            line("compiler-artifact", true, "null"),
            line("build-finished", true, r#""/t/a""#),
            "Compiling".to_owned(),
        ] {
            assert!(Program::of_line(&other).is_none(), "{other}");
        }
    }
}
