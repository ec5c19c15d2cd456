//! Multihost: a pool has one writer, also where several hosts can reach its devices.
//!
//! # Theory
//!
//! **Need.** Two hosts that write one pool destroy it, and nothing in the format stops the second: `-f` overrides what labels say.
//! OpenZFS's answer is the property `multihost` (MMP in its source): the host that has the pool writes an uberblock about once a second
//! as a sign of life, and an importer watches for these writes, `-f` or not. Cenote writes and checks them in the same way, so each
//! refuses a pool that the other has.
//!
//! **On disk.** Three words of each uberblock ([`cenote_format::uberblock::Mmp`]): the delay (0: nobody shows signs of life; else
//! nanoseconds between successful multihost writes, a decaying average), the interval, after how many intervals without a
//! successful write the host stops by itself, and a sequence. A multihost write is the newest uberblock with the present time and
//! the next sequence, in the ring's last slot of one label of one device ([`cenote_vdev::ring`]). The newest uberblock by txg, time
//! and sequence is the pool's; its tree is the same.
//!
//! **Life of a protected pool** (`crate::sync::multihost` is the writing side).
//! 1. *Import for writing.* If the newest uberblock's delay is not 0, all labels are read again and again for a time
//!    ([`watch_time`]) that is lengthened by up to a quarter at random. If the newest uberblock changes, the pool is active
//!    elsewhere and refused. Not watched are pools that this host exported itself, destroyed ones, and those whose last owner is
//!    known to be dead (`crate::owner`).
//! 2. *Claim.* Devices are opened for writing, and the newest uberblock must still be the same. Then several times over it is written
//!    to every device with a random sequence, and an interval later it must be the newest: of two importers that watched at the same
//!    time the one that claimed first finds the other's.
//! 3. *In use.* Every interval each device gets a multihost write. With `multihost=on`, a host whose writes have not succeeded for
//!    the number of intervals that its uberblocks state suspends the pool: from then on others may have it.
//! 4. *Export.* With `multihost=on` the last uberblock still has a delay, as OpenZFS writes it; else the delay is 0.
//!
//! **Pools that are held.** Block devices are opened exclusively, which the kernel module respects. It opens image files without a
//! lock, and loop devices over them as well, so a pool that `serve` or `mount` has in use ([`crate::Syncer::hold`]) is
//! protected with multihost writes whether `multihost` is on or not. The module skips the check in these cases (function
//! `spa_activity_check_required` of 2.1 to 2.4.4), and this is why each does not apply:
//! * *The delay is 0.* It is not.
//! * *The label's host id is the system's* (up to 2.4.0 in any state, since then in an exported one). Labels of a pool in use
//!   therefore have [`crate::holder_id`], never the host's own id. It is not 0 either, which would equal that of a host without one.
//! * *The state is not active.* It is; the first txg, before anybody is told that the pool is served, says so.
//! * *The same uberblock was seen by an earlier `tryimport`* (up to 2.4.0). Multihost writes change it every second.
//!
//! So `zpool import -f` watches, sees the uberblock change and answers that the pool is imported on `cenote@host`. The uberblocks have a
//! fail-interval count of 0 (importers then wait for 20 intervals and more), because a pool without `multihost` must not be suspended
//! when its device is slow. Instead, a holder whose multihost writes were late is suspended at its next write of
//! any block, until it has looked at the labels: it goes on by itself, or stays suspended if another host's uberblock is there. So a
//! process that was stopped in the middle of a sync writes no block over the next owner's. Only a write that the kernel had already been
//! given can still land.
//!
//! A host without a host id refuses pools with a delay when they are active, so after a crash there, the module imports a pool that
//! Cenote had held only after `zgenhostid`; Cenote opens it without.
//!
//! **Reading** does no harm, so a pool that is opened read-only is watched for two intervals only, to tell a person that its contents
//! change meanwhile. A mistake costs a read that fails.
//!
//! **Invariants.**
//! 1. Nothing is written to a pool whose newest uberblock has a delay before it was watched for the time that the uberblock asks for,
//!    or its owner is known to be dead.
//! 2. A multihost write never goes to a slot that a txg's uberblock may use, and has no tree of its own.
//! 3. With `multihost=on` no txg is committed later than the stated time after the last successful multihost write.
//! 4. With `multihost=on` a suspension for multihost ends only after the labels were watched as at an import.
//! 5. No block is given to a device later than the stated time after the last successful multihost write, unless the labels were looked
//!    at since.
//!
//! 6. No client is told that something is durable later than that time either, unless the labels were looked at since: devices that answer
//!    again answer for what another host's pool may not have. It is asked when a block of an intent log is stable
//!    ([`Suspension::may_acknowledge`](cenote_vdev::tree::Suspension::may_acknowledge)) and when a txg is committed, the last one too; all
//!    acknowledgements follow from these.
//!
//! **Crash.** The newest uberblock keeps its delay, so the next import watches: 20 s with OpenZFS's defaults. A record that the
//! owner is dead spares that on the same host.
//!
//! **Rejected.** *`multihost=on` while the pool is held*: it would stay on after a crash, and needs a host id. *A fail count while it is
//! held*: it shortens the wait after a crash, and would suspend pools whose owners never asked for multihost. *Watching the whole
//! time when only reading*: each command of a recovery would take half a minute.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::nvlist::NvList;
use cenote_format::uberblock::{Mmp, Uberblock};
use cenote_taskq::{Handle, Rng, join_all};
use cenote_vdev::commit::LeafCommit;
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::{LabelReport, probe};
use cenote_vdev::ring::write_multihost;

