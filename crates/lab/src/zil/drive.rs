//! Solid-state drives as Linux has them written: one flush at a time.
//!
//! ```text
//!   write ──► [ held while a flush is under way or waits, of a drive that does not queue flushes ] ──► cells and interface (`Flash`)
//!   flush ──► [ waits for the flush before; all that wait share the next ] ──► [ of such a drive: until it is idle ] ──► done
//! ```
//! The block layer sends one flush and gathers those that come meanwhile; a SATA drive has no queued flush, so it does nothing else
//! beside. The simulation's model of cells alone has neither: there flushes pass one another.

use std::time::Duration;

use cenote_taskq::Instant;
use cenote_taskq::sim::disk::RequestKind;
use cenote_taskq::sim::model::{Asked, DeviceModel, Done, Flash, FlashOptions};

/// A kind of drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drive {
    pub(super) name: &'static str,
    cells: FlashOptions,
    /// Other requests go on beside a flush.
    queues_flushes: bool,
}

impl Drive {
    /// A SATA drive for servers of the document's time, whose cache outlives a power cut: it has nothing to do for a flush but to answer.
    /// Assumed are 57 us for a write of 4 KiB alone and 20 us for the answer: 13 000 synchronous writes a second of one writer. Data sheets
    /// of such drives have 50 to 65 us for a write.
    pub(super) const PROTECTED: Self = Self {
        name: "SATA, protected cache",
        cells: FlashOptions {
            write: Duration::from_micros(45),
            flush: Duration::from_micros(20),
            ..FlashOptions::sata()
        },
        queues_flushes: false,
    };
    /// The simulation's SATA drive: a write is 37 us, a flush 500 us.
    pub(super) const VOLATILE: Self =
        Self { name: "SATA, volatile cache", cells: FlashOptions::sata(), queues_flushes: false };
    /// The simulation's NVMe drive: a write is 11 us, a flush 20 us.
    pub(super) const NVME: Self = Self { name: "NVMe", cells: FlashOptions::nvme(), queues_flushes: true };

    pub(super) fn model(self) -> OneFlush {
        OneFlush {
            cells: Flash::new(self.cells),
            queues_flushes: self.queues_flushes,
            under_way: 0,
            flushing: Vec::new(),
            waiting: Vec::new(),
            held: Vec::new(),
        }
    }
}

/// The model; see above.
#[derive(Debug)]
pub(super) struct OneFlush {
    cells: Flash,
    queues_flushes: bool,
    /// Reads and writes under way.
    under_way: usize,
    /// Flushes that the one under way stands for, the first of which names it.
    flushing: Vec<u64>,
    /// Flushes for the next.
    waiting: Vec<u64>,
    held: Vec<Asked>,
}

impl OneFlush {
    fn transfer(&mut self, now: Instant, asked: Asked) {
        self.under_way += 1;
        self.cells.submit(now, asked);
    }

    fn flush_next(&mut self, now: Instant) {
        if self.waiting.is_empty() || !self.flushing.is_empty() || !(self.queues_flushes || self.under_way == 0) {
            return;
        }
        self.flushing = std::mem::take(&mut self.waiting);
        let asked = Asked { id: self.flushing[0], kind: RequestKind::Flush, offset_bytes: 0, size_bytes: 0 };
        self.cells.submit(now, asked);
    }
}

impl DeviceModel for OneFlush {
    fn submit(&mut self, now: Instant, asked: Asked) {
        let has_flush = !self.flushing.is_empty() || !self.waiting.is_empty();
        match asked.kind {
            RequestKind::Flush => self.waiting.push(asked.id),
            _ if has_flush && !self.queues_flushes => self.held.push(asked),
            _ => self.transfer(now, asked),
        }
        self.flush_next(now);
    }

    fn next_event(&self) -> Option<Instant> {
        self.cells.next_event()
    }

    fn advance(&mut self, now: Instant, done: &mut Vec<Done>) {
        while let Some(at) = self.cells.next_event().filter(|at| *at <= now) {
            let mut ended = Vec::new();
            self.cells.advance(at, &mut ended);
            for one in ended {
                if self.flushing.first() != Some(&one.id) {
                    self.under_way -= 1;
                    done.push(one);
                    continue;
                }
                done.extend(self.flushing.drain(..).map(|id| Done { id, at: one.at }));
                for asked in std::mem::take(&mut self.held) {
                    self.transfer(at, asked);
                }
            }
            self.flush_next(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// When each of these is done, in microseconds, from when they come.
    fn ends(drive: Drive, asked: &[(u64, RequestKind)]) -> Vec<u64> {
        let (mut model, start, mut done) = (drive.model(), Instant::default(), Vec::new());
        for (id, (at_us, kind)) in asked.iter().enumerate() {
            let now = start + us(*at_us);
            model.advance(now, &mut done);
            model.submit(now, Asked { id: id as u64, kind: *kind, offset_bytes: 0, size_bytes: 0 });
        }
        model.advance(start + us(1_000_000), &mut done);
        assert_eq!(model.next_event(), None, "nothing is left behind");
        done.sort_by_key(|one| one.id);
        done.iter().map(|one| (one.at.as_ns() + 500) / 1000).collect()
    }

    const WRITE: RequestKind = RequestKind::Write;
    const FLUSH: RequestKind = RequestKind::Flush;

    #[test]
    fn flushes_that_come_during_one_share_the_next() {
        assert_eq!(ends(Drive::VOLATILE, &[(0, FLUSH), (100, FLUSH), (200, FLUSH)]), [500, 1000, 1000]);
    }

    #[test]
    fn a_drive_without_queued_flushes_does_nothing_else_beside() {
        // 25 + 4.85 us for a write without bytes.
        let asked = [(0, WRITE), (10, FLUSH), (20, WRITE)];
        assert_eq!(ends(Drive::VOLATILE, &asked), [30, 530, 560]);
        let queued = Drive { queues_flushes: true, ..Drive::VOLATILE };
        assert_eq!(ends(queued, &asked), [30, 510, 50]);
    }
}
