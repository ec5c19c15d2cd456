//! Labels: four copies on each leaf device of what the pool is, with the ring of uberblocks.
//!
//! ```text
//! device  0      256K    512K            4M                              size-512K  size-256K  size (down to 256K)
//!         +------+-------+---------------+-------------------------------+----------+----------+
//!         |  L0  |  L1   | boot, 3.5M    | allocatable; DVA offset 0 ... |    L2    |    L3    |
//!         +------+-------+---------------+-------------------------------+----------+----------+
//!
//! label   0      8K         16K                            128K                                 256K
//!         +------+----------+------------------------------+------------------------------------+
//!         | pad  | boot env | vdev_phys: XDR nvlist        | uberblock ring: slots of           |
//!         |      | block    | of 112K less 40, checksum    | 2^clamp(ashift, 10, 13) bytes      |
//!         +------+----------+------------------------------+------------------------------------+
//!
//! boot env block   0           8                       8K-40        8K
//!                  +-----------+-----------------------+-----------+
//!                  | version   | text or packed nvlist | embedded  |    the version is big-endian always
//!                  | 0 raw     |                       | checksum  |
//!                  | 1 nvlist  |                       |           |
//!                  +-----------+-----------------------+-----------+
//! ```
//!
//! Boot env block, vdev_phys and every uberblock slot end in an embedded checksum ([`crate::eck`]) seeded with the
//! device offset at which the structure stands. Writers update labels 0 and 2 first, then 1 and 3, so that a crash
//! leaves at least two good ones. L0 begins with 8 KiB that ZFS never writes (room for a boot block or disk label).

use std::ops::Range;

use crate::eck::EmbeddedChecksum;
use crate::error::FormatError;
use crate::nvlist::NvList;
use crate::uberblock::Uberblock;

const NAME: &str = "label";

/// Bytes of a label.
pub const LABEL_BYTES: usize = 256 << 10;
/// How many labels a device has.
pub const LABEL_COUNT: usize = 4;
/// Bytes of the pad in front, and of the boot environment block.
pub const PAD_BYTES: usize = 8 << 10;
/// Offset of the boot environment block in the label.
pub const BOOT_ENV_OFFSET: usize = PAD_BYTES;
/// Bytes of the boot environment block.
pub const BOOT_ENV_BYTES: usize = PAD_BYTES;
/// Offset of the configuration in the label.
pub const VDEV_PHYS_OFFSET: usize = BOOT_ENV_OFFSET + BOOT_ENV_BYTES;
/// Bytes of the configuration with its checksum.
pub const VDEV_PHYS_BYTES: usize = 112 << 10;
/// Offset of the uberblock ring in the label.
pub const RING_OFFSET: usize = VDEV_PHYS_OFFSET + VDEV_PHYS_BYTES;
/// Bytes of the uberblock ring.
pub const RING_BYTES: usize = 128 << 10;
/// Offset of the boot area on the device.
pub const BOOT_AREA_OFFSET: u64 = 2 * LABEL_BYTES as u64;
/// Bytes of the boot area.
pub const BOOT_AREA_BYTES: u64 = 7 << 19;
/// Bytes in front of the allocatable space: offset 0 of a DVA lies here.
pub const START_BYTES: u64 = BOOT_AREA_OFFSET + BOOT_AREA_BYTES;
/// Bytes behind the allocatable space.
pub const END_BYTES: u64 = 2 * LABEL_BYTES as u64;
/// The smallest device that a pool accepts (`SPA_MINDEVSIZE`).
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;
/// Multihost writes go to this many slots at the ring's end.
pub const MMP_SLOTS_PER_LABEL: usize = 1;

const MIN_SLOT_SHIFT: u32 = 10;
const MAX_SLOT_SHIFT: u32 = 13;

const _: () = assert!(RING_OFFSET + RING_BYTES == LABEL_BYTES);
const _: () = assert!(START_BYTES == 4 << 20);

/// Binary logarithm of the size of an uberblock slot on a vdev of this ashift.
#[must_use]
pub const fn slot_shift(ashift: u32) -> u32 {
    if ashift < MIN_SLOT_SHIFT {
        MIN_SLOT_SHIFT
    } else if ashift > MAX_SLOT_SHIFT {
        MAX_SLOT_SHIFT
    } else {
        ashift
    }
}

/// Bytes of an uberblock slot on a vdev of this ashift.
#[must_use]
pub const fn slot_bytes(ashift: u32) -> usize {
    1 << slot_shift(ashift)
}

/// How many uberblock slots a label has on a vdev of this ashift: 128 to 16.
#[must_use]
pub const fn slot_count(ashift: u32) -> usize {
    RING_BYTES >> slot_shift(ashift)
}

/// The slot that a txg's uberblock goes to. With multihost the last slots of the ring are set apart.
#[must_use]
pub const fn slot_of_txg(txg: u64, ashift: u32, multihost: bool) -> usize {
    let count = slot_count(ashift) - if multihost { MMP_SLOTS_PER_LABEL } else { 0 };
    (txg % count as u64) as usize
}

