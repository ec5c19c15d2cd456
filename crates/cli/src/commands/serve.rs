//! `cenote serve`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use cenote_fuse::MountOptions;
use cenote_nbd::{Exports, Listener, Server, ServerOptions};
use serde::{Deserialize, Serialize};
use signal_hook::iterator::Signals;

use crate::args::Search;
use crate::background::{GoesOn, Going};
use crate::commands::mount::parse_options;
use crate::context::Context;
use crate::ending::{self, Ended};
use crate::live;
use crate::outcome::{Outcome, usage};
use crate::served::ServedPool;
use crate::server::Control;
use crate::signals;
use crate::volumes::{LiveVolumes, PoolVolumes};

/// Serve a pool from one process until interrupted: its volumes over NBD, its file systems as a mount.
///
/// Every volume and snapshot of one is an export under its name. Attach one with `nbd-client`, read it with `nbdcopy` or
/// `qemu-img`: `nbdcopy 'nbd+unix:///tank/vol?socket=/run/tank.sock' vol.img`. With `--mount` the dataset, those below it
/// and their snapshots are shown in a folder as well, as `cenote mount` does; both share one cache.
///
/// Nothing is written unless `--rw` is given. Then the pool is this process's alone: clients write volumes, and programs the mounted
/// dataset and those below it; what they flush or sync is on disk when they are told so, and an interrupt ends with everything
/// written and the pool exported. Snapshots, and volumes with `readonly=on`, stay as they are.
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
    /// Take commands for the pool at this unix socket instead of one beside the cache file; clients find it by CENOTE_CONTROL.
    #[arg(long, value_name = "SOCKET", requires = "rw")]
    control: Option<PathBuf>,
    /// Mount the dataset at this folder too.
    #[arg(long, value_name = "FOLDER")]
    mount: Option<PathBuf>,
    /// Mount options, as `cenote mount` takes them.
    #[arg(short = 'o', value_name = "OPTIONS", requires = "mount")]
    options: Vec<String>,
    #[command(flatten)]
    goes_on: GoesOn,
    /// The pool, or the dataset below which all is served.
    dataset: String,
}

impl Args {
    /// Its options as a command that goes on until it is ended.
    pub(crate) const fn goes_on(&self) -> &GoesOn {
        &self.goes_on
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let has_listener = !args.unix.is_empty() || !args.tcp.is_empty();
    if !has_listener && args.mount.is_none() {
        return Err(usage("nothing to serve by: give --unix SOCKET, --tcp HOST:PORT or --mount FOLDER"));
    }
    let mount_options = parse_options(&args.options)?;
    let context = context.with(&args.search).quiet(args.goes_on.quiet);
    // Before anything is mounted: an interrupt from now on ends what is served, and not the program.
    let signals = signals::ending()?;
    let pool_name = args.dataset.split('/').next().unwrap_or(&args.dataset);
    let going = Going::begin(&args.goes_on, &args.dataset)?;
    if args.rw {
        live::check_options(&args.options)?;
        let of = live::open_pool(&context, pool_name, live::Recovery::Clear).await?;
        let mut control = None;
        let served = async {
            control = Control::start(&context, &of, args.control.as_deref(), !has_listener)?;
            Serving { context: &context, args: &args, mount_options: &mount_options, of: &of, going: &going }
                .run(signals)
                .await
        };
        let served = served.await;
        going.ends();
        if let Some(control) = &control {
            control.ends();
        }
        of.mounts.close().await;
        live::export(of.pool, served).await?;
        return Ok(Outcome::Good);
    }
    let pool = context.open_pool(pool_name).await?;
    context.say_notes(pool.name(), pool.notes());
    let report = context.clone();
    let report = Arc::new(move |line: &str| report.err(line));
    let server = if has_listener {
        let volumes = PoolVolumes::new(pool.clone(), &args.dataset);
        let count = volumes.names().await?.len();
        Some(volumes_server(&context, &args, Arc::new(volumes), count)?)
    } else {
        None
    };
    let mut waiting = signals;
    if let Some(at) = &args.mount {
        let mount = cenote_fuse::mount(context.handle(), &pool, &args.dataset, at, &mount_options, report).await?;
        context.tell(format!(
            "'{}' is mounted at {}; {}",
            args.dataset,
            mount.mountpoint().display(),
            args.goes_on.end("end")
        ));
        going.ready(&context)?;
        let ended = ending::wait_for(&context, &[Arc::new(mount)], waiting).await?;
        if ended == Ended::Signal || server.is_none() {
            shutdown(server);
            return Ok(Outcome::Good);
        }
        context.tell("unmounted; volumes are still served");
        waiting = signals::ending()?;
    } else {
        going.ready(&context)?;
    }
    context.handle().spawn_blocking(move || waiting.forever().next()).await?;
    shutdown(server);
    Ok(Outcome::Good)
}

/// A pool that is served for writing.
struct Serving<'a> {
    context: &'a Context,
    args: &'a Args,
    mount_options: &'a MountOptions,
    of: &'a ServedPool,
    going: &'a Going,
}

