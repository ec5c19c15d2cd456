//! `cenote inspect bp`: one block, by its place or by what it belongs to.

use anyhow::{Result, bail};
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
use cenote_taskq::buf::Block;
use cenote_vdev::tree::ReadContext as PlaceContext;
use cenote_zio::{Bookmark, ReadContext};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::report::{Common, Report, first, map};
use super::{open, values};
use crate::context::Context;
use crate::outcome::{Outcome, usage};

/// A block's size at most: OpenZFS's largest, and as much again for what a damaged pointer says.
const BLOCK_MAX_BYTES: u64 = 32 << 20;

/// Read one block, check it and decode it.
///
/// VDEV:OFFSET:SIZE or VDEV:OFFSET:SIZE:FLAGS is a place as DVAs count (VDEV decimal, the others hexadecimal; SIZE may be LSIZE/PSIZE): there
/// is no checksum to check then, and the checksums of what was read are shown. OBJSET:OBJECT:LEVEL:BLOCK, all
/// decimal as error messages have them, is a block by what it belongs to; level -1 is the objset's own block. FLAGS are
/// those of `zdb -R`: r (raw), d (decompress), i (an indirect block), g (a gang header), c (checksums), v.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Write the bytes to standard output and nothing else. Of a block by what it belongs to: the logical bytes.
    #[arg(short = 'r', long)]
    pub(crate) raw: bool,
    /// With --raw: the physical bytes, as they lie on disk.
    #[arg(long)]
    pub(crate) physical: bool,
    /// Of a place: try every compression, for LSIZE or for any size that fits.
    #[arg(long)]
    pub(crate) decompress: bool,
    /// Of a place: take the bytes for an indirect block.
    #[arg(short = 'i', long)]
    pub(crate) indirect: bool,
    /// Of a place: take the bytes for a gang header.
    #[arg(short = 'g', long)]
    pub(crate) gang: bool,
    /// Of a place: the txg in which the block was written, which decides its layout on an expanded raidz; by default the
    /// newest.
    #[arg(long, value_name = "TXG")]
    pub(crate) birth: Option<u64>,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
    /// The block.
    #[arg(value_name = "PLACE|OBJSET:OBJECT:LEVEL:BLOCK", allow_hyphen_values = true)]
    pub(crate) block: String,
}

impl Args {
    /// A block, with whatever its flags say.
    pub(crate) fn of_place(common: Common, pool: String, block: String) -> Self {
        Self {
            common,
            raw: false,
            physical: false,
            decompress: false,
            indirect: false,
            gang: false,
            birth: None,
            pool,
            block,
        }
    }
}

enum Address {
    Place { vdev: VdevId, offset_bytes: u64, lsize_bytes: Option<u64>, psize_bytes: u64, flags: String },
    Tuple { objset: u64, object: u64, level: i8, block: u64 },
}

fn parse(text: &str) -> Result<Address> {
    let bad = || usage(format!("'{text}' is neither VDEV:OFFSET:SIZE[:FLAGS] nor OBJSET:OBJECT:LEVEL:BLOCK"));
    let parts: Vec<&str> = text.split(':').collect();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| bad());
    match parts[..] {
        [objset, object, level, block] if !block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Address::Tuple {
                objset: objset.parse().map_err(|_| bad())?,
                object: object.parse().map_err(|_| bad())?,
                level: level.parse().map_err(|_| bad())?,
                block: block.parse().map_err(|_| bad())?,
            })
        }
        [vdev, offset, size, ref flags @ ..] if flags.len() <= 1 => {
            let (lsize_bytes, psize_bytes) = match size.split_once('/') {
                Some((lsize, psize)) => (Some(hex(lsize)?), hex(psize)?),
                None => (None, hex(size)?),
            };
            if psize_bytes == 0 || psize_bytes.max(lsize_bytes.unwrap_or(0)) > BLOCK_MAX_BYTES {
                return Err(usage(format!("'{size}': a block has 1 to {BLOCK_MAX_BYTES:x} bytes (hexadecimal)")));
            }
            Ok(Address::Place {
                vdev: VdevId(vdev.parse().map_err(|_| bad())?),
                offset_bytes: hex(offset)?,
                lsize_bytes,
                psize_bytes,
                flags: flags.first().map_or_else(String::new, |flags| (*flags).to_owned()),
            })
        }
        _ => Err(bad()),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = open::context_of(context, &args.common);
    let mut report = Report::new(&args.common);
    match parse(&args.block)? {
        Address::Place { vdev, offset_bytes, lsize_bytes, psize_bytes, flags } => {
            let mut args = args;
            for flag in flags.chars() {
                match flag {
                    'r' => args.raw = true,
                    'd' => args.decompress = true,
                    'i' | 'b' => args.indirect = true,
                    'g' => args.gang = true,
                    'c' | 'v' => {}
                    other => return Err(usage(format!("not supported yet: the flag '{other}' of a place"))),
                }
            }
            let place = Place { vdev, offset_bytes, lsize_bytes, psize_bytes };
            place.show(&context, &mut report, &args).await
        }
        Address::Tuple { objset, object, level, block } => {
            let pool = open::pool(&context, &mut report, &args.pool).await?;
            let target = open::target(&pool, &format!("{}/objset-{objset}", pool.name())).await?;
            let (bp, bookmark) = if level < 0 {
                (target.objset.root(), Bookmark::objset(target.objset.id()))
            } else {
                let dnode = match object {
                    0 => target.objset.meta_dnode(),
                    _ => target.objset.object(ObjectId(object)).await?,
                };
                let bp = dnode.pointer(level.unsigned_abs(), BlockId(block)).await?;
                let context = target.objset.context(ObjectId(object), level.unsigned_abs(), BlockId(block));
                (bp, context.bookmark)
            };
            report.put("block", bookmark.to_string());
            let read = ReadContext::new(bookmark, target.objset.key());
            let bytes = pointed(&mut report, pool.dmu(), &bp, read, args.raw && args.physical).await;
            if args.raw {
                let Some(bytes) = bytes else { return finish_raw(&context, &report) };
                context.out(&bytes[..])?;
                return Ok(Outcome::Good);
            }
            if let Some(bytes) = bytes {
                let mut shown = Map::new();
                decode(&mut report, &bp, bookmark, &bytes, &mut shown);
                report.put("contents", shown);
            }
            report.finish(&context)
        }
    }
}

