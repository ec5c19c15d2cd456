//! `cenote serve`.

use std::path::PathBuf;

use cenote_server::Hooks;
use cenote_server::serving::{ServeRequest, serve};

use crate::args::GoesOn;
use crate::live;
use crate::prelude::*;
use crate::time;

/// Serve pools from one process until interrupted: their volumes over NBD, their file systems as mounts.
///
/// Every volume and snapshot of one at and below the datasets is an export under its name. Attach one with `nbd-client`, read it with
/// `nbdcopy` or `qemu-img`: `nbdcopy 'nbd+unix:///tank/vol?socket=/run/tank.sock' vol.img`. With `--mount` a dataset, those below it and
/// their snapshots are shown in a folder as well, as `cenote mount` does; all of a pool share one cache.
///
/// Nothing is written unless `--rw` is given. Then the pools are this process's alone: clients write volumes, and programs the mounted
/// datasets and those below them; what they flush or sync is on disk when they are told so, and an interrupt ends with everything
/// written and the pools exported. Snapshots, and volumes with `readonly=on`, stay as they are.
///
/// Each of several pools takes commands at a socket of its own. `zpool export` of one ends what is served of that one; while the devices
/// of one fail the others go on. They share the memory for caches and unwritten data in equal parts.
///
/// NBD clients may have 256 MiB of requests in flight together, and 64 MiB and 256 requests each; further requests wait. A client
/// is disconnected if its handshake takes longer than 30 s, or if it neither takes its replies nor sends the data that it announced
/// within a minute (and a second for each 64 KiB).
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Listen on a unix socket, which only this user can use.
    #[arg(long, value_name = "SOCKET")]
    unix: Vec<PathBuf>,
    /// Let this group use the unix sockets too: its name or number.
    #[arg(long, value_name = "GROUP", requires = "unix")]
    socket_group: Option<String>,
    /// Listen on a TCP address, such as 127.0.0.1:10809. There is no authentication: keep it to a trusted network.
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Vec<String>,
    /// Let clients write volumes, and programs the mounted dataset.
    #[arg(long)]
    rw: bool,
    /// Take commands for the pool, which is the only one, at this unix socket instead of one beside the cache file; clients find it by
    /// CENOTE_CONTROL.
    #[arg(long, value_name = "SOCKET", requires = "rw")]
    control: Option<PathBuf>,
    /// Mount a dataset at a folder too: one that is given, or one below it. Without DATASET= the only one that is given.
    #[arg(long, value_name = "[DATASET=]FOLDER")]
    mount: Vec<PathBuf>,
    /// Mount options of all of them, as `cenote mount` takes them.
    #[arg(short = 'o', value_name = "OPTIONS", requires = "mount")]
    options: Vec<String>,
    /// Run the executables of this folder when something happens to the pools ('zpool events'), as OpenZFS's zed does: all-NAME for each
    /// event, CLASS-NAME for those of a class (scrub_finish-mail.sh). They get the event as variables ZEVENT_*.
    #[arg(long, value_name = "FOLDER", requires = "rw")]
    hooks: Option<PathBuf>,
    #[command(flatten)]
    goes_on: GoesOn,
    /// Pools, or datasets below which all is served.
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<String>,
}

impl Args {
    /// Its options as a command that goes on until it is ended.
    pub(crate) const fn goes_on(&self) -> &GoesOn {
        &self.goes_on
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let request = ServeRequest {
        unix: args.unix,
        socket_group: args.socket_group,
        tcp: args.tcp,
        is_writable: args.rw,
        control: args.control,
        mounts: args.mount,
        mount_options: args.options,
        hooks: args.hooks.map(|folder| Hooks { folder, time: time::format }),
        datasets: args.datasets,
    };
    let pools = request.wanted()?.pools.len();
    let context = context.with(&args.search).quiet(args.goes_on.quiet).sharing_memory(pools);
    serve(&context, &request, (&args.goes_on).into(), live::clients(&context)).await?;
    Ok(Outcome::Good)
}
