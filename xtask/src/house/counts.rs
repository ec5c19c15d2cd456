//! Counts of a crate's sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::arrows::{self, arrows, circles};
use super::source::{Module, lines_of, modules};

/// A file past this many lines is named.
const LINES_LONG: usize = 800;
/// Macros that assert.
const ASSERTIONS: &[&str] = &["assert!(", "assert_eq!(", "assert_ne!(", "assert_matches!(", "unreachable!("];
/// Items that are doors if they are public. Fields and variants come with their type.
pub(super) const ITEMS: &[&str] =
    &["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "use", "async", "unsafe", "macro"];
/// Crates that measure and test the product, and are no part of it.
const LABORATORY: &[&str] = &["bench", "crash", "kills", "lab", "mutate", "replicas", "sim", "testkit"];

/// A crate's counts; tests are left out.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) name: String,
    pub(super) lines: usize,
    pub(super) lines_with_tests: usize,
    pub(super) code_lines: usize,
    pub(super) assertions: usize,
    pub(super) map_errs: usize,
    pub(super) public_items: usize,
    /// Arrows to a file in whose folder the file lies.
    pub(super) arrows_up: usize,
    /// Sets of files that refer to each other.
    pub(super) circles: Vec<BTreeSet<Module>>,
    /// As `circles`, with re-exported names followed to the files that define them.
    pub(super) circles_followed: usize,
    /// Files past [`LINES_LONG`], with their lines.
    pub(super) long: Vec<(Module, usize)>,
}

impl Counts {
    /// Counts the crate in a folder.
    pub(super) fn of(krate: &Path) -> Result<Self> {
        let name = krate.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modules = modules(krate)?;
        let arrows = arrows(&modules, false);
        let ups = arrows.iter().flat_map(|(source, targets)| targets.iter().filter(|to| arrows::is_up(source, to)));
        let mut found = Self {
            name,
            lines_with_tests: lines_of(&krate.join("src"))?,
            arrows_up: ups.count(),
            circles: circles(&arrows),
            circles_followed: circles(&arrows::arrows(&modules, true)).len(),
            ..Self::default()
        };
        for (module, source) in modules {
            found.lines += source.lines;
            found.code_lines += source.code_lines();
            found.assertions += ASSERTIONS.iter().map(|word| source.code.matches(word).count()).sum::<usize>();
            found.map_errs += source.code.matches("map_err(").count();
            found.public_items += source.code.lines().filter(|line| is_public_item(line)).count();
            if source.lines > LINES_LONG {
                found.long.push((module, source.lines));
            }
        }
        Ok(found)
    }

    /// Counts of all crates, by name.
    pub(super) fn all(root: &Path) -> Result<Vec<Self>> {
        let entries = std::fs::read_dir(root.join("crates"))?;
        let mut crates: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        crates.sort();
        crates.push(root.join("xtask"));
        crates.iter().map(|krate| Self::of(krate)).collect()
    }

    /// True if the crate is a part of what users get.
    pub(super) fn is_product(&self) -> bool {
        self.name != "xtask" && !LABORATORY.contains(&self.name.as_str())
    }

    /// `count` for each 1,000 lines of code.
    pub(super) fn per_kloc(&self, count: usize) -> f64 {
        count as f64 * 1000.0 / self.code_lines.max(1) as f64
    }
}

/// True for a line that opens an item which other crates see.
fn is_public_item(line: &str) -> bool {
    let rest = line.trim_start().strip_prefix("pub ");
    rest.and_then(|rest| rest.split([' ', '<', '!']).next()).is_some_and(|word| ITEMS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_items_of_the_crate_are_no_doors() {
        let is_door = |line| is_public_item(line);
        assert!(is_door("pub fn f() {}") && is_door("    pub const fn f() {}") && is_door("pub use a::B;"));
        assert!(!is_door("    pub name: String,") && !is_door("pub(crate) fn f() {}") && !is_door("fn pub_x() {}"));
    }
}
