//! Expansion of a raidz vdev: its sectors are dealt out anew over one child more.
//!
//! # Theory
//!
//! **Need.** A raidz is full, and there is one disk more. Blocks cannot be written anew, since snapshots have their pointers: so sectors move and pointers stay.
//!
//! **On disk**, as OpenZFS has it, so each of the two goes on with the other's expansion:
//! ```text
//! uberblock  reflow word          how far, and whether the first part is to be read from the scratch area: which way to read the MOS itself
//! vdev       raidz_expanding      while it runs; in configuration and labels
//!            raidz_expand_txgs    one for each that has ended: blocks born from it on are as wide as the vdev was then
//! table      org.openzfs:raidz_expand_{state, start_time, end_time, bytes_copied}                        in the vdev's ZAP
//! feature    raidz_expansion      one for each expansion
//! scratch    of each child, in front of the data: the first sectors, as they lie in the new layout
//! ```
//! **Life.** Each step is a *batch* that is copied and a txg whose uberblock says so; [`cenote_vdev::tree`]'s `reflow` has the places and what I/O does meanwhile.
//! ```text
//! begin     txg B          the child, `raidz_expanding` and the state, in one txg; word (none, 0)
//! batch 1   old ─► scratch   of the first sectors                     word (scratch valid, first)
//! batch 2   scratch ─► new   of the same                              word (reflow, first)
//! batch n   old ─► new       up to the limit of the word on disk       word (reflow, so far)
//! end       txg E          when all has moved: width by birth from E + 3 on, larger size; word 0; a scrub begins, since no checksum was looked at
//! ```
//! **Life of a batch.** *Announce*: what is written to its sectors goes to both places from now on. *Settle*: I/O that has begun before ends. *List*: what is in
//! use by now. *Copy*, beside the syncs. *Claim*: the word of the txg that syncs, when its flush is done and no device has lost anything since the
//! announcement. *Move*, when the uberblock is on disk: sectors are read at the new place. The slice lists and waits; the syncer does what changes how the
//! devices are used (`admin::expansion`).
//!
//! **What waits.** A child that is not there, or lacks something, has the copy wait until it is whole: a batch is of use only if each child has it. So does a reader in
//! another process, which goes by the word that it has read.
//!
//! **Invariants.**
//! 1. A word claims what is stable on all children; a loss in between has the batch done again.
//! 2. What lies in a batch was in use when it was announced, and is listed, or was written after, to both places.
//! 3. Nothing is announced while I/O goes by a word before the last: its places would be overwritten.
//! 4. No block is as wide as the vdev before the expansion has ended.
//!
//! **Crash.** The child and `raidz_expanding` are of one txg: a child more, read by the old geometry (#18920 of OpenZFS), is in no configuration. Between B and E
//! the word says what moved; the batch that was under way is done again. After E the width follows from the birth.
//!
//! **Rejected.** *Copying in the slice*: the txg waits for the disks. *Metaslabs closed while they are copied* and *uberblocks of the same txg*: see `reflow` there.
//! *Going on without a child*: what it lacks could be told from what it has by no dirty time log, since a copied sector has no birth.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_metaslab::AllocError;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{BoxFuture, Class, Instant, Join, boxed};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::error::VdevError;
use cenote_vdev::layout::raidz::{Reflow, ReflowPlace, reflow_limit_bytes, scratch_bytes};
use cenote_vdev::tree::VdevTree;

use super::{Job, Progress, SLICE, Slice};
use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::tunables::ExpansionTunables;

/// Bytes that have been copied: an entry of the vdev's table.
pub(crate) const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";

/// Ranges of a batch at most.
const BATCH_RANGES_MAX: usize = 1 << 14;
/// The time after which a device that has failed is asked again: seldom enough for it not to be given up for one bad sector.
const RETRY: Duration = Duration::from_secs(120);
/// Looks at I/O that is under way, in a slice.
const LOOKS: u32 = 20;

/// Sectors that move together.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) range: Range<u64>,
    from: ReflowPlace,
    to: ReflowPlace,
    /// Where the expansion stands when it has moved.
    pub(crate) after: Reflow,
    /// Losses of devices when it was announced.
    losses: u64,
    /// Bytes of it that were in use.
    pub(crate) in_use_bytes: u64,
}

