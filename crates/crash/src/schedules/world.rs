//! The pool of a schedule on its disks, and what each of its leaves may lack.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_format::dsl::{ScanFunction, ScanPhys, ScanState};
use cenote_format::ids::{Guid, Txg};
use cenote_sim::Machine;
use cenote_spa::{Clock, FoundPool, ImportOptions, Pool, WriteOptions, open};
use cenote_taskq::{Handle, Instant, Rng, Runtime};
use cenote_vdev::tree::VdevStatus;

use super::ailment::Ailment;
use super::client::{Client, import_options};
use super::done::Done;
use super::kinds::weights;
use super::shape::{Base, FAST, SLOW, Shape, machine};
use super::tops::Kind;
use crate::judge::found;
use crate::life::host;
use crate::stage::words;

/// Within this time of the simulation each verb is answered.
const ANSWER_MAX: Duration = Duration::from_secs(900);

/// The most steps of a schedule.
const STEPS_MAX: u64 = 20;
/// Evacuations and expansions take many txgs.
const SLOW_JOBS: [&str; 2] = ["zfs_remove_max_copy_bytes=131072", "raidz_expand_max_copy_bytes=131072"];
/// Changes of the client before the first step.
const CHANGES_FIRST: u64 = 4;

/// A leaf of the pool.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) guid: Guid,
    /// Its path: a disk's, that of one which was exchanged (`/disk1/old`), or the name of a distributed spare.
    pub(super) name: String,
    pub(super) top: usize,
    pub(super) top_guid: Guid,
    pub(super) kind: Kind,
    /// The child of the top-level vdev that it is, or is below.
    pub(super) slot: usize,
    /// Others are below that child.
    pub(super) has_company: bool,
    /// The pool reads it.
    pub(super) is_used: bool,
    /// The pool reads it, and says that it lacks nothing.
    pub(super) has_all: bool,
    /// The txgs that it lacks, by the pool's word.
    pub(super) lacks: Vec<Range<u64>>,
}

impl Leaf {
    /// The disk that it is on.
    pub(super) fn disk(&self) -> Option<usize> {
        self.name.strip_prefix("/disk")?.parse().ok()
    }

    /// It is the spare space of a draid.
    pub(super) fn is_distributed(&self) -> bool {
        !self.name.starts_with('/')
    }
}

/// The pool, its disks, its client, and what is known of them.
pub(super) struct World {
    pub(super) handle: Handle,
    pub(super) machine: Machine,
    pub(super) shape: &'static Shape,
    pub(super) rng: Rng,
    pub(super) client: Client,
    pub(super) done: Done,
    /// How each disk fails at the moment.
    pub(super) ailments: Vec<Ailment>,
    /// Disks that were harmed, or taken offline, at any time.
    pub(super) harmed: BTreeSet<usize>,
    /// Disks that have begun to work again, and no txg was synced since: the pool may not know yet what they lack.
    pub(super) unsure: BTreeSet<usize>,
    /// Leaves whose contents were damaged in silence, and the txg of a scrub at least that makes up for it.
    rotten: BTreeMap<String, Txg>,
    /// The scan that was seen to have ended last.
    scanned: Option<(ScanFunction, u64)>,
    /// How often each kind of step is drawn.
    pub(super) weights: Vec<u64>,
    /// Bytes may be damaged in silence, so that only scrubs make things good.
    pub(super) may_rot: bool,
    /// All kinds of steps may come.
    is_wide: bool,
    /// A scrub that an expansion has begun is stopped: it would hide what a log forgot.
    pub(super) stops_scrubs: bool,
    /// Something has rotted since the checkpoint, which no scrub reads.
    pub(super) has_rotted: bool,
    /// All requests of disks that hung are answered then.
    pub(super) answered_at: Instant,
    /// The txgs that leaves lacked at the last look, in words; `!` is a leaf that is not used.
    behind: String,
    steps: Vec<String>,
}

