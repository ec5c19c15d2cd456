//! The actor of a family: it draws verbs that the model allows, has them made, and notes what it was told.

use std::time::Duration;

use cenote_format::ids::Txg;
use cenote_spa::Pool;
use cenote_taskq::Rng;

use super::model::{Family, Outcome, Partial, Verb, in_use, of};
use crate::load::Shared;
use crate::model::{Files, Range, State};

/// How long it takes between two verbs at most.
const THINKING_NS_MAX: u64 = 400_000;
/// Snapshots, datasets and bookmarks of a family from which on more go than come.
const SNAPSHOTS_MANY: usize = 8;
const HEADS_MANY: usize = 6;
const BOOKMARKS_MANY: usize = 5;
/// Objects of a dataset of its own.
const OBJECTS_MAX: usize = 5;
/// Bytes of one of them at most, and of one write.
const OBJECT_BYTES_MAX: u64 = 60_000;
const WRITE_BYTES_MAX: u64 = 20_000;
/// Tags of holds.
const TAGS: u64 = 3;

/// A dataset in use, with the logs of those who write it.
pub(crate) struct InUse {
    pub(crate) dataset: &'static str,
    pub(crate) files: Vec<Shared<Files>>,
    pub(crate) ranges: Vec<Shared<Range>>,
}

impl InUse {
    /// The last txg that has a change that was made.
    pub(crate) fn last_txg(&self) -> Txg {
        let files = self.files.iter().map(|log| log.lock().last_txg());
        let ranges = self.ranges.iter().map(|log| log.lock().last_txg());
        files.chain(ranges).max().unwrap_or_default()
    }
}

/// Changes a family.
pub(crate) struct Snapshotter {
    pub(crate) pool: Pool,
    /// The family.
    pub(crate) family: usize,
    pub(crate) log: Shared<Family>,
    pub(crate) in_use: Vec<InUse>,
    /// Devices fail for a while: what is read to be sent may fail too.
    pub(crate) has_outage: bool,
    pub(crate) rng: Rng,
}

impl Snapshotter {
    /// Draws verbs so many times, or until something fails.
    pub(crate) async fn run(mut self, draws: u64) -> Result<(), String> {
        let mut state = self.log.lock().newest();
        for _ in 0..draws {
            let pause = self.rng.below(THINKING_NS_MAX);
            self.pool.handle().sleep(Duration::from_nanos(pause)).await;
            let Some(verb) = self.draw(&state) else { continue };
            let first = Txg(self.pool.txgs().synced_txg().0 + 1);
            {
                let mut log = self.log.lock();
                log.begin(verb.clone());
                // In which one it comes is not known before it is done.
                log.entered(first);
            }
            let made = self.make(&state, verb.clone()).await;
            let mut log = self.log.lock();
            match made.map_err(|error| format!("{verb:?}: {error}"))? {
                Outcome::Made { verb, txg } => {
                    let last = txg.unwrap_or_else(|| self.pool.txgs().synced_txg());
                    log.done_within(txg.unwrap_or(first), last, verb.clone());
                    log.promise_last();
                    state.apply(&verb);
                }
                Outcome::Written { verb, txg } => {
                    log.done_within(txg, txg, verb.clone());
                    state.apply(&verb);
                }
                Outcome::Refused => log.refused(),
            }
        }
        Ok(())
    }

