//! An objset's part of a sync.

use cenote_format::blkptr::Blkptr;
use cenote_format::needs::Needs;

use super::killed::Killed;
use super::place::SpanDelta;
use super::space::SpaceDelta;
use crate::objset::{Objset, ObjsetPolicy};

/// An objset's part of a sync.
pub(super) struct Part {
    pub(super) objset: Objset,
    pub(super) policy: ObjsetPolicy,
    pub(super) born: SpaceDelta,
    /// A list of the new blocks is kept.
    pub(super) lists_new: bool,
    pub(super) new: Vec<Blkptr>,
    pub(super) killed: Killed,
    pub(super) unused: Vec<Blkptr>,
    pub(super) needs: Needs,
}

impl Part {
    /// Takes changed blocks; returns the bytes that they add to the object's used bytes.
    pub(super) fn take(&mut self, change: SpanDelta) -> i64 {
        self.born.add(change.born);
        self.new.extend(change.new);
        self.killed.append(change.killed);
        self.needs |= change.needs;
        change.used_bytes
    }
}
