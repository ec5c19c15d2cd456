//! Free space that is held: it is free on disk, and nothing is placed there.
//!
//! Initialize and trim hold a piece of free space while they work on it. OpenZFS closes the whole metaslab for that; here the rest of it serves
//! allocations. What is held is in no space map and no log, so a crash forgets it.
//!
//! **Invariants.** 1. What is held is not in `free`, and in none of the sets of what is allocated or was freed. 2. A metaslab that has something
//! held stays loaded. 3. At most one part in [`HELD_PART`] of what is free in a metaslab is held at once, so that a full pool has room. 4. What is held
//! begins and ends at whole granules (a group's row on draid): all that is free does, since no block can lie anywhere else. 5. A holder passes over
//! nothing that is free on disk: what others hold, it holds with them, since they work on other leaves. It is free again when the last one lets go.

use std::ops::Range;

use super::Metaslab;
use crate::SpaceError;

/// One part in so many of a metaslab's free space is held at once.
const HELD_PART: u64 = 8;

impl Metaslab {
    /// Holds the next free range from an offset on: `max_bytes` of it at most, in whole granules, of one at least. `None` if there is none, or it is not
    /// loaded.
    pub(crate) fn hold(&mut self, from: u64, max_bytes: u64, granule: u64) -> Result<Option<Range<u64>>, SpaceError> {
        let unit = granule.max(1 << self.ashift);
        let from = from.next_multiple_of(unit);
        let Some(loaded) = &mut self.loaded else { return Ok(None) };
        let shared = self.held.next_from(from);
        let free = loaded.free.next_from(from);
        let begins = |range: &Option<Range<u64>>| range.as_ref().map_or(u64::MAX, |range| range.start.max(from));
        let is_shared = begins(&shared) < begins(&free);
        let max_bytes = match is_shared {
            true => max_bytes,
            false => {
                let part = (loaded.free.total() + self.held.total()) / HELD_PART;
                max_bytes.min(part.saturating_sub(self.held.total()))
            }
        };
        let max_bytes = max_bytes.max(unit) / unit * unit;
        let mut found = if is_shared { shared } else { free };
        if let Some(range) = &mut found {
            range.start = range.start.max(from);
            range.end = range.end.min(range.start.saturating_add(max_bytes));
            debug_assert!(range.start < range.end, "a range that is found lies after the offset");
            assert!(
                range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit),
                "free space is of whole granules"
            );
            if !is_shared {
                loaded.free.remove(range.clone()).map_err(SpaceError::tree(self.id, "free space"))?;
                self.held.add(range.clone()).map_err(SpaceError::tree(self.id, "held free space"))?;
            }
            self.holds.push(range.clone());
        }
        Ok(found)
    }

    /// Something of it is held.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ends a hold, as it was given.
    pub(crate) fn release(&mut self, range: Range<u64>) -> Result<(), SpaceError> {
        assert!(self.loaded.is_some(), "a metaslab that has something held stays loaded (hold, invariant 2)");
        if let Some(place) = self.holds.iter().position(|held| *held == range) {
            self.holds.swap_remove(place);
        }
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let mut at = range.start;
        while at < range.end {
            let others = self.holds.iter().filter(|held| held.contains(&at)).map(|held| held.end).max();
            if let Some(end) = others {
                at = end;
                continue;
            }
            let next = self.holds.iter().map(|held| held.start).filter(|start| *start > at).min();
            let part = at..next.map_or(range.end, |next| next.min(range.end));
            at = part.end;
            self.held.remove(part.clone()).map_err(SpaceError::tree(self.id, "held free space"))?;
            loaded.free.add(part).map_err(SpaceError::tree(self.id, "free space"))?;
        }
        debug_assert_eq!(self.holds.is_empty(), self.held.is_empty(), "what is held has a holder");
        Ok(())
    }
}
