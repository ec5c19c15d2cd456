//! The XDR encoding.

use super::{Cursor, DataType, NvList, NvString, NvValue, round_up};
use crate::endian::Endian;
use crate::error::FormatError;

/// Least bytes of a nested list: version, flags, two zero words.
const LIST_LEAST: usize = 16;

pub(super) fn parse(bytes: &[u8], start: usize) -> Result<(NvList, usize), FormatError> {
    let mut cursor = Cursor { bytes, offset: start, order: Endian::Big };
    let list = list(&mut cursor, 0)?;
    Ok((list, cursor.offset))
}

fn list(cursor: &mut Cursor<'_>, depth: usize) -> Result<NvList, FormatError> {
    cursor.check_depth(depth)?;
    let mut list = NvList::with_flags(cursor.list_head()?);
    loop {
        let _encoded_size = cursor.u32()?;
        let decoded_size = cursor.u32()?;
        if decoded_size == 0 {
            return Ok(list);
        }
        let name = string(cursor)?;
        cursor.check_name(name.0.len())?;
        let (number, count) = (cursor.u32()?, cursor.u32()?);
        let data_type = cursor.check_type(number, count)?;
        let value = value(cursor, data_type, count, depth)?;
        list.pairs.push((name, value));
    }
}

fn string(cursor: &mut Cursor<'_>) -> Result<NvString, FormatError> {
    let len = cursor.u32()? as usize;
    let bytes = cursor.take(len)?;
    cursor.take(round_up(len, 4) - len)?;
    if bytes.contains(&0) {
        return Err(cursor.malformed("zero byte within a string"));
    }
    Ok(NvString(bytes.into()))
}

/// A small integer in its word: of signed types the upper bytes may be zeros or copies of the sign, as writers differ.
fn word8(cursor: &mut Cursor<'_>) -> Result<u8, FormatError> {
    let word = cursor.u32()?;
    if word > 0xff && word < 0xffff_ff80 {
        return Err(cursor.malformed("more than 8 bits"));
    }
    Ok(word as u8)
}

fn word16(cursor: &mut Cursor<'_>) -> Result<u16, FormatError> {
    let word = cursor.u32()?;
    if word > 0xffff && word < 0xffff_8000 {
        return Err(cursor.malformed("more than 16 bits"));
    }
    Ok(word as u16)
}

fn value(cursor: &mut Cursor<'_>, data_type: DataType, count: u32, depth: usize) -> Result<NvValue, FormatError> {
    Ok(match data_type {
        DataType::Boolean => NvValue::Boolean,
        DataType::Byte => NvValue::Byte(word8(cursor)?),
        DataType::Int8 => NvValue::Int8(word8(cursor)? as i8),
        DataType::Uint8 => NvValue::Uint8(word8(cursor)?),
        DataType::Int16 => NvValue::Int16(word16(cursor)? as i16),
        DataType::Uint16 => NvValue::Uint16(word16(cursor)?),
        DataType::Int32 => NvValue::Int32(cursor.u32()? as i32),
        DataType::Uint32 => NvValue::Uint32(cursor.u32()?),
        DataType::Int64 => NvValue::Int64(cursor.u64()? as i64),
        DataType::Uint64 => NvValue::Uint64(cursor.u64()?),
        DataType::Hrtime => NvValue::Hrtime(cursor.u64()? as i64),
        DataType::Double => NvValue::Double(cursor.u64()?),
        DataType::BooleanValue => NvValue::BooleanValue(cursor.u32()? != 0),
        DataType::String => NvValue::String(string(cursor)?),
        DataType::ByteArray => {
            let len = count as usize;
            let bytes = cursor.take(len)?.to_vec();
            cursor.take(round_up(len, 4) - len)?;
            NvValue::ByteArray(bytes)
        }
        DataType::StringArray => NvValue::StringArray(cursor.many(count, 4, string)?),
        DataType::Nvlist => NvValue::Nvlist(list(cursor, depth + 1)?),
        DataType::NvlistArray => {
            NvValue::NvlistArray(cursor.many(count, LIST_LEAST, |cursor| list(cursor, depth + 1))?)
        }
        DataType::Int8Array => NvValue::Int8Array(array(cursor, count, 4, |c| Ok(word8(c)? as i8))?),
        DataType::Uint8Array => NvValue::Uint8Array(array(cursor, count, 4, word8)?),
        DataType::Int16Array => NvValue::Int16Array(array(cursor, count, 4, |c| Ok(word16(c)? as i16))?),
        DataType::Uint16Array => NvValue::Uint16Array(array(cursor, count, 4, word16)?),
        DataType::BooleanArray => NvValue::BooleanArray(array(cursor, count, 4, |c| Ok(c.u32()? != 0))?),
        DataType::Int32Array => NvValue::Int32Array(array(cursor, count, 4, |c| Ok(c.u32()? as i32))?),
        DataType::Uint32Array => NvValue::Uint32Array(array(cursor, count, 4, Cursor::u32)?),
        DataType::Int64Array => NvValue::Int64Array(array(cursor, count, 8, |c| Ok(c.u64()? as i64))?),
        DataType::Uint64Array => NvValue::Uint64Array(array(cursor, count, 8, Cursor::u64)?),
    })
}