/// What kept the bytes from being read, on standard error alone.
fn finish_raw(context: &Context, report: &Report) -> Result<Outcome> {
    for problem in report.problems() {
        context.err(problem);
    }
    Ok(Outcome::Failed)
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

/// What a block holds, by its type and level.
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
struct Place {
    vdev: VdevId,
    offset_bytes: u64,
    lsize_bytes: Option<u64>,
    psize_bytes: u64,
}

impl Place {
    async fn show(&self, context: &Context, report: &mut Report, args: &Args) -> Result<Outcome> {
        // A pool that cannot be opened has a tree nevertheless.
        let (dmu, newest) = match open::pool(context, report, &args.pool).await {
            Ok(pool) => (pool.dmu().clone(), pool.txg()),
            Err(error) => {
                report.problem(format_args!("{error:#}; going by the labels alone"));
                let found = open::found_pool(context, &args.pool).await?;
                let newest = found.newest().map_or(Txg(0), |leaf| leaf.txg);
                (open::dmu_of_labels(context, &found)?, newest)
            }
        };
        let birth = args.birth.map_or(newest, Txg);
        let place = PlaceContext::new(birth);
        let tree = dmu.zio().tree();
        let read = tree.read(self.vdev, self.offset_bytes, self.psize_bytes, &|_: &[u8]| true, &place).await;
        let place = format!("vdev {} offset {:#x} size {:#x}", self.vdev, self.offset_bytes, self.psize_bytes);
        let Some(bytes) = report.take(&place, read) else {
            let report = std::mem::replace(report, Report::new(&args.common));
            return if args.raw { finish_raw(context, &report) } else { report.finish(context) };
        };
        if args.raw && !args.decompress {
            context.out(&bytes[..])?;
            return Ok(Outcome::Good);
        }
        let candidates = if args.decompress { self.decompressed(&bytes) } else { Vec::new() };
        if args.raw {
            let Some((_, bytes)) = candidates.first() else {
                bail!("no compression that is known made these bytes; without --raw more is said");
            };
            context.out(bytes)?;
            return Ok(Outcome::Good);
        }
        report.put("vdev", self.vdev.0);
        report.put("offset_bytes", self.offset_bytes);
        report.put("size_bytes", self.psize_bytes);
        report.put("checksums", checksums(&bytes));
        let max = report.limit.saturating_mul(16).min(4096);
        if args.gang
            && let Some(header) = report.take("gang header", GangHeader::parse(&bytes, Endian::Little))
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
            if args.indirect {
                pointers(logical, Endian::Little, report.limit, &mut row);
            } else {
                row.insert("data".into(), values::dump(logical, max).into());
            }
            rows.push(Value::Object(row));
        }
        if args.decompress {
            report.put("decompressed", rows);
        } else if args.indirect {
            let mut shown = Map::new();
            pointers(&bytes, Endian::Little, report.limit, &mut shown);
            report.root.append(&mut shown);
        } else if !args.gang {
            report.put("data", values::dump(&bytes, max));
        }
        std::mem::replace(report, Report::new(&args.common)).finish(context)
    }

    /// What each compression makes of the bytes: at the logical size given, or at every size that blocks of powers of two
    /// have. Only LZ4, LZJB and ZLE take bytes of any size for theirs now and then.
    fn decompressed(&self, bytes: &[u8]) -> Vec<(Compress, Vec<u8>)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_hexadecimal_and_tuples_decimal() {
        let Ok(Address::Place { vdev, offset_bytes, lsize_bytes, psize_bytes, flags }) = parse("1:4a000:20000/600:d")
        else {
            panic!("no place");
        };
        assert_eq!((vdev, offset_bytes, lsize_bytes, psize_bytes), (VdevId(1), 0x4a000, Some(0x20000), 0x600));
        assert_eq!(flags, "d");
        let Ok(Address::Tuple { objset, object, level, block }) = parse("54:128:-1:0") else { panic!("no tuple") };
        assert_eq!((objset, object, level, block), (54, 128, -1, 0));
        for wrong in ["", "1", "1:2", "1:2:0", "x:2:3", "1:2:ffffffff", "1:2:3:4:5", "1:2:300:0", "0:0:zz"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
