//! The tree of block pointers of an object, around what cannot be read.

use cenote_dmu::Object;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::BlockId;
use serde_json::{Value, json};

use crate::Report;

/// Rows of pointers from the top down, each above those in its block; one more than the report's limit at most. Holes are
/// left out but where they have a birth.
pub(crate) async fn pointers(report: &mut Report, dnode: &Object) -> Vec<Value> {
    let phys = dnode.phys();
    let shift = phys.blkptrs_per_indirect_shift();
    let top = phys.levels.saturating_sub(1);
    let block_bytes = dnode.block_bytes();
    let mut rows = Vec::new();
    let mut left: Vec<(Blkptr, u8, u64)> =
        phys.blkptrs().iter().enumerate().rev().map(|(index, bp)| (*bp, top, index as u64)).collect();
    while let Some((bp, level, block)) = left.pop() {
        if bp.is_hole() && bp.logical_birth().0 == 0 {
            continue;
        }
        if rows.len() > report.limit {
            break;
        }
        let first =
            block.checked_shl(u32::from(level) * shift).filter(|first| first >> (u32::from(level) * shift) == block);
        rows.push(json!({
            "offset_bytes": first.and_then(|first| first.checked_mul(block_bytes)),
            "level": level,
            "block": block,
            "pointer": bp.to_string(),
        }));
        if bp.is_hole() || bp.is_redacted() {
            continue;
        }
        let what = format!("object {} level {level} block {block}", dnode.id());
        if bp.level() != level {
            report.problem(format_args!("{what}: the pointer says that it is of level {}", bp.level()));
            continue;
        }
        if level == 0 {
            continue;
        }
        let context = dnode.context(level, BlockId(block));
        let Some(bytes) = report.take(&what, dnode.dmu().read(&bp, context).await) else { continue };
        let base = block.saturating_mul(bytes.len() as u64 / Blkptr::SIZE as u64);
        let children = Blkptr::array(&bytes, bp.byte_order()).enumerate();
        let below: Vec<_> = children.map(|(index, bp)| (bp, level - 1, base.saturating_add(index as u64))).collect();
        left.extend(below.into_iter().rev());
    }
    if let Some(spill) = phys.spill {
        rows.push(json!({ "offset_bytes": null, "level": 0, "block": null, "pointer": format!("spill: {spill}") }));
    }
    rows
}
