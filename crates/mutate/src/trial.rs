//! One mutation from its seed to its verdict.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use cenote_format::ids::Txg;
use cenote_spa::{ImportOptions, Rewind, find};
use cenote_taskq::Runtime;
use cenote_taskq::sim::disk::{Latency, SimDisk, SimDiskOptions};
use cenote_testkit::campaign::take_panics;
use cenote_vdev::leaf::probe;
use cenote_zio::mutation::set_filter;

use crate::pools::{PoolImages, Target};
use crate::random::Random;
use crate::walk::{Plan, Tally, walk};
use crate::{damage, logical, memory};

/// Polls that a walk may take. A clean walk of the largest of the small pools takes a tenth of it.
pub const STEPS_MAX: u64 = 3_000_000;
/// Real seconds that a mutation may take before the watchdog ends the program.
pub const SECONDS_MAX: u64 = 60;
/// The block cache's limit.
const CACHE_BYTES: usize = 32 << 20;

/// The kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anywhere on the disks.
    Blind,
    /// A device ends early.
    Cut,
    /// Labels, with right checksums.
    Sealed,
    /// Blocks, behind their checksums.
    Logical,
}

/// How a mutation ended well.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The kind of damage.
    pub kind: Kind,
    /// The counts of the walk.
    pub tally: Tally,
    /// Polls it took.
    pub steps: u64,
    /// The most memory it had, in bytes.
    pub peak_bytes: usize,
}

fn simulation(pool: &PoolImages, seed: u64, cut: Option<(usize, u64)>) -> (Runtime, Vec<Arc<SimDisk>>, Vec<PathBuf>) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let mut disks = Vec::new();
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(STEPS_MAX);
        for (index, image) in pool.images.iter().enumerate() {
            let whole = image.content.len() as u64;
            let size_bytes = cut.filter(|cut| cut.0 == index).map_or(whole, |cut| cut.1);
            let latency = Latency { jitter: Duration::ZERO, ..Latency::default() };
            let base = Some(image.content.clone());
            let options = SimDiskOptions { size_bytes, base, latency, ..SimDiskOptions::default() };
            disks.push(sim.add_disk(&handle, image.path.clone(), options));
        }
    }
    let paths = pool.images.iter().map(|image| image.path.clone()).collect();
    (runtime, disks, paths)
}

fn options() -> ImportOptions {
    ImportOptions { force: true, cache_bytes: CACHE_BYTES, skip_activity_check: true, ..ImportOptions::default() }
}

/// Walks the pool undamaged and learns where its labels stand and which blocks it is made of.
pub fn survey(pool: &mut PoolImages) -> Result<Tally> {
    let (runtime, _disks, paths) = simulation(pool, 0, None);
    let handle = runtime.handle();
    let labels = runtime.block_on(async {
        let (found, _) = find(&handle, &paths).await;
        let mut labels = Vec::new();
        for leaf in found.iter().flat_map(|pool| pool.leaves.values()) {
            let report = probe(&leaf.disk).await;
            for address in report.labels.iter().filter_map(|label| label.address_bytes) {
                labels.push((leaf.disk.path().to_string(), leaf.disk.start_bytes(), address));
            }
        }
        labels
    });
    for (path, start, address) in labels {
        for image in pool.images.iter_mut().filter(|image| path.starts_with(&*image.path.to_string_lossy())) {
            image.labels.push((start, address));
        }
    }
    if pool.images.iter().all(|image| image.labels.is_empty()) {
        bail!("{}: no labels", pool.name);
    }
    let seen: Rc<RefCell<Vec<Target>>> = Rc::default();
    let notes = Rc::clone(&seen);
    set_filter(Some(Box::new(move |bp, bookmark, _| {
        notes.borrow_mut().push(Target { bookmark, object_type: bp.object_type() });
        None
    })));
    let plan = Plan { options: options(), verify: true, objsets: None, keys: pool.keys.clone(), seed: 0 };
    let tally = runtime.try_block_on(walk(&handle, &paths, &plan));
    set_filter(None);
    let Ok(tally) = tally else { bail!("{}: the undamaged pool takes more than {STEPS_MAX} steps", pool.name) };
    if tally.imported == 0 || tally.objects == 0 {
        bail!("{}: the undamaged pool cannot be read: {tally:?}", pool.name);
    }
    pool.clean_steps = runtime.sim().map_or(0, |sim| sim.steps());
    for target in seen.borrow().iter() {
        let key = (target.object_type, target.bookmark.level > 0, target.bookmark.objset.0 == 0);
        pool.targets.entry(key).or_default().push(*target);
    }
    Ok(tally)
}

/// Does what `seed` stands for.
///
/// # Errors
/// A failure, in words.
pub fn mutate(pools: &[PoolImages], seed: u64) -> Result<Done, String> {
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6d75_7461_7465);
    let pool = random.of(pools);
    let kind = match random.below(20) {
        0..=2 => Kind::Blind,
        3 => Kind::Cut,
        4..=6 => Kind::Sealed,
        _ => Kind::Logical,
    };
    let cut = (kind == Kind::Cut).then(|| {
        let which = random.below(pool.images.len());
        let len = pool.images[which].content.len();
        let left = if random.once_in(2) { random.below(len) } else { len - random.below(1 << 20) };
        (which, left as u64)
    });
    memory::begin(seed);
    take_panics();
    let (runtime, disks, paths) = simulation(pool, seed, cut);
    let mut options = options();
    options.missing_log = random.once_in(2);
    options.missing_tops = random.once_in(2);
    options.checkpoint = random.once_in(64);
    options.rewind = match random.below(6) {
        0 => Rewind::Recent,
        1 => Rewind::Extreme,
        2 => Rewind::ToTxg(Txg(random.below(200) as u64)),
        _ => Rewind::None,
    };
    let mut objsets = Some(BTreeSet::new());
    let mut verify = random.once_in(8);
    match kind {
        Kind::Blind => damage::blind(pool, &disks, &mut random),
        Kind::Sealed => damage::sealed(pool, &disks, &mut random),
        Kind::Cut => {}
        Kind::Logical => {
            options.rewind = Rewind::None;
            let targets = logical::choose(pool, &mut random);
            objsets = Some(targets.iter().map(|target| target.bookmark.objset.0).collect());
            verify |= random.once_in(4);
            set_filter(Some(logical::filter(&targets, random.word())));
        }
    }
    if random.once_in(16) {
        objsets = None;
    }
    // Deriving a key from a passphrase takes longer than all else.
    let keys = if random.once_in(32) { pool.keys.clone() } else { Vec::new() };
    let plan = Plan { options, verify, objsets, keys, seed: random.word() };
    let handle = runtime.handle();
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.try_block_on(walk(&handle, &paths, &plan))));
    let steps = runtime.sim().map_or(0, |sim| sim.steps());
    drop(disks);
    drop(handle);
    drop(runtime);
    set_filter(None);
    let peak_bytes = memory::peak_bytes();
    memory::end();
    let about = format!("{} {kind:?}", pool.name);
    let panics = take_panics();
    if !panics.is_empty() {
        return Err(format!("{about}: panic: {}", panics.join("; ")));
    }
    match ended {
        Err(_) => Err(format!("{about}: a panic without words")),
        Ok(Err(deadlock)) => Err(format!("{about}: {deadlock}")),
        Ok(Ok(tally)) => Ok(Done { kind, tally, steps, peak_bytes }),
    }
}
