//! Goal: a pool gets the room that its devices have got, and is whole before and after, wherever the power goes. Method: pools on simulated disks, copied to
//! larger ones; cuts at every write of the change; verify and `zdb`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::VdevId;
use cenote_sim::{Machine, slow};
use cenote_spa::{Pool, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Class, Handle, Rng, Runtime};

use cenote_sim::written::blocks::{change_head, make_objects};
use cenote_sim::written::{Layout, SINGLE, assert_clean, check, cut, live, machine_of, read, reopened, small};

use crate::offline::{stop_at, zdb};

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
const LARGE_BYTES: u64 = 200 << 20;

/// A pool that was made on small disks, on disks of which so many are large.
async fn grown(runtime: &Runtime, handle: &Handle, layout: Layout, latency: Latency) -> Machine {
    let small_disks = machine_of(runtime, layout[0].1, Latency::default());
    let pool = live(handle, &small_disks, layout, small()).await;
    let head = pool.open_head("written").await.unwrap();
    change_head(&pool, head.head(), &mut Rng::new(1)).await.unwrap();
    drop(head);
    pool.export().await.unwrap();
    let options = SimDiskOptions { size_bytes: LARGE_BYTES, latency, ..SimDiskOptions::default() };
    let machine = Machine::new(runtime, layout[0].1, &options);
    machine.restore(&small_disks.images());
    machine
}

async fn size_bytes(pool: &Pool) -> u64 {
    let view = pool.view(&cenote_spa::ImportOptions::default()).await.unwrap();
    view.vdevs().children[0].asize_bytes
}

/// Writes more than the small pool holds.
async fn fill(pool: &Pool, bytes: u64) {
    const BLOCK_BYTES: u64 = 128 << 10;
    let head = pool.open_head("written").await.unwrap();
    let object = make_objects(&head, 1).await.remove(0);
    let mut content = vec![0; BLOCK_BYTES as usize];
    let mut rng = Rng::new(7);
    for block in 0..bytes / BLOCK_BYTES {
        rng.fill(&mut content);
        let tx = head.begin(cenote_dmu::tx::Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, 16 << 10)).await.unwrap();
        object.write(tx.txg(), block * BLOCK_BYTES, &content).await.unwrap();
    }
    pool.sync().await.unwrap();
}

#[test]
fn a_pool_in_use_gets_the_room_that_its_devices_have_got() {
    for (seed, layout) in [SINGLE, MIRROR, RAIDZ].into_iter().enumerate() {
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        runtime.block_on(async {
            let what = format!("{layout:?}");
            let machine = grown(&runtime, &handle, layout, Latency::default()).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            let before = size_bytes(&pool).await;
            assert!(!pool.expand_if_wanted().await.unwrap(), "{what}: nobody wants it");
            assert!(pool.expand_devices(Vec::new()).await.unwrap(), "{what}");
            assert!(!pool.expand_devices(Vec::new()).await.unwrap(), "{what}: there is no more");
            assert!(size_bytes(&pool).await >= before * 2, "{what}");
            fill(&pool, 60 << 20).await;
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
            zdb(&machine, &what);
            let space = read(&handle, &machine.paths).await.space().await.unwrap();
            let used = space.vdevs.iter().find(|vdev| vdev.maps.vdev == VdevId(0)).unwrap();
            assert!(used.allocated.iter().any(|range| range.end > before), "{what}: the new room is used");
            let pool = reopened(&handle, &machine.paths, small()).await;
            fill(&pool, 10 << 20).await;
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
        });
    }
}

#[test]
fn a_cut_at_any_write_leaves_the_old_size_or_the_new_one() {
    let (mut as_before, mut as_after) = (0, 0);
    for at in 0.. {
        let what = format!("cut at {at}");
        let runtime = Runtime::simulated(at);
        let handle = runtime.handle();
        let is_done = runtime.block_on(async {
            let machine = grown(&runtime, &handle, MIRROR, slow()).await;
            let pool = reopened(&handle, &machine.paths, small()).await;
            let before = size_bytes(&pool).await;
            pool.sync().await.unwrap();
            let count = stop_at(&machine, at);
            let changing = pool.clone();
            let changing = handle.spawn(Class::Issue, async move {
                changing.expand_devices(Vec::new()).await?;
                fill(&changing, 2 << 20).await;
                Ok::<_, cenote_spa::SpaError>(())
            });
            let made = handle.timeout(Duration::from_secs(5), changing).await;
            let is_over = matches!(made, Some(Ok(Ok(())))) && count.load(Ordering::SeqCst) <= at;
            machine.disks.iter().for_each(|disk| disk.clear_faults());
            let how = [Crash::LoseAll, Crash::KeepAll, Crash::Random][at as usize % 3];
            cut(&handle, &machine, how).await;
            drop(pool);
            let pool = reopened(&handle, &machine.paths, small()).await;
            let now = size_bytes(&pool).await;
            as_before += u32::from(now == before);
            as_after += u32::from(now > before);
            fill(&pool, 8 << 20).await;
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
            is_over
        });
        if is_done || at > 120 {
            break;
        }
    }
    assert!(as_before > 3 && as_after > 3, "{as_before} as before, {as_after} as after");
}
