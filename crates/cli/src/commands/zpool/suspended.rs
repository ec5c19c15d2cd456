//! What `zpool status` says of a pool that a server has and whose devices fail: what is in memory, since none of it can be read.

use std::fmt::Write as _;

use cenote_spa::write::live::LivePool;
use cenote_vdev::tree::VdevStatus;
use serde_json::{Map, Value, json};

use crate::output::nicenum;

/// OpenZFS's words: scripts look for them.
const STATUS: &str = "One or more devices are faulted in response to IO failures.";
const ACTION: &str = "Make sure the affected devices are connected, then run 'zpool clear'.";
/// What it explains them with.
const SEE: &str = "https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-HC";
const NAME_WIDTH_MIN: usize = 10;

/// Rows of the tree: depth, vdev.
fn rows<'a>(vdev: &'a VdevStatus, depth: usize, into: &mut Vec<(usize, &'a VdevStatus)>) {
    into.push((depth, vdev));
    vdev.children.iter().for_each(|child| rows(child, depth + 1, into));
}

/// The last part of a place.
fn name(vdev: &VdevStatus) -> &str {
    vdev.name.rsplit('/').next().unwrap_or(&vdev.name)
}

/// As a person reads it.
pub(super) fn text(pool: &LivePool, reason: &str) -> String {
    let mut text =
        format!("  pool: {}\n state: SUSPENDED\nstatus: {STATUS}\naction: {ACTION}\n   see: {SEE}\n", pool.name());
    let _ = writeln!(text, "reason: {reason}\nconfig:\n");
    let status = pool.devices();
    let mut all = Vec::new();
    status.iter().for_each(|root| rows(root, 0, &mut all));
    let shown = |(depth, vdev): &(usize, &VdevStatus)| {
        let name = if *depth == 0 { pool.name() } else { name(vdev) };
        format!("{:1$}{name}", "", depth * 2)
    };
    let width = all.iter().map(|row| shown(row).len()).max().unwrap_or(0).max(NAME_WIDTH_MIN);
    let _ = writeln!(text, "\t{:width$}  {:9} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
    for row in &all {
        let (depth, vdev) = row;
        let state = if *depth == 0 { "SUSPENDED" } else { vdev.state.name() };
        let [read, write, checksum] = [vdev.errors.read, vdev.errors.write, vdev.errors.checksum].map(nicenum);
        let _ = writeln!(text, "\t{:width$}  {state:9} {read:>5} {write:>5} {checksum:>5}", shown(row));
    }
    text
}

/// The same for programs.
pub(super) fn json(pool: &LivePool, reason: &str) -> Map<String, Value> {
    fn object(vdev: &VdevStatus) -> Value {
        json!({
            "name": name(vdev),
            "guid": vdev.guid.0.to_string(),
            "state": vdev.state.name(),
            "read_errors": vdev.errors.read.to_string(),
            "write_errors": vdev.errors.write.to_string(),
            "checksum_errors": vdev.errors.checksum.to_string(),
            "vdevs": vdev.children.iter().map(|child| (name(child).to_owned(), object(child))).collect::<Map<_, _>>(),
        })
    }
    let mut found = Map::new();
    found.insert("name".into(), json!(pool.name()));
    found.insert("state".into(), json!("SUSPENDED"));
    found.insert("status".into(), json!(format!("{STATUS}\n")));
    found.insert("action".into(), json!(format!("{ACTION}\n")));
    found.insert("msgid".into(), json!("ZFS-8000-HC"));
    found.insert("moreinfo".into(), json!(SEE));
    found.insert("reason".into(), json!(reason));
    if let Some(root) = pool.devices() {
        found.insert("vdevs".into(), json!({ pool.name(): object(&root) }));
    }
    found
}
