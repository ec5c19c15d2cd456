//! Monitoring pools that a server has open for writing: events are reported, and failed devices are retried.
//!
//! The pool belongs to this process alone from [`serve`] to [`export`], and is written in the background in between. All requests of its servers
//! have finished before the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_host::owners;
use cenote_spa::tunables::{MountTunables, SpareTunables};
use cenote_spa::{FailMode, Pool};
use cenote_taskq::{Class, Either, race};

use crate::autoreplace;
use crate::error::{Context as _, Result};
use crate::returned::Lookout;
use crate::{Console, LiveMounts, OpenVolumes, ServedPool, signals};

/// The first interval between retries of failed devices, if no one can report that they are back.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The longest interval: it doubles each time the pool resumes and is at once suspended again.
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// If a pool ran for longer than this and than the last interval, its next suspension counts as another failure.
const STEADY: Duration = Duration::from_secs(60);

/// The interval before failed devices are retried. `gone_on`: the time for which the pool ran after the last resume, if any.
fn next_interval(last: Duration, gone_on: Option<Duration>) -> Duration {
    match gone_on {
        Some(gone_on) if gone_on < STEADY.max(last) => (last * 2).min(RETRY_INTERVAL_MAX),
        _ => RETRY_INTERVAL,
    }
}

/// Tunables that apply while a pool is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeTunables {
    /// For txgs.
    pub(crate) tx: TxTunables,
    /// For mounts.
    pub(crate) mounts: MountTunables,
    /// For hot spares.
    pub(crate) spares: SpareTunables,
}

/// The source of the information that failed devices are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// A client, with `zpool clear`.
    Clear,
    /// The devices themselves: they are retried.
    Retry,
}

/// Begins to write a pool in the background, and reports its events.
pub(crate) async fn serve(
    console: &Arc<dyn Console>,
    pool: Pool,
    devices: Vec<PathBuf>,
    tunables: ServeTunables,
    recovery: Recovery,
) -> Result<ServedPool> {
    pool.hold().await?;
    let pool = pool.start(tunables.tx).await;
    cenote_scan::attend(&pool);
    if tunables.spares.cenote_use_spares {
        pool.take_spares();
    }
    let devices = Arc::new(std::sync::Mutex::new(devices));
    watch_devices(console, &pool, devices.clone(), Duration::from_millis(tunables.mounts.cenote_device_look_ms));
    watch(console, &pool, recovery);
    watch_hangs(console, &pool);
    watch_space(console, &pool);
    give_up_when_asked_twice(console, &pool);
    // Once this txg is on disk no other process imports it.
    pool.sync().await?;
    if let Err(error) = pool.note_auxiliary_paths().await {
        console
            .warn(&format!("pool '{}': the paths of its spares and cache devices are not noted: {error}", pool.name()));
    }
    let report = console.clone();
    let mounts = LiveMounts::new(Arc::new(move |line: &str| report.warn(line)), tunables.mounts);
    Ok(ServedPool { volumes: OpenVolumes::new(pool.clone()), mounts, pool, devices, end: Arc::default() })
}

