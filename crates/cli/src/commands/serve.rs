//! `cenote serve`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cenote_nbd::{Listener, Server, ServerOptions};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::Search;
use crate::commands::mount::{self, Ended, parse_options};
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::volumes::PoolVolumes;
use cenote_spa::Pool;

/// Serve a pool from one process, read-only, until interrupted: its volumes over NBD, its file systems as a mount.
///
/// Every volume and snapshot of one is an export under its name. Attach one with `nbd-client`, read it with `nbdcopy` or
/// `qemu-img`: `nbdcopy 'nbd+unix:///tank/vol?socket=/run/tank.sock' vol.img`. With `--mount` the dataset, those below it
/// and their snapshots are shown in a folder as well, as `cenote mount` does; both share one cache.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Listen on a unix socket.
    #[arg(long, value_name = "SOCKET")]
    unix: Vec<PathBuf>,
    /// Listen on a TCP address, such as 127.0.0.1:10809. There is no authentication: keep it to a trusted network.
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Vec<String>,
    /// Mount the dataset at this folder too.
    #[arg(long, value_name = "FOLDER")]
    mount: Option<PathBuf>,
    /// Mount options, as `cenote mount` takes them.
    #[arg(short = 'o', value_name = "OPTIONS", requires = "mount")]
    options: Vec<String>,
    /// The pool, or the dataset below which all is served.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let has_listener = !args.unix.is_empty() || !args.tcp.is_empty();
    if !has_listener && args.mount.is_none() {
        return Err(usage("nothing to serve by: give --unix SOCKET, --tcp HOST:PORT or --mount FOLDER"));
    }
    let mount_options = parse_options(&args.options)?;
    let context = context.with(&args.search);
    // Before anything is mounted: an interrupt from now on ends what is served, and not the program.
    let signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let pool_name = args.dataset.split('/').next().unwrap_or(&args.dataset);
    let pool = context.open_pool(pool_name).await?;
    let report = context.clone();
    let report: cenote_fuse::Report = Arc::new(move |line: &str| report.err(line));
    let server = if has_listener { Some(volumes_server(&context, &args, &pool).await?) } else { None };
    let mut waiting = signals;
    if let Some(at) = &args.mount {
        let mount = cenote_fuse::mount(context.handle(), &pool, &args.dataset, at, &mount_options, report).await?;
        context.err(format!("'{}' is mounted at {}; interrupt to end", args.dataset, mount.mountpoint().display()));
        let ended = mount::wait(&context, &mount, waiting).await?;
        if ended == Ended::Signal || server.is_none() {
            shutdown(server);
            return Ok(Outcome::Good);
        }
        context.err("unmounted; volumes are still served");
        waiting = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    }
    context.handle().spawn_blocking(move || waiting.forever().next()).await?;
    shutdown(server);
    Ok(Outcome::Good)
}

fn shutdown(server: Option<Server>) {
    if let Some(server) = server {
        server.shutdown();
    }
}

/// Starts to serve the volumes.
async fn volumes_server(context: &Context, args: &Args, pool: &Pool) -> Result<Server> {
    let volumes = PoolVolumes::new(pool.clone(), &args.dataset);
    let names = volumes.names().await?;
    if names.is_empty() {
        bail!("'{}' has no volumes", args.dataset);
    }
    let mut listeners = Vec::new();
    for path in &args.unix {
        listeners.push(Listener::unix(path).with_context(|| format!("cannot listen on {}", path.display()))?);
    }
    for address in &args.tcp {
        listeners.push(Listener::tcp(address.as_str()).with_context(|| format!("cannot listen on {address}"))?);
    }
    let lines: Vec<String> = listeners
        .iter()
        .filter_map(Listener::tcp_address)
        .map(|address| format!("nbd://{address}/"))
        .chain(args.unix.iter().map(|path| format!("nbd+unix:///?socket={}", path.display())))
        .collect();
    let report = context.clone();
    let options = ServerOptions { report: Arc::new(move |line| report.err(line)), ..ServerOptions::default() };
    let server = Server::start(context.handle().clone(), Arc::new(volumes), listeners, options)?;
    for line in lines {
        context.err(format!("serving {} exports at {line}", names.len()));
    }
    Ok(server)
}
