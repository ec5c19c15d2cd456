//! The end of a schedule: all disks work again, a person mends the pool, and all must be there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cenote_format::dsl::{ScanFunction, ScanState};
use cenote_scan::{VerifyOptions, verify};
use cenote_sim::{disk, zdb};
use cenote_spa::{NewDevice, Pool, Refusal, ScrubSince, SpaError, import};

use super::client::{POOL, import_options};
use super::tops::Kind;
use super::world::{Leaf, World, leaves, leaves_of};
use crate::judge::found;
use crate::stage::words;

/// A person looks at the pool so many times.
const ROUNDS_MAX: usize = 12;
/// A scan ends within so many looks.
const LOOKS_MAX: usize = 2000;
/// A person asks for another resilver after so many.
const LOOKS_BEFORE_RESILVER: usize = 50;
const LOOK: Duration = Duration::from_millis(500);
/// One pool of so many is scrubbed before the verdict, of those in which nothing has rotted.
const SCRUB_IN: u64 = 6;
/// One pool of so many is read without as many disks as it can do without; each copy of all of them is read anyway.
const WITHOUT_IN: u64 = 3;
/// Work on vdevs, which ends before the verdict.
const JOBS: [&str; 5] = ["remove", "raidz_expand", "checkpoint", "initialize", "trim"];
/// The longest that a schedule waits in its course until nothing is to be resilvered, in looks.
const QUIET_LOOKS_MAX: u64 = 40;

/// Whether an expansion waits for a person, who is to end the use of a spare: both that and the device for which it stands have everything, and nothing
/// else ends it (as in OpenZFS, which expands no raidz with a child that is no leaf).
fn waits_for_detach(pool: &Pool, all: &[Leaf]) -> bool {
    let is_waiting = pool.jobs().iter().any(|job| job.name == "raidz_expand" && job.stalled.is_some());
    let has_all = |leaf: &Leaf| all.iter().filter(|of| of.is_beside(leaf)).all(|of| of.has_all);
    is_waiting && all.iter().any(|leaf| leaf.has_company && has_all(leaf))
}

impl World {
    /// Has all disks work, and mends the pool as a person does whom `zpool status` advises.
    pub(super) async fn heal(&mut self, mut pool: Pool) -> Result<Pool, String> {
        self.note("all disks work");
        (0..self.ailments.len()).for_each(|at| self.mend(at));
        self.handle.sleep_until(self.answered_at).await;
        self.sync(&pool).await?;
        if self.kept(&pool).await?.is_some() {
            // No device can be replaced while there is one.
            self.note("discard");
            let discarded = self.answered("discard", pool.discard_checkpoint()).await?;
            self.count(discarded)?;
        }
        for round in 0..ROUNDS_MAX {
            let resumed = self.answered("clear", pool.resume()).await?;
            resumed.map_err(|error| format!("not cleared: {error}"))?;
            self.answered("reopen", pool.reopen_devices()).await?.map_err(words)?;
            for leaf in leaves(&pool)?.into_iter().filter(|leaf| !leaf.is_used) {
                self.mend_leaf(&pool, &leaf).await?;
            }
            if round > 2 || waits_for_detach(&pool, &leaves(&pool)?) {
                self.part_company(&pool).await?;
            }
            let asked = self.answered("resilver", pool.resilver()).await?;
            asked.map_err(|error| format!("no resilver: {error}"))?;
            self.settle(&pool).await?;
            let is_whole = |leaf: &Leaf| leaf.has_all && !leaf.has_company;
            if !leaves(&pool)?.iter().all(is_whole) {
                continue;
            }
            if !self.has_rotten() && (self.rng.below(SCRUB_IN) > 0 || self.stops_scrubs) {
                // No scrub makes good what a log forgot.
                return Ok(pool);
            }
            self.close(pool).await?;
            self.check().await?;
            pool = self.open().await?;
            // A spare that is taken late has a resilver end the scrub.
            if self.scrub(&pool).await?.is_some() && leaves(&pool)?.iter().all(is_whole) {
                self.compare(&pool).await?;
                return Ok(pool);
            }
        }
        Err(format!("not mended: {:?}", leaves(&pool)?))
    }

