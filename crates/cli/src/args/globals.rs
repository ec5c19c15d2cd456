//! Options that any command takes.

use std::path::PathBuf;

use cenote_admin::values::parse_size;
use cenote_server::importing::rewind_to;
use cenote_server::{IoChoice, Rewind, tunables};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Options that any command takes, anywhere on the line. Long names only, so that none collides with a flag of OpenZFS's
/// tools.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Load a dataset's key from a file, or from standard input.
    #[arg(id = "global-key", long = "key", value_name = "DATASET=FILE|-", global = true, hide_long_help = true)]
    pub(crate) keys: Vec<String>,
    /// Memory for the block cache: bytes, or with a suffix K, M, G; by default a quarter of what there is, or of what the control
    /// group may use. A pool that is written takes more (docs/LIMITS.md, Memory).
    #[arg(id = "global-cache-bytes", long = "cache-bytes", value_name = "SIZE", value_parser = parse_size, global = true, hide_long_help = true)]
    pub(crate) cache_bytes: Option<u64>,
    /// How devices are read.
    #[arg(
        id = "global-io",
        long = "io",
        value_name = "HOW",
        default_value = "auto",
        global = true,
        hide_long_help = true
    )]
    pub(crate) io: Io,
    /// Give a tunable another value, as zfs_txg_timeout=10 or zfs_dirty_data_max=1G; 'cenote tunables' lists them.
    #[arg(id = "global-tunable", long = "tunable", value_name = "NAME=VALUE", value_parser = parse_tunable, global = true, hide_long_help = true)]
    #[serde(default)]
    pub(crate) tunables: Vec<String>,
    /// Which root to open where the newest does not hold.
    #[arg(id = "global-rewind", long = "rewind", value_name = "HOW", global = true, hide_long_help = true)]
    pub(crate) rewind: Option<RewindHow>,
    /// Open the pool as of this txg, or the newest before it.
    #[arg(id = "global-txg", long = "at-txg", value_name = "TXG", global = true, hide_long_help = true)]
    pub(crate) at_txg: Option<u64>,
    /// Open the pool as of its checkpoint.
    #[arg(id = "global-checkpoint", long = "at-checkpoint", global = true, hide_long_help = true)]
    pub(crate) at_checkpoint: bool,
    /// Go on without top-level vdevs and logs that are missing; what lies on them gives errors.
    #[arg(id = "global-missing", long = "allow-missing", global = true, hide_long_help = true)]
    pub(crate) allow_missing: bool,
}

impl Globals {
    /// True where a key is read from standard input.
    pub(crate) fn has_input(&self) -> bool {
        self.keys.iter().any(|key| key.ends_with("=-"))
    }

    /// Which root to open.
    pub(crate) const fn rewind(&self) -> Rewind {
        match (self.at_txg, self.rewind) {
            (Some(txg), _) => rewind_to(txg),
            (None, Some(RewindHow::Recent)) => Rewind::Recent,
            (None, Some(RewindHow::Extreme)) => Rewind::Extreme,
            (None, None) => Rewind::None,
        }
    }
}

/// How devices are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Io {
    /// By io_uring where the kernel grants it, else by threads.
    #[default]
    Auto,
    /// By io_uring or not at all.
    Uring,
    /// By threads.
    Threads,
}

impl From<Io> for IoChoice {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Ring,
            Io::Threads => Self::Threads,
        }
    }
}

/// How far back to go for a root that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum RewindHow {
    /// The last few txgs.
    Recent,
    /// Any that leads to a pool.
    Extreme,
}

/// A tunable's setting that can be.
fn parse_tunable(text: &str) -> Result<String, String> {
    tunables::settings().set_from(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// Where to look for devices, for verbs of our own and in front of OpenZFS's (`cenote -d DIR zpool list`).
///
/// A verb flattens it into its arguments and passes it to `Context::with`.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub(crate) struct Search {
    /// Look for the pool's devices in this directory, or at this file or device; may be given several times.
    #[arg(id = "search-dir", short = 'd', value_name = "DIR|FILE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Open the pool even if it was last in use by another system, or was not exported. A pool that is in use is refused all the same.
    #[arg(id = "search-force", short = 'f', long = "force")]
    pub(crate) force: bool,
}
