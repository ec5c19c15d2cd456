//! Scrubbing blocks: any damage that redundancy makes up for is gone afterwards, on every vdev kind, and nothing else was written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cenote_codec::compress::CompressLevel;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{BoxFuture, Device, RamDevice, Runtime};
use cenote_vdev::config::VdevConfig;
use cenote_vdev::disk::Disk;
use cenote_vdev::tree::{LeafState, VdevTree};
use cenote_zio::{
    AllocationRequest, AllocationUnits, Allocator, Bookmark, Keeper, NoSpace, ReadContext, Unmended, WritePolicy,
    Written, Zio,
};
use proptest::prelude::*;

const TXG: Txg = Txg(77);
const DISK_BYTES: usize = 8 << 20;
/// From the first block's place on: more than a block takes of a device.
const LOOKED_AT_BYTES: usize = 2 << 20;
const SECTOR: usize = 4096;

/// Gives space from the front of each vdev, in turn, in pieces of at most `largest_bytes`.
struct Bump {
    tree: Arc<VdevTree>,
    largest_bytes: u64,
    next: Mutex<(usize, Vec<u64>)>,
}

impl Bump {
    fn take(&self, request: AllocationRequest) -> Result<Vec<Dva>, NoSpace> {
        if request.psize_bytes > self.largest_bytes {
            return Err(NoSpace::Fragmented);
        }
        let mut next = self.next.lock().unwrap();
        let places = (0..request.copies).map(|_| {
            let vdev = next.0 % next.1.len();
            next.0 += 1;
            let id = VdevId(vdev as u32);
            let asize_bytes = self.tree.psize_to_asize(id, request.psize_bytes, request.txg).unwrap();
            let offset_bytes = std::mem::replace(&mut next.1[vdev], 0);
            next.1[vdev] = offset_bytes + asize_bytes;
            Dva { vdev: id, offset_bytes, asize_bytes, gang: false }
        });
        Ok(places.collect())
    }
}

impl Allocator for Bump {
    fn units(&self) -> AllocationUnits {
        AllocationUnits { min_bytes: SECTOR as u64, step_bytes: SECTOR as u64 }
    }

    fn allocate(&self, request: AllocationRequest) -> BoxFuture<'_, Result<Vec<Dva>, NoSpace>> {
        let result = self.take(request);
        Box::pin(async move { result })
    }

    fn allocate_some(&self, request: AllocationRequest, _: usize) -> Vec<Dva> {
        self.take(request).unwrap_or_default()
    }

    fn release(&self, _: Dva, _: Txg) {}
}

/// Keeps everything, and counts who relies on it.
#[derive(Default)]
struct Kept {
    holds: Arc<AtomicUsize>,
    is_gone: bool,
}

