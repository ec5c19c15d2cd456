//! Licences and sources of everything we build against, checked with what Cargo itself says.
//!
//! `deny.toml` is written for cargo-deny, which also knows advisories. Its two lists that matter for every change are small
//! enough to check without it: which licences are allowed, and that nothing comes from outside the registry.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;
use serde_json::Value;

use crate::process;
use crate::steps::{Context, Outcome, Tally};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let deny = std::fs::read_to_string(repository_root().join("deny.toml")).context("no deny.toml")?;
    let allowed = string_list(&deny, "licenses", "allow").context("deny.toml has no list of allowed licences")?;
    let banned = banned_crates(&deny);
    let output = process::output(process::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    if !output.good {
        bail!("cargo metadata: {}", output.stderr.trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let mut tally = Tally::default();
    for package in metadata["packages"].as_array().context("metadata names packages")? {
        let name = package["name"].as_str().unwrap_or("?");
        let version = package["version"].as_str().unwrap_or("?");
        let mut faults = Vec::new();
        match package["license"].as_str() {
            Some(licence) if allows(licence, &allowed) => {}
            Some(licence) => faults.push(format!("licence {licence} is not allowed")),
            None => faults.push("states no licence".to_owned()),
        }
        // Packages of the workspace have no source.
        if let Some(source) = package["source"].as_str()
            && source != REGISTRY
        {
            faults.push(format!("comes from {source}"));
        }
        if banned.contains(name) {
            faults.push("is banned".to_owned());
        }
        for fault in &faults {
            println!("{name} {version}: {fault}");
        }
        tally.count(faults.is_empty());
    }
    Ok(Outcome::Done(tally))
}

/// The strings of `key = [ … ]` in `[section]`. Enough of TOML for a file of our own.
fn string_list(toml: &str, section: &str, key: &str) -> Option<BTreeSet<String>> {
    let body = section_body(toml, section)?;
    let (_, rest) = body.split_once(&format!("\n{key} = ["))?;
    let (list, _) = rest.split_once(']')?;
    Some(quoted(list).collect())
}

fn banned_crates(toml: &str) -> BTreeSet<String> {
    let Some(body) = section_body(toml, "bans") else { return BTreeSet::new() };
    let Some((_, rest)) = body.split_once("\ndeny = [") else { return BTreeSet::new() };
    let list = rest.split_once("\n]").map_or(rest, |(list, _)| list);
    list.lines().filter_map(|line| quoted(line.split_once("crate =")?.1).next()).collect()
}

fn section_body<'a>(toml: &'a str, section: &str) -> Option<&'a str> {
    let (_, rest) = toml.split_once(&format!("[{section}]"))?;
    Some(rest.split_once("\n[").map_or(rest, |(body, _)| body))
}

fn quoted(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// Whether a licence expression can be met with allowed licences: of `A OR B` one, of `A AND B` both.
fn allows(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let good = any(&words, &mut at, allowed);
    good && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all(words, at, allowed);
    }
    good
}

fn all(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(words, at, allowed);
    }
    good
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let good = any(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return good && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let with = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return allowed.contains(&with);
    }
    allowed.contains(*word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_judged_as_written() {
        let allowed: BTreeSet<String> =
            ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        assert!(allows("MIT", &allowed));
        assert!(allows("GPL-2.0 OR MIT", &allowed));
        assert!(allows("MIT/Apache-2.0", &allowed));
        assert!(allows("Apache-2.0 WITH LLVM-exception OR GPL-3.0", &allowed));
        assert!(allows("(MIT OR GPL-2.0) AND Apache-2.0", &allowed));
        assert!(!allows("MIT AND GPL-2.0", &allowed));
        assert!(!allows("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
        assert!(!allows("", &allowed));
        assert!(!allows("MIT )", &allowed));
    }

    #[test]
    fn lists_are_found_in_their_section_only() {
        let toml = "[a]\nallow = [\"X\"]\n\n[licenses]\nallow = [\n  \"MIT\", # why\n  \"ISC\",\n]\n\n[bans]\ndeny = [\n  { crate = \"openssl\", reason = \"r\" },\n]\n";
        let list = string_list(toml, "licenses", "allow").unwrap();
        assert_eq!(list, ["ISC", "MIT"].map(str::to_owned).into());
        assert_eq!(banned_crates(toml), ["openssl".to_owned()].into());
    }
}
