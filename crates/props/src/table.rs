//! Tables: aligned for people, tabs for scripts.

use crate::one_line;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right.
    Right,
}

/// Rows of cells. Rows may have fewer cells than there are columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    /// Each column's least width, and whether that is its width.
    least: Vec<(usize, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(columns: impl IntoIterator<Item = (impl Into<String>, Align)>) -> Self {
        let columns: Vec<(String, Align)> = columns.into_iter().map(|(name, align)| (name.into(), align)).collect();
        Self { least: vec![(0, false); columns.len()], columns, rows: Vec::new() }
    }

    /// Makes a column at least as wide; or exactly, and cells that do not fit stand over.
    pub fn width(&mut self, column: usize, width: usize, is_fixed: bool) {
        self.least[column] = (width, is_fixed);
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text: tabs and no headings for scripts (`-H`), else columns that are two spaces apart. The last column is
    /// neither padded nor, where it stands to the left, measured.
    pub fn text(&self, is_scripted: bool) -> String {
        if is_scripted {
            return self.rows.iter().map(|row| row.join("\t") + "\n").collect();
        }
        // A control character that moves the cursor would break the columns.
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| one_line(cell).into_owned()).collect()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| {
                let (least, is_fixed) = self.least[index];
                if is_fixed {
                    return least;
                }
                let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| width(cell));
                cells.chain([width(&self.columns[index].0), least]).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        for row in [&headings].into_iter().chain(&rows) {
            for (index, cell) in row.iter().enumerate() {
                let is_last = index + 1 == row.len();
                let pad = " ".repeat(widths.get(index).map_or(0, |wide| wide.saturating_sub(width(cell))));
                match self.columns.get(index).map_or(Align::Left, |(_, align)| *align) {
                    Align::Right => text.extend([pad.as_str(), cell]),
                    Align::Left if is_last => text.push_str(cell),
                    Align::Left => text.extend([cell, pad.as_str()]),
                }
                if !is_last {
                    text.push_str("  ");
                }
            }
            text.push('\n');
        }
        text
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_in_its_row() {
        let mut table = Table::new([("NAME", Align::Left), ("VALUE", Align::Left)]);
        table.row(["a", "x\nb  y\x1b[2J"]);
        assert_eq!(table.text(false), "NAME  VALUE\na     x\\nb  y\\u{1b}[2J\n");
        assert_eq!(table.text(true), "a\tx\nb  y\x1b[2J\n");
    }

    #[test]
    fn columns_are_two_spaces_apart_and_scripts_get_tabs() {
        let mut table = Table::new([("NAME", Align::Left), ("USED", Align::Right), ("MOUNTPOINT", Align::Left)]);
        table.row(["tank", "1.50K", "/tank"]);
        table.row(["tank/home", "24K", "-"]);
        assert_eq!(table.text(false), "NAME        USED  MOUNTPOINT\ntank       1.50K  /tank\ntank/home    24K  -\n");
        assert_eq!(table.text(true), "tank\t1.50K\t/tank\ntank/home\t24K\t-\n");
    }
}
