//! Intent logs that OpenZFS left behind are claimed and replayed while the power goes again and again: whatever was replayed when, in
//! the end the datasets are as after one replay, and each state in between is whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_format::label::START_BYTES;
use cenote_format::zil::ZilHeader;
use cenote_sim::Machine;
use cenote_spa::{ImportOptions, Pool, SpaError, TopKind, find, open};
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_testkit::Golden;
use cenote_zil::Chain;
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use cenote_zvol::live::LiveVolume;

use cenote_sim::written::files::{Files, contents, new_files, opened};
use cenote_sim::written::*;

/// The file systems whose logs are replayed, and the volume.
const FILES: [&str; 2] = ["fs", "indirect"];
const VOLUME: &str = "vol";
/// An image is put onto a disk in pieces, holes left out.
const CHUNK_BYTES: usize = 64 << 10;

fn machine(runtime: &Runtime, latency: Latency) -> Machine {
    let image = Golden::selection().unwrap().theme("zil").unwrap().image_bytes("a.img").unwrap();
    let size_bytes = image.len() as u64;
    let machine = Machine::new(runtime, 1, &SimDiskOptions { size_bytes, latency, ..SimDiskOptions::default() });
    for (at, bytes) in image.chunks(CHUNK_BYTES).enumerate().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)) {
        machine.disks[0].poke((at * CHUNK_BYTES) as u64, bytes);
    }
    machine
}

/// Opens the pool, which claims its logs.
async fn claimed(handle: &Handle, machine: &Machine) -> Result<Pool, SpaError> {
    let (mut pools, skipped) = find(handle, &machine.paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await
}

/// Opens all datasets, which replays their logs; what they hold then.
async fn replayed(pool: &Pool) -> anyhow::Result<BTreeMap<String, Files>> {
    let mut found = BTreeMap::new();
    for name in FILES {
        let head = pool.open_head(&format!("{}/{name}", pool.name())).await?;
        let objset = head.objset().clone();
        let fs = FileSystem::open_head(&objset, Arc::new(head), FileSystemOptions::default()).await?;
        assert_eq!(objset.zil_header(), ZilHeader::default(), "a log that was replayed is gone");
        found.insert(name.to_owned(), contents(&fs).await);
    }
    let head = pool.open_head(&format!("{}/{VOLUME}", pool.name())).await?;
    let live = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await?;
    live.replay().await?;
    let bytes = live.volume().read(0, live.volume().size_bytes() as usize).await?;
    found.insert(VOLUME.to_owned(), Files::from([(String::new(), bytes.to_vec())]));
    Ok(found)
}

async fn judge(handle: &Handle, machine: &Machine, what: &str) {
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
}

fn zdb(machine: &Machine, pool: &str) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = machine.images();
        cenote_sim::zdb(pool, &images, machine.size_bytes).unwrap();
    }
}

/// One replay, with nothing in between; and how long it takes.
fn at_once() -> (BTreeMap<String, Files>, Duration) {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine(&runtime, slow());
    runtime.block_on(async {
        judge(&handle, &machine, "as OpenZFS left it").await;
        let begun = handle.now();
        let pool = claimed(&handle, &machine).await.unwrap().start(TxTunables::default()).await;
        let found = replayed(&pool).await.unwrap();
        let span = handle.now() - begun;
        let name = pool.name().to_owned();
        pool.export().await.unwrap();
        judge(&handle, &machine, "replayed").await;
        zdb(&machine, &name);
        (found, span)
    })
}

