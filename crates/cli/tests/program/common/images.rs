//! Pools that tests change: made here, or by OpenZFS; looked at by the program and by OpenZFS's `zdb`.

use std::path::PathBuf;
use std::process::Command;

use cenote_testkit::zdb::{BlockStatistics, Devices};

use super::{good, program, said, theme};

/// A pool of its own, to be changed.
pub(crate) struct Images {
    pub(crate) dir: PathBuf,
    pub(crate) pool: String,
    pub(crate) files: Vec<PathBuf>,
    _scratch: Option<cenote_testkit::Scratch>,
    pub(crate) cache: tempfile::TempDir,
}

impl Images {
    pub(crate) fn of_theme(name: &str) -> Self {
        let theme = theme(name);
        let scratch = theme.scratch().unwrap();
        let (dir, files) = (scratch.dir().to_owned(), scratch.images.clone());
        let pool = theme.manifest().unwrap().pools[0].clone();
        Self { dir, pool, files, _scratch: Some(scratch), cache: tempfile::tempdir().unwrap() }
    }

    /// A folder without files, for a pool that is to be made.
    pub(crate) fn none() -> Self {
        let cache = tempfile::tempdir().unwrap();
        let dir = cache.path().join("images");
        std::fs::create_dir(&dir).unwrap();
        Self { dir, pool: "mine".into(), files: Vec::new(), _scratch: None, cache }
    }

    /// The files that are there now.
    pub(crate) fn note_files(&mut self) {
        let entries = std::fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().path());
        self.files = entries.filter(|path| path.is_file()).collect();
        self.files.sort();
    }

    pub(crate) fn made(layout: &[&str], count: usize, options: &[&str]) -> Self {
        Self::made_as("mine", layout, count, options)
    }

    /// With a name that pools of other tests, which run meanwhile, do not have: for what goes by the names of mounts.
    pub(crate) fn made_as(pool: &str, layout: &[&str], count: usize, options: &[&str]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let dir = cache.path().join("images");
        std::fs::create_dir(&dir).unwrap();
        let files: Vec<PathBuf> = (0..count).map(|index| dir.join(format!("{index}.img"))).collect();
        let this = Self { dir, pool: pool.into(), files: files.clone(), _scratch: None, cache };
        let mut command = this.bare();
        command.args(["zpool", "create", "--size", "80M"]).args(options).arg(pool).args(layout).args(&files);
        good(&mut command);
        this
    }

    pub(crate) fn bare(&self) -> Command {
        let mut command = program();
        command.env("CENOTE_CACHE", self.cache.path().join("cache.json"));
        command
    }

    /// The program with a tool's verb on these images.
    pub(crate) fn command(&self, tool: &str, rest: &[&str]) -> Command {
        let mut command = self.bare();
        command.arg(tool).arg("-d").arg(&self.dir).arg("-f").args(rest);
        command
    }

    pub(crate) fn run(&self, tool: &str, rest: &[&str]) -> String {
        String::from_utf8(good(&mut self.command(tool, rest))).unwrap()
    }

    pub(crate) fn refused(&self, tool: &str, rest: &[&str]) -> String {
        let output = self.command(tool, rest).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{rest:?}: {}", said(&output));
        said(&output)
    }

    pub(crate) fn get(&self, property: &str, dataset: &str) -> String {
        self.run("zfs", &["get", "-H", "-o", "value,source", property, dataset]).trim().to_owned()
    }

    /// `verify` and `zdb` find nothing wrong.
    pub(crate) fn assert_whole(&self) {
        let mut verify = self.bare();
        verify.args(["verify", "-d"]).arg(&self.dir).arg("-f").arg(&self.pool);
        good(&mut verify);
        if cenote_testkit::zdb::program("zdb").is_none() {
            return;
        }
        let told = cenote_testkit::zdb::run(&Devices::of(&self.files).unwrap(), &["-bcc"], &self.pool).unwrap();
        assert_eq!(told.status, Some(0), "{}", told.text);
        assert!(BlockStatistics::parse(&told.text).unwrap().leak_free, "{}", told.text);
    }
}
