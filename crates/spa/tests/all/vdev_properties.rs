//! Goal: properties of vdevs that change what the pool does are obeyed at once, or when it is opened again, outlive an export and a power cut, and leave
//! pools that `verify` and `zdb` find whole. Method: files are changed before and after; where blocks lie is read from the space maps.

use cenote_dsl::property::Value;
use cenote_format::ids::Guid;
use cenote_sim::written::files::{make_on, opened, opened_files};
use cenote_sim::written::tree::seen;
use cenote_sim::written::*;
use cenote_spa::{ImportOptions, Pool, PropertyValue, SpaError, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::AllocationClass;

use crate::evacuated::{check_whole, ended, fill, machine_with, snapshot, top, work};

const ON: PropertyValue = PropertyValue::Number(1);
const OFF: PropertyValue = PropertyValue::Number(0);

async fn set(pool: &Pool, vdev: Guid, name: &str, value: Option<&PropertyValue>) -> Result<(), SpaError> {
    pool.set_vdev_property(vdev, name, value).await
}

/// The ranges that are allocated on a top-level vdev, by the space maps of the last txg, and what datasets may use of the pool.
async fn placed(pool: &Pool, at: usize) -> (Vec<std::ops::Range<u64>>, u64) {
    for _ in 0..3 {
        pool.sync().await.unwrap();
    }
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let space = view.space().await.unwrap();
    let vdev = space.vdevs.iter().find(|vdev| vdev.maps.vdev.0 as usize == at).unwrap();
    let usable = view.usable_bytes(&space).await.unwrap();
    (vdev.allocated.iter().collect(), usable)
}

fn is_within(part: &[std::ops::Range<u64>], all: &[std::ops::Range<u64>]) -> bool {
    part.iter().all(|range| all.iter().any(|other| other.start <= range.start && range.end <= other.end))
}

#[test]
fn a_vdev_that_takes_no_new_blocks_keeps_the_old_ones_and_stays_so() {
    let layouts: [&[(TopKind, usize)]; 3] = [
        &[(TopKind::Single, 1), (TopKind::Mirror, 2)],
        &[(TopKind::Mirror, 2), (TopKind::Single, 1), (TopKind::Single, 1)],
        &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Raidz { parity: 1 }, 3)],
    ];
    for (seed, layout) in (0..6).zip(layouts.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_with(&runtime, count, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            make_on(&handle, &machine, layout, false).await;
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            work(&fs, &mut rng, 10).await;
            fill(&fs, &mut rng, 20).await;
            let guid = top(&pool, 0).await;
            let (before, all) = placed(&pool, 0).await;
            assert!(!before.is_empty(), "{what}");
            set(&pool, guid, "allocating", Some(&OFF)).await.unwrap();
            let (first, less) = placed(&pool, 0).await;
            assert!(less < all, "{what}: {less} of {all} bytes can be used");
            snapshot(&pool, "off").await;
            work(&fs, &mut rng, 20).await;
            fill(&fs, &mut rng, 20).await;
            log.sync(None).await.unwrap();
            let (then, _) = placed(&pool, 0).await;
            assert!(is_within(&then, &first), "{what}: something was placed there");
            // One has to be left.
            for at in 1..layout.len() {
                let other = top(&pool, at).await;
                let is_last = layout.len() == 2;
                let result = set(&pool, other, "allocating", Some(&OFF)).await;
                assert_eq!(result.is_err(), is_last, "{what}: {result:?}");
                if let Err(error) = result {
                    assert!(error.to_string().contains("the last vdev"), "{error}");
                } else {
                    set(&pool, other, "allocating", Some(&ON)).await.unwrap();
                }
            }
            let tree = seen(&fs).await;
            if seed % 2 == 0 {
                drop((fs, log));
                check_whole(&handle, &machine, pool, &what).await;
            } else {
                log.sync(None).await.unwrap();
                cut(&handle, &machine, Crash::Random).await;
                drop((fs, log, pool));
            }
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            assert!(view.vdevs().children[0].non_allocating, "{what}");
            let kept = view.vdev_properties(&view.vdevs().children[0]).await.unwrap();
            assert!(matches!(kept.get("allocating"), Some(Value::Number(0))), "{what}: OpenZFS shows this one");
            drop(view);
            let (first, less_again) = placed(&pool, 0).await;
            assert!(less_again < all, "{what}");
            work(&fs, &mut rng, 10).await;
            fill(&fs, &mut rng, 10).await;
            let (then, _) = placed(&pool, 0).await;
            assert!(is_within(&then, &first), "{what}: something was placed there after it was opened again");
            set(&pool, guid, "allocating", Some(&ON)).await.unwrap();
            fill(&fs, &mut rng, 30).await;
            let (then, all_again) = placed(&pool, 0).await;
            assert!(!is_within(&then, &first), "{what}: nothing is placed there");
            assert!(all_again > less_again, "{what}");
            let tree = seen(&fs).await;
            drop((fs, log));
            check_whole(&handle, &machine, pool, &format!("{what}, on again")).await;
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            assert!(!pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[0].non_allocating, "{what}");
            drop((fs, log, pool));
        });
    }
}

