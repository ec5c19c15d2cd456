//! Reads every block of pools that OpenZFS made, every copy and every parity column of it, then without as many devices as
//! the redundancy allows.
//!
//! That parity computed from the data equals what OpenZFS wrote, column by column, shows that the layouts are OpenZFS's.

use crate::common;

use cenote_format::ids::Guid;
use cenote_testkit::{Golden, Theme};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::fault::FaultKind;
use common::{Mode, Pool};

/// The whole set where the environment names one; otherwise those that every checkout has and that tell vdevs apart.
fn themes() -> Vec<Theme> {
    let all = Golden::find().unwrap().themes().unwrap();
    if std::env::var_os("CENOTE_GOLDEN").is_some() {
        return all;
    }
    all.into_iter().filter(|theme| ["mirror3", "raidz1", "basic_gpt"].contains(&theme.name())).collect()
}

/// The image that was silently corrupted when the theme was made.
fn liar(theme: &Theme) -> Option<&'static str> {
    match theme.name() {
        "degraded_mirror" => Some("b.img"),
        "degraded_raidz" => Some("d4.img"),
        _ => None,
    }
}

/// How many of a vdev's children it can do without.
fn redundancy(top: &VdevConfig) -> usize {
    match &top.kind {
        VdevKind::Mirror => top.children.len() - 1,
        VdevKind::Raidz { parity, .. } | VdevKind::Draid { parity, .. } => *parity as usize,
        _ => 0,
    }
}

#[test]
fn every_copy_of_every_block_is_good() {
    for theme in themes() {
        let pool = Pool::open(&theme);
        let tree = pool.tree(&[]);
        let walk = pool.walk(&tree, Mode::Every);
        eprintln!("{}: {} blocks, {} copies and columns", theme.name(), walk.blocks, walk.copies);
        assert_eq!(walk.errors, Vec::<String>::new(), "{}", theme.name());
        assert!(walk.blocks > 50, "{}", theme.name());
        // Pools may have devices that are absent or stale; only those made to lie do.
        let mut wrong: Vec<_> = walk.bad.iter().filter(|fault| fault.kind == FaultKind::Checksum).collect();
        if let Some(liar) = liar(&theme) {
            let count = wrong.len();
            assert!(count > 20, "{}: only {count} lies found", theme.name());
            wrong.retain(|fault| *fault.path != *liar);
        }
        assert!(wrong.is_empty(), "{}: {} wrong, first {}", theme.name(), wrong.len(), wrong[0]);
        assert_eq!(tree.status().errors, Default::default());
        assert!(tree.fault_log().snapshot().iter().all(|fault| Some(&*fault.path) == liar(&theme)));
        for (guid, missed) in &pool.missed {
            let path = pool.config.leaves().iter().find(|leaf| leaf.guid == *guid).and_then(|leaf| leaf.path.clone());
            eprintln!("{}: {:?} has missed {:?}", theme.name(), path, missed.ranges());
        }
    }
}

#[test]
fn everything_is_readable_without_as_many_devices_as_redundancy_allows() {
    for theme in themes() {
        let pool = Pool::open(&theme);
        // Skips the first disk of each vdev, so that columns from the middle have to be rebuilt, then takes every other.
        let mut lost: Vec<Guid> = Vec::new();
        for top in &pool.config.children {
            let there = |leaf: &&&VdevConfig| pool.disks.contains_key(&leaf.guid) && !leaf.state.offline;
            let absent = top.children.iter().filter(|child| !child.leaves().iter().any(|leaf| there(&leaf))).count();
            let can_lose = redundancy(top).saturating_sub(absent);
            let order = (1..top.children.len()).step_by(2).chain((0..top.children.len()).step_by(2));
            let victims =
                order.map(|index| &top.children[index]).filter(|child| child.leaves().iter().any(|leaf| there(&leaf)));
            lost.extend(victims.take(can_lose).flat_map(|child| child.leaves()).map(|leaf| leaf.guid));
        }
        if lost.is_empty() {
            continue;
        }
        let tree = pool.tree(&lost);
        assert!(tree.status().state.is_readable());
        let walk = pool.walk(&tree, Mode::Any);
        eprintln!("{}: {} blocks without {} disks", theme.name(), walk.blocks, lost.len());
        assert_eq!(walk.errors, Vec::<String>::new(), "{}", theme.name());
        assert!(tree.fault_log().snapshot().iter().all(|fault| Some(&*fault.path) == liar(&theme)));
    }
}
