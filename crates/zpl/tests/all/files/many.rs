//! Measurements, which take minutes and print numbers. They run on demand alone:
//! `cargo test --release -p cenote-zpl --test all many -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::TxTunables;
use cenote_format::ids::ObjectId;
use cenote_spa::{DiskSpec, MemoryLimits, Pool, TopKind, TopSpec};
use cenote_taskq::buf::Buf;
use cenote_taskq::sim::disk::{Latency, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, OpenOptions, Rng, Runtime, RuntimeOptions};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_zpl::{AttributeChange, FileSystem, FileSystemOptions, NewNode};

use cenote_sim::written::files::make_file_system;
use cenote_sim::written::options;

/// Memory of the machine that the tunables are computed for.
const MEMORY_BYTES: u64 = 1 << 30;
const PER_DIRECTORY: u64 = 1000;

fn count_of(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

async fn pool_on(handle: &Handle, path: &str, ashift: u32, tunables: TxTunables) -> Pool {
    let writable = OpenOptions { write: true, ..OpenOptions::default() };
    let disk = Disk::whole(handle.open(path.as_ref(), writable).await.unwrap());
    let disks = vec![DiskSpec { disk, path: path.to_owned(), is_file: true }];
    let tops = vec![TopSpec { kind: TopKind::Single, class: AllocationClass::Normal, disks }];
    let mut options = options(tops, ashift);
    (options.cache_bytes, options.check) = ((MEMORY_BYTES / 4) as usize, false);
    make_file_system(handle, options).await.start(tunables).await
}

/// `FILES` are made (a million), then owned by somebody else, on a disk of 50 MB/s that serves one request at a time.
#[test]
#[ignore = "a measurement of minutes: cargo test --release -p cenote-zpl --test all many -- --ignored --nocapture"]
fn the_owner_of_a_million_files_is_changed_within_the_limits() {
    let files = count_of("FILES", 1_000_000);
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let sim = runtime.sim().unwrap();
    let size_bytes = 64 << 30;
    let latency = Latency::default();
    let disk = sim.add_disk(&handle, "/disk", SimDiskOptions { size_bytes, latency, ..SimDiskOptions::default() });
    let tunables = TxTunables::for_memory(MEMORY_BYTES);
    let limits = MemoryLimits::of(MEMORY_BYTES / 4, &tunables);
    runtime.block_on(async {
        let pool = pool_on(&handle, "/disk", 12, tunables).await;
        let head = pool.open_head("written").await.unwrap();
        let fs =
            FileSystem::open_head(head.objset(), Arc::new(head.clone()), FileSystemOptions::default()).await.unwrap();
        let ids = Arc::new(Mutex::new(Vec::new()));
        for directory in 0..files.div_ceil(PER_DIRECTORY) {
            let node = NewNode { mode: 0o040_755, ..NewNode::default() };
            let made = fs.create(fs.root(), directory.to_string().as_bytes(), &node).await.unwrap().object;
            for file in 0..PER_DIRECTORY.min(files - directory * PER_DIRECTORY) {
                let node = NewNode { mode: 0o100_644, ..NewNode::default() };
                let made = fs.create(made, file.to_string().as_bytes(), &node).await.unwrap();
                ids.lock().push(made.object);
            }
        }
        pool.sync().await.unwrap();
        let mut free_at = handle.now();
        disk.set_service_model(move |request, now, _| {
            let took = Duration::from_millis(1) + Duration::from_nanos(request.size_bytes * 20);
            free_at = free_at.max(now) + took;
            free_at - now
        });
        let ids: Arc<Vec<ObjectId>> = Arc::new(std::mem::take(&mut *ids.lock()));
        let own = ids.len() as u64 * 8;
        let most = Arc::new(Mutex::new((0, 0)));
        let begun = handle.now();
        let tasks = (0..8_usize).map(|task| {
            let (fs, ids, most, disk, pool) = (fs.clone(), ids.clone(), most.clone(), disk.clone(), pool.clone());
            handle.spawn(Class::Issue, async move {
                let change = AttributeChange { uid: Some(1000), gid: Some(1000), ..AttributeChange::default() };
                for (count, id) in ids.iter().skip(task).step_by(8).enumerate() {
                    fs.set_attributes(*id, &change).await.unwrap();
                    if count % 500 == 0 {
                        let resident = resident_bytes().saturating_sub(disk.memory_bytes() + own);
                        let dirty = pool.txgs().dirty().total_bytes();
                        let mut most = most.lock();
                        *most = (most.0.max(dirty), most.1.max(resident));
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        pool.sync().await.unwrap();
        let (dirty, resident) = *most.lock();
        let (took, mib) = (handle.now() - begun, |bytes: u64| bytes >> 20);
        println!("{files} files in {took:?} of the disk's time; {limits:?}");
        println!("dirty: {} MiB at most, of {} that may be", mib(dirty), mib(tunables.zfs_dirty_data_max));
        println!("memory: {} MiB at most, of {} that is stated", mib(resident), mib(limits.sum()));
        assert!(dirty <= tunables.zfs_dirty_data_max / 100 * 105);
        assert!(resident <= limits.sum() / 10 * 11);
        drop((fs, head));
        pool.export().await.unwrap();
    });
}

/// Median and 99th percentile of the duration of small operations in microseconds, and their number.
async fn small_operations(handle: &Handle, fs: &FileSystem, until: impl Fn(u64) -> bool) -> (u64, u64, usize) {
    let mut times = Vec::new();
    while !until(times.len() as u64) {
        let begun = handle.now();
        let node = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (open, _) = fs.create_file(fs.root(), b"small", &node).await.unwrap();
        open.write(0, &[7; 5000]).await.unwrap();
        fs.unlink(fs.root(), b"small").await.unwrap();
        open.close().await.unwrap();
        times.push((handle.now() - begun).as_micros() as u64);
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    (at(50), at(99), times.len())
}

/// A file with holes of 1 TiB, of which `BLOCKS` blocks (ten million) of 16 KiB are written, loses its name, while others make, write and
/// remove small files. Blocks take a sector of 512 bytes each, so the image is 12 GiB, and takes as much of the folder for temporary files.
#[test]
#[ignore = "a measurement of minutes: cargo test --release -p cenote-zpl --test all many -- --ignored --nocapture"]
fn a_file_of_ten_million_blocks_is_removed_and_others_do_not_notice() {
    const BLOCK_BYTES: usize = 16 << 10;
    /// Of so many blocks one is written.
    const STRIDE: u64 = 7;
    let blocks = count_of("BLOCKS", 10_000_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(12 << 30).unwrap();
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let path = path.display().to_string();
    let inner = handle.clone();
    let work = async move {
        let handle = inner;
        let pool = pool_on(&handle, &path, 9, TxTunables::for_memory(8 << 30)).await;
        let head = pool.open_head("written").await.unwrap();
        let options = FileSystemOptions { record_bytes: BLOCK_BYTES as u32, ..FileSystemOptions::default() };
        let fs = FileSystem::open_head(head.objset(), Arc::new(head.clone()), options).await.unwrap();
        let node = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (large, attributes) = fs.create_file(fs.root(), b"large", &node).await.unwrap();
        large.write(0, &[1; 2 * BLOCK_BYTES]).await.unwrap();
        large.close().await.unwrap();
        // Too many different bytes for a pointer, and few for a disk: the same buffer for all.
        let mut bytes = Buf::zeroed(BLOCK_BYTES);
        Rng::new(1).fill(&mut bytes[..300]);
        let bytes = bytes.freeze();
        let object = head.objset().object(attributes.object).await.unwrap();
        for block in (0..blocks).map(|count| count * STRIDE) {
            let cost = cenote_dmu::tx::Cost::write(block * BLOCK_BYTES as u64, BLOCK_BYTES as u64, BLOCK_BYTES as u64);
            let tx = head.begin(cost).await.unwrap();
            object.write_block(tx.txg(), block, bytes.clone());
        }
        drop(object);
        pool.sync().await.unwrap();
        println!("{blocks} blocks of {BLOCK_BYTES} bytes are written");
        let before = small_operations(&handle, &fs, |count| count == 20_000).await;
        // So that it does not stand behind those.
        fs.reap().await.unwrap();
        let begun = handle.now();
        fs.unlink(fs.root(), b"large").await.unwrap();
        let answered = handle.now() - begun;
        let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let reaper = fs.clone();
        let reaping = handle.spawn(Class::Background, async move { reaper.reap().await });
        // The reaper goes on with the small files. The large one is gone when its number is free, or somebody else's.
        let (objset, clock, tells) = (head.objset().clone(), handle.clone(), is_done.clone());
        let watching = handle.spawn(Class::Background, async move {
            let is_large = |object: Object| object.phys().max_block_id > 1;
            while objset.object(attributes.object).await.is_ok_and(is_large) {
                clock.sleep(Duration::from_millis(20)).await;
            }
            tells.store(true, std::sync::atomic::Ordering::Relaxed);
            clock.now()
        });
        let during = small_operations(&handle, &fs, |_| is_done.load(std::sync::atomic::Ordering::Relaxed)).await;
        let took = watching.await.unwrap() - begun;
        reaping.await.unwrap().unwrap();
        println!("{blocks} blocks of {BLOCK_BYTES} bytes: answered in {answered:?}, freed in {took:?}");
        println!("small files, microseconds: middle {}, p99 {} of {} before", before.0, before.1, before.2);
        println!("                           middle {}, p99 {} of {} meanwhile", during.0, during.1, during.2);
        assert!(answered < Duration::from_millis(10));
        drop((fs, head));
        pool.export().await.unwrap();
    };
    runtime.block_on(handle.spawn(Class::Issue, work)).unwrap();
}
