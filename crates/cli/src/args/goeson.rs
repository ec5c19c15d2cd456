//! Options of commands that go on until they are ended.

use std::path::PathBuf;
use std::time::Duration;

use cenote_server::background::GoingOptions;
use serde::{Deserialize, Serialize};

/// Options of commands that go on until they are ended.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct GoesOn {
    /// Go on in the background: return when it is ready, and with the error when it does not begin.
    #[arg(long)]
    pub(crate) background: bool,
    /// Write the process's number to this file while it runs.
    #[arg(long, value_name = "FILE")]
    pub(crate) pid_file: Option<PathBuf>,
    /// Append messages to this file once it is ready; in the background by default to a file beside the cache file.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Tell only what is wrong, as `mount` does.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl From<&GoesOn> for GoingOptions {
    fn from(args: &GoesOn) -> Self {
        Self { background: args.background, pid_file: args.pid_file.clone(), log: args.log.clone() }
    }
}

/// How often a command is done, and after how long again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Repeats {
    pub(crate) interval: Duration,
    /// Without end if nothing is said.
    pub(crate) count: Option<u64>,
}
