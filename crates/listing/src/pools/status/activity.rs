//! The progress of initializing and trimming leaves, as OpenZFS stores it in each leaf's ZAP.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::ids::Guid;
use cenote_spa::{LeafWorkKind, View};
use cenote_vdev::config::VdevKind;

use crate::TimeText;
use crate::error::Result;

/// The state of an activity of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    state: u64,
    time_s: u64,
    offset_bytes: u64,
    /// An estimate of the leaf's size, by its vdev: for a leaf that is away.
    size_bytes: u64,
}

const ACTIVE: u64 = 1;
const CANCELED: u64 = 2;
const SUSPENDED: u64 = 3;
const COMPLETE: u64 = 4;

impl Activity {
    /// The text in parentheses after a leaf of `size_bytes`; 0 where it is away.
    pub(super) fn text(self, kind: LeafWorkKind, size_bytes: u64, time: TimeText) -> String {
        let did = match kind {
            LeafWorkKind::Initialize => "initialized",
            LeafWorkKind::Trim => "trimmed",
        };
        let when = match self.state {
            ACTIVE => "started at",
            SUSPENDED => "suspended, started at",
            COMPLETE => "completed at",
            _ => return format!("un{did}"),
        };
        let size_bytes = if size_bytes == 0 { self.size_bytes } else { size_bytes };
        let share = u128::from(self.offset_bytes) * 100 / u128::from(size_bytes.max(1));
        let percent = if self.state == COMPLETE { 100 } else { share.min(100) };
        format!("{percent}% {did}, {when} {}", time(self.time_s, "%a %b %e %H:%M:%S %Y"))
    }

    /// The state's name in JSON.
    pub(super) const fn word(self, kind: LeafWorkKind) -> &'static str {
        match (self.state, kind) {
            (ACTIVE, _) => "ACTIVE",
            (CANCELED, _) => "CANCELED",
            (SUSPENDED, _) => "SUSPENDED",
            (COMPLETE, _) => "COMPLETE",
            (_, LeafWorkKind::Initialize) => "UNINITIALIZED",
            (_, LeafWorkKind::Trim) => "UNTRIMMED",
        }
    }
}

/// All leaves' activities of this kind.
pub(super) async fn activities(pool: &View, kind: LeafWorkKind) -> Result<BTreeMap<Guid, Activity>> {
    let mut found = BTreeMap::new();
    let mut leaves = Vec::new();
    for top in &pool.vdevs().children {
        leaves.extend(top.leaves().into_iter().map(|leaf| (top, leaf)));
    }
    for (top, leaf) in leaves {
        if leaf.leaf_zap.0 == 0 {
            continue;
        }
        let parts = if matches!(top.kind, VdevKind::Raidz { .. }) { top.children.len() as u64 } else { 1 };
        let zap = Zap::open(pool.mos().object(leaf.leaf_zap).await?).await?;
        let [state, time, offset] = kind.entries();
        let activity = Activity {
            state: zap.find_u64(state).await?.unwrap_or(0),
            time_s: zap.find_u64(time).await?.unwrap_or(0),
            offset_bytes: zap.find_u64(offset).await?.unwrap_or(0),
            size_bytes: top.asize_bytes / parts,
        };
        found.insert(leaf.guid, activity);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: TimeText = |seconds, _| seconds.to_string();

    #[test]
    fn only_what_was_begun_has_a_share() {
        assert_eq!(Activity::default().text(LeafWorkKind::Trim, 100, TIME), "untrimmed");
        let half = Activity { state: SUSPENDED, time_s: 0, offset_bytes: 50, size_bytes: 200 };
        assert!(half.text(LeafWorkKind::Initialize, 100, TIME).starts_with("50% initialized, suspended, started at "));
        assert!(half.text(LeafWorkKind::Initialize, 0, TIME).starts_with("25% initialized"), "away: by the estimate");
        let done = Activity { state: COMPLETE, ..half };
        assert!(done.text(LeafWorkKind::Trim, 0, TIME).starts_with("100% trimmed, completed at "));
        assert_eq!(done.word(LeafWorkKind::Trim), "COMPLETE");
    }
}
