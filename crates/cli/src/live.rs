//! Pools and file systems that a server has open for writing.
//!
//! The pool is this process's alone from [`open_pool`] to [`export`], and is written in the background in between. Whoever serves
//! something of it has finished all requests before the end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cenote_dmu::tx::TxTunables;
use cenote_dsl::Dsl;
use cenote_format::enums::ObjsetType;
use cenote_fuse::{LiveServer, MountOptions, Report, mount_live};
use cenote_spa::{FailMode, LiveHead, Pool, SpaError, Syncer};
use cenote_taskq::{Class, Either, race};
use cenote_zpl::{Forbidden, Properties};

use crate::context::Context;
use crate::livemounts::{Listed, wanted};
use crate::outcome::usage;
use crate::owners;
use crate::served::ServedPool;
use crate::signals;
use crate::volumes::OpenVolumes;
use crate::writing::open_with_devices;

/// How often devices that fail are tried where nobody can say that they are back, to begin with.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// At most: each time that the pool goes on and is suspended again at once they are tried half as often.
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// A pool that went on for longer than this, and than it was tried for, is not suspended for the same failure.
const STEADY: Duration = Duration::from_secs(60);

/// How long to wait before devices are tried that fail again: `gone_on` after they were said to be back, where they were.
fn next_interval(last: Duration, gone_on: Option<Duration>) -> Duration {
    match gone_on {
        Some(gone_on) if gone_on < STEADY.max(last) => (last * 2).min(RETRY_INTERVAL_MAX),
        _ => RETRY_INTERVAL,
    }
}

/// Who says that devices which failed are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// A client, with `zpool clear`.
    Clear,
    /// They do: they are tried.
    Retry,
}

/// Opens a pool to be written in the background.
pub(crate) async fn open_pool(context: &Context, name: &str, recovery: Recovery) -> Result<ServedPool> {
    let opening = open_with_devices(context, name);
    let (pool, devices) = unless_interrupted(context, name, opening).await?;
    pool.hold().await?;
    let guid = pool.guid();
    let pool = pool.start(TxTunables::for_memory(context.memory_bytes()).with(&context.tunables())).await;
    watch(context, &pool, recovery);
    watch_hangs(context, &pool);
    watch_space(context, &pool);
    give_up_when_asked_twice(context, &pool);
    // Once this txg is on disk nobody else imports it.
    pool.sync().await?;
    let devices = Arc::new(std::sync::Mutex::new(devices));
    Ok(ServedPool { volumes: OpenVolumes::new(pool.clone()), mounts: Arc::default(), pool, guid, devices })
}

/// Opens a pool, which may have to be watched for long before. The signals that are to end a server end it.
async fn unless_interrupted<T>(context: &Context, name: &str, open: impl Future<Output = Result<T>>) -> Result<T> {
    let mut signals = signals::ending()?;
    let closing = signals.handle();
    let waiting = context.handle().spawn_blocking(move || signals.forever().next());
    match race(Box::pin(open), waiting).await {
        Either::Left(opened) => {
            closing.close();
            opened
        }
        Either::Right(_) => bail!("interrupted while the pool '{name}' was being opened"),
    }
}

/// Says what goes wrong with the pool's space and does not stop it.
fn watch_space(context: &Context, pool: &Pool) {
    let (context, pool) = (context.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        loop {
            let told = pool.troubled().await;
            context.err(format!("pool '{}': {told}", pool.name()));
        }
    });
}

/// Says which devices hang; ends the process at once where `zfs_deadman_failmode` wants that.
fn watch_hangs(context: &Context, pool: &Pool) {
    let (context, pool) = (context.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        loop {
            let hang = pool.hung().await;
            context.err(format!("pool '{}': {}", pool.name(), hang.message));
            if hang.is_fatal {
                context.err("zfs_deadman_failmode is panic");
                std::process::abort();
            }
        }
    });
}

/// Says when the pool's devices fail, and when it goes on; ends the process at once where its property `failmode` wants that.
fn watch(context: &Context, pool: &Pool, recovery: Recovery) {
    let (context, pool) = (context.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        let (mut interval, mut went_on) = (RETRY_INTERVAL, None);
        loop {
            let name = pool.name();
            let (reason, mode) = pool.failed().await;
            let handle = context.handle();
            interval = next_interval(interval, went_on.map(|at| handle.now() - at));
            if mode == FailMode::Panic {
                context.err(format!("pool '{name}' cannot be written, and its property failmode is panic: {reason}"));
                std::process::abort();
            }
            let next = match recovery {
                _ if pool.is_suspended_for_multihost() => {
                    format!("'cenote zpool clear {name}' looks whether another system has it, and goes on if not")
                }
                Recovery::Clear => format!("'cenote zpool clear {name}' once its devices are back"),
                Recovery::Retry => format!("its devices are tried every {} seconds", interval.as_secs()),
            };
            context.err(format!("pool '{name}' is suspended: {reason}; {next}"));
            let goes_on = loop {
                match race(pool.passed(), handle.sleep(interval)).await {
                    Either::Left(goes_on) => break goes_on,
                    // What is wrong still was said.
                    Either::Right(()) if recovery == Recovery::Retry && !pool.is_suspended_for_multihost() => {
                        drop(pool.resume().await);
                    }
                    Either::Right(()) => {}
                }
            };
            if !goes_on {
                return;
            }
            went_on = Some(handle.now());
            context.err(format!("pool '{name}' goes on"));
        }
    });
}

