//! The state of features in pools: how many things use each, and since when each is enabled.

use std::collections::BTreeMap;

use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::Compress;
use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::{
    AddOptions, CreateOptions, PropertyValue, TopKind, View,
    features::{FEATURES, by_name},
};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Handle, Runtime};

use cenote_sim::Machine;

use cenote_sim::written::*;

const DRAID: (TopKind, usize) = (TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4);

/// How many things use a feature; nothing if it is not enabled. Labels and configuration name it if the MOS needs it.
async fn count(pool: &View, name: &str) -> Option<u64> {
    let guid = by_name(name).unwrap().guid;
    let mut counts = pool.feature_counts(pool_directory::FEATURES_FOR_READ).await.unwrap();
    counts.append(&mut pool.feature_counts(pool_directory::FEATURES_FOR_WRITE).await.unwrap());
    let count = counts.get(guid).copied();
    if ["draid", "vdev_zaps_v2"].contains(&name) {
        let label = &pool.found().newest().unwrap().config;
        for list in [pool.config(), label] {
            let named = list.list("features_for_read").unwrap().has(guid);
            assert_eq!(named, count.is_some_and(|count| count > 0), "{name} in {list:?}");
        }
    }
    count
}

/// Txgs in which features were enabled, by name, where it was noted.
async fn enabled_txgs(pool: &View) -> BTreeMap<&'static str, u64> {
    let txgs = pool.feature_counts(pool_directory::FEATURE_ENABLED_TXG).await.unwrap();
    let name = |guid: &str| FEATURES.iter().find(|feature| feature.guid == guid).unwrap().name;
    txgs.iter().map(|(guid, txg)| (name(guid), *txg)).collect()
}

async fn whole(handle: &Handle, machine: &Machine, what: &str) -> View {
    let (_, report) = check(handle, &machine.paths).await;
    assert_clean(&report, what);
    read(handle, &machine.paths).await
}

#[test]
fn each_draid_counts_in_pools_that_are_made_and_in_pools_that_get_them() {
    let layouts: [(Layout, u64); 3] = [(SINGLE, 0), (&[DRAID], 1), (&[DRAID, (TopKind::Mirror, 2), DRAID], 2)];
    for (made, expected) in layouts {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let used = made.iter().map(|(_, disks)| disks).sum::<usize>();
        let machine = machine_of(&runtime, used + 10, Latency::default());
        runtime.block_on(async {
            let pool = make(&handle, options(machine.tops(&handle, made).await.unwrap(), 12)).await;
            pool.export().await.unwrap();
            assert_eq!(count(&whole(&handle, &machine, "made").await, "draid").await, Some(expected));
            let pool = reopen(&handle, &machine.paths).await.unwrap();
            let new =
                Machine { disks: machine.disks.clone(), paths: machine.paths[used..].to_vec(), size_bytes: DISK_BYTES };
            let tops = new.tops(&handle, &[DRAID, (TopKind::Mirror, 2), DRAID]).await.unwrap();
            let added = AddOptions { tops, ashift: Some(12), allow_other_ashift: true, ..AddOptions::default() };
            pool.add_vdevs(added).await.unwrap();
            pool.export().await.unwrap();
            assert_eq!(count(&whole(&handle, &machine, "added").await, "draid").await, Some(expected + 2));
        });
    }
}

fn without(options: CreateOptions, names: &[&str]) -> CreateOptions {
    CreateOptions { disabled_features: names.iter().map(|name| (*name).to_owned()).collect(), ..options }
}

#[test]
fn the_txgs_of_enabling_stay_and_those_of_an_upgrade_come_to_them() {
    let late = ["async_destroy", "zstd_compress", "vdev_zaps_v2"];
    // Those that are enabled before there is a table of txgs, in OpenZFS's order, do not stand in it.
    let early = ["async_destroy", "empty_bpobj", "lz4_compress", "multi_vdev_crash_dump", "spacemap_histogram"];
    for is_noted in [true, false] {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, Latency::default());
        runtime.block_on(async {
            let mut disabled = late.to_vec();
            if !is_noted {
                disabled.extend(["enabled_txg", "hole_birth"]);
            }
            let pool =
                make(&handle, without(options(machine.tops(&handle, SINGLE).await.unwrap(), 12), &disabled)).await;
            pool.export().await.unwrap();
            let pool = whole(&handle, &machine, "made").await;
            let before = enabled_txgs(&pool).await;
            assert_eq!(count(&pool, "enabled_txg").await, is_noted.then_some(before.len() as u64));
            assert_eq!(is_noted, !before.is_empty());
            for feature in FEATURES.iter().filter(|feature| is_noted && !feature.is_newer()) {
                let is_here = ![&early[..], &late].concat().contains(&feature.name);
                assert_eq!(before.get(feature.name).copied(), is_here.then_some(Txg::INITIAL.0), "{}", feature.name);
            }

            let pool = reopen(&handle, &machine.paths).await.unwrap();
            let missing: Vec<&str> = pool
                .peek(|syncer| syncer.missing_features())
                .await
                .unwrap()
                .iter()
                .map(|feature| feature.name)
                .collect();
            assert_eq!(missing.len(), disabled.len());
            let txg = pool.txg();
            pool.enable_features(&missing).await.unwrap();
            pool.export().await.unwrap();
            let pool = whole(&handle, &machine, "upgraded").await;
            let mut expected = before.clone();
            let new = disabled.iter().filter(|name| is_noted || !early.contains(name));
            expected.extend(new.map(|name| (by_name(name).unwrap().name, txg.0)));
            assert_eq!(enabled_txgs(&pool).await, expected);
            assert_eq!(count(&pool, "enabled_txg").await, Some(expected.len() as u64));
        });
    }
}