/// Takes devices back that were gone, and obeys the properties `autoexpand` and `autoreplace`.
fn watch_devices(
    console: &Arc<dyn Console>,
    pool: &Pool,
    devices: Arc<std::sync::Mutex<Vec<PathBuf>>>,
    interval: Duration,
) {
    let mut lookout = Lookout::default();
    let (console, weak, handle) = (console.clone(), pool.downgrade(), pool.handle().clone());
    handle.clone().detach(Class::Background, async move {
        loop {
            handle.sleep(interval).await;
            let Some(pool) = weak.upgrade().filter(|pool| !pool.is_closing()) else { return };
            if pool.suspended().is_some() {
                continue;
            }
            // A pool that is closed meanwhile lacks nothing.
            let warn = |text: String| {
                if !pool.is_closing() {
                    console.warn(&text)
                }
            };
            // A device that fails is told of elsewhere.
            if let Ok(true) = pool.expand_if_wanted().await {
                console.note(&format!("pool '{}' has the room that its devices have got", pool.name()));
            }
            let own = devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            match lookout.take_back(&pool, &own).await {
                Ok(back) => back.iter().for_each(|path| {
                    console.note(&format!("pool '{}': the device at {} is back", pool.name(), path.display()));
                }),
                Err(error) => warn(format!("pool '{}': {}", pool.name(), error.chain())),
            }
            // Another pool may have given back a spare that they share.
            if let Err(error) = pool.use_spares().await {
                warn(format!("pool '{}': hot spares are not used: {error}", pool.name()));
            }
            match autoreplace::replace_absent(&pool).await {
                Ok(replaced) => replaced.iter().for_each(|path| {
                    console.note(&format!(
                        "pool '{}': a new device at {path} replaces the one that was there",
                        pool.name()
                    ));
                }),
                Err(error) => warn(format!("pool '{}': {}", pool.name(), error.chain())),
            }
        }
    });
}

/// Reports problems with the pool's space that do not stop it.
fn watch_space(console: &Arc<dyn Console>, pool: &Pool) {
    let (console, pool) = (console.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        loop {
            let told = pool.troubled().await;
            console.warn(&format!("pool '{}': {told}", pool.name()));
        }
    });
}

/// Reports devices that hang; ends the process at once if `zfs_deadman_failmode` says so.
fn watch_hangs(console: &Arc<dyn Console>, pool: &Pool) {
    let (console, pool) = (console.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        loop {
            let hang = pool.hung().await;
            console.warn(&format!("pool '{}': {}", pool.name(), hang.message));
            if hang.is_fatal {
                console.warn("zfs_deadman_failmode is panic");
                std::process::abort();
            }
        }
    });
}

/// Reports when the pool's devices fail and when it resumes; ends the process at once if its property `failmode` says so.
fn watch(console: &Arc<dyn Console>, pool: &Pool, recovery: Recovery) {
    let (console, pool) = (console.clone(), pool.clone());
    pool.handle().clone().detach(Class::Issue, async move {
        let (mut interval, mut went_on) = (RETRY_INTERVAL, None);
        loop {
            let name = pool.name();
            let (reason, mode) = pool.failed().await;
            let handle = pool.handle();
            interval = next_interval(interval, went_on.map(|at| handle.now() - at));
            if mode == FailMode::Panic {
                console.warn(&format!("pool '{name}' cannot be written, and its property failmode is panic: {reason}"));
                std::process::abort();
            }
            let next = match recovery {
                _ if pool.is_suspended_for_multihost() => {
                    format!("'cenote zpool clear {name}' looks whether another system has it, and goes on if not")
                }
                Recovery::Clear => format!("'cenote zpool clear {name}' once its devices are back"),
                Recovery::Retry => format!("its devices are tried every {} seconds", interval.as_secs()),
            };
            console.warn(&format!("pool '{name}' is suspended: {reason}; {next}"));
            let goes_on = loop {
                match race(pool.passed(), handle.sleep(interval)).await {
                    Either::Left(goes_on) => break goes_on,
                    // The remaining fault was reported.
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
            console.warn(&format!("pool '{name}' goes on"));
        }
    });
}

/// A first request to end waits for the devices of a suspended pool; a second one gives up the changes that are not on disk.
fn give_up_when_asked_twice(console: &Arc<dyn Console>, pool: &Pool) {
    let (console, pool) = (console.clone(), pool.clone());
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
                console.warn(
                    "the pool is suspended: waiting for its devices; interrupt again to lose what is not on disk",
                );
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
        // A full host disk accepts a probe, but not the writes after it.
        while passed < second(3600) {
            passed += interval;
            told += 1;
            interval = next_interval(interval, Some(second(1)));
        }
        assert!(told <= 12, "{told} pairs of lines in an hour");
        assert_eq!(interval, RETRY_INTERVAL_MAX);
        assert_eq!(next_interval(interval, Some(second(3600))), RETRY_INTERVAL, "another failure");
    }
}
