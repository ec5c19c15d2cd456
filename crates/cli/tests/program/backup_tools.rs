//! Goal: backup tools that know nothing of Cenote replicate with it. Method: `syncoid` of Debian, `zfs-autobackup` and `pyznap` of PyPI, as they
//! are, find links named `zfs` and `zpool` to the program on their PATH. Each replicates a tree of 8 datasets with 32 snapshots (with
//! CENOTE_BACKUP_FULL of 20 with 200, which takes minutes) from one pool to another, twice, with changes in between. Both sides then have the same snapshots (by guid), and the same files in the newest.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use common::{entries_of, good, program};

/// File systems below each of the tree's three, and snapshots of the tree before a tool comes.
fn extent() -> (usize, usize) {
    if std::env::var_os("CENOTE_BACKUP_FULL").is_some() { (5, 10) } else { (1, 4) }
}

/// Two pools, and a PATH on which the program is `zfs` and `zpool`.
struct World {
    dir: tempfile::TempDir,
    datasets: usize,
    rounds: usize,
}

impl World {
    fn new() -> Self {
        let (below, rounds) = extent();
        let world = Self { dir: tempfile::tempdir().unwrap(), datasets: 5 + 3 * below, rounds };
        let bin = world.dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["zfs", "zpool"] {
            std::os::unix::fs::symlink(program().get_program(), bin.join(name)).unwrap();
        }
        for pool in ["here", "there"] {
            let image = world.dir.path().join(format!("{pool}.img"));
            std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
            world.run("zpool", &["create", pool, image.to_str().unwrap()]);
        }
        world.run("zfs", &["create", "here/tree"]);
        for name in ["a", "b", "c"] {
            world.run("zfs", &["create", "-o", "recordsize=16k", &format!("here/tree/{name}")]);
            for below in 0..below {
                world.run("zfs", &["create", &format!("here/tree/{name}/{below}")]);
            }
        }
        world.run("zfs", &["create", "-V", "4M", "here/tree/volume"]);
        assert_eq!(world.datasets("here/tree").len(), world.datasets);
        for round in 0..rounds {
            world.write(["a", "b/0", "c/0"][round % 3], round);
            world.run("zfs", &["snapshot", "-r", &format!("here/tree@s{round}")]);
        }
        assert_eq!(world.snapshots("here/tree").len(), world.datasets * rounds);
        world
    }

    /// A command that finds the program by the names of OpenZFS's.
    fn command(&self, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(name);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()));
        command.env("CENOTE_CACHE", self.dir.path().join("cache.json")).stdin(std::process::Stdio::null());
        command
    }

    fn run(&self, name: &str, rest: &[&str]) -> String {
        let path = self.dir.path().join("bin").join(name);
        String::from_utf8(good(self.command(path).args(rest))).unwrap()
    }

    /// Adds a file to a file system of the tree.
    fn write(&self, dataset: &str, round: usize) {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..60_000_usize).map(|at| (at * 31 + at / 251 * 7 + round * 13) as u8).collect();
        std::fs::write(folder.path().join(format!("file{round}")), bytes).unwrap();
        let mut put = self.command(program().get_program());
        good(put.arg("put").arg(format!("here/tree/{dataset}")).arg(folder.path()));
    }

    fn lines(&self, words: &[&str]) -> Vec<String> {
        self.run("zfs", words).lines().map(str::to_owned).collect()
    }

    fn datasets(&self, top: &str) -> Vec<String> {
        let listed = self.lines(&["list", "-H", "-r", "-o", "name", top]);
        listed.iter().map(|name| name[top.len()..].to_owned()).collect()
    }

    /// Names below `top`, and guids.
    fn snapshots(&self, top: &str) -> BTreeSet<String> {
        let listed = self.lines(&["list", "-H", "-r", "-t", "snapshot", "-o", "name,guid", top]);
        listed.iter().map(|line| line[top.len()..].to_owned()).collect()
    }

    fn manifest(&self, pool: &str) -> String {
        let mut manifest = self.command(program().get_program());
        String::from_utf8(good(manifest.arg("manifest").arg(pool))).unwrap()
    }

    /// The snapshots that both sides have; the newest of each dataset has the same files.
    fn compare(&self, top: &str) -> BTreeSet<String> {
        assert_eq!(self.datasets(top), self.datasets("here/tree"));
        let (here, there) = (self.snapshots("here/tree"), self.snapshots(top));
        let both: BTreeSet<String> = here.intersection(&there).cloned().collect();
        let (here, there) = (self.manifest("here"), self.manifest("there"));
        for dataset in self.datasets("here/tree").iter().filter(|name| *name != "/volume") {
            let last = self.lines(&[
                "list",
                "-H",
                "-d",
                "1",
                "-t",
                "snapshot",
                "-o",
                "name",
                "-s",
                "createtxg",
                &format!("{top}{dataset}"),
            ]);
            let name = last.last().and_then(|name| name.split_once('@')).expect("each dataset has a snapshot").1;
            let (sent, received) = (format!("here/tree{dataset}@{name}"), format!("{top}{dataset}@{name}"));
            assert_eq!(entries_of(&there, &received), entries_of(&here, &sent), "{received}");
        }
        both
    }

    /// Changes the tree between two runs of a tool.
    fn change(&self) {
        self.write("a", self.rounds);
        self.write("c/0", self.rounds + 1);
        self.run("zfs", &["destroy", "here/tree/b@s1,s2"]);
    }

    fn end(&self) {
        for pool in ["here", "there"] {
            good(self.command(program().get_program()).args(["verify", pool]));
        }
    }
}