/// A removal leaves the wish of a person as it was, when it is cancelled, also by one who did not begin it.
#[test]
fn a_vdev_that_takes_no_new_blocks_can_be_removed_and_stays_so_if_it_is_not() {
    for seed in 0..4 {
        let layout: &[(TopKind, usize)] = &[(TopKind::Single, 1), (TopKind::Mirror, 2)];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_with(&runtime, 3, cenote_sim::slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed}");
            make_on(&handle, &machine, layout, false).await;
            let slowly = import_with(&["zfs_remove_max_copy_bytes=65536"]);
            let pool = opened_pool(&handle, &machine.paths, slowly.clone()).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            fill(&fs, &mut rng, 20).await;
            let guid = top(&pool, 0).await;
            set(&pool, guid, "allocating", Some(&OFF)).await.unwrap();
            pool.remove_vdev(guid).await.unwrap();
            let (pool, fs, log) = if seed % 2 == 0 {
                (pool, fs, log)
            } else {
                drop((fs, log));
                pool.export().await.unwrap();
                let pool = opened_pool(&handle, &machine.paths, slowly).await.unwrap();
                let (fs, log) = opened_files(&pool).await.unwrap();
                (pool, fs, log)
            };
            pool.cancel_removal().await.unwrap();
            let (first, _) = placed(&pool, 0).await;
            fill(&fs, &mut rng, 10).await;
            let (then, _) = placed(&pool, 0).await;
            assert!(is_within(&then, &first), "{what}: something was placed there");
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            assert!(view.vdevs().children[0].non_allocating && !view.vdevs().children[0].removing, "{what}");
            drop(view);
            pool.remove_vdev(guid).await.unwrap();
            ended(&handle, &pool).await;
            fill(&fs, &mut rng, 10).await;
            let tree = seen(&fs).await;
            drop((fs, log));
            check_whole(&handle, &machine.part(1..3), pool, &what).await;
            let (pool, fs, log) = opened(&handle, &machine.part(1..3)).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log, pool));
        });
    }
}

