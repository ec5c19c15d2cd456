//! Labels as they are written: byte for byte OpenZFS's where it wrote the same, and a good pool on the disks whenever the
//! power goes.

use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::{DeviceLayout, RING_OFFSET, VDEV_PHYS_BYTES, VDEV_PHYS_OFFSET, slot_bytes};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Class, Device, OpenOptions, RamDevice, Runtime};
use cenote_testkit::Golden;
use cenote_vdev::commit::{CommitError, LeafCommit, clear, commit, initialize};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::{LabelProblem, LabelReport, probe};
use cenote_vdev::ring::Ring;

fn probed(runtime: &Runtime, disk: &Disk) -> LabelReport {
    runtime.block_on(probe(disk))
}

fn bytes(runtime: &Runtime, disk: &Disk, address: u64, len: usize) -> Vec<u8> {
    let (result, buf) = runtime.block_on(disk.read(address, cenote_taskq::buf::Buf::zeroed(len)));
    result.unwrap();
    buf.to_vec()
}

#[test]
fn labels_and_uberblocks_are_those_that_openzfs_writes() {
    for name in ["basic", "mirror3", "raidz1"] {
        let theme = Golden::find().unwrap().theme(name).unwrap();
        let runtime = Runtime::simulated(1);
        let image = theme.image_bytes(&theme.manifest().unwrap().images[0].file).unwrap();
        let size = image.len();
        let theirs = Disk::whole(Device::from_driver(RamDevice::new("theirs", image)));
        let ours = Disk::whole(Device::from_driver(RamDevice::new("ours", vec![0; size])));
        let report = probed(&runtime, &theirs);
        let config = report.best_config().unwrap().as_ref().clone();
        let newest = *report.best_uberblock().unwrap();
        let ashift = config.list("vdev_tree").unwrap().u64("ashift").unwrap() as u32;
        runtime.block_on(initialize(&ours, &config)).unwrap();
        assert!(probed(&runtime, &ours).uberblocks.is_empty());
        let leaf = LeafCommit {
            guid: Guid(1),
            disk: ours.clone(),
            top: Some(VdevId(0)),
            ashift,
            config: None,
            takes_uberblock: true,
        };
        assert!(runtime.block_on(commit(&[leaf], &newest.uberblock, &mut Ring::default())).unwrap().is_empty());
        let layout = DeviceLayout::new(size as u64).unwrap();
        for (index, label) in layout.label_offsets().into_iter().enumerate() {
            let slot = (RING_OFFSET + newest.slot * slot_bytes(ashift)) as u64;
            let parts = [(VDEV_PHYS_OFFSET as u64, VDEV_PHYS_BYTES), (slot, slot_bytes(ashift))];
            for (offset, len) in parts {
                let (ours, theirs) =
                    (bytes(&runtime, &ours, label + offset, len), bytes(&runtime, &theirs, label + offset, len));
                assert!(ours == theirs, "{name}: label {index} at {offset:#x}");
            }
        }
        let found = probed(&runtime, &ours);
        assert_eq!(found.good_labels(), 4);
        assert!(found.labels.iter().all(|label| label.boot_env.is_ok()));
        runtime.block_on(clear(&ours, &found)).unwrap();
        assert!(probed(&runtime, &ours).labels.iter().all(|label| label.config == Err(LabelProblem::Empty)));
    }
}

fn config(txg: u64) -> NvList {
    let mut tree = NvList::new();
    tree.push("ashift", 12_u64);
    let mut list = NvList::new();
    list.push("txg", txg);
    list.push("guid", 5_u64);
    list.push("vdev_tree", tree);
    // As long as a label of many disks.
    list.push("comment", "x".repeat(20_000).as_str());
    list
}

fn uberblock(txg: u64) -> Uberblock {
    let theme = Golden::selection().unwrap().theme("basic").unwrap();
    let runtime = Runtime::simulated(1);
    let image = theme.image_bytes("a.img").unwrap();
    let disk = Disk::whole(Device::from_driver(RamDevice::new("a", image)));
    let uberblock = probed(&runtime, &disk).best_uberblock().unwrap().uberblock;
    Uberblock { txg: Txg(txg), ..uberblock }
}

