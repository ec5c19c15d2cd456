//! Pools that one process has open for writing, and the end of each.
//!
//! # Theory
//!
//! **Need.** One process serves datasets of several pools. Each pool is independent: it has its own socket for commands, it may be exported
//! alone, and while its devices fail the others continue, and may end.
//!
//! **Life of a pool.** It is opened, and takes commands. It gets mounts and volumes. A task of its own waits for its end: a request
//! (`zpool export`, a signal to the process), or, if only mounts are served, the end of its last mount. The task then refuses commands, ends
//! mounts and the requests of clients, and exports the pool. The process ends when all tasks have.
//!
//! **A signal** unmounts the mounts of all pools, the last one first, by the rules of [`crate::ending`]. Then clients of volumes are
//! disconnected: requests already read are answered, unless a pool's devices fail. That pool waits for them; the others are exported.
//!
//! **Invariants.** 1. Each pool that was opened is exported, even after failures. 2. The process ends with the first failure; later ones, and
//! those while other pools continue, are reported.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_dmu::tx::TxTunables;
use cenote_nbd::Server;
use cenote_spa::Pool;
use cenote_spa::tunables::{MountTunables, SpareTunables};
use cenote_taskq::{Class, Either, Event, Handle, Join, join_all, race};
use signal_hook::iterator::Signals;

use crate::error::{Result, ServerError, refused};
use crate::listener::{Control, Handler};
use crate::served::{ServedPool, suspended};
use crate::watch::{self, Recovery, ServeTunables};
use crate::writing::open_with_devices;
use crate::{Console, LiveVolumes, Session, ending, signals};

/// The pools of this process, in the order in which they were opened.
pub struct Pools {
    handle: Handle,
    console: Arc<dyn Console>,
    handler: Arc<dyn Handler>,
    pools: Vec<One>,
    /// Each pool ends with the last of its mounts.
    ends_with_mounts: bool,
}

struct One {
    of: ServedPool,
    control: Option<Control>,
}

/// The volumes that are served in addition to mounts.
pub struct Volumes {
    /// The volumes.
    pub volumes: Arc<LiveVolumes>,
    /// Their server.
    pub server: Server,
}

impl Pools {
    /// Without pools yet. `console` gets messages; `handler` carries out the requests of clients. If `ends_with_mounts`, a pool ends with the
    /// last of its mounts.
    pub fn new(handle: Handle, console: Arc<dyn Console>, handler: Arc<dyn Handler>, ends_with_mounts: bool) -> Self {
        Self { handle, console, handler, pools: Vec::new(), ends_with_mounts }
    }

