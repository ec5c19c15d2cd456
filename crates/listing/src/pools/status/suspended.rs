//! The `zpool status` of a server's pool whose devices fail or hang: from the state in memory, since the pool cannot be read.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use cenote_format::ids::Guid;
use cenote_props::number::nicenum;
use cenote_spa::Pool;
use cenote_vdev::tree::{VdevState, VdevStatus};
use serde_json::{Map, Value, json};

use crate::Json;
use crate::pools::advice::MESSAGES as SEE;
use crate::pools::names::without_dir;
use crate::pools::vdevs::json_state;

/// OpenZFS's texts, for which scripts search.
const STATUS: &str = "One or more devices are faulted in response to IO failures.";
const ACTION: &str = "Make sure the affected devices are connected, then run 'zpool clear'.";
const MESSAGE: &str = "ZFS-8000-HC";
/// The same for a pool that another system may have imported since.
const MULTIHOST_STATUS: &str = "The pool is suspended because multihost writes failed or were delayed;\n\tanother system could import the pool undetected.";
const MULTIHOST_ACTION: &str = "Make sure the pool's devices are connected, then reboot your system and\n\timport the pool or run 'zpool clear' to resume the pool.";
const MULTIHOST_MESSAGE: &str = "ZFS-8000-MM";
/// For a pool that continues without a hanging device, or waits for a read.
const HANG_STATUS: &str = "One or more devices have not answered for a long time.";
const HANG_ACTION: &str =
    "Make sure the affected devices work.  One that was given up is used again\n\twhen the pool is imported anew.";
const OF_DEVICES: [&str; 3] = [STATUS, ACTION, MESSAGE];
const OF_MULTIHOST: [&str; 3] = [MULTIHOST_STATUS, MULTIHOST_ACTION, MULTIHOST_MESSAGE];
const NAME_WIDTH_MIN: usize = 10;

