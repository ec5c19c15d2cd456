//! The native encoding.

use super::{Cursor, DataType, NvList, NvString, NvValue, round_up};
use crate::endian::Endian;
use crate::error::FormatError;

/// Bytes of a list's head within a pair's value.
pub(super) const LIST_BYTES: usize = 24;
/// Bytes of a pair in front of its name.
const PAIR_BYTES: usize = 16;

pub(super) fn parse(bytes: &[u8], start: usize, order: Endian) -> Result<(NvList, usize), FormatError> {
    let mut cursor = Cursor { bytes, offset: start, order };
    let flags = cursor.list_head()?;
    let list = pairs(&mut cursor, flags, 0)?;
    Ok((list, cursor.offset))
}

/// The pairs of a list up to its end. Lists within a pair follow it and are read from the same cursor.
fn pairs(cursor: &mut Cursor<'_>, flags: u32, depth: usize) -> Result<NvList, FormatError> {
    cursor.check_depth(depth)?;
    let mut list = NvList::with_flags(flags);
    loop {
        let start = cursor.offset;
        let size = cursor.u32()? as usize;
        if size == 0 {
            return Ok(list);
        }
        if size < PAIR_BYTES {
            return Err(FormatError::invalid(super::NAME, start, "nvp_size", size as u64, "at least 16"));
        }
        cursor.offset = start;
        cursor.take(size)?;
        // A cursor that ends with the pair, so that offsets in errors are those of the whole input.
        let mut inner = Cursor { bytes: &cursor.bytes[..start + size], offset: start + 4, order: cursor.order };
        let name_bytes = usize::from(inner.u16()?);
        inner.check_name(name_bytes.saturating_sub(1))?;
        let _reserved = inner.u16()?;
        let (count, number) = (inner.u32()?, inner.u32()?);
        let data_type = inner.check_type(number, count)?;
        let name = match inner.take(name_bytes)?.split_last() {
            Some((0, name)) if !name.contains(&0) => NvString(name.into()),
            _ => return Err(inner.malformed("name without its terminating zero")),
        };
        let padding = round_up(PAIR_BYTES + name_bytes, 8) - (PAIR_BYTES + name_bytes);
        inner.take(padding)?;
        let value = value(cursor, &mut inner, data_type, count, depth)?;
        list.pairs.push((name, value));
    }
}

/// The list whose head is the next 24 bytes of `inner` and whose pairs come next in `outer`.
fn nested(outer: &mut Cursor<'_>, inner: &mut Cursor<'_>, depth: usize) -> Result<NvList, FormatError> {
    let flags = inner.list_head()?;
    inner.take(LIST_BYTES - 8)?;
    pairs(outer, flags, depth + 1)
}

fn string(inner: &mut Cursor<'_>) -> Result<NvString, FormatError> {
    let rest = &inner.bytes[inner.offset..];
    match rest.iter().position(|byte| *byte == 0) {
        Some(len) => {
            inner.offset += len + 1;
            Ok(NvString(rest[..len].into()))
        }
        None => Err(inner.malformed("string without its terminating zero")),
    }
}

fn value(
    outer: &mut Cursor<'_>,
    inner: &mut Cursor<'_>,
    data_type: DataType,
    count: u32,
    depth: usize,
) -> Result<NvValue, FormatError> {
    let byte = |c: &mut Cursor<'_>| Ok(c.array::<1>()?[0]);
    Ok(match data_type {
        DataType::Boolean => NvValue::Boolean,
        DataType::Byte => NvValue::Byte(byte(inner)?),
        DataType::Int8 => NvValue::Int8(byte(inner)? as i8),
        DataType::Uint8 => NvValue::Uint8(byte(inner)?),
        DataType::Int16 => NvValue::Int16(inner.u16()? as i16),
        DataType::Uint16 => NvValue::Uint16(inner.u16()?),
        DataType::Int32 => NvValue::Int32(inner.u32()? as i32),
        DataType::Uint32 => NvValue::Uint32(inner.u32()?),
        DataType::Int64 => NvValue::Int64(inner.u64()? as i64),
        DataType::Uint64 => NvValue::Uint64(inner.u64()?),
        DataType::Hrtime => NvValue::Hrtime(inner.u64()? as i64),
        DataType::Double => NvValue::Double(inner.u64()?),
        DataType::BooleanValue => NvValue::BooleanValue(inner.u32()? != 0),
        DataType::String => NvValue::String(string(inner)?),
        DataType::ByteArray => NvValue::ByteArray(inner.many(count, 1, byte)?),
        DataType::Uint8Array => NvValue::Uint8Array(inner.many(count, 1, byte)?),
        DataType::Int8Array => NvValue::Int8Array(inner.many(count, 1, |c| Ok(byte(c)? as i8))?),
        DataType::Int16Array => NvValue::Int16Array(inner.many(count, 2, |c| Ok(c.u16()? as i16))?),
        DataType::Uint16Array => NvValue::Uint16Array(inner.many(count, 2, Cursor::u16)?),
        DataType::BooleanArray => NvValue::BooleanArray(inner.many(count, 4, |c| Ok(c.u32()? != 0))?),
        DataType::Int32Array => NvValue::Int32Array(inner.many(count, 4, |c| Ok(c.u32()? as i32))?),
        DataType::Uint32Array => NvValue::Uint32Array(inner.many(count, 4, Cursor::u32)?),
        DataType::Int64Array => NvValue::Int64Array(inner.many(count, 8, |c| Ok(c.u64()? as i64))?),
        DataType::Uint64Array => NvValue::Uint64Array(inner.many(count, 8, Cursor::u64)?),
        DataType::StringArray => {
            inner.many(count, 8, Cursor::u64)?;
            NvValue::StringArray(inner.many(count, 1, string)?)
        }
        DataType::Nvlist => NvValue::Nvlist(nested(outer, inner, depth)?),
        DataType::NvlistArray => {
            inner.many(count, 8, Cursor::u64)?;
            NvValue::NvlistArray(inner.many(count, LIST_BYTES, |inner| nested(outer, inner, depth))?)
        }
    })
}