#[test]
fn power_that_goes_while_logs_are_claimed_or_replayed_changes_nothing() {
    let (expected, span) = at_once();
    assert!(expected.values().all(|files| !files.is_empty()), "there is something in each dataset");
    let (mut cuts, mut between) = (0, 0);
    for seed in seeds(24) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine(&runtime, slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            for cut in 0..4 {
                let left = Duration::from_nanos(1 + rng.below(span.as_nanos() as u64));
                let work = async {
                    let pool = claimed(&handle, &machine).await?.start(TxTunables::default()).await;
                    replayed(&pool).await.map(drop)
                };
                let ended = handle.timeout(left, work).await;
                assert!(!matches!(ended, Some(Err(_))), "seed {seed} cut {cut}: {ended:?}");
                between += u64::from(ended.is_none());
                machine.disks.iter().for_each(|disk| disk.crash(Crash::Random));
                handle.sleep(Duration::from_secs(20)).await;
                machine.disks.iter().for_each(|disk| disk.power_on());
                cuts += 1;
                judge(&handle, &machine, &format!("seed {seed} cut {cut} after {left:?}")).await;
            }
            let pool = claimed(&handle, &machine).await.unwrap().start(TxTunables::default()).await;
            let found = replayed(&pool).await.unwrap();
            for (dataset, files) in &expected {
                let same = found.get(dataset).is_some_and(|found| found == files);
                assert!(same, "seed {seed}: {dataset} is not as after one replay");
            }
            let name = pool.name().to_owned();
            pool.export().await.unwrap();
            judge(&handle, &machine, &format!("seed {seed} in the end")).await;
            if seed % 8 == 0 {
                zdb(&machine, &name);
            }
        });
    }
    assert!(between * 3 > cuts, "{between} of {cuts} cuts came in between");
}

/// An empty log costs a pool no txg when it is opened, and is left alone.
#[test]
fn a_pool_without_records_is_opened_without_a_txg() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine(&runtime, Latency::default());
    runtime.block_on(async {
        let pool = claimed(&handle, &machine).await.unwrap();
        let txg = pool.txg();
        assert!(pool.txgs().synced_txg() > cenote_format::ids::Txg(0), "claiming takes txgs");
        pool.export().await.unwrap();
        let again = claimed(&handle, &machine).await.unwrap();
        assert_eq!(again.txg().0, txg.0 + 1, "logs that are claimed are not claimed again");
        again.export().await.unwrap();
    });
}

/// A log of one client, a block for each write, is walked with fewer reads than it has blocks; and a block that one disk of a mirror has lost, in
/// the midst of a window, hides neither itself nor those behind it.
#[test]
fn a_log_is_read_ahead_and_a_block_that_is_lost_in_a_window_hides_none() {
    const WRITES: u64 = 300;
    for is_damaged in [false, true] {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, Latency::default());
        runtime.block_on(async {
            let (pool, fs, log) = new_files(&handle, &machine, &[(TopKind::Mirror, 2)], false).await;
            let new = NewNode { mode: 0o100_644, ..NewNode::default() };
            let (file, node) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
            let object = node.object;
            log.sync(None).await.unwrap();
            pool.sync().await.unwrap();
            for write in 0..WRITES {
                file.write(write * 4096, &[(write % 250) as u8 + 1; 4096]).await.unwrap();
                log.sync(Some(object)).await.unwrap();
            }
            let mut chain = Chain::new(fs.objset().dmu().zio(), fs.objset().zil_header());
            let mut places = Vec::new();
            while let Some(link) = chain.next().await {
                places.extend(link.content.and(link.pointer.dva(0)));
            }
            assert!(places.len() as u64 >= WRITES, "each write was waited for alone: {}", places.len());
            cut(&handle, &machine, Crash::LoseAll).await;
            drop((file, fs, log, pool));
            for (at, dva) in places.iter().enumerate().filter(|_| is_damaged) {
                // Each fifth block on one disk, and some of the others on the other.
                if at % 5 < 2 {
                    machine.disks[at % 5].poke(START_BYTES + dva.offset_bytes + 100, &[0xaa; 64]);
                }
            }
            let before: u64 = machine.disks.iter().map(|disk| disk.counts().reads).sum();
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            let reads = machine.disks.iter().map(|disk| disk.counts().reads).sum::<u64>() - before;
            let file = fs.open_file(object).await.unwrap();
            for write in 0..WRITES {
                let read = file.read(write * 4096, 4096).await.unwrap();
                assert!(read[..] == [(write % 250) as u8 + 1; 4096], "write {write}, {is_damaged}");
            }
            assert!(is_damaged || reads < WRITES, "{reads} reads of a log of {} blocks", places.len());
            drop((file, fs, log));
            pool.export().await.unwrap();
        });
    }
}
