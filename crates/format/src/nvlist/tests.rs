use proptest::prelude::*;

use super::*;
use crate::error::FormatErrorKind;

fn text() -> impl Strategy<Value = NvString> {
    proptest::collection::vec(1u8.., 0..12).prop_map(|bytes| NvString::new(&bytes))
}

fn vec<T: fmt::Debug>(item: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec(item, 0..5)
}

fn leaf() -> impl Strategy<Value = NvValue> {
    let scalars = prop_oneof![
        Just(NvValue::Boolean),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u16>().prop_map(NvValue::Uint16),
        any::<i32>().prop_map(NvValue::Int32),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<i64>().prop_map(NvValue::Int64),
        any::<u64>().prop_map(NvValue::Uint64),
        text().prop_map(NvValue::String),
        any::<i64>().prop_map(NvValue::Hrtime),
        any::<bool>().prop_map(NvValue::BooleanValue),
        any::<i8>().prop_map(NvValue::Int8),
        any::<u8>().prop_map(NvValue::Uint8),
        any::<u64>().prop_map(NvValue::Double),
    ];
    let arrays = prop_oneof![
        vec(any::<u8>()).prop_map(NvValue::ByteArray),
        vec(any::<i16>()).prop_map(NvValue::Int16Array),
        vec(any::<u16>()).prop_map(NvValue::Uint16Array),
        vec(any::<i32>()).prop_map(NvValue::Int32Array),
        vec(any::<u32>()).prop_map(NvValue::Uint32Array),
        vec(any::<i64>()).prop_map(NvValue::Int64Array),
        vec(any::<u64>()).prop_map(NvValue::Uint64Array),
        vec(text()).prop_map(NvValue::StringArray),
        vec(any::<bool>()).prop_map(NvValue::BooleanArray),
        vec(any::<i8>()).prop_map(NvValue::Int8Array),
        vec(any::<u8>()).prop_map(NvValue::Uint8Array),
    ];
    prop_oneof![scalars, arrays]
}

fn list_of(value: impl Strategy<Value = NvValue>) -> impl Strategy<Value = NvList> {
    (proptest::collection::vec((text(), value), 0..4), 0u32..3).prop_map(|(pairs, flags)| NvList { flags, pairs })
}

fn any_list() -> impl Strategy<Value = NvList> {
    let value = leaf().prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            list_of(inner.clone()).prop_map(NvValue::Nvlist),
            vec(list_of(inner)).prop_map(NvValue::NvlistArray),
        ]
    });
    list_of(value)
}

/// The same list from OpenZFS's libnvpair: {"n": 5 (uint64), "s": "hi", "l": {"b": true}}.
fn sample() -> NvList {
    let mut inner = NvList::new();
    inner.push("b", NvValue::Boolean);
    let mut list = NvList::new();
    list.push("n", 5);
    list.push("s", "hi");
    list.push("l", inner);
    list
}

#[test]
fn xdr_has_the_documented_bytes() {
    #[rustfmt::skip]
    let expected = [
        1, 1, 0, 0,  0, 0, 0, 0,  0, 0, 0, 1,
        0, 0, 0, 32,  0, 0, 0, 32,  0, 0, 0, 1,  b'n', 0, 0, 0,  0, 0, 0, 8,  0, 0, 0, 1,  0, 0, 0, 0,  0, 0, 0, 5,
        0, 0, 0, 32,  0, 0, 0, 32,  0, 0, 0, 1,  b's', 0, 0, 0,  0, 0, 0, 9,  0, 0, 0, 1,  0, 0, 0, 2,  b'h', b'i', 0, 0,
        0, 0, 0, 64,  0, 0, 0, 48,  0, 0, 0, 1,  b'l', 0, 0, 0,  0, 0, 0, 19,  0, 0, 0, 1,
            0, 0, 0, 0,  0, 0, 0, 1,
            0, 0, 0, 24,  0, 0, 0, 24,  0, 0, 0, 1,  b'b', 0, 0, 0,  0, 0, 0, 1,  0, 0, 0, 0,
            0, 0, 0, 0,  0, 0, 0, 0,
        0, 0, 0, 0,  0, 0, 0, 0,
    ];
    assert_eq!(sample().emit_xdr(), expected);
    assert_eq!(NvList::parse_prefix(&expected).unwrap(), (sample(), expected.len()));
}