use crate::config::PoolState;
use crate::owner::host_of;
use crate::{FoundPool, ImportOptions, SpaError};

/// How much longer than a live host would need the labels are watched, in percent (`MMP_IMPORT_SAFETY_FACTOR`).
const SAFETY_PERCENT: u64 = 200;
/// How often a claim is made (`MMP_IMPORT_VERIFY_ITERS`).
const CLAIMS: u32 = 10;
/// How often labels are read while they are watched.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The least time to watch for.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// The most: what an uberblock says is not trusted to be sensible.
const WATCH_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The most for a pool that is only read.
const GLANCE_MAX: Duration = Duration::from_secs(10);
cenote_kstat::tunables! {
    /// The tunables of multihost.
    #[derive(Copy)]
    pub struct Tunables {
        /// Time between two multihost writes to each device of a pool that is protected against a second import.
        zfs_multihost_interval: u64 = 1000, "ms", Number(100, 3_600_000), AtOpen;
        /// A pool with multihost=on is suspended after this many intervals without a multihost write that succeeded; 1 is taken for
        /// 2, and 0 is never.
        zfs_multihost_fail_intervals: u16 = 10, "intervals", Number(0, 65_535), AtOpen;
        /// A pool is watched for this many intervals before it is opened for writing, where its uberblock does not say after how many
        /// its last host would have stopped.
        zfs_multihost_import_intervals: u32 = 20, "intervals", Number(1, 65_535), AtOpen;
    }
}

/// The tunables' values, in the units that they are used in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Between two multihost writes to a device.
    pub(crate) interval: Duration,
    /// After how many intervals without a write that succeeded the pool is suspended; 0: never.
    pub(crate) fail_intervals: u16,
    /// For how many intervals a pool is watched whose uberblock does not say.
    pub(crate) import_intervals: u32,
}

impl Settings {
    /// With the values that were given.
    pub(crate) fn of(given: &cenote_kstat::Settings) -> Self {
        let tunables = Tunables::default().with(given);
        let fail_intervals = tunables.zfs_multihost_fail_intervals;
        Self {
            interval: Duration::from_millis(tunables.zfs_multihost_interval),
            // A pool with one device gets one write an interval, so any delay at all would suspend it.
            fail_intervals: if fail_intervals == 1 { 2 } else { fail_intervals },
            import_intervals: tunables.zfs_multihost_import_intervals,
        }
    }

    /// The interval in milliseconds, as uberblocks have it: 24 bits.
    pub(crate) fn interval_ms(&self) -> u32 {
        self.interval.as_millis().min((1 << 24) - 1) as u32
    }
}

/// How long a pool with this uberblock is watched before it may be written: as long as the host that wrote it may take until it
/// shows a sign of life or stops by itself, twice over; or, where the uberblock does not say, for a number of intervals.
pub(crate) fn watch_time(mmp: &Mmp, settings: &Settings) -> Duration {
    let least = settings.interval.saturating_mul(settings.import_intervals).max(WATCH_MIN);
    let delay = Duration::from_nanos(mmp.delay_ns);
    let time = match (mmp.interval_ms(), mmp.fail_intervals()) {
        (Some(interval_ms), Some(fail)) if fail > 0 => {
            let millis = u64::from(interval_ms) * u64::from(fail) * SAFETY_PERCENT / 100;
            Duration::from_millis(millis)
        }
        // The host never stops by itself.
        (Some(interval_ms), _) => {
            let interval = Duration::from_millis(u64::from(interval_ms));
            interval.saturating_add(delay).saturating_mul(settings.import_intervals).max(least)
        }
        // OpenZFS 0.7 did not write its interval.
        (None, _) => settings.interval.saturating_add(delay).saturating_mul(settings.import_intervals).max(least),
    };
    time.clamp(WATCH_MIN, WATCH_MAX)
}

