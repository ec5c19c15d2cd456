//! The words of OpenZFS's `zpool` and of Cenote about pools in the same state, field by field.
//!
//! `tools/openzfs-vm/seen` leaves a folder for each state, with a file for each question that was asked of the module, of the labels, and of a
//! server. A field of a document is the value at a path, and the names of an object; of `zpool get` the value and source of a property; of another
//! text a line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::process;

/// A difference that has a reason: the beginning of the question, a part of the field's name or line, and who of us differs (either if empty).
struct Reason {
    question: &'static str,
    field: &'static str,
    who: &'static str,
    why: &'static str,
}

const fn reason(question: &'static str, field: &'static str, who: &'static str, why: &'static str) -> Reason {
    Reason { question, field, who, why }
}

/// Counts that the module has begun anew at the import.
const COUNTS: &str = "counts since the import";
/// The same of a pass of a scan.
const OF_PASS: &str = "of a pass, which ends with the import";
/// The share of a device that is initialized or trimmed.
const OF_OFFSETS: &str =
    "the module tells what it wrote since it began; here the free space before the recorded offset";

/// Differences that are meant, or that the state itself brings.
const REASONS: &[Reason] = &[
    reason("", "/txg", "", "OpenZFS shows the txg of the configuration; the newest one is shown here"),
    reason("", "altroot", "", "the module has the pool imported below /mnt"),
    reason("", "load_guid", "", "drawn at each import"),
    reason("get", "read_ops", "", COUNTS),
    reason("get", "write_ops", "", COUNTS),
    reason("get", "read_bytes", "", COUNTS),
    reason("get", "write_bytes", "", COUNTS),
    reason("get", "trim_ops", "", COUNTS),
    reason("get", "trim_bytes", "", COUNTS),
    reason("get", "claim_", "", COUNTS),
    reason("get", "failfast", "", "'inherit', as from OpenZFS 2.4 on"),
    reason(
        "get",
        "org.zfsonlinux:allocation_bias",
        "",
        "an entry of the format, which OpenZFS 2.3 shows as if a user had set it",
    ),
    reason("", "_errors", "", "errors since the import, which ends with it"),
    reason("", "self_healed", "", "bytes since the import"),
    reason("", "scan_processed", "", "bytes since the import"),
    reason("", "bytes_per_scan", "", OF_PASS),
    reason("", "pass_", "", OF_PASS),
    reason("", "issued", "", OF_PASS),
    reason("", "initialize", "", OF_OFFSETS),
    reason("", "trimmed", "", OF_OFFSETS),
    reason("status", "initialized", "", OF_OFFSETS),
    reason("", "reflow", "", "the expansion went on until the export"),
    reason("status", "copied at", "", "the expansion went on until the export"),
    reason("", "scrub_pause", "", "OpenZFS does not keep the time of a pause"),
    reason(
        "",
        "rep_dev_size",
        "",
        "of a pool that was just made the module shows the devices' whole size, until the next import",
    ),
    reason("", "l2cache", "", "how much of a cache device is used is known to the process that has it"),
    reason("list", "% ", "", "space and fragmentation change with the txgs between; the document has them as numbers"),
    reason("status", "/s", "", "rates since the import"),
    reason("status", "% done", "", "a pool whose labels are read is not worked on"),
    reason("status", "consumes", "", "space changes with the txgs between"),
    reason("", "missed_txgs", "", "a device that missed txgs is shown as DEGRADED, with these"),
];

/// Properties of vdevs that came after the release that is compared with.
const LATER: &[&str] = &[
    "autosit",
    "slow_io_events",
    "scheduler",
    "failure_domain",
    "failure_group",
    "alloc_bias",
    "rotational",
    "sit_out",
];
/// Between the two views lie some txgs: space may differ by so much.
const SPACE_SLACK_BYTES: u64 = 1 << 20;

