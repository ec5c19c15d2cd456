//! Partition tables: finding the ZFS partition inside an image of a whole disk.
//!
//! `zpool create` on a whole disk writes a GPT, so an image of the disk starts with a table, not with a label.
//!
//! ```text
//!   GPT header (LBA 1, and a copy in the last LBA)          entry
//!    0  "EFI PART"                                           0  type GUID   (16)
//!    8  revision      12 header size   16 header CRC32      16  unique GUID (16)
//!   24  own LBA       32 other's LBA                        32  first LBA
//!   40  first usable  48 last usable   56 disk GUID (16)    40  last LBA (inclusive)
//!   72  entries' LBA  80 entry count   84 entry size        48  attributes
//!   88  entries' CRC32                                      56  name, UTF-16 (72)
//!
//!   MBR (LBA 0): four entries of 16 bytes at 446: status, CHS, type (4), CHS, first LBA (8, u32), sectors (12, u32);
//!   bytes 510 and 511 are 55 AA.
//! ```
//!
//! All integers are little-endian. Tables are small, so they are read whole ([`TABLE_BYTES`] from each end). A table is only
//! a hint where to look: what is found there must still be a label with a right checksum.

/// How much of each end of the disk is read to find tables: 34 sectors of 4 KiB, rounded up.
pub(crate) const TABLE_BYTES: usize = 160 << 10;

/// At most this many entries of a table are looked at.
const ENTRIES_MAX: usize = 256;

/// Type GUIDs of partitions that hold ZFS, as they stand on disk: Solaris /usr & Mac ZFS (what OpenZFS writes), FreeBSD
/// ZFS, Solaris root.
const ZFS_TYPES: [[u8; 16]; 3] = [
    *b"\xc3\x8c\x89\x6a\xd2\x1d\xb2\x11\x99\xa6\x08\x00\x20\x73\x66\x31",
    *b"\xba\x7c\x6e\x51\xcf\x6e\xd6\x11\x8f\xf8\x00\x02\x2d\x71\x71\x2b",
    *b"\x4d\xcf\x85\x6a\xd2\x1d\xb2\x11\x99\xa6\x08\x00\x20\x73\x66\x31",
];

/// MBR types that hold ZFS: Solaris, FreeBSD.
const ZFS_MBR_TYPES: [u8; 2] = [0xbf, 0xa5];
/// The MBR type that says "there is a GPT".
const MBR_PROTECTIVE: u8 = 0xee;

/// A range of a disk that a table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as the kernel counts: from 1.
    pub number: u32,
    /// First byte on the disk.
    pub start_bytes: u64,
    /// Length.
    pub size_bytes: u64,
    /// Whether its type is one that ZFS uses.
    pub is_zfs: bool,
}

/// The partitions of a disk, those of a ZFS type first; empty where there is no table.
///
/// `front` and `back` are the first and the last bytes of the disk, [`TABLE_BYTES`] of each or all there is.
#[must_use]
pub fn partitions(front: &[u8], back: &[u8], disk_bytes: u64) -> Vec<Partition> {
    let back_start = disk_bytes.saturating_sub(back.len() as u64);
    let mut found = [512_u64, 4096]
        .iter()
        .find_map(|&sector_bytes| {
            let primary = Gpt { bytes: front, start_bytes: 0, sector_bytes, disk_bytes };
            let copy = Gpt { bytes: back, start_bytes: back_start, sector_bytes, disk_bytes };
            primary.entries(sector_bytes).or_else(|| copy.entries(disk_bytes.checked_sub(sector_bytes)?))
        })
        .unwrap_or_else(|| mbr_partitions(front, disk_bytes));
    found.sort_by_key(|partition| (!partition.is_zfs, partition.number));
    found
}

/// A stretch of the disk in which a GPT may stand.
struct Gpt<'a> {
    bytes: &'a [u8],
    start_bytes: u64,
    sector_bytes: u64,
    disk_bytes: u64,
}

