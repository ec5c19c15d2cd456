//! Steps of wide schedules: vdevs come, go and get wider, checkpoints are taken and gone back to, spares fail, free space is worked on.

use std::time::Duration;

use cenote_format::ids::{Guid, Txg};
use cenote_sim::{Machine, disk};
use cenote_spa::{
    AddOptions, AttachOptions, ImportOptions, LeafAction, LeafWorkKind, Pool, SpaError, TopKind, TopSpec,
};
use cenote_vdev::config::AllocationClass;

use super::ailment::{self, Ailment};
use super::kinds::Step;
use super::tops::Kind;
use super::world::{Leaf, World, leaves};
use crate::judge::found;
use crate::stage::words;

/// The power goes amid one verb of so many, after so many microseconds at most.
const CUT_IN: u64 = 6;
const CUT_US_MAX: u64 = 30_000;

impl World {
    /// Whether blocks are copied that nobody checks.
    pub(super) fn is_reshaping(&self, pool: &Pool) -> bool {
        pool.jobs().iter().any(|job| matches!(job.name, "remove" | "raidz_expand"))
    }

    /// The txg of the checkpoint, if there is one.
    pub(super) async fn kept(&self, pool: &Pool) -> Result<Option<Txg>, String> {
        let view = self.answered("a view", pool.view(&ImportOptions::default())).await?.map_err(words)?;
        Ok(view.checkpoint().await.map_err(words)?.map(|checkpoint| checkpoint.txg))
    }

    /// A verb that changes the vdevs, or the checkpoint; the power may go amid it.
    pub(super) async fn reshape(&mut self, pool: Pool, step: Step) -> Result<Pool, String> {
        let all = leaves(&pool)?;
        match step {
            Step::Add => {
                let mut blanks = self.blanks(&pool, &all).await?;
                if blanks.len() < 2 || all.iter().any(|leaf| leaf.kind != Kind::Mirror) {
                    return Ok(pool);
                }
                let mut disks = Vec::new();
                for _ in 0..2 {
                    let at = blanks.swap_remove(self.rng.below(blanks.len() as u64) as usize);
                    self.note(format!("add disk {at}"));
                    disks.push(disk(&self.handle, &self.machine.paths[at]).await.map_err(words)?);
                }
                let top = TopSpec { kind: TopKind::Mirror, class: AllocationClass::Normal, disks };
                let options = AddOptions { tops: vec![top], ashift: Some(12), ..AddOptions::default() };
                let asked = pool.clone();
                self.ask("add", pool, async move { asked.add_vdevs(options).await.map(drop) }).await
            }
            Step::Remove => {
                let of = |leaf: &&Leaf| leaf.kind == Kind::Mirror;
                let tops: std::collections::BTreeSet<Guid> = all.iter().filter(of).map(|leaf| leaf.top_guid).collect();
                let Some(top) = self.pick(tops.into_iter().collect()) else { return Ok(pool) };
                if self.has_rotten() {
                    return Ok(pool);
                }
                let at = all.iter().find(|leaf| leaf.top_guid == top).map_or(0, |leaf| leaf.top);
                self.note(format!("remove vdev {at}"));
                let (asked, before) = (pool.clone(), self.done.verbs);
                let pool = self.ask("remove", pool, async move { asked.remove_vdev(top).await.map(drop) }).await?;
                self.done.reshapes[0] += self.done.verbs - before;
                Ok(pool)
            }
            Step::StopRemoval => {
                self.note("stop removal");
                let asked = pool.clone();
                self.ask("stop removal", pool, async move { asked.cancel_removal().await }).await
            }
            Step::Expand => {
                let Some(raidz) = self.pick(all.iter().filter(|leaf| matches!(leaf.kind, Kind::Raidz(_))).collect())
                else {
                    return Ok(pool);
                };
                let Some(at) = self.blanks(&pool, &all).await.map(|blanks| self.pick(blanks))? else {
                    return Ok(pool);
                };
                if self.has_rotten() {
                    return Ok(pool);
                }
                self.note(format!("expand vdev {} by disk {at}", raidz.top));
                let (old, new) = (raidz.top_guid, self.new_disk(at).await?);
                let options =
                    AttachOptions { old, new, is_replacing: false, is_sequential: false, ashift: Some(12), seed: None };
                let (asked, before) = (pool.clone(), self.done.verbs);
                let pool =
                    self.ask("expand", pool, async move { asked.attach_device(options).await.map(drop) }).await?;
                self.done.reshapes[1] += self.done.verbs - before;
                Ok(pool)
            }
            Step::Discard => {
                self.note("discard");
                let asked = pool.clone();
                self.ask("discard", pool, async move { asked.discard_checkpoint().await }).await
            }
            _ => {
                self.note("checkpoint");
                self.has_rotted = self.has_rotten();
                let asked = pool.clone();
                self.ask("checkpoint", pool, async move { asked.take_checkpoint().await.map(drop) }).await
            }
        }
    }

