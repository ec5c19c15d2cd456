//! A walk over everything that a pool's devices hold, as far as block pointers lead: enough of the upper layers to reach
//! every block, and no more.

pub(crate) mod made;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cenote_codec::checksum::{
    self, Salt,
    embedded::{gang_verifier, verify_embedded},
};
use cenote_codec::compress::decompress;
use cenote_format::Endian;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::dnodes_in_block;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::indirect::IndirectMappingEntry;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::objset::ObjsetPhys;
use cenote_format::spacemap::{SpaceMapPhys, SpaceMapRecord, SpaceMapRecords, SpaceMapType};
use cenote_format::uberblock::Uberblock;
use cenote_taskq::{BoxFuture, Device, RamDevice, Runtime};
use cenote_testkit::Theme;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::dtl::Dtl;
use cenote_vdev::error::VdevError;
use cenote_vdev::fault::Fault;
use cenote_vdev::layout::raidz::Reflow;
use cenote_vdev::leaf::{LabelReport, probe_device};
use cenote_vdev::tree::{IndirectMap, ReadContext, Segment, VdevTree};

/// A pool whose devices were found and whose configuration was read from its MOS.
pub(crate) struct Pool {
    pub(crate) runtime: Runtime,
    pub(crate) uberblock: Uberblock,
    pub(crate) config: VdevConfig,
    pub(crate) disks: HashMap<Guid, Disk>,
    maps: Arc<Maps>,
    pub(crate) missed: HashMap<Guid, Dtl>,
}

/// An object of the MOS.
struct Object {
    kind: DmuType,
    data: Vec<u8>,
    bonus: Vec<u8>,
}

/// The mappings of removed vdevs, in memory.
#[derive(Debug, Default)]
struct Maps(BTreeMap<u32, Vec<Segment>>);

impl IndirectMap for Maps {
    fn segments(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> BoxFuture<'_, Result<Vec<Segment>, VdevError>> {
        let end = offset_bytes + size_bytes;
        let all = self.0.get(&vdev.0).map_or(&[][..], Vec::as_slice);
        let cut = all
            .iter()
            .filter(|s| s.offset_bytes < end && s.offset_bytes + s.size_bytes > offset_bytes)
            .map(|s| {
                let start = s.offset_bytes.max(offset_bytes);
                let stop = (s.offset_bytes + s.size_bytes).min(end);
                Segment {
                    offset_bytes: start,
                    size_bytes: stop - start,
                    target: s.target,
                    target_offset_bytes: s.target_offset_bytes + (start - s.offset_bytes),
                }
            })
            .collect();
        Box::pin(async move { Ok(cut) })
    }
}

/// How blocks are read during a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Any good copy.
    Any,
    /// Every copy and parity column.
    Every,
}

/// The results of a walk.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) blocks: u64,
    pub(crate) copies: u64,
    pub(crate) bad: Vec<Fault>,
    pub(crate) errors: Vec<String>,
    /// The blocks that were read: vdev, offset, birth, bytes as they are stored.
    pub(crate) stored: Vec<(VdevId, u64, Txg, Vec<u8>)>,
}

