//! One block, by its place or by what it belongs to.

use cenote_codec::checksum::{self, Salt};
use cenote_codec::compress;
use cenote_dmu::Dmu;
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{SLOT_BYTES, dnodes_in_block};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::gang::GangHeader;
use cenote_format::ids::{BlockId, ObjectId, Txg, VdevId};
use cenote_format::objset::ObjsetPhys;
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_vdev::tree::ReadContext as PlaceContext;
use cenote_zio::{Bookmark, ReadContext};
use serde_json::{Map, Value, json};

use crate::report::{first, map};
use crate::{InspectError, Report, Target, values};

/// A block's size at most, in bytes: OpenZFS's largest, and as much again for what a damaged pointer says.
pub const BLOCK_MAX_BYTES: u64 = 32 << 20;

/// Shows a block of an objset by what it belongs to: its pointer, each of its copies, and what it holds.
///
/// # Errors
/// Nothing leads to the block.
#[boxed]
pub async fn block_of(report: &mut Report, dmu: &Dmu, target: &Target, of: BlockOf) -> Result<(), InspectError> {
    if let Some((bytes, bp, bookmark)) = read_block(report, dmu, target, of, false).await? {
        let mut shown = Map::new();
        decode(report, &bp, bookmark, &bytes, &mut shown);
        report.put("contents", shown);
    }
    Ok(())
}

/// The bytes of a block of an objset: its logical bytes, or the physical ones, as they lie on disk. None where they cannot be read, for
/// which the report has the reason.
///
/// # Errors
/// Nothing leads to the block.
#[boxed]
pub async fn bytes_of_block(
    report: &mut Report,
    dmu: &Dmu,
    target: &Target,
    of: BlockOf,
    physical: bool,
) -> Result<Option<Block>, InspectError> {
    Ok(read_block(report, dmu, target, of, physical).await?.map(|(bytes, ..)| bytes))
}

async fn read_block(
    report: &mut Report,
    dmu: &Dmu,
    target: &Target,
    of: BlockOf,
    physical: bool,
) -> Result<Option<(Block, Blkptr, Bookmark)>, InspectError> {
    let BlockOf { object, level, block } = of;
    let (bp, bookmark) = if level < 0 {
        (target.objset.root(), Bookmark::objset(target.objset.id()))
    } else {
        let dnode = match object {
            ObjectId(0) => target.objset.meta_dnode(),
            _ => target.objset.object(object).await?,
        };
        let bp = dnode.pointer(level.unsigned_abs(), block).await?;
        (bp, target.objset.context(object, level.unsigned_abs(), block).bookmark)
    };
    report.put("block", bookmark.to_string());
    let read = ReadContext::new(bookmark, target.objset.key());
    let bytes = pointed(report, dmu, &bp, read, physical).await;
    Ok(bytes.map(|bytes| (bytes, bp, bookmark)))
}

/// Shows a pointer and each of its copies; returns the block's bytes if any copy is good.
async fn pointed(
    report: &mut Report,
    dmu: &Dmu,
    bp: &Blkptr,
    context: ReadContext<'_>,
    physical: bool,
) -> Option<Block> {
    report.put("pointer_text", bp.to_string());
    report.put("pointer", values::pointer(bp));
    if bp.is_hole() || bp.is_redacted() {
        report.put("copies", "the block has no bytes");
        return None;
    }
    if bp.is_embedded() {
        report.put("copies", "in the pointer itself");
        return report.take("the block", dmu.zio().read(bp, context).await);
    }
    let copies = match dmu.zio().read_copies(bp, context).await {
        Ok(copies) => copies,
        Err(error) => {
            report.problem(&error);
            report.put("copies", "none is good");
            unverified(report, dmu, bp).await;
            return None;
        }
    };
    report.put("copies_read", copies.read_count);
    report.put("bad_copies", copies.bad.iter().map(|bad| json!(bad)).collect::<Vec<_>>());
    for bad in &copies.bad {
        report.problem(bad);
    }
    let bytes = copies.physical?;
    if physical {
        return Some(bytes);
    }
    report.take("the block", dmu.zio().logical_of(bp, context, &bytes))
}

