//! `cenote serve`: pools served until the end, their volumes over NBD and their file systems as mounts.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_dsl::name::{is_at_or_below, pool_of};
use cenote_fuse::MountOptions;
use cenote_nbd::{Exports, Listener, Server, ServerOptions};
use cenote_props::WrongUse;
use signal_hook::iterator::Signals;

use crate::background::{Going, GoingOptions};
use crate::ending::{self, EndedBy};
use crate::error::{Context as _, Result, refused};
use crate::hooks::{Hooks, Running};
use crate::mounting::{check_writable, note_reading, parse_options, report};
use crate::{Handler, LiveVolumes, PoolVolumes, Pools, Recovery, ServedPool, Session, Volumes, signals};

/// A request to serve.
#[derive(Clone, Debug, Default)]
pub struct ServeRequest {
    /// Unix sockets to listen on.
    pub unix: Vec<PathBuf>,
    /// The group that may use the sockets too, by name or number.
    pub socket_group: Option<String>,
    /// TCP addresses to listen on.
    pub tcp: Vec<String>,
    /// Clients may write volumes, and programs may write mounts.
    pub is_writable: bool,
    /// The socket for commands, if not the usual one.
    pub control: Option<PathBuf>,
    /// Mounts, each as `[DATASET=]FOLDER`.
    pub mounts: Vec<PathBuf>,
    /// Lists of mount options.
    pub mount_options: Vec<String>,
    /// Executables that run when something happens to the pools, which are written.
    pub hooks: Option<Hooks>,
    /// Pools, or datasets: everything at and below them is served.
    pub datasets: Vec<String>,
}

/// The pools and mounts of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pools, each once, in the order of their first mention.
    pub pools: Vec<String>,
    /// Datasets to mount, and their mount points.
    pub mounts: Vec<(String, PathBuf)>,
}

impl ServeRequest {
    fn has_listener(&self) -> bool {
        !self.unix.is_empty() || !self.tcp.is_empty()
    }

    /// The pools and mounts of this request.
    ///
    /// # Errors
    /// Nothing says how to serve a pool, or a mount is not of one of the datasets.
    pub fn wanted(&self) -> Result<Wanted, WrongUse> {
        let mut pools: Vec<String> = Vec::new();
        for name in self.datasets.iter().map(|name| pool_of(name)) {
            if !pools.iter().any(|pool| pool == name) {
                pools.push(name.to_owned());
            }
        }
        let mounts = self.mounts.iter().map(|text| mount_of(text, &self.datasets));
        let mounts = mounts.collect::<Result<Vec<_>, _>>()?;
        if !self.has_listener() {
            let is_unused = |pool: &&String| !mounts.iter().any(|(dataset, _)| pool_of(dataset) == pool.as_str());
            if let Some(pool) = pools.iter().find(is_unused) {
                return Err(WrongUse::new(format!(
                    "nothing to serve '{pool}' by: give --unix SOCKET, --tcp HOST:PORT or --mount FOLDER"
                )));
            }
        }
        if self.control.is_some() && pools.len() > 1 {
            let text = "--control is for one pool: each of several takes commands at a socket of its own";
            return Err(WrongUse::new(text));
        }
        Ok(Wanted { pools, mounts })
    }

    /// The number of volumes. Refuses 0.
    fn some_volumes(&self, count: usize) -> Result<usize> {
        match count {
            0 => Err(refused(format!("'{}' has no volumes", self.datasets.join("', '")))),
            count => Ok(count),
        }
    }
}

