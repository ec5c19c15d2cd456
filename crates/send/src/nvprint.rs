//! Prints an nvlist as `nvlist_print` and `dump_nvlist` of libnvpair do.

use std::fmt::Display;
use std::io::{self, Write};

use cenote_format::nvlist::{NvList, NvString, NvValue};

/// Prints a list; nested lists are indented by tabs. Their depth is bounded by the parser.
pub fn print_nvlist(list: &NvList, out: &mut impl Write) -> io::Result<()> {
    print_list(list, 0, out)
}

/// Prints a list as `zstream token` and `zdb` do: `name: value`, indented by `indent` spaces. Nested lists are indented by four more.
pub fn dump_nvlist(list: &NvList, indent: usize, out: &mut impl Write) -> io::Result<()> {
    for (name, value) in list.iter() {
        dump_pair(name, value, indent, out)?;
    }
    Ok(())
}

fn dump_pair(name: &NvString, value: &NvValue, indent: usize, out: &mut impl Write) -> io::Result<()> {
    let mut pair = |index: Option<usize>, value: &dyn Display| {
        write!(out, "{:indent$}", "")?;
        out.write_all(name.as_bytes())?;
        if let Some(index) = index {
            write!(out, "[{index}]")?;
        }
        writeln!(out, ": {value}")
    };
    macro_rules! each {
        ($items:expr) => {
            $items.iter().enumerate().try_for_each(|(index, item)| pair(Some(index), item))
        };
    }
    match value {
        NvValue::Nvlist(list) => {
            head(name, indent, ":\n", out)?;
            dump_nvlist(list, indent + 4, out)
        }
        NvValue::NvlistArray(lists) => lists.iter().enumerate().try_for_each(|(index, list)| {
            head(name, indent, &format!("[{index}]:\n"), out)?;
            dump_nvlist(list, indent + 4, out)
        }),
        NvValue::Boolean => head(name, indent, "\n", out),
        NvValue::String(text) => quoted(name, None, text, indent, out),
        NvValue::StringArray(texts) => {
            texts.iter().enumerate().try_for_each(|(index, text)| quoted(name, Some(index), text, indent, out))
        }
        NvValue::BooleanValue(value) => pair(None, value),
        NvValue::Byte(value) => pair(None, value),
        NvValue::Int8(value) => pair(None, value),
        NvValue::Int16(value) => pair(None, value),
        NvValue::Int32(value) => pair(None, value),
        NvValue::Int64(value) => pair(None, value),
        NvValue::Uint8(value) => pair(None, value),
        NvValue::Uint16(value) => pair(None, value),
        NvValue::Uint32(value) => pair(None, value),
        NvValue::Uint64(value) => pair(None, value),
        NvValue::ByteArray(items) => each!(items),
        NvValue::Int8Array(items) => each!(items),
        NvValue::Int16Array(items) => each!(items),
        NvValue::Int32Array(items) => each!(items),
        NvValue::Int64Array(items) => each!(items),
        NvValue::Uint8Array(items) => each!(items),
        NvValue::Uint16Array(items) => each!(items),
        NvValue::Uint32Array(items) => each!(items),
        NvValue::Uint64Array(items) => each!(items),
        // The original cannot print these.
        NvValue::Hrtime(_) => not_shown(name, 18, out),
        NvValue::BooleanArray(_) => not_shown(name, 24, out),
        NvValue::Double(_) => not_shown(name, 27, out),
    }
}

/// The line for a pair whose type (a number) cannot be printed.
fn not_shown(name: &NvString, number: u8, out: &mut impl Write) -> io::Result<()> {
    write!(out, "bad config type {number} for ")?;
    out.write_all(name.as_bytes())?;
    writeln!(out)
}

fn head(name: &NvString, indent: usize, rest: &str, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:indent$}", "")?;
    out.write_all(name.as_bytes())?;
    out.write_all(rest.as_bytes())
}

fn quoted(
    name: &NvString,
    index: Option<usize>,
    text: &NvString,
    indent: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    head(name, indent, &index.map_or(": '".to_owned(), |index| format!("[{index}]: '")), out)?;
    out.write_all(text.as_bytes())?;
    out.write_all(b"'\n")
}

fn print_list(list: &NvList, depth: usize, out: &mut impl Write) -> io::Result<()> {
    indent(depth, out)?;
    // No other version exists, and the parser refuses others.
    writeln!(out, "nvlist version: 0")?;
    for (name, value) in list.iter() {
        print_pair(name, value, depth, out)?;
        writeln!(out)?;
    }
    Ok(())
}

