//! A job from its verb to its end, and the crash points of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Txg;
use cenote_taskq::sim::history::History;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Rng, Runtime};

use super::super::base::range;
use super::super::cuts::{Cut, Wanted, each_cut};
use super::super::verdict::Known;
use super::alike::Alike;
use super::case::Case;
use super::digest::Digest;
use super::drive::{Driver, ENDED};
use super::made::files;
use super::verdict::{Ended, ReflowState, ended, without};
use crate::life::run;
use crate::model::{FileChange, Files, Log, Range};
use crate::stage::words;

/// Rounds of the driver and the client at most.
const ROUNDS_MAX: u32 = 4000;
/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(3);
/// Of so many rounds one ends a txg, as long as the client has something to do; later fewer do.
const TXG_EVERY: u32 = 4;
const TXG_EVERY_LATER: u32 = 32;
/// Of so many contents of disks `zdb` judges one.
const ZDB_EVERY: u64 = 16;
/// Of so many contents of disks of an expansion one is opened without each disk, beside the first ones of each state.
const WITHOUT_EVERY: u64 = 256;

/// Sums over points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTally {
    /// Moments of runs.
    pub moments: u64,
    /// Points that were judged.
    pub points: u64,
    /// Contents of disks that were opened, brought to the end, and verified.
    pub opened: u64,
    /// Of these, those that `zdb` judged.
    pub zdb: u64,
    /// Openings without a disk.
    pub without: u64,
    /// Contents of disks by the stage at which the job was found.
    pub stages: BTreeMap<u32, u64>,
}

impl fmt::Display for JobTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moments, points, opened, zdb, without, stages } = self;
        write!(f, "{moments} moments, {points} points, {opened} contents of disks opened (by stage: {stages:?}), ")?;
        write!(f, "{without} without a disk, {zdb} by zdb")
    }
}

#[derive(Default)]
struct Seen {
    ended: Alike<Ended>,
    reflow: BTreeSet<ReflowState>,
}

/// A job that has ended.
pub struct JobRun {
    case: &'static Case,
    history: Arc<History>,
    files: Log<Files>,
    range: Log<Range>,
    /// Txgs that were reported synced, with the moments.
    synced: Vec<(usize, Txg)>,
    /// Stages that verbs have led to, with the moments of their answers.
    stages: Vec<(usize, u32)>,
    /// The words of the disks at the end.
    digests: Vec<Digest>,
    seed: u64,
}

/// The work of the client meanwhile, and whether it waits for that.
fn script() -> Vec<(FileChange, bool)> {
    use FileChange::{Create, Rename, Truncate, Unlink, Write};
    vec![
        (Write { name: (0, 0), offset: 1000, len: 20_000, seed: 22 }, true),
        (Create((0, 5)), false),
        (Write { name: (0, 5), offset: 0, len: 50_000, seed: 23 }, false),
        (Write { name: (0, 4), offset: 40_000, len: 100_000, seed: 24 }, true),
        (Rename { from: (0, 5), to: (1, 5) }, true),
        (Truncate { name: (1, 4), size: 100_000 }, false),
        (Write { name: (1, 4), offset: 90_000, len: 120_000, seed: 27 }, true),
        (Unlink((0, 3)), false),
        (Write { name: (1, 5), offset: 20_000, len: 40_000, seed: 28 }, true),
    ]
}