impl World {
    pub(super) fn new(runtime: &Runtime, shape: &'static Shape, base: Arc<Base>, mut rng: Rng, is_wide: bool) -> Self {
        let machine = machine(runtime, shape, if rng.chance(1, 3) { SLOW } else { FAST });
        machine.restore(&base.images);
        let (weights, may_rot) = weights(&mut rng, shape, is_wide);
        Self {
            stops_scrubs: is_wide && !may_rot && rng.chance(1, 2),
            is_wide,
            has_rotted: false,
            answered_at: runtime.handle().now(),
            may_rot,
            handle: runtime.handle(),
            shape,
            weights,
            rng,
            client: Client::new(base.objects.clone()),
            done: Done::default(),
            ailments: vec![Ailment::None; machine.disks.len()],
            harmed: BTreeSet::new(),
            unsure: BTreeSet::new(),
            rotten: BTreeMap::new(),
            scanned: None,
            behind: String::new(),
            steps: Vec::new(),
            machine,
        }
    }

    /// The steps so far.
    pub(super) fn steps(&self) -> String {
        self.steps.join("; ")
    }

    pub(super) fn note(&mut self, step: impl Into<String>) {
        self.steps.push(step.into());
    }

    /// Lives the schedule.
    pub(super) async fn live(&mut self, goes_beyond: bool, has_zdb: bool) -> Result<Done, String> {
        let mut pool = self.open().await?;
        let first = pool.txg();
        for _ in 0..CHANGES_FIRST {
            self.client.change(&pool, &mut self.rng).await?;
        }
        self.sync(&pool).await?;
        let steps = STEPS_MAX / 3 + self.rng.below(STEPS_MAX * 2 / 3 + 1);
        for _ in 0..steps {
            self.done.steps += 1;
            pool = self.step(pool).await?;
            self.look(&pool).await?;
        }
        pool = self.heal(pool).await?;
        if goes_beyond {
            pool = self.go_beyond(pool).await?;
        }
        self.done.txgs = pool.txg().0 - first.0;
        self.judge(pool, has_zdb).await?;
        Ok(self.done)
    }

    /// Opens the pool as a server does.
    pub(super) async fn open(&mut self) -> Result<Pool, String> {
        let found = found(&self.handle, &self.machine.paths).await?;
        self.open_found(found, false).await
    }

    /// The same of a pool that was found, or of its checkpoint.
    pub(super) async fn open_found(&mut self, found: FoundPool, is_checkpoint: bool) -> Result<Pool, String> {
        let uberblocks = found.leaves.values().flat_map(|leaf| &leaf.uberblocks);
        let txg = uberblocks.map(|copy| copy.uberblock.txg).max().ok_or("no uberblock")?;
        if !is_checkpoint {
            self.client.went_back(txg)?;
        }
        let mut how = ImportOptions { checkpoint: is_checkpoint, ..import_options() };
        if self.is_wide {
            for slow in SLOW_JOBS {
                how.tunables.set_from(slow).map_err(words)?;
            }
        }
        if !self.may_rot {
            // A scrub after each rebuild would hide what that has left out.
            how.tunables.set_from("zfs_rebuild_scrub_enabled=0").map_err(words)?;
        }
        let options = WriteOptions { clock: Clock::Now, host: host(), check: true };
        let opened = async {
            let pool =
                open(&self.handle, found, &how, options).await.map_err(|error| format!("not opened: {error}"))?;
            let pool = pool.start(TxTunables::default()).await;
            cenote_scan::attend(&pool);
            pool.take_spares();
            Ok::<_, String>(pool)
        };
        self.handle.timeout(ANSWER_MAX, opened).await.ok_or("opening it does not end")?
    }

    /// Waits for something that a client or a person does.
    pub(super) async fn answered<T>(&self, what: &str, work: impl Future<Output = T>) -> Result<T, String> {
        self.handle.timeout(ANSWER_MAX, work).await.ok_or_else(|| format!("{what} is not answered"))
    }

    /// Exports the pool, or has the power go.
    pub(super) async fn close(&mut self, pool: Pool) -> Result<(), String> {
        let exported = self.answered("export", pool.export()).await?;
        exported.map_err(|error| format!("not exported: {error}"))?;
        // Another host has nothing to do with what this one still waits for.
        self.handle.sleep_until(self.answered_at).await;
        self.unsure.clear();
        Ok(())
    }

