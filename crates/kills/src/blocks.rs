//! Blocks of a served file or volume.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::Result;

use crate::nbd_client::Nbd;

pub(super) const BLOCK_BYTES: usize = 4096;

/// Where blocks are written and read.
pub(super) trait Blocks: Send {
    fn write(&mut self, block: usize, bytes: &[u8]) -> Result<()>;
    fn read(&mut self, block: usize) -> Result<Vec<u8>>;
    fn sync(&mut self) -> Result<()>;
}

impl Blocks for File {
    fn write(&mut self, block: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.write_all_at(bytes, (block * BLOCK_BYTES) as u64)?)
    }

    fn read(&mut self, block: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut done = 0;
        // Behind the end there is nothing, which reads like what was never written.
        while done < BLOCK_BYTES {
            match self.read_at(&mut bytes[done..], (block * BLOCK_BYTES + done) as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(bytes)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}

impl Blocks for Nbd {
    fn write(&mut self, block: usize, bytes: &[u8]) -> Result<()> {
        Nbd::write(self, (block * BLOCK_BYTES) as u64, bytes)
    }

    fn read(&mut self, block: usize) -> Result<Vec<u8>> {
        Nbd::read(self, (block * BLOCK_BYTES) as u64, BLOCK_BYTES)
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()
    }
}
