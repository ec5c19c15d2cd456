//! What the verbs for files share: `ls`, `cat`, `cp`, `tar`.
//!
//! # Theory
//!
//! **Grammar.** All of them take a dataset, then paths inside it: `cenote ls tank/home@monday /alice`. Two words, because
//! a dataset's name may hold what a path may hold, `:` and spaces included; a path without a leading slash means the same
//! as with one. What stands below a dataset in the tree of names (`tank/home/alice`) is another dataset and is not
//! entered: its mount point is an empty directory here.
//!
//! **Rejected.** `DATASET:PATH` in one word (a colon is legal in dataset names), and following links out of the dataset
//! (where `/etc` leads depends on where it would be mounted).

mod path;

use anyhow::{Result, bail};
use cenote_dsl::{Dataset, DslError};
use cenote_format::enums::ObjsetType;
use cenote_spa::View;
use cenote_zpl::FileSystem;

use crate::context::Context;

pub(crate) use cenote_dsl::name::pool_of;
pub(crate) use path::{bytes_of, follow, shown};

/// A file system opened for a verb.
pub(crate) struct Opened {
    /// The dataset.
    pub(crate) dataset: Dataset,
    /// Its files.
    pub(crate) filesystem: FileSystem,
}

/// Opens the pool that `name` is in, and finds the dataset.
pub(crate) async fn dataset(context: &Context, name: &str) -> Result<(View, Dataset)> {
    let pool = context.open_pool(pool_of(name)).await?;
    let dataset = pool.dsl().dataset(name).await?;
    Ok((pool, dataset))
}

/// Opens the file system or snapshot `name`.
pub(crate) async fn open(context: &Context, name: &str) -> Result<Opened> {
    let (pool, dataset) = dataset(context, name).await?;
    let filesystem = filesystem(&pool, &dataset).await?;
    Ok(Opened { dataset, filesystem })
}

/// The files of a dataset.
pub(crate) async fn filesystem(pool: &View, dataset: &Dataset) -> Result<FileSystem> {
    let name = dataset.name();
    check_key(pool, dataset).await?;
    let Some(objset) = pool.dsl().open(dataset).await? else { bail!("'{name}' has no contents") };
    if objset.phys().objset_type() == Some(ObjsetType::Zvol) {
        bail!("'{name}' is a volume and has no files; 'cenote cat {name}' gives its bytes");
    }
    Ok(FileSystem::open(objset).await?)
}

/// Fails where the dataset's key is needed and not loaded.
pub(crate) async fn check_key(pool: &View, dataset: &Dataset) -> Result<()> {
    if pool.dsl().encryption(&dataset.dir).await?.is_some_and(|encryption| !encryption.is_loaded) {
        let error = anyhow::Error::from(DslError::KeyNotLoaded(dataset.name()));
        return Err(error.context(format!(
            "'{}' is encrypted and its key is not loaded; give it with --key {}=FILE",
            dataset.name(),
            dataset.dir.name
        )));
    }
    Ok(())
}
