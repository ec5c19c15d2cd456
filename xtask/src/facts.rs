//! Facts about the sources, for those who judge the house: `cargo xtask house` prints them after its checks.
//!
//! A *circle* is a set of files of one crate of which each refers to each other over some way. References are read from paths (`crate::`,
//! `super::`, `self::`), in `use` and elsewhere; that a file declares the modules below it counts as none. Code of tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// A file past this many lines is named.
const LINES_LONG: usize = 800;
/// Circles of at most so many files are a module and its parts.
const CIRCLE_MAX: usize = 2;
/// Macros that assert.
const ASSERTIONS: &[&str] = &["assert!(", "assert_eq!(", "assert_ne!(", "assert_matches!("];

/// A crate's facts.
struct Facts {
    name: String,
    lines: usize,
    code_lines: usize,
    assertions: usize,
    public_items: usize,
    long: Vec<String>,
    write_folders: usize,
    circles: Vec<Vec<String>>,
}

/// Prints a table of all crates, and what is named below it.
pub(crate) fn print(root: &Path) -> Result<()> {
    let mut crates: Vec<PathBuf> =
        fs::read_dir(root.join("crates"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    crates.sort();
    let all: Vec<Facts> = crates.iter().map(|krate| facts(krate)).collect::<Result<_>>()?;
    println!(
        "{:10} {:>7} {:>7} {:>10} {:>8} {:>6} {:>8}",
        "crate", "lines", "code", "assert/kLOC", "public", "long", "circles"
    );
    for it in &all {
        let density = it.assertions as f64 * 1000.0 / it.code_lines.max(1) as f64;
        println!(
            "{:10} {:>7} {:>7} {:>10.1} {:>8} {:>6} {:>8}",
            it.name,
            it.lines,
            it.code_lines,
            density,
            it.public_items,
            it.long.len(),
            it.circles.len()
        );
    }
    let (lines, public): (usize, usize) =
        all.iter().fold((0, 0), |sum, it| (sum.0 + it.lines, sum.1 + it.public_items));
    println!("{:10} {lines:>7} {:>7} {:>10} {public:>8}", "all", "", "");
    let write_folders: usize = all.iter().map(|it| it.write_folders).sum();
    println!("folders named 'write': {write_folders}");
    for it in &all {
        for long in &it.long {
            println!("more than {LINES_LONG} lines: {long}");
        }
        for circle in &it.circles {
            println!("circle in {}: {} files: {}", it.name, circle.len(), circle.join(", "));
        }
    }
    Ok(())
}

/// The lines of a crate's source.
pub(crate) fn lines(krate: &Path) -> Result<usize> {
    Ok(facts(krate)?.lines)
}

fn facts(krate: &Path) -> Result<Facts> {
    let name = krate.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let source = krate.join("src");
    let (mut modules, mut write_folders) = (BTreeMap::new(), 0);
    collect(&source, &mut Vec::new(), &mut modules, &mut write_folders)?;
    let mut found = Facts {
        name,
        lines: 0,
        code_lines: 0,
        assertions: 0,
        public_items: 0,
        long: Vec::new(),
        write_folders,
        circles: Vec::new(),
    };
    let mut arrows = BTreeMap::new();
    for (module, (path, text)) in &modules {
        let lines = text.lines().count();
        found.lines += lines;
        if lines > LINES_LONG {
            found.long.push(format!("{} ({lines})", path.display()));
        }
        let code = code_of(text);
        found.code_lines += code.lines().filter(|line| !line.trim().is_empty()).count();
        found.assertions += ASSERTIONS.iter().map(|word| code.matches(word).count()).sum::<usize>();
        found.public_items += code.lines().filter(|line| line.trim_start().starts_with("pub ")).count();
        arrows.insert(module.clone(), references(module, &code, &modules.keys().cloned().collect()));
    }
    let files = |circle: Vec<Vec<String>>| circle.into_iter().map(|module| module.join("/")).collect::<Vec<_>>();
    found.circles = circles(&arrows).into_iter().filter(|circle| circle.len() > CIRCLE_MAX).map(files).collect();
    Ok(found)
}

/// Source files by the path of their module.
type Modules = BTreeMap<Vec<String>, (PathBuf, String)>;

fn collect(folder: &Path, at: &mut Vec<String>, found: &mut Modules, write_folders: &mut usize) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            *write_folders += usize::from(stem == "write");
            at.push(stem);
            collect(&path, at, found, write_folders)?;
            at.pop();
        } else if path.extension().is_some_and(|end| end == "rs") && !stem.ends_with("tests") {
            let is_root = ["lib", "main", "mod"].contains(&stem.as_str());
            let module = if is_root { at.clone() } else { at.iter().cloned().chain([stem]).collect() };
            let text = fs::read_to_string(&path)?;
            found.insert(module, (path, text));
        }
    }
    Ok(())
}

