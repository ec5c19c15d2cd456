//! Lists pools, their devices, datasets and snapshots.
//!
//! `cargo run -p cenote --example list -- /dev/disk/by-id` lists the pools on this system's disks; without a folder, a pool that is
//! made for it.

mod setup;

use std::path::{Path, PathBuf};

use cenote::{Error, OpenOptions, Runtime};

async fn list(runtime: &Runtime, folder: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let options = OpenOptions::new().search(folder).cache_bytes(16 << 20);
    for found in options.find(runtime).await? {
        let pool = options.open(runtime, &found.guid.to_string()).await?;
        text += &format!("{} as of txg {}\n", pool.name(), pool.txg());
        for device in pool.status()?.root.devices() {
            text += &format!("  {:?} {}\n", device.health, device.name);
        }
        for dataset in pool.datasets().await? {
            let space = dataset.space().await?;
            text += &format!("  {} ({:?}, {} bytes used)\n", dataset.name(), dataset.kind(), space.used_bytes);
            for snapshot in dataset.snapshots().await? {
                text += &format!("    {} of txg {}\n", snapshot.name(), snapshot.txg());
            }
        }
        pool.export().await?;
    }
    Ok(text)
}

/// Lists a pool that is made in a folder.
pub(crate) fn run(folder: &Path) -> Result<String, Error> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let pool = setup::tank(&runtime, folder).await?;
        pool.dataset("tank/home").await?.snapshot("monday").await?;
        pool.export().await?;
        list(&runtime, folder).await
    })
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(folder) => {
            let runtime = Runtime::new()?;
            runtime.block_on(list(&runtime, &folder))?
        }
        None => run(tempfile::tempdir()?.path())?,
    };
    print!("{text}");
    Ok(())
}
