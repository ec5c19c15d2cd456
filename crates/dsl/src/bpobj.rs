//! Changing lists of blocks (bpobjs): appending to them, putting one into another, and freeing them.
//!
//! ```text
//! bpobj ── pointers of blocks
//!       └─ array of lists below it ── bpobj ...      the sums in a list's header include all lists below
//! ```
//! A list that is put into another becomes one below it; a small list is copied instead, so lists do not nest deeply and there are few of
//! them.
//!
//! **The empty list.** A deadlist has an entry for each snapshot, and most have no blocks. These all refer to one list of the pool, which
//! remains empty (feature `empty_bpobj`, counted by reference: [`EmptyRefs`]). An entry gets a list of its own with its first block.

use std::collections::BTreeSet;

use cenote_dmu::{ORDER, Object, ObjectSpec, Run, SpaceDelta};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::{BpobjPhys, children};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::boxed;

use crate::Dsl;
use crate::DslError;

/// Data blocks of a bpobj, and of its array of lists.
const BLOCK_BYTES: u32 = 128 << 10;
/// Pointers in one block of a list, and lists in one block of its array. A list with at most these is copied.
const COPIED_POINTERS_MAX: u64 = BLOCK_BYTES as u64 / Blkptr::SIZE as u64;
const COPIED_LISTS_MAX: u64 = BLOCK_BYTES as u64 / 8;
/// Lists below one list at most, as a bound on a walk.
const LISTS_MAX: usize = 1 << 22;
/// Offset of the fill count in a stored pointer.
const FILL_OFFSET: usize = 88;
/// Offset of the checksum in it.
const CHECKSUM_OFFSET: usize = 96;

/// A block pointer as a list of blocks stores it: without the fields that only readers need, so that lists compress well.
fn stored(bp: &Blkptr) -> [u8; Blkptr::SIZE] {
    let whole = bp.emit(ORDER);
    let mut kept = whole;
    if bp.is_embedded() {
        kept.fill(0);
        // Its properties and its birth: they determine the space accounted for it.
        for word in [48, 80] {
            kept[word..word + 8].copy_from_slice(&whole[word..word + 8]);
        }
    } else if !bp.dedup() {
        kept[CHECKSUM_OFFSET..].fill(0);
    }
    kept[FILL_OFFSET..CHECKSUM_OFFSET].fill(0);
    kept
}

/// References to the pool's empty list that a change added and released, for the feature's count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmptyRefs {
    /// Added.
    pub taken: u64,
    /// Released.
    pub released: u64,
}

fn add(to: &mut u64, bytes: i64) {
    *to = to.saturating_add_signed(bytes);
}

