//! Vdevs made for a test: a configuration, disks in memory that can be spoilt, and a writer of blocks that follows the layouts.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_codec::raidz;
use cenote_format::ids::{Guid, Txg};
use cenote_format::label::START_BYTES;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sync::RwLock;
use cenote_taskq::{BoxFuture, Device, Driver, Runtime};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::StripeMap;
use cenote_vdev::layout::draid::Draid;
use cenote_vdev::layout::raidz::{Raidz, Reflow};
use cenote_vdev::tree::VdevTree;

/// A disk in memory, sparse, that can be told to fail.
#[derive(Debug)]
pub(crate) struct TestDisk {
    name: PathBuf,
    size_bytes: u64,
    state: RwLock<DiskState>,
}

#[derive(Debug, Default)]
struct DiskState {
    /// 512-byte sectors that are not zero.
    sectors: HashMap<u64, [u8; 512]>,
    /// Ranges that fail to be read and written.
    broken: Vec<std::ops::Range<u64>>,
    flush_fails: bool,
    reads: u64,
}

impl TestDisk {
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        assert_eq!((address % 512, bytes.len() % 512), (0, 0));
        let mut state = self.state.write();
        for (sector, chunk) in (address / 512..).zip(bytes.as_chunks::<512>().0) {
            state.sectors.insert(sector, *chunk);
        }
    }

    pub(crate) fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(address, &mut bytes);
        bytes
    }

    fn fill(&self, address: u64, bytes: &mut [u8]) {
        assert_eq!((address % 512, bytes.len() % 512), (0, 0));
        let state = self.state.read();
        for (sector, chunk) in (address / 512..).zip(bytes.as_chunks_mut::<512>().0) {
            *chunk = state.sectors.get(&sector).copied().unwrap_or([0; 512]);
        }
    }

    /// Flips bits in every sector of a range.
    pub(crate) fn spoil(&self, address: u64, len: u64) {
        let mut bytes = self.get(address, len as usize);
        bytes.iter_mut().step_by(101).for_each(|byte| *byte ^= 0x5a);
        self.write(address, &bytes);
    }

    /// Flips a bit in everything that was ever written: in the first byte of each sector, since those behind it may be padding
    /// that no checksum covers.
    pub(crate) fn spoil_all(&self) {
        for sector in self.state.write().sectors.values_mut() {
            sector[0] ^= 0x80;
        }
    }

    /// Has flushes fail, or succeed, from now on.
    pub(crate) fn set_flush_fails(&self, fails: bool) {
        self.state.write().flush_fails = fails;
    }

    pub(crate) fn fail(&self, range: std::ops::Range<u64>) {
        self.state.write().broken.push(range);
    }

    /// Everything that was ever written, by sector.
    pub(crate) fn sectors(&self) -> HashMap<u64, [u8; 512]> {
        self.state.read().sectors.clone()
    }

    pub(crate) fn reads(&self) -> u64 {
        self.state.read().reads
    }
}

impl Driver for TestDisk {
    fn read(&self, offset_bytes: u64, mut buf: Buf) -> BoxFuture<'_, (io::Result<()>, Buf)> {
        Box::pin(async move {
            let end = offset_bytes + buf.len() as u64;
            let is_broken = {
                let mut state = self.state.write();
                state.reads += 1;
                state.broken.iter().any(|range| range.start < end && range.end > offset_bytes)
            };
            if is_broken {
                return (Err(io::Error::from_raw_os_error(5)), buf);
            }
            self.fill(offset_bytes, &mut buf);
            (Ok(()), buf)
        })
    }

    fn write(&self, offset_bytes: u64, block: Block) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let end = offset_bytes + block.len() as u64;
            if self.state.read().broken.iter().any(|range| range.start < end && range.end > offset_bytes) {
                return Err(io::Error::from_raw_os_error(5));
            }
            TestDisk::write(self, offset_bytes, &block);
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, io::Result<()>> {
        let fails = self.state.read().flush_fails;
        Box::pin(async move { if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) } })
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn path(&self) -> &Path {
        &self.name
    }
}

/// A vdev of a configuration in the making.
pub(crate) fn vdev(kind: &str, guid: u64) -> NvList {
    let mut list = NvList::new();
    list.push("type", kind);
    list.push("guid", guid);
    list
}

/// Leaves with guids from `first`.
pub(crate) fn leaves(first: u64, count: usize) -> Vec<NvList> {
    (first..).take(count).map(|guid| vdev("file", guid)).collect()
}

pub(crate) fn with_children(mut list: NvList, children: Vec<NvList>) -> NvList {
    let numbered = children.into_iter().zip(0_u64..).map(|(mut child, id)| {
        child.push("id", id);
        child
    });
    list.push("children", NvValue::NvlistArray(numbered.collect()));
    list
}

pub(crate) fn raidz(parity: u64, ashift: u64, children: Vec<NvList>) -> NvList {
    let mut list = vdev("raidz", 500);
    list.push("nparity", parity);
    list.push("ashift", ashift);
    with_children(list, children)
}

