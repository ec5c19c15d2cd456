//! Public items that no other crate names.
//!
//! An item is named if its name is a word of another crate: of its sources, tests and examples, of `xtask` or of `fuzz`; a crate's own tests
//! in `tests` are another crate too. A `pub use` is named if one of the names is that it opens. A type need not be named to be of use: it is
//! left out where a public item of its crate has its name too, in a signature or a field. A name says little: one that many items have,
//! such as `len`, is always found. What is found is then certain, and that is what is held here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::counts::{Counts, ITEMS};
use super::source::{Source, modules};

/// Items that stay public all the same, with the reason.
const KEPT: &[(&str, &str, &str)] = &[
    ("cenote", "with_threads", "the face of the library: programs of others choose the number of threads"),
    ("codec", "fresh_salt_and_iv", WRITING),
    ("codec", "dedup_salt_and_iv", WRITING),
    ("codec", "put_blkptr", WRITING),
    ("codec", "PASSPHRASE_BYTES_MIN", WRITING),
    ("codec", "PASSPHRASE_BYTES_MAX", WRITING),
    ("codec", "PBKDF2_ITERATIONS_DEFAULT", WRITING),
    ("codec", "PBKDF2_ITERATIONS_MIN", WRITING),
    ("format", "DdtBookmark", "a field of ScanPhys, which the macro `word_struct` declares"),
    ("kstat", "TunableValue", "the macro `tunables` names it in the crates that use it"),
    ("vdev", "HangMode", "the type of a tunable, which the macro `tunables` declares"),
];
const WRITING: &str = "encrypted datasets are not written yet; their keys and blocks are ready and tested";

/// The words of a crate, and the public items of its sources.
pub(super) struct Doors {
    name: String,
    words: BTreeSet<String>,
    words_of_tests: BTreeSet<String>,
    items: Vec<Item>,
    /// Words in signatures, fields and variants.
    signatures: BTreeSet<String>,
}

/// A public item, or the names that a `pub use` opens.
struct Item {
    names: Vec<String>,
    is_type: bool,
}

impl Doors {
    /// Of all crates, and of what only names them.
    pub(super) fn all(root: &Path, crates: &[Counts]) -> Result<Vec<Self>> {
        let folder = |name: &str| if name == "xtask" { root.join(name) } else { root.join("crates").join(name) };
        let mut found: Vec<Self> =
            crates.iter().map(|krate| Self::of(&folder(&krate.name), krate.is_product())).collect::<Result<_>>()?;
        found.push(Self::of(&root.join("fuzz"), false)?);
        Ok(found)
    }

    fn of(krate: &Path, is_product: bool) -> Result<Self> {
        let name = krate.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut words, mut words_of_tests) = (BTreeSet::new(), BTreeSet::new());
        collect_words(&krate.join("src"), &mut words)?;
        for folder in ["tests", "examples", "benches"] {
            collect_words(&krate.join(folder), &mut words_of_tests)?;
        }
        let (mut items, mut signatures) = (Vec::new(), BTreeSet::new());
        if is_product {
            for source in modules(krate)?.values() {
                items.extend(items_of(source));
                signatures.extend(signatures_of(source));
            }
        }
        Ok(Self { name, words, words_of_tests, items, signatures })
    }

    /// The items of a crate that none of the others names.
    fn unnamed<'a>(&'a self, all: &'a [Self]) -> impl Iterator<Item = &'a Item> {
        let is_named = move |name: &String| {
            let others = all.iter().filter(|other| other.name != self.name);
            self.words_of_tests.contains(name)
                || others.into_iter().any(|other| other.words.contains(name) || other.words_of_tests.contains(name))
        };
        let is_kept = move |name: &String| KEPT.iter().any(|(krate, kept, _)| *krate == self.name && kept == name);
        let is_of_use = move |item: &Item, name: &String| {
            is_named(name) || is_kept(name) || item.is_type && self.signatures.contains(name)
        };
        self.items.iter().filter(move |item| !item.names.iter().any(|name| is_of_use(item, name)))
    }
}

/// The items that no other crate names, each as its crate and its name.
pub(super) fn unnamed(doors: &[Doors]) -> Vec<String> {
    let of = |krate: &Doors| krate.unnamed(doors).map(|item| item.names.join(", ")).collect::<Vec<_>>();
    doors.iter().flat_map(|krate| of(krate).into_iter().map(|names| format!("{}: {names}", krate.name))).collect()
}