    /// A leaf that is not used is taken into use, replaced, or detached.
    async fn mend_leaf(&mut self, pool: &Pool, leaf: &Leaf) -> Result<(), String> {
        let online = self.answered("online", pool.online_device(leaf.guid, Vec::new())).await?;
        self.note(format!("online {}", leaf.name));
        self.count(online.map(drop))?;
        let now = leaves(pool)?.into_iter().find(|now| now.guid == leaf.guid);
        let Some(now) = now.filter(|now| !now.is_used) else { return Ok(()) };
        if let Some(at) = now.disk() {
            let new = NewDevice::Disk(disk(&self.handle, &self.machine.paths[at]).await.map_err(words)?);
            self.attach_to(pool, &now, new, true, false).await?;
        }
        if now.has_company && now.disk().is_some() {
            self.note(format!("detach {}", now.name));
            let detached = self.answered("detach", pool.detach_device(now.guid)).await?;
            self.count(detached.map(drop))?;
        }
        Ok(())
    }

    /// Ends replacements and the use of spares, where all below a slot have everything.
    async fn part_company(&mut self, pool: &Pool) -> Result<(), String> {
        let all = leaves(pool)?;
        let Some(leaf) = all.iter().rfind(|leaf| leaf.has_company) else { return Ok(()) };
        if all.iter().filter(|of| of.is_beside(leaf)).all(|leaf| leaf.has_all) {
            self.note(format!("detach {}", leaf.name));
            let detached = self.answered("detach", pool.detach_device(leaf.guid)).await?;
            self.count(detached.map(drop))?;
        }
        Ok(())
    }

