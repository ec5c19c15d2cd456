//! Names of vdevs.

use cenote_vdev::config::{VdevConfig, VdevKind};

/// Folders of devices that names leave out; OpenZFS searches these on Linux.
const DEVICE_DIRS: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// The form of names of vdevs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names {
    /// Show guids.
    is_guid: bool,
    /// Follow links to the real device.
    is_followed: bool,
    /// Show full paths.
    is_full: bool,
    /// Show the path of a missing leaf, not its guid.
    is_path_if_missing: bool,
}

impl Names {
    /// Names by these choices. A missing leaf is shown by its guid.
    pub const fn new(is_guid: bool, is_followed: bool, is_full: bool) -> Self {
        Self { is_guid, is_followed, is_full, is_path_if_missing: false }
    }

    /// The same, but missing leaves are shown by their paths.
    pub fn with_paths(self) -> Self {
        Self { is_path_if_missing: true, ..self }
    }

    /// True if a missing leaf is shown by its guid.
    pub(crate) fn hides_missing(self) -> bool {
        !self.is_path_if_missing
    }

    /// The name of a vdev. `path`: a leaf's present path; `is_missing`: it was not found.
    pub fn of(self, config: &VdevConfig, path: Option<&str>, is_missing: bool) -> String {
        if self.is_guid || is_missing && !self.is_path_if_missing && config.kind.is_leaf() {
            return config.guid.0.to_string();
        }
        let Some(path) = path else { return config.display_name() };
        let mut path = path.to_owned();
        if self.is_followed
            && let Ok(real) = std::fs::canonicalize(&path)
        {
            path = real.to_string_lossy().into_owned();
        }
        if self.is_full || config.kind != VdevKind::Disk {
            return path;
        }
        match short(&path) {
            // For a disk used as a whole, the first partition is implied.
            Some(name) if config.whole_disk => without_partition(name).to_owned(),
            Some(name) => name.to_owned(),
            None => path,
        }
    }
}

fn short(path: &str) -> Option<&str> {
    DEVICE_DIRS.iter().find_map(|dir| path.strip_prefix(dir)?.strip_prefix('/'))
}

/// A device's path without its folder of devices; any other path unchanged.
pub(crate) fn without_dir(path: &str) -> &str {
    short(path).unwrap_or(path)
}

/// A disk's name from its partition's: `sda1`, `nvme0n1p1`, `ata-X-part1`.
fn without_partition(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((disk, number)) = name.rsplit_once("-part")
        && is_number(number)
    {
        return disk;
    }
    if let Some((disk, number)) = name.rsplit_once('p')
        && is_number(number)
        && disk.ends_with(|last: char| last.is_ascii_digit())
    {
        return disk;
    }
    let disk = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let is_plain = ["sd", "hd", "vd", "xvd"].iter().any(|kind| {
        disk.strip_prefix(kind).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_lowercase()))
    });
    if is_plain { disk } else { name }
}

#[cfg(test)]
mod tests {
    use super::without_partition;

    #[test]
    fn partitions_are_stripped_from_disks_alone() {
        let cases = [
            ("sda1", "sda"),
            ("vdab12", "vdab"),
            ("xvda1", "xvda"),
            ("nvme0n1p1", "nvme0n1"),
            ("ata-Disk_1-part1", "ata-Disk_1"),
            ("wwn-0x5000", "wwn-0x5000"),
            ("tank1", "tank1"),
            ("loop7", "loop7"),
        ];
        for (partition, disk) in cases {
            assert_eq!(without_partition(partition), disk);
        }
    }
}
