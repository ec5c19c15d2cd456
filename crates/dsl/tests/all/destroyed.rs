//! Datasets that are destroyed and freed in the background: slice by slice, with the pool given up on the way.

use std::path::PathBuf;

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::ObjsetType;
use cenote_spa::{ImportOptions, Pool, View, find, open};
use cenote_taskq::buf::Buf;
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_testkit::Part;

use cenote_sim::written::*;

async fn reopened(handle: &Handle, paths: &[PathBuf]) -> Pool {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await.unwrap()
}

/// Bytes that count to the directory of what is being freed.
async fn freeing_bytes(pool: &View) -> u64 {
    let root = pool.dsl().root_dir().await.unwrap();
    pool.dsl().child(&root, pool_directory::FREE_DIR).await.unwrap().unwrap().phys.used_bytes
}

async fn used_bytes(handle: &Handle, paths: &[PathBuf]) -> u64 {
    read(handle, paths).await.dsl().root_dir().await.unwrap().phys.used_bytes
}

/// The places on the one disk of all copies of the blocks that the meta-dnode of a dataset points to.
async fn tree_places(pool: &View, name: &str) -> Vec<(u64, usize)> {
    /// Two labels and the boot area come first.
    const START_BYTES: u64 = 4 << 20;
    let dataset = pool.dsl().dataset(name).await.unwrap();
    let phys = pool.dsl().open(&dataset).await.unwrap().unwrap().phys();
    let pointers = phys.meta_dnode.blkptrs().iter().filter(|bp| !bp.is_hole());
    let places =
        pointers.flat_map(|bp| bp.dvas().map(|dva| (START_BYTES + dva.offset_bytes, bp.psize_bytes() as usize)));
    places.collect()
}

/// Objects of all shapes: several levels, holes, spill blocks, large dnodes, more than a block of dnodes of them.
async fn fill(pool: &Pool, name: &str, rng: &mut Rng) {
    let head = pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
    for round in 0..2 {
        let txg = pool.txg();
        for index in 0..50_u64 {
            let mut spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(3));
            spec.indirect_shift = 12;
            // A spill block's pointer needs room beside the bonus.
            let has_spill = index % 7 == round;
            spec.slots = if has_spill || rng.chance(1, 8) { 2 } else { 1 };
            spec = spec.with_bonus(DmuType::UINT8_DATA, vec![7; 16]);
            let object = head.objset.create_object(txg, &spec).unwrap();
            for _ in 0..rng.below(12) {
                // Far apart as a rule: trees of two levels and three.
                let reach = 10 + rng.below(12);
                let at = rng.below(1 << reach);
                let mut bytes = vec![0; 1 + rng.below(4000) as usize];
                rng.fill(&mut bytes);
                object.write(txg, at, &bytes).await.unwrap();
            }
            if has_spill {
                object.set_spill(txg, Some(Buf::copied_from(&[index as u8 + 1; 512]).freeze()));
            }
        }
        pool.sync().await.unwrap();
    }
}

/// For any size of a slice, and wherever the pool is given up: `verify` finds each block that is not free yet, and the bytes that
/// count as being freed; at the end the pool uses as much as before.
#[test]
fn a_destroyed_dataset_is_freed_slice_by_slice_whatever_happens() {
    let part = Part::of_environment();
    for (seed, layout) in [(1, LAYOUTS[0]), (2, LAYOUTS[3]), (3, LAYOUTS[2]), (4, LAYOUTS[0])]
        .into_iter()
        .filter(|(seed, _)| part.has(*seed))
    {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        let paths = machine.paths.clone();
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let mut pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 9)).await;
            fill(&pool, "written/kept", &mut rng).await;
            let before_bytes = used_bytes(&handle, &paths).await;
            fill(&pool, "written/gone", &mut rng).await;
            fill(&pool, "written/gone/below", &mut rng).await;
            assert!(used_bytes(&handle, &paths).await > before_bytes + (1 << 20));

            // Both in one txg.
            pool.destroy_dataset("written/gone/below").await.unwrap();
            pool.destroy_dataset("written/gone").await.unwrap();
            let (mut slices, mut left_bytes) = (0, u64::MAX);
            loop {
                let blocks = 1 + rng.below(60);
 pool.peek(move |syncer| syncer.set_async_block_max_blocks(blocks)).await.unwrap();
                pool.sync().await.unwrap();
                slices += 1;
                let on_disk = read(&handle, &paths).await;
                let freeing = freeing_bytes(&on_disk).await;
                assert!(freeing <= left_bytes, "what is being freed grows");
                assert_eq!(pool.jobs().iter().map(|job| job.left_bytes).sum::<u64>(), freeing);
                left_bytes = freeing;
                if slices % 10 == 1 || !pool.peek(|syncer| syncer.has_work()).await.unwrap() {
                    let (_, report) = check(&handle, &paths).await;
                    assert_clean(&report, &format!("seed {seed}, after slice {slices}"));
                }
                if !pool.peek(|syncer| syncer.has_work()).await.unwrap() {
                    break;
                }
                if rng.chance(1, 5) {
                    // As after a crash: what no txg has is gone.
                    drop(pool);
                    pool = reopened(&handle, &paths).await;
                    assert!(pool.peek(|syncer| syncer.has_work()).await.unwrap(), "an opened pool goes on with what was left");
                }
            }
            assert!(slices > 20, "seed {seed}: only {slices} slices");
            assert_eq!(left_bytes, 0);
            let on_disk = read(&handle, &paths).await;
            assert!(on_disk.directory().find_u64(pool_directory::BPTREE).await.unwrap().is_none());
            let uses =
                on_disk.features().await.unwrap().into_iter().find(|(feature, _)| matches!(feature, cenote_spa::FeatureName::Known(known) if known.name == "async_destroy"));
            assert!(matches!(uses, Some((_, cenote_spa::features::FeatureState::Enabled))), "nothing is left that the feature is used for");
            let after_bytes = on_disk.dsl().root_dir().await.unwrap().phys.used_bytes;
            // The MOS itself is not as it was.
            assert!(after_bytes.abs_diff(before_bytes) < 256 << 10, "{before_bytes} bytes before, {after_bytes} after");
            pool.export().await.unwrap();
        });
    }
}