/// Top-level vdevs on disks of their own.
pub(crate) struct Made {
    pub(crate) runtime: Runtime,
    pub(crate) config: VdevConfig,
    pub(crate) disks: HashMap<Guid, Arc<TestDisk>>,
}

impl Made {
    pub(crate) const DISK_BYTES: u64 = 1 << 40;

    pub(crate) fn new(tops: Vec<NvList>) -> Self {
        let config = VdevConfig::parse(&with_children(vdev("root", 1), tops)).unwrap();
        let mut disks = HashMap::new();
        for leaf in config.leaves().iter().filter(|leaf| leaf.kind == VdevKind::File) {
            let name = PathBuf::from(format!("disk{}", leaf.guid));
            let disk = TestDisk { name, size_bytes: Self::DISK_BYTES, state: RwLock::default() };
            disks.insert(leaf.guid, Arc::new(disk));
        }
        Self { runtime: Runtime::simulated(7), config, disks }
    }

    pub(crate) fn tree(&self, without: &[u64]) -> Arc<VdevTree> {
        let there = self.disks.iter().filter(|(guid, _)| !without.contains(&guid.0));
        let disks = there.map(|(guid, disk)| (*guid, Disk::whole(Device::from_driver(disk.clone()))));
        VdevTree::open(&self.config, disks).unwrap()
    }

    pub(crate) fn disk(&self, guid: u64) -> &TestDisk {
        &self.disks[&Guid(guid)]
    }

    /// Where a block of top-level vdev 0 lies, which is a raidz or draid.
    pub(crate) fn map(&self, offset: u64, size: u64, birth: Txg) -> StripeMap {
        self.map_of(&self.config.children[0], offset, size, birth)
    }

    /// Where a block of a raidz or draid lies.
    pub(crate) fn map_of(&self, vdev: &VdevConfig, offset: u64, size: u64, birth: Txg) -> StripeMap {
        match &vdev.kind {
            VdevKind::Raidz { parity, expanding, expand_txgs } => {
                Raidz::new(self.ashift(), *parity, vdev.children.len(), expand_txgs, *expanding)
                    .unwrap()
                    .map(offset, size, birth, Reflow::COMPLETE)
                    .unwrap()
            }
            _ => self.draid(vdev).map(offset, size).unwrap(),
        }
    }

    fn ashift(&self) -> u32 {
        self.config.children[0].ashift
    }

    fn draid(&self, vdev: &VdevConfig) -> Draid {
        let VdevKind::Draid { parity, data, spares, groups } = vdev.kind else { panic!("not a draid") };
        Draid::new(self.ashift(), parity, data, spares, groups, vdev.children.len()).unwrap()
    }

    /// Writes a block to top-level vdev 0, through all devices of each child.
    pub(crate) fn put(&self, offset: u64, block: &[u8], birth: Txg) {
        let mut padded = block.to_vec();
        padded.resize(block.len().next_multiple_of(1 << self.ashift()), 0);
        self.put_on(&self.config.children[0], offset, &padded, birth);
    }

    fn put_on(&self, vdev: &VdevConfig, offset: u64, padded: &[u8], birth: Txg) {
        match &vdev.kind {
            VdevKind::Raidz { .. } | VdevKind::Draid { .. } => self.put_stripe(vdev, offset, padded, birth),
            VdevKind::File => self.disk(vdev.guid.0).write(offset + START_BYTES, padded),
            _ => vdev.children.iter().for_each(|child| self.put_on(child, offset, padded, birth)),
        }
    }

    fn put_stripe(&self, vdev: &VdevConfig, offset: u64, padded: &[u8], birth: Txg) {
        let map = self.map_of(vdev, offset, padded.len() as u64, birth);
        let parity_count = map.parity_count();
        for row in map.rows() {
            let place = |start: u64, len: u64| start as usize..(start + len) as usize;
            let data: Vec<&[u8]> =
                row[parity_count..].iter().map(|c| &padded[place(c.block_offset_bytes, c.size_bytes)]).collect();
            let mut parity = vec![vec![0; row[0].size_bytes as usize]; parity_count];
            let mut spaces: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            raidz::generate(&data, &mut spaces).unwrap();
            let all = parity.iter().map(Vec::as_slice).chain(data);
            for (column, bytes) in row.iter().zip(all) {
                let mut bytes = bytes.to_vec();
                bytes.resize(bytes.len() + column.padding_bytes as usize, 0);
                self.write_child(vdev, column.child, column.address_bytes, &bytes);
            }
        }
    }

    /// Writes to every disk of a stripe's child; distributed spares pass it on to the child they stand for.
    fn write_child(&self, stripe: &VdevConfig, child: u32, address: u64, bytes: &[u8]) {
        for leaf in stripe.children[child as usize].leaves() {
            match &leaf.kind {
                VdevKind::DraidSpare { spare_id, .. } => {
                    let target = self.draid(stripe).spare_child(*spare_id, address - START_BYTES).unwrap();
                    self.write_child(stripe, target, address, bytes);
                }
                _ => self.disk(leaf.guid.0).write(address, bytes),
            }
        }
    }
}

/// A block whose bytes differ from sector to sector.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
