//! Label probing against pools that OpenZFS made: every label of every image is good, agrees with `zdb -l`, and stays
//! readable while any one label is.

use cenote_format::label::{LABEL_BYTES, RING_OFFSET, VDEV_PHYS_OFFSET};
use cenote_taskq::{Device, RamDevice, Runtime};
use cenote_testkit as golden;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::leaf::{DeviceReport, LabelProblem, probe_device};

fn probe(name: &str, bytes: Vec<u8>) -> DeviceReport {
    let device = Device::from_driver(RamDevice::new(name, bytes));
    Runtime::simulated(1).block_on(async move { probe_device(&device).await })
}

fn images(theme: &str) -> Vec<(String, Vec<u8>)> {
    let theme = golden::theme(theme);
    let files = theme.manifest().unwrap().images;
    files.into_iter().map(|image| (image.file.clone(), theme.image_bytes(&image.file).unwrap())).collect()
}

#[test]
fn every_label_of_a_mirror_is_read_and_names_the_same_pool() {
    let zdb = golden::theme("mirror3").zdb_text().unwrap();
    let mut guids = Vec::new();
    for (file, bytes) in images("mirror3") {
        let report = probe(&file, bytes);
        assert!(report.partitions.is_empty());
        let label = &report.whole;
        assert_eq!(label.good_labels(), 4, "{file}");
        assert!(label.labels.iter().all(|label| label.bad_slots.is_empty()));
        assert!(label.labels.iter().all(|label| label.boot_env.is_ok()));
        let config = VdevConfig::parse(label.best_config().unwrap().list("vdev_tree").unwrap()).unwrap();
        assert_eq!(config.kind, VdevKind::Mirror);
        assert_eq!(config.children.len(), 3);
        let guid = label.guid().unwrap();
        assert!(config.leaves().iter().any(|leaf| leaf.guid == guid));
        assert!(zdb.contains(&format!("guid: {guid}")));
        assert!(zdb.contains(&format!("pool_guid: {}", label.pool_guid().unwrap())));
        guids.push(guid);
        // The youngest uberblock stands in all labels of the device.
        let best = label.best_uberblock().unwrap().uberblock;
        assert_eq!(label.uberblocks.iter().filter(|copy| copy.uberblock == best).count(), 4);
        let shown =
            zdb.lines().filter_map(|line| line.trim().strip_prefix("txg = ")).any(|txg| txg == best.txg.to_string());
        assert!(shown, "zdb -u shows txg {}", best.txg);
    }
    guids.dedup();
    assert_eq!(guids.len(), 3);
}

#[test]
fn a_raidz_label_tells_the_layout() {
    for (file, bytes) in images("raidz1") {
        let report = probe(&file, bytes);
        let config = VdevConfig::parse(report.whole.best_config().unwrap().list("vdev_tree").unwrap()).unwrap();
        let VdevKind::Raidz { parity: 1, expanding: false, expand_txgs } = &config.kind else {
            panic!("{:?}", config.kind)
        };
        assert!(expand_txgs.is_empty());
        assert_eq!(config.display_name(), "raidz1-0");
        assert_eq!((config.children.len(), config.ashift), (3, 12));
    }
}

#[test]
fn the_zfs_partition_of_a_whole_disk_is_found() {
    for (file, bytes) in images("basic_gpt") {
        let report = probe(&file, bytes);
        let found: Vec<_> = report.labelled().collect();
        assert_eq!(found.len(), 1, "{file}");
        assert!(found[0].disk.start_bytes() > 0);
        assert_eq!(found[0].good_labels(), 4);
        assert!(report.partitions[0].0.is_zfs);
    }
}

/// Damages all labels but one, in turn, and each part of one label by itself: what is whole is still read, and what is
/// not says why.
#[test]
fn one_good_label_is_enough_and_each_damage_is_named() {
    let (file, bytes) = images("mirror3").swap_remove(0);
    let len = bytes.len();
    let address = |index: usize| if index < 2 { index * LABEL_BYTES } else { len - (4 - index) * LABEL_BYTES };
    for survivor in 0..4 {
        let mut damaged = bytes.clone();
        for label in (0..4).filter(|label| *label != survivor) {
            damaged[address(label)..][..LABEL_BYTES].fill(0xa5);
        }
        let report = probe(&file, damaged).whole;
        assert_eq!(report.good_labels(), 1);
        assert!(report.best_config().is_some());
        assert!(!report.uberblocks.is_empty());
        assert!(report.uberblocks.iter().all(|copy| copy.label == survivor));
        assert_eq!(report.labels[(survivor + 1) % 4].config, Err(LabelProblem::Checksum));
    }
    let mut damaged = bytes.clone();
    damaged[address(1) + VDEV_PHYS_OFFSET + 100] ^= 1;
    damaged[address(2)..][..LABEL_BYTES].fill(0);
    let report = probe(&file, damaged).whole;
    assert_eq!(report.labels[1].config, Err(LabelProblem::Checksum));
    assert!(report.labels[1].unverified_config().is_some());
    assert_eq!(report.labels[2].config, Err(LabelProblem::Empty));
    assert_eq!(report.good_labels(), 2);

    // Without any configuration, the rings are found all the same.
    let mut damaged = bytes.clone();
    for label in 0..4 {
        damaged[address(label) + VDEV_PHYS_OFFSET..][..1000].fill(0);
    }
    let slot = probe(&file, bytes).whole.best_uberblock().copied().unwrap();
    damaged[RING_OFFSET + (slot.slot << slot.slot_shift) + 20] ^= 1;
    let report = probe(&file, damaged).whole;
    assert_eq!(report.good_labels(), 0);
    assert_eq!(report.best_uberblock().unwrap().uberblock, slot.uberblock);
    assert_eq!(report.labels[0].bad_slots, [slot.slot]);
}

#[test]
fn what_is_no_pool_is_no_pool() {
    for bytes in [Vec::new(), vec![0; 1000], vec![0; 1 << 20], vec![0xff; 64 << 20]] {
        let report = probe("nothing", bytes);
        assert_eq!(report.labelled().count(), 0);
        assert!(report.whole.uberblocks.is_empty());
    }
}
