//! New pools.

use cenote_spa::{AuxSpec, Clock, CreateOptions, Host, Pool, SpaError, TopSpec, create};
use cenote_taskq::Handle;
use cenote_zpl::ZplError;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

/// The cache of a pool in a test, in bytes.
pub const CACHE_BYTES: usize = 16 << 20;

/// How a pool for tests is made: always the same, with its own book of space checked.
#[must_use]
pub fn options(name: &str, tops: Vec<TopSpec>, ashift: u32) -> CreateOptions {
    CreateOptions {
        name: name.to_owned(),
        tops,
        auxiliaries: AuxSpec::default(),
        ashift: Some(ashift),
        disabled_features: Vec::new(),
        properties: Vec::new(),
        seed: Some(7),
        clock: Clock::Fixed(1_700_000_000),
        host: Host { id: 0, name: "here".into() },
        command: format!("zpool create {name}"),
        user: 0,
        cache_bytes: CACHE_BYTES,
        check: true,
    }
}

/// Makes a pool with a root directory, as of its first txg on disk.
///
/// # Errors
/// As [`create`].
///
/// # Panics
/// The new pool has no root dataset, or one that takes no directory.
pub async fn new_pool(handle: &Handle, options: CreateOptions) -> Result<Pool, SpaError> {
    let pool = create(handle, options).await?;
    let root = pool.root().expect("a new pool has a root dataset").objset;
    let made: Result<_, ZplError> =
        BulkWriter::create(&root, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await;
    drop(made.expect("an empty dataset takes a root directory"));
    pool.sync().await?;
    Ok(pool)
}