/// How long a pool is watched that is only read.
fn glance_time(mmp: &Mmp, settings: &Settings) -> Duration {
    let interval = mmp.interval_ms().map_or(settings.interval, |ms| Duration::from_millis(u64::from(ms)));
    let time = interval.saturating_add(Duration::from_nanos(mmp.delay_ns)).saturating_mul(2);
    time.clamp(WATCH_MIN, GLANCE_MAX)
}

/// The purpose that a pool is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be read.
    Read,
    /// To be written.
    Write,
    /// To be written, after it was opened for that before and watched.
    Watched,
}

/// A pool that is about to be opened, and its newest uberblock.
pub(crate) struct Candidate<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) found: &'a FoundPool,
    pub(crate) name: &'a str,
    pub(crate) newest: &'a Uberblock,
    pub(crate) options: &'a ImportOptions,
}

impl Candidate<'_> {
    /// The uberblock's multihost fields, if the pool has to be watched.
    pub(crate) fn required(&self, purpose: Purpose) -> Option<Mmp> {
        let mmp = self.newest.mmp.filter(|mmp| mmp.delay_ns > 0)?;
        if self.options.skip_activity_check || self.found.is_left(self.options) || purpose == Purpose::Watched {
            return None;
        }
        let host_id = host_of(self.label()).1;
        let is_required = match self.found.state() {
            PoolState::Destroyed => false,
            PoolState::Exported => purpose == Purpose::Write && (host_id == 0 || host_id != self.options.host_id),
            _ => true,
        };
        is_required.then_some(mmp)
    }

    /// Watches the pool, if that has to be.
    ///
    /// # Errors
    /// It is active elsewhere ([`SpaError::Active`]).
    pub(crate) async fn watch(&self, purpose: Purpose) -> Result<(), SpaError> {
        let Some(mmp) = self.required(purpose) else { return Ok(()) };
        let settings = Settings::of(&self.options.tunables);
        let time = match purpose {
            Purpose::Read => glance_time(&mmp, &settings),
            Purpose::Write | Purpose::Watched => {
                let time = watch_time(&mmp, &settings);
                // Two hosts that begin at the same moment do not end at the same moment.
                time + time.mul_f64(Rng::new(self.handle.random_u64()).below(250) as f64 / 1000.0)
            }
        };
        if purpose == Purpose::Write
            && let Some(notice) = &self.options.notice
        {
            notice.tell(&format!(
                "pool '{}' may be active on {}: watching its devices for {} s",
                self.name,
                host_of(self.label()).0,
                time.as_secs().max(1)
            ));
        }
        let disks: Vec<Disk> = self.found.leaves.values().map(|leaf| leaf.disk.clone()).collect();
        let changed = watch_disks(self.handle, &disks, self.newest, time, purpose == Purpose::Write).await;
        changed.map_or(Ok(()), |report| Err(self.active(report.best_config())))
    }

    /// The pool's newest label.
    fn label(&self) -> Option<&Arc<NvList>> {
        self.found.newest().map(|leaf| &leaf.config)
    }

    /// The error of a pool that another host has, which wrote this label.
    fn active(&self, label: Option<&Arc<NvList>>) -> SpaError {
        let (hostname, hostid) = host_of(label);
        SpaError::Active { pool: self.name.to_owned(), hostname, hostid, is_forced: self.options.force }
    }

    /// Checks that the newest uberblock is still this one.
    ///
    /// # Errors
    /// Another host has written ([`SpaError::Active`]).
    pub(crate) fn unchanged(&self, before: &Uberblock) -> Result<(), SpaError> {
        if self.newest == before {
            return Ok(());
        }
        Err(self.active(self.label()))
    }

    /// Claims a pool that was watched: see the module's comment.
    ///
    /// # Errors
    /// Another host does as well ([`SpaError::Active`]), or a device does not take the claim.
    pub(crate) async fn claim(&self, leaves: &[LeafCommit], mmp: &Mmp) -> Result<(), SpaError> {
        let settings = Settings::of(&self.options.tunables);
        let interval_ms = mmp.interval_ms().unwrap_or(settings.interval_ms());
        let interval = Duration::from_millis(u64::from(interval_ms)).min(GLANCE_MAX);
        let before = mmp.sequence().filter(|sequence| *sequence < u16::MAX).unwrap_or(0);
        let mut rng = Rng::new(self.handle.random_u64());
        let disks: Vec<Disk> = leaves.iter().map(|leaf| leaf.disk.clone()).collect();
        let mut result = Ok(());
        for _ in 0..CLAIMS {
            let sequence = before + 1 + rng.below(u64::from(u16::MAX - before)) as u16;
            let mmp = Mmp::new(mmp.delay_ns, Some(interval_ms), Some(sequence), mmp.fail_intervals());
            let claim = Uberblock { mmp: Some(mmp), ..*self.newest };
            result = self.write_claim(leaves, &claim).await;
            if result.is_err() {
                break;
            }
            self.handle.sleep(interval).await;
            if let Some(report) = foreign(&reports(&disks).await, &claim, true) {
                result = Err(self.active(report.best_config()));
                break;
            }
        }
        // So that an import which is given up, here or elsewhere, leaves room for the sequences of the next.
        let restored = self.write_claim(leaves, self.newest).await;
        result.and(restored)
    }

    /// Every device that will be written takes the claim: of a mirror whose halves two hosts see, neither can do without.
    async fn write_claim(&self, leaves: &[LeafCommit], claim: &Uberblock) -> Result<(), SpaError> {
        let writes = leaves.iter().map(|leaf| async move {
            write_multihost(&leaf.disk, leaf.ashift, 0, claim).await?;
            leaf.disk.flush().await
        });
        let written = join_all(writes).await.into_iter().zip(leaves);
        let failed = written.filter_map(|(written, leaf)| Some((leaf, written.err()?))).next();
        match failed {
            None => Ok(()),
            Some((leaf, error)) => Err(SpaError::devices(format!(
                "the multihost claim could not be written to {}: {error}",
                leaf.disk.path()
            ))),
        }
    }
}

