//! Self-healing: blocks that a reader found damaged are mended in the background.
//!
//! # Theory
//!
//! **Need.** A reader gets its bytes from the good copy, at once. The bad copy must be written again, soon, without keeping the reader
//! waiting, without drowning clients where a whole disk is bad, and never onto a block that was freed or used again meanwhile
//! ([`cenote_zio::Zio::scrub_block`] has the rule).
//!
//! **Structure.**
//! ```text
//! readers ─► Zio::when_damaged ─► suspects: bounded, each once ─► one task, a few blocks at a time ─► log of what was healed
//!                                            │ full                        │
//!                                            └► left to a scrub            └► pins the last txg, looks the block up in it, mends it
//! ```
//!
//! **Life of a suspect.**
//! 1. A reader of any view of the pool, or of its open state, tells of a pointer, its bookmark, and the leaves that it charged.
//! 2. The task pins the root of the last txg and opens the MOS of it. The bookmark leads to a pointer there: dataset, object, level, block.
//! 3. If that is the suspect, birth, places and checksum, the block is one of the pinned txg, and is mended. If it is not, the suspect was freed
//!    or written anew, and is forgotten. If it was born after the pinned txg, it waits for the next, [`TRIES_MAX`] times at most.
//! 4. A suspect that could not be mended is not taken again soon: who looks a block up reads others, and on a device that fails all of them
//!    would be suspects for ever.
//!
//! So what a reader had in its hands is never trusted: a pointer that waited there for long, one of a block that is not on disk yet, one
//! of a snapshot that was destroyed. A bookmark that leads nowhere costs the repair, which a scrub then does.
//!
//! **Blocks without a bookmark.** Blocks of intent logs are in no tree: those are mended when they are claimed ([`crate::intent_log`]). Gang headers and the pieces of a gang go with their block.
//!
//! **Invariants.**
//! 1. A block is mended only if the pinned txg has it (asserted: the pointers are equal), while the pin is held.
//! 2. Suspects are bounded ([`SUSPECTS_MAX`]), and so are the blocks that are mended at once ([`AT_ONCE`]), as scrub I/O, which gives way.
//! 3. An export waits for a mend, as for any reader of the devices: the pin has devices in use.
//!
//! **Crash.** What was being mended is as it was, or right. Suspects are forgotten; the next reader finds them again.
//!
//! **Rejected.** *Mending in the sync*: it knows what is allocated, and not to whom, without the same look-up; and it would keep clients
//! waiting. *A pin for each read*: a lock that all readers share.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use cenote_dmu::{Dmu, DmuError, GROUPUSED, KeyAccess, Objset, PROJECTUSED, USERUSED};
use cenote_format::blkptr::Blkptr;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::Ordering;
use cenote_taskq::{Class, Notify, boxed, map_concurrent};
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::MendedLeaf;
use cenote_zio::{Bookmark, Damaged, ReadContext, Zio};

use super::Pool;
use super::root::Root;
use super::shared::Shared;
use crate::pins::Pin;

/// Suspects that wait at most; more are left to a scrub.
const SUSPECTS_MAX: usize = 1024;
/// Blocks that are mended at once.
const AT_ONCE: usize = 4;
/// Blocks that are mended as of one pinned txg, so that none is pinned for long.
const AS_OF_ONE_TXG: usize = 64;
/// Txgs that a suspect waits for.
const TRIES_MAX: u32 = 4;
/// Healed blocks that are remembered.
const LOG_MAX: usize = 256;
/// The number of a spill block in bookmarks.
const SPILL: u64 = u64::MAX - 1;

/// A block that was healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealedBlock {
    /// Where it belongs.
    pub bookmark: Bookmark,
    /// The leaves that it was written to again.
    pub leaves: Vec<MendedLeaf>,
}

/// The blocks that were healed, and those that were not, since the pool was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealCounts {
    /// Blocks that were healed.
    pub healed: u64,
    /// Bytes that were written again, on all leaves.
    pub healed_bytes: u64,
    /// Blocks that stay damaged: a device does not take them, or there was no time. A scrub is due.
    pub left: u64,
    /// Blocks that were gone when their turn came.
    pub gone: u64,
}

#[derive(Debug, Default)]
struct State {
    suspects: VecDeque<Suspect>,
    /// Suspects that the task has taken, so that they are not taken for new ones.
    in_work: Vec<Damaged>,
    /// Places of blocks that could not be mended.
    unmendable: VecDeque<Bookmark>,
    is_running: bool,
    counts: HealCounts,
    log: VecDeque<HealedBlock>,
}

#[derive(Clone, Debug)]
struct Suspect {
    damaged: Damaged,
    tries: u32,
    /// It is in no txg up to this.
    after: Txg,
}

/// Self-healing of a pool. See the module comment.
#[derive(Default)]
pub(super) struct Healing {
    state: Mutex<State>,
    /// The task has ended.
    ended: Notify,
    shared: OnceLock<Weak<Shared>>,
}

