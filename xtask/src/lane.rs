//! Steps that run beside the others, in a process of their own: emulation keeps one core busy for minutes while others are idle.
//!
//! The process's output is kept and shown when both are done, so that no two steps speak at once, and its steps count as if
//! they had been run here.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use cenote_testkit::repository_root;

use crate::outcome::Tally;

/// Steps on their way.
pub(crate) struct Lane {
    child: Child,
    log: PathBuf,
    names: String,
}

impl Lane {
    /// Starts steps by their names.
    pub(crate) fn start(names: &[&str]) -> Result<Lane> {
        let log = repository_root().join(format!("target/xtask-beside-{}.log", names.join("-")));
        std::fs::create_dir_all(log.with_file_name(""))?;
        let out = File::create(&log)?;
        let names = names.join(",");
        let child = Command::new(std::env::current_exe()?)
            .args(["test", "--beside", &names])
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("cannot start the steps beside")?;
        Ok(Lane { child, log, names })
    }

    /// Waits for them and shows what they said: what they count for, and their lines of the summary.
    pub(crate) fn finish(mut self) -> (Tally, Vec<String>) {
        println!("\nwaiting for what runs beside: {}", self.names);
        let status = self.child.wait();
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        print!("{said}");
        match (status, read_summary(&said)) {
            (Ok(status), Some((tally, lines))) if status.success() == (tally.failed == 0) => (tally, lines),
            (status, _) => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                (Tally { passed: 0, failed: 1 }, vec![format!("{}: FAILED: broke off: {status}", self.names)])
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Long done, unless the run here broke off.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a run's summary, and its total.
fn read_summary(said: &str) -> Option<(Tally, Vec<String>)> {
    let (_, summary) = said.rsplit_once("\n=== summary\n")?;
    let mut lines: Vec<String> = summary.lines().map(str::to_owned).collect();
    // A run that was not good says so after its total.
    while !lines.last()?.ends_with(" failed") {
        lines.pop();
    }
    let total = lines.pop()?;
    let (passed, failed) = total.strip_suffix(" failed")?.split_once(" passed, ")?;
    Some((Tally { passed: passed.parse().ok()?, failed: failed.parse().ok()? }, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_and_what_is_none_is_not() {
        let said = "…\n=== summary\nvm  1.0 s  2 passed\nztest  FAILED: no\n2 passed, 1 failed\nError: not all checks passed\n";
        let (tally, lines) = read_summary(said).unwrap();
        assert_eq!(tally, Tally { passed: 2, failed: 1 });
        assert_eq!(lines, ["vm  1.0 s  2 passed", "ztest  FAILED: no"]);
        assert_eq!(read_summary("…\n=== summary\nvm  1.0 s  2 passed\n"), None);
        assert_eq!(read_summary("Error: no\n"), None);
    }
}
