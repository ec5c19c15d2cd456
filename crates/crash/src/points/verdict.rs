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
use crate::judge::{Seen, files_of, first_difference, found, import_options, objset, read_files};
use crate::life::run;
use crate::model::{Bytes, Files, Log, Range};
use crate::replayed::explained;
use crate::stage::words;

/// The promises that were made, and the changes that had begun, by a moment.
pub(super) struct Known {
    pub(super) files: Log<Files>,
    pub(super) range: Log<Range>,
    /// The last txg that was reported synced.
    pub(super) synced: Txg,
}

/// The state that replay has left.
pub(super) struct Replayed {
    /// The last txg on disk before replay.
    pub(super) txg: Txg,
    pub(super) files: Seen,
    pub(super) range: Vec<u8>,
}

/// Opens the disks that a crash has left, which replays their logs. The result depends on the disks alone, so equal disks need this once.
pub(super) fn replayed(shape: &Shape, images: &[Image], seed: u64) -> Result<Replayed, String> {
    Ok(on(shape, images, seed, async |handle, machine| replay(handle, machine, shape, false).await)?.0)
}

/// Judges the disks that a cut has left. The pool is verified before replay and after it, with `has_zdb` by `zdb` too.
pub(super) fn judge(shape: &Shape, images: &[Image], known: &Known, has_zdb: bool, seed: u64) -> Result<(), String> {
    let before = on(shape, images, seed, async |handle, machine| as_it_is(handle, machine, known).await);
    let txg = before.map_err(|error| format!("before it is replayed: {error}"))?.0;
    if has_zdb {
        crate::zdb::judge(images).map_err(|error| format!("before it is replayed: {error:#}"))?;
    }
    let exported = async |handle: &Handle, machine: &cenote_sim::Machine| replay(handle, machine, shape, true).await;
    let (replayed, after) = on(shape, images, seed ^ 1, exported)?;
    let (files, range) = known.explain(&Replayed { txg, ..replayed })?;
    let state = Known { files: Log::new(files), range: Log::new(range), synced: Txg(0) };
    let exported = on(shape, &after, seed ^ 2, async |handle, machine| as_it_is(handle, machine, &state).await);
    exported.map_err(|error| format!("replayed and exported: {error}"))?;
    if has_zdb {
        crate::zdb::judge(&after).map_err(|error| format!("replayed and exported: {error:#}"))?;
    }
    Ok(())
}

impl Known {
    /// Checks that the replayed state keeps the promises to clients, and returns that state.
    pub(super) fn explain(&self, replayed: &Replayed) -> Result<(Files, Range), String> {
        let txg = replayed.txg;
        if txg < self.synced {
            return Err(format!("txg {} was reported synced, {txg} is there", self.synced));
        }
        let files = explained(&self.files, txg, &replayed.files)
            .map_err(|error| format!("replayed on txg {txg}: {error}; {}", self.files.tail(txg)))?;
        let mut range = self.range.newest();
        let mut bytes = Bytes::new(&replayed.range);
        self.range.each_later(txg, |state| bytes.look(&state.bytes));
        if let Some(at) = bytes.unexplained() {
            return Err(format!("the volume, replayed on txg {txg}, at {at}: {}", self.range.tail(txg)));
        }
        range.bytes = replayed.range.clone();
        Ok((files, range))
    }
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
    Ok((done, machine.images()))
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

/// Opens the pool to be written, which replays its logs, and reads all; then exports it if that is asked for.
async fn replay(
    handle: &Handle,
    machine: &cenote_sim::Machine,
    shape: &Shape,
    is_exported: bool,
) -> Result<Replayed, String> {
    let found = found(handle, &machine.paths).await?;
    let newest = found.leaves.values().flat_map(|leaf| &leaf.uberblocks).map(|copy| copy.uberblock.txg).max();
    let txg = newest.ok_or("no uberblock")?;
    let log = Arc::new(Mutex::new(Log::new(Files::default())));
    let super::base::Opened { pool, files, volume } = open(handle, machine, shape, &log).await?;
    let seen = read_files(&files.fs, 0, &mut Default::default()).await?;
    let volume_bytes = super::base::range();
    let range = volume.volume().read(volume_bytes.offset_bytes, volume_bytes.bytes.len()).await.map_err(words)?;
    if is_exported {
        drop((files, volume));
        pool.export().await.map_err(words)?;
    }
    Ok(Replayed { txg, files: seen, range: range.to_vec() })
}