/// How far the batch is that is under way.
pub(crate) enum Step {
    /// There is none.
    Idle,
    Announced(Batch),
    Copying(Batch, Join<Result<(), VdevError>>),
    Copied(Batch),
    /// The txg that syncs claims it.
    Claimed(Batch),
}

/// An expansion that is under way.
pub(crate) struct Running {
    pub(crate) vdev: VdevId,
    pub(crate) guid: Guid,
    /// Children, the new one included.
    children: usize,
    ashift: u32,
    /// The part of the vdev that can have blocks.
    total_bytes: u64,
    /// As the word on disk says.
    pub(crate) reflow: Reflow,
    pub(crate) step: Step,
    /// Bytes that were in use and have moved.
    pub(crate) copied_bytes: u64,
    /// The reason for which it waits.
    pub(crate) waits_for: Option<String>,
    /// A device has failed: it is not asked again before.
    pub(crate) not_before: Option<Instant>,
}

/// The job, as it is while the pool is open.
#[derive(Default)]
pub(crate) struct Expansion {
    pub(crate) running: Option<Running>,
    pub(crate) tunables: ExpansionTunables,
    progress: Progress,
}

/// The part of a vdev that whole metaslabs cover.
fn total_bytes(top: &VdevConfig) -> u64 {
    top.asize_bytes >> top.metaslab_shift << top.metaslab_shift
}

impl Running {
    /// One that stands where a reflow word says.
    ///
    /// # Errors
    /// No expansion of this vdev stands there, or it is too small for one.
    pub(crate) fn new(vdev: VdevId, top: &VdevConfig, reflow: Reflow, copied_bytes: u64) -> Result<Self, SpaError> {
        let refuse = |what: String| Err(SpaError::unsupported(what));
        let (children, ashift) = (top.children.len(), top.ashift);
        if !matches!(top.kind, VdevKind::Raidz { .. }) || children < 2 {
            return refuse(format!("expanding {}, which is no raidz", top.display_name()));
        }
        let running = Self {
            vdev,
            guid: top.guid,
            children,
            ashift,
            total_bytes: total_bytes(top),
            reflow,
            step: Step::Idle,
            copied_bytes,
            waits_for: None,
            not_before: None,
        };
        let first = scratch_bytes(children, ashift);
        // With so few sectors in the area there would be no next step.
        if first > running.total_bytes || reflow_limit_bytes(first, children, ashift) <= first {
            return refuse(format!("expanding {}, which is too small for its number of devices", top.display_name()));
        }
        let synced = reflow.synced_bytes;
        let is_whole = |unit: u64| synced.is_multiple_of(unit);
        let is_there = match reflow.scratch_valid {
            true => {
                let is_enough = reflow_limit_bytes(synced, children, ashift) > synced;
                is_enough && synced <= first && is_whole((children as u64) << ashift)
            }
            false => {
                synced == 0 || synced == running.total_bytes || reflow_limit_bytes(synced, children, ashift) > synced
            }
        };
        match is_there && synced <= running.total_bytes && is_whole(1 << ashift) {
            true => Ok(running),
            false => refuse(format!("an expansion of {} that stands where none can", top.display_name())),
        }
    }

