//! The verdict on a crash point of a job.

use std::sync::Arc;
use std::time::Duration;

use cenote_scan::{VerifyOptions, verify};
use cenote_sim::Machine;
use cenote_spa::{FoundPool, import};
use cenote_taskq::sim::disk::{Image, Touched};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Handle, Runtime};
use cenote_vdev::layout::raidz::Reflow;

use super::super::base::{Opened, range};
use super::super::verdict::Replayed;
use super::case::{Case, Work, found_as};
use super::digest::Digest;
use super::drive::{COPY, Driver, ENDED};
use crate::judge::{first_difference, read_files};
use crate::life::run;
use crate::model::{FileChange, Files, Log};
use crate::stage::words;

/// Looks at a job until it has to have ended.
const LOOKS_MAX: u32 = 4000;
/// The time between two looks: at first, and after the first looks.
const SOON: Duration = Duration::from_millis(20);
const SOON_LOOKS: u32 = 400;
const LATER: Duration = Duration::from_secs(2);
/// Of so many looks one has a txg written.
const TXG_EVERY: u32 = 8;
/// Txgs after the end of the job, in which what was freed becomes free.
const LAST_TXGS: u32 = 3;

/// A pool that was opened after a cut, and has come to the end of its job.
pub(super) struct Ended {
    /// As clients found it.
    pub(super) replayed: Replayed,
    /// The stage of the job that was found.
    pub(super) stage: u32,
    /// The words of the disks at the end.
    pub(super) digests: Vec<Digest>,
    /// Where an expansion stood.
    pub(super) reflow: Option<ReflowState>,
}

/// The states of an expansion that are told apart: stage, whether the scratch area is valid, and whether something has moved.
pub(super) type ReflowState = (u32, bool, bool);

/// Does something with disks of this content; what came of it, and the disks after it. What it depends on is noted in `touched`, disk by disk.
fn on<T>(
    case: &Case,
    images: &[Image],
    touched: &mut Vec<Touched>,
    seed: u64,
    work: impl AsyncFnOnce(&Handle, &Machine) -> Result<T, String>,
) -> Result<(T, Vec<Image>), String> {
    let runtime = Runtime::simulated(seed);
    let machine = case.machine(&runtime, images);
    let handle = runtime.handle();
    touched.resize_with(machine.disks.len(), Touched::default);
    machine.disks.iter().zip(touched.drain(..)).for_each(|(disk, before)| disk.note_touched(before));
    let done = run(&runtime, work(&handle, &machine))?;
    touched.extend(machine.disks.iter().filter_map(|disk| disk.take_touched()));
    Ok((done, machine.images()))
}

/// Opens the pool that a cut has left, brings its job to the end, and judges what is there then. The part of the disks that this depends on.
pub(super) fn ended(case: &Case, images: &[Image], has_zdb: bool, seed: u64) -> Result<(Ended, Vec<Touched>), String> {
    let mut touched = Vec::new();
    let finished = on(case, images, &mut touched, seed, async |handle, machine| finish(handle, machine, case).await);
    let (mut ended, after) = finished?;
    let judged = on(case, &after, &mut touched, seed ^ 1, async |handle, machine| {
        let mut digests = vec![exported(handle, machine, case, "written").await?];
        if case.work == Work::Split {
            digests.push(exported(handle, machine, case, COPY).await.map_err(|error| format!("{COPY}: {error}"))?);
        }
        Ok(digests)
    });
    ended.digests = judged.map_err(|error| format!("found at stage {}, at the end: {error}", ended.stage))?.0;
    if has_zdb {
        let names: &[&str] = if case.work == Work::Split { &["written", COPY] } else { &["written"] };
        for name in names {
            cenote_sim::zdb(name, &after, case.disk_bytes).map_err(|error| format!("at the end: {error:#}"))?;
        }
    }
    Ok((ended, touched))
}

/// The reflow word of the newest uberblock.
fn reflow_of(found: &FoundPool) -> Option<Reflow> {
    let uberblocks = found.leaves.values().flat_map(|leaf| &leaf.uberblocks);
    let newest = uberblocks.max_by_key(|copy| copy.uberblock.txg)?;
    Some(Reflow::of(&newest.uberblock))
}

/// No label has the further child of a raidz without the mark that the vdev is being expanded, or was.
fn check_labels(found: &FoundPool, case: &Case) -> Result<(), String> {
    for leaf in found.leaves.values() {
        let Some(top) = leaf.config.list("vdev_tree") else { continue };
        let is_wider = top.lists("children").is_some_and(|children| children.len() > case.new_disk());
        if is_wider && !top.has("raidz_expanding") && !top.has("raidz_expand_txgs") {
            let (path, txg) = (leaf.disk.path(), leaf.txg);
            return Err(format!(
                "the label of {path} of txg {txg} has a further child, and not that the vdev is expanded"
            ));
        }
    }
    Ok(())
}

