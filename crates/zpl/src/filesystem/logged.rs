//! Data for the intent log: read when a write that was noted becomes a record.

use std::ops::Range;
use std::sync::Weak;

use cenote_dmu::{DmuErrorKind, LogBlock, Object};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_zil::{LogData, LogDataError, LogTxg};

use super::{FileSystem, Shared};
use crate::ZplError;

/// The files of a file system.
pub(crate) struct LoggedFiles(Weak<Shared>);

impl LoggedFiles {
    pub(crate) fn new(filesystem: &FileSystem) -> Self {
        Self(std::sync::Arc::downgrade(&filesystem.shared))
    }

    /// Looks at bytes of a file, if it is there and has them.
    async fn find<T>(
        &self,
        object: ObjectId,
        generation: u64,
        bytes: Range<u64>,
        look: impl AsyncFnOnce(&FileSystem, &Object) -> Result<T, ZplError>,
    ) -> Result<Option<T>, ZplError> {
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
        // A writer at work is not answered yet; a part of its write must not be read.
        let _range = node.in_use()?.bytes.read(bytes.clone()).await;
        if bytes.end > node.size_bytes() {
            return Ok(None);
        }
        look(&filesystem, &node.object).await.map(Some)
    }
}

impl LogData for LoggedFiles {
    #[boxed]
    async fn read(
        &self,
        object: ObjectId,
        generation: u64,
        offset_bytes: u64,
        len: usize,
    ) -> Result<Option<Block>, LogDataError> {
        let bytes = offset_bytes..offset_bytes.saturating_add(len as u64);
        let found = self.find(object, generation, bytes, async |_, file| Ok(file.read(offset_bytes, len).await?));
        Ok(found.await?)
    }

    #[boxed]
    async fn block(
        &self,
        object: ObjectId,
        generation: u64,
        bytes: Range<u64>,
        at: LogTxg<'_>,
    ) -> Result<Option<LogBlock>, LogDataError> {
        let look = async |fs: &FileSystem, file: &Object| Ok(at.block(fs.objset(), file, &bytes));
        let found = self.find(object, generation, bytes.clone(), look).await;
        Ok(found?.flatten())
    }
}
