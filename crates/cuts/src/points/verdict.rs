//! The verdict on a crash point.

use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::import;
use cenote_taskq::sim::disk::Image;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Handle, Runtime};
use cenote_zpl::FileSystem;
use cenote_zvol::Volume;

use super::base::{FILE_SYSTEM, Shape, VOLUME, machine, open};
use crate::judge::{files_of, first_difference, found, import_options, objset, read_files};
use crate::life::{run, words};
use crate::model::{Bytes, Files, Log, Range};
use crate::replayed::explained;

/// The checks that a point gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Its logs are replayed, and what is there then is compared.
    Replayed,
    /// Before that the pool is verified and compared as of its txg, and after it exported and verified again.
    Verified,
    /// `zdb` judges it too, before and after.
    Zdb,
}

/// The promises that were made, and the changes that had begun, by a moment.
pub(super) struct Known {
    pub(super) files: Log<Files>,
    pub(super) range: Log<Range>,
    /// The last txg that was reported synced.
    pub(super) synced: Txg,
}

/// Judges what a cut has left on disks.
pub(super) fn judge(shape: &Shape, images: &[Image], known: &Known, depth: Depth, seed: u64) -> Result<(), String> {
    let mut txg = None;
    if depth != Depth::Replayed {
        let before = on(shape, images, seed, async |handle, machine| as_it_is(handle, machine, known).await);
        txg = Some(before.map_err(|error| format!("before it is replayed: {error}"))?.0);
    }
    if depth == Depth::Zdb {
        crate::zdb::judge(images).map_err(|error| format!("before it is replayed: {error:#}"))?;
    }
    let (replayed, after) = on(shape, images, seed ^ 1, async |handle, machine| {
        replay(handle, machine, shape, known, txg, depth != Depth::Replayed).await
    })?;
    if depth == Depth::Replayed {
        return Ok(());
    }
    let state = Known { files: Log::new(replayed.0), range: Log::new(replayed.1), synced: Txg(0) };
    let exported = on(shape, &after, seed ^ 2, async |handle, machine| as_it_is(handle, machine, &state).await);
    exported.map_err(|error| format!("replayed and exported: {error}"))?;
    if depth == Depth::Zdb {
        crate::zdb::judge(&after).map_err(|error| format!("replayed and exported: {error:#}"))?;
    }
    Ok(())
}

/// Does something with disks of this content; what came of it, and the disks after it.
fn on<T>(
    shape: &Shape,
    images: &[Image],
    seed: u64,
    work: impl AsyncFnOnce(&Handle, &cenote_sim::Machine) -> Result<T, String>,
) -> Result<(T, Vec<Image>), String> {
    let runtime = Runtime::simulated(seed);
    let machine = machine(&runtime, shape, images);
    let handle = runtime.handle();
    let done = run(&runtime, work(&handle, &machine))?;
    Ok((done, machine.disks.iter().map(|disk| disk.image()).collect()))
}

/// The pool is whole, and exactly as of its txg, which comes back.
async fn as_it_is(handle: &Handle, machine: &cenote_sim::Machine, known: &Known) -> Result<Txg, String> {
    let pool = import(handle, found(handle, &machine.paths).await?, &import_options()).await;
    let pool = pool.map_err(|error| format!("not imported: {error}"))?;
    let txg = pool.txg();
    if txg < known.synced {
        return Err(format!("txg {} was reported synced, {txg} is there", known.synced));
    }
    let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
    if !report.is_clean() {
        return Err(report.to_string());
    }
    pool.audit().await.map_err(words)?;
    let fs = FileSystem::open(objset(&pool, FILE_SYSTEM).await?).await.map_err(words)?;
    let there = read_files(&fs, 0, &mut Default::default()).await?;
    let states = known.files.as_of(txg);
    if !states.iter().any(|state| files_of(state) == there) {
        let difference = first_difference(&files_of(&states[0]), &there);
        return Err(format!("files are not as of txg {txg}: {difference}; {}", known.files.tail(txg)));
    }
    let volume = Volume::open(&objset(&pool, VOLUME).await?).await.map_err(words)?;
    let state = known.range.as_of(txg).remove(0);
    let bytes = volume.read(state.offset_bytes, state.bytes.len()).await.map_err(words)?;
    if bytes[..] != state.bytes[..] {
        return Err(format!("the volume is not as of txg {txg}: {}", known.range.tail(txg)));
    }
    Ok(txg)
}

/// Opens the pool to be written, which replays its logs, and compares; then exports it if that is asked for.
async fn replay(
    handle: &Handle,
    machine: &cenote_sim::Machine,
    shape: &Shape,
    known: &Known,
    txg: Option<Txg>,
    is_exported: bool,
) -> Result<(Files, Range), String> {
    let found = found(handle, &machine.paths).await?;
    let newest = found.leaves.values().flat_map(|leaf| &leaf.uberblocks).map(|copy| copy.uberblock.txg).max();
    let Some(txg) = txg.or(newest) else { return Err("no uberblock".to_owned()) };
    if txg < known.synced {
        return Err(format!("txg {} was reported synced, {txg} is there", known.synced));
    }
    let log = Arc::new(Mutex::new(Log::new(Files::default())));
    let opened = open(handle, machine, shape, &log).await?;
    let seen = read_files(&opened.files.fs, 0, &mut Default::default()).await?;
    let files = explained(&known.files, txg, &seen)
        .map_err(|error| format!("replayed on txg {txg}: {error}; {}", known.files.tail(txg)))?;
    let mut range = known.range.newest();
    let there = opened.volume.volume().read(range.offset_bytes, range.bytes.len()).await.map_err(words)?;
    let mut bytes = Bytes::new(&there);
    known.range.each_later(txg, |state| bytes.look(&state.bytes));
    if let Some(at) = bytes.unexplained() {
        return Err(format!("the volume, replayed on txg {txg}, at {at}: {}", known.range.tail(txg)));
    }
    range.bytes = there.to_vec();
    if is_exported {
        let super::base::Opened { pool, files, volume } = opened;
        drop((files, volume));
        pool.export().await.map_err(words)?;
    }
    Ok((files, range))
}
