//! The shared parts of the tests of commands: golden pools, and running the program on them.
pub(crate) mod images;
pub(crate) mod loops;
pub(crate) mod mounted;
pub(crate) mod serving;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use cenote_testkit::manifest::Dataset;
use cenote_testkit::{Golden, Theme};
use serde_json::{Map, Value};

/// A theme of the repository's own selection, which every clone has: a command needs no more than a sample.
pub(crate) fn theme(name: &str) -> Theme {
    Golden::selection().unwrap().theme(name).unwrap()
}

/// A pool whose images are unpacked, and the manifest's account of it.
pub(crate) struct Pool {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) section: Value,
    pub(crate) datasets: Vec<(String, Dataset)>,
    keys: Vec<(String, PathBuf)>,
    _keys_dir: tempfile::TempDir,
}

impl Pool {
    pub(crate) fn of(theme_name: &str) -> Self {
        let theme = theme(theme_name);
        let manifest = theme.manifest().unwrap();
        let keys_dir = tempfile::tempdir().unwrap();
        let keys = theme.write_keys(keys_dir.path()).unwrap();
        let section = theme.manifest_json().unwrap()["sections"][0].clone();
        let datasets = manifest.contents().datasets.clone().into_iter().collect();
        let dir = theme.unpacked().unwrap().dir;
        Self { dir, name: manifest.pools[0].clone(), section, datasets, keys, _keys_dir: keys_dir }
    }

    /// The program with a command on this pool: its words, then where the pool is, then `rest`.
    pub(crate) fn command(&self, words: &[&str], rest: &[&str]) -> Command {
        let mut command = program();
        // Of `tar`, -f names the archive.
        command.args(words).arg("-d").arg(&self.dir).arg(if words == ["tar"] { "--force" } else { "-f" });
        for (dataset, file) in &self.keys {
            command.arg("--key").arg(format!("{dataset}={}", file.display()));
        }
        command.args(rest);
        command
    }

    /// Runs it; the output of a success.
    pub(crate) fn run(&self, words: &[&str], rest: &[&str]) -> Vec<u8> {
        good(&mut self.command(words, rest))
    }

    /// As [`Pool::run`], as text.
    pub(crate) fn text(&self, words: &[&str], rest: &[&str]) -> String {
        String::from_utf8(self.run(words, rest)).unwrap()
    }

    /// Names of the file systems and snapshots that have entries in the manifest.
    pub(crate) fn filesystems(&self) -> Vec<String> {
        let has_files = |dataset: &&(String, Dataset)| !dataset.1.entries.is_empty() && dataset.1.error.is_none();
        self.datasets.iter().filter(has_files).map(|(name, _)| name.clone()).collect()
    }

    /// The manifest's entries of a dataset, without the control directory that a mount may show.
    pub(crate) fn entries(&self, dataset: &str) -> Vec<Value> {
        let mut entries = self.section["datasets"][dataset]["entries"].as_array().unwrap().clone();
        let control = |path: &str| path == ".zfs" || path.starts_with(".zfs/");
        entries.retain(|entry| !entry["path"].as_str().is_some_and(control));
        entries
    }
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.stdin(Stdio::null());
    command
}

/// The output of a command that must succeed.
pub(crate) fn good(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    output.stdout
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

/// All that a snapshot holds, as the manifest of its pool says it: each file with its attributes and the sum of its bytes. Blocks, and the number
/// of the folder at the top, are those of a pool.
pub(crate) fn entries_of(manifest: &str, snapshot: &str) -> Vec<Value> {
    let manifest: Value = serde_json::from_str(manifest).unwrap();
    let entries = manifest["datasets"][snapshot]["entries"].as_array();
    let mut entries = entries.unwrap_or_else(|| panic!("no entries of {snapshot}")).clone();
    for entry in entries.iter_mut().map(|entry| entry.as_object_mut().unwrap()) {
        entry.remove("blocks");
        // Pieces of a sparse file, which are as large as its blocks.
        entry.remove("data");
        if entry["path"] == "." {
            entry.remove("ino");
        }
    }
    assert!(!entries.is_empty(), "{snapshot}");
    entries
}

/// An entry without the fields `left_out`, and, for directories, without those that mean different things in different
/// file systems.
pub(crate) fn comparable(entry: &Value, left_out: &[&str]) -> Value {
    let of_directories: &[&str] = if entry["type"] == "d" { &["size", "nlink"] } else { &[] };
    let map = entry.as_object().unwrap().iter();
    let kept = map.filter(|(name, _)| !left_out.contains(&name.as_str()) && !of_directories.contains(&name.as_str()));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

/// Compares two lists of entries, path by path.
pub(crate) fn assert_same(what: &str, want: &[Value], got: &[Value], left_out: &[&str]) {
    let key = |entry: &Value| entry["path"].to_string();
    let by_path = |entries: &[Value]| -> std::collections::BTreeMap<String, Value> {
        entries.iter().map(|entry| (key(entry), comparable(entry, left_out))).collect()
    };
    let (want, got) = (by_path(want), by_path(got));
    assert!(!want.is_empty(), "{what}: nothing to compare");
    let missing: Vec<_> = want.keys().filter(|path| !got.contains_key(*path)).collect();
    let more: Vec<_> = got.keys().filter(|path| !want.contains_key(*path)).collect();
    assert!(missing.is_empty() && more.is_empty(), "{what}: missing {missing:?}, too many {more:?}");
    for (path, want) in &want {
        let got = &got[path];
        let fields = want.as_object().unwrap().keys().chain(got.as_object().unwrap().keys());
        let differing: Vec<String> = fields
            .filter(|field| want.get(field) != got.get(field))
            .map(|field| format!("{field}: {} but {}", short(want.get(field)), short(got.get(field))))
            .collect();
        assert!(differing.is_empty(), "{what}: {path}: {differing:?}");
    }
}

fn short(value: Option<&Value>) -> String {
    value.map_or("nothing".into(), |value| value.to_string().chars().take(300).collect())
}

/// Whether the tests run with the rights to set owners and make devices.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
