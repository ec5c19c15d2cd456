//! Blocks of a scan that are gathered, and read in the order of their places.
//!
//! # Theory
//!
//! **Need.** A pool that was written in another order than its files are in, or whose files were changed for years, has neighbours of the walk far apart. A
//! device with a head then seeks for each block.
//!
//! **Life of a block.** the walk comes to it, and does not read it → gathered → memory is full, time is up, or the walk is at its end → all that was
//! gathered is read: on each top-level vdev by itself, upwards, so that the devices' queues join what lies together → the place is reported.
//!
//! **Views.** What was gathered is of the view in which the walk came to it, which is kept until it is read. A pool that is short of space gives it up; then what was
//! gathered is nothing, and the walk goes on from the last place that was reported, with less to gather.
//!
//! **Invariants.** 1. A place is reported only when all that was gathered before it was read. 2. What is gathered is bounded. 3. Blocks are the same ones, each once, as
//! without sorting.
//!
//! **Rejected.** *To read while more is gathered*, as OpenZFS does: the walk reads metadata at the same time, which lies elsewhere. *To read a part of what was gathered
//! and go on*: the place could not be written down.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::crypt::DatasetKey;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::VdevId;
use cenote_spa::{ScanOrder, ScanReport, ScanSeat, View};
use cenote_taskq::{BoxFuture, Class, Handle, Instant, JoinError, Unordered};
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Bookmark, ReadContext};

use super::count;
use super::reads::ScanReads;
use crate::visit::{Item, Visited};

/// Blocks of a vdev that are read at once at most.
const READS_MAX: usize = 64;
/// Bytes of them at most (`zfs_scan_vdev_limit`).
const READ_BYTES_MAX: u64 = 16 << 20;
/// Blocks after which it is looked whether they are wanted still.
const LOOK_AFTER: usize = 256;
/// After a view was given up, one part in so many is gathered.
const LESS: usize = 8;

struct Gathered {
    bp: Blkptr,
    bookmark: Bookmark,
    key: Option<Arc<DatasetKey>>,
    /// The number of its view.
    view: usize,
}

/// The blocks that were gathered.
pub(super) struct Sorter {
    blocks: Vec<Gathered>,
    /// Those of them that the walk has done its steps with.
    kept: usize,
    views: Vec<View>,
    bytes: u64,
    /// Blocks that are gathered at most, and at most if no view is given up.
    max: usize,
    most: usize,
    order: ScanOrder,
    since: Option<Instant>,
}

impl Sorter {
    pub(super) fn new(order: ScanOrder) -> Self {
        let most = usize::try_from(order.memory_bytes).unwrap_or(usize::MAX) / size_of::<Gathered>();
        Self { blocks: Vec::new(), kept: 0, views: Vec::new(), bytes: 0, max: most, most, order, since: None }
    }

    /// Whether it sorts at all.
    pub(super) const fn sorts(&self) -> bool {
        self.most > 0
    }

    /// Bytes of the blocks.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gathers a block.
    pub(super) fn push(&mut self, view: &View, item: &Item, now: Instant) {
        assert!(!item.bp.is_hole() && !item.bp.is_embedded(), "a block that is gathered lies somewhere");
        // A view of the same txg keeps the same blocks.
        if self.views.last().is_none_or(|last| last.txg() != view.txg()) {
            self.views.push(view.clone());
        }
        self.since.get_or_insert(now);
        self.bytes += item.bp.asize_bytes();
        let (bp, bookmark, key) = (item.bp, item.bookmark, item.origin.key.clone());
        self.blocks.push(Gathered { bp, bookmark, key, view: self.views.len() - 1 });
    }

    /// The walk has ended a step: what was gathered stays.
    pub(super) fn keep(&mut self) {
        self.kept = self.blocks.len();
    }

    /// The walk takes back what came since its last step.
    pub(super) fn forget(&mut self) {
        assert!(self.kept <= self.blocks.len(), "what is kept was gathered");
        let gone: u64 = self.blocks.drain(self.kept..).map(|block| block.bp.asize_bytes()).sum();
        self.bytes -= gone;
    }

