//! Deadlists that are written: blocks that a head gave up and its snapshot still has.
//!
//! ```text
//! deadlist (ZAP: txg of a snapshot in hexadecimal ─► bpobj)      a block goes to the entry of the newest snapshot
//!   0000 ─► bpobj    blocks born after txg 0, up to the next       before its birth: when that snapshot goes, exactly
//!   0a31 ─► bpobj    blocks born after txg 0xa31, …                 these lists are looked at
//! ```
//! An entry without blocks may name the one empty bpobj of the pool; it gets its own with the first block.

use std::collections::BTreeMap;

use cenote_dmu::{Object, SpaceDelta, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DeadlistPhys;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};

use crate::Dsl;
use crate::DslError;
use crate::open::ORDER;

/// Entries of one deadlist at most: one a snapshot.
const ENTRIES_MAX: usize = 1 << 22;
/// Offset of the fill count in a stored pointer.
const FILL_OFFSET: usize = 88;
/// Offset of the checksum in it.
const CHECKSUM_OFFSET: usize = 96;

/// A block pointer as a list of blocks keeps it: without what only matters to a reader, so that lists compress well.
fn stored(bp: &Blkptr) -> [u8; Blkptr::SIZE] {
    let whole = bp.emit(ORDER);
    let mut kept = whole;
    if bp.is_embedded() {
        kept.fill(0);
        // What it is, and its birth: they say how much is accounted for.
        for word in [48, 80] {
            kept[word..word + 8].copy_from_slice(&whole[word..word + 8]);
        }
    } else if !bp.dedup() {
        kept[CHECKSUM_OFFSET..].fill(0);
    }
    kept[FILL_OFFSET..CHECKSUM_OFFSET].fill(0);
    kept
}

fn add(to: &mut u64, bytes: i64) {
    *to = to.saturating_add_signed(bytes);
}

impl Dsl {
    /// Appends blocks to a bpobj.
    ///
    /// # Errors
    /// It is none, or the MOS cannot be changed.
    pub async fn append_blocks(&self, txg: Txg, bpobj: &Object, blocks: &[Blkptr]) -> Result<(), DslError> {
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
        let bytes: Vec<u8> = blocks.iter().flat_map(stored).collect();
        bpobj.write(txg, phys.blkptr_count.saturating_mul(Blkptr::SIZE as u64), &bytes).await?;
        phys.blkptr_count += blocks.len() as u64;
        let space = self.space_of_all(blocks);
        add(&mut phys.bytes, space.used_bytes);
        if let Some([compressed, uncompressed]) = &mut phys.compressed {
            add(compressed, space.compressed_bytes);
            add(uncompressed, space.uncompressed_bytes);
        }
        Ok(bpobj.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// The sum of blocks.
    pub(crate) fn space_of_all(&self, blocks: &[Blkptr]) -> SpaceDelta {
        let mut sum = SpaceDelta::default();
        blocks.iter().for_each(|bp| sum.add(self.open_part().writer.space_of(bp)));
        sum
    }

    /// Puts blocks into a deadlist. How many of its entries had shared the pool's empty list comes back.
    pub(crate) async fn insert_dead(&self, txg: Txg, deadlist: ObjectId, blocks: &[Blkptr]) -> Result<u64, DslError> {
        let object = self.mos().object(deadlist).await?;
        if object.phys().bonus_type != DmuType::DEADLIST_HDR {
            return Err(DslError::Unsupported("deadlists of pools before version 26".to_owned()));
        }
        let zap = Zap::open(object.clone()).await?;
        let mut lists = BTreeMap::new();
        for entry in zap.entries(ENTRIES_MAX).await? {
            let first = std::str::from_utf8(entry.name()).ok().and_then(|name| u64::from_str_radix(name, 16).ok());
            match (first, entry.value.as_u64()) {
                (Some(first), Some(bpobj)) => drop(lists.insert(Txg(first), (ObjectId(bpobj), Vec::new()))),
                _ => {
                    let what = "an entry of a deadlist is no txg and object".to_owned();
                    return Err(DslError::Corrupt { object: deadlist.0, what });
                }
            }
        }
        for bp in blocks {
            let before = lists.range(..bp.logical_birth()).next_back().map(|(first, _)| *first);
            let first = before.or_else(|| lists.first_key_value().map(|(first, _)| *first));
            let Some((_, list)) = first.and_then(|first| lists.get_mut(&first)) else {
                return Err(DslError::Corrupt { object: deadlist.0, what: "a deadlist without entries".to_owned() });
            };
            list.push(*bp);
        }
        let listed: usize = lists.values().map(|(_, list)| list.len()).sum();
        assert_eq!(listed, blocks.len(), "a block goes to one list");
        let mut replaced = 0;
        for (first, (mut bpobj, blocks)) in lists {
            if blocks.is_empty() {
                continue;
            }
            if Some(bpobj) == self.empty_bpobj() {
                bpobj = self.create_bpobj(txg)?;
                Zap::put_entry(&object, txg, &int_key_name(first.0), Some(&ZapValue::from_u64(bpobj.0))).await?;
                replaced += 1;
            }
            self.append_blocks(txg, &self.mos().object(bpobj).await?, &blocks).await?;
        }
        let phys = DeadlistPhys::parse(&object.phys().bonus, ORDER);
        let mut phys = phys.map_err(|error| DslError::Format { object: deadlist.0, error })?;
        let space = self.space_of_all(blocks);
        add(&mut phys.used_bytes, space.used_bytes);
        add(&mut phys.compressed_bytes, space.compressed_bytes);
        add(&mut phys.uncompressed_bytes, space.uncompressed_bytes);
        object.set_bonus(txg, &phys.emit(ORDER))?;
        Ok(replaced)
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
