//! The status of the last scrub or resilver, of a removal and expansions, and of a checkpoint: from what OpenZFS's records in the MOS say,
//! whoever wrote them.

use std::collections::BTreeSet;

use cenote_dsl::property::Value;
use cenote_format::dsl::{ErrorScrubPhys, RebuildPhys, RebuildState, ScanFlags, ScanFunction, ScanPhys, ScanState};
use cenote_format::ids::VdevId;
use cenote_format::indirect::{IndirectMappingEntry, IndirectMappingPhys};
use cenote_props::number::{nicebytes, nicenum};
use cenote_spa::{Checkpoint, Unreported};
use cenote_vdev::config::{VdevConfig, VdevKind};
use serde_json::{Map, json};

use crate::error::Result;
use crate::{Facts, Json, TimeText};

/// The format of `ctime`.
const CTIME: &str = "%a %b %e %H:%M:%S %Y";

/// Hours, minutes and seconds, with days if there are any.
fn duration(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let clock = format!("{:02}:{:02}:{:02}", hours % 24, minutes % 60, seconds % 60);
    if hours >= 24 { format!("{} days {clock}", hours / 24) } else { clock }
}

/// The last scan of a pool, and its checkpoint with the bytes that only it holds.
pub(super) struct Scanned {
    scan: Option<ScanPhys>,
    error_scrub: Option<ErrorScrubPhys>,
    /// The last sequential rebuilds, with the names of their vdevs.
    rebuilds: Vec<(String, RebuildPhys)>,
    checkpoint: Option<(Checkpoint, u64)>,
    /// Bytes that a discarded checkpoint has left.
    discarding: Option<u64>,
    removal: Option<Copying>,
    expansions: Vec<Copying>,
    /// A process has the pool, so a scan goes on.
    is_in_use: bool,
    /// Its work since the last txg that knows of some.
    unreported: Unreported,
    now_s: u64,
}

/// A top-level vdev that is, or was, evacuated or expanded.
struct Copying {
    vdev: u64,
    name: String,
    state: ScanState,
    start_s: u64,
    end_s: u64,
    to_copy_bytes: u64,
    copied_bytes: u64,
    /// Memory of the mappings of all removed vdevs.
    mapping_bytes: u64,
    /// Type, guid and path of a vdev that is evacuated or removed.
    vdev_type: &'static str,
    guid: u64,
    path: Option<String>,
}

/// Bytes of memory that the mappings of removed vdevs take, from the last one on.
async fn mapping_bytes(view: &Facts, last: Option<VdevId>) -> Result<u64> {
    let (mut bytes, mut at, mut seen) = (0_u64, last, BTreeSet::new());
    while let Some(vdev) = at.filter(|vdev| seen.insert(*vdev)) {
        let Some(top) = view.pool.vdevs().children.get(vdev.0 as usize) else { break };
        let VdevKind::Indirect(indirect) = top.kind else { break };
        let mapping = view.pool.mos().object(indirect.mapping).await?;
        let entries = mapping.bonus(IndirectMappingPhys::parse).map_or(0, |phys| phys.entry_count);
        bytes = bytes.saturating_add(entries.saturating_mul(IndirectMappingEntry::SIZE as u64));
        at = indirect.previous;
    }
    Ok(bytes)
}

/// The removal that a pool records.
async fn removal(view: &Facts) -> Result<Option<Copying>> {
    let Some(removal) = view.pool.removal().await? else { return Ok(None) };
    let Some(vdev) = removal.removing_vdev else { return Ok(None) };
    let top = view.pool.vdevs().children.get(vdev.0 as usize);
    Ok(Some(Copying {
        vdev: vdev.0.into(),
        name: top.map_or_else(|| vdev.to_string(), VdevConfig::display_name),
        state: ScanState(removal.state),
        start_s: removal.start_time_s,
        end_s: removal.end_time_s,
        to_copy_bytes: removal.to_copy_bytes,
        copied_bytes: removal.copied_bytes,
        mapping_bytes: mapping_bytes(view, removal.prev_indirect_vdev).await?,
        vdev_type: top.map_or("missing", |top| top.kind.name()),
        guid: top.map_or(0, |top| top.guid.0),
        path: top.and_then(|top| top.path.as_deref()).map(str::to_owned),
    }))
}

