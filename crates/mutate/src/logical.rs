//! Damage behind the checksums: a filter that changes the logical bytes of chosen blocks.

use std::collections::HashMap;

use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_zio::Bookmark;
use cenote_zio::mutation::Filter;

use crate::pools::{PoolImages, Target};
use crate::random::{Random, spoil};

const SLOT_BYTES: usize = 512;
/// The fields of a dnode that say what it is: `dn_type` to `dn_used`.
const DNODE_HEAD_BYTES: usize = 40;
/// Where a dnode's pointers begin.
const DNODE_POINTERS: usize = 64;

/// Chooses blocks of the pool to change.
pub fn choose(pool: &PoolImages, random: &mut Random) -> Vec<Target> {
    let kinds: Vec<_> = pool.targets.values().collect();
    if kinds.is_empty() {
        return Vec::new();
    }
    (0..1 << random.below(3))
        .map(|_| {
            let kind = random.of(&kinds);
            *random.of(kind)
        })
        .collect()
}

/// A filter that changes these blocks, each the same way whenever it is read.
#[must_use]
pub fn filter(targets: &[Target], seed: u64) -> Filter {
    let chosen: HashMap<Bookmark, u64> =
        targets.iter().enumerate().map(|(index, target)| (target.bookmark, seed.wrapping_add(index as u64))).collect();
    Box::new(move |bp, bookmark, bytes| {
        let mut random = Random::new(*chosen.get(&bookmark)?);
        let mut changed = bytes.to_vec();
        for _ in 0..1 << random.below(5) {
            change(bp, bookmark, &mut changed, &mut random);
        }
        Some(changed)
    })
}

fn change(bp: &Blkptr, bookmark: Bookmark, bytes: &mut [u8], random: &mut Random) {
    let is_indirect = bookmark.level > 0;
    // The dnodes of the meta-dnode, and those in an objset's root block.
    let has_dnodes = bookmark.level == Bookmark::LEVEL_OBJSET || (bookmark.object.0 == 0 && bookmark.level == 0);
    match random.below(8) {
        0..=1 if is_indirect => {
            let slot = random.below(bytes.len() / Blkptr::SIZE) * Blkptr::SIZE;
            pointer(bp, bytes, slot, random);
        }
        0..=1 if has_dnodes => {
            let dnode = random.below(bytes.len() / SLOT_BYTES) * SLOT_BYTES;
            pointer(bp, bytes, dnode + DNODE_POINTERS, random);
        }
        2..=4 if has_dnodes => {
            let mut dnode = random.below(bytes.len() / SLOT_BYTES) * SLOT_BYTES;
            for _ in 0..8 {
                if bytes[dnode] != 0 {
                    break;
                }
                dnode = random.below(bytes.len() / SLOT_BYTES) * SLOT_BYTES;
            }
            match random.below(3) {
                0 => {
                    let at = dnode + random.below(16);
                    bytes[at] = random.hostile(u64::from(bytes[at])) as u8;
                }
                1 => spoil(&mut bytes[dnode..dnode + DNODE_HEAD_BYTES], random),
                _ => spoil(&mut bytes[dnode..dnode + SLOT_BYTES], random),
            }
        }
        _ => spoil(bytes, random),
    }
}

/// Puts a pointer at `at`: the block's own (a cycle, with a level that fits or not), or a changed one.
fn pointer(own: &Blkptr, bytes: &mut [u8], at: usize, random: &mut Random) {
    let Some(target) = bytes.get_mut(at..at + Blkptr::SIZE) else { return };
    if random.once_in(2) {
        target.copy_from_slice(&own.emit(Endian::Little));
        // Bits 56 to 60 of the seventh word are the level.
        if random.once_in(2) {
            target[55] = (target[55] & 0xe0) | (random.below(8) as u8);
        }
    } else {
        spoil(target, random);
    }
}
