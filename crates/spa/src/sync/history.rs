//! Writing the pool's history.

use cenote_dmu::{Object, ObjectSpec, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::history::{HistoryPhys, RECORD_MAX_BYTES, emit_record};
use cenote_format::ids::Txg;
use cenote_format::nvlist::NvList;

/// The ring has at least this many bytes, and a thousandth of the pool.
const RING_MIN_BYTES: u64 = 128 << 10;
/// At most this many.
const RING_MAX_BYTES: u64 = 1 << 30;

/// Makes the history of a pool, with the records of its creation, which are never overwritten.
pub(crate) async fn create(
    mos: &Objset,
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
    assert!(phys.check().is_ok(), "a new history has a ring, with nothing in it");
    let spec = ObjectSpec::new(DmuType::SPA_HISTORY, 128 << 10)
        .with_bonus(DmuType::SPA_HISTORY_OFFSETS, phys.emit(cenote_zio::ORDER).to_vec());
    let object = mos.create_object(txg, &spec)?;
    object.write(txg, 0, &bytes).await?;
    Ok(object)
}

/// Appends a record to the ring; the oldest give way. A record that the ring cannot hold is left out.
pub(crate) async fn append(object: &Object, txg: Txg, record: &NvList) -> Result<(), cenote_dmu::DmuError> {
    let fail = |error: cenote_format::FormatError| cenote_dmu::DmuError::new(object.objset_id(), object.id(), error);
    let order = cenote_zio::ORDER;
    let mut phys = HistoryPhys::parse(&object.phys().bonus, order).map_err(fail)?;
    phys.check().map_err(fail)?;
    let bytes = emit_record(&record.emit_native(order));
    let (len, ring) = (bytes.len() as u64, phys.ring_end - phys.create_end);
    if len > ring || len > RECORD_MAX_BYTES {
        return Ok(());
    }
    while phys.end - phys.oldest + len > ring {
        let word = read_ring(object, &phys, phys.oldest, 8).await?;
        let length = word.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        if length == 0 || length > phys.end - phys.oldest {
            // The ring begins anew rather than guess where a record ends.
            phys.oldest = phys.end;
            break;
        }
        phys.oldest = (phys.oldest + 8 + length).min(phys.end);
        phys.lost_count += 1;
    }
    assert!(phys.end - phys.oldest + len <= ring, "the ring has room for a record when the oldest have given way");
    let at = phys.physical(phys.end);
    assert!((phys.create_end..phys.ring_end).contains(&at), "a record is put into the ring");
    let first = len.min(phys.ring_end - at) as usize;
    object.write(txg, at, &bytes[..first]).await?;
    object.write(txg, phys.create_end, &bytes[first..]).await?;
    phys.end += len;
    assert!(phys.check().is_ok(), "a ring that has got a record has no more than it holds");
    object.set_bonus(txg, &phys.emit(order))
}

/// Bytes of the ring from a logical offset on.
async fn read_ring(
    object: &Object,
    phys: &HistoryPhys,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, cenote_dmu::DmuError> {
    let at = phys.physical(offset);
    let first = (len as u64).min(phys.ring_end - at) as usize;
    let mut bytes = object.read(at, first).await?.to_vec();
    bytes.extend_from_slice(&object.read(phys.create_end, len - first).await?);
    Ok(bytes)
}

/// The record of something that the pool did.
pub(crate) fn event(time_s: u64, txg: Txg, host: &str, name: &str, text: &str) -> NvList {
    let mut list = NvList::new();
    list.push("history txg", txg.0);
    list.push("history time", time_s);
    list.push("internal_name", name);
    list.push("history internal str", text);
    list.push("history hostname", host);
    list
}

/// The record of a command.
pub(crate) fn command(time_s: u64, host: &str, user: u64, line: &str) -> NvList {
    let mut list = NvList::new();
    list.push("history time", time_s);
    list.push("history command", line);
    list.push("history who", user);
    list.push("history hostname", host);
    list.push("history zone", "linux");
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::history::records;

    #[test]
    fn a_record_is_found_where_it_was_put() {
        let record = command(5, "here", 0, "zpool set a=b");
        let bytes = emit_record(&record.emit_native(cenote_zio::ORDER));
        let found: Vec<_> = records(&bytes).map(|bytes| NvList::parse(bytes.unwrap()).unwrap()).collect();
        assert_eq!(found[0].str("history command"), Some("zpool set a=b"));
    }
}