/// The expansions that raidz vdevs record.
async fn expansions(view: &Facts) -> Result<Vec<Copying>> {
    let mut found = Vec::new();
    for top in &view.pool.vdevs().children {
        if !matches!(top.kind, VdevKind::Raidz { .. }) {
            continue;
        }
        let set = view.pool.vdev_properties(top).await?;
        let number = |name: &str| match set.get(&format!("org.openzfs:raidz_expand_{name}")) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        let state = ScanState(number("state"));
        if state == ScanState(0) {
            continue;
        }
        let space = view.space().await?.vdevs.iter().find(|space| u64::from(space.maps.vdev.0) == top.id);
        found.push(Copying {
            vdev: top.id,
            name: top.display_name(),
            state,
            start_s: number("start_time"),
            end_s: number("end_time"),
            to_copy_bytes: space.map_or(0, |space| space.figures().allocated_bytes),
            copied_bytes: number("bytes_copied"),
            mapping_bytes: 0,
            vdev_type: top.kind.name(),
            guid: top.guid.0,
            path: None,
        });
    }
    Ok(found)
}

impl Copying {
    fn removal_text(&self, now_s: u64, time: TimeText) -> String {
        let mut text = self.removal_line(now_s, time);
        if self.mapping_bytes > 0 && !text.is_empty() {
            text.push_str(&format!("\t{} memory used for removed device mappings\n", nicenum(self.mapping_bytes)));
        }
        text
    }

    fn removal_line(&self, now_s: u64, time: TimeText) -> String {
        let copied = nicenum(self.copied_bytes);
        let minutes = |seconds: u64| format!("{}h{}m", seconds / 3600, seconds / 60 % 60);
        match self.state {
            ScanState::FINISHED => format!(
                "remove: Removal of vdev {} copied {copied} in {}, completed on {}\n",
                self.vdev,
                minutes(self.end_s.saturating_sub(self.start_s)),
                time(self.end_s, CTIME)
            ),
            ScanState::CANCELED => {
                format!("remove: Removal of {} canceled on {}\n", self.name, time(self.end_s, CTIME))
            }
            ScanState::SCANNING => {
                let (rate, percent, left) = self.progress(now_s);
                let left = match left {
                    left if left < 30 * 86_400 => format!("{} to go", minutes(left)),
                    _ => "(copy is slow, no estimated time)".to_owned(),
                };
                format!(
                    "remove: Evacuation of {} in progress since {}\n\t{copied} copied out of {} at {}/s, {percent:.2}% done, {left}\n",
                    self.name,
                    time(self.start_s, CTIME),
                    nicenum(self.to_copy_bytes),
                    nicenum(rate)
                )
            }
            _ => String::new(),
        }
    }

    fn expansion_text(&self, now_s: u64, time: TimeText) -> String {
        let copied = nicenum(self.copied_bytes);
        match self.state {
            ScanState::FINISHED => format!(
                "expand: expanded {} copied {copied} in {}, on {}\n",
                self.name,
                duration(self.end_s.saturating_sub(self.start_s)),
                time(self.end_s, CTIME)
            ),
            ScanState::SCANNING => {
                let (rate, percent, left) = self.progress(now_s);
                let left = match left {
                    left if left < 30 * 86_400 => format!("{} to go", duration(left)),
                    _ => "(copy is slow, no estimated time)".to_owned(),
                };
                format!(
                    "expand: expansion of {} in progress since {}\n\t{copied} / {} copied at {}/s, {percent:.2}% done, {left}\n",
                    self.name,
                    time(self.start_s, CTIME),
                    nicenum(self.to_copy_bytes),
                    nicenum(rate)
                )
            }
            _ => String::new(),
        }
    }

    /// Bytes in a second, the percentage that is done, and the seconds that the rest takes.
    fn progress(&self, now_s: u64) -> (u64, f64, u64) {
        let copied = self.copied_bytes.max(1);
        let rate = (copied / now_s.saturating_sub(self.start_s).max(1)).max(1);
        let percent = 100.0 * copied as f64 / self.to_copy_bytes.max(1) as f64;
        (rate, percent, self.to_copy_bytes.saturating_sub(copied) / rate)
    }
}

