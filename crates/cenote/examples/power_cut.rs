//! Cuts the power of a simulated machine at different times, and looks which files are there afterwards: those that were synced, always.
//!
//! `cargo run -p cenote --example power_cut`

use std::time::Duration;

use cenote::{CreateOptions, Error, OpenOptions, Runtime};

/// Whether files are there after the power went: one that was synced, and one that was not.
pub(crate) fn run(seed: u64) -> Result<[bool; 2], Error> {
    let machine = Runtime::simulated(seed);
    machine.add_disk("/disk0", 128 << 20);
    machine.add_disk("/disk1", 128 << 20);
    machine.block_on(async {
        let pool = CreateOptions::new(["mirror", "/disk0", "/disk1"]).create(&machine, "tank").await?;
        let files = pool.filesystem("tank").await?;
        let promised = files.create("promised").await?;
        promised.write_at(0, "this is on disk").await?;
        promised.sync().await?;
        files.write("hoped-for", "this may be").await?;
        // A txg is written after five seconds, unless something else asks for one.
        machine.sleep(Duration::from_millis(700) * (seed % 16) as u32).await;
        Ok::<_, Error>(())
    })?;

    let machine = machine.cut_power(seed);
    machine.block_on(async {
        // It was not exported: nobody else can have it, which only we know.
        let pool = OpenOptions::new().write(true).force(true).open(&machine, "tank").await?;
        let files = pool.filesystem("tank").await?;
        let content = files.read("promised").await.unwrap_or_default();
        let is_there = [content == b"this is on disk", files.metadata("hoped-for").await.is_ok()];
        pool.export().await?;
        Ok(is_there)
    })
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Error> {
    for seed in 0..16 {
        let [promised, hoped_for] = run(seed)?;
        println!("cut {seed}: what was synced is there: {promised}; the rest: {hoped_for}");
    }
    Ok(())
}
