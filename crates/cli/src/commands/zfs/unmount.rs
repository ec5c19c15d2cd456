//! `zfs unmount`.

use std::ffi::OsString;

use cenote_server::unmounting;

use crate::prelude::*;

/// Unmount a file system, and return when everything written there is on disk.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Every file system that Cenote has mounted.
    #[arg(short = 'a')]
    all: bool,
    /// Also if it is in use: programs that use it get errors.
    #[arg(short = 'f')]
    force: bool,
    /// Unload keys too: no key outlives the process that served the mount.
    #[arg(short = 'u')]
    unload: bool,
    /// The file system, or the folder at which it is mounted.
    #[arg(value_name = "FILESYSTEM|MOUNTPOINT")]
    target: Option<OsString>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    match (&args.target, args.all) {
        (Some(_), true) => Err(usage("too many arguments")),
        (None, false) => Err(usage("missing filesystem argument")),
        (None, true) => Ok(Outcome::unless(!unmounting::unmount_all(context, args.force).await)),
        (Some(target), false) => {
            unmounting::unmount(context, target, args.force).await?;
            Ok(Outcome::Good)
        }
    }
}
