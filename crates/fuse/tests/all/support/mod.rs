//! Helpers of the tests: golden pools opened, mounts that end, and the comparison of mounts with manifests.

pub(crate) mod live;

use std::path::Path;
use std::sync::{Arc, Mutex};

use cenote_dsl::Secret;
use cenote_fuse::{Layout, MountHandle, MountOptions, Report, Tree, TreeOptions, Unmount};
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::{Handle, Runtime, RuntimeOptions};
use cenote_testkit::manifest::Manifest;
use cenote_testkit::{Golden, Theme, walk};
use serde_json::Value;

/// A golden pool, opened.
pub(crate) struct Opened {
    pub(crate) theme: Theme,
    pub(crate) manifest: Manifest,
    pub(crate) pool: View,
    /// The errors reported.
    pub(crate) reports: Arc<Mutex<Vec<String>>>,
    // Last: it must outlive the rest.
    pub(crate) runtime: Runtime,
}

impl Opened {
    /// Opens the first pool of a theme of the repository's selection, with all its keys.
    pub(crate) fn new(theme: &str) -> Self {
        Self::of(Golden::selection().unwrap().theme(theme).unwrap(), true)
    }

    pub(crate) fn of(theme: Theme, with_keys: bool) -> Self {
        let manifest = theme.manifest().unwrap();
        let images = theme.unpacked().unwrap().images;
        let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
        let handle = runtime.handle();
        let pool = runtime.block_on(async {
            let (pools, _) = find(&handle, &images).await;
            let found = pools.into_iter().find(|found| found.name() == manifest.pools[0]).unwrap();
            let options = ImportOptions { force: true, cache_bytes: 64 << 20, ..ImportOptions::default() };
            let pool = import(&handle, found, &options).await.unwrap();
            for (dataset, key) in manifest.keys.iter().filter(|_| with_keys) {
                pool.dsl().load_key(dataset, Secret::new(key.bytes())).await.unwrap();
            }
            pool
        });
        Self { theme, manifest, pool, reports: Arc::default(), runtime }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.runtime.handle()
    }

    pub(crate) fn report(&self) -> Report {
        let reports = Arc::clone(&self.reports);
        Arc::new(move |text: &str| reports.lock().unwrap().push(text.to_owned()))
    }

    /// The file server over a dataset.
    pub(crate) fn tree(&self, dataset: &str, layout: Layout) -> Tree {
        let options = TreeOptions { layout, report: self.report(), ..TreeOptions::default() };
        self.runtime.block_on(Tree::open(&self.pool, dataset, options)).unwrap()
    }

    /// Mounts a dataset, hands the folder to `look`, and unmounts.
    pub(crate) fn mounted<T>(&self, dataset: &str, options: &MountOptions, look: impl FnOnce(&Path) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        let mount = self.mount(dataset, dir.path(), options);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(dir.path())));
        let how = if result.is_ok() { Unmount::Unused } else { Unmount::Detach };
        self.runtime.block_on(mount.unmount(how)).unwrap();
        drop(mount);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub(crate) fn mount(&self, dataset: &str, at: &Path, options: &MountOptions) -> MountHandle {
        let handle = self.handle();
        let mount = cenote_fuse::mount(&handle, &self.pool, dataset, at, options, self.report());
        self.runtime.block_on(mount).unwrap_or_else(|error| panic!("{dataset}: {error}"))
    }

    /// The names of all file systems and snapshots that can be mounted, by the manifest.
    pub(crate) fn mountable(&self) -> Vec<String> {
        let datasets = &self.manifest.contents().datasets;
        let has_entries = datasets.iter().filter(|(_, dataset)| !dataset.entries.is_empty());
        has_entries.map(|(name, _)| name.clone()).collect()
    }

    /// The manifest's account of one dataset.
    pub(crate) fn expected(&self, dataset: &str) -> Value {
        let json = self.theme.manifest_json().unwrap();
        let section = json["sections"].as_array().unwrap().iter().find(|section| section["section"] == "contents");
        section.unwrap()["datasets"][dataset].clone()
    }

    /// Compares a folder's entries with the manifest's of a dataset.
    pub(crate) fn compare(&self, dataset: &str, found: Value) {
        let report = walk::compare_mount(dataset, &self.expected(dataset)["entries"], &found);
        let first: Vec<_> = report.differences.iter().take(10).collect();
        assert!(report.is_match(), "{dataset}: {report}: {first:#?}");
    }
}

pub(crate) fn alone() -> MountOptions {
    MountOptions { layout: Layout::Alone, ..MountOptions::default() }
}

/// Whether mounts can be made here. If not, says why the test is left out; in CI that is a failure.
pub(crate) fn can_mount() -> bool {
    let reason = match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Err(error) => format!("/dev/fuse: {error}"),
        Ok(_) => return true,
    };
    let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!is_ci, "mounts must be tested in CI: {reason}");
    eprintln!("left out: {reason}");
    false
}