/// The bytes of the first place of a pointer without regard to its checksum: perhaps something can be made of them.
async fn unverified(report: &mut Report, dmu: &Dmu, bp: &Blkptr) {
    let Some(dva) = bp.dvas().find(|dva| !dva.gang) else { return };
    let context = PlaceContext::new(bp.physical_birth());
    let read = dmu.zio().tree().read(dva.vdev, dva.offset_bytes, bp.psize_bytes(), &|_: &[u8]| true, &context).await;
    if let Some(bytes) = report.take("without regard to its checksum", read) {
        report.put("unverified_checksums", checksums(&bytes));
        let max = report.limit.saturating_mul(16).min(512);
        report.put("unverified_data", values::dump(&bytes, max));
    }
}

/// The content of a block, by its type and level.
fn decode(report: &mut Report, bp: &Blkptr, bookmark: Bookmark, bytes: &[u8], shown: &mut Map<String, Value>) {
    let (order, limit) = (bp.byte_order(), report.limit);
    if bookmark.level > 0 || bp.level() > 0 {
        return pointers(bytes, order, limit, shown);
    }
    match bp.dmu_type() {
        DmuType::OBJSET => {
            if let Some(phys) = report.take("the objset", ObjsetPhys::parse(bytes, order)) {
                shown.insert("type".into(), phys.type_number.into());
                shown.insert("flags".into(), format!("{:#x}", phys.flags.bits()).into());
                let roots: Vec<Value> = phys.meta_dnode.blkptrs().iter().map(|bp| bp.to_string().into()).collect();
                shown.insert("meta_dnode_pointers".into(), roots.into());
                shown.insert("intent_log".into(), phys.zil_header.log.to_string().into());
            }
        }
        DmuType::DNODE => {
            let slots = (bytes.len() / SLOT_BYTES) as u64;
            let mut rows = Vec::new();
            for (slot, dnode) in dnodes_in_block(bytes, order) {
                let object = bookmark.block.0.saturating_mul(slots).saturating_add(slot as u64);
                rows.push(match dnode {
                    Ok(view) => json!({
                        "slot": slot, "object": object, "type": view.object_type().to_string(),
                        "levels": view.levels(), "data_block_bytes": view.data_block_bytes(),
                        "max_block_id": view.max_block_id(), "bonus_type": view.bonus_type().to_string(),
                    }),
                    Err(error) => json!({ "slot": slot, "object": object, "type": error.to_string() }),
                });
            }
            first(shown, "dnodes", &mut rows, limit);
        }
        _ => drop(shown.insert("data".into(), values::dump(bytes, limit.saturating_mul(16).min(4096)).into())),
    }
}

fn pointers(bytes: &[u8], order: Endian, limit: usize, shown: &mut Map<String, Value>) {
    let all = Blkptr::array(bytes, order).enumerate();
    let used = all.filter(|(_, bp)| !(bp.is_hole() && bp.logical_birth().0 == 0));
    let mut rows: Vec<Value> = used
        .take(limit.saturating_add(1))
        .map(|(index, bp)| json!({ "index": index, "pointer": bp.to_string() }))
        .collect();
    first(shown, "pointers", &mut rows, limit);
}

/// The checksums of some bytes, in the algorithms that need no salt.
fn checksums(bytes: &[u8]) -> Map<String, Value> {
    let kinds = [Checksum::Fletcher2, Checksum::Fletcher4, Checksum::Sha256, Checksum::Sha512];
    let sums = kinds.into_iter().filter_map(|kind| {
        let sum = checksum::compute(kind, bytes, Endian::Little, &Salt::unknown())?;
        Some((kind.name().to_owned(), values::words(&sum).into()))
    });
    sums.collect()
}

/// A place on a top-level vdev.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The vdev.
    pub vdev: VdevId,
    /// The offset of its first byte.
    pub offset_bytes: u64,
    /// The block's logical size, where it is known.
    pub lsize_bytes: Option<u64>,
    /// The size on disk, up to [`BLOCK_MAX_BYTES`].
    pub psize_bytes: u64,
    /// The txg in which the block was written.
    pub birth: Txg,
}

