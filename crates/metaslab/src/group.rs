//! A metaslab group: the metaslabs of a vdev that serve one class, best first, and the active ones of each allocator.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::{Bound, Range};
use std::sync::Arc;

use cenote_format::ids::{Txg, VdevId};
use thiserror::Error;

use crate::check::CheckError;
use crate::kept::Kept;
use crate::metaslab::Activation;
use crate::{Metaslab, MetaslabId, SizeRange, SpaceError, Tunables, VdevMaps, Weight};

/// A place on a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Where, in the vdev's allocatable space.
    pub offset_bytes: u64,
    /// How much, parity and padding included.
    pub asize_bytes: u64,
}

impl Extent {
    /// The range of the vdev.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.asize_bytes
    }
}

/// Why there is no space.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocError {
    /// A metaslab has to be loaded first; then ask again. Nothing was taken.
    #[error("vdev {} metaslab {} is not loaded", .0.vdev, .0.index)]
    NeedsLoad(MetaslabId),
    /// Nothing fits. A smaller request may: no larger than the longest free run that is known.
    #[error("no space for a block: the longest free run known has {largest_bytes} bytes")]
    NoSpace {
        /// The longest free run of the class's loaded metaslabs, as allocated bytes: what parts of a gang block can have.
        largest_bytes: u64,
    },
    /// The class has no vdev.
    #[error("no vdev serves this class")]
    NoVdev,
    /// Only with `metaslab_force_ganging`: the block is to be stored as a gang, whatever space there is. Blocks that are asked for
    /// several at a time are to be asked for one by one first.
    #[error("the block is to be stored as a gang")]
    ForcedGang,
    /// A defect was found.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The `ExtentCheck` disagrees.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// From physical to allocated size, of a block that is born in a txg: with parity and padding, as the vdev lays such blocks out.
pub type SizeRule = Arc<dyn Fn(u64, Txg) -> u64 + Send + Sync>;

/// The parameters of a top-level vdev that the allocator needs.
#[derive(Clone)]
pub struct VdevSetup {
    /// Its number, class, sizes.
    pub maps: VdevMaps,
    /// Whether outer tracks are faster.
    pub rotational: bool,
    /// Its disks less parity: how many take part in a stripe.
    pub data_disks: u64,
    /// From physical to allocated size.
    pub size_rule: SizeRule,
}

impl std::fmt::Debug for VdevSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VdevSetup")
            .field("maps", &self.maps)
            .field("rotational", &self.rotational)
            .finish_non_exhaustive()
    }
}

/// The rank of a metaslab in its group: inactive ones first, then those that allocators use for first copies, then for second ones; the
/// best of each first.
type Rank = (u8, Reverse<Weight>, u64);

/// Which of a vdev's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    /// The vdev's own class.
    Main,
    /// The embedded log's.
    Embedded,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    order: BTreeSet<Rank>,
    /// For each allocator, the metaslab of first and of second copies.
    active: Vec<[Option<u64>; 2]>,
    /// Bytes before the rotor moves on.
    pub(crate) aliquot: u64,
    /// Not even the smallest block fitted.
    pub(crate) is_full: bool,
    /// Too full or too fragmented, while others are not.
    pub(crate) is_shunned: bool,
}

/// A vdev with its metaslabs.
#[derive(Clone, Debug)]
pub(crate) struct VdevSpaces {
    pub(crate) setup: VdevSetup,
    pub(crate) metaslabs: Vec<Metaslab>,
    /// The metaslab that serves the embedded log.
    pub(crate) embedded: Option<u64>,
    pub(crate) main: Group,
    pub(crate) log: Group,
    /// Space kept for the checkpoint.
    pub(crate) kept: Kept,
    /// Whether anything may be allocated here: not while it is faulted or leaving.
    pub(crate) is_allocatable: bool,
    /// A person wants nothing to be allocated here (`allocating=off`).
    pub(crate) is_passive: bool,
    /// Bytes that are still to be copied, while it is evacuated.
    pub(crate) left_to_copy_bytes: Option<u64>,
}

/// A search for space in a group.
pub(crate) struct Search<'a> {
    pub(crate) size: SizeRange,
    /// Blocks of exactly this size that may be placed at once, side by side.
    pub(crate) count: u64,
    pub(crate) txg: Txg,
    pub(crate) now_ms: u64,
    pub(crate) allocator: usize,
    /// Copies of the same block that have their place.
    pub(crate) earlier: &'a [Extent],
    pub(crate) try_hard: bool,
    /// Past the first sync pass an active metaslab is kept, so as not to make more of them dirty.
    pub(crate) keep_active: bool,
}

