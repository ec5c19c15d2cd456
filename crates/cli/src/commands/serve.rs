//! `cenote serve`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cenote_dsl::name::is_at_or_below;
use cenote_fuse::MountOptions;
use cenote_nbd::{Exports, Listener, Server, ServerOptions};
use cenote_server::{EndedBy, LiveVolumes, PoolVolumes, Pools, Recovery, Volumes, ending, signals};
use serde::{Deserialize, Serialize};

use crate::args::GoesOn;
use crate::args::Search;
use crate::commands::mount::{check_options, parse_options};
use crate::context::Context;
use crate::files::pool_of;
use crate::live;
use crate::outcome::{Outcome, usage};
use cenote_server::background::{Going, GoingOptions};

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
    let has_listener = !args.unix.is_empty() || !args.tcp.is_empty();
    let wanted = Wanted::of(&args, has_listener)?;
    let mount_options = parse_options(&args.options)?;
    let context = context.with(&args.search).quiet(args.goes_on.quiet).sharing_memory(wanted.pools.len());
    // Before anything is mounted: an interrupt from now on ends what is served, and not the program.
    let signals = signals::ending()?;
    let going = Going::begin((&args.goes_on).into(), &args.datasets.join("+"))?;
    if args.rw {
        check_options(&args.options)?;
        let mut pools = live::pools(&context, !has_listener);
        let begun = begin(&context, &args, &wanted, &mount_options, going.options(), &mut pools).await;
        pools.serve(begun, || Ok(going.ready(&**context.console())?), || going.ends(), signals).await?;
        return Ok(Outcome::Good);
    }
    let mut views = BTreeMap::new();
    for name in &wanted.pools {
        let pool = context.open_pool(name).await?;
        context.say_notes(pool.name(), pool.notes());
        views.insert(name.as_str(), pool);
    }
    let server = if has_listener {
        let of = args.datasets.iter().map(|name| (views[pool_of(name)].clone(), name.clone()));
        let volumes = PoolVolumes::new(of.collect());
        let count = some_volumes(&args, volumes.names().await?.len())?;
        Some(volumes_server(&context, &args, Arc::new(volumes), count)?)
    } else {
        None
    };
    let mut mounts = Vec::new();
    for (dataset, at) in &wanted.mounts {
        let report = context.clone();
        let report = Arc::new(move |line: &str| report.err(line));
        let pool = &views[pool_of(dataset)];
        let mount = cenote_fuse::mount(context.handle(), pool, dataset, at, &mount_options, report).await?;
        let end = going.options().end("end");
        context.tell(format!("'{dataset}' is mounted at {}; {end}", mount.mountpoint().display()));
        mounts.push(Arc::new(mount));
    }
    going.ready(&**context.console())?;
    let mut waiting = signals;
    if !mounts.is_empty() {
        let ended = ending::wait_for(context.handle(), &**context.console(), &mounts, waiting).await?;
        if ended == EndedBy::Signal || server.is_none() {
            shutdown(server);
            return Ok(Outcome::Good);
        }
        context.tell("unmounted; volumes are still served");
        waiting = signals::ending()?;
    }
    context.handle().spawn_blocking(move || waiting.forever().next()).await?;
    shutdown(server);
    Ok(Outcome::Good)
}

/// The pools and mounts that a command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    /// Each once, as they were first named.
    pools: Vec<String>,
    /// Datasets to mount, and where.
    mounts: Vec<(String, PathBuf)>,
}

impl Wanted {
    fn of(args: &Args, has_listener: bool) -> Result<Self> {
        let mut pools: Vec<String> = Vec::new();
        for name in args.datasets.iter().map(|name| pool_of(name)) {
            if !pools.iter().any(|pool| pool == name) {
                pools.push(name.to_owned());
            }
        }
        let mounts: Vec<_> = args.mount.iter().map(|text| mount_of(text, &args.datasets)).collect::<Result<_>>()?;
        if !has_listener {
            let is_unused = |pool: &&String| !mounts.iter().any(|(dataset, _)| pool_of(dataset) == pool.as_str());
            if let Some(pool) = pools.iter().find(is_unused) {
                return Err(usage(format!(
                    "nothing to serve '{pool}' by: give --unix SOCKET, --tcp HOST:PORT or --mount FOLDER"
                )));
            }
        }
        if args.control.is_some() && pools.len() > 1 {
            return Err(usage("--control is for one pool: each of several takes commands at a socket of its own"));
        }
        Ok(Self { pools, mounts })
    }
}

