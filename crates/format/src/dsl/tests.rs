//! Round trips of every structure of words, in both byte orders, and of names.

use super::*;
use crate::endian::Endian;
use crate::ids::{Guid, ObjectId};
use crate::zap::ZapValue;
use proptest::prelude::*;
use std::collections::BTreeMap;

macro_rules! word_structs_round_trip {
    ($($test:ident: $type:ident;)*) => {
        proptest! {$(
            #[test]
            fn $test(bytes in proptest::collection::vec(any::<u8>(), 0..400), big in any::<bool>()) {
                let endian = if big { Endian::Big } else { Endian::Little };
                match $type::parse(&bytes, endian) {
                    Ok(value) => {
                        let emitted = value.emit(endian);
                        let fields = $type::FIELDS_SIZE_BYTES;
                        prop_assert_eq!(&emitted[..fields], &bytes[..fields]);
                        prop_assert!(emitted[fields..].iter().all(|byte| *byte == 0));
                        prop_assert_eq!($type::parse(&value.emit(endian.swapped()), endian.swapped()).unwrap(), value);
                    }
                    Err(_) => prop_assert!(bytes.len() < $type::FIELDS_SIZE_BYTES),
                }
            }
        )*}
    };
}

word_structs_round_trip! {
    directories_round_trip: DslDirPhys;
    datasets_round_trip: DslDatasetPhys;
    deadlists_round_trip: DeadlistPhys;
    bookmarks_round_trip: BookmarkPhys;
    scans_round_trip: ScanPhys;
    rebuilds_round_trip: RebuildPhys;
    error_scrubs_round_trip: ErrorScrubPhys;
}

#[test]
fn fields_lie_where_other_implementations_look() {
    // Offsets from the start of the bonus, as a debugger shows them.
    let mut bytes = [0; 320];
    bytes[8] = 7;
    bytes[80] = 8;
    bytes[144] = 9;
    let dir = DslDirPhys::parse(&bytes, Endian::Little).unwrap();
    assert_eq!((dir.head_dataset, dir.properties, dir.clones), (ObjectId(7), ObjectId(8), ObjectId(9)));
    let mut bytes = [0; 320];
    bytes[64] = 1;
    bytes[112] = 2;
    bytes[256] = 3;
    bytes[272] = 4;
    let dataset = DslDatasetPhys::parse(&bytes, Endian::Little).unwrap();
    assert_eq!((dataset.deadlist, dataset.guid), (ObjectId(1), Guid(2)));
    assert_eq!((dataset.next_clones, dataset.user_refs), (ObjectId(3), ObjectId(4)));
    assert_eq!(ScanPhys::FIELDS_SIZE_BYTES, 24 * 8);
    assert_eq!(RebuildPhys::FIELDS_SIZE_BYTES, 12 * 8);
    assert_eq!(BookmarkPhys::FIELDS_SIZE_BYTES, 12 * 8);
}

#[test]
fn short_bookmarks_are_filled_with_zeros_and_written_short() {
    let bookmark = BookmarkPhys::from_words(&[1, 2, 3]).unwrap();
    assert_eq!(bookmark.words(), [1, 2, 3]);
    let long = BookmarkPhys { ivset_guid: 5, ..bookmark };
    assert_eq!(long.words().len(), 12);
    assert_eq!(BookmarkPhys::from_words(&long.words()).unwrap(), long);
    assert!(BookmarkPhys::from_words(&[1, 2]).is_err());
    assert!(BookmarkPhys::from_words(&[0; 13]).is_err());
}

#[test]
fn property_names_part_into_name_and_variant() {
    for entry in
        [PropertyEntry::Local, PropertyEntry::Received, PropertyEntry::Inherited, PropertyEntry::IgnoreUnknownValue]
    {
        assert_eq!(split_property(&entry.name("org.example:x")), ("org.example:x", entry));
    }
}

#[test]
fn wrapped_keys_round_trip_and_wrong_sizes_are_errors() {
    let key = CryptoKeyPhys {
        suite: CryptSuite::Aes256Gcm,
        guid: Guid(1),
        version: 1,
        root_dir: ObjectId(2),
        refcount: 1,
        key_format: KeyFormat::Passphrase,
        pbkdf2_salt: 7,
        pbkdf2_iterations: 350_000,
        iv: [3; 12],
        mac: [4; 16],
        master_key: [5; 32],
        hmac_key: [6; 64],
    };
    let mut entries: BTreeMap<_, _> = key.to_zap().into_iter().collect();
    assert_eq!(CryptoKeyPhys::from_zap(|name| entries.get(name).cloned()), Ok(key.clone()));
    entries.insert(crypto_key::MAC, ZapValue::from_bytes(&[4; 15]));
    assert!(CryptoKeyPhys::from_zap(|name| entries.get(name).cloned()).is_err());
    entries.insert(crypto_key::MAC, ZapValue::from_bytes(&[4; 16]));
    entries.insert(crypto_key::SUITE, ZapValue::from_u64(2));
    assert!(CryptoKeyPhys::from_zap(|name| entries.get(name).cloned()).is_err());
}

#[test]
fn suites_and_key_formats_have_a_number_and_a_name_each() {
    for suite in CryptSuite::ALL {
        assert_eq!(CryptSuite::from_number(suite.number()), Some(*suite));
        assert_eq!(CryptSuite::from_name(suite.name()), Some(*suite));
    }
    for format in KeyFormat::ALL {
        assert_eq!(KeyFormat::from_number(format.number()), Some(*format));
        assert_eq!(KeyFormat::from_name(format.name()), Some(*format));
    }
    assert_eq!((CryptSuite::ALL.len(), KeyFormat::ALL.len()), (6, 3));
    // 0 to 2 are inherit, on and off.
    for number in [0, 1, 2, 9, 256 + 8, u64::MAX] {
        assert_eq!(CryptSuite::from_number(number), None);
    }
    assert_eq!(KeyFormat::from_number(0), None);
}

proptest! {
    #[test]
    fn redaction_lists_round_trip(
        words in any::<[u64; 3]>(),
        guids in proptest::collection::vec(any::<u64>().prop_map(Guid), 0..5),
        sectors in 0_u32..0xffff,
        big in any::<bool>(),
    ) {
        let endian = if big { Endian::Big } else { Endian::Little };
        let list = RedactionListPhys {
            last_object: words[0], last_block: words[1], entry_count: words[2], snapshots: guids,
        };
        let bonus = list.emit(endian);
        prop_assert_eq!(RedactionListPhys::parse(&bonus, endian).unwrap(), list.clone());
        if !list.snapshots.is_empty() {
            prop_assert!(RedactionListPhys::parse(&bonus[..bonus.len() - 1], endian).is_err());
        }
        let entry = RedactBlock {
            object: ObjectId(words[0]), block: words[1], block_size_bytes: sectors << 9, block_count: (words[2] >> 16) + 1,
        };
        prop_assert_eq!(RedactBlock::parse(&entry.emit(endian), endian).unwrap(), entry);
    }
}
