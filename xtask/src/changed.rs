//! The change that is being made: its files, the crates that it touches, and those that stand on them.
//!
//! A change is all that differs from the branch it goes to, commits and files alike; where nothing does, it is the last commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cenote_testkit::repository_root;
use serde_json::Value;

use crate::process;

/// Files that every crate is built by.
const OF_ALL: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml"];

fn git(words: &[&str]) -> Result<String> {
    let output = process::output(Command::new("git").args(words).current_dir(repository_root()))?;
    if !output.good {
        bail!("git {}: {}", words.join(" "), output.stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Paths of files that the change has, from the repository's root on.
pub(crate) fn changed_files() -> Result<BTreeSet<String>> {
    let since = |base: &str| -> Result<BTreeSet<String>> {
        let tracked = git(&["diff", "--name-only", base])?;
        let new = git(&["ls-files", "--others", "--exclude-standard"])?;
        Ok(tracked.lines().chain(new.lines()).map(str::to_owned).collect())
    };
    let base = ["origin/main", "main"].into_iter().find_map(|branch| git(&["merge-base", "HEAD", branch]).ok());
    let changed = since(base.as_deref().unwrap_or("HEAD"))?;
    if changed.is_empty() { since("HEAD~1") } else { Ok(changed) }
}

/// Paths of all files that are kept, or will be once they are added.
pub(crate) fn kept_files() -> Result<BTreeSet<String>> {
    let listed = git(&["ls-files", "--cached", "--others", "--exclude-standard"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// All crates of the workspace, by name, each with whether the change touches it. Without a history none is touched.
pub(crate) fn crates() -> Result<Vec<(String, bool)>> {
    let crates = Crates::read()?;
    let touched = changed_files().map(|changed| crates.touched(&changed)).unwrap_or_default();
    Ok(crates.0.into_keys().map(|name| (name.clone(), touched.contains(&name))).collect())
}

/// The workspace's crates, by name.
///
/// The tests of a crate may stand on crates above it, which stand on the crate itself. So a crate is made of what it depends on and of what that
/// depends on, but for tests; its tests are made of that, and of the same of each crate that they depend on.
pub(crate) struct Crates(BTreeMap<String, Crate>);

/// One of them.
struct Crate {
    folder: String,
    /// The crates that it depends on.
    used: BTreeSet<String>,
    /// Those that its tests depend on in addition.
    used_by_tests: BTreeSet<String>,
}

impl Crates {
    pub(crate) fn read() -> Result<Self> {
        let mut command = process::cargo();
        let output = process::output(command.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]))?;
        if !output.good {
            bail!("cargo metadata: {}", output.stderr.trim());
        }
        Self::of(&serde_json::from_slice(&output.stdout)?, repository_root())
    }

    fn of(metadata: &Value, root: &Path) -> Result<Self> {
        let mut crates = BTreeMap::new();
        for package in metadata["packages"].as_array().context("cargo metadata names no packages")? {
            let text =
                |value: &Value| value.as_str().map(str::to_owned).context("cargo metadata has a value of another kind");
            let manifest = text(&package["manifest_path"])?;
            let folder = Path::new(&manifest).parent().context("a manifest has a folder")?;
            let folder = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
            let of_ours = |dependency: &&Value| dependency["path"].is_string();
            let mut found = Crate { folder, used: BTreeSet::new(), used_by_tests: BTreeSet::new() };
            for dependency in package["dependencies"].as_array().into_iter().flatten().filter(of_ours) {
                let users = if dependency["kind"] == "dev" { &mut found.used_by_tests } else { &mut found.used };
                users.insert(text(&dependency["name"])?);
            }
            crates.insert(text(&package["name"])?, found);
        }
        Ok(Self(crates))
    }

    /// Those with a file that changed.
    pub(crate) fn touched(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let is_of_all = changed.iter().any(|file| OF_ALL.contains(&file.as_str()));
        let has = |folder: &str| changed.iter().any(|file| Path::new(file).starts_with(folder));
        self.0.iter().filter(|(_, it)| is_of_all || has(&it.folder)).map(|(name, _)| name.clone()).collect()
    }

    /// The crate that has a file in its folder.
    pub(crate) fn owner(&self, file: &str) -> Option<&str> {
        let has = |(_, it): &(&String, &Crate)| Path::new(file).starts_with(&it.folder);
        self.0.iter().filter(has).max_by_key(|(_, it)| it.folder.len()).map(|(name, _)| name.as_str())
    }

    /// True of a file that only the tests of its crate are made of.
    pub(crate) fn is_of_tests(&self, file: &str) -> bool {
        let folder = self.owner(file).and_then(|name| self.0.get(name)).map(|it| it.folder.as_str());
        folder.is_some_and(|folder| Path::new(file).starts_with(Path::new(folder).join("tests")))
    }

    /// Some, and all that they and their tests stand on, directly or not.
    pub(crate) fn below(&self, some: &BTreeSet<String>) -> BTreeSet<String> {
        let of_tests = some.iter().filter_map(|name| self.0.get(name)).flat_map(|it| &it.used_by_tests);
        let mut found: BTreeSet<String> = some.iter().chain(of_tests).cloned().collect();
        let mut left: Vec<String> = found.iter().cloned().collect();
        while let Some(name) = left.pop() {
            let used = self.0.get(&name).map(|it| it.used.clone()).unwrap_or_default();
            left.extend(used.into_iter().filter(|name| found.insert(name.clone())));
        }
        found
    }

    /// Those that stand on some, or whose tests do, directly or not, and are none of them.
    pub(crate) fn above(&self, some: &BTreeSet<String>) -> BTreeSet<String> {
        let stands = |name: &&String| !self.below(&BTreeSet::from([(*name).clone()])).is_disjoint(some);
        self.0.keys().filter(|name| !some.contains(*name)).filter(stands).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_its_crate_and_those_that_stand_on_it() {
        // As `d:NAME`, one for tests.
        let package = |name: &str, used: &[&str]| {
            let used = used.iter().map(|used| match used.strip_prefix("d:") {
                Some(used) => serde_json::json!({"name": used, "path": "/r", "kind": "dev"}),
                None => serde_json::json!({"name": used, "path": "/r", "kind": null}),
            });
            let used: Vec<_> = used.collect();
            serde_json::json!({"name": name, "manifest_path": format!("/r/crates/{name}/Cargo.toml"), "dependencies": used})
        };
        let packages = [package("a", &[]), package("b", &["a"]), package("c", &["b"]), package("ab", &[])];
        let crates = Crates::of(&serde_json::json!({ "packages": packages }), Path::new("/r")).unwrap();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        let touched = crates.touched(&set(&["crates/a/src/lib.rs", "README.md"]));
        assert_eq!(touched, set(&["a"]));
        assert_eq!(crates.below(&set(&["b", "ab"])), set(&["a", "ab", "b"]));
        assert_eq!(crates.owner("crates/ab/src/lib.rs"), Some("ab"));
        assert_eq!(crates.owner("crates/README"), None);
        assert!(crates.is_of_tests("crates/ab/tests/all/main.rs"));
        assert!(!crates.is_of_tests("crates/ab/src/tests.rs") && !crates.is_of_tests("tests/all/main.rs"));
        assert_eq!(crates.above(&touched), set(&["b", "c"]));
        assert_eq!(crates.touched(&set(&["Cargo.lock"])).len(), 4);
        assert!(crates.touched(&set(&["docs/a.md"])).is_empty());
        // The tests of `low` stand on `high`, and so on `low`; what stands on `low` does not stand on `high` for that.
        let packages = [
            package("low", &["d:high"]),
            package("middle", &["low"]),
            package("high", &["low"]),
            package("apart", &[]),
        ];
        let crates = Crates::of(&serde_json::json!({ "packages": packages }), Path::new("/r")).unwrap();
        assert_eq!(crates.below(&set(&["low"])), set(&["high", "low"]));
        assert_eq!(crates.below(&set(&["middle"])), set(&["low", "middle"]));
        assert_eq!(crates.above(&set(&["high"])), set(&["low"]));
        assert_eq!(crates.above(&set(&["low"])), set(&["high", "middle"]));
    }
}