/// The power fails at some moment of a commit. The disks then hold the old pool or the new one: an uberblock, and on every disk that took
/// part a label with the configuration that goes with it.
#[test]
fn whenever_the_power_goes_the_labels_hold_the_old_pool_or_the_new_one() {
    let (old, new) = (uberblock(10), uberblock(11));
    let (mut saw_old, mut saw_new, mut cut) = (0, 0, 0);
    for seed in 0..200_u64 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = Latency {
            write: Duration::from_micros(200),
            flush: Duration::from_micros(300),
            jitter: Duration::from_micros(300),
            ..Latency::default()
        };
        let options = || SimDiskOptions { size_bytes: 64 << 20, latency, ..SimDiskOptions::default() };
        let sim = runtime.sim().unwrap();
        let disks: Vec<_> = (0..2).map(|index| sim.add_disk(&handle, format!("/disk{index}"), options())).collect();
        let leaves = |txg: u64| -> Vec<LeafCommit> {
            (0..2)
                .map(|index| {
                    let path = format!("/disk{index}");
                    let options = OpenOptions { write: true, ..OpenOptions::default() };
                    let device = runtime.block_on(handle.open(path.as_ref(), options)).unwrap();
                    LeafCommit {
                        guid: Guid(index),
                        disk: Disk::whole(device),
                        top: Some(VdevId(0)),
                        ashift: 12,
                        config: Some(config(txg)),
                        takes_uberblock: true,
                    }
                })
                .collect()
        };
        let first = leaves(10);
        for leaf in &first {
            runtime.block_on(initialize(&leaf.disk, &config(10))).unwrap();
        }
        runtime.block_on(commit(&first, &old, &mut Ring::default())).unwrap();
        let (second, uberblock) = (leaves(11), new);
        let committing =
            handle.spawn(Class::Sync, async move { commit(&second, &uberblock, &mut Ring::default()).await });
        let moment = Duration::from_micros(seed * 20);
        let is_done = runtime.block_on(async {
            handle.sleep(moment).await;
            disks.iter().for_each(|disk| disk.crash(Crash::Random));
            committing.await.unwrap().is_ok()
        });
        disks.iter().for_each(|disk| disk.power_on());
        let reports: Vec<LabelReport> = first.iter().map(|leaf| probed(&runtime, &leaf.disk)).collect();
        let newest =
            reports.iter().filter_map(|report| report.best_uberblock()).map(|copy| copy.uberblock.txg).max().unwrap();
        assert!(newest == Txg(11) || (newest == Txg(10) && !is_done), "seed {seed}: {newest:?}");
        for report in &reports {
            let txgs: Vec<u64> =
                report.labels.iter().filter_map(|label| label.config.as_ref().ok()?.u64("txg")).collect();
            assert!(txgs.contains(&newest.0), "seed {seed}: uberblock {newest:?}, labels {txgs:?}");
        }
        saw_old += u32::from(newest == Txg(10));
        saw_new += u32::from(newest == Txg(11));
        cut += u32::from(!is_done);
    }
    assert!(saw_old > 25 && saw_new > 25 && cut > 50, "{saw_old} old, {saw_new} new, {cut} cut");
}

#[test]
fn one_disk_of_a_vdev_suffices_and_none_is_an_error_that_names_it() {
    let runtime = Runtime::simulated(3);
    let leaf = |index: u64, size: usize| LeafCommit {
        guid: Guid(index),
        disk: Disk::whole(Device::from_driver(RamDevice::new(format!("disk{index}"), vec![0; size]))),
        top: Some(VdevId(4)),
        ashift: 12,
        config: Some(config(10)),
        takes_uberblock: true,
    };
    // A disk too small for labels takes nothing.
    let leaves = [leaf(1, 64 << 20), leaf(2, 1 << 20)];
    let refusals = runtime.block_on(commit(&leaves, &uberblock(10), &mut Ring::default())).unwrap();
    assert_eq!(refusals.iter().map(|refusal| refusal.guid).collect::<Vec<_>>(), [Guid(2)]);
    assert!(refusals[0].error.to_string().contains("too small for labels"), "{:?}", refusals[0]);
    let error = runtime.block_on(commit(&[leaf(2, 1 << 20)], &uberblock(10), &mut Ring::default())).unwrap_err();
    assert!(matches!(error, CommitError::Label { vdev: VdevId(4), .. }), "{error}");
    let unlabelled = LeafCommit { config: None, ..leaf(2, 1 << 20) };
    let error = runtime.block_on(commit(&[unlabelled], &uberblock(10), &mut Ring::default())).unwrap_err();
    assert!(matches!(error, CommitError::Uberblock { txg: 10, .. }), "{error}");
    let mut huge = config(10);
    huge.push("much", "y".repeat(120_000).as_str());
    let error = runtime.block_on(initialize(&leaf(1, 64 << 20).disk, &huge)).unwrap_err();
    assert!(error.to_string().contains("does not fit"), "{error}");
}
