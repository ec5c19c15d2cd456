//! `cenote mount`.

use std::path::PathBuf;

use cenote_server::mounting::{MountRequest, mount, remount, take_over};

use crate::args::GoesOn;
use crate::live;
use crate::prelude::*;

/// Mount a dataset or snapshot as a folder until interrupted or unmounted; read-only unless `--rw` is given.
///
/// Datasets below it stand where their `mountpoint` puts them, snapshots in `.zfs/snapshot`. Works as root, and through
/// fusermount3 as anybody.
///
/// With `--rw` files can be changed, in the datasets below too: each as its own properties say, and read-only where it cannot be written
/// yet, which is said. Datasets that commands make, rename and destroy come and go in the mount; `zfs destroy` is refused for one that is
/// in use there. The pool is this process's alone meanwhile, which takes commands for it; what a program has synced (`fsync`) is on disk
/// when it is told so, everything else within seconds, and an interrupt or `umount` ends with everything written and the pool exported.
///
/// A pool that another process of Cenote has for writing is mounted by that process, which goes on until its last mount has ended. This
/// command then waits for the end of its own mount, and an interrupt ends that mount alone.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Mount options, separated by commas: allow_other (root's mounts have it) or noallow_other, allow_root, auto_unmount, default_permissions or
    /// no_default_permissions, dev or nodev, suid or nosuid, exec or noexec, xattr or noxattr, atime, noatime, relatime or strictatime, sync or async,
    /// io_uring or no_io_uring, threads=N, read_ahead=KIB, layout=mountpoints|names|alone.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Let files be changed.
    #[arg(long)]
    rw: bool,
    /// Take commands for the pool at this unix socket instead of one beside the cache file; clients find it by CENOTE_CONTROL.
    #[arg(long, value_name = "SOCKET", requires = "rw")]
    control: Option<PathBuf>,
    /// Change the options of a mount that is there: dev, suid, exec, and whether it may be written.
    #[arg(long)]
    remount: bool,
    #[command(flatten)]
    goes_on: GoesOn,
    /// The dataset, or dataset@snapshot.
    dataset: String,
    /// Where: a folder that is there.
    #[serde(with = "cenote_server::protocol::bytes")]
    mountpoint: PathBuf,
}

impl Args {
    /// Its options as a command that goes on until it is ended.
    pub(crate) const fn goes_on(&self) -> &GoesOn {
        &self.goes_on
    }

    /// Whether the process that has the pool can do it: it mounts for writing.
    pub(crate) const fn is_for_server(&self) -> bool {
        self.rw && !self.remount
    }

    /// Whether it only changes a mount that another process serves.
    pub(crate) const fn is_remount(&self) -> bool {
        self.remount
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let request = MountRequest {
        dataset: args.dataset,
        at: args.mountpoint,
        options: args.options,
        is_writable: args.rw,
        control: args.control,
    };
    if args.remount {
        remount(&request)?;
        return Ok(Outcome::Good);
    }
    if let Some(of) = context.served_pool() {
        take_over(context, of, &request).await?;
        return Ok(Outcome::Good);
    }
    let context = context.with(&args.search).quiet(args.goes_on.quiet);
    let is_good = mount(&context, &request, (&args.goes_on).into(), live::clients(&context)).await?;
    Ok(Outcome::unless(!is_good))
}