fn tool(world: &World, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> String {
    let output = world.command(program).args(words).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// The folder with PyPI's tools; nothing, and the reason said, where they cannot be had.
fn of_pypi() -> Option<PathBuf> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("backup-tools");
    let bin = at.join("bin");
    if ["zfs-autobackup", "pyznap"].iter().all(|name| bin.join(name).exists()) {
        return Some(bin);
    }
    let mut make = Command::new("python3");
    let mut install = Command::new(bin.join("pip"));
    install.args([
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "15",
        "zfs-autobackup==3.3",
        "pyznap==1.6.0",
    ]);
    for step in [make.args(["-m", "venv"]).arg(&at), &mut install] {
        match step.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                println!("skipped: no tools of PyPI: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
            Err(error) => {
                println!("skipped: no tools of PyPI: {step:?}: {error}");
                return None;
            }
        }
    }
    Some(bin)
}

/// Its replica has a name of its own: syncoid looks in the table of processes for another receive into its target.
#[test]
fn syncoid_replicates_a_tree() {
    let Some(syncoid) = cenote_testkit::zdb::program("syncoid") else {
        println!("skipped: syncoid is not installed (Debian package sanoid)");
        return;
    };
    let world = World::new();
    tool(&world, &syncoid, &["-r", "here/tree", "there/copy"]);
    assert_eq!(world.compare("there/copy"), world.snapshots("here/tree"));
    world.change();
    let said = tool(&world, &syncoid, &["-r", "here/tree", "there/copy"]);
    assert!(!said.contains("not supported"), "{said}");
    let both = world.compare("there/copy");
    // It takes its own older snapshots away on the source.
    assert_eq!(both, world.snapshots("here/tree"));
    // With no snapshot of its own it has the replica go back to the last common one first (`rollback -R`).
    world.write("b/0", world.rounds + 2);
    world.run("zfs", &["snapshot", "-r", "here/tree@last"]);
    let said = tool(&world, &syncoid, &["-r", "--no-sync-snap", "here/tree", "there/copy"]);
    assert!(!said.contains("not supported"), "{said}");
    assert_eq!(world.compare("there/copy"), world.snapshots("here/tree"));
    world.end();
}

#[test]
fn zfs_autobackup_replicates_a_tree() {
    let Some(bin) = of_pypi() else { return };
    let world = World::new();
    world.run("zfs", &["set", "autobackup:mine=true", "here/tree"]);
    world.run("zfs", &["create", "there/backup"]);
    let words = ["mine", "there/backup", "--strip-path=1", "--other-snapshots", "--no-progress"];
    tool(&world, bin.join("zfs-autobackup"), &words);
    assert_eq!(world.compare("there/backup/tree").len(), world.datasets * (world.rounds + 1));
    world.change();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    tool(&world, bin.join("zfs-autobackup"), &words);
    world.compare("there/backup/tree");
    world.end();
}

#[test]
fn pyznap_replicates_a_tree() {
    let Some(bin) = of_pypi() else { return };
    let world = World::new();
    let config = world.dir.path().join("pyznap.conf");
    let text = "[here/tree]\nfrequent = 2\nhourly = 2\ndaily = 1\nsnap = yes\nclean = yes\ndest = there/nap\ndest_auto_create = yes\n";
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    for round in 0..2 {
        if round > 0 {
            world.change();
            world.run("zfs", &["snapshot", "-r", "here/tree@pyznap_2026-01-01_00:00:00_frequent"]);
        }
        tool(&world, bin.join("pyznap"), &["--config", config, "snap"]);
        tool(&world, bin.join("pyznap"), &["--config", config, "send"]);
        let both = world.compare("there/nap");
        assert!(both.len() >= world.datasets * world.rounds, "{}", both.len());
    }
    world.end();
}
