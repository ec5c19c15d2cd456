//! One style of futures: a function that other crates await returns a boxed future by the attribute `boxed`, or is hot.
//!
//! An async function is compiled again in each crate that awaits it, with all that it awaits. ARCHITECTURE.md says what that costs. Crates above
//! `admin` are awaited by few others.

use std::path::Path;

use anyhow::Result;

use super::layers::{LAYERS, layer_of};
use super::source::modules;
use crate::steps::Tally;

/// Public async functions without the attribute, by crate: they usually return without waiting, are generic over a function or a future
/// that need not be `Send`, or end once in a process's life in the crate that awaits them.
const HOT: &[(&str, &[&str])] = &[
    ("vdev", &["repeat", "flush", "hung", "passed", "failed", "wait_for_reads", "write", "flush_of"]),
    ("zio", &["find_places", "place_log", "write_log", "store", "write", "place"]),
    ("arc", &["find_or_load", "prefetch"]),
    (
        "dmu",
        &[
            "read",
            "read_structure",
            "pointer",
            "lock_bytes",
            "write",
            "write_in",
            "place",
            "store",
            "lock_range",
            "block",
            "read_prefetching",
            "read_direct",
            "finish",
            "assign",
            "wait_synced",
        ],
    ),
    ("zil", &["check", "begin_change", "sync", "commit_if_sync", "wait", "arrived", "landed", "replay"]),
    ("dsl", &["properties"]),
    (
        "spa",
        &[
            "sync_and_close",
            "give_up",
            "end",
            "history",
            "wait_synced",
            "sync",
            "change",
            "look",
            "peek",
            "auxiliary_paths",
            "export",
            "destroy",
            "check_task",
            "sync_task",
            "sync_tasks",
        ],
    ),
    ("zpl", &["reap_until_stopped", "diff", "read", "read_direct", "write", "close"]),
    ("zvol", &["write", "read", "read_direct"]),
    ("send", &["gather", "plan", "receive_stream", "heal_stream", "send", "send_if", "estimate"]),
    ("inuse", &["unused", "settled", "allows", "begin", "resume", "reopen"]),
    ("admin", &["receive", "heal", "send_whole", "run"]),
];

/// Notes a fault for each function that boxes its future by hand, and for each public async function that is neither boxed nor hot.
pub(super) fn check(root: &Path, faults: &mut Vec<String>, tally: &mut Tally) -> Result<()> {
    let (from, to) = (layer_of("vdev"), layer_of("admin"));
    for krate in LAYERS[from..=to].iter().copied().flatten() {
        let hot = HOT.iter().find(|(name, _)| name == krate).map_or(&[][..], |(_, hot)| *hot);
        let mut met = Vec::new();
        for (module, source) in modules(&root.join("crates").join(krate))? {
            let place = format!("{krate}::{}", module.join("::"));
            for name in boxed_by_hand(&source.code) {
                faults.push(format!("{place}: {name} boxes its future by hand; the attribute `boxed` does"));
            }
            for name in not_boxed(&source.code) {
                if hot.contains(&name) {
                    met.push(name.to_owned());
                } else {
                    let what =
                        "is compiled in each crate that awaits it; give it the attribute `boxed`, or list it as hot";
                    faults.push(format!("{place}: {name} {what}"));
                }
            }
        }
        let gone = hot.iter().filter(|name| !met.iter().any(|met| met == *name));
        faults.extend(gone.map(|name| {
            format!("{krate}: {name} is listed as hot, and there is no such function without the attribute")
        }));
        tally.count(true);
    }
    Ok(())
}

/// Names of functions that return a `BoxFuture`, and whose body begins with a box of an async block.
fn boxed_by_hand(code: &str) -> Vec<&str> {
    let pinned =
        code.match_indices("Box::pin(async move {").filter_map(|(at, _)| code[..at].trim_end().strip_suffix('{'));
    let signatures = pinned.filter_map(|before| Some(&before[before.rfind("fn ")? + 3..]));
    let by_hand = signatures.filter(|signature| {
        let is_whole = !signature.contains(['{', ';']);
        is_whole && signature.rsplit_once("->").is_some_and(|(_, output)| output.contains("BoxFuture<"))
    });
    by_hand.filter_map(name_of).collect()
}

/// Names of public async functions without the attribute.
fn not_boxed(code: &str) -> Vec<&str> {
    let lines: Vec<&str> = code.lines().map(str::trim_start).collect();
    let is_attribute = |line: &&&str| line.starts_with("#[");
    let functions = lines.iter().enumerate().filter_map(|(at, line)| Some((at, line.strip_prefix("pub async fn ")?)));
    let bare = functions.filter(|(at, _)| {
        let attributes = lines[..*at].iter().rev().take_while(is_attribute);
        !attributes.into_iter().any(|line| *line == "#[boxed]")
    });
    bare.filter_map(|(_, rest)| name_of(rest)).collect()
}

fn name_of(signature: &str) -> Option<&str> {
    signature.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_by_hand_is_seen_and_one_amid_a_body_is_not() {
        let by_hand = "fn a<'a>(&'a self) -> BoxFuture<'a, ()> {\n    Box::pin(async move { self.b().await })\n}";
        assert_eq!(boxed_by_hand(by_hand), ["a"]);
        let amid = "fn a(&self) -> BoxFuture<'static, ()> {\n    let b = self.b.clone();\n    Box::pin(async move { b.run().await })\n}";
        assert!(boxed_by_hand(amid).is_empty());
        let closure = "fn a(&self) {\n    self.each(|b| {\n        Box::pin(async move { b.run().await })\n    })\n}";
        assert!(boxed_by_hand(closure).is_empty());
    }

    #[test]
    fn an_attribute_counts_with_others_around_it() {
        let code =
            "#[boxed]\n#[must_use]\npub async fn a() {}\n#[must_use]\npub async fn b() {}\npub(crate) async fn c() {}";
        assert_eq!(not_boxed(code), ["b"]);
    }
}