impl Gpt<'_> {
    /// The bytes at this place of the disk.
    fn at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(address.checked_sub(self.start_bytes)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }

    /// The entries of the table whose header stands at `address`, if there is a sound one.
    fn entries(&self, address: u64) -> Option<Vec<Partition>> {
        const HEADER_MIN: usize = 92;
        let header = self.at(address, 512)?;
        let header_bytes = u32_at(header, 12)? as usize;
        if &header[..8] != b"EFI PART" || !(HEADER_MIN..=512).contains(&header_bytes) {
            return None;
        }
        let mut summed = header[..header_bytes].to_vec();
        summed[16..20].fill(0);
        if crc32(&summed) != u32_at(header, 16)? || u64_at(header, 24)?.checked_mul(self.sector_bytes)? != address {
            return None;
        }
        let (count, entry_bytes) = (u32_at(header, 80)? as usize, u32_at(header, 84)? as usize);
        if !(128..=4096).contains(&entry_bytes) || count > TABLE_BYTES / entry_bytes {
            return None;
        }
        let table = self.at(u64_at(header, 72)?.checked_mul(self.sector_bytes)?, count * entry_bytes)?;
        if crc32(table) != u32_at(header, 88)? {
            return None;
        }
        let entries = table.chunks_exact(entry_bytes).zip(1..).take(ENTRIES_MAX);
        Some(entries.filter_map(|(entry, number)| self.partition(entry, number)).collect())
    }

    fn partition(&self, entry: &[u8], number: u32) -> Option<Partition> {
        let kind = &entry[..16];
        let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
        if kind == [0; 16] || last < first {
            return None;
        }
        let start_bytes = first.checked_mul(self.sector_bytes)?;
        let size_bytes = (last - first).checked_add(1)?.checked_mul(self.sector_bytes)?;
        let is_zfs = ZFS_TYPES.iter().any(|known| known == kind);
        within(Partition { number, start_bytes, size_bytes, is_zfs }, self.disk_bytes)
    }
}

/// The partition, cut to the disk, if any of it lies on the disk.
fn within(mut partition: Partition, disk_bytes: u64) -> Option<Partition> {
    let room = disk_bytes.checked_sub(partition.start_bytes)?;
    partition.size_bytes = partition.size_bytes.min(room);
    debug_assert!(
        partition.start_bytes + partition.size_bytes <= disk_bytes,
        "what is left of a partition is on the disk"
    );
    (partition.size_bytes != 0).then_some(partition)
}

fn mbr_partitions(front: &[u8], disk_bytes: u64) -> Vec<Partition> {
    let Some(sector) = front.get(..512) else { return Vec::new() };
    if sector[510..] != [0x55, 0xaa] {
        return Vec::new();
    }
    let entries = sector[446..510].as_chunks::<16>().0;
    entries
        .iter()
        .zip(1..)
        .filter_map(|(entry, number)| {
            let kind = entry[4];
            if kind == 0 || kind == MBR_PROTECTIVE {
                return None;
            }
            let start_bytes = u64::from(u32_at(entry, 8)?) * 512;
            let size_bytes = u64::from(u32_at(entry, 12)?) * 512;
            within(Partition { number, start_bytes, size_bytes, is_zfs: ZFS_MBR_TYPES.contains(&kind) }, disk_bytes)
        })
        .collect()
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The CRC-32 of GPT (and of Ethernet, zip, …), bit by bit: the tables are a few KiB and read once.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg()))
    })
}

/// The start of a disk with a GPT over these entries, its checksums right: for tests and fuzzing, which could not guess
/// them.
pub(crate) fn sealed_table(entries: &[u8]) -> Vec<u8> {
    const SECTOR: usize = 512;
    let count = entries.len() / 128;
    let table = &entries[..count * 128];
    let mut disk = vec![0; 2 * SECTOR + table.len()];
    disk[2 * SECTOR..].copy_from_slice(table);
    disk[SECTOR..][..92].copy_from_slice(&sealed_header(1, 2, count, crc32(table)));
    disk
}

