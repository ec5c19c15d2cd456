//! `cargo xtask kills [CLIENT,…] [COUNT] [SEED]`: the program of the crate `cenote-kills`, on the program as checks build it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::steps::{Context, Outcome, Tally};
use crate::{golden, process, rotation};

/// Clients of the step, each with its kills in the runs of a day, of which each does a part.
const CLIENTS: [(&str, u64); 3] = [("own", 6), ("sqlite-wal", 3), ("history", 3)];
/// Parts that they are cut into.
const PARTS: u64 = 3;
/// The program's status where a client cannot be run.
const LEFT_OUT: i32 = 3;

fn program() -> Result<Command> {
    let mut command = Command::new(process::built("kills")?);
    command.arg("--program").arg(golden::built_program()?);
    Ok(command)
}

/// Carries out the chore.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let is_judgement = args.iter().any(|arg| arg == "--json");
    let mut command = if is_judgement { Command::new(process::built("kills")?) } else { program()? };
    process::run(command.args(args))
}

/// The step. Each kill counts.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let part = rotation::of_commit(PARTS);
    let mut tally = Tally::default();
    for (client, of) in CLIENTS {
        let (first, count) = part.share(of);
        let mut last = String::new();
        let mut command = program()?;
        command.args(["--first", &first.to_string(), client, &count.to_string(), "1"]);
        let code = process::run_and_read_code(&mut command, |line| line.clone_into(&mut last))?;
        if code == Some(LEFT_OUT) {
            return Ok(Outcome::LeftOut(last));
        }
        let Some(kills) = parse(&last) else { bail!("kills under {client} did not come to their end") };
        if kills.passed + kills.failed != count || (code == Some(0)) != (kills.failed == 0) {
            bail!("kills under {client}: {count} were wanted");
        }
        tally.absorb(kills);
    }
    println!(
        "by hand, since they take minutes and PostgreSQL is not among the packages of a test run: cargo xtask kills databases"
    );
    Ok(Outcome::Done(tally))
}

/// The figures of the last line: `100 kills in all: 0 failed`.
fn parse(line: &str) -> Option<Tally> {
    let (count, failed) = line.split_once(" kills in all: ")?;
    let (count, failed): (u64, u64) = (count.parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?);
    Some(Tally { passed: count.checked_sub(failed)?, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_figures() {
        assert_eq!(parse("7 kills in all: 2 failed"), Some(Tally { passed: 5, failed: 2 }));
        assert_eq!(parse("7 kills in all: 8 failed"), None);
        assert_eq!(parse("25 kills in 29 s, 0 failed"), None);
    }
}
