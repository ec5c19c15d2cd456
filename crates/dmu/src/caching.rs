//! Which blocks of an objset stay in the cache, and which are read ahead: its properties `primarycache` and `prefetch`; and which
//! may go to cache devices: `secondarycache`.
//!
//! By default, data that is read or written stays in the ARC until the ARC evicts it. For a dataset whose clients cache data themselves
//! (a database), an administrator sets `primarycache=metadata`: then the first read of a data block evicts it, and written data is not
//! inserted. Blocks that were loaded ahead wait for that reader all the same. The properties change while
//! objects are read, so they are three atomics beside the way to the blocks, and a read asks for them where it finds its block.
//!
//! Invariant: nothing but speed and memory depends on them.
//!
//! Metadata always stays in the cache, `primarycache=none` included: there is no table of open blocks here, so each block of data would
//! take a device's read for each level of its tree. Data that does not stay in the cache does not go to a cache device either, as in OpenZFS. In OpenZFS too, a dbuf in use keeps the dbufs of its indirect blocks in memory.

use cenote_taskq::sync::atomic::{AtomicU8, Ordering};
use cenote_zio::Shelf;

/// The kinds of blocks that a property speaks of. Numbers as in OpenZFS's `zfs_cache_type_t` and `zfs_prefetch_type_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kinds {
    /// None at all.
    None,
    /// Metadata, without the contents of files and volumes.
    Metadata,
    /// All of them.
    #[default]
    All,
}

impl Kinds {
    /// The kinds that a property's number means; none for a number that means nothing.
    #[must_use]
    pub const fn from_property(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Metadata,
            2 => Self::All,
            _ => return None,
        })
    }

    const fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Metadata => 1,
            Self::All => 2,
        }
    }
}

/// The way in which an objset uses the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// Blocks that stay in the cache (`primarycache`). Metadata does in any case.
    pub primary: Kinds,
    /// Blocks that are loaded before a reader asks for them (`prefetch`).
    pub prefetch: Kinds,
    /// Blocks that may go to cache devices (`secondarycache`).
    pub secondary: Kinds,
}

/// The same, changed while others read it.
pub(crate) struct SharedCaching {
    primary: AtomicU8,
    prefetch: AtomicU8,
    secondary: AtomicU8,
}

impl SharedCaching {
    pub(crate) const fn new(caching: Caching) -> Self {
        let Caching { primary, prefetch, secondary } = caching;
        Self {
            primary: AtomicU8::new(primary.number()),
            prefetch: AtomicU8::new(prefetch.number()),
            secondary: AtomicU8::new(secondary.number()),
        }
    }

    pub(crate) fn set(&self, caching: Caching) {
        // Each stands for itself, and a read that still goes by the one before is none the worse.
        self.primary.store(caching.primary.number(), Ordering::Relaxed);
        self.prefetch.store(caching.prefetch.number(), Ordering::Relaxed);
        self.secondary.store(caching.secondary.number(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Caching {
        let kinds = |number: &AtomicU8| {
            Kinds::from_property(number.load(Ordering::Relaxed).into()).expect("only numbers of kinds are stored")
        };
        let (primary, prefetch) = (kinds(&self.primary), kinds(&self.prefetch));
        Caching { primary, prefetch, secondary: kinds(&self.secondary) }
    }

    pub(crate) fn keeps_data(&self) -> bool {
        self.get().primary == Kinds::All
    }

    /// The kinds of blocks that may go to cache devices.
    pub(crate) fn on_devices(&self) -> Shelf {
        let caching = self.get();
        match caching.secondary {
            Kinds::None => Shelf::None,
            Kinds::All if caching.primary == Kinds::All => Shelf::All,
            Kinds::Metadata | Kinds::All => Shelf::Metadata,
        }
    }
}
