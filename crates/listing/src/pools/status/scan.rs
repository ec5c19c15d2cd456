//! The status of the last scrub or resilver, of a removal and expansions, and of a checkpoint: from what OpenZFS's records in the MOS say,
//! whoever wrote them.

use std::collections::BTreeSet;

use cenote_dsl::property::Value;
use cenote_format::dsl::{ErrorScrubPhys, RebuildPhys, RebuildState, ScanFlags, ScanFunction, ScanPhys, ScanState};
use cenote_format::ids::{Guid, VdevId};
use cenote_format::indirect::{IndirectMappingEntry, IndirectMappingPhys};
use cenote_props::number::{nicebytes, nicenum};
use cenote_spa::{Checkpoint, ScanPass, Unreported};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::VdevStatus;
use serde_json::{Map, json};

use super::super::iostat::nicetime;
use super::super::vdevs::class_of;
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
    pub(super) scan: Option<ScanPhys>,
    error_scrub: Option<ErrorScrubPhys>,
    pub(super) rebuilds: Vec<Rebuilt>,
    checkpoint: Option<(Checkpoint, u64)>,
    /// Bytes that a discarded checkpoint has left.
    pub(super) discarding: Option<u64>,
    pub(super) removal: Option<Copying>,
    pub(super) expansions: Vec<Copying>,
    /// A process has the pool, so a scan goes on.
    is_in_use: bool,
    /// Its work since the last txg that knows of some.
    pub(super) unreported: Unreported,
    now_s: u64,
}

/// The data about a top-level vdev that each of its jobs shows in JSON.
#[derive(Clone, Debug)]
struct Top {
    name: String,
    kind: &'static str,
    guid: Guid,
    path: Option<String>,
    class: &'static str,
}

impl Top {
    fn of(config: &VdevConfig) -> Self {
        Self {
            name: config.display_name(),
            kind: config.kind.name(),
            guid: config.guid,
            path: config.path.as_deref().map(str::to_owned),
            class: class_of(config.class),
        }
    }

    /// A vdev that the pool's description lacks.
    fn unknown(vdev: VdevId) -> Self {
        Self { name: vdev.to_string(), kind: "missing", guid: Guid(0), path: None, class: "normal" }
    }

    /// Only its name, without its number.
    fn numberless(&self) -> Map<String, serde_json::Value> {
        let name = self.name.rsplit_once('-').map_or(self.name.as_str(), |(name, _)| name);
        Map::from_iter([("name".to_owned(), json!(name))])
    }

    fn json(&self, json: Json) -> Map<String, serde_json::Value> {
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("vdev_type".into(), json!(self.kind));
        map.insert("guid".into(), json.number(self.guid.0));
        if let Some(path) = &self.path {
            map.insert("path".into(), json!(path));
        }
        map.insert("class".into(), json!(self.class));
        map
    }
}

/// The last sequential rebuild of a top-level vdev.
pub(super) struct Rebuilt {
    top: Top,
    pub(super) phys: RebuildPhys,
}

/// A top-level vdev that is, or was, evacuated or expanded.
pub(super) struct Copying {
    vdev: u64,
    top: Top,
    state: ScanState,
    start_s: u64,
    end_s: u64,
    to_copy_bytes: u64,
    copied_bytes: u64,
    /// Memory of the mappings of all removed vdevs.
    mapping_bytes: u64,
    /// The reason for which it does not go on now, from the process that has the pool.
    waits: Option<String>,
    /// The bytes that this process has copied, and the seconds that it took; none if none has the pool.
    here: Option<(u64, u64)>,
    /// No process has the pool.
    is_left: bool,
}

/// After the progress of what no process works on.
const LEFT: &str = "nothing works on it now\n\t'zpool resilver', or a mount ('cenote mount --rw'), has it go on";

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

/// Whether a process has the pool.
fn is_in_use(view: &Facts) -> bool {
    view.devices.as_ref().is_some_and(|devices| devices().is_some())
}