/// The kind that the bytes at a place are taken for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaceForm {
    /// Every compression is tried.
    pub decompress: bool,
    /// An indirect block.
    pub indirect: bool,
    /// A gang header.
    pub gang: bool,
}

/// A block by what it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct BlockOf {
    /// The object; 0 is the array of dnodes.
    pub object: ObjectId,
    /// The level; below zero for the objset's own block.
    pub level: i8,
    /// The block.
    pub block: BlockId,
}

impl BlockOf {
    /// By numbers.
    pub const fn new(object: u64, level: i8, block: u64) -> Self {
        Self { object: ObjectId(object), level, block: BlockId(block) }
    }
}

impl Place {
    /// Its bytes, unverified. None where they cannot be read, for which the report has the reason.
    #[boxed]
    pub async fn read(&self, report: &mut Report, dmu: &Dmu) -> Option<Buf> {
        let context = PlaceContext::new(self.birth);
        let tree = dmu.zio().tree();
        let read = tree.read(self.vdev, self.offset_bytes, self.psize_bytes, &|_: &[u8]| true, &context).await;
        let place = format!("vdev {} offset {:#x} size {:#x}", self.vdev, self.offset_bytes, self.psize_bytes);
        report.take(&place, read)
    }

    /// Shows its bytes: there is no checksum to check, so those of what was read are shown.
    pub fn show(&self, report: &mut Report, bytes: &[u8], form: PlaceForm) {
        let candidates = if form.decompress { self.decompressed(bytes) } else { Vec::new() };
        report.put("vdev", self.vdev.0);
        report.put("offset_bytes", self.offset_bytes);
        report.put("size_bytes", self.psize_bytes);
        report.put("checksums", checksums(bytes));
        let max = report.limit.saturating_mul(16).min(4096);
        if form.gang
            && let Some(header) = report.take("gang header", GangHeader::parse(bytes, Endian::Little))
        {
            let pieces = header.children().filter(|bp| !bp.is_hole());
            report.put("pieces", pieces.map(|bp| json!(bp.to_string())).collect::<Vec<_>>());
        }
        let mut rows = Vec::new();
        for (kind, logical) in &candidates {
            let mut row = map([
                ("compression", kind.name().into()),
                ("lsize_bytes", logical.len().into()),
                ("checksums", checksums(logical).into()),
            ]);
            if form.indirect {
                pointers(logical, Endian::Little, report.limit, &mut row);
            } else {
                row.insert("data".into(), values::dump(logical, max).into());
            }
            rows.push(Value::Object(row));
        }
        if form.decompress {
            report.put("decompressed", rows);
        } else if form.indirect {
            let mut shown = Map::new();
            pointers(bytes, Endian::Little, report.limit, &mut shown);
            report.append(shown);
        } else if !form.gang {
            report.put("data", values::dump(bytes, max));
        }
    }

    /// The result of each compression of the bytes: at the logical size given, or at every size that blocks of powers of two
    /// have. Only LZ4, LZJB and ZLE take bytes of any size for theirs now and then.
    pub fn decompressed(&self, bytes: &[u8]) -> Vec<(Compress, Vec<u8>)> {
        const KINDS: [Compress; 5] = [Compress::Lz4, Compress::Zstd, Compress::Gzip6, Compress::Lzjb, Compress::Zle];
        const SIZES_MAX_SHIFT: u32 = 24;
        let sizes: Vec<u64> = match self.lsize_bytes {
            Some(size) => vec![size],
            None => (9..=SIZES_MAX_SHIFT).map(|shift| 1 << shift).filter(|size| *size > self.psize_bytes).collect(),
        };
        let mut found = Vec::new();
        for kind in KINDS {
            for size in &sizes {
                let mut target = vec![0; *size as usize];
                if compress::decompress(kind, bytes, &mut target).is_ok() {
                    found.push((kind, target));
                    break;
                }
            }
        }
        found
    }
}
