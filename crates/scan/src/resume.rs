//! A stop: the place in a tree of blocks where a walk ended for now, and which blocks come before it.
//!
//! **Two orders, one comparison.** A walk that visits (`crate::walk`) comes to a block before everything below it; freeing comes to it
//! after. In both orders objects come by number, and an object's blocks by position; a block of dnodes is the place of its objects. Either walk
//! stops at blocks of level 0 only, since a tree may become higher between two txgs, and then a block of level 0 alone has still its old number.
//! So whether *all below* a block comes before the stop ([`Resume::is_past`]) is the same question for both; whether the block itself
//! does is not ([`Resume::is_before`] is that of visiting). OpenZFS keeps a scrub's `scn_bookmark` and a destroyed dataset's bookmark in the
//! same way.
//!
//! **Freeing.** The blocks of a destroyed dataset are freed over many txgs, in the order of a walk from the root that comes to a block
//! after everything below it: objects by number, an object's blocks by position, indirect blocks after what they point to,
//! a block of dnodes after their objects. Where a txg's share ends a bookmark says so: a block of level 0 (never an
//! indirect one), which is itself not freed yet, though what is below it is. All that comes before it in that order is gone,
//! and its space may be in use again.
//!
//! Source: the behaviour of OpenZFS's `traverse_dataset_destroyed` with `TRAVERSE_POST` (dmu_traverse.c), of `dsl_scan_check_suspend`
//! (dsl_scan.c) and of `zbookmark_compare` (zio.c), 2.3.

use std::cmp::Ordering;

use cenote_format::dsl::ZBookmark;
use cenote_format::ids::{BlockId, ObjectId};

use crate::error::StopError;

/// Objects in a block of the meta-dnode, whose blocks have 16 KiB.
pub(crate) const OBJECTS_PER_BLOCK: u64 = 32;

/// The number of a spill block in bookmarks (`DMU_SPILL_BLKID`).
pub(crate) const SPILL_BLOCK: u64 = u64::MAX - 1;

/// A place in the order of a walk: the object, the first position within, and what tells a tree's blocks with that
/// position apart.
type Position = (u64, u64, Level);

/// Higher levels come first; those of the meta-dnode before those of any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    is_meta: bool,
    level: u8,
}

/// The block of level 0 at which a walk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    object: u64,
    block: u64,
}

impl Resume {
    /// From an entry's bookmark: `None` at the start; an error for a bookmark that no pool writes.
    pub(crate) fn of(bookmark: &ZBookmark) -> Result<Option<Self>, StopError> {
        if *bookmark == ZBookmark::default() {
            return Ok(None);
        }
        if bookmark.level != 0 {
            return Err(StopError { level: bookmark.level });
        }
        Ok(Some(Self { object: bookmark.object.0, block: bookmark.block }))
    }

    /// A walk that visits stops before this block of level 0.
    pub(crate) fn before(object: ObjectId, block: BlockId) -> Self {
        Self { object: object.0, block: block.0 }
    }

    /// Whether every block of this object is gone. The meta-dnode goes last.
    pub(crate) fn is_past_object(&self, object: u64) -> bool {
        object != 0 && object < self.object
    }

    /// Whether this block and all below it come before the stop: are gone, or visited. `shift`: the pointers in an indirect block of the object, as a power
    /// of two. A spill block has a number past all others' ([`SPILL_BLOCK`]) and comes after them.
    pub(crate) fn is_past(&self, object: u64, level: u8, block: u64, shift: u32) -> bool {
        let next = block.saturating_add(1);
        let span = 1_u64.checked_shl(u32::from(level).saturating_mul(shift)).unwrap_or(u64::MAX);
        let end = next.saturating_mul(span);
        compare(position(object, end, level), self.position()) != Ordering::Greater
    }

