//! The inputs of the packages: the program, the libraries, and the texts that the program prints of itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::repository_root;
use serde_json::Value;

use super::tree::{Levels, Tree};
use crate::process;

/// The packages whose libraries are in what is packed.
const PACKAGES: [&str; 2] = ["cenote-cli", "cenote-capi"];
/// The C library's source file and its name among Cargo's outputs.
const LIBRARY: &str = "libcenote_capi";

/// Everything that the packages are made of.
pub(crate) struct Inputs {
    pub(crate) version: String,
    /// The time of the commit, in seconds since 1970.
    pub(crate) seconds: u64,
    /// The program, linked with the C library.
    pub(crate) program: Vec<u8>,
    /// The shared library.
    pub(crate) shared: Vec<u8>,
    /// The static library, in a release.
    pub(crate) archive: Option<Vec<u8>>,
    /// Debug information of program and shared library, in a release.
    pub(crate) debug: Tree,
    /// Manual pages, packed; completions by the shell's name; licences of what is linked in.
    pub(crate) manual: Tree,
    pub(crate) completions: Vec<(&'static str, Vec<u8>)>,
    pub(crate) notices: String,
    pub(crate) levels: Levels,
}

/// The programs as Cargo has built them.
struct Built {
    program: PathBuf,
    shared: PathBuf,
    archive: Option<PathBuf>,
}

impl Inputs {
    /// Builds a release, in a target folder of its own since its flags are others.
    pub(crate) fn release() -> Result<Self> {
        let seconds = commit_seconds()?;
        let target = target_folder().join("dist-build");
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
        let cargo_home = cargo_home.or(home).context("neither CARGO_HOME nor HOME is set")?;
        // Messages name source files; where they were when this was built is nobody's business.
        let root = repository_root().display();
        let flags = format!("--remap-path-prefix={}=/cargo --remap-path-prefix={root}=/cenote", cargo_home.display());
        let rustc = |package: &str, what: &[&str], flags_of_last: &[&str]| {
            let mut command = process::cargo();
            command.args(["rustc", "--release", "--locked", "--package", package]).args(what).arg("--");
            command.args(flags_of_last).env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", &flags);
            command.env("SOURCE_DATE_EPOCH", seconds.to_string()).env("CARGO_INCREMENTAL", "0");
            command
                .envs([("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only"), ("CARGO_PROFILE_RELEASE_STRIP", "none")]);
            process::run(&mut command)
        };
        let build_id = "-Clink-arg=-Wl,--build-id=sha1";
        rustc("cenote-cli", &["--bin", "cenote"], &["-Ctarget-feature=+crt-static", build_id])?;
        rustc("cenote-capi", &["--lib", "--crate-type", "cdylib,staticlib"], &[build_id])?;
        let release = target.join("release");
        let library = |end: &str| release.join(format!("{LIBRARY}.{end}"));
        let program = release.join("cenote");
        check_static(&program)?;
        Self::of(Built { program, shared: library("so"), archive: Some(library("a")) })
    }

    /// The same from builds that other checks have made: the library as tests have it and the program as the tour has it, which in a release is linked
    /// again, statically.
    pub(crate) fn quick() -> Result<Self> {
        let build = crate::tour::Build::of_commit()?;
        let program = if build.is_release() {
            let mut command = process::cargo();
            command.args(["rustc", "--locked", "--package", "cenote-cli", "--bin", "cenote"]).args(&build.options);
            process::run(command.args(["--", "-Ctarget-feature=+crt-static"]))?;
            let program = process::target_program(build.folder, "cenote")?;
            check_static(&program)?;
            program
        } else {
            // Linked anew it would change under the steps that run beside this one.
            process::built("cenote")?
        };
        process::run(process::cargo().args(["build", "--workspace", "--locked", "--lib"]))?;
        let shared = process::target_program("debug", &format!("{LIBRARY}.so"))?;
        Self::of(Built { program, shared, archive: None })
    }

