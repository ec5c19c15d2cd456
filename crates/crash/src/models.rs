//! Models of everything that is changed in a life.

use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_spa::TxgRecord;
use cenote_taskq::sync::Mutex;

use crate::load::Shared;
use crate::model::{Datasets, Files, Grown, Log, Range, RangeChange, State};
use crate::snapshots::{FAMILIES, Family, InUse, Verb, in_use};
use crate::stage::{FILE_SYSTEMS, RANGE_BYTES, RANGES, VOLUME_BLOCK_BYTES, WRITERS};

/// Everything that is changed, as of the last cut and since.
pub(crate) struct Models {
    pub(crate) files: Vec<Shared<Files>>,
    pub(crate) ranges: Vec<Shared<Range>>,
    pub(crate) datasets: Shared<Datasets>,
    pub(crate) grown: Shared<Grown>,
    pub(crate) families: Vec<Shared<Family>>,
}

pub(crate) fn shared<S: State>(base: S) -> Shared<S> {
    Arc::new(Mutex::new(Log::new(base)))
}

impl Models {
    pub(crate) fn fresh() -> Self {
        let range = |at| Range {
            offset_bytes: at * RANGE_BYTES,
            block_bytes: VOLUME_BLOCK_BYTES as usize,
            bytes: vec![0; RANGE_BYTES as usize],
        };
        Self {
            files: (0..FILE_SYSTEMS.len() * WRITERS).map(|_| shared(Files::default())).collect(),
            ranges: (0..RANGES).map(|at| shared(range(at))).collect(),
            datasets: shared(Datasets::default()),
            grown: shared(Grown::default()),
            families: (0..FAMILIES).map(|family| shared(Family::fresh(family))).collect(),
        }
    }

    /// The datasets in use of a family, with the logs of those who write them.
    pub(crate) fn in_use(&self, family: usize) -> Vec<InUse> {
        let files = |dataset: &str| {
            let at = FILE_SYSTEMS.iter().position(|name| *name == dataset)?;
            Some(self.files[at * WRITERS..(at + 1) * WRITERS].to_vec())
        };
        let one = |dataset: &&'static str| match files(dataset) {
            Some(files) => InUse { dataset, files, ranges: Vec::new() },
            None => InUse { dataset, files: Vec::new(), ranges: self.ranges.clone() },
        };
        in_use(family).iter().map(one).collect()
    }

    /// A change of the pool itself that a client was told is on disk, and that a pool as of this txg does not have. Promises to clients of
    /// datasets may stand in intent logs: see `replayed`.
    pub(crate) fn broken_promise(&self, there: Txg) -> Option<String> {
        let datasets = self.datasets.lock().broken_promise(there);
        let grown = || self.grown.lock().broken_promise(there);
        datasets.or_else(grown).or_else(|| self.families.iter().find_map(|log| log.lock().broken_promise(there)))
    }

    /// Checks that writes are counted as dirty: of each txg in which nothing was freed again, at least the largest.
    pub(crate) fn check_dirty(&self, records: &[TxgRecord]) -> Result<(), String> {
        for record in records {
            let mut largest = 0;
            let mut frees = false;
            for log in &self.ranges {
                log.lock().in_txg(record.txg).for_each(|change| match change {
                    RangeChange::Write { len, .. } => largest = largest.max(*len),
                    _ => frees = true,
                });
            }
            if !frees && record.dirty_bytes < largest as u64 {
                let (txg, dirty) = (record.txg, record.dirty_bytes);
                return Err(format!("txg {txg} counted {dirty} dirty bytes, and one write had {largest}"));
            }
        }
        Ok(())
    }

    pub(crate) fn promises(&self) -> u64 {
        let files: usize = self.files.iter().map(|log| log.lock().promises()).sum();
        let ranges: usize = self.ranges.iter().map(|log| log.lock().promises()).sum();
        let families: usize = self.families.iter().map(|log| log.lock().promises()).sum();
        (files + ranges + families + self.datasets.lock().promises() + self.grown.lock().promises()) as u64
    }

    pub(crate) fn changes(&self) -> u64 {
        let files: usize = self.files.iter().map(|log| log.lock().len()).sum();
        let ranges: usize = self.ranges.iter().map(|log| log.lock().len()).sum();
        (files + ranges + self.datasets.lock().len() + self.grown.lock().len()) as u64 + self.verbs().0
    }

    /// Verbs about snapshots, and changes of what they are about; how many of them are streams, and how many streams went on with a part.
    pub(crate) fn verbs(&self) -> (u64, u64, u64) {
        let (mut verbs, mut streams, mut resumed) = (0, 0, 0);
        for log in &self.families {
            for verb in log.lock().made() {
                verbs += 1;
                streams += u64::from(matches!(verb, Verb::Receive { .. } | Verb::ReceivePart { .. }));
                resumed += u64::from(matches!(verb, Verb::Receive { is_resumed: true, .. }));
            }
        }
        (verbs, streams, resumed)
    }

    /// Whether there are snapshots, or were.
    pub(crate) fn has_snapshots(&self) -> bool {
        self.families.iter().any(|log| log.lock().newest().next > 0)
    }
}