/// A dataset and where to mount it, from `[DATASET=]FOLDER`.
fn mount_of(text: &Path, datasets: &[String]) -> Result<(String, PathBuf)> {
    let bytes = text.as_os_str().as_bytes();
    let is_served = |name: &str| datasets.iter().any(|above| is_at_or_below(name, above));
    let split = bytes.iter().position(|byte| *byte == b'=').and_then(|at| {
        let name = std::str::from_utf8(&bytes[..at]).ok()?;
        Some((name, PathBuf::from(OsStr::from_bytes(&bytes[at + 1..]))))
    });
    match (split, datasets) {
        (Some((name, folder)), _) if is_served(name) => Ok((name.to_owned(), folder)),
        // A folder's name may have this character too.
        (_, [dataset]) => Ok((dataset.clone(), text.to_owned())),
        (Some((name, _)), _) => Err(usage(format!("--mount {}: '{name}' is none of the datasets", text.display()))),
        (None, _) => {
            let text = text.display();
            Err(usage(format!("--mount {text}: say which dataset: --mount DATASET={text}")))
        }
    }
}

/// Opens pools for writing, and begins to serve what is wanted of them.
async fn begin(
    context: &Context,
    args: &Args,
    wanted: &Wanted,
    mount_options: &MountOptions,
    going: &GoingOptions,
    pools: &mut Pools,
) -> Result<Option<Volumes>> {
    for name in &wanted.pools {
        pools.open(context, name, Recovery::Clear, args.control.as_deref()).await?;
    }
    let served: BTreeMap<_, _> = wanted.pools.iter().map(String::as_str).zip(pools.all()).collect();
    let mut volumes = None;
    if !args.unix.is_empty() || !args.tcp.is_empty() {
        let of = args.datasets.iter().map(|name| (served[pool_of(name)].volumes.clone(), name.clone()));
        let all = Arc::new(LiveVolumes::new(of));
        let count = all.names().await?.len();
        volumes = Some((all, some_volumes(args, count)?));
    }
    // Mounts end with their pools, whatever comes after.
    for (dataset, at) in &wanted.mounts {
        let of = served[pool_of(dataset)];
        let at = of.mounts.mount(&of.pool, dataset, at, mount_options).await?;
        let end = going.end("end");
        context.tell(format!("'{dataset}' is mounted at {} for writing; {end}", at.display()));
    }
    let Some((volumes, count)) = volumes else { return Ok(None) };
    let server = volumes_server(context, args, volumes.clone(), count)?;
    served.values().for_each(|of| server.add_kstats(of.pool.kstats()));
    Ok(Some(Volumes { volumes, server }))
}

/// The number of volumes, which is not 0.
fn some_volumes(args: &Args, count: usize) -> Result<usize> {
    ensure!(count > 0, "'{}' has no volumes", args.datasets.join("', '"));
    Ok(count)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_of_a_dataset_that_is_given_or_below_one() {
        let of = |text: &str, datasets: &[&str]| {
            let datasets: Vec<String> = datasets.iter().map(|name| (*name).to_owned()).collect();
            mount_of(Path::new(text), &datasets).map(|(name, at)| (name, at.display().to_string()))
        };
        for (text, datasets, dataset, folder) in [
            ("/a", &["tank"][..], "tank", "/a"),
            ("/a=b", &["tank"], "tank", "/a=b"),
            ("other=/b", &["tank"], "tank", "other=/b"),
            ("tank=/b", &["tank"], "tank", "/b"),
            ("tank/x=/b=c", &["tank", "two"], "tank/x", "/b=c"),
            ("two=b", &["tank", "two"], "two", "b"),
        ] {
            assert_eq!(of(text, datasets).unwrap(), (dataset.to_owned(), folder.to_owned()), "{text}");
        }
        for text in ["/a", "/a=b", "other=/b", "tanks=/b", "=/b"] {
            assert!(of(text, &["tank", "two"]).is_err(), "{text}");
        }
    }
}