/// The removal that a pool records.
async fn removal(view: &Facts) -> Result<Option<Copying>> {
    let Some(removal) = view.pool.removal().await? else { return Ok(None) };
    let Some(vdev) = removal.removing_vdev else { return Ok(None) };
    let top = view.pool.vdevs().children.get(vdev.0 as usize);
    Ok(Some(Copying {
        vdev: vdev.0.into(),
        top: top.map_or_else(|| Top::unknown(vdev), Top::of),
        state: ScanState(removal.state),
        start_s: removal.start_time_s,
        end_s: removal.end_time_s,
        to_copy_bytes: removal.to_copy_bytes,
        copied_bytes: removal.copied_bytes,
        mapping_bytes: mapping_bytes(view, removal.prev_indirect_vdev).await?,
        waits: view.job("remove").and_then(|job| job.stalled.clone()),
        here: copied_here(view, "remove"),
        is_left: !is_in_use(view),
    }))
}

/// The work of the process that has the pool: what was done before it was opened says nothing of how fast it is now.
fn copied_here(view: &Facts, job: &str) -> Option<(u64, u64)> {
    view.job(job).map(|job| (job.done_bytes, job.took.as_secs()))
}

/// The reason for which the expansion of a vdev does not go on: the process that has the pool tells it. Of a pool that nobody has, it is a
/// device that the expansion could not do without.
fn waits_for(view: &Facts, top: &VdevConfig) -> Option<String> {
    if let Some(job) = view.job("raidz_expand") {
        return job.stalled.clone();
    }
    let devices = view.devices();
    let leaves = devices.children.iter().filter(|vdev| vdev.guid == top.guid).flat_map(VdevStatus::leaves);
    let lacking = leaves.into_iter().find(|leaf| !leaf.state.is_readable() || !leaf.missed.is_empty())?;
    let config = top.leaves().into_iter().find(|leaf| leaf.guid == lacking.guid)?;
    Some(format!("waits until {} is there and has all of its data", config.display_name()))
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
            top: Top::of(top),
            state,
            start_s: number("start_time"),
            end_s: number("end_time"),
            to_copy_bytes: space.map_or(0, |space| space.figures().allocated_bytes),
            copied_bytes: number("bytes_copied"),
            mapping_bytes: 0,
            waits: if state == ScanState::SCANNING { waits_for(view, top) } else { None },
            here: copied_here(view, "raidz_expand"),
            is_left: !is_in_use(view),
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
                format!("remove: Removal of {} canceled on {}\n", self.top.name, time(self.end_s, CTIME))
            }
            ScanState::SCANNING => {
                let (rate, percent, left) = self.progress(now_s);
                let left = match (&self.waits, left) {
                    (Some(reason), _) => format!("paused for scrub\n\tthe removal {reason}"),
                    _ if self.is_left => LEFT.to_owned(),
                    (None, left) if left < 30 * 86_400 => format!("{} to go", minutes(left)),
                    (None, _) => "(copy is slow, no estimated time)".to_owned(),
                };
                format!(
                    "remove: Evacuation of {} in progress since {}\n\t{copied} copied out of {} at {}/s, {percent:.2}% done, {left}\n",
                    self.top.name,
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
                self.top.name,
                duration(self.end_s.saturating_sub(self.start_s)),
                time(self.end_s, CTIME)
            ),
            ScanState::SCANNING => {
                let (rate, percent, left) = self.progress(now_s);
                let left = match (&self.waits, left) {
                    (Some(reason), _) => format!("paused for resilver or clear\n\tthe expansion {reason}"),
                    (None, _) if self.is_left => LEFT.to_owned(),
                    (None, left) if left < 30 * 86_400 => format!("{} to go", duration(left)),
                    (None, _) => "(copy is slow, no estimated time)".to_owned(),
                };
                format!(
                    "expand: expansion of {} in progress since {}\n\t{copied} / {} copied at {}/s, {percent:.2}% done, {left}\n",
                    self.top.name,
                    time(self.start_s, CTIME),
                    nicenum(self.to_copy_bytes),
                    nicenum(rate)
                )
            }
            _ => String::new(),
        }
    }

    /// Whether it has not ended.
    pub(super) fn is_begun(&self) -> bool {
        self.state == ScanState::SCANNING
    }

    /// Bytes that are left, if it goes on.
    pub(super) fn left_bytes(&self) -> u64 {
        match self.state {
            ScanState::SCANNING => self.to_copy_bytes.saturating_sub(self.copied_bytes),
            _ => 0,
        }
    }

    /// Bytes in a second, the percentage that is done, and the seconds that the rest takes.
    fn progress(&self, now_s: u64) -> (u64, f64, u64) {
        let copied = self.copied_bytes.max(1);
        let all_s = now_s.saturating_sub(self.start_s);
        // All copies of a job that this process began are its own, those of the last slices too, of which the job does not tell yet.
        let (done, took_s) = self.here.filter(|(_, took_s)| *took_s + 1 < all_s).unwrap_or((copied, all_s));
        let rate = (done / took_s.max(1)).max(1);
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
    let rebuilds = view.pool.rebuilds().await.into_iter();
    let rebuilds = rebuilds.map(|(top, phys)| Rebuilt { top: Top::of(top), phys }).collect();
    let (removal, expansions) = (removal(view).await?, expansions(view).await?);
    let is_in_use = is_in_use(view);
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

impl Scanned {
    /// Whether a scrub, of errors too, was begun and is not paused.
    pub(super) fn is_scrubbing(&self) -> bool {
        let is_paused = |scan: &ScanPhys| scan.flags.contains(ScanFlags::SCRUB_PAUSED);
        let is_it = |scan: &ScanPhys| scan.function == ScanFunction::SCRUB && scan.state == ScanState::SCANNING;
        let errors = self.error_scrub.as_ref();
        self.scan.as_ref().is_some_and(|scan| is_it(scan) && !is_paused(scan))
            || errors.is_some_and(|errors| errors.state == ScanState::ERROR_SCRUBBING && errors.paused_flags == 0)
    }

    /// Whether a resilver or a sequential rebuild is under way.
    pub(super) fn is_resilvering(&self) -> bool {
        let is_it = |scan: &ScanPhys| scan.function == ScanFunction::RESILVER && scan.state == ScanState::SCANNING;
        self.scan.as_ref().is_some_and(is_it)
            || self.rebuilds.iter().any(|rebuild| rebuild.phys.state == RebuildState::ACTIVE)
    }
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
    for Rebuilt { top, phys } in scanned.rebuilds.iter().filter(|_| shows_rebuilds) {
        text.push_str(&rebuild_text(&top.name, phys, scanned.is_in_use, time));
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
    let is_rebuilding = scanned.rebuilds.iter().any(|rebuild| rebuild.phys.state == RebuildState::ACTIVE);
    let end = scanned.rebuilds.iter().map(|rebuild| rebuild.phys.end_time).max().unwrap_or(0);
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
            let is_paused = scan.flags.contains(ScanFlags::SCRUB_PAUSED) && what == "scrub";
            running(scan, of, (what, did), is_paused, &date)
        }
        _ => return None,
    })
}

