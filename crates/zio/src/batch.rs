//! Blocks of a txg some at a time: what of giving them places must happen in their order, and what need not.
//!
//! Only the order of calls to the allocator decides where blocks go, so only allocation is done in order. It is little for blocks that are
//! alike: how many follow each other is counted before, where they are prepared, and their pointers are completed after, on any
//! core too.
//!
//! ```text
//!   any core      prepared:  4K 4K 4K 4K   hole   16K 16K   gang          needs: alike x4, nothing, alike x2, own
//!   in order      places:    one search for 4,    one for 2, its own      a list of places, and the blocks that needed their own
//!   any core      placed:    pointers with their places
//! ```

use cenote_format::blkptr::Dva;

use crate::write::{Content, allocation_request, can_rewrite};
use crate::{AllocationRequest, Allocator, Placed, Prepared, WritePolicy, Zio, ZioError};

/// The allocation that neighbours in a batch need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing: they are not stored.
    Nothing,
    /// New places, for nothing but that.
    Alike(AllocationRequest),
    /// Each a look of its own: it may take the place of another, becomes a gang, or could not be prepared.
    Own,
}

impl Need {
    fn of(prepared: &Result<Prepared, ZioError>, policy: &WritePolicy) -> Self {
        let bp = match prepared {
            Ok(Prepared(Content::Stored(bp, _))) => bp,
            Ok(Prepared(Content::Unstored(_))) => return Self::Nothing,
            Err(_) => return Self::Own,
        };
        let psize_bytes = bp.psize_bytes();
        let is_forced = policy.force_gang_above_bytes.is_some_and(|limit| psize_bytes > limit);
        if is_forced || can_rewrite(policy, bp) {
            return Self::Own;
        }
        Self::Alike(allocation_request(psize_bytes, policy.copies, psize_bytes, policy))
    }
}

/// Blocks prepared together, in the order in which they get their places.
#[derive(Debug, Default)]
pub struct PreparedBatch {
    blocks: Vec<Result<Prepared, ZioError>>,
    policies: Vec<WritePolicy>,
    needs: Vec<(Need, usize)>,
}

/// The places of a batch's blocks, as far as there are any.
#[derive(Debug)]
pub struct Places {
    /// Of the blocks that need nothing else, those of one block's copies after each other.
    dvas: Vec<Dva>,
    /// The blocks that were placed each by itself, by their place in the batch. The last may be an error, which ends it.
    own: Vec<(usize, Result<Placed, ZioError>)>,
}

impl Places {
    fn is_ended(&self) -> bool {
        matches!(self.own.last(), Some((_, Err(_))))
    }
}

impl PreparedBatch {
    /// A batch with room for so many blocks.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self { blocks: Vec::with_capacity(count), policies: Vec::with_capacity(count), needs: Vec::new() }
    }

    /// Takes the next block, as [`Zio::prepare`] has made it. One that could not be prepared ends the batch when its turn comes.
    pub fn push(&mut self, prepared: Result<Prepared, ZioError>, policy: WritePolicy) {
        let need = Need::of(&prepared, &policy);
        match self.needs.last_mut() {
            Some((last, count)) if *last == need => *count += 1,
            _ => self.needs.push((need, 1)),
        }
        self.blocks.push(prepared);
        self.policies.push(policy);
    }

    /// The blocks with their places and policies: all, or those up to the first error, which is the last that is returned.
    #[must_use]
    pub fn placed(self, places: Places) -> Vec<(WritePolicy, Result<Placed, ZioError>)> {
        let (mut dvas, mut own) = (places.dvas.into_iter(), places.own.into_iter().peekable());
        let mut all = Vec::with_capacity(self.blocks.len());
        for (index, (block, policy)) in self.blocks.into_iter().zip(self.policies).enumerate() {
            let (bookmark, txg, taken) = (policy.bookmark, policy.txg, Vec::new());
            let placed = match (own.next_if(|(own, _)| *own == index), block) {
                (Some((_, placed)), _) => placed,
                (None, Ok(Prepared(Content::Stored(mut bp, physical)))) => {
                    let dvas: Vec<Dva> = dvas.by_ref().take(usize::from(policy.copies)).collect();
                    assert_eq!(
                        dvas.len(),
                        usize::from(policy.copies),
                        "a block that is placed has a place for each copy"
                    );
                    dvas.iter().enumerate().for_each(|(copy, dva)| bp.set_dva(copy, Some(*dva)));
                    Ok(Placed { bp, writes: vec![(dvas, physical)], taken, bookmark, txg })
                }
                (None, Ok(Prepared(Content::Unstored(bp)))) => {
                    Ok(Placed { bp, writes: Vec::new(), taken, bookmark, txg })
                }
                (None, Err(error)) => Err(error),
            };
            let is_failed = placed.is_err();
            all.push((policy, placed));
            if is_failed {
                return all;
            }
        }
        assert_eq!(dvas.len(), 0, "every place that was found is a block's");
        assert!(own.next().is_none(), "every block that was placed by itself is one of the batch");
        all
    }
}

impl Zio {
    /// Finds the places of all blocks of a batch: the same as [`Zio::place`] for one after the other, and those alike at once.
    /// Nothing is written yet. Where there is no space for one the blocks after it get no places.
    pub async fn find_places(&self, allocator: &dyn Allocator, batch: &PreparedBatch) -> Places {
        let needed: usize = batch.needs.iter().map(|(_, count)| count).sum();
        assert_eq!(needed, batch.blocks.len(), "every block of a batch is counted among its needs");
        let mut places = Places { dvas: Vec::with_capacity(batch.blocks.len()), own: Vec::new() };
        let mut index = 0;
        for (need, count) in &batch.needs {
            let end = index + count;
            while index < end && !places.is_ended() {
                match need {
                    Need::Nothing => index = end,
                    Need::Own => index = self.place_own(allocator, batch, index, &mut places).await,
                    Need::Alike(request) => {
                        let dvas = allocator.allocate_some(*request, end - index);
                        let copies = usize::from(request.copies).max(1);
                        let found = (dvas.len() / copies).min(end - index);
                        places.dvas.extend(dvas.into_iter().take(found * copies));
                        index += found;
                        if found == 0 {
                            index = self.place_own(allocator, batch, index, &mut places).await;
                        }
                    }
                }
            }
        }
        places
    }

    /// Places a block of a batch by itself; returns the index of the next one in the batch.
    async fn place_own(
        &self,
        allocator: &dyn Allocator,
        batch: &PreparedBatch,
        index: usize,
        places: &mut Places,
    ) -> usize {
        let placed = match &batch.blocks[index] {
            Ok(prepared) => self.place(allocator, prepared.clone(), &batch.policies[index]).await,
            Err(error) => Err(error.clone()),
        };
        debug_assert!(
            places.own.last().is_none_or(|(last, placed)| *last < index && placed.is_ok()),
            "blocks are placed in their order, up to the first error"
        );
        places.own.push((index, placed));
        index + 1
    }
}