struct Hold(Arc<AtomicUsize>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Keeper for Kept {
    fn txg(&self) -> Txg {
        TXG
    }

    fn is_kept(&self) -> bool {
        !self.is_gone
    }

    fn hold(self: Arc<Self>) -> Option<Box<dyn Send>> {
        self.holds.fetch_add(1, Ordering::SeqCst);
        let hold = Hold(self.holds.clone());
        (!self.is_gone).then(|| Box::new(hold) as Box<dyn Send>)
    }
}

/// A vdev: its kind, its parity, how many children it has, and whether the first of these is being replaced.
#[derive(Clone, Copy, Debug)]
struct Top {
    kind: &'static str,
    parity: usize,
    children: usize,
    is_replacing: bool,
}

const fn top(kind: &'static str, parity: usize, children: usize) -> Top {
    Top { kind, parity, children, is_replacing: false }
}

const LAYOUTS: [&[Top]; 10] = [
    &[top("mirror", 0, 2)],
    &[top("mirror", 0, 3)],
    &[top("raidz", 1, 4)],
    &[top("raidz", 2, 5)],
    &[top("raidz", 3, 7)],
    &[top("draid", 2, 7)],
    &[top("file", 0, 1), top("file", 0, 1)],
    &[top("mirror", 0, 2), top("raidz", 1, 3)],
    &[Top { is_replacing: true, ..top("raidz", 1, 3) }],
    &[Top { is_replacing: true, ..top("draid", 1, 6) }],
];

struct Rig {
    runtime: Runtime,
    zio: Zio,
    /// Of each vdev its devices; with a replacing child both of its devices count.
    devices: Vec<Vec<(u64, Device)>>,
}

impl Rig {
    fn new(layout: &[Top], seed: u64) -> Self {
        let runtime = Runtime::simulated(seed);
        let mut devices: Vec<Vec<(u64, Device)>> = Vec::new();
        let list = |kind: &str, guid: u64, id: usize| {
            let mut list = NvList::new();
            list.push("type", kind);
            list.push("guid", guid);
            list.push("id", id as u64);
            list
        };
        let mut tops = Vec::new();
        for (id, spec) in layout.iter().enumerate() {
            let mut mine = Vec::new();
            let mut leaf = |id: usize| {
                let guid = 1000 + (devices.len() * 100 + mine.len()) as u64;
                mine.push((guid, Device::from_driver(RamDevice::new(format!("disk{guid}"), vec![0; DISK_BYTES]))));
                list("file", guid, id)
            };
            let mut top = list(spec.kind, 10 + id as u64, id);
            if spec.kind == "file" {
                top = leaf(id);
            } else {
                let mut children: Vec<NvList> = (0..spec.children).map(&mut leaf).collect();
                if spec.is_replacing {
                    let mut replacing = list("replacing", 500, 0);
                    let old = std::mem::replace(&mut children[0], NvList::new());
                    replacing.push("children", NvValue::NvlistArray(vec![old, leaf(1)]));
                    children[0] = replacing;
                }
                top.push("children", NvValue::NvlistArray(children));
            }
            top.push("ashift", 12_u64);
            if spec.parity > 0 {
                top.push("nparity", spec.parity as u64);
            }
            if spec.kind == "draid" {
                top.push("draid_ndata", 3_u64);
                top.push("draid_nspares", 1_u64);
                let (width, all) = (3 + spec.parity, spec.children - 1);
                let groups = (1..).find(|groups| (groups * width).is_multiple_of(all)).unwrap();
                top.push("draid_ngroups", groups as u64);
            }
            tops.push(top);
            devices.push(mine);
        }
        let mut root = list("root", 1, 0);
        root.push("children", NvValue::NvlistArray(tops));
        let config = VdevConfig::parse(&root).unwrap();
        let disks: Vec<_> =
            devices.iter().flatten().map(|(guid, device)| (Guid(*guid), Disk::whole(device.clone()))).collect();
        let tree = runtime.block_on(async { VdevTree::open(&config, disks).unwrap() });
        let zio = Zio::new(tree);
        zio.set_salt(&[7; 32]);
        Self { runtime, zio, devices }
    }

    fn kept(&self) -> (Zio, Arc<AtomicUsize>) {
        let kept = Kept::default();
        let holds = kept.holds.clone();
        (self.zio.clone().while_kept(Arc::new(kept)), holds)
    }

    /// A new block's pointer, its contents, and how far each vdev is used.
    fn write(&self, sectors: usize, copies: u8, largest_bytes: u64, seed: u64) -> (Blkptr, Block, Vec<u64>) {
        let (written, block, used) = self.written(sectors, copies, largest_bytes, seed);
        (written.bp, block, used)
    }

    fn written(&self, sectors: usize, copies: u8, largest_bytes: u64, seed: u64) -> (Written, Block, Vec<u64>) {
        let tree = self.zio.tree().clone();
        let next = Mutex::new((0, vec![0; tree.top_count()]));
        let allocator = Bump { tree, largest_bytes, next };
        let block = noise(sectors * 512, seed);
        let policy = WritePolicy {
            bookmark: BOOKMARK,
            object_type: DmuType::PLAIN_FILE_CONTENTS,
            level: 0,
            txg: TXG,
            compress: Compress::Off,
            compress_level: CompressLevel::DEFAULT,
            checksum: Checksum::Fletcher4,
            copies,
            fill: 1,
            small_block_bytes: 0,
            may_embed: false,
            holes_have_births: true,
            previous: Blkptr::HOLE,
            nopwrite: false,
            may_rewrite: false,
            protects: false,
            force_gang_above_bytes: None,
        };
        let written = self.runtime.block_on(self.zio.write(&allocator, &block, &policy)).unwrap();
        let used = allocator.next.lock().unwrap().1.clone();
        (written, block, used)
    }

    /// The contents of devices where blocks may be.
    fn contents(&self) -> Vec<Vec<u8>> {
        let read = |device: &Device| {
            let (result, buf) = self.runtime.block_on(device.read(START_BYTES, Buf::unfilled(LOOKED_AT_BYTES)));
            result.unwrap();
            buf.to_vec()
        };
        self.devices.iter().flatten().map(|(_, device)| read(device)).collect()
    }

    /// Spoils about one sector in `rarity` of what a device may hold of a vdev.
    fn spoil(&self, device: &Device, used_bytes: u64, rarity: u64, seed: u64) {
        let mut random = Random(seed | 1);
        for sector in 0..used_bytes.div_ceil(SECTOR as u64) {
            if random.next().is_multiple_of(rarity) {
                let at = START_BYTES + sector * SECTOR as u64;
                self.runtime.block_on(device.write(at, noise(SECTOR, random.next()))).unwrap();
            }
        }
    }

    fn healed(&self, guid: u64) -> u64 {
        let status = self.zio.tree().status();
        status.leaves().into_iter().find(|leaf| leaf.guid.0 == guid).unwrap().healed_bytes
    }
}

const BOOKMARK: Bookmark = Bookmark { objset: ObjsetId(5), object: ObjectId(6), level: 0, block: BlockId(7) };
const CONTEXT: ReadContext<'static> = ReadContext::new(BOOKMARK, None);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

fn noise(len: usize, seed: u64) -> Block {
    let mut random = Random(seed | 1);
    Block::from((0..len).map(|_| random.next() as u8).collect::<Vec<u8>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Goal: damage that redundancy makes up for is gone after one scrub of the block. Method: blocks of all sizes, whole and in pieces, on
    /// all kinds of vdevs; as many devices are spoilt as each vdev can do without, and another vdev altogether where a copy is elsewhere.
    #[test]
    fn damage_within_redundancy_heals_fully(
        layout in 0..LAYOUTS.len(), sectors in 1_usize..200, many_copies: bool, seed: u64,
        rarity in prop::sample::select(vec![1_u64, 2, 7]),
        largest in prop::sample::select(vec![4096_u64, 16 << 10, 1 << 30]),
    ) {
        let layout = LAYOUTS[layout];
        let rig = Rig::new(layout, seed);
        let copies = if many_copies || layout[0].kind == "file" { 2 } else { 1 };
        let (bp, block, used) = rig.write(sectors, copies, largest, seed);
        prop_assert!(used.iter().all(|used| *used < LOOKED_AT_BYTES as u64));
        let (zio, holds) = rig.kept();
        let before = rig.contents();
        let clean = rig.runtime.block_on(zio.scrub_block(&bp, CONTEXT)).unwrap();
        prop_assert!(clean.is_whole() && clean.copies.bad.is_empty() && clean.mended.healed.is_empty(), "{:?}", clean);
        let mut random = Random(seed);
        let mut victims = Vec::new();
        for (vdev, spec) in layout.iter().enumerate() {
            let mut devices = rig.devices[vdev].clone();
            let dispensable = match spec.kind {
                // The other copy is on the other vdev: two vdevs, two copies.
                _ if layout.len() == 2 && copies == 2 && vdev == (seed % 2) as usize => devices.len(),
                "mirror" => devices.len() - 1,
                "file" => 0,
                _ => spec.parity,
            };
            for _ in 0..dispensable {
                let (guid, device) = devices.swap_remove(random.next() as usize % devices.len());
                rig.spoil(&device, used[vdev], rarity, random.next());
                victims.push(guid);
            }
        }
        let spoilt = rig.contents();
        // A pipeline that keeps nothing writes nothing.
        let told = rig.runtime.block_on(rig.zio.scrub_block(&bp, CONTEXT)).unwrap();
        prop_assert_eq!(told.unmended.is_some(), !told.copies.bad.is_empty());
        prop_assert!(rig.contents() == spoilt);
        let scrubbed = rig.runtime.block_on(zio.scrub_block(&bp, CONTEXT)).unwrap();
        prop_assert!(scrubbed.copies.physical.as_ref().unwrap()[..] == block[..]);
        prop_assert!(scrubbed.is_whole(), "{:?}", scrubbed);
        prop_assert_eq!(scrubbed.mended.healed.is_empty(), scrubbed.copies.bad.is_empty(), "{:?}", scrubbed);
        for leaf in &scrubbed.mended.healed {
            prop_assert!(victims.contains(&leaf.guid.0), "{} was not spoilt", leaf.guid);
            prop_assert_eq!(rig.healed(leaf.guid.0), leaf.bytes);
        }
        prop_assert_eq!(holds.load(Ordering::SeqCst), 0);
        let again = rig.runtime.block_on(zio.scrub_block(&bp, CONTEXT)).unwrap();
        prop_assert!(again.copies.bad.is_empty() && again.mended.healed.is_empty(), "{:?}", again);
        prop_assert!(rig.runtime.block_on(zio.read(&bp, CONTEXT)).unwrap() == block);
        // Nothing is elsewhere than it was, and nothing else was written: only what the block does not cover stays spoilt.
        let healed = rig.contents();
        for ((before, spoilt), healed) in before.iter().zip(&spoilt).zip(&healed) {
            for at in (0..LOOKED_AT_BYTES).step_by(SECTOR) {
                let is_as = |other: &[u8]| healed[at..at + SECTOR] == other[at..at + SECTOR];
                prop_assert!(is_as(before) || is_as(spoilt));
            }
        }
    }
}

/// A block is written again only while its place is kept, and only if its birth is one of the kept txg.
#[test]
fn what_is_not_kept_is_not_written() {
    let rig = Rig::new(LAYOUTS[0], 1);
    let (bp, _, used) = rig.write(64, 1, 1 << 30, 1);
    rig.spoil(&rig.devices[0][0].1, used[0], 1, 5);
    let spoilt = rig.contents();
    let gone = rig.zio.clone().while_kept(Arc::new(Kept { is_gone: true, ..Kept::default() }));
    let scrubbed = rig.runtime.block_on(gone.scrub_block(&bp, CONTEXT)).unwrap();
    assert!(!scrubbed.is_whole() && matches!(scrubbed.unmended, Some(Unmended::NotKept(_))));
    let mut later = bp;
    later.set_births(Txg(TXG.0 + 1), Txg(TXG.0 + 1));
    let (zio, _) = rig.kept();
    let scrubbed = rig.runtime.block_on(zio.scrub_block(&later, CONTEXT)).unwrap();
    assert!(!scrubbed.is_whole() && matches!(scrubbed.unmended, Some(Unmended::Later(_))));
    assert!(rig.contents() == spoilt);
    let scrubbed = rig.runtime.block_on(zio.scrub_block(&bp, CONTEXT)).unwrap();
    assert!(scrubbed.is_whole() && scrubbed.mended.healed_bytes() == 64 * 512);
}

/// A block that a leaf has missed is no fault of the leaf, and is written all the same: a resilver comes with this.
#[test]
fn a_leaf_that_has_missed_the_block_gets_it_and_is_charged_with_nothing() {
    let rig = Rig::new(LAYOUTS[2], 1);
    let (guid, device) = &rig.devices[0][1];
    let (bp, block, used) = rig.write(100, 1, 1 << 30, 1);
    rig.spoil(device, used[0], 1, 5);
    let (zio, _) = rig.kept();
    let tree = zio.tree();
    let leaf = Guid(*guid);
    assert!(tree.control().unwrap().set_dtl(leaf, cenote_vdev::dtl::Dtl::of(TXG.0..TXG.0 + 1)));
    let scrubbed = rig.runtime.block_on(zio.scrub_block(&bp, CONTEXT)).unwrap();
    assert!(scrubbed.is_whole() && scrubbed.mended.healed.iter().all(|mended| mended.guid == leaf));
    assert!(scrubbed.mended.healed_bytes() > 0);
    assert_eq!(tree.error_counts(leaf).unwrap().totals(), cenote_vdev::fault::ErrorTotals::default());
    // And with it another one can go.
    assert!(tree.control().unwrap().set_dtl(leaf, cenote_vdev::dtl::Dtl::new()));
    assert!(tree.control().unwrap().set_leaf_state(Guid(rig.devices[0][0].0), LeafState::Offline));
    assert!(rig.runtime.block_on(zio.read(&bp, CONTEXT)).unwrap() == block);
}

/// A reader gets its bytes, and damage is told of, with the leaf that was charged; whichever device it is, one of them is read first.
#[test]
fn a_reader_tells_of_damage() {
    for layout in [0, 3, 6] {
        let copies = if layout == 6 { 2 } else { 1 };
        let mut count = 0;
        for bad in 0..LAYOUTS[layout].iter().map(|top| top.children).sum() {
            let rig = Rig::new(LAYOUTS[layout], 1);
            let (bp, block, used) = rig.write(64, copies, 1 << 30, 1);
            let (guid, device) = rig.devices.iter().flatten().nth(bad).unwrap();
            rig.spoil(device, used[0], 1, 5);
            let told = Arc::new(Mutex::new(Vec::new()));
            let teller = told.clone();
            rig.zio.when_damaged(move |damaged| teller.lock().unwrap().push(damaged));
            assert!(rig.runtime.block_on(rig.zio.read(&bp, CONTEXT)).unwrap() == block);
            let told = std::mem::take(&mut *told.lock().unwrap());
            let Some(damaged) = told.first() else { continue };
            count += 1;
            let bad = Guid(*guid);
            assert!(told.len() == 1 && damaged.bp == bp && damaged.bookmark == BOOKMARK && damaged.charged == [bad]);
            let errors = || rig.zio.tree().error_counts(bad).unwrap().totals().checksum;
            assert_eq!(errors(), 1);
            let (zio, _) = rig.kept();
            let mended = rig.runtime.block_on(zio.mend_block(&bp, CONTEXT, Some(damaged.charged.clone()))).unwrap();
            assert!(mended.is_whole() && mended.mended.healed_bytes() > 0);
            assert_eq!(errors(), 1, "it is counted once");
        }
        assert!(count > 0, "no reader met the damage");
    }
}

/// A copy on a vdev that takes nothing was forgotten: the block was good elsewhere, and no dirty time log said that it lacked.
#[test]
fn a_copy_that_no_device_took_is_told() {
    for largest_bytes in [4096, 1 << 30] {
        let rig = Rig::new(LAYOUTS[6], 1);
        let gone = Guid(rig.devices[1][0].0);
        assert!(rig.zio.tree().control().unwrap().set_leaf_state(gone, LeafState::Offline));
        let (written, ..) = rig.written(64, 2, largest_bytes, 1);
        assert_eq!(written.missed, [gone]);
    }
}
