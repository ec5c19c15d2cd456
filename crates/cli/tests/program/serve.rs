//! Goal: what real NBD clients read of a golden pool's volumes is what OpenZFS saw in them. Method: `cenote serve` on a unix
//! socket, `nbdcopy` of every volume and snapshot that the manifest has, SHA-256 compared; then a clean end by signal. A
//! wrong block, a hole misplaced, or a server that does not end would show.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cenote_testkit::{Golden, walk};
use common::serving::{Serving, has};

#[test]
fn volumes_read_over_nbd_equal_what_openzfs_saw() -> Result<()> {
    if !has("nbdcopy", "libnbd-bin") {
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
        let serving = Serving::start(&theme.unpacked()?.dir, pool, &socket, &[])?;
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

#[test]
fn one_process_serves_volumes_and_files() -> Result<()> {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        ensure!(std::env::var_os("CI").is_none(), "/dev/fuse: {error}");
        eprintln!("left out: /dev/fuse: {error}");
        return Ok(());
    }
    if !has("nbdcopy", "libnbd-bin") {
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
    let serving = {
        let at = at.to_str().context("a path")?;
        Serving::start(&theme.unpacked()?.dir, pool, &socket, &["-o", "layout=alone", "--mount", at])?
    };
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
