//! Goal: a client that reads a volume piece by piece waits for the device far less often when what it will want is loaded
//! ahead, gets the same bytes, and reads past the cache have as many requests in flight as it asks for. Method: a golden
//! pool on a simulated disk where every request takes one millisecond of virtual time, so that time counts waits.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::sim::disk::{Latency, SimDiskOptions};
use cenote_taskq::{Block, Class, Handle, Runtime, join_all};
use cenote_testkit::Golden;
use cenote_zvol::Volume;

const WAIT: Duration = Duration::from_millis(1);

struct Simulated {
    runtime: Runtime,
    pool: View,
}

/// The pool, newly imported in a simulation of its own.
fn simulated(content: &Block) -> Result<Simulated> {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let latency = Latency { read: WAIT, jitter: Duration::ZERO, ..Latency::default() };
    let size_bytes = content.len() as u64;
    let options = SimDiskOptions { size_bytes, base: Some(content.clone()), latency, ..SimDiskOptions::default() };
    runtime.sim().context("a simulation")?.add_disk(&handle, "/sim/a", options);
    let pool = runtime.block_on(async {
        let (mut found, _) = find(&handle, &[Path::new("/sim/a").to_owned()]).await;
        ensure!(found.len() == 1, "{} pools", found.len());
        let options = ImportOptions {
            force: true,
            cache_bytes: 256 << 20,
            skip_activity_check: true,
            ..ImportOptions::default()
        };
        Ok(import(&handle, found.remove(0), &options).await?)
    })?;
    Ok(Simulated { runtime, pool })
}

impl Simulated {
    fn handle(&self) -> Handle {
        self.runtime.handle()
    }

    fn open(&self) -> Result<Volume> {
        self.runtime.block_on(async {
            let dataset = self.pool.dsl().dataset(VOLUME).await?;
            let objset = self.pool.dsl().open(&dataset).await?.context("an objset")?;
            Ok(Volume::open(&objset).await?)
        })
    }

    /// Reads the volume at `offsets` in turn; what came, and how often the reader waited.
    fn read(&self, volume: &Volume, offsets: &[u64], len: u64) -> Result<(Vec<Block>, u128)> {
        let before = self.handle().now();
        let blocks = self.runtime.block_on(async {
            let mut blocks = Vec::new();
            for offset in offsets {
                blocks.push(volume.read(*offset, len as usize).await?);
            }
            anyhow::Ok(blocks)
        })?;
        Ok((blocks, self.handle().now().since(before).as_nanos() / WAIT.as_nanos()))
    }
}

/// A volume with many small blocks.
const VOLUME: &str = "morzednek0/vol-512";
const BLOCK_BYTES: u64 = 512;

/// The image, and where the longest stretch of data begins and how many blocks it has.
fn subject() -> Result<(Block, u64, u64)> {
    let images = Golden::find()?.theme("recordsizes")?.unpacked()?.images;
    ensure!(images.len() == 1, "one image is expected");
    let content = Block::from(std::fs::read(&images[0])?);
    let simulated = simulated(&content)?;
    let volume = simulated.open()?;
    ensure!(volume.block_size_bytes() == BLOCK_BYTES, "blocks of {} bytes", volume.block_size_bytes());
    let longest = simulated.runtime.block_on(async {
        let (mut at, mut longest) = (0, 0..0);
        while at < volume.size_bytes() {
            let (range, is_hole) = volume.extent(at, volume.size_bytes()).await?;
            at = range.end;
            if !is_hole && range.end - range.start > longest.end - longest.start {
                longest = range;
            }
        }
        anyhow::Ok(longest)
    })?;
    let count = (longest.end - longest.start) / BLOCK_BYTES;
    ensure!(count >= 64, "{count} blocks are too few to tell");
    Ok((content, longest.start, count))
}

#[test]
fn a_client_that_reads_on_waits_less_when_blocks_are_loaded_ahead() -> Result<()> {
    let (content, start, count) = subject()?;
    println!("{count} blocks");
    let forward: Vec<u64> = (0..count).map(|index| start + index * BLOCK_BYTES).collect();
    let backward: Vec<u64> = forward.iter().rev().copied().collect();
    let strided: Vec<u64> = forward.iter().step_by(3).copied().collect();
    let pieces: Vec<u64> = (0..count * 4).map(|index| start + index * (BLOCK_BYTES / 4)).collect();
    for (what, offsets, len) in [
        ("forward", &forward, BLOCK_BYTES),
        ("backward", &backward, BLOCK_BYTES),
        ("strided", &strided, BLOCK_BYTES),
        ("in quarters of blocks", &pieces, BLOCK_BYTES / 4),
    ] {
        let mut results = Vec::new();
        for ahead in [false, true] {
            let simulated = simulated(&content)?;
            results.push(simulated.read(&simulated.open()?.reopened(ahead), offsets, len)?);
            let stats = simulated.pool.cache().stats();
            assert_eq!(stats.prefetched > 0, ahead, "{what}");
        }
        let [(plain, plain_waits), (ahead, ahead_waits)] = &results[..] else { unreachable!() };
        assert!(plain == ahead, "{what}: the bytes differ");
        println!("{what}: {plain_waits} waits without, {ahead_waits} with");
        assert!(*ahead_waits * 3 <= *plain_waits, "{what}: {ahead_waits} waits instead of {plain_waits}");
    }
    Ok(())
}

