//! Newtypes for the numbers that must not be mixed up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A transaction group's number. 0 means "none"; a pool's first is [`Txg::INITIAL`].
    Txg
);
id!(
    /// An object's number within an objset. 0 is the meta-dnode or "none".
    ObjectId
);
id!(
    /// A globally unique id of a pool, vdev, dataset or snapshot, as ZFS draws them (64 random bits, not 0).
    Guid
);
id!(
    /// The object number of a dataset (objset) in the MOS; 0 is the MOS itself.
    ObjsetId
);
id!(
    /// A block's index within its object at some level: level-0 block `n` holds bytes `n * block size ..`.
    BlockId
);

/// The id (index) of a top-level vdev, as DVAs name it: a 24-bit field of the block pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VdevId(pub u32);

impl fmt::Display for VdevId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Txg {
    /// The txg in which a pool is created.
    pub const INITIAL: Self = Self(4);
}
