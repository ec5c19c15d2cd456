//! The source files of a crate as modules, and their code without comments and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

/// The path of a module in its crate; the root's is empty.
pub(super) type Module = Vec<String>;

/// A module that is a file.
pub(super) struct Source {
    /// Lines of the file, without those of its tests.
    pub(super) lines: usize,
    /// Its code: no comments, no tests, no empty lines.
    pub(super) code: String,
}

impl Source {
    /// Reads the text of a file.
    pub(super) fn of(text: &str) -> Self {
        let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        let text = &text[..end];
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let code = text.lines().filter(is_code).collect::<Vec<_>>().join("\n");
        Self { lines: text.lines().count(), code }
    }

    /// Lines of code.
    pub(super) fn code_lines(&self) -> usize {
        self.code.lines().count()
    }
}

/// The modules of the crate in the folder `krate`, but for those of tests.
pub(super) fn modules(krate: &Path) -> Result<BTreeMap<Module, Source>> {
    let (mut found, mut of_tests) = (BTreeMap::new(), BTreeSet::new());
    collect(&krate.join("src"), &mut Vec::new(), &mut found, &mut of_tests)?;
    found.retain(|module, _| (0..=module.len()).all(|len| !of_tests.contains(&module[..len])));
    Ok(found)
}

fn collect(
    folder: &Path,
    at: &mut Module,
    found: &mut BTreeMap<Module, Source>,
    of_tests: &mut BTreeSet<Module>,
) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            at.push(stem);
            collect(&path, at, found, of_tests)?;
            at.pop();
        } else if path.extension().is_some_and(|end| end == "rs") {
            let is_folder = ["lib", "main", "mod"].contains(&stem.as_str());
            let module: Module = if is_folder { at.clone() } else { at.iter().cloned().chain([stem]).collect() };
            let text = fs::read_to_string(&path)?;
            let child = |name: &str| module.iter().cloned().chain([name.to_owned()]).collect();
            of_tests.extend(test_modules(&text).map(child));
            // A library and a program may share a folder: they are one root.
            let source = Source::of(&text);
            match found.get_mut(&module) {
                Some(root) => {
                    root.lines += source.lines;
                    root.code = format!("{}\n{}", root.code, source.code);
                }
                None => drop(found.insert(module, source)),
            }
        }
    }
    Ok(())
}

/// Lines of all files of a folder, tests included.
pub(super) fn lines_of(folder: &Path) -> Result<usize> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    let mut lines = 0;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            lines += lines_of(&path)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            lines += fs::read_to_string(&path)?.lines().count();
        }
    }
    Ok(lines)
}

/// The modules that a file declares for tests alone.
fn test_modules(text: &str) -> impl Iterator<Item = &str> {
    let pairs = text.lines().zip(text.lines().skip(1));
    pairs
        .filter(|(first, _)| first.starts_with("#[cfg(") && first.contains("test") && !first.contains("not(test"))
        .filter_map(|(_, second)| second.split_once("mod ")?.1.strip_suffix(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_no_comments_and_no_tests() {
        let source = Source::of("//! Theory.\n\n    // Why.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n");
        assert_eq!(source.code, "fn f() {}");
        assert_eq!((source.lines, source.code_lines()), (4, 1));
    }

    #[test]
    fn modules_for_tests_are_known_by_their_declaration() {
        let text =
            "mod a;\n#[cfg(all(loom, test))]\nmod b;\n#[cfg(not(test))]\nmod c;\n#[cfg(test)]\npub(crate) mod d;\n";
        assert_eq!(test_modules(text).collect::<Vec<_>>(), ["b", "d"]);
    }
}
