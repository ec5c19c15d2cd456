//! Golden pools in simulation, whose blocks are changed behind their checksums.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_mutate::pools::{PoolImages, load};
use cenote_scan::{VerifyOptions, VerifyReport, verify};
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::sim::disk::{Latency, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};
use cenote_zio::mutation::{Filter, set_filter};

/// A walk of the pools used here takes some thousands.
const STEPS_MAX: u64 = 300_000;

pub(crate) fn theme(name: &str) -> PoolImages {
    load(&[name.to_owned()]).unwrap().remove(0)
}

pub(crate) fn runtime(pool: &PoolImages) -> (Runtime, Vec<Arc<SimDisk>>, Vec<PathBuf>) {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let sim = runtime.sim().unwrap();
    sim.set_steps_max(STEPS_MAX);
    let add = |image: &cenote_mutate::pools::Image| {
        let latency = Latency { jitter: Duration::ZERO, ..Latency::default() };
        let size_bytes = image.content.len() as u64;
        let base = Some(image.content.clone());
        let options = SimDiskOptions { size_bytes, base, latency, ..SimDiskOptions::default() };
        sim.add_disk(&handle, image.path.clone(), options)
    };
    let disks = pool.images.iter().map(add).collect();
    let paths = pool.images.iter().map(|image| image.path.clone()).collect();
    (runtime, disks, paths)
}

pub(crate) async fn open(handle: &Handle, paths: &[PathBuf]) -> View {
    let (mut found, _) = find(handle, paths).await;
    let options = ImportOptions { force: true, cache_bytes: 32 << 20, ..ImportOptions::default() };
    import(handle, found.remove(0), &options).await.unwrap()
}

/// Imports the theme's pool, then does `work` with what `filter` makes of its blocks.
pub(crate) fn with_pool<T>(
    name: &str,
    filter: impl FnOnce(&View) -> Option<Filter>,
    work: impl AsyncFnOnce(&Handle, View) -> T,
) -> T {
    let images = theme(name);
    let (runtime, _disks, paths) = runtime(&images);
    let handle = runtime.handle();
    let result = runtime.try_block_on(async {
        let pool = open(&handle, &paths).await;
        set_filter(filter(&pool));
        work(&handle, pool).await
    });
    set_filter(None);
    result.unwrap_or_else(|deadlock| panic!("the walk does not end: {deadlock}"))
}

pub(crate) async fn report(handle: &Handle, pool: &View, options: VerifyOptions) -> VerifyReport {
    verify(handle, pool, options, &mut |_| true).await.unwrap()
}
