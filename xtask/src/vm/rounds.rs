//! Pools that Cenote and OpenZFS write in turns.
//!
//! Cenote builds a pool of each layout from files of this repository. Then, in each round: Cenote changes files in a mount; OpenZFS
//! imports the pool, scrubs it, finds the same contents, works on it (it clones, overwrites, removes, takes snapshots), scrubs it
//! again and exports it; Cenote reads the same contents. An ordinary folder that is changed in the same way is the model. From
//! the second round on Cenote's changes meet OpenZFS's clones. In the end all clones are removed that no snapshot has.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use cenote_testkit::Part;

use crate::{process, rotation};

const ROUNDS: u32 = 3;
/// File systems of a pool whose files are changed; the second is made by OpenZFS.
const CHILD: &str = "child";
/// The folder that OpenZFS works in, where its clones are.
const WORK: &str = "work";
const SIZE: &str = "160M";

/// A pool's name, its vdevs and how many images they have.
pub(super) struct Layout {
    pub(super) name: &'static str,
    vdevs: &'static [&'static str],
    images: usize,
    compression: &'static str,
}

pub(super) const LAYOUTS: &[Layout] = &[
    Layout { name: "parity", vdevs: &["raidz1"], images: 3, compression: "zstd" },
    Layout { name: "twofold", vdevs: &["mirror"], images: 2, compression: "lz4" },
    Layout { name: "single", vdevs: &[], images: 1, compression: "off" },
    Layout { name: "striped", vdevs: &[], images: 2, compression: "gzip-1" },
    Layout { name: "double", vdevs: &["raidz2"], images: 5, compression: "lz4" },
    Layout { name: "distributed", vdevs: &["draid1:2d:4c:0s"], images: 4, compression: "zstd" },
];

/// All rounds: on all layouts, or on the one that the commit has. `share` is where images and models are.
pub(super) fn run(program: &Path, share: &Path, source: &Path, all: bool) -> Result<()> {
    let part = if all { Part::WHOLE } else { rotation::of_commit(LAYOUTS.len() as u64) };
    let layouts: Vec<&Layout> =
        (0..).zip(LAYOUTS).filter(|(index, _)| part.has(*index)).map(|(_, layout)| layout).collect();
    let pools: Vec<Pool<'_>> = layouts.iter().map(|layout| Pool { program, layout, share }).collect();
    for pool in &pools {
        pool.build(source)?;
    }
    for round in 1..=ROUNDS {
        for pool in &pools {
            pool.change(round).with_context(|| format!("round {round}: {}", pool.layout.name))?;
        }
        let mut judge = process::script("tools/openzfs-vm/judge");
        process::run(judge.arg(share).args(layouts.iter().map(|layout| layout.name)))?;
        for pool in &pools {
            pool.compare().with_context(|| format!("round {round}: {}", pool.layout.name))?;
            println!("{}: round {round} of {ROUNDS}", pool.layout.name);
        }
    }
    for pool in &pools {
        pool.without_clones().with_context(|| pool.layout.name)?;
    }
    Ok(())
}

struct Pool<'a> {
    program: &'a Path,
    layout: &'a Layout,
    share: &'a Path,
}

