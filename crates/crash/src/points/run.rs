//! A script's run, and the crash points of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use cenote_dmu::tx::SyncMode;
use cenote_format::ids::Txg;
use cenote_taskq::sim::disk::Image;
use cenote_taskq::sim::fingerprint::Fingerprints;
use cenote_taskq::sim::history::History;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Rng, Runtime};

use super::base::{Base, Opened, files, machine, open, range};
use super::cuts::{Cut, Wanted, each_cut};
use super::script::{Op, Script, Then};
use super::verdict::{Known, Replayed, judge, replayed};
use crate::life::run;
use crate::load::RangeWriter;
use crate::model::{FileChange, Files, Log, Range, RangeChange};
use crate::stage::words;

/// Of so many points one is verified as a whole, before and after its logs are replayed.
const VERIFIED_EVERY: u64 = 32;
/// Of so many of these, `zdb` judges one.
const ZDB_EVERY: u64 = 10;

/// Sums over points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Moments of runs.
    pub moments: u64,
    /// Points that were judged.
    pub points: u64,
    /// Openings: points of one run whose disks are equal share one.
    pub opened: u64,
    /// Of these, those that were verified as a whole.
    pub verified: u64,
    /// Of these, those that `zdb` judged.
    pub zdb: u64,
}

/// Results of replay for the disks that a run has met so far.
#[derive(Default)]
struct Seen {
    fingerprints: Fingerprints,
    replayed: HashMap<u64, Replayed>,
}

/// A run that has ended.
pub struct Run<'a> {
    base: &'a Base,
    script: Script,
    history: Arc<History>,
    files: Log<Files>,
    range: Log<Range>,
    /// Txgs that were reported synced, with the moments.
    synced: Vec<(usize, Txg)>,
    seed: u64,
}

impl<'a> Run<'a> {
    /// Runs a script.
    ///
    /// # Errors
    /// An operation fails, or the simulation stands still.
    pub fn of(base: &'a Base, script: Script, seed: u64) -> Result<Self, String> {
        let runtime = Runtime::simulated(seed);
        let machine = machine(&runtime, base.shape, &base.images);
        let handle = runtime.handle();
        let history = History::new();
        let files = Arc::new(Mutex::new(Log::new(files())));
        let range = Arc::new(Mutex::new(Log::new(range())));
        let synced = run(&runtime, async {
            let opened = open(&handle, &machine, base.shape, &files).await?;
            let volume = RangeWriter {
                volume: opened.volume.clone(),
                handle: handle.clone(),
                sync: SyncMode::Standard,
                log: range.clone(),
                rng: Rng::new(0),
                slowness: 1,
            };
            // The first change of a dataset waits for a txg, which begins its log.
            for op in warming() {
                step(&opened, &volume, &op).await?;
            }
            opened.files.zil.sync(None).await.map_err(words)?;
            opened.volume.flush().await.map_err(words)?;
            let first = opened.pool.sync().await.map_err(words)?;
            let (state, bytes) = (files.lock().newest(), range.lock().newest());
            *files.lock() = Log::timed(state, &history);
            *range.lock() = Log::timed(bytes, &history);
            machine.disks.iter().for_each(|disk| disk.record(&history));
            let mut synced = vec![(0, first)];
            for (op, then) in &script.0 {
                step(&opened, &volume, op).await?;
                wait(&opened, &volume, op, *then, &history, &mut synced).await?;
            }
            // The next txgs free the log's blocks.
            for _ in 0..2 {
                wait(&opened, &volume, &script.0[0].0, Then::Txg, &history, &mut synced).await?;
            }
            Ok(synced)
        });
        let synced = synced.map_err(|error| format!("{script:?}: {error}"))?;
        let (files, range) = (files.lock().clone(), range.lock().clone());
        Ok(Self { base, script, history, files, range, synced, seed })
    }

