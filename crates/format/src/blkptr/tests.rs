use proptest::prelude::*;

use super::build::with_field;
use super::*;

fn normal() -> Blkptr {
    let mut bp = Blkptr::HOLE;
    bp.set_dva(0, Some(Dva { vdev: VdevId(3), offset_bytes: 0x1_2345_6600, asize_bytes: 0x2_0000, gang: false }));
    bp.set_dva(1, Some(Dva { vdev: VdevId(0xff_ffff), offset_bytes: 0x200, asize_bytes: 0x400, gang: false }));
    bp.set_lsize_bytes(0x2_0000);
    bp.set_psize_bytes(0x1_1000);
    bp.set_compress(Compress::Lz4);
    bp.set_checksum(Checksum::Fletcher4);
    bp.set_dmu_type(DmuType::PLAIN_FILE_CONTENTS);
    bp.set_level(0);
    bp.set_byte_order(Endian::Little);
    bp.set_births(Txg(100), Txg(90));
    bp.set_fill(1);
    bp.set_checksum_words([1, 2, 3, 4]);
    bp
}

#[test]
fn a_normal_block_pointer_has_the_documented_bytes() {
    let bp = normal();
    let bytes = bp.emit(Endian::Big);
    let word = |index: usize| Endian::Big.u64(bytes[index * 8..index * 8 + 8].try_into().unwrap());
    assert_eq!(word(0), 0x0000_0003_0000_0100);
    assert_eq!(word(1), 0x0091_a2b3);
    assert_eq!(word(2), 0x00ff_ffff_0000_0002);
    assert_eq!(word(3), 1);
    assert_eq!(word(6), 0x8013_070f_0087_00ff);
    assert_eq!(word(9), 90);
    assert_eq!(word(10), 100);
    assert_eq!(bp.dvas().count(), 2);
    assert_eq!(bp.asize_bytes(), 0x2_0400);
    assert_eq!((bp.lsize_bytes(), bp.psize_bytes()), (0x2_0000, 0x1_1000));
    assert_eq!((bp.physical_birth(), bp.logical_birth(), bp.birth()), (Txg(90), Txg(100), Txg(100)));
    assert_eq!(bp.kind(), BlkptrKind::Normal);
    bp.verify().unwrap();
    assert_eq!(
        bp.to_string(),
        "DVA[0]=<3:123456600:20000> DVA[1]=<16777215:200:400> [L0 ZFS plain file] fletcher4 lz4 unencrypted LE \
         contiguous unique double size=20000L/11000P birth=100L/90P fill=1 \
         cksum=0000000000000001:0000000000000002:0000000000000003:0000000000000004"
    );
}

#[test]
fn a_rewritten_block_was_born_when_it_was_written() {
    let mut bp = normal();
    bp.set_births(Txg(100), Txg(120));
    assert_eq!(bp.birth(), Txg(100));
    bp.words[PROP2] |= 1 << 63;
    assert_eq!(bp.birth(), Txg(120));
}

#[test]
fn zeros_are_a_hole_and_a_hole_may_have_a_birth() {
    let hole = Blkptr::parse(&[0; 128], Endian::Little).unwrap();
    assert!(hole.is_hole());
    assert_eq!(hole.kind(), BlkptrKind::Hole);
    assert_eq!(hole, Blkptr::HOLE);
    hole.verify().unwrap();
    let hole = Blkptr::hole_with_birth(DmuType::PLAIN_FILE_CONTENTS, 1, 0x2_0000, Txg(7));
    assert!(hole.is_hole());
    assert_eq!((hole.logical_birth(), hole.level(), hole.lsize_bytes()), (Txg(7), 1, 0x2_0000));
    assert_eq!(hole.dvas().count(), 0);
}

#[test]
fn encrypted_block_pointers_have_two_copies_and_parameters() {
    for order in [Endian::Little, Endian::Big] {
        let mut bp = normal();
        bp.set_byte_order(order);
        bp.set_crypt(true);
        bp.set_fill(1);
        let iv = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let mac = std::array::from_fn(|index| index as u8 + 0x40);
        bp.set_crypt_params([9; 8], iv, mac);
        assert!(bp.is_encrypted() && !bp.is_authenticated() && !bp.has_indirect_mac());
        let params = bp.crypt_params().unwrap();
        assert_eq!((params.salt_bytes, params.iv, params.mac), ([9; 8], iv, mac));
        assert_eq!(bp.fill(), 1);
        assert_eq!(bp.dvas().count(), 2);
        assert_eq!(bp.dva(2), None);
        assert_eq!(bp.checksum_words()[..2], [1, 2]);
        bp.set_level(1);
        assert!(bp.has_indirect_mac() && !bp.is_encrypted());
        assert_eq!(bp.crypt_params(), None);
        assert_eq!(bp.mac(), Some(mac));
        bp.set_level(0);
        bp.set_dmu_type(DmuType::MASTER_NODE);
        assert!(bp.is_authenticated());
    }
}

