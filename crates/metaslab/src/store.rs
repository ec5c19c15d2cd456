//! The interface through which space accounting writes its objects to the pool.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::SpaceMapPhys;

/// The error of the layer that holds the objects, which is above this crate: its type is known there.
#[derive(Clone)]
pub struct ObjectError(Arc<dyn StdError + Send + Sync>);

impl ObjectError {
    /// An error as the layer above has it.
    pub fn new(error: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }

    /// The error as the layer above has it, if it is of this type.
    #[must_use]
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for ObjectError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// Errors of types that are not known here are equal if they say the same.
impl PartialEq for ObjectError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.to_string() == other.to_string()
    }
}

impl Eq for ObjectError {}

/// The number of a metaslab: its vdev, and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetaslabId {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Its index there.
    pub index: u64,
}

/// The objects that hold space maps, to be written within the txg that syncs. Errors are those of the layer that
/// holds them.
///
/// Nothing here waits: an implementation changes dirty objects in memory, or keeps a list of what to change. Numbers are
/// given in little-endian order; an implementation that appends to a block of the other order converts.
pub trait SpaceStore {
    /// Whether a new space map's header has counts of free runs (feature `spacemap_histogram`).
    fn has_histograms(&self) -> bool;
    /// Makes an object for a space map: data blocks of `block_size_bytes`, the bonus of an empty map.
    fn create(&mut self, block_size_bytes: u64) -> Result<ObjectId, ObjectError>;
    /// Writes data; the object grows.
    fn write(&mut self, object: ObjectId, offset_bytes: u64, bytes: &[u8]) -> Result<(), ObjectError>;
    /// Frees all data of an object, which stays.
    fn truncate(&mut self, object: ObjectId) -> Result<(), ObjectError>;
    /// Frees an object.
    fn free(&mut self, object: ObjectId) -> Result<(), ObjectError>;
    /// Writes a space map's header into the bonus.
    fn set_header(&mut self, object: ObjectId, header: &SpaceMapPhys) -> Result<(), ObjectError>;
    /// Enters a metaslab's space map into its vdev's `metaslab_array`.
    fn set_metaslab_object(&mut self, metaslab: MetaslabId, object: ObjectId) -> Result<(), ObjectError>;
    /// Enters the first txg that a metaslab's own map lacks into `ms_unflushed_phys_txgs`, which is made if the vdev has
    /// none.
    fn set_unflushed_txg(&mut self, metaslab: MetaslabId, txg: Txg) -> Result<(), ObjectError>;
    /// Enters the space map of what is kept for the checkpoint into a vdev's ZAP, or takes it out.
    fn set_checkpoint_map(&mut self, vdev: VdevId, object: Option<ObjectId>) -> Result<(), ObjectError>;
    /// Enters a txg's log into `log_spacemap_zap` (made, and the feature activated, with the first), or takes it out.
    fn set_log(&mut self, txg: Txg, object: Option<ObjectId>) -> Result<(), ObjectError>;
}