    fn any<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.rng.below(all.len().max(1) as u64) as usize)
    }

    /// Names of some of these, and not of none.
    fn some(&mut self, all: &[String], one_in: u64) -> Vec<String> {
        let some: Vec<String> = all.iter().filter(|_| self.rng.chance(1, one_in)).cloned().collect();
        match some.is_empty() {
            true => self.any(all).cloned().into_iter().collect(),
            false => some,
        }
    }

    fn is_in_use(&self, head: &str) -> bool {
        in_use(self.family).contains(&head)
    }

    fn is_replica(head: &str) -> bool {
        head.rsplit('/').next().is_some_and(|last| last.starts_with('r'))
    }

    fn fresh(&self, state: &Family, letter: char) -> String {
        format!("written/s{}/{letter}{}", self.family, state.next)
    }

    fn draw(&mut self, state: &Family) -> Option<Verb> {
        if !state.partials.is_empty() && self.rng.chance(2, 3) {
            return self.draw_rest(state);
        }
        let snapshots: Vec<String> = state.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
        let heads: Vec<String> = state.heads.keys().cloned().collect();
        if snapshots.len() > SNAPSHOTS_MANY && self.rng.chance(1, 2) {
            return self.draw_destroy_snapshots(state, &snapshots);
        }
        if heads.len() > HEADS_MANY && self.rng.chance(1, 2) {
            return self.draw_destroy(state, &heads);
        }
        match self.rng.below(27) {
            0..=5 => self.draw_write(state, &heads),
            6..=9 => {
                let names = self.some(&heads, 2).into_iter().filter(|head| !Self::is_replica(head));
                let names: Vec<String> = names.map(|head| format!("{head}@s{}", state.next)).collect();
                (!names.is_empty()).then_some(Verb::Take { names, number: state.next, txg: None })
            }
            10 => {
                let snapshot = self.any(&snapshots)?.clone();
                // Clones of encrypted datasets cannot be promoted yet.
                let is_raw = state.snapshot(&snapshot)?.contents.is_raw();
                (!is_raw).then(|| Verb::Clone { snapshot, name: self.fresh(state, 'c') })
            }
            11 | 12 => self.draw_destroy_snapshots(state, &snapshots),
            13 => {
                let snapshot = self.any(&snapshots)?.clone();
                let head = of(&snapshot);
                let may = !self.is_in_use(head)
                    && !state.partials.contains_key(head)
                    && !state.newer(&snapshot).iter().any(|newer| state.is_kept(newer) || state.is_needed(newer));
                may.then_some(Verb::Rollback(snapshot))
            }
            14 => {
                let tag = format!("t{}", self.rng.below(TAGS));
                let is_new =
                    |name: &&String| !state.holds.contains(&((*name).clone(), tag.clone())) && !state.is_needed(name);
                let free: Vec<String> = snapshots.iter().filter(is_new).cloned().collect();
                let names = self.some(&free, 4);
                (!names.is_empty()).then_some(Verb::Hold { tag, names })
            }
            15 => {
                let holds: Vec<_> = state.holds.iter().filter(|(name, _)| !state.is_needed(name)).cloned().collect();
                let (_, tag) = self.any(&holds)?.clone();
                let held: Vec<String> =
                    holds.into_iter().filter(|(_, other)| *other == tag).map(|(name, _)| name).collect();
                Some(Verb::Release { names: self.some(&held, 2), tag })
            }
            16 => self.draw_destroy(state, &heads),
            17 => {
                let clones: Vec<String> = state.origins.keys().cloned().collect();
                let clone = self.any(&clones)?.clone();
                let of_origin = of(state.origins.get(&clone)?).to_owned();
                let is_received = state.partials.contains_key(&clone) || state.partials.contains_key(&of_origin);
                // A replica that is a clone would be received into no more.
                (!is_received && !Self::is_replica(&of_origin)).then_some(Verb::Promote(clone))
            }
            18 => {
                let source = self.any(&snapshots)?.clone();
                let count = 1 + self.rng.below(2);
                let name = |at| format!("{}#b{}x{at}", of(&source), state.next);
                let names = (0..count).map(name).collect();
                (state.bookmarks.len() < BOOKMARKS_MANY).then_some(Verb::Bookmark { names, source })
            }
            19 => {
                let bookmarks: Vec<String> = state.bookmarks.keys().cloned().collect();
                let names = self.some(&bookmarks, 2);
                (!names.is_empty()).then_some(Verb::DestroyBookmarks(names))
            }
            20 if self.rng.chance(1, 2) => {
                let from = self.any(&snapshots)?.clone();
                let to = format!("{}@n{}", of(&from), state.next);
                (!state.is_needed(&from)).then_some(Verb::RenameSnapshot { from, to })
            }
            20 => {
                let from = self.any(&heads)?.clone();
                let may = !self.is_in_use(&from) && !from.ends_with("/a") && !state.partials.contains_key(&from);
                let is_sent = state.partials.values().any(|partial| of(&partial.source) == from);
                let letter = if Self::is_replica(&from) { 'r' } else { 'c' };
                (may && !is_sent).then(|| Verb::Rename { to: self.fresh(state, letter), from })
            }
            _ => self.draw_receive(state, &snapshots),
        }
    }

    fn draw_write(&mut self, state: &Family, heads: &[String]) -> Option<Verb> {
        let own: Vec<String> =
            heads.iter().filter(|head| !self.is_in_use(head) && !Self::is_replica(head)).cloned().collect();
        let head = self.any(&own)?.clone();
        let objects: Vec<u64> = state.heads.get(&head)?.objects.keys().copied().collect();
        if objects.len() > 1 && self.rng.chance(1, 8) {
            return Some(Verb::Free { object: *self.any(&objects)?, head });
        }
        // A new one is given its number when it is made.
        let is_new = objects.is_empty() || objects.len() < OBJECTS_MAX && self.rng.chance(1, 3);
        let object = if is_new { 0 } else { *self.any(&objects)? };
        let offset = self.rng.below(OBJECT_BYTES_MAX) as usize;
        let len = 1 + self.rng.below(WRITE_BYTES_MAX) as usize;
        Some(Verb::Write { head, object, offset, len, seed: self.rng.next_u64() })
    }

    fn draw_destroy_snapshots(&mut self, state: &Family, snapshots: &[String]) -> Option<Verb> {
        let is_deferred = self.rng.chance(1, 3);
        let may = |name: &&String| !state.is_needed(name) && (is_deferred || !state.is_kept(name));
        let may: Vec<String> = snapshots.iter().filter(may).cloned().collect();
        let names = self.some(&may, 3);
        (!names.is_empty()).then_some(Verb::DestroySnapshots { names, is_deferred })
    }

    fn draw_destroy(&mut self, state: &Family, heads: &[String]) -> Option<Verb> {
        let may = |head: &&String| {
            !self.is_in_use(head)
                && !head.ends_with("/a")
                && !state.partials.contains_key(*head)
                && !state.snapshots_of(head).any(|own| state.is_kept(&own.name) || state.is_needed(&own.name))
        };
        let may: Vec<String> = heads.iter().filter(may).cloned().collect();
        self.any(&may).cloned().map(Verb::Destroy)
    }

    /// A snapshot is received as that of a new dataset, or on top of an earlier one.
    fn draw_receive(&mut self, state: &Family, snapshots: &[String]) -> Option<Verb> {
        let source = self.any(snapshots)?.clone();
        let original = &state.snapshot(&source)?.original;
        let replicas: Vec<String> = state.heads.keys().filter(|head| Self::is_replica(head)).cloned().collect();
        let number = state.next;
        let replica = if self.rng.chance(2, 3) { self.any(&replicas).cloned() } else { None };
        let (head, from, base) = match replica {
            None => (self.fresh(state, 'r'), None, None),
            Some(replica) => {
                let known: Vec<_> = state.snapshots_of(&replica).collect();
                let is_there = known.iter().any(|snapshot| snapshot.original == *original);
                let before = state.snapshots_of(of(&source)).take_while(|other| other.name != source);
                let (from, base) = before
                    .filter_map(|from| Some((from, known.iter().find(|base| base.original == from.original)?)))
                    .last()?;
                let is_free =
                    !state.newer(&base.name).iter().any(|newer| state.is_kept(newer) || state.is_needed(newer));
                let may = is_free
                    && !is_there
                    && replica != of(&source)
                    && !state.origins.contains_key(&replica)
                    && !state.partials.contains_key(&replica);
                may.then(|| (replica.clone(), Some(from.name.clone()), Some(base.name.clone())))?
            }
        };
        let snapshot = format!("{head}@s{number}");
        match self.rng.chance(1, 4) {
            true => Some(Verb::ReceivePart { source, from, snapshot }),
            false => Some(Verb::Receive { source, from, snapshot, base, number, is_resumed: false }),
        }
    }

    /// A receive that did not come to its end is gone on with, begun anew, or given up.
    fn draw_rest(&mut self, state: &Family) -> Option<Verb> {
        let partials: Vec<_> = state.partials.iter().collect();
        let (dataset, partial) = *self.any(&partials)?;
        // One that was not noted may have gone when the pool was opened.
        if partial.is_noted && self.rng.chance(1, 8) {
            return Some(Verb::Abort(dataset.clone()));
        }
        let from = partial.from.as_deref().and_then(|from| state.snapshot(from));
        let base = from.and_then(|from| state.snapshots_of(dataset).find(|base| base.original == from.original));
        let base = base.map(|base| base.name.clone());
        let Partial { source, from, snapshot, .. } = partial.clone();
        Some(Verb::Receive { source, from, snapshot, base, number: state.next, is_resumed: false })
    }
}
