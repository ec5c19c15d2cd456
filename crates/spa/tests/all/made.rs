//! Pools from their first txg on, in one go.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_spa::{ImportOptions, Pool, TopKind, find, import};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Rng, Runtime};
use cenote_testkit::zdb::{BlockStatistics, Devices};

use cenote_sim::written::blocks::change;
use cenote_sim::written::*;

/// Passes that the last txg took.
fn passes_of(pool: &Pool) -> u32 {
    pool.history().last().map_or(0, |record| record.passes)
}

#[test]
fn a_pool_of_any_layout_and_sector_size_is_whole_from_its_first_txg_on() {
    for (index, layout) in LAYOUTS.iter().enumerate() {
        for ashift in [9, 12, 13] {
            let runtime = Runtime::simulated(index as u64);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, layout.iter().map(|(_, count)| count).sum(), Latency::default());
            runtime.block_on(async {
                let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), ashift)).await;
                let passes = passes_of(&pool);
                assert!(passes <= 6, "{passes} passes");
                pool.export().await.unwrap();
                let (txg, report) = check(&handle, &machine.paths).await;
                assert_eq!(txg, Txg(5));
                assert_clean(&report, &format!("{layout:?} ashift {ashift}"));
            });
        }
    }
}

#[test]
fn many_txgs_of_changes_leave_a_whole_pool_with_and_without_log_space_maps() {
    for (seed, has_log) in [(1, true), (2, true), (3, false), (4, false)] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, Latency::default());
        runtime.block_on(async {
            let layout: Layout = &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Single, 1)];
            let mut wish = options(machine.tops(&handle, layout).await.unwrap(), 9);
            if !has_log {
                wish.disabled_features = vec!["log_spacemap".into()];
            }
            let pool = make(&handle, wish).await;
            let (mut objects, mut rng) = (Vec::new(), Rng::new(seed));
            for round in 0..40 {
                change(&pool, &mut objects, &mut rng).await.unwrap();
                pool.sync().await.unwrap();
                let passes = passes_of(&pool);
                assert!(passes <= 10, "round {round}: {passes} passes");
                if round % 8 == 7 {
                    let (_, report) = check(&handle, &machine.paths).await;
                    assert_clean(&report, &format!("seed {seed} round {round}"));
                }
            }
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &format!("seed {seed} at the end"));
        });
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_the_order_of_events() {
    let image = |schedule: u64| {
        let runtime = Runtime::simulated(schedule);
        let handle = runtime.handle();
        let latency = Latency { jitter: Duration::from_millis(3), ..Latency::default() };
        let machine = machine_of(&runtime, 1, latency);
        runtime.block_on(async {
            let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
            let (mut objects, mut rng) = (Vec::new(), Rng::new(5));
            for _ in 0..6 {
                change(&pool, &mut objects, &mut rng).await.unwrap();
                pool.sync().await.unwrap();
            }
            pool.export().await.unwrap();
        });
        machine.disks[0].peek(0, DISK_BYTES as usize)
    };
    let (first, second) = (image(1), image(2));
    assert!(first == second, "two runs differ");
}

#[test]
fn wherever_the_power_goes_the_last_synced_txg_is_whole() {
    let (mut cut, mut newest_seen) = (0, 0);
    for seed in 0..30_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 2, slow());
        let layout: Layout =
            if seed % 2 == 0 { &[(TopKind::Mirror, 2)] } else { &[(TopKind::Single, 1), (TopKind::Single, 1)] };
        runtime.block_on(async {
            let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 12)).await;
            let mut rng = Rng::new(seed);
            let mut objects = Vec::new();
            // The last txg that is on disk for sure, told by the writer.
            let synced = Arc::new(cenote_taskq::sync::Mutex::new(Txg(4)));
            let (told, mut dice) = (synced.clone(), Rng::new(seed ^ 0xff));
            let writing = handle.spawn(Class::Sync, async move {
                for _ in 0..12 {
                    // Data that is not overwritten is read, which fails once the power is gone.
                    if change(&pool, &mut objects, &mut rng).await.is_err() {
                        return;
                    }
                    match pool.sync().await {
                        Ok(txg) => *told.lock() = txg,
                        Err(_) => return,
                    }
                }
            });
            handle.sleep(Duration::from_micros(dice.below(60_000))).await;
            let promised = *synced.lock();
            machine.disks.iter().for_each(|disk| disk.crash(Crash::Random));
            let promised = promised.max(*synced.lock());
            writing.await.unwrap();
            cut += 1;
            machine.disks.iter().for_each(|disk| disk.power_on());
            let (txg, report) = check(&handle, &machine.paths).await;
            assert!(txg == promised || txg.0 == promised.0 + 1, "seed {seed}: found {txg}, promised {promised}");
            newest_seen += u64::from(txg != promised);
            assert_clean(&report, &format!("seed {seed} txg {txg}"));
        });
    }
    assert!(cut == 30 && newest_seen < 30);
}

