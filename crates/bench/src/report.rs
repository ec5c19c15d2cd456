//! The results of a run, in a form that can be kept, printed, drawn and put on a page.
//!
//! A [`Report`] is plain data: it is written as JSON and read back, and every way of showing it works on a report that was read back as
//! on one that was just measured.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// All that one run found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The command that made it.
    pub command: String,
    /// When, in UTC.
    pub date: String,
    /// The machine: names and values.
    pub machine: Vec<(String, String)>,
    /// The mechanisms that were measured.
    pub suites: Vec<Suite>,
}

/// One mechanism.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Suite {
    /// The word for it on the command line.
    pub name: String,
    /// Its subject.
    pub title: String,
    /// How it was measured, a paragraph each.
    pub notes: Vec<String>,
    /// The figures.
    pub tables: Vec<Table>,
    /// Pictures of them.
    pub plots: Vec<Plot>,
    /// Its targets.
    pub targets: Vec<Target>,
    /// Every round as it was measured, where a suite keeps them; not shown.
    #[serde(default)]
    pub raw: serde_json::Value,
}

/// Figures in rows and columns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// The name of the figures.
    pub title: String,
    /// Names of the columns, the first of which names the rows.
    pub columns: Vec<String>,
    /// The rows, as long as the columns.
    pub rows: Vec<Vec<String>>,
}

/// A picture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plot {
    /// The name of the picture.
    pub title: String,
    /// Groups of bars, or positions on the axis.
    pub groups: Vec<String>,
    /// The unit of the values.
    pub unit: String,
    /// Name, and a value for each group where there is one.
    pub series: Vec<(String, Vec<Option<f64>>)>,
}

/// A target and whether it was reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The target.
    pub wanted: String,
    /// The result.
    pub found: String,
    /// Whether that is enough.
    pub met: bool,
}

impl Suite {
    /// Adds a target.
    pub fn target(&mut self, wanted: impl Into<String>, found: impl Into<String>, met: bool) {
        self.targets.push(Target { wanted: wanted.into(), found: found.into(), met });
    }
}

impl Table {
    /// An empty one.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self { title: title.into(), columns: columns.iter().map(|name| (*name).to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

/// A number as a person wants it: three digits that say something.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if !size.is_finite() => return "-".into(),
        size if size >= 99.5 => 0,
        size if size >= 9.95 => 1,
        _ => 2,
    };
    let plain = format!("{value:.digits$}");
    let (sign, rest) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    fraction.map_or_else(|| format!("{sign}{grouped}"), |fraction| format!("{sign}{grouped}.{fraction}"))
}

const fn mark(met: bool) -> &'static str {
    if met { "met" } else { "NOT met" }
}

impl Report {
    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.machine {
            let _ = writeln!(out, "{name}: {value}");
        }
        for suite in &self.suites {
            let _ = writeln!(out, "\n== {}: {}", suite.name, suite.title);
            for note in &suite.notes {
                let _ = writeln!(out, "{}", wrapped(note, 110));
            }
            for table in &suite.tables {
                let _ = writeln!(out, "\n{}", table.title);
                let width = |column: usize| {
                    let cells = table.rows.iter().chain([&table.columns]).filter_map(|row| row.get(column));
                    cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
                };
                for row in [&table.columns].into_iter().chain(&table.rows) {
                    let mut line = String::from(" ");
                    for (column, cell) in row.iter().enumerate() {
                        let padding = width(column) - cell.chars().count();
                        let (left, right) = if column == 0 { (0, padding) } else { (padding, 0) };
                        let _ = write!(line, " {}{cell}{}", " ".repeat(left), " ".repeat(right));
                    }
                    let _ = writeln!(out, "{}", line.trim_end());
                }
            }
            if !suite.targets.is_empty() {
                let _ = writeln!(out, "\nTargets");
            }
            for target in &suite.targets {
                let _ = writeln!(out, "  {:>7}  {}: {}", mark(target.met), target.wanted, target.found);
            }
        }
        out
    }

    /// For a page of documentation: one section for each suite, headings at the second level.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "`{}`, {}.\n", self.command, self.date);
        for (name, value) in &self.machine {
            let _ = writeln!(out, "* {name}: {value}");
        }
        for suite in &self.suites {
            let _ = writeln!(out, "\n## {}: {}\n", suite.name, suite.title);
            for note in &suite.notes {
                let _ = writeln!(out, "{}\n", wrapped(note, 120));
            }
            for table in &suite.tables {
                let _ = writeln!(out, "{}:\n", table.title);
                let _ = writeln!(out, "| {} |", table.columns.join(" | "));
                let _ = writeln!(out, "|---|{}", "---:|".repeat(table.columns.len().saturating_sub(1)));
                for row in &table.rows {
                    let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
                    let _ = writeln!(out, "| {} |", cells.join(" | "));
                }
                out.push('\n');
            }
            if !suite.targets.is_empty() {
                let _ = writeln!(out, "| target | found | |\n|---|---|---|");
            }
            for target in &suite.targets {
                let _ = writeln!(out, "| {} | {} | {} |", target.wanted, target.found, mark(target.met));
            }
        }
        out
    }
}

/// Lines of at most `width` where words allow.
fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_say_something() {
        let all = [0.123, 1.0, 12.34, 123.4, 12_345.6, 1e6, -1234.5, f64::NAN].map(short);
        assert_eq!(all, ["0.12", "1.00", "12.3", "123", "12 346", "1 000 000", "-1 234", "-"]);
    }

    #[test]
    fn a_report_survives_being_kept_and_every_cell_is_shown() {
        let mut table = Table::new("Figures", &["what", "ours"]);
        table.row(["a|b".into(), "42.5".into()]);
        let mut suite = Suite { name: "x".into(), title: "An example".into(), ..Suite::default() };
        suite.tables.push(table);
        suite.plots.push(Plot {
            title: "p".into(),
            groups: vec!["g<1>".into()],
            unit: "MB/s".into(),
            series: vec![("ours".into(), vec![Some(1.5)]), ("none".into(), vec![None])],
        });
        suite.target("as fast", "faster", true);
        let report = Report {
            command: "cenote bench".into(),
            date: "2026-11-22".into(),
            machine: vec![("cores".into(), "2".into())],
            suites: vec![suite],
        };
        let text = report.text();
        assert!(text.contains("42.5") && text.contains("met  as fast: faster"), "{text}");
        assert!(report.markdown().contains("| a\\|b | 42.5 |"));
        let html = report.html();
        assert!(html.contains("<svg") && html.contains("g&lt;1&gt;") && html.contains("a|b"), "{html}");
        assert!(!html.contains("src=") && !html.contains("href="), "the page stands alone");
        let back: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!((back.text(), back.markdown(), back.html()), (text, report.markdown(), html));
    }
}