impl Dsl {
    /// Makes an empty bpobj.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    pub fn create_bpobj(&self, txg: Txg) -> Result<ObjectId, DslError> {
        self.create_bpobj_with(txg, Self::empty_phys())
    }

    pub(crate) fn create_bpobj_with(&self, txg: Txg, phys: BpobjPhys) -> Result<ObjectId, DslError> {
        let spec = ObjectSpec::new(DmuType::BPOBJ, BLOCK_BYTES).with_bonus(DmuType::BPOBJ_HDR, phys.emit(ORDER));
        Ok(self.mos().create_object(txg, &spec)?.id())
    }

    /// The header of a list without blocks.
    pub(crate) fn empty_phys() -> BpobjPhys {
        BpobjPhys { compressed: Some([0; 2]), children: Some((ObjectId(0), 0)), ..BpobjPhys::default() }
    }

    /// An empty list for an entry of a deadlist: the pool's, where it has one.
    pub(crate) fn empty_list(&self, txg: Txg, refs: &mut EmptyRefs) -> Result<ObjectId, DslError> {
        match self.empty_bpobj() {
            Some(shared) => {
                refs.taken += 1;
                Ok(shared)
            }
            None => self.create_bpobj(txg),
        }
    }

    pub(crate) fn bpobj_phys(bpobj: &Object) -> Result<BpobjPhys, DslError> {
        let phys = bpobj.phys();
        if phys.bonus_type != DmuType::BPOBJ_HDR {
            return Err(DslError::Corrupt { object: bpobj.id().0, what: "it is no list of blocks".to_owned() });
        }
        BpobjPhys::parse(&phys.bonus, ORDER).map_err(|error| DslError::Format { object: bpobj.id().0, error })
    }

    /// The sum of a list's blocks and of those in the lists below it.
    pub(crate) fn space_of_list(phys: &BpobjPhys) -> SpaceDelta {
        let [compressed, uncompressed] = phys.compressed.unwrap_or_default();
        SpaceDelta {
            used_bytes: phys.bytes.cast_signed(),
            compressed_bytes: compressed.cast_signed(),
            uncompressed_bytes: uncompressed.cast_signed(),
        }
    }

    /// Appends blocks to a bpobj.
    ///
    /// # Errors
    /// It is no bpobj, or the MOS cannot be changed.
    #[boxed]
    pub(crate) async fn append_blocks(&self, txg: Txg, bpobj: &Object, blocks: &[Blkptr]) -> Result<(), DslError> {
        self.append_entries(txg, bpobj, blocks, false).await
    }

    /// Appends blocks to a bpobj. `are_gone`: the entries are a livelist's records of frees, which count against those of allocations.
    pub(crate) async fn append_entries(
        &self,
        txg: Txg,
        bpobj: &Object,
        blocks: &[Blkptr],
        are_gone: bool,
    ) -> Result<(), DslError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let fail = |error| DslError::Format { object: bpobj.id().0, error };
        let mut phys = BpobjPhys::parse(&bpobj.phys().bonus, ORDER).map_err(fail)?;
        debug_assert!(blocks.iter().all(|bp| !bp.is_hole()), "a hole is in no list of blocks");
        debug_assert!(
            blocks.iter().all(|bp| {
                let kept = Blkptr::from_array(&stored(bp), ORDER);
                self.space_of_all(&[kept]) == self.space_of_all(&[*bp]) && kept.dvas().eq(bp.dvas())
            }),
            "a block in a list counts, and lies, as it did in its dataset"
        );
        let entry = |bp| {
            let mut entry = stored(bp);
            let fill = ORDER.bytes64(u64::from(are_gone));
            entry[FILL_OFFSET..CHECKSUM_OFFSET].copy_from_slice(&fill);
            entry
        };
        let bytes: Vec<u8> = blocks.iter().flat_map(entry).collect();
        bpobj.write(txg, phys.blkptr_count.saturating_mul(Blkptr::SIZE as u64), &bytes).await?;
        phys.blkptr_count += blocks.len() as u64;
        let mut space = self.space_of_all(blocks);
        if are_gone {
            space = space.negated();
            let Some(gone) = &mut phys.freed_count else {
                let what = "a list of a livelist does not count what went".to_owned();
                return Err(DslError::Corrupt { object: bpobj.id().0, what });
            };
            *gone += blocks.len() as u64;
        }
        add(&mut phys.bytes, space.used_bytes);
        if let Some([compressed, uncompressed]) = &mut phys.compressed {
            add(compressed, space.compressed_bytes);
            add(uncompressed, space.uncompressed_bytes);
        }
        Ok(bpobj.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// The sizes of blocks, summed.
    pub(crate) fn space_of_all(&self, blocks: &[Blkptr]) -> SpaceDelta {
        let mut sum = SpaceDelta::default();
        blocks.iter().for_each(|bp| sum.add(self.open_part().writer.space_of(bp)));
        sum
    }

    /// Puts a list, with all lists below it, into another. An empty list is freed.
    ///
    /// # Errors
    /// One of them is no list, or the MOS cannot be changed.
    pub(crate) async fn enqueue_list(
        &self,
        txg: Txg,
        into: &Object,
        list: ObjectId,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        assert_ne!(Some(into.id()), self.empty_bpobj(), "the list that stands for all empty ones stays empty");
        if Some(list) == self.empty_bpobj() {
            refs.released += 1;
            return Ok(());
        }
        let source = self.mos().object(list).await?;
        let from = Self::bpobj_phys(&source)?;
        if from.is_empty() {
            source.free(txg);
            return Ok(());
        }
        let mut phys = Self::bpobj_phys(into)?;
        let Some((mut array, mut count)) = phys.children else {
            return Err(DslError::Unsupported("lists of blocks of pools before version 18".to_owned()));
        };
        let (below, below_count) = from.children.unwrap_or_default();
        let mut lists = Vec::new();
        let are_moved = below_count <= COPIED_LISTS_MAX;
        if are_moved && below_count > 0 {
            let below = self.mos().object(below).await?;
            lists.extend(children(&below.read(0, below_count as usize * 8).await?, ORDER));
            below.free(txg);
        }
        if are_moved && from.blkptr_count <= COPIED_POINTERS_MAX {
            let bytes = source.read(0, from.blkptr_count as usize * Blkptr::SIZE).await?;
            into.write(txg, phys.blkptr_count.saturating_mul(Blkptr::SIZE as u64), &bytes).await?;
            phys.blkptr_count += from.blkptr_count;
            source.free(txg);
        } else {
            if are_moved && below_count > 0 {
                // The lists that were below it become its siblings.
                let own = self.own_space(&lists, &from).await?;
                let mut alone = BpobjPhys { children: Some((ObjectId(0), 0)), ..from };
                set_space(&mut alone, own);
                source.set_bonus(txg, &alone.emit(ORDER))?;
            }
            lists.push(list);
        }
        if !lists.is_empty() {
            if array.0 == 0 {
                let spec = ObjectSpec::new(DmuType::BPOBJ_SUBOBJ, BLOCK_BYTES);
                array = self.mos().create_object(txg, &spec)?.id();
            }
            let bytes: Vec<u8> = lists.iter().flat_map(|list| ORDER.bytes64(list.0)).collect();
            self.mos().object(array).await?.write(txg, count.saturating_mul(8), &bytes).await?;
            count += lists.len() as u64;
        }
        phys.children = Some((array, count));
        let mut space = Self::space_of_list(&phys);
        space.add(Self::space_of_list(&from));
        set_space(&mut phys, space);
        Ok(into.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// The sum of a list's own blocks, without those of the lists below it.
    async fn own_space(&self, below: &[ObjectId], phys: &BpobjPhys) -> Result<SpaceDelta, DslError> {
        let mut own = Self::space_of_list(phys);
        for list in below {
            let list = self.mos().object(*list).await?;
            own.add(Self::space_of_list(&Self::bpobj_phys(&list)?).negated());
        }
        Ok(own)
    }

    /// Frees a list and all lists below it, but not the blocks in them.
    ///
    /// # Errors
    /// One is no list, or the MOS cannot be changed.
    pub(crate) async fn free_list(&self, txg: Txg, list: ObjectId, refs: &mut EmptyRefs) -> Result<(), DslError> {
        if Some(list) == self.empty_bpobj() {
            refs.released += 1;
            return Ok(());
        }
        let (mut left, mut seen) = (vec![list], BTreeSet::from([list]));
        while let Some(list) = left.pop() {
            let object = self.mos().object(list).await?;
            let (array, count) = Self::bpobj_phys(&object)?.children.unwrap_or_default();
            for below in children(&self.child_array(list, array, count).await?, ORDER) {
                if !seen.insert(below) || seen.len() > LISTS_MAX {
                    let what = "too many lists below it, or one twice".to_owned();
                    return Err(DslError::Corrupt { object: list.0, what });
                }
                left.push(below);
            }
            if array.0 != 0 {
                self.mos().object(array).await?.free(txg);
            }
            object.free(txg);
        }
        Ok(())
    }

    /// Takes at most `count_max` blocks from the end of a list, or of the last list below it. None if all are empty.
    ///
    /// # Errors
    /// It is no list, or the MOS cannot be changed.
    #[boxed]
    pub async fn take_blocks(&self, txg: Txg, list: &Object, count_max: u64) -> Result<Vec<Blkptr>, DslError> {
        let mut phys = Self::bpobj_phys(list)?;
        while phys.blkptr_count == 0 {
            let Some((array, count)) = phys.children.filter(|(_, count)| *count > 0) else { return Ok(Vec::new()) };
            let array = self.mos().object(array).await?;
            let at = (count - 1).saturating_mul(8);
            let last = children(&array.read(at, 8).await?, ORDER).next().unwrap_or_default();
            let below = self.mos().object(last).await?;
            let from = Self::bpobj_phys(&below)?;
            let (deeper, deeper_count) = from.children.unwrap_or_default();
            if from.blkptr_count > 0 {
                let taken = self.take_own(txg, &below, from, count_max).await?;
                let space = self.space_of_all(&taken);
                self.give_up_space(txg, list, phys, space)?;
                return Ok(taken);
            }
            // The lists below that one take its place. Everything is read before anything is changed.
            let bytes = self.child_array(last, deeper, deeper_count).await?;
            if deeper.0 != 0 {
                self.mos().object(deeper).await?.free(txg);
            }
            array.write(txg, at, &bytes).await?;
            below.free(txg);
            let left = count - 1 + deeper_count;
            phys.children = match left {
                0 => {
                    array.free(txg);
                    Some((ObjectId(0), 0))
                }
                _ => Some((array.id(), left)),
            };
            list.set_bonus(txg, &phys.emit(ORDER))?;
        }
        let taken = self.take_own(txg, list, phys, count_max).await?;
        Ok(taken)
    }

    /// The object numbers of the lists below a list, as stored.
    async fn child_array(&self, list: ObjectId, array: ObjectId, count: u64) -> Result<Vec<u8>, DslError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let count = usize::try_from(count).ok().filter(|count| *count <= LISTS_MAX);
        let too_many = || DslError::Corrupt { object: list.0, what: "too many lists below it".to_owned() };
        let len = count.ok_or_else(too_many)? * 8;
        let mut bytes = Vec::new();
        let mut stream = self.mos().object(array).await?.stream(0..len as u64, u64::from(BLOCK_BYTES));
        while let Some(run) = stream.next().await? {
            let Run::Data { block, .. } = run else {
                return Err(DslError::Corrupt { object: array.0, what: "an array of lists with a hole".to_owned() });
            };
            bytes.extend_from_slice(&block);
        }
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(DslError::Corrupt { object: array.0, what: "an array of lists that is too short".to_owned() }),
        }
    }

    /// Takes blocks from the end of a list's own.
    async fn take_own(
        &self,
        txg: Txg,
        list: &Object,
        mut phys: BpobjPhys,
        count_max: u64,
    ) -> Result<Vec<Blkptr>, DslError> {
        let count = phys.blkptr_count.min(count_max);
        let first = phys.blkptr_count - count;
        let size = Blkptr::SIZE as u64;
        let too_long = || DslError::Corrupt { object: list.id().0, what: "a list of blocks without an end".to_owned() };
        let at = first.checked_mul(size).ok_or_else(too_long)?;
        let bytes = list.read(at, (count * size) as usize).await?;
        let taken: Vec<Blkptr> = cenote_format::bpobj::blkptrs(&bytes, ORDER).collect();
        phys.blkptr_count = first;
        if first == 0 {
            list.truncate(txg);
        }
        let space = self.space_of_all(&taken);
        self.give_up_space(txg, list, phys, space)?;
        Ok(taken)
    }

    fn give_up_space(&self, txg: Txg, list: &Object, mut phys: BpobjPhys, space: SpaceDelta) -> Result<(), DslError> {
        let mut left = Self::space_of_list(&phys);
        left.add(space.negated());
        set_space(&mut phys, left);
        Ok(list.set_bonus(txg, &phys.emit(ORDER))?)
    }
}

fn set_space(phys: &mut BpobjPhys, space: SpaceDelta) {
    let bytes = |bytes: i64| bytes.max(0).cast_unsigned();
    phys.bytes = bytes(space.used_bytes);
    if let Some(sizes) = &mut phys.compressed {
        *sizes = [bytes(space.compressed_bytes), bytes(space.uncompressed_bytes)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_pointer_keeps_its_places_and_drops_what_readers_need() {
        let mut words = [0_u64; 16];
        // One copy, allocated, with a birth, a fill count and a checksum.
        (words[0], words[1], words[6]) = (8, 4096 >> 9, 1 << 63 | 7 << 40);
        (words[10], words[11]) = (77, 5);
        words[12..].fill(u64::MAX);
        let bp = Blkptr::from_words(words);
        let kept = Blkptr::from_array(&stored(&bp), ORDER);
        assert_eq!((kept.dva(0), kept.birth(), kept.fill()), (bp.dva(0), bp.birth(), 0));
        assert_eq!(kept.checksum_words(), [0; 4]);
        let mut shared = bp;
        shared.set_dedup(true);
        assert_eq!(Blkptr::from_array(&stored(&shared), ORDER).checksum_words(), [u64::MAX; 4]);
    }
}