/// The words of the sources below a folder, comments left out.
fn collect_words(folder: &Path, words: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            // The list above names items too.
            if !path.ends_with("xtask/src/house") {
                collect_words(&path, words)?;
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path)?;
            words.extend(text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(words_of));
        }
    }
    Ok(())
}

fn words_of(text: &str) -> impl Iterator<Item = String> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

/// The public items of a file.
fn items_of(source: &Source) -> Vec<Item> {
    let lines: Vec<&str> = source.code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else { continue };
        let mut words = rest.split([' ', '<', '(', ':', ';', '!', '=']);
        let Some(kind) = words.find(|word| !["const", "async", "unsafe", "extern", "\"C\"", "mut"].contains(word))
        else {
            continue;
        };
        if kind == "use" {
            let statement = lines[at..].join(" ");
            let statement = statement.split(';').next().unwrap_or_default().trim();
            let paths = super::arrows::expand(statement["pub use ".len()..].trim());
            let renamed = statement.split(" as ").skip(1).filter_map(|rest| words_of(rest).next());
            let names = paths.into_iter().filter_map(|path| path.last().cloned()).chain(renamed).collect();
            // The names behind a glob are not known here.
            if !statement.ends_with('*') {
                found.push(Item { names, is_type: true });
            }
        } else if ITEMS.contains(&kind) {
            let is_type = ["struct", "enum", "trait", "type"].contains(&kind);
            found.extend(words.next().map(|name| Item { names: vec![name.to_owned()], is_type }));
        } else if rest.starts_with("const ") {
            found.push(Item { names: vec![kind.to_owned()], is_type: false });
        }
    }
    found.retain(|item| item.names.iter().all(|name| !name.starts_with('$') && !name.is_empty()));
    found
}

/// The words of a file's public signatures and fields, of variants, and of associated types.
fn signatures_of(source: &Source) -> BTreeSet<String> {
    let (mut found, mut is_within, mut is_enum, mut is_trait) = (BTreeSet::new(), false, false, false);
    for line in source.code.lines() {
        is_enum = line.starts_with("pub enum") || is_enum && line != "}";
        is_trait = line.starts_with("pub trait") || is_trait && line != "}";
        let line = line.trim();
        let rest = line.strip_prefix("pub ");
        let word = rest.and_then(|rest| rest.split([' ', '<', '!']).next()).unwrap_or_default();
        let opens = ["struct", "enum", "trait", "mod", "use", "type"].contains(&word);
        is_within |= rest.is_some() && !opens;
        let is_variant = is_enum && rest.is_none() && line.contains(['(', ':']);
        if is_trait && word != "trait" {
            found.extend(words_of(line));
        } else if is_within {
            found.extend(words_of(line));
            is_within = !(line.ends_with(['{', '}', ';']) || line.ends_with(',') && rest.is_some());
        } else if is_variant || word == "struct" && line.contains('(') {
            found.extend(words_of(&line[line.find(['(', ':']).unwrap_or(0)..]));
        } else if line.starts_with("type ") || word == "type" {
            found.extend(line.split_once('=').into_iter().flat_map(|(_, of)| words_of(of)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(name: &str, source: &str, tests: &str) -> Doors {
        let source = Source::of(source);
        Doors {
            name: name.to_owned(),
            words: words_of(&source.code).collect(),
            words_of_tests: words_of(tests).collect(),
            items: items_of(&source),
            signatures: signatures_of(&source),
        }
    }

    #[test]
    fn items_that_only_their_own_crate_names_are_found() {
        let code = "pub use a::{B, C};\npub use d::E;\npub const N: u64 = 1;\npub const fn f(x: T) -> Vec<S> {\n    g()\n}\n\
            pub struct S(U);\npub struct T;\npub struct U;\npub struct V;\npub(crate) fn h() {}\n    pub async fn k(&self) {}";
        let doors = [krate("x", code, "k()"), krate("y", "use x::C;\nfn g() {}", "")];
        assert_eq!(unnamed(&doors), ["x: E", "x: N", "x: f", "x: V"]);
    }
}
