//! Sizes of new pools, and of their contents.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use cenote_host::layout::{Layout, Top};
use cenote_spa::TopKind;

/// Space for a file in addition to its data: a dnode and its share of directories, in two copies, and the old blocks that a txg keeps.
const ENTRY_BYTES: u64 = 4 << 10;
/// Space for labels, for metadata in three copies, and for the txgs of a new pool; measured with pools of 64 MiB to 2 GiB.
const KEPT_BACK_BYTES: u64 = 24 << 20;

/// The smallest device of a pool.
const LEAST_BYTES: u64 = 64 << 20;

/// The total size of all files and devices of a new pool.
///
/// Devices that cannot be opened count as 0.
pub fn size_of_devices(layout: &Layout, size: Option<u64>) -> u64 {
    let size_of = |path: &Path| -> u64 {
        // The end of a block device is its size; its metadata has none.
        let end = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        size.or(end.ok()).unwrap_or(0)
    };
    layout.paths().map(size_of).fold(0, u64::saturating_add)
}

/// Space for all readable files below a directory.
pub fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0_u64;
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                left.push(entry.path());
            }
            let data_bytes = if found.is_file() { found.len() } else { 0 };
            bytes = bytes.saturating_add(ENTRY_BYTES).saturating_add(data_bytes);
        }
    }
    bytes
}

/// The size for each of a pool's files, in whole MiB, that suffices for `data_bytes` of incompressible data.
pub fn size_that_is_enough(layout: &Layout, data_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    // The disks of a top-level vdev that store data rather than copies or parity, in thousandths.
    let share = |top: &Top| match (top.kind, top.paths.len() as u64) {
        (TopKind::Single | TopKind::Mirror, _) => 1000,
        (TopKind::Raidz { parity }, disks) => 1000 * disks.saturating_sub(parity).max(1),
        (TopKind::Draid { parity, data, spares }, disks) => {
            let group = data.unwrap_or(8).max(1);
            1000 * disks.saturating_sub(spares).max(1) * group / (group + parity)
        }
    };
    let shares = layout.tops.iter().map(share).sum::<u64>().max(1);
    let is_striped = layout.tops.iter().any(|top| !matches!(top.kind, TopKind::Single | TopKind::Mirror));
    // Metadata, and the padding of stripes; and a thirty-second that a pool reserves.
    let beside = if is_striped { data_bytes / 8 } else { data_bytes / 64 };
    let wanted = data_bytes.saturating_add(beside).saturating_mul(1000) / shares;
    (wanted + wanted / 32 + KEPT_BACK_BYTES).max(LEAST_BYTES).div_ceil(MIB) * MIB
}
