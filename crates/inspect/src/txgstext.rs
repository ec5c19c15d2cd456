//! The last txgs of a pool in use, as a person and scripts read them.

use std::time::Duration;

use cenote_metaslab::Flushed;
use cenote_props::number::nicebytes;
use cenote_props::{Align, Table};
use cenote_spa::{Phase, TxgRecord};

/// The form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxgText {
    /// A row for each metaslab that was worked on, too; for scripts only those.
    pub metaslabs: bool,
    /// Tabs between fields and no headings: a row a txg, times and then space.
    pub is_scripted: bool,
    /// Bytes and nanoseconds.
    pub is_exact: bool,
}

/// Phases with the names of their columns.
const PHASES: [(Phase, &str); 6] = [
    (Phase::Datasets, "DATASETS"),
    (Phase::FirstPass, "PASS1"),
    (Phase::Space, "SPACE"),
    (Phase::LaterPasses, "LATER"),
    (Phase::Flush, "FLUSH"),
    (Phase::Commit, "COMMIT"),
];

/// Columns before the phases.
const TIME_COLUMNS: [&str; 6] = ["TXG", "DIRTY", "CHANGE", "PASSES", "SYNC", "SERIAL"];
const SPACE_COLUMNS: [&str; 12] = [
    "TXG",
    "ALLOC",
    "FREED",
    "METASLABS",
    "LOADED",
    "UNLOADED",
    "FLUSHED",
    "CONDENSED",
    "MAPS",
    "LOG",
    "LOGS",
    "BLOCKS",
];
const METASLAB_COLUMNS: [&str; 8] = ["TXG", "VDEV", "METASLAB", "ALLOC", "FREED", "MAP", "LOG", "DONE"];

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn time(span: Duration, is_exact: bool) -> String {
    if is_exact { nanoseconds(span).to_string() } else { format!("{:.1}ms", span.as_secs_f64() * 1000.0) }
}

fn bytes(bytes: u64, is_exact: bool) -> String {
    if is_exact { bytes.to_string() } else { nicebytes(bytes) }
}

/// Times of the phases of a txg.
fn time_cells(record: &TxgRecord, is_exact: bool) -> Vec<String> {
    let mut row = vec![
        bytes(record.dirty_bytes, is_exact),
        if record.is_change { "yes" } else { "no" }.to_owned(),
        record.passes.to_string(),
        time(record.took, is_exact),
        time(record.serial, is_exact),
    ];
    row.extend(PHASES.map(|(phase, _)| time(record.phase(phase), is_exact)));
    row
}

/// Changes of space in a txg.
fn space_cells(record: &TxgRecord, is_exact: bool) -> Vec<String> {
    let space = &record.space;
    let counts = [space.allocated_from, space.loaded, space.unloaded, space.flushed, space.condensed];
    let mut row = vec![bytes(space.allocated_bytes, is_exact), bytes(space.freed_bytes, is_exact)];
    row.extend(counts.map(|count| count.to_string()));
    row.extend([bytes(space.map_bytes, is_exact), bytes(space.log_bytes, is_exact)]);
    row.extend([space.logs, space.log_blocks].map(|count| count.to_string()));
    row
}

/// Rows of the metaslabs that a txg worked on.
fn metaslab_rows(record: &TxgRecord, is_exact: bool) -> Vec<Vec<String>> {
    let txg = record.txg.0.to_string();
    let mut rows = Vec::new();
    for work in &record.space.metaslabs {
        let flushed = work.flushed.map(|flushed| match flushed {
            Flushed::Appended => "flushed",
            Flushed::Condensed => "condensed",
        });
        let done = [work.is_loaded.then_some("loaded"), flushed, work.is_unloaded.then_some("unloaded")];
        let done: Vec<&str> = done.into_iter().flatten().collect();
        let figures = [work.allocated_bytes, work.freed_bytes, work.map_bytes, work.log_bytes];
        let mut row = vec![txg.clone(), work.metaslab.vdev.to_string(), work.metaslab.index.to_string()];
        row.extend(figures.map(|figure| bytes(figure, is_exact)));
        row.push(if done.is_empty() { "-".to_owned() } else { done.join(",") });
        rows.push(row);
    }
    if record.space.metaslabs_left_out > 0 {
        let mut row = vec![txg, "-".to_owned(), format!("+{}", record.space.metaslabs_left_out)];
        row.resize(METASLAB_COLUMNS.len(), "-".to_owned());
        rows.push(row);
    }
    rows
}

