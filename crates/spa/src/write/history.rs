//! Writing the pool's history.

use cenote_dmu::write::{Object, ObjectSpec, ObjsetMut};
use cenote_format::dmu_type::DmuType;
use cenote_format::history::{HistoryPhys, emit_record};
use cenote_format::ids::Txg;
use cenote_format::nvlist::NvList;

/// The ring has at least this many bytes, and a thousandth of the pool.
const RING_MIN_BYTES: u64 = 128 << 10;
/// At most this many.
const RING_MAX_BYTES: u64 = 1 << 30;

/// Makes the history of a pool, with the records of its creation, which are never overwritten.
pub(super) async fn create(
    mos: &ObjsetMut,
    txg: Txg,
    pool_bytes: u64,
    records: &[NvList],
) -> Result<Object, cenote_dmu::DmuError> {
    let mut bytes = Vec::new();
    for record in records {
        bytes.extend(emit_record(&record.emit_native(cenote_zio::ORDER)));
    }
    let end = bytes.len() as u64;
    let ring_end = (pool_bytes / 1000).clamp(RING_MIN_BYTES, RING_MAX_BYTES).max(2 * end);
    let phys = HistoryPhys { create_end: end, ring_end, oldest: end, end, lost_count: 0 };
    let spec = ObjectSpec::new(DmuType::SPA_HISTORY, 128 << 10)
        .with_bonus(DmuType::SPA_HISTORY_OFFSETS, phys.emit(cenote_zio::ORDER).to_vec());
    let object = mos.create_object(txg, &spec)?;
    object.write(txg, 0, &bytes).await?;
    Ok(object)
}

/// The record of something that the pool did.
pub(super) fn event(time_s: u64, txg: Txg, host: &str, name: &str, text: &str) -> NvList {
    let mut list = NvList::new();
    list.push("history txg", txg.0);
    list.push("history time", time_s);
    list.push("history internal_name", name);
    list.push("history internal str", text);
    list.push("history hostname", host);
    list
}

/// The record of a command.
pub(super) fn command(time_s: u64, host: &str, user: u64, line: &str) -> NvList {
    let mut list = NvList::new();
    list.push("history time", time_s);
    list.push("history command", line);
    list.push("history who", user);
    list.push("history hostname", host);
    list.push("history zone", "linux");
    list
}