impl Serving<'_> {
    /// Serves volumes and a file system, until all requests are finished.
    async fn run(self, signals: Signals) -> Result<()> {
        let Self { context, args, mount_options, of, going } = self;
        let server = if args.unix.is_empty() && args.tcp.is_empty() {
            None
        } else {
            let volumes = LiveVolumes::new(of.volumes.clone(), &args.dataset);
            let count = volumes.names().await?.len();
            let server = volumes_server(context, args, Arc::new(volumes), count)?;
            server.add_kstats(of.pool.kstats());
            Some(server)
        };
        let ended = async {
            if let Some(at) = &args.mount {
                let at = of.mounts.mount(&of.pool, &args.dataset, at, mount_options).await?;
                let end = args.goes_on.end("end");
                context.err(format!("'{}' is mounted at {} for writing; {end}", args.dataset, at.display()));
            }
            going.ready(context)?;
            match &server {
                None => live::wait(context, of, signals).await,
                Some(_) => {
                    let forever = async || {
                        loop {
                            of.mounts.some_mounted().await;
                            of.mounts.none_mounted().await;
                            context.tell("unmounted; volumes are still served");
                        }
                    };
                    ending::wait(context, signals, forever, || live::handles(of)).await
                }
            }
        };
        let ended = ended.await;
        if let Some(server) = server {
            // Requests that were read are answered; what they wait for is the engine's work, not this worker's.
            context.handle().spawn_blocking(move || server.shutdown()).await?;
        }
        ended.map(drop)
    }
}

fn shutdown(server: Option<Server>) {
    if let Some(server) = server {
        server.shutdown();
    }
}

/// A group's number, given as that or as a name in `/etc/group`.
fn group_of(text: &str) -> Result<u32> {
    // The highest number means "leave it" to the system.
    if let Some(number) = text.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(number);
    }
    // name:password:number:members
    let groups = std::fs::read_to_string("/etc/group").context("/etc/group")?;
    let number =
        groups.lines().find_map(|line| line.strip_prefix(text)?.strip_prefix(':')?.split(':').nth(1)?.parse().ok());
    number.with_context(|| format!("there is no group '{text}' in /etc/group; give its number"))
}

/// Starts to serve so many volumes.
fn volumes_server(context: &Context, args: &Args, volumes: Arc<dyn Exports>, count: usize) -> Result<Server> {
    if count == 0 {
        bail!("'{}' has no volumes", args.dataset);
    }
    let mut listeners = Vec::new();
    let group = args.socket_group.as_deref().map(group_of).transpose()?;
    for path in &args.unix {
        let listener = Listener::unix_for(path, group);
        listeners.push(listener.with_context(|| format!("cannot listen on {}", path.display()))?);
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
    let server = Server::start(context.handle().clone(), volumes, listeners, options)?;
    for line in lines {
        let exports = if count == 1 { "export" } else { "exports" };
        context.tell(format!("serving {count} {exports} at {line}"));
    }
    Ok(server)
}
