//! Replicates a pool into another: all of it at first, then the changes since the last time. Two threads share the work, with a pipe between
//! them, as a sender and a receiver on two systems share it with a connection.
//!
//! `cargo run -p cenote --example replicate`

mod setup;

use std::io::{self, BufReader};
use std::path::Path;
use std::thread;

use cenote::{CreateOptions, Error, Pool, ReceiveOptions, Runtime, SendOptions, Snapshot};

/// Takes a snapshot of each dataset, of which the pool's root is the first.
async fn snapshots(pool: &Pool, name: &str) -> Result<Vec<Snapshot>, Error> {
    let mut taken = Vec::new();
    for dataset in pool.datasets().await? {
        taken.push(dataset.snapshot(name).await?);
    }
    Ok(taken)
}

/// Sends a snapshot and all below it, and receives it in another pool. Returns a line about that.
fn replicate(runtime: &Runtime, top: &Snapshot, since: Option<&str>, backup: &Pool) -> io::Result<String> {
    let (reader, writer) = io::pipe()?;
    let mut options = SendOptions::new().replicate(true).compressed(true);
    if let Some(since) = since {
        options = options.since(since);
    }
    let (sent, received) = thread::scope(|threads| {
        let sending = threads.spawn(|| runtime.block_on(options.send(top, writer)));
        // Datasets that the sender has no more are destroyed here too.
        let receive = ReceiveOptions::new().force(true);
        let received = runtime.block_on(receive.receive(backup, "backup/tank", BufReader::new(reader)));
        (sending.join().expect("the sender does not panic"), received)
    });
    // If the receiver fails, the sender's pipe breaks: the first reason is the receiver's.
    let (received, sent) = (received?, sent?);
    Ok(format!("{} in {} bytes", received.datasets.join(" "), sent.bytes))
}

/// A line for each replication, and the files that the copy has in the end.
pub(crate) fn run(folder: &Path) -> io::Result<(Vec<String>, Vec<Vec<u8>>)> {
    let runtime = Runtime::new()?;
    let (tank, backup) = runtime.block_on(async {
        let tank = setup::tank(&runtime, folder).await?;
        let image = folder.join("backup.img").display().to_string();
        let options = CreateOptions::new([image]).file_bytes(64 << 20).cache_bytes(16 << 20);
        Ok::<_, Error>((tank, options.create(&runtime, "backup").await?))
    })?;
    let mut told = Vec::new();

    let home = runtime.block_on(tank.filesystem("tank/home"))?;
    runtime.block_on(home.write("note", vec![b'1'; 1 << 20]))?;
    let monday = runtime.block_on(snapshots(&tank, "monday"))?;
    told.push(replicate(&runtime, &monday[0], None, &backup)?);

    runtime.block_on(home.write("second", "two"))?;
    let tuesday = runtime.block_on(snapshots(&tank, "tuesday"))?;
    told.push(replicate(&runtime, &tuesday[0], Some("@monday"), &backup)?);

    let files = runtime.block_on(async {
        let copy = backup.filesystem("backup/tank/home@tuesday").await?;
        let files = vec![copy.read("note").await?, copy.read("second").await?];
        drop(copy);
        backup.export().await?;
        tank.export().await?;
        Ok::<_, Error>(files)
    })?;
    Ok((told, files))
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (told, files) = run(tempfile::tempdir()?.path())?;
    told.iter().for_each(|line| println!("{line}"));
    println!("the copy has files of {:?} bytes", files.iter().map(Vec::len).collect::<Vec<_>>());
    Ok(())
}
