//! Events of pools, as `zpool events` shows them.

use std::fmt::Write as _;

use cenote_format::nvlist::{NvList, NvValue};

use cenote_spa::state_name;

use crate::TimeText;

/// The spaces before the members of an event, and before those of each list in it.
const INDENT: usize = 8;

/// The line of an event: its time, in the local time zone, and its class.
#[must_use]
pub fn event_line(event: &NvList, is_scripted: bool, time: TimeText) -> String {
    let at = match event.value("time") {
        Some(NvValue::Int64Array(at)) => at.clone(),
        _ => Vec::new(),
    };
    let [seconds, nanoseconds] = [0, 1].map(|index| at.get(index).copied().unwrap_or(0));
    let date = time(u64::try_from(seconds).unwrap_or(0), "%b %e %Y %H:%M:%S");
    let separator = if is_scripted { '\t' } else { ' ' };
    format!("{date}.{nanoseconds:09}{separator}{}\n", event.str("class").unwrap_or("-"))
}

/// The members of an event, a line each, and an empty line.
#[must_use]
pub fn event_members(event: &NvList) -> String {
    let mut text = String::new();
    members(event, INDENT, &mut text);
    text.push('\n');
    text
}

fn members(list: &NvList, depth: usize, text: &mut String) {
    for (name, value) in list.iter() {
        let _ = write!(text, "{:depth$}{name} = ", "");
        let _ = match value {
            NvValue::Boolean => write!(text, "1"),
            NvValue::BooleanValue(value) => write!(text, "{}", u8::from(*value)),
            NvValue::Byte(value) | NvValue::Uint8(value) => write!(text, "{value:#x}"),
            NvValue::Int8(value) => write!(text, "{value:#x}"),
            NvValue::Int16(value) => write!(text, "{value:#x}"),
            NvValue::Uint16(value) => write!(text, "{value:#x}"),
            NvValue::Int32(value) => write!(text, "{value:#x}"),
            NvValue::Uint32(value) => match word(&name.to_string(), *value) {
                Some(word) => write!(text, "{value:#x} [{word}]"),
                None => write!(text, "{value:#x}"),
            },
            NvValue::Int64(value) | NvValue::Hrtime(value) => write!(text, "{value:#x}"),
            NvValue::Uint64(value) if matches!(name.as_bytes(), b"vdev_state" | b"vdev_laststate") => {
                write!(text, "\"{}\" ({value:#x})", state_name(*value))
            }
            NvValue::Uint64(value) => write!(text, "{value:#x}"),
            NvValue::String(value) => write!(text, "\"{value}\""),
            NvValue::Nvlist(value) => {
                text.push_str("(embedded nvlist)\n");
                members(value, depth + INDENT, text);
                write!(text, "{:depth$}(end {name})", "")
            }
            NvValue::NvlistArray(values) => {
                let _ = writeln!(text, "({} embedded nvlists)", values.len());
                for (index, value) in values.iter().enumerate() {
                    let _ = writeln!(text, "{:depth$}{name}[{index}] = (embedded nvlist)", "");
                    members(value, depth + INDENT, text);
                    let _ = writeln!(text, "{:depth$}(end {name}[{index}])", "");
                }
                writeln!(text, "{:depth$}(end {name})", "")
            }
            NvValue::Int8Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Uint8Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Int16Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Uint16Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Int32Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Uint32Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Int64Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::Uint64Array(values) => each(text, values, |value| format!("{value:#x}")),
            NvValue::StringArray(values) => each(text, values, |value| format!("\"{value}\"")),
            NvValue::BooleanArray(_) | NvValue::ByteArray(_) | NvValue::Double(_) => write!(text, "<unknown>"),
        };
        text.push('\n');
    }
}

fn each<T>(text: &mut String, values: &[T], show: impl Fn(&T) -> String) -> std::fmt::Result {
    values.iter().try_for_each(|value| write!(text, "{} ", show(value)))
}

/// The word for the kind or priority of a request.
fn word(name: &str, value: u32) -> Option<&'static str> {
    const TYPES: [&str; 7] = ["NULL", "READ", "WRITE", "FREE", "CLAIM", "FLUSH", "TRIM"];
    const PRIORITIES: [&str; 9] =
        ["SYNC_READ", "SYNC_WRITE", "ASYNC_READ", "ASYNC_WRITE", "SCRUB", "REMOVAL", "INITIALIZING", "TRIM", "REBUILD"];
    let words: &[&str] = match name {
        "zio_type" => &TYPES,
        "zio_priority" => &PRIORITIES,
        _ => return None,
    };
    words.get(value as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of OpenZFS's `zpool events -v`, by its manual page's example and `zpool_main.c`.
    #[test]
    fn an_event_has_the_lines_of_openzfs() {
        let mut detector = NvList::new();
        detector.push("version", NvValue::Uint8(0));
        detector.push("scheme", "zfs");
        let mut event = NvList::new();
        event.push("class", "ereport.fs.zfs.checksum");
        event.push("ena", 0x10_u64);
        event.push("detector", detector);
        event.push("pool_context", NvValue::Int32(-1));
        event.push("vdev_state", 7_u64);
        event.push("zio_type", NvValue::Uint32(1));
        event.push("zio_level", NvValue::Int64(-2));
        event.push("vdev_spare_guids", NvValue::Uint64Array(vec![1, 255]));
        event.push("time", NvValue::Int64Array(vec![5, 70]));
        let utc = |seconds: u64, form: &str| format!("{form} {seconds}");
        assert_eq!(event_line(&event, true, utc), "%b %e %Y %H:%M:%S 5.000000070\tereport.fs.zfs.checksum\n");
        assert_eq!(
            event_members(&event),
            concat!(
                "        class = \"ereport.fs.zfs.checksum\"\n",
                "        ena = 0x10\n",
                "        detector = (embedded nvlist)\n",
                "                version = 0x0\n",
                "                scheme = \"zfs\"\n",
                "        (end detector)\n",
                "        pool_context = 0xffffffff\n",
                "        vdev_state = \"ONLINE\" (0x7)\n",
                "        zio_type = 0x1 [READ]\n",
                "        zio_level = 0xfffffffffffffffe\n",
                "        vdev_spare_guids = 0x1 0xff \n",
                "        time = 0x5 0x46 \n\n",
            )
        );
    }
}
