//! A new file system on a pool in a file, mounted for changing.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use cenote_dmu::tx::TxTunables;
use cenote_fuse::{MountOptions, Tree, TreeOptions, Unmount, mount_tree};
use cenote_sim::{SINGLE, options, tops};
use cenote_spa::{Clock, CreateOptions, Pool, PropertyValue};
use cenote_taskq::{Handle, Runtime, RuntimeOptions};
use cenote_testkit::zdb::{BlockStatistics, Devices, program, run};

use super::can_mount;

pub(crate) async fn new_pool(handle: &Handle, path: &Path) -> Pool {
    File::create(path).unwrap().set_len(256 << 20).unwrap();
    let tops = tops(handle, SINGLE, &[path.to_owned()]).await.unwrap();
    let options = CreateOptions { clock: Clock::Now, cache_bytes: 64 << 20, ..options("mounted", tops, 12) };
    let pool = cenote_sim::new_pool(handle, options).await.unwrap();
    pool.start(TxTunables::default()).await
}

/// Mounts a new file system, does something there, and has what is left judged.
pub(crate) fn mounted(work: impl Fn(&Path) + Send + Sync + 'static) {
    mounted_as(&[], &MountOptions::default(), 1, move |_, at| work(at));
}

/// The same with properties, by the numbers that they are stored as, and options, and several times one after the other: what is done is told which time it is.
pub(crate) fn mounted_as(
    properties: &[(&str, u64)],
    options: &MountOptions,
    times: u32,
    work: impl Fn(u32, &Path) + Send + Sync + 'static,
) {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disks = tempfile::tempdir().unwrap();
    let path = disks.path().join("disk0");
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let work = Arc::new(work);
    runtime.block_on(async {
        let pool = new_pool(&handle, &path).await;
        for (property, number) in properties {
            pool.change_property("mounted", property, Some(&PropertyValue::Number(*number))).await.unwrap();
        }
        for time in 0..times {
            let report = Arc::new(|text: &str| panic!("{text}"));
            let tree = Tree::open_live(&pool, "mounted", options.tree(report)).await.unwrap();
            let mount = mount_tree(&handle, tree, folder.path(), options).await.unwrap();
            let (at, work) = (folder.path().to_owned(), work.clone());
            let worked = handle.spawn_blocking(move || work(time, &at)).await;
            mount.unmount(Unmount::Unused).await.unwrap();
            drop(mount);
            worked.unwrap();
        }
        pool.export().await.unwrap();
    });
    judge(&path);
}

/// Has OpenZFS's `zdb` judge a pool that was exported.
pub(crate) fn judge(path: &Path) {
    if program("zdb").is_some() {
        let told = run(&Devices::of(&[path.to_owned()]).unwrap(), &["-bcc"], "mounted").unwrap();
        assert_eq!(told.status, Some(0), "{}", told.text);
        assert!(BlockStatistics::parse(&told.text).unwrap().leak_free, "{}", told.text);
    }
}

/// Serves a new file system without a kernel.
pub(crate) fn served<F>(work: impl FnOnce(Pool, Tree) -> F)
where
    F: Future<Output = ()>,
{
    let disks = tempfile::tempdir().unwrap();
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    runtime.block_on(async {
        let pool = new_pool(&handle, &disks.path().join("disk0")).await;
        let server = open(&pool).await;
        work(pool.clone(), server).await;
        pool.export().await.unwrap();
    });
}

/// A server of the pool's file system.
pub(crate) async fn open(pool: &Pool) -> Tree {
    let report = Arc::new(|text: &str| panic!("{text}"));
    Tree::open_live(pool, "mounted", TreeOptions { report, ..TreeOptions::default() }).await.unwrap()
}