/// `seen [DIR] [PATTERN]`: has the states made, in a folder that is kept if one is named, and compares. With `--compare DIR` it compares alone.
pub(super) fn run(program: &Path, arguments: &[String]) -> Result<()> {
    if let [option, dir] = arguments
        && option == "--compare"
    {
        return compare(Path::new(dir));
    }
    let temp = tempfile::tempdir()?;
    let (dir, pattern) = match arguments {
        [] => (temp.path().to_owned(), None),
        [dir] => (dir.into(), None),
        [dir, pattern] => (dir.into(), Some(pattern)),
        _ => bail!("usage: cargo xtask openzfs-vm seen [DIR [PATTERN]], or --compare DIR"),
    };
    process::run(process::script("tools/openzfs-vm/seen").arg(program).arg(&dir).args(pattern))?;
    compare(&dir)
}

/// The fields of an answer.
type Fields = BTreeMap<String, String>;

/// The findings for one kind of question.
#[derive(Default)]
struct Count {
    fields: usize,
    equal: usize,
    reasoned: usize,
}

fn compare(dir: &Path) -> Result<()> {
    let mut counts: BTreeMap<(String, &str), Count> = BTreeMap::new();
    let mut open: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut used, mut states) = (BTreeSet::new(), 0);
    for state in std::fs::read_dir(dir)? {
        let state = state?.path();
        let module = state.join("module");
        if !module.is_dir() {
            continue;
        }
        states += 1;
        for question in std::fs::read_dir(&module)? {
            let question = question?;
            let name = question.file_name().to_string_lossy().replace('_', " ");
            let theirs = fields(&name, &std::fs::read_to_string(question.path())?);
            for who in ["labels", "served"] {
                let Ok(ours) = std::fs::read_to_string(state.join(who).join(question.file_name())) else { continue };
                let ours = fields(&name, &ours);
                let count = counts.entry((kind(&name), who)).or_default();
                for (field, their, our) in pairs(&theirs, &ours) {
                    count.fields += 1;
                    if is_same(field, their, our) {
                        count.equal += 1;
                    } else if let Some(reason) = reason_of(&name, field, their, our, who) {
                        count.reasoned += 1;
                        used.insert(reason);
                    } else {
                        let line = format!("{}: theirs {}, ours {}", general(field), shown(their), shown(our));
                        open.entry(line).or_default().insert(format!(
                            "{} {who} ({name})",
                            state.file_name().unwrap_or_default().to_string_lossy()
                        ));
                    }
                }
            }
        }
    }
    if states == 0 {
        bail!("{}: no state was made", dir.display());
    }
    for (line, of) in &open {
        println!("{}x {line}\n    {}", of.len(), of.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("; "));
    }
    let mut table =
        String::from("| question | of | fields | equal | differ for a reason | differ |\n|---|---|---|---|---|---|\n");
    for ((kind, who), count) in &counts {
        let left = count.fields - count.equal - count.reasoned;
        writeln!(table, "| {kind} | {who} | {} | {} | {} | {left} |", count.fields, count.equal, count.reasoned)?;
    }
    println!("{states} states\n\n{table}\nReasons that were needed:");
    used.iter().for_each(|why| println!("- {why}"));
    Ok(())
}

/// The verb of a question, and whether the answer is a document.
fn kind(question: &str) -> String {
    let verb = question.split(' ').next().unwrap_or_default();
    let is_json = question.split(' ').any(|word| word.starts_with("-j") || word == "--json");
    format!("`zpool {verb}{}`", if is_json { " -j" } else { "" })
}

fn fields(question: &str, answer: &str) -> Fields {
    let mut fields = Fields::new();
    if answer.starts_with('{')
        && let Some(end) = answer.rfind('}')
        && let Ok(document) = serde_json::from_str(&answer[..=end])
    {
        flatten(&document, String::new(), &mut fields);
        return fields;
    }
    match question.split(' ').next().unwrap_or_default() {
        "get" => properties(answer, &mut fields),
        "events" if answer.contains("class = ") => members(answer, &mut fields),
        "events" => classes(answer, &mut fields),
        "iostat" => headings(answer, &mut fields),
        _ => {
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            for line in answer.lines() {
                let line = without_times(line);
                let count = seen.entry(line.clone()).or_default();
                *count += 1;
                fields.insert(format!("{line} ({count})"), line.trim().to_owned());
            }
        }
    }
    fields
}