/// The bytes of a scan that are verified: blocks that are recorded as examined were read, as were a part of those that are gathered.
pub(super) fn issued_bytes(scan: &ScanPhys, unreported: Unreported) -> u64 {
    let examined = scan.examined_bytes.saturating_sub(scan.skipped_bytes);
    let to_read = scan.to_examine_bytes.saturating_sub(scan.skipped_bytes);
    examined.saturating_add(unreported.read_bytes).min(to_read.max(examined))
}

/// The bytes of a scan that were visited: of what is recorded as examined, and of blocks that are gathered.
fn scanned_bytes(scan: &ScanPhys, unreported: Unreported) -> u64 {
    scan.examined_bytes.saturating_add(unreported.gathered_bytes.max(unreported.read_bytes))
}

/// The time at which a scan was begun or resumed, and the bytes that were visited and read before: they say nothing of how fast it is now.
fn pass(scan: &ScanPhys, unreported: Unreported) -> (u64, [u64; 2]) {
    match unreported.pass {
        Some(ScanPass { start_s, examined_bytes, skipped_bytes }) => {
            (start_s, [examined_bytes, examined_bytes.saturating_sub(skipped_bytes)])
        }
        None => (scan.start_time, [0, 0]),
    }
}

/// A scan that goes on, or waits for a person, or for a process that has the pool for writing.
fn running(
    scan: &ScanPhys,
    of: &Scanned,
    (what, did): (&str, &str),
    is_paused: bool,
    date: &dyn Fn(u64) -> String,
) -> String {
    /// Below this rate there is no estimate.
    const RATE_MIN: u64 = 10 << 20;
    let (unreported, now) = (of.unreported, of.now_s);
    let start = date(scan.start_time);
    let since = match is_paused {
        true => format!("scrub paused since {}\n\tscrub started on {start}", date(now)),
        false => format!("{what} in progress since {start}"),
    };
    let (all, to_read) = (scan.to_examine_bytes, scan.to_examine_bytes.saturating_sub(scan.skipped_bytes));
    let issued = issued_bytes(scan, unreported);
    let scanned = scanned_bytes(scan, unreported);
    let (start_s, [scanned_before, issued_before]) = pass(scan, unreported);
    let elapsed_s = now.saturating_sub(start_s).max(1);
    // No scan goes on in a pool that is opened read-only.
    let goes_on = of.is_in_use && !is_paused;
    let rate = |bytes: u64, before: u64| match bytes.saturating_sub(before) / elapsed_s {
        rate if rate > 0 && goes_on => format!(" at {}/s", nicebytes(rate)),
        _ => String::new(),
    };
    let percent = 100.0 * issued as f64 / to_read.max(1) as f64;
    let left = match issued.saturating_sub(issued_before) / elapsed_s {
        _ if is_paused => String::new(),
        rate if goes_on && rate >= RATE_MIN && to_read >= issued => {
            format!(", {} to go", duration((to_read - issued) / rate))
        }
        _ => ", no estimated completion time".to_owned(),
    };
    format!(
        "  scan: {since}\n\t{} / {} scanned{}, {} / {} issued{}\n\t{} {did}, {percent:.2}% done{left}\n",
        nicebytes(scanned),
        nicebytes(all),
        rate(scanned, scanned_before),
        nicebytes(issued),
        nicebytes(to_read),
        rate(issued, issued_before),
        nicebytes(scan.processed_bytes.saturating_add(unreported.processed_bytes))
    )
}

