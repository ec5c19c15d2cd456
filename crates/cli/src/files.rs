//! The part that the verbs for files share: `ls`, `cat`, `cp`, `tar`. Their grammar is that of [`cenote_image::files`]: a dataset, then paths inside it.

use anyhow::Result;
use cenote_server::View;

use crate::context::Context;

pub(crate) use cenote_admin::values::pool_of;
pub(crate) use cenote_image::files::{Dataset, FileSystem, bytes_of, filesystem, follow, shown};

/// Opens the pool that `name` is in, and finds the dataset.
pub(crate) async fn dataset(context: &Context, name: &str) -> Result<(View, Dataset)> {
    let pool = context.open_pool(pool_of(name)).await?;
    let dataset = pool.dsl().dataset(name).await?;
    Ok((pool, dataset))
}

/// Opens the file system or snapshot `name`.
pub(crate) async fn open(context: &Context, name: &str) -> Result<(Dataset, FileSystem)> {
    let (pool, dataset) = dataset(context, name).await?;
    let filesystem = filesystem(&pool, &dataset).await?;
    Ok((dataset, filesystem))
}