fn rank(metaslab: &Metaslab) -> Rank {
    let tier = metaslab.activation.map_or(0, |activation| if activation.primary { 1 } else { 2 });
    (tier, Reverse(metaslab.weight()), metaslab.id().index)
}

impl VdevSpaces {
    pub(crate) fn new(setup: VdevSetup, metaslabs: Vec<Metaslab>, allocators: usize) -> Self {
        let group = Group { active: vec![[None; 2]; allocators], ..Group::default() };
        let mut vdev = Self {
            setup,
            metaslabs,
            embedded: None,
            log: group.clone(),
            main: group,
            kept: Kept::default(),
            is_allocatable: true,
            is_passive: false,
            left_to_copy_bytes: None,
        };
        vdev.main.order = vdev.metaslabs.iter().map(rank).collect();
        assert_eq!(vdev.main.order.len(), vdev.metaslabs.len(), "each metaslab has a rank of its own");
        vdev
    }

    /// One more metaslab, behind the others.
    pub(crate) fn push(&mut self, metaslab: Metaslab) {
        assert_eq!(metaslab.id().index, self.metaslabs.len() as u64, "a metaslab stands at its index");
        self.main.order.insert(rank(&metaslab));
        self.metaslabs.push(metaslab);
    }

    fn which(&self, index: u64) -> Which {
        if self.embedded == Some(index) { Which::Embedded } else { Which::Main }
    }

    pub(crate) fn group(&self, which: Which) -> &Group {
        match which {
            Which::Main => &self.main,
            Which::Embedded => &self.log,
        }
    }

    pub(crate) fn group_mut(&mut self, which: Which) -> &mut Group {
        match which {
            Which::Main => &mut self.main,
            Which::Embedded => &mut self.log,
        }
    }

    pub(crate) fn metaslab(&mut self, index: u64) -> Result<&mut Metaslab, SpaceError> {
        let id = MetaslabId { vdev: self.setup.maps.vdev, index };
        let found = usize::try_from(index).ok().and_then(|index| self.metaslabs.get_mut(index));
        found.ok_or(SpaceError::NoMetaslab(id))
    }

    /// Changes a metaslab in a way that may change its rank.
    pub(crate) fn change<T>(&mut self, index: u64, change: impl FnOnce(&mut Metaslab) -> T) -> Result<T, SpaceError> {
        let which = self.which(index);
        let metaslab = self.metaslab(index)?;
        let before = rank(metaslab);
        let result = change(metaslab);
        let after = rank(metaslab);
        if before != after {
            let group = self.group_mut(which);
            let (had_rank, is_new) = (group.order.remove(&before), group.order.insert(after));
            debug_assert!(had_rank && is_new, "a metaslab has one rank in its group");
        }
        Ok(result)
    }

    /// Gives the emptiest metaslab to the embedded log, if there are enough.
    pub(crate) fn choose_embedded(&mut self, tunables: &Tunables) {
        if self.embedded.is_some() || self.metaslabs.len() as u64 <= tunables.zfs_embedded_slog_min_ms {
            return;
        }
        let Some(chosen) = self.metaslabs.iter().min_by_key(|metaslab| metaslab.allocated_bytes()) else { return };
        let rank = rank(chosen);
        let (was_main, is_new) = (self.main.order.remove(&rank), self.log.order.insert(rank));
        assert!(was_main && is_new, "a metaslab serves one class");
        self.embedded = Some(rank.2);
    }

    /// Weighs a metaslab anew.
    pub(crate) fn weigh(&mut self, index: u64, tunables: &Tunables) -> Result<(), SpaceError> {
        let place = self.setup.rotational.then_some((index, self.metaslabs.len() as u64));
        self.change(index, |metaslab| metaslab.weigh(place, tunables))?;
        Ok(())
    }

    /// Takes an allocator's claim off a metaslab.
    pub(crate) fn passivate(&mut self, index: u64, weight: Option<Weight>) -> Result<(), SpaceError> {
        let which = self.which(index);
        let activation = self.change(index, |metaslab| {
            if let Some(weight) = weight {
                metaslab.set_weight(weight);
            }
            metaslab.activation.take()
        })?;
        if let Some(Activation { allocator, primary, .. }) = activation
            && let Some(active) = self.group_mut(which).active.get_mut(allocator)
        {
            debug_assert_eq!(
                active[usize::from(!primary)],
                Some(index),
                "a metaslab that is claimed is the claimant's"
            );
            active[usize::from(!primary)] = None;
        }
        Ok(())
    }

