//! Goal: statistics say what was done. Method: a file system of a pool in use is read, written and unlinked in simulation, and a plain
//! model counts along; layers' counts are compared with each other.

use std::sync::Arc;

use cenote_kstat::{Body, Group, Stat};
use cenote_spa::{Pool, TopKind};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Rng, Runtime};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};

use cenote_sim::written::*;

const MIRROR: Layout = &[(TopKind::Mirror, 2)];

/// The reads and writes that a user has done.
#[derive(Debug, Default, PartialEq, Eq)]
struct Done {
    reads: u64,
    nread: u64,
    writes: u64,
    nwritten: u64,
}

fn named<'a>(groups: &'a [Group], group: &str) -> &'a [(&'static str, Stat)] {
    match groups.iter().find(|it| it.name == group).map(|it| &it.body) {
        Some(Body::Named(named)) => named,
        other => panic!("{group}: {other:?}"),
    }
}

fn number(named: &[(&'static str, Stat)], name: &str) -> u64 {
    match named.iter().find(|(known, _)| *known == name) {
        Some((_, Stat::Count(number) | Stat::Level(number))) => *number,
        other => panic!("{name}: {other:?}"),
    }
}

fn done(pool: &Pool, group: &str) -> Done {
    let groups = pool.kstats().snapshot();
    let of = |name| number(named(&groups, group), name);
    Done { reads: of("reads"), nread: of("nread"), writes: of("writes"), nwritten: of("nwritten") }
}

#[test]
fn statistics_agree_with_what_was_done() {
    let runtime = Runtime::simulated(11);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 2, Latency::default());
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let (group, objset) = (format!("objset-0x{:x}", head.dataset().0), head.objset().clone());
        let fs = FileSystem::open_head(&objset, Arc::new(head), FileSystemOptions::default()).await.unwrap();
        let (mut model, mut rng, mut bytes) = (Done::default(), Rng::new(5), vec![0; 300_000]);
        rng.fill(&mut bytes);
        let new = NewNode { mode: 0o100_644, ..NewNode::default() };
        let (open, _) = fs.create_file(fs.root(), b"f", &new).await.unwrap();
        let mut size = 0;
        for _ in 0..200 {
            let (at, len) = (rng.below(1 << 20), rng.below(bytes.len() as u64) as usize);
            if rng.below(2) == 0 {
                open.write(at, &bytes[..len]).await.unwrap();
                size = size.max(if len == 0 { 0 } else { at + len as u64 });
                model.writes += 1;
                model.nwritten += len as u64;
            } else {
                let read = open.read(at, len).await.unwrap().len() as u64;
                assert_eq!(read, (len as u64).min(u64::saturating_sub(size, at)));
                // A read of nothing is none.
                model.reads += u64::from(read > 0);
                model.nread += read;
            }
        }
        assert_eq!(done(&pool, &group), model);
        // Open while it loses its name: it goes to the delete queue, and is freed from there.
        fs.unlink(fs.root(), b"f").await.unwrap();
        drop(open);
        fs.reap().await.unwrap();
        pool.sync().await.unwrap();
        let groups = pool.kstats().snapshot();
        let of = |group: &str, name| number(named(&groups, group), name);
        assert_eq!((of(&group, "nunlinks"), of(&group, "nunlinked")), (1, 1));
        assert!(named(&groups, &group).contains(&("dataset_name", Stat::Text("written".into()))));
        assert_eq!(done(&pool, &group), model);
        // Other layers.
        assert!(of("arcstats", "size") <= of("arcstats", "c_max") && of("arcstats", "hits") > 0);
        assert!(of("dmu_tx", "dmu_tx_assigned") >= model.writes);
        assert_eq!(of("dmu_tx", "dmu_tx_error"), 0);
        let Some(Body::Rows(columns, rows)) = groups.iter().find(|it| it.name == "txgs").map(|it| &it.body) else {
            panic!("no txgs")
        };
        assert_eq!((columns[0], rows.len()), ("txg", pool.history().len()));
        assert_eq!(rows.last().map(|row| &row[0]), pool.history().last().map(|it| Stat::Count(it.txg.0)).as_ref());
        let devices: Vec<&str> =
            groups.iter().map(|it| it.name.as_str()).filter(|name| name.starts_with("iostats-")).collect();
        assert_eq!(devices.len(), 2, "{groups:?}");
        for device in &devices {
            // Each half of the mirror has it all; a block that was overwritten in its txg was never written.
            assert!(of(device, "write_bytes") > size && of(device, "write_ops") > 0 && of(device, "flush_ops") > 0);
            for (ops, histogram) in [("write_ops", "vdev_disk_w_lat_histo"), ("flush_ops", "vdev_disk_f_lat_histo")] {
                let found = named(&groups, device).iter().find(|(name, _)| *name == histogram);
                let Some((_, Stat::Histogram(buckets))) = found else { panic!("{found:?}") };
                assert_eq!(buckets.iter().sum::<u64>(), of(device, ops), "{device} {histogram}");
            }
        }
        drop((fs, objset));
        pool.export().await.unwrap();
    });
}

/// Goal: a pool in use for long holds no more memory than one in use for short. Method: many txgs change the same few blocks, each writes a log
/// space map, and old ones are freed: what the cache holds does not grow.
#[test]
fn freed_blocks_leave_the_cache() {
    let runtime = Runtime::simulated(12);
    let handle = runtime.handle();
    runtime.block_on(async {
        let machine = machine_of(&runtime, 2, Latency::default());
        let pool = live(&handle, &machine, MIRROR, small()).await;
        let mut held = Vec::new();
        for round in 0..4 {
            for change in 0..100 {
                pool.record_command(&format!("change {round} {change}"), 0).await.unwrap();
                pool.sync().await.unwrap();
            }
            let groups = pool.kstats().snapshot();
            let of = |name| number(named(&groups, "arcstats"), name);
            assert_eq!(of("deleted"), 0, "the limit is far away, so that all of it counts");
            held.push(of("data_size"));
        }
        // 100 log space maps alone have 12.5 MiB.
        assert!(held[3] < held[0] + (2 << 20), "{held:?} bytes");
        export_whole(&handle, &machine, pool, "after many txgs").await;
    });
}
