//! The steps of a schedule.

use std::time::Duration;

use cenote_sim::disk;
use cenote_spa::{AttachOptions, ImportOptions, NewDevice, Offline, Pool, ScrubSince, SpaError};
use cenote_taskq::sim::disk::{Crash, Image};

use super::ailment::{self, Ailment, Errors};
use super::kinds::{STEPS, Step};
use super::tops::Kind;
use super::world::{Leaf, World, leaves};
use crate::stage::words;

/// The longest that nothing happens, in milliseconds.
const PAUSE_MS_MAX: u64 = 2000;
/// Half of the pauses are this short at most.
const SHORT_MS_MAX: u64 = 60;
/// The power is away for so long.
const DARKNESS: Duration = Duration::from_secs(20);
/// Damage is in the area of data: after the labels and the boot area, and before the labels at the end.
const BEFORE_DATA_BYTES: u64 = 4 << 20;
const AFTER_DATA_BYTES: u64 = 1 << 20;
/// Most of what is in use is in the beginning.
const FULL_BYTES: u64 = 8 << 20;
/// Bytes that are damaged at once.
const ROT_BYTES: u64 = 64 << 10;
/// Places of a disk that are damaged at most.
const ROTS_MAX: u64 = 60;

impl World {
    /// Makes a step. The pool is another one after an export or a power cut.
    pub(super) async fn step(&mut self, pool: Pool) -> Result<Pool, String> {
        let mut at = self.rng.below(self.weights.iter().sum());
        let step = STEPS.iter().zip(&self.weights).find(|(_, weight)| {
            let is_it = at < **weight;
            at = at.saturating_sub(**weight);
            is_it
        });
        let ((step, _), _) = step.ok_or("no step")?;
        match step {
            Step::Export => {
                self.note("export");
                self.close(pool).await?;
                if self.rng.chance(1, 2) {
                    self.check().await?;
                }
                return self.open().await;
            }
            Step::Exchange => return self.exchange(pool).await,
            Step::Cut => return self.cut(pool).await,
            Step::Split => return self.split(pool).await,
            Step::Rewind => return self.rewind(pool).await,
            Step::Add | Step::Remove | Step::StopRemoval | Step::Expand | Step::Checkpoint | Step::Discard => {
                return self.reshape(pool, *step).await;
            }
            Step::Spoil => self.spoil(&pool).await?,
            Step::Work => self.work(&pool).await?,
            Step::Change => self.change(&pool).await?,
            Step::Sync => {
                self.note("sync");
                self.sync(&pool).await?;
            }
            Step::Pause => {
                let max = if self.rng.chance(1, 2) { SHORT_MS_MAX } else { PAUSE_MS_MAX };
                let ms = self.rng.below(max);
                self.note(format!("pause {ms} ms"));
                self.handle.sleep(Duration::from_millis(ms)).await;
            }
            Step::Quiet => {
                self.note("wait");
                self.wait_for_quiet(&pool).await?;
            }
            Step::Compare => self.compare(&pool).await?,
            Step::Pull | Step::Errors | Step::Rot | Step::Hang => self.harm(&pool, *step).await?,
            Step::Slow => {
                let at = self.rng.below(self.ailments.len() as u64) as usize;
                if matches!(self.ailments[at], Ailment::None) {
                    self.note(format!("disk {at} slow"));
                    self.ailments[at] = ailment::slow(&self.machine.disks[at]);
                }
            }
            Step::Mend => self.mend_one().await,
            verb => self.verb(&pool, *verb).await?,
        }
        Ok(pool)
    }

    async fn change(&mut self, pool: &Pool) -> Result<(), String> {
        self.note("change");
        let handle = self.handle.clone();
        let changed = handle.timeout(Duration::from_secs(900), self.client.change(pool, &mut self.rng)).await;
        changed.ok_or("a change is not answered")?
    }

    pub(super) async fn compare(&mut self, pool: &Pool) -> Result<(), String> {
        self.note("compare");
        self.done.compared += self.answered("a read", self.client.compare(pool, &[])).await??;
        Ok(())
    }

