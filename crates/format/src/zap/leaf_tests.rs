//! A leaf against a plain map: whatever is inserted, updated, removed and split must read back the same, and the leaf
//! must pass its own full check after every step. Damage of any kind must be an error, never a panic or a hang.

use super::*;
use crate::zap::{ZapFlags, ZapHasher, ZapKeyBuf};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE_BYTES: usize = 2048;

fn contents(leaf: &Leaf<'_>, words: bool) -> BTreeMap<ZapKeyBuf, ZapValue> {
    leaf.entries()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.key(words).unwrap(), entry.value().unwrap())
        })
        .collect()
}

fn any_value() -> impl Strategy<Value = ZapValue> {
    (0_u32..4, 0_usize..6, any::<[u8; 40]>()).prop_map(|(shift, count, bytes)| {
        let size = 1_usize << shift;
        ZapValue::from_stored(size as u8, bytes[..size * count.min(5)].to_vec()).unwrap()
    })
}

fn key_number(number: u16, words: bool) -> ZapKeyBuf {
    if words {
        ZapKeyBuf::Words(vec![u64::from(number), 3, 5])
    } else {
        let mut name = format!("{number}-").into_bytes();
        name.resize(name.len() + usize::from(number % 30), b'x');
        ZapKeyBuf::Name(name)
    }
}

proptest! {
    #[test]
    fn a_leaf_behaves_like_a_map(
        operations in proptest::collection::vec((0_u16..40, 0_u8..4, any_value()), 0..80),
        big in any::<bool>(),
        words in any::<bool>(),
        sorted in any::<bool>(),
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let mut block = vec![0xaa; SIZE_BYTES];
        let mut edit = LeafEdit::create(&mut block, endian, 0, 0, sorted).unwrap();
        let mut model = BTreeMap::new();
        for (number, operation, value) in operations {
            let key = key_number(number, words);
            // Few hashes, so that chains and differentiators are exercised.
            let hash = u64::from(number % 7) << 60;
            match operation {
                0 | 1 => match edit.insert(hash, key.as_key(), None, &value) {
                    Ok(_) => prop_assert!(model.insert(key, value).is_none()),
                    Err(ZapEditError::Exists) => prop_assert!(model.contains_key(&key)),
                    Err(ZapEditError::Full) => prop_assert!(edit.header().free_count < 8),
                    Err(error) => panic!("{error}"),
                },
                2 => match edit.update(hash, key.as_key(), &value) {
                    Ok(()) => prop_assert!(model.insert(key, value).is_some()),
                    Err(ZapEditError::NotFound) => prop_assert!(!model.contains_key(&key)),
                    Err(ZapEditError::Full) => {}
                    Err(error) => panic!("{error}"),
                },
                _ => prop_assert_eq!(edit.remove(hash, key.as_key()).ok(), model.remove(&key)),
            }
            let view = edit.view().unwrap();
            view.check().unwrap();
            prop_assert_eq!(&contents(&view, words), &model);
        }
        let cookies: Vec<_> = edit.view().unwrap().sorted().unwrap().iter().map(|e| (e.hash, e.cd)).collect();
        prop_assert!(cookies.windows(2).all(|pair| pair[0] < pair[1]));
        // Reopening checks everything and changes nothing.
        let before = block.clone();
        LeafEdit::open(&mut block, endian).unwrap();
        prop_assert_eq!(before, block);
    }

    #[test]
    fn a_split_parts_the_entries_by_the_next_bit(salt in 1_u64.., count in 0_u16..40, big in any::<bool>()) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let hasher = ZapHasher::new(salt, ZapFlags::empty());
        let mut block = vec![0; SIZE_BYTES];
        let mut sibling_block = vec![0; SIZE_BYTES];
        let mut edit = LeafEdit::create(&mut block, endian, 0, 0, false).unwrap();
        let mut model = BTreeMap::new();
        for number in 0..count {
            let key = key_number(number, false);
            let value = ZapValue::from_u64(u64::from(number));
            if edit.insert(hasher.key(key.as_key()), key.as_key(), None, &value).is_ok() {
                model.insert(key, value);
            }
        }
        let sibling = edit.split(&mut sibling_block).unwrap();
        let (low, high) = (edit.view().unwrap(), sibling.view().unwrap());
        low.check().unwrap();
        high.check().unwrap();
        prop_assert_eq!((low.header().prefix, low.header().prefix_len), (0, 1));
        prop_assert_eq!((high.header().prefix, high.header().prefix_len), (1, 1));
        let mut all = contents(&low, false);
        all.extend(contents(&high, false));
        prop_assert_eq!(all, model);
        prop_assert!(low.entries().all(|entry| entry.unwrap().hash >> 63 == 0));
        prop_assert!(high.entries().all(|entry| entry.unwrap().hash >> 63 == 1));
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic(
        hits in proptest::collection::vec((0_usize..SIZE_BYTES, any::<u8>()), 1..20),
    ) {
        let mut block = vec![0; SIZE_BYTES];
        let mut edit = LeafEdit::create(&mut block, Endian::Little, 0, 0, false).unwrap();
        for number in 0..12 {
            let key = key_number(number, false);
            edit.insert(u64::from(number) << 59, key.as_key(), None, &ZapValue::from_u64s(&[1, 2, 3])).unwrap();
        }
        for (offset, byte) in hits {
            block[offset] = byte;
        }
        if let Ok(leaf) = Leaf::parse(&block, Endian::Little) {
            let _ = leaf.check();
            let _ = leaf.sorted();
            for entry in leaf.entries().flatten() {
                let _ = (entry.name(), entry.words(), entry.value());
            }
        }
        let mut sibling = vec![0; SIZE_BYTES];
        if let Ok(mut edit) = LeafEdit::open(&mut block, Endian::Little) {
            let _ = edit.insert(0, ZapKey::Name(b"new"), None, &ZapValue::from_u64(1));
            let _ = edit.split(&mut sibling);
        }
    }
}