impl Pool {
    /// Finds a theme's pool on its images.
    pub(crate) fn open(theme: &Theme) -> Self {
        let runtime = Runtime::simulated(1);
        let mut reports: Vec<LabelReport> = Vec::new();
        for image in theme.manifest().unwrap().images {
            let bytes = theme.image_bytes(&image.file).unwrap();
            let device = Device::from_driver(RamDevice::new(image.file, bytes));
            let report = runtime.block_on(async move { probe_device(&device).await });
            reports.extend(report.labelled().cloned());
        }
        // Spares and cache devices have no txg; they are found by the guids of the configuration if it uses them.
        let disks: HashMap<Guid, Disk> =
            reports.iter().filter_map(|report| Some((report.guid()?, report.disk.clone()))).collect();
        reports.retain(|report| report.best_config().unwrap().u64("txg").is_some_and(|txg| txg != 0));
        let uberblock = reports
            .iter()
            .filter_map(LabelReport::best_uberblock)
            .map(|copy| copy.uberblock)
            .max_by(Uberblock::cmp_age)
            .unwrap();

        let mut tops = BTreeMap::new();
        for report in &reports {
            let config = report.best_config().unwrap();
            let top = config.list("vdev_tree").unwrap();
            let known = tops.entry(top.u64("id").unwrap()).or_insert((0, top.clone()));
            if config.u64("txg").unwrap() > known.0 {
                *known = (config.u64("txg").unwrap(), top.clone());
            }
        }
        let top_count = reports[0].best_config().unwrap().u64("vdev_children").unwrap();
        let children: Vec<NvList> = (0..top_count)
            .map(|id| match tops.remove(&id) {
                Some((_, top)) => top,
                None => {
                    let mut missing = NvList::new();
                    missing.push("type", "missing");
                    missing.push("id", id);
                    missing
                }
            })
            .collect();
        let mut root = NvList::new();
        root.push("type", "root");
        root.push("id", 0_u64);
        root.push("guid", 1_u64);
        root.push("children", NvValue::NvlistArray(children));
        let config = VdevConfig::parse(&root).unwrap();
        let mut pool = Self { runtime, uberblock, config, disks, maps: Arc::default(), missed: HashMap::new() };
        pool.load_config();
        pool
    }

    /// Takes the configuration and the mappings from the MOS.
    fn load_config(&mut self) {
        let tree = self.tree(&[]);
        let mut walker = Walker::new(self, &tree, Mode::Any);
        walker.mos_objects = Some(BTreeMap::new());
        walker.walk_objset(&self.uberblock.rootbp);
        let objects = walker.mos_objects.take().unwrap();
        // Removed vdevs cannot be read before their mappings are known; what is needed for that does not lie there.
        walker.walk.errors.retain(|error| !error.ends_with("is missing"));
        assert_eq!(walker.walk.errors, Vec::<String>::new());
        let config = objects
            .values()
            .filter(|object| object.kind == DmuType::PACKED_NVLIST)
            .filter_map(|object| NvList::parse(&object.data).ok())
            .find_map(|list| list.list("vdev_tree").cloned())
            .expect("the MOS holds the configuration");
        self.config = VdevConfig::parse(&config).unwrap();
        let mut maps = BTreeMap::new();
        for top in &self.config.children {
            let VdevKind::Indirect(indirect) = &top.kind else { continue };
            let entries = objects[&indirect.mapping.0].data.chunks_exact(IndirectMappingEntry::SIZE);
            let segments =
                entries.filter_map(|entry| IndirectMappingEntry::parse(entry, Endian::Little).ok()).map(|entry| {
                    Segment {
                        offset_bytes: entry.source_offset_bytes,
                        size_bytes: entry.target.asize_bytes,
                        target: entry.target.vdev,
                        target_offset_bytes: entry.target.offset_bytes,
                    }
                });
            // The object may be followed by zeros up to its block's end, which look like entries of no size.
            maps.insert(top.id as u32, segments.filter(|segment| segment.size_bytes != 0).collect());
        }
        self.maps = Arc::new(Maps(maps));
        for leaf in self.config.leaves().iter().filter(|leaf| leaf.dtl.0 != 0) {
            let object = &objects[&leaf.dtl.0];
            let map = SpaceMapPhys::parse(&object.bonus, Endian::Little).unwrap();
            let mut missed = Dtl::new();
            for record in SpaceMapRecords::new(&object.data[..map.length_bytes as usize], Endian::Little) {
                if let SpaceMapRecord::Entry(entry) = record.unwrap() {
                    let range = entry.offset_units..entry.offset_units + entry.run_units;
                    match entry.kind {
                        SpaceMapType::Alloc => missed.insert(range),
                        SpaceMapType::Free => missed.remove(range),
                    }
                }
            }
            self.missed.insert(leaf.guid, missed);
        }
    }

    /// The pool's vdevs, without some of its disks.
    pub(crate) fn tree(&self, without: &[Guid]) -> Arc<VdevTree> {
        let mut disks = self.disks.clone();
        disks.retain(|guid, _| !without.contains(guid));
        let tree = VdevTree::open(&self.config, disks).unwrap();
        tree.control().unwrap().set_reflow(Reflow::of(&self.uberblock));
        tree.set_indirect_map(self.maps.clone());
        for (guid, missed) in &self.missed {
            assert!(tree.control().unwrap().set_dtl(*guid, missed.clone()));
        }
        tree
    }