/// Who wants the end while the pool is suspended waits for its devices; who wants it twice loses what is not on disk.
fn give_up_when_asked_twice(context: &Context, pool: &Pool) {
    let (context, pool) = (context.clone(), pool.clone());
    let Ok(mut signals) = signals::ending() else { return };
    let watching = std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut is_second = false;
        for _ in signals.forever() {
            if pool.suspended().is_none() || pool.is_abandoned() {
                continue;
            }
            if std::mem::replace(&mut is_second, true) {
                pool.abandon();
            } else {
                context
                    .err("the pool is suspended: waiting for its devices; interrupt again to lose what is not on disk");
            }
        }
    });
    drop(watching);
}

/// Ends what was served of a pool: everything is written, and the pool exported, also after a failure. Which of both failed first is
/// what is told.
pub(crate) async fn export(pool: Pool, served: Result<()>) -> Result<()> {
    let guid = pool.guid();
    let exported = pool.export().await;
    if exported.is_ok() {
        owners::ended(guid);
    }
    served?;
    exported.context("the pool could not be written to the end; on disk it is as of the last txg that was")
}

/// The words of `-o` that say something else than `--rw`.
pub(crate) fn check_options(lists: &[String]) -> Result<()> {
    for word in lists.iter().flat_map(|list| list.split(',')) {
        match word {
            "ro" => return Err(usage("mount option 'ro' and --rw exclude each other")),
            "layout=alone" => {}
            word if word.starts_with("layout=") => {
                return Err(usage(format!(
                    "mount option '{word}': not supported yet: datasets below one that is mounted with --rw"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Mounts a dataset of a pool to be changed.
pub(crate) async fn mount(
    context: &Context,
    of: &ServedPool,
    dataset: &str,
    at: &Path,
    options: &MountOptions,
    report: Report,
) -> Result<Listed> {
    let (head, properties) = open_dataset(&of.pool, dataset).await?;
    let forbidden = properties.forbidden;
    let server = LiveServer::open(head, options.over(properties), report)
        .await
        .with_context(|| format!("cannot open '{dataset}'"))?;
    let mount = mount_live(context.handle(), server.clone(), dataset, at, &options.without(forbidden)).await?;
    Ok(of.mounts.clone().list(mount, dataset, server, options.clone(), forbidden))
}

/// The uses that a dataset's properties forbid in its mounts; with `is_with_below` also those that any dataset below it forbids.
pub(crate) async fn forbidden(dsl: &Dsl, dataset: &str, is_with_below: bool) -> Result<Forbidden> {
    let dir = dsl.dataset(dataset).await?.dir;
    let dirs = if is_with_below { dsl.tree(dir, false).await? } else { vec![dir] };
    let mut all = Forbidden::default();
    for dir in &dirs {
        all = all.or(Properties::read(dsl, dir).await?.forbidden);
    }
    Ok(all)
}

/// A file system, and how its properties want it served.
async fn open_dataset(pool: &Pool, name: &str) -> Result<(LiveHead, Properties)> {
    let (this, wanted) = (pool.clone(), name.to_owned());
    pool.look(move |writer| Box::pin(async move { opened(&this, writer, &wanted).await })).await
}

/// Where the sync looks at the pool.
async fn opened(pool: &Pool, writer: &mut Syncer, name: &str) -> Result<(LiveHead, Properties)> {
    let view = writer.dsl().clone();
    let dataset = view.dataset(name).await?;
    if dataset.is_snapshot() {
        bail!("cannot mount '{name}' with --rw: a snapshot does not change");
    }
    match view.kind(&dataset).await {
        Ok(ObjsetType::Zvol) => {
            bail!("cannot mount '{name}': it is a volume; 'cenote serve --rw' lets clients write it")
        }
        Ok(ObjsetType::None) => bail!("cannot mount '{name}': it has no contents"),
        // What cannot be read for want of a key is refused below, by name.
        Ok(_) | Err(_) => {}
    }
    let properties = wanted(writer, &view, &dataset.dir).await?;
    if properties.forbidden.write {
        bail!("cannot mount '{name}' with --rw: its property readonly is on ('cenote zfs set readonly=off {name}')");
    }
    // A dataset that cannot be changed yet is refused here.
    let head = writer.open_head(name).await.map_err(|error: SpaError| anyhow::anyhow!(error))?;
    Ok((pool.adopt(writer, name, head).await?, properties))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_fail_again_and_again_are_tried_less_often() {
        let second = Duration::from_secs;
        let mut interval = next_interval(RETRY_INTERVAL, None);
        assert_eq!(interval, RETRY_INTERVAL);
        let mut told = 0;
        let mut passed = Duration::ZERO;
        // A host disk that is full takes a probe, and not what comes after.
        while passed < second(3600) {
            passed += interval;
            told += 1;
            interval = next_interval(interval, Some(second(1)));
        }
        assert!(told <= 12, "{told} pairs of lines in an hour");
        assert_eq!(interval, RETRY_INTERVAL_MAX);
        assert_eq!(next_interval(interval, Some(second(3600))), RETRY_INTERVAL, "another failure");
    }

    #[test]
    fn options_that_contradict_writing_are_refused_by_name() {
        let lists = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        check_options(&lists(&["allow_other,layout=alone", "nosuid"])).unwrap();
        for word in ["ro", "layout=names", "layout=mountpoints"] {
            let error = check_options(&lists(&["nosuid", &format!("exec,{word}")])).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
