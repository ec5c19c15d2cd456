//! Goal: what real NBD clients read of a golden pool's volumes is what OpenZFS saw in them. Method: `cenote serve` on a unix
//! socket, `nbdcopy` of every volume and snapshot that the manifest has, SHA-256 compared; then a clean end by signal. A
//! wrong block, a hole misplaced, or a server that does not end would show.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cenote_testkit::{Golden, walk, zdb};

struct Serving(Child);

impl Serving {
    fn start(images: &Path, pool: &str, socket: &Path, mount: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(["serve", "-f", "-d"]).arg(images).arg("--unix").arg(socket);
        if let Some(at) = mount {
            command.arg("-o").arg("layout=alone").arg("--mount").arg(at);
        }
        let child = command.arg(pool).stderr(Stdio::piped()).spawn()?;
        let mut serving = Self(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            if let Some(status) = serving.0.try_wait()? {
                let mut text = String::new();
                serving.0.stderr.take().context("stderr")?.read_to_string(&mut text)?;
                bail!("serve ended with {status}: {text}");
            }
            ensure!(Instant::now() < deadline, "no socket after a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(serving)
    }

    /// Ends it as a person or an init system would.
    fn end(mut self) -> Result<()> {
        Command::new("kill").arg("-TERM").arg(self.0.id().to_string()).status()?;
        let status = self.0.wait()?;
        ensure!(status.success(), "serve ended with {status}");
        Ok(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[test]
fn volumes_read_over_nbd_equal_what_openzfs_saw() -> Result<()> {
    if !has_nbdcopy()? {
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    let mut compared = 0;
    for theme in Golden::find()?.themes()? {
        let manifest = theme.manifest_json()?;
        let Some(pool) = manifest["pools"][0].as_str() else { continue };
        let section = &manifest["sections"][0];
        let volumes: Vec<(String, String)> = section["datasets"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(name, dataset)| Some((name.clone(), dataset["sha256"].as_str()?.to_owned())))
            .collect();
        // Keys of encrypted volumes are the business of the manifest test.
        if volumes.is_empty() || manifest["keys"].as_object().is_some_and(|keys| !keys.is_empty()) {
            continue;
        }
        let socket = scratch.path().join(format!("{}.sock", theme.name()));
        let serving = Serving::start(&theme.unpacked()?.dir, pool, &socket, None)?;
        for (name, sha256) in volumes {
            let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
            let copy = scratch.path().join("copy.img");
            let output = Command::new("nbdcopy").arg(&uri).arg(&copy).output()?;
            ensure!(output.status.success(), "{uri}: {}", String::from_utf8_lossy(&output.stderr));
            let found = walk::sha256(&copy)?;
            ensure!(found == sha256, "{}: {name} over NBD is {found}, OpenZFS saw {sha256}", theme.name());
            std::fs::remove_file(&copy)?;
            compared += 1;
        }
        serving.end()?;
    }
    ensure!(compared > 0, "no volume was compared");
    Ok(())
}

/// Whether the client is installed. Where it is not, says so; in CI that is an error.
fn has_nbdcopy() -> Result<bool> {
    let is_there = zdb::program("nbdcopy").is_some();
    if !is_there {
        ensure!(std::env::var_os("CI").is_none(), "nbdcopy is not installed (Debian package libnbd-bin)");
        eprintln!("left out: nbdcopy is not installed (Debian package libnbd-bin)");
    }
    Ok(is_there)
}

#[test]
fn one_process_serves_volumes_and_files() -> Result<()> {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        ensure!(std::env::var_os("CI").is_none(), "/dev/fuse: {error}");
        eprintln!("left out: /dev/fuse: {error}");
        return Ok(());
    }
    if !has_nbdcopy()? {
        return Ok(());
    }
    let theme = Golden::selection()?.theme("basic")?;
    let manifest = theme.manifest_json()?;
    let pool = manifest["pools"][0].as_str().context("a pool")?;
    let datasets = manifest["sections"][0]["datasets"].as_object().context("datasets")?;
    let (volume, sha256) =
        datasets.iter().find_map(|(name, dataset)| Some((name, dataset["sha256"].as_str()?))).context("a volume")?;
    let scratch = tempfile::tempdir()?;
    let (socket, at) = (scratch.path().join("nbd.sock"), scratch.path().join("mnt"));
    std::fs::create_dir(&at)?;
    let serving = Serving::start(&theme.unpacked()?.dir, pool, &socket, Some(&at))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::read_dir(&at)?.next().is_none() {
        ensure!(Instant::now() < deadline, "nothing is mounted after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let copy = scratch.path().join("copy.img");
    let uri = format!("nbd+unix:///{volume}?socket={}", socket.display());
    let output = Command::new("nbdcopy").arg(&uri).arg(&copy).output()?;
    ensure!(output.status.success(), "{uri}: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(walk::sha256(&copy)? == sha256, "{volume} differs");
    let report = walk::compare_mount(pool, &datasets[pool]["entries"], &walk::entries(&at)?);
    ensure!(report.is_match(), "{report}: {:?}", report.differences.first());
    serving.end()?;
    ensure!(std::fs::read_dir(&at)?.next().is_none(), "the mount is still there");
    Ok(())
}