    /// Harms a leaf that the pool can do without.
    async fn harm(&mut self, pool: &Pool, step: Step) -> Result<(), String> {
        if !self.unsure.is_empty() {
            self.sync(pool).await?;
        }
        self.look(pool).await?;
        let all = leaves(pool)?;
        let is_well = |leaf: &&Leaf| leaf.disk().is_some_and(|disk| matches!(self.ailments[disk], Ailment::None));
        let may_go = all.iter().filter(is_well).filter(|leaf| self.holds_without(&all, leaf)).cloned().collect();
        let Some(leaf) = self.pick_unharmed(may_go) else { return Ok(()) };
        let Some(at) = leaf.disk() else { return Ok(()) };
        self.harmed.insert(at);
        self.done.failures += 1;
        match step {
            Step::Pull => {
                self.note(format!("disk {at} pulled"));
                self.ailments[at] = ailment::pull(&self.machine.disks[at]);
            }
            Step::Hang => {
                self.ailments[at] = ailment::hang(&self.handle, &self.machine.disks[at], &mut self.rng);
                self.note(format!("disk {at} {:?}", self.ailments[at]));
                if let Ailment::Hang(until) = self.ailments[at] {
                    self.answered_at = self.answered_at.max(until);
                }
            }
            Step::Errors => {
                let errors = Errors::draw(&mut self.rng, self.shape.disk_bytes());
                self.note(format!("disk {at} {errors:?}"));
                self.ailments[at] = errors.begin(&self.machine.disks[at]);
            }
            _ => {
                // A rebuild checks nothing of what it copies.
                if pool.peek(|syncer| syncer.is_rebuilding()).await.map_err(words)? || self.is_reshaping(pool) {
                    return Ok(());
                }
                self.note(format!("disk {at} rots"));
                self.rots(pool, &leaf);
                let mut bytes = vec![0; ROT_BYTES as usize];
                for _ in 0..1 + self.rng.below(ROTS_MAX) {
                    self.rng.fill(&mut bytes);
                    let all = self.shape.disk_bytes() - BEFORE_DATA_BYTES - AFTER_DATA_BYTES;
                    let area = if self.rng.chance(1, 4) { all } else { FULL_BYTES };
                    let offset = BEFORE_DATA_BYTES + self.rng.below((area - ROT_BYTES) / 512) * 512;
                    self.machine.disks[at].poke(offset, &bytes);
                }
            }
        }
        // All is read from what is left.
        if self.rng.chance(1, 3) { self.compare(pool).await } else { Ok(()) }
    }

    /// One of some leaves. Rather one that was well all the time: then the pool relies on those that were made whole.
    fn pick_unharmed(&mut self, of: Vec<Leaf>) -> Option<Leaf> {
        let is_unharmed = |leaf: &&Leaf| leaf.disk().is_some_and(|at| !self.harmed.contains(&at));
        let unharmed: Vec<Leaf> = of.iter().filter(is_unharmed).cloned().collect();
        let is_better = !unharmed.is_empty() && self.rng.chance(2, 3);
        self.pick(if is_better { unharmed } else { of })
    }

    /// A disk works again.
    async fn mend_one(&mut self) {
        let ill = (0..self.ailments.len()).filter(|at| !matches!(self.ailments[*at], Ailment::None)).collect();
        if let Some(at) = self.pick(ill) {
            self.note(format!("disk {at} works"));
            if let Ailment::Hang(until) = self.ailments[at]
                && self.rng.chance(1, 2)
            {
                self.handle.sleep_until(until).await;
            }
            self.mend(at);
        }
    }

    pub(super) fn mend(&mut self, at: usize) {
        let ailment = std::mem::replace(&mut self.ailments[at], Ailment::None);
        ailment::end(&self.machine.disks[at], &ailment);
        if ailment.harms() {
            self.unsure.insert(at);
        }
    }

    /// A disk that was pulled, and that the pool does not use, is exchanged for a blank one at the same path. The pool is closed meanwhile: one
    /// that has a disk open would get nothing but errors from that.
    async fn exchange(&mut self, pool: Pool) -> Result<Pool, String> {
        let all = leaves(&pool)?;
        let is_away = |at: &usize| {
            let uses = all.iter().any(|leaf| leaf.disk() == Some(*at) && leaf.is_used);
            matches!(self.ailments[*at], Ailment::Away(_)) && !uses
        };
        let away = (0..self.ailments.len()).filter(is_away).collect();
        let Some(at) = self.pick(away) else { return Ok(pool) };
        self.note(format!("disk {at} exchanged"));
        self.close(pool).await?;
        self.machine.disks[at].restore(&Image::default());
        self.ailments[at] = Ailment::None;
        self.machine.disks[at].clear_faults();
        self.open().await
    }

