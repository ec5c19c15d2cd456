//! Damage to disks: blind, and to labels with their checksums made right again.

use std::sync::Arc;

use cenote_codec::checksum::embedded::{label_verifier, seal_embedded};
use cenote_format::Endian;
use cenote_format::enums::Checksum;
use cenote_format::label::{LABEL_BYTES, RING_BYTES, RING_OFFSET, VDEV_PHYS_BYTES, VDEV_PHYS_OFFSET};
use cenote_format::uberblock::{MAGIC, Uberblock};
use cenote_taskq::sim::disk::SimDisk;

use crate::pools::{Image, PoolImages};
use crate::random::{Random, spoil};

const PAGE_BYTES: usize = 4096;

/// Spoils disks anywhere. Checksums are not made right.
pub fn blind(pool: &PoolImages, disks: &[Arc<SimDisk>], random: &mut Random) {
    let damages = 1 << random.below(8);
    for _ in 0..damages {
        let which = random.below(disks.len());
        let (image, disk) = (&pool.images[which], &disks[which]);
        let at = place(image, random);
        let mut page = disk.peek(at, PAGE_BYTES.min(image.content.len() - at as usize));
        match random.below(6) {
            0..=2 => spoil(&mut page, random),
            3 => page.fill(*random.of(&[0, 0xff])),
            4 => {
                let other = place(image, random);
                let len = page.len().min(image.content.len() - other as usize);
                page = disk.peek(other, len);
            }
            _ => page.iter_mut().for_each(|byte| *byte = random.word() as u8),
        }
        disk.poke(at, &page);
    }
}

/// The start of a page that is worth spoiling.
fn place(image: &Image, random: &mut Random) -> u64 {
    if random.once_in(4)
        && let Some((start, label)) = (!image.labels.is_empty()).then(|| *random.of(&image.labels))
    {
        return start + label + (random.below(LABEL_BYTES) as u64 & !(PAGE_BYTES as u64 - 1));
    }
    random.of(&image.used_pages) * PAGE_BYTES as u64
}

/// Damages the configuration or the ring of labels, and seals them with right checksums.
pub fn sealed(pool: &PoolImages, disks: &[Arc<SimDisk>], random: &mut Random) {
    let on_all_disks = random.once_in(2);
    let on_all_labels = !random.once_in(4);
    let which = random.below(disks.len());
    // The same change everywhere: one stream of numbers, begun again for each label.
    let change = random.word();
    let is_config = random.once_in(2);
    for (index, (image, disk)) in pool.images.iter().zip(disks).enumerate() {
        if !(on_all_disks || index == which) {
            continue;
        }
        for (number, (start, label)) in image.labels.iter().enumerate() {
            if on_all_labels || number == change as usize % image.labels.len() {
                if is_config {
                    config(disk, *start, *label, &mut Random::new(change));
                } else {
                    ring(disk, *start, *label, &mut Random::new(change));
                }
            }
        }
    }
}

fn seal(block: &mut [u8], offset_bytes: u64, order: Endian) {
    // A block too small for a checksum is none that was read.
    let _ = seal_embedded(Checksum::Label, block, label_verifier(offset_bytes), order, None);
}

fn config(disk: &SimDisk, start: u64, label: u64, random: &mut Random) {
    let at = label + VDEV_PHYS_OFFSET as u64;
    let mut block = disk.peek(start + at, VDEV_PHYS_BYTES);
    let covered = block.len() - 40;
    let used = block[..covered].iter().rposition(|byte| *byte != 0).map_or(covered, |last| last + 1);
    for _ in 0..1 << random.below(4) {
        spoil(&mut block[..used], random);
    }
    seal(&mut block, at, Endian::Little);
    disk.poke(start + at, &block);
}

fn ring(disk: &SimDisk, start: u64, label: u64, random: &mut Random) {
    let slot_bytes = 4096;
    let times = 1 << random.below(3);
    let change = random.word();
    let only = random.once_in(3).then(|| random.below(RING_BYTES / slot_bytes));
    for slot in 0..RING_BYTES / slot_bytes {
        if only.is_some_and(|only| only != slot) {
            continue;
        }
        let at = label + (RING_OFFSET + slot * slot_bytes) as u64;
        let mut block = disk.peek(start + at, slot_bytes);
        if block[..8] != MAGIC.to_le_bytes() {
            continue;
        }
        let mut random = Random::new(change);
        for _ in 0..times {
            spoil(&mut block[..Uberblock::SIZE + 16], &mut random);
        }
        seal(&mut block, at, Endian::Little);
        disk.poke(start + at, &block);
    }
}
