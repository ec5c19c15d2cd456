//! Tunables with their values and descriptions, as `cenote tunables` shows them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cenote_kstat::{Domain, Settings, Tunable};
use cenote_props::number::nicenum;
use cenote_props::{Align, Table, WrongUse};
use cenote_spa::tunables::{TABLES, values};
use serde_json::json;

use crate::document;

/// A tunable and its value.
type Known = (&'static Tunable, u64);

/// The form of a list of tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunableList {
    /// Tabs instead of columns, and no heading.
    pub is_scripted: bool,
    /// Exact numbers.
    pub is_exact: bool,
    /// A JSON document, including the documentation.
    pub is_json: bool,
}

/// Tunables with these settings and this memory: explanations of the named ones, or a list of all.
///
/// # Errors
/// There is no tunable with one of the names.
pub fn tunables(
    settings: &Settings,
    memory_bytes: u64,
    names: &[String],
    TunableList { is_scripted, is_exact, is_json }: TunableList,
) -> Result<String, WrongUse> {
    let known = known(settings, memory_bytes, names)?;
    Ok(match (is_json, names.is_empty()) {
        (true, _) => json_of(&known),
        (false, false) if !is_scripted => known.iter().map(explained).collect::<Vec<_>>().join("\n"),
        _ => table(&known, is_exact || is_scripted).text(is_scripted),
    })
}

/// The tunables with these names, or all; sorted by name.
fn known(settings: &Settings, memory_bytes: u64, names: &[String]) -> Result<Vec<Known>, WrongUse> {
    let numbers: BTreeMap<&str, u64> = values(settings, memory_bytes).into_iter().collect();
    let mut chosen: Vec<&'static Tunable> = match names {
        [] => settings.tunables().collect(),
        names => {
            let found = names.iter().map(|name| cenote_kstat::find(TABLES, name));
            found.collect::<Result<_, _>>().map_err(|error| WrongUse::new(error.to_string()))?
        }
    };
    if names.is_empty() {
        chosen.sort_by_key(|tunable| tunable.name);
    }
    Ok(chosen.into_iter().map(|it| (it, numbers.get(it.name).copied().unwrap_or(it.default))).collect())
}

/// A value for people: bytes have a unit, unless that would lose digits.
fn shown(tunable: &Tunable, value: u64, is_exact: bool) -> String {
    let short = nicenum(value);
    // The short form must be exact, since people may give it back.
    let is_same = || tunable.parse(&short).is_ok_and(|parsed| parsed == value);
    if tunable.unit == "bytes" && !is_exact && value > 0 && is_same() { short } else { tunable.shown(value) }
}

fn default_of(tunable: &Tunable, is_exact: bool) -> String {
    if tunable.computed.is_some() { "-".into() } else { shown(tunable, tunable.default, is_exact) }
}

fn range_of(tunable: &Tunable, is_exact: bool) -> String {
    let shown = |number| shown(tunable, number, is_exact);
    match tunable.domain {
        Domain::Number(min, max) => format!("{}..={}", shown(min), shown(max)),
        Domain::Power(min, max) => format!("{}..={}, powers of two", shown(min), shown(max)),
        Domain::Switch => "0, 1".into(),
        Domain::Words(words) => words.join(", "),
    }
}

fn table(known: &[Known], is_exact: bool) -> Table {
    let columns = [("NAME", Align::Left), ("VALUE", Align::Right), ("DEFAULT", Align::Right)];
    let more = [("UNIT", Align::Left), ("RANGE", Align::Left), ("WHEN", Align::Left)];
    let mut table = Table::new(columns.into_iter().chain(more));
    for (tunable, value) in known {
        let unit = if tunable.unit.is_empty() { "-" } else { tunable.unit };
        table.row([
            tunable.name.to_owned(),
            shown(tunable, *value, is_exact),
            default_of(tunable, is_exact),
            unit.to_owned(),
            range_of(tunable, is_exact),
            tunable.when.word().to_owned(),
        ]);
    }
    table
}