/// The fate of a suspect.
enum Outcome {
    Healed(HealedBlock),
    /// It is right by now.
    Right,
    /// The txg has another block there, or none.
    Gone,
    /// It is of a later txg.
    Later,
    Left,
}

impl Healing {
    /// Takes a suspect. Whether a task is to be begun for it.
    fn take(&self, damaged: Damaged) -> bool {
        let mut state = self.state.lock();
        let is_it = |known: &Damaged| known.bookmark == damaged.bookmark && known.bp == damaged.bp;
        if state.in_work.iter().any(is_it) || state.suspects.iter().any(|known| is_it(&known.damaged)) {
            return false;
        }
        if state.unmendable.contains(&damaged.bookmark) || state.suspects.len() >= SUSPECTS_MAX {
            state.counts.left += 1;
            return false;
        }
        state.suspects.push_back(Suspect { damaged, tries: 0, after: Txg(0) });
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Notes what became of suspects in a txg.
    fn done(&self, txg: Txg, outcomes: Vec<(Suspect, Outcome)>) {
        let mut state = self.state.lock();
        state.in_work.clear();
        for (mut suspect, outcome) in outcomes {
            match outcome {
                Outcome::Healed(block) => {
                    state.counts.healed += 1;
                    state.counts.healed_bytes += block.leaves.iter().map(|leaf| leaf.bytes).sum::<u64>();
                    if state.log.len() >= LOG_MAX {
                        state.log.pop_front();
                    }
                    state.log.push_back(block);
                }
                Outcome::Right => {}
                Outcome::Gone => state.counts.gone += 1,
                Outcome::Later if suspect.tries < TRIES_MAX => {
                    (suspect.tries, suspect.after) = (suspect.tries + 1, txg);
                    state.suspects.push_back(suspect);
                }
                Outcome::Later | Outcome::Left => {
                    state.counts.left += 1;
                    if state.unmendable.len() >= LOG_MAX {
                        state.unmendable.pop_front();
                    }
                    state.unmendable.push_back(suspect.damaged.bookmark);
                }
            }
        }
    }
}

impl Shared {
    /// Has blocks that readers find damaged be healed.
    pub(super) fn heal_what_is_damaged(self: &Arc<Self>, zio: &Zio) {
        let shared = Arc::downgrade(self);
        let _ = self.healing.shared.set(shared.clone());
        zio.when_damaged(move |damaged| {
            if let Some(shared) = shared.upgrade() {
                shared.suspect(damaged);
            }
        });
    }

    fn suspect(&self, damaged: Damaged) {
        if damaged.bookmark.level != Bookmark::LEVEL_ZIL && self.healing.take(damaged) {
            self.begin_healing();
        }
    }

    /// A txg is on disk, which may have what waits.
    pub(super) fn go_on_healing(&self) {
        let begins = {
            let mut state = self.healing.state.lock();
            !state.suspects.is_empty() && !std::mem::replace(&mut state.is_running, true)
        };
        if begins {
            self.begin_healing();
        }
    }

    fn begin_healing(&self) {
        let shared = self.healing.shared.get().cloned().unwrap_or_default();
        self.handle.detach(Class::Background, async move {
            // In between nobody but the pool's owners keeps it.
            while let Some(shared) = shared.upgrade() {
                if !shared.heal_some().await {
                    shared.healing.ended.all();
                    break;
                }
            }
        });
    }

    /// Heals some of the suspects. False if there is nothing left to do now.
    async fn heal_some(&self) -> bool {
        let Some((root, pin)) = self.pin_last() else {
            // It has no txg yet, or is being closed. By hand the owner writes one.
            if self.is_background.load(Ordering::Acquire)
                && self.txgs.sync().await.is_ok()
                && self.root.lock().is_some()
            {
                return true;
            }
            self.healing.state.lock().is_running = false;
            return false;
        };
        let suspects = {
            let mut state = self.healing.state.lock();
            let is_due = |suspect: &Suspect| suspect.after < pin.txg();
            state.is_running = state.suspects.iter().any(is_due);
            if !state.is_running {
                return false;
            }
            let count = state.suspects.len().min(AS_OF_ONE_TXG);
            let suspects: Vec<Suspect> = state.suspects.drain(..count).collect();
            assert!(state.in_work.is_empty(), "one task heals");
            state.in_work = suspects.iter().map(|suspect| suspect.damaged.clone()).collect();
            suspects
        };
        let zio = root.zio.clone().while_kept(pin.clone());
        let dmu = Dmu::new(self.handle.clone(), zio, root.cache.clone());
        let mos = Objset::open(dmu.clone(), ObjsetId(0), root.uberblock.rootbp, KeyAccess::None).await;
        let outcomes = map_concurrent(AT_ONCE, suspects, |suspect: Suspect| {
            let (mos, root, pin) = (&mos, &root, &pin);
            async move {
                let outcome = match mos {
                    Ok(mos) => heal(mos, root, pin, &suspect.damaged).await,
                    Err(_) => Outcome::Left,
                };
                (suspect, outcome)
            }
        })
        .await;
        dmu.detached().close().await;
        self.healing.done(pin.txg(), outcomes);
        true
    }

