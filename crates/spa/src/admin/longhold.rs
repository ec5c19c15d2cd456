//! Keeping datasets that are read from being destroyed.

use cenote_format::ids::ObjectId;

use crate::longholds::LongHold;
use crate::sync::Syncer;

impl Syncer {
    /// Keeps a dataset that is there from being destroyed or rolled back.
    #[must_use]
    pub fn long_hold(&self, dataset: ObjectId) -> LongHold {
        self.long_holds.hold(dataset)
    }

    /// Whether somebody keeps a dataset so.
    #[must_use]
    pub fn is_long_held(&self, dataset: ObjectId) -> bool {
        self.long_holds.is_held(dataset)
    }
}