fn sealed_header(lba: u64, table_lba: u64, count: usize, table_crc: u32) -> [u8; 92] {
    let mut header = [0_u8; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[12..16].copy_from_slice(&92_u32.to_le_bytes());
    header[24..32].copy_from_slice(&lba.to_le_bytes());
    header[72..80].copy_from_slice(&table_lba.to_le_bytes());
    header[80..84].copy_from_slice(&(count as u32).to_le_bytes());
    header[84..88].copy_from_slice(&128_u32.to_le_bytes());
    header[88..92].copy_from_slice(&table_crc.to_le_bytes());
    let crc = crc32(&header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DISK: u64 = 1 << 20;

    /// A GPT with two partitions, the second of ZFS's type, in both of its places.
    fn disk(sector_bytes: usize) -> Vec<u8> {
        let mut disk = vec![0; DISK as usize];
        let mut table = vec![0; 128 * 128];
        for (index, (kind, first, last)) in [([7_u8; 16], 8_u64, 9_u64), (ZFS_TYPES[0], 10, 19)].iter().enumerate() {
            let entry = &mut table[index * 128..][..128];
            entry[..16].copy_from_slice(kind);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        let last_lba = disk.len() / sector_bytes - 1;
        let table_sectors = table.len() / sector_bytes;
        for (lba, table_lba) in [(1, 2), (last_lba, last_lba - table_sectors)] {
            let header = sealed_header(lba as u64, table_lba as u64, 128, crc32(&table));
            disk[lba * sector_bytes..][..92].copy_from_slice(&header);
            disk[table_lba * sector_bytes..][..table.len()].copy_from_slice(&table);
        }
        disk
    }

    fn find(disk: &[u8]) -> Vec<Partition> {
        partitions(&disk[..TABLE_BYTES], &disk[disk.len() - TABLE_BYTES..], disk.len() as u64)
    }

    #[test]
    fn crc32_has_its_well_known_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_zfs_partition_comes_first() {
        for sector in [512, 4096] {
            let found = find(&disk(sector));
            let sector = sector as u64;
            assert_eq!(
                found,
                [
                    Partition { number: 2, start_bytes: 10 * sector, size_bytes: 10 * sector, is_zfs: true },
                    Partition { number: 1, start_bytes: 8 * sector, size_bytes: 2 * sector, is_zfs: false },
                ]
            );
        }
    }

    #[test]
    fn the_copy_at_the_end_serves_when_the_front_is_damaged() {
        let mut disk = disk(512);
        let whole = find(&disk);
        disk[512 + 80] ^= 1;
        assert_eq!(find(&disk), whole);
        let end = disk.len();
        disk[end - 512] ^= 1;
        assert_eq!(find(&disk), []);
    }

    #[test]
    fn an_mbr_serves_where_there_is_no_gpt() {
        let mut disk = vec![0; DISK as usize];
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[446 + 4] = 0x83;
        disk[446 + 8] = 8;
        disk[446 + 12] = 8;
        disk[462 + 4] = 0xbf;
        disk[462 + 8] = 16;
        disk[462 + 12..462 + 16].copy_from_slice(&u32::MAX.to_le_bytes());
        let found = find(&disk);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Partition { number: 2, start_bytes: 16 * 512, size_bytes: DISK - 16 * 512, is_zfs: true });
    }

    proptest! {
        /// A table with any contents, sound or not, causes no panic and names nothing outside the disk.
        #[test]
        fn hostile_tables_name_nothing_outside_the_disk(
            entries in prop::collection::vec(prop::array::uniform32(any::<u8>()), 0..12),
            kind in prop::sample::select(ZFS_TYPES.to_vec()), first in 0_u64..3000, last in any::<u64>(),
        ) {
            let mut table = entries.concat();
            table.resize(table.len().next_multiple_of(128), 0);
            table.extend_from_slice(&kind);
            table.resize(table.len() + 112, 0);
            let at = table.len() - 96;
            table[at..at + 8].copy_from_slice(&first.to_le_bytes());
            table[at + 8..at + 16].copy_from_slice(&last.to_le_bytes());
            let disk = sealed_table(&table);
            for partition in partitions(&disk, &[], DISK) {
                prop_assert!(partition.start_bytes + partition.size_bytes <= DISK);
            }
            let is_there = first * 512 < DISK && last >= first && last - first < 1 << 50;
            let found = partitions(&disk, &[], DISK).iter().any(|partition| partition.is_zfs);
            prop_assert!(found || !is_there);
            prop_assert_eq!(partitions(&disk[..100], &[], 0), []);
        }
    }
}
