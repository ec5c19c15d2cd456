//! The progress of initializing and trimming leaves, as OpenZFS stores it in each leaf's ZAP.
//!
//! A leaf has an offset up to which the work is done. OpenZFS shows the free space before it, and all the free space of the leaf, each the part
//! of its top-level vdev that is the leaf's; so does this.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::ids::{Guid, VdevId};
use cenote_metaslab::{PoolSpace, VdevSpace};
use cenote_props::number::{nicebytes, nicenum};
use cenote_spa::{LeafWorkKind, View};
use cenote_vdev::config::{VdevConfig, VdevKind};
use serde_json::{Map, Value, json};

use super::scan::date_or_dash;
use crate::error::Result;
use crate::{Json, TimeText};

/// The state of an activity of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    state: u64,
    time_s: u64,
    /// Free bytes that are done, and all of them.
    done_bytes: u64,
    free_bytes: u64,
}

const ACTIVE: u64 = 1;
const CANCELED: u64 = 2;
const SUSPENDED: u64 = 3;
const COMPLETE: u64 = 4;

impl Activity {
    /// The text in parentheses after a leaf; `is_asked`: everything about it, not only whether it goes on.
    pub(super) fn text(self, kind: LeafWorkKind, is_asked: bool, time: TimeText) -> Option<String> {
        let (did, does) = match kind {
            LeafWorkKind::Initialize => ("initialized", "initializing"),
            LeafWorkKind::Trim => ("trimmed", "trimming"),
        };
        if !is_asked {
            return (self.state == ACTIVE).then(|| does.to_owned());
        }
        let when = match self.state {
            ACTIVE => "started at",
            SUSPENDED => "suspended, started at",
            COMPLETE => "completed at",
            _ => return Some(format!("un{did}")),
        };
        let share = u128::from(self.done_bytes) * 100 / (u128::from(self.free_bytes) + 1);
        let percent = if self.state == COMPLETE { 100 } else { share.min(100) };
        Some(format!("{percent}% {did}, {when} {}", time(self.time_s, "%a %b %e %H:%M:%S %Y")))
    }

    /// Whether it was begun, and neither ended nor was suspended.
    pub(super) const fn is_active(self) -> bool {
        self.state == ACTIVE
    }

    /// The bytes that are left, if it goes on.
    pub(super) const fn left_bytes(self) -> u64 {
        if self.state == ACTIVE { self.free_bytes.saturating_sub(self.done_bytes) } else { 0 }
    }

    /// Appends it to a leaf's object in JSON.
    pub(super) fn json(
        self,
        kind: LeafWorkKind,
        json: Json,
        exact: bool,
        time: TimeText,
        object: &mut Map<String, Value>,
    ) {
        let [state, done, to_do, at, errors] = match kind {
            LeafWorkKind::Initialize => ["init_state", "initialized", "to_initialize", "init_time", "init_errors"],
            LeafWorkKind::Trim => ["trim_state", "trimmed", "to_trim", "trim_time", "trim_errors"],
        };
        object.insert(state.into(), json!(self.word(kind)));
        if self.state == 0 {
            return;
        }
        let shown = |number: u64, text: String| if exact { json.number(number) } else { json!(text) };
        object.insert(done.into(), shown(self.done_bytes, nicebytes(self.done_bytes)));
        object.insert(to_do.into(), shown(self.free_bytes, nicebytes(self.free_bytes)));
        object.insert(at.into(), shown(self.time_s, date_or_dash(self.time_s, time)));
        object.insert(errors.into(), shown(0, nicenum(0)));
    }

    /// The state's name in JSON.
    const fn word(self, kind: LeafWorkKind) -> &'static str {
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

/// The leaves among which a row of a top-level vdev is divided.
fn width(top: &VdevConfig) -> u64 {
    let children = top.children.len() as u64;
    match top.kind {
        VdevKind::Raidz { .. } => children.max(1),
        VdevKind::Draid { spares, .. } => children.saturating_sub(spares).max(1),
        _ => 1,
    }
}

/// A leaf's part of the free space of its top-level vdev: up to an offset of the leaf, and all.
fn free_of(space: &VdevSpace, width: u64, offset_bytes: u64) -> (u64, u64) {
    let size = space.maps.size_bytes();
    let end = offset_bytes.saturating_mul(width).min(size);
    let taken: u64 = space.allocated.iter().map(|range| range.end.min(end).saturating_sub(range.start.min(end))).sum();
    (end.saturating_sub(taken) / width, size.saturating_sub(space.allocated.total()) / width)
}

/// All leaves' activities of this kind.
pub(super) async fn activities(pool: &View, space: &PoolSpace, kind: LeafWorkKind) -> Result<BTreeMap<Guid, Activity>> {
    let mut found = BTreeMap::new();
    for top in &pool.vdevs().children {
        let space = u32::try_from(top.id).ok().and_then(|id| space.vdev(VdevId(id)));
        for leaf in top.leaves() {
            if leaf.leaf_zap.0 == 0 {
                continue;
            }
            let zap = Zap::open(pool.mos().object(leaf.leaf_zap).await?).await?;
            let [state, time, offset] = kind.entries();
            let offset_bytes = zap.find_u64(offset).await?.unwrap_or(0);
            let (done_bytes, free_bytes) = space.map_or((0, 0), |space| free_of(space, width(top), offset_bytes));
            let activity = Activity {
                state: zap.find_u64(state).await?.unwrap_or(0),
                time_s: zap.find_u64(time).await?.unwrap_or(0),
                done_bytes,
                free_bytes,
            };
            found.insert(leaf.guid, activity);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: TimeText = |seconds, _| seconds.to_string();

    #[test]
    fn only_what_was_begun_has_a_share() {
        let text = |activity: Activity, kind| activity.text(kind, true, TIME).unwrap();
        assert_eq!(text(Activity::default(), LeafWorkKind::Trim), "untrimmed");
        let half = Activity { state: SUSPENDED, time_s: 0, done_bytes: 505, free_bytes: 1000 };
        assert!(text(half, LeafWorkKind::Initialize).starts_with("50% initialized, suspended, started at "));
        let done = Activity { state: COMPLETE, ..half };
        assert!(text(done, LeafWorkKind::Trim).starts_with("100% trimmed, completed at "));
        assert_eq!(done.word(LeafWorkKind::Trim), "COMPLETE");
    }

    #[test]
    fn what_goes_on_is_told_unasked_and_in_json_with_its_bytes() {
        let active = Activity { state: ACTIVE, time_s: 7, done_bytes: 1 << 20, free_bytes: 2 << 20 };
        assert_eq!(active.text(LeafWorkKind::Initialize, false, TIME).as_deref(), Some("initializing"));
        assert_eq!(active.text(LeafWorkKind::Trim, false, TIME).as_deref(), Some("trimming"));
        assert_eq!(Activity { state: SUSPENDED, ..active }.text(LeafWorkKind::Trim, false, TIME), None);
        let mut map = Map::new();
        active.json(LeafWorkKind::Trim, Json { is_integer: false }, false, TIME, &mut map);
        assert_eq!(
            Value::Object(map),
            json!({"trim_state": "ACTIVE", "trimmed": "1M", "to_trim": "2M", "trim_time": "7", "trim_errors": "0"})
        );
    }
}
