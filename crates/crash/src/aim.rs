//! Cuts that are aimed at a step of a commit.
//!
//! Most cuts come at a time that is drawn. A commit is short and the writing of labels is rare, so few of those cuts come amid it: a
//! bug that all four labels were written at once was found by one cut in thousands. A cut that is aimed comes just after a device was
//! given the n-th write of a label's configuration, the n-th write of an uberblock, or the n-th flush.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::label::{DeviceLayout, LABEL_BYTES, RING_OFFSET, VDEV_PHYS_OFFSET};
use cenote_taskq::sim::disk::{Fault, Request, RequestKind, SimDisk};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Rng, oneshot};

use crate::DISK_BYTES;

/// Longer than any request takes: what was asked when the aim was reached is then in the device's cache, or stable.
const AFTER_MAX: Duration = Duration::from_micros(900);

/// The event that a cut is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A write into a label's configuration.
    Label,
    /// A write into a label's ring.
    Uberblock,
    /// A flush.
    Flush,
}

impl Step {
    fn of(request: &Request) -> Option<Self> {
        match request.kind {
            RequestKind::Read => None,
            RequestKind::Flush => Some(Self::Flush),
            RequestKind::Write => {
                let layout = DeviceLayout::new(DISK_BYTES)?;
                let within = |label: &u64| (*label..*label + LABEL_BYTES as u64).contains(&request.offset_bytes);
                let label = layout.label_offsets().into_iter().find(within)?;
                match (request.offset_bytes - label) as usize {
                    RING_OFFSET.. => Some(Self::Uberblock),
                    VDEV_PHYS_OFFSET.. => Some(Self::Label),
                    _ => None,
                }
            }
        }
    }
}

/// An aim: the power goes shortly after a device was given the `count`-th request for this step.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    step: Step,
    count: u64,
    /// How long after.
    pub after: Duration,
}

impl Aim {
    /// Draws one.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        // Labels are written when a pool is opened and when a device begins or ceases to miss something, the others in each txg.
        let (step, count_max) = match rng.below(4) {
            0 => (Step::Uberblock, 64),
            1 => (Step::Flush, 64),
            _ => (Step::Label, 12),
        };
        let after = Duration::from_nanos(rng.below(AFTER_MAX.as_nanos() as u64));
        Self { step, count: 1 + rng.below(count_max), after }
    }

    /// Watches devices for it, in place of faults. The receiver has a value once it is reached.
    #[must_use]
    pub fn watch(self, disks: &[Arc<SimDisk>]) -> oneshot::Receiver<()> {
        let (sender, reached) = oneshot::channel();
        let left = Arc::new(Mutex::new((self.count, Some(sender))));
        for disk in disks {
            let left = Arc::clone(&left);
            disk.set_faults(move |request, _| {
                if Step::of(request) == Some(self.step) {
                    let mut left = left.lock();
                    left.0 = left.0.saturating_sub(1);
                    if left.0 == 0
                        && let Some(sender) = left.1.take()
                    {
                        // Nobody waits any more if the power went for another reason.
                        let _ = sender.send(());
                    }
                }
                Fault::None
            });
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_by_place_and_kind() {
        let request = |kind, offset_bytes| Request { kind, offset_bytes, size_bytes: 4096, sequence: 0 };
        let end = DISK_BYTES - 2 * LABEL_BYTES as u64;
        for label in [0, LABEL_BYTES as u64, end, end + LABEL_BYTES as u64] {
            let write = |at: usize| Step::of(&request(RequestKind::Write, label + at as u64));
            assert_eq!(write(0), None);
            assert_eq!(write(VDEV_PHYS_OFFSET), Some(Step::Label));
            assert_eq!(write(RING_OFFSET), Some(Step::Uberblock));
            assert_eq!(write(LABEL_BYTES - 4096), Some(Step::Uberblock));
        }
        assert_eq!(Step::of(&request(RequestKind::Write, 4 << 20)), None);
        assert_eq!(Step::of(&request(RequestKind::Read, VDEV_PHYS_OFFSET as u64)), None);
        assert_eq!(Step::of(&request(RequestKind::Flush, 0)), Some(Step::Flush));
    }
}
