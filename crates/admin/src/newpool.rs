//! Making a pool with its root file system.

use cenote_dmu::Object;
use cenote_spa::{CreateOptions, FileSizes, NamePool as _, Pool, PoolError, PropertyValue, SpaError, create};
use cenote_taskq::{Handle, boxed};
use cenote_zpl::Properties;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

use crate::Setting;
use crate::create::Owner;
use crate::create::root_directory;
use crate::error::AdminError;
use crate::properties::set_properties;

/// Properties that are more than a value: they change accounts, and there are pools that they cannot be kept up in.
const ACCOUNTS: [&str; 4] = ["quota", "refreservation", "filesystem_limit", "snapshot_limit"];

/// A pool whose first txg is not written yet, with an empty root file system.
pub struct NewPool {
    /// The pool. It is one on disk with its first sync.
    pub pool: Pool,
    /// Fills the root file system.
    pub files: BulkWriter,
    /// The root directory, and its attributes.
    pub root: (Object, NodeSpec),
}

/// Makes a pool in memory and labels on its devices, with properties of the pool (none where one is taken away) and of its root file
/// system, whose root directory belongs to `owner`.
///
/// # Errors
/// As [`create`]; a property cannot have its value.
#[boxed]
pub async fn create_pool(
    handle: &Handle,
    options: CreateOptions,
    of_pool: &[(String, Option<PropertyValue>)],
    of_root: &[Setting],
    owner: Owner,
) -> Result<NewPool, AdminError> {
    let pool = create(handle, options).await?;
    for (name, value) in of_pool {
        pool.set_pool_property(name, value.as_ref()).await?;
    }
    let no_root = || SpaError::from(PoolError::Contradiction("it has no root dataset".into())).named(pool.name());
    let head = pool.root().ok_or_else(no_root)?;
    for (name, value) in of_root {
        match ACCOUNTS.contains(&name.as_str()) {
            true => set_properties(&pool, &[pool.name().to_owned()], &[(name.clone(), value.clone())]).await?,
            false => pool.set_property(&head, name, value).await?,
        }
    }
    let node = root_directory(owner, pool.time_s());
    let mut files = BulkWriter::create(&head.objset, pool.txg(), &node).await?;
    let number = |wanted: &str| {
        of_root.iter().rev().find(|(name, _)| name == wanted).and_then(|(_, value)| match value {
            PropertyValue::Number(number) => Some(*number),
            PropertyValue::Text(_) => None,
        })
    };
    // Values that need a feature which the pool is made without were refused.
    let sizes = FileSizes::of_properties(number("recordsize"), number("dnodesize"));
    (files.record_bytes, files.dnode_slots) = (sizes.record_bytes, sizes.dnode_slots);
    files.xattrs = Properties::of(number).files.xattrs;
    let root = files.objset().object(files.root()).await?;
    let node = NodeSpec { parent: root.id(), size_bytes: 2, links: 2, ..node };
    Ok(NewPool { pool, files, root: (root, node) })
}