    /// Everything has moved.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self.step, Step::Idle) && !self.reflow.scratch_valid && self.reflow.synced_bytes >= self.total_bytes
    }

    /// The next batch, and where the expansion stands while it is copied.
    async fn next_batch(&self, rooms: &InTxg<'_>, bytes_max: u64) -> Result<(Batch, Reflow), SpaError> {
        let synced = self.reflow.synced_bytes;
        let first = scratch_bytes(self.children, self.ashift);
        let batch = |range: Range<u64>, from, to, after| Batch {
            range,
            from,
            to,
            after,
            losses: rooms.devices.tree.reflow_losses(),
            in_use_bytes: 0,
        };
        if self.reflow.scratch_valid {
            let during = Reflow { copied_bytes: synced, ..self.reflow };
            return Ok((batch(0..synced, ReflowPlace::Scratch, ReflowPlace::New, Reflow::at(synced, false)), during));
        }
        if synced == 0 {
            if mutant::is(Mutant::ScratchStateForgotten) {
                let during = Reflow { copied_bytes: first, ..self.reflow };
                return Ok((batch(0..first, ReflowPlace::Old, ReflowPlace::New, Reflow::at(first, false)), during));
            }
            let during = Reflow { scratch_bytes: first, ..self.reflow };
            return Ok((batch(0..first, ReflowPlace::Old, ReflowPlace::Scratch, Reflow::at(first, true)), during));
        }
        let limit = reflow_limit_bytes(synced, self.children, self.ashift).min(self.total_bytes);
        let mut end = limit;
        let (mut bytes, mut count, mut at) = (0, 0, synced);
        while let Some(taken) = rooms.next_taken(self.vdev, at).await?.filter(|taken| taken.start < limit) {
            bytes += taken.end - taken.start;
            count += 1;
            at = taken.end;
            if bytes >= bytes_max || count >= BATCH_RANGES_MAX {
                // A long range is cut.
                end = (taken.end - (bytes.saturating_sub(bytes_max) >> self.ashift << self.ashift)).min(limit);
                break;
            }
        }
        assert!(end > synced, "each batch has sectors");
        let during = Reflow { copied_bytes: end, ..self.reflow };
        Ok((batch(synced..end, ReflowPlace::Old, ReflowPlace::New, Reflow::at(end, false)), during))
    }

    /// The next batch, if it can begin now: where the expansion stands while it is copied. It is announced when that was told to the devices.
    pub(crate) async fn announce(
        &mut self,
        rooms: &InTxg<'_>,
        tunables: &ExpansionTunables,
    ) -> Result<Option<Reflow>, SpaError> {
        if is_held(self, tunables) {
            return Ok(None);
        }
        let is_idle = matches!(self.step, Step::Idle) && !self.is_moved();
        if !is_idle || !rooms.devices.tree.is_reflow_settled() {
            return Ok(None);
        }
        if rooms.blocks.space.pins.has_readers_with_own_devices() {
            rooms.handle.sleep(SLICE).await;
            return Ok(None);
        }
        let (batch, during) = self.next_batch(rooms, tunables.raidz_expand_max_copy_bytes).await?;
        self.step = Step::Announced(batch);
        Ok(Some(during))
    }

    /// The part of a batch that is in use.
    async fn listed(&self, rooms: &InTxg<'_>, range: &Range<u64>) -> Result<Vec<Range<u64>>, SpaError> {
        let (mut listed, mut at) = (Vec::new(), range.start);
        while let Some(taken) = rooms.next_taken(self.vdev, at).await?.filter(|taken| taken.start < range.end) {
            at = taken.end.min(range.end);
            listed.push(taken.start..at);
        }
        Ok(listed)
    }

    /// Goes on with a batch that was announced: until it is copied, or the slice is over.
    async fn go_on(&mut self, rooms: &InTxg<'_>) -> Result<(), SpaError> {
        if let Step::Announced(batch) = &self.step {
            for _ in 0..LOOKS {
                if rooms.devices.tree.is_reflow_settled() {
                    break;
                }
                rooms.handle.sleep(SLICE / LOOKS).await;
            }
            if !rooms.devices.tree.is_reflow_settled() {
                return Ok(());
            }
            let mut batch = batch.clone();
            let mut listed = self.listed(rooms, &batch.range).await?;
            // A piece that is copied twice counts once.
            let is_counted = batch.to == ReflowPlace::New;
            batch.in_use_bytes = if is_counted { listed.iter().map(|range| range.end - range.start).sum() } else { 0 };
            if mutant::is(Mutant::ReflowOffsetAhead) {
                listed.truncate(listed.len() / 2);
            }
            let (tree, vdev, from, to) = (Arc::clone(&rooms.devices.tree), self.vdev, batch.from, batch.to);
            let work = copy(tree, vdev, listed, from, to);
            let join = match rooms.devices.tree.left() {
                Some(group) => match group.spawn(Class::Background, work) {
                    Ok(join) => join,
                    // The pool is being closed.
                    Err(_) => return Ok(()),
                },
                None => rooms.handle.spawn(Class::Background, work),
            };
            self.step = Step::Copying(batch, join);
        }
        if let Step::Copying(batch, join) = &mut self.step
            && let Some(copied) = rooms.handle.timeout(SLICE, join).await
        {
            let batch = batch.clone();
            match copied {
                Ok(Ok(())) => self.step = Step::Copied(batch),
                Ok(Err(error)) => {
                    self.step = Step::Idle;
                    self.waits_for =
                        Some(format!("waits, since a device failed ('zpool scrub' may mend that): {error}"));
                    self.not_before = Some(rooms.handle.now() + RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether a batch that was copied is on all devices: none has lost anything.
    pub(crate) fn is_on_devices(&self, tree: &VdevTree, batch: &Batch) -> bool {
        tree.reflow_losses() == batch.losses && tree.reflow_obstacle(self.vdev).is_none()
    }
}

/// Whether a test has it stand still.
fn is_held(running: &Running, tunables: &ExpansionTunables) -> bool {
    let limit = tunables.raidz_expand_max_reflow_bytes;
    let is_at_point = match tunables.raidz_expand_pause_point {
        0 => false,
        1..4 => !running.reflow.scratch_valid && running.reflow.synced_bytes == 0,
        4..6 => running.reflow.scratch_valid,
        _ => !running.reflow.scratch_valid && running.reflow.synced_bytes > 0,
    };
    matches!(running.step, Step::Idle) && (is_at_point || limit > 0 && running.copied_bytes >= limit)
}

/// Copies ranges, one after the other.
async fn copy(
    tree: Arc<VdevTree>,
    vdev: VdevId,
    ranges: Vec<Range<u64>>,
    from: ReflowPlace,
    to: ReflowPlace,
) -> Result<(), VdevError> {
    for range in ranges {
        tree.reflow_range(vdev, range, from, to).await?;
    }
    Ok(())
}

impl InTxg<'_> {
    /// The first range from an offset on that a block may be in which somebody can read. A metaslab whose map cannot be read counts as a whole.
    async fn next_taken(&self, vdev: VdevId, from: u64) -> Result<Option<Range<u64>>, SpaError> {
        let mut is_given_up = false;
        loop {
            match self.blocks.space.with(|allocator| allocator.next_taken(vdev, from, is_given_up)) {
                Err(AllocError::NeedsLoad(id)) => is_given_up = self.blocks.space.load(id, self.txg).await.is_err(),
                found => return Ok(found?),
            }
        }
    }
}

impl Expansion {
    /// As it is when a pool is opened with a vdev that is being expanded.
    pub(crate) fn open(running: Running) -> Self {
        Self { running: Some(running), ..Self::default() }
    }

    /// One begins.
    pub(crate) fn begin(&mut self, running: Running) {
        assert!(self.running.is_none(), "one vdev is expanded at a time");
        self.progress = Progress::default();
        self.running = Some(running);
    }

    /// Tells how far it is, and why it waits.
    pub(crate) fn note(&mut self, allocated_bytes: u64) {
        if let Some(running) = &self.running {
            self.progress.left_bytes = allocated_bytes.saturating_sub(running.copied_bytes);
            self.progress.stalled.clone_from(&running.waits_for);
        }
    }

    /// A batch has moved.
    pub(crate) fn moved(&mut self, batch: &Batch, txg: Txg) {
        let running = self.running.as_mut().expect("a batch is of an expansion that is under way");
        assert!(batch.after.synced_bytes >= running.reflow.synced_bytes, "an expansion goes forward (txg {txg})");
        running.reflow = batch.after;
        running.copied_bytes += batch.in_use_bytes;
        self.progress.done_bytes += batch.in_use_bytes;
    }
}

impl Job for Expansion {
    fn name(&self) -> &'static str {
        "raidz_expand"
    }

    fn has_work(&self) -> bool {
        self.running.is_some()
    }

    fn is_stuck(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.waits_for.is_some() || is_held(running, &self.tunables))
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn cancel<'a>(&'a mut self, _rooms: &'a mut InTxg<'_>) -> BoxFuture<'a, Result<(), SpaError>> {
        Box::pin(async { Err(SpaError::unsupported("an expansion cannot be given up: what moved stays where it is")) })
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, _slice: &mut Slice) -> Result<(), SpaError> {
        match &mut self.running {
            Some(running) => running.go_on(rooms).await,
            None => Ok(()),
        }
    }
}
