//! The pool's history: commands and events, in a ring in the MOS.

use cenote_format::history::{HistoryPhys, RECORD_MAX_BYTES};
use cenote_format::nvlist::NvList;

use crate::{SpaError, View};

/// Bytes of history at most: OpenZFS limits the ring to 1 GiB.
const HISTORY_MAX_BYTES: u64 = 1 << 30;
/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

impl View {
    /// Calls `visit` with each record of the history, oldest first: the pool's creation, which is never overwritten, and
    /// what the ring holds. Records that are no lists are left out.
    pub async fn history(&self, mut visit: impl FnMut(NvList)) -> Result<(), SpaError> {
        let Some(dnode) = self.directory_object(cenote_format::dsl::pool_directory::HISTORY).await? else {
            return Ok(());
        };
        let format = |error| self.error(error);
        let phys = dnode.bonus(HistoryPhys::parse).map_err(format)?;
        if phys.ring_end > HISTORY_MAX_BYTES {
            return Err(self.corrupt(format!("its history claims a size of {} bytes", phys.ring_end)));
        }
        let mut pending: Vec<u8> = Vec::new();
        for (start, length) in phys.ranges().map_err(format)? {
            let mut done = 0;
            while done < length {
                let len = CHUNK_BYTES.min(length - done);
                let bytes = dnode.read(start + done, len as usize).await.map_err(|error| self.error(error))?;
                pending.extend_from_slice(&bytes);
                done += len;
                if !take_records(&mut pending, &mut visit) {
                    return Err(self.corrupt("a record of its history has no sensible length"));
                }
            }
        }
        Ok(())
    }
}

/// Takes whole records off the front: each is a length in little-endian bytes and a packed nvlist. False where a length
/// makes no sense.
fn take_records(pending: &mut Vec<u8>, visit: &mut impl FnMut(NvList)) -> bool {
    let mut at = 0;
    while let Some(length) = pending.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let length = u64::from_le_bytes(*length);
        if length == 0 || length > RECORD_MAX_BYTES {
            return false;
        }
        let end = at + 8 + length as usize;
        let Some(record) = pending.get(at + 8..end) else { break };
        if let Ok(list) = NvList::parse(record) {
            visit(list);
        }
        at = end;
    }
    pending.drain(..at);
    true
}