    /// The power goes, and comes back.
    pub(super) async fn cut(&mut self, pool: Pool) -> Result<Pool, String> {
        let how = self.crash();
        if self.rng.chance(1, 2) {
            // Amid a txg.
            let running = pool.clone();
            let synced = async move { drop(running.sync().await) };
            let after = Duration::from_micros(self.rng.below(6000));
            self.handle.timeout(after, synced).await;
        }
        self.darkness(pool, how).await;
        let pool = self.open().await?;
        // Nobody goes before all have the txg that is there.
        self.sync(&pool).await?;
        if self.rng.chance(1, 2) {
            self.compare(&pool).await?;
        }
        Ok(pool)
    }

    /// Draws how disks lose their caches.
    pub(super) fn crash(&mut self) -> Crash {
        let how = [Crash::Random, Crash::Torn, Crash::LoseAll, Crash::KeepMore][self.rng.below(4) as usize];
        self.note(format!("power cut ({how:?})"));
        self.done.cuts += 1;
        how
    }

    /// The power is away, and comes back.
    pub(super) async fn darkness(&mut self, pool: Pool, how: Crash) {
        self.machine.disks.iter().for_each(|disk| disk.crash(how));
        self.handle.sleep(DARKNESS).await;
        drop(pool);
        // Tasks that sleep now end with the process.
        self.machine.disks.iter().for_each(|disk| disk.forget_openers());
        self.machine.disks.iter().for_each(|disk| disk.power_on());
        // Unflushed writes that a disk has lost are of no txg that is there.
        for ailment in &mut self.ailments {
            if let Ailment::Away(is_told) = ailment {
                is_told.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        }
        for (ailment, disk) in self.ailments.iter_mut().zip(&self.machine.disks) {
            if matches!(ailment, Ailment::Hang(_)) {
                *ailment = Ailment::None;
                disk.clear_faults();
            }
        }
        self.answered_at = self.handle.now();
    }

    /// A verb of a person.
    async fn verb(&mut self, pool: &Pool, verb: Step) -> Result<(), String> {
        let all = leaves(pool)?;
        let made = match verb {
            Step::Offline => {
                self.look(pool).await?;
                let may_go = all.iter().filter(|leaf| leaf.disk().is_some() && self.holds_without(&all, leaf)).cloned();
                let may_go = may_go.collect();
                let Some(leaf) = self.pick_unharmed(may_go) else { return Ok(()) };
                self.harmed.extend(leaf.disk());
                let how = Offline { is_temporary: self.rng.chance(1, 3), is_fault: self.rng.chance(1, 2) };
                self.note(format!("offline {} {how:?}", leaf.name));
                self.answered("offline", pool.offline_device(leaf.guid, how)).await?.map(drop)
            }
            Step::Online | Step::Clear => {
                let Some(leaf) = self.pick(all.clone()) else { return Ok(()) };
                let is_all = self.rng.chance(1, 3);
                match verb {
                    Step::Online => {
                        self.note(format!("online {}", leaf.name));
                        self.answered("online", pool.online_device(leaf.guid, Vec::new())).await?.map(drop)
                    }
                    _ if is_all => {
                        self.note("clear");
                        self.answered("clear", pool.resume()).await?
                    }
                    _ => {
                        self.note(format!("clear {}", leaf.name));
                        self.answered("clear", pool.clear_device(leaf.guid)).await?
                    }
                }
            }
            Step::Replace => return self.replace(pool, &all).await,
            Step::Attach => return self.attach(pool, &all).await,
            Step::Detach => {
                self.look(pool).await?;
                // A mirror keeps two legs.
                let legs = |top: usize| {
                    let of_top = all.iter().filter(|leaf| leaf.top == top);
                    of_top.map(|leaf| leaf.slot).collect::<std::collections::BTreeSet<_>>().len()
                };
                let is_enough = |leaf: &&Leaf| leaf.has_company || legs(leaf.top) > 2;
                let is_leg = |leaf: &&Leaf| leaf.has_company || leaf.kind == Kind::Mirror;
                let may_go = all.iter().filter(is_leg).filter(is_enough);
                let may_go = may_go.filter(|leaf| self.holds_without(&all, leaf)).cloned().collect();
                let Some(leaf) = self.pick(may_go) else { return Ok(()) };
                self.note(format!("detach {}", leaf.name));
                self.answered("detach", pool.detach_device(leaf.guid)).await?.map(drop)
            }
            Step::Scrub => {
                self.note("scrub");
                self.answered("scrub", pool.scrub(ScrubSince::Ever)).await?
            }
            Step::StopScan => {
                self.note("stop scan");
                self.answered("stop", pool.stop_scan()).await?
            }
            _ => {
                self.note("reopen");
                self.answered("reopen", pool.reopen_devices()).await?.map(drop)
            }
        };
        self.count(made)
    }

    /// A verb that is refused changes nothing; any other error is a fault.
    pub(super) fn count(&mut self, made: Result<(), SpaError>) -> Result<(), String> {
        match made {
            Ok(()) => self.done.verbs += 1,
            Err(SpaError::Refused { what, .. }) => {
                self.done.refused += 1;
                self.note(format!("(refused: {what})"));
            }
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    async fn replace(&mut self, pool: &Pool, all: &[Leaf]) -> Result<(), String> {
        let Some(leaf) = self.pick(all.iter().filter(|leaf| !leaf.has_company).cloned().collect()) else {
            return Ok(());
        };
        let is_sequential =
            !matches!(leaf.kind, Kind::Raidz(_)) && !self.is_rotten(leaf.top, all) && self.rng.chance(1, 3);
        let own = leaf.disk().filter(|at| !leaf.is_used && !self.ailments[*at].harms());
        let spare = self.free_spare(pool).await?;
        let new = match (own, spare) {
            (Some(at), _) if self.rng.chance(1, 2) => self.new_disk(at).await?,
            (_, Some(spare)) if self.rng.chance(1, 2) => NewDevice::Spare(spare),
            _ => match self.blanks(pool, all).await.map(|blanks| self.pick(blanks))? {
                Some(at) => self.new_disk(at).await?,
                None => return Ok(()),
            },
        };
        self.attach_to(pool, &leaf, new, true, is_sequential).await
    }

    async fn attach(&mut self, pool: &Pool, all: &[Leaf]) -> Result<(), String> {
        let is_leg = |leaf: &&Leaf| !leaf.has_company && leaf.kind == Kind::Mirror;
        let Some(leaf) = self.pick(all.iter().filter(is_leg).cloned().collect()) else { return Ok(()) };
        let Some(at) = self.blanks(pool, all).await.map(|blanks| self.pick(blanks))? else { return Ok(()) };
        let is_sequential = !self.is_rotten(leaf.top, all) && self.rng.chance(1, 3);
        let new = self.new_disk(at).await?;
        self.attach_to(pool, &leaf, new, false, is_sequential).await
    }

    pub(super) async fn new_disk(&self, at: usize) -> Result<NewDevice, String> {
        Ok(NewDevice::Disk(disk(&self.handle, &self.machine.paths[at]).await.map_err(words)?))
    }

    async fn free_spare(&mut self, pool: &Pool) -> Result<Option<cenote_format::ids::Guid>, String> {
        let view = self.answered("a view", pool.view(&ImportOptions::default())).await?.map_err(words)?;
        let spares = view.spares().await.map_err(words)?;
        Ok(self.pick(spares.into_iter().map(|spare| spare.guid).collect()))
    }

    pub(super) async fn attach_to(
        &mut self,
        pool: &Pool,
        leaf: &Leaf,
        new: NewDevice,
        is_replacing: bool,
        is_sequential: bool,
    ) -> Result<(), String> {
        let what = match &new {
            NewDevice::Disk(spec) => spec.path.clone(),
            NewDevice::Spare(guid) => format!("spare {guid}"),
        };
        let verb = if is_replacing { "replace" } else { "attach" };
        self.note(format!("{verb} {} {what}{}", leaf.name, if is_sequential { " -s" } else { "" }));
        let options = AttachOptions { old: leaf.guid, new, is_replacing, is_sequential, ashift: Some(12), seed: None };
        let made = self.answered(verb, pool.attach_device(options)).await?;
        self.count(made.map(drop))
    }
}