/// Reads both.
pub(super) async fn read(view: &Facts) -> Result<Scanned> {
    let (on_disk, checkpoint) = (view.pool.scan().await?, view.pool.checkpoint().await?);
    let is_same =
        |newer: &ScanPhys| on_disk.is_some_and(|scan| scan.start_time == newer.start_time && scan.state == newer.state);
    let scan = view.unreported.scan.filter(is_same).or(on_disk);
    let error_scrub = view.pool.error_scrub().await?;
    let checkpoint = match checkpoint {
        Some(checkpoint) => Some((checkpoint, view.space().await?.figures().checkpoint_bytes)),
        None => None,
    };
    let discarding = match view.pool.is_discarding().await? {
        true => Some(view.space().await?.figures().checkpoint_bytes),
        false => None,
    };
    let rebuilds = view.pool.rebuilds().await.into_iter().map(|(top, phys)| (top.display_name(), phys)).collect();
    let (removal, expansions) = (removal(view).await?, expansions(view).await?);
    let is_in_use = view.devices.as_ref().is_some_and(|devices| devices().is_some());
    let now_s = view.pool.dmu().handle().unix_time().as_secs();
    Ok(Scanned {
        scan,
        error_scrub,
        rebuilds,
        checkpoint,
        discarding,
        removal,
        expansions,
        is_in_use,
        unreported: view.unreported,
        now_s,
    })
}

/// The line `scan:` and the lines after it; empty if nothing was ever scanned.
pub(super) fn text(scanned: &Scanned, time: TimeText) -> String {
    let mut text = String::new();
    let scan = scanned.scan.as_ref();
    let error_scrub = error_scrub_after(scanned);
    // A scrub of errors takes the place of the scrub before it, and stands beside a resilver.
    let shown = scan.filter(|scan| scan.function != ScanFunction::SCRUB || error_scrub.is_none());
    let shows_rebuilds = are_rebuilds_shown(scanned);
    let shown = shown.filter(|scan| scan.function != ScanFunction::RESILVER || !shows_rebuilds);
    text.extend(error_scrub.map(|scrub| error_scrub_text(scrub, scanned.now_s, time)));
    text.extend(shown.and_then(|scan| scan_line(scan, scanned, time)));
    for (name, rebuild) in scanned.rebuilds.iter().filter(|_| shows_rebuilds) {
        text.push_str(&rebuild_text(name, rebuild, scanned.is_in_use, time));
    }
    text.extend(scanned.removal.iter().map(|removal| removal.removal_text(scanned.now_s, time)));
    text.extend(scanned.expansions.iter().map(|expansion| expansion.expansion_text(scanned.now_s, time)));
    if let Some((checkpoint, bytes)) = &scanned.checkpoint {
        let date = time(checkpoint.time_s, CTIME);
        if let Some(scan) = scan.filter(|scan| scan.end_time >= checkpoint.time_s) {
            let did = if scan.state == ScanState::SCANNING { "skipping" } else { "skipped" };
            text.push_str(&format!("    scan warning: {did} blocks that are only referenced by the checkpoint.\n"));
        }
        text.push_str(&format!("checkpoint: created {date}, consumes {}\n", nicenum(*bytes)));
    }
    if let Some(bytes) = scanned.discarding {
        text.push_str(&format!("checkpoint: discarding, {} remaining.\n", nicenum(bytes)));
    }
    text
}

/// Of the last resilver and the last rebuilds the later is shown, or what is under way.
fn are_rebuilds_shown(scanned: &Scanned) -> bool {
    let resilver = scanned.scan.filter(|scan| scan.function == ScanFunction::RESILVER);
    let is_resilvering = resilver.is_some_and(|scan| scan.state == ScanState::SCANNING);
    let is_rebuilding = scanned.rebuilds.iter().any(|(_, rebuild)| rebuild.state == RebuildState::ACTIVE);
    let end = scanned.rebuilds.iter().map(|(_, rebuild)| rebuild.end_time).max().unwrap_or(0);
    !is_resilvering && (is_rebuilding || end > resilver.map_or(0, |scan| scan.end_time))
}