/// The values of a document by their paths; of an object its names, too.
fn flatten(value: &Value, path: String, fields: &mut Fields) {
    match value {
        Value::Object(map) => {
            let mut names: Vec<&str> = map.keys().map(String::as_str).collect();
            names.sort_unstable();
            fields.insert(format!("{path}{{}}"), names.join(" "));
            map.iter().for_each(|(name, value)| flatten(value, format!("{path}/{name}"), fields));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, value)| flatten(value, format!("{path}[{index}]"), fields));
        }
        other => drop(fields.insert(path, without_times(&other.to_string()))),
    }
}

fn properties(answer: &str, fields: &mut Fields) {
    for line in answer.lines().filter(|line| !line.starts_with("cannot get")) {
        let mut words = line.split_whitespace();
        let (Some(of), Some(property)) = (words.next(), words.next()) else { continue };
        if !LATER.contains(&property) {
            fields.insert(format!("{of} {property}"), words.collect::<Vec<_>>().join(" "));
        }
    }
}

/// The classes of events, each once.
fn classes(answer: &str, fields: &mut Fields) {
    for class in answer.lines().filter_map(|line| line.split_whitespace().last()) {
        if class.starts_with("ereport.") || class.starts_with("sysevent.") || class.starts_with("resource.") {
            fields.insert(class.to_owned(), String::new());
        }
    }
}

/// The members of events by their class, with the form of the value; of states, limits and names the value itself. Of events of a class that differ
/// all values are given, in order.
fn members(answer: &str, fields: &mut Fields) {
    let mut class = "";
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for line in answer.lines() {
        let Some((name, value)) = line.trim().split_once(" = ") else {
            class = line.split_whitespace().last().filter(|word| word.contains('.')).unwrap_or(class);
            continue;
        };
        // Values of the others are times, guids, places and counts.
        let is_said = ["state", "_state", "_t", "_n", "failmode", "context", "scheme", "type", "version", "class"];
        let form = match value.as_bytes() {
            _ if is_said.iter().any(|end| name.ends_with(end)) => value,
            [b'"', ..] => "text",
            [b'(', ..] => "list",
            _ if value.contains(' ') => "numbers",
            _ => "number",
        };
        found.entry(format!("{class} {name}")).or_default().insert(form);
    }
    for (name, forms) in found {
        fields.insert(name, forms.into_iter().collect::<Vec<_>>().join(" | "));
    }
}

/// The lines of a table without its counts: headings, and names with as many columns.
fn headings(answer: &str, fields: &mut Fields) {
    for (index, line) in answer.lines().enumerate() {
        let is_row = line.split_whitespace().skip(1).any(|word| word.bytes().any(|byte| byte.is_ascii_digit()));
        let text = match is_row {
            true => {
                let columns = line.split(['\t', ' ']).filter(|word| !word.is_empty()).count();
                let name = line.split_whitespace().next().unwrap_or_default();
                let indent = line.len() - line.trim_start().len();
                format!("{:indent$}{name} with {columns} columns", "")
            }
            false => line.to_owned(),
        };
        fields.insert(format!("line {index:03}"), text);
    }
}

/// A line with the word `DATE` for each date in the form of `ctime`.
fn without_times(line: &str) -> String {
    const DAYS: [&str; 7] = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "];
    /// Of `Mon Nov 30 12:29:08 2026`.
    const LENGTH: usize = 24;
    let mut line = line.to_owned();
    for day in DAYS {
        while let Some(at) = line.find(day)
            && let Some(date) = line.get(at..at + LENGTH)
            && date.as_bytes()[13] == b':'
        {
            line.replace_range(at..at + LENGTH, "DATE");
        }
    }
    line
}