impl Pool<'_> {
    fn folder(&self) -> PathBuf {
        self.share.join(self.layout.name)
    }

    /// The ordinary folder that is changed likewise.
    fn model(&self) -> PathBuf {
        self.share.join(format!("{}.model", self.layout.name))
    }

    fn cenote(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.env("CENOTE_CACHE", self.share.join("cache.json")).args(words);
        command
    }

    /// A command on the pool: words before and after the folder that it is looked for in.
    fn on_pool(&self, words: &[&str], rest: &[&OsStr]) -> Command {
        let mut command = self.cenote(words);
        command.arg("-d").arg(self.folder()).args(rest);
        command
    }

    fn build(&self, source: &Path) -> Result<()> {
        std::fs::create_dir(self.folder())?;
        let compression = format!("compression={}", self.layout.compression);
        let options = ["build", "--pool", self.layout.name, "--size", SIZE, "-O", &compression, "--from"];
        let images = (0..self.layout.images).map(|index| self.folder().join(format!("{index}.img")));
        process::run(self.cenote(&options).arg(source).args(self.layout.vdevs).args(images))?;
        process::run(Command::new("cp").arg("-r").arg(source).arg(self.model()))
    }

    fn has_child(&self) -> bool {
        self.model().join(CHILD).exists()
    }

    /// Changes files in mounts of the pool's file systems, and the same in the model.
    fn change(&self, round: u32) -> Result<()> {
        let model = self.model();
        let mount = Mount::new(self, self.layout.name)?;
        change_files(&mount.folder, round, CHILD)?;
        mount.end()?;
        change_files(&model, round, CHILD)?;
        if self.has_child() {
            let mount = Mount::new(self, &format!("{}/{CHILD}", self.layout.name))?;
            change_files(&mount.folder, round, "")?;
            mount.end()?;
            change_files(&model.join(CHILD), round, "")?;
        }
        self.verify()?;
        super::sums_to(&model, &self.folder().join("sums"))
    }

    fn verify(&self) -> Result<()> {
        process::run(&mut self.on_pool(&["verify"], &[OsStr::new(self.layout.name)]))
    }

    /// The pool has what OpenZFS left. It becomes the model.
    fn compare(&self) -> Result<()> {
        let (name, model) = (self.layout.name, self.model());
        self.verify()?;
        std::fs::remove_dir_all(&model)?;
        let child = format!("{name}/{CHILD}");
        for (dataset, target) in [(name, model.clone()), (&child, model.join(CHILD))] {
            let rest = [OsStr::new(dataset), OsStr::new("/"), target.as_os_str()];
            process::run(&mut self.on_pool(&["cp", "-a", "--privileged"], &rest))?;
        }
        let sums = self.folder().join("sums.after");
        let mut compare = Command::new("sha256sum");
        process::run(compare.args(["--quiet", "-c"]).arg(&sums).current_dir(&model))?;
        let lines = std::fs::read_to_string(&sums)?.lines().count();
        ensure!(lines == files_below(&model, "")?.len(), "there are other files than OpenZFS left");
        Ok(())
    }

    /// Removes the files that OpenZFS cloned. Blocks that a snapshot has stay, and are counted still.
    fn without_clones(&self) -> Result<()> {
        for (dataset, folder) in [(self.layout.name.to_owned(), WORK), (format!("{}/{CHILD}", self.layout.name), "")] {
            let mount = Mount::new(self, &dataset)?;
            for path in files_below(&mount.folder.join(folder), CHILD)? {
                std::fs::remove_file(mount.folder.join(folder).join(path))?;
            }
            mount.end()?;
        }
        self.verify()
    }
}

/// Regular files below a folder in the order of their paths, without one folder in it.
fn files_below(folder: &Path, without: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in std::fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                if path != Path::new(without) {
                    folders.push(path);
                }
            } else if entry.file_type()?.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Overwrites, cuts short, removes and adds files, the same wherever there are the same files.
fn change_files(folder: &Path, round: u32, without: &str) -> Result<()> {
    for (index, path) in files_below(folder, without)?.iter().enumerate() {
        let at = folder.join(path);
        let size = std::fs::metadata(&at)?.len();
        match (index as u32 + round) % 5 {
            0 => OpenOptions::new().write(true).open(&at)?.write_all_at(&content(index as u64, 70_000), size / 2)?,
            1 => OpenOptions::new().write(true).open(&at)?.set_len(size / 3)?,
            2 if index % 3 == 0 => std::fs::remove_file(&at)?,
            _ => {}
        }
    }
    let made = folder.join(format!("made-in-round-{round}"));
    std::fs::create_dir(&made)?;
    for index in 0..20 {
        std::fs::write(made.join(format!("file {index}")), content(index, 1 << (index / 2 + 8)))?;
    }
    Ok(())
}

/// Bytes that nothing compresses, the same each time.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    });
    next.take(len).collect()
}

/// A file system of the pool, mounted for writing.
struct Mount {
    child: Option<Child>,
    folder: PathBuf,
}

impl Mount {
    fn new(pool: &Pool<'_>, dataset: &str) -> Result<Self> {
        let folder = pool.share.join("mounted");
        std::fs::create_dir_all(&folder)?;
        let before = std::fs::metadata(&folder)?.dev();
        let mut command = pool.on_pool(&["mount", "--rw"], &[OsStr::new(dataset), folder.as_os_str()]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot start cenote mount")?;
        let mut mount = Self { child: Some(child), folder };
        let begun = Instant::now();
        while std::fs::metadata(&mount.folder).is_ok_and(|found| found.dev() == before) {
            let ended = mount.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("cenote mount --rw {dataset}: {status}");
            }
            ensure!(begun.elapsed() < Duration::from_secs(120), "{dataset} is not mounted after two minutes");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(mount)
    }

    /// Unmounts it, and waits until the pool is exported.
    fn end(mut self) -> Result<()> {
        process::run(Command::new("fusermount3").arg("-u").arg(&self.folder))?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let status = child.wait()?;
        ensure!(status.success(), "cenote mount --rw: {status}");
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill();
        let _ = child.wait();
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-z"]).arg(&self.folder).stderr(Stdio::null()).status();
    }
}

/// Whether file systems can be mounted here.
pub(super) fn can_mount() -> bool {
    File::options().read(true).write(true).open("/dev/fuse").is_ok()
}
