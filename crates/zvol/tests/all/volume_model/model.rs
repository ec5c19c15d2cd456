//! A volume and an array of bytes, changed alike.

use std::ops::Range;

use cenote_format::ids::Txg;
use cenote_spa::{PropertyValue, TopKind};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Rng, Runtime};
use cenote_zvol::{Volume, VolumeError, VolumeSpec};

use super::common::*;

/// A volume and what it should hold.
struct Pair {
    volume: Volume,
    model: Vec<u8>,
}

impl Pair {
    fn range(&self, rng: &mut Rng) -> Range<usize> {
        let size = self.volume.block_size_bytes();
        let start = rng.below(self.model.len() as u64);
        let most = if rng.chance(1, 4) { 8 * size } else { size + size / 2 };
        let len = 1 + rng.below(most);
        // Often at the edges of blocks.
        let (start, len) =
            if rng.chance(1, 3) { (start - start % size, len.next_multiple_of(size)) } else { (start, len) };
        start as usize..((start + len) as usize).min(self.model.len())
    }

    async fn change(&mut self, txg: Txg, rng: &mut Rng) {
        let range = self.range(rng);
        let claim = self.volume.claim(range.start as u64, range.len() as u64).await.unwrap();
        match rng.below(8) {
            0 => {
                claim.clear(txg).await.unwrap();
                self.model[range].fill(0);
            }
            1 => {
                claim.write_zeros(txg).await.unwrap();
                self.model[range].fill(0);
            }
            2 => {
                claim.discard(txg);
                let size = self.volume.block_size_bytes() as usize;
                let whole = range.start.next_multiple_of(size)..range.end / size * size;
                if !whole.is_empty() {
                    self.model[whole].fill(0);
                }
            }
            3 => {
                drop(claim);
                let size = self.volume.block_size_bytes();
                let blocks = 1 + rng.below(3 << 20) / size;
                let bytes = blocks * size;
                self.volume.claim_all().await.resize(txg, bytes).await.unwrap();
                self.model.resize(bytes as usize, 0);
            }
            _ => {
                let mut bytes = vec![0; range.len()];
                if rng.chance(3, 4) {
                    rng.fill(&mut bytes);
                }
                claim.write(txg, range.start as u64, &bytes).await.unwrap();
                self.model[range].copy_from_slice(&bytes);
            }
        }
    }

    async fn compare(&self, rng: &mut Rng) {
        assert_eq!(self.volume.size_bytes(), self.model.len() as u64);
        for _ in 0..4 {
            let range = self.range(rng);
            let read = self.volume.read(range.start as u64, range.len()).await.unwrap();
            let expected = &self.model[range.clone()];
            assert!(*read == *expected, "{range:?}: {:?}", first_difference(&read, expected));
        }
        // Past the end there is nothing.
        let end = self.model.len() as u64;
        assert!(self.volume.read(end, 512).await.unwrap().is_empty());
        let beyond = self.volume.claim(end - 1, 2).await.map(drop);
        assert!(matches!(beyond, Err(VolumeError::BeyondEnd { .. })));
        // Extents cover all of it, change from one to the next, and holes are zeros.
        let mut at = 0;
        let mut before = None;
        while at < end {
            let (extent, is_hole) = self.volume.extent(at, end).await.unwrap();
            assert!(extent.start == at && extent.end > at && extent.end <= end, "{extent:?} of {end}");
            assert_ne!(before.replace(is_hole), Some(is_hole), "{extent:?}");
            let bytes = &self.model[extent.start as usize..extent.end as usize];
            assert!(!is_hole || bytes.iter().all(|byte| *byte == 0), "{extent:?} is called a hole");
            at = extent.end;
        }
    }
}