/// Reads all labels.
pub(crate) async fn reports(disks: &[Disk]) -> Vec<LabelReport> {
    join_all(disks.iter().map(probe)).await
}

/// The newest uberblock in these labels, and where it stands.
pub(crate) fn newest_of(reports: &[LabelReport]) -> Option<(&LabelReport, Uberblock)> {
    let newest = reports.iter().filter_map(|report| Some((report, report.best_uberblock()?.uberblock)));
    newest.max_by(|a, b| a.1.cmp_age(&b.1))
}

/// Where the newest uberblock is newer than `ours`; or, if `must_stand`, is not of the same txg, time and sequence.
fn foreign<'a>(reports: &'a [LabelReport], ours: &Uberblock, must_stand: bool) -> Option<&'a LabelReport> {
    let (report, newest) = newest_of(reports)?;
    let order = newest.cmp_age(ours);
    (order.is_gt() || (must_stand && order.is_ne())).then_some(report)
}

/// Watches disks for a time. The labels in which something else than `newest` has become the newest uberblock, if any.
pub(crate) async fn watch_disks(
    handle: &Handle,
    disks: &[Disk],
    newest: &Uberblock,
    time: Duration,
    must_stand: bool,
) -> Option<LabelReport> {
    let end = handle.now() + time;
    let step = LOOK_INTERVAL.min(time / 4);
    assert!(!step.is_zero(), "disks are watched for longer than a moment");
    loop {
        let rest = end.since(handle.now());
        if rest.is_zero() {
            return None;
        }
        handle.sleep(step.min(rest)).await;
        let reports = reports(disks).await;
        if let Some(report) = foreign(&reports, newest, must_stand) {
            return Some(report.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings =
        Settings { interval: Duration::from_millis(1000), fail_intervals: 10, import_intervals: 20 };

    #[test]
    fn the_time_to_watch_is_openzfs_s() {
        let time = |mmp| watch_time(&mmp, &SETTINGS).as_millis();
        // The last host would have stopped after 10 intervals: twice that.
        assert_eq!(time(Mmp::new(1, Some(1000), Some(0), Some(10))), 20_000);
        assert_eq!(time(Mmp::new(1, Some(100), Some(0), Some(10))), 2_000);
        // It never stops.
        assert_eq!(time(Mmp::new(1_000_000_000, Some(1000), Some(0), Some(0))), 40_000);
        assert_eq!(time(Mmp::new(10_000_000_000, Some(1000), Some(0), Some(0))), 220_000);
        // OpenZFS 0.7, with 100 devices.
        assert_eq!(time(Mmp::new(10_000_000, None, None, None)), 20_200);
        assert_eq!(time(Mmp::new(1, Some(100), Some(0), Some(2))), 1_000, "never less than a second");
        assert_eq!(time(Mmp::new(u64::MAX, Some(0xff_ffff), Some(0), Some(0))), WATCH_MAX.as_millis());
    }
}