    /// Waits for a verb, or has the power go amid it.
    async fn ask(
        &mut self,
        verb: &str,
        pool: Pool,
        work: impl Future<Output = Result<(), SpaError>>,
    ) -> Result<Pool, String> {
        if self.rng.chance(1, CUT_IN) {
            let after = Duration::from_micros(self.rng.below(CUT_US_MAX));
            self.handle.timeout(after, work).await;
            return self.cut(pool).await;
        }
        let made = self.answered(verb, work).await?;
        self.count(made)?;
        Ok(pool)
    }

    /// The pool goes back to its checkpoint, if all of its leaves are sound, and nothing has rotted since.
    pub(super) async fn rewind(&mut self, pool: Pool) -> Result<Pool, String> {
        if !self.unsure.is_empty() {
            self.sync(&pool).await?;
        }
        self.look(&pool).await?;
        let Some(kept) = self.kept(&pool).await? else { return Ok(pool) };
        if self.has_rotted || !leaves(&pool)?.iter().all(|leaf| self.is_sound(leaf)) {
            return Ok(pool);
        }
        self.note(format!("rewind to {kept}"));
        self.done.reshapes[3] += 1;
        self.close(pool).await?;
        self.client.rewound(kept);
        let found = found(&self.handle, &self.machine.paths).await?;
        let pool = self.open_found(found, true).await?;
        self.sync(&pool).await?;
        self.compare(&pool).await?;
        Ok(pool)
    }

    /// A disk fails that no leaf is on: a spare, or one that may become a leaf later.
    pub(super) async fn spoil(&mut self, pool: &Pool) -> Result<(), String> {
        let all = leaves(pool)?;
        let is_idle = |at: &usize| {
            let is_leaf = all.iter().any(|leaf| leaf.disk() == Some(*at));
            !is_leaf && matches!(self.ailments[*at], Ailment::None)
        };
        let idle = (0..self.ailments.len()).filter(is_idle).collect();
        let Some(at) = self.pick(idle) else { return Ok(()) };
        self.done.failures += 1;
        self.note(format!("{} pulled, which is idle", Machine::name(at)));
        self.ailments[at] = ailment::pull(&self.machine.disks[at]);
        Ok(())
    }

    /// Free space of a leaf is written or trimmed, or that ends.
    pub(super) async fn work(&mut self, pool: &Pool) -> Result<(), String> {
        let Some(leaf) = self.pick(leaves(pool)?) else { return Ok(()) };
        let kind = if self.rng.chance(1, 4) { LeafWorkKind::Initialize } else { LeafWorkKind::Trim };
        let action = match self.rng.below(5) {
            0 => LeafAction::Suspend,
            1 => LeafAction::Cancel,
            _ => LeafAction::Start { rate_bytes: 0 },
        };
        self.note(format!("{kind:?} {} {action:?}", leaf.name));
        let made = self.answered("work on a leaf", pool.change_leaf_work(leaf.guid, kind, action)).await?;
        self.count(made)
    }
}
