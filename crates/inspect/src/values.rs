//! Structures of the format as values of a report.

use cenote_format::blkptr::{Blkptr, BlkptrKind};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::uberblock::Uberblock;
use cenote_format::zap::{ZapKeyBuf, ZapValue};
use serde_json::{Map, Value, json};

/// Bytes of an opaque value that are shown.
const OPAQUE_MAX_BYTES: usize = 256;
/// Integers of an array that are shown.
const INTEGERS_MAX: usize = 256;
/// Bytes in a line of a dump.
const DUMP_LINE_BYTES: usize = 16;

/// A name-value list, names in their order. Where a name stands twice the last one counts, as for `nvlist_lookup`.
pub fn nvlist(list: &NvList) -> Value {
    let mut map = Map::new();
    for (name, value) in list.iter() {
        map.insert(name.to_string(), nvvalue(value));
    }
    Value::Object(map)
}

fn nvvalue(value: &NvValue) -> Value {
    match value {
        NvValue::Boolean => true.into(),
        NvValue::BooleanValue(value) => (*value).into(),
        NvValue::Byte(value) | NvValue::Uint8(value) => (*value).into(),
        NvValue::Int8(value) => (*value).into(),
        NvValue::Int16(value) => (*value).into(),
        NvValue::Uint16(value) => (*value).into(),
        NvValue::Int32(value) => (*value).into(),
        NvValue::Uint32(value) => (*value).into(),
        NvValue::Int64(value) | NvValue::Hrtime(value) => (*value).into(),
        NvValue::Uint64(value) => (*value).into(),
        NvValue::Double(bits) => json!(f64::from_bits(*bits)),
        NvValue::String(text) => text.to_string().into(),
        NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes) => hex(bytes).into(),
        NvValue::Int8Array(items) => array(items),
        NvValue::Int16Array(items) => array(items),
        NvValue::Uint16Array(items) => array(items),
        NvValue::Int32Array(items) => array(items),
        NvValue::Uint32Array(items) => array(items),
        NvValue::Int64Array(items) => array(items),
        NvValue::Uint64Array(items) => array(items),
        NvValue::BooleanArray(items) => array(items),
        NvValue::StringArray(items) => array(&items.iter().map(ToString::to_string).collect::<Vec<_>>()),
        NvValue::Nvlist(list) => nvlist(list),
        NvValue::NvlistArray(lists) => Value::Array(lists.iter().take(INTEGERS_MAX).map(nvlist).collect()),
    }
}

/// An array, cut with a word about it where it is long.
fn array<T: Clone + Into<Value>>(items: &[T]) -> Value {
    let mut shown: Vec<Value> = items.iter().take(INTEGERS_MAX).cloned().map(Into::into).collect();
    if items.len() > INTEGERS_MAX {
        shown.push(format!("... {} in all", items.len()).into());
    }
    Value::Array(shown)
}

/// Bytes in hexadecimal, cut where they are many.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().take(OPAQUE_MAX_BYTES).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > OPAQUE_MAX_BYTES {
        text.push_str(&format!("... ({} bytes)", bytes.len()));
    }
    text
}

/// Bytes as a dump with offsets; `max` of them at most.
pub(crate) fn dump(bytes: &[u8], max: usize) -> String {
    let mut text = String::new();
    for (index, line) in bytes[..bytes.len().min(max)].chunks(DUMP_LINE_BYTES).enumerate() {
        let words: Vec<String> =
            line.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>()).collect();
        let plain: String =
            line.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }).collect();
        text.push_str(&format!("{:08x}  {:35}  {plain}\n", index * DUMP_LINE_BYTES, words.join(" ")));
    }
    if bytes.len() > max {
        text.push_str(&format!("... {} bytes in all\n", bytes.len()));
    }
    text
}

/// A ZAP entry's value: a number, a text, numbers, or bytes.
pub(crate) fn zap_value(value: &ZapValue) -> Value {
    if let Some(number) = value.as_u64() {
        return number.into();
    }
    if value.integer_size() == 1 {
        let bytes = value.stored_bytes();
        // Texts carry the zero at their end; other bytes may have one anywhere.
        let is_text = bytes.last() == Some(&0) && bytes.iter().filter(|byte| **byte == 0).count() == 1;
        return match value.as_text().filter(|text| is_text && !text.chars().any(char::is_control)) {
            Some(text) => text.into(),
            None => hex(bytes).into(),
        };
    }
    array(&value.integers().take(INTEGERS_MAX + 1).collect::<Vec<_>>())
}

/// A ZAP entry's key.
pub(crate) fn zap_key(key: &ZapKeyBuf) -> String {
    match key {
        ZapKeyBuf::Name(name) => String::from_utf8_lossy(name).into_owned(),
        ZapKeyBuf::Words(words) => words.iter().map(|word| format!("{word:x}")).collect::<Vec<_>>().join(":"),
    }
}

