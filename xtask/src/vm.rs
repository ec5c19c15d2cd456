//! The real OpenZFS in a virtual machine: `tools/openzfs-vm`, and its preparation while other steps run.

use std::fs::File;
use std::process::{Child, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::{Golden, repository_root};

use crate::steps::{Context, Outcome, Tally};
use crate::{packages, process};

/// The setup that runs in the background, if one does.
static SETUP: Mutex<Option<Child>> = Mutex::new(None);

const SETUP_LOG: &str = "target/openzfs-vm-setup.log";

/// `openzfs-vm setup|run|smoke [ARG…]`
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some((word, rest)) = args.split_first() else {
        bail!("usage: cargo xtask openzfs-vm setup|run|smoke [ARG…]")
    };
    if !["setup", "run", "smoke"].contains(&word.as_str()) {
        bail!("openzfs-vm: setup, run or smoke, not {word}");
    }
    let mut command = process::script(&format!("tools/openzfs-vm/{word}"));
    // The caller's own standard input: a script may come that way.
    let status = command.args(rest).status().context("cannot start bash")?;
    if !status.success() {
        bail!("openzfs-vm {word}: {status}");
    }
    Ok(())
}

/// Starts the setup if it may be done here and is not done already.
pub(crate) fn prepare_in_background(_: &Context) {
    if ready() || !packages::may_install() {
        return;
    }
    let start = || -> Result<Child> {
        std::fs::create_dir_all(repository_root().join("target"))?;
        let log = File::create(repository_root().join(SETUP_LOG))?;
        let errors = log.try_clone()?;
        let mut command = process::script("tools/openzfs-vm/setup");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Ok(command.spawn()?)
    };
    match start() {
        Ok(child) => {
            println!("preparing the virtual machine in the background ({SETUP_LOG})");
            *SETUP.lock().expect("no step panics with the lock") = Some(child);
        }
        Err(error) => println!("cannot prepare the virtual machine: {error:#}"),
    }
}

fn ready() -> bool {
    process::output(process::script("tools/openzfs-vm/setup").arg("--check")).is_ok_and(|output| output.good)
}

/// The step.
pub(crate) fn step(context: &Context) -> Result<Outcome> {
    if SETUP.lock().expect("no step panics with the lock").is_none() {
        prepare_in_background(context);
    }
    if let Some(mut setup) = SETUP.lock().expect("no step panics with the lock").take() {
        println!("waiting for the virtual machine's setup");
        if !setup.wait()?.success() {
            let log = std::fs::read_to_string(repository_root().join(SETUP_LOG)).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            for line in tail.iter().rev() {
                println!("    {line}");
            }
            bail!("the virtual machine's setup failed");
        }
    }
    if !ready() {
        return Ok(Outcome::LeftOut("no virtual machine (tools/openzfs-vm/setup, as root on Debian 12)".to_owned()));
    }
    let unpacked = Golden::selection()?.theme("basic")?.unpacked()?;
    process::run(process::script("tools/openzfs-vm/smoke").args(&unpacked.images))?;
    Ok(Outcome::Done(Tally::ONE))
}
