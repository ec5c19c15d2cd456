//! Copies a file out of a damaged pool: blocks that cannot be read are left out, and the error says which, and where they lie.
//!
//! `cargo run -p cenote --example damaged`

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use cenote::{CreateOptions, Error, ErrorKind, OpenOptions, Runtime};

/// The size of the file's blocks.
const BLOCK_BYTES: usize = 16 << 10;
/// A block's content is a line, again and again.
fn block(number: usize) -> Vec<u8> {
    format!("this is block {number}\n").bytes().cycle().take(BLOCK_BYTES).collect()
}

/// The bytes that could be copied, with zeros for the rest, and a line for each block that could not.
pub(crate) fn run(folder: &Path) -> Result<(Vec<u8>, Vec<String>), Box<dyn std::error::Error>> {
    let runtime = Runtime::new()?;
    let image = folder.join("a.img");
    runtime.block_on(async {
        let options = CreateOptions::new([image.display().to_string()]).file_bytes(64 << 20);
        let options = options.root_property("recordsize", "16K").root_property("compression", "off");
        let pool = options.cache_bytes(16 << 20).create(&runtime, "tank").await?;
        let content: Vec<u8> = (0..8).flat_map(block).collect();
        pool.filesystem("tank").await?.write("data", content).await?;
        pool.export().await
    })?;

    // A disk without redundancy loses the fourth block.
    let bytes = fs::read(&image)?;
    let wanted = block(3);
    let at = bytes.chunks(512).position(|sector| sector == &wanted[..512]).ok_or("the block is there")?;
    fs::File::options().write(true).open(&image)?.write_all_at(&[0xff; 4096], at as u64 * 512)?;

    Ok(runtime.block_on(salvage(&runtime, folder))?)
}

async fn salvage(runtime: &Runtime, folder: &Path) -> Result<(Vec<u8>, Vec<String>), Error> {
    let pool = OpenOptions::new().search(folder).cache_bytes(16 << 20).open(runtime, "tank").await?;
    let file = pool.filesystem("tank").await?.open("data").await?;
    let (mut copy, mut lost) = (Vec::new(), Vec::new());
    while (copy.len() as u64) < file.len() {
        match file.read_at(copy.len() as u64, BLOCK_BYTES).await {
            Ok(bytes) => copy.extend_from_slice(&bytes),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                let place = error.place();
                let (block, device) = (place.block.unwrap_or_default().1, place.device.clone().unwrap_or_default());
                let offset_bytes = place.offset_bytes.unwrap_or_default();
                lost.push(format!("block {block} at {offset_bytes:#x} of {device}"));
                copy.resize(copy.len() + BLOCK_BYTES, 0);
            }
            Err(error) => return Err(error),
        }
    }
    pool.export().await?;
    Ok((copy, lost))
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (copy, lost) = run(tempfile::tempdir()?.path())?;
    println!("{} bytes were copied; lost: {}", copy.len(), lost.join(", "));
    Ok(())
}
