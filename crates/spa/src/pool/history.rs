//! The contents of the last txgs, and how long their sync took.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use cenote_format::ids::Txg;
use cenote_metaslab::TxgWork;
use cenote_taskq::{BoxFuture, Handle, Instant};

use crate::sync::Phase;

/// Txgs that are remembered (`zfs_txg_history`).
const RECORDS_MAX: usize = 100;

/// One txg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxgRecord {
    /// Which.
    pub txg: Txg,
    /// How long it waited, quiesced, because a look or a change of the pool had the slot (`wtime`).
    pub waited: Duration,
    /// When its sync began.
    pub begun: Instant,
    /// How long that took.
    pub took: Duration,
    /// Bytes of data that were dirty when it began.
    pub dirty_bytes: u64,
    /// A change of the pool itself was made in it.
    pub is_change: bool,
    /// Passes that it took.
    pub passes: u32,
    /// Processor time of the task that makes the sync: what cannot be done on several cores.
    pub serial: Duration,
    /// Its space accounting work. It names few metaslabs, so that the history stays small.
    pub space: TxgWork,
    /// How long each phase took.
    pub phases: Vec<(Phase, Duration)>,
}

impl TxgRecord {
    /// How long a phase took.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> Duration {
        self.phases.iter().filter(|(other, _)| *other == phase).map(|(_, took)| *took).sum()
    }
}

pub(super) fn keep(records: &mut VecDeque<TxgRecord>, record: TxgRecord) {
    assert!(records.back().is_none_or(|last| last.txg < record.txg), "txgs are written in order, each once");
    assert!(record.passes > 0, "a txg takes a pass");
    if records.len() == RECORDS_MAX {
        records.pop_front();
    }
    records.push_back(record);
}

/// A task's work, and the processor time that it took itself.
pub(super) struct Polled<'a, T> {
    work: BoxFuture<'a, T>,
    handle: Handle,
    ran: Duration,
}

impl<'a, T> Polled<'a, T> {
    pub(super) fn new(handle: Handle, work: BoxFuture<'a, T>) -> Self {
        Self { work, handle, ran: Duration::ZERO }
    }
}

impl<T> Future for Polled<'_, T> {
    type Output = (T, Duration);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A poll stays on its thread.
        let begun = self.handle.thread_cpu_time();
        let done = self.work.as_mut().poll(context);
        let ran = self.handle.thread_cpu_time().saturating_sub(begun);
        self.ran += ran;
        done.map(|done| (done, self.ran))
    }
}