impl JobRun {
    /// Makes the pool, and runs the job.
    ///
    /// # Errors
    /// That failed.
    pub fn of(case: &'static Case, seed: u64) -> Result<Self, String> {
        let images = case.base().map_err(|error| format!("{}: making the pool: {error}", case.name))?;
        let runtime = Runtime::simulated(seed);
        let machine = case.machine(&runtime, &images);
        let handle = runtime.handle();
        let history = History::new();
        let log = Arc::new(Mutex::new(Log::new(files(case.work))));
        let ran = run(&runtime, async {
            let opened = case.open(&handle, &machine, &log).await?;
            let (pool, files) = (&opened.pool, &opened.files);
            // The first change of a dataset waits for a txg, which begins its log.
            files.make_noted(&FileChange::Write { name: (0, 3), offset: 0, len: 10, seed: 2 }).await?;
            files.zil.sync(None).await.map_err(words)?;
            let first = pool.sync().await.map_err(words)?;
            let state = log.lock().newest();
            *log.lock() = Log::timed(state, &history);
            machine.disks.iter().for_each(|disk| disk.record(&history));
            let (mut synced, mut stages) = (vec![(0, first)], Vec::new());
            let driver = Driver { handle: &handle, machine: &machine, case, pool };
            let mut script = script().into_iter();
            for round in 0..ROUNDS_MAX {
                let stage = driver.stage().await?;
                if driver.act(stage).await.map_err(|error| format!("the verb of stage {stage}: {error}"))? {
                    stages.push((history.now(), stage + 1));
                }
                let next = script.next();
                let is_busy = next.is_some();
                if let Some((change, is_awaited)) = next {
                    files.make_noted(&change).await?;
                    if is_awaited {
                        files.zil.sync(None).await.map_err(words)?;
                        log.lock().promise_all();
                    }
                }
                if stage == ENDED && !is_busy {
                    break;
                }
                if round == ROUNDS_MAX - 1 {
                    return Err(format!("it does not end: stage {stage}, {:?}", pool.jobs()));
                }
                handle.sleep(ROUND).await;
                let every = if is_busy { TXG_EVERY } else { TXG_EVERY_LATER };
                if round % every == every - 1 {
                    let txg = pool.sync().await.map_err(words)?;
                    log.lock().promise_all();
                    synced.push((history.now(), txg));
                }
            }
            for _ in 0..2 {
                let txg = pool.sync().await.map_err(words)?;
                log.lock().promise_all();
                synced.push((history.now(), txg));
            }
            Ok((synced, stages))
        });
        let (synced, stages) = ran.map_err(|error| format!("{}: {error}", case.name))?;
        let never_cut = ended(case, &machine.images(), crate::zdb::is_there(), seed);
        let (never_cut, _) = never_cut.map_err(|error| format!("{}, never cut: {error}", case.name))?;
        assert_eq!(never_cut.stage, ENDED, "the job has ended");
        let files = log.lock().clone();
        Ok(Self { case, history, files, range: Log::new(range()), synced, stages, digests: never_cut.digests, seed })
    }

    /// Judges its points, or as many of them as are wanted.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn judge(&self, wanted: &Wanted, tally: &mut JobTally) -> Result<(), String> {
        tally.moments += self.history.now() as u64;
        let (rng, mut seen) = (Rng::new(self.seed ^ 0x6a6f_6273), Seen::default());
        each_cut(&self.history, wanted, rng, |cut| self.point(cut, tally, wanted.has_zdb, &mut seen))
    }

    fn point(&self, cut: Cut, tally: &mut JobTally, has_zdb: bool, seen: &mut Seen) -> Result<(), String> {
        let Cut { now, crash, seed, images } = cut;
        tally.points += 1;
        let failed = |error: String| {
            format!("{}, cut at moment {now} of {} ({crash:?}, {seed:#x}): {error}", self.case.name, self.history.now())
        };
        if let Some(ended) = seen.ended.find(&images) {
            return self.explain(ended, now).map_err(failed);
        }
        tally.opened += 1;
        let is_for_zdb = has_zdb && tally.opened.is_multiple_of(ZDB_EVERY);
        tally.zdb += u64::from(is_for_zdb);
        let (ended, touched) = ended(self.case, &images, is_for_zdb, seed).map_err(failed)?;
        let ended = seen.ended.keep(images.clone(), touched, ended);
        *tally.stages.entry(ended.stage).or_default() += 1;
        self.compare(&ended.digests).map_err(|error| failed(format!("found at stage {}: {error}", ended.stage)))?;
        self.explain(ended, now).map_err(failed)?;
        let Some(reflow) = ended.reflow else { return Ok(()) };
        if seen.reflow.insert(reflow) || tally.opened.is_multiple_of(WITHOUT_EVERY) {
            for disk in 0..images.len() {
                tally.without += 1;
                let left = without(self.case, &images, disk, seed);
                let back = left.and_then(|left| super::verdict::ended(self.case, &left, false, seed));
                let judged = back.and_then(|(back, _)| self.compare(&back.digests));
                judged.map_err(|error| failed(format!("{reflow:?} without disk {disk}: {error}")))?;
            }
        }
        Ok(())
    }

    /// The pool that was found keeps the promises that had been made by a moment.
    fn explain(&self, ended: &Ended, now: usize) -> Result<(), String> {
        let before = |moment: &usize| *moment <= now;
        let synced = self.synced.iter().rev().find(|(moment, _)| before(moment)).map_or(Txg(0), |(_, txg)| *txg);
        let known = Known { files: self.files.known_at(now), range: self.range.clone(), synced };
        known.explain(&ended.replayed)?;
        let answered = self.stages.iter().rev().find(|(moment, _)| before(moment)).map_or(0, |(_, stage)| *stage);
        match ended.stage < answered {
            true => Err(format!("a verb had led to stage {answered}, and {} is there", ended.stage)),
            false => Ok(()),
        }
    }

    /// The disks say at the end the same as those of the run that was never cut.
    fn compare(&self, digests: &[Digest]) -> Result<(), String> {
        let differing = digests.iter().zip(&self.digests).find_map(|(there, wanted)| there.difference(wanted));
        differing.map_or(Ok(()), |what| {
            Err(format!("at the end the disks do not say what they say of a run that was never cut: {what}"))
        })
    }
}