    /// Whether it is time to read.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let is_late = self.since.is_some_and(|since| now - since >= self.order.patience);
        self.blocks.is_empty() || self.blocks.len() >= self.max || is_late
    }

    /// Lets go of all, since the place before it is where the walk goes on. `less`: with less to gather.
    pub(super) fn clear(&mut self, less: bool) {
        self.blocks = Vec::new();
        (self.kept, self.bytes, self.since) = (0, 0, None);
        self.views.clear();
        self.max = if less { self.max / LESS } else { self.max.saturating_mul(2).max(1).min(self.most) };
    }

    /// Reads all that was gathered; what came of it, and whether that is all: a view may be given up meanwhile, or something be refused to be written.
    pub(super) async fn read(
        &mut self,
        handle: &Handle,
        (seat, round): (&ScanSeat, u64),
        reads: &Arc<ScanReads>,
    ) -> (ScanReport, bool) {
        self.kept = 0;
        let mut of_vdevs: BTreeMap<VdevId, Vec<Gathered>> = BTreeMap::new();
        for block in std::mem::take(&mut self.blocks) {
            let vdev = block.bp.dva(0).map_or(VdevId(0), |dva| dva.vdev);
            of_vdevs.entry(vdev).or_default().push(block);
        }
        let views: Arc<[View]> = std::mem::take(&mut self.views).into();
        let mut vdevs = Unordered::new();
        for (_, mut blocks) in of_vdevs {
            blocks.sort_by_key(|block| block.bp.dva(0).map_or(0, |dva| dva.offset_bytes));
            let of = OfVdev {
                handle: handle.clone(),
                seat: seat.clone(),
                round,
                reads: reads.clone(),
                views: views.clone(),
            };
            vdevs.push(handle.spawn(Class::Background, of.read(blocks)));
        }
        let (mut all, mut is_whole) = (ScanReport::default(), true);
        while let Some(read) = vdevs.next().await {
            match read {
                Ok((report, is_all)) => {
                    all.add(report);
                    is_whole &= is_all;
                }
                Err(_) => is_whole = false,
            }
        }
        is_whole &= views.iter().all(|view| view.check().is_ok());
        (all, is_whole)
    }
}

/// The reading of what was gathered of one vdev.
struct OfVdev {
    handle: Handle,
    seat: ScanSeat,
    round: u64,
    reads: Arc<ScanReads>,
    views: Arc<[View]>,
}

type Reading = BoxFuture<'static, (u64, Result<Visited, JoinError>)>;

impl OfVdev {
    async fn read(self, blocks: Vec<Gathered>) -> (ScanReport, bool) {
        let mut flying: Unordered<Reading> = Unordered::new();
        let (mut bytes_in_flight, mut told, mut is_whole) = (0, ScanReport::default(), true);
        let mut land = |read: Option<(u64, Result<Visited, JoinError>)>, bytes_in_flight: &mut u64| {
            let Some((bytes, read)) = read else { return };
            *bytes_in_flight -= bytes;
            let processed_bytes = read.as_ref().map_or(0, |visited| visited.scanned.processed_bytes);
            self.seat.reads(self.round, bytes, processed_bytes);
            match read {
                Ok(visited) => {
                    is_whole &= !visited.is_refused;
                    count(&mut told, visited);
                }
                Err(_) => is_whole = false,
            }
        };
        let mut is_left = false;
        for (index, block) in blocks.into_iter().enumerate() {
            if index % LOOK_AFTER == 0 && !self.is_wanted() {
                is_left = true;
                break;
            }
            let bytes = block.bp.asize_bytes();
            while !flying.is_empty() && (flying.len() >= READS_MAX || bytes_in_flight + bytes > READ_BYTES_MAX) {
                land(flying.next().await, &mut bytes_in_flight);
            }
            bytes_in_flight += bytes;
            let (view, reads) = (self.views[block.view].clone(), self.reads.clone());
            let join = self.handle.spawn(Class::Background, async move {
                let Gathered { bp, bookmark, key, .. } = block;
                let context = ReadContext::new(bookmark, key.as_deref()).of_class(QueueClass::Scrub);
                reads.visit_block(&view, &bp, context).await
            });
            flying.push(Box::pin(async move { (bytes, join.await) }));
        }
        while !flying.is_empty() {
            land(flying.next().await, &mut bytes_in_flight);
        }
        assert_eq!(bytes_in_flight, 0, "all reads have landed");
        (told, is_whole && !is_left)
    }

    fn is_wanted(&self) -> bool {
        self.seat.is_wanted(self.round) && self.views.iter().all(|view| view.check().is_ok())
    }
}