#[test]
fn reads_past_the_cache_are_all_in_flight_at_once_and_leave_nothing_there() -> Result<()> {
    let (content, start, _) = subject()?;
    let simulated = simulated(&content)?;
    let volume = simulated.open()?;
    // The indirect blocks.
    simulated.read(&volume.reopened(false), &[start + 63 * BLOCK_BYTES], BLOCK_BYTES)?;
    let before = (simulated.handle().now(), simulated.pool.cache().stats());
    let offsets: Vec<u64> = (0..62).map(|index| start + index * BLOCK_BYTES).collect();
    let direct = simulated.runtime.block_on(async {
        let reads = offsets.iter().map(|offset| volume.read_direct(*offset, BLOCK_BYTES as usize));
        join_all(reads).await.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    let waits = simulated.handle().now().since(before.0).as_nanos() / WAIT.as_nanos();
    assert!(waits <= 2, "62 reads took the time of {waits}");
    let after = simulated.pool.cache().stats();
    assert_eq!((after.misses, after.size_bytes), (before.1.misses, before.1.size_bytes), "the cache was used");
    let (plain, _) = simulated.read(&volume.reopened(false), &offsets, BLOCK_BYTES)?;
    assert!(plain == direct, "the bytes differ");
    // A read that is not of whole blocks comes through the cache, with the same bytes.
    let half = (BLOCK_BYTES / 2) as usize;
    let part = simulated.runtime.block_on(volume.read_direct(start + half as u64, 2 * half))?;
    assert_eq!((&part[..half], &part[half..]), (&plain[0][half..], &plain[1][..half]));
    Ok(())
}

/// After an export nothing that went on by itself does, and nothing starts: neither what was being loaded ahead nor the parts
/// of a long read whose reader has given up; whenever the export comes.
#[test]
fn after_a_close_nothing_is_under_way_and_nothing_starts() -> Result<()> {
    let (content, start, count) = subject()?;
    let (mut met_members, mut refused) = (0, 0);
    for moment in 0..24_u32 {
        let simulated = simulated(&content)?;
        let (handle, pool) = (simulated.handle(), &simulated.pool);
        let disk = handle.sim().context("a simulation")?.disk(Path::new("/sim/a")).context("the disk")?;
        let volume = simulated.open()?;
        let reader = volume.reopened(true);
        simulated.runtime.block_on(async {
            let reading = handle.spawn(Class::Issue, async move {
                for index in 0..count {
                    reader.read(start + index * BLOCK_BYTES, BLOCK_BYTES as usize).await?;
                }
                anyhow::Ok(())
            });
            // A long read that is given up in its midst: its parts go on.
            let long = volume.reopened(false);
            let given_up = long.read_direct(start, (count.min(64) * BLOCK_BYTES) as usize);
            handle.timeout(WAIT * moment / 8, given_up).await;
            met_members += u64::from(pool.dmu().detached().members() > 0);
            pool.close().await;
            assert_eq!(pool.dmu().detached().members(), 0);
            let prefetched = pool.cache().stats().prefetched;
            // The client's own reads go on, one at a time, and nothing besides.
            refused += u64::from(reading.await?.is_err());
            let after = disk.counts().reads;
            handle.sleep(WAIT * 100).await;
            assert_eq!(disk.counts().reads, after, "a read was begun by nobody");
            assert_eq!(pool.cache().stats().prefetched, prefetched, "something was loaded ahead");
            // A read that needs tasks of its own is refused, with the reason: several blocks, past the cache.
            let many = volume.read_direct(start, 8 * BLOCK_BYTES as usize).await;
            assert!(many.is_err_and(|error| error.to_string().contains("is being exported")));
            pool.close().await;
            anyhow::Ok(())
        })?;
    }
    assert!(met_members > 4, "the export came too late each time");
    assert_eq!(refused, 0, "reads of one block need no task of their own");
    Ok(())
}