/// A rebuild, in OpenZFS's words.
fn rebuild_text(name: &str, rebuild: &RebuildPhys, is_in_use: bool, time: TimeText) -> String {
    /// Below this rate there is no estimate.
    const RATE_MIN: u64 = 10 << 20;
    let (start, end) = (time(rebuild.start_time, CTIME), time(rebuild.end_time, CTIME));
    let (scanned, all) = (rebuild.scanned_bytes, rebuild.estimated_bytes);
    let rebuilt = nicebytes(rebuild.rebuilt_bytes);
    match rebuild.state {
        RebuildState::COMPLETE => format!(
            "  scan: resilvered ({name}) {rebuilt} in {} with {} errors on {end}\n",
            duration(rebuild.scan_time_ms / 1000),
            rebuild.error_count
        ),
        RebuildState::CANCELED => format!("  scan: resilver ({name}) canceled on {end}\n"),
        RebuildState::ACTIVE => {
            let rate = |bytes: u64| match bytes / (rebuild.scan_time_ms + 1) * 1000 {
                rate if is_in_use => rate,
                _ => 0,
            };
            let at = |bytes: u64| match rate(bytes) {
                0 => String::new(),
                rate => format!(" at {}/s", nicebytes(rate)),
            };
            let percent = (scanned as f64 * 100.0 / (all as f64 + 1.0)).min(100.0);
            let left = match rate(scanned) {
                rate if rate >= RATE_MIN && all >= scanned => format!("{} to go", duration((all - scanned) / rate)),
                _ => "no estimated completion time".to_owned(),
            };
            format!(
                "  scan: resilver ({name}) in progress since {start}\n\t{} / {} scanned{}, {} / {} issued{}\n\t{rebuilt} resilvered, \
                 {percent:.2}% done, {left}\n",
                nicebytes(scanned),
                nicebytes(all),
                at(scanned),
                nicebytes(rebuild.issued_bytes),
                nicebytes(all),
                at(rebuild.issued_bytes)
            )
        }
        _ => String::new(),
    }
}

/// The scrub of errors, if it began after the last scrub.
fn error_scrub_after(scanned: &Scanned) -> Option<&ErrorScrubPhys> {
    let scrub = scanned.scan.filter(|scan| scan.function == ScanFunction::SCRUB);
    scanned.error_scrub.as_ref().filter(|errors| scrub.is_none_or(|scrub| errors.start_time >= scrub.start_time))
}

/// In OpenZFS's words, with its spelling of the label.
fn error_scrub_text(scrub: &ErrorScrubPhys, now: u64, time: TimeText) -> String {
    let (start, end) = (time(scrub.start_time, CTIME), time(scrub.end_time, CTIME));
    let (done, left) = (scrub.examined_count, scrub.to_examine_count);
    match scrub.state {
        ScanState::FINISHED => {
            let took = scrub.end_time.saturating_sub(scrub.start_time);
            let (days, rest) = (took / 86_400, duration(took % 86_400));
            format!(" scrub: scrubbed {done} error blocks in {days} days {rest} on {end}\n")
        }
        ScanState::CANCELED => format!(" scrub: error scrub canceled on {end}\n"),
        ScanState::ERROR_SCRUBBING => {
            let since = match scrub.paused_flags {
                0 => format!("error scrub in progress since {start}"),
                _ => format!("error scrub paused since {}\n\terror scrub started on {start}", time(now, CTIME)),
            };
            let percent = 100.0 * done as f64 / left.saturating_add(done).max(1) as f64;
            format!(" scrub: {since}\n\t{percent:.2}% done, issued I/O for {done} error blocks\n")
        }
        _ => String::new(),
    }
}

