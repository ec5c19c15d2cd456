//! Scripts: sequences of operations, numbered.

use crate::model::{FileChange, Name, RangeChange};

use super::base::{LINKED, SECOND, TARGET};

/// An operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// On files.
    Files(FileChange),
    /// On the volume.
    Volume(RangeChange),
}

/// The wait of a client after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing.
    Nothing,
    /// `fsync` of the file or directory that was changed; a flush of the volume.
    Fsync,
    /// All that the dataset's log has.
    FsyncAll,
    /// The txg.
    Txg,
    /// The txg and the next one.
    TwoTxgs,
}

const THENS: [Then; 5] = [Then::Nothing, Then::Fsync, Then::FsyncAll, Then::Txg, Then::TwoTxgs];

/// A name that nothing has at first, in each of the two directories.
const FRESH: [Name; 2] = [(0, 4), (1, 4)];
/// One that is too long for a micro ZAP.
const LONG: Name = (0, 6);

fn write(name: Name, offset: usize, len: usize) -> Op {
    // Content that cannot be compressed, other for each place.
    Op::Files(FileChange::Write { name, offset, len, seed: 2 + 5 * (offset + len) as u64 })
}

/// All operations.
fn ops() -> Vec<Op> {
    use FileChange::{Create, Exchange, Link, RemoveXattr, Rename, SetXattr, Truncate, Unlink};
    let files = [
        Create(FRESH[0]),
        Create(FRESH[1]),
        Create(LONG),
        Truncate { name: TARGET, size: 0 },
        Truncate { name: TARGET, size: 3000 },
        Truncate { name: TARGET, size: 90_000 },
        Rename { from: TARGET, to: FRESH[0] },
        Rename { from: TARGET, to: FRESH[1] },
        Rename { from: TARGET, to: SECOND },
        Rename { from: SECOND, to: TARGET },
        Rename { from: FRESH[0], to: TARGET },
        Exchange { from: TARGET, to: SECOND },
        Link { from: TARGET, to: FRESH[1] },
        Unlink(TARGET),
        Unlink(SECOND),
        Unlink(LINKED),
        SetXattr { name: TARGET, key: 0, len: 60, seed: 7 },
        SetXattr { name: TARGET, key: 1, len: 6000, seed: 8 },
        RemoveXattr { name: TARGET, key: 2 },
    ];
    let volume = [
        RangeChange::Write { offset: 4096, len: 4096, seed: 12 },
        RangeChange::Write { offset: 6000, len: 30_000, seed: 13 },
        RangeChange::Zeros { offset: 2000, len: 9000 },
        RangeChange::Discard { offset: 0, len: 20_000 },
    ];
    let writes = [
        write(TARGET, 0, 100),
        write(TARGET, 3000, 9000),
        write(TARGET, 0, 60_000),
        write(TARGET, 80_000, 10),
        write(SECOND, 0, 700),
        write(FRESH[0], 0, 5000),
    ];
    writes.into_iter().chain(files.into_iter().map(Op::Files)).chain(volume.into_iter().map(Op::Volume)).collect()
}

/// A step: an operation, and what its client waits for.
pub(super) type Step = (Op, Then);

/// A sequence of steps.
#[derive(Clone, Debug)]
pub struct Script(pub(super) Vec<Step>);

/// The number of scripts of so many steps.
#[must_use]
pub fn count(steps: u32) -> u64 {
    (ops().len() as u64 * THENS.len() as u64).pow(steps)
}

impl Script {
    /// The script of so many steps with this number. `None` if an operation of it needs a name that is not there.
    #[must_use]
    pub fn nth(steps: u32, mut number: u64) -> Option<Self> {
        let ops = ops();
        let mut script = Vec::new();
        for _ in 0..steps {
            let (op, then) = (number % ops.len() as u64, number / ops.len() as u64 % THENS.len() as u64);
            number /= ops.len() as u64 * THENS.len() as u64;
            script.push((ops[op as usize].clone(), THENS[then as usize]));
        }
        let is_possible = is_possible(&script);
        is_possible.then_some(Self(script))
    }
}

/// Whether each operation finds the names that it needs, and each new name is free.
fn is_possible(script: &[Step]) -> bool {
    use crate::model::State as _;
    let mut files = super::base::files();
    for (op, _) in script {
        let Op::Files(change) = op else { continue };
        let has = |name: &Name| files.at(name).is_some();
        let is_possible = match change {
            FileChange::Create(name) => !has(name),
            FileChange::Link { from, to } => has(from) && !has(to),
            FileChange::Exchange { from, to } => has(from) && has(to),
            FileChange::RemoveXattr { name, key } => files.at(name).is_some_and(|file| file.xattrs.contains_key(key)),
            FileChange::Write { name, .. }
            | FileChange::Truncate { name, .. }
            | FileChange::SetXattr { name, .. }
            | FileChange::Rename { from: name, .. }
            | FileChange::Unlink(name) => has(name),
            FileChange::Reap => true,
        };
        if !is_possible {
            return false;
        }
        files.apply(change);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_another_script() {
        let mut seen = std::collections::BTreeSet::new();
        let all = count(1);
        assert_eq!(all, 29 * 5);
        let possible = (0..all).filter_map(|number| Script::nth(1, number)).map(|script| format!("{script:?}"));
        possible.for_each(|script| assert!(seen.insert(script)));
        // One writes to a name that is not there, and one renames it.
        assert_eq!(seen.len(), 27 * 5);
        let two = (0..count(2)).filter(|number| Script::nth(2, *number).is_some()).count();
        assert!(two > 15_000, "{two}");
    }
}
