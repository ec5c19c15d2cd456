//! Other content of a device or file than a pool: file systems, partition tables, parts of other devices, swap space, images of
//! virtual machines, and archives.
//!
//! # Theory
//!
//! **Need.** A device that gets a label loses what it had, so `zpool create` and its like look first. And a file that holds no label may
//! hold one inside: an image in a container is no raw image, and should be named as what it is.
//!
//! **Means.** Every format has a signature at a fixed place, near the device's beginning or its end:
//! ```text
//!  0          512    1024     4096        32K       64K          …          -128K        -64K    -8K   -512  end
//!  boot sector│ GPT  │ ext f2fs│ md 1.2    │ iso jfs │ btrfs reiser           md 0.90 (64K steps) md 1.0  GPT VHD
//!  xfs LUKS md 1.1 qcow2 …     │ swap at the end of the first page
//! ```
//! So the first [`HEAD_BYTES`] and the last [`TAIL_BYTES`] are enough, and [`probe`] is a function of them and the size. Where a
//! signature is short, what is beside it has to be sensible too.
//!
//! **Invariants.** 1. Any bytes give an answer; nothing is followed, counted up to, or allocated from what they say. 2. A signature that a
//! pool's own label could have by chance is not looked for: a label begins with 8 KiB of zeros and boot blocks.
//!
//! **Sources.** The formats' own descriptions; `file(1)` and `blkid(8)` know the same places.
//!
//! **Rejected.** *libblkid*: a C library that parses untrusted bytes as root. *Refusing everything that is not zero*: most devices have old
//! contents that are of no use to anybody.

/// Bytes at the beginning that are looked at.
pub const HEAD_BYTES: usize = 128 << 10;
/// Bytes at the end that are looked at.
pub const TAIL_BYTES: usize = 128 << 10;

/// A kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignKind {
    /// A file system.
    FileSystem,
    /// A partition table, with so many partitions.
    Partitions(u32),
    /// A part of a device that is put together from several: LVM, md, bcache.
    Member,
    /// Swap space.
    Swap,
    /// An encrypted volume.
    Encrypted,
    /// An image of a disk that is not raw.
    Container,
    /// Compressed or archived bytes.
    Packed,
}

/// Content that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its kind.
    pub kind: ForeignKind,
    /// Its name: that of `blkid` where `blkid` knows the format.
    pub name: &'static str,
}

impl std::fmt::Display for Foreign {
    /// The end of a sentence that begins with the path.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name;
        match self.kind {
            ForeignKind::FileSystem => write!(f, "contains a filesystem of type '{name}'"),
            ForeignKind::Partitions(1) => write!(f, "has a partition table ({name}) with a partition"),
            ForeignKind::Partitions(count) => write!(f, "has a partition table ({name}) with {count} partitions"),
            ForeignKind::Member => write!(f, "is a member of another device ({name})"),
            ForeignKind::Swap => f.write_str("contains swap space"),
            ForeignKind::Encrypted => write!(f, "contains an encrypted volume ({name})"),
            ForeignKind::Container => write!(f, "is an image in the format {name}, not a raw one"),
            ForeignKind::Packed => write!(f, "is packed ({name}), not a raw image"),
        }
    }
}

use ForeignKind::{Container, Encrypted, FileSystem, Member, Packed, Swap};