/// A time; `-` for none.
pub(super) fn date_or_dash(seconds: u64, time: TimeText) -> String {
    if seconds == 0 { "-".to_owned() } else { time(seconds, CTIME) }
}

/// Formats a number.
type Nice<'a> = &'a dyn Fn(u64) -> String;

/// The same in JSON: the record of the scan.
pub(super) fn json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    let mut map = Map::new();
    if let Some(scan) = scanned.scan.as_ref().filter(|scan| scan.function != ScanFunction::NONE) {
        scan_json(scan, scanned, json, exact, time, &mut map);
    }
    let rebuilds: Map<String, serde_json::Value> = scanned
        .rebuilds
        .iter()
        .filter(|rebuild| rebuild.phys.state != RebuildState::NONE)
        .map(|rebuild| (rebuild.top.name.clone(), rebuild_json(rebuild, json, exact, time)))
        .collect();
    if !rebuilds.is_empty() {
        map.insert("rebuild_stats".into(), serde_json::Value::Object(rebuilds));
    }
    (!map.is_empty()).then_some(serde_json::Value::Object(map))
}

/// Appends the record of the last scrub or resilver, and of a scrub of errors after it.
fn scan_json(
    scan: &ScanPhys,
    scanned: &Scanned,
    json: Json,
    exact: bool,
    time: TimeText,
    map: &mut Map<String, serde_json::Value>,
) {
    let word = |words: &[&'static str], number: u64| {
        usize::try_from(number).ok().and_then(|number| words.get(number)).copied().unwrap_or("UNKNOWN")
    };
    map.insert("function".into(), json!(word(&["NONE", "SCRUB", "RESILVER", "ERRORSCRUB"], scan.function.0)));
    let state = |number| word(&["NONE", "SCANNING", "FINISHED", "CANCELED", "ERRORSCRUBBING"], number);
    map.insert("state".into(), json!(state(scan.state.0)));
    let shown = |number: u64, nice: Nice<'_>| {
        if exact { json.number(number) } else { json!(nice(number)) }
    };
    let date = |seconds| date_or_dash(seconds, time);
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
    let (start_s, before) = pass(scan, scanned.unreported);
    let [gathered, read] = match scanned.unreported.pass {
        Some(_) => {
            let done = [scanned_bytes(scan, scanned.unreported), issued_bytes(scan, scanned.unreported)];
            [done[0].saturating_sub(before[0]), done[1].saturating_sub(before[1])]
        }
        None => [0, 0],
    };
    map.insert("bytes_per_scan".into(), shown(gathered, &nicebytes));
    map.insert("pass_start".into(), json.number(start_s));
    let is_paused = scan.flags.contains(ScanFlags::SCRUB_PAUSED) && scan.function == ScanFunction::SCRUB;
    // OpenZFS does not keep the time of a pause either: it is that of the import.
    let paused_s = if is_paused { scanned.now_s } else { 0 };
    map.insert("scrub_pause".into(), if is_paused || exact { shown(paused_s, &date) } else { json!("-") });
    map.insert("scrub_spent_paused".into(), json.number(0));
    map.insert("issued_bytes_per_scan".into(), shown(read, &nicebytes));
    map.insert("issued".into(), shown(issued_bytes(scan, scanned.unreported), &nicebytes));
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
        // OpenZFS does not keep the time of a pause: it is that of the import.
        let paused_s = if errors.paused_flags == 0 { 0 } else { scanned.now_s };
        map.insert("err_scrub_pause".into(), json.number(paused_s));
    }
}