/// A block pointer, field by field.
pub(crate) fn pointer(bp: &Blkptr) -> Value {
    let kind = match bp.kind() {
        BlkptrKind::Hole => "hole",
        BlkptrKind::Embedded => "embedded",
        BlkptrKind::Redacted => "redacted",
        BlkptrKind::EmbeddedUnknown(_) => "embedded, of an unknown type",
        BlkptrKind::Gang => "gang",
        BlkptrKind::Normal => "normal",
    };
    let mut map = Map::new();
    map.insert("kind".into(), kind.into());
    map.insert("type".into(), bp.dmu_type().to_string().into());
    map.insert("level".into(), bp.level().into());
    map.insert("lsize_bytes".into(), bp.lsize_bytes().into());
    map.insert("psize_bytes".into(), bp.psize_bytes().into());
    map.insert("asize_bytes".into(), bp.asize_bytes().into());
    map.insert("logical_birth_txg".into(), bp.logical_birth().0.into());
    map.insert("physical_birth_txg".into(), bp.physical_birth().0.into());
    map.insert("fill".into(), bp.fill().into());
    map.insert("byte_order".into(), order(bp.byte_order()).into());
    map.insert("checksum".into(), named(bp.checksum().map(Checksum::name), bp.checksum_number()));
    map.insert("compression".into(), named(bp.compress().map(Compress::name), bp.compress_number()));
    map.insert("dedup".into(), bp.dedup().into());
    map.insert("encrypted".into(), bp.is_encrypted().into());
    map.insert("authenticated".into(), bp.is_authenticated().into());
    let dvas: Vec<Value> = bp
        .dvas()
        .map(|dva| {
            json!({
                "vdev": dva.vdev.0,
                "offset_bytes": dva.offset_bytes,
                "asize_bytes": dva.asize_bytes,
                "gang": dva.gang,
            })
        })
        .collect();
    map.insert("dvas".into(), dvas.into());
    if !bp.is_embedded() {
        map.insert("checksum_words".into(), words(&bp.checksum_words()).into());
    }
    if let Err(error) = bp.verify() {
        map.insert("not_valid".into(), error.to_string().into());
    }
    Value::Object(map)
}

/// Words in hexadecimal with colons between.
pub(crate) fn words(words: &[u64]) -> String {
    words.iter().map(|word| format!("{word:016x}")).collect::<Vec<_>>().join(":")
}

fn named(name: Option<&str>, number: u8) -> Value {
    name.map_or_else(|| format!("unknown ({number})"), str::to_owned).into()
}

/// A byte order's name.
pub(crate) fn order(order: cenote_format::Endian) -> &'static str {
    match order {
        cenote_format::Endian::Little => "little",
        cenote_format::Endian::Big => "big",
    }
}

/// The fields of an uberblock beside its root.
pub(crate) fn uberblock(uberblock: &Uberblock) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("txg".into(), uberblock.txg.0.into());
    map.insert("timestamp_s".into(), uberblock.timestamp_s.into());
    map.insert("version".into(), uberblock.version.into());
    map.insert("software_version".into(), uberblock.software_version.into());
    map.insert("byte_order".into(), order(uberblock.endian).into());
    map.insert("guid_sum".into(), uberblock.guid_sum.into());
    if let Some(mmp) = uberblock.mmp {
        map.insert("mmp_delay_ns".into(), mmp.delay_ns.into());
        for (name, value) in [
            ("mmp_interval_ms", mmp.interval_ms().map(u64::from)),
            ("mmp_sequence", mmp.sequence().map(u64::from)),
            ("mmp_fail_intervals", mmp.fail_intervals().map(u64::from)),
        ] {
            if let Some(value) = value {
                map.insert(name.into(), value.into());
            }
        }
    }
    map.insert("checkpoint_txg".into(), uberblock.checkpoint_txg.0.into());
    map.insert("raidz_reflow".into(), uberblock.raidz_reflow.into());
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_has_offsets_words_and_text() {
        assert_eq!(dump(b"0123456789abcdefXY\0", 1 << 10).lines().count(), 2);
        assert_eq!(dump(b"0123456789abcdef", 16), "00000000  30313233 34353637 38396162 63646566  0123456789abcdef\n");
        assert!(dump(&[0; 64], 16).ends_with("... 64 bytes in all\n"));
    }

    #[test]
    fn values_of_zaps_are_numbers_texts_or_bytes() {
        assert_eq!(zap_value(&ZapValue::from_u64(u64::MAX)), json!(u64::MAX));
        assert_eq!(zap_value(&ZapValue::from_text("lz4")), json!("lz4"));
        assert_eq!(zap_value(&ZapValue::from_bytes(&[0, 1, 255])), json!("0001ff"));
        assert_eq!(zap_value(&ZapValue::from_u64s(&[1, 2])), json!([1, 2]));
    }

    #[test]
    fn any_words_are_a_pointer_that_can_be_shown() {
        for word in [0, 1, u64::MAX, 1 << 63, 0x8000_0000_0000_00ff] {
            let shown = pointer(&Blkptr::from_words([word; 16]));
            assert!(shown["kind"].is_string(), "{shown}");
        }
    }
}
