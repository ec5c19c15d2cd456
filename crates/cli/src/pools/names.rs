//! Options that say what vdevs are called.

use cenote_listing::Names;
use serde::{Deserialize, Serialize};

/// Options about names.
#[derive(Clone, Copy, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct NameArgs {
    /// Show guids in place of names.
    #[arg(short = 'g')]
    guids: bool,
    /// Follow links: show what devices are in truth.
    #[arg(short = 'L')]
    follow: bool,
    /// Show full paths.
    #[arg(short = 'P')]
    paths: bool,
}

impl From<NameArgs> for Names {
    fn from(args: NameArgs) -> Self {
        let has = |name| {
            std::env::var_os(name).is_some_and(|value| ["1", "YES", "yes", "ON", "on"].iter().any(|yes| value == *yes))
        };
        Self::new(
            args.guids || has("ZPOOL_VDEV_NAME_GUID"),
            args.follow || has("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
            args.paths || has("ZPOOL_VDEV_NAME_PATH"),
        )
    }
}
