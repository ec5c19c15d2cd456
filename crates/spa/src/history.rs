//! The pool's history: commands and events, in a ring in the MOS.

use cenote_format::nvlist::NvList;

use crate::{Pool, SpaError};

/// Bytes of history at most: OpenZFS limits the ring to 1 GiB.
const HISTORY_MAX_BYTES: u64 = 1 << 30;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

impl Pool {
    /// Calls `visit` with each record of the history, oldest first.
    pub async fn history(&self, mut visit: impl FnMut(NvList)) -> Result<(), SpaError> {
        let Some(dnode) = self.directory_object(cenote_format::dsl::pool_directory::HISTORY).await? else {
            return Ok(());
        };
        let words = word_array::<5>(dnode.bonus(), dnode.byte_order());
        let [pool_create_end, ring_size, start, end, _lost] =
            words.ok_or_else(|| self.corrupt("its history has no header"))?;
        // The part up to `pool_create_end` (the command that made the pool) is never overwritten; the rest is a ring.
        let ring = ring_size.saturating_sub(pool_create_end);
        let length = end.saturating_sub(start);
        if ring_size > HISTORY_MAX_BYTES || length > ring || pool_create_end > ring_size {
            return Err(self.corrupt("its history's header contradicts itself"));
        }
        let physical = |logical: u64| {
            if ring == 0 { logical } else { (logical.saturating_sub(pool_create_end)) % ring + pool_create_end }
        };
        let mut pending: Vec<u8> = Vec::new();
        let kept = if start > pool_create_end { pool_create_end } else { 0 };
        let spans = [(0, kept), (start, length)];
        for (span_start, span_length) in spans {
            let mut done = 0;
            while done < span_length {
                let at = if span_start < pool_create_end { span_start + done } else { physical(span_start + done) };
                let to_wrap = if at < pool_create_end { pool_create_end - at } else { ring_size - at };
                let len = (CHUNK_BYTES as u64).min(span_length - done).min(to_wrap.max(1));
                let bytes = dnode.read(at, len as usize).await.map_err(|error| self.dmu_error(error))?;
                pending.extend_from_slice(&bytes);
                done += len;
                take_records(&mut pending, &mut visit);
            }
        }
        Ok(())
    }
}

/// Takes whole records off the front: each is a length in little-endian bytes and a packed nvlist.
fn take_records(pending: &mut Vec<u8>, visit: &mut impl FnMut(NvList)) {
    let mut at = 0;
    while let Some(length) = pending.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let length = u64::from_le_bytes(*length);
        let Some(end) = usize::try_from(length).ok().and_then(|length| (at + 8).checked_add(length)) else { break };
        let Some(record) = pending.get(at + 8..end) else { break };
        if let Ok(list) = NvList::parse(record) {
            visit(list);
        }
        at = end;
    }
    pending.drain(..at);
}

pub(crate) fn word_array<const N: usize>(bytes: &[u8], order: cenote_format::Endian) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        *word = order.u64(bytes.get(index * 8..index * 8 + 8)?.try_into().ok()?);
    }
    Some(words)
}
