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
    fn start(images: &Path, pool: &str, socket: &Path) -> Result<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(["serve", "-f", "-d"])
            .arg(images)
            .arg("--unix")
            .arg(socket)
            .arg(pool)
            .stderr(Stdio::piped())
            .spawn()?;
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
    if zdb::program("nbdcopy").is_none() {
        ensure!(std::env::var_os("CI").is_none(), "nbdcopy is not installed (Debian package libnbd-bin)");
        eprintln!("left out: nbdcopy is not installed (Debian package libnbd-bin)");
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
        let serving = Serving::start(&theme.unpacked()?.dir, pool, &socket)?;
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
