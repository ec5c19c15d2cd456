//! Changes that space accounting makes in the MOS, recorded while the allocator is held, in the order in which they are to be made.
//!
//! A log's entries come metaslab by metaslab, a few hundred bytes at a time, and writing a few of them takes as long as writing their
//! whole block. So bytes that follow on an object's latest write join it. Changes of other objects may stand between the two:
//! those say nothing of its bytes.

use std::collections::BTreeMap;

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::SpaceMapPhys;
use cenote_metaslab::MetaslabId;

/// A change of an object of the MOS that space accounting asks for.
pub(crate) enum Change {
    Write { object: ObjectId, offset_bytes: u64, bytes: Vec<u8> },
    Truncate(ObjectId),
    Free(ObjectId),
    Header { object: ObjectId, header: Box<SpaceMapPhys> },
    MetaslabObject { metaslab: MetaslabId, object: ObjectId },
    UnflushedTxg { metaslab: MetaslabId, txg: Txg },
    Log { txg: Txg, object: Option<ObjectId> },
    CheckpointMap { vdev: VdevId, object: Option<ObjectId> },
}

/// Changes in their order.
#[derive(Default)]
pub(crate) struct ChangeList {
    changes: Vec<Change>,
    /// Where the latest write of each object stands.
    writes: BTreeMap<ObjectId, usize>,
}

impl ChangeList {
    /// Takes a change that is no write.
    pub(crate) fn push(&mut self, change: Change) {
        debug_assert!(!matches!(change, Change::Write { .. }), "writes are noted, so that later ones join them");
        if let Change::Truncate(object) | Change::Free(object) = &change {
            self.writes.remove(object);
        }
        self.changes.push(change);
    }

    /// Takes a write.
    pub(crate) fn write(&mut self, object: ObjectId, offset_bytes: u64, bytes: &[u8]) {
        let latest = self.writes.get(&object).and_then(|at| self.changes.get_mut(*at));
        debug_assert!(
            latest.as_ref().is_none_or(|it| matches!(**it, Change::Write { object: of, .. } if of == object)),
            "an object's latest write stands where it was noted"
        );
        if let Some(Change::Write { offset_bytes: start, bytes: before, .. }) = latest
            && *start + before.len() as u64 == offset_bytes
        {
            before.extend_from_slice(bytes);
            return;
        }
        self.writes.insert(object, self.changes.len());
        self.changes.push(Change::Write { object, offset_bytes, bytes: bytes.to_vec() });
    }

    /// All of them.
    pub(crate) fn into_changes(self) -> Vec<Change> {
        debug_assert!(self.writes.values().all(|at| *at < self.changes.len()), "a write that is noted is there");
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use cenote_taskq::Rng;

    use super::*;

    /// Objects as they are after changes made one after the other.
    type Model = BTreeMap<ObjectId, Vec<u8>>;

    fn make(model: &mut Model, change: &Change) {
        match change {
            Change::Write { object, offset_bytes, bytes } => {
                let (held, start) = (model.entry(*object).or_default(), *offset_bytes as usize);
                held.resize(held.len().max(start + bytes.len()), 0);
                held[start..start + bytes.len()].copy_from_slice(bytes);
            }
            Change::Truncate(object) | Change::Free(object) => drop(model.remove(object)),
            _ => {}
        }
    }

    #[test]
    fn joined_writes_leave_what_one_by_one_would() {
        let (mut rng, mut joined) = (Rng::new(11), 0);
        for _ in 0..500 {
            let (mut list, mut expected, mut count) = (ChangeList::default(), Model::new(), 0);
            for index in 0..60_u8 {
                let object = ObjectId(rng.below(3));
                let len = expected.get(&object).map_or(0, Vec::len) as u64;
                let change = match rng.below(10) {
                    0 => Change::Truncate(object),
                    1 => Change::Free(object),
                    2 => Change::Log { txg: Txg(1), object: Some(object) },
                    // At the end as a rule, over what is there now and then.
                    which => {
                        let offset_bytes = if which == 3 { rng.below(len + 1) } else { len };
                        Change::Write { object, offset_bytes, bytes: vec![index; 1 + rng.below(9) as usize] }
                    }
                };
                make(&mut expected, &change);
                count += 1;
                match change {
                    Change::Write { object, offset_bytes, bytes } => list.write(object, offset_bytes, &bytes),
                    other => list.push(other),
                }
            }
            let (changes, mut found) = (list.into_changes(), Model::new());
            changes.iter().for_each(|change| make(&mut found, change));
            assert_eq!(found, expected);
            joined += count - changes.len();
        }
        assert!(joined > 5000, "only {joined} writes have joined others");
    }
}