/// An array with its count in front once more; an empty one has not even that.
fn array<'a, T>(
    cursor: &mut Cursor<'a>,
    count: u32,
    least_bytes: usize,
    one: impl FnMut(&mut Cursor<'a>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if cursor.u32()? != count {
        return Err(cursor.malformed("array count differs from the pair's"));
    }
    cursor.many(count, least_bytes, one)
}

pub(super) fn emit(list: &NvList, out: &mut Vec<u8>) {
    put32(out, 0);
    put32(out, list.flags);
    for (name, value) in &list.pairs {
        let start = out.len();
        // OpenZFS records the pair's size in its memory, which is that of the native encoding.
        let decoded = round_up(16 + name.0.len() + 1, 8) + round_up(value.native_bytes(), 8);
        put32(out, 0);
        put32(out, decoded as u32);
        put_string(out, name);
        put32(out, value.data_type().number() as u32);
        put32(out, value.count() as u32);
        emit_value(value, out);
        let mut encoded = out.len() - start;
        if value.count() == 0 && counts_in_front(value) {
            // OpenZFS includes the count that it does not write for an empty array.
            encoded += 4;
        }
        out[start..start + 4].copy_from_slice(&(encoded as u32).to_be_bytes());
    }
    put32(out, 0);
    put32(out, 0);
}

fn counts_in_front(value: &NvValue) -> bool {
    !matches!(value, NvValue::Boolean | NvValue::ByteArray(_) | NvValue::StringArray(_) | NvValue::NvlistArray(_))
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_be_bytes());
}

fn put_padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes);
    out.extend(std::iter::repeat_n(0, round_up(bytes.len(), 4) - bytes.len()));
}

fn put_string(out: &mut Vec<u8>, text: &NvString) {
    put32(out, text.0.len() as u32);
    put_padded(out, &text.0);
}

fn put_array<T: Copy>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, T)) {
    if items.is_empty() {
        return;
    }
    put32(out, items.len() as u32);
    for item in items {
        put(out, *item);
    }
}

fn emit_value(value: &NvValue, out: &mut Vec<u8>) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(number) | NvValue::Uint8(number) => put32(out, (*number).into()),
        NvValue::Int8(number) => put32(out, (*number as u8).into()),
        NvValue::Int16(number) => put32(out, (*number as u16).into()),
        NvValue::Uint16(number) => put32(out, (*number).into()),
        NvValue::Int32(number) => put32(out, *number as u32),
        NvValue::Uint32(number) => put32(out, *number),
        NvValue::Int64(number) | NvValue::Hrtime(number) => put64(out, *number as u64),
        NvValue::Uint64(number) | NvValue::Double(number) => put64(out, *number),
        NvValue::BooleanValue(truth) => put32(out, (*truth).into()),
        NvValue::String(text) => put_string(out, text),
        NvValue::ByteArray(bytes) => put_padded(out, bytes),
        NvValue::StringArray(texts) => texts.iter().for_each(|text| put_string(out, text)),
        NvValue::Nvlist(list) => emit(list, out),
        NvValue::NvlistArray(lists) => lists.iter().for_each(|list| emit(list, out)),
        NvValue::Int8Array(items) => put_array(out, items, |out, item| put32(out, (item as u8).into())),
        NvValue::Uint8Array(items) => put_array(out, items, |out, item| put32(out, item.into())),
        NvValue::Int16Array(items) => put_array(out, items, |out, item| put32(out, (item as u16).into())),
        NvValue::Uint16Array(items) => put_array(out, items, |out, item| put32(out, item.into())),
        NvValue::Int32Array(items) => put_array(out, items, |out, item| put32(out, item as u32)),
        NvValue::Uint32Array(items) => put_array(out, items, put32),
        NvValue::Int64Array(items) => put_array(out, items, |out, item| put64(out, item as u64)),
        NvValue::Uint64Array(items) => put_array(out, items, put64),
        NvValue::BooleanArray(items) => put_array(out, items, |out, item| put32(out, item.into())),
    }
}