fn explained((tunable, value): &Known) -> String {
    let mut text = format!("{}\n    {}\n", tunable.name, tunable.effect);
    let default = match tunable.computed {
        Some(how) => how.to_owned(),
        None => shown(tunable, tunable.default, false),
    };
    for (what, is) in [
        ("value", shown(tunable, *value, false)),
        ("default", default),
        ("unit", tunable.unit.to_owned()),
        ("range", range_of(tunable, false)),
        ("counts", tunable.when.word().to_owned()),
    ] {
        if !is.is_empty() {
            let _ = writeln!(text, "    {what:<8} {is}");
        }
    }
    text
}

fn json_of(known: &[Known]) -> String {
    let one = |(tunable, value): &Known| {
        let text = |number| json!(tunable.shown(number));
        let about = json!({
            "value": text(*value),
            "default": tunable.computed.map_or_else(|| text(tunable.default), |how| json!(how)),
            "unit": tunable.unit,
            "range": range_of(tunable, true),
            "when": tunable.when.word(),
            "effect": tunable.effect,
        });
        (tunable.name.to_owned(), about)
    };
    document("cenote tunables", [("tunables", known.iter().map(one).collect())])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the documentation.
    fn page() -> String {
        let mut text = String::from(
            "# Tunables\n\nThe list of `cenote tunables`, which shows current values too. `--tunable NAME=VALUE`, with any command, gives a \
             tunable another value.\nA number may have the tunable's unit (`10s`), and bytes K, M, G or T. Names are those of OpenZFS's \
             module parameters where it has the same thing.\nThis page is made from the source: `UPDATE=1 cargo test -p cenote-listing \
             tunables`.\n\n| name | default | unit | range | counts | effect |\n|---|---|---|---|---|---|\n",
        );
        for (tunable, _) in known(&cenote_spa::tunables::settings(), 1 << 50, &[]).unwrap() {
            let default = tunable.computed.map_or_else(|| shown(tunable, tunable.default, false), str::to_owned);
            let (name, unit, range, when) = (tunable.name, tunable.unit, range_of(tunable, false), tunable.when.word());
            let _ = writeln!(text, "| `{name}` | {default} | {unit} | {range} | {when} | {} |", tunable.effect);
        }
        text
    }

    #[test]
    fn the_page_of_the_documentation_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TUNABLES.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        assert!(std::fs::read_to_string(path).is_ok_and(|text| text == page()), "run it with UPDATE=1");
    }

    #[test]
    fn given_values_are_shown_and_computed_ones_as_computed() {
        let mut settings = cenote_spa::tunables::settings();
        settings.set_from("zfs_txg_timeout=9").unwrap();
        let names = ["zfs_txg_timeout", "zfs_dirty_data_max"].map(str::to_owned);
        let known = known(&settings, 10 << 30, &names).unwrap();
        let text = table(&known, false).text(true);
        assert_eq!(text.lines().next(), Some("zfs_txg_timeout\t9\t5\ts\t1..=86400\tat open"));
        assert_eq!(text.lines().nth(1).map(|line| line.starts_with("zfs_dirty_data_max\t1G\t-\tbytes\t")), Some(true));
        assert!(explained(&known[1]).contains("default  a tenth of memory"));
        let json: serde_json::Value = serde_json::from_str(&json_of(&known)).unwrap();
        assert_eq!(json["tunables"]["zfs_txg_timeout"]["value"], "9");
    }

    #[test]
    fn a_wrong_name_is_wrong_usage_and_near_names_are_said() {
        let error = known(&cenote_spa::tunables::settings(), 1 << 30, &["zfs_txg_timeot".into()]).unwrap_err();
        assert!(error.to_string().contains("did you mean zfs_txg_timeout?"), "{error}");
    }
}