/// The fields of either, with both values.
fn pairs<'a>(
    theirs: &'a Fields,
    ours: &'a Fields,
) -> impl Iterator<Item = (&'a str, Option<&'a str>, Option<&'a str>)> {
    let names: BTreeSet<&str> = theirs.keys().chain(ours.keys()).map(String::as_str).collect();
    names.into_iter().map(|name| (name, theirs.get(name).map(String::as_str), ours.get(name).map(String::as_str)))
}

fn is_same(field: &str, their: Option<&str>, our: Option<&str>) -> bool {
    if their == our {
        return true;
    }
    let (Some(their), Some(our)) = (their, our) else { return false };
    let is_of_space = ["alloc", "free", "copied", "space", "capacity", "fragmentation", "checkpoint"]
        .iter()
        .any(|of| field.contains(of));
    let number = |text: &str| text.trim_matches(['"', '%']).parse::<u64>().ok();
    match (number(their), number(our)) {
        (Some(their), Some(our)) => is_of_space && their.abs_diff(our) <= SPACE_SLACK_BYTES,
        _ => false,
    }
}

fn reason_of(question: &str, field: &str, their: Option<&str>, our: Option<&str>, who: &str) -> Option<&'static str> {
    let holds = |one: &&Reason| question.starts_with(one.question) && (one.who.is_empty() || one.who == who);
    if !field.ends_with("{}") {
        return REASONS.iter().filter(holds).find(|one| field.contains(one.field)).map(|one| one.why);
    }
    // An object has other names where each of them has a reason to be there or not.
    let (their, our): (BTreeSet<_>, BTreeSet<_>) = (their?.split(' ').collect(), our?.split(' ').collect());
    let of_name = |name: &&str| {
        let is_it = |one: &&Reason| match one.field.strip_prefix('/') {
            Some(whole) => *name == whole,
            None => name.contains(one.field),
        };
        REASONS.iter().filter(holds).find(is_it).map(|one| one.why)
    };
    let reasons: Option<Vec<&str>> = their.symmetric_difference(&our).map(of_name).collect();
    reasons?.first().copied()
}

/// A field's name without the letter of a disk.
fn general(field: &str) -> String {
    let mut text = field.to_owned();
    for disk in 'a'..='l' {
        text = text.replace(&format!("vd{disk}1"), "vd?1");
    }
    text
}

fn shown(value: Option<&str>) -> String {
    value.map_or_else(|| "nothing".to_owned(), |value| format!("'{value}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_each_kind_of_answer() {
        let of_json = fields("status -j t", "{\"a\":{\"b\":\"1\",\"c\":[2]}}\nstatus 0\n");
        assert_eq!(of_json.get("/a{}").map(String::as_str), Some("b c"));
        assert_eq!(of_json.get("/a/c[0]").map(String::as_str), Some("2"));
        let of_get =
            fields("get all t all-vdevs", "NAME PROPERTY VALUE SOURCE\nvda1  size   1M  -\nvda1 autosit - default\n");
        assert_eq!(of_get.get("vda1 size").map(String::as_str), Some("1M -"));
        assert!(!of_get.contains_key("vda1 autosit"));
        let of_text = fields("status t", " scan: scrub canceled on Mon Nov 30 12:29:08 2026\n");
        assert_eq!(of_text.values().next().map(String::as_str), Some("scan: scrub canceled on DATE"));
        assert!(is_same("/alloc_space", Some("\"1000\""), Some("\"2000\"")));
        assert!(!is_same("/guid", Some("1"), Some("2")));
        assert!(reason_of("status -j", "/pools/t{}", Some("name txg"), Some("name"), "labels").is_some());
        assert!(reason_of("status -j", "/pools/t{}", Some("name status"), Some("name"), "labels").is_none());
    }
}
