//! The attributes of objects.

use cenote_dmu::Object;
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use super::FileSystem;
use crate::{Attributes, FileKind, ZplError};

impl FileSystem {
    /// The attributes of an object, as of the newest change.
    ///
    /// # Errors
    /// It is not there, or its attributes cannot be read.
    #[boxed]
    pub async fn attributes(&self, id: ObjectId) -> Result<Attributes, ZplError> {
        self.node(id).await?.attributes()
    }

    /// The attributes of an object whose dnode is at hand.
    ///
    /// # Errors
    /// As [`FileSystem::attributes`].
    #[boxed]
    pub(crate) async fn attributes_of(&self, dnode: &Object) -> Result<Attributes, ZplError> {
        if self.is_read_only() {
            let tables = &self.shared.master.tables;
            return crate::node::Node::frozen(dnode.clone(), tables).await?.attributes();
        }
        self.attributes(dnode.id()).await
    }

    /// The attributes of an object that somebody has noted by its number, or of the directory above it, as a file handle needs them.
    /// The caller compares the generation.
    ///
    /// # Errors
    /// It is none of the files that names lead to, or not any more ([`ZplError::Stale`]).
    #[boxed]
    pub async fn find_by_number(&self, id: ObjectId, is_above: bool) -> Result<Attributes, ZplError> {
        let has_name = |found: &Attributes| found.link_count > 0 && !found.flags.is_xattr();
        let found = self.attributes(id).await?;
        if !has_name(&found) {
            return Err(ZplError::Stale);
        }
        if !is_above {
            return Ok(found);
        }
        if found.kind != FileKind::Directory {
            return Err(ZplError::NotDirectory);
        }
        let above = self.attributes(found.parent).await?;
        if has_name(&above) { Ok(above) } else { Err(ZplError::Stale) }
    }
}