/// Goal: what a feature says of blocks holds from its enabling on, of datasets that are open too. Method: the same write before and after.
#[test]
fn a_feature_that_is_enabled_changes_how_a_pool_in_use_is_written() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let disabled = ["lz4_compress", "embedded_data"];
        let pool = make(&handle, without(options(machine.tops(&handle, SINGLE).await.unwrap(), 9), &disabled)).await;
        let root = pool.root().unwrap();
        let asks = async |property, compress| {
            pool.set_property(&root, "compression", &PropertyValue::Number(property)).await.unwrap();
            assert_eq!(root.objset.policy().compress, compress);
        };
        assert_eq!(root.objset.policy().compress, Compress::Lzjb, "as all that says nothing else");
        let spec = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, 4096);
        let object = root.objset.create_object(pool.txg(), &spec).unwrap();
        let write = async |byte| {
            object.write(pool.txg(), 0, &[byte; 4096]).await.unwrap();
            pool.sync().await.unwrap();
            assert_eq!(root.objset.root().compress(), Some(root.objset.policy().metadata_compress));
            root.objset.policy()
        };
        let before = write(1).await;
        assert_eq!((before.metadata_compress, before.may_embed), (Compress::Lzjb, false));
        pool.enable_features(&disabled).await.unwrap();
        let after = write(2).await;
        assert_eq!((after.compress, after.metadata_compress, after.may_embed), (Compress::Lz4, Compress::Lz4, true));
        asks(u64::from(Compress::Gzip6.number()), Compress::Gzip6).await;
        pool.enable_features(&["zstd_compress"]).await.unwrap();
        assert_eq!(root.objset.policy().compress, Compress::Gzip6);
        pool.export().await.unwrap();
        whole(&handle, &machine, "changed").await;
    });
}

/// The root's table of attributes, by the configuration; it is listed with those of the other vdevs.
async fn root_zap(pool: &View) -> Option<ObjectId> {
    let tree = pool.config().list("vdev_tree").unwrap();
    let zap = tree.u64("com.klarasystems:vdev_zap_root")?;
    let listed = pool.feature_counts(pool_directory::VDEV_ZAP_MAP).await.unwrap();
    assert_eq!(listed.get(&format!("{zap:x}")), Some(&zap), "{listed:?}");
    // A root, a top-level vdev, and a leaf.
    assert_eq!(listed.len(), 3, "{listed:?}");
    let object = pool.mos().object(ObjectId(zap)).await.unwrap();
    assert!(cenote_dmu::Zap::open(object).await.unwrap().entries(1).await.unwrap().is_empty());
    Some(ObjectId(zap))
}

#[test]
fn the_root_has_a_table_of_attributes_from_the_beginning_or_from_an_upgrade_on() {
    for is_upgraded in [false, true] {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, Latency::default());
        runtime.block_on(async {
            let disabled: &[&str] = if is_upgraded { &["vdev_zaps_v2"] } else { &[] };
            let pool =
                make(&handle, without(options(machine.tops(&handle, SINGLE).await.unwrap(), 12), disabled)).await;
            pool.export().await.unwrap();
            if is_upgraded {
                let pool = whole(&handle, &machine, "made").await;
                assert_eq!((count(&pool, "vdev_zaps_v2").await, root_zap(&pool).await), (None, None));
                let pool = reopen(&handle, &machine.paths).await.unwrap();
                pool.enable_features(&["vdev_zaps_v2"]).await.unwrap();
                pool.sync().await.unwrap();
                let found = read(&handle, &machine.paths).await;
                assert!(root_zap(&found).await.is_some(), "with the configuration of the same txg");
                pool.export().await.unwrap();
            }
            let pool = whole(&handle, &machine, "with a table").await;
            let zap = root_zap(&pool).await;
            assert!(zap.is_some() && count(&pool, "vdev_zaps_v2").await == Some(1));
            // It stays that one.
            reopen(&handle, &machine.paths).await.unwrap().export().await.unwrap();
            let pool = whole(&handle, &machine, "opened again").await;
            assert_eq!((root_zap(&pool).await, count(&pool, "vdev_zaps_v2").await), (zap, Some(1)));
        });
    }
}
