//! Pools that one process has open for writing, and the end of each.
//!
//! # Theory
//!
//! **Need.** One process serves datasets of several pools. Each pool is a world of its own: commands for it come to a socket of its own,
//! it may be exported alone, and while its devices fail the others go on, also to their end.
//!
//! **Life of a pool.** It is opened, and takes commands. Its mounts and volumes come. Then a task of its own waits for its end: that is
//! asked for (`zpool export`, a signal to the process), or its last mount has ended where nothing but mounts is served. The task
//! refuses commands, ends mounts and the requests of clients, and exports the pool. The process ends when all tasks have.
//!
//! **A signal** unmounts the mounts of all pools, the last one first, under the rules of [`crate::ending`]. Then clients of volumes
//! are let go: requests that were read are answered, unless a pool's devices fail. That pool waits for them; the others are exported.
//!
//! **Invariants.** 1. Each pool that was opened is exported, whatever fails. 2. What fails first is what the process ends with;
//! what fails later, or while others go on, is said.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cenote_nbd::Server;
use cenote_taskq::{Class, Either, Event, Join, join_all, race};
use signal_hook::iterator::Signals;

use crate::background::Going;
use crate::context::Context;
use crate::ending;
use crate::live;
use crate::served::{ServedPool, suspended};
use crate::server::Control;
use crate::volumes::LiveVolumes;

/// The pools of this process, in the order in which they were opened.
pub(crate) struct Pools {
    context: Context,
    pools: Vec<One>,
    /// A pool ends with the last of its mounts.
    ends_with_mounts: bool,
}

struct One {
    of: ServedPool,
    control: Option<Control>,
}

/// The volumes that are served beside mounts.
pub(crate) struct Volumes {
    pub(crate) volumes: Arc<LiveVolumes>,
    pub(crate) server: Server,
}

impl Pools {
    /// None yet. Where `ends_with_mounts`, a pool ends with the last of its mounts.
    pub(crate) fn new(context: &Context, ends_with_mounts: bool) -> Self {
        Self { context: context.clone(), pools: Vec::new(), ends_with_mounts }
    }

    /// Opens a pool and takes commands for it, at `control` or at the usual place.
    ///
    /// # Errors
    /// It cannot be opened, another process has it, or nobody can listen at `control`. What was opened is exported by
    /// [`Self::serve`].
    pub(crate) async fn open(&mut self, name: &str, recovery: live::Recovery, control: Option<&Path>) -> Result<()> {
        let of = live::open_pool(&self.context, name, recovery).await?;
        let started = Control::start(&self.context, &of, control, self.ends_with_mounts);
        let (control, failed) = match started {
            Ok(control) => (control, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.pools.push(One { of, control });
        failed
    }

    /// The pools.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ServedPool> {
        self.pools.iter().map(|one| &one.of)
    }

    /// Serves what `begun` says that there is, until the end: by a signal, or of all pools.
    ///
    /// # Errors
    /// The error of `begun`, or a pool could not be written to the end.
    pub(crate) async fn serve(self, begun: Result<Option<Volumes>>, going: &Going, signals: Signals) -> Result<()> {
        let Self { context, pools, ends_with_mounts } = self;
        let served: Vec<ServedPool> = pools.iter().map(|one| one.of.clone()).collect();
        let (volumes, mut result) = match begun {
            Ok(volumes) => (volumes, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let (volumes, server) = volumes.map(|all| (all.volumes, all.server)).unzip();
        result = result.and_then(|()| going.ready(&context));
        let lives: Vec<Join<Result<()>>> = pools
            .into_iter()
            .map(|one| {
                let handle = context.handle().clone();
                let (context, volumes, others) = (context.clone(), volumes.clone(), served.clone());
                let life = async move {
                    let ended = life(&one, ends_with_mounts, volumes.as_deref()).await;
                    if let Err(error) = &ended
                        && others.iter().any(|other| !other.end.is_over())
                    {
                        context.err(format!("pool '{}': {error:#}; other pools are served still", one.of.pool.name()));
                    }
                    ended
                };
                handle.spawn(Class::Issue, Box::pin(life))
            })
            .collect();
        if result.is_ok() {
            result = wait(&context, &served, server.is_some(), signals).await;
        }
        if !served.is_empty() {
            going.ends();
        }
        let answered = Arc::new(Event::new());
        if let Some(server) = server {
            let set = answered.clone();
            drop(context.handle().spawn_blocking(move || {
                server.shutdown();
                set.set();
            }));
        } else {
            answered.set();
        }
        // Requests wait for the engine, and where a pool's devices fail that may be for ever.
        let _ = race(answered.wait(), Box::pin(some_suspended(&served))).await;
        served.iter().for_each(|of| of.end.ask());
        for ended in join_all(lives).await {
            match ended.map_err(anyhow::Error::from).and_then(|ended| ended) {
                Err(error) if result.is_ok() => result = Err(error),
                Err(error) => context.err(format!("{error:#}")),
                Ok(()) => {}
            }
        }
        answered.wait().await;
        result
    }
}

/// Waits until a signal has ended all mounts, or all pools have ended.
async fn wait(context: &Context, pools: &[ServedPool], has_volumes: bool, signals: Signals) -> Result<()> {
    let all_over = async || {
        for of in pools {
            of.end.over().await;
        }
        Ok(())
    };
    let ended = async || {
        let tell = join_all(pools.iter().filter(|_| has_volumes).map(tell_unmounted(context)));
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
    ending::wait(context, signals, ended, mounts).await.map(drop)
}

/// Says each time that a pool's last mount has ended that its volumes are served still.
fn tell_unmounted<'a>(context: &'a Context) -> impl Fn(&'a ServedPool) -> cenote_taskq::BoxFuture<'a, ()> {
    move |of| {
        Box::pin(async move {
            while !of.end.is_asked() {
                of.mounts.some_mounted().await;
                of.mounts.none_mounted().await;
                if !of.end.is_asked() {
                    context.tell("unmounted; volumes are still served");
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
    // While its devices fail a command may say that they are back, and another signal that they are given up.
    of.pool.passed().await;
    if let Some(control) = control {
        control.ends();
    }
    of.mounts.close().await;
    if let Some(volumes) = volumes {
        volumes.leave(&of.volumes);
    }
    of.volumes.close().await;
    let exported = live::export(of.pool.clone()).await;
    of.end.set_over();
    exported
}