/// A sequential rebuild in JSON.
fn rebuild_json(rebuild: &Rebuilt, json: Json, exact: bool, time: TimeText) -> serde_json::Value {
    let Rebuilt { top, phys } = rebuild;
    let mut map = top.json(json);
    let state = match phys.state {
        RebuildState::ACTIVE => "ACTIVE",
        RebuildState::CANCELED => "CANCELED",
        RebuildState::COMPLETE => "COMPLETE",
        _ => "NONE",
    };
    map.insert("state".into(), json!(state));
    let date = |seconds| date_or_dash(seconds, time);
    let ns = |ms: u64| ms.saturating_mul(1_000_000);
    let figures: [(&str, u64, Nice<'_>); 12] = [
        ("start_time", phys.start_time, &date),
        ("end_time", phys.end_time, &date),
        ("scan_time", ns(phys.scan_time_ms), &nicetime),
        ("scanned", phys.scanned_bytes, &nicebytes),
        ("issued", phys.issued_bytes, &nicebytes),
        ("rebuilt", phys.rebuilt_bytes, &nicebytes),
        ("to_scan", phys.estimated_bytes, &nicebytes),
        ("errors", phys.error_count, &nicenum),
        // Those of a pass are kept in memory alone.
        ("pass_time", 0, &nicetime),
        ("pass_scanned", 0, &nicebytes),
        ("pass_issued", 0, &nicebytes),
        ("pass_skipped", 0, &nicebytes),
    ];
    for (key, number, nice) in figures {
        map.insert(key.into(), if exact { json.number(number) } else { json!(nice(number)) });
    }
    serde_json::Value::Object(map)
}

/// The last removal in JSON.
pub(super) fn removal_json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    let removal = scanned.removal.as_ref().filter(|removal| removal.state != ScanState(0))?;
    // As OpenZFS has it: a device is told by its path; of other vdevs, a removed one too, the name lacks the number, and nothing else is found.
    let mut map = match &removal.top.path {
        Some(path) => Top { name: path.clone(), ..removal.top.clone() }.json(json),
        None => removal.top.numberless(),
    };
    map.insert("state".into(), json!(job_word(removal.state)));
    map.insert("removing_vdev".into(), json.number(removal.vdev));
    let date = |seconds| date_or_dash(seconds, time);
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

/// The expansion that goes on, or the last one, in JSON.
pub(super) fn expansion_json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<serde_json::Value> {
    let going = scanned.expansions.iter().find(|expansion| expansion.state == ScanState::SCANNING);
    let expansion = going.or_else(|| scanned.expansions.iter().max_by_key(|expansion| expansion.end_s))?;
    // As OpenZFS 2.3 has it: the name lacks the vdev's number, and so nothing else is found about it.
    let mut map = expansion.top.numberless();
    map.insert("state".into(), json!(job_word(expansion.state)));
    map.insert("expanding_vdev".into(), json.number(expansion.vdev));
    let date = |seconds| date_or_dash(seconds, time);
    let figures: [(&str, u64, Nice<'_>); 4] = [
        ("start_time", expansion.start_s, &date),
        ("end_time", expansion.end_s, &date),
        ("to_reflow", expansion.to_copy_bytes, &nicebytes),
        ("reflowed", expansion.copied_bytes, &nicebytes),
    ];
    for (key, number, nice) in figures {
        map.insert(key.into(), if exact { json.number(number) } else { json!(nice(number)) });
    }
    map.insert("waiting_for_resilver".into(), json.number(expansion.waits.is_some().into()));
    Some(serde_json::Value::Object(map))
}

/// The word in JSON for the state of a removal or an expansion.
const fn job_word(state: ScanState) -> &'static str {
    match state {
        ScanState::SCANNING => "SCANNING",
        ScanState::FINISHED => "FINISHED",
        ScanState::CANCELED => "CANCELED",
        _ => "UNKNOWN",
    }
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
            top: Top { name: "raidz1-1".into(), kind: "raidz", guid: Guid(7), path: None, class: "normal" },
            state,
            start_s: 100,
            end_s: 7300,
            to_copy_bytes: 8 << 20,
            copied_bytes,
            mapping_bytes: 0,
            waits: None,
            here: None,
            is_left: false,
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
        let resumed = Copying { here: Some((3 << 20, 4)), ..copying(ScanState::SCANNING, 5 << 20) };
        assert_eq!(
            resumed.expansion_text(100_000, time),
            "expand: expansion of raidz1-1 in progress since @100\n\t5M / 8M copied at 768K/s, 62.50% done, 00:00:04 to go\n"
        );
        assert_eq!(
            Copying { is_left: true, ..copying(ScanState::SCANNING, 2 << 20) }.expansion_text(102, time),
            "expand: expansion of raidz1-1 in progress since @100\n\t2M / 8M copied at 1M/s, 25.00% done, nothing works on it now\n\t\
             'zpool resilver', or a mount ('cenote mount --rw'), has it go on\n"
        );
        let reason = "waits until a is there and has all of its data".to_owned();
        assert_eq!(
            Copying { waits: Some(reason), ..copying(ScanState::SCANNING, 2 << 20) }.expansion_text(102, time),
            "expand: expansion of raidz1-1 in progress since @100\n\t2M / 8M copied at 1M/s, 25.00% done, paused for resilver or clear\n\t\
             the expansion waits until a is there and has all of its data\n"
        );
    }

    #[test]
    fn the_rate_of_a_scan_is_that_of_its_pass() {
        let time = |seconds: u64, _: &str| format!("@{seconds}");
        let scan = ScanPhys {
            function: ScanFunction::SCRUB,
            state: ScanState::SCANNING,
            start_time: 100,
            to_examine_bytes: 1 << 30,
            examined_bytes: 640 << 20,
            skipped_bytes: 128 << 20,
            ..ScanPhys::default()
        };
        let line = |pass| {
            let unreported = Unreported { pass, ..Unreported::default() };
            let scanned = Scanned {
                scan: Some(scan),
                error_scrub: None,
                rebuilds: Vec::new(),
                checkpoint: None,
                discarding: None,
                removal: None,
                expansions: Vec::new(),
                is_in_use: true,
                unreported,
                now_s: 100_100,
            };
            let mut map = Map::new();
            scan_json(&scan, &scanned, Json { is_integer: false }, true, time, &mut map);
            let of_pass = ["pass_start", "bytes_per_scan", "issued_bytes_per_scan"].map(|key| map[key].to_string());
            (scan_line(&scan, &scanned, time).unwrap(), of_pass)
        };
        // It was resumed 4 seconds ago, with 256M examined, which took a day.
        let pass = ScanPass { start_s: 100_096, examined_bytes: 256 << 20, skipped_bytes: 64 << 20 };
        let (text, of_pass) = line(Some(pass));
        assert_eq!(
            text,
            "  scan: scrub in progress since @100\n\t640M / 1G scanned at 96M/s, 512M / 896M issued at 80M/s\n\t0B repaired, 57.14% done, \
             00:00:04 to go\n"
        );
        assert_eq!(of_pass, ["\"100096\"".to_owned(), format!("\"{}\"", 384 << 20), format!("\"{}\"", 320 << 20)]);
        let (text, of_pass) = line(None);
        assert!(text.ends_with("no estimated completion time\n"), "{text}");
        assert_eq!(of_pass, ["\"100\"", "\"0\"", "\"0\""]);
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
