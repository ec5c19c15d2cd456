//! Which copy to read: policies for mirrors, and the statistics that they look at.
//!
//! # Theory
//!
//! **Need.** Where several devices have the same bytes, the choice among them decides how fast reads are, and how slow the
//! slowest are. Drives differ: one rotates, one does not, one is busy, one is failing slowly, one hangs for a tenth of a second now and
//! then. A drive reports none of this; only its response times show it.
//!
//! **In memory.** Each vdev below a mirror or a parity stripe has a [`Load`]: its outstanding requests, the end offsets of its recent
//! sequential reads, and decaying averages of response times by request size. All of it is atomic, a cache line or
//! two for each device and none shared by all: there is no lock on a read's way.
//!
//! **The life of a choice.** The tree gathers the children that could serve a read ([`Candidates`]: readable, not stale, not
//! tried), and a [`ReadPolicy`] names one. There are four, by the tunable `zfs_vdev_mirror_policy`:
//!
//! | policy | choice |
//! |---|---|
//! | `offset` | by regions of 2 MiB of the address space; what OpenZFS did until 2013 |
//! | `pending` | fewest outstanding; the same of several equals for a while, so that neighbours merge; 2013 to 2016 |
//! | `locality` | fewest outstanding, plus a price for moving the head; OpenZFS since 2016 |
//! | `adaptive` | earliest expected completion, from the recent response times of the device; Cenote's own policy, and the default |
//!
//! **Choosing late.** Where a device has a head, `adaptive` chooses only the child that is best now; if that child has no room, the read
//! waits for all of the mirror's children together, and the first for which it is the best thing to do takes it
//! ([`queue`](crate::queue)).
//!
//! **A second read.** Under `adaptive`, when a response is later than nearly all responses to such reads, another child is asked as well
//! and the first good answer wins. Each read that is sent to a child adds a few hundredths of such an extra read to the child's budget,
//! so the number of extra reads is bounded. Under every policy a read that is out for `zfs_vdev_mirror_reroute_ms` is reported
//! and asked of another child without such a limit, and one that is out for `zfs_deadman_ziotime_ms` has failed.
//!
//! **Invariants.** A read whose caller was dropped continues until its device answers, and counts as outstanding until then. So a hanging
//! device looks busy, and the response time of a slow one is measured even if nobody waits for it. A policy only chooses among
//! candidates; retries, verification and error reports are the tree's.
//!
//! **Rejected.** A model for each kind of device, fitted to its answers: what matters is which child is sooner, and the ratio of
//! an answer's time to what a device of its kind should take says that with one number for each size. Histograms for the
//! second read's moment: mean and mean deviation, as in TCP, follow changes and cost two words.

mod adaptive;
mod historic;
mod load;
#[cfg(test)]
mod tests;

use std::fmt;

use cenote_taskq::Instant;

pub(crate) use adaptive::Adaptive;
pub(crate) use historic::{Locality, Offset, Pending};
pub use load::Load;
pub(crate) use load::{Flight, Outcome};

use crate::tunables::{Policy, Tunables};

/// A read that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Its first byte on the child, label area included.
    pub address_bytes: u64,
    /// Its length.
    pub size_bytes: u64,
    /// The time; zero where the tree has no clock.
    pub now: Instant,
}

/// One child that could serve a read.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its place among the mirror's children.
    pub position: usize,
    /// How it is doing.
    pub load: &'a Load,
}

/// The children that could serve a read, up to [`Candidates::MAX`] of them; never none when a policy is asked.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    list: [Option<Candidate<'a>>; Candidates::MAX],
    count: usize,
    replacing: bool,
}

impl<'a> Candidates<'a> {
    /// How many are looked at. Mirrors of more exist on paper; what is left over is asked when these have failed.
    pub(crate) const MAX: usize = 16;

    /// None yet. `replacing`: the vdev is a replacing or a spare.
    #[must_use]
    pub(crate) const fn new(replacing: bool) -> Self {
        Self { list: [None; Self::MAX], count: 0, replacing }
    }

    /// Adds one; `false` when there are enough.
    pub(crate) fn push(&mut self, candidate: Candidate<'a>) -> bool {
        debug_assert!(self.iter().all(|other| other.position != candidate.position), "a child is one candidate");
        let Some(slot) = self.list.get_mut(self.count) else { return false };
        *slot = Some(candidate);
        self.count += 1;
        true
    }

    /// How many there are.
    #[must_use]
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the vdev is a replacing or a spare: its first child is the one that had everything from the start.
    #[must_use]
    pub(crate) const fn is_replacing(&self) -> bool {
        self.replacing
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Candidate<'a>> + '_ {
        self.list.iter().flatten().copied()
    }

    /// The `index`-th.
    #[must_use]
    pub(crate) fn at(&self, index: usize) -> Option<Candidate<'a>> {
        self.list.get(index).copied().flatten()
    }

    /// Of those that cost least, the one that `among` says, given how many there are; an index into the candidates. `cost` is
    /// told a candidate's index as well.
    pub(crate) fn cheapest(
        &self,
        cost: impl Fn(usize, &Candidate<'a>) -> u64,
        among: impl FnOnce(usize) -> usize,
    ) -> usize {
        debug_assert!(self.count > 0, "a policy is asked where there are candidates");
        let mut costs = [u64::MAX; Self::MAX];
        let mut lowest = u64::MAX;
        for (index, (slot, candidate)) in costs.iter_mut().zip(self.iter()).enumerate() {
            *slot = cost(index, &candidate);
            lowest = lowest.min(*slot);
        }
        let equals = costs[..self.count].iter().filter(|cost| **cost == lowest).count();
        let pick = if equals <= 1 { 0 } else { among(equals) % equals };
        let mut found = (0..self.count).filter(|index| costs[*index] == lowest);
        let chosen = found.nth(pick).unwrap_or(0);
        debug_assert_eq!(costs[chosen], lowest, "the child that is chosen costs least");
        chosen
    }
}

/// Chooses among the children of a mirror.
pub trait ReadPolicy: Send + Sync + fmt::Debug {
    /// The word that names it.
    fn name(&self) -> &'static str;

    /// An index into `candidates`, of which there is at least one.
    fn choose(&self, ask: &Ask, candidates: &Candidates<'_>) -> usize;

    /// When a second child should be asked as well if `chosen` has not answered: nanoseconds after the read was sent, or
    /// `None` for never.
    fn second_after_ns(&self, ask: &Ask, chosen: &Load, others: &Candidates<'_>) -> Option<u64> {
        let _ = (ask, chosen, others);
        None
    }

    /// When an answer from this vdev may be expected, in nanoseconds, for a choice between copies on different vdevs.
    /// `None` where the policy does not know.
    fn expected_ns(&self, ask: &Ask, load: &Load) -> Option<u64> {
        let _ = (ask, load);
        None
    }
}

/// The policy that the tunables name.
#[must_use]
pub fn policy(tunables: &Tunables) -> Box<dyn ReadPolicy> {
    match tunables.zfs_vdev_mirror_policy {
        Policy::Offset => Box::new(Offset),
        Policy::Pending => Box::new(Pending::new(tunables)),
        Policy::Locality => Box::new(Locality::new(tunables)),
        Policy::Adaptive => Box::new(Adaptive::new(tunables)),
    }
}
