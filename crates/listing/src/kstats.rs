//! Statistics of an open pool, as `cenote kstat` shows them.

use cenote_kstat::{Body, Group, Stat};
use cenote_props::{Align, Table, WrongUse};
use serde_json::{Map, Value, json};

use crate::document;

/// The groups that `words` request (`GROUP`, `GROUP:NAME`), in that order, with only the requested statistics.
///
/// # Errors
/// There is no such name, or a part of a table was requested.
pub fn chosen_kstats(groups: Vec<Group>, words: &[String]) -> Result<Vec<Group>, WrongUse> {
    if words.is_empty() {
        return Ok(groups);
    }
    let find = |word: &String| {
        let (name, stat) = word.split_once(':').map_or((word.as_str(), None), |(name, stat)| (name, Some(stat)));
        let group = groups.iter().find(|group| group.name == name).ok_or_else(|| {
            let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
            WrongUse::new(format!("no statistics are called '{name}'; there are: {}", names.join(", ")))
        })?;
        let mut group = group.clone();
        if let (Some(stat), Body::Named(named)) = (stat, &mut group.body) {
            named.retain(|(name, _)| *name == stat);
            if named.is_empty() {
                return Err(WrongUse::new(format!("'{name}' has no '{stat}'")));
            }
        } else if stat.is_some() {
            return Err(WrongUse::new(format!("'{name}' is a table, of which no part can be chosen")));
        }
        Ok(group)
    };
    words.iter().map(find).collect()
}

/// A value as text.
fn shown(stat: &Stat) -> String {
    match stat {
        Stat::Count(number) | Stat::Level(number) => number.to_string(),
        Stat::Text(text) => text.clone(),
        Stat::Histogram(buckets) => buckets.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
    }
}

/// The buckets that are not empty, with their lower ends.
fn filled(buckets: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let ends = buckets.iter().enumerate().map(|(power, count)| (1_u64.checked_shl(power as u32).unwrap_or(0), *count));
    ends.filter(|(_, count)| *count > 0)
}

/// A group as text for a person.
pub fn kstats_text(group: &Group) -> String {
    let body = match &group.body {
        Body::Rows(columns, rows) => {
            let mut table = Table::new(columns.iter().map(|name| (*name, Align::Right)));
            rows.iter().for_each(|row| table.row(row.iter().map(shown)));
            table.text(false)
        }
        Body::Named(named) => {
            let mut table = Table::new([("name", Align::Left), ("data", Align::Left)]);
            for (name, stat) in named {
                match stat {
                    Stat::Histogram(buckets) => {
                        filled(buckets)
                            .for_each(|(from, count)| table.row([format!("{name}[{from}..]"), count.to_string()]));
                    }
                    stat => table.row([(*name).to_owned(), shown(stat)]),
                }
            }
            table.text(false)
        }
    };
    format!("{}\n{body}", group.name)
}

/// A group for scripts: a line for each value, with `GROUP:NAME` and a tab before it.
pub fn kstats_lines(group: &Group) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.extend([group.name.as_str(), ":", name, "\t", value, "\n"]);
    match &group.body {
        Body::Named(named) => {
            for (name, stat) in named {
                match stat {
                    Stat::Histogram(buckets) => {
                        filled(buckets).for_each(|(from, count)| line(&format!("{name}:{from}"), &count.to_string()));
                    }
                    stat => line(name, &shown(stat)),
                }
            }
        }
        // The first cell identifies a row.
        Body::Rows(columns, rows) => {
            for row in rows {
                let key = row.first().map(shown).unwrap_or_default();
                columns.iter().zip(row).skip(1).for_each(|(name, stat)| line(&format!("{key}:{name}"), &shown(stat)));
            }
        }
    }
    text
}

fn json_stat(stat: &Stat) -> Value {
    match stat {
        Stat::Count(number) | Stat::Level(number) => json!(number),
        Stat::Text(text) => json!(text),
        Stat::Histogram(buckets) => json!(buckets),
    }
}

/// All groups as a JSON document.
pub fn kstats_document(groups: &[Group]) -> String {
    let one = |group: &Group| {
        let body: Value = match &group.body {
            Body::Named(named) => named.iter().map(|(name, stat)| ((*name).to_owned(), json_stat(stat))).collect(),
            Body::Rows(columns, rows) => {
                let row = |row: &Vec<Stat>| -> Map<String, Value> {
                    columns.iter().zip(row).map(|(name, stat)| ((*name).to_owned(), json_stat(stat))).collect()
                };
                rows.iter().map(row).map(Value::Object).collect()
            }
        };
        (group.name.clone(), body)
    };
    document("cenote kstat", [("kstats", groups.iter().map(one).collect())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Vec<Group> {
        let named = vec![
            ("path", Stat::Text("/dev/x".into())),
            ("hits", Stat::Count(7)),
            ("histo", Stat::Histogram(vec![0, 2, 0, 5])),
        ];
        let row = |txg| vec![Stat::Count(txg), Stat::Text("C".into())];
        vec![
            Group { name: "a".into(), body: Body::Named(named) },
            Group { name: "txgs".into(), body: Body::Rows(vec!["txg", "state"], vec![row(4), row(5)]) },
        ]
    }

    #[test]
    fn values_are_shown_for_people_for_scripts_and_as_json() {
        let all = groups();
        assert_eq!(
            kstats_text(&all[0]),
            "a\nname        data\npath        /dev/x\nhits        7\nhisto[2..]  2\nhisto[8..]  5\n"
        );
        assert_eq!(kstats_text(&all[1]), "txgs\ntxg  state\n  4      C\n  5      C\n");
        assert_eq!(kstats_lines(&all[0]), "a:path\t/dev/x\na:hits\t7\na:histo:2\t2\na:histo:8\t5\n");
        assert_eq!(kstats_lines(&all[1]), "txgs:4:state\tC\ntxgs:5:state\tC\n");
        let json: Value = serde_json::from_str(&kstats_document(&all)).unwrap();
        assert_eq!(json["kstats"]["a"]["histo"], json!([0, 2, 0, 5]));
        assert_eq!(json["kstats"]["txgs"][1], json!({ "txg": 5, "state": "C" }));
    }

    #[test]
    fn groups_and_single_statistics_can_be_chosen() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen_kstats(groups(), &[]).unwrap(), groups());
        let some = chosen_kstats(groups(), &words(&["txgs", "a:hits"])).unwrap();
        assert_eq!(some.iter().map(kstats_lines).collect::<String>(), "txgs:4:state\tC\ntxgs:5:state\tC\na:hits\t7\n");
        for (word, why) in [("b", "there are: a, txgs"), ("a:misses", "has no"), ("txgs:4", "table")] {
            assert!(chosen_kstats(groups(), &words(&[word])).unwrap_err().to_string().contains(why), "{word}");
        }
    }
}