    /// Adds a pool that this process has opened for writing, from `devices`, and takes commands for it, at `control` or at the usual place.
    ///
    /// # Errors
    /// Its labels cannot be written, or it cannot listen at `control`. [`Self::serve`] exports the pools that were added.
    pub(crate) async fn add(
        &mut self,
        pool: Pool,
        devices: Vec<PathBuf>,
        tunables: ServeTunables,
        recovery: Recovery,
        control: Option<&Path>,
    ) -> Result<()> {
        let of = watch::serve(&self.console, pool, devices, tunables, recovery).await?;
        let started = Control::start(&*self.console, &self.handler, &of, control, self.ends_with_mounts);
        let (control, failed) = match started {
            Ok(control) => (control, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.pools.push(One { of, control });
        failed
    }

    /// Opens a pool for writing in the background, and takes commands for it, at `control` or at the usual place. Signals that end a server also
    /// end the opening, which may have to watch the pool for a long time.
    ///
    /// # Errors
    /// It cannot be opened, another process has it, or it cannot listen at `control`.
    pub(crate) async fn open(
        &mut self,
        session: &Session,
        name: &str,
        recovery: Recovery,
        control: Option<&Path>,
    ) -> Result<()> {
        let mut signals = signals::ending()?;
        let closing = signals.handle();
        let waiting = session.handle().spawn_blocking(move || signals.forever().next());
        let (pool, devices) = match race(Box::pin(open_with_devices(session, name)), waiting).await {
            Either::Left(opened) => {
                closing.close();
                opened?
            }
            Either::Right(_) => return Err(refused(format!("interrupted while the pool '{name}' was being opened"))),
        };
        let given = session.tunables();
        let tunables = ServeTunables {
            tx: TxTunables::for_memory(session.memory_bytes()).with(given),
            mounts: MountTunables::default().with(given),
            spares: SpareTunables::default().with(given),
        };
        self.add(pool, devices, tunables, recovery, control).await
    }

    /// The pools.
    pub fn all(&self) -> impl Iterator<Item = &ServedPool> {
        self.pools.iter().map(|one| &one.of)
    }

    /// Serves the pools, and the volumes that `begun` names, until the end: by a signal, or of all pools. `ready` is called when everything is
    /// served, `ends` when the end begins.
    ///
    /// # Errors
    /// The error of `begun` or `ready`, or a pool could not be written completely.
    pub async fn serve<E: Display + From<ServerError>>(
        self,
        begun: Result<Option<Volumes>, E>,
        ready: impl FnOnce() -> Result<(), E>,
        ends: impl FnOnce(),
        signals: Signals,
    ) -> Result<(), E> {
        let Self { handle, console, handler: _, pools, ends_with_mounts } = self;
        let served: Vec<ServedPool> = pools.iter().map(|one| one.of.clone()).collect();
        let (volumes, mut result) = match begun {
            Ok(volumes) => (volumes, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let (volumes, server) = volumes.map(|all| (all.volumes, all.server)).unzip();
        result = result.and_then(|()| ready());
        let lives: Vec<Join<Result<()>>> = pools
            .into_iter()
            .map(|one| {
                let (console, volumes, others) = (console.clone(), volumes.clone(), served.clone());
                let life = async move {
                    let ended = life(&one, ends_with_mounts, volumes.as_deref()).await;
                    if let Err(error) = &ended
                        && others.iter().any(|other| !other.end.is_over())
                    {
                        let (pool, why) = (one.of.pool.name(), error.chain());
                        console.warn(&format!("pool '{pool}': {why}; other pools are served still"));
                    }
                    ended
                };
                handle.spawn(Class::Issue, Box::pin(life))
            })
            .collect();
        if result.is_ok() {
            result = wait(&handle, &*console, &served, server.is_some(), signals).await.map_err(E::from);
        }
        if !served.is_empty() {
            ends();
        }
        let answered = Arc::new(Event::new());
        if let Some(server) = server {
            let set = answered.clone();
            drop(handle.spawn_blocking(move || {
                server.shutdown();
                set.set();
            }));
        } else {
            answered.set();
        }
        // Requests wait for the engine, and if a pool's devices fail that may be for ever.
        let _ = race(answered.wait(), Box::pin(some_suspended(&served))).await;
        served.iter().for_each(|of| of.end.ask());
        for ended in join_all(lives).await {
            match ended.map_err(ServerError::from).and_then(|ended| ended) {
                Err(error) if result.is_ok() => result = Err(error.into()),
                Err(error) => console.warn(&error.chain()),
                Ok(()) => {}
            }
        }
        answered.wait().await;
        result
    }
}

/// Waits until a signal has ended all mounts, or all pools have ended.
async fn wait(
    handle: &Handle,
    console: &dyn Console,
    pools: &[ServedPool],
    has_volumes: bool,
    signals: Signals,
) -> Result<()> {
    let all_over = async || {
        for of in pools {
            of.end.over().await;
        }
        Ok(())
    };
    let ended = async || {
        let tell = join_all(pools.iter().filter(|_| has_volumes).map(tell_unmounted(console)));
        match race(Box::pin(all_over()), Box::pin(tell)).await {
            Either::Left(over) => over,
            Either::Right(_) => all_over().await,
        }
    };
    let mounts = || {
        let mut mounts: Vec<_> = pools.iter().flat_map(|of| of.mounts.all()).collect();
        mounts.sort_by_key(|mount| mount.id);
        mounts.into_iter().map(|mount| mount.mount).collect()
    };
    ending::wait(handle, console, signals, ended, mounts).await.map(drop)
}

/// Each time a pool's last mount has ended, reports that its volumes are still served.
fn tell_unmounted<'a>(console: &'a dyn Console) -> impl Fn(&'a ServedPool) -> cenote_taskq::BoxFuture<'a, ()> {
    move |of| {
        Box::pin(async move {
            while !of.end.is_asked() {
                of.mounts.some_mounted().await;
                of.mounts.none_mounted().await;
                if !of.end.is_asked() {
                    console.note("unmounted; volumes are still served");
                }
            }
        })
    }
}

/// Resolves when the devices of a pool fail.
async fn some_suspended(pools: &[ServedPool]) {
    let mut any = cenote_taskq::Unordered::new();
    pools.iter().filter(|of| !of.end.is_over()).for_each(|of| any.push(Box::pin(suspended(&of.pool))));
    drop(any.next().await);
}

/// Waits for the end of a pool's service, and ends it.
async fn life(one: &One, ends_with_mounts: bool, volumes: Option<&LiveVolumes>) -> Result<()> {
    let One { of, control } = one;
    let asked = of.end.asked();
    if ends_with_mounts {
        let _ = race(Box::pin(of.mounts.last_ended()), asked).await;
    } else {
        asked.await;
    }
    of.end.ask();
    // While its devices fail, a command may report them back, and a second signal may give up its changes.
    of.pool.passed().await;
    if let Some(control) = control {
        control.ends();
    }
    of.mounts.close().await;
    if let Some(volumes) = volumes {
        volumes.leave(&of.volumes);
    }
    of.volumes.close().await;
    let exported = watch::export(of.pool.clone()).await;
    of.end.set_over();
    if let Some(control) = control {
        control.answered().await;
    }
    exported
}
