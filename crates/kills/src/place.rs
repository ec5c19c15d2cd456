//! A pool in image files, the folder where it is served, and the server that is killed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cenote_testkit::zdb::command;

use crate::nbd_client::Nbd;
use crate::process;

/// Kills between two judgements of `zdb`.
pub(super) const ZDB_EVERY: u64 = 10;

const START_TIME_MAX: Duration = Duration::from_secs(120);

/// Vdevs of a pool, as words of a command line, and the number of files that stand behind them.
pub(super) type Layout = (&'static str, usize);

/// A pool called `kills`, and a folder that holds it and all around it.
pub(super) struct Place {
    pub(super) cenote: PathBuf,
    pub(super) dir: tempfile::TempDir,
    pub(super) layout: &'static str,
}

impl Place {
    /// Makes a pool of files of a size each, with options of `zpool create`.
    pub(super) fn make(cenote: &Path, (layout, count): Layout, size: &str, options: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cenote-kills-").tempdir()?;
        // Clients of other users work in the mount.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
        fs::create_dir(dir.path().join("images"))?;
        fs::create_dir(dir.path().join("mount"))?;
        let this = Self { cenote: cenote.to_owned(), dir, layout };
        let files = (0..count).map(|index| this.images().join(format!("{index}.img")));
        let mut create = this.command();
        create.args(["zpool", "create", "--size", size]).args(options).arg("kills");
        process_good(create.args(layout.split_whitespace()).args(files))?;
        Ok(this)
    }

    pub(super) fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    pub(super) fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    /// A connection to a volume of the pool.
    pub(super) fn nbd(&self) -> Result<Nbd> {
        Nbd::connect(&self.socket(), "kills/v")
    }

    /// The program, away from the user's cache file.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.cenote);
        command.env("CENOTE_CACHE", self.dir.path().join("cache.json"));
        command
    }

    /// A command of the program for the pool, which nobody serves.
    pub(super) fn run(&self, tool: &str, rest: &[&str]) -> Result<()> {
        process_good(self.command().arg(tool).arg("-d").arg(self.images()).args(rest))
    }

    /// The pool's blocks and accounts, as Cenote judges them.
    pub(super) fn verify(&self) -> Result<()> {
        process_good(self.command().args(["verify", "-f", "-d"]).arg(self.images()).arg("kills"))
    }

    /// The same, as OpenZFS judges them.
    pub(super) fn zdb(&self) -> Result<()> {
        process_good(command().context("zdb")?.args(["-e", "-p"]).arg(self.images()).args(["-bcc", "kills"]))
    }
}

pub(super) fn process_good(command: &mut Command) -> Result<()> {
    let output = process::output(command)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(output.good, "{command:?}: {}: {}{stdout}", output.status, output.stderr);
    Ok(())
}

/// `cenote serve --rw`, until it is killed.
pub(super) struct Server {
    child: Child,
    mount: PathBuf,
    stderr: PathBuf,
    is_killed: bool,
}

impl Server {
    /// Starts one that shows the pool, with mount options, and waits until it does.
    pub(super) fn start(place: &Place, options: &str) -> Result<Self> {
        let before = fs::metadata(place.mount())?.dev();
        let mut server = Self::spawn(place, options)?;
        let deadline = Instant::now() + START_TIME_MAX;
        while !place.socket().exists() || fs::metadata(place.mount())?.dev() == before {
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended with {status}: {}", server.said());
            }
            ensure!(Instant::now() < deadline, "nothing is served after {START_TIME_MAX:?}: {}", server.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Starts one that need not get as far as showing anything.
    pub(super) fn spawn(place: &Place, options: &str) -> Result<Self> {
        let socket = place.socket();
        let stderr = place.dir.path().join("stderr");
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut command = place.command();
        command.args(["serve", "--rw", "-d"]).arg(place.images()).arg("--unix").arg(&socket);
        command.arg("--mount").arg(place.mount());
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.arg("kills").stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&stderr)?);
        Ok(Self { child: command.spawn()?, mount: place.mount(), stderr, is_killed: false })
    }

    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub(super) fn kill(&mut self) {
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        // A process that cannot be killed or a mount that cannot be unmounted shows in the next steps.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.mount).stderr(Stdio::null()).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