    /// The same vdevs on empty disks of the same sizes.
    pub(crate) fn blank(&self) -> (Arc<VdevTree>, HashMap<Guid, Disk>) {
        let blank = |disk: &Disk| {
            let size = disk.size_bytes() as usize;
            Disk::whole(Device::from_driver(RamDevice::new(&**disk.path(), vec![0; size])))
        };
        let disks: HashMap<Guid, Disk> = self.disks.iter().map(|(guid, disk)| (*guid, blank(disk))).collect();
        let tree = VdevTree::open(&self.config, disks.clone()).unwrap();
        tree.control().unwrap().set_reflow(Reflow::of(&self.uberblock));
        (tree, disks)
    }

    /// Reads everything.
    pub(crate) fn walk(&self, tree: &Arc<VdevTree>, mode: Mode) -> Walk {
        let mut walker = Walker::new(self, tree, mode);
        walker.walk_objset(&self.uberblock.rootbp);
        walker.walk
    }
}

struct Walker<'a> {
    pool: &'a Pool,
    tree: &'a VdevTree,
    mode: Mode,
    walk: Walk,
    seen: HashSet<(u32, u64, u64)>,
    /// While the MOS is being read for its objects: those of interest, by number.
    mos_objects: Option<BTreeMap<u64, Object>>,
}

impl<'a> Walker<'a> {
    fn new(pool: &'a Pool, tree: &'a VdevTree, mode: Mode) -> Self {
        Self { pool, tree, mode, walk: Walk::default(), seen: HashSet::new(), mos_objects: None }
    }

    /// A block's contents: all its copies read, verified, decompressed. `None` for what has none, or was met before.
    fn block(&mut self, bp: &Blkptr) -> Option<Vec<u8>> {
        if let Some(payload) = bp.embedded_payload() {
            let mut out = vec![0; bp.lsize_bytes() as usize];
            decompress(bp.compress()?, &payload, &mut out).ok()?;
            return Some(out);
        }
        if bp.is_hole() || bp.is_redacted() {
            return None;
        }
        let first = bp.dva(0)?;
        if !self.seen.insert((first.vdev.0, first.offset_bytes, bp.physical_birth().0)) {
            return None;
        }
        let psize = self.physical(bp)?;
        self.walk.blocks += 1;
        if bp.is_encrypted() && bp.dmu_type() != DmuType::DNODE {
            return None;
        }
        let mut out = vec![0; bp.lsize_bytes() as usize];
        match bp.compress()? {
            Compress::Off => out.copy_from_slice(&psize),
            kind => decompress(kind, &psize, &mut out).map_err(|error| self.fail(bp, &error)).ok()?,
        }
        Some(out)
    }

    /// A block as it is stored, from every DVA.
    fn physical(&mut self, bp: &Blkptr) -> Option<Vec<u8>> {
        let (kind, words, order) = (bp.checksum()?, bp.checksum_words(), bp.byte_order());
        let with_mac = bp.uses_crypt() && bp.dmu_type() != DmuType::OBJSET;
        let sums = |data: &[u8]| {
            kind.is_salted() || checksum::verify(kind, data, order, &Salt::unknown(), &words, with_mac).is_ok()
        };
        if bp.is_gang() {
            let mut whole = Vec::new();
            for dva in bp.dvas() {
                whole = self.gang(bp, dva)?;
                if !sums(&whole) {
                    self.fail(bp, &"gang block fails its checksum");
                }
            }
            return Some(whole);
        }
        let mut data = None;
        for dva in bp.dvas() {
            data = self.read(bp, dva, bp.psize_bytes(), &sums).or(data);
        }
        data
    }

