//! The three trees: made, mounted, and taken down again whatever happens in between.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::writing::rig::filled;

/// Bytes of each sparse image. In a small pool changes at worst come to more than there is, and wait.
const SPARSE_BYTES: u64 = 64 << 30;
/// Bytes of each image that is written once in whole.
const FILLED_BYTES: u64 = 4 << 30;
/// The longest wait for a mount to be there, or for its process to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A place where something is mounted, until it is taken down.
struct Mount(PathBuf);

impl Mount {
    /// Unmounts. A FUSE server that was just unmounted above it may still have it in use for a moment.
    fn end(mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            match run(Command::new("umount").arg(&self.0)) {
                Ok(()) => break,
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        self.0.clear();
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
        }
    }
}

/// The process that serves ours. Killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All three, mounted. The last one mounted is taken down first.
pub(super) struct Rig {
    trees: [PathBuf; 3],
    bindfs: Mount,
    ext4: Mount,
    ours: Mount,
    server: Server,
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{name} is wanted here"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", said.trim());
    Ok(())
}

/// The images of a rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Images {
    Sparse,
    /// All their blocks are there, as on a disk: else each sync of the image has the file system below write its journal, for us most
    /// of all, since we write each block to a new place.
    Filled,
}

fn image(path: &Path, images: Images) -> Result<()> {
    match images {
        Images::Sparse => Ok(std::fs::File::create(path)?.set_len(SPARSE_BYTES)?),
        Images::Filled => filled(path, FILLED_BYTES),
    }
}

fn folder(path: PathBuf) -> Result<PathBuf> {
    std::fs::create_dir_all(&path)?;
    Ok(path)
}

/// Waits until another device is at a folder.
fn wait_for(at: &Path, before: u64, server: &mut Server) -> Result<()> {
    let start = Instant::now();
    while std::fs::metadata(at)?.dev() == before {
        if let Some(status) = server.0.try_wait()? {
            bail!("cenote mount ended with {status}");
        }
        ensure!(start.elapsed() < PATIENCE, "{}: nothing is mounted", at.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Rig {
    pub(super) fn new(at: &Path, program: &Path, images: Images) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "mounting ext4 takes root");
        // A database's server is another user.
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o711))?;
        let pool = folder(at.join("pool"))?;
        image(&pool.join("disk"), images)?;
        let ours = || {
            let mut command = Command::new(program);
            command.env("CENOTE_CACHE", at.join("cache.json"));
            command
        };
        run(ours().args(["zpool", "create", "-f", "benchmount"]).arg(pool.join("disk")))?;
        run(ours().args(["zpool", "export", "benchmount"])).or_else(|error| {
            // Nothing to export where creating has left it so.
            let text = error.to_string();
            if text.contains("no such pool") || text.contains("not imported") { Ok(()) } else { Err(error) }
        })?;
        let place = folder(at.join("ours"))?;
        let before = std::fs::metadata(&place)?.dev();
        let mut serve = ours();
        // As bindfs run by root.
        serve.args(["mount", "--rw", "-o", "allow_other", "-d"]).arg(&pool).arg("benchmount").arg(&place);
        let mut server = Server(serve.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        wait_for(&place, before, &mut server)?;
        let ours = Mount(place.clone());

        let disk = at.join("ext4.img");
        image(&disk, images)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&disk))?;
        let below = folder(at.join("ext4"))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&below))?;
        let ext4 = Mount(below.clone());
        let (native, bound) = (folder(below.join("native"))?, folder(below.join("bound"))?);
        let over = folder(at.join("bindfs"))?;
        run(Command::new("bindfs").arg(&bound).arg(&over)).context("the package bindfs is wanted")?;
        let bindfs = Mount(over.clone());
        Ok(Self { trees: [place, over, native], bindfs, ext4, ours, server })
    }

    /// Ours, bindfs, ext4.
    pub(super) const fn trees(&self) -> &[PathBuf; 3] {
        &self.trees
    }

    /// Takes everything down, and waits for the server to write what is left.
    pub(super) fn end(self) -> Result<()> {
        let Self { bindfs, ext4, ours, mut server, .. } = self;
        bindfs.end()?;
        ext4.end()?;
        ours.end()?;
        let start = Instant::now();
        while server.0.try_wait()?.is_none() {
            ensure!(start.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = server.0.wait()?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}
