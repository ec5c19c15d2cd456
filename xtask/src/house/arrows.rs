//! Arrows between the files of a crate: a file refers to another by a path (`crate::`, `super::`, `self::`), in `use` or elsewhere.
//!
//! A path leads to the deepest file on its way. A module that declares the modules below it, or hands their names on (`pub use`), does not refer
//! to them. An arrow *up* leads to a file in whose folder the file lies: it takes names from the house that it is a room of.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Module, Source};

/// The modules that each module refers to.
pub(super) type Arrows = BTreeMap<Module, BTreeSet<Module>>;

/// The arrows of a crate; `follows` re-exported names to the file that defines them.
pub(super) fn arrows(modules: &BTreeMap<Module, Source>, follows: bool) -> Arrows {
    let all: BTreeSet<Module> = modules.keys().cloned().collect();
    let exports = modules.iter().map(|(module, source)| (module.clone(), imports(&source.code))).collect();
    let exports = if follows { exports } else { BTreeMap::new() };
    let house = House { modules: all, exports };
    modules.iter().map(|(module, source)| (module.clone(), house.references(module, &source.code))).collect()
}

/// True if `target` is the file in whose folder `source` lies, or one further up.
pub(super) fn is_up(source: &Module, target: &Module) -> bool {
    source.len() > target.len() && source.starts_with(target)
}

