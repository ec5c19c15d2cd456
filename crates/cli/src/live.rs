//! Pools and file systems that a server has open for writing.
//!
//! The pool is this process's alone from [`open_pool`] to [`export`], and is written in the background in between. Whoever serves
//! something of it has finished all requests before the end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cenote_dmu::tx::TxTunables;
use cenote_spa::{FailMode, Pool};
use cenote_taskq::{Class, Either, race};

use crate::context::Context;
use crate::livemounts::LiveMounts;
use crate::outcome::usage;
use crate::served::ServedPool;
use crate::signals;
use crate::volumes::OpenVolumes;
use crate::writing::open_with_devices;
use cenote_host::owners;

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
    let report = context.clone();
    let mounts = LiveMounts::new(Arc::new(move |line: &str| report.err(line)));
    Ok(ServedPool { volumes: OpenVolumes::new(pool.clone()), mounts, pool, guid, devices, end: Arc::default() })
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

/// Ends the use of a pool: everything is written, and the pool exported.
pub(crate) async fn export(pool: Pool) -> Result<()> {
    let guid = pool.guid();
    let exported = pool.export().await;
    if exported.is_ok() {
        owners::ended(guid);
    }
    exported.context("the pool could not be written to the end; on disk it is as of the last txg that was")
}

/// The words of `-o` that say something else than `--rw`.
pub(crate) fn check_options(lists: &[String]) -> Result<()> {
    match lists.iter().flat_map(|list| list.split(',')).any(|word| word == "ro") {
        true => Err(usage("mount option 'ro' and --rw exclude each other")),
        false => Ok(()),
    }
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
        let error = check_options(&lists(&["nosuid", "exec,ro"])).unwrap_err().to_string();
        assert!(error.contains("'ro'"), "{error}");
    }
}
