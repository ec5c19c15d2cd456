//! Bodies of the fuzz targets: each takes arbitrary bytes and must return.

use std::collections::BTreeSet;

use cenote_format::ids::{Txg, VdevId};
use cenote_format::label::{BOOT_AREA_OFFSET, START_BYTES};
use cenote_format::nvlist::NvList;

use crate::config::VdevConfig;
use crate::layout::StripeMap;
use crate::layout::draid::Draid;
use crate::layout::raidz::{Raidz, Reflow};
use crate::partition;
use crate::tree::VdevTree;

/// The rest of the input is cut to this much, to spend the time on short inputs.
const DISK_BYTES: usize = 64 << 10;

/// An nvlist, taken as a vdev tree (or a label's configuration with one), opened without any disk.
pub fn config(input: &[u8]) {
    let Ok(list) = NvList::parse(input) else { return };
    let Ok(mut config) = VdevConfig::parse(list.list("vdev_tree").unwrap_or(&list)) else { return };
    assert!(config.leaves().len() <= input.len());
    let _ = config.display_name();
    if config.kind != crate::config::VdevKind::Root {
        let top = VdevConfig { id: 0, ..config.clone() };
        config = VdevConfig { kind: crate::config::VdevKind::Root, children: vec![top], ..config };
        // The root's guid need only differ.
        config.guid.0 = !config.guid.0;
    }
    let Ok(tree) = VdevTree::open(&config, []) else { return };
    let _ = tree.status();
    for id in 0..tree.top_count() as u32 {
        let asize = tree.psize_to_asize(VdevId(id), 4096, Txg(1));
        assert!(asize.is_some_and(|asize| asize >= 4096));
    }
}

/// Parameters of a layout and a block, in small bytes; where it can be laid out, the layout must be sound.
pub fn layout(input: &[u8]) {
    let Some((&[kind, parity, data, more, ashift, groups, birth, state], rest)) = input.split_first_chunk() else {
        return;
    };
    let Some((numbers, _)) = rest.split_first_chunk::<12>() else { return };
    let offset =
        u64::from_le_bytes([numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], 0, 0]) << 9;
    let size = u64::from(u32::from_le_bytes([numbers[6], numbers[7], numbers[8], 0]) % (1 << 21));
    let synced = u64::from_le_bytes([0, numbers[9], numbers[10], numbers[11], 0, 0, 0, 0]) << 9;
    let ashift = u32::from(ashift % 20);
    let (parity, data, more) = (u64::from(parity % 5), u64::from(data % 24), u64::from(more % 8));
    let children = (parity + data + more) as usize;
    if kind % 2 == 0 {
        let txgs: Vec<Txg> = (0..u64::from(groups % 4)).map(|index| Txg(index * 40)).collect();
        let Ok(raidz) = Raidz::new(ashift, parity, children, &txgs, state & 1 != 0) else { return };
        let reflow = Reflow::at(synced, state & 2 != 0);
        let birth = Txg(u64::from(birth));
        let Ok(map) = raidz.map(offset, size, birth, reflow) else { return };
        check_map(&map, children, size);
        assert!(raidz.psize_to_asize(size, birth) >= size);
        for set in raidz.suspects(&map, offset, birth) {
            assert!(set.is_sorted() && set.iter().all(|index| *index < map.columns().len()));
        }
    } else {
        let Ok(draid) = Draid::new(ashift, parity, data, more, u64::from(groups), children) else { return };
        let offset = offset - offset % (draid.group_width() << ashift);
        let Ok(map) = draid.map(offset, size) else { return };
        check_map(&map, children, size);
        assert!(draid.psize_to_asize(size) >= size);
    }
}

/// Every byte of the block once, nothing twice on a child, nothing in a label.
fn check_map(map: &StripeMap, children: usize, size: u64) {
    assert!(map.block_bytes() >= size);
    let mut covered = 0;
    let mut places: Vec<(u32, u64, u64)> = Vec::new();
    for row in map.rows() {
        let used: BTreeSet<u32> = row.iter().map(|column| column.child).collect();
        assert_eq!(used.len(), row.len());
        for (index, column) in row.iter().enumerate() {
            assert!((column.child as usize) < children);
            assert!(column.address_bytes >= BOOT_AREA_OFFSET);
            assert!(column.size_bytes + column.padding_bytes <= row[0].size_bytes);
            if index >= map.parity_count() {
                covered += column.size_bytes;
                assert!(column.size_bytes == 0 || column.block_offset_bytes + column.size_bytes <= map.block_bytes());
            }
            if column.size_bytes != 0 {
                places.push((column.child, column.address_bytes, column.size_bytes));
            }
        }
    }
    assert_eq!(covered, map.block_bytes());
    places.sort_unstable();
    // While an expansion runs, part of a block may be at its new place in the scratch area and part at its old place.
    let overlap = places.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1);
    let is_scratch = |address: u64| address < START_BYTES;
    assert!(overlap.is_none_or(|pair| is_scratch(pair[0].1) != is_scratch(pair[1].1)), "{overlap:?}");
}

/// A partition table's entries, sealed into a table with right checksums; and the input as it is, as a disk.
pub fn partitions(input: &[u8]) {
    let input = &input[..input.len().min(DISK_BYTES)];
    let mut disk = partition::sealed_table(input);
    disk.resize(disk.len().max(4096) + 4096, 0);
    for disk in [&disk[..], input] {
        for found in partition::partitions(disk, disk, disk.len() as u64) {
            assert!(found.size_bytes != 0 && found.start_bytes + found.size_bytes <= disk.len() as u64);
        }
    }
}