/// The sets of modules of which each leads to each other, over arrows that do not lead up.
pub(super) fn circles(arrows: &Arrows) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            next.extend(arrows.get(at).into_iter().flatten().filter(|to| !is_up(at, to) && seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = arrows.keys().map(|module| (module, reach(module))).collect();
    let (mut found, mut taken) = (Vec::new(), BTreeSet::new());
    for (module, reaches) in &reached {
        if taken.contains(*module) || !reaches.contains(*module) {
            continue;
        }
        let is_mutual = |other: &&Module| reached.get(other).is_some_and(|back| back.contains(*module));
        let circle: BTreeSet<Module> = reaches.iter().filter(is_mutual).cloned().collect();
        taken.extend(circle.iter().cloned());
        found.push(circle);
    }
    found
}

/// The modules of a crate, and the names that each has from others.
struct House {
    modules: BTreeSet<Module>,
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

impl House {
    fn references(&self, module: &Module, code: &str) -> BTreeSet<Module> {
        let code = without_exports(code);
        let mut paths = Vec::new();
        for statement in statements(&code, "use ") {
            paths.extend(expand(statement));
        }
        let is_word =
            |at: usize| code[..at].chars().next_back().is_none_or(|letter| !is_of_name(letter) && letter != ':');
        for (at, _) in code.match_indices("::").filter(|(at, _)| code[*at..].len() > 2) {
            let start = code[..at].rfind(|letter| !is_of_name(letter)).map_or(0, |before| before + 1);
            let word = &code[start..at];
            let line = &code[code[..start].rfind('\n').map_or(0, |before| before + 1)..start];
            // In a module within the file, `super` is the file.
            let is_inner = line.starts_with(' ') && line.trim_start().starts_with("use ") && word == "super";
            let is_below = || self.modules.contains(&join(module, word));
            if is_word(start) && !is_inner && (["crate", "super", "self"].contains(&word) || is_below()) {
                paths.extend(expand(&code[start..]));
            }
        }
        let mut found: BTreeSet<Module> = paths.iter().filter_map(|path| self.resolve(module, path, 0)).collect();
        found.remove(module);
        found
    }

    /// The module that a path leads to from `module`.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let mut at = module.clone();
        for (index, word) in path.iter().enumerate() {
            match word.as_str() {
                "crate" if index == 0 => at.clear(),
                "self" => {}
                "super" => drop(at.pop()?),
                word if self.modules.contains(&join(&at, word)) => at.push(word.to_owned()),
                _ if index == 0 => return None,
                word => {
                    let further = self.exports.get(&at).and_then(|names| names.get(word)).filter(|_| depth < 8);
                    let defining = further.and_then(|path| self.resolve(&at, path, depth + 1));
                    return Some(defining.unwrap_or(at)).filter(|found| self.modules.contains(found));
                }
            }
        }
        Some(at).filter(|found| self.modules.contains(found))
    }
}

fn join(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The paths of statements that begin a line with `start`, up to their semicolons.
fn statements<'a>(code: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = code.match_indices(start).filter(|(at, _)| *at == 0 || code[..*at].ends_with('\n'));
    lines.map(move |(at, _)| code[at + start.len()..].split(';').next().unwrap_or_default())
}

/// Code without the statements that hand names on.
fn without_exports(code: &str) -> String {
    let is_export = |statement: &str| {
        let line = statement.trim_start();
        line.starts_with("pub")
            && line.split_once("use ").is_some_and(|(head, _)| head == "pub " || head.ends_with(") "))
    };
    let mut kept = String::new();
    for statement in code.split_inclusive(';') {
        let start = statement.rfind("\npub").map_or(0, |at| at + 1);
        let (before, last) = statement.split_at(start);
        kept.push_str(before);
        if !is_export(last) {
            kept.push_str(last);
        }
    }
    kept
}

/// The names that a file imports or hands on, each with its path.
fn imports(code: &str) -> BTreeMap<String, Vec<String>> {
    let starts = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
    let paths = starts.iter().flat_map(|start| statements(code, start)).flat_map(expand);
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// The paths that a text begins with: one, or all of a tree in braces.
pub(super) fn expand(text: &str) -> Vec<Vec<String>> {
    let mut head = Vec::new();
    let mut rest = text;
    loop {
        let len = rest.find(|letter| !is_of_name(letter)).unwrap_or(rest.len());
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
        let parts = split_top(&tree[..close.unwrap_or(tree.len())]);
        let paths = parts.iter().flat_map(|part| expand(part.trim()));
        return paths.map(|path| head.iter().cloned().chain(path).collect()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Module {
        text.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn of(files: &[(&str, &str)], follows: bool) -> Arrows {
        arrows(&files.iter().map(|(name, text)| (path(name), Source::of(text))).collect(), follows)
    }

    #[test]
    fn paths_lead_to_the_deepest_file_on_the_way() {
        let code = "use crate::a::{b::{self, X}, Y};\nuse super::super::c;\nlet z = crate::c::f(supercrate::a);";
        let files = [
            ("", "use a::b::T;"),
            ("a", "use self::b::X;\nlet x = b::y();"),
            ("a/b", code),
            ("c", "use crate::{Root, a::b};"),
        ];
        let found = of(&files, false);
        assert_eq!(found[&path("a/b")], [path("a"), path("c")].into());
        assert_eq!(found[&path("c")], [path(""), path("a/b")].into());
        assert_eq!(found[&path("a")], [path("a/b")].into());
        assert_eq!(found[&path("")], [path("a/b")].into());
    }

    #[test]
    fn names_that_are_handed_on_are_followed_to_their_file_on_request() {
        let files = [("", "mod a;\npub use a::{X,\n    Y};"), ("a", "use crate::b;"), ("b", "use crate::X;")];
        let found = of(&files, false);
        assert!(found[&path("")].is_empty(), "a declaration is no reference");
        assert_eq!(found[&path("b")], [path("")].into());
        assert!(circles(&found).is_empty(), "an arrow up closes no circle");
        let found = of(&files, true);
        assert_eq!(found[&path("b")], [path("a")].into());
        assert_eq!(circles(&found), [[path("a"), path("b")].into()]);
    }

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let mut files =
            vec![("a", "use crate::b::X;"), ("b", "crate::c::f()"), ("c", "use crate::a::X;"), ("d", "use crate::a;")];
        assert_eq!(circles(&of(&files, false)), [[path("a"), path("b"), path("c")].into()]);
        files[2].1 = "mod tests {\n    use super::a::X;\n}";
        assert!(circles(&of(&files, false)).is_empty());
    }
}
