//! Data for the intent log: read when a write that was noted becomes a record.

use std::sync::Weak;

use cenote_dmu::DmuErrorKind;
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_taskq::BoxFuture;
use cenote_taskq::buf::Block;
use cenote_zil::LogData;

use crate::ZplError;
use crate::filesystem::{FileSystem, Shared};

/// The files of a file system.
pub(crate) struct LoggedFiles(Weak<Shared>);

impl LoggedFiles {
    pub(crate) fn new(filesystem: &FileSystem) -> Self {
        Self(std::sync::Arc::downgrade(&filesystem.shared))
    }

    async fn find(
        &self,
        object: ObjectId,
        generation: u64,
        offset_bytes: u64,
        len: usize,
    ) -> Result<Option<Block>, ZplError> {
        let Some(shared) = self.0.upgrade() else { return Err(ZplError::Stale) };
        let filesystem = FileSystem { shared };
        let node = match filesystem.node(object).await {
            Ok(node) => node,
            Err(ZplError::Stale | ZplError::NoEntry) => return Ok(None),
            Err(ZplError::Dmu(error)) if matches!(error.kind, DmuErrorKind::NoSuchObject) => return Ok(None),
            Err(error) => return Err(error),
        };
        // The number may be another file's, or the file's name may have gone with it.
        if node.check_there().is_err() || node.word(ZplAttribute::Gen) != generation {
            return Ok(None);
        }
        // A writer who is at it has not been answered yet; half of what it writes is not to be read.
        let _range = node.in_use()?.bytes.read(offset_bytes..offset_bytes.saturating_add(len as u64)).await;
        if offset_bytes.saturating_add(len as u64) > node.size_bytes() {
            return Ok(None);
        }
        Ok(Some(node.object.read(offset_bytes, len).await?))
    }
}

impl LogData for LoggedFiles {
    fn read(
        &self,
        object: ObjectId,
        generation: u64,
        offset_bytes: u64,
        len: usize,
    ) -> BoxFuture<'_, Result<Option<Block>, String>> {
        Box::pin(
            async move { self.find(object, generation, offset_bytes, len).await.map_err(|error| error.to_string()) },
        )
    }
}
