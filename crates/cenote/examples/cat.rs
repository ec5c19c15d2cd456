//! Prints a file of a pool, without mounting anything.
//!
//! `cargo run -p cenote --example cat -- /images tank/home notes/today`; without arguments, from a pool that is made for it.

mod setup;

use std::io::Write as _;
use std::path::Path;

use cenote::{Error, OpenOptions, Runtime};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

fn cat(folder: &Path, dataset: &str, path: &str, out: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
    let runtime = Runtime::new()?;
    let name = dataset.split(['/', '@']).next().unwrap_or_default();
    runtime.block_on(async {
        let pool = OpenOptions::new().search(folder).cache_bytes(16 << 20).open(&runtime, name).await?;
        let file = pool.filesystem(dataset).await?.open(path).await?;
        let mut at = 0;
        while at < file.len() {
            let bytes = file.read_at(at, CHUNK_BYTES).await?;
            out(&bytes);
            at += bytes.len() as u64;
        }
        pool.export().await
    })
}

/// Prints a file of a pool that is made in a folder.
pub(crate) fn run(folder: &Path) -> Result<Vec<u8>, Error> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let pool = setup::tank(&runtime, folder).await?;
        pool.filesystem("tank/home").await?.write("hello", "hello from a pool\n").await?;
        pool.export().await
    })?;
    let mut text = Vec::new();
    cat(folder, "tank/home", "/hello", &mut |bytes| text.extend_from_slice(bytes))?;
    Ok(text)
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = std::io::stdout().lock();
    match &arguments[..] {
        [folder, dataset, path] => {
            let mut written = Ok(());
            cat(Path::new(folder), dataset, path, &mut |bytes| {
                if written.is_ok() {
                    written = out.write_all(bytes);
                }
            })?;
            written?;
        }
        _ => out.write_all(&run(tempfile::tempdir()?.path())?)?,
    }
    Ok(())
}
