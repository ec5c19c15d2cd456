//! An nvlist as `nvlist_print` of libnvpair shows it.

use std::fmt::Display;
use std::io::{self, Write};

use cenote_format::nvlist::{NvList, NvString, NvValue};

/// Prints a list; nested lists are indented by tabs. Their depth is bounded by the parser.
pub fn print_nvlist(list: &NvList, out: &mut impl Write) -> io::Result<()> {
    print_list(list, 0, out)
}

fn print_list(list: &NvList, depth: usize, out: &mut impl Write) -> io::Result<()> {
    indent(depth, out)?;
    // No other version exists, and the parser lets none pass.
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

/// The elements on one line; of an empty array not even the name shows.
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
