//! The users of a file or block device, as far as the kernel says: for messages, and to know whether waiting may help.
//!
//! `/proc/self/mountinfo` has the mounts, `/proc/swaps` the swap areas, `/sys/dev/block/MAJOR:MINOR` a device's partitions, whole
//! disk, loop file, and what lies above and below it (`holders`, `slaves`), `/proc/locks` the locks of files, and `/proc/PID/fd`
//! the devices that a process has open. Each may be missing: then less is known.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Processes that are named at most.
const PROCESSES_MAX: usize = 3;
/// Bytes of a file of the kernel's that are read at most.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a sector in sysfs, whatever the device's sectors are.
const SYSFS_SECTOR_BYTES: u64 = 512;

/// The storage that a path leads to, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A block device, by its number.
    Device(u64),
    /// Anything else, by its inode.
    Inode {
        /// The number of the device that its file system is on.
        device: u64,
        /// Its number there.
        number: u64,
    },
}

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self::Device(metadata.rdev()),
            false => Self::Inode { device: metadata.dev(), number: metadata.ino() },
        }
    }
}

/// A device or file that somebody else uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its user.
    pub by: Holder,
    /// The other name that it is used by: a partition, the whole disk, a loop device, an image.
    pub through: Option<PathBuf>,
}

/// A user of a device or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It is mounted.
    Mount {
        /// Where.
        at: PathBuf,
        /// The kind of file system.
        kind: String,
    },
    /// It is swap space.
    Swap,
    /// It is part of a device-mapper or md device, by that one's name.
    Device(String),
    /// Processes that have it open or locked: their numbers and names.
    Processes(Vec<(u32, String)>),
    /// The kernel does not say.
    Unknown,
}

impl Holder {
    /// The use goes on until somebody ends it: waiting for a moment does not help.
    #[must_use]
    pub const fn is_lasting(&self) -> bool {
        matches!(self, Self::Mount { .. } | Self::Swap | Self::Device(_))
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.through {
            Some(path) => write!(f, "'{}', which shares its storage,", path.display())?,
            None => f.write_str("it")?,
        }
        match &self.by {
            Holder::Mount { at, kind } => write!(f, " is mounted at '{}' ({kind})", at.display()),
            Holder::Swap => f.write_str(" is in use as swap space"),
            Holder::Device(name) => write!(f, " is part of the device {name}"),
            Holder::Processes(all) if all.iter().any(|(id, _)| *id == std::process::id()) => {
                f.write_str(" is in use by this process already")
            }
            Holder::Processes(all) => {
                f.write_str(" is in use by another process")?;
                for (index, (id, name)) in all.iter().enumerate() {
                    write!(f, "{}{name} ({id})", if index == 0 { ": " } else { ", " })?;
                }
                Ok(())
            }
            Holder::Unknown => f.write_str(" is in use by another process or by the kernel"),
        }
    }
}

impl std::error::Error for InUse {}

impl InUse {
    /// As an error of the kind [`io::ErrorKind::ResourceBusy`].
    pub(super) fn into_error(self) -> io::Error {
        io::Error::new(io::ErrorKind::ResourceBusy, self)
    }

    /// The content of such an error.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        let held = error.get_ref().and_then(|inner| inner.downcast_ref::<Self>());
        held.cloned().unwrap_or(Self { by: Holder::Unknown, through: None })
    }

    /// The same through another name, unless one is given already.
    pub(super) fn through(self, path: Option<&Path>) -> Self {
        Self { through: self.through.or_else(|| path.map(Path::to_owned)), ..self }
    }
}

/// The folders in which the kernel tells about itself.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    proc: PathBuf,
    sys: PathBuf,
    dev: PathBuf,
}

