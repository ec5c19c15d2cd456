//! Blocks that are written as they came, compressed or encrypted elsewhere ([`ReadyBlock`]).
//!
//! The layer of the txg has the bytes as they are stored, and their form beside them. The sync stores them so. A reader before the sync
//! gets the unpacked block; a change makes a block of plain bytes, and the form is dropped. A sealed (encrypted) block cannot be read
//! before it is on disk: the objset that writes it does not have the key. A redacted block has no bytes, and cannot be read at all.

use cenote_format::Endian;
use cenote_format::ids::{BlockId, Txg};
use cenote_taskq::buf::Block;
use cenote_zio::{Bookmark, ReadyBlock, ZioError, ZioErrorKind};

use super::Object;
use crate::{DmuError, DmuErrorKind};

impl Object {
    /// Replaces a whole data block by one whose stored bytes are ready. It stands for as many bytes as a block of the object has. Where others
    /// may change it too the caller has its range locked.
    pub fn write_ready(&self, txg: Txg, block: u64, data: ReadyBlock) {
        self.put_block(txg, block, data.bytes, Some(data.form));
    }

    /// Writes a spill block whose stored bytes are ready. The bonus must leave room for its pointer.
    pub fn set_ready_spill(&self, txg: Txg, data: ReadyBlock) {
        self.set_spill(txg, Some(data.bytes));
        let mut state = self.shared().state.lock();
        state.layer(txg).spill_form = Some(data.form);
    }

    /// The block that ready bytes stand for, and the byte order of its fields; `block`: its number, for an error. Blocks of dnodes are as they are stored: only parts of them
    /// are encrypted.
    pub(super) fn unpacked(&self, block: BlockId, data: &ReadyBlock) -> Result<(Block, Endian), DmuError> {
        match data.unpacked() {
            Some(Ok(block)) => Ok((block, cenote_zio::ORDER)),
            Some(Err(error)) => Err(self.error(DmuErrorKind::Corrupt(error.to_string()))),
            None if data.form.is_redacted => {
                let bookmark = Bookmark { objset: self.objset_id(), object: self.id(), level: 0, block };
                Err(self.error(DmuErrorKind::Zio(ZioError::new(bookmark, ZioErrorKind::Redacted))))
            }
            None if self.id().0 == 0 => Ok((data.bytes.clone(), cenote_zio::ORDER)),
            None => Err(self.error(DmuErrorKind::Unsupported("reading an encrypted block that is not on disk".into()))),
        }
    }
}
