//! Goal: a pool that gets another guid is the old one or the new one on all its disks, wherever the power goes. Method: cuts at every write of the
//! change on simulated disks, verify, and `zdb`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_spa::{Offline, TopKind, find};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Rng, Runtime};

use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;

use crate::offline::{assert_readable, assert_refused, leaf_of, stop_at, zdb};

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const TWO: Layout = &[(TopKind::Single, 1), (TopKind::Single, 1)];
const NEW: Guid = Guid(0x77);

#[test]
fn a_pool_gets_another_guid_while_it_is_in_use() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let old = pool.guid();
        let leaf = leaf_of(&pool, "/disk1").await;
        pool.offline_device(leaf, Offline::default()).await.unwrap();
        assert_refused(pool.reguid(NEW).await, "missing or not whole");
        pool.online_device(leaf, Vec::new()).await.unwrap();
        pool.mended(leaf).await.unwrap();
        assert_refused(pool.reguid(old).await, "in use");
        pool.reguid(NEW).await.unwrap();
        assert_eq!(pool.guid(), NEW);
        let view = pool.view(&cenote_spa::ImportOptions::default()).await.unwrap();
        assert_eq!((view.guid(), view.vdevs().guid, view.tree().status().guid), (NEW, NEW, NEW));
        drop(view);
        let head = pool.open_head("written").await.unwrap();
        change_head(&pool, head.head(), &mut Rng::new(1)).await.unwrap();
        drop(head);
        pool.export().await.unwrap();
        let (pools, _) = find(&handle, &machine.paths).await;
        assert_eq!(pools.iter().map(|pool| pool.guid).collect::<Vec<_>>(), [NEW]);
        assert_readable(&handle, &machine.paths, "exported").await;
        zdb(&machine, "exported");
    });
}

#[test]
fn a_cut_at_any_write_leaves_the_old_guid_or_the_new_one() {
    for layout in [MIRROR, TWO] {
        let (mut as_before, mut as_after) = (0, 0);
        for at in 0.. {
            let what = format!("{layout:?} cut at {at}");
            let runtime = Runtime::simulated(at);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, 2, slow());
            let is_done = runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let head = pool.open_head("written").await.unwrap();
                change_head(&pool, head.head(), &mut Rng::new(at)).await.unwrap();
                let old = pool.guid();
                let count = stop_at(&machine, at);
                let changing = pool.clone();
                let changing = handle.spawn(Class::Issue, async move { changing.reguid(NEW).await });
                let made = handle.timeout(Duration::from_secs(5), changing).await;
                let is_over = matches!(made, Some(Ok(Ok(())))) && count.load(Ordering::SeqCst) <= at;
                machine.disks.iter().for_each(|disk| disk.clear_faults());
                cut(&handle, &machine, Crash::Random).await;
                drop((head, pool));
                let (pools, _) = find(&handle, &machine.paths).await;
                assert_eq!(pools.len(), 1, "{what}: all disks are of one pool");
                let pool = reopened(&handle, &machine.paths, small()).await;
                let now = pool.guid();
                assert!(now == old || now == NEW, "{what}: {now}");
                as_before += u32::from(now == old);
                as_after += u32::from(now == NEW);
                pool.export().await.unwrap();
                assert_readable(&handle, &machine.paths, &what).await;
                is_over
            });
            if is_done {
                break;
            }
        }
        assert!(as_before > 3 && as_after > 1, "{layout:?}: {as_before} as before, {as_after} as after");
    }
}