fn numbers(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

fn parse_numbers(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn entries(path: &Path) -> Vec<PathBuf> {
    let Ok(listed) = std::fs::read_dir(path) else { return Vec::new() };
    let mut paths: Vec<_> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A path of the kernel's tables `mounts`, `mountinfo` and `swaps`, without their octal escapes (`\040` for a space).
#[must_use]
pub fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
}

/// A process that has the file locked with `flock`; none where the kernel does not say.
#[must_use]
pub fn locker(file: &Metadata) -> Option<u32> {
    Machine::here().lockers(file).first().copied()
}

fn device_of(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().filter(|found| found.file_type().is_block_device()).map(|found| found.rdev())
}

impl Machine {
    /// This machine.
    pub(super) fn here() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() }
    }

    /// One whose `/proc`, `/sys` and `/dev` are in a folder.
    #[cfg(test)]
    pub(super) fn at(root: &Path) -> Self {
        Self { proc: root.join("proc"), sys: root.join("sys"), dev: root.join("dev") }
    }

    /// The device's folder in sysfs, as it really lies: a partition's is in its disk's.
    fn folder(&self, device: u64) -> Option<PathBuf> {
        self.sys.join("dev/block").join(numbers(device)).canonicalize().ok()
    }

    /// It is a partition, and not a whole disk.
    pub(super) fn is_partition(&self, device: u64) -> bool {
        self.folder(device).is_some_and(|folder| folder.join("partition").exists())
    }

    /// The folder of the whole disk.
    fn disk_folder(&self, device: u64) -> Option<PathBuf> {
        let folder = self.folder(device)?;
        match folder.join("partition").exists() {
            true => folder.parent().map(Path::to_owned),
            false => Some(folder),
        }
    }

    /// The whole disk that a device is, or is a partition of.
    pub(super) fn disk(&self, device: u64) -> Option<u64> {
        parse_numbers(&text(&self.disk_folder(device)?.join("dev"))?)
    }

    /// Folders of a disk's partitions.
    fn partitions(folder: &Path) -> Vec<PathBuf> {
        entries(folder).into_iter().filter(|path| path.join("partition").exists()).collect()
    }

    /// The device itself, then those that have storage in common with it: a partition's whole disk, a disk's partitions.
    fn overlapping(&self, device: u64) -> Vec<(u64, PathBuf)> {
        let Some(folder) = self.folder(device) else {
            return vec![(device, self.sys.join("dev/block").join(numbers(device)))];
        };
        let mut all = vec![folder.clone()];
        match folder.join("partition").exists() {
            true => all.extend(folder.parent().map(Path::to_owned)),
            false => all.extend(Self::partitions(&folder)),
        }
        let numbered = all.into_iter().filter_map(|at| Some((parse_numbers(&text(&at.join("dev"))?)?, at)));
        numbered.collect()
    }

    /// Devices that a device-mapper or md device lies on.
    pub(super) fn slaves(&self, device: u64) -> Vec<u64> {
        let Some(folder) = self.disk_folder(device) else { return Vec::new() };
        let below = entries(&folder.join("slaves"));
        below.iter().filter_map(|at| parse_numbers(&text(&at.join("dev"))?)).collect()
    }

    /// The file below a loop device, or below the loop device that a partition is of.
    pub(super) fn backing_file(&self, device: u64) -> Option<PathBuf> {
        let told = text(&self.disk_folder(device)?.join("loop/backing_file"))?;
        Some(PathBuf::from(told.strip_suffix('\n').unwrap_or(&told)))
    }

    /// A device as storage, and the whole disk or the partitions that have storage in common with it.
    pub(super) fn storage(&self, device: u64) -> Vec<Identity> {
        self.overlapping(device).into_iter().map(|(number, _)| Identity::Device(number)).collect()
    }

    /// Loop devices over any of these files and devices: their nodes and numbers.
    pub(super) fn loops_over(&self, below: &[Identity]) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        for folder in entries(&self.sys.join("block")) {
            let Some(told) = text(&folder.join("loop/backing_file")) else { continue };
            let path = Path::new(told.strip_suffix('\n').unwrap_or(&told));
            let is_same = std::fs::metadata(path).is_ok_and(|other| below.contains(&Identity::of(&other)));
            if let Some(device) = text(&folder.join("dev")).and_then(|told| parse_numbers(&told)).filter(|_| is_same) {
                found.push((self.dev.join(name_of(&folder)), device));
            }
        }
        found
    }

    /// The node of the partition with exactly this range.
    pub(super) fn partition_node(&self, disk: u64, start_bytes: u64, size_bytes: u64) -> Option<PathBuf> {
        let number = |path: PathBuf| text(&path)?.trim().parse::<u64>().ok()?.checked_mul(SYSFS_SECTOR_BYTES);
        for folder in Self::partitions(&self.folder(disk)?) {
            if number(folder.join("start")) == Some(start_bytes) && number(folder.join("size")) == Some(size_bytes) {
                let node = self.dev.join(name_of(&folder));
                let numbers = text(&folder.join("dev")).and_then(|told| parse_numbers(&told))?;
                return (device_of(&node) == Some(numbers)).then_some(node);
            }
        }
        None
    }

    /// A file or device is swap space.
    pub(super) fn is_swap(&self, file: &Metadata) -> bool {
        let is_same =
            |path| std::fs::metadata(path).is_ok_and(|other: Metadata| Identity::of(&other) == Identity::of(file));
        self.swaps().into_iter().any(is_same)
    }

    fn swaps(&self) -> Vec<PathBuf> {
        let told = text(&self.proc.join("swaps")).unwrap_or_default();
        told.lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .map(|path| unescaped(path.as_bytes()))
            .collect()
    }

    /// The user of a block device that could not be had alone.
    pub(super) fn user_of_device(&self, device: u64) -> InUse {
        let overlapping = self.overlapping(device);
        for (other, folder) in &overlapping {
            let through = (*other != device).then(|| self.dev.join(name_of(folder)));
            if let Some(by) = self.kernel_user(*other, folder) {
                return InUse { by, through };
            }
        }
        let numbers: Vec<u64> = overlapping.iter().map(|(number, _)| *number).collect();
        let processes = self.openers(&numbers);
        let by = if processes.is_empty() { Holder::Unknown } else { Holder::Processes(processes) };
        InUse { by, through: None }
    }

    /// The kernel's use of exactly this device.
    fn kernel_user(&self, device: u64, folder: &Path) -> Option<Holder> {
        if let Some((at, kind)) = self.mount_of(device) {
            return Some(Holder::Mount { at, kind });
        }
        if self.swaps().iter().any(|path| device_of(path) == Some(device)) {
            return Some(Holder::Swap);
        }
        let above = entries(&folder.join("holders")).into_iter().next()?;
        let mapped = text(&above.join("dm/name")).map(|name| format!(" ({})", name.trim()));
        Some(Holder::Device(format!("{}{}", name_of(&above), mapped.unwrap_or_default())))
    }

    /// Where a device is mounted, and as what.
    fn mount_of(&self, device: u64) -> Option<(PathBuf, String)> {
        let told = text(&self.proc.join("self/mountinfo"))?;
        told.lines().find_map(|line| {
            let (fields, after) = line.split_once(" - ")?;
            let fields: Vec<&str> = fields.split(' ').collect();
            let mut after = after.split(' ');
            let (kind, source) = (after.next()?, after.next()?);
            // File systems over several devices have a number of their own, and name one device.
            let is_same = parse_numbers(fields.get(2)?) == Some(device)
                || source.starts_with('/') && device_of(&unescaped(source.as_bytes())) == Some(device);
            is_same.then_some(()).and(fields.get(4)).map(|at| (unescaped(at.as_bytes()), kind.to_owned()))
        })
    }

    /// Other processes that have one of these devices open. Those of another user are seen by root alone.
    fn openers(&self, devices: &[u64]) -> Vec<(u32, String)> {
        let opens = |folder: &Path| {
            entries(&folder.join("fd")).into_iter().any(|link| {
                // Only what is named as a device is looked at: a file on a server that hangs is not asked.
                let is_device = std::fs::read_link(&link).is_ok_and(|target| target.starts_with(&self.dev));
                is_device && device_of(&link).is_some_and(|device| devices.contains(&device))
            })
        };
        let found = entries(&self.proc).into_iter().filter_map(|folder| {
            let id = name_of(&folder).parse::<u32>().ok()?;
            // This process may well be reading it.
            let is_other = id != std::process::id() && opens(&folder);
            is_other.then(|| (id, self.process_name(id)))
        });
        found.take(PROCESSES_MAX).collect()
    }

    fn process_name(&self, id: u32) -> String {
        let told = text(&self.proc.join(id.to_string()).join("comm")).unwrap_or_default();
        let told = told.trim();
        if told.is_empty() { "process".to_owned() } else { told.to_owned() }
    }

    /// The processes that have a file locked.
    pub(super) fn user_of_file(&self, file: &Metadata) -> InUse {
        let found = self.lockers(file).into_iter().map(|id| (id, self.process_name(id)));
        InUse { by: Holder::Processes(found.collect()), through: None }
    }

    /// Numbers of processes that have a file locked with `flock`, by `/proc/locks`. A process of another container has none here.
    fn lockers(&self, file: &Metadata) -> Vec<u32> {
        let told = text(&self.proc.join("locks")).unwrap_or_default();
        let mut found = Vec::new();
        for line in told.lines() {
            // NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END, the device in hexadecimal.
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, _, id, place, ..] = fields[..] else { continue };
            let mut place = place.split(':');
            let mut part = |radix| u64::from_str_radix(place.next()?, radix).ok();
            let (Some(major), Some(minor), Some(inode)) = (part(16), part(16), part(10)) else { continue };
            // Some file systems show programs another device number than locks: the inode alone decides there.
            let on = rustix::fs::major(file.dev());
            let is_same_device = (u64::from(on), u64::from(rustix::fs::minor(file.dev()))) == (major, minor) || on == 0;
            if inode == file.ino() && is_same_device && found.len() < PROCESSES_MAX {
                found.extend(id.parse::<u32>().ok().filter(|id| *id != 0));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn put(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, content).expect("written");
    }

    /// A disk 8:0 with two partitions, as sysfs shows them.
    fn disk(root: &Path) {
        put(root, "sys/devices/sda/dev", "8:0\n");
        for (number, start) in [(1, 2048), (2, 4096)] {
            put(root, &format!("sys/devices/sda/sda{number}/dev"), &format!("8:{number}\n"));
            put(root, &format!("sys/devices/sda/sda{number}/partition"), &format!("{number}\n"));
            put(root, &format!("sys/devices/sda/sda{number}/start"), &format!("{start}\n"));
            put(root, &format!("sys/devices/sda/sda{number}/size"), "2048\n");
        }
        std::fs::create_dir_all(root.join("sys/dev/block")).expect("made");
        for (numbers, at) in [("8:0", "sda"), ("8:1", "sda/sda1"), ("8:2", "sda/sda2")] {
            let target = format!("../../devices/{at}");
            std::os::unix::fs::symlink(target, root.join("sys/dev/block").join(numbers)).expect("linked");
        }
    }

    fn number(minor: u32) -> u64 {
        rustix::fs::makedev(8, minor)
    }

    #[test]
    fn a_mounted_partition_is_named_for_its_disk_and_the_disk_for_its_partition() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path();
        disk(root);
        put(root, "proc/self/mountinfo", "30 1 8:1 / /a\\040b rw shared:1 - ext4 /dev/x rw\n");
        let by = || Holder::Mount { at: "/a b".into(), kind: "ext4".into() };
        let machine = Machine::at(root);
        assert_eq!(machine.user_of_device(number(1)), InUse { by: by(), through: None });
        assert_eq!(machine.user_of_device(number(0)), InUse { by: by(), through: Some(root.join("dev/sda1")) });
        assert_eq!(machine.user_of_device(number(2)).by, Holder::Unknown, "its neighbour's mount is not its own");
        std::fs::write(root.join("proc/self/mountinfo"), "30 1 8:0 / /m rw - xfs /dev/x rw\n").expect("written");
        assert_eq!(machine.user_of_device(number(2)).through, Some(root.join("dev/sda")));
    }

    #[test]
    fn a_device_above_is_named_with_its_mapped_name() {
        let temp = tempfile::tempdir().expect("a folder");
        disk(temp.path());
        put(temp.path(), "sys/devices/sda/sda2/holders/dm-3/dm/name", "vg-root\n");
        let user = Machine::at(temp.path()).user_of_device(number(2));
        assert_eq!(user.to_string(), "it is part of the device dm-3 (vg-root)");
        assert!(user.by.is_lasting());
    }

    #[test]
    fn lines_that_are_no_mounts_or_locks_are_passed_over() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path();
        disk(root);
        put(root, "proc/self/mountinfo", "\n - \n1\n8:1 - ext4 x\n1 2 8:1 - ext4 /dev/x\nx - y\n");
        put(root, "proc/swaps", "Filename\n\n \n");
        put(
            root,
            "proc/locks",
            "1: FLOCK\n2: POSIX ADVISORY WRITE 1 08:00:1 0 EOF\n3: FLOCK A W x y:z:1 0 EOF\n: : :\n",
        );
        let machine = Machine::at(root);
        // The fifth line ends before its mount point, but names the device.
        let _ = machine.user_of_device(number(1));
        let file = std::fs::metadata(root.join("proc/locks")).expect("there");
        assert_eq!(machine.user_of_file(&file).by, Holder::Processes(Vec::new()));
        assert!(!machine.is_swap(&file));
    }

    #[test]
    fn locks_that_are_waited_for_and_those_of_other_kinds_and_files_are_passed_over() {
        let temp = tempfile::tempdir().expect("a folder");
        let root = temp.path();
        put(root, "file", "");
        let file = std::fs::metadata(root.join("file")).expect("there");
        let at = format!("{:02x}:{:02x}:{}", rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()), file.ino());
        let lines = [
            format!("1: POSIX  ADVISORY  WRITE 11 {at} 0 EOF"),
            format!("1: -> FLOCK  ADVISORY  WRITE 12 {at} 0 EOF"),
            format!("2: FLOCK  ADVISORY  WRITE 13 {at}0 0 EOF"),
            format!("3: FLOCK  ADVISORY  WRITE 0 {at} 0 EOF"),
            format!("4: FLOCK  ADVISORY  WRITE 14 {at} 0 EOF"),
        ];
        put(root, "proc/locks", &lines.join("\n"));
        assert_eq!(Machine::at(root).lockers(&file), [14]);
        assert_eq!(unescaped(b"/a\\040b\\134\xff\\"), Path::new(std::ffi::OsStr::from_bytes(b"/a b\\\xff\\")));
    }

    #[test]
    fn who_has_a_file_locked_is_named() {
        let temp = tempfile::tempdir().expect("a folder");
        let file = std::fs::File::create(temp.path().join("file")).expect("made");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
        let user = Machine::here().user_of_file(&file.metadata().expect("there"));
        let Holder::Processes(found) = user.by else { panic!("{user:?}") };
        // Where the kernel shows no locks nobody is named.
        if std::fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&std::process::id().to_string())) {
            assert_eq!(found.first().map(|(id, _)| *id), Some(std::process::id()));
        }
    }

    #[test]
    fn a_partition_is_found_by_its_exact_range() {
        let temp = tempfile::tempdir().expect("a folder");
        disk(temp.path());
        let machine = Machine::at(temp.path());
        // Its node is looked at, and there is none.
        assert_eq!(machine.partition_node(number(0), 2048 * 512, 2048 * 512), None);
        assert!(machine.is_partition(number(1)) && !machine.is_partition(number(0)));
        assert_eq!(
            machine.overlapping(number(1)).iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            [number(1), number(0)]
        );
    }
}