#[test]
fn a_full_pool_refuses_what_does_not_fit_and_stays_whole() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        let root = pool.root().unwrap().objset.clone();
        let object = root.create_object(pool.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 128 << 10)).unwrap();
        let mut bytes = vec![0; DISK_BYTES as usize + (8 << 20)];
        Rng::new(1).fill(&mut bytes);
        object.write(pool.txg(), 0, &bytes).await.unwrap();
        let error = pool.sync().await.unwrap_err();
        assert!(error.to_string().contains("no space"), "{error}");
        let (txg, report) = check(&handle, &machine.paths).await;
        assert_eq!(txg, Txg(4));
        assert_clean(&report, "after a txg that did not fit");
    });
}

/// OpenZFS's own account of what we wrote: `zdb` reads every block, compares the sum of blocks with the space maps, and counts
/// features. Left out where it is not installed.
#[test]
fn zdb_finds_no_fault_with_pools_of_any_layout() {
    if cenote_testkit::zdb::program("zdb").is_none() {
        eprintln!("left out: zdb is not installed");
        return;
    }
    for (index, layout) in LAYOUTS.iter().enumerate() {
        let ashift = [9, 12][index % 2];
        let runtime = Runtime::simulated(index as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, layout.iter().map(|(_, count)| count).sum(), Latency::default());
        runtime.block_on(async {
            let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), ashift)).await;
            let (mut objects, mut rng) = (Vec::new(), Rng::new(index as u64));
            for _ in 0..2 * index {
                change(&pool, &mut objects, &mut rng).await.unwrap();
                pool.sync().await.unwrap();
            }
            pool.export().await.unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        let devices = Devices::of(&machine.images_in(dir.path()).unwrap()).unwrap();
        for flags in ["-bcc", "-d"] {
            let told = cenote_testkit::zdb::run(&devices, &[flags], "written").unwrap();
            let last: Vec<&str> = told.text.lines().rev().take(40).collect();
            assert_eq!(told.status, Some(0), "{layout:?}: zdb {flags}: {last:#?}");
            if flags == "-bcc" {
                let figures = BlockStatistics::parse(&told.text).unwrap_or_else(|| panic!("{}", told.text));
                assert!(figures.leak_free, "{layout:?}: {}", told.text);
            }
        }
    }
}

/// Goal: a full history drops its oldest records, whole, and keeps those of the pool's creation. Method: several times as many bytes of
/// commands as the ring has, so that records wrap around its end at many places; all that is left is read back.
#[test]
fn a_history_that_has_wrapped_around_has_its_newest_commands_and_the_first() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let count = 1500;
    runtime.block_on(async {
        let layout: Layout = &[(TopKind::Single, 1)];
        let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 12)).await;
        for number in 0..count {
            // Lengths of all remainders, so that no record's end is another's beginning by chance.
            let line = format!("zpool set a:b={number} {}", "x".repeat(number % 211));
            pool.record_command(&line, 0).await.unwrap();
            if number % 100 == 99 {
                pool.sync().await.unwrap();
            }
        }
        pool.export().await.unwrap();
        let found = find(&handle, &machine.paths).await.0.remove(0);
        let pool = import(&handle, found, &ImportOptions::default()).await.unwrap();
        let mut commands = Vec::new();
        let read = pool.history(|record| commands.extend(record.str("history command").map(str::to_owned))).await;
        read.unwrap();
        assert!(commands[0].starts_with("zpool create"), "{}", commands[0]);
        let numbers: Vec<usize> = commands
            .iter()
            .filter_map(|line| line.strip_prefix("zpool set a:b=")?.split(' ').next()?.parse().ok())
            .collect();
        let first = numbers[0];
        assert!(
            first > count / 2 && count - first > 100,
            "{first} is the oldest of {count}: the ring has wrapped, and is full"
        );
        assert_eq!(numbers, (first..count).collect::<Vec<_>>());
        for (number, line) in numbers.iter().zip(&commands[commands.len() - numbers.len()..]) {
            assert_eq!(line, &format!("zpool set a:b={number} {}", "x".repeat(number % 211)));
        }
    });
}