#[test]
fn embedded_payloads_are_little_endian_streams_in_either_order() {
    for order in [Endian::Little, Endian::Big] {
        for len in [1, 7, 8, 48, 49, 72, 80, 111, 112] {
            let payload: Vec<u8> = (0..len).map(|index| index as u8 ^ 0x5a).collect();
            let bp =
                Blkptr::embedded(DmuType::PLAIN_FILE_CONTENTS, 0, Compress::Lz4, 131_072, &payload, Txg(55), order);
            let bp = Blkptr::parse(&bp.emit(order), order).unwrap();
            bp.verify().unwrap();
            assert_eq!(bp.embedded_payload().unwrap().as_bytes(), payload);
            assert_eq!((bp.lsize_bytes(), bp.psize_bytes(), bp.fill()), (131_072, 0, 1));
            assert_eq!((bp.logical_birth(), bp.physical_birth()), (Txg(55), Txg(0)));
            assert!(!bp.is_hole() && !bp.is_gang());
            assert_eq!(bp.dvas().count(), 0);
            assert_eq!(bp.checksum(), Some(Checksum::Off));
        }
    }
}

#[test]
fn redacted_block_pointers_have_no_payload() {
    let bp = Blkptr::redacted(DmuType::PLAIN_FILE_CONTENTS, 131_072, Txg(9));
    assert!(bp.is_redacted() && bp.is_embedded());
    assert_eq!(bp.embedded_payload(), None);
    assert_eq!(bp.lsize_bytes(), 0);
    bp.verify().unwrap();
}

#[test]
fn nonsense_parses_but_does_not_verify() {
    let mut bp = normal();
    bp.set_dmu_type(DmuType(60));
    assert!(bp.verify().is_err());
    let mut bp = normal();
    bp.words[PROP] = with_field(bp.words[PROP], 32, 7, 99);
    assert!(bp.verify().is_err());
    let mut bp = normal();
    bp.words[PROP] = with_field(bp.words[PROP], 40, 8, 99);
    assert!(bp.verify().is_err());
    let mut bp = normal();
    bp.set_lsize_bytes(32 << 20);
    assert!(bp.verify().is_err());
    let mut bp = normal();
    bp.set_dva(0, None);
    bp.words[1] = 5;
    assert!(bp.verify().is_err());
    let embedded = Blkptr::from_words(std::array::from_fn(|_| u64::MAX));
    assert!(embedded.verify().is_err());
    assert_eq!(embedded.embedded_payload(), None);
    assert!(Blkptr::parse(&[0; 127], Endian::Big).is_err());
    assert!(Blkptr::nth(&[0; 128], usize::MAX, Endian::Big).is_err());
}

#[test]
fn a_gang_bit_counts_only_outside_embedded_payloads() {
    let mut bp = normal();
    bp.set_dva(0, Some(Dva { gang: true, ..bp.dva(0).unwrap() }));
    assert!(bp.is_gang());
    assert_eq!(bp.kind(), BlkptrKind::Gang);
    let bp = Blkptr::embedded(DmuType::ZVOL, 0, Compress::Off, 112, &[0xff; 112], Txg(1), Endian::Big);
    assert!(!bp.is_gang());
}

proptest! {
    #[test]
    fn any_words_round_trip_in_both_orders(words in any::<[u64; 16]>()) {
        let bp = Blkptr::from_words(words);
        for order in [Endian::Little, Endian::Big] {
            prop_assert_eq!(Blkptr::parse(&bp.emit(order), order).unwrap(), bp);
        }
        let little = bp.emit(Endian::Little);
        let mut big = bp.emit(Endian::Big);
        for word in big.chunks_mut(8) {
            word.reverse();
        }
        prop_assert_eq!(little, big);
        // No accessor panics.
        let _ = (bp.to_string(), bp.verify(), bp.crypt_params(), bp.mac(), bp.embedded_payload(), bp.kind());
        let _ = (bp.fill(), bp.birth(), bp.asize_bytes(), bp.is_metadata(), bp.lsize_bytes(), bp.psize_bytes());
    }

    #[test]
    fn any_dva_round_trips(vdev in 0u32..1 << 24, sectors in 0u64..1 << 55, asize in 1u64..1 << 24, gang: bool) {
        let dva = Dva { vdev: VdevId(vdev), offset_bytes: sectors << 9, asize_bytes: asize << 9, gang };
        prop_assert_eq!(Dva::from_words(dva.words()), Some(dva));
    }
}