    fn of(built: Built) -> Result<Self> {
        let temp = tempfile::tempdir()?;
        let levels = if built.archive.is_some() { Levels::SMALL } else { Levels::FAST };
        let mut debug = Tree::default();
        let mut stripped = |from: &Path, name: &str| -> Result<Vec<u8>> {
            let (to, kept) = (temp.path().join(name), temp.path().join(format!("{name}.debug")));
            if built.archive.is_some() {
                process::run(Command::new("objcopy").arg("--only-keep-debug").arg(from).arg(&kept))?;
                debug.file(&format!("{name}.debug"), fs::read(&kept)?);
                let link = format!("--add-gnu-debuglink={}", kept.display());
                process::run(Command::new("objcopy").args(["--strip-all", &link]).arg(from).arg(&to))?;
            } else {
                process::run(Command::new("objcopy").arg("--strip-all").arg(from).arg(&to))?;
            }
            Ok(fs::read(&to)?)
        };
        let program = stripped(&built.program, "cenote")?;
        let shared = stripped(&built.shared, "libcenote.so.0")?;
        let said = |args: &[&str]| -> Result<Vec<u8>> {
            let output = process::output(Command::new(&built.program).args(args))?;
            ensure!(output.good, "cenote {}: {}", args.join(" "), output.stderr);
            Ok(output.stdout)
        };
        let pages = temp.path().join("man");
        said(&["man", &pages.display().to_string()])?;
        let mut manual = Tree::default();
        for entry in fs::read_dir(&pages)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            manual.file(&format!("{name}.gz"), levels.gzip(&fs::read(&path)?)?);
        }
        let completions = ["bash", "fish", "zsh"].into_iter();
        let completions =
            completions.map(|shell| Ok((shell, said(&["completions", shell])?))).collect::<Result<_>>()?;
        let version = said(&["version"])?;
        let version = String::from_utf8_lossy(&version).trim().trim_start_matches("cenote ").to_owned();
        let archive = built.archive.map(fs::read).transpose()?;
        let notices = notices()?;
        let seconds = commit_seconds()?;
        Ok(Self { version, seconds, program, shared, archive, debug, manual, completions, notices, levels })
    }
}

fn target_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    repository_root().join(target)
}

/// The time that everything is of: `SOURCE_DATE_EPOCH`, or that of the commit.
fn commit_seconds() -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let mut git = Command::new("git");
            let log = process::output(git.current_dir(repository_root()).args(["log", "-1", "--format=%ct"]))?;
            ensure!(log.good, "no commit whose time the packages could have; set SOURCE_DATE_EPOCH: {}", log.stderr);
            String::from_utf8_lossy(&log.stdout).into_owned()
        }
    };
    text.trim().parse().with_context(|| format!("'{}' is no time in seconds", text.trim()))
}

/// A static program asks for no loader and no library.
fn check_static(program: &Path) -> Result<()> {
    let output = process::output(Command::new("readelf").args(["--dynamic", "--program-headers"]).arg(program))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.good || text.contains("INTERP") || text.contains("(NEEDED)") {
        bail!("{} is not static: {text}", program.display());
    }
    Ok(())
}

/// The licences of the libraries that are linked in, with their texts.
fn notices() -> Result<String> {
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = process::output(process::cargo().args(args))?;
    ensure!(output.good, "cargo metadata: {}", output.stderr.trim());
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let linked = linked(&metadata)?;
    let mut text =
        "Libraries of others that are part of the program and of the libraries, with their licences.\n".to_owned();
    for package in metadata["packages"].as_array().context("metadata names packages")? {
        let id = package["id"].as_str().unwrap_or_default();
        if package["source"].is_null() || !linked.iter().any(|known| known == id) {
            continue;
        }
        let word = |name: &str| package[name].as_str().unwrap_or_default();
        let (name, version, licence) = (word("name"), word("version"), word("license"));
        text += &format!("\n{}\n{name} {version}: {licence}\n", "=".repeat(80));
        let folder = Path::new(word("manifest_path")).parent().context("a manifest is in a folder")?;
        let mut files: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        files.sort();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            let is_licence =
                ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"].iter().any(|word| name.starts_with(word));
            if is_licence && file.is_file() {
                text += &format!("\n{}\n", String::from_utf8_lossy(&fs::read(&file)?).trim_end());
            }
        }
    }
    Ok(text)
}

/// The packages that are linked in: what ours depend on, without what builds and tests alone need.
fn linked(metadata: &Value) -> Result<Vec<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("metadata has a graph")?;
    let is_ours = |id: &str| PACKAGES.iter().any(|name| id.contains(&format!("#{name}@")));
    let ids = nodes.iter().filter_map(|node| node["id"].as_str());
    let mut pending: Vec<String> = ids.filter(|id| is_ours(id)).map(str::to_owned).collect();
    ensure!(pending.len() == PACKAGES.len(), "the graph has {pending:?} of {PACKAGES:?}");
    let mut found: Vec<String> = Vec::new();
    while let Some(id) = pending.pop() {
        if found.contains(&id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id.as_str()).context("a node of the graph")?;
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            let is_linked = kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()));
            if let Some(id) = dependency["pkg"].as_str().filter(|_| is_linked) {
                pending.push(id.to_owned());
            }
        }
        found.push(id);
    }
    Ok(found)
}