/// The code of a file: without comments, and without its tests, which stand at the end.
fn code_of(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    // In a module within the file, `super` is the file.
    let is_of_inner = |line: &str| line.starts_with(' ') && line.trim_start().starts_with("use super::");
    let is_code = |line: &&str| !line.trim_start().starts_with("//") && !is_of_inner(line);
    let code = text[..end].lines().filter(is_code).collect::<Vec<_>>().join("\n");
    // A re-export of a module below is no use of it.
    let statements = code.split_inclusive(';');
    let is_used = |statement: &&str| {
        let statement = statement.trim_start();
        !(statement.starts_with("pub")
            && statement.split("use ").next().is_some_and(|head| head.len() < 16 && !head.contains('\n')))
    };
    let is_export = |statement: &&str| statement.contains("use ") && !is_used(statement);
    statements.filter(|statement| !is_export(statement)).collect()
}

/// The modules that a module's code refers to.
fn references(module: &[String], code: &str, modules: &BTreeSet<Vec<String>>) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    // A module below may be named without `self::`.
    for line in code.lines().filter_map(|line| line.strip_prefix("use ")) {
        let child = line.split("::").next().unwrap_or_default();
        let below: Vec<String> = module.iter().cloned().chain([child.to_owned()]).collect();
        if modules.contains(&below) {
            found.insert(below);
        }
    }
    let mut rest = code;
    let starts = ["crate::", "super::", "self::"];
    while let Some(at) = starts.iter().filter_map(|start| rest.find(start)).min() {
        let is_word =
            rest[..at].chars().next_back().is_none_or(|letter| !letter.is_alphanumeric() && !"_:".contains(letter));
        let path = &rest[at..];
        if is_word {
            for path in expand(path) {
                found.extend(resolve(module, &path, modules));
            }
        }
        rest = &path["self::".len().min(path.len())..];
    }
    found.remove(module);
    found
}

/// The paths that a text begins with: one, or all of a tree in braces.
fn expand(text: &str) -> Vec<Vec<String>> {
    let mut head = Vec::new();
    let mut rest = text;
    loop {
        let len = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        if len > 0 {
            head.push(rest[..len].to_owned());
        }
        rest = &rest[len..];
        let Some(next) = rest.strip_prefix("::") else { return vec![head] };
        let Some(tree) = next.strip_prefix('{') else {
            rest = next;
            continue;
        };
        let mut depth = 0;
        let close = tree.find(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            depth < 0
        });
        let mut all = Vec::new();
        for part in split_top(&tree[..close.unwrap_or(tree.len())]) {
            all.extend(expand(part.trim()).into_iter().map(|path| head.iter().cloned().chain(path).collect()));
        }
        return all;
    }
}

/// The parts between commas that are in no inner braces.
fn split_top(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if letter == ',' && depth == 0 {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The module that a path leads to: the deepest one on the way. Nothing for a path of the crate's root alone, where names are
/// exported for others.
fn resolve(module: &[String], path: &[String], modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut at = module.to_vec();
    let mut words = path.iter();
    let mut found = None;
    for (index, word) in words.by_ref().enumerate() {
        match word.as_str() {
            "crate" if index == 0 => at.clear(),
            "self" if index == 0 => {}
            "super" => drop(at.pop()),
            word => {
                at.push(word.to_owned());
                if !modules.contains(&at) {
                    at.pop();
                    found = Some(at.clone());
                    break;
                }
            }
        }
        found = Some(at.clone());
    }
    found.filter(|found| !found.is_empty() && modules.contains(found))
}

/// The sets of modules that lead to one another.
fn circles(arrows: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<Vec<Vec<String>>> {
    let reach = |from: &Vec<String>| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = next.pop() {
            for to in arrows.get(&at).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<_, _> = arrows.keys().map(|module| (module.clone(), reach(module))).collect();
    let (mut found, mut taken) = (Vec::new(), BTreeSet::new());
    for (module, reaches) in &reached {
        if taken.contains(module) || !reaches.contains(module) {
            continue;
        }
        let is_mutual = |other: &&Vec<String>| reached.get(*other).is_some_and(|back| back.contains(module));
        let circle: Vec<_> = reaches.iter().filter(is_mutual).cloned().collect();
        taken.extend(circle.iter().cloned());
        found.push(circle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn paths_lead_to_the_deepest_module_on_the_way() {
        let modules: BTreeSet<_> = ["", "a", "a/b", "c"].into_iter().map(path).collect();
        let code = "use crate::a::{b::{self, X}, Y};\nuse super::super::c;\nlet z = crate::c::f(supercrate::a);";
        assert_eq!(references(&path("a/b"), code, &modules), [path("a"), path("c")].into());
        assert_eq!(references(&path("c"), "use crate::{Root, a::b};", &modules), [path("a/b")].into());
        assert_eq!(references(&path("a"), "use self::b::X;", &modules), [path("a/b")].into());
    }

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
        let mut map: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (from, to) in arrows {
            map.entry(path(from)).or_default().insert(path(to));
        }
        assert_eq!(circles(&map), vec![vec![path("a"), path("b"), path("c")]]);
        map.remove(&path("c"));
        assert!(circles(&map).is_empty());
    }
}