/// A row of the tree: its depth and its vdev.
type Row<'a> = &'a (usize, &'a VdevStatus);

/// Collects the rows.
fn rows<'a>(vdev: &'a VdevStatus, depth: usize, into: &mut Vec<(usize, &'a VdevStatus)>) {
    into.push((depth, vdev));
    vdev.children.iter().for_each(|child| rows(child, depth + 1, into));
}

/// A device without its folder of devices, or a file with its whole path: as for a healthy pool.
fn name(vdev: &VdevStatus) -> &str {
    without_dir(&vdev.name)
}

/// True if a vdev is a log, or below one.
fn is_of_log(root: Option<&VdevStatus>, vdev: &VdevStatus) -> bool {
    root.is_some_and(|root| root.children.iter().any(|top| top.is_log && top.top == vdev.top))
}

/// True if a device at or below it hangs.
fn hangs(vdev: &VdevStatus) -> bool {
    vdev.hang.is_some() || vdev.children.iter().any(hangs)
}

/// True if a device of the pool hangs, or was given up because it did.
pub fn has_hanging(pool: &Pool) -> bool {
    pool.devices().is_some_and(|root| hangs(&root))
}

/// The text after a device's errors: how it hangs, why it cannot be opened, which txgs it has missed.
fn remarks(vdev: &VdevStatus) -> String {
    let mut text = hang_text(vdev);
    if let Some(coarse) = vdev.coarse {
        let _ = write!(text, "  cannot open: {coarse}");
    } else if vdev.children.is_empty() && vdev.state == VdevState::Unavailable {
        text.push_str("  cannot open");
    }
    if vdev.children.is_empty() && !vdev.missed.is_empty() {
        let _ = write!(text, "  missed txgs {}", vdev.missed);
    }
    text
}

fn hang_text(vdev: &VdevStatus) -> String {
    let Some(hang) = vdev.hang else { return String::new() };
    let silent = hang.silent.map(|silent| format!("  has not answered for {} s", silent.as_secs())).unwrap_or_default();
    format!("{silent}{}", if hang.is_given_up { "  given up" } else { "" })
}

/// The devices of a pool. Those that have gone count as not there, though nobody could take them out of use yet.
fn devices(pool: &Pool) -> Option<VdevStatus> {
    let mut root = pool.devices()?;
    mark_gone(&mut root, &pool.gone_devices());
    Some(root)
}

/// True if the vdev, or one below it, has gone.
fn mark_gone(vdev: &mut VdevStatus, gone: &BTreeSet<Guid>) -> bool {
    let mut is_below = false;
    for child in &mut vdev.children {
        is_below |= mark_gone(child, gone);
    }
    let has_gone = gone.contains(&vdev.guid) && vdev.state.is_readable();
    if has_gone {
        vdev.state = VdevState::Unavailable;
    } else if is_below && vdev.state.is_readable() {
        let lost = vdev.children.iter().filter(|child| !child.state.is_readable()).count();
        let is_too_much = lost > spared(&vdev.name, vdev.children.len());
        vdev.state = if is_too_much { VdevState::Unavailable } else { VdevState::Degraded };
    }
    has_gone || is_below
}

/// The children that a vdev can do without, by its name: the parity of a raidz or draid, all but one of other vdevs with children, and none of the
/// pool's.
fn spared(name: &str, children: usize) -> usize {
    let parity = |kind| name.strip_prefix(kind).and_then(|rest: &str| rest.get(..1)?.parse().ok());
    match parity("raidz").or_else(|| parity("draid")) {
        Some(parity) => parity,
        None if name == "root" => 0,
        None => children.saturating_sub(1),
    }
}

/// The text for a person. `reason`: the reason of the suspension, if it is suspended.
pub fn suspended_text(pool: &Pool, reason: Option<&str>) -> String {
    text_of(pool.name(), devices(pool).as_ref(), reason, words(pool))
}

/// The status, the action and the message of a suspended pool.
fn words(pool: &Pool) -> [&'static str; 3] {
    if pool.is_suspended_for_multihost() { OF_MULTIHOST } else { OF_DEVICES }
}

fn text_of(
    pool: &str,
    status: Option<&VdevStatus>,
    reason: Option<&str>,
    [status_text, action, message]: [&str; 3],
) -> String {
    let root_state = match (status, reason) {
        (_, Some(_)) => "SUSPENDED",
        (Some(root), None) => root.state.name(),
        (None, None) => "UNAVAIL",
    };
    let mut text = format!("  pool: {pool}\n state: {root_state}\n");
    let _ = match reason {
        Some(reason) => {
            writeln!(
                text,
                "status: {status_text}\naction: {action}\n   see: {SEE}/{message}\nreason: {reason}\nconfig:\n"
            )
        }
        None => writeln!(text, "status: {HANG_STATUS}\naction: {HANG_ACTION}\nconfig:\n"),
    };
    let mut all = Vec::new();
    status.iter().for_each(|root| rows(root, 0, &mut all));
    let shown = |(depth, vdev): &(usize, &VdevStatus)| {
        let name = if *depth == 0 { pool } else { name(vdev) };
        format!("{:1$}{name}", "", depth * 2)
    };
    let width = all.iter().map(|row| shown(row).len()).max().unwrap_or(0).max(NAME_WIDTH_MIN);
    let _ = writeln!(text, "\t{:width$}  {:9} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
    let (plain, logs): (Vec<Row<'_>>, Vec<Row<'_>>) = all.iter().partition(|(_, vdev)| !is_of_log(status, vdev));
    let heading = logs.first().map(|_| None);
    for row in plain.into_iter().map(Some).chain(heading).chain(logs.into_iter().map(Some)) {
        let Some(row) = row else {
            text.push_str("\tlogs\t\n");
            continue;
        };
        let (depth, vdev) = row;
        let state = if *depth == 0 { root_state } else { vdev.state.name() };
        let [read, write, checksum] = [vdev.errors.read, vdev.errors.write, vdev.errors.checksum].map(nicenum);
        let _ =
            writeln!(text, "\t{:width$}  {state:9} {read:>5} {write:>5} {checksum:>5}{}", shown(row), remarks(vdev));
    }
    text
}

/// Writes vdevs in JSON.
#[derive(Clone, Copy)]
struct Writer<'a> {
    pool: &'a str,
    json: Json,
    /// All vdevs are beside one another too.
    is_flat: bool,
}

impl Writer<'_> {
    /// Enters a vdev; if they are to be beside one another, after all those below it.
    fn enter(self, vdev: &VdevStatus, parent: Option<&str>, found: &mut Map<String, Value>) {
        let own_name = if parent.is_none() { self.pool } else { name(vdev) };
        let mut below = Map::new();
        for child in &vdev.children {
            if self.is_flat {
                self.enter(child, Some(own_name), found);
            }
            self.enter(child, Some(own_name), &mut below);
        }
        let mut object = json!({
            "name": own_name,
            "guid": self.json.number(vdev.guid.0),
            "state": json_state(vdev.state.name()),
            "read_errors": self.json.number(vdev.errors.read),
            "write_errors": self.json.number(vdev.errors.write),
            "checksum_errors": self.json.number(vdev.errors.checksum),
        });
        if let Some(parent) = parent.filter(|_| self.is_flat) {
            object["parent"] = json!(parent);
        }
        if !below.is_empty() {
            object["vdevs"] = Value::Object(below);
        }
        if vdev.children.is_empty() && !vdev.missed.is_empty() {
            object["missed_txgs"] = json!(vdev.missed.to_string());
        }
        if let Some(hang) = vdev.hang {
            object["hang"] = json!({
                "silent_seconds": hang.silent.map(|silent| self.json.number(silent.as_secs())),
                "given_up": hang.is_given_up,
            });
        }
        found.insert(own_name.to_owned(), object);
    }
}