/// A name, the places from the device's beginning at which its signature may be, and the signature.
type Signature = (&'static str, &'static [usize], &'static [u8]);

/// Signatures that are enough by themselves.
const SIGNATURES: &[(ForeignKind, &[Signature])] = &[
    (FileSystem, FILE_SYSTEMS),
    (Member, MEMBERS),
    (Encrypted, &[("BitLocker", &[3], b"-FVE-FS-")]),
    (Container, CONTAINERS),
    (Packed, PACKED),
];

const FILE_SYSTEMS: &[Signature] = &[
    ("xfs", &[0], b"XFSB"),
    ("btrfs", &[(64 << 10) + 64], b"_BHRfS_M"),
    ("ntfs", &[3], b"NTFS    "),
    ("exfat", &[3], b"EXFAT   "),
    ("f2fs", &[1024], &0xf2f5_2010_u32.to_le_bytes()),
    ("erofs", &[1024], &0xe0f5_e1e2_u32.to_le_bytes()),
    ("squashfs", &[0], b"hsqs"),
    ("squashfs", &[0], b"sqsh"),
    ("iso9660", &[(32 << 10) + 1], b"CD001"),
    ("udf", &[(32 << 10) + 1], b"BEA01"),
    ("jfs", &[32 << 10], b"JFS1"),
    ("reiserfs", &[(64 << 10) + 52], b"ReIsErFs"),
    ("reiserfs", &[(64 << 10) + 52], b"ReIsEr2Fs"),
    ("reiserfs", &[(64 << 10) + 52], b"ReIsEr3Fs"),
    ("reiser4", &[64 << 10], b"ReIsEr4"),
    ("gfs2", &[64 << 10], &0x0116_1970_u32.to_be_bytes()),
    ("apfs", &[32], b"NXSB"),
    ("ocfs2", &[1024, 2048, 4096, 8192], b"OCFSV2"),
    ("cramfs", &[0], &0x28cd_3d45_u32.to_le_bytes()),
    ("romfs", &[0], b"-rom1fs-"),
    ("ufs", &[8192 + 1372], &0x0001_1954_u32.to_le_bytes()),
    ("ufs", &[(64 << 10) + 1372, 8192 + 1372], &0x1954_0119_u32.to_le_bytes()),
    (
        "bcachefs",
        &[4096 + 24],
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
];

const MEMBERS: &[Signature] = &[
    (
        "bcache",
        &[4096 + 24],
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    ("stratis", &[516], b"!Stra0tis"),
    ("ceph_bluestore", &[0], b"bluestore block device"),
    ("vdo", &[0], b"dmvdo001"),
    ("dm-verity", &[0], b"verity\0\0"),
    ("dm-integrity", &[0], b"integrt\0"),
];

const CONTAINERS: &[Signature] = &[
    ("vmdk", &[0], b"KDMV"),
    ("vmdk", &[0], b"COWD"),
    ("vmdk", &[0], b"# Disk DescriptorFile"),
    ("vdi", &[64], &0xbeda_107f_u32.to_le_bytes()),
    ("vhdx", &[0], b"vhdxfile"),
    ("vpc", &[0], b"conectix"),
    ("qed", &[0], b"QED\0"),
    ("parallels", &[0], b"WithoutFreeSpace"),
    ("parallels", &[0], b"WithouFreSpacExt"),
    ("ewf", &[0], b"EVF\x09\x0d\x0a\xff\0"),
    ("simg", &[0], &0xed26_ff3a_u32.to_le_bytes()),
];

const PACKED: &[Signature] = &[
    ("zstd", &[0], &0xfd2f_b528_u32.to_le_bytes()),
    ("gzip", &[0], &[0x1f, 0x8b, 8]),
    ("xz", &[0], b"\xfd7zXZ\0"),
    ("lz4", &[0], &0x184d_2204_u32.to_le_bytes()),
    ("lzip", &[0], b"LZIP"),
    ("lzop", &[0], b"\x89LZO\0\r\n\x1a\n"),
    ("zip", &[0], b"PK\x03\x04"),
    ("7z", &[0], b"7z\xbc\xaf\x27\x1c"),
    ("tar", &[257], b"ustar"),
];

/// Sizes of a page, at whose end swap space has its signature.
const PAGES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const SWAPS: [&[u8]; 4] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"LINHIB0001"];
/// Sizes of a sector, where the partition table's header is.
const SECTORS: [usize; 2] = [512, 4096];
const MD_MAGIC: u32 = 0xa92b_4efc;
/// A partition table is read up to so many entries, as many as there are space for by default.
const GPT_ENTRIES_MAX: usize = 128;
const GPT_ENTRY_BYTES: usize = 128;

/// Bytes of a device, as far as they are there.
#[derive(Clone, Copy)]
struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    fn get(self, offset: usize, len: usize) -> Option<&'a [u8]> {
        self.0.get(offset..offset.checked_add(len)?)
    }

    fn is(self, offset: usize, bytes: &[u8]) -> bool {
        self.get(offset, bytes.len()) == Some(bytes)
    }

    fn le16(self, offset: usize) -> Option<u16> {
        self.get(offset, 2)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn le32(self, offset: usize) -> Option<u32> {
        self.get(offset, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn be32(self, offset: usize) -> Option<u32> {
        self.get(offset, 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

/// The content of a device of `size_bytes`, by its first and last bytes: `head` from its beginning, `tail` up to its end, as many as
/// there are ([`HEAD_BYTES`], [`TAIL_BYTES`]). Empty for a pool's own labels, zeros, and unknown content.
#[must_use]
pub fn probe(head: &[u8], tail: &[u8], size_bytes: u64) -> Vec<Foreign> {
    let (head, end) = (View(head), View(tail));
    let mut found = Vec::new();
    let mut add = |kind, name| {
        let foreign = Foreign { kind, name };
        if !found.contains(&foreign) {
            found.push(foreign);
        }
    };
    for (kind, signatures) in SIGNATURES {
        for (name, places, bytes) in *signatures {
            if places.iter().any(|place| head.is(*place, bytes)) {
                add(*kind, *name);
            }
        }
    }
    if let Some(name) = ext(head) {
        add(FileSystem, name);
    }
    if is_fat(head) {
        add(FileSystem, "vfat");
    }
    if matches!(head.get(1024, 2), Some(b"H+" | b"HX")) && matches!(head.get(1026, 2), Some([0, 4 | 5])) {
        add(FileSystem, "hfsplus");
    }
    if head.le32(1024) == Some(2) && head.le16(1030) == Some(0x3434) {
        add(FileSystem, "nilfs2");
    }
    if PAGES.iter().any(|page| SWAPS.iter().any(|magic| head.is(page - 10, magic))) {
        add(Swap, "swap");
    }
    for (offset, magic) in [(0, b"LUKS\xba\xbe"), (16 << 10, b"SKUL\xba\xbe"), (32 << 10, b"SKUL\xba\xbe")] {
        if head.is(offset, magic) {
            add(Encrypted, if head.is(offset + 6, &[0, 1]) { "LUKS1" } else { "LUKS2" });
        }
    }
    let is_lvm = |at: usize| head.is(at, b"LABELONE") && head.is(at + 24, b"LVM2 001");
    if (0..4).any(|sector| is_lvm(sector * 512)) {
        add(Member, "LVM2");
    }
    if let Some(name) = md(head, end, size_bytes) {
        add(Member, name);
    }
    if head.is(0, b"QFI\xfb") {
        add(Container, if head.be32(4) == Some(1) { "qcow" } else { "qcow2" });
    }
    if head.is(0, b"BZh") && head.is(4, b"1AY&SY") {
        add(Packed, "bzip2");
    }
    let stream = 0x0002_f5ba_cbac_u64;
    if head.is(0, &[0; 4]) && (head.is(8, &stream.to_le_bytes()) || head.is(8, &stream.to_be_bytes())) {
        add(Packed, "a ZFS send stream");
    }
    if let Some(last) = tail.len().checked_sub(512) {
        if end.is(last, b"conectix") {
            add(Container, "vpc");
        }
        if end.is(last, b"koly") {
            add(Container, "dmg");
        }
        if end.is(last, &0xde11_de11_u32.to_be_bytes()) {
            add(Member, "ddf_raid");
        }
        if last.checked_sub(512).is_some_and(|before| end.is(before, b"Intel Raid ISM Cfg Sig. ")) {
            add(Member, "isw_raid");
        }
    }
    match gpt(head, end) {
        Some(0) => {}
        Some(count) => add(ForeignKind::Partitions(count), "GPT"),
        // A boot sector of a file system looks like the other table.
        None if is_boot_sector(head) => {}
        None => {
            if let Some(count) = mbr(head) {
                add(ForeignKind::Partitions(count), "MBR");
            }
        }
    }
    found
}

/// The member of the ext family, if it is one.
fn ext(head: View<'_>) -> Option<&'static str> {
    let at = |offset: usize| head.le32(1024 + offset);
    if head.le16(1024 + 56)? != 0xef53 {
        return None;
    }
    let (compatible, incompatible, read_only) = (at(92)?, at(96)?, at(100)?);
    // The features of ext2 and ext3: file types, recovery, meta_bg; sparse_super, large_file, btree directories.
    Some(match (compatible & 4 != 0, incompatible & !0x16 != 0 || read_only & !7 != 0) {
        _ if incompatible & 8 != 0 => "jbd",
        (_, true) => "ext4",
        (true, false) => "ext3",
        (false, false) => "ext2",
    })
}

fn has_boot_mark(head: View<'_>) -> bool {
    head.is(510, &[0x55, 0xaa])
}

/// A boot sector is that of a FAT: it says so, and its sizes are powers of two.
fn is_fat(head: View<'_>) -> bool {
    let says =
        head.is(54, b"FAT12   ") || head.is(54, b"FAT16   ") || head.is(54, b"FAT     ") || head.is(82, b"FAT32   ");
    let sizes = head.le16(11).is_some_and(|bytes| (512..=4096).contains(&bytes) && bytes.is_power_of_two())
        && head.get(13, 1).is_some_and(|sectors| sectors[0].is_power_of_two());
    has_boot_mark(head) && says && sizes
}

fn is_boot_sector(head: View<'_>) -> bool {
    is_fat(head) || head.is(3, b"NTFS    ") || head.is(3, b"EXFAT   ") || head.is(3, b"-FVE-FS-")
}

/// Superblocks of md: three places of version 1, and one of version 0.90.
fn md(head: View<'_>, end: View<'_>, size_bytes: u64) -> Option<&'static str> {
    let newer = |view: View<'_>, at: usize| view.le32(at) == Some(MD_MAGIC) && view.le32(at + 4) == Some(1);
    if newer(head, 0) {
        return Some("md 1.1");
    }
    if newer(head, 4096) {
        return Some("md 1.2");
    }
    // Where in the tail a place of the device is.
    let in_end = |place: u64| usize::try_from(place.checked_sub(size_bytes.checked_sub(end.0.len() as u64)?)?).ok();
    let place = size_bytes.checked_sub(8 << 10).map(|place| place & !0xfff);
    if place.and_then(in_end).is_some_and(|at| newer(end, at)) {
        return Some("md 1.0");
    }
    let at = (size_bytes & !0xffff).checked_sub(64 << 10).and_then(in_end)?;
    let older = |word: &dyn Fn(usize) -> Option<u32>| {
        word(at) == Some(MD_MAGIC) && word(at + 4) == Some(0) && word(at + 8) == Some(90)
    };
    (older(&|at| end.le32(at)) || older(&|at| end.be32(at))).then_some("md 0.90")
}

/// How many partitions a GPT has, by either of its copies.
fn gpt(head: View<'_>, end: View<'_>) -> Option<u32> {
    let count = |view: View<'_>, from: usize| {
        let entries = (0..GPT_ENTRIES_MAX).map_while(|index| view.get(from + index * GPT_ENTRY_BYTES, 16));
        entries.filter(|kind| kind.iter().any(|byte| *byte != 0)).count() as u32
    };
    for sector in SECTORS {
        if head.is(sector, b"EFI PART") {
            return Some(count(head, 2 * sector));
        }
        let Some(last) = end.0.len().checked_sub(sector) else { continue };
        if end.is(last, b"EFI PART") {
            let entries = last.checked_sub(GPT_ENTRIES_MAX * GPT_ENTRY_BYTES);
            return Some(entries.map_or(1, |from| count(end, from)));
        }
    }
    None
}

/// How many partitions a boot sector names, if all four entries are sensible.
fn mbr(head: View<'_>) -> Option<u32> {
    if !has_boot_mark(head) {
        return None;
    }
    let mut count = 0;
    for index in 0..4 {
        let at = 446 + index * 16;
        let (status, kind) = (head.get(at, 1)?[0], head.get(at + 4, 1)?[0]);
        if !matches!(status, 0 | 0x80) {
            return None;
        }
        let is_there = kind != 0 && head.le32(at + 12)? != 0;
        count += u32::from(is_there);
    }
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1 << 20;

    fn names(image: &[u8]) -> Vec<&'static str> {
        let head = &image[..image.len().min(HEAD_BYTES)];
        let tail = &image[image.len().saturating_sub(TAIL_BYTES)..];
        probe(head, tail, image.len() as u64).iter().map(|foreign| foreign.name).collect()
    }

    fn with(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; SIZE];
        for (at, bytes) in parts {
            image[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    #[test]
    fn zeros_and_noise_hold_nothing() {
        assert!(names(&vec![0; SIZE]).is_empty());
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        assert!(names(&noise.take(SIZE).collect::<Vec<_>>()).is_empty());
        for len in [0, 1, 7, 511, 512, 4096, 65_536] {
            assert!(names(&vec![0; len]).is_empty());
        }
    }

    #[test]
    fn every_signature_is_found_where_it_stands() {
        for (name, places, bytes) in SIGNATURES.iter().flat_map(|(_, signatures)| *signatures) {
            for place in *places {
                assert_eq!(names(&with(&[(*place, bytes)])), [*name]);
            }
        }
    }

    #[test]
    fn the_ext_family_is_told_apart_by_features() {
        let ext = |compatible: u32, incompatible: u32, read_only: u32| {
            let words = [compatible.to_le_bytes(), incompatible.to_le_bytes(), read_only.to_le_bytes()].concat();
            names(&with(&[(1024 + 56, &[0x53, 0xef]), (1024 + 92, &words)]))
        };
        assert_eq!(ext(0x38, 0x2, 0x3), ["ext2"]);
        assert_eq!(ext(0x3c, 0x6, 0x3), ["ext3"]);
        assert_eq!(ext(0x3c, 0x2c2, 0x46b), ["ext4"]);
        assert_eq!(ext(0, 8, 0), ["jbd"]);
    }

    #[test]
    fn md_superblocks_are_found_at_all_their_places() {
        let newer = [MD_MAGIC.to_le_bytes(), 1_u32.to_le_bytes()].concat();
        let older = [MD_MAGIC.to_be_bytes(), 0_u32.to_be_bytes(), 90_u32.to_be_bytes()].concat();
        assert_eq!(names(&with(&[(0, &newer)])), ["md 1.1"]);
        assert_eq!(names(&with(&[(4096, &newer)])), ["md 1.2"]);
        assert_eq!(names(&with(&[(SIZE - 8192, &newer)])), ["md 1.0"]);
        assert_eq!(names(&with(&[(SIZE - 65_536, &older)])), ["md 0.90"]);
        // The device need not end at a multiple of 64 KiB.
        let mut odd = with(&[(SIZE - 131_072, &older)]);
        odd.truncate(SIZE - 512);
        assert_eq!(names(&odd), ["md 0.90"]);
    }

    #[test]
    fn partition_tables_count_their_partitions() {
        let entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0];
        let mark = (510, &[0x55, 0xaa][..]);
        let table = with(&[(446, &entry), (462, &entry), mark]);
        assert_eq!(probe(&table[..512], &[], 512)[0].to_string(), "has a partition table (MBR) with 2 partitions");
        assert!(names(&with(&[mark])).is_empty(), "an empty table");
        assert!(names(&with(&[(446, &[7; 16]), mark])).is_empty(), "no table, but code");
        for sector in SECTORS {
            let two = with(&[(sector, b"EFI PART"), (2 * sector, &[1; 16]), (2 * sector + 256, &[1; 16])]);
            let found = probe(&two[..HEAD_BYTES], &[], SIZE as u64);
            assert_eq!(found, [Foreign { kind: ForeignKind::Partitions(2), name: "GPT" }]);
            let backup = with(&[(SIZE - sector, b"EFI PART"), (SIZE - sector - 128 * 128, &[1; 16])]);
            assert_eq!(names(&backup), ["GPT"]);
            assert!(names(&with(&[(sector, b"EFI PART")])).is_empty(), "a table without partitions");
        }
    }

    #[test]
    fn boot_sectors_of_file_systems_are_no_partition_tables() {
        let fat: [(usize, &[u8]); 5] =
            [(11, &[0, 2, 4]), (54, b"FAT16   "), (446, &[0, 0, 0, 0, 6]), (458, &[1]), (510, &[0x55, 0xaa])];
        assert_eq!(names(&with(&fat)), ["vfat"]);
        assert_eq!(names(&with(&[(3, b"NTFS    "), (450, &[7]), (458, &[1]), (510, &[0x55, 0xaa])])), ["ntfs"]);
    }

    #[test]
    fn encrypted_volumes_swap_and_physical_volumes_are_named() {
        assert_eq!(names(&with(&[(0, b"LUKS\xba\xbe\0\x01")])), ["LUKS1"]);
        assert_eq!(names(&with(&[(0, b"LUKS\xba\xbe\0\x02")])), ["LUKS2"]);
        assert_eq!(names(&with(&[(16 << 10, b"SKUL\xba\xbe\0\x02")])), ["LUKS2"], "its second header alone");
        for page in PAGES {
            assert_eq!(names(&with(&[(page - 10, b"SWAPSPACE2")])), ["swap"]);
        }
        assert_eq!(names(&with(&[(512, b"LABELONE"), (536, b"LVM2 001")])), ["LVM2"]);
        assert_eq!(names(&with(&[(0, b"QFI\xfb\0\0\0\x03")])), ["qcow2"]);
    }

    /// As the tools make them, where they are installed.
    #[test]
    fn images_that_the_tools_make_are_recognised() {
        let temp = tempfile::tempdir().unwrap();
        let made = |program: &str, words: &[&str], mib: u64| {
            let path = temp.path().join("image");
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(mib << 20).unwrap();
            let output = std::process::Command::new(program).args(words).arg(&path).output();
            if !output.as_ref().is_ok_and(|output| output.status.success()) {
                eprintln!("left out: {program}: {output:?}");
                return None;
            }
            Some(std::fs::read(&path).unwrap())
        };
        let cases: [(&str, &[&str], u64, &str); 9] = [
            ("mkfs.ext4", &["-q"], 8, "ext4"),
            ("mkfs.ext3", &["-q"], 8, "ext3"),
            ("mkfs.ext2", &["-q"], 8, "ext2"),
            ("mkfs.xfs", &["-q"], 320, "xfs"),
            ("mkfs.btrfs", &["-q"], 128, "btrfs"),
            ("mkfs.vfat", &[], 8, "vfat"),
            ("mkfs.f2fs", &["-q"], 128, "f2fs"),
            ("mkswap", &["-q"], 8, "swap"),
            ("mke2fs", &["-q", "-O", "journal_dev"], 8, "jbd"),
        ];
        for (program, words, mib, name) in cases {
            if let Some(image) = made(program, words, mib) {
                assert_eq!(names(&image), [name], "{program}");
            }
        }
        let qcow = temp.path().join("q.qcow2");
        for (format, name) in [("qcow2", "qcow2"), ("vmdk", "vmdk"), ("vdi", "vdi"), ("vhdx", "vhdx"), ("vpc", "vpc")] {
            let mut command = std::process::Command::new("qemu-img");
            let output = command.args(["create", "-q", "-f", format]).arg(&qcow).arg("16M").output();
            if output.is_ok_and(|output| output.status.success()) {
                assert!(names(&std::fs::read(&qcow).unwrap()).contains(&name), "{format}");
            }
        }
    }
}
