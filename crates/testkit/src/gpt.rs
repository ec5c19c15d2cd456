//! Just enough of a GUID partition table to find where a whole-disk vdev begins.
//!
//! ```text
//!   sector 1: "EFI PART" … 72: first sector of the entries (u64)  80: count (u32)  84: bytes each (u32)
//!   an entry: 0 type GUID, 16 own GUID, 32 first sector (u64), 40 last sector (u64), little-endian
//! ```
//!
//! `zdb` wants the partition as a file of its own; the engine has its own reader.

use std::ops::Range;

const SECTOR_BYTES: usize = 512;

/// The byte range of the first partition in use, or `None` where there is no table.
pub fn first_partition(image: &[u8]) -> Option<Range<usize>> {
    let header = image.get(SECTOR_BYTES..2 * SECTOR_BYTES)?;
    if header.get(..8)? != b"EFI PART" {
        return None;
    }
    let entries_at = usize::try_from(u64_at(header, 72)?).ok()?.checked_mul(SECTOR_BYTES)?;
    let count = u32_at(header, 80)?.min(128) as usize;
    let entry_bytes = u32_at(header, 84)? as usize;
    if entry_bytes < 128 {
        return None;
    }
    for index in 0..count {
        let entry = image.get(entries_at.checked_add(index.checked_mul(entry_bytes)?)?..)?;
        if entry.get(..16)?.iter().all(|byte| *byte == 0) {
            continue;
        }
        let first = usize::try_from(u64_at(entry, 32)?).ok()?.checked_mul(SECTOR_BYTES)?;
        let end = usize::try_from(u64_at(entry, 40)?).ok()?.checked_add(1)?.checked_mul(SECTOR_BYTES)?;
        return (first < end && end <= image.len()).then_some(first..end);
    }
    None
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Golden;

    #[test]
    fn a_whole_disk_vdev_begins_at_one_mebibyte() {
        let theme = Golden::selection().unwrap().theme("basic_gpt").unwrap();
        let image = theme.image_bytes("a.img").unwrap();
        let part = first_partition(&image).unwrap();
        assert_eq!(part.start, 1 << 20);
        // The name/value list of the first label begins 16 KiB into the partition: XDR encoding is 1.
        assert_eq!(image[part.start + (16 << 10)], 1);
    }

    #[test]
    fn a_plain_image_has_no_partition() {
        assert_eq!(first_partition(&[0; 4096]), None);
        assert_eq!(first_partition(&[]), None);
    }
}
