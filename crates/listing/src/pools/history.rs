//! Records of a pool's history, as `zpool history` shows them.

use std::fmt::Write as _;

use cenote_format::nvlist::{NvList, NvValue};
use cenote_host::Accounts;

use crate::TimeText;

/// Events that old pools recorded by number.
const EVENTS: [&str; 41] = [
    "invalid event",
    "pool create",
    "vdev add",
    "pool remove",
    "pool destroy",
    "pool export",
    "pool import",
    "vdev attach",
    "vdev replace",
    "vdev detach",
    "vdev online",
    "vdev offline",
    "vdev upgrade",
    "pool clear",
    "pool scrub",
    "pool property set",
    "create",
    "clone",
    "destroy",
    "destroy_begin_sync",
    "inherit",
    "property set",
    "quota set",
    "permission update",
    "permission remove",
    "permission who remove",
    "promote",
    "receive",
    "rename",
    "reservation set",
    "replay_inc_sync",
    "replay_full_sync",
    "rollback",
    "snapshot",
    "filesystem version upgrade",
    "refquota set",
    "refreservation set",
    "pool scrub done",
    "user hold",
    "user release",
    "pool split",
];

/// A record as text; `None` if it was not requested. `is_internal`: internal events too; `is_long`: with user and place.
pub fn history_line(record: &NvList, is_internal: bool, is_long: bool, time: TimeText) -> Option<String> {
    let mut text = String::new();
    if let Some(seconds) = record.u64("history time") {
        text.push_str(&time(seconds, "%F.%T"));
    }
    if let Some(elapsed) = record.i64("elapsed_ns") {
        let _ = write!(text, " ({}ms)", elapsed / 1_000_000);
    }
    let word = |name: &str| record.str(name).unwrap_or_default().to_owned();
    let txg = record.u64("history txg").unwrap_or(0);
    if let Some(command) = record.str("history command") {
        let _ = write!(text, " {command}");
    } else if !is_internal {
        return None;
    } else if let Some(event) = record.u64("history internal event") {
        match usize::try_from(event).ok().and_then(|event| EVENTS.get(event)) {
            Some(event) => {
                let _ = write!(text, " [internal {event} txg:{txg}] {}", word("history internal str"));
            }
            None => {
                text.push_str(" unrecognized record:\n");
                dump(&mut text, record, 4);
                return Some(text);
            }
        }
    } else if let Some(name) = record.str("internal_name") {
        let _ = write!(text, " [txg:{txg}] {name}");
        if let Some(dataset) = record.str("dsname") {
            let _ = write!(text, " {dataset} ({})", record.u64("dsid").unwrap_or(0));
        }
        let _ = write!(text, " {}", word("history internal str"));
    } else if let Some(call) = record.str("ioctl") {
        let _ = writeln!(text, " ioctl {call}");
        for (field, heading) in [("in_nvl", "input"), ("out_nvl", "output")] {
            if let Some(list) = record.list(field) {
                let _ = writeln!(text, "    {heading}:");
                dump(&mut text, list, 8);
            }
        }
        if let Some(size) = record.i64("out_size") {
            let _ = writeln!(text, "    output nvlist omitted; original size: {}KB", size / 1024);
        }
        if let Some(errno) = record.i64("errno") {
            let _ = writeln!(text, "    errno: {errno}");
        }
    } else {
        text.push_str(" unrecognized record:\n");
        dump(&mut text, record, 4);
    }
    if is_long {
        text.push_str(" [");
        if let Some(user) = record.u64("history who") {
            let _ = write!(text, "user {user} ");
            if let Some(name) = Accounts::Users.names().get(&user) {
                let _ = write!(text, "({name}) ");
            }
        }
        if let Some(host) = record.str("history hostname") {
            let _ = write!(text, "on {host}");
        }
        if let Some(zone) = record.str("history zone") {
            let _ = write!(text, ":{zone}");
        }
        text.push(']');
    }
    text.push('\n');
    Some(text)
}

/// An nvlist, one pair per line.
fn dump(text: &mut String, list: &NvList, indent: usize) {
    for (name, value) in list.iter() {
        let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
        let _ = write!(text, "{:indent$}{name}", "");
        match value {
            NvValue::Boolean => text.push('\n'),
            NvValue::Nvlist(list) => {
                text.push_str(":\n");
                dump(text, list, indent + 4);
            }
            NvValue::NvlistArray(lists) => {
                text.push_str(":\n");
                for (index, list) in lists.iter().enumerate() {
                    let _ = writeln!(text, "{:indent$}{name}[{index}]:", "");
                    dump(text, list, indent + 4);
                }
            }
            NvValue::String(each) => {
                let _ = writeln!(text, ": '{}'", String::from_utf8_lossy(each.as_bytes()));
            }
            NvValue::Uint64(number) => {
                let _ = writeln!(text, ": {number}");
            }
            NvValue::Int64(number) => {
                let _ = writeln!(text, ": {number}");
            }
            NvValue::BooleanValue(value) => {
                let _ = writeln!(text, ": {value}");
            }
            other => {
                let _ = writeln!(text, ": {other:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_records_are_shown_when_asked_for() {
        let mut record = NvList::new();
        record.push("history txg", 7_u64);
        record.push("internal_name", "create");
        record.push("dsname", "tank/a");
        record.push("dsid", 54_u64);
        record.push("history internal str", "");
        let line =
            |record, is_internal, is_long| history_line(record, is_internal, is_long, |seconds, _| seconds.to_string());
        assert_eq!(line(&record, false, false), None);
        assert_eq!(line(&record, true, false).as_deref(), Some(" [txg:7] create tank/a (54) \n"));
        let mut command = NvList::new();
        command.push("history command", "zpool create tank sda");
        command.push("history who", u64::MAX);
        command.push("history hostname", "here");
        assert_eq!(line(&command, false, false).as_deref(), Some(" zpool create tank sda\n"));
        assert_eq!(
            line(&command, false, true).as_deref(),
            Some(" zpool create tank sda [user 18446744073709551615 on here]\n")
        );
    }
}
