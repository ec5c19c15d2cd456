//! The smallest reader that gets from a label to objects: single-device, striped and mirrored pools, LZ4, LZJB and plain
//! blocks, no verification. Enough to bring this crate's parsers before real bytes without the crates above.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use cenote_format::blkptr::{Blkptr, BlkptrKind};
use cenote_format::dnode::DnodePhys;
use cenote_format::enums::Compress;
use cenote_format::label::{DeviceLayout, LABEL_BYTES, LABEL_COUNT, START_BYTES, VdevLabel};
use cenote_testkit::{Theme, gpt};

/// A vdev's device: an image, or the first partition in it.
pub(crate) struct Device {
    pub(crate) name: String,
    file: File,
    start: u64,
    pub(crate) layout: DeviceLayout,
}

impl Device {
    pub(crate) fn open(path: &std::path::Path) -> Self {
        let mut file = File::open(path).unwrap();
        let mut size = file.metadata().unwrap().len();
        let mut head = vec![0; 64 << 10];
        file.read_exact(&mut head).unwrap();
        let mut start = 0;
        if &head[512..520] == b"EFI PART" {
            // The partition's end must lie within what is handed over, so hand over everything.
            let image = std::fs::read(path).unwrap();
            let range = gpt::first_partition(&image).unwrap();
            start = range.start as u64;
            size = range.len() as u64;
        }
        let name = path.display().to_string();
        Self { name, file, start, layout: DeviceLayout::new(size).unwrap() }
    }

    pub(crate) fn read(&self, offset: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start + offset)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn labels(&self) -> [Vec<u8>; LABEL_COUNT] {
        self.layout.label_offsets().map(|offset| self.read(offset, LABEL_BYTES))
    }
}

pub(crate) fn devices(theme: &Theme) -> Vec<Device> {
    theme.unpacked().unwrap().images.iter().map(|path| Device::open(path)).collect()
}

/// The devices of a pool by top-level vdev; `None` if one is neither a leaf nor a mirror.
pub(crate) struct Pool {
    vdevs: BTreeMap<u64, Device>,
}

impl Pool {
    pub(crate) fn of(devices: Vec<Device>) -> Option<Self> {
        let mut vdevs = BTreeMap::new();
        for device in devices {
            let labels = device.labels();
            let config = VdevLabel::new(&labels[0]).unwrap().config().unwrap();
            let tree = config.list("vdev_tree")?;
            if !matches!(tree.str("type"), Some("file" | "disk" | "mirror")) {
                return None;
            }
            vdevs.insert(tree.u64("id")?, device);
        }
        Some(Self { vdevs })
    }

    /// A block, unpacked; `None` if it is of a kind that this reader leaves out.
    pub(crate) fn block(&self, bp: &Blkptr) -> Option<Vec<u8>> {
        bp.verify().unwrap();
        let mut unpacked = vec![0; bp.lsize_bytes() as usize];
        let stored = match bp.kind() {
            BlkptrKind::Hole => return Some(unpacked),
            BlkptrKind::Embedded => bp.embedded_payload().unwrap().to_vec(),
            BlkptrKind::Normal => {
                let dva = bp.dva(0).unwrap();
                self.vdevs[&u64::from(dva.vdev.0)].read(START_BYTES + dva.offset_bytes, bp.psize_bytes() as usize)
            }
            _ => return None,
        };
        match bp.compress()? {
            _ if bp.is_encrypted() && bp.compress() != Some(Compress::Off) => None,
            Compress::Off => {
                unpacked[..stored.len()].copy_from_slice(&stored);
                Some(unpacked)
            }
            Compress::Lz4 => {
                let len = u32::from_be_bytes(stored[..4].try_into().unwrap()) as usize;
                let size = lz4_flex::block::decompress_into(&stored[4..4 + len], &mut unpacked).unwrap();
                assert_eq!(size, unpacked.len());
                Some(unpacked)
            }
            Compress::Lzjb => {
                lzjb(&stored, &mut unpacked);
                Some(unpacked)
            }
            _ => None,
        }
    }

    /// Calls `visit` with every block pointer of an object and, if it could be read, the block's bytes.
    pub(crate) fn walk(&self, dnode: &DnodePhys, visit: &mut dyn FnMut(&Blkptr, Option<&[u8]>)) {
        for bp in dnode.blkptrs().iter().chain(&dnode.spill) {
            self.walk_blkptr(bp, visit);
        }
    }

    fn walk_blkptr(&self, bp: &Blkptr, visit: &mut dyn FnMut(&Blkptr, Option<&[u8]>)) {
        let is_structure = bp.level() > 0 || bp.dmu_type().has_fill();
        let block = if is_structure { self.block(bp) } else { None };
        visit(bp, block.as_deref());
        if bp.level() == 0 || bp.is_hole() {
            return;
        }
        for child in Blkptr::array(&block.expect("indirect blocks are LZ4 or plain"), bp.byte_order()) {
            if child != Blkptr::HOLE {
                assert_eq!(child.level() + 1, bp.level());
            }
            self.walk_blkptr(&child, visit);
        }
    }
}

/// Unpacks LZJB: groups of eight items, each a byte or a copy of 3 to 66 bytes from at most 1023 back, told apart by the
/// bits of a byte in front.
fn lzjb(source: &[u8], target: &mut [u8]) {
    let mut source = source.iter().map(|byte| usize::from(*byte));
    let mut next = || source.next().unwrap();
    let (mut at, mut bits, mut left) = (0, 0, 0);
    while at < target.len() {
        if left == 0 {
            (bits, left) = (next(), 8);
        }
        if bits & 1 == 0 {
            target[at] = next() as u8;
            at += 1;
        } else {
            let (high, low) = (next(), next());
            let back = (high & 3) << 8 | low;
            for _ in 0..(high >> 2) + 3 {
                if at < target.len() {
                    target[at] = target[at - back];
                    at += 1;
                }
            }
        }
        (bits, left) = (bits >> 1, left - 1);
    }
}