fn scan_line(scan: &ScanPhys, of: &Scanned, time: TimeText) -> Option<String> {
    let (is_in_use, now) = (of.is_in_use, of.now_s);
    let (what, did) = match scan.function {
        ScanFunction::SCRUB => ("scrub", "repaired"),
        ScanFunction::RESILVER => ("resilver", "resilvered"),
        _ => return None,
    };
    let date = |seconds| time(seconds, CTIME);
    let processed = nicebytes(scan.processed_bytes);
    Some(match scan.state {
        ScanState::FINISHED => {
            let done =
                if what == "scrub" { format!("scrub repaired {processed}") } else { format!("resilvered {processed}") };
            format!(
                "  scan: {done} in {} with {} errors on {}\n",
                duration(scan.end_time.saturating_sub(scan.start_time)),
                scan.error_count,
                date(scan.end_time)
            )
        }
        ScanState::CANCELED => format!("  scan: {what} canceled on {}\n", date(scan.end_time)),
        ScanState::SCANNING => {
            // No scan runs in a pool that is opened read-only.
            let start = date(scan.start_time);
            let is_paused = scan.flags.contains(ScanFlags::SCRUB_PAUSED) && what == "scrub";
            if is_in_use {
                return Some(running((scan, of.unreported), what, did, is_paused, now, &date));
            }
            let since = if is_paused {
                format!("scrub paused since {}\n\tscrub started on {start}", date(now))
            } else {
                format!("{what} in progress since {start}")
            };
            let all = scan.to_examine_bytes;
            let to_read = nicebytes(all.saturating_sub(scan.skipped_bytes));
            let scanned = nicebytes(scan.examined_bytes);
            format!(
                "  scan: {since}\n\t{scanned} / {} scanned, 0B / {to_read} issued\n\t{processed} {did}, 0.00% done, no estimated completion time\n",
                nicebytes(all)
            )
        }
        _ => return None,
    })
}

/// A scan that goes on, or waits for a person. Blocks that are recorded as examined were read, as were a part of those that are gathered.
fn running(
    (scan, unreported): (&ScanPhys, Unreported),
    what: &str,
    did: &str,
    is_paused: bool,
    now: u64,
    date: &dyn Fn(u64) -> String,
) -> String {
    /// Below this rate there is no estimate.
    const RATE_MIN: u64 = 10 << 20;
    let start = date(scan.start_time);
    let since = match is_paused {
        true => format!("scrub paused since {}\n\tscrub started on {start}", date(now)),
        false => format!("{what} in progress since {start}"),
    };
    let (all, to_read) = (scan.to_examine_bytes, scan.to_examine_bytes.saturating_sub(scan.skipped_bytes));
    let examined = scan.examined_bytes.saturating_sub(scan.skipped_bytes);
    let issued = examined.saturating_add(unreported.read_bytes).min(to_read.max(examined));
    let scanned = scan.examined_bytes.saturating_add(unreported.gathered_bytes.max(unreported.read_bytes));
    let elapsed_s = now.saturating_sub(scan.start_time).max(1);
    let rate = |bytes: u64| match bytes / elapsed_s {
        rate if rate > 0 && !is_paused => format!(" at {}/s", nicebytes(rate)),
        _ => String::new(),
    };
    let percent = 100.0 * issued as f64 / to_read.max(1) as f64;
    let left = match issued / elapsed_s {
        _ if is_paused => String::new(),
        rate if rate >= RATE_MIN && to_read >= issued => format!(", {} to go", duration((to_read - issued) / rate)),
        _ => ", no estimated completion time".to_owned(),
    };
    format!(
        "  scan: {since}\n\t{} / {} scanned{}, {} / {} issued{}\n\t{} {did}, {percent:.2}% done{left}\n",
        nicebytes(scanned),
        nicebytes(all),
        rate(scanned),
        nicebytes(issued),
        nicebytes(to_read),
        rate(issued),
        nicebytes(scan.processed_bytes.saturating_add(unreported.processed_bytes))
    )
}

/// Formats a number.
type Nice<'a> = &'a dyn Fn(u64) -> String;