    /// The metaslabs that will be asked next and are not loaded.
    pub(crate) fn preload(&self, which: Which, limit: usize) -> impl Iterator<Item = MetaslabId> + '_ {
        let best = self.group(which).order.iter().take(limit);
        best.filter_map(|(_, _, index)| self.metaslabs.get(*index as usize))
            .filter(|metaslab| !metaslab.is_loaded() && metaslab.weight() != Weight::default())
            .map(Metaslab::id)
    }

    /// Takes space in one of a group's metaslabs: the allocator's active one, else the best that may fit, which becomes
    /// active. Where several blocks are asked for, the range is that of as many as follow each other.
    pub(crate) fn allocate(
        &mut self,
        which: Which,
        search: &Search<'_>,
        tunables: &Tunables,
    ) -> Result<Option<Range<u64>>, AllocError> {
        let vdev = self.setup.maps.vdev;
        let here = search.earlier.iter().filter(|extent| extent.vdev == vdev);
        let used: Vec<u64> = here.map(|extent| extent.offset_bytes >> self.setup.maps.metaslab_shift).collect();
        // First copies, second copies, and third ones, for which nothing is kept active.
        let role = used.len();
        let ready = self.group(which).order.len();
        let allocator = if search.allocator >= (ready / 3).max(1) { 0 } else { search.allocator };
        let mut tried = BTreeSet::new();
        let mut last: Option<Rank> = None;
        let mut tries = 0_u64;
        loop {
            let active = self.group(which).active.get(allocator).and_then(|active| *active.get(role)?);
            let index = match active.filter(|index| !tried.contains(index)) {
                Some(index) => index,
                None => {
                    let from = last.map_or(Bound::Unbounded, Bound::Excluded);
                    let Some(next) = self.group(which).order.range((from, Bound::Unbounded)).next().copied() else {
                        return Ok(None);
                    };
                    last = Some(next);
                    tries += 1;
                    if !search.try_hard && tries > tunables.zfs_metaslab_find_max_tries {
                        return Ok(None);
                    }
                    let distance = role > 0 && next.0 == 0 && !search.try_hard;
                    if tried.contains(&next.2) || (distance && used.contains(&next.2)) {
                        continue;
                    }
                    next.2
                }
            };
            let is_active = active == Some(index);
            let size = search.size.min_bytes;
            let metaslab = self.metaslab(index)?;
            if !metaslab.is_usable() || (!is_active && !metaslab.may_fit(size)) {
                if is_active {
                    self.passivate(index, None)?;
                }
                continue;
            }
            if !metaslab.is_loaded() {
                return Err(AllocError::NeedsLoad(metaslab.id()));
            }
            metaslab.selected = (search.txg, search.now_ms);
            let is_claimed = metaslab.activation.is_some();
            let found = match search.count {
                0 | 1 => metaslab.allocate(search.txg, search.size, tunables)?,
                count => metaslab.allocate_run(search.txg, size, count, tunables)?,
            };
            let Some(found) = found else {
                tried.insert(index);
                let weight = metaslab.weight_now();
                if is_active {
                    self.passivate(index, Some(weight))?;
                } else {
                    self.change(index, |metaslab| metaslab.set_weight(weight))?;
                }
                continue;
            };
            let free_slot = role < 2 && active.is_none_or(|active| active != index);
            if !is_claimed && free_slot {
                // A metaslab that was active and had no room has been passivated by now.
                let primary = role == 0;
                self.change(index, |metaslab| {
                    metaslab.activation = Some(Activation { allocator, primary, weight: metaslab.weight() });
                })?;
                if let Some(active) = self.group_mut(which).active.get_mut(allocator) {
                    active[role] = Some(index);
                }
            }
            if !search.keep_active {
                self.passivate_if_worn(index, tunables)?;
            }
            return Ok(Some(found));
        }
    }

    /// Leaves an active metaslab whose large segments are used up, before the next allocation would find out.
    fn passivate_if_worn(&mut self, index: u64, tunables: &Tunables) -> Result<(), SpaceError> {
        let metaslab = self.metaslab(index)?;
        let Some(Activation { weight: at_start, .. }) = metaslab.activation else { return Ok(()) };
        let now = metaslab.weight_now();
        let (Some(start), Some(index_now)) = (at_start.index(), now.index()) else { return Ok(()) };
        let worn = u64::from(index_now) + tunables.zfs_metaslab_switch_threshold <= u64::from(start);
        if worn && !metaslab.is_one_piece() {
            self.passivate(index, Some(now))?;
        }
        Ok(())
    }
}