#[test]
fn native_has_the_documented_bytes() {
    #[rustfmt::skip]
    let expected = [
        0, 1, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,
        32, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,  8, 0, 0, 0,  b'n', 0, 0, 0, 0, 0, 0, 0,  5, 0, 0, 0, 0, 0, 0, 0,
        32, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,  9, 0, 0, 0,  b's', 0, 0, 0, 0, 0, 0, 0,  b'h', b'i', 0, 0, 0, 0, 0, 0,
        48, 0, 0, 0,  2, 0, 0, 0,  1, 0, 0, 0,  19, 0, 0, 0,  b'l', 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,  1, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
            24, 0, 0, 0,  2, 0, 0, 0,  0, 0, 0, 0,  1, 0, 0, 0,  b'b', 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0,
        0, 0, 0, 0,
    ];
    assert_eq!(sample().emit_native(Endian::Little), expected);
    assert_eq!(NvList::parse_prefix(&expected).unwrap(), (sample(), expected.len()));
}

#[test]
fn lookups_find_by_name_and_type() {
    let list = sample();
    assert_eq!(list.u64("n"), Some(5));
    assert_eq!(list.str("s"), Some("hi"));
    assert_eq!(list.u64("s"), None);
    assert!(list.list("l").unwrap().has("b"));
    assert!(!list.has("absent"));
    assert_eq!(list.iter().len(), 3);
}

#[test]
fn unique_names_replace() {
    let mut list = sample();
    list.push("n", 6);
    assert_eq!((list.len(), list.u64("n")), (3, Some(6)));
    assert!(list.remove("n") && !list.remove("n"));
    let mut list = NvList::with_flags(NvList::UNIQUE_NAME_TYPE);
    list.push("n", 6);
    list.push("n", "six");
    list.push("n", 7);
    assert_eq!((list.len(), list.u64("n"), list.str("n")), (2, Some(7), Some("six")));
}

#[test]
fn nesting_beyond_the_bound_is_an_error_and_within_it_is_not() {
    let nest = |depth| {
        (0..depth).fold(NvList::new(), |inner, _| {
            let mut list = NvList::new();
            list.push("l", inner);
            list
        })
    };
    for bytes in [nest(MAX_DEPTH).emit_xdr(), nest(MAX_DEPTH).emit_native(Endian::Big)] {
        assert!(NvList::parse(&bytes).is_ok());
    }
    for bytes in [nest(MAX_DEPTH + 1).emit_xdr(), nest(MAX_DEPTH + 1).emit_native(Endian::Big)] {
        assert!(matches!(NvList::parse(&bytes).unwrap_err().kind, FormatErrorKind::Limit { .. }));
    }
}

#[test]
fn a_count_beyond_the_input_is_refused_before_memory_is_set_aside() {
    let mut list = NvList::new();
    list.push("a", NvValue::Uint64Array(vec![1]));
    let mut bytes = list.emit_xdr();
    // The pair's count and the array's.
    let at = bytes.len() - 8 - 8 - 8;
    bytes[at..at + 8].fill(0xff);
    assert!(matches!(NvList::parse(&bytes).unwrap_err().kind, FormatErrorKind::Limit { .. }));
}

#[test]
fn names_are_bounded() {
    let mut list = NvList::new();
    list.push("n".repeat(MAX_NAME_BYTES).as_str(), 5);
    for bytes in [list.emit_xdr(), list.emit_native(Endian::Little)] {
        assert_eq!(NvList::parse(&bytes).unwrap(), list);
    }
    let mut bytes = list.emit_xdr();
    let len = MAX_NAME_BYTES as u32 + 1;
    bytes[20..24].copy_from_slice(&len.to_be_bytes());
    bytes[24 + MAX_NAME_BYTES] = b'n';
    assert!(matches!(NvList::parse(&bytes).unwrap_err().kind, FormatErrorKind::Limit { .. }));
}

#[test]
fn headers_and_encodings_are_checked() {
    assert!(NvList::parse(&[]).is_err());
    assert!(NvList::parse(&[2, 1, 0, 0]).is_err());
    assert!(NvList::parse(&[1, 2, 0, 0]).is_err());
    assert!(NvList::parse_xdr(&sample().emit_native(Endian::Little)).is_err());
}

proptest! {
    #[test]
    fn lists_round_trip_in_all_encodings(list in any_list()) {
        for bytes in [list.emit_xdr(), list.emit_native(Endian::Little), list.emit_native(Endian::Big)] {
            let mut padded = bytes.clone();
            padded.extend([0xee; 13]);
            let (parsed, used) = NvList::parse_prefix(&padded).unwrap();
            prop_assert_eq!(used, bytes.len());
            prop_assert_eq!(&parsed, &list);
            for cut in 0..bytes.len() {
                prop_assert!(NvList::parse(&bytes[..cut]).is_err(), "cut at {}", cut);
            }
        }
    }

    #[test]
    fn flipped_bytes_give_a_list_or_an_error(list in any_list(), flips in vec((any::<u16>(), any::<u8>()))) {
        for mut bytes in [list.emit_xdr(), list.emit_native(Endian::Little), list.emit_native(Endian::Big)] {
            for (at, flip) in &flips {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= flip;
            }
            let _ = NvList::parse(&bytes);
        }
    }
}
