//! The documents' lengths, their limits, and the folders of the repository, for `cargo xtask house`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Documents whose length is limited, and their lines at most: the README is read before anything is decided, and results fit a page.
const LINES_MAX: &[(&str, usize)] = &[("README.md", 110), ("docs/TOUR.md", 110), ("docs/benchmarks.md", 180)];
/// Lines of the README's longest section at most.
const SECTION_LINES_MAX: usize = 25;

/// A document's length.
struct Document {
    name: String,
    lines: usize,
    /// The longest section: its heading, and its lines with the heading.
    longest: (String, usize),
}

/// Prints all documents and folders. Returns an entry for each limit: the fault, or nothing where the limit holds.
pub(crate) fn check(root: &Path) -> Result<Vec<Option<String>>> {
    let documents = documents(root)?;
    println!("{:26} {:>5}  longest section", "document", "lines");
    for document in &documents {
        println!("{:26} {:>5}  {} ({})", document.name, document.lines, document.longest.0, document.longest.1);
    }
    for folder in ["", "docs", "crates", "xtask/src", "tools"] {
        println!(
            "folders in {}: {}",
            if folder.is_empty() { "." } else { folder },
            folders(&root.join(folder))?.join(" ")
        );
    }
    let find =
        |name: &str| documents.iter().find(|document| document.name == name).with_context(|| format!("no {name}"));
    let mut checked = Vec::new();
    for (name, max) in LINES_MAX {
        checked.push(fault(name, find(name)?.lines, *max));
    }
    let (heading, lines) = &find("README.md")?.longest;
    checked.push(fault(&format!("README.md: section '{heading}'"), *lines, SECTION_LINES_MAX));
    Ok(checked)
}

fn fault(name: &str, lines: usize, max: usize) -> Option<String> {
    (lines > max).then(|| format!("{name}: {lines} lines, of {max} at most"))
}

fn documents(root: &Path) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                found.push(measure(name, &fs::read_to_string(&path)?));
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

fn measure(name: String, text: &str) -> Document {
    let mut sections = vec![(String::from("before the first heading"), 0)];
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if !is_code && line.starts_with('#') {
            sections.push((line.trim_start_matches(['#', ' ']).to_owned(), 0));
        }
        if let Some(last) = sections.last_mut() {
            last.1 += 1;
        }
    }
    let longest = sections.into_iter().max_by_key(|section| section.1).unwrap_or_default();
    Document { name, lines: text.lines().count(), longest }
}

/// The folders in a folder that the repository keeps.
fn folders(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && !name.starts_with(".git") && name != "target" {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_heading_and_code_has_none() {
        let text = "# A\n\n## B\none\n```\n# no heading\n```\n## C\ntwo\n";
        let measured = measure("x.md".into(), text);
        assert_eq!((measured.lines, measured.longest), (9, ("B".to_owned(), 5)));
    }

    #[test]
    fn a_document_past_its_limit_is_a_fault() {
        assert!(fault("x.md", 2, 2).is_none());
        assert!(fault("x.md", 2, 1).is_some());
    }
}
