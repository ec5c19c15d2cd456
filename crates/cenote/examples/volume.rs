//! Makes a volume, writes it, takes a snapshot, and reads both: what a server of block devices does.
//!
//! `cargo run -p cenote --example volume`

mod setup;

use std::path::Path;

use cenote::{Error, Runtime};

/// The bytes of the volume and of its snapshot.
pub(crate) fn run(folder: &Path) -> Result<[Vec<u8>; 2], Error> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let pool = setup::tank(&runtime, folder).await?;
        // Without a reservation: it takes the space of what is written.
        let properties = [("volblocksize", "8K"), ("refreservation", "none")];
        let dataset = pool.create_volume("tank/disk", 256 << 20, &properties).await?;
        let disk = dataset.volume().await?;
        disk.write_at(1 << 20, b"first").await?;
        disk.flush().await?;
        let before = dataset.snapshot("before").await?;
        disk.write_at(1 << 20, b"later").await?;
        // Whole blocks of it are given back.
        disk.trim(8 << 20, 64 << 10).await?;
        disk.flush().await?;
        let now = disk.read_at(1 << 20, 5).await?.to_vec();
        let then = before.volume().await?.read_at(1 << 20, 5).await?.to_vec();
        pool.export().await?;
        Ok([now, then])
    })
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [now, then] = run(tempfile::tempdir()?.path())?;
    println!("now: {}; in the snapshot: {}", now.escape_ascii(), then.escape_ascii());
    Ok(())
}