/// Where things lie on a device of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLayout {
    psize_bytes: u64,
}

impl DeviceLayout {
    /// For a device (or partition, or file) of this size, of which the last part-full 256 KiB go unused. `None` if the
    /// labels and the boot area do not fit.
    #[must_use]
    pub const fn new(device_bytes: u64) -> Option<Self> {
        let psize_bytes = device_bytes - device_bytes % LABEL_BYTES as u64;
        if psize_bytes < START_BYTES + END_BYTES { None } else { Some(Self { psize_bytes }) }
    }

    /// The size in use: a multiple of 256 KiB.
    #[must_use]
    pub const fn psize_bytes(&self) -> u64 {
        self.psize_bytes
    }

    /// Where label `index` (0 to 3) begins.
    ///
    /// # Panics
    /// If there is no such label.
    #[must_use]
    pub const fn label_offset(&self, index: usize) -> u64 {
        assert!(index < LABEL_COUNT);
        let offset = (index * LABEL_BYTES) as u64;
        if index < LABEL_COUNT / 2 { offset } else { self.psize_bytes - (LABEL_COUNT * LABEL_BYTES) as u64 + offset }
    }

    /// The offsets of all labels.
    #[must_use]
    pub fn label_offsets(&self) -> [u64; LABEL_COUNT] {
        std::array::from_fn(|index| self.label_offset(index))
    }

    /// The range of device offsets that DVAs may name.
    #[must_use]
    pub const fn allocatable(&self) -> Range<u64> {
        START_BYTES..self.psize_bytes - END_BYTES
    }

    /// Bytes that DVAs may name.
    #[must_use]
    pub const fn allocatable_bytes(&self) -> u64 {
        self.psize_bytes - END_BYTES - START_BYTES
    }
}

/// One uberblock slot of a label.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Its index in the ring.
    pub index: usize,
    /// Its offset in the label. The checksum's seed is this plus the label's offset on the device.
    pub label_offset: usize,
    /// The whole slot, with the embedded checksum at its end.
    pub bytes: &'a [u8],
}

impl Slot<'_> {
    /// The uberblock in it, not yet checked against the checksum.
    pub fn uberblock(&self) -> Result<Uberblock, FormatError> {
        Uberblock::parse(self.bytes)
    }

    /// The slot's checksum.
    pub fn checksum(&self) -> Result<EmbeddedChecksum, FormatError> {
        EmbeddedChecksum::parse_trailer(self.bytes)
    }
}

/// A label's 256 KiB, taken apart. Nothing is checked but the length: damage in one part leaves the others readable.
#[derive(Clone, Copy, Debug)]
pub struct VdevLabel<'a> {
    bytes: &'a [u8],
}

impl<'a> VdevLabel<'a> {
    /// From the first 256 KiB of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, FormatError> {
        match bytes.get(..LABEL_BYTES) {
            Some(bytes) => Ok(Self { bytes }),
            None => Err(FormatError::truncated(NAME, LABEL_BYTES, bytes.len())),
        }
    }

    /// The pad in front.
    #[must_use]
    pub(crate) fn pad(&self) -> &'a [u8] {
        &self.bytes[..PAD_BYTES]
    }

    /// The boot environment block with its checksum.
    #[must_use]
    pub fn boot_env_block(&self) -> &'a [u8] {
        &self.bytes[BOOT_ENV_OFFSET..BOOT_ENV_OFFSET + BOOT_ENV_BYTES]
    }

    /// The configuration with its checksum.
    #[must_use]
    pub fn vdev_phys(&self) -> &'a [u8] {
        &self.bytes[VDEV_PHYS_OFFSET..VDEV_PHYS_OFFSET + VDEV_PHYS_BYTES]
    }

    /// The configuration's checksum.
    pub fn vdev_phys_checksum(&self) -> Result<EmbeddedChecksum, FormatError> {
        EmbeddedChecksum::parse_trailer(self.vdev_phys())
    }

    /// The configuration, not yet checked against the checksum.
    pub fn config(&self) -> Result<NvList, FormatError> {
        NvList::parse(&self.vdev_phys()[..VDEV_PHYS_BYTES - EmbeddedChecksum::SIZE])
    }

    /// The boot environment, not yet checked against the checksum.
    pub fn boot_env(&self) -> Result<BootEnv, FormatError> {
        BootEnv::parse(self.boot_env_block())
    }

    /// The uberblock slots, for a vdev of this ashift.
    pub fn slots(&self, ashift: u32) -> impl ExactSizeIterator<Item = Slot<'a>> + use<'a> {
        let (bytes, size) = (self.bytes, slot_bytes(ashift));
        (0..slot_count(ashift)).map(move |index| {
            let label_offset = RING_OFFSET + index * size;
            Slot { index, label_offset, bytes: &bytes[label_offset..label_offset + size] }
        })
    }
}