async fn finish(handle: &Handle, machine: &Machine, case: &Case) -> Result<Ended, String> {
    let found = found_as(handle, machine, "written").await?;
    let newest = found.leaves.values().flat_map(|leaf| &leaf.uberblocks).map(|copy| copy.uberblock.txg).max();
    let txg = newest.ok_or("no uberblock")?;
    let reflow = reflow_of(&found).filter(|_| case.work == Work::Expansion);
    if reflow.is_some() {
        check_labels(&found, case)?;
    }
    let log = Arc::new(Mutex::new(Log::new(Files::default())));
    let opened = case.open_found(handle, found, &log).await?;
    let driver = Driver { handle, machine, case, pool: &opened.pool };
    let stage = driver.stage().await?;
    let at_stage = |error: String| format!("found at stage {stage}: {error}");
    let files = read_files(&opened.files.fs, 0, &mut Default::default()).await.map_err(at_stage)?;
    let empty = range();
    let bytes = opened.volume.volume().read(empty.offset_bytes, empty.bytes.len()).await.map_err(words)?;
    go_on(&driver).await.map_err(at_stage)?;
    let there = read_files(&opened.files.fs, 0, &mut Default::default()).await.map_err(at_stage)?;
    if there != files {
        return Err(at_stage(format!("files change with the job: {}", first_difference(&files, &there))));
    }
    // It is written like any other.
    opened.files.make_noted(&FileChange::Write { name: (0, 4), offset: 0, len: 50_000, seed: 3 }).await?;
    for _ in 0..LAST_TXGS {
        opened.pool.sync().await.map_err(words)?;
    }
    // A mapping may be condensed once more.
    go_on(&driver).await.map_err(at_stage)?;
    if driver.lacks() {
        return Err(at_stage("a leaf lacks something after the end".to_owned()));
    }
    let Opened { pool, files: writer, volume } = opened;
    drop((writer, volume));
    pool.export().await.map_err(words)?;
    let reflow = reflow.map(|reflow| (stage, reflow.scratch_valid, reflow.synced_bytes > 0));
    Ok(Ended { replayed: Replayed { txg, files, range: bytes.to_vec() }, stage, digests: Vec::new(), reflow })
}

/// Brings the job to its end.
async fn go_on(driver: &Driver<'_>) -> Result<(), String> {
    for look in 0..LOOKS_MAX {
        let stage = driver.stage().await?;
        if stage == ENDED {
            return Ok(());
        }
        driver.act(stage).await.map_err(|error| format!("the verb of stage {stage}: {error}"))?;
        driver.handle.sleep(if look < SOON_LOOKS { SOON } else { LATER }).await;
        if look % TXG_EVERY == TXG_EVERY - 1 {
            driver.pool.sync().await.map_err(words)?;
        }
    }
    let (stage, jobs, scan) = (driver.stage().await?, driver.pool.jobs(), driver.pool.scan().await.map_err(words)?);
    Err(format!("it does not end: stage {stage}, {jobs:?}, {scan:?}"))
}

/// An exported pool is whole.
async fn exported(handle: &Handle, machine: &Machine, case: &Case, name: &str) -> Result<Digest, String> {
    let found = found_as(handle, machine, name).await?;
    let pool = import(handle, found, &case.import_options()).await;
    let pool = pool.map_err(|error| format!("not imported: {error}"))?;
    let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
    if !report.is_clean() {
        return Err(report.to_string());
    }
    pool.audit().await.map_err(words)?;
    Digest::of(&pool).await
}

/// The pool that a cut has left, without one of its disks: it is whole, and can be written. The disks after that.
pub(super) fn without(case: &Case, images: &[Image], disk: usize, seed: u64) -> Result<Vec<Image>, String> {
    let done = on(case, images, &mut Vec::new(), seed, async |handle, machine| {
        let mut left = machine.part(0..machine.disks.len());
        left.disks.remove(disk);
        left.paths.remove(disk);
        let found = found_as(handle, &left, "written").await?;
        let pool = import(handle, found, &case.import_options()).await;
        let pool = pool.map_err(|error| format!("not imported: {error}"))?;
        let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
        if report.error_count > 0 || report.misuse_count > 0 || report.leaked_bytes > 0 {
            return Err(report.to_string());
        }
        drop(pool);
        let log = Arc::new(Mutex::new(Log::new(Files::default())));
        let Opened { pool, files, volume } = case.open(handle, &left, &log).await?;
        for at in 0..3 {
            let change = FileChange::Write { name: (0, 4), offset: at * 100_000, len: 60_000, seed: 8 };
            files.make_noted(&change).await?;
            pool.sync().await.map_err(words)?;
        }
        drop((files, volume));
        pool.export().await.map_err(words)
    });
    Ok(done?.1)
}
