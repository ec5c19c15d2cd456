//! Claiming and destroying intent logs when a pool is opened for writing; [`cenote_zil`] describes the life of a log.
//!
//! An unclaimed log may have blocks that were allocated after the last txg on disk, so their space counts as free. Therefore all logs are
//! claimed in the first txg, before anything else is allocated, and empty txgs are written until the txg is past the births of all
//! claimed blocks. If no log has records, the pool is opened without writing a txg.
//!
//! **Invariants.**
//! 1. Nothing is allocated in the first txg before all logs are claimed (asserted where claiming begins).
//! 2. A block is claimed once, whatever logs point to it; one that cannot be claimed ends its log.
//! 3. Passing the blocks of a log in its replay, and destroying the rest, frees exactly what was claimed, up to the end that the header
//!    records, and drops the BRT references
//!    that the claim added for cloned blocks.

mod check;
mod claim;
mod destroy;
mod write;

use cenote_dmu::{KeyAccess, Objset};
use cenote_dsl::{Dataset, Dsl};
use cenote_zil::Link;

use crate::{SpaError, View};

/// Claimed blocks may be of txgs up to so many ahead: that many empty ones are written at worst. OpenZFS has three open at once; a pool
/// that was frozen for a test (`zpool freeze`) goes on counting.
const TXGS_AHEAD_MAX: u64 = 1 << 14;

/// A head dataset's log that is not claimed.
struct Unclaimed {
    /// The dataset's name.
    name: String,
    objset: Objset,
}

/// The logs that are not claimed, and may have records. On the same way, into `half_received`: datasets that are half received or half
/// destroyed.
async fn unclaimed(
    dsl: &Dsl,
    dmu: &cenote_dmu::Dmu,
    half_received: &mut Vec<Dataset>,
) -> Result<Vec<Unclaimed>, SpaError> {
    let root = dsl.root_dir().await?;
    let mut found = Vec::new();
    for dir in dsl.tree(root, true).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        if head.is_inconsistent() {
            half_received.push(head);
            continue;
        }
        if head.phys.bp.is_hole() {
            continue;
        }
        let objset = Objset::open(dmu.clone(), head.objset_id(), head.phys.bp, KeyAccess::None).await?;
        let header = objset.zil_header();
        if !header.log.is_hole() && header.claim_txg.0 == 0 {
            found.push(Unclaimed { name: dir.name, objset });
        }
    }
    Ok(found)
}

/// Whether a chain's first block shows that there is something to be claimed; `synced` is the last txg on disk.
fn holds_something(first: Option<&Link>, synced: cenote_format::ids::Txg) -> bool {
    first.is_some_and(|first| first.content.is_some() || first.pointer.birth() > synced)
}

impl View {
    pub(crate) fn log_unreadable(&self, dataset: &str, what: impl std::fmt::Display) -> SpaError {
        SpaError::LogUnreadable { pool: self.name().to_owned(), dataset: dataset.to_owned(), what: what.to_string() }
    }
}