pub(super) fn emit(list: &NvList, order: Endian, out: &mut Vec<u8>) {
    out.extend(order.bytes32(0));
    out.extend(order.bytes32(list.flags));
    emit_pairs(list, order, out);
}

fn emit_pairs(list: &NvList, order: Endian, out: &mut Vec<u8>) {
    for (name, value) in &list.pairs {
        let start = out.len();
        let name_bytes = name.0.len() + 1;
        let value_start = start + round_up(PAIR_BYTES + name_bytes, 8);
        let end = value_start + round_up(value.native_bytes(), 8);
        out.extend(order.bytes32((end - start) as u32));
        out.extend(order.bytes16(name_bytes as u16));
        out.extend([0, 0]);
        out.extend(order.bytes32(value.count() as u32));
        out.extend(order.bytes32(value.data_type().number() as u32));
        out.extend(&name.0);
        out.resize(value_start, 0);
        emit_value(value, order, out);
        out.resize(end, 0);
        match value {
            NvValue::Nvlist(list) => emit_pairs(list, order, out),
            NvValue::NvlistArray(lists) => lists.iter().for_each(|list| emit_pairs(list, order, out)),
            _ => {}
        }
    }
    out.extend([0; 4]);
}

fn emit_list_head(list: &NvList, order: Endian, out: &mut Vec<u8>) {
    out.extend(order.bytes32(0));
    out.extend(order.bytes32(list.flags));
    out.extend([0; LIST_BYTES - 8]);
}

fn emit_value(value: &NvValue, order: Endian, out: &mut Vec<u8>) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(number) | NvValue::Uint8(number) => out.push(*number),
        NvValue::Int8(number) => out.push(*number as u8),
        NvValue::Int16(number) => out.extend(order.bytes16(*number as u16)),
        NvValue::Uint16(number) => out.extend(order.bytes16(*number)),
        NvValue::Int32(number) => out.extend(order.bytes32(*number as u32)),
        NvValue::Uint32(number) => out.extend(order.bytes32(*number)),
        NvValue::Int64(number) | NvValue::Hrtime(number) => out.extend(order.bytes64(*number as u64)),
        NvValue::Uint64(number) | NvValue::Double(number) => out.extend(order.bytes64(*number)),
        NvValue::BooleanValue(truth) => out.extend(order.bytes32((*truth).into())),
        NvValue::String(text) => {
            out.extend(&text.0);
            out.push(0);
        }
        NvValue::ByteArray(items) | NvValue::Uint8Array(items) => out.extend(items),
        NvValue::Int8Array(items) => out.extend(items.iter().map(|item| *item as u8)),
        NvValue::Int16Array(items) => out.extend(items.iter().flat_map(|item| order.bytes16(*item as u16))),
        NvValue::Uint16Array(items) => out.extend(items.iter().flat_map(|item| order.bytes16(*item))),
        NvValue::Int32Array(items) => out.extend(items.iter().flat_map(|item| order.bytes32(*item as u32))),
        NvValue::Uint32Array(items) => out.extend(items.iter().flat_map(|item| order.bytes32(*item))),
        NvValue::Int64Array(items) => out.extend(items.iter().flat_map(|item| order.bytes64(*item as u64))),
        NvValue::Uint64Array(items) => out.extend(items.iter().flat_map(|item| order.bytes64(*item))),
        NvValue::BooleanArray(items) => out.extend(items.iter().flat_map(|item| order.bytes32((*item).into()))),
        NvValue::StringArray(texts) => {
            out.extend(std::iter::repeat_n(0, texts.len() * 8));
            for text in texts {
                out.extend(&text.0);
                out.push(0);
            }
        }
        NvValue::Nvlist(list) => emit_list_head(list, order, out),
        NvValue::NvlistArray(lists) => {
            out.extend(std::iter::repeat_n(0, lists.len() * 8));
            for list in lists {
                emit_list_head(list, order, out);
            }
        }
    }
}
