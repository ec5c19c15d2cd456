//! Space maps that contradict the pool or themselves: what opens them says so, and no txg of them comes to a panic.

use cenote_format::ids::Txg;
use cenote_format::spacemap::SpaceMapPhys;
use cenote_metaslab::*;
use cenote_vdev::config::AllocationClass;

use crate::common::*;

const FEATURES: SpaceFeatures = SpaceFeatures { spacemap_v2: true, log_spacemap: true };
const METASLAB_SHIFT: u32 = 22;

/// A vdev of so many metaslabs after txg 4, which has allocated a little.
fn made(metaslabs: u64) -> (Disk, Vec<VdevSetup>) {
    let vdevs = vec![vdev(0, AllocationClass::Normal, 12, METASLAB_SHIFT, metaslabs)];
    let mut disk = Disk::default();
    let mut allocator = Allocator::new(FEATURES, Tunables::default(), false);
    vdevs.iter().for_each(|setup| allocator.add_vdev(setup.clone(), true).unwrap());
    for _ in 0..10 {
        allocate(&mut allocator, &disk, &request(Txg(4), 4096, 1)).unwrap();
    }
    allocator.sync(&mut disk, Txg(4), 1).unwrap();
    allocator.close_txg(&mut disk).unwrap();
    allocator.sync_done(Txg(4), &Keep::USUAL, 0).unwrap();
    (disk, vdevs)
}

fn fault_of_opening(disk: &Disk, vdevs: &[VdevSetup], synced: Txg) -> String {
    match try_reopen(disk, vdevs, FEATURES, &Tunables::default(), synced) {
        Ok(_) => panic!("it was opened"),
        Err(problem) => problem.to_string(),
    }
}

#[test]
fn a_log_of_a_txg_that_is_to_come_is_refused() {
    let (mut disk, vdevs) = made(3);
    assert!(try_reopen(&disk, &vdevs, FEATURES, &Tunables::default(), Txg(4)).is_ok());
    let object = disk.logs.remove(&Txg(4)).unwrap();
    disk.logs.insert(Txg(1000), object);
    let fault = fault_of_opening(&disk, &vdevs, Txg(4));
    assert!(fault.contains("log of txg 1000: the pool is at txg 4 only"), "{fault}");
}

#[test]
fn a_metaslab_that_was_flushed_in_a_txg_to_come_is_refused() {
    let (disk, vdevs) = made(3);
    let fault = fault_of_opening(&disk, &vdevs, Txg(3));
    assert!(fault.contains("was last flushed in txg 4, and the pool is at txg 3"), "{fault}");
}

/// The header of the only metaslab's map says that more is allocated than its entries make: nothing can be allocated there, txgs
/// go on.
#[test]
fn a_header_that_contradicts_its_entries_keeps_its_metaslab_out_of_use() {
    for claimed_bytes in [4096, (1 << METASLAB_SHIFT) - 40960, 1 << METASLAB_SHIFT] {
        let (mut disk, vdevs) = made(1);
        let again = reopen(&disk, &vdevs, FEATURES, &Tunables::default());
        let object = again.metaslabs().find_map(Metaslab::map).unwrap().object;
        let mut header: SpaceMapPhys = disk.header(object);
        assert_ne!(header.allocated_bytes, claimed_bytes, "the header is right");
        header.allocated_bytes = claimed_bytes;
        header.histogram.as_mut().unwrap()[10] = 1;
        disk.set_header(object, &header).unwrap();
        let Ok(mut allocator) = try_reopen(&disk, &vdevs, FEATURES, &Tunables::default(), Txg(4)) else { continue };
        for txg in 5..9 {
            match allocator.allocate(&request(Txg(txg), 4096, 1)) {
                Err(AllocError::NeedsLoad(id)) => {
                    let fault = try_load_metaslab(&mut allocator, &disk, id, Txg(txg)).unwrap_err();
                    assert!(fault.to_string().contains("bytes"), "{claimed_bytes}: {fault}");
                    allocator.give_up_load(id, txg * 5000).unwrap();
                }
                Err(AllocError::NoSpace { .. }) => {}
                other => panic!("{claimed_bytes}: {other:?}"),
            }
            allocator.sync(&mut disk, Txg(txg), 1).unwrap();
            allocator.close_txg(&mut disk).unwrap();
            allocator.sync_done(Txg(txg), &Keep::USUAL, 0).unwrap();
        }
    }
}
