//! Running programs with their output kept.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

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
    let run = command.stdin(Stdio::null()).output();
    let output = run.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    Ok(Output {
        good: output.status.success(),
        status: output.status.to_string(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