/// A dataset and its mount point, from `[DATASET=]FOLDER`.
fn mount_of(text: &Path, datasets: &[String]) -> Result<(String, PathBuf), WrongUse> {
    let bytes = text.as_os_str().as_bytes();
    let is_served = |name: &str| datasets.iter().any(|above| is_at_or_below(name, above));
    let split = bytes.iter().position(|byte| *byte == b'=').and_then(|at| {
        let name = std::str::from_utf8(&bytes[..at]).ok()?;
        Some((name, PathBuf::from(OsStr::from_bytes(&bytes[at + 1..]))))
    });
    match (split, datasets) {
        (Some((name, folder)), _) if is_served(name) => Ok((name.to_owned(), folder)),
        // A folder's name may contain this character too.
        (_, [dataset]) => Ok((dataset.clone(), text.to_owned())),
        (Some((name, _)), _) => {
            Err(WrongUse::new(format!("--mount {}: '{name}' is none of the datasets", text.display())))
        }
        (None, _) => {
            let text = text.display();
            Err(WrongUse::new(format!("--mount {text}: say which dataset: --mount DATASET={text}")))
        }
    }
}

/// Serves the request until the end: by a signal, or of all pools. `clients` carries out the requests of other processes for pools that are open
/// for writing.
///
/// # Errors
/// The request contradicts itself; a pool cannot be opened; a socket or folder cannot be used; a pool could not be written completely.
pub async fn serve(
    session: &Session,
    request: &ServeRequest,
    going: GoingOptions,
    clients: Arc<dyn Handler>,
) -> Result<()> {
    let wanted = request.wanted()?;
    let options = parse_options(&request.mount_options)?;
    // Before anything is mounted: from now on an interrupt ends the service, not the program.
    let signals = signals::ending()?;
    let going = Going::begin(going, &request.datasets.join("+"))?;
    if !request.is_writable {
        return serve_frozen(session, request, &wanted, &options, &going, signals).await;
    }
    check_writable(&request.mount_options)?;
    let (handle, console) = (session.handle().clone(), session.console().clone());
    request.hooks.iter().try_for_each(Hooks::check)?;
    let mut pools = Pools::new(handle, console, clients, !request.has_listener());
    let begun = begin(session, request, &wanted, &options, going.options(), &mut pools).await;
    let watch = |of: &ServedPool| Some(request.hooks.as_ref()?.watch(report(session), &of.pool));
    let running = pools.all().filter_map(watch).collect::<Result<Vec<_>>>();
    let served = pools.serve(begun, || going.ready(&**session.console()), || going.ends(), signals).await;
    running?.into_iter().for_each(Running::finish);
    served
}

/// Serves pools read-only.
async fn serve_frozen(
    session: &Session,
    request: &ServeRequest,
    wanted: &Wanted,
    options: &MountOptions,
    going: &Going,
    signals: Signals,
) -> Result<()> {
    let (handle, console) = (session.handle(), session.console());
    let (mut views, mut notes) = (BTreeMap::new(), Vec::new());
    for name in &wanted.pools {
        let pool = session.open_pool(name).await?;
        session.say_notes(pool.name(), pool.notes());
        notes.extend(note_reading(session, &pool).await);
        views.insert(name.as_str(), pool);
    }
    let server = if request.has_listener() {
        let of = request.datasets.iter().map(|name| (views[pool_of(name)].clone(), name.clone()));
        let volumes = PoolVolumes::new(of.collect());
        let count = request.some_volumes(volumes.names().await?.len())?;
        Some(volumes_server(session, request, Arc::new(volumes), count)?)
    } else {
        None
    };
    let mut mounts = Vec::new();
    for (dataset, at) in &wanted.mounts {
        let mount = cenote_fuse::mount(handle, &views[pool_of(dataset)], dataset, at, options, report(session)).await?;
        let end = going.options().end("end");
        console.note(&format!("'{dataset}' is mounted at {}; {end}", mount.mountpoint().display()));
        mounts.push(Arc::new(mount));
    }
    going.ready(&**console)?;
    let mut waiting = signals;
    let mut is_over = false;
    if !mounts.is_empty() {
        let ended = ending::wait_for(handle, &**console, &mounts, waiting).await?;
        is_over = ended == EndedBy::Signal || server.is_none();
        if !is_over {
            console.note("unmounted; volumes are still served");
        }
        waiting = signals::ending()?;
    }
    if !is_over {
        handle.spawn_blocking(move || waiting.forever().next()).await?;
    }
    server.into_iter().for_each(Server::shutdown);
    drop(notes);
    Ok(())
}