    /// Has the client's changes on disk. What disks lack that work again is known from then on.
    pub(super) async fn sync(&mut self, pool: &Pool) -> Result<(), String> {
        let handle = self.handle.clone();
        let synced = handle.timeout(ANSWER_MAX, self.client.sync(pool)).await;
        synced.ok_or("sync is not answered")??;
        self.unsure.clear();
        Ok(())
    }

    /// Looks at the pool after a step: it goes on, and slots that are not sound are no more than it can do without.
    pub(super) async fn look(&mut self, pool: &Pool) -> Result<(), String> {
        if let Some(reason) = pool.suspended() {
            return Err(format!("the pool is suspended: {reason}"));
        }
        if let Some(failure) = pool.failure() {
            return Err(format!("the pool has failed: {}", failure.why));
        }
        let scan = self.answered("a look", pool.scan()).await?.map_err(words)?;
        let is_scrub = |scan: &ScanPhys| (scan.function, scan.state) == (ScanFunction::SCRUB, ScanState::SCANNING);
        if self.stops_scrubs && scan.as_ref().is_some_and(is_scrub) {
            self.note("stop scrub");
            let stopped = self.answered("stop", pool.stop_scan()).await?;
            self.count(stopped)?;
        }
        let leaves = leaves(pool)?;
        self.note_leaves(pool.txg(), &leaves);
        self.scrubbed(pool, scan, &leaves);
        let unsound = self.unsound(&leaves, None).into_iter().map(|(unsound, _)| unsound).max().unwrap_or(0);
        self.done.unsound_max = self.done.unsound_max.max(unsound as u64);
        Ok(())
    }

    /// Notes what leaves lack, where that is another thing than before.
    fn note_leaves(&mut self, next: Txg, leaves: &[Leaf]) {
        let behind = leaves.iter().filter(|leaf| !leaf.has_all);
        let texts = behind.map(|leaf| format!("{}{} {:?}", leaf.name, if leaf.is_used { "" } else { "!" }, leaf.lacks));
        let text = texts.collect::<Vec<_>>().join(", ");
        if text != self.behind {
            self.note(format!("[txg {next}: {text}]"));
            self.behind = text;
        }
    }

    /// Takes note of scans that have ended.
    fn scrubbed(&mut self, pool: &Pool, scan: Option<ScanPhys>, leaves: &[Leaf]) {
        let ended = scan.filter(|scan| scan.state == ScanState::FINISHED);
        if let Some(scan) = ended {
            let seen = Some((scan.function, scan.end_time));
            if std::mem::replace(&mut self.scanned, seen) != seen {
                self.done.resilvers += u64::from(scan.function == ScanFunction::RESILVER);
            }
            if scan.function == ScanFunction::SCRUB {
                self.rotten.retain(|_, since| scan.max_txg <= *since);
            }
        }
        let tops: BTreeSet<usize> =
            leaves.iter().filter(|leaf| self.rotten.contains_key(&leaf.name)).map(|leaf| leaf.top).collect();
        let next = pool.txg();
        for leaf in leaves {
            // One that is rebuilt without checksums may have copies of what is rotten; one that is not read is not scrubbed.
            let copies = leaf.is_distributed() && tops.contains(&leaf.top);
            let is_unread = !leaf.is_used || leaf.disk().is_some_and(|disk| self.ailments[disk].harms());
            if copies || is_unread && self.rotten.contains_key(&leaf.name) {
                self.rotten.insert(leaf.name.clone(), next);
            }
        }
        self.rotten.retain(|name, _| leaves.iter().any(|leaf| leaf.name == *name));
    }

    /// A leaf's contents are damaged from now on, until a scrub that begins later has ended.
    pub(super) fn rots(&mut self, pool: &Pool, leaf: &Leaf) {
        self.has_rotted = true;
        self.rotten.insert(leaf.name.clone(), pool.txg());
    }

    /// Whether something of the pool is rotten.
    pub(super) fn has_rotten(&self) -> bool {
        !self.rotten.is_empty()
    }

    /// Whether something of a top-level vdev is rotten.
    pub(super) fn is_rotten(&self, top: usize, leaves: &[Leaf]) -> bool {
        leaves.iter().any(|leaf| leaf.top == top && self.rotten.contains_key(&leaf.name))
    }