    /// Judges its points, or as many of them as are wanted.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn judge(&self, wanted: &Wanted, tally: &mut Tally) -> Result<(), String> {
        tally.moments += self.history.now() as u64;
        let (rng, mut seen) = (Rng::new(self.seed ^ 0x706f_696e_7473), Seen::default());
        each_cut(&self.history, wanted, rng, |cut| self.point(&cut, tally, wanted.has_zdb, &mut seen))
    }

    fn point(&self, cut: &Cut, tally: &mut Tally, has_zdb: bool, seen: &mut Seen) -> Result<(), String> {
        let Cut { now, crash, seed, images } = cut;
        let (now, seed) = (*now, *seed);
        let synced = self.synced.iter().rev().find(|(moment, _)| *moment <= now).map_or(Txg(0), |(_, txg)| *txg);
        let known = Known { files: self.files.known_at(now), range: self.range.known_at(now), synced };
        tally.points += 1;
        let verdict = if tally.points.is_multiple_of(VERIFIED_EVERY) {
            let is_for_zdb = has_zdb && tally.points.is_multiple_of(VERIFIED_EVERY * ZDB_EVERY);
            tally.verified += 1;
            tally.zdb += u64::from(is_for_zdb);
            judge(self.base.shape, images, &known, is_for_zdb, seed)
        } else {
            self.replayed(images, seed, tally, seen).and_then(|replayed| known.explain(replayed).map(drop))
        };
        verdict.map_err(|error| {
            let script = &self.script.0;
            format!("{}, {script:?}, cut at moment {now} ({crash:?}, {seed:#x}): {error}", self.base.shape.words)
        })
    }

    /// The result of replay for these disks: from an earlier point with equal disks, or by opening them.
    fn replayed<'b>(
        &self,
        images: &[Image],
        seed: u64,
        tally: &mut Tally,
        seen: &'b mut Seen,
    ) -> Result<&'b Replayed, String> {
        match seen.replayed.entry(seen.fingerprints.of(images)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                tally.opened += 1;
                Ok(new.insert(replayed(self.base.shape, images, seed)?))
            }
        }
    }
}

/// The operations of every run before its history begins.
fn warming() -> [Op; 2] {
    [
        Op::Files(FileChange::Write { name: (0, 3), offset: 0, len: 10, seed: 2 }),
        Op::Volume(RangeChange::Write { offset: 0, len: 100, seed: 7 }),
    ]
}

/// Makes an operation.
async fn step(opened: &Opened, volume: &RangeWriter, op: &Op) -> Result<(), String> {
    let is_made = match op {
        Op::Files(change) => opened.files.make_noted(change).await?,
        Op::Volume(change) => volume.make_noted(change, 0).await?,
    };
    if is_made { Ok(()) } else { Err(format!("{op:?} was refused")) }
}

/// Waits for what a client waits for, and notes the promise.
async fn wait(
    opened: &Opened,
    volume: &RangeWriter,
    op: &Op,
    then: Then,
    history: &History,
    synced: &mut Vec<(usize, Txg)>,
) -> Result<(), String> {
    let log = &opened.files.log;
    match (then, op) {
        (Then::Nothing, _) => {}
        (Then::Fsync | Then::FsyncAll, Op::Volume(_)) => {
            volume.volume.flush().await.map_err(words)?;
            volume.log.lock().promise_all();
        }
        (Then::FsyncAll, Op::Files(_)) => {
            opened.files.zil.sync(None).await.map_err(words)?;
            log.lock().promise_all();
        }
        (Then::Fsync, Op::Files(change)) => {
            let state = log.lock().newest();
            let subject = state.subject(change);
            let object = match change {
                FileChange::Write { name, .. }
                | FileChange::Truncate { name, .. }
                | FileChange::SetXattr { name, .. }
                | FileChange::RemoveXattr { name, .. } => opened.files.object(*name).await.map_err(words)?,
                // Of a directory.
                _ => opened.files.dirs[0],
            };
            opened.files.zil.sync(Some(object)).await.map_err(words)?;
            let mut log = log.lock();
            log.promise_about(|state, change| {
                let about = state.subject(change);
                about.is_none() || about == subject
            });
        }
        (Then::Txg | Then::TwoTxgs, _) => {
            for _ in 0..if then == Then::Txg { 1 } else { 2 } {
                let txg = opened.pool.sync().await.map_err(words)?;
                log.lock().promise_all();
                volume.log.lock().promise_all();
                synced.push((history.now(), txg));
            }
        }
    }
    Ok(())
}