    /// The root of the last txg, pinned; none if the pool is being closed.
    fn pin_last(&self) -> Option<(Root, Arc<Pin>)> {
        let root = self.root.lock();
        let root = root.as_ref()?;
        let pin = self.pins.pin(root.uberblock.txg, true)?;
        Some((root.clone(), pin))
    }
}

impl Pool {
    /// The counts of healed blocks since the pool was opened.
    #[must_use]
    pub fn heal_counts(&self) -> HealCounts {
        self.shared.healing.state.lock().counts.clone()
    }

    /// The last blocks that were healed, the oldest first: each is told of once.
    #[must_use]
    pub fn healed_blocks(&self) -> Vec<HealedBlock> {
        self.shared.healing.state.lock().log.drain(..).collect()
    }

    /// Waits until no block that readers found damaged is to be healed as of a txg that is on disk.
    #[boxed]
    pub async fn wait_healed(&self) {
        loop {
            let ended = self.shared.healing.ended.wait();
            if !self.shared.healing.state.lock().is_running {
                return;
            }
            ended.await;
        }
    }

    /// Has a block be healed as one that a reader found damaged; for tests of what readers may come with.
    #[doc(hidden)]
    pub fn suspect(&self, bp: Blkptr, bookmark: Bookmark) {
        self.shared.suspect(Damaged { bp, bookmark, charged: Vec::new() });
    }
}

/// Mends a block, if the pinned txg has it.
#[boxed]
async fn heal(mos: &Objset, root: &Root, pin: &Arc<Pin>, damaged: &Damaged) -> Outcome {
    let Damaged { bp, bookmark, charged } = damaged;
    if bp.physical_birth() > pin.txg() {
        return Outcome::Later;
    }
    let now = match mutant::is(Mutant::HealReused) {
        true => Some(*bp),
        // A block on the way to it cannot be read: a scrub will tell.
        false => pointer(mos, root, bookmark).await.unwrap_or_default(),
    };
    let Some(now) = now.filter(|now| is_same(now, bp)) else { return Outcome::Gone };
    assert!(is_same(&now, bp), "a block is mended that the pinned txg has (invariant 1)");
    let context = ReadContext::new(*bookmark, None).of_class(QueueClass::Scrub);
    match mos.dmu().zio().mend_block(&now, context, Some(charged.clone())).await {
        Ok(scrubbed) if !scrubbed.is_whole() => Outcome::Left,
        Ok(scrubbed) if scrubbed.mended.healed.is_empty() => Outcome::Right,
        Ok(scrubbed) => Outcome::Healed(HealedBlock { bookmark: *bookmark, leaves: scrubbed.mended.healed }),
        Err(_) => Outcome::Left,
    }
}

/// Whether two pointers are of one block: the same bytes, written at the same time to the same places.
fn is_same(one: &Blkptr, other: &Blkptr) -> bool {
    !one.is_hole()
        && !one.is_embedded()
        && one.physical_birth() == other.physical_birth()
        && one.psize_bytes() == other.psize_bytes()
        && one.checksum_words() == other.checksum_words()
        && one.dvas().eq(other.dvas())
}

/// The pointer that a root has at a bookmark.
async fn pointer(mos: &Objset, root: &Root, bookmark: &Bookmark) -> Result<Option<Blkptr>, DmuError> {
    let opened;
    let (objset, top) = if bookmark.objset == ObjsetId(0) {
        (mos, root.uberblock.rootbp)
    } else {
        let dataset = mos.object(ObjectId(bookmark.objset.0)).await?;
        let Ok(phys) = DslDatasetPhys::parse(&dataset.phys().bonus, cenote_dmu::ORDER) else { return Ok(None) };
        if phys.bp.is_hole() {
            return Ok(None);
        }
        opened = Objset::open(mos.dmu().clone(), bookmark.objset, phys.bp, KeyAccess::Without).await?;
        (&opened, phys.bp)
    };
    if bookmark.level == Bookmark::LEVEL_OBJSET {
        return Ok(Some(top));
    }
    let Ok(level) = u8::try_from(bookmark.level) else { return Ok(None) };
    let special = |dnode: &Option<_>, id| dnode.as_ref().map(|phys| objset.special_dnode(id, phys));
    let phys = objset.phys();
    let object = match bookmark.object {
        ObjectId(0) => Some(objset.meta_dnode()),
        USERUSED => special(&phys.userused_dnode, USERUSED),
        GROUPUSED => special(&phys.groupused_dnode, GROUPUSED),
        PROJECTUSED => special(&phys.projectused_dnode, PROJECTUSED),
        id => match objset.object(id).await {
            Err(error) if error.is_absent() => None,
            object => Some(object?),
        },
    };
    let Some(object) = object else { return Ok(None) };
    if level == 0 && bookmark.block.0 == SPILL {
        return Ok(object.phys().spill);
    }
    if object.phys().levels <= level {
        return Ok(None);
    }
    Ok(Some(object.pointer(level, bookmark.block).await?))
}