#[test]
fn loops_in_chains_end_in_errors() {
    let mut block = vec![0; 512];
    let mut edit = LeafEdit::create(&mut block, Endian::Little, 0, 0, false).unwrap();
    edit.insert(0, ZapKey::Name(b"a"), None, &ZapValue::from_bytes(&[7; 40])).unwrap();
    let geometry = edit.geometry;
    // Entry 0 follows itself; value chunk 2 follows itself.
    put_u16(&mut block, geometry.chunk_offset(0) + ENTRY_OFFSET_NEXT, 0, Endian::Little);
    put_u16(&mut block, geometry.chunk_offset(2) + CHUNK_OFFSET_NEXT, 2, Endian::Little);
    let leaf = Leaf::parse(&block, Endian::Little).unwrap();
    assert!(leaf.entries().any(|entry| entry.is_err()));
    assert!(leaf.check().is_err());
    assert!(LeafEdit::open(&mut block, Endian::Little).is_err());
}

#[test]
fn entries_too_big_are_refused_before_anything_changes() {
    let mut block = vec![0; 512];
    let mut edit = LeafEdit::create(&mut block, Endian::Little, 0, 0, false).unwrap();
    let big = ZapValue::from_bytes(&[1; 2000]);
    assert_eq!(edit.insert(0, ZapKey::Name(b"a"), None, &big), Err(ZapEditError::TooBig));
    let half = ZapValue::from_bytes(&[1; 200]);
    edit.insert(0, ZapKey::Name(b"a"), None, &half).unwrap();
    let before = edit.block.to_vec();
    assert_eq!(edit.insert(0, ZapKey::Name(b"b"), None, &half), Err(ZapEditError::Full));
    assert_eq!(edit.insert(0, ZapKey::Name(b"a"), None, &half), Err(ZapEditError::Exists));
    assert_eq!(edit.remove(0, ZapKey::Name(b"b")), Err(ZapEditError::NotFound));
    assert_eq!(before, edit.block);
}