/// The bytes of a `vdev_phys` with `config` in XDR and a checksum still to be filled in.
pub fn emit_vdev_phys(config: &NvList) -> Result<Vec<u8>, FormatError> {
    let room = VDEV_PHYS_BYTES - EmbeddedChecksum::SIZE;
    let mut out = config.emit_xdr();
    if out.len() > room {
        return Err(FormatError::limit(NAME, VDEV_PHYS_OFFSET, "label configuration", out.len(), room));
    }
    out.resize(VDEV_PHYS_BYTES, 0);
    Ok(out)
}

/// The content of the boot environment block.
#[derive(Clone, Debug, PartialEq)]
pub enum BootEnv {
    /// Text, up to the first zero byte (the file `grubenv`); often empty.
    Raw(Vec<u8>),
    /// A list of name and value.
    Nvlist(NvList),
}

impl BootEnv {
    /// From the whole block of 8 KiB.
    pub(crate) fn parse(block: &[u8]) -> Result<Self, FormatError> {
        let structure = "boot env block";
        let Some(block) = block.first_chunk::<BOOT_ENV_BYTES>() else {
            return Err(FormatError::truncated(structure, BOOT_ENV_BYTES, block.len()));
        };
        let body = &block[8..BOOT_ENV_BYTES - EmbeddedChecksum::SIZE];
        // Unlike all else, the version is always in network byte order, on any host.
        match u64::from_be_bytes(std::array::from_fn(|index| block[index])) {
            0 => Ok(Self::Raw(body.iter().copied().take_while(|byte| *byte != 0).collect())),
            1 => Ok(Self::Nvlist(NvList::parse(body)?)),
            version => Err(FormatError::invalid(structure, 0, "version", version, "0 or 1")),
        }
    }

    /// The block, with a checksum still to be filled in.
    pub fn emit(&self) -> Result<Vec<u8>, FormatError> {
        let (version, body) = match self {
            Self::Raw(text) => (0u64, text.clone()),
            Self::Nvlist(list) => (1, list.emit_xdr()),
        };
        let room = BOOT_ENV_BYTES - 8 - EmbeddedChecksum::SIZE;
        if body.len() > room {
            return Err(FormatError::limit("boot env block", 8, "boot env", body.len(), room));
        }
        let mut out = version.to_be_bytes().to_vec();
        out.extend(body);
        out.resize(BOOT_ENV_BYTES, 0);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvlist::NvValue;

    #[test]
    fn labels_lie_at_both_ends_of_the_rounded_size() {
        let layout = DeviceLayout::new((64 << 20) + 12_345).unwrap();
        assert_eq!(layout.psize_bytes(), 64 << 20);
        assert_eq!(layout.label_offsets(), [0, 256 << 10, (64 << 20) - (512 << 10), (64 << 20) - (256 << 10)]);
        assert_eq!(layout.allocatable(), 4 << 20..(64 << 20) - (512 << 10));
        assert_eq!(DeviceLayout::new(4 << 20), None);
        assert_eq!(DeviceLayout::new(0), None);
    }

    #[test]
    fn slots_grow_with_the_sector_size_within_bounds() {
        assert_eq!([9, 10, 12, 13, 16].map(slot_bytes), [1024, 1024, 4096, 8192, 8192]);
        assert_eq!([9, 12, 16].map(slot_count), [128, 32, 16]);
        assert_eq!(slot_of_txg(33, 12, false), 1);
        assert_eq!(slot_of_txg(33, 12, true), 2);
    }

    #[test]
    fn an_empty_label_parses_to_errors_in_each_part() {
        let bytes = vec![0; LABEL_BYTES];
        let label = VdevLabel::new(&bytes).unwrap();
        assert!(label.vdev_phys_checksum().is_err());
        assert_eq!(label.boot_env().unwrap(), BootEnv::Raw(Vec::new()));
        assert_eq!(label.slots(9).len(), 128);
        assert!(label.slots(12).all(|slot| slot.uberblock().is_err() && slot.checksum().is_err()));
        assert!(VdevLabel::new(&bytes[1..]).is_err());
    }

    #[test]
    fn a_configuration_and_a_boot_environment_round_trip() {
        let mut config = NvList::new();
        config.push("name", NvValue::from("tank"));
        let mut bytes = vec![0; LABEL_BYTES];
        bytes[VDEV_PHYS_OFFSET..RING_OFFSET].copy_from_slice(&emit_vdev_phys(&config).unwrap());
        for env in [BootEnv::Raw(b"saved_entry=1".to_vec()), BootEnv::Nvlist(config.clone())] {
            bytes[BOOT_ENV_OFFSET..VDEV_PHYS_OFFSET].copy_from_slice(&env.emit().unwrap());
            assert_eq!(VdevLabel::new(&bytes).unwrap().boot_env().unwrap(), env);
        }
        assert_eq!(VdevLabel::new(&bytes).unwrap().config().unwrap(), config);
        config.push("big", NvValue::ByteArray(vec![1; VDEV_PHYS_BYTES]));
        assert!(emit_vdev_phys(&config).is_err());
        assert!(BootEnv::Nvlist(config).emit().is_err());
        assert!(BootEnv::parse(&[9; BOOT_ENV_BYTES]).is_err());
    }
}