    fn gang(&mut self, bp: &Blkptr, dva: Dva) -> Option<Vec<u8>> {
        // All copies of a header carry the first one's place.
        let (first, birth) = (bp.dva(0)?, bp.physical_birth());
        let verifier = gang_verifier(u64::from(first.vdev.0), first.offset_bytes, birth.0);
        let with_mac = bp.uses_crypt() && bp.dmu_type() != DmuType::OBJSET;
        let seal = |data: &[u8]| verify_embedded(Checksum::GangHeader, data, verifier, with_mac).is_ok();
        let header = self.read(bp, dva, 512, &seal)?;
        let mut whole = Vec::new();
        for child in Blkptr::array(&header[..3 * Blkptr::SIZE], bp.byte_order()).filter(|child| !child.is_hole()) {
            whole.extend(self.physical(&child)?);
        }
        Some(whole)
    }

    fn read(&mut self, bp: &Blkptr, dva: Dva, size: u64, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Option<Vec<u8>> {
        let context = ReadContext::new(bp.physical_birth());
        let runtime = &self.pool.runtime;
        let tree = self.tree;
        let read = match self.mode {
            Mode::Any => runtime.block_on(tree.read(dva.vdev, dva.offset_bytes, size, verify, &context)),
            Mode::Every => {
                let read = runtime.block_on(tree.read_copies(dva.vdev, dva.offset_bytes, size, verify, &context));
                read.map(|report| {
                    self.walk.copies += report.read_count as u64;
                    self.walk.bad.extend(report.bad);
                    report.block
                })
            }
        };
        match read {
            Ok(buf) => {
                let bytes = buf.to_vec();
                self.walk.stored.push((dva.vdev, dva.offset_bytes, bp.physical_birth(), bytes.clone()));
                Some(bytes)
            }
            Err(error) => {
                self.fail(bp, &error);
                None
            }
        }
    }

    fn fail(&mut self, bp: &Blkptr, error: &dyn std::fmt::Display) {
        self.walk.errors.push(format!("{:?} level {}: {error}", bp.dmu_type(), bp.level()));
    }

    fn walk_objset(&mut self, bp: &Blkptr) {
        let Some(block) = self.block(bp) else { return };
        let objset = ObjsetPhys::parse(&block, bp.byte_order()).unwrap();
        let users = [objset.userused_dnode.clone(), objset.groupused_dnode.clone(), objset.projectused_dnode.clone()];
        for dnode in users.iter().flatten().chain([&objset.meta_dnode]) {
            let mut first_id = 0;
            for bp in dnode.blkptrs() {
                self.walk_tree(bp, &mut first_id, &mut None);
            }
        }
    }

    /// Walks what is below a block pointer. `next` counts level-0 blocks; `data` collects them.
    fn walk_tree(&mut self, bp: &Blkptr, next: &mut u64, data: &mut Option<Vec<u8>>) {
        let order = bp.byte_order();
        let is_meta = bp.dmu_type() == DmuType::DNODE;
        let Some(block) = self.block(bp) else {
            if bp.level() == 0 {
                *next += 1;
            }
            return;
        };
        if bp.level() > 0 {
            for child in Blkptr::array(&block, order) {
                if !child.is_hole() || is_meta {
                    self.walk_tree(&child, next, data);
                }
            }
            return;
        }
        if let Some(data) = data {
            data.extend_from_slice(&block);
        }
        if is_meta {
            let base = *next * (block.len() / 512) as u64;
            for (slot, dnode) in dnodes_in_block(&block, order) {
                let dnode = dnode.unwrap();
                let mut data = None;
                if self.mos_objects.is_some() {
                    data = Some(Vec::new());
                }
                let mut count = 0;
                for index in 0..dnode.blkptr_count() {
                    self.walk_tree(&dnode.blkptr(index).unwrap(), &mut count, &mut data);
                }
                if let (Some(objects), Some(data)) = (&mut self.mos_objects, data) {
                    let object = Object { kind: dnode.object_type(), data, bonus: dnode.bonus().to_vec() };
                    objects.insert(base + slot as u64, object);
                }
                if let Some(spill) = dnode.spill() {
                    self.walk_tree(&spill, &mut 0, &mut None);
                }
                if dnode.bonus_type() == DmuType::DSL_DATASET && self.mos_objects.is_none() {
                    const DS_BP_OFFSET: usize = 128;
                    let bp = Blkptr::parse(&dnode.bonus()[DS_BP_OFFSET..], order).unwrap();
                    self.walk_objset(&bp);
                }
            }
        }
        *next += 1;
    }
}
