//! `cenote serve`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cenote_nbd::{Listener, Server, ServerOptions};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::Search;
use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::volumes::PoolVolumes;

/// Serve a pool's volumes and their snapshots over NBD, read-only, until interrupted.
///
/// Every volume is an export under its name. Attach one with `nbd-client`, read it with `nbdcopy` or `qemu-img`:
/// `nbdcopy 'nbd+unix:///tank/vol?socket=/run/tank.sock' vol.img`.
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
    /// The pool, or the dataset below which volumes are served.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.unix.is_empty() && args.tcp.is_empty() {
        return Err(usage("nothing to listen on: give --unix SOCKET or --tcp HOST:PORT"));
    }
    let context = context.with(&args.search);
    let pool_name = args.dataset.split('/').next().unwrap_or(&args.dataset);
    let pool = context.open_pool(pool_name).await?;
    let volumes = PoolVolumes::new(pool, &args.dataset);
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
    wait_for_signal(&context).await?;
    server.shutdown();
    Ok(Outcome::Good)
}

/// Waits for an interrupt or a request to end.
async fn wait_for_signal(context: &Context) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let waiting = context.handle().spawn_blocking(move || signals.forever().next());
    waiting.await?;
    Ok(())
}