    /// Waits in the course of a schedule until no scan or rebuild is under way, or not that long.
    pub(super) async fn wait_for_quiet(&mut self, pool: &Pool) -> Result<(), String> {
        for _ in 0..1 + self.rng.below(QUIET_LOOKS_MAX) {
            self.handle.sleep(LOOK).await;
            self.look(pool).await?;
            let scan = pool.scan().await.map_err(words)?;
            let is_busy = scan.is_some_and(|scan| scan.state == ScanState::SCANNING);
            if !is_busy && !pool.peek(|syncer| syncer.is_rebuilding()).await.map_err(words)? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until no scan is under way, and none is wanted.
    async fn settle(&mut self, pool: &Pool) -> Result<(), String> {
        for look in 0..LOOKS_MAX {
            self.handle.sleep(LOOK).await;
            self.look(pool).await?;
            if look % LOOKS_BEFORE_RESILVER == LOOKS_BEFORE_RESILVER - 1 {
                // One that met errors leaves what it could not read, and no other begins by itself.
                let asked = self.answered("resilver", pool.resilver()).await?;
                asked.map_err(|error| format!("no resilver: {error}"))?;
            }
            let scan = pool.scan().await.map_err(words)?;
            let is_busy = scan.is_some_and(|scan| scan.state == ScanState::SCANNING);
            let is_rebuilding = pool.peek(|syncer| syncer.is_rebuilding()).await.map_err(words)?;
            let all = leaves(pool)?;
            let is_at_work = pool.jobs().iter().any(|job| JOBS.contains(&job.name)) && !waits_for_detach(pool, &all);
            // A distributed spare lies on all others, and is whole when they are there.
            let is_complete = all.iter().all(|leaf| leaf.is_used);
            let is_behind =
                all.iter().any(|leaf| leaf.is_used && !leaf.has_all && (is_complete || !leaf.is_distributed()));
            if !is_busy && !is_rebuilding && !is_behind && !is_at_work {
                return Ok(());
            }
        }
        Err(format!("jobs do not end: {:?}; {:?}; {:?}", pool.scan().await, leaves(pool)?, pool.jobs()))
    }

    /// Scrubs the whole pool; the number of errors is returned, unless a resilver came in between.
    pub(super) async fn scrub(&mut self, pool: &Pool) -> Result<Option<u64>, String> {
        self.note("scrub");
        match self.answered("scrub", pool.scrub(ScrubSince::Ever)).await? {
            Ok(()) => {}
            Err(SpaError::Refused { why: Refusal::Busy, .. }) => return Ok(None),
            Err(error) => return Err(format!("no scrub: {error}")),
        }
        for _ in 0..LOOKS_MAX {
            self.handle.sleep(LOOK).await;
            self.look(pool).await?;
            let scan = pool.scan().await.map_err(words)?.ok_or("the scrub is gone")?;
            match (scan.function, scan.state) {
                (ScanFunction::SCRUB, ScanState::FINISHED) => return Ok(Some(scan.error_count)),
                (ScanFunction::SCRUB, ScanState::SCANNING) => {}
                _ => return Ok(None),
            }
        }
        Err(format!("the scrub does not end: {:?}", pool.scan().await))
    }

    /// The verdict on a pool that was mended: exported, it is clean, with all its redundancy.
    pub(super) async fn judge(&mut self, mut pool: Pool, has_zdb: bool) -> Result<(), String> {
        self.done.compared += self.answered("a read", self.client.compare(&pool, &[])).await??;
        let mut all = leaves(&pool)?;
        if !all.iter().all(|leaf| leaf.has_all && !leaf.has_company) {
            // A spare was taken late, for errors of before.
            pool = self.heal(pool).await?;
            all = leaves(&pool)?;
        }
        self.close(pool).await?;
        self.judge_without(&all, &[]).await?;
        if self.rng.below(WITHOUT_IN) == 0 {
            let gone = self.dispensable(&all);
            self.judge_without(&all, &gone).await.map_err(|error| format!("without {gone:?}: {error}"))?;
        }
        if has_zdb {
            zdb(POOL, &self.machine.images(), self.machine.size_bytes)
                .map_err(|error| format!("in the end: {error:#}"))?;
        }
        Ok(())
    }

    /// As many disks as the pool can do without.
    fn dispensable(&mut self, all: &[Leaf]) -> Vec<usize> {
        let mut gone = Vec::new();
        let tops: BTreeMap<usize, Kind> = all.iter().map(|leaf| (leaf.top, leaf.kind)).collect();
        for (top, kind) in tops {
            let mut disks: Vec<usize> = all.iter().filter(|leaf| leaf.top == top).filter_map(Leaf::disk).collect();
            for _ in 0..kind.redundancy(disks.len()) {
                gone.push(disks.swap_remove(self.rng.below(disks.len() as u64) as usize));
            }
        }
        gone
    }

    fn paths_without(&self, gone: &[usize]) -> Vec<PathBuf> {
        let paths = self.machine.paths.iter().enumerate();
        paths.filter(|(at, _)| !gone.contains(at)).map(|(_, path)| path.clone()).collect()
    }

    /// Verifies an exported pool and reads what the client wrote. With all disks it is clean, and no leaf lacks anything.
    async fn judge_without(&mut self, all: &[Leaf], gone: &[usize]) -> Result<(), String> {
        let found = found(&self.handle, &self.paths_without(gone)).await?;
        let how = import_options();
        let view = import(&self.handle, found, &how).await.map_err(|error| format!("not imported: {error}"))?;
        let report = verify(&self.handle, &view, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
        let is_well = if gone.is_empty() { report.is_clean() } else { report.error_count == 0 };
        if !is_well {
            return Err(format!("in the end: {report}"));
        }
        if gone.is_empty() {
            view.audit().await.map_err(words)?;
            let status = view.tree().status();
            let behind: Vec<_> = status.leaves().into_iter().filter(|leaf| !leaf.missed.is_empty()).collect();
            if !behind.is_empty() || leaves_of(&status).len() != all.len() {
                return Err(format!("in the end leaves lack something: {behind:?}"));
            }
        }
        self.done.compared += self.client.compare_view(&view, &[]).await?;
        view.close().await;
        Ok(())
    }
}
