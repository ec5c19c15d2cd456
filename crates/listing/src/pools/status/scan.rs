//! The status of the last scrub or resilver, and of a checkpoint.

use cenote_format::dsl::{ScanFlags, ScanFunction, ScanPhys, ScanState};
use cenote_props::number::{nicebytes, nicenum};
use cenote_spa::Checkpoint;
use serde_json::{Map, Value, json};

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
    checkpoint: Option<(Checkpoint, u64)>,
    now_s: u64,
}

/// Reads both.
pub(super) async fn read(view: &Facts) -> Result<Scanned> {
    let (scan, checkpoint) = (view.pool.scan().await?, view.pool.checkpoint().await?);
    let checkpoint = match checkpoint {
        Some(checkpoint) => Some((checkpoint, view.space().await?.figures().checkpoint_bytes)),
        None => None,
    };
    Ok(Scanned { scan, checkpoint, now_s: view.pool.dmu().handle().unix_time().as_secs() })
}

/// The line `scan:` and the lines after it; empty if nothing was ever scanned.
pub(super) fn text(scanned: &Scanned, time: TimeText) -> String {
    let mut text = String::new();
    let scan = scanned.scan.as_ref();
    text.extend(scan.and_then(|scan| scan_line(scan, scanned.now_s, time)));
    if let Some((checkpoint, bytes)) = &scanned.checkpoint {
        let date = time(checkpoint.time_s, CTIME);
        if let Some(scan) = scan.filter(|scan| scan.end_time >= checkpoint.time_s) {
            let did = if scan.state == ScanState::SCANNING { "skipping" } else { "skipped" };
            text.push_str(&format!("    scan warning: {did} blocks that are only referenced by the checkpoint.\n"));
        }
        text.push_str(&format!("checkpoint: created {date}, consumes {}\n", nicenum(*bytes)));
    }
    text
}

fn scan_line(scan: &ScanPhys, now: u64, time: TimeText) -> Option<String> {
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
            // No scan runs in a pool that is opened read-only, and the bytes examined since the last restart are not recorded.
            let start = date(scan.start_time);
            let since = if scan.flags.contains(ScanFlags::SCRUB_PAUSED) && what == "scrub" {
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

/// Formats a number.
type Nice<'a> = &'a dyn Fn(u64) -> String;

/// The same in JSON: the record of the scan.
pub(super) fn json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<Value> {
    let scan = scanned.scan.as_ref().filter(|scan| scan.function != ScanFunction::NONE)?;
    let word = |words: &[&'static str], number: u64| {
        usize::try_from(number).ok().and_then(|number| words.get(number)).copied().unwrap_or("UNKNOWN")
    };
    let mut map = Map::new();
    map.insert("function".into(), json!(word(&["NONE", "SCRUB", "RESILVER", "ERRORSCRUB"], scan.function.0)));
    map.insert("state".into(), json!(word(&["NONE", "SCANNING", "FINISHED", "CANCELED"], scan.state.0)));
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
    Some(Value::Object(map))
}

/// The checkpoint in JSON.
pub(super) fn checkpoint_json(scanned: &Scanned, json: Json, exact: bool, time: TimeText) -> Option<Value> {
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
    fn durations_have_days_only_where_there_are_some() {
        assert_eq!(duration(1), "00:00:01");
        assert_eq!(duration(86_399), "23:59:59");
        assert_eq!(duration(90_061), "1 days 01:01:01");
    }
}
