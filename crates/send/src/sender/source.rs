//! The dataset that is sent, and what its stream builds on.

use cenote_dmu::Objset;
use cenote_dsl::{Bookmark, Dataset, Dsl, Sizes};
use cenote_format::Endian;
use cenote_format::dsl::{BookmarkFlags, dataset_field};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_taskq::boxed;

use super::error::SenderError;

/// A dataset opened to be sent.
pub(super) struct Source {
    pub(super) dataset: Dataset,
    pub(super) objset: Objset,
    pub(super) objset_type: ObjsetType,
    pub(super) is_encrypted: bool,
}

impl Source {
    /// Opens a dataset. `is_raw`: its encrypted blocks are sent as they lie on disk, and no key is needed.
    pub(super) async fn open(dsl: &Dsl, dataset: Dataset, is_raw: bool) -> Result<Self, SenderError> {
        dataset.check_whole()?;
        Self::open_saved(dsl, dataset, is_raw).await
    }

    /// As [`Self::open`], also of what was received in part.
    pub(super) async fn open_saved(dsl: &Dsl, dataset: Dataset, is_raw: bool) -> Result<Self, SenderError> {
        let name = dataset.name();
        let encryption = dsl.encryption(&dataset.dir).await?;
        if encryption.as_ref().is_some_and(|encryption| !encryption.is_loaded) && !is_raw {
            return Err(SenderError::KeyNotLoaded(name));
        }
        let invalid = |what| SenderError::Invalid { dataset: name.clone(), what };
        let objset = dsl.open_as_is(&dataset).await?.ok_or_else(|| invalid("no contents"))?;
        let is_encrypted = encryption.is_some();
        let objset = if is_encrypted && is_raw { objset.without_key() } else { objset };
        let objset_type = objset.phys().objset_type().unwrap_or(ObjsetType::None);
        if !matches!(objset_type, ObjsetType::Zfs | ObjsetType::Zvol) {
            return Err(invalid("neither a file system nor a volume"));
        }
        Ok(Self { dataset, objset, objset_type, is_encrypted })
    }

    pub(super) fn name(&self) -> String {
        self.dataset.name()
    }

    /// The byte order of the stream: that of the machine that wrote the dataset, so that nothing needs to be turned round.
    pub(super) fn endian(&self) -> Endian {
        self.objset.byte_order()
    }
}

/// The incremental source of a stream.
#[derive(Clone, Debug)]
pub struct Base {
    /// The guid of the snapshot that receivers must have.
    pub guid: Guid,
    /// Blocks born up to its txg are not sent.
    pub txg: Txg,
    /// Its set of IVs; 0 if it has none.
    pub ivset_guid: u64,
    /// The redaction list of a bookmark; object 0 if there is none.
    pub redaction_list: ObjectId,
    /// The snapshots that it is redacted with respect to, where the source is a redacted snapshot.
    pub redaction_snapshots: Option<Vec<u64>>,
    /// It is of another file system: the origin of a clone, or something before that.
    pub is_elsewhere: bool,
    /// The bytes that the source referenced, and those of them that were freed before the next snapshot if a bookmark knows it. `None`: a bookmark that
    /// knows nothing of it.
    pub(super) sizes: Option<(Sizes, Option<Sizes>)>,
}

impl Base {
    /// A snapshot as source of a stream of `to`.
    ///
    /// # Errors
    /// [`SenderError::NotEarlier`] if it did not come before.
    #[boxed]
    pub async fn snapshot(dsl: &Dsl, to: &Dataset, from: &Dataset) -> Result<Self, SenderError> {
        if !dsl.is_earlier(to, from.dir.object, from.phys.creation_txg).await? {
            return Err(SenderError::NotEarlier);
        }
        Ok(Self {
            guid: from.phys.guid,
            txg: from.phys.creation_txg,
            ivset_guid: dsl.dataset_field(from, dataset_field::IVSET_GUID).await?.unwrap_or(0),
            redaction_list: ObjectId(0),
            redaction_snapshots: dsl.redaction_snapshots(from).await?,
            is_elsewhere: from.dir.object != to.dir.object,
            sizes: Some((Sizes::referenced_by(from), None)),
        })
    }

    /// A bookmark of the dataset `of` as source of a stream of `to`. The redaction bookmark that was made of `to` itself is one
    /// too: what was left out then is sent.
    ///
    /// # Errors
    /// [`SenderError::NotEarlier`] if its snapshot did not come before.
    #[boxed]
    pub async fn bookmark(dsl: &Dsl, to: &Dataset, of: &Dataset, from: &Bookmark) -> Result<Self, SenderError> {
        let phys = &from.phys;
        let unredacts = phys.redaction_list.0 != 0 && phys.guid == to.phys.guid;
        if !unredacts && !dsl.is_earlier(to, of.dir.object, phys.creation_txg).await? {
            return Err(SenderError::NotEarlier);
        }
        Ok(Self {
            guid: phys.guid,
            txg: phys.creation_txg,
            ivset_guid: phys.ivset_guid,
            redaction_list: phys.redaction_list,
            redaction_snapshots: None,
            is_elsewhere: of.dir.object != to.dir.object,
            sizes: phys
                .flags
                .contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT)
                .then(|| (Sizes::referenced_by_bookmark(phys), Some(Sizes::freed_after_bookmark(phys)))),
        })
    }
}
