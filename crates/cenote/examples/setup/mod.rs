//! A pool to try the examples on: two mirrored image files in a folder.

use std::path::Path;

use cenote::{CreateOptions, Error, Pool, Runtime};

/// Makes the pool `tank` with the file system `tank/home`.
pub(crate) async fn tank(runtime: &Runtime, folder: &Path) -> Result<Pool, Error> {
    let image = |name: &str| folder.join(name).display().to_string();
    let vdevs = ["mirror".to_owned(), image("a.img"), image("b.img")];
    let pool = CreateOptions::new(vdevs).file_bytes(64 << 20).cache_bytes(16 << 20).create(runtime, "tank").await?;
    pool.create_filesystem("tank/home", &[("compression", "zstd")]).await?;
    Ok(pool)
}
