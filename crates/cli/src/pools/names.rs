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

impl NameArgs {
    /// Guids, links followed, full paths: as the line or the environment says.
    fn chosen(self) -> [bool; 3] {
        let has = |name| {
            std::env::var_os(name).is_some_and(|value| ["1", "YES", "yes", "ON", "on"].iter().any(|yes| value == *yes))
        };
        [
            self.guids || has("ZPOOL_VDEV_NAME_GUID"),
            self.follow || has("ZPOOL_VDEV_NAME_FOLLOW_LINKS"),
            self.paths || has("ZPOOL_VDEV_NAME_PATH"),
        ]
    }

    /// The same as options of a line.
    pub(crate) fn options(self) -> impl Iterator<Item = &'static str> {
        ["-g", "-L", "-P"].into_iter().zip(self.chosen()).filter_map(|(option, is_chosen)| is_chosen.then_some(option))
    }
}

impl From<NameArgs> for Names {
    fn from(args: NameArgs) -> Self {
        let [is_guid, is_followed, is_full] = args.chosen();
        Self::new(is_guid, is_followed, is_full)
    }
}
