//! Giving places to blocks, and taking them back.

use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};
use cenote_zio::OutsideExtents;

use super::{Allocator, Request, slot};
use crate::class::{Attempt, Member};
use crate::group::{AllocError, Extent, Search};
use crate::{Metaslab, MetaslabId, SizeRange, SpaceError};

impl Allocator {
    /// Checks before a device write that the block lies in an allocated extent. Without an `ExtentCheck` there is no check.
    pub fn check_write(&self, vdev: VdevId, range: Range<u64>) -> Result<(), OutsideExtents> {
        self.check.as_ref().map_or(Ok(()), |check| check.write(vdev, range))
    }

    /// Takes space for each copy, on different vdevs where that is possible and else in different metaslabs. Nothing is
    /// taken on error. Other classes are not tried: see [`crate::ClassKind::fallbacks`].
    pub fn allocate(&mut self, request: &Request) -> Result<Vec<Extent>, AllocError> {
        if self.may_force_gang(request) && self.force_gang() {
            return Err(AllocError::ForcedGang);
        }
        debug_assert!((1..=3).contains(&request.copies), "a block has one to three copies");
        let mut extents: Vec<Extent> = Vec::with_capacity(request.copies);
        for _ in 0..request.copies {
            match self.allocate_copy(request, &extents, 1) {
                Ok(extent) => {
                    let meets = |other: &Extent| {
                        other.vdev == extent.vdev
                            && other.range().start < extent.range().end
                            && extent.range().start < other.range().end
                    };
                    debug_assert!(!extents.iter().any(meets), "no two copies share space (invariant 4)");
                    extents.push(extent);
                }
                Err(error) => {
                    for extent in extents {
                        self.unallocate(request.txg, &extent)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(extents)
    }

    /// Takes places for several blocks alike, each with one copy, as long as they lie side by side: in one search, and where
    /// asking for one after the other would have put them. Returns at least one, at most `count`.
    ///
    /// # Errors
    /// As [`Self::allocate`], of the first block.
    pub fn allocate_run(&mut self, request: &Request, count: u64) -> Result<Vec<Extent>, AllocError> {
        let psize = request.psize.min_bytes;
        if self.may_force_gang(request) {
            return Err(AllocError::ForcedGang);
        }
        let is_simple = request.copies == 1 && psize == request.psize.max_bytes && !request.is_gang;
        if !is_simple || count <= 1 {
            return self.allocate(request);
        }
        let run = self.allocate_copy(request, &[], count)?;
        let asize_bytes =
            self.vdevs.get(&run.vdev).map_or(run.asize_bytes, |vdev| (vdev.setup.size_rule)(psize, request.txg));
        debug_assert!(
            asize_bytes > 0 && run.asize_bytes.is_multiple_of(asize_bytes),
            "a run is a whole number of blocks"
        );
        let extents = (run.offset_bytes..run.offset_bytes + run.asize_bytes).step_by(asize_bytes.max(1) as usize);
        Ok(extents.map(|offset_bytes| Extent { vdev: run.vdev, offset_bytes, asize_bytes }).collect())
    }

    /// Tests of gang blocks have so many of a hundred blocks of at least a given size stored as gangs.
    fn may_force_gang(&self, request: &Request) -> bool {
        let has_vdevs = self.classes.get(&request.class).is_some_and(|class| !class.ring.is_empty());
        !request.is_gang && has_vdevs && request.psize.min_bytes >= self.tunables.metaslab_force_ganging
    }

    /// The next such block's turn.
    fn force_gang(&mut self) -> bool {
        self.forced += self.tunables.metaslab_force_ganging_pct.min(100);
        let now = self.forced >= 100;
        self.forced %= 100;
        now
    }

    /// Takes space for a copy; where there is one of each block, for up to `count` blocks side by side.
    fn allocate_copy(&mut self, request: &Request, earlier: &[Extent], count: u64) -> Result<Extent, AllocError> {
        let class = self.classes.get(&request.class).ok_or(AllocError::NoVdev)?;
        if class.ring.is_empty() {
            return Err(AllocError::NoVdev);
        }
        let ring = class.ring.clone();
        let place = |vdev: VdevId| ring.iter().position(|member| member.vdev == vdev);
        let near = request.near.get(earlier.len()).and_then(|extent| place(extent.vdev));
        // The next vdev for the next copy: only neighbours share blocks, so that two failures of others lose nothing.
        let next = || earlier.last().and_then(|extent| place(extent.vdev)).map(|place| (place + 1) % ring.len());
        let start = near.or_else(next).unwrap_or_else(|| class.rotor(request.allocator));
        let smallest = ring.iter().filter_map(|member| self.vdevs.get(&member.vdev)).map(|vdev| vdev.setup.maps.ashift);
        let smallest_bytes = 1_u64 << smallest.min().unwrap_or(9);
        let thorough = self.tunables.zfs_metaslab_try_hard_before_gang
            || request.is_gang
            || request.is_log
            || request.psize.min_bytes <= smallest_bytes;
        for try_hard in [false, true] {
            if try_hard && !thorough {
                break;
            }
            for step in 0..ring.len() {
                let number = (start + step) % ring.len();
                let is_turn =
                    self.classes.get(&request.class).is_some_and(|class| class.rotor(request.allocator) == number);
                let count = if is_turn { count.min(self.blocks_left(request, ring[number])) } else { 1 };
                let placed = self.try_member(request, ring[number], earlier, try_hard, count)?;
                if is_turn {
                    let blocks = placed.as_ref().map_or(1, |(_, blocks)| *blocks);
                    (0..blocks).for_each(|_| self.rotate(request, ring[number], placed.is_some()));
                }
                if let Some((extent, _)) = placed {
                    if let Some(check) = &mut self.check {
                        check.allocated(extent.vdev, extent.range())?;
                    }
                    return Ok(extent);
                }
            }
        }
        let metaslabs = ring.iter().flat_map(|member| self.members_metaslabs(*member));
        let largest_bytes = metaslabs.filter_map(Metaslab::largest_bytes).max().unwrap_or(0);
        Err(AllocError::NoSpace { largest_bytes })
    }

    fn blocks_left(&self, request: &Request, member: Member) -> u64 {
        let aliquot = self.vdevs.get(&member.vdev).map_or(0, |vdev| vdev.group(member.which).aliquot);
        let class = self.classes.get(&request.class);
        class.map_or(1, |class| class.blocks_left(request.allocator, request.psize.min_bytes, aliquot))
    }

    fn rotate(&mut self, request: &Request, member: Member, placed: bool) {
        let Some(vdev) = self.vdevs.get(&member.vdev) else { return };
        let group = vdev.group(member.which);
        let attempt = Attempt { psize: request.psize.min_bytes, placed, aliquot: group.aliquot };
        if let Some(class) = self.classes.get_mut(&request.class) {
            class.rotate(request.allocator, attempt);
        }
    }

    fn try_member(
        &mut self,
        request: &Request,
        member: Member,
        earlier: &[Extent],
        try_hard: bool,
        count: u64,
    ) -> Result<Option<(Extent, u64)>, AllocError> {
        let keep_active = self.pass > 1;
        let Some(vdev) = self.vdevs.get_mut(&member.vdev) else { return Ok(None) };
        let group = vdev.group(member.which);
        if !vdev.is_allocatable
            || vdev.is_passive
            || (!try_hard && !request.is_gang && (group.is_full || group.is_shunned))
        {
            return Ok(None);
        }
        let rule = vdev.setup.size_rule.clone();
        let smallest = rule(1 << vdev.setup.maps.ashift, request.txg);
        let rule = |psize| rule(psize, request.txg);
        let size = SizeRange { min_bytes: rule(request.psize.min_bytes), max_bytes: rule(request.psize.max_bytes) };
        let search = Search {
            size,
            count,
            txg: request.txg,
            now_ms: request.now_ms,
            allocator: request.allocator,
            earlier,
            try_hard,
            keep_active,
        };
        let Some(found) = vdev.allocate(member.which, &search, &self.tunables)? else {
            vdev.group_mut(member.which).is_full |= size.min_bytes <= smallest;
            return Ok(None);
        };
        let index = found.start >> vdev.setup.maps.metaslab_shift;
        self.dirty[slot(request.txg)].insert(MetaslabId { vdev: member.vdev, index });
        debug_assert_eq!(
            (found.end - 1) >> vdev.setup.maps.metaslab_shift,
            index,
            "an extent is in one metaslab (invariant 2)"
        );
        let (offset_bytes, asize_bytes) = (found.start, found.end - found.start);
        let blocks = if count > 1 { asize_bytes / size.min_bytes.max(1) } else { 1 };
        Ok(Some((Extent { vdev: member.vdev, offset_bytes, asize_bytes }, blocks)))
    }

    pub(super) fn owner(&mut self, extent: &Extent) -> Result<(MetaslabId, &mut Metaslab), SpaceError> {
        let id = MetaslabId { vdev: extent.vdev, index: 0 };
        let vdev = self.vdevs.get_mut(&extent.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let id = MetaslabId { index: extent.offset_bytes >> vdev.setup.maps.metaslab_shift, ..id };
        Ok((id, vdev.metaslab(id.index)?))
    }

    /// Gives back what was allocated in the same txg and never referenced: at once.
    pub fn unallocate(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (_, metaslab) = self.owner(extent)?;
        metaslab.unallocate(txg, extent.range())?;
        if let Some(check) = &mut self.check {
            check.unallocated(extent.vdev, extent.range())?;
        }
        Ok(())
    }

    /// Takes a given place: blocks of the intent log, at import.
    pub fn claim(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (id, metaslab) = self.owner(extent)?;
        if !metaslab.is_loaded() {
            return Err(AllocError::NeedsLoad(id));
        }
        metaslab.claim(txg, extent.range())?;
        self.dirty[slot(txg)].insert(id);
        if let Some(check) = &mut self.check {
            check.allocated(extent.vdev, extent.range())?;
        }
        Ok(())
    }

    /// Whether the whole extent is allocated.
    ///
    /// # Errors
    /// No metaslab has the extent, or its metaslab must be loaded first.
    pub fn is_allocated(&mut self, extent: &Extent) -> Result<bool, AllocError> {
        let (id, metaslab) = self.owner(extent)?;
        let free = metaslab.free_space().ok_or(AllocError::NeedsLoad(id))?;
        let is_within = metaslab.range().start <= extent.offset_bytes && extent.range().end <= metaslab.range().end;
        Ok(is_within && free.overlap(extent.range()).is_none())
    }

    /// As [`Self::free`] for many places, in ascending order: neighbours within a metaslab at once.
    ///
    /// # Errors
    /// As [`Self::free`]; those before are freed.
    pub fn free_all(&mut self, txg: Txg, extents: &[Extent]) -> Result<(), AllocError> {
        let mut rest = extents;
        while let [first, others @ ..] = rest {
            let (id, metaslab) = self.owner(first)?;
            let metaslab_end = metaslab.range().end;
            let mut range = first.range();
            let mut count = 1;
            for next in others {
                if next.vdev != first.vdev || next.offset_bytes != range.end || range.end == metaslab_end {
                    break;
                }
                range.end = next.range().end;
                count += 1;
            }
            metaslab.free(range)?;
            self.dirty[slot(txg)].insert(id);
            if let Some(check) = &mut self.check {
                rest[..count].iter().try_for_each(|extent| check.freed(extent.vdev, txg, extent.range()))?;
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Frees a place in the txg that syncs.
    pub fn free(&mut self, txg: Txg, extent: &Extent) -> Result<(), AllocError> {
        let (id, metaslab) = self.owner(extent)?;
        metaslab.free(extent.range())?;
        self.dirty[slot(txg)].insert(id);
        if let Some(check) = &mut self.check {
            check.freed(extent.vdev, txg, extent.range())?;
        }
        Ok(())
    }
}