#[test]
fn a_volume_is_as_an_array_that_the_same_was_done_to() {
    for seed in 0..14_u64 {
        let (kind, count) =
            [(TopKind::Single, 1), (TopKind::Mirror, 2), (TopKind::Raidz { parity: 1 }, 3)][seed as usize % 3];
        let runtime = Runtime::simulated(seed);
        let machine = Machine::new(&runtime, count, Latency::default());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            machine.make(kind, [9, 12][seed as usize % 2]).await;
            let block_bytes = [512, 4096, 8192, 16 << 10, 64 << 10, 128 << 10, 256 << 10][seed as usize % 7];
            let size_bytes = u64::from(block_bytes) * (1 + rng.below(40));
            let mut pool = machine.open().await;
            let (head, volume) = machine.volume(&pool, &VolumeSpec { size_bytes, block_bytes }).await;
            if seed % 4 == 3 {
                pool.set_property(&head, "compression", &PropertyValue::Number(2)).await.unwrap();
            }
            let mut pair = Pair { volume, model: vec![0; size_bytes as usize] };
            for round in 0..6 {
                for _ in 0..1 + rng.below(3) {
                    for _ in 0..rng.below(12) {
                        pair.change(pool.txg(), &mut rng).await;
                        pair.compare(&mut rng).await;
                    }
                    pool.sync().await.unwrap();
                    pair.compare(&mut rng).await;
                }
                // Not every process ends well; what was synced is there all the same.
                if round % 2 == 0 {
                    pool.export().await.unwrap();
                } else {
                    drop(pool);
                }
                machine.judge(Some(&pair.model)).await;
                pool = machine.open().await;
                let head = pool.open_head(VOLUME).await.unwrap();
                pair.volume = Volume::open(&head.objset).await.unwrap();
                pair.compare(&mut rng).await;
            }
            drop(pool);
        });
    }
}

/// The space reserved for a volume is in the accounts at once, and moves within them when it is used.
#[test]
fn reserved_space_counts_once_whether_it_is_used_or_not() {
    let runtime = Runtime::simulated(1);
    let machine = Machine::new(&runtime, 1, Latency::default());
    runtime.block_on(async {
        machine.make(TopKind::Single, 12).await;
        let pool = machine.open().await;
        let spec = VolumeSpec { size_bytes: 8 << 20, block_bytes: 16 << 10 };
        let (head, volume) = machine.volume(&pool, &spec).await;
        let size = spec.size_bytes;
        let reserved = pool.peek(move |syncer| syncer.volume_reservation_bytes(size, 16 << 10)).await.unwrap();
        pool.set_property(&head, "refreservation", &PropertyValue::Number(reserved)).await.unwrap();
        pool.sync().await.unwrap();
        let mut rng = Rng::new(3);
        let (mut highest, mut bytes) = (0, vec![0; 4 << 20]);
        for round in 0..6_u64 {
            let view = pool.dsl().unwrap();
            let dir = view.dir(VOLUME).await.unwrap().phys;
            let unique = view.dataset(VOLUME).await.unwrap().phys.unique_bytes;
            let [used, .., unused] = dir.used_breakdown_bytes;
            assert_eq!(used, unique, "round {round}");
            assert_eq!(unused, reserved.saturating_sub(unique), "round {round}");
            assert_eq!(dir.used_bytes, unique.max(reserved), "round {round}");
            let above = view.dir("pool").await.unwrap().phys;
            let children: u64 = above.used_breakdown_bytes[2];
            assert!(children >= dir.used_bytes, "{children}");
            highest = highest.max(unique);
            // Up, and down again.
            let txg = pool.txg();
            if round < 3 {
                rng.fill(&mut bytes);
                let at = (round % 2) * (4 << 20);
                volume.claim(at, 4 << 20).await.unwrap().write(txg, at, &bytes).await.unwrap();
            } else {
                volume.claim(0, (round - 2) << 20).await.unwrap().clear(txg).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        assert!(highest > 8 << 20);
        // More than there is in the volume, less, and none.
        for bytes in [64 << 20, 1 << 20, 0] {
            pool.change_property(VOLUME, "refreservation", Some(&PropertyValue::Number(bytes))).await.unwrap();
            pool.sync().await.unwrap();
            let view = pool.dsl().unwrap();
            let dir = view.dir(VOLUME).await.unwrap().phys;
            let unique = view.dataset(VOLUME).await.unwrap().phys.unique_bytes;
            assert_eq!(dir.used_bytes, unique.max(bytes));
            assert_eq!(dir.used_breakdown_bytes[4], bytes.saturating_sub(unique));
        }
        let before = pool.dsl().unwrap().dir("pool").await.unwrap().phys.used_breakdown_bytes[2];
        pool.change_property(VOLUME, "refreservation", Some(&PropertyValue::Number(32 << 20))).await.unwrap();
        pool.sync().await.unwrap();
        pool.destroy_dataset(VOLUME).await.unwrap();
        pool.sync().await.unwrap();
        let after = pool.dsl().unwrap().dir("pool").await.unwrap().phys.used_breakdown_bytes[2];
        assert!(after < before, "{before} to {after}");
        pool.export().await.unwrap();
        machine.judge(None).await;
    });
}