fn print_pair(name: &NvString, value: &NvValue, depth: usize, out: &mut impl Write) -> io::Result<()> {
    let hex = |value: u64| format!("0x{value:x}");
    match value {
        NvValue::Nvlist(list) => {
            line(name, depth, " = (embedded nvlist)\n", out)?;
            print_list(list, depth + 1, out)?;
            marker("end", name, None, depth, out)
        }
        NvValue::NvlistArray(lists) => {
            line(name, depth, " = (array of embedded nvlists)\n", out)?;
            for (index, list) in lists.iter().enumerate() {
                marker("start", name, Some(index), depth, out)?;
                print_list(list, depth + 1, out)?;
                marker("end", name, Some(index), depth, out)?;
            }
            Ok(())
        }
        NvValue::String(text) => {
            line(name, depth, " = ", out)?;
            out.write_all(text.as_bytes())
        }
        NvValue::StringArray(texts) => {
            for (index, text) in texts.iter().enumerate() {
                if index == 0 {
                    line(name, depth, " = ", out)?;
                } else {
                    write!(out, " ")?;
                }
                out.write_all(text.as_bytes())?;
            }
            Ok(())
        }
        NvValue::Boolean => scalar(name, 1, depth, out),
        NvValue::BooleanValue(value) => scalar(name, u8::from(*value), depth, out),
        NvValue::Byte(value) => scalar(name, format_args!("0x{value:02x}"), depth, out),
        NvValue::Int8(value) => scalar(name, value, depth, out),
        NvValue::Int16(value) => scalar(name, value, depth, out),
        NvValue::Int32(value) => scalar(name, value, depth, out),
        NvValue::Int64(value) => scalar(name, value, depth, out),
        NvValue::Uint8(value) => scalar(name, hex((*value).into()), depth, out),
        NvValue::Uint16(value) => scalar(name, hex((*value).into()), depth, out),
        NvValue::Uint32(value) => scalar(name, hex((*value).into()), depth, out),
        NvValue::Uint64(value) => scalar(name, hex(*value), depth, out),
        NvValue::Hrtime(value) => scalar(name, format_args!("0x{value:x}"), depth, out),
        NvValue::Double(bits) => scalar(name, format_args!("0x{:.6}", f64::from_bits(*bits)), depth, out),
        NvValue::ByteArray(items) => array(name, items.iter().map(|item| format!("0x{item:02x}")), depth, out),
        NvValue::BooleanArray(items) => array(name, items.iter().map(|item| u8::from(*item)), depth, out),
        NvValue::Int8Array(items) => array(name, items, depth, out),
        NvValue::Int16Array(items) => array(name, items, depth, out),
        NvValue::Int32Array(items) => array(name, items, depth, out),
        NvValue::Int64Array(items) => array(name, items, depth, out),
        NvValue::Uint8Array(items) => array(name, items.iter().map(|item| hex((*item).into())), depth, out),
        NvValue::Uint16Array(items) => array(name, items.iter().map(|item| hex((*item).into())), depth, out),
        NvValue::Uint32Array(items) => array(name, items.iter().map(|item| hex((*item).into())), depth, out),
        NvValue::Uint64Array(items) => array(name, items.iter().map(|item| hex(*item)), depth, out),
    }
}

fn scalar(name: &NvString, value: impl Display, depth: usize, out: &mut impl Write) -> io::Result<()> {
    line(name, depth, " = ", out)?;
    write!(out, "{value}")
}

/// The elements on one line. For an empty array not even the name is printed.
fn array(
    name: &NvString,
    items: impl IntoIterator<Item = impl Display>,
    depth: usize,
    out: &mut impl Write,
) -> io::Result<()> {
    for (index, item) in items.into_iter().enumerate() {
        if index == 0 {
            line(name, depth, " = ", out)?;
        } else {
            write!(out, " ")?;
        }
        write!(out, "{item}")?;
    }
    Ok(())
}

fn line(name: &NvString, depth: usize, then: &str, out: &mut impl Write) -> io::Result<()> {
    indent(depth + 1, out)?;
    out.write_all(name.as_bytes())?;
    write!(out, "{then}")
}

fn marker(word: &str, name: &NvString, index: Option<usize>, depth: usize, out: &mut impl Write) -> io::Result<()> {
    indent(depth + 1, out)?;
    write!(out, "({word} ")?;
    out.write_all(name.as_bytes())?;
    match index {
        Some(index) => writeln!(out, "[{index}])"),
        None => writeln!(out, ")"),
    }
}

fn indent(tabs: usize, out: &mut impl Write) -> io::Result<()> {
    for _ in 0..tabs {
        write!(out, "\t")?;
    }
    Ok(())
}