/// The same in JSON. `is_flat`: all vdevs are on one level.
pub fn suspended_json(pool: &Pool, reason: Option<&str>, json: Json, is_flat: bool) -> Map<String, Value> {
    let mut found = Map::new();
    found.insert("name".into(), json!(pool.name()));
    found.insert("pool_guid".into(), json.number(pool.guid().0));
    let root = devices(pool);
    match reason {
        Some(reason) => {
            found.insert("state".into(), json!("SUSPENDED"));
            let [status, action, message] = words(pool);
            found.insert("status".into(), json!(format!("{status}\n")));
            found.insert("action".into(), json!(format!("{action}\n")));
            found.insert("msgid".into(), json!(message));
            found.insert("moreinfo".into(), json!(format!("{SEE}/{message}")));
            found.insert("reason".into(), json!(reason));
        }
        None => {
            found.insert("state".into(), json!(root.as_ref().map_or("UNAVAIL", |root| root.state.name())));
            found.insert("status".into(), json!(format!("{HANG_STATUS}\n")));
            found.insert("action".into(), json!(format!("{HANG_ACTION}\n")));
        }
    }
    if let Some(root) = root {
        let mut vdevs = Map::new();
        Writer { pool: pool.name(), json, is_flat }.enter(&root, None, &mut vdevs);
        found.insert("vdevs".into(), Value::Object(vdevs));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_format::ids::VdevId;
    use cenote_vdev::dtl::Dtl;
    use cenote_vdev::fault::ErrorTotals;
    use cenote_vdev::tree::HangStatus;

    use super::*;

    fn vdev(name: &str, state: VdevState, hang: Option<HangStatus>, children: Vec<VdevStatus>) -> VdevStatus {
        let errors = ErrorTotals::default();
        let name = name.to_owned();
        VdevStatus {
            guid: Guid(1),
            top: VdevId(0),
            name,
            state,
            errors,
            healed_bytes: 0,
            slow_ios: 0,
            missed: Dtl::new(),
            coarse: None,
            hang,
            is_log: false,
            children,
        }
    }

    #[test]
    fn logs_have_their_heading_and_devices_their_usual_names() {
        let mut log = vdev("/dev/disk/by-id/ata-X", VdevState::Online, None, Vec::new());
        (log.is_log, log.top) = (true, VdevId(0));
        let mut data = vdev("/images/d0", VdevState::Unavailable, None, Vec::new());
        data.top = VdevId(1);
        let mut root = vdev("root", VdevState::Unavailable, None, vec![log, data]);
        root.top = VdevId(u32::MAX);
        let text = text_of("mine", Some(&root), Some("a write failed"), OF_DEVICES);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(at("/images/d0 ") < at("\tlogs\t\n") && at("\tlogs\t\n") < at("  ata-X "), "{text}");
    }

    /// Found by an outsider: a deleted device of a suspended pool was shown as ONLINE.
    #[test]
    fn a_device_that_has_gone_is_shown_as_not_there() {
        let mut gone = vdev("/images/d0", VdevState::Online, None, Vec::new());
        gone.guid = Guid(7);
        let there = vdev("/images/d1", VdevState::Online, None, Vec::new());
        let of = |name: &str, children: &[&VdevStatus]| {
            let children = children.iter().map(|child| (*child).clone()).collect();
            let mut root = vdev("root", VdevState::Online, None, vec![vdev(name, VdevState::Online, None, children)]);
            assert!(mark_gone(&mut root, &[Guid(7)].into()));
            root
        };
        for (name, children, state) in [
            ("mirror-0", &[&gone, &there][..], VdevState::Degraded),
            ("mirror-0", &[&gone, &gone], VdevState::Unavailable),
            ("raidz2-0", &[&gone, &there, &gone, &there], VdevState::Degraded),
            ("raidz1-0", &[&gone, &there, &gone, &there], VdevState::Unavailable),
            ("draid1:2d:4c:0s-0", &[&there, &gone, &there, &there], VdevState::Degraded),
        ] {
            let root = of(name, children);
            assert_eq!((root.children[0].state, root.state), (state, state), "{name}");
        }
        let root = of("mirror-0", &[&gone, &there]);
        let text = text_of("mine", Some(&root), Some("a write failed"), OF_DEVICES);
        let row =
            |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        assert!(row("d0").contains("UNAVAIL") && row("d0").ends_with("cannot open"), "{text}");
        assert!(row("d1").contains("ONLINE") && row("d1").ends_with("    0"), "{text}");
    }

    #[test]
    fn a_document_has_each_vdev_in_the_form_that_was_asked_for() {
        let mut lost = vdev("/images/d0", VdevState::Unavailable, None, Vec::new());
        lost.errors.write = 7;
        let top = vdev(
            "mirror-0",
            VdevState::Degraded,
            None,
            vec![lost, vdev("/images/d1", VdevState::Online, None, Vec::new())],
        );
        let root = vdev("root", VdevState::Degraded, None, vec![top]);
        let entered = |is_integer: bool, is_flat: bool| {
            let mut found = Map::new();
            let json = Json { is_integer };
            Writer { pool: "mine", json, is_flat }.enter(&root, None, &mut found);
            Value::Object(found)
        };
        let nested = entered(false, false);
        let leaf = &nested["mine"]["vdevs"]["mirror-0"]["vdevs"]["/images/d0"];
        assert_eq!((&leaf["state"], &leaf["write_errors"]), (&json!("CANT_OPEN"), &json!("7")));
        assert_eq!(nested.as_object().map(Map::len), Some(1));
        assert!(leaf.get("vdevs").is_none() && leaf.get("parent").is_none());
        let flat = entered(true, true);
        let names: Vec<&String> = flat.as_object().unwrap().keys().collect();
        assert_eq!(names, ["/images/d0", "/images/d1", "mirror-0", "mine"]);
        assert_eq!((&flat["/images/d0"]["write_errors"], &flat["mirror-0"]["parent"]), (&json!(7), &json!("mine")));
        assert_eq!(flat["mirror-0"]["vdevs"]["/images/d0"], flat["/images/d0"]);
    }

    #[test]
    fn a_device_that_hangs_is_shown_with_how_long_and_whether_it_was_given_up() {
        let silent = Some(Duration::from_secs(312));
        let late = Some(HangStatus { silent, is_given_up: false });
        let given_up = Some(HangStatus { silent, is_given_up: true });
        let answered = Some(HangStatus { silent: None, is_given_up: true });
        let children = vec![
            vdev("/dev/a", VdevState::Online, late, Vec::new()),
            vdev("/dev/b", VdevState::Faulted, given_up, Vec::new()),
            vdev("/dev/c", VdevState::Faulted, answered, Vec::new()),
            vdev("/dev/d", VdevState::Online, None, Vec::new()),
        ];
        let root = vdev("root", VdevState::Degraded, None, children);
        assert!(hangs(&root) && !hangs(&vdev("root", VdevState::Online, None, Vec::new())));
        let text = text_of("mine", Some(&root), None, OF_DEVICES);
        let ends = |name: &str, end: &str| text.lines().any(|line| line.contains(name) && line.ends_with(end));
        assert!(text.contains(" state: DEGRADED\nstatus: One or more devices have not answered"), "{text}");
        assert!(ends(" a ", "0  has not answered for 312 s"), "{text}");
        assert!(ends(" b ", "0  has not answered for 312 s  given up"), "{text}");
        assert!(ends(" c ", "0  given up") && ends(" d ", "    0"), "{text}");
        let text = text_of("mine", Some(&root), Some("a hangs"), OF_MULTIHOST);
        assert!(text.contains(" state: SUSPENDED\nstatus: The pool is suspended because multihost writes"), "{text}");
    }
}
