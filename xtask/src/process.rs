//! Running programs: with their output shown, shown and read, or only read.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cenote_testkit::repository_root;
use cenote_testkit::zdb::program;

/// The Cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository_root());
    // The variables that Cargo sets for us are not meant for the builds that we start.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// Builds a program of the workspace as checks run it, with overflows and assertions seen, and says where it is.
///
/// Which features libraries have is decided for the workspace as a whole, as it is for its tests, so what those have built is
/// not built again.
pub(crate) fn built(program: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--workspace", "--locked", "--bin", program]))?;
    target_program("debug", program)
}

/// The same for campaigns of minutes and hours: as fast as a release.
pub(crate) fn built_for_campaigns(package: &str, program: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--profile", "checked", "--locked", "--package", package, "--bin", program]))?;
    target_program("checked", program)
}

/// The program as a profile has built it into its folder under `target`.
pub(crate) fn target_program(folder: &str, program: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let path = repository_root().join(target).join(folder).join(program);
    if !path.is_file() {
        bail!("{} was not built", path.display());
    }
    Ok(path)
}

/// A script of the repository.
pub(crate) fn script(path: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(repository_root().join(path));
    command
}

/// Runs with output shown.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {}", name(command)))?;
    if !status.success() {
        bail!("{}: {status}", name(command));
    }
    Ok(())
}

/// Runs with output shown and every line of stdout handed to `each`; returns whether the status was good.
pub(crate) fn run_and_read(command: &mut Command, each: impl FnMut(&str)) -> Result<bool> {
    Ok(run_and_read_code(command, each)? == Some(0))
}

/// As [`run_and_read`], with the exit status; none where a signal has ended it.
pub(crate) fn run_and_read_code(command: &mut Command, mut each: impl FnMut(&str)) -> Result<Option<i32>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", name(command)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        each(&line);
    }
    Ok(child.wait()?.code())
}

/// The output of a program, and whether its status was good.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) good: bool,
    pub(crate) status: String,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs with output kept.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", name(command)))?;
    Ok(Output {
        good: output.status.success(),
        status: output.status.to_string(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(OsStr::to_string_lossy).map(|word| word.into_owned()));
    words.join(" ")
}

/// True if packages can be installed here: root on a Debian.
pub(crate) fn may_install() -> bool {
    let root =
        output(std::process::Command::new("id").arg("-u")).is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    root && Path::new("/etc/debian_version").exists() && program("apt-get").is_some()
}