    /// Whether a walk that visits has come to this block, though maybe not to all below it.
    pub(crate) fn is_before(&self, object: u64, level: u8, block: u64, shift: u32) -> bool {
        let span = 1_u64.checked_shl(u32::from(level).saturating_mul(shift)).unwrap_or(u64::MAX);
        let first = block.saturating_mul(span);
        let at = position(object, first, level);
        let is_before = compare(at, self.position()) == Ordering::Less;
        let is_past = self.is_past(object, level, block, shift);
        // Numbers that no pool has end at the largest.
        let is_last = first == u64::MAX || at.0 == u64::MAX;
        debug_assert!(is_before || !is_past || is_last, "a block comes before those below it");
        is_before
    }

    fn position(&self) -> Position {
        position(self.object, self.block, 0)
    }

    /// Whether the walk stopped at this block: it is still there, and nothing below it is.
    pub(crate) fn is_at(&self, object: u64, level: u8, block: u64) -> bool {
        level == 0 && (object, block) == (self.object, self.block)
    }
}

fn position(object: u64, first_block: u64, level: u8) -> Position {
    if object == 0 {
        (first_block.saturating_mul(OBJECTS_PER_BLOCK), 0, Level { is_meta: true, level })
    } else {
        (object, first_block, Level { is_meta: false, level })
    }
}