/// Opens pools for writing, and begins to serve their volumes and mounts.
async fn begin(
    session: &Session,
    request: &ServeRequest,
    wanted: &Wanted,
    options: &MountOptions,
    going: &GoingOptions,
    pools: &mut Pools,
) -> Result<Option<Volumes>> {
    for name in &wanted.pools {
        pools.open(session, name, Recovery::Clear, request.control.as_deref()).await?;
    }
    let served: BTreeMap<_, _> = wanted.pools.iter().map(String::as_str).zip(pools.all()).collect();
    let mut volumes = None;
    if request.has_listener() {
        let of = request.datasets.iter().map(|name| (served[pool_of(name)].volumes.clone(), name.clone()));
        let all = Arc::new(LiveVolumes::new(of));
        let count = all.names().await?.len();
        volumes = Some((all, request.some_volumes(count)?));
    }
    // These mounts end with their pools, even if a later step fails.
    for (dataset, at) in &wanted.mounts {
        let of = served[pool_of(dataset)];
        let at = of.mounts.mount(&of.pool, dataset, at, options).await?;
        let end = going.end("end");
        session.console().note(&format!("'{dataset}' is mounted at {} for writing; {end}", at.display()));
    }
    let Some((volumes, count)) = volumes else { return Ok(None) };
    let server = volumes_server(session, request, volumes.clone(), count)?;
    served.values().for_each(|of| server.add_kstats(of.pool.kstats()));
    Ok(Some(Volumes { volumes, server }))
}

/// A group's number, from a number or from a name in `/etc/group`.
fn group_of(text: &str) -> Result<u32> {
    // To the system, the highest number means "leave it".
    if let Some(number) = text.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(number);
    }
    // name:password:number:members
    let groups = std::fs::read_to_string("/etc/group").context("/etc/group")?;
    let number =
        groups.lines().find_map(|line| line.strip_prefix(text)?.strip_prefix(':')?.split(':').nth(1)?.parse().ok());
    number.ok_or_else(|| refused(format!("there is no group '{text}' in /etc/group; give its number")))
}

/// Starts to serve `count` volumes.
fn volumes_server(
    session: &Session,
    request: &ServeRequest,
    volumes: Arc<dyn Exports>,
    count: usize,
) -> Result<Server> {
    let mut listeners = Vec::new();
    let group = request.socket_group.as_deref().map(group_of).transpose()?;
    for path in &request.unix {
        let listener = Listener::unix_for(path, group);
        listeners.push(listener.with_context(|| format!("cannot listen on {}", path.display()))?);
    }
    for address in &request.tcp {
        listeners.push(Listener::tcp(address.as_str()).with_context(|| format!("cannot listen on {address}"))?);
    }
    let lines: Vec<String> = listeners
        .iter()
        .filter_map(Listener::tcp_address)
        .map(|address| format!("nbd://{address}/"))
        .chain(request.unix.iter().map(|path| format!("nbd+unix:///?socket={}", path.display())))
        .collect();
    let options = ServerOptions { report: report(session), ..ServerOptions::default() };
    let server = Server::start(session.handle().clone(), volumes, listeners, options)?;
    for line in lines {
        let exports = if count == 1 { "export" } else { "exports" };
        session.console().note(&format!("serving {count} {exports} at {line}"));
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

    #[test]
    fn a_pool_without_listener_or_mount_is_refused_by_name() {
        let request = ServeRequest {
            mounts: vec!["tank=/a".into()],
            datasets: vec!["tank/x".into(), "tank".into(), "two".into()],
            ..ServeRequest::default()
        };
        assert!(request.wanted().unwrap_err().to_string().contains("'two'"));
        let request = ServeRequest { unix: vec!["s".into()], ..request };
        assert_eq!(request.wanted().unwrap().pools, ["tank", "two"]);
        let request = ServeRequest { control: Some("c".into()), ..request };
        assert!(request.wanted().unwrap_err().to_string().contains("--control"));
    }
}
