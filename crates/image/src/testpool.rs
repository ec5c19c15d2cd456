//! Pools on one file, for tests.

use std::path::Path;

use cenote_admin::{NewPool, Owner, create_pool};
use cenote_host::images::Images;
use cenote_host::layout::parse_layout;
use cenote_spa::{Clock, CreateOptions, ImportOptions, View, find, import};
use cenote_taskq::Handle;

/// A pool named `test` whose first txg is not yet written, on a new file of `size_bytes`.
pub(crate) async fn make(handle: &Handle, image: &Path, size_bytes: u64) -> NewPool {
    let layout = parse_layout(&[image.to_str().unwrap().to_owned()]).unwrap();
    Images::default().make_here(&layout, Some(size_bytes)).unwrap();
    let (tops, auxiliaries) = layout.open(handle, &|path| path.to_owned(), Some(9)).await.unwrap();
    let options = CreateOptions {
        name: "test".to_owned(),
        tops,
        auxiliaries,
        ashift: Some(9),
        disabled_features: Vec::new(),
        properties: Vec::new(),
        seed: Some(1),
        clock: Clock::Now,
        host: cenote_host::host(true),
        command: String::new(),
        user: 0,
        cache_bytes: 64 << 20,
        check: false,
    };
    let new = create_pool(handle, options, &[], &[], Owner::ROOT).await.unwrap();
    new.files.keep_no_data();
    new
}

/// The pool on a file, opened for reading.
pub(crate) async fn open(handle: &Handle, image: &Path) -> View {
    let (mut pools, _) = find(handle, &[image.to_owned()]).await;
    import(handle, pools.remove(0), &ImportOptions { force: true, ..ImportOptions::default() }).await.unwrap()
}