#[test]
fn a_vdev_is_of_another_class_when_the_pool_is_opened_again() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_with(&runtime, 2, Latency::default());
    let mut rng = Rng::new(1);
    runtime.block_on(async {
        make_on(&handle, &machine, &[(TopKind::Single, 1), (TopKind::Single, 1)], false).await;
        let text = |text: &str| PropertyValue::Text(text.to_owned());
        let mut tree = None;
        for (at, to, after) in [(0, None, "special"), (1, Some("special"), "none"), (1, Some("none"), "dedup")] {
            let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
            if let Some(tree) = tree.take() {
                assert_eq!(seen(&fs).await, tree, "before {after}");
            }
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let class = view.vdevs().children[1].class;
            let wanted = match to {
                Some("special") => AllocationClass::Special,
                _ => AllocationClass::Normal,
            };
            assert_eq!(class, wanted, "before {after}");
            drop(view);
            fill(&fs, &mut rng, 10).await;
            work(&fs, &mut rng, 10).await;
            let value = text(after);
            let value = (after != "none").then_some(&value);
            set(&pool, top(&pool, 1).await, "alloc_bias", value).await.unwrap();
            if value.is_some() {
                let last = set(&pool, top(&pool, 0).await, "alloc_bias", Some(&text("special"))).await;
                assert!(last.unwrap_err().to_string().contains("the last vdev"), "vdev {at}");
                let last = set(&pool, top(&pool, 0).await, "allocating", Some(&OFF)).await;
                assert!(
                    last.unwrap_err().to_string().contains("the last vdev"),
                    "nothing is left when it is opened again"
                );
            }
            let log_device = set(&pool, top(&pool, 0).await, "alloc_bias", Some(&text("log"))).await;
            assert!(log_device.is_err());
            fill(&fs, &mut rng, 10).await;
            work(&fs, &mut rng, 10).await;
            tree = Some(seen(&fs).await);
            drop((fs, log));
            check_whole(&handle, &machine, pool, after).await;
        }
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        assert_eq!(Some(seen(&fs).await), tree);
        work(&fs, &mut rng, 10).await;
        drop((fs, log));
        check_whole(&handle, &machine, pool, "at the end").await;
    });
}

async fn leaf(pool: &Pool, at: usize) -> (Guid, String) {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let leaf = view.vdevs().leaves()[at];
    (leaf.guid, leaf.path.as_deref().unwrap_or_default().to_owned())
}

/// The settings of devices and of the stripes above them: what they refuse, and what is kept.
#[test]
fn paths_and_sitting_out_are_of_devices_and_autosit_of_stripes() {
    let runtime = Runtime::simulated(1);
    let handle: Handle = runtime.handle();
    let machine = machine_with(&runtime, 5, Latency::default());
    runtime.block_on(async {
        make_on(&handle, &machine, &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Mirror, 2)], false).await;
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        let (raidz, mirror) = (top(&pool, 0).await, top(&pool, 1).await);
        let (first, second, of_mirror) = (leaf(&pool, 0).await.0, leaf(&pool, 1).await.0, leaf(&pool, 3).await.0);
        let tree = pool.tree().unwrap();
        set(&pool, first, "sit_out", Some(&ON)).await.unwrap();
        assert!(tree.is_sitting_out(first));
        for (vdev, name, why) in [
            (second, "sit_out", "too many disks already sitting out"),
            (of_mirror, "sit_out", "only a device of a raidz or draid"),
            (raidz, "sit_out", "only a device of a raidz or draid"),
            (mirror, "autosit", "only devices of a raidz or draid"),
            (first, "allocating", "only top-level vdevs"),
        ] {
            let refused = set(&pool, vdev, name, Some(&ON)).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{name}: {refused}");
        }
        set(&pool, first, "sit_out", Some(&OFF)).await.unwrap();
        set(&pool, second, "sit_out", Some(&ON)).await.unwrap();
        pool.clear_device(second).await.unwrap();
        assert!(!tree.is_sitting_out(second), "'zpool clear' has it read");
        set(&pool, raidz, "autosit", Some(&OFF)).await.unwrap();
        let path = |path: &str| PropertyValue::Text(path.to_owned());
        for (vdev, to) in [(first, "/tmp/x"), (raidz, "/dev/x")] {
            assert!(set(&pool, vdev, "path", Some(&path(to))).await.is_err(), "{to}");
        }
        set(&pool, first, "path", Some(&path("/dev/disk/by-id/x"))).await.unwrap();
        assert_eq!(leaf(&pool, 0).await.1, "/dev/disk/by-id/x");
        drop((fs, log, tree));
        check_whole(&handle, &machine, pool, "set").await;
        // An import finds the device where it is, and says so.
        let (pool, fs, log) = opened(&handle, &machine).await.unwrap();
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let kept = view.vdev_properties(&view.vdevs().children[0]).await.unwrap();
        assert!(matches!(kept.get("autosit"), Some(Value::Number(0))), "{kept:?}");
        drop((fs, log, view, pool));
    });
}