fn compare(a: Position, b: Position) -> Ordering {
    let by_level = (b.2.is_meta, b.2.level).cmp(&(a.2.is_meta, a.2.level));
    a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(by_level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::ids::ObjsetId;
    use proptest::prelude::*;

    /// Pointers in an indirect block, as a power of two.
    const SHIFT: u32 = 1;

    /// A block as a walk meets it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Met {
        object: u64,
        level: u8,
        block: u64,
    }

    /// An objset: for each object the levels of its tree, whose every place is taken, and whether it has a spill block. The
    /// meta-dnode is object 0.
    struct Model(Vec<(u64, (u8, bool))>);

    impl Model {
        fn meta_levels(&self) -> u8 {
            let last = self.0.last().map_or(0, |(object, _)| object / OBJECTS_PER_BLOCK);
            (1..).find(|levels| 1 << ((levels - 1) * SHIFT as u8) > last).unwrap()
        }

        /// Walks as OpenZFS does when it frees, as far as `resume` lets it; all blocks that it comes to, in order.
        fn walk(&self, resume: Option<Resume>) -> Vec<Met> {
            let mut met = Vec::new();
            self.subtree(Met { object: 0, level: self.meta_levels() - 1, block: 0 }, resume, &mut met);
            met
        }

        /// Walks as one that visits does: the blocks on the way to the stop are gone through again, and not visited.
        fn visit(&self, at: Met, stop: Option<Resume>, met: &mut Vec<Met>) {
            if stop.is_some_and(|stop| stop.is_past(at.object, at.level, at.block, SHIFT)) {
                return;
            }
            if !stop.is_some_and(|stop| stop.is_before(at.object, at.level, at.block, SHIFT)) {
                met.push(at);
            }
            if at.level > 0 {
                for index in 0..1 << SHIFT {
                    self.visit(Met { level: at.level - 1, block: (at.block << SHIFT) + index, ..at }, stop, met);
                }
            } else if at.object == 0 {
                let first = at.block * OBJECTS_PER_BLOCK;
                let of_block = |id: &u64| (first..first + OBJECTS_PER_BLOCK).contains(id);
                for (object, (levels, has_spill)) in self.0.iter().filter(|(id, _)| of_block(id)) {
                    self.visit(Met { object: *object, level: levels - 1, block: 0 }, stop, met);
                    if *has_spill {
                        self.visit(Met { object: *object, level: 0, block: SPILL_BLOCK }, stop, met);
                    }
                }
            }
        }

        fn subtree(&self, at: Met, resume: Option<Resume>, met: &mut Vec<Met>) {
            if resume.is_some_and(|resume| resume.is_past(at.object, at.level, at.block, SHIFT)) {
                return;
            }
            if at.level > 0 {
                for index in 0..1 << SHIFT {
                    let below = Met { level: at.level - 1, block: (at.block << SHIFT) + index, ..at };
                    self.subtree(below, resume, met);
                }
            } else if at.object == 0 && !resume.is_some_and(|resume| resume.is_at(0, 0, at.block)) {
                let first = at.block * OBJECTS_PER_BLOCK;
                for (object, (levels, has_spill)) in
                    self.0.iter().filter(|(id, _)| (first..first + OBJECTS_PER_BLOCK).contains(id))
                {
                    if !resume.is_some_and(|resume| resume.is_past_object(*object)) {
                        self.subtree(Met { object: *object, level: levels - 1, block: 0 }, resume, met);
                        if *has_spill {
                            self.subtree(Met { object: *object, level: 0, block: SPILL_BLOCK }, resume, met);
                        }
                    }
                }
            }
            met.push(at);
        }
    }

    proptest! {
        /// Wherever freeing stops, what is left to visit is exactly what was not freed.
        #[test]
        fn what_is_left_is_what_was_not_freed(
            objects in prop::collection::btree_map(1_u64..200, (1_u8..5, any::<bool>()), 1..12),
            stop: prop::sample::Index,
            again: prop::sample::Index,
        ) {
            let model = Model(objects.into_iter().collect());
            let all = model.walk(None);
            let stops: Vec<usize> = (0..all.len()).filter(|index| all[*index].level == 0).collect();
            let bookmark = |met: &Met| ZBookmark {
                objset: ObjsetId(u64::MAX), object: ObjectId(met.object), level: 0, block: met.block,
            };
            let stop = *stop.get(&stops);
            let resume = Resume::of(&bookmark(&all[stop])).unwrap();
            let left = model.walk(resume);
            prop_assert_eq!(&left[..], &all[stop..]);
            // And once more from there.
            let later = *again.get(&stops);
            if later > stop {
                prop_assert_eq!(&model.walk(Resume::of(&bookmark(&all[later])).unwrap())[..], &all[later..]);
            }
        }

        /// Wherever visiting stops, what is left is exactly what was not visited.
        #[test]
        fn a_visit_from_a_stop_comes_to_what_was_not_visited(
            objects in prop::collection::btree_map(1_u64..200, (1_u8..5, any::<bool>()), 1..12),
            stop: prop::sample::Index,
        ) {
            let model = Model(objects.into_iter().collect());
            let root = Met { object: 0, level: model.meta_levels() - 1, block: 0 };
            let visited = |stop| {
                let mut met = Vec::new();
                model.visit(root, stop, &mut met);
                met
            };
            let all = visited(None);
            let stops: Vec<usize> = (0..all.len()).filter(|index| all[*index].level == 0).collect();
            let at = *stop.get(&stops);
            let stop = Resume::before(ObjectId(all[at].object), BlockId(all[at].block));
            prop_assert_eq!(&visited(Some(stop))[..], &all[at..]);
        }

        #[test]
        fn no_bookmark_overflows(words in any::<[u64; 4]>(), level: u8, shift in 0_u32..70, at in -3_i64..3) {
            let bookmark = ZBookmark { objset: ObjsetId(words[0]), object: ObjectId(words[1]), level: at, block: words[2] };
            if let Ok(Some(resume)) = Resume::of(&bookmark) {
                let _ = resume.is_past(words[3], level, words[0], shift);
                let _ = resume.is_past(0, level, words[0], shift);
                let _ = (resume.is_before(words[3], level, words[0], shift), resume.is_before(0, level, words[0], shift));
            }
        }
    }

    #[test]
    fn the_objset_block_is_never_a_stop() {
        let bookmark = ZBookmark { objset: ObjsetId(u64::MAX), object: ObjectId(0), level: -1, block: 0 };
        assert!(Resume::of(&bookmark).is_err());
        assert_eq!(Resume::of(&ZBookmark::default()), Ok(None));
    }
}