fn table(columns: impl IntoIterator<Item = &'static str>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new(columns.into_iter().map(|column| {
        let is_words = column == "DONE";
        (column, if is_words { Align::Left } else { Align::Right })
    }));
    rows.into_iter().for_each(|row| table.row(row));
    table
}

/// The last txgs of a pool in use: their contents, the time of their sync by its parts, and their changes of space. Scripts get one table,
/// people one of times and one of space, so that neither is wider than a terminal.
pub fn txgs_text(records: &[TxgRecord], TxgText { metaslabs: is_verbose, is_scripted, is_exact }: TxgText) -> String {
    let row = |record: &TxgRecord, cells: &[Vec<String>]| {
        std::iter::once(record.txg.0.to_string()).chain(cells.concat()).collect::<Vec<String>>()
    };
    let metaslabs = || table(METASLAB_COLUMNS, records.iter().flat_map(|record| metaslab_rows(record, is_exact)));
    if is_scripted && is_verbose {
        return metaslabs().text(true);
    }
    if is_scripted {
        let cells = |record| [time_cells(record, is_exact), space_cells(record, is_exact)];
        return table([], records.iter().map(|record| row(record, &cells(record)))).text(true);
    }
    let times = records.iter().map(|record| row(record, &[time_cells(record, is_exact)]));
    let times = table(TIME_COLUMNS.into_iter().chain(PHASES.map(|(_, column)| column)), times);
    let space = table(SPACE_COLUMNS, records.iter().map(|record| row(record, &[space_cells(record, is_exact)])));
    let mut text = format!("{}\n{}", times.text(false), space.text(false));
    if is_verbose {
        text = format!("{text}\n{}", metaslabs().text(false));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txgs::tests::record;

    fn text(records: &[TxgRecord], words: &str) -> String {
        let has = |letter| words.contains(letter);
        txgs_text(records, TxgText { metaslabs: has('v'), is_scripted: has('H'), is_exact: has('p') })
    }

    #[test]
    fn a_txg_is_a_row_for_people_and_for_scripts() {
        let records = [record()];
        let times = "42\t1048576\tyes\t3\t1500000\t700000\t0\t0\t0\t0\t500000\t0";
        let space = "3145728\t4096\t2\t1\t5\t6\t7\t800\t9000\t11\t12\n";
        assert_eq!(text(&records, "-Hp"), format!("{times}\t{space}"));
        let people = text(&records, "");
        let lines: Vec<&str> = people.lines().collect();
        assert_eq!(lines.len(), 5, "{people}");
        assert!(lines[0].starts_with("TXG") && lines[1].contains("1.5ms") && lines[1].contains("0.5ms"), "{people}");
        assert!(lines[3].starts_with("TXG  ALLOC") && lines[4].starts_with(" 42     3M"), "{people}");
        assert!(lines.iter().all(|line| line.len() <= 120), "{people}");
    }

    #[test]
    fn metaslabs_are_rows_where_they_are_asked_for() {
        let records = [record()];
        let rows = "42\t1\t7\t3145728\t4096\t800\t9000\tloaded,condensed\n\
                    42\t1\t9\t0\t0\t0\t0\t-\n\
                    42\t-\t+36\t-\t-\t-\t-\t-\n";
        assert_eq!(text(&records, "-Hpv"), rows);
        let people = text(&records, "-v");
        assert_eq!(people.lines().count(), 10, "{people}");
        assert!(people.starts_with(&text(&records, "")) && people.contains("loaded,condensed\n"), "{people}");
    }
}
