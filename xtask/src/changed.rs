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

/// The workspace's crates: the folder of each, and those that it depends on, for tests too.
pub(crate) struct Crates(BTreeMap<String, (String, BTreeSet<String>)>);

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
            let dependencies = package["dependencies"].as_array().into_iter().flatten().filter(of_ours);
            let used = dependencies.map(|dependency| text(&dependency["name"])).collect::<Result<_>>()?;
            crates.insert(text(&package["name"])?, (folder, used));
        }
        Ok(Self(crates))
    }

    /// Those with a file that changed.
    pub(crate) fn touched(&self, changed: &BTreeSet<String>) -> BTreeSet<String> {
        let is_of_all = changed.iter().any(|file| OF_ALL.contains(&file.as_str()));
        let has = |folder: &str| changed.iter().any(|file| Path::new(file).starts_with(folder));
        self.0.iter().filter(|(_, (folder, _))| is_of_all || has(folder)).map(|(name, _)| name.clone()).collect()
    }

    /// The crate that has a file in its folder.
    pub(crate) fn owner(&self, file: &str) -> Option<&str> {
        let has = |(_, (folder, _)): &(&String, &(String, BTreeSet<String>))| Path::new(file).starts_with(folder);
        self.0.iter().filter(has).max_by_key(|(_, (folder, _))| folder.len()).map(|(name, _)| name.as_str())
    }

    /// Some, and all that they stand on, directly or not.
    pub(crate) fn below(&self, some: &BTreeSet<String>) -> BTreeSet<String> {
        let mut found = some.clone();
        let mut left: Vec<String> = some.iter().cloned().collect();
        while let Some(name) = left.pop() {
            let used = self.0.get(&name).map(|(_, used)| used.clone()).unwrap_or_default();
            left.extend(used.into_iter().filter(|name| found.insert(name.clone())));
        }
        found
    }

    /// Those that stand on some, directly or not, and are none of them.
    pub(crate) fn above(&self, some: &BTreeSet<String>) -> BTreeSet<String> {
        let mut found = some.clone();
        loop {
            let stands = |used: &BTreeSet<String>| used.iter().any(|name| found.contains(name));
            let more: Vec<_> =
                self.0.iter().filter(|(name, (_, used))| !found.contains(*name) && stands(used)).collect();
            if more.is_empty() {
                return found.difference(some).cloned().collect();
            }
            let more: Vec<String> = more.into_iter().map(|(name, _)| name.clone()).collect();
            found.extend(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_its_crate_and_those_that_stand_on_it() {
        let package = |name: &str, used: &[&str]| {
            let used: Vec<_> = used.iter().map(|used| serde_json::json!({"name": used, "path": "/r"})).collect();
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
        assert_eq!(crates.above(&touched), set(&["b", "c"]));
        assert_eq!(crates.touched(&set(&["Cargo.lock"])).len(), 4);
        assert!(crates.touched(&set(&["docs/a.md"])).is_empty());
    }
}
