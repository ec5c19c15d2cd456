//! Blocks that nothing of an objset points to any more, in lots: what a lot takes and when it was born is known of it as a whole, so that a
//! user of these sums need not look at each block.

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::Txg;

use super::space::SpaceDelta;

/// Blocks of a lot, where they come one by one.
const LOT_BLOCKS: usize = 512;
/// Lots become one up to this size: blocks of larger ones are not worth being moved.
const JOINED_BLOCKS_MAX: usize = 64;

/// Blocks that were given up.
#[derive(Clone, Debug, Default)]
pub struct Killed {
    lots: Vec<Lot>,
}

#[derive(Clone, Debug)]
struct Lot {
    blocks: Vec<Blkptr>,
    space: SpaceDelta,
    first_birth: Txg,
    last_birth: Txg,
    is_plain: bool,
}

/// Whether a block's places are told by its pointer, and are nobody else's by a table.
const fn is_plain(bp: &Blkptr) -> bool {
    !bp.dedup() && !bp.is_gang()
}

impl Lot {
    fn of(bp: Blkptr, space: SpaceDelta) -> Self {
        let birth = bp.logical_birth();
        Self { is_plain: is_plain(&bp), blocks: vec![bp], space, first_birth: birth, last_birth: birth }
    }

    fn append(&mut self, mut other: Self) {
        self.space.add(other.space);
        self.first_birth = self.first_birth.min(other.first_birth);
        self.last_birth = self.last_birth.max(other.last_birth);
        self.is_plain &= other.is_plain;
        self.blocks.append(&mut other.blocks);
    }
}

impl Killed {
    /// Takes a block, which takes so much space.
    pub fn push(&mut self, bp: Blkptr, space: SpaceDelta) {
        match self.lots.last_mut().filter(|lot| lot.blocks.len() < LOT_BLOCKS) {
            Some(lot) => {
                lot.space.add(space);
                lot.first_birth = lot.first_birth.min(bp.logical_birth());
                lot.last_birth = lot.last_birth.max(bp.logical_birth());
                lot.is_plain &= is_plain(&bp);
                lot.blocks.push(bp);
            }
            None => self.lots.push(Lot::of(bp, space)),
        }
    }

    /// Takes others in. Small lots become one; blocks of larger ones are not touched.
    pub(crate) fn append(&mut self, other: Self) {
        for lot in other.lots {
            match self.lots.last_mut() {
                Some(last) if last.blocks.len() + lot.blocks.len() <= JOINED_BLOCKS_MAX => last.append(lot),
                _ => self.lots.push(lot),
            }
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lots.is_empty()
    }

    /// The space that they take.
    #[must_use]
    pub fn space(&self) -> SpaceDelta {
        let mut sum = SpaceDelta::default();
        self.lots.iter().for_each(|lot| sum.add(lot.space));
        sum
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Blkptr> {
        self.lots.iter().flat_map(|lot| &lot.blocks)
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.lots.iter().map(|lot| lot.blocks.len() as u64).sum()
    }

    /// Lots without a gang block and without one that the dedup table may have, and the blocks of the others.
    #[must_use]
    pub fn split_plain(self) -> (Self, Vec<Blkptr>) {
        let (plain, others): (Vec<Lot>, Vec<Lot>) = self.lots.into_iter().partition(|lot| lot.is_plain);
        (Self { lots: plain }, others.into_iter().flat_map(|lot| lot.blocks).collect())
    }

    /// Those that were born after a txg, and the others. `space_of` tells what a block takes, as it was told before.
    #[must_use]
    pub fn split_after(self, txg: Txg, space_of: impl Fn(&Blkptr) -> SpaceDelta) -> (Self, Self) {
        let (mut after, mut before) = (Self::default(), Self::default());
        for lot in self.lots {
            if lot.first_birth > txg {
                after.lots.push(lot);
            } else if lot.last_birth <= txg {
                before.lots.push(lot);
            } else {
                for bp in lot.blocks {
                    let half = if bp.logical_birth() > txg { &mut after } else { &mut before };
                    half.push(bp, space_of(&bp));
                }
            }
        }
        (after, before)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn space_of(bp: &Blkptr) -> SpaceDelta {
        let bytes = bp.psize_bytes() as i64;
        SpaceDelta { used_bytes: 2 * bytes, compressed_bytes: bytes, uncompressed_bytes: 3 * bytes }
    }

    fn block(birth: u64, sectors: u64) -> Blkptr {
        let mut bp = Blkptr::HOLE;
        bp.set_dedup(sectors == 7);
        bp.set_births(Txg(birth), Txg(birth));
        bp.set_lsize_bytes(1 << 20);
        bp.set_psize_bytes(sectors * 512);
        bp
    }

    proptest! {
        /// However blocks were gathered, each half has its blocks and no others, and what it is told to take is the sum of them.
        #[test]
        fn halves_have_what_they_should(
            gathered in prop::collection::vec((1_u64..9, prop::collection::vec((0_u64..30, 1_u64..100), 0..700)), 0..9),
            txg in 0_u64..30,
        ) {
            let mut all = Killed::default();
            let mut wanted: Vec<(u64, u64)> = Vec::new();
            for (spread, blocks) in gathered {
                let mut some = Killed::default();
                for (birth, sectors) in blocks {
                    // Lots with few births are those that are not looked into.
                    let birth = 1 + birth / spread;
                    wanted.push((birth, sectors));
                    let bp = block(birth, sectors);
                    some.push(bp, space_of(&bp));
                }
                all.append(some);
            }
            let seen = |killed: &Killed| {
                let mut seen: Vec<(u64, u64)> =
                    killed.iter().map(|bp| (bp.logical_birth().0, bp.psize_bytes() / 512)).collect();
                seen.sort_unstable();
                seen
            };
            let sum = |killed: &Killed| {
                let mut sum = SpaceDelta::default();
                killed.iter().for_each(|bp| sum.add(space_of(bp)));
                sum
            };
            wanted.sort_unstable();
            prop_assert_eq!(seen(&all), wanted.clone());
            prop_assert_eq!(all.space(), sum(&all));
            prop_assert_eq!(all.count(), wanted.len() as u64);
            let (plain, mut others) = all.clone().split_plain();
            prop_assert!(plain.iter().all(|bp| !bp.dedup()));
            prop_assert!(others.is_empty() || others.iter().any(Blkptr::dedup));
            others.extend(plain.iter());
            prop_assert_eq!(others.len(), wanted.len());
            let (after, before) = all.split_after(Txg(txg), space_of);
            let (later, earlier): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|(birth, _)| *birth > txg);
            prop_assert_eq!(seen(&after), later);
            prop_assert_eq!(seen(&before), earlier);
            prop_assert_eq!(after.space(), sum(&after));
            prop_assert_eq!(before.space(), sum(&before));
        }
    }
}
