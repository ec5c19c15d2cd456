//! Tests of dnodes, and dnodes for tests.

use proptest::prelude::*;

use super::*;

pub(crate) fn any_dnode(endian: Endian) -> impl Strategy<Value = DnodePhys> {
    let shape = (1u8..=3, 0u8..32, any::<bool>()).prop_flat_map(|(count, extra, spill)| {
        let room = bonus_capacity_bytes(usize::from(extra) + 1) - (usize::from(count) - 1) * Blkptr::SIZE;
        let spill = spill && room >= Blkptr::SIZE;
        let room = room - if spill { Blkptr::SIZE } else { 0 };
        (Just(count), Just(extra), Just(spill), proptest::collection::vec(any::<u8>(), 0..=room))
    });
    let rest = (1u8..54, 1u8..=12, 10u8..=24, any::<u8>(), 1u16..=32768, any::<u64>(), any::<u64>());
    (shape, rest, any::<[[u64; 16]; 4]>()).prop_map(move |((count, extra, spill, bonus), rest, words)| DnodePhys {
        object_type: DmuType(rest.0),
        indirect_block_shift: rest.2,
        levels: rest.1,
        blkptr_count: count,
        bonus_type: DmuType::SA,
        checksum: rest.3,
        compress: rest.3.rotate_left(3),
        flags: (DnodeFlags::from_bits_retain(rest.3) - DnodeFlags::SPILL_BLKPTR)
            | if spill { DnodeFlags::SPILL_BLKPTR } else { DnodeFlags::empty() },
        data_block_sectors: rest.4,
        extra_slots: extra,
        max_block_id: rest.5,
        used: rest.6,
        blkptrs: std::array::from_fn(|index| {
            if index < usize::from(count) { Blkptr::from_words(words[index]) } else { Blkptr::HOLE }
        }),
        bonus: bonus.into(),
        spill: spill.then(|| Blkptr::from_words(words[3])),
        endian,
    })
}

fn plain() -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..16].copy_from_slice(&[19, 17, 1, 1, 44, 0, 0, 3, 0, 1, 168, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn golden_bytes_of_a_small_file_decode() {
    let dnode = DnodePhys::parse(&plain(), Endian::Little).unwrap();
    assert_eq!(dnode.object_type, DmuType::PLAIN_FILE_CONTENTS);
    assert_eq!(dnode.bonus_type, DmuType::SA);
    assert_eq!((dnode.data_block_bytes(), dnode.bonus.len(), dnode.levels), (131_072, 168, 1));
    assert_eq!(dnode.flags, DnodeFlags::USED_BYTES | DnodeFlags::USERUSED_ACCOUNTED);
    assert_eq!(dnode.spill, None);
    assert_eq!(dnode.emit(), plain());
}

#[test]
fn a_free_slot_is_none_and_every_rule_is_checked() {
    assert!(DnodeView::parse(&[0; 512], Endian::Little).unwrap().is_none());
    assert!(DnodeView::parse(&[0; 511], Endian::Little).is_err());
    assert!(DnodePhys::parse(&[0; 512], Endian::Little).is_err());
    for (offset, value) in [
        (TYPE, 60),
        (BLKPTR_COUNT, 0),
        (BLKPTR_COUNT, 4),
        (LEVELS, 0),
        (LEVELS, 13),
        (INDIRECT_SHIFT, 25),
        (EXTRA_SLOTS, 1),
        (EXTRA_SLOTS, 255),
        (BONUS_LEN + 1, 2),
        (DATA_BLOCK_SECTORS + 1, 0),
        (BONUS_TYPE, 99),
    ] {
        let mut bytes = plain();
        bytes[offset] = value;
        assert!(DnodeView::parse(&bytes, Endian::Little).is_err(), "byte {offset} = {value}");
    }
    let mut bytes = plain();
    bytes[FLAGS] |= DnodeFlags::SPILL_BLKPTR.bits();
    bytes[BONUS_LEN] = 200;
    assert!(DnodeView::parse(&bytes, Endian::Little).is_err(), "bonus runs into the spill pointer");
}

#[test]
fn a_walk_skips_free_and_inner_slots_and_survives_damage() {
    let mut block = vec![0; 16384];
    let mut large = plain();
    large[EXTRA_SLOTS] = 2;
    block[512..1024].copy_from_slice(&large);
    block[1024..2048].fill(0x77); // inside the large dnode
    block[2048..2560].fill(0xff); // damaged
    block[16384 - 512..].copy_from_slice(&plain());
    let found: Vec<_> = dnodes_in_block(&block, Endian::Little).map(|(slot, dnode)| (slot, dnode.is_ok())).collect();
    assert_eq!(found, [(1, true), (4, false), (31, true)]);
}

proptest! {
    #[test]
    fn every_valid_dnode_round_trips(little in any_dnode(Endian::Little), big in any_dnode(Endian::Big)) {
        for dnode in [little, big] {
            let bytes = dnode.emit();
            prop_assert_eq!(bytes.len(), dnode.slots() * 512);
            prop_assert_eq!(DnodePhys::parse(&bytes, dnode.endian).unwrap(), dnode);
        }
    }

    #[test]
    fn any_bytes_are_a_dnode_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), kind in 1u8..54) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(Some(view)) = DnodeView::parse(&bytes, Endian::Big) {
            let value = view.to_value();
            prop_assert_eq!(DnodePhys::parse(&value.emit(), Endian::Big).unwrap(), value);
        }
    }
}
