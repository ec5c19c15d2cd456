//! The dataset that is sent, and the incremental source of its stream.

use cenote_dmu::Objset;
use cenote_dsl::{Bookmark, Dataset, Dsl, Sizes};
use cenote_format::Endian;
use cenote_format::dsl::{BookmarkFlags, dataset_field};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_taskq::boxed;

use super::error::SenderError;

/// A dataset opened for sending.
pub(super) struct Source {
    pub(super) dataset: Dataset,
    pub(super) objset: Objset,
    pub(super) objset_type: ObjsetType,
    pub(super) is_encrypted: bool,
}

impl Source {
    /// Opens a dataset. `is_raw`: its encrypted blocks are sent as stored on disk, which needs no key.
    pub(super) async fn open(dsl: &Dsl, dataset: Dataset, is_raw: bool) -> Result<Self, SenderError> {
        dataset.check_whole()?;
        Self::open_saved(dsl, dataset, is_raw).await
    }

    /// As [`Self::open`], but also for a partially received dataset.
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

    /// The stream's byte order: that of the machine that wrote the dataset, so that nothing needs to be swapped.
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
    /// If the source is a redacted snapshot, the snapshots that it is redacted with respect to.
    pub redaction_snapshots: Option<Vec<u64>>,
    /// It is in another dataset: the origin of a clone, or an earlier snapshot of that.
    pub is_elsewhere: bool,
    /// The bytes that the source referenced, and, if a bookmark records it, those of them that were freed before the next snapshot. `None` for a
    /// bookmark without sizes.
    pub(super) sizes: Option<(Sizes, Option<Sizes>)>,
}

impl Base {
    /// A snapshot as the incremental source of a stream of `to`.
    ///
    /// # Errors
    /// [`SenderError::NotEarlier`] if it is not earlier.
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

    /// A bookmark of the dataset `of` as the incremental source of a stream of `to`. For a redaction bookmark of `to` itself, the stream has the
    /// blocks that were left out.
    ///
    /// # Errors
    /// [`SenderError::NotEarlier`] if its snapshot is not earlier.
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
