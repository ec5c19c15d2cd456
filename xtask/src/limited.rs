//! Test programs within a time: the tests' step runs each by `xtask limited PROGRAM …`, which says how long it took.
//!
//! A test that waits for ever would keep everything waiting, and a machine that ends the whole run then says nothing of it. The harness
//! names a test that takes more than a minute, so the output shows which one it was.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The longest, that of all commands, takes half of it on a machine with two cores that the virtual machine keeps busy too.
const TIME_MAX: Duration = Duration::from_secs(40 * 60);
const POLL: Duration = Duration::from_millis(20);

/// The runner for Cargo's configuration: this program.
pub(crate) fn runner() -> Result<[String; 2]> {
    let this = std::env::current_exe().context("this program cannot be found")?;
    let this = this.into_os_string().into_string().ok().context("the program's path is not UTF-8")?;
    Ok([this, "limited".to_owned()])
}

/// Runs a program; its status is this one's.
pub(crate) fn main(args: &[String]) -> ExitCode {
    match run(args, TIME_MAX) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String], time_max: Duration) -> Result<u8> {
    let (program, rest) = args.split_first().context("limited: no program")?;
    let begun = Instant::now();
    let mut child = Command::new(program).args(rest).spawn().with_context(|| program.clone())?;
    let name = Path::new(program).file_name().map_or_else(|| program.clone().into(), OsStr::to_string_lossy);
    let (status, note) = loop {
        if let Some(status) = child.try_wait()? {
            break (status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1), String::new());
        }
        if begun.elapsed() >= time_max {
            let mut all = vec![child.id()];
            descendants(child.id(), &mut all);
            // Programs that it began would keep the output open.
            let ids = all.iter().map(u32::to_string);
            Command::new("kill").arg("-KILL").args(ids).status()?;
            child.wait()?;
            break (1, format!("; it was ended, with what it had begun, after {} s", time_max.as_secs()));
        }
        std::thread::sleep(POLL);
    };
    println!("{name}: {:.1} s{note}", begun.elapsed().as_secs_f64());
    Ok(status)
}

/// Adds the processes that a process began, and those that they began.
fn descendants(parent: u32, all: &mut Vec<u32>) {
    let children = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    for thread in children {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in text.split_whitespace().filter_map(|id| id.parse().ok()) {
            all.push(child);
            descendants(child, all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_its_status_and_one_that_waits_for_ever_is_ended_with_its_children() {
        let shell = |script: &str| ["sh", "-c", script].map(str::to_owned);
        assert_eq!(run(&shell("exit 7"), TIME_MAX).unwrap(), 7);
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let args = shell(&script);
        assert_eq!(run(&args, Duration::from_secs(1)).unwrap(), 1);
        // On a slow machine there may be none yet. Elsewhere it goes, though not at once, and then waits to be asked for its status.
        let id = std::fs::read_to_string(&pid).unwrap_or_default();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        let is_there = |state: String| {
            state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
        };
        while is_there(state()) {
            std::thread::sleep(POLL);
        }
    }
}