    /// Whether a leaf has all that it should, as far as one can know.
    pub(super) fn is_sound(&self, leaf: &Leaf) -> bool {
        let works = leaf.disk().is_none_or(|disk| !self.ailments[disk].harms() && !self.unsure.contains(&disk));
        leaf.has_all && works && !self.rotten.contains_key(&leaf.name)
    }

    /// Of each top-level vdev: its slots without a sound leaf, and those that it can do without; without one leaf.
    fn unsound(&self, leaves: &[Leaf], without: Option<&Leaf>) -> Vec<(usize, usize)> {
        let tops: BTreeMap<usize, Kind> = leaves.iter().map(|leaf| (leaf.top, leaf.kind)).collect();
        let of = |(top, kind): (usize, Kind)| {
            let of_top = || leaves.iter().filter(move |leaf| leaf.top == top);
            let slots: BTreeSet<usize> = of_top().map(|leaf| leaf.slot).collect();
            let is_left = |leaf: &&Leaf| without.is_none_or(|gone| gone.guid != leaf.guid);
            let sound: BTreeSet<usize> =
                of_top().filter(is_left).filter(|leaf| self.is_sound(leaf)).map(|leaf| leaf.slot).collect();
            (slots.len() - sound.len(), kind.redundancy(slots.len()))
        };
        tops.into_iter().map(of).collect()
    }

    /// Whether the pool can do without a leaf, and all that is not sound.
    pub(super) fn holds_without(&self, leaves: &[Leaf], gone: &Leaf) -> bool {
        self.unsound(leaves, Some(gone)).into_iter().all(|(unsound, redundancy)| unsound <= redundancy)
    }

    /// One of some.
    pub(super) fn pick<T>(&mut self, of: Vec<T>) -> Option<T> {
        let count = of.len() as u64;
        if count == 0 { None } else { of.into_iter().nth(self.rng.below(count) as usize) }
    }

    /// Disks that no leaf is on, and that are no spares.
    pub(super) async fn blanks(&self, pool: &Pool, leaves: &[Leaf]) -> Result<Vec<usize>, String> {
        let view = self.answered("a view", pool.view(&ImportOptions::default())).await?.map_err(words)?;
        let spares = view.spares().await.map_err(words)?;
        let is_listed = |disk: &usize| {
            let name = Machine::name(*disk);
            spares.iter().any(|spare| spare.path.as_deref() == Some(name.as_str()))
        };
        let is_blank = |disk: &usize| {
            let is_leaf = leaves.iter().any(|leaf| leaf.disk() == Some(*disk));
            !is_leaf && !is_listed(disk) && !self.ailments[*disk].harms()
        };
        Ok((0..self.ailments.len()).filter(is_blank).collect())
    }
}

/// The leaves of a pool.
pub(super) fn leaves(pool: &Pool) -> Result<Vec<Leaf>, String> {
    Ok(leaves_of(&pool.tree().ok_or("the pool is closed")?.status()))
}

/// The leaves of a pool with this status.
pub(super) fn leaves_of(status: &VdevStatus) -> Vec<Leaf> {
    let mut found = Vec::new();
    for (top, vdev) in status.children.iter().enumerate() {
        let Some(kind) = Kind::of(&vdev.name) else { continue };
        let slots: Vec<&VdevStatus> =
            if vdev.children.is_empty() { vec![vdev] } else { vdev.children.iter().collect() };
        for (slot, child) in slots.into_iter().enumerate() {
            let below = child.leaves();
            let has_company = below.len() > 1;
            found.extend(below.into_iter().map(|leaf| Leaf {
                guid: leaf.guid,
                name: leaf.name.clone(),
                top,
                top_guid: vdev.guid,
                kind,
                slot,
                has_company,
                is_used: leaf.state.is_readable(),
                has_all: leaf.state.is_readable() && leaf.missed.is_empty(),
                lacks: leaf.missed.ranges().to_vec(),
            }));
        }
    }
    found
}

impl Leaf {
    /// Both are below one child of a top-level vdev.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        (self.top, self.slot) == (other.top, other.slot)
    }
}