/// Nobody writes to the pool meanwhile: the txgs that the job needs are its own.
#[test]
fn a_job_that_is_resumed_in_an_idle_pool_goes_on_by_itself() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let mut rng = Rng::new(7);
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 9)).await;
        fill(&pool, "written/gone", &mut rng).await;
        pool.peek(|syncer| syncer.set_async_block_max_blocks(1)).await.unwrap();
        let pool = pool.start(cenote_dmu::tx::TxTunables::default()).await;
        pool.destroy_dataset("written/gone").await.unwrap();
        pool.pause_job("async_destroy").await.unwrap();
        handle.sleep(std::time::Duration::from_secs(600)).await;
        let left_bytes = pool.jobs()[0].left_bytes;
        assert!(pool.jobs()[0].is_paused && left_bytes > 0);
        pool.resume_job("async_destroy").await.unwrap();
        assert!(!pool.jobs()[0].is_paused);
        handle.sleep(std::time::Duration::from_secs(600)).await;
        assert!(pool.jobs().first().is_none_or(|job| job.left_bytes < left_bytes), "{:?}", pool.jobs());
        pool.export().await.unwrap();
    });
}

/// A job that is paused does nothing in any txg, a pool that is opened again goes on with it, and so does one in which it is resumed.
#[test]
fn a_job_that_is_paused_waits_until_it_is_resumed_or_the_pool_is_opened_again() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let mut rng = Rng::new(6);
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 9)).await;
        fill(&pool, "written/gone", &mut rng).await;
        pool.destroy_dataset("written/gone").await.unwrap();
        pool.peek(|syncer| syncer.set_async_block_max_blocks(1)).await.unwrap();
        pool.sync().await.unwrap();
        pool.pause_job("scrub").await.expect_err("there is no such job");
        let refused =
            pool.cancel_job("async_destroy").await.expect_err("a destroyed dataset has no name to come back to");
        assert!(refused.to_string().contains("pause it"), "{refused}");
        let left_bytes = pool.jobs()[0].left_bytes;
        for round in 0..2 {
            pool.pause_job("async_destroy").await.unwrap();
            for _ in 0..3 {
                pool.sync().await.unwrap();
            }
            let is_on = pool.peek(|syncer| syncer.has_work()).await.unwrap();
            let job = pool.jobs().remove(0);
            assert!(!is_on && job.is_paused && job.stalled.is_none() && job.cursor.is_some(), "{job:?}");
            if round == 0 {
                assert_eq!(pool.jobs()[0].left_bytes, left_bytes);
                pool.resume_job("async_destroy").await.unwrap();
                pool.sync().await.unwrap();
                assert!(pool.jobs()[0].left_bytes < left_bytes, "it goes on");
            }
        }
        drop(pool);
        let pool = reopened(&handle, &paths).await;
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
        }
        assert_eq!(pool.jobs(), []);
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &paths).await;
        assert_clean(&report, "all of it is free");
    });
}

/// A destroyed dataset that cannot be read is not freed and fails no txg; once it can be, the next opening goes on.
#[test]
fn a_destroyed_dataset_that_cannot_be_read_stands_still() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let mut rng = Rng::new(5);
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 9)).await;
        fill(&pool, "written/gone", &mut rng).await;
        let tree = tree_places(&read(&handle, &paths).await, "written/gone").await;
        pool.destroy_dataset("written/gone").await.unwrap();
        let blocks = 1;
        pool.peek(move |syncer| syncer.set_async_block_max_blocks(blocks)).await.unwrap();
        pool.sync().await.unwrap();
        assert!(pool.peek(|syncer| syncer.has_work()).await.unwrap());
        drop(pool);

        let disk = &machine.disks[0];
        let sound: Vec<Vec<u8>> = tree.iter().map(|(offset, len)| disk.peek(*offset, *len)).collect();
        for (offset, len) in &tree {
            disk.poke(*offset, &vec![0x55; *len]);
        }
        // Without a cache of what was read before.
        let pool = reopened(&handle, &paths).await;
        pool.sync().await.unwrap();
        let jobs = pool.jobs();
        assert!(!pool.peek(|syncer| syncer.has_work()).await.unwrap() && jobs.len() == 1, "{jobs:?}");
        assert!(jobs[0].stalled.as_ref().is_some_and(|reason| reason.contains("destroyed dataset")), "{jobs:?}");
        pool.sync().await.unwrap();
        drop(pool);
        for ((offset, _), bytes) in tree.iter().zip(&sound) {
            disk.poke(*offset, bytes);
        }
        let (_, report) = check(&handle, &paths).await;
        assert_clean(&report, "what was not freed is found");

        let pool = reopened(&handle, &paths).await;
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
        }
        assert_eq!(pool.jobs(), []);
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &paths).await;
        assert_clean(&report, "all of it is free");
    });
}
