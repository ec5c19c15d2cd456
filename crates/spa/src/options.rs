//! How a pool is imported.

use std::fmt;
use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_format::uberblock::Uberblock;
use cenote_kstat::Settings;

/// How far back an import may go when the newest root does not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// Only the newest uberblock.
    #[default]
    None,
    /// The last few txgs, whose blocks are not yet reused (`-F`).
    Recent,
    /// Any uberblock that leads to a MOS (`-FX`).
    Extreme,
    /// The uberblock of exactly this txg, or the newest before it (`-T`).
    ToTxg(Txg),
}

/// Tells a person what is being waited for.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// By this function.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, text: &str) {
        (self.0)(text);
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Open a pool that was in use elsewhere (`-f`).
    pub force: bool,
    /// Open a destroyed pool (`-D`).
    pub destroyed: bool,
    /// Go on without log devices that are missing (`-m`).
    pub missing_log: bool,
    /// Go on when top-level vdevs are missing or cannot be used; what lies on them gives errors.
    pub missing_tops: bool,
    /// Open the pool as of its checkpoint.
    pub checkpoint: bool,
    /// Which root.
    pub rewind: Rewind,
    /// This uberblock, instead of those on the devices: another process keeps its txg.
    pub root: Option<Uberblock>,
    /// Prefix of mount points (`-R`).
    pub altroot: Option<String>,
    /// Show the pool under another name.
    pub new_name: Option<String>,
    /// This system's host id; 0 if it has none.
    pub host_id: u64,
    /// Memory limit of the block cache in bytes.
    pub cache_bytes: usize,
    /// Values that were given for tunables ([`crate::tunables::settings`]).
    pub tunables: Settings,
    /// Written into labels while the pool is open for writing; the caller keeps a record of it for as long. None: the labels have no
    /// mark, and after a crash only `force` opens the pool again.
    pub owner_mark: Option<u64>,
    /// Marks of openings for writing that are known to be over.
    pub gone_marks: Vec<u64>,
    /// Do not wait to see whether a protected pool is active elsewhere. For looking at a pool, never for writing to it.
    pub skip_activity_check: bool,
    /// It is known that the process which had the pool last is dead, so a protected pool need not be watched.
    pub owner_is_gone: bool,
    /// Called when a pool is about to be watched, with the reason and the duration as text.
    pub notice: Option<Notice>,
}
