//! Watches a pool: its devices fail and come back while it is written. In a simulation, so that no device has to suffer.
//!
//! `cargo run -p cenote --example watch`

use std::time::Duration;

use cenote::{CreateOptions, Error, Event, Runtime};

/// The event, in words.
pub(crate) fn run() -> Result<Vec<String>, Error> {
    let runtime = Runtime::simulated(1);
    let disk = runtime.add_disk("/disk", 128 << 20);
    runtime.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&runtime, "tank").await?;
        let mut watch = pool.watch();
        let files = pool.filesystem("tank").await?;
        files.write("one", "on disk in a few seconds").await?;
        pool.sync().await?;

        // The only disk goes away. Writes wait in memory.
        disk.cut_power();
        files.write("two", "waits").await?;
        let syncing = runtime.spawn({
            let pool = pool.clone();
            async move { pool.sync().await }
        });
        let mut told = Vec::new();
        while let Some(event) = watch.next().await {
            told.push(format!("{event:?}"));
            match event {
                Event::Suspended(_) => {
                    let reason = pool.status()?.suspended;
                    told.push(format!("the pool waits: {}", reason.is_some()));
                    runtime.sleep(Duration::from_secs(60)).await;
                    disk.power_on();
                    pool.resume().await?;
                }
                Event::Resumed => break,
                _ => {}
            }
        }
        syncing.await?;
        let txgs = pool.txgs();
        let dirty_bytes: u64 = txgs.iter().map(|txg| txg.dirty_bytes).sum();
        told.push(format!("{} txgs, {dirty_bytes} dirty bytes", txgs.len()));
        told.push(format!("two: {}", files.read("two").await?.escape_ascii()));
        pool.export().await?;
        Ok(told)
    })
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Error> {
    run()?.iter().for_each(|line| println!("{line}"));
    Ok(())
}