/// The same in JSON: the record of the scan.
pub(super) fn json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    let scan = scanned.scan.as_ref().filter(|scan| scan.function != ScanFunction::NONE)?;
    let word = |words: &[&'static str], number: u64| {
        usize::try_from(number).ok().and_then(|number| words.get(number)).copied().unwrap_or("UNKNOWN")
    };
    let mut map = Map::new();
    map.insert("function".into(), json!(word(&["NONE", "SCRUB", "RESILVER", "ERRORSCRUB"], scan.function.0)));
    let state = |number| word(&["NONE", "SCANNING", "FINISHED", "CANCELED", "ERRORSCRUBBING"], number);
    map.insert("state".into(), json!(state(scan.state.0)));
    let shown = |number: u64, nice: Nice<'_>| {
        if exact { json.number(number) } else { json!(nice(number)) }
    };
    let date = |seconds| time(seconds, CTIME);
    let figures: [(&str, u64, Nice<'_>); 7] = [
        ("start_time", scan.start_time, &date),
        ("end_time", scan.end_time, &date),
        ("to_examine", scan.to_examine_bytes, &nicebytes),
        ("examined", scan.examined_bytes, &nicebytes),
        ("skipped", scan.skipped_bytes, &nicebytes),
        ("processed", scan.processed_bytes, &nicebytes),
        ("errors", scan.error_count, &nicenum),
    ];
    for (key, number, nice) in figures {
        map.insert(key.into(), shown(number, nice));
    }
    if let Some(errors) = scanned.error_scrub.as_ref().filter(|errors| errors.start_time > scan.start_time) {
        map.insert("err_scrub_func".into(), json!("ERRORSCRUB"));
        map.insert("err_scrub_state".into(), json!(state(errors.state.0)));
        let figures: [(&str, u64, Nice<'_>); 4] = [
            ("err_scrub_start_time", errors.start_time, &date),
            ("err_scrub_end_time", errors.end_time, &date),
            ("err_scrub_examined", errors.examined_count, &nicenum),
            ("err_scrub_to_examine", errors.to_examine_count, &nicenum),
        ];
        for (key, number, nice) in figures {
            map.insert(key.into(), shown(number, nice));
        }
    }
    Some(serde_json::Value::Object(map))
}

/// The last removal in JSON.
pub(super) fn removal_json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    let removal = scanned.removal.as_ref().filter(|removal| removal.state != ScanState(0))?;
    let state = match removal.state {
        ScanState::SCANNING => "SCANNING",
        ScanState::FINISHED => "FINISHED",
        ScanState::CANCELED => "CANCELED",
        _ => "UNKNOWN",
    };
    let mut map = Map::new();
    map.insert("name".into(), json!(removal.name));
    map.insert("vdev_type".into(), json!(removal.vdev_type));
    map.insert("guid".into(), json.number(removal.guid));
    if let Some(path) = &removal.path {
        map.insert("path".into(), json!(path));
    }
    map.insert("class".into(), json!("normal"));
    map.insert("state".into(), json!(state));
    map.insert("removing_vdev".into(), json.number(removal.vdev));
    let date = |seconds| time(seconds, CTIME);
    let figures: [(&str, u64, Nice<'_>); 5] = [
        ("start_time", removal.start_s, &date),
        ("end_time", removal.end_s, &date),
        ("to_copy", removal.to_copy_bytes, &nicebytes),
        ("copied", removal.copied_bytes, &nicebytes),
        ("mapping_memory", removal.mapping_bytes, &nicebytes),
    ];
    for (key, number, nice) in figures {
        map.insert(key.into(), if exact { json.number(number) } else { json!(nice(number)) });
    }
    Some(serde_json::Value::Object(map))
}

/// The checkpoint in JSON.
pub(super) fn checkpoint_json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    if let Some(bytes) = scanned.discarding {
        let (start, space) =
            if exact { (json.number(0), json.number(bytes)) } else { (json!("-"), json!(nicebytes(bytes))) };
        return Some(json!({ "state": "DISCARDING", "start_time": start, "space": space }));
    }
    let (checkpoint, bytes) = scanned.checkpoint.as_ref()?;
    let (start, space) = match exact {
        true => (json.number(checkpoint.time_s), json.number(*bytes)),
        false => (json!(time(checkpoint.time_s, CTIME)), json!(nicebytes(*bytes))),
    };
    Some(json!({ "state": "EXISTS", "start_time": start, "space": space }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_and_expansions_have_openzfs_s_lines() {
        let time = |seconds: u64, _: &str| format!("@{seconds}");
        let copying = |state, copied_bytes| Copying {
            vdev: 1,
            name: "raidz1-1".into(),
            state,
            start_s: 100,
            end_s: 7300,
            to_copy_bytes: 8 << 20,
            copied_bytes,
            mapping_bytes: 0,
            vdev_type: "raidz",
            guid: 7,
            path: None,
        };
        assert_eq!(
            copying(ScanState::FINISHED, 8 << 20).removal_text(0, time),
            "remove: Removal of vdev 1 copied 8M in 2h0m, completed on @7300\n"
        );
        let mapped = Copying { mapping_bytes: 4800, ..copying(ScanState::CANCELED, 0) };
        assert_eq!(
            mapped.removal_text(0, time),
            "remove: Removal of raidz1-1 canceled on @7300\n\t4.69K memory used for removed device mappings\n"
        );
        assert_eq!(
            copying(ScanState::SCANNING, 2 << 20).removal_text(102, time),
            "remove: Evacuation of raidz1-1 in progress since @100\n\t2M copied out of 8M at 1M/s, 25.00% done, 0h0m to go\n"
        );
        assert_eq!(
            copying(ScanState::FINISHED, 8 << 20).expansion_text(0, time),
            "expand: expanded raidz1-1 copied 8M in 02:00:00, on @7300\n"
        );
        assert_eq!(
            copying(ScanState::SCANNING, 2 << 20).expansion_text(102, time),
            "expand: expansion of raidz1-1 in progress since @100\n\t2M / 8M copied at 1M/s, 25.00% done, 00:00:06 to go\n"
        );
    }

    #[test]
    fn a_scrub_of_errors_has_openzfs_s_lines() {
        let time = |seconds: u64, _: &str| format!("@{seconds}");
        let scrub = |state, paused_flags| ErrorScrubPhys {
            state,
            start_time: 100,
            end_time: 190,
            to_examine_count: 3,
            examined_count: 1,
            paused_flags,
            ..ErrorScrubPhys::default()
        };
        for (state, paused, text) in [
            (ScanState::FINISHED, 0, " scrub: scrubbed 1 error blocks in 0 days 00:01:30 on @190\n"),
            (ScanState::CANCELED, 0, " scrub: error scrub canceled on @190\n"),
            (
                ScanState::ERROR_SCRUBBING,
                0,
                " scrub: error scrub in progress since @100\n\t25.00% done, issued I/O for 1 error blocks\n",
            ),
            (
                ScanState::ERROR_SCRUBBING,
                1,
                " scrub: error scrub paused since @120\n\terror scrub started on @100\n\t25.00% done, issued I/O for 1 error blocks\n",
            ),
        ] {
            assert_eq!(error_scrub_text(&scrub(state, paused), 120, time), text);
        }
    }

    #[test]
    fn rebuilds_have_openzfs_s_lines() {
        let time = |seconds: u64, _: &str| format!("@{seconds}");
        let rebuild = |state| RebuildPhys {
            state,
            start_time: 100,
            end_time: 190,
            scan_time_ms: 1999,
            scanned_bytes: 64 << 20,
            issued_bytes: 64 << 20,
            rebuilt_bytes: 32 << 20,
            estimated_bytes: 128 << 20,
            ..RebuildPhys::default()
        };
        let text = |state, is_in_use| rebuild_text("mirror-0", &rebuild(state), is_in_use, time);
        assert_eq!(
            text(RebuildState::COMPLETE, true),
            "  scan: resilvered (mirror-0) 32M in 00:00:01 with 0 errors on @190\n"
        );
        assert_eq!(text(RebuildState::CANCELED, true), "  scan: resilver (mirror-0) canceled on @190\n");
        assert_eq!(
            text(RebuildState::ACTIVE, true),
            "  scan: resilver (mirror-0) in progress since @100\n\t64M / 128M scanned at 32.0M/s, 64M / 128M issued at 32.0M/s\n\t32M resilvered, \
             50.00% done, 00:00:02 to go\n"
        );
        assert!(text(RebuildState::ACTIVE, false).ends_with("50.00% done, no estimated completion time\n"));
        assert_eq!(text(RebuildState::NONE, true), "");
    }

    #[test]
    fn durations_have_days_only_where_there_are_some() {
        assert_eq!(duration(1), "00:00:01");
        assert_eq!(duration(86_399), "23:59:59");
        assert_eq!(duration(90_061), "1 days 01:01:01");
    }
}
