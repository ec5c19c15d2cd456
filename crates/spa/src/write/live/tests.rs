//! What a live pool refuses before anything is changed.

use std::path::Path;

use cenote_dmu::tx::TxTunables;
use cenote_dmu::write::put_entry;
use cenote_format::zap::ZapValue;
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{OpenOptions, Runtime};
use cenote_vdev::disk::Disk;

use super::*;
use crate::write::{Clock, CreateOptions, DiskSpec, Host, TopKind, TopSpec, create};

async fn made(handle: &Handle, path: &str) -> PoolWriter {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let disk = Disk::whole(handle.open(Path::new(path), options).await.unwrap());
    let disks = vec![DiskSpec { disk, path: path.into(), is_file: true }];
    let options = CreateOptions {
        name: "shared".into(),
        tops: vec![TopSpec { kind: TopKind::Single, disks }],
        ashift: Some(12),
        disabled_features: Vec::new(),
        properties: Vec::new(),
        seed: Some(7),
        clock: Clock::Fixed(1_700_000_000),
        host: Host { id: 0, name: "here".into() },
        command: "zpool create shared".into(),
        user: 0,
        cache_bytes: 16 << 20,
        check: true,
    };
    create(handle, options).await.unwrap()
}

/// Found with a pool in which OpenZFS had cloned blocks: what was given up could not be freed, so the first txg that freed
/// any failed, and with it all that programs had been told was done.
#[test]
fn files_are_not_changed_where_blocks_may_be_shared() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let sim = runtime.sim().unwrap();
    runtime.block_on(async {
        for (path, is_cloned) in [("/cloned", true), ("/deduplicated", false)] {
            sim.add_disk(
                &handle,
                Path::new(path),
                SimDiskOptions { size_bytes: 80 << 20, ..SimDiskOptions::default() },
            );
            let mut writer = made(&handle, path).await;
            if is_cloned {
                writer.features.change("block_cloning", 1);
            } else {
                let table = ZapValue::from_u64(1);
                put_entry(&writer.directory, writer.txg, "DDT-sha256-zap-duplicate", Some(&table)).await.unwrap();
            }
            let pool = LivePool::start(writer, TxTunables::default());
            let Err(error) = pool.open_head("shared").await else { panic!("{path} is opened") };
            assert!(error.to_string().contains(path.trim_start_matches('/')), "{error}");
        }
    });
}
